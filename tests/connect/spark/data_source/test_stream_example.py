"""The streaming example is killed where it hurts most: nothing is lost, and nothing is counted twice."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import persist
from examples.totals import HOUR, check, open_orders, open_totals, place_orders
from tests.support.paths import ROOT
from tests.support.stepped import WAIT_S

pytestmark = pytest.mark.spark


def following(location: str, *more: str) -> "subprocess.Popen[str]":
    """Start the job in a process group of its own, to which Spark's Java belongs too."""
    command = [sys.executable, str(ROOT / "examples" / "totals.py"), location, "follow", *more]
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        # It lives for seconds: less is compiled.
        "PYSPARK_SUBMIT_ARGS": "--driver-java-options '-XX:TieredStopAtLevel=1 -XX:+UseSerialGC' pyspark-shell",
    }
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        start_new_session=True,
    )  # fmt: skip


def last_time(orders: persist.Collection) -> int:
    """Return the time of the last update, all of which are sealed."""
    upper = orders.upper.time
    assert upper is not None
    return max(time for _, time, _ in orders.changes(upper - HOUR, upper).updates())


@pytest.mark.thorough
def test_the_job_goes_on_after_it_was_killed(tmp_path: Path) -> None:
    location, commits = str(tmp_path / "shop"), tmp_path / "shop-checkpoint" / "commits"
    place_orders(location, 6)
    with persist.open(location) as client:
        orders, totals = open_orders(client), open_totals(client)
        died_at = last_time(orders)
        job = following(location)
        try:
            totals.snapshot(died_at, timeout_s=200)  # Until the last micro-batch there is was written.
        finally:
            os.killpg(job.pid, signal.SIGKILL)
            output, _ = job.communicate()
        # Between our commit and Spark's: if it came as far as that one, take it back.
        written = sorted(int(path.name) for path in commits.iterdir() if path.name.isdigit())
        batches = output.count("sealed up to")
        assert batches > 1, output
        if len(written) == batches:
            (commits / str(batches - 1)).unlink()
            (commits / f".{batches - 1}.crc").unlink(missing_ok=True)

        assert check(location) > 6 * 35
        orders.allow_compaction(died_at).result()
        orders.compact()
        (hold,) = [hold for hold in orders.holds() if hold.name is not None]
        assert hold.time < died_at, "what has to be read again is kept"
        place_orders(location, 10)

        job = following(location, "--once")
        output, _ = job.communicate(timeout=WAIT_S)
        assert job.returncode == 0, output
        assert f"micro-batch {batches - 1} was written before" in output
        assert f"micro-batch {batches}: " in output
        assert totals.upper == persist.Antichain(last_time(orders) + 1)
    assert check(location) > 4 * 35
