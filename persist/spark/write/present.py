"""What is there before a commit that replaces or deletes it: the records that a condition is true for, retracted."""

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from persist.errors import InvalidUsage
from persist.sink import PlannedWrite
from persist.spark.data_source import source_reader
from persist.spark.options.write import WriteOptions
from persist.spark.write.overwrite import present_time


@dataclass(frozen=True)
class Condition:
    """Which records are meant: those for which it is true, and neither false nor NULL.

    Attributes:
        text: it, for messages and for the digest of what a token names.
    """

    column: Column
    text: str

    @classmethod
    def of(cls, given: str | Column) -> "Condition":
        """Return a condition from SQL text or a column."""
        if isinstance(given, str) and given.strip():
            return cls(F.expr(given), given)
        if isinstance(given, Column):
            return cls(given, str(given))
        raise InvalidUsage(f'{given!r:.80} is no condition: give SQL text such as "amount > 5", or a column of Spark')

    def raised(self, df: DataFrame) -> Column:
        """Return a column of longs that fails the task, naming a row of df for which this is not true."""
        said = (
            f"persist.InvalidUsage: where={self.text} is not true for all rows of the DataFrame, so they would come "
            "beside what is there and not in its place: leave them out, or widen the condition. Nothing was written. "
            "One of them is "
        )
        row = F.to_json(F.struct(*(F.col("`" + name.replace("`", "``") + "`") for name in df.columns)))
        return F.raise_error(F.concat(F.lit(said), row)).cast("long")


def retracted(
    spark: SparkSession, planned: PlannedWrite, options: WriteOptions, condition: Condition | None = None
) -> DataFrame | None:
    """Return the records of the last sealed time, those that fulfil a condition, with the opposite of their diffs.

    Each is there once, or twice where the opposite is none. None if nothing was sealed yet.
    """
    as_of = present_time(planned)
    if as_of is None:
        return None
    storage = {f"storage.{name}": value for name, value in options.storage.items()}
    reader = source_reader(spark).options(collection=options.collection, as_of=as_of, form="diff", **storage)
    present = reader.load(options.location)
    if condition is not None:
        present = present.where(condition.column)
    # The least diff has no opposite: as two halves.
    halves = F.when(F.col("_diff") == -(2**63), F.array(F.lit(2**62), F.lit(2**62))).otherwise(F.array(-F.col("_diff")))
    return present.withColumn("_diff", F.explode(halves))
