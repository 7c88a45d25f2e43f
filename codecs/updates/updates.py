"""Converts updates and plain rows in any form to one checked Arrow table.

The resulting table has exactly the columns of `CollectionSchema.arrow`, in its order and types; no NULL in `_time` or
`_diff`; every time in [0, TIME_MAX]; no diff of zero; floats in canonical form (see `ordering`). A table of this form
is passed through without a copy; the cost is the minimum and maximum of two columns and one pass over its floats.

The column of a side with a codec has the encoded values, under the name "key" or "value". pandas exports its NaN as
NULL, which is the meaning of NaN there; everywhere else NaN is a number.

Plain rows have neither `_time` nor `_diff`: `add_times` adds one time for all, or a column with a time for each.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice, repeat
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from persist.codecs.errors import InvalidUpdate, SchemaMismatch, did_you_mean
from persist.codecs.evolution import decode_defaults
from persist.codecs.order.arrays import copy_table, make_int64_array
from persist.codecs.order.ordering import make_canonical
from persist.codecs.types.casts import cast_column
from persist.codecs.types.documents import check_documents
from persist.codecs.types.schema import DIFF, TIME, TIME_MAX, CollectionSchema
from persist.codecs.types.values import shorten
from persist.codecs.updates.inputs import TableStream, open_stream, to_table
from persist.codecs.updates.tuples import convert_tuples

_DIFF_MAX = 2**63 - 1
_TOLD_MAX = 50
_PANDAS_INDEX = re.compile(r"__index_level_\d+__")  # what pandas calls an index that has no name


class Moments(Protocol):
    """Converts moments among the times of updates to integers; other times stay unchanged."""

    def convert_times(self, times: Sequence[Any]) -> list[Any]:
        """Return times or moments of tuples as integers."""

    def convert_column(self, column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
        """Return a column of times or moments as integers."""


def to_updates(
    data: Any,
    schema: CollectionSchema,
    *,
    default_time: int | None = None,
    default_diff: int | None = None,
    moments: Moments | None = None,
) -> pa.Table:
    """Return updates as one table of `schema.arrow`, zero diffs dropped.

    Args:
        data: an iterable of `((key, value), time, diff)`; or tables in any form of `persist.codecs.updates.inputs`
            (Arrow, frames, streams, dicts), with columns in any order.
        schema: the collection's.
        default_time: the time of every update without a `_time` column.
        default_diff: the diff of every update without a `_diff` column.
        moments: of the collection's timeline; None if times are only numbers.

    Raises:
        SchemaMismatch: a column without a default is missing; or one is unexpected, repeated, or of a type that does
            not convert.
        InvalidUpdate: an update with a NULL or out-of-range time, a NULL diff, a value that does not convert,
            or a tuple of the wrong shape; the message names its index.
        CodecMismatch: tuples need a codec that this process does not have.
    """
    data = open_stream(data)
    if isinstance(data, TableStream):
        pieces = stream_updates(data, schema, default_time=default_time, default_diff=default_diff, moments=moments)
        return pa.concat_tables([schema.arrow.empty_table(), *map(copy_table, pieces)])
    table = to_table(data, schema)
    if table is None:
        convert = None if moments is None else moments.convert_times
        table, times, diffs = convert_tuples(_check_iterable(data), schema, convert)
        if times and not 0 <= min(times) <= max(times) <= TIME_MAX:
            row = next(i for i, time in enumerate(times) if not 0 <= time <= TIME_MAX)
            raise _make_time_error(times[row], row)
        check_declared(table, schema)
        if 0 in diffs:
            table = _drop_zero_diffs(table)
    else:
        table = _convert_moments(table, moments)
        table = make_canonical(_conform_table(table, schema, {TIME: default_time, DIFF: default_diff}))
        _check_times(table.column(TIME))
        check_declared(table, schema)
        for side in (schema.key, schema.value):
            if side.codec is not None and side.fields:
                side.codec.check_stored(table.column(side.fields[0].name))
        ends = pc.min_max(_check_no_nulls(table.column(DIFF), DIFF)).as_py()
        if ends["min"] is not None and ends["min"] <= 0 <= ends["max"]:
            table = _drop_zero_diffs(table)
    return table


def stream_updates(
    data: TableStream,
    schema: CollectionSchema,
    *,
    default_time: int | None = None,
    default_diff: int | None = None,
    moments: Moments | None = None,
) -> Iterator[pa.Table]:
    """Yield the updates of each table of a stream; otherwise as `to_updates`."""
    start = 0
    for table in data.tables(schema):
        try:
            yield to_updates(table, schema, default_time=default_time, default_diff=default_diff, moments=moments)
        except InvalidUpdate as error:
            if not start:
                raise
            raise InvalidUpdate(f"of the updates from row {start} of the stream on, {error}") from error
        start += len(table)


def _convert_moments(table: pa.Table, moments: Moments | None) -> pa.Table:
    """Convert the moments in the column of times to integers."""
    at = table.schema.get_field_index(TIME)
    if at < 0:
        return table
    kind = table.schema.field(at).type
    if moments is None:
        if pat.is_temporal(kind):
            raise SchemaMismatch(
                f"column {TIME!r} has type {kind}, the collection stores int64, and it has no timeline by which a "
                "moment would be a time."
            ).with_remedy(
                "Create one with {timeline:option:us}, say, or give integers that count what its times count."
            )
        return table
    times = moments.convert_column(table.column(at), TIME)
    return table if times.type == kind else table.set_column(at, TIME, times)


def check_declared(table: pa.Table, schema: CollectionSchema) -> None:
    """Raise InvalidUpdate for NULL in a required column, or invalid JSON in a JSON column."""
    for name in schema.json:
        check_documents(table.column(name), name)
    for name in schema.required:
        column = table.column(name)
        if column.null_count:
            row = pc.index(pc.is_null(column), True).as_py()
            raise InvalidUpdate(
                f"update {row} has NULL in {name!r}, which is not null by the collection's schema (nullable=False): "
                "give it a value, or leave that update out"
            )


def _check_iterable(data: Any) -> Iterable[Any]:
    """Return updates that are iterable; raise InvalidUpdate for other data."""
    if isinstance(data, (list, tuple)) or (
        isinstance(data, Iterable) and not isinstance(data, (str, bytes, bytearray, Mapping))
    ):
        return data
    raise InvalidUpdate(
        f"the updates are {shorten(data)} ({type(data).__name__}): give an iterable of ((key, value), time, diff) "
        "tuples, a list of dicts, a dict of columns, a pyarrow Table, RecordBatch or Dataset, a frame, or anything "
        "else that has __arrow_c_stream__"
    )


def _check_times(column: pa.ChunkedArray) -> None:
    """Raise InvalidUpdate for a time that is NULL or out of range."""
    ends = pc.min_max(_check_no_nulls(column, TIME)).as_py()
    if ends["min"] is not None and not 0 <= ends["min"] <= ends["max"] <= TIME_MAX:
        wrong = pc.or_(pc.less(column, 0), pc.greater(column, TIME_MAX))
        row = pc.index(wrong, True).as_py()
        raise _make_time_error(column[row].as_py(), row)


def _make_time_error(time: int, row: int) -> InvalidUpdate:
    """Return the error for a time that is out of range."""
    return InvalidUpdate(
        f"update {row} has the time {time}: times are integers from 0 to {TIME_MAX} (2**63 - 2). Choose a unit and an "
        "origin that keep them there."
    )


def _check_no_nulls(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """Return the column; raise InvalidUpdate if it has NULL."""
    if column.null_count:
        row = pc.index(pc.is_null(column), True).as_py()
        raise InvalidUpdate(f"update {row} has NULL in {name}: every update needs a time and a diff. Fill it in.")
    return column


def _drop_zero_diffs(table: pa.Table) -> pa.Table:
    """Return a table without the rows whose diff is zero."""
    keep = pc.not_equal(table.column(DIFF), 0)
    return table if pc.all(keep).as_py() else table.filter(keep)


def _conform_table(table: pa.Table, schema: CollectionSchema, defaults: dict[str, int | None]) -> pa.Table:
    """Return the table with the schema's columns in its order and types, defaults filled in."""
    for name, limits in ((TIME, (0, TIME_MAX)), (DIFF, (-_DIFF_MAX - 1, _DIFF_MAX))):
        _check_default(name, defaults[name], *limits)
    names = dict.fromkeys(schema.arrow.names)
    names_given = [n for n in table.column_names if n in names or not _PANDAS_INDEX.fullmatch(n)]
    present = set(names_given)
    filled = {n: value for n, value in schema.compute_once(decode_defaults).items() if n not in present}
    required = [n for n in names if n in present or (defaults.get(n) is None and n not in filled)]
    if len(names_given) != len(present) or present != set(required):
        raise _make_misfit_error(names_given, required, schema)
    for name in (TIME, DIFF):
        if name in present and not pat.is_integer(table.schema.field(name).type):
            column = table.column(name)
            source = column.type.value_type if pat.is_dictionary(column.type) else column.type
            if not (pat.is_integer(source) or pat.is_null(source)):
                raise SchemaMismatch(
                    f"column {name!r} has type {column.type}, and the collection stores int64, one for every update. "
                    "Cast it to int64 first."
                )
    columns = [
        cast_column(table.column(f.name), f.type, f.name)
        if f.name in present
        else pa.chunked_array([pa.repeat(filled[f.name], table.num_rows)], f.type)
        if f.name in filled
        else pa.chunked_array([make_int64_array(np.full(table.num_rows, defaults[f.name], np.int64))])
        for f in schema.arrow
    ]
    return pa.Table.from_arrays(columns, schema=schema.arrow)


