"""What turns the contents of one time into those of another."""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

import persist
from persist.codecs import consolidate


def difference(
    collection: "persist.Collection",
    first: int | str,
    second: int | str,
    *,
    columns: Sequence[str] | None,
    filter: pc.Expression | None,
) -> pa.Table:
    """Return the records that come or go between two times, each with `_diff`. Memory: the updates between them.

    Raises:
        AsOfCompacted, AsOfNotSealed: one of the times cannot be read.
    """
    start, end = collection.as_time("T1", first), collection.as_time("T2", second)
    lower, upper = min(start, end) + 1, max(start, end) + 1
    with collection.changes(lower, upper, columns=columns, filter=filter, timeout_s=0) as updates:
        table = updates.to_arrow().drop_columns("_time")
    names = [name for name in table.column_names if name != "_diff"]
    table = consolidate(table, names)
    if start > end:
        table = table.set_column(table.column_names.index("_diff"), "_diff", pc.negate_checked(table["_diff"]))
    return table
