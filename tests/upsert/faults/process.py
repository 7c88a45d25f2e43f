"""One of several processes that use the same keyed collections of a folder, and may kill itself on the way.

python -m tests.upsert.faults.process LOCATION HISTORY NAME SEED STEPS DIES_AT
"""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import persist
from persist.blob import Blob, BlobEntry, open_blob
from tests.servers.fixtures import ROOT
from tests.upsert.faults.client import RandomClient, small_policy
from tests.upsert.faults.history import Recorder

TIMEOUT_S = 400


class MortalBlob:
    """Passes calls on to another store, and kills its process before or after the n-th change to it."""

    def __init__(self, inner: Blob, dies_at: int, *, is_after: bool) -> None:
        self._inner = inner
        self._dies_at = dies_at
        self._is_after = is_after
        self._changes = 0

    @property
    def url(self) -> str:
        return self._inner.url

    def get(self, key: str, range: tuple[int, int] | None = None) -> bytes | None:
        return self._inner.get(key, range)

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[BlobEntry]:
        return self._inner.list(prefix, start_after)

    def set(self, key: str, value: bytes) -> None:
        self._change(lambda: self._inner.set(key, value))

    def create(self, key: str, value: bytes) -> bool:
        return bool(self._change(lambda: self._inner.create(key, value)))

    def delete(self, key: str) -> None:
        self._change(lambda: self._inner.delete(key))

    def close(self) -> None:
        self._inner.close()

    def _change(self, act: Callable[[], Any]) -> Any:
        self._changes += 1
        is_last = self._changes == self._dies_at
        if is_last and not self._is_after:
            os.kill(os.getpid(), signal.SIGKILL)
        found = act()
        if is_last:
            os.kill(os.getpid(), signal.SIGKILL)
        return found


def race(location: str, folder: Path, seed: int, dies_at: Sequence[int], steps: int) -> list[Path]:
    """Run a process for each of dies_at, all at once (0: it does not die); return where they wrote their histories."""
    command = [sys.executable, "-m", "tests.upsert.faults.process", location]
    paths = [folder / f"history-{n}.jsonl" for n in range(len(dies_at))]
    running = [
        subprocess.Popen([*command, str(path), f"p{n}", str(seed), str(steps), str(dies)], cwd=ROOT)
        for n, (path, dies) in enumerate(zip(paths, dies_at, strict=True))
    ]
    ends = [each.wait(TIMEOUT_S) for each in running]
    for end, dies in zip(ends, dies_at, strict=True):
        # A process that was to die may have been too short-lived for that.
        assert end == 0 or (dies and end == -signal.SIGKILL), f"a process ended with {ends}"
    return paths


def main(location: str, history: str, name: str, seed: str, steps: str, dies_at: str) -> None:
    """Be one of the processes."""
    chance = random.Random(f"{seed} {name}")
    recorder = Recorder(Path(history))
    blob = MortalBlob(open_blob(location, {"fsync": False}), int(dies_at), is_after=chance.random() < 0.5)
    with persist.open(blob, settings=persist.Settings(tuning=small_policy())) as client:
        racing = RandomClient(name, client, chance, recorder.write)
        for _ in range(int(steps)):
            racing.step()
    recorder.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
