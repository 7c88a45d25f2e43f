"""Releases of an earlier format and this one work on one location at once, which is upgraded under their load.

Each release runs in processes of its own, from the commit that `LAST` names. What they were told is judged afterwards:
all that was acknowledged is there once, nothing is there that nobody wrote, and each read saw whole commits, and of
each writer all its writes up to some point. `PERSIST_TWO_VERSIONS_S` says how long the load lasts, 12 s by default.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import persist
from persist.blob.stores.file import FileBlob
from persist.core.log.framing import FORMAT
from persist.core.log.keys import LOG, make_record_key
from persist.errors import AsOfNotSealed
from tests.support.paths import ROOT
from tests.support.stepped import WAIT_S

LOAD_S = float(os.environ.get("PERSIST_TWO_VERSIONS_S", "12"))
ENOUGH = 10  # Writes of each worker before the upgrade.
# The last commit that wrote each format.
LAST = {
    6: "a548100e980a22a2ba061d97ce612c34fbdfc009",
    7: "3c41ea99587586e215076f4dc65f316a1c8cf57e",
    8: "39a3cb1df39115190ac86a3fa593ec47a2ca254e",
    9: "5d0d406f81a72829ac6fcfeaa34ab4cf93e9d18c",
    10: "75b9aa7387941c3db6a495e4f4fc554508eff46b",
    11: "566dfb8f4846e68c079f636f29c39ee5dc6f696d",
    12: "03b748acec3868c9eab67390bc47d67506e1df29",
    13: "f5919e1acff724d820871e063b28c373d9436a2d",
}

WORKER = """
import json, os, sys
import persist
location, name, over = sys.argv[1:]
settings = persist.Settings(background=False)
told = lambda **what: print(json.dumps(what), flush=True)
told(runs=persist.__file__)
try:
    with persist.open(location, settings=settings) as client:
        sides = [client.create_or_load(side, key={"by": str, "n": int}, value={"v": int}) for side in ("left", "right")]
        n = 0
        while not os.path.exists(over):
            with client.multi_write() as multi:
                for side, sign in zip(sides, (1, -1)):
                    multi.write(side, [((name, n), sign * n)])
            told(done=n)
            n += 1
            if n % 5 == 0:
                both = client.snapshots({"left": None, "right": None})
                rows = [both[side].to_arrow().to_pylist() for side in ("left", "right")]
                seen = {}
                for row in rows[0]:
                    seen.setdefault(row["by"], []).append(row["n"])
                is_prefix = all(sorted(ns) == list(range(len(ns))) for ns in seen.values())
                total = sum(row["v"] for side in rows for row in side)
                told(read=len(rows[0]), whole=is_prefix and total == 0 and len(seen.get(name, ())) == n)
            if n % 40 == 0:
                sides[0].compact()
                client.gc()
    told(end="is over")
except persist.PersistError as error:
    told(end=type(error).__name__, text=str(error))
"""


def release(commit: str, folder: Path) -> Path:
    """Lay the package of a commit out in a folder, so that it can be imported from there."""
    archived = subprocess.run(["git", "archive", commit, "persist", "codecs", "blob"], cwd=ROOT, capture_output=True)
    if archived.returncode != 0:
        pytest.skip(f"the commit {commit} is not here: this is not a clone with its history")
    folder.mkdir()
    subprocess.run(["tar", "-x"], input=archived.stdout, cwd=folder, check=True)
    for room in ("codecs", "blob"):
        (folder / "persist" / room).unlink()
        (folder / room).rename(folder / "persist" / room)
    return folder


def started(code: Path | None, *arguments: str) -> subprocess.Popen[str]:
    environment = os.environ | ({} if code is None else {"PYTHONPATH": str(code), "PYTHONDONTWRITEBYTECODE": "1"})
    command = [sys.executable, "-P", "-c", WORKER, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def told_by(worker: subprocess.Popen[str]) -> list[dict[str, Any]]:
    out, errors = worker.communicate(timeout=LOAD_S + 60)
    assert worker.returncode == 0, errors
    return [json.loads(line) for line in out.splitlines()]


def wait_for_writes(location: str, names: Iterable[str]) -> None:
    """Wait until each of some workers has written a little."""
    deadline_s = time.monotonic() + WAIT_S
    with persist.open(location, mode="read") as client:
        while time.monotonic() < deadline_s:
            rows: list[str] = []
            with suppress(AsOfNotSealed):  # Nobody has written yet.
                rows = client.load("left").snapshot().to_arrow()["by"].to_pylist()
            if all(rows.count(name) > ENOUGH for name in names):
                return
            time.sleep(0.2)
    pytest.fail(f"not all of {[*names]} have written {ENOUGH} times in {WAIT_S:g} s")


@pytest.mark.thorough
@pytest.mark.costly("four processes of two releases write for as long as is asked")
@pytest.mark.parametrize("number", LAST)
def test_two_releases_work_on_one_location_until_it_is_upgraded(number: int, tmp_path: Path) -> None:
    code, location = release(LAST[number], tmp_path / "release"), str(tmp_path / "location")
    over = tmp_path / "over"
    over.touch()
    assert told_by(started(code, location, "first", str(over)))[-1] == {"end": "is over"}
    over.unlink()
    workers = {name: started(code, location, name, str(over)) for name in ("old 1", "old 2")}
    workers |= {name: started(None, location, name, str(over)) for name in ("new 1", "new 2")}

    def upgrade() -> None:
        command = [sys.executable, "-m", "persist", "upgrade", location]
        subprocess.run(command, check=True, capture_output=True, timeout=WAIT_S)

    both = [threading.Thread(target=upgrade) for _ in range(2)]  # Two at once.
    try:
        wait_for_writes(location, workers)
        time.sleep(LOAD_S / 2)
        for thread in both:
            thread.start()
        for thread in both:
            thread.join()
        time.sleep(LOAD_S / 2)
    finally:
        over.touch()
    told = {name: told_by(worker) for name, worker in workers.items()}

    for name, lines in told.items():
        assert lines[0]["runs"].startswith(str(code)) == name.startswith("old")
        reads = [line for line in lines if "read" in line]
        assert reads, name
        assert all(line["whole"] for line in reads), name
        end = lines[-1]
        if name.startswith("new"):
            assert end == {"end": "is over"}, name
        else:
            assert end["end"] == "IncompatibleVersion", end
            assert "estore" not in end["text"]
            assert sum("done" in line for line in lines) > ENOUGH, "it worked before that"
    with persist.open(location, mode="read") as client:
        rows = client.load("left").snapshot().to_arrow().to_pylist()
        assert client.fsck().problems == ()
    held = sorted((row["by"], row["n"]) for row in rows)
    acknowledged = {(name, line["done"]) for name, lines in told.items() for line in lines if "done" in line}
    assert len(held) == len(set(held)), "a write happened twice"
    assert acknowledged <= set(held), "an acknowledged write is lost"
    for name, lines in told.items():  # Nobody wrote more than the one whose answer was not told.
        done = sum("done" in line for line in lines)
        assert sum(by == name for by, _ in held) <= done + 1

    blob = FileBlob(location)
    numbers = [json.loads(blob.get(entry.key) or b"")["format"] for entry in blob.list(LOG)]
    raised = numbers.index(FORMAT)
    assert raised > ENOUGH
    assert numbers == [number] * raised + [FORMAT] * (len(numbers) - raised), make_record_key(raised)
