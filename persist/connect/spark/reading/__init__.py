"""DataFrames and names in SQL for the contents of collections: by plans of Spark's own Parquet scan where it can.

Promises: the rows are those that Python reads, by whichever way; a name that cannot be told apart is refused.
"""
