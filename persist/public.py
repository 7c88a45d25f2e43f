"""Everything that users import from `persist`, which takes it from here at the first use of one of these names."""

from persist.antichain import Antichain
from persist.blob import (
    Blob,
    Conflict,
    CorruptBlob,
    Corruption,
    FileBlob,
    FsspecBlob,
    IncompatibleVersion,
    Indeterminate,
    InvalidUsage,
    MemoryBlob,
    MissingBlob,
    PersistError,
    RetryPolicy,
    S3Blob,
    Unavailable,
)
from persist.client import Client, open
from persist.codecs import (
    Binary,
    Codec,
    CodecMismatch,
    DiffOverflow,
    Int64,
    InvalidUpdate,
    Json,
    SchemaMismatch,
    Unit,
    Utf8,
)
from persist.collection import Collection
from persist.compact.report import CompactionReport
from persist.compaction_policy import CompactionPolicy
from persist.engine.telling import About, Retained
from persist.errors import (
    AsOfCompacted,
    AsOfNotSealed,
    ClientClosed,
    CollectionExists,
    CollectionNeeded,
    CollectionNotFound,
    ColumnsNeeded,
    DescriptionMoved,
    FrontierRegression,
    HoldMoved,
    HoldNotFound,
    KeyedCollection,
    LateEvents,
    LeaseExpired,
    Locked,
    LogInterrupted,
    LogReplaced,
    NegativeMultiplicity,
    NotKeyed,
    NotOneValue,
    PendingEvents,
    QueryMismatch,
    ReadOnly,
    SchemaMoved,
    TagMoved,
    TagNotFound,
    TokenReused,
    UpdateNotBeyondUpper,
    UpdatesBeyondUpper,
    UploadExpired,
    UpperMismatch,
    ViewRedefined,
    ViewWritten,
    WriterFenced,
)
from persist.follow import Following
from persist.fsck.examine import fsck
from persist.fsck.report import Checked, FsckReport, Problem, Repair, Unreferenced
from persist.hold.holds import Hold, HoldInfo
from persist.importing import ImportedVersion
from persist.metrics import Metrics
from persist.multi_write import MultiWrite
from persist.notify.address import Notify
from persist.progress_bars import Work, progress
from persist.read.changes import Changes
from persist.read.joint_listen import JointListen, JointProgress
from persist.read.listen import Listen, Progress
from persist.read.plan import Explanation
from persist.read.snapshot import Snapshot
from persist.settings import Settings
from persist.state.unsealed import Unsealed
from persist.timeline import Timeline
from persist.upkeep.garbage import GarbageReport
from persist.upsert.keyed import Behind, Keyed
from persist.view import View
from persist.write.future import CommitFuture

__all__: list[str] = [
    "About",
    "Antichain",
    "AsOfCompacted",
    "AsOfNotSealed",
    "Behind",
    "Binary",
    "Blob",
    "Changes",
    "Checked",
    "Client",
    "ClientClosed",
    "Codec",
    "CodecMismatch",
    "Collection",
    "CollectionExists",
    "CollectionNeeded",
    "CollectionNotFound",
    "ColumnsNeeded",
    "CommitFuture",
    "CompactionPolicy",
    "CompactionReport",
    "Conflict",
    "CorruptBlob",
    "Corruption",
    "DescriptionMoved",
    "DiffOverflow",
    "Explanation",
    "FileBlob",
    "Following",
    "FrontierRegression",
    "FsckReport",
    "FsspecBlob",
    "GarbageReport",
    "Hold",
    "HoldInfo",
    "HoldMoved",
    "HoldNotFound",
    "ImportedVersion",
    "IncompatibleVersion",
    "Indeterminate",
    "Int64",
    "InvalidUpdate",
    "InvalidUsage",
    "JointListen",
    "JointProgress",
    "Json",
    "Keyed",
    "KeyedCollection",
    "LateEvents",
    "LeaseExpired",
    "Listen",
    "Locked",
    "LogInterrupted",
    "LogReplaced",
    "MemoryBlob",
    "Metrics",
    "MissingBlob",
    "MultiWrite",
    "NegativeMultiplicity",
    "NotKeyed",
    "NotOneValue",
    "Notify",
    "PendingEvents",
    "PersistError",
    "Problem",
    "Progress",
    "QueryMismatch",
    "ReadOnly",
    "Repair",
    "Retained",
    "RetryPolicy",
    "S3Blob",
    "SchemaMismatch",
    "SchemaMoved",
    "Settings",
    "Snapshot",
    "TagMoved",
    "TagNotFound",
    "Timeline",
    "TokenReused",
    "Unavailable",
    "Unit",
    "Unreferenced",
    "Unsealed",
    "UpdateNotBeyondUpper",
    "UpdatesBeyondUpper",
    "UploadExpired",
    "UpperMismatch",
    "Utf8",
    "View",
    "ViewRedefined",
    "ViewWritten",
    "Work",
    "WriterFenced",
    "fsck",
    "open",
    "progress",
]
