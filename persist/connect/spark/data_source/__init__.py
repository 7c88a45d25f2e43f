"""`format("persist")`, a Python data source: reads, writes and streams.

Promises: Spark reads the rows that Python reads. A write is one record or none. A retried task counts once. Every
micro-batch is one commit, exactly once.
"""
