"""Parts: sorted, consolidated updates as one Parquet file each, and the descriptor that says what is inside.

The bytes of a part, which are part of the storage format. Very small ones have another form, `part.batch`, with the
same columns and rows; its descriptor has no footer:

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

Page sizes, page index and other key-value metadata may vary and may change without notice. Encodings, compression and
row groups may vary as far as `part.claims` allows. Every file has an index of its row groups in its footer, by which
they can be read one by one; see `part.index`.

What a reader must check before it believes a row: the length and the xxh3_128 of the whole file against the
descriptor, or of the footer against the descriptor and of a row group against the footer; then that the file's columns
and its number of rows are the expected ones, and that it asks for no more memory than the descriptor says.
`decode_part` and `decode_groups` do.
Page checksums are written for readers that open the file alone; they are not verified here, where all that is read
has been.

The descriptor, `Part`, is JSON in the log. `keys` and `stats` are hints for planning: a reader that ignores
them is still right, and each may be absent. Their values are written by `scalars.scalar_to_json`.

    keys  = null | [[field, …], …]: n whole keys, those of rows i * (rows - 1) // (n - 1) for i = 0 … n - 1, so
            the first and the last key are exact bounds. n = min(c, rows) for the greatest c of 33, 17, 9, 5, 3, 2
            with which all of it takes no more than 1 KiB of JSON and no key more than 256 bytes (without white
            space). null when there is no such c, or a key field is nested
    stats = {column: [min, max, null_count]}: flat columns, key fields first, as many as fit in 2 KiB of JSON.
            NULL is neither minimum nor maximum; both are null when there is nothing else. NaN is the maximum
            where there is one. A column whose minimum or maximum is a string or binary of more than 64 bytes
            is left out, never cut short

Rejected: Arrow IPC for all parts (larger, no statistics, read by fewer tools), page checksums in place of those of row
groups (they do not cover the headers of pages), truncated string bounds (another rule every reader would have to know,
for keys that long are rare).
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
import xxhash

from persist.blob.errors import CorruptBlob, InvalidUsage
from persist.codecs.order.arrays import int64_values
from persist.codecs.order.consolidation import exact_sum
from persist.codecs.order.ordering import combined
from persist.codecs.part.batch import body_bytes, from_batch
from persist.codecs.part.claims import footer_bytes
from persist.codecs.part.file_reader import columns_of, from_parquet, level_bytes, scan_parquet
from persist.codecs.part.file_writer import has_nan, widened
from persist.codecs.types.arrow_types import Json
from persist.codecs.types.evolution import Lift, lift
from persist.codecs.types.scalars import integers_to_json, is_flat, scalar_to_json
from persist.codecs.types.schema import DIFF, TIME, TIME_MAX, CollectionSchema

KEY_SAMPLES = (33, 17, 9, 5, 3, 2)
BATCH_SAMPLES = (2,)
KEY_SAMPLE_BYTES_MAX = 256
KEYS_BYTES_MAX = 1024
STATS_BYTES_MAX = 2048
STATS_VALUE_BYTES_MAX = 64
_NO_KEYS = msgspec.Raw(b"null")
_NO_STATS = msgspec.Raw(b"{}")
_TAKE_MIN = 1024  # Of fewer values the least and the greatest are found sooner than the first and the last are taken.
# What pyarrow raises on bad bytes. RuntimeError is any C++ exception that it does not know.
UNREADABLE = (pa.ArrowException, OSError, ValueError, LookupError, OverflowError, MemoryError, RuntimeError)

T = TypeVar("T")
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Time = Annotated[int, msgspec.Meta(ge=0, le=TIME_MAX)]
Scalar = None | bool | int | str  # A flat value as `scalars` writes it.
_Keys: "msgspec.json.Decoder[list[list[Scalar]] | None]" = msgspec.json.Decoder(list[list[Scalar]] | None)
_Stats: "msgspec.json.Decoder[dict[str, tuple[Scalar, Scalar, int]]]" = msgspec.json.Decoder(
    dict[str, tuple[Scalar, Scalar, int]]
)


class Footer(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The end of a part, from its Parquet footer to the last byte: how many bytes these are, and their xxh3_128."""

    bytes: Count
    checksum: str


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """What the log says about one part.

    Attributes:
        blob: key of the blob; empty when the bytes are inline.
        inline: the bytes themselves, for small parts (base64 in JSON).
        bytes, rows: length of the bytes, and rows in them.
        memory: bytes that decoding takes (see `part.claims`); what the file claims must fit in it.
        checksum: xxh3_128 of the bytes, 32 hex digits.
        footer: what is read of a Parquet file, and checked, before single row groups are. None of a batch
            (`part.batch`), which is always inline.
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
    footer: Footer | None = None
    time_min: Time
    time_max: Time
    negatives: Count
    diff_sum: int
    schema: Annotated[int, msgspec.Meta(ge=1, le=2**31)] = 1
    keys_json: msgspec.Raw = msgspec.field(name="keys", default=_NO_KEYS)
    stats_json: msgspec.Raw = msgspec.field(name="stats", default=_NO_STATS)

    def __post_init__(self) -> None:
        if not (self.time_min <= self.time_max and self.rows > 0 and self.negatives <= self.rows):
            raise ValueError("a part has rows, ordered times, and no more negative diffs than rows")
        if abs(self.diff_sum) > self.rows << 63:
            raise ValueError("the diffs of a part are int64")
        if bool(self.blob) == bool(self.inline) and self.blob:
            raise ValueError("a part is a blob or inline, not both")
        if self.blob and self.footer is None:
            raise ValueError("a part that is a blob is a Parquet file, and its footer is known")
        for name, size_max in (("keys_json", KEYS_BYTES_MAX), ("stats_json", STATS_BYTES_MAX)):
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
        if keys is not None and len(keys) not in {min(samples, self.rows) for samples in KEY_SAMPLES}:
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
        """Whether every diff is 1."""
        return self.negatives == 0 and self.diff_sum == self.rows

    @property
    def name(self) -> str:
        """What error messages call it."""
        return self.blob or "inline part"


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
    check_request(schema.arrow, columns, filter)
    lifted = part_lift(part, schema)
    if lifted is not None:

        def stored(names: Sequence[str]) -> pa.Table:
            return decode_part(data, part, lifted.stored, columns=names, within=within, use_threads=use_threads)

        return read_lifted(lifted, stored, columns, filter)
    _verify(data, part)
    if part.footer is None:
        return _decoded_batch(data, part, schema, columns, filter)
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
        table = decoded(part, lambda: read(columns, within))
        check_updates(table, part)
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
    except UNREADABLE as error:
        # Bad bytes make this read fail too; else the filter failed on a value, as in a division by zero.
        decoded(part, lambda: read(schema.arrow.names))
        raise bad_filter(filter, schema.arrow, error) from error
    check_updates(table, part)
    return table


def part_lift(part: Part, schema: CollectionSchema) -> Lift | None:
    """Return how a part is read under a schema; None if it was written with this version.

    Raises:
        CorruptBlob: it says that it was written with a version that there is not.
    """
    if part.schema == schema.version:
        return None
    try:
        return lift(schema, part.schema)
    except ValueError as error:
        raise CorruptBlob(part.name, str(error)) from error


def read_lifted(
    lifted: Lift, read: Callable[[list[str]], pa.Table], columns: Sequence[str], filter: pc.Expression | None
) -> pa.Table:
    """Return columns of the rows that pass filter, of a part of another version of the schema.

    Args:
        read: reads columns of the part, as they are called there.
        columns, filter: in the schema of whoever reads.
    """
    arrow = lifted.wanted.arrow
    names = [*columns, *(columns_of(filter, arrow, columns) if filter is not None else ())]
    # Where all of them are younger than the part, its times say how many rows it has.
    table = lifted.table(read(lifted.names(names) or [TIME]), names)
    if filter is None:
        return table
    try:
        return table.filter(filter).select([*columns])
    except UNREADABLE as error:
        raise bad_filter(filter, arrow, error) from error


def read_part(data: bytes | memoryview, part: Part, schema: CollectionSchema) -> pa.Table:
    """Read all of a part whose bytes are those of its descriptor, however little they agree in what they say.

    Raises:
        CorruptBlob: it does not hold the columns of this collection, or not as many rows.
    """

    def read() -> pa.Table:
        if part.footer is None:
            return from_batch(data, schema.arrow, rows=part.rows, memory=part.memory)
        buffer, names = pa.py_buffer(data), schema.arrow.names
        return from_parquet(buffer, schema.arrow, columns=names, rows=part.rows, memory=part.memory, use_threads=True)

    return decoded(part, read)


def _decoded_batch(
    data: bytes | memoryview,
    part: Part,
    schema: CollectionSchema,
    columns: Sequence[str],
    filter: pc.Expression | None,
) -> pa.Table:
    table = decoded(part, lambda: from_batch(data, schema.arrow, rows=part.rows, memory=part.memory))
    check_updates(table, part)
    if filter is not None:
        try:
            table = table.filter(filter)
        except UNREADABLE as error:
            raise bad_filter(filter, schema.arrow, error) from error
    return table if columns == schema.arrow.names else table.select(columns)


class Summary:
    """What a descriptor says of rows, gathered from one row group after the other.

    Memory: the key columns of all rows, for samples are taken at evenly spaced rows of a number known only at the end.
    """

    def __init__(self, schema: CollectionSchema, *, is_sorted: bool = True) -> None:
        """Begin; is_sorted says that the rows come in order, so that the ends of the first column are known."""
        self._schema = schema
        self._sorted = schema.key_names[:1] if is_sorted else []
        self._keys: list[pa.Table] = []
        self._extremes: dict[str, list[tuple[pa.Scalar, pa.Scalar]]] = {}
        self._nulls: dict[str, int] = {}
        self.rows = self.memory = self._negatives = self._diff_sum = 0
        self._time_min, self._time_max = TIME_MAX, 0

    def add(self, group: pa.Table) -> None:
        """Add the rows that come next, at least one, in one chunk a column."""
        times, diffs = _int64(group.column(TIME)), _int64(group.column(DIFF))
        self.rows += group.num_rows
        self.memory += int(group.nbytes)
        time_min, time_max = _ends(times)
        self._time_min, self._time_max = min(self._time_min, time_min), max(self._time_max, time_max)
        least, greatest = _ends(diffs)
        self._negatives += int(np.count_nonzero(diffs < 0)) if least < 0 else 0
        self._diff_sum += exact_sum(diffs, least, greatest)
        self._keys.append(group.select(self._schema.key_names))
        for name in self._schema.names:
            column = group.column(name)
            if is_flat(column.type):
                nulls = column.null_count
                if name in self._sorted and len(column) > _TAKE_MIN:
                    column = column.take([0, max(len(column) - nulls - 1, 0)])
                self._extremes.setdefault(name, []).append(_extremes(column))
                self._nulls[name] = self._nulls.get(name, 0) + nulls

    @property
    def key_bytes(self) -> int:
        """Bytes of the key columns held."""
        return sum(int(keys.nbytes) for keys in self._keys)

    def describe(self, data: bytes | memoryview) -> Part:
        """Return the descriptor of a part that holds these rows as data, a Parquet file."""
        return Part(
            bytes=len(data),
            rows=self.rows,
            memory=self.memory + level_bytes(data, self._schema.arrow, self.rows),
            checksum=checksum_of(data),
            footer=footer_of(data),
            time_min=self._time_min,
            time_max=self._time_max,
            negatives=self._negatives,
            diff_sum=self._diff_sum,
            schema=self._schema.version,
            keys_json=_key_samples(pa.concat_tables(self._keys), self.rows, self._schema),
            stats_json=self._stats(),
        )

    def _stats(self) -> msgspec.Raw:
        found: dict[str, list[Json]] = {}
        left = STATS_BYTES_MAX - 2
        for name, extremes in self._extremes.items():
            least, greatest = extremes[0]
            if len(extremes) > 1:
                ends = pa.array([end for pair in extremes for end in pair], least.type)
                least, greatest = _extremes(pa.chunked_array([ends]))
            if max(_value_bytes(least), _value_bytes(greatest)) > STATS_VALUE_BYTES_MAX:
                continue
            stats = [scalar_to_json(least), scalar_to_json(greatest), self._nulls[name]]
            left -= len(msgspec.json.encode({name: stats})) - 1
            if left < 0:
                break
            found[name] = stats
        return msgspec.Raw(msgspec.json.encode(found)) if found else _NO_STATS


def describe_part(data: bytes | memoryview, table: pa.Table, schema: CollectionSchema) -> Part:
    """The descriptor of a part that holds table, of at least one row, as data."""
    summary = Summary(schema, is_sorted=False)
    summary.add(table.combine_chunks())
    return summary.describe(data)


def describe_batch(data: bytes, table: pa.Table, schema: CollectionSchema) -> Part:
    """The descriptor of a part that holds table, of at least one row and consolidated, as a batch.

    It has few keys and no stats: reading the batch costs no more than comparing them.
    """
    times, diffs = int64_values(combined(table.column(TIME))), int64_values(combined(table.column(DIFF)))
    return Part(
        bytes=len(data),
        rows=len(table),
        memory=body_bytes(data),
        checksum=checksum_of(data),
        time_min=int(times.min()),
        time_max=int(times.max()),
        negatives=int(np.count_nonzero(diffs < 0)),
        diff_sum=exact_sum(diffs),
        schema=schema.version,
        keys_json=_key_samples(table.select(schema.key_names), len(table), schema, BATCH_SAMPLES),
    )


def describe_held(keys: pa.Table, memory: int, schema: CollectionSchema) -> Part:
    """The descriptor of rows that are in memory, at least one, by which slices are cut; it stands for no bytes.

    Args:
        keys: the key columns, in order.
        memory: what all columns take.
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
        keys_json=_key_samples(keys, len(keys), schema),
    )


