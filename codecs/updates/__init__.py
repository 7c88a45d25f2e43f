"""Updates: whatever a caller has, as one checked Arrow table, and back to Python tuples.

Promises: results have the collection's columns and types, and valid times and diffs; input that does not fit is refused
with its column and row.
"""
