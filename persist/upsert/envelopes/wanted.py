"""What a caller wants of messages, checked; and what becomes of them: events, and messages that were rejected."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from persist.blob import InvalidUsage
from persist.codecs import did_you_mean, field_types, int64_array
from persist.errors import BadMessage
from persist.upsert.envelopes.columns import values_at
from persist.upsert.envelopes.connect import Described
from persist.upsert.envelopes.json_rows import Bad
from persist.upsert.envelopes.messages import KEY, VALUE, Messages

DELETED, TIME, BEFORE = "_deleted", "_time", "_before"
OnError: TypeAlias = Literal["raise", "collect"]
SchemaLike: TypeAlias = Any  # What `create_or_load` takes for a key or a value, except codecs; None for none.


@dataclass(frozen=True, slots=True)
class Events:
    """What messages amount to; goes to `Collection.upsert` or `Collection.transition` as it is, because it is Arrow.

    Attributes:
        table: the events in the order of their messages: the key's columns, the value's, `_deleted`; `_time` and
            `_before` if they were asked for. The value of a deleted row is NULL.
        rejected: the messages that could not be read: `message`, its number among those given, from 0; `reason`;
            `key` and `value`, the bytes that were given.
    """

    table: pa.Table
    rejected: pa.Table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Give the events, not what was rejected, to whatever takes Arrow."""
        return self.table.__arrow_c_stream__(requested_schema)

    def __len__(self) -> int:
        return int(self.table.num_rows)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The options that all envelopes share.

    Attributes:
        key: the columns of the key; () if the messages are to say which these are.
        types: of the columns, key included; None if the messages are to say these, too.
        time: where `_time` is in a message, or a column beside the messages; None for no such column.
        metadata: by their names, further columns of the value: where they are.
        logical: how a producer encodes some columns, where no message says so.
        on_error: whether a bad message raises, or is collected.
    """

    key: tuple[str, ...]
    types: dict[str, pa.DataType] | None
    time: str | None
    metadata: dict[str, str]
    logical: dict[str, Described]
    on_error: OnError

    @classmethod
    def of(
        cls,
        key: str | Sequence[str] | None,
        schema: SchemaLike,
        time: str | None = None,
        metadata: Mapping[str, str] | None = None,
        logical: Mapping[str, str] | None = None,
        on_error: OnError = "raise",
    ) -> "Wanted":
        """Check what was asked for.

        Raises:
            InvalidUsage: an option has no allowed value, or names a column that the schema has not; or that is none.
        """
        names = () if key is None else (key,) if isinstance(key, str) else tuple(key)
        types = None if schema is None else _types(schema)
        one_of("on_error", on_error, ("raise", "collect"))
        if types is not None:
            for name in (*names, *(logical or {})):
                if name not in types:
                    hint = did_you_mean(name, list(types))
                    raise InvalidUsage(f"column {name!r} is not in the schema, which has {list(types)}.{hint}")
        described = {n: Described.named(kind, types.get(n) if types else None) for n, kind in (logical or {}).items()}
        return cls(names, types, time, dict(metadata or {}), described, on_error)

    def paths(self, messages: Messages) -> dict[str, str]:
        """Return what is to be read of each message besides its row: by column, the path. The rest stands beside it."""
        every = {**self.metadata, **({TIME: self.time} if self.time is not None else {})}
        return {name: path for name, path in every.items() if path not in messages.others.column_names}

    def path_type(self, name: str, samples: list[dict[str, Any]]) -> pa.DataType:
        """Return the type of what is at a path of messages, of which some samples are given."""
        if name == TIME:
            return pa.int64()
        if self.types is not None and name in self.types:
            return self.types[name]
        values = values_at(samples, *self.metadata[name].split("."))
        return pa.scalar(values[0]).type if values else pa.null()

    def beside(self, messages: Messages, rows: npt.NDArray[np.int64]) -> dict[str, pa.Array]:
        """Return the columns that stand beside the messages, for some of these."""
        every = {**self.metadata, **({TIME: self.time} if self.time is not None else {})}
        columns = {n: messages.others[path] for n, path in every.items() if path in messages.others.column_names}
        return {
            name: one_array(column.take(int64_array(rows))).cast(pa.int64() if name == TIME else column.type)
            for name, column in columns.items()
        }


def one_array(column: pa.ChunkedArray) -> pa.Array:
    """Return a column in one piece."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def one_of(option: str, given: str, allowed: Iterable[str]) -> None:
    """Raise InvalidUsage unless an option has one of the values that it may have."""
    if given not in allowed:
        raise InvalidUsage(f"{option}={given!r} is none of {', '.join(map(repr, allowed))}.")


def _types(schema: SchemaLike) -> dict[str, pa.DataType]:
    return {name: kind for name, kind, _ in field_types(schema, "schema") if name not in (TIME, DELETED, "_diff")}


def delivered(wanted: Wanted, messages: Messages, table: Callable[[], pa.Table], bad: list[Bad]) -> Events:
    """Return the events of `table` and the bad messages, or raise for the first of these if that is what is wanted."""
    bad.sort(key=lambda one: one.row)
    if bad and wanted.on_error == "raise":
        raise BadMessage(bad[0].row, bad[0].reason, len(bad))
    return Events(table(), _rejected(messages, bad))


def _rejected(messages: Messages, bad: list[Bad]) -> pa.Table:
    rows = pa.array([one.row for one in bad], pa.int64())
    keys: Any = pa.nulls(len(bad), pa.large_binary()) if messages.keys is None else messages.keys.take(rows)
    reasons = pa.array([one.reason for one in bad], pa.string())
    return pa.table({"message": rows, "reason": reasons, KEY: keys, VALUE: messages.values.take(rows)})
