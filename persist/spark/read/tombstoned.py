"""Tombstones in Spark's own scan: what leaves them out, as a condition on one column.

Rows are left out one by one, whatever their diffs: so it makes no difference whether they are before or after others
are summed up, and a key of which there is nothing but tombstones is touched by nothing.
"""

from dataclasses import dataclass

import pyarrow.compute as pc
import pyarrow.types as pat
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from persist.codecs import CollectionSchema
from persist.log import KeyedForm
from persist.read import Scan
from persist.spark.types import quoted
from persist.state import CollectionState, form_in
from persist.upsert import live_filter


@dataclass(frozen=True)
class Tombstoned:
    """Which rows are tombstones, of collections that have some; all rows are live without a form.

    Attributes:
        column: that says so; None where there is none.
    """

    schema: CollectionSchema
    form: KeyedForm | None

    @classmethod
    def of(cls, contents: CollectionState, schema: CollectionSchema) -> "Tombstoned":
        """Return which rows of contents, read with a version of their schema, are tombstones."""
        form = form_in(contents, schema, resolves=False)
        return cls(schema, form if form is not None and form.tombstone is not None else None)

    @property
    def column(self) -> str | None:
        return None if self.form is None else self.form.tombstone

    @property
    def filter(self) -> pc.Expression | None:
        """What Arrow leaves tombstones out by; None where there is no such column."""
        return live_filter(self.schema, self.form)

    def is_all_of(self, scan: Scan) -> bool:
        """Tell whether a scan leaves tombstones out and nothing else."""
        live = self.filter
        if live is None or scan.filter is None:
            return live is None and scan.filter is None
        return bool(scan.filter.equals(live))

    def names(self, names: list[str]) -> list[str]:
        """Return names, and that of the column that says which rows are tombstones."""
        return names if self.column is None or self.column in names else [*names, self.column]

    def live(self, rows: DataFrame) -> DataFrame:
        """Return the rows of a DataFrame that has that column, without tombstones."""
        return rows if self.column is None else rows.where(self._is_live(F.col(quoted(self.column))))

    def _is_live(self, column: Column) -> Column:
        assert self.form is not None
        assert self.form.tombstone is not None
        if pat.is_boolean(self.schema.arrow.field(self.form.tombstone).type):
            return column.isNull() | (column == F.lit(False))
        if self.form.tombstone_value is not None:
            return column.isNull() | (column != F.lit(self.form.tombstone_value))
        return column.isNull()
