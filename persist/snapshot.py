"""The contents of a collection as of a time.

`as_of` selects updates at times `<= as_of`; equal records' diffs are summed and zeros dropped. In form "diff" a
record appears once with its multiplicity `_diff`; in form "rows" it appears as often as its multiplicity says.

Projection commutes with consolidation, so columns that nobody asked for are not read: the multiplicity of a
projected record is the sum over all records that look like it. If no part holds a negative diff, rows need no
consolidation at all.

A `Snapshot` is a plan over immutable parts, taken at one point of the log: reading it twice, or later, gives the same
contents whatever has been written since.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from persist.blob import Blob, InvalidUsage
from persist.codecs import CollectionSchema, SchemaMismatch, consolidate, to_rows, to_tuples
from persist.contents import CollectionState
from persist.errors import NegativeMultiplicity
from persist.reading import Reading
from persist.result import ArrowResult, rows_without_columns
from persist.scan import Scan

Form = Literal["rows", "diff"]
REPEATED_ROWS_MAX = 1 << 20  # Rows made at a time of records with a multiplicity above 1.
ROWS_MAX = 2**31 - 1  # Rows that one slice may become; beyond it somebody has mistaken multiplicities for data.


def snapshot_scan(
    contents: CollectionState,
    schema: CollectionSchema,
    as_of: int,
    columns: Sequence[str] | None,
    filter: pc.Expression | None,
) -> Scan:
    """Return the plan to read contents as of a time that is sealed and not compacted."""
    names = schema.names if columns is None else tuple(columns)
    return Scan(schema, contents.parts, 0, as_of + 1, names, filter).pruned()


def check_request(
    schema: CollectionSchema, columns: Sequence[str] | None, filter: pc.Expression | None, form: Form
) -> None:
    """Check what a caller wants of a collection, before anything is waited for.

    Raises:
        SchemaMismatch: a column is unknown or appears twice.
        InvalidUsage: form is not a form, or filter not a boolean expression over the key and value columns.
    """
    if form not in get_args(Form):
        raise InvalidUsage(f'form={form!r} is not a form of a snapshot: use "rows" or "diff"')
    if columns is not None:
        _check_columns(schema, columns)
    if filter is not None:
        _check_filter(schema, filter)


def _check_columns(schema: CollectionSchema, columns: Sequence[str]) -> None:
    if isinstance(columns, str):
        raise SchemaMismatch(f"columns={columns!r} is one string; give a list of names, such as [{columns!r}]")
    try:
        names = tuple(columns)
    except TypeError as error:
        raise SchemaMismatch(f"columns={columns!r} is not a list of names") from error
    unknown = [name for name in names if name not in schema.names]
    if unknown or len(set(names)) != len(names):
        raise SchemaMismatch(
            f"columns {list(names)} are not distinct columns of this collection (unknown: {unknown}); "
            f"it has {list(schema.names)}"
        )


def _check_filter(schema: CollectionSchema, filter: pc.Expression) -> None:
    if not isinstance(filter, pc.Expression):
        raise InvalidUsage(
            f"filter={filter!r} is not a pyarrow expression; write for example pyarrow.compute.field('amount') > 5"
        )
    rows = pa.schema([schema.arrow.field(name) for name in schema.names]).empty_table()
    try:
        rows.filter(filter)
    except (pa.ArrowException, TypeError) as error:
        raise InvalidUsage(
            f"filter {filter} does not fit the columns {list(schema.names)} of this collection: {error}"
        ) from error


def read_snapshot(scan: Scan, form: Form, blob: Blob, executor: Executor | None = None) -> Iterator[pa.Table]:
    """Yield what one slice of a snapshot holds. Memory: its updates, and `REPEATED_ROWS_MAX` rows.

    Raises:
        CorruptBlob: a part is missing or damaged.
        NegativeMultiplicity: rows were asked for and some record has a negative multiplicity.
        DiffOverflow: a multiplicity does not fit int64.
    """
    updates = scan.updates(blob, executor, with_time=False)
    if form == "diff":
        yield consolidate(updates, scan.columns)
        return
    if any(part.negatives for part in scan.parts):
        updates = consolidate(updates, scan.columns)
    yield from _repeated(updates, scan)


def _repeated(contents: pa.Table, scan: Scan) -> Iterator[pa.Table]:
    """Yield contents without `_diff`, each row as often as it says."""
    rows = contents.select(list(scan.columns))
    counts = contents["_diff"].to_numpy()
    if not len(counts):
        return
    if counts.min() < 0:
        at = int(counts.argmin())
        raise NegativeMultiplicity(str(rows.slice(at, 1).to_pylist()[:1]), int(counts[at]), scan.time_upper - 1)
    if counts.max() == 1:
        yield rows if scan.columns else rows_without_columns(len(counts))
        return
    ends = np.cumsum(counts, dtype=np.float64) if counts.max() > REPEATED_ROWS_MAX else np.cumsum(counts)
    if ends[-1] > ROWS_MAX:
        at = int(counts.argmax())
        raise InvalidUsage(
            f"as rows, this would be about {float(ends[-1]):.3g} rows, and at most {ROWS_MAX} are given out: the "
            f'record {rows.slice(at, 1).to_pylist()[:1]} alone has multiplicity {counts[at]}. Ask for form="diff".'
        )
    for start in range(0, int(ends[-1]), REPEATED_ROWS_MAX):
        wanted = np.arange(start, min(start + REPEATED_ROWS_MAX, int(ends[-1])))
        if scan.columns:
            yield rows.take(pa.array(np.searchsorted(ends, wanted, side="right")))
        else:
            yield rows_without_columns(len(wanted))


class Snapshot(ArrowResult):
    """The contents as of a time; see `Collection.snapshot`. Nothing is read until a method asks for it.

    Attributes:
        as_of: the time.
        form: "rows" or "diff".
    """

    def __init__(self, scan: Scan, form: Form, reading: Reading) -> None:
        super().__init__(reading)
        self.as_of = scan.time_upper - 1
        self.form: Form = form
        self.scan = scan

    @property
    def schema(self) -> pa.Schema:
        """The columns asked for, and `_diff` in form "diff"."""
        names = [*self.scan.columns, *(["_diff"] if self.form == "diff" else [])]
        return pa.schema([self.scan.schema.arrow.field(name) for name in names])

    def slices(self, count: int) -> list[Scan]:
        """Return at most count plans for `read_snapshot` that together are this snapshot."""
        return self.scan.slices(count)

    def count(self) -> int:
        """Return the sum of all multiplicities: the number of rows, when none is negative.

        Reads `_time` and `_diff` only, and those only of parts that hold later updates too, unless there is a filter.
        """
        whole = self.scan.filter is None
        inside = [p for p in self.scan.parts if whole and p.time_max <= self.as_of]
        others = tuple(p for p in self.scan.parts if not (whole and p.time_max <= self.as_of))
        scan = replace(self.scan, parts=others, columns=())
        with self._reading.explained():
            diffs = scan.updates(*self._reading(), with_time=False)
        return sum(part.diff_sum for part in inside) + _exact_sum(diffs["_diff"])

    def rows(self) -> Iterator[tuple[Any, Any]]:
        """Yield `(key, value)` in form "rows", or `((key, value), diff)` in form "diff".

        Raises:
            InvalidUsage: only some of the columns were asked for.
            CodecMismatch: a user's codec is needed and was not given to create_or_load.
        """
        if set(self.scan.columns) != set(self.scan.schema.names):
            raise InvalidUsage("rows() needs all columns, and this snapshot has a selection; use to_arrow() for those")
        convert = to_rows if self.form == "rows" else to_tuples
        for table in self._tables():
            if table.num_columns:
                yield from convert(table, self.scan.schema)
            else:  # A collection without any column, in rows: nothing is left to convert.
                yield from ((None, None) for _ in range(table.num_rows))

    def _read(self) -> Iterator[pa.Table]:
        for scan in self.scan.slices_of_rows():
            yield from read_snapshot(scan, self.form, *self._reading())

    def __repr__(self) -> str:
        return f"Snapshot(as_of={self.as_of}, form={self.form!r}, columns={list(self.scan.columns)})"


def _exact_sum(diffs: pa.ChunkedArray) -> int:
    values = diffs.to_numpy()
    if len(values) and max(abs(int(values.max())), abs(int(values.min()))) * len(values) >= 2**63:
        return sum(values.tolist())
    return int(values.sum())
