"""What changed: the updates of an interval of times, the same as upserts, and listens, which wait for more.

Promises: each update is given out exactly once, and an upper says how far what was given out is complete.
"""
