"""The descriptor of a part, computed from its rows, and its verification.

`persist.codecs.part.part` defines descriptors. `check_part` serves `fsck`, not reads: it takes bytes that match the
descriptor's length and checksum, and returns all other faults. It computes the descriptor again as the writer does, and
compares it member by member.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt

from persist.blob.errors import CorruptBlob, IncompatibleVersion
from persist.codecs.order.arrays import find_min_max, get_int64_values
from persist.codecs.order.digits import compute_dense_ranks
from persist.codecs.order.ordering import combine_chunks, make_canonical, make_order_keys, sort_table
from persist.codecs.order.sums import sum_exactly
from persist.codecs.part.decoding import UNREADABLE, read_part
from persist.codecs.part.file_reader import measure_level_bytes
from persist.codecs.part.file_writer import has_nan, read_footer_size, widen_float16
from persist.codecs.part.index import check_index, read_index
from persist.codecs.part.part import (
    KEY_SAMPLES,
    KEYS_BYTES_MAX,
    NO_KEYS,
    NO_STATS,
    STATS_BYTES_MAX,
    Footer,
    Part,
    choose_sample_rows,
    compute_checksum,
    measure_body,
)
from persist.codecs.part.shredding import compute_values, decode_values, get_value_fields, read_entry
from persist.codecs.types.arrow_types import Json, decode_scalar, encode_scalar, is_flat, iterate_leaf_arrays
from persist.codecs.types.schema import DIFF, TIME, TIME_MAX, CollectionSchema

BATCH_SAMPLES = (2,)
KEY_SAMPLE_BYTES_MAX = 256
STATS_VALUE_BYTES_MAX = 64
_COUNTED = ("bytes", "rows", "checksum", "footer", "time_min", "time_max", "negatives", "diff_sum")


class Summary:
    """Gathers the statistics of a part while its row groups are written.

    Memory: the key columns of all rows, because samples are evenly spaced, and the number of rows is known only at the
    end.
    """

    def __init__(self, schema: CollectionSchema) -> None:
        self._schema = schema
        self._keys: list[pa.Table] = []
        self._extremes: dict[str, list[tuple[pa.Scalar, pa.Scalar]]] = {}
        self._nulls: dict[str, int] = {}
        self.rows = self.memory = self._negatives = self._diff_sum = 0
        self._time_min, self._time_max = TIME_MAX, 0

    def add(self, group: pa.Table, values: pa.Table | None = None) -> None:
        """Add the next rows, at least one, with one chunk for each column.

        values: the stored JSON values of the rows' documents.
        """
        self.rows += group.num_rows
        self.memory += int(group.nbytes)
        time_min, time_max, negatives, diff_sum = _summarize_updates(group)
        self._time_min, self._time_max = min(self._time_min, time_min), max(self._time_max, time_max)
        self._negatives += negatives
        self._diff_sum += diff_sum
        self._keys.append(group.select(self._schema.key_names))
        columns = [(name, group.column(name)) for name in self._schema.names]
        columns += [] if values is None else zip(values.column_names, values.columns, strict=True)
        for name, column in columns:
            if is_flat(column.type):
                self._extremes.setdefault(name, []).append(_find_extremes(column))
                self._nulls[name] = self._nulls.get(name, 0) + column.null_count

    @property
    def key_bytes(self) -> int:
        """The bytes of the key columns in memory."""
        return sum(int(keys.nbytes) for keys in self._keys)

    def describe(self, data: bytes | memoryview) -> Part:
        """Return the descriptor of a part with these rows, whose Parquet file is `data`."""
        return Part(
            bytes=len(data),
            rows=self.rows,
            memory=self.memory + measure_level_bytes(data, self._schema.arrow),
            checksum=compute_checksum(data),
            footer=describe_footer(data),
            time_min=self._time_min,
            time_max=self._time_max,
            negatives=self._negatives,
            diff_sum=self._diff_sum,
            schema=self._schema.version,
            keys_json=_encode_key_samples(pa.concat_tables(self._keys), self.rows, self._schema),
            stats_json=self._encode_stats(),
        )

    def _encode_stats(self) -> msgspec.Raw:
        """Return the statistics of the part's columns, as JSON."""
        stats_by_name: dict[str, list[Json]] = {}
        room = STATS_BYTES_MAX - 2
        for name, extremes in self._extremes.items():
            least, greatest = extremes[0]
            if len(extremes) > 1:
                ends = pa.array([end for pair in extremes for end in pair], least.type)
                least, greatest = _find_extremes(pa.chunked_array([ends]))
            if max(_measure_scalar(least), _measure_scalar(greatest)) > STATS_VALUE_BYTES_MAX:
                continue
            stats = [encode_scalar(least), encode_scalar(greatest), self._nulls[name]]
            room -= len(msgspec.json.encode({name: stats})) - 1
            if room < 0:
                break
            stats_by_name[name] = stats
        return msgspec.Raw(msgspec.json.encode(stats_by_name)) if stats_by_name else NO_STATS


