"""Maxwell's and Canal's messages: JSON about rows of MySQL's binary log.

    Maxwell = {"database": …, "table": …, "type": type, "ts": …, "data": row, "old": {column: value, …}, …}
      type  = "insert" | "update" | "delete" | "bootstrap-insert" | "bootstrap-start" | "bootstrap-complete" | DDL
    Canal   = {"database": …, "table": …, "type": type, "data": [row, …], "old": [{column: value, …}, …] or null,
               "pkNames": [column, …], "mysqlType": {column: type, …}, "isDdl": …, "es": …, "ts": …, …}
      type  = "INIT" | "INSERT" | "UPDATE" | "DELETE" | DDL

Maxwell writes one row in each message, bytes in base64, and `primary_key_columns` if configured. Canal, and TiCDC with
it, writes the changed rows of one statement. All its values are text; each character of a bytes value is one byte; and
`old` is null or an empty list without old rows. "INIT" has the initial rows of a table.

Messages are read twice: first their tables and kinds of change, then the rows of the selected tables. So other tables,
and statements about tables, do not affect the types of columns.

`old` has only the columns that an update changed. It shows an old key, but it cannot distinguish NULL from an unchanged
column, so these envelopes have no `_before`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from persist.blob.errors import InvalidUsage
from persist.codecs.order.arrays import get_boolean_values, get_int64_values, make_boolean_array, make_int64_array
from persist.connect.envelopes.assembly import (
    TIME,
    Changes,
    Events,
    Mask,
    OnError,
    Problem,
    ReadOptions,
    SchemaLike,
    assemble_events,
    deliver_events,
    reject_problems,
    to_one_array,
)
from persist.connect.envelopes.json_rows import Bad, find_suspects, merge_in_order, parse, read_separately
from persist.connect.envelopes.messages import (
    Messages,
    choose_reader,
    decode_base64,
    decode_latin_1,
    decode_samples,
    list_values,
)
from persist.connect.envelopes.rows import ReaderFactory, RowPlan, infer_row_types, merge_types

_FORM = re.compile(r"\s*([a-z]+)\s*(?:\(([^)]*)\))?(.*)", re.IGNORECASE | re.DOTALL)
_INTEGERS = {
    "tinyint": (pa.int8(), pa.uint8()),
    "smallint": (pa.int16(), pa.uint16()),
    "mediumint": (pa.int32(), pa.uint32()),
    "int": (pa.int32(), pa.uint32()),
    "integer": (pa.int32(), pa.uint32()),
    "bigint": (pa.int64(), pa.uint64()),
}
_OTHERS = {
    "float": pa.float32(),
    "double": pa.float64(),
    "real": pa.float64(),
    "date": pa.date32(),
    "datetime": pa.timestamp("us"),
    "timestamp": pa.timestamp("us"),
    "year": pa.int16(),
    "binary": pa.binary(),
    "varbinary": pa.binary(),
    "tinyblob": pa.binary(),
    "blob": pa.binary(),
    "mediumblob": pa.binary(),
    "longblob": pa.binary(),
}


def to_arrow_type(mysql_type: str) -> pa.DataType:
    """Return the Arrow type of a column, such as "decimal(10,2) unsigned"; by default string.

    A TIME is text, because it may be negative or longer than a day.
    """
    form = _FORM.match(mysql_type)
    name, arguments, modifiers = (form[1].lower(), form[2], form[3].lower()) if form else ("", None, "")
    if name in _INTEGERS:
        signed, unsigned = _INTEGERS[name]
        return unsigned if "unsigned" in modifiers else signed
    if name in ("decimal", "numeric"):
        if not arguments:  # Some producers name the type without digits, so all must fit.
            return pa.decimal128(38, 18)
        digits = [int(part) for part in arguments.split(",")]
        make = pa.decimal128 if digits[0] <= 38 else pa.decimal256
        return make(digits[0], digits[1] if len(digits) > 1 else 0)
    return _OTHERS.get(name, pa.string())


PLACES = ("data", "old")
HEAD = pa.schema([("type", pa.string()), ("database", pa.string()), ("table", pa.string())])


@dataclass(frozen=True)
class Dialect:
    """How the messages of Maxwell and of Canal differ.

    Attributes:
        writes, deletes, skipped: the types of messages with rows, with deleted rows, and without changes of rows.
        listed: whether `data` and `old` are arrays of rows.
        key_at, types_at: the names of the members with the key's columns and with MySQL's types; None without one.
        binary: decodes text to bytes.
    """

    name: str
    writes: tuple[str, ...]
    deletes: str
    skipped: tuple[str, ...]
    listed: bool
    key_at: str
    types_at: str | None
    binary: Callable[[pa.Array], pa.Array]


@dataclass(frozen=True)
class _Stream:
    """The messages of one table that have rows: their numbers, texts, and samples as Python values.

    `deletes`: bool[n], whether a message deletes its rows; `bad`: bad messages with reasons.
    """

    rows: np.ndarray
    texts: pa.Array
    deletes: Mask
    samples: list[dict[str, Any]]
    bad: list[Bad]


def read_events(messages: Any, request: ReadOptions, table: str | None, dialect: Dialect) -> Events:
    """Return the events of a dialect's messages; see `maxwell` and `canal`."""
    batch = Messages.of(messages)
    stream = _select_table(batch, table, dialect)
    named = [tuple(names) for names in list_values(stream.samples, dialect.key_at) if isinstance(names, list)]
    key = request.key or next(iter(named), ())
    if not key and len(stream.rows):
        raise InvalidUsage(
            f"these messages do not name the columns of their key ({dialect.key_at}): name them, such as key=['id']."
        )
    types = _choose_types(stream, request, dialect)
    paths = request.list_paths(batch)
    path_types = {name: request.infer_path_type(name, stream.samples) for name in paths}
    plan = RowPlan(PLACES, types, _make_reader_factory(dialect), paths, path_types, dialect.listed)
    sifted_rows = read_separately(stream.texts, plan, stream.rows)
    row = pa.struct(list(types.items()))
    place = pa.list_(row) if dialect.listed else row
    empty = pa.record_batch([pa.array([], t) for t in (place, place, *path_types.values())], [*PLACES, *paths])
    columns = pa.Table.from_batches([piece for _, piece in sifted_rows.pieces] or [empty]).combine_chunks()
    rows, columns = merge_in_order(sifted_rows.pieces, columns)
    deletes = stream.deletes[np.searchsorted(stream.rows, rows)]
    changes, more = _make_changes(rows, deletes, columns, batch, request, key, dialect.listed)
    events = assemble_events(changes, key)
    return deliver_events(request, batch, lambda: events.table, [*stream.bad, *sifted_rows.bad, *more, *events.bad])


