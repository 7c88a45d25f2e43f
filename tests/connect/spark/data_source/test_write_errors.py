"""Bad input of batch writes: each is refused with its reason, and changes nothing."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType

import persist
import persist.spark
from persist.blob.stores.file import FileBlob
from persist.connect.spark.data_source.writers import DataFrameWrite
from persist.connect.spark.options import WriteOptions

ROWS = "id long, status string, amount double"
UPDATES = ROWS + ", _time long, _diff long"


def schema(*more: str) -> StructType:
    kinds = {"id": LongType(), "status": StringType(), "amount": DoubleType()}
    return StructType([StructField(name, kinds.get(name, LongType())) for name in (*kinds, *more)])


def keys(location: str) -> set[str]:
    return {entry.key for entry in FileBlob(location).list("")}


@pytest.mark.parametrize(
    ("more", "options", "message"),
    [
        ([], {"seal": 14}, "goes with times, and these rows have none"),
        (["_time"], {}, "'_diff' \\(int64\\) is missing"),
        (["_time", "_diff"], {"time": 13}, "the rows have a column '_time', and time="),
        (["color"], {"time": 13}, "'color' is unexpected"),
        ([], {"time": 12}, "update at time 12 is not beyond upper=13"),
        ([], {"time": -1}, "option time='-1' is not a number from 0"),
        ([], {"time": 13, "seal": 12}, "upper cannot go back from 13 to 12"),
        (
            [],
            {"time": 20, "seal": 20},
            "seal=20 is not beyond the data, whose latest time is 20: .* Seal to 21 or later",
        ),
        ([], {"time": 20, "seal": 15}, "seal=15 is not beyond the data, whose latest time is 20"),
        ([], {"time": 13, "seal": "soon"}, "option seal='soon' is neither a number nor a timestamp"),
        ([], {"time": 13, "token": "x" * 201}, "token='x+' is not a text of 1 to 200"),
        ([], {"time": 13, "mode": "fast"}, "mode='fast' is not one of 'append', 'upsert'"),
        ([], {"collection": ""}, "no collection was given"),
        ([], {"collection": "nope"}, "no collection 'nope'"),
        ([], {"path": ""}, "no location was given"),
    ],
)
def test_an_append_that_does_not_fit_is_refused_before_a_task_starts(
    location: str, more: list[str], options: dict[str, Any], message: str
) -> None:
    given = {"path": location, "collection": "orders"} | {name: str(value) for name, value in options.items()}
    with pytest.raises(persist.InvalidUsage, match=message):
        DataFrameWrite.append(WriteOptions.of(given), schema(*more))


@pytest.mark.parametrize(
    ("more", "options", "message"),
    [
        (["_time", "_diff"], {}, "the DataFrame has _diff and _time. Drop these columns"),
        (["_diff"], {}, 'use mode "append" for updates'),
        ([], {"time": 12}, "update at time 12 is not beyond upper=13"),
        ([], {"seal": 13}, "goes with times, and these rows have none"),
        ([], {"time": 13, "seal": 13}, "seal=13 is not beyond the data, whose latest time is 13"),
        (["color"], {}, "'color' is unexpected"),
    ],
)
def test_an_overwrite_that_does_not_fit_is_refused_before_a_task_starts(
    location: str, more: list[str], options: dict[str, Any], message: str
) -> None:
    given = {"path": location, "collection": "orders"} | {name: str(value) for name, value in options.items()}
    with pytest.raises(persist.InvalidUsage, match=message):
        DataFrameWrite.overwrite(WriteOptions.of(given), schema(*more))


def test_a_complete_collection_is_not_overwritten(location: str) -> None:
    with persist.open(location) as client:
        client.load("orders").seal(persist.Antichain()).result()
    with pytest.raises(persist.errors.UpdateNotBeyondUpper, match="complete for ever"):
        DataFrameWrite.overwrite(WriteOptions.of({"path": location, "collection": "orders"}), schema())


@pytest.mark.thorough(except_every=2)
@pytest.mark.parametrize(
    ("row", "options", "message"),
    [
        ((1, "x", 1.0, -1, 1), {}, "persist.errors.InvalidUpdate: update 0 has the time -1"),
        (
            (1, "x", 1.0, 30, 1),
            {"seal": 20},
            "persist.errors.InvalidUsage: seal=20 is not beyond the data, whose latest time is 30",
        ),
    ],
)
def test_rows_that_do_not_fit_are_refused_by_tasks_or_commit(
    spark: SparkSession, location: str, row: tuple[Any, ...], options: dict[str, Any], message: str
) -> None:
    before = keys(location)
    frame = spark.createDataFrame([row], UPDATES)
    with pytest.raises(PySparkException) as caught:
        frame.write.format("persist").options(collection="orders", **options).mode("append").save(location)
    assert message in str(caught.value)
    assert "File " not in str(caught.value)
    with pytest.raises((PySparkException, persist.PersistError)) as direct:
        persist.spark.write(frame, location, "orders", **options)
    assert message.split(": ", 1)[1] in str(direct.value)
    assert keys(location) == before


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mode": "replace"}, "mode='replace' is not a way to write"),
        ({"time": "noon"}, "time='noon' is not a column of the rows"),
        ({"time": 13, "partitions": 0}, "partitions=0 is not a whole number from 1"),
        ({"time": 13, "token": ""}, "token='' is not a text"),
        ({"time": 13, "seal": 13}, "seal=13 is not beyond the data"),
        ({"time": 13, "storage_options": {"colour": "red"}}, "storage option 'colour'"),
    ],
)
def test_a_helper_called_wrongly_says_why(
    spark: SparkSession, location: str, arguments: dict[str, Any], message: str
) -> None:
    frame = spark.range(1).selectExpr("id", "'x' AS status", "1.0D AS amount")
    with pytest.raises(persist.InvalidUsage, match=message):
        persist.spark.write(frame, location, "orders", **{"mode": "append"} | arguments)


@pytest.mark.thorough
def test_what_is_not_null_is_so_in_spark_and_refuses_a_null(spark: SparkSession, tmp_path: Path) -> None:
    location = str(tmp_path)
    value = {"v": pa.field("v", pa.string(), nullable=False), "w": pa.float64()}
    with persist.open(location) as client:
        client.create_or_load("c", key={"k": pa.int64()}, value=value)
    frame = spark.createDataFrame([(1, "a", 1.0), (2, None, 2.0)], "k long, v string, w double").coalesce(1)
    for write in (
        lambda frame: persist.spark.write(frame, location, "c", mode="append", time=0, seal=1),
        lambda frame: (
            frame.write.format("persist").options(collection="c", time=0, seal=1).mode("append").save(location)
        ),
    ):
        with pytest.raises(PySparkException, match="update 1 has NULL in 'v', which is not null by the collection's"):
            write(frame)
    persist.spark.write(frame.where("v is not null"), location, "c", mode="append", time=0, seal=1)
    read = spark.read.format("persist").options(collection="c").load(location)
    assert {field.name: field.nullable for field in read.schema} == {"k": True, "v": False, "w": True}
    assert [tuple(row) for row in read.collect()] == [(1, "a", 1.0)]


def test_a_write_that_lost_the_answer_keeps_what_a_record_may_name(
    location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit that is tried again, by whoever has the messages, finds its token and deletes nothing."""
    import pyarrow as pa

    from persist.connect.spark.data_source.writers import PersistWriter

    options = WriteOptions.of({"path": location, "collection": "orders", "time": "13", "seal": "14"})
    writer = PersistWriter(DataFrameWrite.append(options, schema()))
    batch = pa.RecordBatch.from_pylist([{"id": 9000, "status": "x", "amount": 1.0}])
    messages: list[Any] = [writer.write(iter([batch]))]
    writer.commit(messages)
    stored = keys(location)
    writer.commit(messages)
    writer.abort(messages)
    assert keys(location) == stored
    with persist.open(location, mode="read") as client:
        assert client.load("orders").snapshot().count() == 2002 + 1
        assert client.fsck().is_clean


