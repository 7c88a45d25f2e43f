"""The implementation of `persist.spark` and `format("persist")`.

Spark reads and writes exactly the same data as Python. A location that both use needs nothing but the store.
`persist.spark` exports the functions, and `pyspark_persist` the data source; `options` declares its options.
"""
