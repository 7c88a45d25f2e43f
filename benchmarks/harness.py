"""How things are measured: alternation in one run, medians and spread, peak memory in a process of its own.

A `Measure` has our side, one or more peers, and a job that does our side once in a fresh process. Rounds alternate: all
sides run once in each, and who goes first changes, so that nobody profits from what another left behind. The first
round warms up and is dropped. A ratio is the median over rounds of (time of the peer / time of ours) in the same round,
so 2.0 means twice as fast; of several peers the one with the least median counts.
"""

import gc
import importlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent


def nothing() -> None:
    """Prepare nothing."""


@dataclass(frozen=True)
class Side:
    """One contestant: what is timed, what is done before each time without being timed, and per how much to tell."""

    call: Callable[[], object]
    name: str = "persist"
    before: Callable[[], object] = nothing
    units: float = 1  # Times are divided by this: reads, batches.


@dataclass(frozen=True)
class Row:
    """One line of the report: what was measured, what it should reach, and what it was."""

    measure: str
    against: str
    reach: str
    ours: str
    theirs: str = "-"
    ratio: str = "-"
    memory: str = "-"


@dataclass(frozen=True)
class Job:
    """A top-level function of a module and its arguments, which can be JSON: what a fresh process can do."""

    function: Callable[..., object]
    arguments: Sequence[Any]


@dataclass(frozen=True)
class Measure:
    """What is compared with what."""

    measure: str
    against: str
    reach: str
    ours: Side
    theirs: Sequence[Side]
    job: Job | None = None

    def run(self, rounds: int, memory_of: Callable[[Job], str], clock: Callable[[], float] = time.perf_counter) -> Row:
        """Run all sides and return the line of the report; memory_of tells the peak memory of a job."""
        mine, *others = alternate([self.ours, *self.theirs], rounds, clock)
        best = min(range(len(others)), key=lambda i: statistics.median(others[i]))
        ratios = [theirs / ours for ours, theirs in zip(mine, others[best], strict=True)]
        named = len(others) > 1
        theirs = ", ".join(
            (f"{side.name} " if named else "") + duration(statistics.median(taken))
            for side, taken in zip(self.theirs, others, strict=True)
        )
        memory = memory_of(self.job) if self.job is not None else "-"
        ours = f"{duration(statistics.median(mine))} ({duration(min(mine))} to {duration(max(mine))})"
        return Row(self.measure, self.against, self.reach, ours, theirs, times(ratios), memory)


def alternate(sides: Sequence[Side], rounds: int, clock: Callable[[], float] = time.perf_counter) -> list[list[float]]:
    """Return the seconds per unit of each round of each side, by a clock; in each round another one goes first."""
    taken: list[list[float]] = [[] for _ in sides]
    for round_ in range(rounds + 1):
        for i in range(len(sides)):
            at = (i + round_) % len(sides)
            sides[at].before()
            gc.collect()
            began = clock()
            sides[at].call()
            if round_:
                taken[at].append((clock() - began) / sides[at].units)
    return taken


def tree_cpu_s() -> float:
    """Return the CPU seconds of this process and its descendants, those that have ended among them. Linux only."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            try:
                fields = (each / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # It has ended meanwhile.
            parents[int(each.name)] = int(fields[1])
            ticks[int(each.name)] = sum(map(int, fields[11:15]))
    ours = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return sum(ticks[pid] for pid in ours) / os.sysconf("SC_CLK_TCK")


def times(ratios: Sequence[float]) -> str:
    """Return median and spread of ratios, as text."""
    return f"{statistics.median(ratios):.2f}x ({min(ratios):.2f} to {max(ratios):.2f})"


def duration(seconds: float) -> str:
    """Return a duration as text."""
    for limit, factor, unit in [(0.001, 1e6, "µs"), (1.0, 1e3, "ms")]:
        if seconds < limit:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds:.3g} s" if seconds < 100 else f"{seconds:.0f} s"


def megabytes(count: int) -> str:
    """Return a number of bytes as text."""
    return f"{count / 2**20:,.0f} MiB" if count >= 10 << 20 else f"{count / 2**20:.1f} MiB"


def report(rows: Sequence[Row]) -> str:
    """Return the rows as a Markdown table."""
    lines = [
        "| measure | against | reach | ours, median (spread) | theirs | ratio, median (spread) | our peak memory |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {r.measure} | {r.against} | {r.reach} | {r.ours} | {r.theirs} | {r.ratio} | {r.memory} |" for r in rows
    ]
    return "\n".join(lines)


def peak_memory(job: Job) -> int:
    """Run a job in a process of its own; return its peak memory less what the imports take, in bytes."""
    command = [sys.executable, "-m", "benchmarks.harness", job.function.__module__, job.function.__name__]
    command.append(json.dumps(list(job.arguments)))
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    return int(done.stdout.split()[-1])


def peak_rss() -> int:
    """Return the most memory that was resident in this process, in bytes.

    Not `ru_maxrss`, where there is another way: on Linux that begins with the peak of the process that started this.
    """
    status = Path("/proc/self/status")
    if status.exists():
        [line] = [line for line in status.read_text().splitlines() if line.startswith("VmHWM:")]
        return int(line.split()[1]) << 10
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak << 10


def _child(module: str, function: str, arguments: str) -> None:
    call = getattr(importlib.import_module(module), function)
    before = peak_rss()
    call(*json.loads(arguments))
    print(peak_rss() - before)


if __name__ == "__main__":
    _child(*sys.argv[1:])
