"""The base class of results: conversions to Arrow, pandas, Polars and record batches."""

import re
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from persist.blob.errors import InvalidUsage
from persist.codecs.part.filters import add_both_zeros
from persist.codecs.types.sql_names import check_sql_names
from persist.codecs.types.values import to_python_type
from persist.core.closing import Closes
from persist.core.progress import report_work
from persist.core.rendering import Completed, ShownByRepr
from persist.engine.read.parts.reader import ClaimedRead
from persist.engine.read.planning.scan import make_rows_without_columns
from persist.engine.read.results.frames import DtypeBackend, to_frame, to_milliseconds

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

BATCH_ROWS_MAX = 128 * 1024
WHOLE_NUMBERS = pa.decimal128(38, 0)  # The type of a sum of integers: exact, however many there are.


class ArrowResult(Closes, ShownByRepr, Completed):
    """Base of results that can be read as Arrow; subclasses yield tables of bounded size.

    An open result protects its data from deletion: close it, use it in a `with`, or drop it.
    """

    _INTERNAL = frozenset({"read_narrowed"})

    def __init__(self, reading: ClaimedRead) -> None:
        self._reading = reading

    def close(self) -> None:
        """Release the claim on the data; idempotent. A later read is an error."""
        self._reading.close()

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the result."""
        raise NotImplementedError

    def _read(self) -> Iterator[pa.Table]:
        """Yield the whole result as tables of bounded size; subclasses implement this."""
        raise NotImplementedError

    def _tables(self) -> Generator[pa.Table, None, None]:
        """Yield the tables of `_read`, with progress reports and explained errors."""
        with self._reading.explain_missing(), report_work("read", self._reading.name, streams=True) as done:
            for table in self._read():
                done(table.num_rows)
                yield table

    def to_arrow(self) -> pa.Table:
        """Return the whole result as one table."""
        tables = [table for table in self._tables() if table.num_rows]
        if not len(self.schema):
            return make_rows_without_columns(sum(table.num_rows for table in tables))
        if not tables:
            return self.schema.empty_table()
        table = pa.concat_tables(tables)
        return pa.Table.from_arrays([_drop_empty_chunks(column) for column in table.columns], schema=table.schema)

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the result in record batches. Memory: one slice of the key space, not the whole result."""
        for table in self._tables():
            yield from table.to_batches(max_chunksize=BATCH_ROWS_MAX)

    def to_pandas(self, *, dtype_backend: DtypeBackend | None = None, **options: Any) -> "pd.DataFrame":
        """Return the whole result as a `pandas.DataFrame`. No value changes on the way.

        A sum of integers, which is stored as decimal(38, 0), is int64 if all of its values fit.

        Args:
            dtype_backend: as in pandas: "numpy_nullable" or "pyarrow". None means NumPy's types, and pandas' nullable
                types for integers and booleans with NULLs. A NULL among floats then becomes NaN, as everywhere in
                pandas; "pyarrow" distinguishes both.
            options: for `pyarrow.Table.to_pandas`, such as `types_mapper` or `split_blocks`.
        """
        require_package("pandas>=2.2")
        keeps_types = dtype_backend == "pyarrow" or "types_mapper" in options
        table = self.to_arrow()
        return to_frame(table if keeps_types else cast_whole_to_int64(table), dtype_backend, options)

    def to_polars(self) -> "pl.DataFrame":
        """Return the whole result as a `polars.DataFrame`. No value changes on the way; sums are as in `to_pandas`.

        Raises:
            InvalidUsage: a moment or duration does not fit Polars, whose largest unit is a millisecond; or there is a
                decimal of 256 bits.
        """
        polars = require_package("polars>=1.36")
        return polars.from_arrow(to_milliseconds(cast_whole_to_int64(self.to_arrow())))

    def to_pylist(self) -> list[dict[str, Any]]:
        """Return the whole result as a dict for each row.

        Raises:
            InvalidUsage: Python has no object for a value, such as a moment after the year 9999.
        """
        return to_python_dicts(self.to_arrow())

    def head(self, rows: int = 5) -> pa.Table:
        """Return the first rows, or all if there are fewer. As few parts as possible are read."""
        if not isinstance(rows, int) or isinstance(rows, bool) or rows < 0:
            raise InvalidUsage(f"head({rows!r}) is not a number of rows: give 0 or more")
        slices: list[pa.Table] = []
        rows_left = rows
        with closing(self._tables()) as tables:
            while rows_left > 0 and (table := next(tables, None)) is not None:
                slices.append(table.slice(0, rows_left))
                rows_left -= len(slices[-1])
        return pa.concat_tables(slices) if slices else self.schema.empty_table()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Iterate over `to_batches`."""
        return self.to_batches()

    def __len__(self) -> int:
        """Return the number of rows, by reading them in batches."""
        return sum(table.num_rows for table in self._tables())

    def __bool__(self) -> bool:
        """Return True, because an `if` should not read a store."""
        return True

    def read_narrowed(self, columns: Sequence[str] | None, filter: pc.Expression | None) -> Iterator[pa.RecordBatch]:
        """Yield some columns (None: all) of the rows that pass a filter.

        Parts without such rows are not read. Unneeded columns are not decoded, unless this would make rows equal.
        """
        names = self.schema.names if columns is None else [*columns]
        filter = None if filter is None else add_both_zeros(filter)
        for table in self._read_narrowed(names, filter):
            if table.num_rows:
                yield from table.select(names).to_batches(max_chunksize=BATCH_ROWS_MAX)

    def _read_narrowed(self, columns: Sequence[str], filter: pc.Expression | None) -> Iterator[pa.Table]:
        """Yield tables with at least these columns, of the rows that pass a filter."""
        for table in self._tables():
            yield table if filter is None else table.filter(filter)

    def lazy(self) -> "pl.LazyFrame":
        """Return a `polars.LazyFrame`: a query on it reads only the columns that it needs, of parts that may match.

        Each `collect` reads again; keep this result open until then.
        """
        polars = require_package("polars>=1.36")
        from persist.engine.read.results.frames import make_lazy_frame

        return make_lazy_frame(polars, self.schema, self.read_narrowed)

    def dataset(self) -> Any:
        """Return a `pyarrow.dataset.Dataset` that reads only requested columns and parts; as `lazy`."""
        from persist.engine.read.results.dataset import ResultDataset

        return ResultDataset(self.schema, self.read_narrowed)

    def duckdb(self, connection: Any, name: str) -> Any:
        """Register this with a connection of DuckDB as a view, and return its relation.

        A query reads only the columns that it needs, of parts that may match. Keep this result open as long as the view
        is used.

        Raises:
            InvalidUsage: two columns differ only in case, which DuckDB ignores.
        """
        if not hasattr(connection, "register"):
            raise InvalidUsage(
                f"{connection!r} is not a connection of DuckDB: give duckdb.connect(), and a name for the view"
            )
        check_sql_names(name, self.schema)
        connection.register(name, self.dataset())
        return connection.table(name)

    def __array__(self, *args: object, **options: object) -> Any:
        """Raise InvalidUsage, because NumPy and `pandas.DataFrame(result)` would make an array of batches."""
        raise make_array_error(self)

    def __contains__(self, key: object) -> bool:
        """Raise InvalidUsage, because `in` would read all batches."""
        raise make_membership_error(self, key)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Export the result as an Arrow stream, for `pl.DataFrame(result)`, DuckDB and others."""
        reader = pa.RecordBatchReader.from_batches(self.schema, self.to_batches())
        return reader.__arrow_c_stream__(requested_schema)


