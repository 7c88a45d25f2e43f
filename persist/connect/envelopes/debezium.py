"""Debezium's change events, as JSON: `before`, `after` and `op`, with or without Connect's schema around them.

    value   = envelope | {"schema": …, "payload": envelope} | nothing, which is a tombstone
    envelope = {"before": row or null, "after": row or null, "op": op, "source": …, "ts_ms": …}
    op      = "c" created, "r" read by a snapshot, "u" updated, "d" deleted, "t" truncated, "m" a message of the log
    key     = {column: value, …} | {"schema": …, "payload": {…}}

A row with placeholders for unchanged large values ("u") becomes an event that does not change these columns: the column
`_unchanged` names them.

Three kinds are refused: "t", because a truncated table has no keys; "m", which has no row; and placeholders without an
earlier row that could have the values.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from persist.blob.errors import InvalidUsage
from persist.codecs.order.arrays import get_boolean_values, make_int64_array
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
    check_choice,
    deliver_events,
    make_key_column,
    reject_problems,
    to_one_array,
)
from persist.connect.envelopes.json_rows import Bad, merge_in_order, read_separately
from persist.connect.envelopes.kafka_connect import Described, Group, unwrap_messages
from persist.connect.envelopes.messages import Messages, decode_samples, list_values
from persist.connect.envelopes.rows import (
    RowPlan,
    explain_ambiguity,
    get_described_types,
    infer_row_types,
    make_reader_factory,
    merge_types,
)
from persist.connect.envelopes.unavailable import (
    Unchanged,
    make_unchanged_column,
    refuse_unchanged,
    take_out_unavailable,
)

PLACES = ("before", "after")
OP = "_op"
REFUSED = {
    "t": "its table was truncated, which names no keys: overwrite the collection, or delete its keys, then go on",
    "m": "it is a message of the database's log, and no change of a row",
}


def debezium(
    messages: Any,
    *,
    key: str | Sequence[str] | None = None,
    schema: SchemaLike = None,
    types: Mapping[str, str] | None = None,
    time: str | None = None,
    metadata: Mapping[str, str] | None = None,
    before: bool = False,
    tombstones: Literal["delete", "skip"] = "delete",
    unchanged: Unchanged = "keep",
    on_error: OnError = "raise",
) -> Events:
    """Read Debezium's change events as events for `Collection.upsert`.

    Vectorised, by `pyarrow.json`; memory is proportional to the messages, so pass the messages of one poll or file at a
    time. Neighbours of bad messages are read twice.

    An update without its unchanged large values changes the other columns: the events have a column `_unchanged` then.
    The commit that adds such events resolves them, so `upsert` also seals their times.

    Args:
        messages: record batches, a table or a frame, in the order of arrival. The column "value" has bytes or text,
            and so has "key" if the messages have keys. Or a column, or a list, of values alone.
        key: the columns of the key. Required if messages have no keys; by default the columns of their keys.
        schema: the types of the columns, key included; others are left out. None takes the types of the schema part, or
            else infers them from JSON, which may differ from one call to the next.
        types: for messages without a schema part: by column, Debezium's logical type, such as
            "io.debezium.time.MicroTimestamp" or "org.apache.kafka.connect.data.Decimal", or "string" for text.
        time: the path of an event's time, such as "source.ts_ms", or the name of a column beside the messages; it
            becomes `_time`. None if the caller of `upsert` sets the time.
        metadata: further columns for the value, such as `{"lsn": "source.lsn"}`, for `order_by`. Deletions have them,
        too; a tombstone has only fields outside the value.
        before: add `_before`, the value before the change, for machines that check it.
        tombstones: whether a message without a value deletes its key; otherwise it is skipped, because Debezium sends
        one after each "d", which has deleted the key.
        unchanged: whether an update may lack unchanged large values. "refuse" makes it a bad message, for machines that
        need whole events; before=True does so, too.
        on_error: "raise", or "collect" bad messages in `rejected`.

    Raises:
        BadMessage: a message is bad, and on_error="raise".
        InvalidUsage: an option is wrong, or required and missing from the messages.
    """
    check_choice("tombstones", tombstones, ("delete", "skip"))
    check_choice("unchanged", unchanged, get_args(Unchanged))
    batch = Messages.of(messages)
    request = ReadOptions.of(key, schema, time, metadata, types, on_error)
    keys = read_keys(batch, request)
    values = _read_values(batch, request, keys, may_lack=unchanged == "keep" and not before)
    bad = [*keys.bad, *values.bad]
    bad_rows = [bad_key.row for bad_key in keys.bad]
    good = ~np.isin(values.changes.rows, bad_rows)
    deleted = np.setdiff1d(values.tombstones, bad_rows) if tombstones == "delete" else make_empty_rows()
    changes, more = _add_tombstones(values.changes.filter_rows(good), deleted, keys, batch, request)
    events = assemble_events(changes, keys.names, before)
    return deliver_events(request, batch, lambda: events.table, [*bad, *more, *events.bad])


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of messages, separate from their values."""

    names: tuple[str, ...]
    columns: pa.StructArray | None  # For all messages; NULL where a message has no key.
    bad: list[Bad]

    def of(self, rows: np.ndarray) -> pa.StructArray | None:
        """Return the keys of some messages, by their numbers; None if no message has a key."""
        return None if self.columns is None else self.columns.take(make_int64_array(rows))


