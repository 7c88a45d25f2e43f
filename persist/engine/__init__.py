"""The seam: what one client does with one location, as operations for the rest of the package.

Promises: whoever stands on it (`Client`, `Collection`, `MultiWrite`, upserts, dataflow, Spark, the command line) needs
no other way into the log, the store or the threads of a client. Every operation raises ClientClosed after `close`, and
ReadOnly where a client of mode "read" would write.
"""

from persist.engine.collection_handle import CollectionHandle
from persist.engine.engine import Engine
from persist.engine.options import Mode, OpenOptions
from persist.engine.writer import Writer

__all__ = ["CollectionHandle", "Engine", "Mode", "OpenOptions", "Writer"]
