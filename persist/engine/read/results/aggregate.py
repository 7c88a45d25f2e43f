"""Counts and sums over a snapshot, group by group, straight from updates.

Counts and sums are linear in the diffs: `count = sum(diff)`, `sum(v) = sum(v * diff)`. So nothing is consolidated: each
table of updates becomes a *partial*, one row for each of its groups, and partials of equal groups are added up. Memory:
one decoded table, and a few times the number of groups.

Grouping columns are decoded to dictionaries if files have them. Rows are then added up by dictionary numbers
(`_number_groups`), without comparing a text for each row.

Whole numbers and counts are exact: a partial has such a sum as limbs (`persist.codecs.order.sums`). Their number
follows from the bound `rows * max|v| * max|diff|` of each added table. Mostly one limb suffices, an int64 column.

Floats are added as float64, so values that were inserted and retracted may leave rounding errors. If that can happen,
the sum of `|v * diff|` is computed, too; if it shows that the result may be inexact, the sums are computed again from
consolidated records.

NaN and the infinities are not added up, because a retracted infinity would leave NaN (`inf - inf`). The diffs of each
of them are summed instead, exactly. So a value that is retracted as often as it was inserted leaves nothing, whichever
records of the group have it and in whatever pieces they are read.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from persist.blob.errors import InvalidUsage
from persist.codecs.errors import DiffOverflow, SchemaMismatch
from persist.codecs.order.ordering import combine_chunks, make_order_keys, sort_indices
from persist.codecs.order.sums import (
    ROWS_MAX,
    Ints,
    count_limbs,
    find_largest_magnitude,
    from_whole_numbers,
    get_limits,
    join_limbs,
    multiply,
    normalize_limbs,
    split_into_limbs,
    to_whole_numbers,
)
from persist.codecs.part.part import Part
from persist.codecs.types.objects import to_dicts
from persist.codecs.types.schema import CollectionSchema
from persist.engine.read.parts.reader import PartReader
from persist.engine.read.planning.scan import Scan

KINDS = ("sum", "count")
CANCELLED_MAX = 2.0**12  # A float sum that is smaller than its terms by more than this may be mostly rounding errors.
MERGE_ROWS = 1 << 16  # Partials are merged if they have more rows than this, and than twice the last merged one.
_ADDABLE = "integers, floats, decimals and durations"
_ODD = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}  # The floats that are not finite.

Rows: TypeAlias = npt.NDArray[np.int64]
Consolidated: TypeAlias = Callable[[tuple[str, ...]], Iterable[pa.Table]]


@dataclass(frozen=True, slots=True)
class Aggregation:
    """One output: the sum of a column, or a count of its non-NULL values; without a column, a count of all rows."""

    output: str
    column: str | None
    kind: str


@dataclass(frozen=True, slots=True)
class Request:
    """The checked arguments of `Snapshot.aggregate`."""

    group_by: tuple[str, ...]
    aggregations: tuple[Aggregation, ...]

    @classmethod
    def of(cls, schema: CollectionSchema, group_by: Sequence[str], aggregations: Mapping[str, Any]) -> "Request":
        """Check a request.

        Raises:
            SchemaMismatch: a column is unknown, or grouped by twice.
            InvalidUsage: an aggregation is unknown, does not fit its column, or has the name of a group's column.
        """
        groups = schema.check_distinct("group_by", group_by)
        if not isinstance(aggregations, Mapping) or not aggregations:
            raise InvalidUsage(
                f"aggregations={aggregations!r:.80} is not a dict of at least one output: "
                'write for example {"total": ("amount", "sum"), "n": (None, "count")}'
            )
        return cls(groups, tuple(_check_aggregation(schema, groups, name, spec) for name, spec in aggregations.items()))

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns to read."""
        return tuple(dict.fromkeys([*self.group_by, *(a.column for a in self.aggregations if a.column is not None)]))

    @property
    def needed(self) -> tuple[str, ...]:
        """The columns whose values are read, not only their NULLs."""
        summed = {a.column for a in self.aggregations if a.kind == "sum"}
        return tuple(name for name in self.columns if name in self.group_by or name in summed)


