"""A batch write of a DataFrame as planned on the driver: the write of its tasks, and what its rows mean."""

from dataclasses import dataclass

from pyspark.sql.types import StructType

from persist.errors import InvalidUsage
from persist.expression import parse_where
from persist.sink import PlannedWrite
from persist.spark.options.write import WriteOptions
from persist.spark.write.updates import Rows


@dataclass(frozen=True)
class DataFrameWrite:
    """A batch write of rows."""

    planned: PlannedWrite
    rows: Rows

    @classmethod
    def append(cls, options: WriteOptions, schema: StructType) -> "DataFrameWrite":
        """Plan to append, and check what can be checked before any task starts.

        Raises:
            CollectionNotFound, SchemaMismatch, UpdateNotBeyondUpper, FrontierRegression, InvalidUsage.
        """
        if options.column is not None and options.time is not None:
            raise InvalidUsage(f"time={options.time!r} and timeColumn={options.column!r} both say the times: give one")
        return cls._checked(PlannedWrite.append(options), schema, options.column)

    @classmethod
    def overwrite(cls, options: WriteOptions, schema: StructType, where: str | None = None) -> "DataFrameWrite":
        """Plan to write what makes the contents those of a DataFrame: by default at upper, sealed.

        Args:
            where: the text of a condition: only records that fulfil it are replaced.

        Raises:
            UpdatesBeyondUpper: somebody appends to the collection.
            CollectionNotFound, SchemaMismatch, UpdateNotBeyondUpper, FrontierRegression, InvalidUsage.
        """
        if taken := sorted({"_time", "_diff"} & set(schema.names)):
            raise InvalidUsage(
                f'mode "overwrite" takes the rows that are to be there, and the DataFrame has {" and ".join(taken)}. '
                'Drop these columns, and say the time with the option time; or use mode "append" for updates.'
            )
        if options.column is not None:
            raise InvalidUsage(
                f"timeColumn={options.column!r} does not go with overwriting: the difference is at one time"
            )
        planned = PlannedWrite.overwrite(options, where)
        if options.where is not None:  # Read it here, before any task starts.
            parse_where(options.where, planned.target.schema)
        return cls._checked(planned, schema, None)

    @classmethod
    def _checked(cls, planned: PlannedWrite, schema: StructType, column: str | None) -> "DataFrameWrite":
        if planned.target.keyed is not None:
            raise InvalidUsage(
                f"the collection {planned.target.name!r} is keyed, so only events change it: give them with "
                'option("mode", "upsert"), or with persist.spark.upsert(df, …); delete keys with persist.spark.delete'
            )
        rows = Rows(planned.target.schema, planned.time, column)
        rows.check(schema)
        planned.check()
        return cls(planned, rows)
