"""What a Spark user sees of our errors: the class, the message, and no frames; and that nothing was changed."""

from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import persist
from persist.blob.stores.file import FileBlob

SNAPSHOT = {"collection": "orders"}
ROWS = "id long, status string, amount double"


@pytest.mark.thorough(except_every=4)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "persist.errors.InvalidUsage: no collection was given"),
        ({"collection": "nope"}, "persist.errors.CollectionNotFound: no collection 'nope' at"),
        ({**SNAPSHOT, "as_of": 4}, "persist.errors.AsOfCompacted: as_of=4 is before since=5"),
        ({**SNAPSHOT, "as_of": 13, "timeout_s": 0}, "persist.errors.AsOfNotSealed: as_of=13 is not before upper=13"),
        ({**SNAPSHOT, "as_of": "noon"}, "'noon' is not a time, moment or tag of this collection"),
        ({**SNAPSHOT, "asof": 3}, "option 'asof' is not an option for reading"),
        ({**SNAPSHOT, "form": "pivot"}, "option form='pivot' is not one of"),
        ({**SNAPSHOT, "form": "changes"}, "needs the options start and until"),
        ({**SNAPSHOT, "until": 4}, "option until does not go with form='rows'"),
        ({**SNAPSHOT, "columns": "id,color"}, "persist.errors.SchemaMismatch: columns ['id', 'color']"),
        ({**SNAPSHOT, "storage.colour": "red"}, "storage option 'colour' is not an option of a folder"),
    ],
)
def test_a_bad_read_says_why(spark: SparkSession, location: str, options: dict[str, Any], message: str) -> None:
    with persist.open(location) as client:
        client.load("orders").allow_compaction(5).result()
    with pytest.raises(PySparkException) as caught:
        spark.read.format("persist").options(**options).load(location).collect()
    assert message in str(caught.value)
    assert "File " not in str(caught.value)
    assert "at org.apache" not in str(caught.value)


def test_a_damaged_part_is_named(spark: SparkSession, location: str) -> None:
    blob = FileBlob(location)
    damaged = next(iter(blob.list("part/"))).key
    blob.set(damaged, (blob.get(damaged) or b"")[:-5])
    with pytest.raises(PySparkException) as caught:
        spark.read.format("persist").options(**SNAPSHOT).load(location).collect()
    assert f"persist.errors.CorruptBlob: blob '{damaged}' is corrupt" in str(caught.value)
    assert "File " not in str(caught.value)


UPDATES = "id long, status string, amount double, _time long, _diff long"


@pytest.mark.thorough(except_every=4)
@pytest.mark.parametrize(
    ("schema", "rows", "options", "message"),
    [
        (ROWS, [(1, "x", 1.0)], {"time": 12}, "persist.errors.UpdateNotBeyondUpper: update at time 12 is not beyond"),
        (UPDATES, [(1, "x", 1.0, 12, 1)], {}, "persist.errors.UpdateNotBeyondUpper: update at time 12 is not beyond"),
        (UPDATES, [(1, "x", 1.0, None, 1)], {}, "persist.errors.InvalidUpdate: "),
        (UPDATES, [(1, "x", 1.0, 13, None)], {}, "persist.errors.InvalidUpdate: "),
        (UPDATES, [(1, "x", 1.0, -1, 1)], {}, "persist.errors.InvalidUpdate: "),
        ("id long, status string, _time long, _diff long", [(1, "x", 13, 1)], {}, "persist.errors.SchemaMismatch: "),
        ("id string, status string, amount double", [("1", "x", 1.0)], {"time": 13}, "persist.errors.SchemaMismatch: "),
        (ROWS + ", color string", [(1, "x", 1.0, "red")], {"time": 13}, "persist.errors.SchemaMismatch: "),
        (ROWS, [(1, "x", 1.0)], {"time": 13, "seal": 12}, "persist.errors.FrontierRegression: upper cannot go back"),
        (ROWS, [(1, "x", 1.0)], {"time": 13, "sealed": 14}, "option 'sealed' is not an option for writing"),
        (
            ROWS,
            [(1, "x", 1.0)],
            {"time": 13, "collection": "nope"},
            "persist.errors.CollectionNotFound: no collection 'nope'",
        ),
    ],
)
def test_a_bad_write_says_why_and_changes_nothing(
    spark: SparkSession, location: str, schema: str, rows: list[tuple[Any, ...]], options: dict[str, Any], message: str
) -> None:
    before = {entry.key for entry in FileBlob(location).list("")}
    with pytest.raises(PySparkException) as caught:
        writer = spark.createDataFrame(rows, schema).write.format("persist")
        writer.options(**{"collection": "orders", **options}).mode("append").save(location)
    assert message in str(caught.value)
    assert "File " not in str(caught.value)
    assert {entry.key for entry in FileBlob(location).list("")} == before
