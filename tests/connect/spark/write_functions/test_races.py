"""An overwrite or a deletion without a time is made again if others come first; one with a time is refused."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import persist
import persist.spark

QUIET = persist.Settings(background=False)


@pytest.fixture
def location(tmp_path: Path) -> str:
    location = str(tmp_path / "data")
    with persist.open(location, settings=QUIET) as client:
        c = client.create_or_load("c", key={"k": pa.int64()}, value={"v": pa.string()})
        c.write([(1, "a"), (2, "b")], time=5, seal=6).result()
    return location


def overtaken(spark: SparkSession, location: str, upper: int, *columns: str) -> DataFrame:
    """Return a row of which the computation lets somebody else write, if the upper is still that."""

    def row(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            with persist.open(location, settings=QUIET) as other:
                theirs = other.load("c")
                if theirs.upper == persist.Antichain(upper):
                    theirs.write([(9, "theirs")]).result()
            yield pa.record_batch({"k": batch["id"], "v": pa.array(["mine"] * len(batch))}).select([*columns])

    kinds = {"k": "k long", "v": "v string"}
    return spark.range(2, 3, numPartitions=1).mapInArrow(row, ", ".join(kinds[name] for name in columns))


def contents(location: str) -> list[Any]:
    with persist.open(location, mode="read") as client:
        return sorted(client.load("c").snapshot().rows())


@pytest.mark.thorough
def test_an_overwrite_or_a_deletion_without_a_time_is_made_again_if_another_comes_first(
    spark: SparkSession, location: str
) -> None:
    persist.spark.write(overtaken(spark, location, 6, "k", "v"), location, "c", mode="overwrite", token="mine")
    assert contents(location) == [(2, "mine")], "theirs was there at 6, and is replaced at 7"
    writer = overtaken(spark, location, 8, "k", "v").write.format("persist").option("collection", "c")
    writer.mode("overwrite").save(location)
    assert contents(location) == [(2, "mine")]
    persist.spark.delete(spark, location, "c", overtaken(spark, location, 10, "k"))
    assert contents(location) == [(9, "theirs")], "it was not there when the keys were read"
    with pytest.raises(persist.errors.UpperMismatch):
        persist.spark.write(overtaken(spark, location, 12, "k", "v"), location, "c", mode="overwrite", time=12)
    assert contents(location) == [(9, "theirs"), (9, "theirs")]