def test_a_task_that_fails_in_the_middle_deletes_what_it_has_stored(location: str) -> None:
    import pyarrow as pa

    from persist.compute.tasks.planned_write import upload

    options = WriteOptions.of({"path": location, "collection": "orders", "time": "13"})
    write, before = DataFrameWrite.append(options, schema()), keys(location)
    stored: list[int] = []

    def tables() -> Any:
        for n in (2, 1):  # Keys go back, so that the first table is stored when the second comes.
            yield write.rows.to_updates(pa.table({"id": [n], "status": ["x"], "amount": [1.0]}))
        stored.append(len(keys(location) - before))
        raise RuntimeError("the input ends here")

    with pytest.raises(RuntimeError, match="the input ends here"):
        upload(write.planned.target, tables())
    assert keys(location) == before
    assert (
        len(
            upload(
                write.planned.target,
                map(write.rows.to_updates, [pa.table({"id": [1], "status": ["x"], "amount": [1.0]})]),
            )
        )
        == 1
    )


def test_plain_rows_of_a_keyed_collection_are_refused_before_a_task_starts(tmp_path: Path) -> None:
    path = str(tmp_path / "location")
    with persist.open(path) as client:
        client.create_or_load("users", key={"id": pa.int64()}, value={"v": pa.string()}, keyed=persist.Keyed())
    given = WriteOptions.of({"path": path, "collection": "users", "time": "1"})
    rows = StructType([StructField("id", LongType()), StructField("v", StringType())])
    for plan in (DataFrameWrite.append, DataFrameWrite.overwrite):
        with pytest.raises(persist.InvalidUsage, match=r"'users' is keyed.*option\(\"mode\", \"upsert\"\)"):
            plan(given, rows)
