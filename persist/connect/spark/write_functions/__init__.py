"""The functions of `persist.spark` that write DataFrames: rows sorted by key, events, deletions, and micro-batches.

Promises: a write is one record or none; a task that is tried again counts once.
"""
