"""Wrappers, each a `Blob` around a `Blob`: retries, hedged reads, caches, meters, and faults for tests."""