def _summarize_updates(table: pa.Table) -> tuple[int, int, int, int]:
    """Return the least and greatest time of rows, the number of negative diffs, and the sum of diffs."""
    times, diffs = (get_int64_values(combine_chunks(table.column(name))) for name in (TIME, DIFF))
    least, greatest = find_min_max(diffs)
    negatives = int(np.count_nonzero(diffs < 0)) if least < 0 else 0
    return *find_min_max(times), negatives, sum_exactly(diffs, least, greatest)


def describe_part(
    data: bytes | memoryview, table: pa.Table, schema: CollectionSchema, values: pa.Table | None = None
) -> Part:
    """Return the descriptor of a part with bytes `data` and a non-empty table."""
    summary = Summary(schema)
    summary.add(table.combine_chunks(), values)
    return summary.describe(data)


def describe_batch(data: bytes, table: pa.Table, schema: CollectionSchema) -> Part:
    """Return the descriptor of a batch, encoded as `data`, with these rows.

    The descriptor has few keys and no stats, because reading the batch costs no more than comparing them.
    """
    time_min, time_max, negatives, diff_sum = _summarize_updates(table)
    return Part(
        bytes=len(data),
        rows=len(table),
        memory=measure_body(data),
        checksum=compute_checksum(data),
        time_min=time_min,
        time_max=time_max,
        negatives=negatives,
        diff_sum=diff_sum,
        schema=schema.version,
        keys_json=_encode_key_samples(table.select(schema.key_names), len(table), schema, BATCH_SAMPLES),
    )


def describe_in_memory(keys: pa.Table, memory: int, schema: CollectionSchema) -> Part:
    """Return a descriptor of rows in memory, by which slices are planned.

    Args:
        keys: the key columns, in order.
        memory: the size of all columns.
    """
    return Part(
        bytes=0,
        rows=len(keys),
        memory=memory,
        checksum="",
        time_min=0,
        time_max=0,
        negatives=0,
        diff_sum=0,
        schema=schema.version,
        keys_json=_encode_key_samples(keys, len(keys), schema),
    )


def describe_footer(data: bytes | memoryview) -> Footer:
    """Return the size and checksum of a Parquet file's footer."""
    size = read_footer_size(data)
    return Footer(size, compute_checksum(memoryview(data)[-size:]))


def _encode_key_samples(
    keys: pa.Table, rows: int, schema: CollectionSchema, counts: Sequence[int] = KEY_SAMPLES
) -> msgspec.Raw:
    """Return some whole keys of sorted rows, as JSON."""
    if not all(is_flat(field.type) for field in schema.key.fields):
        return NO_KEYS
    columns = [keys.column(name) for name in schema.key_names]
    written: dict[int, bytes] = {}
    for samples in counts:
        keys_json: list[bytes] = []
        for row in choose_sample_rows(rows, min(samples, rows)):
            if row not in written:
                written[row] = msgspec.json.encode([encode_scalar(column[row]) for column in columns])
            keys_json.append(written[row])
            size = sum(map(len, keys_json)) + len(keys_json) + 1
            if len(written[row]) > KEY_SAMPLE_BYTES_MAX or size > KEYS_BYTES_MAX:
                break
        else:
            return msgspec.Raw(b"[" + b",".join(keys_json) + b"]")
    return NO_KEYS


def _find_extremes(column: pa.ChunkedArray) -> tuple[pa.Scalar, pa.Scalar]:
    """Return the least and greatest value, NaN being the greatest; both NULL if all are NULL."""
    kind = column.type
    if len(column) == 1:
        return column[0], column[0]
    array = column.chunk(0)
    array = widen_float16(array)
    if pt.is_duration(kind):  # Arrow has no minimum of durations.
        array = array.view(pa.int64())
    ends = pc.min_max(array)
    least, greatest = ends["min"], ends["max"]
    if pt.is_floating(kind) and has_nan(column):
        nan = pa.scalar(float("nan"), array.type)
        greatest, least = nan, (nan if pc.all(pc.is_nan(array)).as_py() else least)
    return least.cast(kind), greatest.cast(kind)


