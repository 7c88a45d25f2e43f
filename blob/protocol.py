"""The protocol of a store: bytes under keys, with one atomic operation.

A key is a relative, `/`-separated path of UTF-8 text. Keys sort by their UTF-8 bytes. A `Blob` knows nothing of time,
collections or formats. Everything above it relies on these promises:

- `create` is atomic: of any number of concurrent calls for one key, in any process or machine, at most one returns
  True, and exactly one if none of them raised. The key then keeps that call's bytes until `set` or `delete`.
- A reader never sees part of a value: `get` returns one whole stored value.
- A call that returned is durable and visible to every later call of every client (`list` included).
- Deleting many keys is not atomic: after an error or a crash some of them are gone. Delete them again: that is
  idempotent.
- An error is determinate (`Unavailable`: nothing happened) or not (`Indeterminate`: the write may have happened, or may
  still happen). `create` does not retry by itself after an indeterminate failure. False therefore always means that the
  key exists, but this client's own earlier attempt may have created it.

`MemoryBlob` is the simplest store: in the memory of this process, for tests, and for `memory://name`.
"""

import bisect
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import ClassVar, Protocol

from persist.blob.errors import CorruptBlob, InvalidUsage, NotDeleted, PersistError

KEY_BYTES_MAX = 900  # S3 allows 1024 including the location's prefix.
SEGMENT_BYTES_MAX = 200  # Linux file names end at 255 bytes, and temporary files add to the name.
TEMPORARY_PREFIX = ".tmp-"
TEMPORARY_AGE_MAX_S = 3600.0  # The writer of an older one has died.
OPERATIONS = ("create", "delete", "get", "list", "set")
DELETE_PAGE_MAX = 1000
LIST_PAGE_ENTRIES = 1000  # As S3 has it; what layers count and retry as one request.
_DELETING_THREADS = 8

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class BlobEntry:
    """One entry of a listing: the key, the length of its value, and the store's time of the last change."""

    key: str
    bytes: int
    modified_s: float


class Blob(Protocol):
    """A store of values under keys, mostly never changed. All methods may be called from any thread."""

    @property
    def url(self) -> str:
        """The store's address, for messages; never contains credentials."""

    def get(self, key: str, range: tuple[int, int] | None = None) -> bytes | None:
        """Return the value at key, or None when there is none.

        Args:
            key: where to look.
            range: bytes `[start, end)` to return; cut at the end of the value, so possibly empty.
        """

    def set(self, key: str, value: bytes) -> None:
        """Store value at key, replacing what was there."""

    def create(self, key: str, value: bytes) -> bool:
        """Store value at key if there is none; return whether this call stored it."""

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[BlobEntry]:
        """Yield entries whose key starts with prefix, in key order, those after start_after only.

        Lazy: a page (up to 1,000 entries on S3) is fetched when the iteration reaches it.
        """

    def delete(self, key: str) -> None:
        """Remove key; a missing key is not an error."""

    def close(self) -> None:
        """Free sockets and other resources; idempotent."""


def is_remote(blob: Blob) -> bool:
    """Return whether calls of a store go over a network, where some may hang or be far slower than others.

    A remote store has an attribute of this name; a layer returns that of its inner store.
    """
    return bool(getattr(blob, "is_remote", False))


def get_at_most(blob: Blob, key: str, bytes_max: int) -> bytes | None:
    """Return the value at key, or None when there is none.

    Anyone who can write to a folder can put a huge file there for free, such as a sparse one. So a value that is too
    large is not read. A remote store still returns the whole value, because only then does it verify its own checksum.

    Raises CorruptBlob: the value has more than bytes_max bytes.
    """
    offered: Callable[[str, int], bytes | None] | None = getattr(blob, "get_at_most", None)  # As `delete_page` is.
    if offered is not None:
        return offered(key, bytes_max)
    value = blob.get(key)
    if value is not None:
        check_bytes(key, len(value), bytes_max)
    return value


def check_bytes(key: str, size: int, bytes_max: int) -> None:
    """Raise CorruptBlob if a value has more than bytes_max bytes."""
    if size > bytes_max:
        raise CorruptBlob(key, f"it has {size:,} bytes, and at most {bytes_max:,} can belong there")


# Takes at most `DELETE_PAGE_MAX` keys; returns the keys that may still exist, with the reason. May also raise, for all.
DeletePage = Callable[[Sequence[str]], Mapping[str, PersistError]]


def get_delete_page(blob: Blob) -> DeletePage | None:
    """Return the store's method that deletes many keys, or None.

    A store offers it as a method `delete_page`, a layer as a property that is None when its inner store does not.
    """
    offered: DeletePage | None = getattr(blob, "delete_page", None)
    return offered


def delete_all(blob: Blob, keys: Iterable[str]) -> int:
    """Delete keys, and return their number; missing keys are not an error.

    Keys are taken from the iterable a page at a time, which may be a listing of the same store.

    Cost: one request for 1,000 keys on S3, one unlink per key and one fsync per page and folder in a folder. Other
    remote stores get a few threads.

    Raises:
        NotDeleted: for the first page with keys that could not be deleted; no page after it was tried.
        PersistError: the store's error when a whole page failed.
    """
    delete_page = get_delete_page(blob) or partial(delete_one_by_one, blob)
    pending, total = iter(keys), 0
    while page := [*islice(pending, DELETE_PAGE_MAX)]:
        if failed := delete_page(page):
            raise NotDeleted(failed, blob.url) from next(iter(failed.values()))
        total += len(page)
    return total


