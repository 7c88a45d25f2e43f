"""Parts: sorted, consolidated updates as one Parquet file each, and the descriptor that says what is inside.

The bytes of a part, which are part of the storage format:

    part    = a Parquet file (format version 2) that any Parquet reader opens alone
    columns = one per key field, one per value field, in the collection's order and under the fields' names,
              then `_time` and `_diff`, both INT64 and never NULL. A unit side has no column.
    rows    = updates: `_time` in [0, 2**63 - 2], `_diff` a non-zero int64

A writer promises, and a reader may rely on:

- rows are sorted by key, then value, then `_time`, in the order of `ordering` (NULL last; nested values too);
- no two rows are equal in key, value and `_time`: diffs of equal updates have been summed;
- floats are canonical: no -0.0, and NaN has one bit pattern;
- parts of one batch do not overlap in key: equal keys are in one part;
- a column's Parquet type is the one pyarrow writes for its Arrow type, except that date64 is stored as
  date32, and time32[s] and timestamp[s] as milliseconds: Parquet has none of these. The Arrow type itself is
  in the collection's schema;
- statistics never mislead: a float column that holds NaN has none, since Parquet's minimum and maximum ignore
  NaN.

Page sizes, page index and key-value metadata may vary and may change without notice. Encodings, compression and row
groups may vary as far as `part_claims` allows.

What a reader must check before it believes a row: the length and the xxh3_128 of the whole file against the
descriptor, then that the file's columns and its number of rows are the expected ones, and that it asks for no more
memory than the descriptor says. `decode_part` does.
Page checksums are written for readers that open the file alone; they are not verified here, where the whole
file has been.

The descriptor, `Part`, is JSON in the log. `keys` and `stats` are hints for planning: a reader that ignores
them is still right, and each may be absent. Their values are written by `scalars.scalar_to_json`.

    keys  = null | [[field, …], …]: min(9, rows) whole keys, those of rows i * (rows - 1) // 8 for i = 0 … 8
            (with fewer than 9 rows, of every row), so the first and the last key are exact bounds. null when
            a key field is nested, or when one of these keys has more than 256 bytes of JSON
    stats = {column: [min, max, null_count]}: flat columns, key fields first, as many as fit in 2 KiB of JSON.
            NULL is neither minimum nor maximum; both are null when there is nothing else. NaN is the maximum
            where there is one. A column whose minimum or maximum is a string or binary of more than 64 bytes
            is left out, never cut short

Rejected: Arrow IPC (larger, no statistics, read by fewer tools), a checksum per row group (one for all is
verified at 8 GB/s), truncated string bounds (another rule every reader would have to know, for keys that long
are rare).
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
import xxhash

from persist.blob.errors import CorruptBlob, InvalidUsage
from persist.codecs.consolidation import consolidate
from persist.codecs.digits import neighbours_differ
from persist.codecs.ordering import order_keys
from persist.codecs.part_claims import GROUP_ROWS_MIN, GROUPS_MAX
from persist.codecs.part_file import from_parquet, has_nan, memory_of, scan_parquet, to_parquet, widened
from persist.codecs.scalars import is_flat, scalar_to_json
from persist.codecs.schema import DIFF, TIME, CollectionSchema
from persist.codecs.types import Json

KEY_SAMPLES = 9
KEY_SAMPLE_BYTES_MAX = 256
STATS_BYTES_MAX = 2048
STATS_VALUE_BYTES_MAX = 64
PART_BYTES_TARGET = 64 << 20
ROW_GROUP_ROWS = 128 * 1024
TIME_MAX = 2**63 - 2
_KEYS_BYTES_MAX = KEY_SAMPLES * (KEY_SAMPLE_BYTES_MAX + 1) + 2
_NO_KEYS = msgspec.Raw(b"null")
_NO_STATS = msgspec.Raw(b"{}")
# What pyarrow raises on bad bytes. RuntimeError is any C++ exception that it does not know.
_UNREADABLE = (pa.ArrowException, OSError, ValueError, LookupError, OverflowError, MemoryError, RuntimeError)
_PROBE_ROWS = 64 * 1024  # What is encoded once more than needed, to learn how many bytes a row takes.

T = TypeVar("T")
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Time = Annotated[int, msgspec.Meta(ge=0, le=TIME_MAX)]
Scalar = None | bool | int | str  # A flat value as `scalars` writes it.
_Keys: "msgspec.json.Decoder[list[list[Scalar]] | None]" = msgspec.json.Decoder(list[list[Scalar]] | None)
_Stats: "msgspec.json.Decoder[dict[str, tuple[Scalar, Scalar, int]]]" = msgspec.json.Decoder(
    dict[str, tuple[Scalar, Scalar, int]]
)


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """What the log says about one part.

    Attributes:
        blob: key of the blob; empty when the bytes are inline.
        inline: the Parquet bytes themselves, for small batches (base64 in JSON).
        bytes, rows: length of the Parquet bytes, and rows in them.
        memory: bytes that decoding takes (see `part_claims`); what the file claims must fit in it.
        checksum: xxh3_128 of the bytes, 32 hex digits.
        time_min, time_max: least and greatest `_time`, both inclusive.
        negatives: rows with a negative diff.
        diff_sum: the sum of all diffs, which may be outside int64.
        keys_json, stats_json: `keys` and `stats` as they are written. They are the bulk of a descriptor and few
            readers want them, so they are parsed when they are asked for.
    """

    blob: str = ""
    inline: bytes = b""
    bytes: Count
    rows: Count
    memory: Count
    checksum: str
    time_min: Time
    time_max: Time
    negatives: Count
    diff_sum: int
    keys_json: msgspec.Raw = msgspec.field(name="keys", default=_NO_KEYS)
    stats_json: msgspec.Raw = msgspec.field(name="stats", default=_NO_STATS)

    def __post_init__(self) -> None:
        if not (self.time_min <= self.time_max and self.rows > 0 and self.negatives <= self.rows):
            raise ValueError("a part has rows, ordered times, and no more negative diffs than rows")
        if abs(self.diff_sum) > self.rows << 63:
            raise ValueError("the diffs of a part are int64")
        if bool(self.blob) == bool(self.inline) and self.blob:
            raise ValueError("a part is a blob or inline, not both")
        for name, size_max in (("keys_json", _KEYS_BYTES_MAX), ("stats_json", STATS_BYTES_MAX)):
            raw: msgspec.Raw = getattr(self, name)
            if memoryview(raw).nbytes > size_max:
                raise ValueError(f"{name} of a part have at most {size_max} bytes")
            # What was parsed is a view that would keep the whole message in memory.
            msgspec.structs.force_setattr(self, name, raw.copy())

    @property
    def keys(self) -> list[list[Scalar]] | None:
        """Some whole keys in order, the first and the last among them; None if there are none. See the grammar.

        Raises:
            CorruptBlob: they are not written as they should be.
        """
        keys = self._parsed(self.keys_json, _Keys)
        if keys is not None and len(keys) != min(KEY_SAMPLES, self.rows):
            raise CorruptBlob(self.name, f"its descriptor has {len(keys)} keys of its {self.rows} rows")
        return keys

    @property
    def stats(self) -> dict[str, tuple[Scalar, Scalar, int]]:
        """Minimum, maximum and number of NULLs of some columns. Raises as `keys` does."""
        return self._parsed(self.stats_json, _Stats) or {}

    def _parsed(self, raw: msgspec.Raw, decoder: "msgspec.json.Decoder[T]") -> T:
        try:
            return decoder.decode(raw)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise CorruptBlob(self.name, f"its descriptor is malformed: {error}") from error

    @property
    def is_plain(self) -> bool:
        """Whether all diffs are 1."""
        return self.negatives == 0 and self.diff_sum == self.rows

    @property
    def name(self) -> str:
        """What error messages call it."""
        return self.blob or "inline part"


def encode_parts(
    table: pa.Table,
    schema: CollectionSchema,
    *,
    part_bytes_target: int = PART_BYTES_TARGET,
    row_group_rows: int = ROW_GROUP_ROWS,
) -> list[tuple[bytes, Part]]:
    """Sort and consolidate updates, and write them as parts with their descriptors; blob and inline are left
    empty.

    Cost: one sort, one copy of the table, and the encoded bytes; a batch that makes several parts is sampled
    once to estimate bytes per row, so that parts come out near the target (more only where one key alone
    exceeds it).

    Args:
        table: updates as from `to_updates`: the columns of `schema.arrow`.
        schema: the collection's.
        part_bytes_target: encoded bytes at which the next key starts a new part.
        row_group_rows: the most rows in one row group; more if readers would refuse that many groups.

    Returns:
        The parts in key order; none when there is no row or all cancel.

    Raises:
        DiffOverflow: the diffs of one update sum to outside int64.
        InvalidUpdate: a value that Parquet cannot hold (see `part_file.to_parquet`).
    """
    summed = consolidate(table, [*schema.names, TIME])
    summed = pa.Table.from_arrays(summed.columns, schema=schema.arrow).combine_chunks()
    cuts = _cuts(summed, schema, part_bytes_target, row_group_rows)
    pieces = [summed.slice(start, end - start) for start, end in pairwise(cuts)]
    return [_encode_part(piece, schema, row_group_rows) for piece in pieces]


def decode_part(
    data: bytes | memoryview,
    part: Part,
    schema: CollectionSchema,
    *,
    columns: Sequence[str] | None = None,
    filter: pc.Expression | None = None,
    within: tuple[int, int] | None = None,
    use_threads: bool = True,
) -> pa.Table:
    """Verify a part's bytes, then read its updates.

    Args:
        data: the bytes of the blob.
        part: its descriptor.
        schema: the collection's.
        columns: which of `schema.arrow`'s columns to return, in this order; all by default. No others are
            read.
        filter: keeps the rows for which it is true; over any columns of the schema. Row groups whose
            statistics exclude it are not read.
        within: an interval `[start, end)` of rows outside of which nothing is wanted; a hint, more may be returned.
        use_threads: whether Arrow may decode columns in parallel.

    Raises:
        CorruptBlob: data is not what the descriptor says, or not a part of this collection.
        InvalidUsage: an unknown column, or a filter that does not fit the schema.
    """
    columns = schema.arrow.names if columns is None else list(columns)
    _check_request(schema.arrow, columns, filter)
    _verify(data, part)
    buffer = pa.py_buffer(data)

    def read(names: Sequence[str], within: tuple[int, int] | None = None) -> pa.Table:
        return from_parquet(
            buffer,
            schema.arrow,
            columns=names,
            rows=part.rows,
            memory=part.memory,
            use_threads=use_threads,
            within=within,
        )

    if filter is None:
        table = _decoded(part, lambda: read(columns, within))
        _check_updates(table, part)
        return table
    try:
        table = scan_parquet(
            buffer,
            schema.arrow,
            columns=columns,
            filter=filter,
            rows=part.rows,
            memory=part.memory,
            use_threads=use_threads,
        )
    except _UNREADABLE as error:
        # Bad bytes make this read fail too; else the filter failed on a value, as in a division by zero.
        _decoded(part, lambda: read(schema.arrow.names))
        raise _bad_filter(filter, schema.arrow, error) from error
    _check_updates(table, part)
    return table


def read_part(data: bytes | memoryview, part: Part, schema: CollectionSchema) -> pa.Table:
    """Read all of a part whose bytes are those of its descriptor, however little they agree in what they say.

    Raises:
        CorruptBlob: it does not hold the columns of this collection, or not as many rows.
    """

    def read() -> pa.Table:
        buffer, names = pa.py_buffer(data), schema.arrow.names
        return from_parquet(buffer, schema.arrow, columns=names, rows=part.rows, memory=part.memory, use_threads=True)

    return _decoded(part, read)


def describe_part(data: bytes | memoryview, table: pa.Table, schema: CollectionSchema) -> Part:
    """The descriptor of a part that holds table, of at least one row and one chunk a column, as data."""
    times = _int64(table.column(TIME))
    diffs = _int64(table.column(DIFF))
    return Part(
        bytes=len(data),
        rows=table.num_rows,
        memory=memory_of(data, table),
        checksum=checksum_of(data),
        time_min=int(times.min()),
        time_max=int(times.max()),
        negatives=int(np.count_nonzero(diffs < 0)),
        diff_sum=_exact_sum(diffs),
        keys_json=_written(_key_samples(table, schema), _NO_KEYS),
        stats_json=_written(dict(_stats(table, schema)), _NO_STATS),
    )


def checksum_of(data: bytes | memoryview) -> str:
    """The checksum of a part's bytes as its descriptor holds it."""
    return xxhash.xxh3_128_hexdigest(data)


