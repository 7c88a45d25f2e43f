"""Functions that write DataFrames: ranged by key, events resolved by tasks, deletions, and micro-batches.

Promises: all of a write is in one record, or nothing is; tasks that are tried again count once.
"""