def make_array_error(result: object) -> InvalidUsage:
    """Return the error for a conversion of a result to a NumPy array."""
    return InvalidUsage(f"{type(result).__name__} is not an array of NumPy: use to_pandas(), or to_arrow() for columns")


def make_membership_error(result: object, key: object) -> InvalidUsage:
    """Return the error for `key in result`."""
    instead = f"get([{key!r:.100}])" if hasattr(result, "get") else "to_pylist()"
    return InvalidUsage(f"{type(result).__name__} has no `in`: use {instead}, which returns the rows")


def to_python_dicts(table: pa.Table) -> list[dict[str, Any]]:
    """Return a dict for each row; errors as of `ArrowResult.to_pylist`."""
    try:
        schema = pa.schema([field.with_type(to_python_type(field.type)) for field in table.schema])
        return cast_whole_to_int64(table if schema == table.schema else table.cast(schema)).to_pylist()  # type: ignore[no-any-return]
    except (pa.ArrowException, ValueError, OverflowError) as error:
        raise InvalidUsage(
            f'a value has no object in Python: {error}. Read it as Arrow; times also with times="int"'
        ) from error


def cast_whole_to_int64(table: pa.Table) -> pa.Table:
    """Cast columns of decimal(38, 0), the type of sums, to int64 if all values fit."""
    for at, field in enumerate(table.schema):
        if field.type == WHOLE_NUMBERS:
            with suppress(pa.ArrowInvalid):
                table = table.set_column(at, field.with_type(pa.int64()), table.column(at).cast(pa.int64()))
    return table


def _drop_empty_chunks(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pa.chunked_array([chunk for chunk in column.chunks if len(chunk)], column.type)


def require_package(requirement: str, module: str | None = None) -> Any:
    """Import an optional package; `requirement` is for pip, with extras and versions.

    `module`: the module to import, if it is not the first word of the requirement.

    Raises:
        InvalidUsage: it is not installed; the message has the command to install it.
    """
    package = module or re.split(r"\W", requirement)[0]
    try:
        return __import__(package)
    except ImportError as error:
        raise InvalidUsage(
            f"this needs the package {package}, which is not installed: pip install '{requirement}'"
        ) from error
