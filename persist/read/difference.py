"""The difference between the contents of a collection and other rows, slice by slice of the key space.

Both sides are cut together, so that a slice of the one has the same keys as that of the other. Memory: that of a slice
which is merged and encoded. Cost: reading both sides once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from persist.codecs import Part, consolidate
from persist.errors import InvalidUsage
from persist.read.part_reader import PartReader
from persist.read.scan import Scan, negated


def differences(present: Scan, new: Sequence[Part], reader: PartReader) -> Iterator[pa.Table]:
    """Yield what is to be added to the present contents so that they become the rows of parts that no record names.

    Columns: those of the collection and `_diff`, consolidated, in key order.

    Raises:
        InvalidUsage: the filter of the present contents is not true for some of the new rows.
        CorruptBlob, DiffOverflow, Unavailable.
    """
    names, columns = present.schema.names, [*present.schema.names, "_diff"]
    ours = {id(part) for part in new}
    passed = 0
    for each in replace(present, base=(*present.base, *new)).slices_within(reader.rewrite_slice_bytes):
        tables = [each.empty(columns)]
        for table in each.base_rows(reader, columns, [part for part in each.base if id(part) in ours]):
            passed += len(table)
            tables.append(table)
        tables += map(negated, each.base_rows(reader, columns, [part for part in each.base if id(part) not in ours]))
        tables += map(negated, each.updates(reader, columns))
        yield consolidate(pa.concat_tables(tables), names)
    given = sum(part.rows for part in new)
    if passed != given:
        raise InvalidUsage(
            f"where={present.filter} is not true for {given - passed:,} of the {given:,} distinct rows, so they would "
            "come beside what is there and not in its place: leave them out, or widen the filter. Nothing was written."
        )
