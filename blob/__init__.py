"""Bytes under keys, with put-if-absent: what storage must do, and the stores that do it."""

from persist.blob.cached import CacheCount, CachedBlob
from persist.blob.checked import get_checked
from persist.blob.clock import Clock, SystemClock
from persist.blob.deletion import NotDeleted, delete_all
from persist.blob.errors import (
    Conflict,
    CorruptBlob,
    Corruption,
    IncompatibleVersion,
    Indeterminate,
    InvalidUsage,
    MissingBlob,
    PersistError,
    ReadOnlyStore,
    StoreMisconfigured,
    Throttled,
    Unavailable,
)
from persist.blob.file import FileBlob
from persist.blob.fsspec import FsspecBlob
from persist.blob.histogram import LatencyHistogram
from persist.blob.locate import open_blob
from persist.blob.memory import MemoryBlob
from persist.blob.metered import Count, MeteredBlob
from persist.blob.protocol import Blob, BlobEntry, check_key
from persist.blob.retry import RetryBlob, RetryCount, RetryPolicy
from persist.blob.s3 import S3Blob, S3Options
from persist.blob.unreliable import Fault, UnreliableBlob

__all__ = [
    "Blob",
    "BlobEntry",
    "CacheCount",
    "CachedBlob",
    "Clock",
    "Conflict",
    "CorruptBlob",
    "Corruption",
    "Count",
    "Fault",
    "FileBlob",
    "FsspecBlob",
    "IncompatibleVersion",
    "Indeterminate",
    "InvalidUsage",
    "LatencyHistogram",
    "MemoryBlob",
    "MeteredBlob",
    "MissingBlob",
    "NotDeleted",
    "PersistError",
    "ReadOnlyStore",
    "RetryBlob",
    "RetryCount",
    "RetryPolicy",
    "S3Blob",
    "S3Options",
    "StoreMisconfigured",
    "SystemClock",
    "Throttled",
    "Unavailable",
    "UnreliableBlob",
    "check_key",
    "delete_all",
    "get_checked",
    "open_blob",
]
