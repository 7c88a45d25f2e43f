"""Fetches, verifies, decodes and caches the parts of a read.

Promises: every blob is verified before any of its rows is used. Slices bound the memory, not the size of the
collection.
"""
