"""Contents as of a time, merged from updates.

`as_of` selects updates at times `<= as_of`. The diffs of equal records are summed, and zeros dropped. In form "diff" a
record appears once, with its multiplicity `_diff`; in form "rows" it appears `_diff` times. Rows have no particular
order.

Projection commutes with consolidation, so only requested columns are read. The multiplicity of a projected record is
the sum over all records with the same projection. In form "rows" no sum per key may be negative, even without key
columns.

As few rows as possible are merged. Rows *stand* if no other row can cancel them. In form "rows" these are the rows of
parts without a negative diff, in form "diff" the distinct records of a keyframe. All other rows are the *tail*. Only
keys of the tail are merged; other standing rows pass unchanged. Without a tail, not even `_diff` is read.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal, TypeAlias

import numpy as np
import pyarrow as pa

from persist.codecs.order.arrays import get_int64_values, make_int64_array
from persist.codecs.order.ordering import combine_chunks, sort_indices
from persist.codecs.order.search import SortedKeys
from persist.codecs.order.sums import consolidate
from persist.codecs.part.describing import describe_in_memory
from persist.codecs.part.part import Part
from persist.codecs.types.objects import to_dicts
from persist.core.errors import InvalidUsage, NegativeMultiplicity
from persist.engine.read.parts.reader import ClaimedRead, PartReader, read_ahead
from persist.engine.read.planning.scan import Scan, add_diff, make_rows_without_columns, negate_diffs, sort_by_cost

Form = Literal["rows", "diff"]
REPEATED_ROWS_MAX = 1 << 20  # Rows made at a time of records with a multiplicity above 1.
ROWS_MAX = 2**31 - 1  # Rows of one slice; with more, multiplicities were probably mistaken for data.
COPIES_MAX = 1 << 26  # Copies of records with a multiplicity above 1 that are made together in memory.
TOUCH_FRACTION = 1.5  # With more rows in the tail for each standing row, most keys are touched anyway.


def read_snapshot(
    scan: Scan, form: Form, reader: PartReader, *, elsewhere: Callable[[Part], bool] | None = None
) -> Iterator[pa.Table]:
    """Yield the contents of one slice of a snapshot, in no particular order.

    Memory: one part at a time if nothing must be merged; otherwise about four times the decoded slice; and
    `REPEATED_ROWS_MAX` rows.

    Args:
        elsewhere: selects standing parts that the caller reads itself, except rows with a key of the tail. Of these
            parts, only those rows are yielded. If there is a tail, the collection must have flat key columns.

    Raises:
        CorruptBlob: a part is missing or damaged.
        NegativeMultiplicity: the form is rows and some record has a negative multiplicity.
        DiffOverflow: a multiplicity does not fit int64.
    """
    split = Split.of(scan, form)
    assert elsewhere is None or scan.schema.key_names or not split.is_merged, "without keys, everything is touched"
    if not split.is_merged:
        keeps_diff = form == "diff" or not scan.columns
        part_split = split if elsewhere is None else split.keep_standing_parts(lambda part: not elsewhere(part))
        for table in _read_standing(scan, reader, part_split, [*scan.columns], keeps_diff=keeps_diff):
            yield from _repeat_for_form(table, scan, form)
        return
    yield from _merge_parts(scan, split, form, reader, elsewhere)


def _merge_parts(
    scan: Scan, split: "Split", form: Form, reader: PartReader, elsewhere: Callable[[Part], bool] | None
) -> Iterator[pa.Table]:
    """Yield the contents of a slice: untouched standing rows, then the merged ones."""
    columns, keys, keeps_diff = [*scan.columns], scan.schema.key_names, form == "diff" or not scan.columns
    names = [*columns, *(name for name in keys if name not in columns)]
    # In form "rows", records of different keys that look alike must not cancel each other: whether they are in one
    # slice depends on how the collection is stored.
    apart = names if form == "rows" else columns
    is_touching = bool(keys) and (elsewhere is not None or split.is_touching(scan))
    stands = [(split, True)]
    if elsewhere is not None:
        stands = [
            (split.keep_standing_parts(lambda part: not elsewhere(part)), True),
            (split.keep_standing_parts(elsewhere), False),
        ]
    # Another thread reads the next standing rows while some are merged.
    standing = read_ahead(
        (
            (is_here, table)
            for some, is_here in stands
            for table in _read_standing(scan, reader, some, names, keeps_diff=keeps_diff)
        ),
        reader.pool,
    )
    with closing(standing):
        tail_rows = pa.concat_tables(
            [
                scan.empty([*names, "_diff"]),
                *scan.read_base_rows(reader, [*names, "_diff"], split.base_tail),
                *scan.updates(reader, [*names, "_diff"], split.tail),
            ]
        )
        touching = SortedKeys.of(tail_rows, keys) if is_touching and len(tail_rows) else None
        touched = [tail_rows.select([*apart, "_diff"])]
        for is_here, table in standing:
            if not len(tail_rows) or not len(table):
                if not is_here and not len(tail_rows):
                    break  # Nothing is touched, so the other parts need not be read.
                if not is_here:
                    continue
                yield from _repeat_for_form(_select_columns(table, columns), scan, form)
            elif touching is None:
                touched.append(add_diff(table).select([*apart, "_diff"]))
            else:
                inside, outside = touching.split(table) if is_here else (touching.select(table), None)
                touched.append(add_diff(inside).select([*apart, "_diff"]))
                if outside is not None:
                    yield from _repeat_for_form(_select_columns(outside, columns), scan, form)
    by, names, rows = sort_by_cost(apart, scan.schema), [*apart, "_diff"], [pa.concat_tables(touched)]
    del tail_rows, touched, touching  # So that what copies the rows may have their memory.
    yield from _repeat_for_form(consolidate(rows.pop(), by).select(names), scan, form)


def _repeat_for_form(table: pa.Table, scan: Scan, form: Form) -> Iterator[pa.Table]:
    """Yield the rows of a table in the requested form."""
    table = scan.cast_to_result(table)
    if form == "rows" and "_diff" in table.column_names:
        yield from repeat_rows(table, scan)
    elif table.num_rows:
        yield table


@dataclass(frozen=True)
class Split:
    """The parts of a slice: standing ones and the tail, of the keyframe and of the history."""

    base: list[Part]
    history: list[Part]
    base_tail: list[Part]
    tail: list[Part]

    @classmethod
    def of(cls, scan: Scan, form: Form) -> "Split":
        """Split the parts of a scan into standing ones and the tail."""
        if form == "diff":
            # Records of a keyframe are distinct, unless they differ only in columns that are not requested.
            is_whole = set(scan.columns) == set(scan.schema.names)
            base = [part for part in scan.base if is_whole and scan.keeps_distinct(part)]
            base_tail = [part for part in scan.base if not (is_whole and scan.keeps_distinct(part))]
            return cls(base, [], base_tail, [*scan.parts])
        base = [part for part in scan.base if not part.negatives]
        history = [part for part in scan.parts if scan.sign > 0 and not part.negatives]
        base_tail = [part for part in scan.base if part.negatives]
        return cls(base, history, base_tail, [part for part in scan.parts if scan.sign < 0 or part.negatives])

    @property
    def is_merged(self) -> bool:
        """Whether some rows must be merged with rows of other parts."""
        return bool(self.base_tail or self.tail)

    def keep_standing_parts(self, condition: Callable[[Part], bool]) -> "Split":
        """Return the split without the standing parts that do not meet a condition."""
        return replace(self, base=[*filter(condition, self.base)], history=[*filter(condition, self.history)])

    def is_touching(self, scan: Scan) -> bool:
        """Return whether the tail is so small that most standing rows pass unchanged."""
        if not self.is_merged or not scan.schema.key_names:
            return bool(scan.schema.key_names)
        standing_rows = sum(scan.bound_row_count(part) for part in (*self.base, *self.history))
        tail_rows = sum(scan.bound_row_count(part) for part in (*self.base_tail, *self.tail))
        return tail_rows <= TOUCH_FRACTION * standing_rows


def slice_snapshot(scan: Scan, form: Form, slice_bytes: int) -> list[Scan]:
    """Return the slices of a snapshot; one if no rows of different parts must be compared.

    Standing rows count half if most of them pass unchanged, because more cuts would cost a third more time.
    """

    def estimate_held_bytes(piece: Scan) -> int:
        parts = Split.of(piece, form)
        if not parts.is_touching(piece):
            return piece.memory
        return (
            piece.estimate_memory([*parts.base_tail, *parts.tail])
            + piece.estimate_memory([*parts.base, *parts.history]) // 2
        )

    return scan.cut_into_slices(slice_bytes, estimate_held_bytes) if Split.of(scan, form).is_merged else [scan]


def _read_standing(
    scan: Scan, reader: PartReader, split: Split, names: list[str], *, keeps_diff: bool
) -> Iterator[pa.Table]:
    """Yield the rows of parts that no other part can cancel (`base` and `history` of the split).

    They have no `_diff` if it is 1 in all rows and not requested.
    """

    def is_bare(part: Part) -> bool:
        return part.is_plain and not keeps_diff

    for bare, parts in groupby(split.base, is_bare):
        yield from scan.read_base_rows(reader, names if bare else [*names, "_diff"], [*parts])
    for bare, parts in groupby(split.history, is_bare):
        yield from scan.updates(reader, names if bare else [*names, "_diff"], [*parts])


def _select_columns(table: pa.Table, columns: list[str]) -> pa.Table:
    return table.select([*columns, "_diff"] if "_diff" in table.column_names else columns)


def read_snapshot_tables(scan: Scan, form: Form, reading: ClaimedRead) -> Iterator[pa.Table]:
    """Yield a whole snapshot, slice by slice if it must be merged; memory and errors as of `read_snapshot`.

    In form "diff" without all key columns, different slices may have equal projected records, so there is one table.
    """
    reader = reading()
    slices = slice_snapshot(scan, form, reader.slice_bytes)
    tables = (table for piece in slices for table in read_snapshot(piece, form, reading.check(reader)))
    if form == "rows" or {*scan.schema.key_names} <= {*scan.columns}:
        yield from tables
        return
    summed = next(tables, None)
    for table in tables:
        summed = consolidate(pa.concat_tables([summed, table]), scan.columns)
    if summed is not None:
        yield summed


def repeat_rows(contents: pa.Table, scan: Scan) -> Iterator[pa.Table]:
    """Yield contents without `_diff`, each row `_diff` times."""
    rows = contents.select(list(scan.columns))
    counts = get_int64_values(combine_chunks(contents["_diff"]))
    if not len(counts):
        return
    if counts.min() < 0:
        at = int(counts.argmin())
        raise NegativeMultiplicity(str(to_dicts(rows.slice(at, 1))), int(counts[at]), scan.as_of)
    if counts.max() == 1:
        yield rows if scan.columns else make_rows_without_columns(len(counts))
        return
    ends = np.cumsum(counts, dtype=np.float64) if counts.max() > REPEATED_ROWS_MAX else np.cumsum(counts)
    if ends[-1] > ROWS_MAX:
        at = int(counts.argmax())
        raise InvalidUsage(
            f"as rows, this would be about {float(ends[-1]):.3g} rows, and the limit is {ROWS_MAX}: the "
            f"record {to_dicts(rows.slice(at, 1))} alone has multiplicity {counts[at]}."
        ).with_remedy("{snapshot:call} with {form:option:diff} shows multiplicities.")
    for start in range(0, int(ends[-1]), REPEATED_ROWS_MAX):
        # Row i has the places from ends[i - 1] up to ends[i].
        places = np.arange(start, min(start + REPEATED_ROWS_MAX, int(ends[-1])))
        if scan.columns:
            yield rows.take(pa.array(np.searchsorted(ends, places, side="right")))
        else:
            yield make_rows_without_columns(len(places))


NewRows: TypeAlias = Sequence[Part] | pa.Table  # Parts that no record names; or updates in memory, in any order.


Replaced: TypeAlias = Callable[[pa.Table, pa.Table], pa.Table]  # Called with new rows and present updates of some keys.


def compute_differences(
    present: Scan,
    new: NewRows,
    reader: PartReader,
    check: Callable[[pa.Table], object] = lambda rows: None,
    replaced: Replaced | None = None,
) -> Iterator[pa.Table]:
    """Yield the updates that turn the present contents into new rows.

    Columns: the columns of the collection and `_diff`, consolidated, in key order.

    Args:
        check: raises to refuse new rows; called with all new rows of some keys.
        replaced: returns the updates that replace all present rows of some keys by new ones. Without it, all present
            records are removed and all new ones added.

    Raises:
        InvalidUsage: the filter of the present contents is not true for some of the new rows.
        CorruptBlob, DiffOverflow, Unavailable.
    """
    schema = present.schema
    columns = [*schema.names, "_diff"]
    if isinstance(new, pa.Table):
        rows_of, ours = _slice_memory(new.select(columns), present, reader.rewrite_slice_bytes)
        row_count = len(new)
    else:
        rows_of, ours = _build_stored_rows(new, columns, reader), [*new]
        row_count = sum(part.rows for part in new)
    ids = {id(part) for part in ours}
    passed = 0
    for scan_slice in replace(present, base=(*present.base, *ours)).cut_into_slices(reader.rewrite_slice_bytes):
        new_tables = [scan_slice.empty(columns), *rows_of(scan_slice)]
        passed += sum(map(len, new_tables))
        base = [part for part in scan_slice.base if id(part) not in ids]
        read = [*scan_slice.read_base_rows(reader, columns, base), *scan_slice.updates(reader, columns)]
        rows, present_rows = pa.concat_tables(new_tables), pa.concat_tables([scan_slice.empty(columns), *read])
        check(rows)
        if replaced is not None:
            yield replaced(rows, present_rows)
        else:
            yield consolidate(pa.concat_tables([rows, negate_diffs(present_rows)]), schema.names)
    if passed != row_count:
        raise InvalidUsage(
            f"where={present.filter} is not true for {row_count - passed:,} of the {row_count:,} rows, so they would "
            "be added without replacing present rows: leave them out, or widen the filter. Nothing was written."
        )


RowsOf: TypeAlias = Callable[[Scan], list[pa.Table]]  # The new rows in a slice that pass its filter.


def _build_stored_rows(new: Sequence[Part], columns: Sequence[str], reader: PartReader) -> RowsOf:
    """Return a function that reads some parts within a slice."""
    ids = {id(part) for part in new}
    return lambda scan_slice: [
        *scan_slice.read_base_rows(reader, columns, [part for part in scan_slice.base if id(part) in ids])
    ]


def _slice_memory(new: pa.Table, present: Scan, slice_bytes: int) -> tuple[RowsOf, list[Part]]:
    """Return a function that slices rows in memory, and a part that represents them for cutting slices."""
    schema = present.schema
    if not len(new) or present.memory + new.nbytes <= 2 * slice_bytes:  # There will be one slice.
        return (lambda piece: [_filter_rows(new, piece)]), []
    order = get_int64_values(sort_indices(new, schema.key_names))
    is_sorted = bool((np.diff(order) == 1).all())
    keys = new.select([*schema.key_names])
    if not is_sorted:
        keys = keys.take(make_int64_array(order))

    def slice_rows(piece: Scan) -> list[pa.Table]:
        start, end = piece.keys.find_rows(keys, schema) if schema.key_names else (0, len(new))
        rows = new.slice(start, end - start) if is_sorted else new.take(make_int64_array(order[start:end]))
        return [_filter_rows(rows, piece)]

    return slice_rows, [describe_in_memory(keys, int(new.nbytes), schema)]


def _filter_rows(rows: pa.Table, piece: Scan) -> pa.Table:
    """Return the rows that pass the filter of a scan."""
    return rows if piece.filter is None else rows.filter(piece.filter)