def _check_default(name: str, value: Any, low: int, high: int) -> None:
    """Raise InvalidUpdate unless a default is an integer in range."""
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high):
        raise InvalidUpdate(f"{value!r} for {name} of every update is not allowed: give an int from {low} to {high}")


def _make_misfit_error(names_given: list[str], expected: list[str], schema: CollectionSchema) -> SchemaMismatch:
    """Return the error for a table with missing, unknown or repeated columns."""
    present, expected_names = frozenset(names_given), frozenset(expected)
    problems = [f"{n!r} ({schema.arrow.field(n).type}) is missing" for n in expected if n not in present]
    missing = [n for n in expected if n not in present]
    problems += [f"{n!r} is unexpected{did_you_mean(n, missing)}" for n in names_given if n not in expected_names]
    problems += [f"{n!r} is there {count} times" for n, count in Counter(names_given).items() if count > 1]
    named = expected_names - ({TIME, DIFF} - {*missing})  # Optional columns are left out.
    listed = [f"{f.name}: {f.type}" for f in schema.arrow if f.name in named or f.name in schema.names]
    advice = "Add, drop or rename columns to match, or change those of the collection with evolve()."
    if missing == [TIME, DIFF] and len(problems) == 2:
        advice = "Plain rows, which have neither, are written at one time: give time=…."
    return SchemaMismatch(
        f"the columns do not fit the collection: {_join_names(problems, '; ')}. Its columns are "
        f"{_join_names(listed, ', ')}, in any order. {advice}"
    )


