"""Look-ups by key: requested keys, the parts that may hold them, and a cache for the next look-up.

Promises: a look-up returns the rows of a snapshot with the same keys. It reads only row groups that may have one of the
keys.
"""
