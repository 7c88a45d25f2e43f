"""The messages of Postgres' logical decoding, as its plugin pgoutput writes them. Protocol version 1 has these:

    B int64 lsn of the commit, int64 µs since 2000-01-01, int32 xid             begin
    C int8 0, int64 lsn of the commit, int64 lsn of its end, int64 µs           commit
    R int32 id, str schema, str name, int8 identity, int16 n, n columns          relation, before its first change
        column: int8 is of the key, str name, int32 type, int32 modifier
    I int32 id, "N" row                                                         insert
    U int32 id, ["K" key or "O" old row], "N" row                               update
    D int32 id, "K" key or "O" old row                                          delete
    T int32 n, int8 options, n ids of int32                                       truncate
    row: int16 n, n times ("n" NULL, "u" not sent, or "t" int32 bytes, text)

Numbers are big-endian, and str ends with a zero byte. In version 2 the server sends large transactions before they are
committed. `Spools` keeps each in a file without a name until it is:

    S int32 xid, int8                                                           what follows is of a transaction
    E                                                                           or not any more
    c int32 xid, int8 0, int64 lsn of the commit, int64 lsn of its end, int64 µs     it is committed
    A int32 xid, int32 xid of itself or a part of it                            that part is undone
    between S and E, R I U D T have the xid of their part behind their letter

    file = (int32 xid of the part, int32 bytes, bytes as without the xid) …

Only transactions larger than the server's `logical_decoding_work_mem` come so. The server need not keep them on its
disk, and memory holds none of them. Source: Postgres' manual, "Logical Replication Message Formats".
"""

import struct
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from persist.connect.ingest.source import UNSENT

_I16, _I32, _I64 = struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">q")
_BEGIN = struct.Struct(">qqi")
EPOCH_US = int(datetime(2000, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a relation; modifier encodes the precision of numerics, for example."""

    name: str
    type: int
    modifier: int
    is_key: bool = False


@dataclass(frozen=True, slots=True)
class Relation:
    """A table's columns at the time of the changes after it."""

    id: int
    schema: str
    name: str
    identity: str
    columns: tuple[Column, ...]


def parse_relation(data: bytes) -> Relation:
    """Parse an R message: the columns of a table."""
    at = 1
    [id_] = _I32.unpack_from(data, at)
    schema, at = _parse_text(data, at + 4)
    name, at = _parse_text(data, at)
    identity = chr(data[at])
    [count] = _I16.unpack_from(data, at + 1)
    at += 3
    columns = []
    for _ in range(count):
        is_key = bool(data[at] & 1)
        column, at = _parse_text(data, at + 1)
        kind, modifier = struct.unpack_from(">ii", data, at)
        at += 8
        columns.append(Column(column, kind & 0xFFFFFFFF, modifier, is_key))
    return Relation(id_, schema or "pg_catalog", name, identity, tuple(columns))


def parse_begin(data: bytes) -> tuple[int, int, int]:
    """Parse a B message: (position of the commit, moment in µs since 1970, xid)."""
    at, since_2000, xid = _BEGIN.unpack_from(data, 1)
    return at, since_2000 + EPOCH_US, xid & 0xFFFFFFFF


def parse_truncate(data: bytes) -> list[int]:
    """Parse a T message: the ids of the tables that it empties."""
    [count] = _I32.unpack_from(data, 1)
    return [*struct.unpack_from(f">{count}i", data, 6)]


def parse_change(data: bytes) -> tuple[int, list[Any] | None, list[Any] | None, bool]:
    """Parse a change: (table id, old row, new row, whether old has only the key).

    A missing row is None. Values are text, None, or `UNSENT`.
    """
    [id_] = _I32.unpack_from(data, 1)
    old = new = None
    is_key, at, end = False, 5, len(data)
    while at < end:
        kind = data[at]
        row, at = _parse_row(data, at + 1)
        if kind == 78:  # N
            new = row
        else:
            old, is_key = row, kind == 75  # K
    return id_, old, new, is_key


def _parse_row(data: bytes, at: int) -> tuple[list[Any], int]:
    [count] = _I16.unpack_from(data, at)
    at += 2
    values: list[Any] = []
    for _ in range(count):
        kind = data[at]
        if kind == 116:  # t
            begin_ = at + 5
            at = begin_ + _I32.unpack_from(data, at + 1)[0]
            values.append(data[begin_:at].decode())
        else:
            values.append(None if kind == 110 else UNSENT)
            at += 1
    return values, at


def _parse_text(data: bytes, at: int) -> tuple[str, int]:
    end = data.index(0, at)
    return data[at:end].decode(), end + 1


def parse_lsn(text: str) -> int:
    """Parse a log position such as 0/16B3748."""
    high, _, low = text.partition("/")
    return int(high, 16) << 32 | int(low, 16)


def format_lsn(position: int) -> str:
    """Format a log position as Postgres does."""
    return f"{position >> 32:X}/{position & 0xFFFFFFFF:X}"


_HEAD = struct.Struct(">ii")
_COMMIT = struct.Struct(">ibqqq")
_KEPT = b"RIUDT"


class Spools:
    """Streamed transactions that are not committed yet, by xid."""

    def __init__(self) -> None:
        self._files: dict[int, Any] = {}
        self._undone: dict[int, set[int]] = {}
        self._xid: int | None = None

    @property
    def is_inside(self) -> bool:
        """Whether messages are of a transaction that is not committed yet."""
        return self._xid is not None

    def start(self, data: bytes) -> None:
        """Process an S message: messages of a transaction follow."""
        self._xid = int.from_bytes(data[1:5], "big", signed=True)
        if self._xid not in self._files:
            self._files[self._xid] = tempfile.TemporaryFile()  # noqa: SIM115  It is closed by `_drop_spool`.
            self._undone[self._xid] = set()

    def stop(self) -> None:
        """Process an E message: they end."""
        self._xid = None

    def keep(self, data: bytes) -> None:
        """Store a message of the current streamed transaction."""
        assert self._xid is not None, "an S message came before"
        if data[0] in _KEPT:
            file = self._files[self._xid]
            file.write(data[1:5] + (len(data) - 4).to_bytes(4, "big"))
            file.write(data[:1])
            file.write(data[5:])

    def undo(self, data: bytes) -> None:
        """Process an A message: roll back a transaction or a subtransaction."""
        xid, part = _HEAD.unpack_from(data, 1)
        if xid == part:
            self._drop_spool(xid)
        elif xid in self._undone:
            self._undone[xid].add(part)

    def parse_commit(self, data: bytes) -> tuple[int, int, int]:
        """Parse a c message: (xid, position of the commit, moment in µs since 1970)."""
        xid, _, at, _, since_2000 = _COMMIT.unpack_from(data, 1)
        return xid, at, since_2000 + EPOCH_US

    def messages(self, xid: int) -> Iterator[bytes]:
        """Yield the messages of a transaction in order, without rolled-back parts."""
        file, undone = self._files.get(xid), self._undone.get(xid, set())
        if file is not None:
            file.seek(0)
            while head := file.read(_HEAD.size):
                part, size = _HEAD.unpack(head)
                data = file.read(size)
                if part not in undone:
                    yield data
            self._drop_spool(xid)

    def close(self) -> None:
        """Delete all spooled messages."""
        for xid in [*self._files]:
            self._drop_spool(xid)

    def _drop_spool(self, xid: int) -> None:
        file = self._files.pop(xid, None)
        if file is not None:
            file.close()
        self._undone.pop(xid, None)
