"""DataFrames and SQL names for the contents of collections, by plans of Spark's own Parquet scan where possible.

Promises: every way returns the rows that Python reads. An ambiguous name raises an error.
"""
