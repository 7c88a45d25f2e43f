"""Checks the options of a reader of messages, and collects its results: events and rejected messages.

Turns changes of rows into events, with keys, deletions and values; whole columns at a time.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from persist.blob.errors import InvalidUsage
from persist.codecs.errors import did_you_mean
from persist.codecs.order.arrays import get_boolean_values, make_boolean_array, make_int64_array
from persist.codecs.types.python_types import get_stored_type, parse_fields
from persist.connect.envelopes.json_rows import Bad
from persist.connect.envelopes.kafka_connect import Described
from persist.connect.envelopes.messages import KEY, VALUE, Messages, list_values
from persist.core.errors import BadMessage
from persist.core.state_rules.keyed_rules import UNCHANGED

DELETED, TIME, BEFORE = "_deleted", "_time", "_before"
OnError: TypeAlias = Literal["raise", "collect"]
SchemaLike: TypeAlias = Any  # A key or a value as in `create_or_load`, without codecs; None for none.


@dataclass(frozen=True, slots=True)
class Events:
    """Events that were read from messages; an Arrow stream for `Collection.upsert` or `Collection.transition`.

    Attributes:
        table: the events in the order of their messages: the columns of key and value, `_deleted`; by option also
            `_time` and `_before`. Deleted rows have NULL values. `_unchanged` lists the columns of unchanged large
            values that rows lack.
        rejected: unreadable messages: `message`, its number from 0; `reason`; `key` and `value`, their bytes.
    """

    table: pa.Table
    rejected: pa.Table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Export the events, without rejected messages, as an Arrow stream."""
        return self.table.__arrow_c_stream__(requested_schema)

    def __len__(self) -> int:
        return int(self.table.num_rows)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options with which messages of any envelope are read.

    Attributes:
        key: the columns of the key; () to take them from messages.
        types: of the columns, key included; None to infer them from messages.
        time: the path of `_time` in a message, or a column beside the messages; None for no `_time`.
        metadata: further columns of the value: name and path.
        logical: the encodings of columns for messages without a schema.
        on_error: whether a bad message raises an error or is collected.
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
    ) -> "ReadOptions":
        """Return checked options."""
        names = () if key is None else (key,) if isinstance(key, str) else tuple(key)
        types = None if schema is None else _parse_schema(schema)
        check_choice("on_error", on_error, ("raise", "collect"))
        if types is not None:
            for name in (*names, *(logical or {})):
                if name not in types:
                    hint = did_you_mean(name, list(types))
                    raise InvalidUsage(f"column {name!r} is not in the schema, which has {list(types)}.{hint}")
        described = {
            n: Described.for_logical_type(kind, types.get(n) if types else None) for n, kind in (logical or {}).items()
        }
        return cls(names, types, time, dict(metadata or {}), described, on_error)

    def list_paths(self, messages: Messages) -> dict[str, str]:
        """Return the path inside messages of each metadata column, and of `_time`."""
        every = {**self.metadata, **({TIME: self.time} if self.time is not None else {})}
        return {name: path for name, path in every.items() if path not in messages.others.column_names}

    def infer_path_type(self, name: str, samples: list[dict[str, Any]]) -> pa.DataType:
        """Infer the type of the values at the path of a metadata column from samples."""
        if name == TIME:
            return pa.int64()
        if self.types is not None and name in self.types:
            return self.types[name]
        values = list_values(samples, *self.metadata[name].split("."))
        return pa.scalar(values[0]).type if values else pa.null()

    def make_metadata_columns(self, messages: Messages, rows: npt.NDArray[np.int64]) -> dict[str, pa.Array]:
        """Return the metadata columns that come beside the messages, for messages by number."""
        every = {**self.metadata, **({TIME: self.time} if self.time is not None else {})}
        columns = {n: messages.others[path] for n, path in every.items() if path in messages.others.column_names}
        return {
            name: to_one_array(column.take(make_int64_array(rows))).cast(pa.int64() if name == TIME else column.type)
            for name, column in columns.items()
        }


