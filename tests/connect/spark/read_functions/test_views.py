"""Collections as names in Spark SQL, compared with Python."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import persist
import persist.spark
from tests.connect.spark.read_functions.test_native import QUIET, bag, write_history


def check(spark: SparkSession, path: str, view: str, collection: str = "rows") -> None:
    with persist.open(path, mode="read") as client:
        assert bag(spark.sql(f"SELECT * FROM {view}").collect()) == bag(client.load(collection).snapshot().to_arrow())


def test_every_collection_of_which_something_is_sealed_has_a_view(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path)
    write_history(path, batches=4, deletes=True, size=200, seed=1)
    with persist.open(path, settings=QUIET) as client:
        client.create_or_load("nothing sealed", key={"id": pa.int64()})
        client.create_or_load("my empty", key={"id": pa.int64()}).seal(5).result()
        assert persist.spark.create_views(spark, path) == ["my empty", "rows"]
        check(spark, path, "rows")
        assert spark.table("`my empty`").collect() == []
        client["rows"].write([(((-1, None), ("x", None, None)), 42, 3)], seal=50).result()
        assert persist.spark.create_views(spark, path, collections=["rows"], prefix="my_") == ["my_rows"]
        check(spark, path, "my_rows")
    with pytest.raises(persist.errors.CollectionNotFound, match="missing"):
        persist.spark.create_views(spark, path, collections=["missing"])


def test_names_that_spark_would_mix_up_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    def make(folder: str, *names: str) -> str:
        path = str(tmp_path / folder)
        with persist.open(path, settings=QUIET) as client:
            for name in names:
                client.create_or_load(name, key={"id": pa.int64()}).seal(1).result()
        return path

    path = make("cases", "Orders", "orders")
    with pytest.raises(persist.InvalidUsage, match="would both be called"):
        persist.spark.create_views(spark, path)
    assert persist.spark.create_views(spark, path, collections=["orders"], prefix="my_") == ["my_orders"]
    for arguments, message in [
        ({"collections": "range"}, "is one name: give a list"),
        ({"location": str(tmp_path / "nowhere")}, "there is nothing at"),
    ]:
        with pytest.raises(persist.InvalidUsage, match=message):
            persist.spark.create_views(spark, **{"location": path, **arguments})  # type: ignore[arg-type]