@dataclass(frozen=True, slots=True)
class _Values:
    """The changes in message values, the numbers of tombstones, and bad messages."""

    changes: Changes
    tombstones: np.ndarray
    bad: list[Bad]


def make_empty_rows() -> np.ndarray:
    """Return an empty array of message numbers."""
    return np.empty(0, np.int64)


def read_keys(messages: Messages, request: ReadOptions) -> Keys:
    """Return the keys of messages, read as JSON with or without a schema part."""
    if messages.keys is None or messages.keys.null_count == len(messages):
        if not request.key and len(messages):
            raise InvalidUsage("these messages have no keys of their own: name the key's columns, such as key=['id'].")
        return Keys(request.key, None, [])
    rows = np.flatnonzero(get_boolean_values(messages.keys.is_valid()))
    apart = unwrap_messages(messages.keys.take(make_int64_array(rows)), rows)
    groups = [_wrap_single_keys(group, request.key) for group in apart.groups]
    if not groups:
        return Keys(request.key, None, apart.bad)
    known_types = [list_row_types(group, (), request) for group in groups]
    row = merge_types([pa.struct(list(types.items())) for types in known_types])
    names = request.key or tuple(row.names)
    types = {n: (request.types or {}).get(n) or _get_member_type(row, n) for n in names}
    rows, columns, bad = read_groups(
        groups,
        lambda group: RowPlan((), types, make_reader_factory(group.described, request.logical)),
        {"row": pa.struct(list(types.items()))},
    )
    return Keys(names, _scatter_rows(columns["row"], rows, len(messages)), [*apart.bad, *bad])


def _get_member_type(row: pa.StructType, name: str) -> pa.DataType:
    """Return the type of a key column; raise InvalidUsage if it is missing."""
    if row.get_field_index(name) < 0:
        raise InvalidUsage(f"the keys of the messages have the columns {row.names}, and not {name!r}.")
    return row.field(name).type


def _wrap_single_keys(group: Group, key: tuple[str, ...]) -> Group:
    """Return keys as objects: transforms of Connect make bare values of single-column keys."""
    bare = pc.invert(pc.match_substring_regex(group.texts, r"^\s*\{"))
    if len(key) != 1 or not pc.any(bare, min_count=0).as_py():
        return group
    start, end = pa.scalar(f'{{"{key[0]}":'.encode(), pa.large_binary()), pa.scalar(b"}", pa.large_binary())
    nothing = pa.scalar(b"", pa.large_binary())
    texts = pc.if_else(bare, pc.binary_join_element_wise(start, group.texts, end, nothing), group.texts)
    single = group.described is not None and group.described.type != "struct"
    described = Described("struct", fields={key[0]: group.described}) if single and group.described else group.described
    return Group(group.rows, texts, described)


def _scatter_rows(columns: pa.Array, rows: np.ndarray, count: int) -> pa.StructArray:
    """Return `count` rows: `columns` at the positions `rows`, NULL elsewhere."""
    if len(rows) == count:
        return columns
    places = np.full(count, -1)
    places[rows] = np.arange(len(rows))
    return columns.take(pa.array(places, mask=places < 0))


