"""What users hold of a read, and the ways to take it away: Arrow, pandas, Polars, DuckDB, sums, exports.

Promises: nothing is read before a method asks for it; no value changes on its way into another library.
"""
