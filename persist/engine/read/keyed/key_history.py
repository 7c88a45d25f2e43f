"""The values of keys over time: joins as of a row's time, and keys that ever had several values.

All functions here sum the diffs of a record, or of a key, in the order of time.

`join_records` serves joins as of a time. The contents as of the least time, and the updates after it, yield for every
record the intervals of times in which its multiplicity is not zero. A row's records are the intervals of its key that
contain its time. Intervals are sorted by key and start. The search walks backwards for all rows together, from the last
interval that began before the row's time until no earlier one can reach it. A key with one value at a time takes one
step.

`find_keys_with_several` and similar functions check a keyed collection, or one that becomes keyed. Cost: keys and diffs
of the first keyframe and of the history are read once. Memory: a slice of the key space.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from persist.codecs.errors import DiffOverflow
from persist.codecs.order.arrays import get_int64_values, make_boolean_array
from persist.codecs.order.digits import compute_dense_ranks
from persist.codecs.order.ordering import combine_chunks, make_canonical, make_order_keys, sort_table
from persist.codecs.order.sums import consolidate
from persist.codecs.part.decoding import Request
from persist.codecs.types.objects import to_dicts
from persist.codecs.types.schema import CollectionSchema
from persist.core.errors import InvalidUsage, NegativeMultiplicity
from persist.core.state_rules.contents import CollectionState
from persist.engine.read.merging import COPIES_MAX
from persist.engine.read.parts.reader import PartReader
from persist.engine.read.planning.scan import Scan

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Intervals:
    """The intervals of time in which records exist; sorted by key, then start.

    In an interval, a record has a constant multiplicity other than 0.

    Attributes:
        rows: for each interval, an update with its record.
        counts: the multiplicities.
        starts, ends: the bounds; key and position of the time are combined in one number.
        reaches: the greatest end of this and earlier intervals of the key.
        times: the distinct times, in order.
    """

    rows: Int64s
    counts: Int64s
    starts: Int64s
    ends: Int64s
    reaches: Int64s
    times: Int64s

    @classmethod
    def of(cls, keys: Int64s, updates: pa.Table, names: tuple[str, ...]) -> "Intervals":
        """Return the intervals of updates with these key numbers; names are the columns of a record."""
        times, diffs = (updates[name].to_numpy() for name in ("_time", "_diff"))
        records = _rank_rows(updates, names)
        # The updates of each record follow each other, in the order of time.
        order = np.lexsort((times, records))
        records, keys, times, diffs = records[order], keys[order], times[order], diffs[order]
        # Times count by their place among the distinct ones, so that key and time fit one number.
        distinct, at = np.unique(times, return_inverse=True)
        # An update counts until the next one of its record; the last one of a record counts for ever.
        is_last = np.append(records[1:] != records[:-1], True) if len(records) else np.zeros(0, bool)
        ends = np.where(is_last, len(distinct), np.append(at[1:], 0)) if len(at) else at
        counts = _sum_running(diffs, records)
        interval_rows = np.flatnonzero(counts)
        interval_rows = interval_rows[np.lexsort((at[interval_rows], keys[interval_rows]))]
        # Ends are up to len(distinct), so each key has one number more than that, and `reaches` of a key is beyond all
        # earlier keys.
        base = keys[interval_rows] * (len(distinct) + 1)
        ending = base + ends[interval_rows]
        return cls(
            order[interval_rows],
            counts[interval_rows],
            base + at[interval_rows],
            ending,
            np.maximum.accumulate(ending),
            distinct,
        )

    def match_times(self, keys: Int64s, times: Int64s) -> tuple[Int64s, Int64s]:
        """Return pairs of a row and an interval of its key that contains its time; ordered by row."""
        width = len(self.times) + 1
        # The last of the distinct times that is not after a row's; -1 if there is none.
        at = np.searchsorted(self.times, times, side="right") - 1
        moments = keys * width + at
        # The last interval that begins at or before the row's key and time; -1 if there is none.
        place = np.searchsorted(self.starts, moments, side="right") - 1
        rows = np.flatnonzero((place >= 0) & (at >= 0))
        place = place[rows]
        pairs: list[tuple[Int64s, Int64s]] = []
        while len(rows):
            # Stop if no earlier interval reaches the row's key and time.
            is_open = self.reaches[place] > moments[rows]
            rows, place = rows[is_open], place[is_open]
            inside = self.ends[place] > moments[rows]
            pairs.append((rows[inside], place[inside]))
            # One interval back, for rows that have one before.
            is_open = place > 0
            rows, place = rows[is_open], place[is_open] - 1
        if not pairs:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        row, interval = (np.concatenate(arrays) for arrays in zip(*pairs, strict=True))
        order = np.lexsort((interval, row))
        return row[order], interval[order]


def join_records(
    frame: pa.Table, keys: pa.Table, times: pa.ChunkedArray, updates: pa.Table, schema: CollectionSchema, columns: Any
) -> pa.Table:
    """Return a frame's rows, in order, each with the columns of the records that its key had at its time.

    Args:
        keys: the key columns of the rows.
        times: the time of each row, int64; NULL for none.
        updates: the contents of these keys at the first time as updates, and later updates: key columns, value columns,
            `_time`, `_diff`.
        columns: the names of the columns to add.

    A row without a record has NULLs; a row with several is repeated for each, by their multiplicities.

    Raises:
        NegativeMultiplicity: of a record, at the time of a row.
        InvalidUsage: multiplicities would add more than `COPIES_MAX` rows.
    """
    updates = make_canonical(updates)
    all_keys = make_canonical(pa.concat_tables([updates.select(keys.column_names), keys]).combine_chunks())
    numbers = _rank_rows(all_keys, schema.key_names)
    intervals = Intervals.of(numbers[: len(updates)], updates, schema.names)
    at = times.fill_null(-1).to_numpy()
    row, interval = intervals.match_times(numbers[len(updates) :], at)
    counts = intervals.counts[interval]
    if len(counts) and counts.min() < 0:
        worst = int(counts.argmin())
        record = updates.select(list(schema.names)).slice(int(intervals.rows[interval[worst]]), 1)
        raise NegativeMultiplicity(str(to_dicts(record)[0]), int(counts[worst]), int(at[row[worst]]))
    if (rows := float(counts.sum(dtype=np.float64))) > len(counts) + COPIES_MAX:
        raise InvalidUsage(
            f"the join would have about {rows:.3g} rows, because a record has multiplicity {counts.max()}: read "
            'changes(form="updates"), which has each record once with its _diff'
        )
    # Each row as often as its record.
    row, interval = np.repeat(row, counts), np.repeat(interval, counts)
    # Rows without a record come once, in place, with the first record under a mask.
    missing = np.setdiff1d(np.arange(len(frame)), row)
    order = np.argsort(np.concatenate([row, missing]), kind="stable")
    record_rows = pa.array(np.concatenate([intervals.rows[interval], np.zeros(len(missing), np.int64)])[order])
    is_missing = np.concatenate([np.zeros(len(row), bool), np.ones(len(missing), bool)])[order]
    result = frame.take(pa.array(np.concatenate([row, missing])[order]))
    indices = pa.array(record_rows.to_numpy(), mask=is_missing)
    for name in columns:
        result = result.append_column(name, updates[name].combine_chunks().take(indices))
    return result


def _rank_rows(table: pa.Table, names: tuple[str, ...]) -> Int64s:
    """Return int64[rows]: the dense ranks of rows by some columns."""
    if not names or not len(table):
        return np.zeros(len(table), np.int64)
    return np.asarray(compute_dense_ranks(make_order_keys(table, names)), np.int64)


def _sum_running(diffs: Int64s, records: Int64s) -> Int64s:
    """Return the running sum of diffs within each record; rows of a record are consecutive."""
    if not len(diffs):
        return diffs
    is_first = np.append(True, records[1:] != records[:-1])
    group = np.cumsum(is_first) - 1  # The number of the record of each update.
    small = max(-int(diffs.min()), int(diffs.max())) * len(diffs) < 2**63
    # Sums over all updates, less the sum before the record began. Python's integers never wrap.
    sums = np.cumsum(diffs if small else diffs.astype(object))
    sums_before = (sums - diffs)[is_first]
    multiplicities = sums - sums_before[group]
    if not small and max(map(abs, multiplicities)) >= 2**63:
        raise DiffOverflow("the multiplicity of a record does not fit int64 at some time; nothing was wrapped")
    return multiplicities.astype(np.int64)


SLICE_BYTES = 32 << 20


def find_keys_with_several(contents: CollectionState, reader: PartReader) -> Iterator[tuple[tuple[Any, ...], int]]:
    """Yield the keys that ever have several values or a negative number of them.

    The keys are in order, each with the first such time. If it was before the readable history, the time is the last
    one before the history.

    Raises:
        CorruptBlob: a part is missing or damaged.
        DiffOverflow: a key's sum of diffs is beyond int64.
    """
    yield from _find_wrong_keys(contents, reader, contents.schema.key_names, 1)


def find_negative_keys(contents: CollectionState, reader: PartReader) -> Iterator[tuple[tuple[Any, ...], int]]:
    """Yield the keys that ever have a record of negative multiplicity; otherwise as `find_keys_with_several`.

    This finds keys with two values and the retraction of a third, whose sum is one. Cost: all columns are read.
    """
    yield from _find_wrong_keys(contents, reader, contents.schema.names, None)


def _find_wrong_keys(
    contents: CollectionState, reader: PartReader, names: Sequence[str], most: int | None
) -> Iterator[tuple[tuple[Any, ...], int]]:
    """Yield keys, with a time, that had more than `most` or less than 0 rows."""
    schema, first = contents.schema, contents.keyframes[0] if contents.history_from else None
    base = contents.list_parts(first.parts) if first is not None else ()
    whole = Scan(schema, contents.history_parts, 0, contents.resolved, tuple(names), base=base)
    time_before = -1 if first is None else first.as_of
    for scan_slice in whole.prune().cut_into_slices(SLICE_BYTES):
        yield from _find_wrong_keys_of_slice(scan_slice, schema, reader, time_before, list(names), most)


def _find_wrong_keys_of_slice(
    scan: Scan, schema: CollectionSchema, reader: PartReader, before: int, names: list[str], most: int | None
) -> Iterator[tuple[tuple[Any, ...], int]]:
    """Yield the wrong keys of one slice; `names` are the columns whose multiplicity is checked."""
    columns = [*names, "_time", "_diff"]
    tables = [scan.empty(columns), *scan.updates(reader, columns)]
    for table in scan.read_base_rows(reader, [*names, "_diff"]):
        times = pa.array(np.full(len(table), before, np.int64))  # They exist from the start, whatever their times.
        tables.append(table.add_column(len(names), schema.arrow.field("_time"), times))
    sums = consolidate(pa.concat_tables(tables), columns[:-1])
    if not len(sums):
        return
    _, starts = sort_table(sums, names)
    diffs = get_int64_values(combine_chunks(sums["_diff"]))
    # The sum of each key (or record) after each update: sums over all, less the sum before the key began.
    running = np.cumsum(diffs)
    firsts = np.flatnonzero(starts)
    sums_by_key = running - np.repeat(running[firsts] - diffs[firsts], np.diff([*firsts, len(diffs)]))
    number = np.cumsum(starts) - 1
    bad = np.flatnonzero((sums_by_key < 0) if most is None else (sums_by_key < 0) | (sums_by_key > most))
    once = bad[np.unique(number[bad], return_index=True)[1]]  # The first wrong update of each key.
    table = sums.select([*schema.key_names, "_time"]).filter(make_boolean_array(np.isin(np.arange(len(sums)), once)))
    for row in to_dicts(table):
        *key, time = row.values()
        yield tuple(key), time


def find_null_keys(contents: CollectionState, reader: PartReader) -> Iterator[tuple[tuple[Any, ...], int]]:
    """Yield the keys that are NULL in all fields, which no event can have, and a time of each."""
    keys = list(contents.schema.key_names)
    null = pc.field(keys[0]).is_null()
    for name in keys[1:]:
        null &= pc.field(name).is_null()
    yield from find_keys(contents, null, reader)


def find_keys(
    contents: CollectionState, condition: pc.Expression, reader: PartReader
) -> Iterator[tuple[tuple[Any, ...], int]]:
    """Yield keys and times of updates that meet a condition, at most ten of each part."""
    schema, keys = contents.schema, list(contents.schema.key_names)
    for part in contents.parts:
        table = reader.table(part, Request(schema, [*keys, "_time"], condition))
        for row in to_dicts(table.slice(0, 10)):
            *key, time = row.values()
            yield tuple(key), time