class _HeadReader:
    """Parses all members of messages but the rows, such as table and type."""

    def read(self, texts: pa.Array) -> pa.Table:
        return parse(texts, HEAD)

    def find_suspects(self, texts: pa.Array) -> Mask:
        return find_suspects(texts, HEAD)


def _select_table(messages: Messages, table: str | None, dialect: Dialect) -> _Stream:
    """Return the messages of a table that have rows, and the bad messages."""
    is_valid = get_boolean_values(messages.values.is_valid())
    bad = [Bad(int(row), f"it is empty, which {dialect.name} does not send") for row in np.flatnonzero(~is_valid)]
    rows = np.flatnonzero(is_valid)
    values = messages.values if len(rows) == len(messages) else messages.values.take(make_int64_array(rows))
    sifted_heads = read_separately(values, _HeadReader(), rows)
    heads = pa.concat_tables([HEAD.empty_table(), *(piece for _, piece in sifted_heads.pieces)])
    rows, heads = merge_in_order(sifted_heads.pieces, heads)
    is_of_table = _match_table(heads, table, dialect)
    kinds = heads["type"].combine_chunks()
    deletes = _is_in(kinds, (dialect.deletes,))
    with_rows = deletes | _is_in(kinds, dialect.writes)
    is_other = is_of_table & ~with_rows & ~_is_in(kinds, dialect.skipped)
    bad += [
        *sifted_heads.bad,
        *(Bad(int(rows[i]), _explain_other_kind(kinds[i].as_py())) for i in np.flatnonzero(is_other)),
    ]
    has_rows = is_of_table & with_rows
    texts = (
        messages.values.take(make_int64_array(rows[has_rows]))
        if not has_rows.all() or len(rows) < len(messages)
        else messages.values
    )
    return _Stream(rows[has_rows], texts, deletes[has_rows], decode_samples(texts) if has_rows.any() else [], bad)