def footer_of(data: bytes | memoryview) -> Footer:
    """What a descriptor says of the footer of a Parquet file."""
    size = footer_bytes(data)
    return Footer(size, checksum_of(memoryview(data)[-size:]))


def checksum_of(data: bytes | memoryview) -> str:
    """The checksum of a part's bytes as its descriptor holds it."""
    return xxhash.xxh3_128_hexdigest(data)


def _verify(data: bytes | memoryview, part: Part) -> None:
    if len(data) != part.bytes:
        raise CorruptBlob(part.name, f"it has {len(data)} bytes, and its descriptor says {part.bytes}")
    if (found := checksum_of(data)) != part.checksum:
        raise CorruptBlob(part.name, f"its checksum is {found}, and its descriptor says {part.checksum}")


def decoded(part: Part, read: Callable[[], T]) -> T:
    try:
        return read()
    except UNREADABLE as error:
        raise CorruptBlob(
            part.name, f"its checksum is right, but it is not a part of this collection: {error}"
        ) from error


def check_updates(table: pa.Table, part: Part) -> None:
    """Check times and diffs, as far as they were read, against what the descriptor says of all of them."""
    if not table.num_rows:
        return
    if TIME in table.column_names:
        ends = [_ends(times) for times in _int64_chunks(table, TIME, part)]
        least, greatest = min(least for least, _ in ends), max(greatest for _, greatest in ends)
        if least < part.time_min or greatest > part.time_max:
            raise CorruptBlob(
                part.name,
                f"it holds times from {least} to {greatest}, and its descriptor says "
                f"{part.time_min} to {part.time_max}",
            )
    if DIFF in table.column_names:
        total = negatives = 0
        has_zeros = False
        for diffs in _int64_chunks(table, DIFF, part):
            least, greatest = _ends(diffs)
            total += exact_sum(diffs, least, greatest)
            if least <= 0:
                negatives += int(np.count_nonzero(diffs < 0))
                has_zeros |= not diffs.all()
        if negatives > part.negatives or has_zeros:
            raise CorruptBlob(
                part.name, f"it holds {negatives} negative diffs, or zeros; its descriptor says {part.negatives}"
            )
        if table.num_rows == part.rows and total != part.diff_sum:
            raise CorruptBlob(part.name, f"its diffs sum to {total}, and its descriptor says {part.diff_sum}")


