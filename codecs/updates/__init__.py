"""Updates: whatever a caller has, as one checked Arrow table, and back to Python tuples.

Promises: what comes out is in the collection's columns and types, with times and diffs that are allowed; what does not
fit is refused with its column and row.
"""
