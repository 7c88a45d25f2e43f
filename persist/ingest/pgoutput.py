"""The messages of Postgres' logical decoding, protocol version 1 of its plugin pgoutput.

    B int64 lsn of the commit, int64 µs since 2000-01-01, int32 xid             begin
    C int8 0, int64 lsn of the commit, int64 lsn of its end, int64 µs           commit
    R int32 id, str schema, str name, int8 identity, int16 n, n columns          relation, before its first change
        column: int8 is of the key, str name, int32 type, int32 modifier
    I int32 id, "N" row                                                         insert
    U int32 id, ["K" key or "O" old row], "N" row                               update
    D int32 id, "K" key or "O" old row                                          delete
    T int32 n, int8 options, n ids of int32                                       truncate
    row: int16 n, n times ("n" NULL, "u" not sent, or "t" int32 bytes, text)

Source: Postgres' manual, "Logical Replication Message Formats". Numbers are big-endian, and str ends with a zero byte.
"""

import struct
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

_I16, _I32, _I64 = struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">q")
_BEGIN = struct.Struct(">qqi")
EPOCH_US = int(datetime(2000, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000
UNSENT: Any = object()  # A long value that an update left as it was.


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a relation; modifier has the precision of numerics, say."""

    name: str
    type: int
    modifier: int
    is_key: bool = False


@dataclass(frozen=True, slots=True)
class Relation:
    """A table as it was when the changes that follow it were made."""

    id: int
    schema: str
    name: str
    identity: str
    columns: tuple[Column, ...]


def relation(data: bytes) -> Relation:
    """Return what an R message says."""
    at = 1
    [id_] = _I32.unpack_from(data, at)
    schema, at = _text(data, at + 4)
    name, at = _text(data, at)
    identity = chr(data[at])
    [count] = _I16.unpack_from(data, at + 1)
    at += 3
    columns = []
    for _ in range(count):
        is_key = bool(data[at] & 1)
        column, at = _text(data, at + 1)
        kind, modifier = struct.unpack_from(">ii", data, at)
        at += 8
        columns.append(Column(column, kind & 0xFFFFFFFF, modifier, is_key))
    return Relation(id_, schema or "pg_catalog", name, identity, tuple(columns))


def begin(data: bytes) -> tuple[int, int, int]:
    """Return the position of a transaction's commit, its moment in µs since 1970, and its xid."""
    at, since_2000, xid = _BEGIN.unpack_from(data, 1)
    return at, since_2000 + EPOCH_US, xid & 0xFFFFFFFF


def truncated(data: bytes) -> list[int]:
    """Return the ids of the tables that a T message empties."""
    [count] = _I32.unpack_from(data, 1)
    return [*struct.unpack_from(f">{count}i", data, 6)]


def change(data: bytes) -> tuple[int, list[Any] | None, list[Any] | None, bool]:
    """Return the table's id, the old row or None, the new row or None, and whether of the old one only the key is sent.

    Values are text, None, or `UNSENT`.
    """
    [id_] = _I32.unpack_from(data, 1)
    old = new = None
    is_key, at, end = False, 5, len(data)
    while at < end:
        kind = data[at]
        row, at = _row(data, at + 1)
        if kind == 78:  # N
            new = row
        else:
            old, is_key = row, kind == 75  # K
    return id_, old, new, is_key


def _row(data: bytes, at: int) -> tuple[list[Any], int]:
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


def _text(data: bytes, at: int) -> tuple[str, int]:
    end = data.index(0, at)
    return data[at:end].decode(), end + 1


def lsn_of(text: str) -> int:
    """Return a position in the log from how Postgres writes it."""
    high, _, low = text.partition("/")
    return int(high, 16) << 32 | int(low, 16)


def lsn_text(position: int) -> str:
    """Return a position in the log as Postgres writes it."""
    return f"{position >> 32:X}/{position & 0xFFFFFFFF:X}"
