"""Expressions: one tree of terms, parsers that build it, and evaluators that compute it.

Promises: a term has one meaning, whichever parser built it. Terms of the same structure are equal. `evaluate` computes
columns in memory. `to_arrow_filter` translates a term for Arrow, which filters files.
"""
