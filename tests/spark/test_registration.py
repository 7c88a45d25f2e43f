"""The data source is known wherever our own functions use it, also where PySpark cannot find it by itself."""

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import persist
from tests.spark.cluster import clean_environ

SCRIPT = """
import sys
from pyspark.sql import SparkSession
import persist.spark

path = sys.argv[1]
spark = (
    SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.log.level", "OFF")
    .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC").getOrCreate()
)
new = spark.createDataFrame([(1, "b"), (3, "c")], "k long, v string")

def overwritten(spark):
    rows = spark.createDataFrame([(1, "b"), (3, "c")], "k long, v string")
    persist.spark.write(rows, path, "c", mode="overwrite", time=1, seal=2)
    return persist.spark.snapshot(spark, path, "c", native=False)

def after_a_function(spark):
    persist.spark.location(spark, path)
    return spark.read.format("persist").option("collection", "c").load(path)

for name, read in {
    "the format after a function": after_a_function,
    "the format alone": lambda spark: spark.read.format("persist").option("collection", "c").load(path),
    "snapshot": lambda spark: persist.spark.snapshot(spark, path, "c", native=False),
    "changes": lambda spark: persist.spark.changes(spark, path, "c", 0, 1, native=False),
    "pruned": lambda spark: persist.spark.pruned(spark, path, "c", lambda rows: rows.groupBy("v").count()),
    "overwrite": overwritten,
}.items():
    try:
        print(name, read(spark.newSession()).count())
    except Exception as error:
        print(name, "DATA_SOURCE_NOT_FOUND" if "DATA_SOURCE_NOT_FOUND" in str(error) else error)
"""


@pytest.mark.thorough
@pytest.mark.spark
def test_functions_that_fall_back_to_the_data_source_need_no_registration(tmp_path: Path) -> None:
    """In an editable install, away from the checkout; each in a session that has registered nothing."""
    path = str(tmp_path / "location")
    with persist.open(path) as client:
        c = client.create_or_load("c", key={"k": pa.int64()}, value={"v": pa.string()})
        c.write([((1, "a"), 0, 1), ((2, "a"), 0, 1)], seal=1).result()
    python = Path(sys.executable)
    environ = {**clean_environ(python), "PYSPARK_DRIVER_PYTHON": str(python), "HOME": os.environ.get("HOME", "/")}
    done = subprocess.run(
        [str(python), "-c", SCRIPT, path], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=300
    )
    assert done.stdout.splitlines() == [
        "the format after a function 2",
        "the format alone DATA_SOURCE_NOT_FOUND",
        "snapshot 2",
        "changes 2",
        "pruned 1",
        "overwrite 2",
    ], done.stderr[-3000:]
