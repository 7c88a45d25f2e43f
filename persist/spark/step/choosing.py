"""Who computes a step: four ways, what each is about to take, and the one that takes least.

    embedded     the engine on the driver. A handle that has refreshed before has its state; a new one reads all that
                 the sources hold, and keeps about `STATE_PER_BYTE` times that: what is beyond its memory budget in
                 mapped files, which cost little as long as the system has memory to cache them in
    driver       what the tasks of the next way do, on the driver: no job has to begin, and one core does it
    spark        tasks that read what touched keys hold; a job for each change of key finds these keys, where one is
                 needed, and another one computes
    recompute    tasks that read all that the sources hold

What they take is an estimate from the descriptors of parts, of bytes decoded: it compares ways, and is no promise. The
rates are those of one core of a small machine, as `benchmarks.views_spark` gives them, and only their ratios matter.
All ways write the same updates.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

Way = Literal["embedded", "driver", "spark", "recompute"]

STATE_PER_BYTE = 3  # Of what is read, decoded: words, arrangements, and what is being merged.
SPILLED_SLOWNESS = 1.2  # Of a state beyond the budget: mapped pages are touched for the first time.
DISK_SLOWNESS = 4  # Of a state that does not fit into what is free.
DRIVER_S = 0.05  # For stages on the driver to begin and end.
JOB_S = 0.8  # For a job with a shuffle to begin and end.
SCAN_BYTES_S = 200e6  # Read, decoded and looked through, by one core.
EMBEDDED_BYTES_S = 75e6  # Taken in by the engine on the driver.
DRIVER_BYTES_S = 25e6  # Given from stage to stage on the driver, and taken in.
TASK_BYTES_S = 15e6  # Shuffled and taken in by a task.
TOUCHED_PER_CHANGE = 10  # Bytes that are shuffled for each byte that changed, at most all that is read.
FREE_UNKNOWN = 4 << 30


@dataclass(frozen=True, slots=True)
class Work:
    """What there is to do.

    Attributes:
        bytes: of all that the sources hold, and of what is new.
        changed_bytes: of what is new.
        needed_bytes: of what touched keys hold, and of what is new; None if all is needed.
        jobs: how many jobs the tasks that look up take.
        slots: how many tasks run at a time.
        is_open: whether the embedded engine has its state already.
        free_bytes: of memory on the driver.
        budget_bytes: of memory that the embedded engine may keep its state in.
    """

    bytes: int
    changed_bytes: int
    needed_bytes: int | None
    jobs: int
    slots: int
    is_open: bool
    free_bytes: int
    budget_bytes: int


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a way is about to take.

    Attributes:
        bytes: that it reads, decoded.
        seconds: for comparison only.
        note: what it depends on.
    """

    way: Way
    bytes: int
    seconds: float
    note: str

    def __str__(self) -> str:
        return f"{self.way}: about {self.bytes:,} bytes to read and {self.seconds:,.1f} s ({self.note})"


def estimates(work: Work) -> tuple[Estimate, ...]:
    """Return what the ways that can be taken are about to take."""
    ways = [_embedded(work)]
    if work.needed_bytes is not None:
        shuffled = min(work.needed_bytes, TOUCHED_PER_CHANGE * work.changed_bytes)
        read_s = work.needed_bytes / SCAN_BYTES_S
        if STATE_PER_BYTE * work.needed_bytes <= work.free_bytes:
            here_s = DRIVER_S + read_s + shuffled / DRIVER_BYTES_S
            ways.append(Estimate("driver", work.needed_bytes, here_s, "no job, one task at a time"))
        note = f"{work.jobs} jobs, {work.slots} tasks at a time"
        ways.append(
            Estimate(
                "spark", work.needed_bytes, work.jobs * JOB_S + (read_s + shuffled / TASK_BYTES_S) / work.slots, note
            )
        )
    each_s = work.bytes / SCAN_BYTES_S + work.bytes / TASK_BYTES_S
    note = f"1 job, {work.slots} tasks at a time"
    ways.append(Estimate("recompute", work.bytes, JOB_S + each_s / work.slots, note))
    return tuple(ways)


def _embedded(work: Work) -> Estimate:
    size = work.changed_bytes if work.is_open else work.bytes
    seconds = size / EMBEDDED_BYTES_S
    if work.is_open:
        return Estimate("embedded", size, seconds, "this handle has its state in memory")
    state = STATE_PER_BYTE * size
    note = f"keeps about {state:,} bytes, {work.free_bytes:,} are free, and {work.budget_bytes:,} may be used"
    if state > work.free_bytes:
        seconds *= DISK_SLOWNESS
    elif state > work.budget_bytes:
        seconds *= SPILLED_SLOWNESS
    return Estimate("embedded", size, seconds, note)


def best(ways: Iterable[Estimate]) -> Estimate:
    """Return the way that takes least."""
    return min(ways, key=lambda way: way.seconds)


def could_pay(work: Work) -> bool:
    """Whether looking up could be the best way if it read nothing but what is new; a step of a handle that has its
    state, or of little that is there, is embedded without any look at its keys."""
    least = replace(work, needed_bytes=work.changed_bytes)
    return best(estimates(least)).way in ("driver", "spark")


def free_memory() -> int:
    """Return about how many bytes of memory a process may still take, as far as the system says."""
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return FREE_UNKNOWN