def _match_table(heads: pa.Table, table: str | None, dialect: Dialect) -> Mask:
    """Return a mask of the messages of a table; all if they have only one."""
    names = pc.binary_join_element_wise(heads["database"], heads["table"], ".", null_handling="replace")
    if table is not None:
        is_match = pc.or_(pc.equal(names, table), pc.equal(heads["table"], table).fill_null(False))
        return get_boolean_values(to_one_array(is_match))
    with_rows = _is_in(heads["type"].combine_chunks(), (*dialect.writes, dialect.deletes))
    several = pc.unique(names.filter(make_boolean_array(with_rows))).to_pylist()
    if len(several) > 1:
        raise InvalidUsage(
            f"the messages are of the tables {', '.join(sorted(several)[:8])}, and a collection holds the rows of one: "
            f"name it, such as table={sorted(several)[0]!r}; messages of the others are then passed over."
        )
    return np.ones(len(heads), bool)


def _is_in(column: pa.Array, values: tuple[str, ...]) -> Mask:
    """Return a mask of the values that are in a tuple."""
    return get_boolean_values(pc.is_in(column, pa.array(values, pa.string())))


def _explain_other_kind(kind: str | None) -> str:
    """Return why a message is not a change of rows."""
    if kind is None:
        return "it is not a change of a row: it has no type"
    return (
        f"it has type {kind!r}, which does not contain single rows: if it changed the table, see that the schema "
        "still fits, and go on"
    )


def _choose_types(stream: _Stream, request: ReadOptions, dialect: Dialect) -> Mapping[str, pa.DataType]:
    """Return types of the row's columns: from options, messages, or else inferred."""
    if request.types is not None:
        return {name: t for name, t in request.types.items() if name not in request.metadata}
    described = list_values(stream.samples, dialect.types_at) if dialect.types_at is not None else []
    if described:
        rows = [
            pa.struct([(n, to_arrow_type(t)) for n, t in columns_of_table.items()]) for columns_of_table in described
        ]
        row = merge_types(rows)
        return {f.name: f.type for f in row}
    return infer_row_types(stream.texts, PLACES, dialect.listed)


def _make_reader_factory(dialect: Dialect) -> ReaderFactory:
    """Return a function that chooses the reader of a column, with the dialect's form of bytes."""
    return lambda name, target, samples: choose_reader(target, samples, name, dialect.binary)


def _make_changes(
    rows: np.ndarray,
    deletes: Mask,
    columns: pa.Table,
    messages: Messages,
    request: ReadOptions,
    key: tuple[str, ...],
    listed: bool,
) -> tuple[Changes, list[Bad]]:
    """Return rows of messages as changes, and the bad messages."""
    data, old = (to_one_array(columns[place]) for place in PLACES)
    other_columns = {name: to_one_array(columns[name]) for name in request.list_paths(messages)}
    other_columns.update(request.make_metadata_columns(messages, rows))
    nothing = get_boolean_values(data.is_null())
    problems: list[Problem] = [(nothing, lambda _: "it has no rows: its data is missing or null")]
    if TIME in other_columns:
        timeless = get_boolean_values(other_columns[TIME].is_null())
        problems.append((timeless, lambda _: f"it has no {request.time!r} to take its time from"))
    if listed:
        nothing_old = pc.and_(pc.equal(pc.list_value_length(old), 0), pc.greater(pc.list_value_length(data), 0))
        old = pc.if_else(nothing_old.fill_null(False), pa.scalar(None, old.type), old)
        uneven = pc.not_equal(pc.list_value_length(old), pc.list_value_length(data)).fill_null(False)
        problems.append((get_boolean_values(uneven), lambda _: "its old rows are not as many as its rows"))
    changes, bad = reject_problems(Changes(rows, deletes, data, old, None, other_columns), problems)
    return _restore_old_keys(_flatten_changes(changes) if listed else changes, key), bad


