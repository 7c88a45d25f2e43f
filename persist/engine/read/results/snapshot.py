"""The contents of a collection as of a time, for users; `persist.engine.read.merging` merges them.

A `Snapshot` is a plan over immutable parts, made at one point of the log. All reads of it return the same contents,
whatever is written later.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from html import escape
from itertools import chain
from types import MappingProxyType
from typing import Any, Protocol, get_args, overload

import pyarrow as pa
import pyarrow.compute as pc

from persist.blob.errors import InvalidUsage, PersistError
from persist.codecs.errors import did_you_mean
from persist.codecs.order.digest import Digest
from persist.codecs.order.sums import sum_exactly
from persist.codecs.part.filters import bind_filter
from persist.codecs.part.part import Part
from persist.codecs.part.printing import print_filter
from persist.codecs.types.objects import to_dicts
from persist.codecs.types.schema import CollectionSchema
from persist.codecs.updates.tuples import iterate_rows, iterate_tuples
from persist.core.errors import LeaseExpired
from persist.core.expression.filters import parse_where
from persist.core.rendering import render_html_rows, strip_control_characters
from persist.core.state_rules.contents import CollectionState
from persist.core.state_rules.erasures import count_erasures
from persist.core.timeline import format_time, read_timeline
from persist.engine.read.lookups.lookup import Lookup
from persist.engine.read.lookups.requested_keys import convert_arrow_keys
from persist.engine.read.merging import Form, read_snapshot, read_snapshot_tables, repeat_rows, slice_snapshot
from persist.engine.read.parts.reader import ClaimedRead, PartReader
from persist.engine.read.planning.scan import Scan, make_rows_without_columns, narrow_scan, refuse_positions
from persist.engine.read.planning.snapshot_plan import Explanation, explain_scan
from persist.engine.read.results.aggregate import Request, aggregate
from persist.engine.read.results.export import export_parquet
from persist.engine.read.results.frames import to_frame, to_milliseconds
from persist.engine.read.results.result import ArrowResult, cast_whole_to_int64, require_package, to_python_dicts

UNSUMMED_SHARE = 2  # Up to so many rows for each remaining one are read without a merge.
ROWS_SHOWN = 10
CELL_CHARS_MAX = 120
_MISSING = re.compile(r"No match for FieldRef\.Name\((.*?)\) in ")


def build_filter(
    schema: CollectionSchema,
    where: str | pc.Expression | None,
    columns: Sequence[str] | None = None,
    form: Form = "diff",
) -> pc.Expression | None:
    """Return the filter of a condition, after a check of columns and form."""
    if form not in get_args(Form):
        raise InvalidUsage(f'form={form!r} is not a form of a snapshot: use "rows" or "diff"')
    if columns is not None:
        schema.check_distinct("columns", columns)
    if isinstance(where, str):
        return parse_where(where, schema)
    if where is not None:
        _check_filter(schema, where)
    return where


def _check_filter(schema: CollectionSchema, filter: pc.Expression) -> None:
    """Raise InvalidUsage for a filter that cannot be evaluated."""
    if not isinstance(filter, pc.Expression):
        raise InvalidUsage(
            f'where={filter!r} is not a condition: write where="amount > 5", or an expression of pyarrow.compute, such '
            "as pc.field('amount') > 5"
        )
    refuse_positions(filter)
    try:
        bind_filter(filter, pa.schema([schema.arrow.field(name) for name in schema.names]))
    except (pa.ArrowException, TypeError) as error:
        missing = _MISSING.search(str(error))
        hint = did_you_mean(missing.group(1), schema.names) if missing is not None else ""
        raise InvalidUsage(
            f"the condition {print_filter(filter)} does not fit the columns {list(schema.names)} of this "
            f"collection{hint}: {error}"
        ) from error


class Shortcut(Protocol):
    """A plan that returns the rows of a scan by an index, and reads less than the scan."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the index that finds the rows."""
        ...

    @property
    def memory(self) -> int:
        """The estimated decoded size of all reads, in bytes."""
        ...

    def tables(self, form: Form, reader: PartReader) -> Iterator[pa.Table]:
        """Yield the tables of `read_snapshot` of the scan; all are computed before the first one."""
        ...


