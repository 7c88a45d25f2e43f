"""Messages without an envelope: each value is a row, as a JSON object.

Connect's schema may be around the object. A message without a value is a tombstone: it deletes the row of its key. The
key of a message has no other effect, because producers also choose keys to spread messages. A tombstone's key is a JSON
object, or the one column of the key as JSON or as bare text.
"""

from collections.abc import Mapping, Sequence
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from persist.codecs.order.arrays import get_boolean_values, make_int64_array
from persist.connect.envelopes.assembly import (
    Changes,
    Events,
    OnError,
    ReadOptions,
    SchemaLike,
    assemble_events,
    check_choice,
    deliver_events,
    reject_problems,
)
from persist.connect.envelopes.debezium import (
    check_encodings,
    infer_types_of_groups,
    make_empty_rows,
    merge_changes,
    read_groups,
    read_keys,
)
from persist.connect.envelopes.json_rows import Bad
from persist.connect.envelopes.kafka_connect import Group, unwrap_messages
from persist.connect.envelopes.messages import Messages, decode_samples
from persist.connect.envelopes.rows import RowPlan, make_reader_factory
from persist.connect.envelopes.unavailable import (
    Unchanged,
    make_unchanged_column,
    refuse_unchanged,
    take_out_unavailable,
)

NOTHING = "it has neither a value nor a key"


def plain(
    messages: Any,
    *,
    key: str | Sequence[str] | None = None,
    schema: SchemaLike = None,
    types: Mapping[str, str] | None = None,
    metadata: Mapping[str, str] | None = None,
    unchanged: Unchanged = "keep",
    on_error: OnError = "raise",
) -> Events:
    """Read messages whose value is a row, as events or, without a key, as rows.

    See `Collection.upsert` and `Collection.write`.

    Args:
        messages: record batches, a table or a frame, in the order of arrival. The column "value" has bytes or text,
            and so has "key" if there are tombstones. Or a column, or a list, of values alone.
        key: the columns of the key, which each row must have; None for rows without a key. A message without a value is
            bad then.
        schema: the types of the columns, key included; others are left out. None takes the types of the schema part, or
            else infers them from JSON, which may differ from one call to the next.
        types: by column, the logical type in messages; see `debezium`.
        metadata: further columns for the value: the path in a message, or the name of a column beside it.
        unchanged: see `debezium`.
        on_error: "raise", or "collect" bad messages in `rejected`.

    Raises:
        BadMessage: a message is bad, and on_error="raise".
        InvalidUsage: an option is wrong, or required and missing from the messages.
    """
    check_choice("unchanged", unchanged, get_args(Unchanged))
    batch = Messages.of(messages)
    request = ReadOptions.of(key, schema, None, metadata, types, on_error)
    valid_rows = np.flatnonzero(get_boolean_values(batch.values.is_valid()))
    values = batch.values if len(valid_rows) == len(batch) else batch.values.take(make_int64_array(valid_rows))
    apart = unwrap_messages(values, valid_rows)
    groups, lacking = take_out_unavailable(apart.groups, None, request)  # Connect may have unwrapped Debezium's rows.
    types_of_row = infer_types_of_groups(groups, (), request)
    row = pa.struct(list(types_of_row.items()))
    paths = request.list_paths(batch)
    samples = [sample for group in groups[:1] for sample in decode_samples(group.texts)]
    path_types = {name: request.infer_path_type(name, samples) for name in paths}

    def plan_group(group: Group) -> RowPlan:
        check_encodings(group, (), types_of_row, request)
        return RowPlan((), types_of_row, make_reader_factory(group.described, request.logical), paths, path_types)

    numbers, columns, bad = read_groups(groups, plan_group, {"row": row, **path_types})
    other_columns = {name: columns[name] for name in paths} | request.make_metadata_columns(batch, numbers)
    other_columns |= make_unchanged_column(numbers, lacking)
    none = pa.nulls(len(numbers), row)
    changes = Changes(numbers, np.zeros(len(numbers), np.bool_), columns["row"], none, None, other_columns)
    is_refused = np.full(len(numbers), unchanged == "refuse" or not request.key)
    changes, more = reject_problems(changes, [refuse_unchanged(numbers, lacking, is_refused)])
    bad += more
    nulls = np.flatnonzero(get_boolean_values(batch.values.is_null()))
    deleted_rows = np.sort(np.concatenate([make_empty_rows(), nulls, apart.empty]))
    if len(deleted_rows):
        deleted, more = _make_deletions(batch, deleted_rows, request, row, changes)
        changes, bad = merge_changes(changes, deleted), [*bad, *more]
    events = assemble_events(changes, request.key)
    return deliver_events(request, batch, lambda: events.table, [*apart.bad, *bad, *events.bad])


def _make_deletions(
    messages: Messages, rows: np.ndarray, request: ReadOptions, row: pa.StructType, live: Changes
) -> tuple[Changes, list[Bad]]:
    """Return deletions of the keys of messages without a value, and the bad ones."""
    none = Changes(
        make_empty_rows(), np.zeros(0, np.bool_), pa.nulls(0, row), pa.nulls(0, row), None, _make_null_metadata(live, 0)
    )
    if not request.key:
        return none, [Bad(int(number), "it is empty, and rows without a key cannot be deleted") for number in rows]
    keys = None if messages.keys is None else messages.keys.take(make_int64_array(rows))
    if keys is None:
        return none, [Bad(int(number), NOTHING) for number in rows]
    has_key = get_boolean_values(keys.is_valid())
    bad = [Bad(int(number), NOTHING) for number in rows[~has_key]]
    if not has_key.any():
        return none, bad
    rows = rows[has_key]
    texts = _quote_keys(keys.drop_null(), request)
    own_keys = read_keys(Messages(texts, texts, messages.others.slice(0, 0)), request)
    bad += [Bad(int(rows[bad_key.row]), f"in its key: {bad_key.reason}") for bad_key in own_keys.bad]
    good = ~np.isin(np.arange(len(rows)), [bad_key.row for bad_key in own_keys.bad])
    rows, key_rows = rows[good], own_keys.of(np.flatnonzero(good))
    assert key_rows is not None, "every message here has a key"
    fields = [pa.field(f.name, key_rows.type.field(f.name).type if f.name in own_keys.names else f.type) for f in row]
    columns = [key_rows.field(f.name) if f.name in own_keys.names else pa.nulls(len(rows), f.type) for f in fields]
    rows_before = pa.StructArray.from_arrays(columns, fields=fields).cast(row)
    other_columns = {**_make_null_metadata(live, len(rows)), **request.make_metadata_columns(messages, rows)}
    return Changes(rows, np.ones(len(rows), np.bool_), pa.nulls(len(rows), row), rows_before, None, other_columns), bad


def _make_null_metadata(live: Changes, count: int) -> dict[str, pa.Array]:
    """Return `count` NULLs for each metadata column."""
    return {name: pa.nulls(count, column.type) for name, column in live.others.items()}


def _quote_keys(keys: pa.Array, request: ReadOptions) -> pa.Array:
    """Return keys as JSON: quotes bare text if the key is one column of text."""
    if len(request.key) != 1 or request.types is None or not pat.is_string(request.types[request.key[0]]):
        return keys
    escaped = pc.replace_substring(pc.replace_substring(keys, b"\\", b"\\\\"), b'"', b'\\"')
    quote = pa.scalar(b'"', pa.large_binary())
    bare = pc.invert(pc.match_substring_regex(keys, r'^\s*[{"]'))
    texts = pc.binary_join_element_wise(quote, escaped, quote, pa.scalar(b"", pa.large_binary()))
    return pc.if_else(bare, texts, keys)