def _flatten_changes(changes: Changes) -> Changes:
    """Return one change for each row, where messages have lists of rows."""
    counts = get_int64_values(pc.list_value_length(changes.after).cast(pa.int64()))
    owners = np.repeat(np.arange(len(counts)), counts)
    starts = np.cumsum(counts) - counts
    # Messages without old rows take up no places in the list of old ones.
    has_old = get_boolean_values(changes.before.is_valid())
    old_starts = np.cumsum(counts * has_old) - counts * has_old
    places = old_starts[owners] + np.arange(len(owners)) - starts[owners]
    rows_before = changes.before.flatten().take(pa.array(places, mask=~has_old[owners]))
    other_columns = {name: column.take(make_int64_array(owners)) for name, column in changes.others.items()}
    return Changes(
        changes.rows[owners], changes.deletes[owners], changes.after.flatten(), rows_before, None, other_columns
    )


def _restore_old_keys(changes: Changes, key: tuple[str, ...]) -> Changes:
    """Return changes whose old rows have the old key; an absent old value means unchanged."""
    parts = []
    for f in changes.after.type:
        now = changes.after.field(f.name)
        parts.append(pc.coalesce(pc.struct_field(changes.before, [f.name]), now) if f.name in key else now)
    rows_before = pa.StructArray.from_arrays(parts, fields=list(changes.after.type)) if parts else changes.after
    return Changes(changes.rows, changes.deletes, changes.after, rows_before, None, changes.others)


CANAL = Dialect(
    name="Canal",
    writes=("INIT", "INSERT", "UPDATE"),
    deletes="DELETE",
    skipped=("TIDB_WATERMARK",),
    listed=True,
    key_at="pkNames",
    types_at="mysqlType",
    binary=decode_latin_1,
)


def canal(
    messages: Any,
    *,
    key: str | Sequence[str] | None = None,
    schema: SchemaLike = None,
    table: str | None = None,
    time: str | None = None,
    metadata: Mapping[str, str] | None = None,
    on_error: OnError = "raise",
) -> Events:
    """Read Canal's messages as events for `Collection.upsert`.

    Each row of a message is an event; an update that changes the key is two: the old key is deleted first. Messages
    about tables are refused.

    Args:
        messages: record batches, a table or a frame with the column "value", in the order of arrival. Or a column, or
            a list, of values alone. Keys of messages have no effect.
        key: the columns of the key; `pkNames` if None.
        schema: the types of the columns, key included; others are left out. None takes the types of `mysqlType`, or
            text.
        table: "table" or "database.table"; messages of other tables are skipped. None if all messages are of one table.
        time: the path of an event's time, such as "es", or the name of a column beside the messages; it becomes
            `_time`. None if the caller of `upsert` sets the time.
        metadata: further columns for the value, such as `{"es": "es"}`.
        on_error: "raise", or "collect" bad messages in `rejected`.

    Raises:
        BadMessage: a message is bad, and on_error="raise".
        InvalidUsage: an option is wrong, or required and missing from the messages.
    """
    return read_events(messages, ReadOptions.of(key, schema, time, metadata, None, on_error), table, CANAL)


MAXWELL = Dialect(
    name="Maxwell",
    writes=("insert", "update", "bootstrap-insert"),
    deletes="delete",
    skipped=("bootstrap-start", "bootstrap-complete", "heartbeat"),
    listed=False,
    key_at="primary_key_columns",
    types_at=None,
    binary=decode_base64,
)


def maxwell(
    messages: Any,
    *,
    key: str | Sequence[str] | None = None,
    schema: SchemaLike = None,
    table: str | None = None,
    time: str | None = None,
    metadata: Mapping[str, str] | None = None,
    on_error: OnError = "raise",
) -> Events:
    """Read Maxwell's messages as events for `Collection.upsert`.

    An update that changes the key is two events: the old key is deleted first. Messages about tables are refused.

    Args:
        key: the columns of the key; needed unless the messages have `primary_key_columns`.
        schema: the types of the columns, key included; others are left out. None infers them from JSON, which may
            differ from one call to the next.
        messages, table, time, metadata, on_error: as for `canal`.

    Raises: as `canal`.
    """
    return read_events(messages, ReadOptions.of(key, schema, time, metadata, None, on_error), table, MAXWELL)
