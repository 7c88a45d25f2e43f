"""A disk without room: reading goes on, and collecting garbage gets one out of it."""

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import persist
import persist.engine.read.lookups.part_rows
from persist.blob.errors import StoreFull
from tests.support.clocks import DatedBlob, ImpatientClock
from tests.support.forks import forked_python
from tests.support.paths import ROOT
from tests.support.reads import rows_with
from tests.support.stepped import WAIT_S
from tests.support.tuned import tuned

KEY = {"k": pa.int64()}
NOW = tuned(
    background=False,
    retry_s=2 * WAIT_S,
    grace_s=0,
    orphan_grace_s=0,
    log_retention_s=3600,
    hold_linger_s=0,
    log_retention_records=16,
)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 3 MiB."""
    path = tmp_path / "disk"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(path)]
    if os.getuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("only root can mount a small file system, and not everywhere")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


def fill(path: Path) -> None:
    with open(path / "filler", "wb", buffering=0) as file:
        for size in (65536, 4096, 1):
            try:
                while file.write(b"x" * size):
                    pass
            except OSError:
                continue


def table(rows: int = 20_000, time: int = 0) -> pa.Table:
    keys = np.random.default_rng(time).integers(0, 2**62, rows)  # Which cannot be compressed.
    return pa.table({"k": keys, "_time": [time] * rows, "_diff": [1] * rows})


def test_on_a_full_disk_shared_clients_read_at_once_and_writes_fail_at_once(disk: Path) -> None:
    with persist.open(disk, settings=NOW) as client:
        orders = client.create_or_load("orders", key=KEY)
        orders.write(table(), seal=1).result()
    fill(disk)
    began_s = time.monotonic()
    with persist.open(disk, settings=NOW) as client:
        orders = client.load("orders")
        assert orders.snapshot(0).to_arrow().num_rows == 20_000
        assert orders.snapshot(0).count() == 20_000
        with pytest.raises(StoreFull, match=r"No space left on device.*That object is unchanged"):
            orders.write([((1, None), 5, 1)]).result()
        with pytest.raises(StoreFull):
            orders.hold(0)
    assert time.monotonic() - began_s < WAIT_S
    (disk / "filler").unlink()
    with persist.open(disk, settings=NOW) as client:
        client.load("orders").write([((1, None), 5, 1)], seal=6).result()
        assert client.load("orders").snapshot().count() == 20_001
        assert client.fsck().is_clean


def test_look_ups_go_on_where_a_full_disk_has_no_room_for_what_they_decode(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(persist.engine.read.lookups.part_rows, "WHOLE_BYTES_MAX", 0)
    settings = persist.Settings(background=False, memory_budget=16 << 20, cache_folder=disk / "cache")
    with persist.open(DatedBlob(ImpatientClock()), settings=settings) as client:
        c = client.create_or_load("c", key=KEY)
        keys = np.arange(800_000)
        c.write(pa.table({"k": keys, "_time": keys * 0, "_diff": keys * 0 + 1}), seal=1).result()
        spilled = client.engine.spilled
        assert spilled is not None
        wanted = keys[::1000].tolist()
        for _ in range(3):
            assert rows_with(c.snapshot(), wanted)["k"].to_pylist() == wanted
        assert spilled.room.disk_errors > 0, "6.4 MB of keys are more than the disk holds"
        assert list((disk / "cache").glob("*.rows")), "some had room"
        assert not list((disk / "cache").glob(".tmp-*"))
        fill(disk)
        assert rows_with(c.snapshot(), wanted)["k"].to_pylist() == wanted


LIMITED = """
import os, resource, sys
import persist
from persist.blob.errors import StoreFull
from tests.support.clocks import ImpatientClock

limit = {"files": resource.RLIMIT_NOFILE, "size": resource.RLIMIT_FSIZE}[sys.argv[2]]
soft, hard = resource.getrlimit(limit)
clock, acknowledged, refused = ImpatientClock(), [], []
with persist.open(sys.argv[1], clock=clock, settings=persist.Settings(background=False)) as client:
    collection = client.create_or_load("c", key={"k": int})
    for free in range(6):
        taken = []
        if limit == resource.RLIMIT_FSIZE:
            resource.setrlimit(limit, (free * 100, hard))
        else:
            resource.setrlimit(limit, (64, hard))
            try:
                while True:
                    taken.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:
                for _ in range(free):
                    os.close(taken.pop())
        began_s = clock.monotonic_s()
        try:
            collection.write([((free, None), 0, 1)]).result()
            acknowledged.append(free)
        except StoreFull as error:
            refused.append(str(error))
        assert clock.monotonic_s() - began_s < 1, "it waited"
        resource.setrlimit(limit, (soft, hard))
        for descriptor in taken:
            os.close(descriptor)
        time = 10 + free
        collection.write([((time, None), 0, 1)]).result()
        acknowledged.append(time)
    collection.seal(1).result()
    assert sorted(collection.snapshot(0).to_arrow()["k"].to_pylist()) == sorted(acknowledged)
print(len(refused), refused[0])
"""


@pytest.mark.thorough(except_every=2)
@pytest.mark.parametrize(("limit", "what"), [("files", "ulimit -n"), ("size", "ulimit -f")])
def test_a_limit_of_the_process_is_said_at_once_and_nothing_is_half_done(limit: str, what: str, tmp_path: Path) -> None:
    """However many more files it may open, or bytes a file may have."""
    command = [*forked_python(), "-c", LIMITED, str(tmp_path / "location"), limit]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    refused, message = done.stdout.split(" ", 1)
    assert 0 < int(refused) <= 6
    assert what in message
    assert "That object is unchanged" in message