def delete_one_by_one(blob: Blob, page: Sequence[str]) -> Mapping[str, PersistError]:
    """Delete keys; return the keys that may still exist, with reasons. Remote stores get a few threads."""

    def delete(key: str) -> PersistError | None:
        try:
            blob.delete(key)
        except PersistError as error:
            return error
        return None

    if is_remote(blob):
        with ThreadPoolExecutor(_DELETING_THREADS, thread_name_prefix="persist-delete") as pool:
            outcomes = [*pool.map(delete, page)]
    else:
        outcomes = [delete(key) for key in page]
    return {key: error for key, error in zip(page, outcomes, strict=True) if error is not None}


class BlobLayer:
    """The base of stores that wrap another store, the inner one."""

    def __init__(self, inner: Blob) -> None:
        self._inner = inner
        self.url = inner.url
        self.is_remote = is_remote(inner)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._inner!r})"

    @property
    def delete_page(self) -> DeletePage | None:
        delete = get_delete_page(self._inner)
        return None if delete is None else partial(self._delete_page, delete)

    def _delete_page(self, delete: DeletePage, keys: Sequence[str]) -> Mapping[str, PersistError]:
        """Delete keys by the inner store; layers override this."""
        return delete(keys)

    def close(self) -> None:
        self._inner.close()


def check_key(key: str) -> str:
    """Return key; raise InvalidUsage if it could escape its prefix, or if some stores could not store it."""
    problem = _find_key_problem(key)
    if problem is not None:
        shortened = repr(key) if len(key) <= 80 else f"{key[:80]!r}…"
        raise InvalidUsage(f"blob key {shortened} is not allowed: {problem}. Use a shorter or plainer key.")
    return key


def is_key(key: str) -> bool:
    """Return whether check_key accepts key; listings leave out other names."""
    return _find_key_problem(key) is None


def check_range(range: tuple[int, int]) -> tuple[int, int]:
    """Return range, or raise InvalidUsage unless it is `[start, end)` with 0 <= start <= end."""
    start, end = range
    if not 0 <= start <= end:
        raise InvalidUsage(
            f"range=({start}, {end}) is not allowed: give bytes [start, end) with 0 <= start <= end; "
            "an end beyond the value is cut"
        )
    return range


def _find_key_problem(key: str) -> str | None:
    """Return why a key is invalid; None if it is valid."""
    segments = key.split("/")
    if not {"", ".", ".."}.isdisjoint(segments):
        return "a key is segments joined by '/', none of them empty, '.' or '..'"
    if _CONTROL.search(key):
        return "it has control characters"
    if key.startswith(TEMPORARY_PREFIX) or f"/{TEMPORARY_PREFIX}" in key:
        return f"{TEMPORARY_PREFIX!r} is kept for temporary files"
    try:
        lengths = [*map(len, map(str.encode, segments))]
    except UnicodeEncodeError:
        return "it is not valid Unicode text"
    if sum(lengths) + len(segments) - 1 > KEY_BYTES_MAX:
        return f"it is longer than {KEY_BYTES_MAX} bytes of UTF-8"
    if max(lengths) > SEGMENT_BYTES_MAX:
        return f"a segment is longer than {SEGMENT_BYTES_MAX} bytes of UTF-8"
    return None


PAGE_ENTRIES = 1000


class MemoryBlob:
    """Keeps values in a dict.

    A store from `get_named` is shared by all callers with that name, until the process ends.
    """

    _named: ClassVar[dict[str, "MemoryBlob"]] = {}
    _naming: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, name: str = "") -> None:
        self._name = name
        self._lock = threading.Lock()
        self._values: dict[str, tuple[bytes, float]] = {}
        self._keys: list[tuple[bytes, str]] = []  # Sorted by UTF-8 bytes, for listing.

    @classmethod
    def get_named(cls, name: str) -> "MemoryBlob":
        """Return the store of that name; the same one for every caller in this process."""
        with cls._naming:
            return cls._named.setdefault(name, cls(name))

    @property
    def url(self) -> str:
        return f"memory://{self._name}"

    def get(self, key: str, range: tuple[int, int] | None = None) -> bytes | None:
        stored = self._values.get(check_key(key))
        if stored is None:
            return None
        return stored[0] if range is None else stored[0][slice(*check_range(range))]

    def set(self, key: str, value: bytes) -> None:
        with self._lock:
            self._store_value(check_key(key), value)

    def create(self, key: str, value: bytes) -> bool:
        with self._lock:
            if check_key(key) in self._values:
                return False
            self._store_value(key, value)
            return True

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[BlobEntry]:
        after = start_after
        while page := self._list_page(prefix, after):
            yield from page
            after = page[-1].key

    def delete(self, key: str) -> None:
        with self._lock:
            if self._values.pop(check_key(key), None) is not None:
                self._keys.pop(bisect.bisect_left(self._keys, (key.encode(), key)))

    def close(self) -> None:
        """Do nothing: other users of this store keep the values."""

    def _store_value(self, key: str, value: bytes) -> None:
        """Store a value; the caller has the lock."""
        if key not in self._values:
            bisect.insort(self._keys, (key.encode(), key))
        self._values[key] = (bytes(value), time.time())

    def _list_page(self, prefix: str, after: str | None) -> Sequence[BlobEntry]:
        """Return the next entries of a listing."""
        with self._lock:
            first = bisect.bisect_left(self._keys, (prefix.encode(), ""))
            if after is not None:
                first = max(first, bisect.bisect_right(self._keys, (after.encode(), after)))
            keys = [key for _, key in self._keys[first : first + PAGE_ENTRIES] if key.startswith(prefix)]
            return [BlobEntry(key, len(self._values[key][0]), self._values[key][1]) for key in keys]

    def __repr__(self) -> str:
        return f"MemoryBlob({self.url!r})"
