"""Reads moments that Parquet stores as INT96, as written by Spark 2, Hive and Impala.

Arrow reads them in one unit, and wraps moments out of its range around. So they are read twice: in microseconds, which
cover 290,000 years, and in nanoseconds. Both agree unless a moment is finer than a microsecond.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from persist.blob.errors import InvalidUsage
from persist.codecs.types.arrow_types import iterate_leaf_arrays

_NS_YEARS = 9_223_372_036_854_775  # Microseconds before and after 1970 that int64 holds in nanoseconds.


def read_schema(stream: Any) -> pa.Schema:
    """Return the schema of a Parquet file, with INT96 in microseconds."""
    schema: pa.Schema = _open_file(stream, "us").schema_arrow
    return schema


def read_batches(stream: Any) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a Parquet file, with INT96 in an exact unit."""
    file = _open_file(stream, "us")
    if all(file.schema.column(at).physical_type != "INT96" for at in range(len(file.schema))):
        yield from file.iter_batches()
        return
    row = 0
    for coarse, fine in zip(file.iter_batches(), _open_file(stream, "ns").iter_batches(), strict=True):
        names = coarse.schema.names
        columns = [
            _choose_exact(*pair, name, row) for pair, name in zip(zip(coarse, fine, strict=True), names, strict=True)
        ]
        row += coarse.num_rows
        yield pa.RecordBatch.from_arrays(columns, names)


def _choose_exact(coarse: pa.Array, fine: pa.Array, name: str, row: int) -> pa.Array:
    """Return the column in microseconds, or in nanoseconds if only that loses nothing."""
    if coarse.type == fine.type:
        return coarse
    is_fine = is_far = False
    for in_us, in_ns in zip(iterate_leaf_arrays(coarse), iterate_leaf_arrays(fine), strict=True):
        if in_us.type != in_ns.type:
            micros, nanos = (leaf.drop_null().view(pa.int64()).to_numpy() for leaf in (in_us, in_ns))
            is_fine |= bool((nanos != micros * 1000).any())  # Both wrap around alike.
            is_far |= bool((np.abs(micros) > _NS_YEARS).any())
    if is_fine and is_far:
        raise InvalidUsage(
            f"column {name!r} has, in the rows from {row + 1} to {row + len(coarse)}, a moment of INT96 finer than a "
            "microsecond and one outside of 1677 to 2262, which no type of timestamps holds together"
        )
    return fine if is_fine else coarse


def _open_file(stream: Any, unit: str) -> Any:
    """Open a Parquet file, with INT96 read in a unit."""
    import pyarrow.parquet as pq

    return pq.ParquetFile(stream, coerce_int96_timestamp_unit=unit)