def _int64_chunks(table: pa.Table, name: str, part: Part) -> list[npt.NDArray[np.int64]]:
    column = table.column(name)
    if column.null_count:
        raise CorruptBlob(part.name, f"{column.null_count} of its rows have NULL for {name}")
    return [_values(chunk) for chunk in column.chunks if len(chunk)]


def _values(chunk: pa.Array) -> npt.NDArray[np.int64]:
    """What `to_numpy` gives, in a third of the time."""
    return np.frombuffer(chunk.buffers()[1], np.int64, len(chunk), chunk.offset * 8)


def check_request(arrow: pa.Schema, columns: Sequence[str], filter: pc.Expression | None) -> None:
    known = frozenset(arrow.names)
    for name, times in Counter(columns).items():
        if name not in known or times > 1:
            problem = "is asked for twice" if name in known else "does not exist"
            raise InvalidUsage(f"column {name!r} {problem}: choose from {arrow.names}, each once")
    if filter is None:
        return
    try:
        arrow.empty_table().filter(filter)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise bad_filter(filter, arrow, error) from error


def bad_filter(filter: pc.Expression, arrow: pa.Schema, error: Exception) -> InvalidUsage:
    fields = ", ".join(f"{field.name}: {field.type}" for field in arrow)
    reason = " ".join(str(error).split())
    return InvalidUsage(
        f"filter {str(filter)[:200]} cannot be applied: {reason:.200}. It must be true or false for every "
        f"row, over the columns {fields}."
    )