def _verify(data: bytes | memoryview, part: Part) -> None:
    if len(data) != part.bytes:
        raise CorruptBlob(part.name, f"it has {len(data)} bytes, and its descriptor says {part.bytes}")
    if (found := checksum_of(data)) != part.checksum:
        raise CorruptBlob(part.name, f"its checksum is {found}, and its descriptor says {part.checksum}")


def _decoded(part: Part, read: Callable[[], pa.Table]) -> pa.Table:
    try:
        return read()
    except _UNREADABLE as error:
        raise CorruptBlob(
            part.name, f"its checksum is right, but it is not a part of this collection: {error}"
        ) from error


def _check_updates(table: pa.Table, part: Part) -> None:
    """Check times and diffs, as far as they were read, against what the descriptor says of all of them."""
    if not table.num_rows:
        return
    if TIME in table.column_names:
        times = _int64_chunks(table, TIME, part)
        least, greatest = min(int(t.min()) for t in times), max(int(t.max()) for t in times)
        if least < part.time_min or greatest > part.time_max:
            raise CorruptBlob(
                part.name,
                f"it holds times from {least} to {greatest}, and its descriptor says "
                f"{part.time_min} to {part.time_max}",
            )
    if DIFF in table.column_names:
        diffs = _int64_chunks(table, DIFF, part)
        if not all(d.min() > 0 for d in diffs):
            negatives = sum(int(np.count_nonzero(d < 0)) for d in diffs)
            if negatives > part.negatives or not all(d.all() for d in diffs):
                raise CorruptBlob(
                    part.name, f"it holds {negatives} negative diffs, or zeros; its descriptor says {part.negatives}"
                )
        if table.num_rows == part.rows and (total := sum(map(_exact_sum, diffs))) != part.diff_sum:
            raise CorruptBlob(part.name, f"its diffs sum to {total}, and its descriptor says {part.diff_sum}")


