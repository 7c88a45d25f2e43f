"""The results of a read for users: Arrow, pandas, Polars, DuckDB, sums and exports.

Promises: nothing is read before a method needs it. No value changes on its way into another library.
"""
