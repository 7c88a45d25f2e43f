"""The operations on collections: reads, plain rows, keyed events, commits of several steps, clones and evolution.

Promises: each operation is one commit or none; it raises ClientClosed after `close`, and ReadOnly where a client of
mode "read" would write.
"""
