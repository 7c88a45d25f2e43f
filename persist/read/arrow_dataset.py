"""A result as a dataset of PyArrow, so that DuckDB, Polars and whoever knows datasets read only what they need.

Such libraries call `scanner` with the columns and the filter that their query needs, and get a scanner over what is
left then. This module imports pyarrow.dataset, which imports pandas where there is one: import it where it is used.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from persist.blob import InvalidUsage

# Yields the batches of some columns (None: all) in which only rows are that pass a filter, if there is one.
Narrowed = Callable[[Sequence[str] | None, pc.Expression | None], Iterator[pa.RecordBatch]]


class ResultDataset(ds.Dataset):  # type: ignore[misc]  # pyarrow comes without types.
    """Reads a result anew for each scan; it keeps what the result keeps. It has no fragments."""

    def __init__(self, schema: pa.Schema, narrowed: Narrowed) -> None:
        # Not super().__init__(), which forbids to make one: libraries only ask whether it is a Dataset.
        self._result_schema = schema
        self._narrowed = narrowed

    @property
    def schema(self) -> pa.Schema:
        """The columns of the result."""
        return self._result_schema

    def scanner(
        self,
        columns: Sequence[str] | dict[str, pc.Expression] | None = None,
        filter: pc.Expression | None = None,
        **options: Any,
    ) -> ds.Scanner:
        """Return what reads some columns of the rows that pass a filter, once; options are those of PyArrow's."""
        # What a computed column is computed from, an expression does not say.
        wanted = columns if columns and not isinstance(columns, dict) else None
        schema = self.schema if wanted is None else pa.schema([self.schema.field(name) for name in wanted])
        reader = pa.RecordBatchReader.from_batches(schema, self._narrowed(wanted, filter))
        known = {name: value for name, value in options.items() if name in ("batch_size", "use_threads", "memory_pool")}
        return ds.Scanner.from_batches(reader, columns=columns, **known)

    def to_table(self, columns: Any = None, filter: pc.Expression | None = None, **options: Any) -> pa.Table:
        """Return some columns of the rows that pass a filter."""
        return self.scanner(columns, filter, **options).to_table()

    def to_batches(
        self, columns: Any = None, filter: pc.Expression | None = None, **options: Any
    ) -> Iterator[pa.RecordBatch]:
        """Yield some columns of the rows that pass a filter."""
        return iter(self.scanner(columns, filter, **options).to_reader())

    def head(self, num_rows: int, columns: Any = None, filter: pc.Expression | None = None, **options: Any) -> pa.Table:
        """Return the first rows that pass a filter."""
        return self.scanner(columns, filter, **options).head(num_rows)

    def count_rows(self, filter: pc.Expression | None = None, **options: Any) -> int:
        """Return how many rows pass a filter."""
        return int(self.scanner([*self.schema.names[:1]], filter, **options).count_rows())

    def filter(self, expression: pc.Expression) -> "ResultDataset":
        """Return the dataset of the rows that pass a filter."""

        def narrowed(columns: Sequence[str] | None, also: pc.Expression | None) -> Iterator[pa.RecordBatch]:
            return self._narrowed(columns, expression if also is None else expression & also)

        return ResultDataset(self.schema, narrowed)

    def get_fragments(self, filter: pc.Expression | None = None) -> Iterator[Any]:
        raise InvalidUsage("this dataset has no fragments: its rows are those of files merged. Use scanner().")

    def replace_schema(self, schema: pa.Schema) -> Any:
        raise InvalidUsage("this dataset has the columns of its collection; cast what you read from it")

    def __reduce__(self) -> Any:
        raise InvalidUsage("this dataset reads through an open client and cannot be pickled; open one in each process")
