"""The plan of a read, as a value.

A `Scan` names parts of a keyframe and of the history. All rows of the keyframe count; updates of the history in an
interval of times are added or subtracted. It also has a slice of the key space, columns and a filter.
`persist.engine.read.planning.snapshot_plan` makes it from the state alone. It can be cut into independent slices:
threads read them here, and tasks in Spark. `persist.engine.read.merging` and `persist.engine.read.following.changes`
turn the updates into results.
"""

import pickle
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from persist.blob.errors import InvalidUsage
from persist.codecs.evolution import cast_columns, find_newest_types
from persist.codecs.order.arrays import make_int64_array
from persist.codecs.part.filters import bind_filter, list_referenced_columns, select_matching_parts
from persist.codecs.part.key_range import KeyRange, assign_parts, load_comparable_keys, split_key_space
from persist.codecs.part.part import Part
from persist.codecs.part.printing import print_filter
from persist.codecs.types.schema import CollectionSchema
from persist.core.expression.documents import register_functions
from persist.engine.read.parts.reader import ALL_KEYS, PartReader, estimate_memory_within

SLICES_MAX = 100_000
TASK_BYTES_MAX = 64 << 20  # Decoded: a task that merges takes about four times that.
TASK_BYTES_MIN = 4 << 20  # Less than this is not worth a task.


