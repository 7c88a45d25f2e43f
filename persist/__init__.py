"""Definite, time-varying collections on object storage; see `persist.open`."""

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
    PersistError,
    S3Blob,
    Unavailable,
)
from persist.changes import Changes
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
from persist.errors import (
    AsOfCompacted,
    AsOfNotSealed,
    ClientClosed,
    CollectionExists,
    CollectionNotFound,
    FrontierRegression,
    NegativeMultiplicity,
    ReadOnly,
    UpdateNotBeyondUpper,
)
from persist.future import CommitFuture
from persist.listen import Listen, Progress
from persist.multi_write import MultiWrite
from persist.snapshot import Snapshot

__all__ = [
    "Antichain",
    "AsOfCompacted",
    "AsOfNotSealed",
    "Binary",
    "Blob",
    "Changes",
    "Client",
    "ClientClosed",
    "Codec",
    "CodecMismatch",
    "Collection",
    "CollectionExists",
    "CollectionNotFound",
    "CommitFuture",
    "Conflict",
    "CorruptBlob",
    "Corruption",
    "DiffOverflow",
    "FileBlob",
    "FrontierRegression",
    "FsspecBlob",
    "IncompatibleVersion",
    "Indeterminate",
    "Int64",
    "InvalidUpdate",
    "InvalidUsage",
    "Json",
    "Listen",
    "MemoryBlob",
    "MultiWrite",
    "NegativeMultiplicity",
    "PersistError",
    "Progress",
    "ReadOnly",
    "S3Blob",
    "SchemaMismatch",
    "Snapshot",
    "Unavailable",
    "Unit",
    "UpdateNotBeyondUpper",
    "Utf8",
    "open",
]
