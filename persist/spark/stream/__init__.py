"""Streams in Spark, both ways: micro-batches that end at sealed times, and commits exactly once.

Promises: each update is given out, and each batch committed, exactly once, across restarts.
"""
