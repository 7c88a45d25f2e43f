"""A result as a dataset of PyArrow, so that DuckDB, Polars and other libraries read only what they need.

Such libraries call `scanner` with the columns and the filter of their query, and get a scanner over the matching rows.
Calls of PyArrow's C++ bypass these methods: they fail, with the name of a missing file that points to the right call.
This module imports pyarrow.dataset, which imports pandas if it is installed: import it late.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow.fs import LocalFileSystem

from persist.blob.errors import InvalidUsage
from persist.codecs.errors import SchemaMismatch, did_you_mean
from persist.codecs.part.filters import bind_filter
from persist.codecs.part.lending import delay_exit, stop_at_exit
from persist.engine.read.planning.scan import refuse_positions

# Yields batches of some columns (None: all) of the rows that pass a filter, if there is one.
Narrowed = Callable[[Sequence[str] | None, pc.Expression | None], Iterator[pa.RecordBatch]]


_USE = "read it with to_table(), to_batches() or scanner(), or give their result to what wants a dataset"


# The path at which C++ looks for the rows; its error shows it. A Python file that raises would keep the interpreter's
# modules alive until after its end, and DuckDB complains then.
_NOWHERE = f"PyArrow cannot read this dataset by itself, because its rows are merged from files: {_USE}"


class ResultDataset(ds.UnionDataset):  # type: ignore[misc]  # pyarrow comes without types.
    """A dataset without fragments that reads a result anew for each scan.

    It is a UnionDataset, the only kind that a subclass can initialize; an uninitialized dataset crashes the process.
    """

    def __init__(self, schema: pa.Schema, narrowed: Narrowed) -> None:
        form = ds.IpcFileFormat()
        fragment = form.make_fragment(_NOWHERE, filesystem=LocalFileSystem())
        super().__init__(schema, [ds.FileSystemDataset([fragment], schema, form)])
        self._narrowed = narrowed

    def scanner(
        self,
        columns: Sequence[str] | dict[str, pc.Expression] | None = None,
        filter: pc.Expression | None = None,
        **options: Any,
    ) -> ds.Scanner:
        """Return a scanner of some columns of the rows that pass a filter, for one scan; options are PyArrow's."""
        self._check_request(columns, filter)
        # Computed columns may need any column: Arrow does not list the columns of an expression.
        names = columns if columns and not isinstance(columns, dict) else None
        schema = self.schema if names is None else pa.schema([self.schema.field(name) for name in names])
        reader = pa.RecordBatchReader.from_batches(schema, stop_at_exit(self._narrowed(names, filter)))
        scan_options = {
            name: value for name, value in options.items() if name in ("batch_size", "use_threads", "memory_pool")
        }
        return ds.Scanner.from_batches(reader, columns=columns, **scan_options)

    def to_table(self, columns: Any = None, filter: pc.Expression | None = None, **options: Any) -> pa.Table:
        """Return some columns of the rows that pass a filter."""
        with delay_exit():
            return self.scanner(columns, filter, **options).to_table()

    def to_batches(
        self, columns: Any = None, filter: pc.Expression | None = None, **options: Any
    ) -> Iterator[pa.RecordBatch]:
        """Yield some columns of the rows that pass a filter."""
        return iter(self.scanner(columns, filter, **options).to_reader())

    def head(self, num_rows: int, columns: Any = None, filter: pc.Expression | None = None, **options: Any) -> pa.Table:
        """Return the first rows that pass a filter."""
        with delay_exit():
            return self.scanner(columns, filter, **options).head(num_rows)

    def take(self, indices: Any, columns: Any = None, filter: pc.Expression | None = None, **options: Any) -> pa.Table:
        """Return rows by their positions among the rows that pass a filter, in the order of reading."""
        scanner = self.scanner(columns, filter, **options)
        try:
            with delay_exit():
                return scanner.take(indices)
        except (pa.ArrowIndexError, pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
            raise InvalidUsage(
                f"take({indices!r:.80}) is not possible: {error}. Give positions among the rows of the result as whole "
                "numbers from 0 to less than count_rows()"
            ) from error

    def count_rows(self, filter: pc.Expression | None = None, **options: Any) -> int:
        """Return how many rows pass a filter."""
        with delay_exit():
            return int(self.scanner([*self.schema.names[:1]], filter, **options).count_rows())

    def filter(self, expression: pc.Expression) -> "ResultDataset":
        """Return the dataset of the rows that pass a filter."""
        self._check_request(None, expression)

        def narrowed(columns: Sequence[str] | None, also: pc.Expression | None) -> Iterator[pa.RecordBatch]:
            return self._narrowed(columns, expression if also is None else expression & also)

        return ResultDataset(self.schema, narrowed)

    def sort_by(self, sorting: str | list[tuple[str, str]], **options: Any) -> ds.InMemoryDataset:
        """Return all rows in an order, in memory."""
        self._check_request([sorting] if isinstance(sorting, str) else [name for name, _ in sorting], None)
        return ds.InMemoryDataset(self.to_table().sort_by(sorting, **options))

    def join(self, right_dataset: ds.Dataset, *args: Any, **options: Any) -> ds.InMemoryDataset:
        """Return the join with another dataset, in memory; arguments as in PyArrow."""
        return _load_dataset(self).join(_load_dataset(right_dataset), *args, **options)

    def join_asof(self, right_dataset: ds.Dataset, *args: Any, **options: Any) -> ds.InMemoryDataset:
        """Return the join with the nearest rows of another dataset, in memory; arguments as in PyArrow."""
        return _load_dataset(self).join_asof(_load_dataset(right_dataset), *args, **options)

    def _check_request(
        self, columns: Sequence[str] | dict[str, pc.Expression] | None, filter: pc.Expression | None
    ) -> None:
        """Check columns and filter against the result before anything is read."""
        if isinstance(columns, str) or not (columns is None or isinstance(columns, Sequence | dict)):
            raise InvalidUsage(f"columns={columns!r:.80} is neither a list of names nor a dict of expressions")
        if columns is not None and not isinstance(columns, dict):
            for at, name in enumerate(columns):
                if name not in self.schema.names:
                    hint = did_you_mean(name, self.schema.names) or ","
                    raise SchemaMismatch(f"the result has no column {name!r}{hint} it has {self.schema.names}")
                if name in columns[:at]:
                    raise SchemaMismatch(f"column {name!r} is requested twice")
        try:
            if isinstance(columns, dict):
                ds.Scanner.from_batches([], schema=self.schema, columns=columns)
            if filter is not None:
                refuse_positions(filter)
                bind_filter(filter, self.schema)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise InvalidUsage(
                f"the filter or the expressions do not fit the columns {self.schema.names}: {error}"
            ) from error

    def get_fragments(self, filter: pc.Expression | None = None) -> Iterator[Any]:
        raise InvalidUsage(f"this dataset has no fragments, because its rows are merged from files: {_USE}")

    _get_fragments = get_fragments

    @property
    def children(self) -> Any:
        """The children of the union: none."""
        raise InvalidUsage(f"this dataset has no children, because its rows are merged from files: {_USE}")

    def replace_schema(self, schema: pa.Schema) -> Any:
        raise InvalidUsage(f"this dataset keeps the columns of its result. To cast them, {_USE}")

    def __reduce__(self) -> Any:
        raise InvalidUsage("this dataset reads through an open client and cannot be pickled; open one in each process")


def _load_dataset(dataset: ds.Dataset) -> ds.Dataset:
    """Return a dataset in memory if it is a result; otherwise unchanged."""
    return ds.InMemoryDataset(dataset.to_table()) if isinstance(dataset, ResultDataset) else dataset
