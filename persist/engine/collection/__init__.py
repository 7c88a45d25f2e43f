"""The operations on collections: reads, plain rows, keyed events, commits of several steps, clones and evolution.

Promises: each operation is one commit or none. It raises ClientClosed after `close`, and ReadOnly if a client of mode
"read" would write.
"""
