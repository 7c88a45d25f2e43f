"""A short run of the coverage-guided fuzzer, where it is installed."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.stepped import WAIT_S

SECONDS = 10 * int(os.environ.get("PERSIST_FUZZ", "1"))


@pytest.mark.outside
@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="atheris is not installed")
def test_guided_fuzzing_finds_nothing(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    command = [sys.executable, "-m", "tests.rules.fuzz.atheris_all", str(corpus), f"-max_total_time={SECONDS}"]
    options = ["-timeout=20", "-rss_limit_mb=2048", f"-artifact_prefix={tmp_path}/"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=SECONDS + WAIT_S)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
