"""Updates of an interval of times, also as upserts; and listens, which wait for more.

Promises: each update is returned exactly once, with an `upper` up to which the updates are complete.
"""
