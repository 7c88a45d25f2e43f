"""The functions of translated queries, `Call("sql.name", …)`, with DuckDB's meaning.

These differ from the functions of programs: there `/ 0` is NULL, here infinite; here NaN equals itself, decimals are
exact, and casts round. Each has one option, the type of its result. `case`, `and` and `or` evaluate the next argument
only for the records that need it, as SQL does: so a guarded branch does not raise.

Arrow and numpy compute functions that nearly every query has, or that plans need, independently of DuckDB's version.
DuckDB computes all others, as `Call("sql.duckdb", (text, column, …))`: functions of texts, moments, lists, structs,
maps, JSON and time zones, casts of texts, and operations on intervals. The text is an expression of DuckDB's SQL with
the columns `$1`, `$2`, and so on; the plan of a view stores it with all types written out. So one mechanism covers all
functions that depend on their arguments alone.

DuckDB runs in memory, by one thread, in UTC, without files, settings or extensions of the user. Its functions may
differ from one minor version to the next, so only the DuckDB version that creates views computes them. Each thread
keeps its last expressions bound to their columns. Cost: about 0.4 ms for each call, and less than 0.1 µs for each row.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from threading import get_ident
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from persist.codecs.types.calculator import get_calculator, is_supported_version
from persist.core.errors import InvalidUsage
from persist.core.expression import sql_numbers as numbers
from persist.core.expression.patterns import match_like_pattern
from persist.core.expression.python_functions import call_python_function
from persist.core.expression.sql_numbers import normalize_for_order
from persist.core.expression.term import INTERVAL

VALUE_BYTES_MAX = 16 << 20
_QUOTED = re.compile("""'(?:[^']|'')*'|"(?:[^"]|"")*\"""")
EXPRESSIONS_KEPT = 64  # For all threads together.


DuckDBCall = tuple[str, Sequence[Any], pa.DataType]  # Text, columns, type.


def compute_by_duckdb(text: str, *arguments: Any) -> pa.Array:
    """Compute an SQL expression over columns; the last argument is the result's type."""
    *columns, kind = arguments
    return compute_together([(text, columns or [pa.nulls(1, pa.int8())], kind)])[0]  # Constants have one value.


def compute_together(calls: Sequence[DuckDBCall]) -> list[pa.Array]:
    """Compute several SQL expressions over columns of one length in one query."""
    check_duckdb_version()
    import duckdb

    columns, numbers_of = [], {}
    texts = []
    for text, arguments, _ in calls:
        for column in arguments:
            if id(column) not in numbers_of:
                columns.append(column)
                numbers_of[id(column)] = len(columns)
        names = tuple((numbers_of[id(column)], column.type == INTERVAL) for column in arguments)
        texts.append(_renumber(text, names))
    table = pa.table({f"${number}": column for number, column in enumerate(columns, 1)})
    are_intervals = tuple(kind == INTERVAL for _, _, kind in calls)
    try:
        computed = _bind(tuple(texts), are_intervals, table.schema, get_ident()).compute(table)
    except duckdb.Error as error:
        raise ValueError(str(error).split("\n")[0]) from error
    return [_check_result(column, kind) for column, (_, _, kind) in zip(computed.columns, calls, strict=True)]


@lru_cache(1024)
def _renumber(text: str, columns: tuple[tuple[int, bool], ...]) -> str:
    """Renumber the columns `$1`, `$2` … of an expression; leave its constants as they are.

    `columns`: the number of each, and whether it is of intervals, which are structs in Arrow.
    """
    names = {}
    for old, (new, is_interval) in enumerate(columns, 1):
        months, days, micros = (f'"${new}"."{field.name}"' for field in INTERVAL)
        rebuilt = f"(to_months({months}) + to_days({days}) + to_microseconds({micros}))"
        names[f'"${old}"'] = rebuilt if is_interval else f'"${new}"'
    return _replace_quoted(text, names)


def fill_in_columns(text: str, columns: Sequence[str]) -> str:
    """Replace `$1`, `$2` … of an SQL expression by columns' texts."""
    return _replace_quoted(text, {f'"${number}"': column for number, column in enumerate(columns, 1)})


def _replace_quoted(text: str, names: Mapping[str, str]) -> str:
    """Replace quoted names in SQL, but nothing inside its text literals."""
    return _QUOTED.sub(lambda match: names.get(match[0], match[0]), text)


def _check_result(result: Any, kind: pa.DataType) -> pa.Array:
    """Return DuckDB's result as an array; raise an error for a wrong type."""
    array = result.combine_chunks() if isinstance(result, pa.ChunkedArray) else result
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    if pa.types.is_string(array.type) or pa.types.is_binary(array.type):
        most = pc.max(pc.binary_length(array)).as_py()
        if most is not None and most > VALUE_BYTES_MAX:
            raise ValueError(f"the result has a value of {most:,} bytes, and at most {VALUE_BYTES_MAX:,} are allowed")
    return array if array.type.equals(kind, check_metadata=True) else array.cast(kind)


