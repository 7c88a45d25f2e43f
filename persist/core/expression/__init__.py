"""Expressions: one tree of terms, what is parsed into it, and what computes it.

Promise to those above: a term means the same whoever wrote it, terms that are built alike are equal, and there are two
evaluators: `evaluate` for columns in memory, and Arrow's own engine for filters of files (`arrow_filter`).
"""
