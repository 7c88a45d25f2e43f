"""The descriptor of a part, made from its rows: what a writer says of what it has written.

What it holds is in `persist.codecs.part.part`.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from persist.codecs.order.arrays import int64_values, int_ends
from persist.codecs.order.consolidation import exact_sum
from persist.codecs.order.ordering import combined
from persist.codecs.part.batch import body_bytes
from persist.codecs.part.file_reader import level_bytes
from persist.codecs.part.file_writer import footer_bytes, has_nan, widened
from persist.codecs.part.part import (
    KEY_SAMPLES,
    KEYS_BYTES_MAX,
    NO_KEYS,
    NO_STATS,
    STATS_BYTES_MAX,
    Footer,
    Part,
    checksum_of,
    sample_rows,
)
from persist.codecs.types.arrow_types import Json
from persist.codecs.types.scalars import integers_to_json, is_flat, scalar_to_json
from persist.codecs.types.schema import DIFF, TIME, TIME_MAX, CollectionSchema

BATCH_SAMPLES = (2,)
KEY_SAMPLE_BYTES_MAX = 256
STATS_VALUE_BYTES_MAX = 64
_TAKE_MIN = 1024  # Of fewer values the least and the greatest are found sooner than the first and the last are taken.


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
        time_min, time_max = int_ends(times)
        self._time_min, self._time_max = min(self._time_min, time_min), max(self._time_max, time_max)
        least, greatest = int_ends(diffs)
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
            memory=self.memory + level_bytes(data, self._schema.arrow),
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
        return msgspec.Raw(msgspec.json.encode(found)) if found else NO_STATS


def _int64(column: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    values: npt.NDArray[np.int64] = column.chunk(0).to_numpy()
    return values


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


def _key_samples(
    keys: pa.Table, rows: int, schema: CollectionSchema, counts: Sequence[int] = KEY_SAMPLES
) -> msgspec.Raw:
    if not all(is_flat(field.type) for field in schema.key.fields):
        return NO_KEYS
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
    return NO_KEYS


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
