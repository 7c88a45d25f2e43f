"""Decoded rows in files that are mapped, so that look-ups and processes that begin pay for what they touch.

With a cache folder, what point reads decode goes there (`persist.codecs.part.mapped`) and is used from there: by all
processes that name the folder, and by those that come later. The memory is the page cache's, which the system takes
back when it needs it. A file is named by the location, the part's checksum, the rows, the columns and their
types: so it is never changed, and what replaces a part has other names. A file that is damaged, or another one's, is
removed and counts as not there; the rows are then decoded again.

What is mapped here stays readable when somebody removes the file. The room bounds how much one client keeps
mapped, too, because the disk has its space back only when nobody has the file any more.
"""

import os
import struct
import threading
import time
from contextlib import suppress
from stat import S_ISREG

import pyarrow as pa
import xxhash

from persist.blob import BoundedFolder, ByteBoundedLru, Clock
from persist.codecs import MappedRows, Rows, SortedKeys, mapped_file

SPILL_BYTES_MIN = 64 << 10  # Less is decoded as soon as a file is opened.
USED_EVERY_S = 60.0  # How often the file's time of last use is set.
DAMAGED = (ValueError, pa.ArrowException, OSError, struct.error, IndexError)


class SpilledRows:
    """The files of one location in a cache folder; safe to use from many threads. No method raises because of the disk.

    Attributes:
        room: what keeps the folder within its bounds.
        corrupt: files that were not what they should be.
        hits: pieces of parts that were used from files which this client did not have mapped yet.
    """

    def __init__(self, folder: str | os.PathLike[str], bytes_max: int, location: str, clock: Clock) -> None:
        self.room = BoundedFolder(folder, bytes_max, clock)
        self._location = location
        self._clock = clock
        self._lock = threading.Lock()
        self._mapped: ByteBoundedLru[str, _Piece] = ByteBoundedLru(bytes_max, lambda piece: piece.rows.nbytes)
        self.corrupt = self.hits = 0

    def get(self, name: str, schema: pa.Schema, rows: int, touched: Rows | None) -> pa.RecordBatch | None:
        """Return rows that were put under a name; None if they are not there as they were.

        Args:
            schema, rows: what they are, and how many.
            touched: those which will be looked at, and no others; None stands for all.
        """
        path = self._path(name)
        piece = self._opened(path, name, schema, rows)
        if piece is None:
            return None
        try:
            piece.rows.check(touched)
        except DAMAGED:
            self._drop(path, piece)
            return None
        piece.used(path, self._clock)
        return piece.rows.batch

    def keys(self, name: str, schema: pa.Schema, rows: int) -> SortedKeys | None:
        """Return the same as keys to search in, made once as long as they are mapped."""
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
        """Whether this client has used those rows lately."""
        return self._mapped.get(self._path(name)) is not None

    def put(self, name: str, batch: pa.RecordBatch) -> bool:
        """Keep rows under a name; return whether `get` will find them, as far as anybody knows."""
        size = batch.nbytes
        if size < SPILL_BYTES_MIN or size > self.room.file_bytes_max or self.room.is_paused:
            return False
        return self.room.write(self._path(name), mapped_file(batch, self._full(name)))

    def drop(self, name: str) -> None:
        """Keep rows no more."""
        path = self._path(name)
        self._mapped.take(path)
        with suppress(OSError):
            os.unlink(path)

    def counts(self) -> dict[str, int]:
        """Return what became of the files; the room's counts are of all that this client wrote there."""
        room, mapped = self.room, self._mapped.bytes
        counts = {"hits": self.hits, "corrupt": self.corrupt, "evictions": room.evictions}
        return counts | {"disk_errors": room.disk_errors, "mapped_bytes": mapped, "folder_bytes": room.bytes}

    def close(self) -> None:
        """Let go of what is mapped."""
        self._mapped.clear()

    def _opened(self, path: str, name: str, schema: pa.Schema, rows: int) -> "_Piece | None":
        piece = self._mapped.get(path)
        if piece is not None:
            return piece
        try:
            if not S_ISREG(os.lstat(path).st_mode):
                raise ValueError("it is no plain file")
            with pa.memory_map(path) as file:  # What is read stays mapped, and the descriptor does not stay open.
                data = file.read_buffer()
            piece = _Piece(MappedRows(data, self._full(name), schema, rows))
        except FileNotFoundError:
            return None
        except DAMAGED:
            self._drop(path, None)
            return None
        self.hits += 1
        self._mapped.put(path, piece)
        return piece

    def _drop(self, path: str, piece: "_Piece | None") -> None:
        if piece is not None:
            self._mapped.take(path, only=piece)
        with self._lock:
            self.corrupt += 1
        with suppress(OSError):
            os.unlink(path)

    def _full(self, name: str) -> bytes:
        return f"{self._location}\n{name}".encode()

    def _path(self, name: str) -> str:
        return self.room.path(xxhash.xxh3_128_hexdigest(self._full(name)), "rows")


class _Piece:
    """What is mapped of a file, and the keys that were made of it."""

    __slots__ = ("_used_s", "keys", "rows")

    def __init__(self, rows: MappedRows) -> None:
        self.rows = rows
        self.keys: SortedKeys | None = None
        self._used_s = float("-inf")

    def used(self, path: str, clock: Clock) -> None:
        """Let the file be one that was used just now, so that it is not the first to go."""
        now = clock.monotonic_s()
        if now - self._used_s > USED_EVERY_S:
            self._used_s = now
            with suppress(OSError):
                os.utime(path, ns=(time.time_ns(),) * 2)
