"""What stands behind `persist.spark` and `format("persist")`.

Promises: what is read and written is exactly what Python reads and writes, and a location that both use needs nothing
besides the store. `persist.spark` exports the functions, and `pyspark_persist` the data source; `options` declares its
options.
"""