def _int64_chunks(table: pa.Table, name: str, part: Part) -> list[npt.NDArray[np.int64]]:
    column = table.column(name)
    if column.null_count:
        raise CorruptBlob(part.name, f"{column.null_count} of its rows have NULL for {name}")
    return [_values(chunk) for chunk in column.chunks if len(chunk)]


def _values(chunk: pa.Array) -> npt.NDArray[np.int64]:
    """What `to_numpy` gives, in a third of the time."""
    return np.frombuffer(chunk.buffers()[1], np.int64, len(chunk), chunk.offset * 8)


def _check_request(arrow: pa.Schema, columns: Sequence[str], filter: pc.Expression | None) -> None:
    for name in columns:
        if name not in arrow.names or columns.count(name) > 1:
            problem = "is asked for twice" if name in arrow.names else "does not exist"
            raise InvalidUsage(f"column {name!r} {problem}: choose from {arrow.names}, each once")
    if filter is None:
        return
    try:
        arrow.empty_table().filter(filter)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise _bad_filter(filter, arrow, error) from error


def _bad_filter(filter: pc.Expression, arrow: pa.Schema, error: Exception) -> InvalidUsage:
    fields = ", ".join(f"{field.name}: {field.type}" for field in arrow)
    reason = " ".join(str(error).split())
    return InvalidUsage(
        f"filter {str(filter)[:200]} cannot be applied: {reason:.200}. It must be true or false for every "
        f"row, over the columns {fields}."
    )