def _check_aggregation(schema: CollectionSchema, groups: tuple[str, ...], output: Any, spec: Any) -> Aggregation:
    """Check the request for one output; return it as an aggregation."""
    if not isinstance(output, str) or not output:
        raise InvalidUsage(f"{output!r:.80} is not a name for an output: give text that is not empty")
    if output in groups:
        raise InvalidUsage(f"the output {output!r} has the name of a column that is grouped by: choose another one")
    if not isinstance(spec, (tuple, list)) or len(spec) != 2 or spec[1] not in KINDS:
        raise InvalidUsage(
            f'the output {output!r} is {spec!r:.80}: give (column, "sum"), (column, "count") or (None, "count")'
        )
    column, kind = spec
    if column is None and kind == "sum":
        raise InvalidUsage(f"the output {output!r} is a sum of no column: name the column to add up")
    if column is not None and column not in schema.names:
        raise SchemaMismatch(
            f"the output {output!r} is of column {column!r:.80}, which this collection does not have; "
            f"it has {list(schema.names)}"
        )
    if kind == "sum" and not _is_addable(type_ := schema.arrow.field(column).type):
        raise InvalidUsage(
            f"the output {output!r} is the sum of column {column!r} of type {type_}: only {_ADDABLE} can be added up"
        )
    return Aggregation(output, column, kind)


def _is_addable(type_: pa.DataType) -> bool:
    return bool(pat.is_integer(type_) or pat.is_floating(type_) or pat.is_decimal(type_) or pat.is_duration(type_))


def get_sum_type(type_: pa.DataType) -> pa.DataType:
    """Return the type of a sum of values of a type: the widest of its kind."""
    if pat.is_decimal128(type_):
        return pa.decimal128(38, type_.scale)
    if pat.is_decimal256(type_):
        return pa.decimal256(76, type_.scale)
    if pat.is_floating(type_):
        return pa.float64()
    return type_ if pat.is_duration(type_) or pat.is_uint64(type_) else pa.int64()


def aggregate(scan: Scan, request: Request, reader: PartReader, consolidated: Consolidated) -> pa.Table:
    """Compute the result of `Snapshot.aggregate`.

    Args:
        scan: the plan of the snapshot; its columns do not matter.
        consolidated: returns the snapshot's records of some columns, with their multiplicities `_diff`.

    Raises:
        DiffOverflow: a result is outside its type.
        CorruptBlob: a part is missing or damaged.
    """
    if scan.narrow is not None:  # Only consolidated records fit the types of before a column was widened.
        sums = _Sums(scan, request, tracks_size=False)
        for table in consolidated(request.columns):
            sums.add(table, None)
        return sums.merge().result()
    retracts = scan.sign < 0 or any(part.negatives for part in scan.all_parts)
    sums = _Sums(scan, request, tracks_size=retracts)
    for table, diff in _iterate_updates(scan, reader, request):
        sums.add(table, diff)
    groups = sums.merge()
    doubtful = groups.list_doubtful_columns()
    if doubtful:
        again = tuple(a for a in request.aggregations if a.kind == "sum" and a.column in doubtful)
        exact = _Sums(scan, Request(request.group_by, again), tracks_size=False)
        for table in consolidated(exact.request.columns):
            exact.add(table, None)
        groups = groups.with_floats(exact.merge(), doubtful)
    return groups.result()


def _iterate_updates(scan: Scan, reader: PartReader, request: Request) -> Iterator[tuple[pa.Table, int | None]]:
    """Yield tables with `_diff`, or without it and the common diff of all rows.

    A column whose values are only counted is left out if it has no NULL.
    """
    needed = request.needed
    counted = [name for name in request.columns if name not in needed]

    def list_columns(part: Part) -> tuple[str, ...]:
        if all(part.count_nulls(name, scan.schema) == 0 for name in counted):
            return needed
        return request.columns

    sides = ((scan.base, scan.read_base_rows, 1), (scan.parts, scan.updates, scan.sign))
    for parts, read, sign in sides:
        for columns in dict.fromkeys((needed, request.columns)):
            some = [part for part in parts if list_columns(part) == columns]
            plain = [part for part in some if part.is_plain and columns]
            with_diffs = [part for part in some if not (part.is_plain and columns)]
            for table in read(reader, columns, plain, coded=request.group_by):
                yield table, sign
            for table in read(reader, [*columns, "_diff"], with_diffs, coded=request.group_by):
                yield table, None


