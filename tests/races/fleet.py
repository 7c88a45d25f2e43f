"""Starts racers: one process imports everything and then forks them, which saves seconds for each.

As a program (`python -m tests.races.fleet`), it is that process: it reads a JSON object with the plans of the racers
and the troubles that befall them, and ends when they have, with status 0 if all went well. The process that asks for it
has threads, so it must not fork itself.
"""

import importlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.races.racer import Plan, Racer
from tests.servers.fixtures import ROOT

WARM = ("boto3", "pandas", "pyarrow.dataset", "pyarrow.parquet")  # Imported at their first use otherwise, by each.
HEAD_START_NS = 100_000_000


@dataclass(frozen=True)
class Trouble:
    """What befalls a racer: from at_s after the start it is stopped for a while, or killed if stopped_s is None."""

    number: int
    at_s: float
    stopped_s: float | None


def race(plans: Sequence[Plan], troubles: Sequence[Trouble], timeout_s: float) -> dict[int, Counter[str]]:
    """Run all plans at once, each in a process of its own.

    Returns:
        the counts of each process by its number; none of one that was killed.
    """
    job = {"plans": [asdict(plan) for plan in plans], "troubles": [asdict(trouble) for trouble in troubles]}
    command = [sys.executable, "-m", "tests.races.fleet"]
    done = subprocess.run(command, cwd=ROOT, input=json.dumps(job), text=True, capture_output=True, timeout=timeout_s)
    assert done.returncode == 0, f"a racer failed:\n{done.stderr[-4000:]}"
    counts = {}
    for plan in plans:
        path = Path(plan.folder, f"counts-{plan.number}.json")
        if path.exists():
            counts[plan.number] = Counter(json.loads(path.read_text()))
    return counts


class _Barrier:
    """Holds forked processes until all are warm, and tells them when to start."""

    def __init__(self) -> None:
        self._ready = os.pipe()
        self._start = os.pipe()

    def wait(self) -> int:
        """Say that this process is warm; return the time to start, in ns."""
        os.write(self._ready[1], b".")
        return int.from_bytes(os.read(self._start[0], 8), "big")

    def release(self, processes: int) -> int:
        """Wait until so many are warm, let them start, and return when, in ns."""
        for _ in range(processes):
            os.read(self._ready[0], 1)
        starts_ns = time.monotonic_ns() + HEAD_START_NS
        for _ in range(processes):
            os.write(self._start[1], starts_ns.to_bytes(8, "big"))
        return starts_ns


def _start(plan: Plan, barrier: _Barrier) -> int:
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        try:
            racer = Racer(plan)
        finally:
            starts_ns = barrier.wait()  # If it failed, the others must not wait for it.
        racer.run(starts_ns)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _befall(trouble: Trouble, process: int, started_s: float) -> None:
    """Make trouble happen when its time has come."""
    time.sleep(max(0.0, started_s + trouble.at_s - time.monotonic()))
    if trouble.stopped_s is None:
        os.kill(process, signal.SIGKILL)
        return
    os.kill(process, signal.SIGSTOP)
    time.sleep(trouble.stopped_s)
    os.kill(process, signal.SIGCONT)


def main() -> None:
    """Be the process that forks."""
    job = json.loads(sys.stdin.read())
    for name in WARM:
        importlib.import_module(name)
    barrier = _Barrier()
    processes = {plan["number"]: _start(Plan(**plan), barrier) for plan in job["plans"]}
    starts_ns = barrier.release(len(processes))
    troubles = sorted((Trouble(**trouble) for trouble in job["troubles"]), key=lambda trouble: trouble.at_s)
    for trouble in troubles:
        _befall(trouble, processes[trouble.number], starts_ns / 1e9)
    killed = {trouble.number for trouble in troubles if trouble.stopped_s is None}
    failed = [n for n, process in processes.items() if os.waitpid(process, 0)[1] and n not in killed]
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
