"""Sinks: send collections and views to databases, topics and files, each change exactly once.

Promises: data and the position of the sink are one transaction of the target, so a crash loses and repeats nothing.
Readers of the target see whole times, of all collections of the sink. A permanent hold keeps the unsent history.
Memory is bounded by the size of a slice of keys. No password is in a message or a log.
"""