def _measure_scalar(value: pa.Scalar) -> int:
    """Return the bytes of a text or binary value; 0 for others."""
    if not value.is_valid or not hasattr(value, "as_buffer"):
        return 0
    buffer: Any = value.as_buffer()
    return int(buffer.size)


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault of a part, with details."""

    kind: Literal["descriptor", "values", "unsorted", "unconsolidated"]
    what: str


def check_part(
    data: bytes | memoryview, part: Part, schema: CollectionSchema
) -> tuple[tuple[Finding, ...], pa.Table | None]:
    """Return the faults of a part, and its least and greatest key: a table of two rows, None if unknown.

    The file of a stamped part must contain the time 0.

    Cost: the whole part is decoded and sorted. Memory: the decoded part, and 24 bytes for each row.
    """
    part = part.as_stored
    try:
        table = read_part(data, part, schema).combine_chunks()
    except CorruptBlob as error:
        return (Finding("descriptor", error.reason),), None
    if table.num_rows == 0:
        return (Finding("descriptor", "it has no row, and there is no such part"),), None
    findings = list(_check_columns(table, schema.required))
    if any(table.column(name).null_count for name in (TIME, DIFF)):
        return tuple(findings), None  # Nothing else can be computed.
    if not findings:
        if part.footer is None:
            findings += _compare_descriptors(part, describe_batch(bytes(data), table, schema))
        else:
            values = _check_values(data, part, table, schema, findings)
            findings += _compare_descriptors(part, describe_part(data, table, schema, values))
            findings += _check_index(data, part, schema)
    order, starts = sort_table(make_canonical(table), [*schema.names, TIME])
    moved = np.flatnonzero(order != np.arange(len(order)))
    if len(moved):
        findings.append(
            Finding("unsorted", f"{len(moved)} of its {len(order)} rows are not in order, row {moved[0]} first")
        )
    equal = np.flatnonzero(~starts)
    if len(equal):
        rows = sorted((int(order[equal[0] - 1]), int(order[equal[0]])))
        findings.append(
            Finding(
                "unconsolidated",
                f"its rows {rows[0]} and {rows[1]} are equal in key, value and time; so are {len(equal) - 1} more",
            )
        )
    keys = table.select(schema.key_names)
    return tuple(findings), keys.take(pa.array([order[0], order[-1]]))


def _check_values(
    data: bytes | memoryview, part: Part, table: pa.Table, schema: CollectionSchema, findings: list[Finding]
) -> pa.Table | None:
    """Return the stored values of a part's documents; None without any. Faults are added to findings."""
    try:
        metadata = pq.read_metadata(pa.BufferReader(data))
        groups = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
        entry = read_entry(metadata.metadata or {}, len(groups))
        if entry is None:
            return None
        index = read_index(memoryview(data)[part.footer_range[0] :], part, schema)
        if any(start + size != group.end for (start, size), group in zip(entry.files, index.groups, strict=True)):
            raise ValueError("they do not lie at the ends of row groups")
        files = [memoryview(data)[start : start + size] for start, size in entry.files]
        pairs = zip(files, groups, strict=True)
        fields = get_value_fields(entry.names)
        values = pa.concat_tables([decode_values(file, entry.names, rows).cast(fields) for file, rows in pairs])
        values = values.combine_chunks()
        computed = compute_values(entry.names, table, schema)
    except (*UNREADABLE, CorruptBlob) as error:
        findings.append(Finding("values", f"the values of its documents are wrong: {error}"))
        return None
    for name in entry.names:
        # As texts, because NaN of Arrow does not equal itself.
        if computed is not None and not values[name].cast(pa.string()).equals(computed[name].cast(pa.string())):
            findings.append(Finding("values", f"its values {name!r} are not what its documents hold"))
    return values


def decode_bounds(part: Part, schema: CollectionSchema) -> pa.Table | None:
    """Return the descriptor's least and greatest key as two rows; None if missing or invalid."""
    try:
        if not (keys := part.keys):
            return None
        fields = zip(schema.key.fields, keys[0], keys[-1], strict=True)
        columns = {
            field.name: pa.array([decode_scalar(end, field.type) for end in ends], field.type)
            for field, *ends in fields
        }
    except (CorruptBlob, ValueError, pa.ArrowException):
        return None
    return pa.table(columns)


