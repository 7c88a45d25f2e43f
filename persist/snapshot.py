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
from persist.errors import NegativeMultiplicity
from persist.result import ArrowResult
from persist.scan import Reading, Scan
from persist.state import CollectionState

Form = Literal["rows", "diff"]


def snapshot_scan(
    contents: CollectionState,
    schema: CollectionSchema,
    as_of: int,
    columns: Sequence[str] | None,
    filter: pc.Expression | None,
) -> Scan:
    """Return the plan to read contents as of a time that is sealed and not compacted."""
    names = check_columns(schema, columns)
    check_filter(schema, filter)
    return Scan(schema, contents.parts, 0, as_of + 1, names, filter).pruned()


def check_columns(schema: CollectionSchema, columns: Sequence[str] | None) -> tuple[str, ...]:
    """Return the columns to read, all of them for None.

    Raises:
        SchemaMismatch: a name is unknown or appears twice.
    """
    if columns is None:
        return schema.names
    if isinstance(columns, str):
        raise SchemaMismatch(f"columns={columns!r} is one string; give a list of names, such as [{columns!r}]")
    names = tuple(columns)
    unknown = [name for name in names if name not in schema.names]
    if unknown or len(set(names)) != len(names):
        raise SchemaMismatch(
            f"columns {list(names)} are not distinct columns of this collection (unknown: {unknown}); "
            f"it has {list(schema.names)}"
        )
    return names


def check_filter(schema: CollectionSchema, filter: pc.Expression | None) -> None:
    """Raise InvalidUsage unless filter is a boolean expression over the key and value columns."""
    if filter is None:
        return
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


def read_snapshot(scan: Scan, form: Form, blob: Blob, executor: Executor | None = None) -> pa.Table:
    """Return what one slice of a snapshot holds. Memory: its updates.

    Raises:
        CorruptBlob: a part is missing or damaged.
        NegativeMultiplicity: rows were asked for and some record has a negative multiplicity.
        DiffOverflow: a multiplicity does not fit int64.
    """
    updates = scan.updates(blob, executor, with_time=False)
    if form == "diff" or any(part.negatives for part in scan.parts):
        updates = consolidate(updates, scan.columns, ordered=False)
    if form == "diff":
        return updates
    return _repeated(updates, scan)


def _repeated(contents: pa.Table, scan: Scan) -> pa.Table:
    """Return contents without `_diff`, each row as often as it says."""
    diffs = contents["_diff"]
    rows = contents.select(list(scan.columns))
    if not len(rows) or pc.min_max(diffs).as_py() == {"min": 1, "max": 1}:
        return rows
    counts = diffs.to_numpy()
    if counts.min() < 0:
        at = int(counts.argmin())
        raise NegativeMultiplicity(str(rows.slice(at, 1).to_pylist()[0]), int(counts[at]), scan.time_upper - 1)
    return rows.take(pa.array(np.repeat(np.arange(len(counts)), counts)))


class Snapshot(ArrowResult):
    """The contents as of a time; see `Collection.snapshot`. Nothing is read until a method asks for it.

    Attributes:
        as_of: the time.
        form: "rows" or "diff".
    """

    def __init__(self, scan: Scan, form: Form, reading: Reading) -> None:
        if form not in get_args(Form):
            raise InvalidUsage(f'form={form!r} is not a form of a snapshot: use "rows" or "diff"')
        self.as_of = scan.time_upper - 1
        self.form: Form = form
        self.scan = scan
        self._reading = reading

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
            yield from convert(table, self.scan.schema)

    def _tables(self) -> Iterator[pa.Table]:
        for scan in self.scan.slices_of_rows():
            yield read_snapshot(scan, self.form, *self._reading())

    def __repr__(self) -> str:
        return f"Snapshot(as_of={self.as_of}, form={self.form!r}, columns={list(self.scan.columns)})"


def _exact_sum(diffs: pa.ChunkedArray) -> int:
    values = diffs.to_numpy()
    if len(values) and max(abs(int(values.max())), abs(int(values.min()))) * len(values) >= 2**63:
        return sum(values.tolist())
    return int(values.sum())