def check_duckdb_version() -> None:
    """Raise InvalidUsage unless the DuckDB version that creates views is installed."""
    try:
        import duckdb
    except ImportError as error:
        raise InvalidUsage(
            "this view has functions that DuckDB computes, and DuckDB is not installed: pip install 'duckdb>=2.0,<2.1'"
        ) from error
    if not is_supported_version(duckdb.__version__):
        raise InvalidUsage(
            f"this view has functions that DuckDB 2.0 computes, and {duckdb.__version__} is installed: "
            "pip install 'duckdb>=2.0,<2.1'"
        )


class _Given:
    """The input of a prepared DuckDB query; each computation sets another table."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.table.__arrow_c_stream__(requested_schema)


class _Bound:
    """SQL expressions bound to column types: binding costs more than computing few rows."""

    def __init__(self, texts: Sequence[str], are_intervals: Sequence[bool], schema: pa.Schema) -> None:
        self._none = schema.empty_table()
        self._given = _Given(self._none)
        projection = ", ".join(f"{text} AS x{number}" for number, text in enumerate(texts))
        self._values = get_calculator().cursor().from_arrow(self._given).project(projection)
        if any(are_intervals):
            names = (f"x{number}" for number in range(len(texts)))
            projection = ", ".join(
                f"{_make_interval_sql(name)} AS {name}" if is_interval else name
                for name, is_interval in zip(names, are_intervals, strict=True)
            )
            self._values = self._values.project(projection)

    def compute(self, table: pa.Table) -> pa.Table:
        """Return the values for the rows of a table. Only one thread may call it at a time."""
        self._given.table = table
        try:
            return self._values.to_arrow_table()
        finally:
            self._given.table = self._none  # A cached expression must not keep rows.


def _make_interval_sql(name: str) -> str:
    """Return SQL that turns a column of intervals into structs for Arrow."""
    months, days, micros = (field.name for field in INTERVAL)
    return f"""CASE WHEN {name} IS NOT NULL THEN {{
        '{months}': CAST(12 * date_part('year', {name}) + date_part('month', {name}) AS INTEGER),
        '{days}': CAST(date_part('day', {name}) AS INTEGER),
        '{micros}': 60000000 * (60 * date_part('hour', {name}) + date_part('minute', {name}))
            + date_part('microsecond', {name})
    }} END"""


@lru_cache(EXPRESSIONS_KEPT)
def _bind(texts: tuple[str, ...], are_intervals: tuple[bool, ...], schema: pa.Schema, thread: int) -> _Bound:
    """Return bound SQL expressions, from a cache for each thread."""
    return _Bound(texts, are_intervals, schema)


_PARTS = ("year", "quarter", "month", "day", "hour", "minute", "second")


def _make_comparison(function: Callable[..., pa.Array], sign: str) -> Callable[..., pa.Array]:
    """Return a comparison of columns; DuckDB compares lists, structs and maps."""

    def compare(one: pa.Array, other: pa.Array, kind: pa.DataType = BOOLEAN) -> pa.Array:
        if pat.is_nested(one.type):
            return compute_by_duckdb(f'"$1" {sign} "$2"', one, other, kind)
        return function(normalize_for_order(one), normalize_for_order(other))

    return compare


BOOLEAN = pa.bool_()
_equal = _make_comparison(pc.equal, "=")


def _is_same(one: pa.Array, other: pa.Array) -> pa.Array:
    """Return IS NOT DISTINCT FROM: NULL equals NULL."""
    both_null = pc.and_(pc.is_null(one), pc.is_null(other))
    return pc.or_(both_null, pc.fill_null(pc.equal(one, other), False))


_not_distinct_from = _make_comparison(_is_same, "IS NOT DISTINCT FROM")


def _differs(one: pa.Array, other: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return IS DISTINCT FROM: NULL equals NULL."""
    return pc.invert(_not_distinct_from(one, other))


def _is_member(value: pa.Array, *others: pa.Array) -> pa.Array:
    """Return whether a value is among others; NULL as in SQL."""
    *candidates, _ = others
    matches = _equal(value, candidates[0])
    for candidate in candidates[1:]:
        matches = pc.or_kleene(matches, _equal(value, candidate))
    return matches


