"""Raw messages as columns of bytes, whatever they came in (a frame of a Kafka consumer, a column, or a list), and what
is wrong with one: for callers an error that names the first, inside a reason without a place.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from persist.blob import InvalidUsage


class Unreadable(ValueError):
    """Some message of a piece is bad. Never leaves this room: the piece is halved until the message is alone."""


KEY, VALUE = "key", "value"


@dataclass(frozen=True, slots=True)
class Messages:
    """Messages in the order in which they arrived.

    Attributes:
        keys: large_binary[n], NULL where a message has no key; None if none was given a key.
        values: large_binary[n]; NULL is a tombstone.
        others: the columns besides, such as an offset or a partition.
    """

    keys: pa.Array | None
    values: pa.Array
    others: pa.Table

    @classmethod
    def of(cls, given: Any) -> "Messages":
        """Take a record batch, table, reader, frame, or an iterable of batches; a column; or a list of bytes or text.

        A table has a column "value", and may have one called "key"; a table of one column is the values.
        """
        if isinstance(given, pa.Array | pa.ChunkedArray):
            return cls(None, _as_bytes(given, VALUE), _no_columns(len(given)))
        table = _as_table(given)
        if isinstance(table, list):
            return cls.of(_listed(table))
        if VALUE not in table.column_names and table.num_columns == 1:
            table = table.rename_columns([VALUE])
        if VALUE not in table.column_names:
            raise InvalidUsage(
                f"messages have the columns {table.column_names}, and none of them is {VALUE!r}: name the column of "
                f"the messages' bodies {VALUE!r}, and that of their keys, if there is one, {KEY!r}."
            )
        keys = _as_bytes(table[KEY], KEY) if KEY in table.column_names else None
        others = table.select([name for name in table.column_names if name not in (KEY, VALUE)])
        return cls(keys, _as_bytes(table[VALUE], VALUE), others)

    def __len__(self) -> int:
        return len(self.values)


def _no_columns(rows: int) -> pa.Table:
    return pa.table({"rows": pa.nulls(rows)}).select([])


def _as_table(given: Any) -> pa.Table | list[Any]:
    if isinstance(given, pa.Table):
        return given
    if isinstance(given, pa.RecordBatch):
        return pa.Table.from_batches([given])
    if hasattr(given, "__arrow_c_stream__") or hasattr(given, "__arrow_c_array__"):
        return pa.table(given)
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise InvalidUsage(
            f"messages are {type(given).__name__} {given!r:.40}: give record batches with the columns {VALUE!r} and, "
            f"if there is one, {KEY!r}; a column; or a list of bytes or text."
        )
    items = list(given)
    if items and all(isinstance(item, pa.RecordBatch | pa.Table) for item in items):
        tables = [pa.table(item) if isinstance(item, pa.RecordBatch) else item for item in items]
        return pa.concat_tables(tables)
    return items


def _listed(items: list[Any]) -> pa.Array:
    odd = next((item for item in items if not (item is None or isinstance(item, str | bytes))), None)
    if odd is not None:
        raise InvalidUsage(f"a message is {odd!r:.60}: give bytes or text, or None for a tombstone.")
    return pa.array(items, pa.large_binary())


def _as_bytes(column: Any, name: str) -> pa.Array:
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), pa.large_binary())
    try:
        return array.cast(pa.large_binary())
    except pa.ArrowException as error:
        raise InvalidUsage(
            f"the column {name!r} of the messages has type {array.type}: it must be bytes or text, one JSON document "
            "in each row."
        ) from error
