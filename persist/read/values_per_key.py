"""Which keys of a collection have more than one value at some time that can be told apart.

Whoever examines a keyed collection asks for it, and whoever makes a collection keyed. Cost: the first keyframe and the
history are read once, keys and diffs only. Memory: a slice of the key space.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from persist.codecs import CollectionSchema, RowSorter, boolean_array, combined, consolidate, int64_values, order_keys
from persist.read.part_reader import PartReader
from persist.read.scan import Scan
from persist.state import CollectionState

SLICE_BYTES = 32 << 20


def keys_with_several(contents: CollectionState, reader: PartReader) -> Iterator[tuple[tuple[Any, ...], int]]:
    """Yield the keys, in order, that have more than one value, or less than none, at some time; and when first.

    Of what is in the first keyframe already, that is the time before the history begins.

    Raises:
        CorruptBlob: a part is missing or damaged.
        DiffOverflow: what a key has is beyond int64.
    """
    yield from _wrong(contents, reader, contents.schema.key_names, 1)


def keys_with_less_than_none(contents: CollectionState, reader: PartReader) -> Iterator[tuple[tuple[Any, ...], int]]:
    """Yield the keys, in order, that have a value less than no times at some time, and when; otherwise as above.

    Where no key has several values, it has one at most then, and not two and the retraction of a third. Cost: all
    columns are read.
    """
    yield from _wrong(contents, reader, contents.schema.names, None)


def _wrong(
    contents: CollectionState, reader: PartReader, names: Sequence[str], most: int | None
) -> Iterator[tuple[tuple[Any, ...], int]]:
    schema, first = contents.schema, contents.keyframes[0] if contents.history_from else None
    base = contents.parts_of(first.parts) if first is not None else ()
    upper = contents.resolved.time
    whole = Scan(schema, contents.history_parts, 0, 2**63 - 1 if upper is None else upper, tuple(names), base=base)
    before = -1 if first is None else first.as_of
    for each in whole.pruned().slices_within(SLICE_BYTES):
        yield from _wrong_within(each, schema, reader, before, list(names), most)


def _wrong_within(
    scan: Scan, schema: CollectionSchema, reader: PartReader, before: int, names: list[str], most: int | None
) -> Iterator[tuple[tuple[Any, ...], int]]:
    """Yield the keys of a slice that are wrong, if names are what is counted."""
    columns = [*names, "_time", "_diff"]
    found = [scan.empty(columns), *scan.updates(reader, columns)]
    for table in scan.base_rows(reader, [*names, "_diff"]):
        times = pa.array(np.full(len(table), before, np.int64))  # Whatever their own: they are there at first.
        found.append(table.add_column(len(names), schema.arrow.field("_time"), times))
    sums = consolidate(pa.concat_tables(found), columns[:-1])
    if not len(sums):
        return
    _, starts = RowSorter(order_keys(sums, names)).sort()
    diffs = int64_values(combined(sums["_diff"]))
    running = np.cumsum(diffs)
    firsts = np.flatnonzero(starts)
    held = running - np.repeat(running[firsts] - diffs[firsts], np.diff([*firsts, len(diffs)]))
    number = np.cumsum(starts) - 1
    bad = np.flatnonzero((held < 0) if most is None else (held < 0) | (held > most))
    once = bad[np.unique(number[bad], return_index=True)[1]]
    table = sums.select([*schema.key_names, "_time"]).filter(boolean_array(np.isin(np.arange(len(sums)), once)))
    for row in table.to_pylist():
        *key, time = row.values()
        yield tuple(key), time


def keys_with_null(contents: CollectionState, reader: PartReader) -> Iterator[tuple[tuple[Any, ...], int]]:
    """Yield the keys that are NULL in all fields, which no event can be about, and a time at which each is there."""
    schema, keys = contents.schema, list(contents.schema.key_names)
    null = pc.field(keys[0]).is_null()
    for name in keys[1:]:
        null &= pc.field(name).is_null()
    for part in contents.parts:
        table = reader.table(part, schema, [*keys, "_time"], filter=null)
        for row in table.slice(0, 10).to_pylist():
            *key, time = row.values()
            yield tuple(key), time
