"""An open location: the engine, its handles on collections, and the threads of a client that writes.

Promises: whoever stands on it needs no other way into the log, the store or the threads of a client. Every operation
raises ClientClosed after `close`, and ReadOnly where a client of mode "read" would write.
"""
