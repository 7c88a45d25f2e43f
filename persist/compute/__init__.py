"""Computation on collections: indexes, queries, tasks for engines such as Spark, dataflow, and views in SQL.

Promises: a view or an output of a dataflow holds at each sealed time the result for its inputs at that time.
"""
