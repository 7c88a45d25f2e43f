"""An open location: the engine, its handles on collections, and the threads of a client that writes.

Promises: callers need no other way to the log, the store or a client's threads. Every operation raises ClientClosed
after `close`, and ReadOnly if a client of mode "read" would write.
"""
