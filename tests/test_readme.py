"""What the README shows must run as it stands there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)


def test_the_readme_has_a_python_and_a_spark_example() -> None:
    assert ["SparkSession" in block for block in BLOCKS] == [False, False, False, True]


@pytest.mark.spark
def test_the_examples_run_one_after_the_other(tmp_path: Path) -> None:
    script = tmp_path / "readme.py"
    script.write_text("\n".join(BLOCKS))
    short_lived = "--driver-java-options '-XX:TieredStopAtLevel=1 -XX:+UseSerialGC' pyspark-shell"
    env = {
        **os.environ,
        "PYTHONPATH": "",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_SUBMIT_ARGS": short_lived,
    }
    # In the checkout, as a reader would start it; its folders are moved to one of the test's own.
    text = script.read_text()
    for folder in ("orders-demo", "orders-checkpoint"):
        text = text.replace(f'"{folder}"', repr(str(tmp_path / folder)))
    script.write_text(text)
    done = subprocess.run([sys.executable, str(script)], cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Antichain(13)" in done.stdout
    assert "paid" in done.stdout
