"""Streams in Spark, both ways: micro-batches that end at sealed times, and commits exactly once."""
