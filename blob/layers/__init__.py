"""Wrappers, each a `Blob` around a `Blob`: retries, caches, meters, and faults for tests.

Promises: each answers as the store below it would, and none knows what the keys mean.
"""
