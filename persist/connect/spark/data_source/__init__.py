"""`format("persist")`: what Spark reads, writes and streams by a Python data source, with its options as strings.

Promises: the rows are those that Python reads; all of a write is in one record, or nothing is; tasks that are tried
again count once; every micro-batch is one commit, exactly once.
"""
