"""Bytes under keys, with put-if-absent: what storage must do, and the stores that do it.

Promises: of concurrent calls of `create` for one key, exactly one wins; a reader sees all of a value or none. An error
is either certain (nothing happened) or leaves the outcome open; then only the log shows what happened.
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
from persist.blob.layers.cache import SMALL_BYTES, CacheCount, CachedBlob, get_checked, get_range_checked
from persist.blob.layers.cache_folder import BoundedFolder
from persist.blob.layers.metered import Count, LatencyHistogram, MeteredBlob
from persist.blob.layers.retry import RetryBlob, RetryCount
from persist.blob.layers.unreliable import Fault, UnreliableBlob
from persist.blob.lru import Cache, Kind
from persist.blob.options import check_fields
from persist.blob.protocol import LIST_PAGE_ENTRIES, Blob, BlobEntry, MemoryBlob, delete_all, get_at_most, is_remote
from persist.blob.served import (
    SERVED_DELETE_KEYS,
    SERVED_PUT_BYTES_MAX,
    STORE_ERRORS,
    BlobDelete,
    BlobGet,
    BlobHead,
    BlobListPage,
    BlobPage,
    BlobPut,
    ServedBlob,
)
from persist.blob.stores.file import FileBlob
from persist.blob.stores.fsspec import FsspecBlob
from persist.blob.stores.s3 import S3Blob, S3Options
from persist.blob.threads import Backoff, Clock, DaemonThreads, Pool, SystemClock
from persist.blob.url import open_blob

# The names that users import to configure a store or to write one.
__all__ = ["Fault", "LatencyHistogram", "NotDeleted", "S3Options", "ServedBlob", "Throttled", "UnreliableBlob"]
