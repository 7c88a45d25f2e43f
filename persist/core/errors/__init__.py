"""Every error of the library, grouped by what a handler does about it.

Users import them from `persist.errors`, which lists the groups. The layers of storage and of columns define their own
errors. All can be pickled, because they cross process boundaries in Spark.

Promises: a message names the fault, the allowed values and the remedy.
"""

# ruff: noqa: F403, F405 - mypy needs the names in a list.

from persist.blob.errors import *
from persist.codecs.errors import *
from persist.core.errors.conflicts import *
from persist.core.errors.conflicts import Superseded as Superseded  # Never leaves the library.
from persist.core.errors.times import *
from persist.core.errors.times import attach_timeline as attach_timeline
from persist.core.errors.usage import *

__all__ = [
    "AsOfCompacted",
    "AsOfNotSealed",
    "BadMessage",
    "BeforeDiffers",
    "BeforeViewBegan",
    "ClientClosed",
    "ClockAhead",
    "CodecMismatch",
    "CollectionExists",
    "CollectionNeeded",
    "CollectionNotFound",
    "ColumnsNeeded",
    "Conflict",
    "CorruptBlob",
    "Corruption",
    "DescriptionMoved",
    "DiffOverflow",
    "DuplicateKeys",
    "FrontierRegression",
    "FunctionNotFound",
    "HoldMoved",
    "HoldNotFound",
    "IncompatibleVersion",
    "Indeterminate",
    "InputClosed",
    "InvalidUpdate",
    "InvalidUsage",
    "KeyedCollection",
    "LateEvents",
    "LeaseExpired",
    "LimitReached",
    "Locked",
    "LogInterrupted",
    "LogReplaced",
    "MissingBlob",
    "NegativeMultiplicity",
    "NotConsolidated",
    "NotConverging",
    "NotDeleted",
    "NotKeyed",
    "NotOneValue",
    "OperatorFailed",
    "OutputConflict",
    "PendingEvents",
    "PersistError",
    "QueryMismatch",
    "ReadOnly",
    "ReadOnlyStore",
    "SchemaMismatch",
    "SchemaMoved",
    "SinkMoved",
    "SourceLost",
    "StoreFull",
    "StoreMisconfigured",
    "TagMoved",
    "TagNotFound",
    "TargetUnavailable",
    "Throttled",
    "TokenForgotten",
    "TokenReused",
    "Unavailable",
    "UpdateNotBeyondUpper",
    "UpdatesBeyondUpper",
    "UploadExpired",
    "UpperMismatch",
    "ViewRedefined",
    "ViewWritten",
    "WouldRecompute",
    "WriterFenced",
]

for _name in __all__:  # Wherever it is defined, an error is shown and pickled under the name that users import.
    globals()[_name].__module__ = "persist.errors"