def find_overlaps(bounds: Sequence[pa.Table], schema: CollectionSchema) -> Iterator[tuple[int, int]]:
    """Yield pairs of positions in bounds (tables of two rows, least and greatest key) that overlap in key.

    There is one pair for each part that overlaps with an earlier one, not all pairs.
    """
    if len(bounds) < 2:
        return
    if not schema.key_names:  # All rows have the same key.
        yield from ((0, later) for later in range(1, len(bounds)))
        return
    table = make_canonical(pa.concat_tables(bounds).combine_chunks())
    ranks = compute_dense_ranks(make_order_keys(table, schema.key_names)).reshape(-1, 2).tolist()
    furthest: int | None = None
    for n in sorted(range(len(bounds)), key=lambda position: ranks[position]):
        if furthest is not None and ranks[n][0] <= ranks[furthest][1]:
            yield furthest, n
        if furthest is None or ranks[n][1] > ranks[furthest][1]:
            furthest = n


def _check_columns(table: pa.Table, required: Sequence[str]) -> Iterator[Finding]:
    """Yield findings on NULLs and values that a schema forbids."""
    for name in required:
        if nulls := table.column(name).null_count:
            yield Finding("values", f"its column {name!r} is not null by the schema, and has {nulls} NULLs")
    for name in (TIME, DIFF):
        if nulls := table.column(name).null_count:
            yield Finding("values", f"its column {name} has {nulls} NULLs")
            return
    times, diffs = table.column(TIME).to_numpy(), table.column(DIFF).to_numpy()
    if outside := int(np.count_nonzero((times < 0) | (times > TIME_MAX))):
        yield Finding("values", f"{outside} of its times are outside [0, {TIME_MAX}]")
    if zeros := int(np.count_nonzero(diffs == 0)):
        yield Finding("values", f"{zeros} of its diffs are 0")
    for field, column in zip(table.schema, table.columns, strict=True):
        if not all(_is_canonical(leaf) for chunk in column.chunks for leaf in iterate_leaf_arrays(chunk)):
            yield Finding("values", f"its column {field.name!r} has floats that are not in their one form")


def _is_canonical(array: pa.Array) -> bool:
    """Return whether floats have no -0.0, and only one NaN."""
    if not pt.is_floating(array.type):
        return True
    values = array.drop_null().to_numpy(zero_copy_only=False)
    bits = values.view(f"u{values.dtype.itemsize}")
    nan = np.array(np.nan, dtype=values.dtype).view(bits.dtype)
    return not bool(((np.isnan(values) & (bits != nan)) | ((values == 0) & (bits != 0))).any())


def _compare_descriptors(said: Part, is_: Part) -> Iterator[Finding]:
    """Yield the differences of a stored descriptor from a recomputed one."""
    for name in _COUNTED:
        if getattr(said, name) != getattr(is_, name):
            yield _make_difference(name, getattr(said, name), getattr(is_, name))
    try:
        keys, stats = said.keys, said.stats
    except CorruptBlob as error:
        yield Finding("descriptor", error.reason)
        return
    if keys is not None and _print_json(keys) != _print_json(is_.keys):
        yield _make_difference("keys", keys, is_.keys)
    # It may leave out any, and must not add one, except the mark of single parts.
    for column, claimed in stats.items():
        if column != DIFF and _print_json(claimed) != _print_json(is_.stats.get(column)):
            yield _make_difference(f"stats of {column!r}", claimed, is_.stats.get(column))


def _check_index(data: bytes | memoryview, part: Part, schema: CollectionSchema) -> Iterator[Finding]:
    """Yield findings on the index of row groups."""
    if part.footer != describe_footer(data):
        return  # This is already a finding.
    try:
        check_index(data, part, schema)
    except CorruptBlob as error:
        yield Finding("descriptor", error.reason)
    except IncompatibleVersion as error:
        yield Finding("descriptor", f"its index has the version {error.found}, which is not known")


def _make_difference(name: str, said: object, is_: object) -> Finding:
    """Return the finding that a field of a descriptor is wrong."""
    return Finding(
        "descriptor", f"its descriptor says {name} {_print_json(said):.200}, and it is {_print_json(is_):.200}"
    )


def _print_json(value: object) -> str:
    """Return a value as JSON text, to compare and show it."""
    return msgspec.json.encode(value).decode()