def list_row_types(group: Group, places: tuple[str, ...], request: ReadOptions) -> dict[str, pa.DataType]:
    """Return the types of the rows' columns in a group: from its schema part, or inferred."""
    row = _find_described_row(group.described, places)
    return infer_row_types(group.texts, places) if row is None else get_described_types(row, request.logical)


def _find_described_row(described: Described | None, places: tuple[str, ...]) -> Described | None:
    """Return the description of the row inside of a message's description; None without one."""
    if described is None or not places:
        return described
    return next(
        (described.fields[place] for place in reversed(places) if place in described.fields), Described("struct")
    )


def _read_values(messages: Messages, request: ReadOptions, keys: Keys, *, may_lack: bool) -> _Values:
    """Return the changes that message values describe, with old and new rows."""
    is_valid = get_boolean_values(messages.values.is_valid())
    rows = np.flatnonzero(is_valid)
    apart = unwrap_messages(
        messages.values.take(make_int64_array(rows)) if len(rows) < len(messages) else messages.values, rows
    )
    groups, unchanged = take_out_unavailable(apart.groups, "after", request)
    paths = request.list_paths(messages)
    types = infer_types_of_groups(groups, PLACES, request)
    samples = [sample for group in groups[:1] for sample in decode_samples(group.texts)]
    path_types = {name: request.infer_path_type(name, samples) for name in paths}
    path_types = {OP: pa.string(), **path_types}

    def plan_group(group: Group) -> RowPlan:
        check_encodings(group, PLACES, types, request)
        how = make_reader_factory(_find_described_row(group.described, PLACES), request.logical)
        return RowPlan(PLACES, types, how, {OP: "op", **paths}, path_types)

    row = pa.struct(list(types.items()))
    numbers, columns, bad = read_groups(groups, plan_group, {**dict.fromkeys(PLACES, row), **path_types})
    changes, more = _make_changes(numbers, columns, messages, request, keys, unchanged, may_lack=may_lack)
    return _Values(
        changes, np.sort(np.concatenate([np.flatnonzero(~is_valid), apart.empty])), [*apart.bad, *bad, *more]
    )


def infer_types_of_groups(
    groups: Sequence[Group], places: tuple[str, ...], request: ReadOptions
) -> dict[str, pa.DataType]:
    """Return the types of the rows' columns: from the options, or common to all groups."""
    if request.types is not None:
        return {name: t for name, t in request.types.items() if name not in request.metadata}
    row = merge_types([pa.struct(list(list_row_types(group, places, request).items())) for group in groups])
    return {f.name: f.type for f in row} if pat.is_struct(row) else {}


def check_encodings(
    group: Group, places: tuple[str, ...], types: Mapping[str, pa.DataType], request: ReadOptions
) -> None:
    """Raise InvalidUsage if all samples leave it open how a column is encoded.

    If only some samples are ambiguous, only their messages are bad.
    """
    if group.described is not None:
        return
    samples = decode_samples(group.texts)
    rows = [row for place in places for row in list_values(samples, place)] if places else samples
    for name, target in types.items():
        problems = (
            [explain_ambiguity(target, [value], name) for value in list_values(rows, name)]
            if name not in request.logical
            else []
        )
        if problems and all(problems):
            raise InvalidUsage(f"{problems[0]}.")


def read_groups(
    groups: Sequence[Group], plan_group: Callable[[Group], RowPlan], types: Mapping[str, pa.DataType]
) -> tuple[np.ndarray, dict[str, pa.Array], list[Bad]]:
    """Read messages of several groups; return their numbers, columns, and the bad messages."""
    pieces, bad = list[tuple[np.ndarray, pa.RecordBatch]](), list[Bad]()
    for group in groups:
        separated = read_separately(group.texts, plan_group(group), group.rows)
        pieces += separated.pieces
        bad += separated.bad
    empty = pa.record_batch([pa.array([], kind) for kind in types.values()], [*types])
    rows, table = merge_in_order(
        pieces, pa.Table.from_batches([batch for _, batch in pieces] or [empty]).combine_chunks()
    )
    return rows, {name: to_one_array(table[name]) for name in table.column_names}, bad


