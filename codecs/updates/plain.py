"""Plain rows, which have neither `_time` nor `_diff`, as updates: all at one time, or each at that in a column."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa

from persist.codecs.errors import InvalidUpdate, SchemaMismatch
from persist.codecs.types.schema import DIFF, TIME, CollectionSchema
from persist.codecs.types.suggestion import did_you_mean
from persist.codecs.types.values import cut
from persist.codecs.updates.inputs import TableStream, as_table, opened


@dataclass(frozen=True, slots=True)
class Stamp:
    """What plain rows lack.

    Attributes:
        time: of all rows, or the name of the column with the time of each. That column is kept where the collection has
            one of that name, and dropped otherwise.
        diff: of all rows; None is 1, unless there is a column `_diff`.
    """

    time: int | str
    diff: int | None = None

    def __post_init__(self) -> None:
        diff = 1 if self.diff is None else self.diff
        if isinstance(diff, np.integer):
            diff = int(diff)
            object.__setattr__(self, "diff", diff)
        if isinstance(diff, bool) or not isinstance(diff, int) or not diff or not -(2**63) <= diff < 2**63:
            raise InvalidUpdate(f"diff={diff!r} is no change: give 1 to insert the rows, -1 to retract them")


def stamped(data: Any, schema: CollectionSchema, stamp: Stamp) -> Any:
    """Return plain rows, of any form that `to_updates` takes or as `(key, value)` tuples, as what it takes.

    Raises:
        SchemaMismatch: the rows have a `_time` already, or lack the column that it is to come from.
        InvalidUpdate: what reading the rows raises.
    """
    data = opened(data)
    if isinstance(data, TableStream):
        tables = data.tables
        return TableStream(lambda _: (_stamped_table(table, stamp, schema) for table in tables(schema)))
    table = as_table(data, schema)
    if table is not None:
        return _stamped_table(table, stamp, schema)
    if isinstance(stamp.time, str):
        raise SchemaMismatch(
            f"time={stamp.time!r} names a column, and these rows are no table: give dicts or a frame, or "
            "((key, value), time, diff) tuples without time="
        )
    if not isinstance(data, Iterable) or isinstance(data, (str, bytes)):
        raise InvalidUpdate(
            f"the rows are {cut(data)} ({type(data).__name__}): give (key, value) tuples, dicts, a table or a frame"
        )
    return [*zip(data, repeat(stamp.time), repeat(1 if stamp.diff is None else stamp.diff))]


def _stamped_table(table: pa.Table, stamp: Stamp, schema: CollectionSchema) -> pa.Table:
    for name, given in ((TIME, True), (DIFF, stamp.diff is not None)):
        if given and name in table.column_names:
            value = getattr(stamp, name[1:])
            raise SchemaMismatch(
                f"the rows have a column {name!r}, and {name[1:]}={value!r} is given for all of them, too: drop the "
                "column; to add updates with times and diffs of their own, use write without time="
            )
    if DIFF not in table.column_names:
        table = table.append_column(DIFF, _all(table, 1 if stamp.diff is None else stamp.diff))
    if not isinstance(stamp.time, str):
        return table.append_column(TIME, _all(table, stamp.time))
    if stamp.time not in table.column_names:
        hint = did_you_mean(stamp.time, table.column_names)
        raise SchemaMismatch(
            f"time={stamp.time!r} is no column of the rows{hint}; they have {table.column_names}. A moment as text "
            "begins with its day, such as 2026-11-21T12:00:00Z."
        )
    table = table.append_column(TIME, table[stamp.time])
    return table if stamp.time in schema.names else table.drop_columns([stamp.time])


def _all(table: pa.Table, value: int) -> pa.ChunkedArray:
    return pa.chunked_array([np.full(table.num_rows, value, np.int64)])


def with_time(table: pa.Table, time: int, schema: CollectionSchema) -> pa.Table:
    """Return the rows of a table, which has the columns of a collection and `_diff`, as updates at one time."""
    times = pa.array(np.full(len(table), time, np.int64))
    columns = [*(table[name] for name in schema.names), times, table["_diff"]]
    return pa.Table.from_arrays(columns, schema=schema.arrow)