def _int64(column: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    values: npt.NDArray[np.int64] = column.chunk(0).to_numpy()
    return values


def _ends(values: npt.NDArray[np.int64]) -> tuple[int, int]:
    """The least and the greatest of a row group's values: while they are in the processor's cache."""
    return int(values.min()), int(values.max())


def sample_rows(rows: int, samples: int) -> list[int]:
    """Return the row positions at which a part of that many rows is sampled: evenly, first and last included."""
    return [i * (rows - 1) // (samples - 1) for i in range(samples)] if samples > 1 else [0] * samples


def _key_samples(
    keys: pa.Table, rows: int, schema: CollectionSchema, counts: Sequence[int] = KEY_SAMPLES
) -> msgspec.Raw:
    if not all(is_flat(field.type) for field in schema.key.fields):
        return _NO_KEYS
    columns = [keys.column(name) for name in schema.key_names]
    written: dict[int, bytes] = {}
    if columns and all(pt.is_integer(column.type) or pt.is_temporal(column.type) for column in columns):
        first = sample_rows(rows, min(counts[0], rows))
        values = zip(*(integers_to_json(column, first) for column in columns), strict=True)
        written = {row: msgspec.json.encode(key) for row, key in zip(first, values, strict=True)}
    for samples in counts:
        found: list[bytes] = []
        for row in sample_rows(rows, min(samples, rows)):
            if row not in written:
                written[row] = msgspec.json.encode([scalar_to_json(column[row]) for column in columns])
            found.append(written[row])
            if len(written[row]) > KEY_SAMPLE_BYTES_MAX or sum(map(len, found)) + len(found) + 1 > KEYS_BYTES_MAX:
                break
        else:
            return msgspec.Raw(b"[" + b",".join(found) + b"]")
    return _NO_KEYS


def _extremes(column: pa.ChunkedArray) -> tuple[pa.Scalar, pa.Scalar]:
    """Least and greatest value, NaN being the greatest; both NULL when all are NULL."""
    kind = column.type
    if len(column) == 1:
        return column[0], column[0]
    array = column.chunk(0)
    if (dtype := _number_dtype(kind)) is not None and not array.null_count:  # Most columns, in a fifth of the time.
        values = np.frombuffer(array.buffers()[1], dtype, len(array), array.offset * dtype.itemsize)
        ends = np.array([values.min(), values.max()])
        if ends[0] == ends[0]:  # Or else one is NaN.
            both = pa.array(ends).view(kind)
            return both[0], both[1]
    array = widened(array)
    if pt.is_duration(kind):  # Arrow has no minimum of durations.
        array = array.view(pa.int64())
    found = pc.min_max(array)
    least, greatest = found["min"], found["max"]
    if pt.is_floating(kind) and has_nan(column):
        nan = pa.scalar(float("nan"), array.type)
        greatest, least = nan, (nan if _only_nan(array) else least)
    return least.cast(kind), greatest.cast(kind)


def _number_dtype(kind: pa.DataType) -> np.dtype[Any] | None:
    """How Arrow holds a column of numbers or times; None for any other."""
    if pt.is_integer(kind) or pt.is_temporal(kind):
        return np.dtype(f"{'u' if pt.is_unsigned_integer(kind) else 'i'}{kind.bit_width // 8}")
    return np.dtype(f"f{kind.bit_width // 8}") if pt.is_float32(kind) or pt.is_float64(kind) else None


def _only_nan(array: pa.Array) -> bool:
    return bool(pc.all(pc.is_nan(array)).as_py())


def _value_bytes(value: pa.Scalar) -> int:
    if not value.is_valid or not hasattr(value, "as_buffer"):
        return 0
    buffer: Any = value.as_buffer()
    return int(buffer.size)
