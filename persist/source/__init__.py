"""What follows a collection exactly: each update once, in micro-batches that end at sealed times.

Promises: what lies between two offsets is the same whenever it is planned and whoever reads it; a permanent hold keeps
what a stopped query has not read yet; where history is gone after all, or another query moved the hold, the query is
told so before it is given anything. The room knows nothing of the engine that runs the tasks.
"""

from persist.source.hold import NO_HOLD, Offset, Position, StreamHold
from persist.source.source import NO_LIMITS, BatchEnds, BatchLimits, CollectionAddress, SourceOptions, StreamSource
