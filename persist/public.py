"""Everything that users import from `persist`, which takes it from here at the first use of one of these names."""

from persist.antichain import Antichain
from persist.blob import (
    Blob,
    Conflict,
    Corruption,
    FileBlob,
    FsspecBlob,
    Indeterminate,
    InvalidUsage,
    MemoryBlob,
    PersistError,
    S3Blob,
    Unavailable,
)
from persist.client import Client, open
from persist.codecs import (
    Binary,
    Codec,
    Int64,
    Json,
    Unit,
    Utf8,
)
from persist.collection import Collection
from persist.compact import CompactionReport
from persist.egress import egress
from persist.engine import About, Retained, UpgradeReport
from persist.follow import Following
from persist.fsck import Checked, FsckReport, Problem, Repair, Unreferenced, fsck
from persist.hold import Hold, HoldInfo
from persist.ingest import ingest
from persist.metrics import Metrics
from persist.multi_write import MultiWrite
from persist.notify import Notify
from persist.read import Changes, Explanation, JointListen, JointProgress, Listen, Progress, Snapshot
from persist.settings import Settings
from persist.state import Unsealed
from persist.timeline import Timeline
from persist.upkeep import GarbageReport
from persist.upsert import Behind, Keyed
from persist.view import View
from persist.work import Work, progress
from persist.write import CommitFuture

__all__: list[str] = [
    "About",
    "Antichain",
    "Behind",
    "Binary",
    "Blob",
    "Changes",
    "Checked",
    "Client",
    "Codec",
    "Collection",
    "CommitFuture",
    "CompactionReport",
    "Conflict",
    "Corruption",
    "Explanation",
    "FileBlob",
    "Following",
    "FsckReport",
    "FsspecBlob",
    "GarbageReport",
    "Hold",
    "HoldInfo",
    "Indeterminate",
    "Int64",
    "InvalidUsage",
    "JointListen",
    "JointProgress",
    "Json",
    "Keyed",
    "Listen",
    "MemoryBlob",
    "Metrics",
    "MultiWrite",
    "Notify",
    "PersistError",
    "Problem",
    "Progress",
    "Repair",
    "Retained",
    "S3Blob",
    "Settings",
    "Snapshot",
    "Timeline",
    "Unavailable",
    "Unit",
    "Unreferenced",
    "Unsealed",
    "UpgradeReport",
    "Utf8",
    "View",
    "Work",
    "egress",
    "fsck",
    "ingest",
    "open",
    "progress",
]
