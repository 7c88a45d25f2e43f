"""Reads of a state as of a time: plans, scans, snapshots, changes, point reads and aggregates.

Promises: a plan names immutable parts, so a later read of it returns the same rows. Every blob is verified before any
of its rows is used. Slices bound the memory, not the size of the collection.
"""