def _join_names(items: list[str], between: str) -> str:
    """Join names for a message, truncated to a readable number."""
    more = [f"and {len(items) - _TOLD_MAX} more"] if len(items) > _TOLD_MAX else []
    return between.join([*items[:_TOLD_MAX], *more])


@dataclass(frozen=True, slots=True)
class Stamp:
    """The time and diff to add to rows that have none.

    Attributes:
        time: of all rows, or the name of the column with the time of each. That column is kept if the collection has
            one of that name, and dropped otherwise. None for the time of the commit; until then it is 0.
        diff: of all rows; None is 1, unless there is a column `_diff`.
    """

    time: int | str | None
    diff: int | None = None

    def __post_init__(self) -> None:
        diff = 1 if self.diff is None else self.diff
        if isinstance(diff, np.integer):
            diff = int(diff)
            object.__setattr__(self, "diff", diff)
        if isinstance(diff, bool) or not isinstance(diff, int) or not diff or not -(2**63) <= diff < 2**63:
            raise InvalidUpdate(f"diff={diff!r} is not a change: give 1 to insert the rows, -1 to retract them")


def add_times(data: Any, schema: CollectionSchema, stamp: Stamp) -> Any:
    """Return plain rows as updates, with times and diffs from a stamp."""
    data = open_stream(data)
    if isinstance(data, TableStream):
        tables = data.tables
        return TableStream(lambda _: (_add_times(table, stamp, schema) for table in tables(schema)))
    table = to_table(data, schema)
    if table is not None:
        return _add_times(table, stamp, schema)
    if isinstance(stamp.time, str):
        raise SchemaMismatch(
            f"time={stamp.time!r} names a column, and these rows are not a table: give dicts or a frame, or "
            "((key, value), time, diff) tuples without time="
        )
    if not isinstance(data, Iterable) or isinstance(data, (str, bytes)):
        raise InvalidUpdate(
            f"the rows are {shorten(data)} ({type(data).__name__}): give (key, value) tuples, dicts, a table or a frame"
        )
    return [*zip(data, repeat(stamp.time or 0), repeat(1 if stamp.diff is None else stamp.diff))]


