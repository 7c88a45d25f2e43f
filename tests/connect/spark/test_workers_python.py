"""Where Spark's workers run another Python than the driver, one line says so, and what to set."""

import subprocess
import sys
import venv
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import persist
from persist.connect.spark.workers import check_workers
from tests.connect.spark.cluster import clean_environ

SCRIPT = """
import sys
from pyspark.sql import SparkSession
import persist.spark

path = sys.argv[1]
spark = (
    SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").config("spark.log.level", "OFF")
    .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC").getOrCreate()
)
frame = spark.range(1)
for call in (
    lambda: persist.spark.snapshot(spark, path, "c"),
    lambda: persist.spark.location(spark, path),
    lambda: persist.spark.write(frame, path, "c"),
    lambda: persist.spark.register(spark),
    lambda: persist.spark.compact(spark, path),
    lambda: persist.spark.foreach_batch_writer(path, {"c": lambda rows: rows})(frame, 0),
):
    try:
        call()
    except persist.InvalidUsage as error:
        print(error)
"""


@pytest.mark.thorough
@pytest.mark.spark
def test_each_function_says_which_python_workers_run_and_what_to_set(tmp_path: Path) -> None:
    other = tmp_path / "other" / "bin" / "python"
    venv.create(tmp_path / "other", symlinks=True)
    environ = {**clean_environ(Path(sys.executable)), "PYSPARK_PYTHON": str(other)}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "location")],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        timeout=300,
    )
    told = (
        f"Spark's workers run {other} (which has no persist, and the driver has {persist.__version__}): set "
        f"PYSPARK_PYTHON={sys.executable}, or where workers have this library, before the session is made."
    )
    assert done.stdout.splitlines() == [told] * 6, done.stderr[-3000:]


def test_a_worker_of_another_version_is_told_by_its_version(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_workers(spark)
    old = tmp_path / "python"
    old.write_text("#!/bin/sh\necho 2.7\n")
    old.chmod(0o755)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(old))
    with pytest.raises(persist.InvalidUsage, match=r"workers run .*python \(Python 2\.7, and the driver's is 3\."):
        check_workers(spark)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "no-such-python")
    with pytest.raises(persist.InvalidUsage, match="workers run no-such-python, which there is not: set PYSPARK_PY"):
        check_workers(spark)
