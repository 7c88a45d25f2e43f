"""A tag is a time for Spark, too: contents as of it, changes since it, and an error that names the tags there are."""

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import persist
import persist.spark
from persist.connect.spark.data_source.source import PersistDataSource
from tests.connect.spark.sessions import WAYS, read


@pytest.fixture
def location(tmp_path: Path) -> str:
    with persist.open(tmp_path, settings=persist.Settings(background=False)) as client:
        rows = client.create_or_load("rows", key={"k": int}, value={"v": int})
        for time in range(4):
            rows.write([((time, time), time, 1)], seal=time + 1).result()
        rows.tag("quarter-end", 1)
        rows.evolve(rename={"v": "w"})
        rows.allow_compaction(3).result()
        rows.compact()
    return str(tmp_path)


@pytest.mark.thorough(except_every=3)
@pytest.mark.parametrize("way", WAYS)
def test_contents_as_of_a_tag_outlive_compaction_and_a_rename(spark: SparkSession, location: str, way: str) -> None:
    found = read(spark, location, "rows", way, "quarter-end")
    assert sorted(tuple(row) for row in found.collect()) == [(0, 0), (1, 1)]
    assert found.columns == ["k", "w"]


@pytest.mark.thorough
def test_the_data_source_takes_tags_for_times(spark: SparkSession, location: str) -> None:
    spark.dataSource.register(PersistDataSource)
    reader = spark.read.format("persist").option("collection", "rows")
    assert reader.option("as_of", "quarter-end").load(location).count() == 2
    changes = spark.read.format("persist").option("collection", "rows").option("form", "changes")
    assert changes.option("start", 2).option("until", 4).load(location).count() == 2
    with pytest.raises(PySparkException, match="'half-time' is not a time, moment or tag of this collection"):
        reader.option("as_of", "half-time").load(location).count()


@pytest.mark.thorough
def test_changes_take_tags_for_bounds(spark: SparkSession, location: str) -> None:
    with persist.open(location, settings=persist.Settings(background=False)) as client:
        client["rows"].tag("later", 3)
    found = persist.spark.changes(spark, location, "rows", 2, "later")
    assert [row["k"] for row in found.collect()] == [2]
