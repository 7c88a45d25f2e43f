"""DataFrames of snapshots and changes, read by Spark's own Parquet scan if possible.

Promises: every way returns the rows that Python reads. An ambiguous name raises an error.
"""
