"""What computes: indexes, queries, tasks for engines such as Spark, dataflow, and views in SQL."""
