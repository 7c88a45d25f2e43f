"""Wrappers, each a `Blob` around a `Blob`: retries, caches, meters, and faults for tests.

Promises: each returns what the store below it would return, and none knows what the keys mean.
"""