class _Sums:
    """The partial sums by group of the tables added so far, with bounds of their size.

    Columns of a partial: `g<i>`, the grouping columns; `<measure>.<limb>`, the limbs of each *measure*; `net:<column>`
    and perhaps `size:<column>` for each float column that is added up. Measures are `n`, the sum of diffs;
    `n:<column>`, the sum over rows where the column is not NULL; `sum:<column>`; and `nan:<column>`, `inf:<column>` and
    `-inf:<column>`, the sums of the diffs of such values, once a float column had any.
    """

    def __init__(self, scan: Scan, request: Request, *, tracks_size: bool) -> None:
        self.request = request
        self.schema = scan.result_schema
        self.tracks_size = tracks_size
        summed = {a.column for a in request.aggregations if a.kind == "sum" and a.column is not None}
        is_float = {name: pat.is_floating(scan.result_schema.arrow.field(name).type) for name in summed}
        self.counted = sorted({a.column for a in request.aggregations if a.column is not None})
        self.added = sorted(name for name in summed if not is_float[name])
        self.floats = sorted(name for name in summed if is_float[name])
        measures = ["n", *(f"n:{name}" for name in self.counted), *(f"sum:{name}" for name in self.added)]
        self.bounds = dict.fromkeys(measures, 0)
        self._partials: list[pa.Table] = []
        self._merge_rows = MERGE_ROWS
        names = [*request.columns, "_diff"]
        self.add(pa.schema([scan.result_schema.arrow.field(name) for name in names]).empty_table(), None)

    def add(self, table: pa.Table, diff: int | None) -> None:
        """Add a table of updates with a common diff, or with a column `_diff`."""
        assert len(table) <= ROWS_MAX, "limbs would overflow"
        diffs = np.full(len(table), diff, np.int64) if diff is not None else table["_diff"].to_numpy()
        largest = find_largest_magnitude(diffs)
        columns: dict[str, Any] = {}
        self._put_limbs("n", diffs, largest, columns)
        for name in self.counted:
            has_nulls = name in table.column_names and table[name].null_count
            valid = diffs * table[name].is_valid().to_numpy() if has_nulls else diffs
            self._put_limbs(f"n:{name}", valid, largest, columns)
        for name in self.added:
            values = to_whole_numbers(table[name])
            terms = (values, find_largest_magnitude(values)) if diff == 1 else multiply(values, diffs)
            self._put_limbs(f"sum:{name}", *terms, columns)
        for name in self.floats:
            terms = self._split_non_finite(name, table[name].cast(pa.float64()), diffs, largest, columns)
            if diff != 1:
                terms = pc.multiply(terms, pa.array(diffs.astype(np.float64)))
            columns[f"net:{name}"] = terms
            if self.tracks_size:
                columns[f"size:{name}"] = pc.abs(terms)
        self._partials.append(
            self._normalize_limbs(_sum_groups([table[name] for name in self.request.group_by], columns))
        )
        if sum(map(len, self._partials)) > self._merge_rows:
            self._merge_partials()

    def merge(self) -> "_Groups":
        """Return the sums of everything added."""
        self._merge_partials()
        return _Groups(self, self._partials[0])

    def _split_non_finite(
        self, name: str, values: pa.ChunkedArray, diffs: Ints, largest: int, columns: dict[str, Any]
    ) -> pa.ChunkedArray:
        """Replace NaN and infinities by NULL; add the sums of their diffs to columns."""
        is_finite = pc.is_finite(values)
        if pc.all(is_finite, min_count=0).as_py():
            return values
        for kind, odd in _ODD.items():
            is_odd = pc.is_nan(values) if math.isnan(odd) else pc.equal(values, odd)
            self._put_limbs(f"{kind}:{name}", diffs * pc.fill_null(is_odd, False).to_numpy(), largest, columns)
        return pc.if_else(is_finite, values, pa.scalar(None, pa.float64()))

    def _put_limbs(self, measure: str, terms: Ints, largest: int, columns: dict[str, Any]) -> None:
        """Split terms of at most this magnitude into limbs, and add these to columns."""
        self.bounds[measure] = self.bounds.get(measure, 0) + len(terms) * largest
        for at, limb in enumerate(split_into_limbs(terms, count_limbs(self.bounds[measure]))):
            columns[f"{measure}.{at}"] = limb

    def _merge_partials(self) -> None:
        """Merge all partial sums into one."""
        if len(self._partials) == 1:
            return
        table = pa.concat_tables([self._widen_limbs(partial) for partial in self._partials])
        count = len(self.request.group_by)
        measured = {name: table[name] for name in table.column_names[count:]}
        self._partials = [self._normalize_limbs(_sum_groups(table.columns[:count], measured))]
        self._merge_rows = max(MERGE_ROWS, 2 * len(self._partials[0]))

    def _widen_limbs(self, partial: pa.Table) -> pa.Table:
        """Return a partial with the number of limbs that all partials together need."""
        columns: dict[str, Any] = {f"g{i}": partial[f"g{i}"] for i in range(len(self.request.group_by))}
        for measure, bound in self.bounds.items():
            limbs = _list_limbs(partial, measure) or [np.zeros(len(partial), np.int64)]
            limbs[-1:] = split_into_limbs(limbs[-1], count_limbs(bound) - len(limbs) + 1)
            columns |= {f"{measure}.{at}": limb for at, limb in enumerate(limbs)}
        kinds = ("net", "size") if self.tracks_size else ("net",)
        return pa.table(
            columns | {f"{kind}:{name}": partial[f"{kind}:{name}"] for name in self.floats for kind in kinds}
        )

    def _normalize_limbs(self, partial: pa.Table) -> pa.Table:
        """Carry the limbs of long sums, so that further sums cannot overflow."""
        for measure in self.bounds:
            if len(limbs := _list_limbs(partial, measure)) > 1:
                for at, limb in enumerate(normalize_limbs(limbs)):
                    name = f"{measure}.{at}"
                    partial = partial.set_column(partial.schema.get_field_index(name), name, pa.array(limb))
        return partial


