"""Expressions over columns: the tree that `col` and `lit` build, its types, and what it gives on Arrow columns.

Promise: an expression gives the same value wherever it is evaluated, and SQL functions mean what DuckDB means by them.
"""
