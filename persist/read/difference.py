"""The difference between the contents of a collection and other rows, slice by slice of the key space.

Both sides are cut together, so that a slice of the one has the same keys as that of the other. Memory: that of a slice
which is merged and encoded. Cost: reading both sides once.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from persist.codecs import Part, consolidate, describe_held, int64_array, int64_values, sort_indices, without_pairs
from persist.errors import InvalidUsage
from persist.read.part_reader import PartReader
from persist.read.scan import Scan, negated

NewRows: TypeAlias = Sequence[Part] | pa.Table  # Parts that no record names; or updates in memory, in any order.


def differences(present: Scan, new: NewRows, reader: PartReader) -> Iterator[pa.Table]:
    """Yield what is to be added to the present contents so that they become new rows.

    Columns: those of the collection and `_diff`, consolidated, in key order.

    Raises:
        InvalidUsage: the filter of the present contents is not true for some of the new rows.
        CorruptBlob, DiffOverflow, Unavailable.
    """
    schema = present.schema
    columns = [*schema.names, "_diff"]
    if isinstance(new, pa.Table):
        rows_of, ours = _held(new.select(columns), present, reader.rewrite_slice_bytes)
        given = len(new)
    else:
        rows_of, ours = _stored(new, columns, reader), [*new]
        given = sum(part.rows for part in new)
    ids = {id(part) for part in ours}
    passed = 0
    for each in replace(present, base=(*present.base, *ours)).slices_within(reader.rewrite_slice_bytes):
        there = [each.empty(columns), *rows_of(each)]
        passed += sum(map(len, there))
        base = [part for part in each.base if id(part) not in ids]
        read = [*each.base_rows(reader, columns, base), *each.updates(reader, columns)]
        here = negated(pa.concat_tables([each.empty(columns), *read]))
        yield consolidate(
            pa.concat_tables(without_pairs(pa.concat_tables(there), here, schema.key_names)), schema.names
        )
    if passed != given:
        raise InvalidUsage(
            f"where={present.filter} is not true for {given - passed:,} of the {given:,} rows, so they would come "
            "beside what is there and not in its place: leave them out, or widen the filter. Nothing was written."
        )


RowsOf: TypeAlias = Callable[[Scan], list[pa.Table]]  # Those of the new rows in a slice that pass its filter.


def _stored(new: Sequence[Part], columns: Sequence[str], reader: PartReader) -> RowsOf:
    ids = {id(part) for part in new}
    return lambda each: [*each.base_rows(reader, columns, [part for part in each.base if id(part) in ids])]


def _held(new: pa.Table, present: Scan, slice_bytes: int) -> tuple[RowsOf, list[Part]]:
    """Return how to take slices of rows in memory, and what stands for them where slices are cut."""
    schema = present.schema
    if not len(new) or present.memory + new.nbytes <= 2 * slice_bytes:  # There will be one slice.
        return (lambda each: [_passing(new, each)]), []
    order = int64_values(sort_indices(new, schema.key_names))
    is_sorted = bool((np.diff(order) == 1).all())
    keys = new.select([*schema.key_names])
    if not is_sorted:
        keys = keys.take(int64_array(order))

    def rows_of(each: Scan) -> list[pa.Table]:
        start, end = each.keys.rows(keys, schema) if schema.key_names else (0, len(new))
        rows = new.slice(start, end - start) if is_sorted else new.take(int64_array(order[start:end]))
        return [_passing(rows, each)]

    return rows_of, [describe_held(keys, int(new.nbytes), schema)]


def _passing(rows: pa.Table, each: Scan) -> pa.Table:
    return rows if each.filter is None else rows.filter(each.filter)
