"""An open location: the engine, its handles on collections, and the threads of a client that writes.

Promises: callers access the log, the store and a client's threads only through this package. Every operation raises
ClientClosed after `close`, and ReadOnly if a client of mode "read" would write.
"""
