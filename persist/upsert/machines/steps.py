"""What machines share: columns of touched keys as integers, and updates made of picked rows.

Rows are told apart by integers that are equal exactly where rows are (NULL equals NULL, and NaN NaN), so that a machine
is arithmetic over groups, times and identities, and rows are taken once, at the end.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from persist.codecs import CollectionSchema, boolean_values, canonical, combined, int64_array, int64_values, row_sorter
from persist.upsert.machine import DELETED, GROUP, Touched

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Pick = tuple[Ints, Ints, int]  # Rows, by number; the time of each; and the diff of all.


def present_groups(touched: Touched) -> Ints:
    """Return the group of each present row, ascending."""
    return int64_values(combined(touched.present[GROUP]))


def event_groups(touched: Touched) -> Ints:
    """Return the group of each event, ascending."""
    return int64_values(combined(touched.events[GROUP]))


def event_times(touched: Touched) -> Ints:
    """Return the time of each event, ascending within a group."""
    return int64_values(combined(touched.events["_time"]))


def deletions(touched: Touched) -> Flags:
    """Return which events say that their key is gone."""
    return boolean_values(combined(touched.events[DELETED]))


def firsts(*columns: Ints) -> Flags:
    """Return where a row differs from the one before it in some column."""
    first = np.ones(len(columns[0]), np.bool_)
    first[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    return first


def starts_of(groups: Ints) -> Ints:
    """Return for each row of ascending groups the number of the first row of its group."""
    first = firsts(groups)
    return np.flatnonzero(first)[np.cumsum(first) - 1] if len(groups) else groups


def before(groups: Ints, values: npt.NDArray[np.generic], initial: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """Return for each row the value of the one before it in its group; for the first, what its group has initially."""
    earlier = np.empty_like(values)
    earlier[1:] = values[:-1]
    first = firsts(groups)
    earlier[first] = initial[groups[first]]
    return earlier


def last_at(groups: Ints, where: Flags) -> Ints:
    """Return for each row the last one of its group strictly before it where something is so; -1 if there is none."""
    last = np.full(len(groups), -1)
    last[1:] = np.maximum.accumulate(np.where(where, np.arange(len(groups)), -1))[:-1]
    return np.where(last >= starts_of(groups), last, -1)


def identities(tables: Sequence[pa.Table], names: Sequence[str]) -> list[Ints]:
    """Return for each table a number per row: equal where rows, of any of the tables, are equal in these columns."""
    lengths = [len(table) for table in tables]
    if not names:
        return [np.zeros(length, np.int64) for length in lengths]
    both = canonical(pa.concat_tables([table.select(names) for table in tables]).combine_chunks())
    order, first = row_sorter(both, names).sort()
    numbers = np.empty(len(order), np.int64)
    numbers[order] = np.cumsum(first)
    return np.split(numbers, np.cumsum(lengths)[:-1])


def rounds(groups: Ints, times: Ints) -> Iterator[Ints]:
    """Yield the events of each group's first time, then those of each one's second time, and so on, as row numbers.

    So what cannot be done for all times at once is done for all groups at once: as many rounds as one group has times.
    """
    if not len(groups):
        return
    number = np.cumsum(firsts(groups, times)) - 1
    number -= number[starts_of(groups)]
    order = np.argsort(number, kind="stable")
    yield from np.split(order, np.flatnonzero(np.diff(number[order])) + 1)


def all_rows(touched: Touched) -> pa.Table:
    """Return the present rows and, after them, those of events, where these are rows of the collection."""
    names = [*touched.schema.names]
    return pa.concat_tables([touched.present.select(names), touched.events.select(names)]).combine_chunks()


def updates(schema: CollectionSchema, rows: pa.Table, picks: Sequence[Pick]) -> pa.Table:
    """Return picked rows as updates."""
    taken = rows.select([*schema.names]).take(int64_array(_joined([numbers for numbers, _, _ in picks])))
    times = int64_array(_joined([times for _, times, _ in picks]))
    diffs = int64_array(_joined([np.full(len(numbers), diff) for numbers, _, diff in picks]))
    return pa.Table.from_arrays([*taken.columns, times, diffs], schema=schema.arrow)


def _joined(parts: Sequence[Ints]) -> Ints:
    return np.concatenate([np.empty(0, np.int64), *parts]).astype(np.int64)
