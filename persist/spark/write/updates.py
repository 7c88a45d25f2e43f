"""How the rows of a DataFrame become updates: where their times and diffs come from.

    _time and _diff are columns        they are the updates
    one time for all rows              plain rows, inserted; or with a column _diff
    a column of event times            likewise; a long as it is, a timestamp in units since 1970-01-01T00:00Z

Where the collection has a timeline, timestamps are its times, in `_time` as in any other column, and exactly: what its
unit cannot hold is refused. Without one, timestamps of events are rounded down to the unit that is asked for.

A diff of 0 says nothing, and is refused: it is most often a mistake in what made it.
"""

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from pyspark.sql.types import StructType

from persist.codecs import CollectionSchema, to_updates
from persist.errors import InvalidUpdate, InvalidUsage, SchemaMismatch
from persist.spark.types import as_collection_expects, utc_arrow_schema
from persist.timeline import timeline_of

UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}  # In a second.


@dataclass(frozen=True)
class Rows:
    """What rows mean.

    Attributes:
        time: of every row, if neither `_time` nor column says it.
        column: whose values are the times; stored too if the collection has a column of that name.
        unit: of the times, where column holds timestamps and the collection has no timeline; None is "us".
    """

    schema: CollectionSchema
    time: int | None = None
    column: str | None = None
    unit: str | None = None

    def check(self, schema: StructType) -> None:
        """Check the columns of a DataFrame before any of its rows is made.

        Raises:
            SchemaMismatch: they do not fit the collection.
            InvalidUsage: they contradict the options.
        """
        names = schema.names
        if "_time" in names and (self.time is not None or self.column is not None):
            other = "the option time" if self.column is None else f"timeColumn={self.column!r}"
            raise InvalidUsage(
                f"the DataFrame has a column _time, and {other} says the times, too. Drop the column, or the option."
            )
        if self.column is not None and self.column not in names:
            raise SchemaMismatch(
                f"{self.column!r}, which is to say the times, is not a column of the DataFrame, which has {names}. A "
                "time that all rows have is a number, or a moment such as 2026-11-20T12:00:00Z."
            )
        self.updates(utc_arrow_schema(schema).empty_table())

    def updates(self, table: pa.Table) -> pa.Table:
        """Return rows as a table of updates; raises what `to_updates` raises, and InvalidUpdate for a diff of 0."""
        if self.column is not None:
            table = self._with_times(table, self.column)
        _check_diffs(table)
        table = as_collection_expects(table, self.schema.arrow)
        plain = self.time is not None or self.column is not None
        return to_updates(
            table,
            self.schema,
            default_time=self.time,
            default_diff=1 if plain else None,
            moments=timeline_of(self.schema),
        )

    def _with_times(self, table: pa.Table, column: str) -> pa.Table:
        values = table.column(column)
        if values.null_count:
            row = pc.index(values.is_null(), True).as_py()
            raise InvalidUpdate(
                f"row {row} has NULL in {column!r}, which says its time: every update needs one. Fill it in."
            )
        times = self._times(values, column)
        if column not in self.schema.names:
            table = table.drop_columns([column])
        return table.append_column("_time", times)

    def _times(self, values: pa.ChunkedArray, column: str) -> pa.ChunkedArray:
        if pt.is_integer(values.type):
            return values.cast(pa.int64())
        timeline = timeline_of(self.schema)
        if timeline is not None:
            if self.unit not in (None, timeline.unit):
                raise InvalidUsage(
                    f"timeUnit={self.unit!r} is another unit than {timeline.unit!r}, in which the collection's times "
                    "count: leave it out"
                )
            times = timeline.column_of_times(values, column)
            if pt.is_integer(times.type):
                return times
        if not pt.is_timestamp(values.type):
            raise SchemaMismatch(
                f"timeColumn={column!r} is {values.type}: times come from a column of integers or of timestamps"
            )
        micros = values.cast(pa.timestamp("us", values.type.tz)).cast(pa.int64())
        per_s = UNITS[self.unit or "us"]
        if per_s >= 10**6:
            try:
                return pc.multiply_checked(micros, per_s // 10**6)
            except pa.ArrowInvalid as error:
                raise InvalidUpdate(
                    f"{column!r} has times that do not fit timeUnit={self.unit!r}, which ends in 2262. Use 'us'."
                ) from error
        # Towards the past, also before 1970: what is too early must not become time 0.
        return pa.chunked_array([micros.to_numpy() // (10**6 // per_s)], pa.int64())


def _check_diffs(table: pa.Table) -> None:
    if "_diff" not in table.column_names or not pt.is_integer(table.column("_diff").type):
        return
    zero = pc.equal(table.column("_diff"), 0)
    if pc.any(zero).as_py():
        row = pc.index(zero.fill_null(False), True).as_py()
        raise InvalidUpdate(
            f"row {row} has _diff 0, which changes nothing: a diff is how often the record comes (above 0) or goes "
            '(below 0). Leave such rows out, for example with .where("_diff <> 0").'
        )
