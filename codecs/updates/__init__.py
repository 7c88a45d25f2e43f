"""Converts callers' data to checked Arrow tables of updates, and back to Python tuples.

Promises: results have the collection's columns and types, and valid times and diffs; input that does not fit is refused
with its column and row.
"""