def _cuts(table: pa.Table, schema: CollectionSchema, target: int, row_group_rows: int) -> list[int]:
    """Row positions where parts begin, and the number of rows; just [0] for an empty table."""
    rows = table.num_rows
    if rows == 0 or table.nbytes <= target:
        return [0, rows] if rows else [0]
    probe = table.slice(max(rows - _PROBE_ROWS, 0) // 2, _PROBE_ROWS)
    encoded = to_parquet(probe, sorted_by=0, row_group_rows=row_group_rows)
    part_rows = max(target * probe.num_rows // len(encoded), 1)
    keys = order_keys(table, schema.key_names)
    cuts = [0]
    while cuts[-1] < rows:
        cuts.append(_next_key(keys, min(cuts[-1] + part_rows, rows), rows))
    return cuts


def _next_key(keys: Sequence[pa.Array], position: int, rows: int) -> int:
    """The first row from position on whose key differs from the row before it; rows if there is none."""
    window = 1024
    while position < rows:
        differs = np.zeros(min(window, rows - position), dtype=np.bool_)
        for key in keys:
            differs |= neighbours_differ(key[position - 1 : position + len(differs)])
        if differs.any():
            return position + int(np.argmax(differs))
        position += len(differs)
        window *= 2
    return rows


def _encode_part(table: pa.Table, schema: CollectionSchema, row_group_rows: int) -> tuple[bytes, Part]:
    row_group_rows = max(row_group_rows, min(GROUP_ROWS_MIN, -(-table.num_rows // GROUPS_MAX)))
    data = to_parquet(table, sorted_by=len(schema.names) + 1, row_group_rows=row_group_rows)
    return data, describe_part(data, table, schema)


def _written(found: Json, none: msgspec.Raw) -> msgspec.Raw:
    """Return found as JSON, or none, which is left out, if there is nothing."""
    return msgspec.Raw(msgspec.json.encode(found)) if found else none


def _int64(column: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    values: npt.NDArray[np.int64] = column.chunk(0).to_numpy()
    return values


def _exact_sum(diffs: npt.NDArray[np.int64]) -> int:
    largest = max(abs(int(diffs.min())), abs(int(diffs.max())))
    return int(diffs.sum()) if largest * len(diffs) < 2**63 else sum(diffs.tolist())


def _key_samples(table: pa.Table, schema: CollectionSchema) -> list[list[Json]] | None:
    if not all(is_flat(field.type) for field in schema.key.fields):
        return None
    count = min(KEY_SAMPLES, table.num_rows)
    rows = [i * (table.num_rows - 1) // max(count - 1, 1) for i in range(count)]
    columns = [table.column(name) for name in schema.key_names]
    keys: list[list[Json]] = [[scalar_to_json(column[row]) for column in columns] for row in rows]
    return keys if all(len(msgspec.json.encode(key)) <= KEY_SAMPLE_BYTES_MAX for key in keys) else None


def _stats(table: pa.Table, schema: CollectionSchema) -> Iterator[tuple[str, list[Json]]]:
    left = STATS_BYTES_MAX - 2
    for name in schema.names:
        column = table.column(name)
        if not is_flat(column.type):
            continue
        least, greatest = _extremes(column)
        if max(_value_bytes(least), _value_bytes(greatest)) > STATS_VALUE_BYTES_MAX:
            continue
        stats = [scalar_to_json(least), scalar_to_json(greatest), column.null_count]
        left -= len(msgspec.json.encode({name: stats})) - 1
        if left < 0:
            return
        yield name, stats


def _extremes(column: pa.ChunkedArray) -> tuple[pa.Scalar, pa.Scalar]:
    """Least and greatest value, NaN being the greatest; both NULL when all are NULL."""
    kind = column.type
    if len(column) == 1:
        return column[0], column[0]
    array = widened(column.chunk(0))
    if pt.is_duration(kind):  # Arrow has no minimum of durations.
        array = array.view(pa.int64())
    found = pc.min_max(array)
    least, greatest = found["min"], found["max"]
    if pt.is_floating(kind) and has_nan(column):
        nan = pa.scalar(float("nan"), array.type)
        greatest, least = nan, (nan if _only_nan(array) else least)
    return least.cast(kind), greatest.cast(kind)


def _only_nan(array: pa.Array) -> bool:
    return bool(pc.all(pc.is_nan(array)).as_py())


def _value_bytes(value: pa.Scalar) -> int:
    if not value.is_valid or not hasattr(value, "as_buffer"):
        return 0
    buffer: Any = value.as_buffer()
    return int(buffer.size)
