"""Fetches, verifies, decodes and caches the parts of a read.

Promises: a plan names immutable parts, so a later read of it returns the same rows. Every blob is verified before any
of its rows is used. Slices bound the memory, not the size of the collection.
"""
