"""Caches of parts for later reads: footers, decoded rows, leftovers of slices, and mapped files.

- Cached values have the checksums of parts as keys; for rows, the schema is also part of the key, because equal bytes
  mean different columns in other collections and versions. Parts never change, so cached values are never stale.
- In memory, footers and rows share the room of the client's `Cache`, and leftovers have a share of the budget.
- With a cache folder, look-ups write decoded rows to files there (`SpilledRows`) and map them. All processes with this
  folder share them, and later processes find them. Their memory is the page cache. The name of a file has the location,
  the part's checksum, the rows, the columns and their types, so no file changes. A damaged or foreign file is removed,
  and its rows are decoded again.
- A mapped file stays readable after it was removed, and keeps its space on the disk. So the limit of the folder also
  bounds the files that one client keeps mapped.
"""

import os
import struct
import threading
import time
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass
from stat import S_ISREG
from typing import Any, Protocol, TypeVar

import pyarrow as pa
import xxhash

from persist.blob.errors import MissingBlob
from persist.blob.layers.cache import get_checked, get_range_checked
from persist.blob.layers.cache_folder import BoundedFolder
from persist.blob.lru import Cache, Kind
from persist.blob.protocol import Blob
from persist.blob.threads import Clock
from persist.codecs.order.arrays import copy_table
from persist.codecs.order.search import SortedKeys
from persist.codecs.part.decoding import Request
from persist.codecs.part.index import PartIndex, read_index
from persist.codecs.part.mapped import MappedRows, Rows, encode_mapped_file
from persist.codecs.part.part import Part
from persist.codecs.types.schema import CollectionSchema

T = TypeVar("T")

ENTRY_BYTES = 1 << 10  # For the name and Arrow's objects, besides the rows.


class Sized(Protocol):
    """A value with an approximate size in bytes."""

    @property
    def nbytes(self) -> int: ...


PASSING_BYTES = 8 << 20  # Enough for the footers of one compaction, whose slices read the same parts in turn.

DecodedRows = Kind[Hashable, Sized]


def make_decoded_rows_kind(cache: Cache) -> DecodedRows:
    """Return the cache of rows that point reads decode, for all readers of one client."""
    return cache.add_kind(lambda rows: ENTRY_BYTES + rows.nbytes)


class PartIndexes:
    """Recently read footers of parts, for all readers of one client."""

    def __init__(self, cache: Cache) -> None:
        # Each slice of a part requests its footer, so a large one is kept at once.
        self._kept: Kind[str, PartIndex] = cache.add_kind(lambda index: index.nbytes, share=1, is_needed=True)

    def get_cached(self, part: Part) -> PartIndex | None:
        """Return the footer of a part if it is cached."""
        return self._kept.get(part.checksum)

    def get(self, blob: Blob, part: Part, schema: CollectionSchema) -> PartIndex:
        """Return the footer of a part. Cost: one GET of a range, or nothing."""
        index = self.get_cached(part)
        if index is None:
            index = fetch_checked(blob, part, lambda data: read_index(data, part, schema), part.footer_range)
            self._kept.put(part.checksum, index)
        return index

    def of_whole(self, data: bytes, part: Part, schema: CollectionSchema) -> PartIndex:
        """Return the footer of a part from the bytes of its blob; the reader of the rows verifies those."""
        start, end = part.footer_range
        index = read_index(data[start:end], part, schema)
        self._kept.put(part.checksum, index)
        return index


class PartCaches:
    """The caches of parts that all readers of one client share.

    They do not depend on the client, so another client of the location may use them later.
    """

    def __init__(self, cache: Cache) -> None:
        self.indexes = PartIndexes(cache)
        self.decoded = make_decoded_rows_kind(cache)

    @classmethod
    def passing(cls) -> "PartCaches":
        """Return small caches for parts that will be replaced, such as in a compaction."""
        return cls(Cache(PASSING_BYTES, is_lru=True))


@dataclass(frozen=True, slots=True)
class Cut:
    """The place where one slice of a part ends and the next begins, with the arguments of their reads.

    Attributes:
        request: its filter is compared by identity: expressions can be neither hashed nor compared.
        bound: the first key of the next slice.
    """

    part: Part
    request: Request
    bound: Any

    @property
    def name(self) -> Hashable:
        """A cache key: equal for equal reads of equal bytes. Equal bytes may have different versions or schemas."""
        part, request = self.part, self.request
        reading, columns = request.schema.reading, tuple(request.columns)
        return part.rows_id, part.schema, reading, columns, id(request.filter), str(self.bound)


class SliceLeftovers:
    """Rows that were decoded for one slice of the key space and belong to the next."""

    def __init__(self, bytes_max: int) -> None:
        # With the cuts: as long as a filter is kept, no other has its id.
        cache = Cache(bytes_max, is_lru=True)
        self._kept: Kind[Hashable, tuple[Cut, pa.Table, int]] = cache.add_kind(lambda left: left[1].nbytes, share=1)

    @property
    def bytes(self) -> int:
        """The size of all kept rows."""
        return self._kept.bytes

    def take(self, cut: Cut) -> tuple[pa.Table, int] | None:
        """Return the decoded rows behind a cut, and the row of the part that follows them."""
        entry = self._kept.remove(cut.name)
        return None if entry is None else entry[1:]

    def keep(self, cut: Cut, rows: pa.Table, following: int) -> None:
        """Keep a copy of the rows behind a cut, as long as there is room."""
        self._kept.put(cut.name, (cut, copy_table(rows), following))


