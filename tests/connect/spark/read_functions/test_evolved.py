"""Collections whose schema has changed read the same in Spark as in Python: natively, by the data source, in SQL."""

import datetime
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import persist
import persist.spark
from persist.connect.spark.data_source.source import PersistDataSource
from tests.connect.spark.data_source.test_stream_read import Query
from tests.connect.spark.sessions import WAYS, read

QUIET = persist.Settings(background=False)
ROWS = 6_000  # Enough for a part in a blob of its own.


def table(rows: persist.Collection, first: int, time: int, diff: int = 1, **columns: Any) -> pa.Table:
    arrow = rows.schema.arrow
    found = {rows.schema.key_names[0]: range(first, first + ROWS), **columns, "_time": time, "_diff": diff}
    return pa.table(
        {
            name: pa.array(given if isinstance(given, range) else [given] * ROWS, arrow.field(name).type)
            for name, given in found.items()
        }
    )


@pytest.fixture(scope="module")
def location(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A collection with parts of four versions: a key renamed and widened, names exchanged, defaults, a drop."""
    path = str(tmp_path_factory.mktemp("evolved"))
    with persist.open(path, settings=QUIET) as client:
        rows = client.create_or_load(
            "rows", key={"id": pa.int32()}, value={"a": pa.int16(), "b": pa.int16(), "told": pa.string()}
        )
        rows.write(table(rows, 0, 0, a=1, b=2, told="x"), seal=1).result()
        rows.write(table(rows, 0, 1, a=1, b=2, told="y"), seal=2).result()
        rows.evolve(rename={"a": "b", "b": "a", "id": "key"}, widen={"id": pa.int64(), "a": pa.int64()})
        rows.write(table(rows, ROWS, 2, b=3, a=4, told="x"), seal=3).result()
        rows.evolve(add={"unit": pa.string(), "note": pa.string()}, defaults={"unit": "kg"})
        half = table(rows, ROWS // 2, 3, b=1, a=2, told="x", unit="kg", note=None, diff=-1)
        rows.write(half.slice(0, ROWS // 2), seal=4).result()
        rows.evolve(drop=["told"])
        rows.write([((7, (1, 2, "kg", None)), 4, -1), ((-1, (0, 0, "g", "new")), 4, 1)], seal=5).result()
    return path


def bag(rows: Any) -> Counter[str]:
    if isinstance(rows, DataFrame):
        return Counter(repr(tuple(row)) for row in rows.collect())
    return Counter(repr(tuple(row.values())) for row in rows.to_pylist())


@pytest.mark.thorough(except_every=12)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("as_of", [1, 2, 3, 4])
def test_contents_of_an_evolved_collection_are_those_of_python(
    spark: SparkSession, location: str, as_of: int, way: str
) -> None:
    with persist.open(location, mode="read") as client:
        expected = client["rows"].snapshot(as_of).to_arrow()
    found = read(spark, location, "rows", way, as_of)
    assert found.columns == expected.column_names == ["key", "b", "a", "unit", "note"]
    assert bag(found) == bag(expected)


@pytest.mark.thorough
@pytest.mark.parametrize("native", [None, False])
def test_changes_of_an_evolved_collection_are_those_of_python(
    spark: SparkSession, location: str, native: bool | None
) -> None:
    with persist.open(location, mode="read") as client:
        expected = client["rows"].changes(0, 5).to_arrow()
    assert bag(persist.spark.changes(spark, location, "rows", 0, 5, native=native)) == bag(expected)


@pytest.mark.thorough(except_every=2)
@pytest.mark.parametrize("native", [True, False])
def test_a_read_names_time_and_version_in_spark_too(spark: SparkSession, location: str, native: bool) -> None:
    with persist.open(location, mode="read") as client:
        expected = client["rows"].snapshot(2, schema=2).to_arrow()
        changes = client["rows"].changes(1, 3, schema=1).to_arrow()
    found = persist.spark.snapshot(spark, location, "rows", as_of=2, schema=2, native=native)
    assert found.columns == expected.column_names == ["key", "b", "a", "told"]
    assert bag(found) == bag(expected)
    assert bag(persist.spark.changes(spark, location, "rows", 1, 3, schema=1)) == bag(changes)
    reader = spark.read.format("persist").option("collection", "rows").option("as_of", 2)
    assert bag(reader.option("schema", 2).load(location)) == bag(expected)
    with pytest.raises(PySparkException, match="schema=9 is not a version"):
        reader.option("schema", 9).load(location)
    with pytest.raises(persist.errors.SchemaMismatch, match="'told' of schema version 3 is gone"):
        persist.spark.snapshot(spark, location, "rows", schema=3, native=native).collect()


FAR = {
    "text": (pa.string(), "it's \\ \u2603 ${x}"),
    "raw": (pa.binary(), b"\x00'\xff"),
    "huge": (pa.uint64(), 2**64 - 1),
    "exact": (pa.decimal128(38, 10), Decimal("-1234567890123456789012345678.0000000001")),
    "endless": (pa.float64(), float("-inf")),
    "half": (pa.float32(), -0.5),
    "far_day": (pa.date32(), pa.scalar(5_000_000, pa.date32())),
    "old_day": (pa.date32(), pa.scalar(-800_000, pa.date32())),
    "local": (pa.timestamp("us"), datetime.datetime(2026, 3, 29, 2, 30, 0, 1)),  # In Berlin, there is no such time.
    "far": (pa.timestamp("us"), pa.scalar(2**61, pa.timestamp("us"))),
    "old": (pa.timestamp("us"), pa.scalar(-(2**61) - 1, pa.timestamp("us"))),
    "moment": (pa.timestamp("us", "UTC"), pa.scalar(2**61 + 1, pa.timestamp("us", "UTC"))),
    "early": (pa.timestamp("ms", "UTC"), pa.scalar(-(10**14), pa.timestamp("ms", "UTC"))),
}


@pytest.mark.thorough
@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
def test_defaults_that_python_cannot_hold_are_what_they_are_in_spark(
    spark: SparkSession, tmp_path: Path, zone: str
) -> None:
    path = str(tmp_path)
    with persist.open(path, settings=QUIET) as client:
        rows = client.create_or_load("rows", key={"id": pa.int64()})
        rows.write(table(rows, 0, 0), seal=1).result()
        rows.evolve(add={name: kind for name, (kind, _) in FAR.items()}, defaults={n: v for n, (_, v) in FAR.items()})
        expected = rows.snapshot().to_arrow().drop_columns(["id"]).slice(0, 1)
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        for way in WAYS:
            found = read(spark, path, "rows", way).drop("id").distinct().toArrow()
            for name in expected.column_names:
                one, other = found[name], expected[name]
                assert one.cast(other.type).equals(other), (way, name)
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


@pytest.mark.thorough
def test_a_data_frame_keeps_the_schema_that_it_was_made_with(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path)
    spark.dataSource.register(PersistDataSource)
    with persist.open(path, settings=QUIET) as client:
        rows = client.create_or_load("rows", key={"k": pa.int64()}, value={"a": pa.int64(), "b": pa.int64()})
        rows.write([((1, (10, 20)), 0, 1)], seal=1).result()
        found = spark.read.format("persist").option("collection", "rows").load(path)
        rows.evolve(rename={"a": "b", "b": "a"})
        assert [tuple(row) for row in found.collect()] == [(1, 10, 20)]
        rows.evolve(drop=["a"])
        rows.evolve(add={"a": pa.int64()})
        assert [tuple(row) for row in found.collect()] == [(1, 10, 20)]  # Not the NULL of the other one.


def test_a_stream_goes_on_over_additions_and_stops_when_a_column_is_gone(tmp_path: Path) -> None:
    path = str(tmp_path)
    with persist.open(path, settings=QUIET) as client:
        rows = client.create_or_load("rows", key={"k": pa.int64()}, value={"a": pa.int64(), "b": pa.int64()})
        rows.write([((1, (1, 1)), 0, 1)], seal=1).result()
        with Query(path, {"collection": "rows", "form": "changes", "start": 0}, []) as query:
            first = query.next()
            assert first is not None
            assert first.num_rows == 1
            rows.evolve(add={"c": pa.int64()})
            rows.write([((2, (2, 2, 2)), 1, 1)], seal=2).result()
            second = query.next()
            assert second is not None
            assert second.column_names == ["k", "a", "b", "_time", "_diff"]
            rows.evolve(drop=["a"])
            rows.write([((3, (3, 3)), 2, 1)], seal=3).result()
            with pytest.raises(persist.errors.SchemaMismatch, match=r"'a' of schema version 1 is gone.*begins again"):
                query.next()
        again = PersistDataSource({"path": path, "collection": "rows", "form": "changes", "start": "0"})
        assert again.schema().fieldNames() == ["k", "b", "c", "_time", "_diff"]


@pytest.mark.thorough
@pytest.mark.parametrize("native", [None, False])
def test_an_older_version_shows_each_time_whose_values_it_holds_in_spark_too(
    spark: SparkSession, tmp_path: Path, native: bool | None
) -> None:
    path = str(tmp_path)
    with persist.open(path, settings=QUIET) as client:
        rows = client.create_or_load("rows", key={"id": pa.int64()}, value={"v": pa.int32(), "f": pa.float32()})
        rows.write(table(rows, 0, 0, v=1, f=0.5), seal=1).result()
        rows.evolve(widen={"v": pa.int64(), "f": pa.float64()})
        rows.write(table(rows, ROWS, 1, v=2**40, f=0.5), seal=2).result()
        rows.write(table(rows, 2 * ROWS, 2, v=2, f=0.1), seal=3).result()
        rows.compact()
        expected = rows.snapshot(0, schema=1).to_arrow()
        changed = rows.changes(0, 1, schema=1).to_arrow()
    with pytest.raises(persist.InvalidUsage, match="wider types by now than in version 1 of the schema"):
        persist.spark.snapshot(spark, path, "rows", as_of=0, schema=1, native=True)
    found = persist.spark.snapshot(spark, path, "rows", as_of=0, schema=1, native=native)
    assert dict(found.dtypes) == {"id": "bigint", "v": "int", "f": "float"}
    assert bag(found) == bag(expected)
    assert bag(persist.spark.changes(spark, path, "rows", 0, 1, schema=1, native=native)) == bag(changed)
    for as_of, columns, name in ((1, ["v"], "v"), (2, ["f"], "f")):
        with pytest.raises((PySparkException, persist.errors.SchemaMismatch), match=f"'{name}' holds values"):
            persist.spark.snapshot(spark, path, "rows", as_of=as_of, schema=1, columns=columns, native=native).collect()
    with pytest.raises(PySparkException, match="'v' holds values"):
        persist.spark.changes(spark, path, "rows", 1, 2, schema=1, native=native).collect()
