"""What the README shows must run as it stands there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)


def run(block: str, folder: Path) -> str:
    """Paste a block into a Python of its own, away from the checkout; return what it printed."""
    options = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    small = f"--driver-java-options '{options}' --conf spark.sql.shuffle.partitions=2 pyspark-shell"
    env = {
        **os.environ,
        "PYTHONPATH": "",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_SUBMIT_ARGS": small,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    # In the checkout where PySpark must find the source by itself; its folders are moved to one of the test's own.
    for name in ("orders-demo", "orders-checkpoint"):
        block = block.replace(f'"{name}"', repr(str(folder / name)))
    cwd = ROOT if "SparkSession" in block else folder
    done = subprocess.run([sys.executable, "-c", block], cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_the_readme_shows_frames_moments_duckdb_and_spark() -> None:
    assert ["SparkSession" in block for block in BLOCKS] == [False, False, False, False, True]
    for word in ("pd.DataFrame", "2026-11-16T12:00:00Z", "duckdb"):
        assert word in BLOCKS[0]


@pytest.mark.thorough(except_every=4)
@pytest.mark.parametrize("number", [n for n, block in enumerate(BLOCKS) if "SparkSession" not in block])
def test_each_block_runs_when_it_is_pasted_alone(tmp_path: Path, number: int) -> None:
    printed = run(BLOCKS[number], tmp_path)
    assert run(BLOCKS[number], tmp_path)  # And once more.
    expected = {
        0: "2026-11-17 00:00:00+00:00",
        1: "Antichain(13)",
        2: "as of 10",
        3: "somebody sealed to Antichain(14)",
    }
    assert expected[number] in printed


@pytest.mark.thorough
@pytest.mark.spark
def test_the_block_about_spark_runs_when_it_is_pasted_alone_and_again(tmp_path: Path) -> None:
    printed = [run(BLOCKS[-1], tmp_path) for _ in range(2)]
    assert all("paid" in each for each in printed)