def to_one_array(column: pa.ChunkedArray) -> pa.Array:
    """Return a chunked column as one array."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def check_choice(option: str, value: str, allowed: Iterable[str]) -> None:
    """Raise InvalidUsage unless an option has an allowed value."""
    if value not in allowed:
        raise InvalidUsage(f"{option}={value!r} is not one of {', '.join(map(repr, allowed))}.")


def _parse_schema(schema: SchemaLike) -> dict[str, pa.DataType]:
    """Return the stored type of each column, without `_time`, `_deleted` and `_diff`."""
    return {
        name: get_stored_type(kind)
        for name, kind, _ in parse_fields(schema, "schema")
        if name not in (TIME, DELETED, "_diff")
    }


def deliver_events(request: ReadOptions, messages: Messages, table: Callable[[], pa.Table], bad: list[Bad]) -> Events:
    """Return events and rejected messages; raise for the first bad one if `on_error` is "raise"."""
    bad.sort(key=lambda rejection: rejection.row)
    if bad and request.on_error == "raise":
        raise BadMessage(bad[0].row, bad[0].reason, len(bad))
    return Events(table(), _make_rejected_rows(messages, bad))


def _make_rejected_rows(messages: Messages, bad: list[Bad]) -> pa.Table:
    """Return bad messages as a table with their reasons."""
    rows = pa.array([rejection.row for rejection in bad], pa.int64())
    keys: Any = pa.nulls(len(bad), pa.large_binary()) if messages.keys is None else messages.keys.take(rows)
    reasons = pa.array([rejection.reason for rejection in bad], pa.string())
    return pa.table({"message": rows, "reason": reasons, KEY: keys, VALUE: messages.values.take(rows)})


Mask: TypeAlias = npt.NDArray[np.bool_]
Problem: TypeAlias = tuple[Mask, Callable[[int], str]]


@dataclass(frozen=True)
class Changes:
    """Changes of rows, one or several for each message, in the order of the messages.

    Attributes:
        rows: the message number of each change, int64[n], ascending.
        deletes: bool[n]: whether the row was deleted.
        after: struct[n], the row after the change; NULL without one.
        before: struct[n], the old row, as far as the message has it; otherwise NULL.
        keys: struct[n], the separate key of the message; NULL without one.
        others: further columns of the events.
    """

    rows: np.ndarray
    deletes: Mask
    after: pa.StructArray
    before: pa.StructArray
    keys: pa.StructArray | None = None
    others: Mapping[str, pa.Array] = field(default_factory=dict)

    def filter_rows(self, mask: Mask) -> "Changes":
        """Return the changes that a mask selects."""
        if mask.all():
            return self

        def some(array: pa.Array) -> pa.Array:
            return array.filter(make_boolean_array(mask))

        keys = None if self.keys is None else some(self.keys)
        other_columns = {name: some(column) for name, column in self.others.items()}
        return Changes(self.rows[mask], self.deletes[mask], some(self.after), some(self.before), keys, other_columns)


@dataclass(frozen=True, slots=True)
class AssembledEvents:
    """The events of good messages, and the bad messages."""

    table: pa.Table
    bad: list[Bad]


def assemble_events(changes: Changes, key: tuple[str, ...], with_before: bool = False) -> AssembledEvents:
    """Return changes as events by key, and the messages that lack a key.

    A change of the key, which only old rows show, is two events: the old key is deleted, and the new one inserted.
    Only the message's own key may have NULL in a field: in a row, NULL may mean a missing field.
    """
    columns = {name: make_key_column(changes, name) for name in key}
    bad = list[Bad]()
    good = np.ones(len(changes.rows), bool)
    may_be_null = _find_usable_keys(changes, columns)
    for name, column in columns.items():
        nulls = column.is_null() if may_be_null is None else pc.and_not(column.is_null(), may_be_null)
        good &= _reject_nulls(nulls, good, changes, bad, f"the column {name!r} of its key is missing or null")
    good_changes = changes.filter_rows(good)
    columns = {name: column.filter(make_boolean_array(good)) for name, column in columns.items()}
    value = [f for f in good_changes.after.type if f.name not in key and f.name not in good_changes.others]
    is_deletion = make_boolean_array(good_changes.deletes)
    for f in value:
        column = good_changes.after.field(f.name)
        columns[f.name] = (
            pc.if_else(is_deletion, pa.scalar(None, f.type), column) if good_changes.deletes.any() else column
        )
    columns.update({name: column for name, column in good_changes.others.items() if name not in columns})
    if UNCHANGED in columns and columns[UNCHANGED].null_count == len(is_deletion):
        del columns[UNCHANGED]  # The messages that lack values were all refused.
    columns[DELETED] = is_deletion
    if with_before:
        parts = [good_changes.before.field(f.name) for f in value]
        columns[BEFORE] = pa.StructArray.from_arrays(parts, fields=value, mask=good_changes.before.is_null())
    table = pa.table(columns)
    return AssembledEvents(_insert_deletions(table, good_changes, key), bad)


def make_key_column(changes: Changes, name: str) -> pa.Array:
    """Return a key column: from the messages' own keys if they have it, or else from rows."""
    apart = changes.keys.field(name) if changes.keys is not None and _has_field(changes.keys, name) else None
    if apart is not None and not apart.null_count:
        return apart
    deletes = make_boolean_array(changes.deletes)
    if not _has_field(changes.after, name):
        return apart if apart is not None else pa.nulls(len(changes.rows))
    row = pc.if_else(deletes, _get_field(changes.before, name), _get_field(changes.after, name))
    return row if apart is None else pc.coalesce(apart, row.cast(apart.type))