class _Groups:
    """The sums of all groups."""

    def __init__(self, sums: _Sums, partial: pa.Table) -> None:
        self._sums = sums
        self._group_by = sums.request.group_by
        fields = [sums.schema.arrow.field(name) for name in self._group_by]
        keys = pa.Table.from_arrays(partial.columns[: len(fields)], schema=pa.schema(fields))
        if fields:
            order = sort_indices(keys, self._group_by)
            order = order.filter(pa.array(join_limbs(_list_limbs(partial, "n")).take(order.to_numpy()).astype(bool)))
            keys, partial = keys.take(order), partial.take(order)
        self._keys, self._partial = keys, partial
        self._floats = {name: self._partial[f"net:{name}"].to_numpy() for name in sums.floats}

    def list_doubtful_columns(self) -> list[str]:
        """Return the float columns whose sums may be inexact because large terms cancelled."""
        if not self._sums.tracks_size:
            return []
        return [name for name in self._floats if self._is_doubtful(name)]

    def _is_doubtful(self, name: str) -> bool:
        """Return whether cancelled digits make a group's float sum too inexact."""
        net, size = self._floats[name], self._partial[f"size:{name}"].to_numpy()
        with np.errstate(invalid="ignore", over="ignore"):
            return bool((~np.isfinite(size) | (size > CANCELLED_MAX * np.abs(net))).any())

    def with_floats(self, exact: "_Groups", names: Sequence[str]) -> "_Groups":
        """Replace the sums of some float columns by those in `exact`."""
        assert len(self._keys) == len(exact._keys), "consolidation leaves the groups as they are"
        self._floats |= {name: exact._floats[name] for name in names}
        return self

    def result(self) -> pa.Table:
        """Return the requested table."""
        columns: dict[str, Any] = dict(zip(self._group_by, self._keys.columns, strict=True))
        for aggregation in self._sums.request.aggregations:
            columns[aggregation.output] = self._compute_output(aggregation)
        return pa.table(columns)

    def _compute_output(self, output: Aggregation) -> pa.Array:
        """Return the column of one aggregation, for each group."""
        if output.kind == "count":
            counts = self._join_sum("n" if output.column is None else f"n:{output.column}")
            return self._convert_result(counts, pa.int64(), output)
        assert output.column is not None
        counts = self._join_sum(f"n:{output.column}")
        values: Ints
        if output.column in self._floats:
            values = self._add_non_finite(output.column)
            sums = pa.array(values)
        else:
            values = self._join_sum(f"sum:{output.column}")
            sums = self._convert_result(values, get_sum_type(self._sums.schema.arrow.field(output.column).type), output)
        nothing = (counts == 0) & (values == 0)
        return pc.if_else(pa.array(nothing.astype(bool)), pa.scalar(None, sums.type), sums)

    def _add_non_finite(self, name: str) -> Any:
        """Return the sums of a float column, NaN or infinite for groups with such values."""
        finite = self._floats[name]
        if f"nan:{name}" not in self._sums.bounds:
            return finite
        nans, ups, downs = (self._join_sum(f"{kind}:{name}") for kind in _ODD)
        is_up, is_down = (ups > 0) | (downs < 0), (ups < 0) | (downs > 0)
        sums = finite.copy()
        sums[is_up], sums[is_down], sums[(nans != 0) | (is_up & is_down)] = math.inf, -math.inf, math.nan
        return sums

    def _join_sum(self, measure: str) -> Ints:
        """Return the sum of a measure for each group."""
        return join_limbs(_list_limbs(self._partial, measure))

    def _convert_result(self, values: Ints, type_: pa.DataType, output: Aggregation) -> pa.Array:
        """Return whole numbers as an array of that type."""
        least, greatest = get_limits(type_)
        outside = np.flatnonzero((values < least) | (values > greatest))
        if len(outside):
            at = int(outside[0])
            what = output.kind if output.column is None else f"{output.kind} of column {output.column!r}"
            where = f" of the group {to_dicts(self._keys.slice(at, 1))[0]!r:.200}" if self._group_by else ""
            raise DiffOverflow(
                f"the {what}{where} is {values[at]}, outside of {type_} [{least}, {greatest}]. "
                "Group or filter more finely; nothing was wrapped."
            )
        return from_whole_numbers(values, type_)


