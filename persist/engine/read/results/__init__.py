"""Results of a read as users get them: Arrow, pandas, Polars, DuckDB, sums and exports.

Promises: nothing is read before a method needs it. No value changes on its way into another library.
"""
