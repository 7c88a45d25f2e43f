"""Look-ups by key: what they are asked for, where they look, what they read, and what they keep for the next one.

Promises: the same rows as a snapshot filtered by the keys has; only row groups that may hold a wanted key are read.
"""