def fetch_checked(blob: Blob, part: Part, check: Callable[[bytes], T], within: tuple[int, int] | None = None) -> T:
    """Fetch a part's blob, or a range of it, and return check's result; fetch again if a cache may have damaged it.

    Raises:
        MissingBlob: the blob does not exist.
        CorruptBlob: from check.
    """
    if within is None:
        checked = get_checked(blob, part.blob, part.bytes, check)
    else:
        checked = get_range_checked(blob, part.blob, within, check)
    if checked is None:
        raise MissingBlob(
            part.blob, f"it is missing, and {part.bytes} bytes with checksum {part.checksum} belong there"
        )
    return checked


SPILL_BYTES_MIN = 64 << 10  # Less is decoded as soon as a file is opened.
USED_EVERY_S = 60.0  # How often the file's time of last use is set.
DAMAGED = (ValueError, pa.ArrowException, OSError, struct.error, IndexError)


class SpilledRows:
    """Decoded rows in files of a cache folder; safe for many threads. Disk errors are never raised.

    Attributes:
        room: bounds the folder.
        corrupt: how many files were damaged or foreign.
        hits: how many files this client mapped.
    """

    def __init__(self, folder: str | os.PathLike[str], bytes_max: int, location: str, clock: Clock) -> None:
        self.room = BoundedFolder(folder, bytes_max, clock)
        self._location = location
        self._clock = clock
        self._lock = threading.Lock()
        cache = Cache(bytes_max, is_lru=True)
        self._mapped: Kind[str, _Piece] = cache.add_kind(lambda piece: piece.rows.nbytes, share=1)
        self.corrupt = self.hits = 0

    def get(self, name: str, schema: pa.Schema, rows: int, touched: Rows | None) -> pa.RecordBatch | None:
        """Return the rows of a name; None if they are missing or damaged.

        Args:
            schema, rows: their columns and number.
            touched: the rows that the caller will use, which are checked; None for all.
        """
        path = self._path(name)
        piece = self._map_file(path, name, schema, rows)
        if piece is None:
            return None
        try:
            piece.rows.verify_rows(touched)
        except DAMAGED:
            self._remove_file(path, piece)
            return None
        piece.mark_used(path, self._clock)
        return piece.rows.batch

    def load_keys(self, name: str, schema: pa.Schema, rows: int) -> SortedKeys | None:
        """Return the rows as sorted keys for searches, computed once while they are mapped."""
        batch = self.get(name, schema, rows, None)
        if batch is None:
            return None
        piece = self._mapped.get(self._path(name))
        if piece is None or piece.rows.batch is not batch:
            return SortedKeys(batch)
        if piece.keys is None:
            piece.keys = SortedKeys(batch)
        return piece.keys

    def is_mapped(self, name: str) -> bool:
        """Return whether the rows are mapped."""
        return self._mapped.get(self._path(name)) is not None

    def put(self, name: str, batch: pa.RecordBatch) -> bool:
        """Write rows under a name; return whether `get` will probably find them."""
        size = batch.nbytes
        if size < SPILL_BYTES_MIN or size > self.room.file_bytes_max or self.room.is_paused:
            return False
        return self.room.write_file(self._path(name), encode_mapped_file(batch, self._make_full_key(name)))

    def counts(self) -> dict[str, int]:
        """Return counters of the files, and those of the folder's limit."""
        room, mapped = self.room, self._mapped.bytes
        counts = {"hits": self.hits, "corrupt": self.corrupt, "evictions": room.evictions}
        return counts | {"disk_errors": room.disk_errors, "mapped_bytes": mapped, "folder_bytes": room.bytes}

    def close(self) -> None:
        """Unmap all files."""
        self._mapped.clear()

    def _map_file(self, path: str, name: str, schema: pa.Schema, rows: int) -> "_Piece | None":
        """Map a file of rows; None if it is missing or damaged."""
        piece = self._mapped.get(path)
        if piece is not None:
            return piece
        try:
            if not S_ISREG(os.lstat(path).st_mode):
                raise ValueError("it is not a plain file")
            with pa.memory_map(path) as file:  # The buffer stays mapped after the file is closed.
                data = file.read_buffer()
            piece = _Piece(MappedRows(data, self._make_full_key(name), schema, rows))
        except FileNotFoundError:
            return None
        except DAMAGED:
            self._remove_file(path, None)
            return None
        self.hits += 1
        self._mapped.put(path, piece)
        return piece

    def _remove_file(self, path: str, piece: "_Piece | None") -> None:
        """Remove a damaged file."""
        if piece is not None:
            self._mapped.remove(path, only=piece)
        with self._lock:
            self.corrupt += 1
        with suppress(OSError):
            os.unlink(path)

    def _make_full_key(self, name: str) -> bytes:
        """Return the name with the location, as bytes."""
        return f"{self._location}\n{name}".encode()

    def _path(self, name: str) -> str:
        """Return the path of the file for a name."""
        return self.room.make_path(xxhash.xxh3_128_hexdigest(self._make_full_key(name)), "rows")


class _Piece:
    """The mapped rows of a file, and their keys for searches."""

    __slots__ = ("_used_s", "keys", "rows")

    def __init__(self, rows: MappedRows) -> None:
        self.rows = rows
        self.keys: SortedKeys | None = None
        self._used_s = float("-inf")

    def mark_used(self, path: str, clock: Clock) -> None:
        """Mark the file as just used, so that it is evicted late."""
        now = clock.monotonic_s()
        if now - self._used_s > USED_EVERY_S:
            self._used_s = now
            with suppress(OSError):
                os.utime(path, ns=(time.time_ns(),) * 2)
