"""Updates: whatever a caller has, as one checked Arrow table, and back to Python tuples."""