def find_no_shortcut(_erasures: int, _scan: Scan, _bytes_max: int) -> Shortcut | None:
    """Return None; `persist.compute.index.enable_index_reads` replaces this function."""
    return None


class Snapshot(ArrowResult):
    """The contents as of a time; see `Collection.snapshot`. Nothing is read before a method is called.

    Attributes:
        as_of: the time.
        form: "rows" or "diff".
        find_by_index: returns a shortcut for a scan, or None. Its arguments are `count_erasures` of the contents, the
            scan, and the bytes that may be in memory at once.
        again: the collection and arguments with which another process opens the pickled snapshot.
    """

    _INTERNAL = frozenset(
        {"again", "by_index", "explain_narrowed", "find_by_index", "scan", "slices", "iterate_unsummed"}
    )

    def __init__(
        self, scan: Scan, form: Form, reading: ClaimedRead, contents: CollectionState, slice_bytes: int
    ) -> None:
        """Make a snapshot from a plan of contents; its slices have about slice_bytes."""
        super().__init__(reading)
        self._contents = contents
        self._slice_bytes = slice_bytes
        self.as_of = scan.as_of
        self.form: Form = form
        self.scan = scan
        self.find_by_index: Callable[[int, Scan, int], Shortcut | None] = find_no_shortcut
        self.again: tuple[Any, ...] | None = None
        self._lookup: Lookup | None = None

    @property
    def schema(self) -> pa.Schema:
        """The requested columns, and `_diff` in form "diff"."""
        names = [*self.scan.columns, *(["_diff"] if self.form == "diff" else [])]
        return pa.schema([self.scan.result_schema.arrow.field(name) for name in names])

    def slices(self, count: int) -> list[Scan]:
        """Return at most count plans for `read_snapshot` that together are this snapshot."""
        return self.scan.slices(count)

    def count(self) -> int:
        """Return the sum of all multiplicities: the number of rows, when none is negative.

        Nothing is merged, because the sum is linear in the diffs. `_time` and `_diff` are read, and only of parts that
        also hold updates at other times. With a filter, all parts are read, unless an index has the rows.
        """
        scan, tables = self.scan, self._read_index(self.scan, "diff")
        if tables is not None:
            return sum(sum_exactly(table["_diff"].to_numpy()) for table in tables)
        base: tuple[Part, ...] = ()
        parts = [part for part in scan.parts if not scan.is_inside(part)]
        total = sum(part.diff_sum for part in scan.base)
        total += scan.sign * sum(part.diff_sum for part in scan.parts if scan.is_inside(part))
        if scan.filter is not None:
            base, parts, total = scan.base, [*scan.parts], 0
        with self._reading.explain_missing():
            reader = self._reading()
            for table in chain(scan.read_base_rows(reader, ["_diff"], base), scan.updates(reader, ["_diff"], parts)):
                total += sum_exactly(table["_diff"].to_numpy())
        return total

    def digest(self) -> str:
        """Return the digest of the contents: equal for equal contents, however they are stored.

        It does not depend on the order or the widths of columns, nor on history. `persist.codecs.order.digest` defines
        it. It covers the snapshot's columns and filter. If something was erased from the collection
        (`Collection.erase`), `-erased-` and the number of erasures follow.

        Cost: all parts are read one after the other; nothing is merged, because the digest is linear in the diffs.
        """
        scan, names = self.scan, [*self.scan.columns, "_diff"]
        digest, erasures = Digest(scan.columns), count_erasures(self._contents)
        mark = f"-erased-{erasures}" if erasures else ""
        with self._reading.explain_missing():
            reader = self._reading()
            if scan.narrow is not None:  # Only consolidated records fit the types of before a column was widened.
                for table in self._consolidate(scan.columns):
                    digest.add(table)
                return digest.format_text() + mark
            for table in chain(scan.read_base_rows(reader, names, scan.base), scan.updates(reader, names, scan.parts)):
                digest.add(table)
        return digest.format_text() + mark

    def iterate_unsummed(self) -> Iterator[pa.Table]:
        """Yield tables of the columns and `_diff` whose sums are the contents, for callers that sum anyway.

        Nothing is merged, so rows that cancel are yielded. If half of the rows cancel, the contents are merged as in
        form "diff".
        """
        scan, names = self.scan, [*self.scan.columns, "_diff"]
        remaining_rows = sum([part.diff_sum for part in scan.base])
        remaining_rows += scan.sign * sum([part.diff_sum for part in scan.parts])
        read = sum(map(scan.bound_row_count, scan.all_parts))
        with self._reading.explain_missing():
            if scan.narrow is not None or read > UNSUMMED_SHARE * remaining_rows:
                yield from self._consolidate(scan.columns)
                return
            reader = self._reading()
            yield from chain(scan.read_base_rows(reader, names, scan.base), scan.updates(reader, names, scan.parts))

    def _consolidate(self, columns: tuple[str, ...]) -> Iterator[pa.Table]:
        """Yield some columns of the records, with their multiplicities; equal records are in one slice."""
        scan = replace(self.scan, columns=columns)
        for scan_slice in scan.cut_into_slices(self._reading().slice_bytes):
            yield from read_snapshot(scan_slice, "diff", self._reading())

    def aggregate(
        self, group_by: Sequence[str] = (), aggregations: Mapping[str, tuple[str | None, str]] = MappingProxyType({})
    ) -> pa.Table:
        """Return sums and counts, group by group: `aggregate(["city"], {"total": ("amount", "sum")})`.

        A record counts `_diff` times, in both forms. Only the named columns are read. Nothing is merged, because sums
        are linear in the diffs. Memory: a part, and a few times the groups.

        Args:
            group_by: key and value columns, of any type; none for one row over everything.
            aggregations: per output, a column and "sum" (of integers, floats, decimals, durations) or "count" (of
                values that are not NULL); `(None, "count")` counts rows. Any column of the collection is allowed.

        Returns:
            the columns of group_by, then the outputs in their order; a row for each group whose multiplicities do not
            sum to zero, in the order of its columns. NULL and NaN are groups of their own. Counts are int64; sums are
            int64, uint64 of uint64, float64, the decimal of most digits, or the duration itself. Sums leave NULLs out;
            a sum is NULL if the multiplicities of its values, and the values, sum to zero. NaN or an infinity counts if
            the multiplicities of the group's records with it do not sum to zero.

        Raises:
            SchemaMismatch: a column is unknown, or in group_by twice.
            InvalidUsage: an aggregation is unknown, does not fit its column, or has the name of a group's column.
            DiffOverflow: a result does not fit its type. Nothing wraps.
        """
        request = Request.of(self.scan.result_schema, group_by, aggregations)
        with self._reading.explain_missing():
            return aggregate(self.scan, request, self._reading(), self._consolidate)

    @overload
    def get(self, keys: list[Any]) -> list[Any]: ...

    @overload
    def get(self, keys: Any) -> Any: ...

    def get(self, keys: Any) -> Any:
        """Return the rows with certain keys.

        The answer has the form of the request. For Arrow, pandas or Polars it is a table or a frame with the columns of
        `schema`, sorted by key if all key columns are among them. For a list or another iterable it is a list of the
        pairs that `rows` yields, or of dicts if the snapshot has only some of the columns; for a tuple it is a tuple.
        Missing keys have no rows.

        Only the row groups that may hold these keys are read: their keys first, and other columns of groups with a
        match. They are cached, and one search finds all keys. The next look-up takes some tenths of a millisecond for
        ten keys, and some µs for each of many. Cost without the cache: two GETs for each part that may hold the keys.

        Args:
            keys: an iterable of keys, as `Collection.write` takes them: `[1, 2]`, or `[("a", 1)]` if keys have several
                fields. Or a table, record batch or stream of Arrow, or a frame of pandas or Polars, with exactly the
                key columns. An array or a series is also allowed if there is one key column. A repeated key counts
                once; NULL is a key like others.

        Raises:
            InvalidUsage: a key is not one of this collection; the message names its index.
            SchemaMismatch: Arrow data with other columns, or of other types.
            CodecMismatch: keys need a codec that this process does not have.
            NegativeMultiplicity: in form "rows", if some record with these keys has a negative multiplicity.
            DiffOverflow: a multiplicity does not fit int64.
        """
        if self._lookup is None:
            self._lookup = Lookup(self.scan)
        if type(keys) is list and self.form == "rows":
            record = self._lookup.record(keys, self._reading())
            if record is not None:
                return record
        requested = None if type(keys) is list else convert_arrow_keys(keys, self.scan.schema.key_names)
        matching_rows = self._read_keys(self._lookup, keys if requested is None else requested)
        package = type(keys).__module__.partition(".")[0]
        if package == "pandas":
            return to_frame(cast_whole_to_int64(matching_rows), None, {})
        if package == "polars":
            return require_package("polars").from_arrow(to_milliseconds(cast_whole_to_int64(matching_rows)))
        if requested is not None:
            return matching_rows
        if {*self.scan.columns} == {*self.scan.schema.names}:
            answer: list[Any] = [*self._python_rows(matching_rows)]
        else:
            answer = to_python_dicts(matching_rows)
        return tuple(answer) if type(keys) is tuple else answer

    def _read_keys(self, lookup: Lookup, keys: Any) -> pa.Table:
        """Return the rows with some keys, in the snapshot's form."""
        requested = lookup.to_lookup_keys(keys)
        with self._reading.explain_missing():
            matching_rows = lookup.read_contents(requested, self.form, self._reading())
        if self.form == "diff" or "_diff" not in matching_rows.column_names:
            return matching_rows
        tables = list(repeat_rows(matching_rows, self.scan))
        if not self.scan.columns:
            return make_rows_without_columns(sum(map(len, tables)))
        return pa.concat_tables([pa.Table.from_batches([], self.schema), *tables])

    def explain(self) -> Explanation:
        """Return the cost of reading all contents, without a read; print it."""
        return self._explain_scan(self.scan)

    def explain_narrowed(self, columns: Sequence[str], filter: pc.Expression | None) -> Explanation:
        """Explain the cost of `read_narrowed`; see `explain`."""
        return self._explain_scan(narrow_scan(self.scan, filter, columns if self.form == "rows" else None) or self.scan)

    def _explain_scan(self, scan: Scan) -> Explanation:
        """Explain the cost of a scan, or of the index that replaces it."""
        slices, by_index = slice_snapshot(scan, self.form, self._slice_bytes), self.by_index(scan)
        by = None if by_index is None else (by_index.columns, by_index.memory)
        return explain_scan(self._contents, scan, self.form, len(slices), by)

    def rows(self) -> Iterator[tuple[Any, Any]]:
        """Yield `(key, value)` in form "rows", or `((key, value), diff)` in form "diff".

        Raises:
            InvalidUsage: the snapshot has only some of the columns.
            CodecMismatch: a user's codec is needed that was not passed to `create_or_load`.
        """
        if set(self.scan.columns) != set(self.scan.schema.names):
            raise InvalidUsage("rows() needs all columns, and this snapshot has a selection; use to_arrow() for those")
        for table in self._tables():
            yield from self._python_rows(table)

    def _python_rows(self, table: pa.Table) -> Iterator[tuple[Any, Any]]:
        """Yield the rows of a table in the form of `rows`."""
        if not table.num_columns:  # A collection without columns, in rows.
            return iter([(None, None)] * table.num_rows)
        return (iterate_rows if self.form == "rows" else iterate_tuples)(
            cast_whole_to_int64(table), self.scan.result_schema
        )

    def _read(self) -> Iterator[pa.Table]:
        return self._read_tables(self.scan)

    def _read_tables(self, scan: Scan) -> Iterator[pa.Table]:
        """Yield the contents of a scan, by an index if that reads less."""
        tables = self._read_index(scan, self.form)
        return read_snapshot_tables(scan, self.form, self._reading) if tables is None else tables

    def _read_index(self, scan: Scan, form: Form) -> Iterator[pa.Table] | None:
        """Return the contents of a scan by an index; None if no index serves it."""
        by_index = self.by_index(scan)
        try:
            return None if by_index is None else by_index.tables(form, self._reading())
        except LeaseExpired:  # Nothing holds the parts of an index, so they may be gone.
            return None

    def by_index(self, scan: Scan) -> Shortcut | None:
        """Return the shortcut for a scan of this snapshot; None if no index reads much less."""
        return self.find_by_index(count_erasures(self._contents), scan, self._slice_bytes)

    def __len__(self) -> int:
        """Return the number of rows: in form "rows" by `count`, in form "diff" by reading them."""
        count = self.count() if self.form == "rows" else -1
        return count if count >= 0 else super().__len__()

    def _read_narrowed(self, columns: Sequence[str], filter: pc.Expression | None) -> Iterator[pa.Table]:
        scan = narrow_scan(self.scan, filter, columns if self.form == "rows" else None)
        if scan is None:
            yield from super()._read_narrowed(columns, filter)
            return
        with self._reading.explain_missing():
            yield from self._read_tables(scan)

    def export_parquet(
        self,
        folder: str | os.PathLike[str],
        *,
        rows_per_file: int = 5_000_000,
        storage_options: Mapping[str, Any] | None = None,
    ) -> list[str]:
        """Write the contents as a folder of Parquet files, in the order of keys; return their paths.

        The folder appears when it is complete. A store cannot make many files appear at once: there, `_INCOMPLETE`
        exists until all files do, and then `_SUCCESS`. An export that fails deletes its files.

        Args:
            folder: a new or empty folder; or a URL of an empty place, as for `persist.open`.
            rows_per_file: the most rows of a file; it also ends at 64 MiB.
            storage_options: as for `persist.open`, for a URL.

        Raises InvalidUsage: the place is not empty; or NegativeMultiplicity, in form "rows".
        """
        return export_parquet(self, self.as_of, folder, rows_per_file, storage_options)

    def _repr_html_(self) -> str:
        """Return HTML of the first rows and a description, for notebooks. Cost: as `head`."""
        try:
            rows = to_dicts(self.head(ROWS_SHOWN + 1), " ")
        except PersistError:  # Such as a closed result.
            return super()._repr_html_()
        cells = [[_format_cell(value) for value in row.values()] for row in rows[:ROWS_SHOWN]]
        more = ", more rows" if len(rows) > ROWS_SHOWN else ""
        text = escape(strip_control_characters(repr(self)))
        return f"{render_html_rows(self.schema.names, cells)}<pre>{text}{more}</pre>"

    def __reduce__(self) -> Any:
        if self.again is None:
            raise InvalidUsage(f"{self!r} cannot go to another process: pass its collection, or to_arrow()")
        collection, named = self.again
        return _open_snapshot, (collection, self.as_of, named)

    def __repr__(self) -> str:
        as_of = format_time(self.as_of, read_timeline(self.scan.schema))
        return f"Snapshot(as_of={as_of}, form={self.form!r}, columns={list(self.scan.columns)})"


def _open_snapshot(collection: Any, as_of: int, named: Mapping[str, Any]) -> Any:
    """Open the snapshot that a pickled one names."""
    return collection.snapshot(as_of, **named)


def _format_cell(value: object) -> str:
    text = "NULL" if value is None else str(value)
    return text if len(text) <= CELL_CHARS_MAX else text[: CELL_CHARS_MAX - 1] + "…"
