"""Resolution of pending events, removal of unneeded tombstones, and the history of keys.

Promises: resolving and reading return the same rows. Slices of the key space bound the memory.
"""