def _get_field(rows: pa.StructArray, name: str) -> pa.Array:
    """Return a column of rows; NULL for messages without a row."""
    return pc.struct_field(rows, [name])


def _has_field(rows: pa.StructArray, name: str) -> bool:
    return bool(rows.type.get_field_index(name) >= 0)


def _find_usable_keys(changes: Changes, columns: Mapping[str, pa.Array]) -> pa.Array | None:
    """Return a mask of messages whose own key has a value; None if keys lack a column."""
    if changes.keys is None or not all(_has_field(changes.keys, name) for name in columns):
        return None
    some = [column.is_valid() for column in columns.values()]
    return pc.and_(changes.keys.is_valid(), reduce(pc.or_, some))


def _reject_nulls(nulls: pa.Array, good: Mask, changes: Changes, bad: list[Bad], reason: str) -> Mask:
    """Add good changes with a NULL key to `bad`; return the mask of changes without one."""
    mask = get_boolean_values(nulls)
    bad += [Bad(int(row), reason) for row in changes.rows[mask & good]]
    return ~mask


def _insert_deletions(table: pa.Table, changes: Changes, key: tuple[str, ...]) -> pa.Table:
    """Insert a deletion of the old key before each event that changed its key."""
    old = {name: _get_field(changes.before, name) for name in key if _has_field(changes.before, name)}
    if changes.keys is not None or len(old) < len(key) or not len(table):
        return table
    is_changed = np.zeros(len(table), bool)
    has_key = ~changes.deletes
    for name, column in old.items():
        is_changed |= get_boolean_values(pc.not_equal(column, table[name].combine_chunks()).fill_null(False))
        has_key &= get_boolean_values(column.is_valid())
    moved = is_changed & has_key
    if not moved.any():
        return table
    deletions = _make_deletions(
        table.filter(make_boolean_array(moved)), old, make_boolean_array(moved), set(changes.others)
    )
    places = np.concatenate([np.flatnonzero(moved) * 2, np.arange(len(table)) * 2 + 1])
    return pa.concat_tables([deletions, table]).take(make_int64_array(np.argsort(places, kind="stable")))


def _make_deletions(moved: pa.Table, old: Mapping[str, pa.Array], where: pa.Array, kept: set[str]) -> pa.Table:
    """Return events that delete the old keys of rows whose key changed. Metadata columns stay."""
    columns = {}
    for name in moved.column_names:
        column = moved[name]
        if name in old:
            columns[name] = pa.chunked_array([old[name].filter(where)])
        elif name == DELETED:
            columns[name] = pa.chunked_array([make_boolean_array(np.ones(len(moved), bool))])
        else:
            columns[name] = (
                column if name in kept or name == BEFORE else pa.chunked_array([pa.nulls(len(moved), column.type)])
            )
    return pa.table(columns, schema=moved.schema)


def reject_problems(changes: Changes, problems: list[Problem]) -> tuple[Changes, list[Bad]]:
    """Separate changes with a problem; only the first problem of a change is reported.

    A problem is a mask of changes, and a function that returns the reason for change number i.
    """
    good, bad = np.ones(len(changes.rows), bool), list[Bad]()
    for mask, reason in problems:
        bad += [Bad(int(changes.rows[place]), reason(int(place))) for place in np.flatnonzero(mask & good)]
        good &= ~mask
    return changes.filter_rows(good), bad