def _sum_groups(keys: Sequence[pa.ChunkedArray], columns: dict[str, Any]) -> pa.Table:
    """Add up columns over rows with equal keys; without keys the result is one row."""
    # Without NULLs, one array of diffs counts the rows and the values of each column: it is added up once.
    firsts: dict[int, str] = {}
    same_as = {name: firsts.setdefault(id(column), name) for name, column in columns.items()}
    numbers = {name: _get_numbers(columns[name]) for name in firsts.values()}
    with np.errstate(over="ignore", invalid="ignore"):  # A sum of floats may become infinite.
        if not keys:
            return pa.table({name: numbers[first].sum(keepdims=True) for name, first in same_as.items()})
        codes, groups = _number_groups(keys)
        summed = {name: _sum_by_group(codes, len(groups[0]), values) for name, values in numbers.items()}
    groups_by_name = {f"g{i}": values for i, values in enumerate(groups)}
    return pa.table(groups_by_name | {name: summed[first] for name, first in same_as.items()})


def _number_groups(keys: Sequence[pa.ChunkedArray]) -> tuple[Rows, list[pa.Array]]:
    """Return the group number of each row, and the keys of all groups; some groups may have no row."""
    codes, *more_codes = [_encode_values(combine_chunks(key)) for key in keys]
    groups, numbers = [codes.dictionary], codes.indices.to_numpy().astype(np.int64)
    for next_codes in more_codes:
        size = len(next_codes.dictionary)
        # Numbered anew each time, so that no product leaves int64.
        pairs = pa.array(numbers * size + next_codes.indices.to_numpy()).dictionary_encode()
        distinct = pairs.dictionary.to_numpy()
        groups = [values.take(pa.array(distinct // size)) for values in groups]
        groups.append(next_codes.dictionary.take(pa.array(distinct % size)))
        numbers = pairs.indices.to_numpy().astype(np.int64)
    return numbers, groups


def _encode_values(key: pa.Array) -> pa.DictionaryArray:
    """Encode a column as a dictionary without NULL among the numbers; a NULL is a dictionary value."""
    if pat.is_dictionary(key.type):
        coded, values = key, key.dictionary
    else:
        coded = make_order_keys(pa.table({"key": key}), ["key"])[0].dictionary_encode()
        values = coded.dictionary
        if values.type != key.type:
            rows = np.zeros(len(values), np.int64)
            rows[coded.indices.drop_null().to_numpy()] = np.flatnonzero(coded.is_valid())
            values = key.take(pa.array(rows))
    indices = coded.indices
    if indices.null_count:
        indices = indices.fill_null(len(values))
        values = pa.concat_arrays([values, pa.nulls(1, values.type)])
    return pa.DictionaryArray.from_arrays(indices, values, safe=False)


def _get_numbers(column: Any) -> Ints:
    """Return a column of numbers with 0 for NULL."""
    if isinstance(column, np.ndarray):
        return column
    numbers: Ints = (column.fill_null(0) if column.null_count else column).to_numpy()
    return numbers


def _sum_by_group(codes: Rows, count: int, values: Ints) -> Ints:
    sums = np.zeros(count, values.dtype)
    np.add.at(sums, codes, values)
    return sums


def _list_limbs(partial: pa.Table, measure: str) -> list[Ints]:
    """Return the limbs of a measure in a partial, lowest first."""
    limbs: list[Ints] = []
    while (name := f"{measure}.{len(limbs)}") in partial.column_names:
        limbs.append(partial[name].to_numpy())
    return limbs
