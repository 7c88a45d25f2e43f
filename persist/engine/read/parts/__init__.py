"""From a state and a time to tables: plan a read, fetch and decode its parts, and merge slices.

Promises: a plan names immutable parts, so a later read of it returns the same rows. Every blob is verified before any
of its rows is used. Slices bound the memory, not the size of the collection.
"""