def _make_arithmetic(sign: str, function: Callable[..., pa.Array]) -> Callable[..., pa.Array]:
    """Return the SQL operator `sign`; DuckDB computes it for times and intervals."""

    def apply(*arguments: Any) -> pa.Array:
        """Compute with DuckDB for times and intervals, otherwise with numbers."""
        *values, kind = arguments
        kinds = [*(value.type for value in values), kind]
        if INTERVAL in kinds or any(map(pat.is_temporal, kinds)):
            text = f" {sign} ".join(f'"${at}"' for at in range(1, len(values) + 1))
            return compute_by_duckdb(text if len(values) > 1 else f"{sign} {text}", *values, kind)
        if len(values) == 1:
            return numbers.negate(values[0], kind) if sign == "-" else values[0]
        return function(*values, kind)

    return apply


def _coalesce(*arguments: Any) -> pa.Array:
    *values, kind = arguments
    return pc.coalesce(*values).cast(kind)


def _nullif(one: pa.Array, other: pa.Array, kind: pa.DataType) -> pa.Array:
    same = pc.fill_null(_equal(one, other), False)
    return pc.if_else(same, pa.scalar(None, one.type), one).cast(kind)


def _make_time_bound(*, after: bool) -> Callable[..., pa.Array]:
    """Return the function that computes the first time at or after moments.

    The function takes timestamps or dates, and a unit "s", "ms", "us" or "ns"; or, with the unit "", times as numbers.
    """

    def apply(value: pa.Array, unit: pa.Array, kind: pa.DataType) -> pa.Array:
        """Return the bounds of a column of moments in a unit."""
        if not len(value):
            return pa.array([], kind)
        unit = unit[0].as_py()
        mask = value.is_null().to_numpy(zero_copy_only=False) if value.null_count else None
        if not unit:
            times = value.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        elif unit == "ns":
            limit = np.iinfo(np.int64).max // 1000
            times = np.clip(_to_micros(value), -limit, limit) * 1000
        else:
            size = {"s": 1_000_000, "ms": 1_000, "us": 1}[unit]
            micros = _to_micros(value)
            times = micros // size
            if not after:
                times = times + (micros % size != 0)
        if after:
            times = np.minimum(times, np.iinfo(np.int64).max - 1) + 1
        return pa.array(times, mask=mask)

    return apply


def _to_micros(value: pa.Array) -> Any:
    """Return dates or timestamps as microseconds since 1970, int64[n], rounded down; NULL as 0."""
    if pat.is_timestamp(value.type) and value.type.unit == "ns":
        return value.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False) // 1000
    stamps = pc.cast(value, pa.timestamp("us", value.type.tz) if pat.is_timestamp(value.type) else pa.timestamp("us"))
    return pc.cast(stamps, pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)