def _make_changes(
    rows: np.ndarray,
    columns: dict[str, pa.Array],
    messages: Messages,
    request: ReadOptions,
    keys: Keys,
    unchanged: Mapping[int, list[str]],
    *,
    may_lack: bool,
) -> tuple[Changes, list[Bad]]:
    """Return messages as changes, and the bad messages."""
    ops = columns[OP]
    deletes = _equals(ops, "d")
    other_columns = {name: columns[name] for name in request.list_paths(messages)}
    other_columns.update(request.make_metadata_columns(messages, rows) | make_unchanged_column(rows, unchanged))
    changes = Changes(rows, deletes, columns["after"], columns["before"], keys.of(rows), other_columns)
    is_row_change = deletes | _equals(ops, "c") | _equals(ops, "r") | _equals(ops, "u")
    missing = ~deletes & _is_null(columns["after"])
    has_no_earlier = (
        ~_equals(ops, "u") | _find_key_changes(changes, keys.names) if may_lack else np.ones(len(rows), np.bool_)
    )
    problems: list[Problem] = [(_equals(ops, op), _make_constant_reason(reason)) for op, reason in REFUSED.items()]
    problems += [
        (~is_row_change, lambda place: _explain_unknown_op(ops[place].as_py())),
        refuse_unchanged(rows, unchanged, has_no_earlier),
        (missing, lambda place: f'it has op "{ops[place].as_py()}", and no row after the change'),
    ]
    if TIME in other_columns:
        problems.append((_is_null(other_columns[TIME]), lambda _: f"it has no {request.time!r} to take its time from"))
    return reject_problems(changes, problems)


def _find_key_changes(changes: Changes, key: Sequence[str]) -> Mask:
    """Return a mask of the changes that change their row's key."""
    moves = np.zeros(len(changes.rows), np.bool_)
    for name in key:
        if changes.before.type.get_field_index(name) >= 0:
            now, earlier = make_key_column(changes, name), pc.struct_field(changes.before, [name])
            moves |= get_boolean_values(pc.not_equal(earlier.cast(now.type), now).fill_null(False))
    return moves  # A row's unchanged large values are not stored under its new key.


def _make_constant_reason(reason: str) -> Callable[[int], str]:
    """Return a function that returns this reason for any change."""
    return lambda _: reason


def _explain_unknown_op(op: str | None) -> str:
    """Return why a message with this `op` is bad."""
    return "it is not a change event: it has no op" if op is None else f'it has op "{op}", which is not c, r, u or d'


def _equals(column: pa.Array, value: Any) -> Mask:
    return get_boolean_values(pc.equal(column, value).fill_null(False))


def _is_null(column: pa.Array) -> Mask:
    return get_boolean_values(column.is_null())


def _add_tombstones(
    changes: Changes, rows: np.ndarray, keys: Keys, messages: Messages, request: ReadOptions
) -> tuple[Changes, list[Bad]]:
    """Return changes with tombstones as deletions, and the bad tombstones."""
    if not len(rows):
        return changes, []
    if keys.columns is None:
        return changes, [Bad(int(row), "it has neither a value nor a key") for row in rows]
    none = {name: pa.nulls(len(rows), column.type) for name, column in changes.others.items()}
    none.update(request.make_metadata_columns(messages, rows))
    empty = pa.nulls(len(rows), changes.after.type)
    deletions = Changes(rows, np.ones(len(rows), bool), empty, empty, keys.of(rows), none)
    bad = list[Bad]()
    if TIME in none and request.time in request.list_paths(messages).values():
        reason = (
            f"it is a tombstone, which has no {request.time!r} to take its time from: take the time from a column "
            'beside the messages, or pass tombstones over with tombstones="skip"'
        )
        deletions, bad = reject_problems(deletions, [(np.ones(len(rows), bool), lambda _: reason)])
    return merge_changes(changes, deletions), bad


def merge_changes(one: Changes, other: Changes) -> Changes:
    """Return two sets of changes as one, in the order of their messages."""
    rows = np.concatenate([one.rows, other.rows])
    order = np.argsort(rows, kind="stable")

    def both(a: pa.Array, b: pa.Array) -> pa.Array:
        return to_one_array(pa.chunked_array([a, b], a.type)).take(make_int64_array(order))

    keys = None if one.keys is None or other.keys is None else both(one.keys, other.keys)
    other_columns = {name: both(column, other.others[name]) for name, column in one.others.items()}
    deletes = np.concatenate([one.deletes, other.deletes])[order]
    return Changes(
        rows[order], deletes, both(one.after, other.after), both(one.before, other.before), keys, other_columns
    )