@dataclass(frozen=True, slots=True)
class Scan:
    """The plan of a read: rows of `base`, and updates of `parts` in `time_lower <= time < time_upper`, after `filter`.

    Attributes:
        parts: the parts of the history.
        columns: the requested key and value columns, in the requested order.
        filter: an expression over key and value columns, or None.
        keys: the slice of the key space.
        base: parts of a keyframe, which do not overlap in key.
        sign: the factor for diffs of parts: -1 if the keyframe is later than the requested time.
        narrow: the schema of results, if it differs from `schema`. See `with_newest_types`.
    """

    schema: CollectionSchema
    parts: tuple[Part, ...]
    time_lower: int
    time_upper: int
    columns: tuple[str, ...]
    filter: pc.Expression | None = None
    keys: KeyRange = ALL_KEYS
    base: tuple[Part, ...] = ()
    sign: int = 1
    narrow: CollectionSchema | None = None

    def __setstate__(self, state: list[object]) -> None:
        for name, value in zip(self.__slots__, state, strict=True):
            object.__setattr__(self, name, value)
        register_functions(self.filter)

    @property
    def all_parts(self) -> tuple[Part, ...]:
        """The parts of the keyframe, then of the history."""
        return (*self.base, *self.parts)

    @property
    def as_of(self) -> int:
        """The time of the planned snapshot."""
        return self.time_upper - 1 if self.sign > 0 else self.time_lower - 1

    @property
    def memory(self) -> int:
        """The approximate size of all decoded rows, in bytes; rows at other times are included."""
        return self.estimate_memory(self.all_parts)

    def estimate_memory(self, parts: Iterable[Part]) -> int:
        """Estimate the size of all decoded rows of some parts, in bytes."""
        if self.keys.is_all:
            return sum([part.memory for part in parts])
        return sum(estimate_memory_within(part, self.keys, self.schema) for part in parts)

    @property
    def updates_memory(self) -> int:
        """The approximate size of the history's updates, in bytes, if each part is spread evenly in time."""
        return sum(
            estimate_memory_within(part, self.keys, self.schema) * times // (part.time_max + 1 - part.time_min)
            for part in self.parts
            if (times := min(part.time_max + 1, self.time_upper) - max(part.time_min, self.time_lower)) > 0
        )

    def prune(self) -> "Scan":
        """Return this scan without the parts that cannot have matching rows."""
        in_time = [p for p in self.parts if p.time_min < self.time_upper and p.time_max >= self.time_lower]
        base, parts = self._select_matching(self.base), self._select_matching(in_time)
        is_same = len(base) == len(self.base) and len(parts) == len(self.parts)
        return self if is_same else replace(self, base=base, parts=parts)

    def _select_matching(self, parts: Sequence[Part]) -> tuple[Part, ...]:
        """Return the parts that may have rows within keys and filter."""
        if not parts:
            return ()
        remaining = parts if self.keys.is_all else [part for part in parts if self.keys.may_overlap(part, self.schema)]
        if self.filter is not None and remaining:
            # A record is a key and a value, so a record outside of the filter cannot cancel one inside.
            remaining = select_matching_parts(remaining, self.filter, self.schema)
        return tuple(remaining)

    @property
    def result_schema(self) -> CollectionSchema:
        """The schema of results."""
        return self.schema if self.narrow is None else self.narrow

    def cast_to_result(self, table: pa.Table) -> pa.Table:
        """Cast consolidated rows to the types of `result_schema`."""
        return table if self.narrow is None else cast_columns(table, self.columns, self.narrow)

    def with_newest_types(self) -> "Scan":
        """Return a scan that reads with the newest types of columns, and returns the types of this schema.

        So a value that does not fit the older type is an error only if the result contains it.
        """
        wide = find_newest_types(self.schema)
        if wide is self.schema or (self.filter is not None and not _can_filter(self.filter, wide)):
            return self
        return replace(self, schema=wide, narrow=self.schema)

    def empty(self, names: Sequence[str]) -> pa.Table:
        """Return a table of those columns and no rows."""
        return pa.Table.from_batches([], pa.schema([self.schema.arrow.field(name) for name in names]))

    def slices(self, count: int) -> "list[Scan]":
        """Return at most count scans of about equal size, in key order, that together are this one."""
        whole = self.prune()
        sampled = [load_comparable_keys(part, self.schema) for part in whole.all_parts]  # Once: there may be very many.
        ranges = split_key_space(whole.all_parts, self.schema, count, self.keys, sampled)
        base = assign_parts(whole.base, self.schema, ranges, sampled[: len(whole.base)])
        parts = assign_parts(whole.parts, self.schema, ranges, sampled[len(whole.base) :])
        return [
            replace(whole, keys=keys, base=tuple(some_base), parts=tuple(some))
            for keys, some_base, some in zip(ranges, base, parts, strict=True)
        ]

    def choose_task_count(self, parallel: int) -> int:
        """Return a number of slices that keeps so many workers busy, without tiny slices."""
        by_size = -(-self.memory // TASK_BYTES_MAX)
        worth = -(-self.memory // TASK_BYTES_MIN)
        rounded = -(-by_size // parallel) * parallel  # Whole rounds: no worker is idle in the last one.
        return max(1, min(rounded, worth))

    def cut_into_slices(self, bytes_max: int, estimate: "Callable[[Scan], int] | None" = None) -> "list[Scan]":
        """Return slices of about bytes_max each, at most twice that, in key order.

        They may be larger if parts have too few sampled keys, of which a part has up to 33.

        Args:
            bytes_max: the size of the part of a slice that is in memory at a time.
            estimate: returns that size of a scan; without it, the size of all decoded rows.
        """
        estimate = estimate or (lambda scan: scan.memory)
        slices: list[Scan] = []
        waiting = [(estimate(self), self)]
        while waiting:
            size, scan = waiting.pop()
            finer = scan.slices(min(-(-size // bytes_max), SLICES_MAX)) if size > 2 * bytes_max else []
            sizes = [*map(estimate, finer)]
            if not finer or max(sizes) > 0.8 * size:
                slices.append(scan)  # It is small, or no more keys are known between the bounds that there are.
            else:
                waiting += [*zip(sizes, finer, strict=True)][::-1]
        return slices

    def time_slices(self, bytes_max: int) -> "list[Scan]":
        """Return scans of at most about bytes_max of updates each that together are this one, in time order.

        The sizes are estimates: the updates of a part count as spread evenly over its times. A part is read, piece by
        piece, for each slice in which it has updates. A single time with more updates is a slice by itself.
        """
        changes: defaultdict[int, Fraction] = defaultdict(Fraction)  # By time: the change of the bytes for each time.
        for part in self.parts:
            density = Fraction(part.memory, part.time_max + 1 - part.time_min)
            changes[max(part.time_min, self.time_lower)] += density
            changes[min(part.time_max + 1, self.time_upper)] -= density
        cuts, passed, density = [self.time_lower], Fraction(0), Fraction(0)
        for start, end in pairwise(sorted(changes)):
            density += changes[start]
            while density and passed + density * (end - start) > bytes_max:
                # As far into this stretch as there is room, one time at least.
                cut = max(start + int((bytes_max - passed) / density), cuts[-1] + 1)
                if cut >= self.time_upper:
                    break
                cuts.append(cut)
                if cut >= end:
                    start, passed = end, Fraction(0)
                    break
                start, passed = cut, Fraction(0)
            passed += density * (end - start)
        return [replace(self, time_lower=a, time_upper=b).prune() for a, b in pairwise([*cuts, self.time_upper])]

    def check_columns(self) -> None:
        """Raise SchemaMismatch if a part lacks a column of an earlier schema version that was dropped since."""
        if self.schema.known and self.schema.version < len(self.schema.known):
            by_filter = (
                () if self.filter is None else list_referenced_columns(self.filter, self.schema.arrow, self.columns)
            )
            requested = [*self.columns, *by_filter]
            for part in self.all_parts:
                lifted = part.make_lift(self.schema)
                if lifted is not None:
                    lifted.list_source_columns(requested)

    def keeps_distinct(self, part: Part) -> bool:
        """Return whether distinct records of a part stay distinct in this scan's schema."""
        lifted = part.make_lift(self.schema)
        return lifted is None or lifted.is_exact

    def is_inside(self, part: Part) -> bool:
        """Return whether all updates of a part of the history are in the interval of times."""
        return part.time_min >= self.time_lower and part.time_max < self.time_upper

    def select_within_time(self, updates: pa.Table) -> pa.Table:
        """Return the updates whose `_time` is in the interval."""
        time = updates["_time"]
        return updates.filter(pc.and_(pc.greater_equal(time, self.time_lower), pc.less(time, self.time_upper)))

    def updates(
        self, reader: PartReader, columns: Sequence[str], parts: Sequence[Part] | None = None, coded: Sequence[str] = ()
    ) -> Iterator[pa.Table]:
        """Yield the updates of each part of the history, or of some parts; columns may be `_time` and `_diff`.

        Columns of strings or bytes that coded names may come as dictionaries.

        Raises:
            CorruptBlob: a part is missing, or differs from its descriptor.
            InvalidUsage: the filter does not fit the columns.
        """
        parts = self.parts if parts is None else parts
        extra = [] if "_time" in columns or all(map(self.is_inside, parts)) else ["_time"]
        tables = reader.tables(parts, self.schema, [*columns, *extra], filter=self.filter, keys=self.keys, coded=coded)
        for part, table in tables:
            if not self.is_inside(part):
                table = self.select_within_time(table)
            if self.sign < 0 and "_diff" in columns:
                table = negate_diffs(table)
            yield table.select(list(columns)) if extra else table

    def read_base_rows(
        self, reader: PartReader, columns: Sequence[str], parts: Sequence[Part] | None = None, coded: Sequence[str] = ()
    ) -> Iterator[pa.Table]:
        """Yield the rows of each part of the keyframe (or of some of them); errors as of `updates`."""
        parts = self.base if parts is None else parts
        tables = reader.tables(parts, self.schema, columns, filter=self.filter, keys=self.keys, coded=coded)
        return (table for _, table in tables)

    def bound_row_count(self, part: Part) -> int:
        """Return an upper bound of the number of rows of a part that are in the slice of the key space."""
        start, end = self.keys.bracket_rows(part, self.schema)
        return end - start


def narrow_scan(scan: Scan, filter: pc.Expression | None, columns: Sequence[str] | None = None) -> Scan | None:
    """Return a scan with fewer columns (None: the same), and with a further filter.

    None if the filter needs columns that a scan cannot filter by, such as `_time`.
    """
    if filter is not None:
        try:
            bind_filter(filter, scan.empty(scan.schema.names).schema)
        except pa.ArrowException:
            return None
    conjunction = filter if scan.filter is None or filter is None else scan.filter & filter
    names = scan.columns if columns is None else tuple(columns)
    return replace(scan, columns=names, filter=scan.filter if conjunction is None else conjunction).prune()


def _can_filter(filter: pc.Expression, schema: CollectionSchema) -> bool:
    """Return whether a filter can be evaluated on the columns of a schema."""
    try:
        bind_filter(filter, schema.arrow)
    except (pa.ArrowException, TypeError, ValueError):
        return False
    return True


def refuse_positions(filter: pc.Expression) -> None:
    """Raise InvalidUsage if a filter names a column by position, because it is evaluated on fewer columns."""
    if "FieldPath" not in print_filter(filter):
        return
    try:  # Texts and names may hold that word too; a position is what Arrow cannot serialize.
        pickle.dumps(filter)
    except pa.ArrowNotImplementedError as error:
        raise InvalidUsage(
            f"filter {filter} names a column by its position; write its name: pyarrow.compute.field('amount') > 5"
        ) from error


def sort_by_cost(names: list[str], schema: CollectionSchema) -> list[str]:
    """Return names in the cheapest order for comparing rows: keys, then columns of fixed width.

    This takes a third of the time for keys with a few records each: most numbers differ, so few strings are compared.
    """
    return sorted(
        names, key=lambda name: (name not in schema.key_names, not pt.is_primitive(schema.arrow.field(name).type))
    )


def negate_diffs(table: pa.Table) -> pa.Table:
    """Return the table with the sign of `_diff` changed."""
    at, diffs = table.schema.get_field_index("_diff"), table["_diff"]
    least = pc.equal(diffs, -(2**63))  # The one int64 whose negative is none: as two halves.
    if pc.any(least).as_py():
        halves = table.filter(least)
        half = pa.chunked_array([np.full(len(halves), 2**62)])
        halves = halves.set_column(at, table.field(at), half)
        table = table.filter(pc.invert(least))
        negated = table.set_column(at, table.field(at), pc.negate(table["_diff"]))
        return pa.concat_tables([negated, halves, halves])
    return table.set_column(at, table.field(at), pc.negate(diffs))


def add_diff(table: pa.Table, diff: int = 1) -> pa.Table:
    """Return a table with a column `_diff`; a missing one is added with the same diff in all rows."""
    if "_diff" in table.column_names:
        return table
    diffs = make_int64_array(np.full(len(table), diff, np.int64))
    return table.append_column(pa.field("_diff", pa.int64(), nullable=False), diffs)


def make_rows_without_columns(rows: int) -> pa.Table:
    """Return a table of that many rows and no column."""
    return pa.Table.from_struct_array(pa.StructArray.from_buffers(pa.struct([]), rows, [None]))