def _cast_values(value: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast values as DuckDB does."""
    bare = numbers.drop_type_zone(kind)
    if value.type != kind and bare in numbers.DUCKDB_MOMENTS and numbers.has_extreme_moments(value):
        moments = compute_by_duckdb(f'CAST("$1" AS {numbers.DUCKDB_MOMENTS[bare]})', numbers.drop_zone(value), bare)
        return moments.cast(kind)
    return numbers.cast_values(value, kind)


def _make_part(unit: str) -> Callable[..., pa.Array]:
    """Return the function that extracts a unit, such as the year."""

    def part(value: pa.Array, kind: pa.DataType) -> pa.Array:
        if numbers.has_extreme_moments(value):
            return compute_by_duckdb(f'"{unit}"("$1")', numbers.drop_zone(value), pa.int64()).cast(kind)
        if pat.is_date(value.type) and unit in ("hour", "minute", "second"):
            value = value.cast(pa.timestamp("us"))
        return getattr(pc, unit)(value).cast(kind)

    return part


def _make_pattern_function(function: Callable[[pa.Array, str], pa.Array]) -> Callable[..., pa.Array]:
    """Wrap a function of texts and a pattern, which must be constant."""

    def apply(text: pa.Array, pattern: pa.Array, kind: pa.DataType) -> pa.Array:
        if not len(text) or not pattern[0].is_valid:
            return pa.nulls(len(text), kind)
        return function(text, pattern[0].as_py())

    return apply


def _make_like(is_like: bool, ignore_case: bool) -> Callable[..., pa.Array]:
    """Return LIKE or ILIKE without an escape: a backslash in a pattern is an ordinary character.

    As in DuckDB, ILIKE compares lower-case letters: U+017F (long s) is not `s`, although both are S in upper case.
    """

    def like(text: pa.Array, pattern: str) -> pa.Array:
        if ignore_case:
            text, pattern = pc.utf8_lower(text), pc.utf8_lower(pattern).as_py()
        matches = match_like_pattern(text, pattern)
        return matches if is_like else pc.invert(matches)

    return _make_pattern_function(like)


def _make_logical(function: Callable[..., pa.Array]) -> Callable[..., pa.Array]:
    """Return an SQL function that combines any number of conditions."""

    def apply(*arguments: Any) -> pa.Array:
        """Combine the arguments from the left."""
        *values, _ = arguments
        truths = values[0]
        for value in values[1:]:
            truths = function(truths, value)
        return truths

    return apply


def _ignore_kind(function: Callable[..., Any]) -> Callable[..., pa.Array]:
    """Wrap a function so that it takes a result type, unused."""
    return lambda value, kind: function(value)


FUNCTIONS: dict[str, Callable[..., pa.Array]] = {
    "add": _make_arithmetic("+", numbers.add),
    "subtract": _make_arithmetic("-", numbers.subtract),
    "multiply": _make_arithmetic("*", numbers.multiply),
    "divide": numbers.divide,
    "divide_whole": numbers.divide_whole,
    "remainder": numbers.compute_remainder,
    "lower_limb": lambda value, kind: numbers.extract_limb(value, 0),
    "upper_limb": lambda value, kind: numbers.extract_limb(value, 1),
    "joined_limbs": numbers.join_decimal_limbs,
    "mean_of_limbs": lambda lower, upper, count, scale, kind: numbers.compute_mean(lower, upper, count, scale),
    "round_even": lambda value, kind: pc.round(value, round_mode="half_to_even"),
    "equal": _equal,
    "not_equal": _make_comparison(pc.not_equal, "<>"),
    "less": _make_comparison(pc.less, "<"),
    "less_equal": _make_comparison(pc.less_equal, "<="),
    "greater": _make_comparison(pc.greater, ">"),
    "greater_equal": _make_comparison(pc.greater_equal, ">="),
    "distinct_from": _differs,
    "not_distinct_from": _not_distinct_from,
    "in": _is_member,
    "not_in": lambda value, *others: pc.invert(_is_member(value, *others)),
    "and": _make_logical(pc.and_kleene),
    "or": _make_logical(pc.or_kleene),
    "not": _ignore_kind(pc.invert),
    "is_null": _ignore_kind(pc.is_null),
    "is_not_null": _ignore_kind(pc.is_valid),
    "coalesce": _coalesce,
    "nullif": _nullif,
    # Types only; `persist.core.expression.evaluation` does the work, where there are records.
    "case": lambda *arguments: pa.nulls(0, arguments[-1]),
    "error": lambda text, kind: pa.nulls(0, kind),
    "cast": _cast_values,
    "like": _make_like(True, False),
    "not_like": _make_like(False, False),
    "ilike": _make_like(True, True),
    "not_ilike": _make_like(False, True),
    "prefix": _make_pattern_function(pc.starts_with),
    "suffix": _make_pattern_function(pc.ends_with),
    "contains": _make_pattern_function(pc.match_substring),
    "lower": _ignore_kind(pc.utf8_lower),
    "upper": _ignore_kind(pc.utf8_upper),
    "length": _ignore_kind(pc.utf8_length),
    **{name: _make_part(name) for name in _PARTS},
    "time_from": _make_time_bound(after=False),
    "time_after": _make_time_bound(after=True),
    # Intervals as the structs that collections have.
    "parts_of_interval": lambda value, kind: pa.StructArray.from_arrays(
        value.flatten(), fields=list(kind), mask=value.is_null()
    ),
    "duckdb": compute_by_duckdb,
    "python": call_python_function,
}
_NAMED = {"duckdb": 1, "python": 2}  # The number of leading constant arguments: the text, or name and version.


def make_function(name: str) -> Callable[..., Any]:
    """Return the SQL function of a name, which takes arrays and scalars.

    Scalars are repeated to the length of the arrays. If all arguments are scalars, the result is one.
    An argument that is wrong for all records also raises on empty columns, so it is found when the type of an
    expression is inferred.
    """
    function = FUNCTIONS[name]

    def call(*arguments: Any) -> Any:
        """Repeat scalars to columns, call the function, and return a scalar if all arguments were scalars."""
        *values, kind = arguments
        first = [values.pop(0).as_py() for _ in range(_NAMED.get(name, 0))]
        rows = next((len(value) for value in values if not isinstance(value, pa.Scalar)), None)
        arrays = [_repeat_scalar(value, 1 if rows is None else rows) for value in values]
        arrays = [array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array for array in arrays]
        results = function(*first, *arrays, kind)
        if name in ("case", "error"):
            return results
        if results.type != kind:
            results = results.cast(kind)
        return results[0] if rows is None else results

    return call


def _repeat_scalar(value: Any, rows: int) -> Any:
    if not isinstance(value, pa.Scalar):
        return value
    return pa.repeat(value, rows) if rows else pa.array([], value.type)  # Nested values are repeated once or more.


SQL_FUNCTIONS = {f"sql.{name}": make_function(name) for name in FUNCTIONS}
