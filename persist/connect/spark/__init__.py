"""Collections in Spark: a data source, `format("persist")`, and functions for what a data source cannot do.

Spark finds the source by itself, through the package `pyspark_persist`. A JVM that was started by another Python, or
before this library was installed, cannot. So importing this package registers the source with the session that is
active, and tells a JVM that is still to be started which Python the driver runs (`PYSPARK_DRIVER_PYTHON`, unless the
environment names one). The functions here register the source with the session that they are given, and so does
`register(spark)`.

| | | |---|---| | `snapshot`, `changes`, `location`, `explain` | DataFrames by Spark's own Parquet scan, where it can be
used | | `as_of_join` | rows with what their keys held at the times of the rows | | `create_views`, `register` | names
for collections in SQL | | `columns_used`, `pruned` | what a query needs, since Spark does not tell a Python data source
| | `write`, `foreach_batch_writer` | DataFrames ranged and sorted by key; many collections from one streaming query | |
`sql` | queries, whose tables may have times of their own; UPDATE, DELETE, INSERT and MERGE INTO as one commit | |
`delete` | retractions of what a condition finds, or of keys | | `upsert` | events by key, looked up on the driver or in
tasks | | `refresh`, `explain_refresh`, `run_program` | steps of views and of dataflow programs by tasks | | `compact` |
maintenance by the tasks of a cluster |

Promises: what is read and written is exactly what Python reads and writes, and a location that both use needs nothing
besides the store. Options of the data source are declared in `persist.connect.spark.options`.
"""
