"""Transactions that the server sends before they are committed, each in a file without a name until it is.

    S int32 xid, int8                                                           what follows is of a transaction
    E                                                                           or not any more
    c int32 xid, int8 0, int64 lsn of the commit, int64 lsn of its end, int64 µs     it is committed
    A int32 xid, int32 xid of itself or a part of it                            that part is undone
    between S and E, R I U D T have the xid of their part behind their letter

    file = (int32 xid of the part, int32 bytes, bytes as without the xid) …

Source: Postgres' manual, "Logical Replication Message Formats", protocol version 2. Only transactions larger than the
server's `logical_decoding_work_mem` come so. The server need not keep them on its disk, and memory holds none of them.
"""

import struct
import tempfile
from collections.abc import Iterator
from typing import Any

from persist.ingest.pgoutput import EPOCH_US

_HEAD = struct.Struct(">ii")
_COMMIT = struct.Struct(">ibqqq")
_KEPT = b"RIUDT"


class Spools:
    """The transactions that are not committed yet, by xid."""

    def __init__(self) -> None:
        self._files: dict[int, Any] = {}
        self._undone: dict[int, set[int]] = {}
        self._xid: int | None = None

    @property
    def is_inside(self) -> bool:
        """Whether messages are of a transaction that is not committed yet."""
        return self._xid is not None

    def start(self, data: bytes) -> None:
        """Take an S message."""
        self._xid = int.from_bytes(data[1:5], "big", signed=True)
        if self._xid not in self._files:
            self._files[self._xid] = tempfile.TemporaryFile()  # noqa: SIM115  It is closed by `_dropped`.
            self._undone[self._xid] = set()

    def stop(self) -> None:
        """Take an E message."""
        self._xid = None

    def keep(self, data: bytes) -> None:
        """Take a message of the transaction that the last S message named."""
        assert self._xid is not None, "an S message came before"
        if data[0] in _KEPT:
            file = self._files[self._xid]
            file.write(data[1:5] + (len(data) - 4).to_bytes(4, "big"))
            file.write(data[:1])
            file.write(data[5:])

    def undo(self, data: bytes) -> None:
        """Take an A message: a transaction, or a part of it, is rolled back."""
        xid, part = _HEAD.unpack_from(data, 1)
        if xid == part:
            self._dropped(xid)
        elif xid in self._undone:
            self._undone[xid].add(part)

    def committed(self, data: bytes) -> tuple[int, int, int]:
        """Return what a c message says: xid, the position of the commit, and its moment in µs since 1970."""
        xid, _, at, _, since_2000 = _COMMIT.unpack_from(data, 1)
        return xid, at, since_2000 + EPOCH_US

    def messages(self, xid: int) -> Iterator[bytes]:
        """Yield the messages of a transaction, as they come of others, without those that were rolled back."""
        file, undone = self._files.get(xid), self._undone.get(xid, set())
        if file is not None:
            file.seek(0)
            while head := file.read(_HEAD.size):
                part, size = _HEAD.unpack(head)
                data = file.read(size)
                if part not in undone:
                    yield data
            self._dropped(xid)

    def close(self) -> None:
        """Forget all of them."""
        for xid in [*self._files]:
            self._dropped(xid)

    def _dropped(self, xid: int) -> None:
        file = self._files.pop(xid, None)
        if file is not None:
            file.close()
        self._undone.pop(xid, None)
