"""Every error of the library, grouped by what a handler does about it.

    PersistError
    ├── InvalidUsage (also ValueError)  the caller's mistake; fix the call
    ├── Conflict                        someone else was first; read again, then retry
    ├── Unavailable                     the store did nothing; retry with back-off
    ├── Indeterminate                   the write may have landed; read back before trying again
    └── Corruption                      bytes contradict themselves; stop, naming the blob

Users import all of them from here, and the groups from `persist`, too. Errors that speak of storage or of columns are
defined in the layer that raises them. All survive pickling, because they cross process boundaries in Spark.

Promises: a message says what was wrong, what is allowed and what to do.
"""

from persist.blob.errors import (
    Conflict,
    CorruptBlob,
    Corruption,
    IncompatibleVersion,
    Indeterminate,
    InvalidUsage,
    MissingBlob,
    NotDeleted,
    PersistError,
    ReadOnlyStore,
    StoreFull,
    StoreMisconfigured,
    Throttled,
    Unavailable,
)
from persist.codecs.errors import CodecMismatch, DiffOverflow, InvalidUpdate, SchemaMismatch
from persist.core.errors.conflicts import (
    CollectionExists,
    DescriptionMoved,
    LeaseExpired,
    Locked,
    LogInterrupted,
    LogReplaced,
    QueryMismatch,
    SchemaMoved,
    SinkMoved,
    TargetUnavailable,
    UploadExpired,
    ViewRedefined,
    WriterFenced,
)
from persist.core.errors.conflicts import Superseded as Superseded  # Never leaves the library, nor does what follows.
from persist.core.errors.times import (
    AsOfCompacted,
    AsOfNotSealed,
    BeforeViewBegan,
    FrontierRegression,
    HoldMoved,
    PendingEvents,
    TagMoved,
    UpdateNotBeyondUpper,
    UpdatesBeyondUpper,
    UpperMismatch,
)
from persist.core.errors.times import UnsealedWrites as UnsealedWrites
from persist.core.errors.times import with_timeline as with_timeline
from persist.core.errors.usage import (
    BadMessage,
    BeforeDiffers,
    ClientClosed,
    ClockAhead,
    CollectionNeeded,
    CollectionNotFound,
    ColumnsNeeded,
    DuplicateKeys,
    FunctionNotFound,
    HoldNotFound,
    InputClosed,
    KeyedCollection,
    LateEvents,
    LimitReached,
    NegativeMultiplicity,
    NotConsolidated,
    NotConverging,
    NotKeyed,
    NotOneValue,
    OperatorFailed,
    OutputConflict,
    ReadOnly,
    SourceLost,
    TagNotFound,
    TokenForgotten,
    TokenReused,
    ViewWritten,
    WouldRecompute,
)

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
