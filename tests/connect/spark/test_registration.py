"""`format("persist")` is known wherever `persist.spark` was imported, whatever Python the path names first."""

import os
import subprocess
import sys
import venv
from pathlib import Path

import pyarrow as pa
import pytest

import persist
from tests.connect.spark.cluster import clean_environ

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

alone = spark.newSession().read.format("persist").option("collection", "c").load(path)
print("before any function", alone.count())

def overwritten(spark):
    rows = spark.createDataFrame([(1, "b"), (3, "c")], "k long, v string")
    persist.spark.write(rows, path, "c", mode="overwrite", time=1, seal=2)
    return persist.spark.snapshot(spark, path, "c", native=False)

for name, read in {
    "snapshot": lambda spark: persist.spark.snapshot(spark, path, "c", native=False),
    "changes": lambda spark: persist.spark.changes(spark, path, "c", 0, 1, native=False),
    "overwrite": overwritten,
}.items():
    try:
        print(name, read(spark.newSession()).count())
    except Exception as error:
        print(name, "DATA_SOURCE_NOT_FOUND" if "DATA_SOURCE_NOT_FOUND" in str(error) else error)
"""


LATER = """
import sys
from pyspark.sql import SparkSession

path = sys.argv[1]
spark = (
    SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.log.level", "OFF")
    .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC").getOrCreate()
)
import persist.spark

print(spark.read.format("persist").option("collection", "c").load(path).count())
print(spark.sparkContext.pythonExec == sys.executable)
"""


def run_away_from_the_checkout(script: str, folder: Path) -> list[str]:
    """Run a job where the first `python3` on the path has nothing, in an editable install; return its lines."""
    path = str(folder / "location")
    with persist.open(path) as client:
        c = client.create_or_load("c", key={"k": pa.int64()}, value={"v": pa.string()})
        c.write([((1, "a"), 0, 1), ((2, "a"), 0, 1)], seal=1).result()
    venv.create(folder / "other", symlinks=True)
    environ = clean_environ(Path(sys.executable))
    del environ["PYSPARK_PYTHON"]
    paths = f"{folder / 'other' / 'bin'}{os.pathsep}{environ['PATH']}"
    environ |= {"PATH": paths, "HOME": os.environ.get("HOME", "/")}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, path],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


@pytest.mark.thorough
@pytest.mark.spark
def test_the_format_and_functions_that_use_it_need_no_registration(tmp_path: Path) -> None:
    assert run_away_from_the_checkout(SCRIPT, tmp_path) == [
        "before any function 2",
        "snapshot 2",
        "changes 2",
        "overwrite 2",
    ]


@pytest.mark.thorough
@pytest.mark.spark
def test_a_session_that_was_there_before_the_import_knows_the_format(tmp_path: Path) -> None:
    assert run_away_from_the_checkout(LATER, tmp_path) == ["2", "True"]
