"""Batch reads by Spark: plans of its own Parquet scan where it can, the data source where it cannot.

Promises: the rows are those that Python reads, by whichever way.
"""
