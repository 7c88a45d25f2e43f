"""The ways to take a result away: Arrow, pandas, Polars, or an iterator of record batches."""

from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from persist.blob import InvalidUsage
from persist.read.claimed_read import ClaimedRead
from persist.read.pandas_frame import DtypeBackend, to_frame

BATCH_ROWS_MAX = 128 * 1024


class ArrowResult:
    """Base of everything that can be read as Arrow; subclasses yield tables, each of bounded size.

    While it is open, what it reads is kept: close it, use it in a `with`, or drop it.
    """

    def __init__(self, reading: ClaimedRead) -> None:
        self._reading = reading

    def close(self) -> None:
        """Let go of what this reads; idempotent. Reading it again is an error."""
        self._reading.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the result."""
        raise NotImplementedError

    def _read(self) -> Iterator[pa.Table]:
        raise NotImplementedError

    def _tables(self) -> Iterator[pa.Table]:
        with self._reading.explained():
            yield from self._read()

    def to_arrow(self) -> pa.Table:
        """Return the whole result as one table."""
        tables = list(self._tables())
        if not len(self.schema):
            return rows_without_columns(sum(table.num_rows for table in tables))
        return pa.concat_tables([self.schema.empty_table(), *tables])

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the result in record batches. Memory: one slice of the key space, not the whole result."""
        for table in self._tables():
            yield from table.to_batches(max_chunksize=BATCH_ROWS_MAX)

    def to_pandas(self, *, dtype_backend: DtypeBackend | None = None, **options: Any) -> Any:
        """Return the whole result as a `pandas.DataFrame`. No value changes on the way.

        Args:
            dtype_backend: as in pandas: "numpy_nullable" or "pyarrow". None means NumPy's types, and pandas' nullable
                ones for integers and booleans among which there are NULLs. A NULL among floats is NaN then, as
                everywhere in pandas; "pyarrow" tells them apart.
            options: for `pyarrow.Table.to_pandas`, such as `types_mapper` or `split_blocks`.
        """
        _require("pandas")
        return to_frame(self.to_arrow(), dtype_backend, options)

    def to_polars(self) -> Any:
        """Return the whole result as a `polars.DataFrame`."""
        return _require("polars").from_arrow(self.to_arrow())

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Export the result as an Arrow stream, so that `pl.DataFrame(result)` or DuckDB take it directly."""
        reader = pa.RecordBatchReader.from_batches(self.schema, self.to_batches())
        return reader.__arrow_c_stream__(requested_schema)


def rows_without_columns(rows: int) -> pa.Table:
    """Return a table of that many rows and no column, which Arrow makes only by a detour."""
    return pa.Table.from_struct_array(pa.StructArray.from_buffers(pa.struct([]), rows, [None]))


def _require(package: str) -> Any:
    try:
        return __import__(package)
    except ImportError as error:
        raise InvalidUsage(
            f"this needs the package {package}, which is not installed. pip install 'persist-collections[{package}]'"
        ) from error