def to_plain_rows(data: Any, schema: CollectionSchema) -> tuple[Any, bool]:
    """Return data for `to_updates` or `add_times`, and whether times are missing.

    For a stream or an iterator, the first element decides, and is then put back. Empty data counts as plain rows.
    """
    if type(data) is list and data and type(data[0]) is tuple:
        return data, len(data[0]) == 2
    data = open_stream(data)
    if isinstance(data, TableStream):
        pieces = data.tables(schema)
        first = next(pieces, None)
        if first is None:
            return [], True
        return TableStream(lambda _: chain((first,), pieces)), TIME not in first.column_names
    if (table := to_table(data, schema)) is not None:
        return table, TIME not in table.column_names
    if not isinstance(data, Iterable) or isinstance(data, (str, bytes, bytearray, Mapping)):
        return data, False
    values = iter(data)
    first_rows = [*islice(values, 1)]
    is_plain = not first_rows or (isinstance(first_rows[0], (tuple, list)) and len(first_rows[0]) == 2)
    return chain(first_rows, values), is_plain


def _add_times(table: pa.Table, stamp: Stamp, schema: CollectionSchema) -> pa.Table:
    """Return plain rows with columns of times and diffs."""
    for name, is_set in ((TIME, True), (DIFF, stamp.diff is not None)):
        if is_set and name in table.column_names:
            value = getattr(stamp, name[1:])
            raise SchemaMismatch(
                f"the rows have a column {name!r}, and {name[1:]}={value!r} is given for all of them, too: drop the "
                "column; to add updates with times and diffs of their own, use write without time="
            )
    if DIFF not in table.column_names:
        table = table.append_column(DIFF, _fill_column(table, 1 if stamp.diff is None else stamp.diff))
    if not isinstance(stamp.time, str):
        return table.append_column(TIME, _fill_column(table, stamp.time or 0))
    if stamp.time not in table.column_names:
        hint = did_you_mean(stamp.time, table.column_names)
        raise SchemaMismatch(
            f"time={stamp.time!r} is not a column of the rows{hint}; they have {table.column_names}. A moment as text "
            "begins with its day, such as 2026-11-21T12:00:00Z."
        )
    table = table.append_column(TIME, table[stamp.time])
    return table if stamp.time in schema.names else table.drop_columns([stamp.time])


def _fill_column(table: pa.Table, value: int) -> pa.ChunkedArray:
    """Return a column with one value in all rows."""
    return pa.chunked_array([np.full(table.num_rows, value, np.int64)])


def set_time(table: pa.Table, time: int, schema: CollectionSchema) -> pa.Table:
    """Return rows with `_diff` as updates at one time."""
    times = pa.array(np.full(len(table), time, np.int64))
    columns = [*(table[name] for name in schema.names), times, table["_diff"]]
    return pa.Table.from_arrays(columns, schema=schema.arrow)
