"""The messages of Postgres' logical decoding, as its plugin pgoutput writes them, version 1:

    B int64 lsn of the commit, int64 µs since 2000-01-01, int32 xid             begin
    C int8 0, int64 lsn of the commit, int64 lsn of its end, int64 µs           commit
    R int32 id, str schema, str name, int8 identity, int16 n, n columns          a table, before its first change
        column: int8 is of the key, str name, int32 type, int32 modifier
    I int32 id, "N" row                                                         insert
    U int32 id, ["K" key or "O" old row], "N" row                               update
    D int32 id, "K" key or "O" old row                                          delete
    T int32 n, int8 options, n ids of int32                                       truncate
    row: int16 n, n values ("n" NULL, "u" not sent, or "t" int32 bytes, text)

Numbers are big-endian, and str ends with a zero byte. The server sends a transaction when it is committed, so a large
one waits on the server's disk. Source: Postgres' manual, "Logical Replication Message Formats".
"""

import struct
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from persist.connect.ingest.source import UNSENT

_I16, _I32, _I64 = struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">q")
_BEGIN = struct.Struct(">qq")
EPOCH_US = int(datetime(2000, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table; `modifier` encodes the precision of numerics, for example."""

    name: str
    type: int
    modifier: int
    is_key: bool = False


@dataclass(frozen=True, slots=True)
class Relation:
    """A table and its columns, as all changes after this message have them."""

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


def parse_begin(data: bytes) -> tuple[int, int]:
    """Parse a B message: (position of the commit, moment in µs since 1970)."""
    at, since_2000 = _BEGIN.unpack_from(data, 1)
    return at, since_2000 + EPOCH_US


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
    """Parse a row at a position; return it, and the position after it."""
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
    """Parse text up to a zero byte; return it, and the position after it."""
    end = data.index(0, at)
    return data[at:end].decode(), end + 1


def parse_lsn(text: str) -> int:
    """Parse a log position such as 0/16B3748."""
    high, _, low = text.partition("/")
    return int(high, 16) << 32 | int(low, 16)


def format_lsn(position: int) -> str:
    """Format a log position as Postgres does."""
    return f"{position >> 32:X}/{position & 0xFFFFFFFF:X}"
