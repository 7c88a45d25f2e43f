"""Two ways to compute what is new, what each is about to take, and the one to take.

    state    a handle that is open has what its operators keep, and takes in what is new only. To open it reads all that
             the sources hold, and keeps about `STATE_PER_BYTE` times that: what is beyond its memory budget in mapped
             files, which cost little as long as the system has memory to cache them in
    step     keeps nothing, and reads of the past what touched keys hold. It is done here, in this process, or by tasks
             elsewhere, where a job for each change of key finds these keys, if one is needed, and another one computes.
             Tasks may read everything, too, where that takes less

A step is taken until the steps of a handle together have taken as long as it takes to open state. So a process that
lives long ends with state, having spent twice what it would have if it had known, and one that refreshes once and ends
never opens any.

What they take is an estimate from the descriptors of parts, of bytes decoded: it compares ways, and is no promise. The
rates are those of one core of a small machine, as `benchmarks.views_spark` gives them, and only their ratios matter.
Both ways write the same updates.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

Way = Literal["state", "step"]
Where = Literal["here", "tasks"]
Reads = Literal["changes", "touched", "everything"]

STATE_PER_BYTE = 3  # Of what is read, decoded: words, arrangements, and what is being merged.
SPILLED_SLOWNESS = 1.2  # Of a state beyond the budget: mapped pages are touched for the first time.
DISK_SLOWNESS = 4  # Of a state that does not fit into what is free.
OPEN_S = 0.02  # To make the operators of a program, or to look whether there is anything to do.
HERE_S = 0.05  # For the stages of a step here to begin and end.
JOB_S = 0.8  # For a job with a shuffle to begin and end.
SCAN_BYTES_S = 200e6  # Read, decoded and looked through, by one core.
STATE_BYTES_S = 75e6  # Taken in by operators that keep it.
HERE_BYTES_S = 60e6  # Taken in by operators that keep nothing: what is needed is told apart first.
TASK_BYTES_S = 15e6  # Shuffled and taken in by a task.
TOUCHED_PER_CHANGE = 10  # Bytes that are shuffled for each byte that changed, at most all that is read.
FREE_UNKNOWN = 4 << 30
READ: dict[Reads, str] = {
    "changes": "what has changed", "touched": "what touched keys hold", "everything": "everything",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Work:
    """What there is to do.

    Attributes:
        bytes: of all that the sources hold, and of what is new.
        changed_bytes: of what is new.
        needed_bytes: of what touched keys hold, and of what is new; None if all is needed.
        whole_bytes: of sources that are needed whole, of that.
        parts: how many parts share nothing but what is read; `bytes`, `changed_bytes` and `whole_bytes` are counted for
            each of them that takes them in.
        jobs: how many jobs the tasks that look up take.
        slots: how many tasks run at a time elsewhere; 0 if there is no elsewhere.
        spent_s: what the steps of this handle have taken so far, by the same estimates.
        free_bytes: of memory here.
        budget_bytes: of memory that state may be kept in.
    """

    bytes: int
    changed_bytes: int
    needed_bytes: int | None
    jobs: int
    slots: int
    spent_s: float
    free_bytes: int
    budget_bytes: int
    whole_bytes: int = 0
    parts: int = 1


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a way is about to take.

    Attributes:
        where: who computes: this process, or tasks elsewhere.
        reads: what is read: what has changed, what touched keys hold, too, or everything.
        bytes: of that, decoded.
        seconds: for comparison only.
        note: what it depends on.
    """

    way: Way
    where: Where
    reads: Reads
    bytes: int
    seconds: float
    note: str

    def __str__(self) -> str:
        place = "here" if self.where == "here" else "by tasks"
        takes = f"about {self.bytes:,} bytes to read and {self.seconds:,.1f} s ({self.note})"
        return f"{self.way} {place}, of {READ[self.reads]}: {takes}"


def estimates(work: Work) -> tuple[Estimate, ...]:
    """Return what the ways that can be taken are about to take."""
    ways = [_state(work)]
    if work.needed_bytes is not None:
        shuffled = min(work.parts * work.needed_bytes, TOUCHED_PER_CHANGE * work.changed_bytes + work.whole_bytes)
        read_s = work.needed_bytes / SCAN_BYTES_S
        if STATE_PER_BYTE * work.needed_bytes <= work.free_bytes:
            here_s = HERE_S + read_s + shuffled / HERE_BYTES_S
            ways.append(Estimate("step", "here", "touched", work.needed_bytes, here_s, "one stage at a time"))
        if work.slots:
            note = f"{work.jobs} jobs, {work.slots} tasks at a time"
            tasks_s = work.jobs * JOB_S + (read_s + shuffled / TASK_BYTES_S) / work.slots
            ways.append(Estimate("step", "tasks", "touched", work.needed_bytes, tasks_s, note))
    if work.slots:
        all_s = work.bytes / SCAN_BYTES_S + work.bytes / TASK_BYTES_S
        note = f"1 job, {work.slots} tasks at a time"
        ways.append(Estimate("step", "tasks", "everything", work.bytes, JOB_S + all_s / work.slots, note))
    return tuple(ways)


def _state(work: Work) -> Estimate:
    seconds, state = OPEN_S + work.bytes / STATE_BYTES_S, STATE_PER_BYTE * work.bytes
    note = f"keeps about {state:,} bytes, {work.free_bytes:,} are free, and {work.budget_bytes:,} may be used"
    if state > work.free_bytes:
        seconds *= DISK_SLOWNESS
    elif state > work.budget_bytes:
        seconds *= SPILLED_SLOWNESS
    return Estimate("state", "here", "everything", work.bytes, seconds, note)


def best(ways: Iterable[Estimate], spent_s: float = 0.0) -> Estimate:
    """Return the way to take: the step that takes least, unless it and those before take longer than state does."""
    return min(ways, key=lambda estimate: estimate.seconds + (spent_s if estimate.way == "step" else 0.0))


def is_small(size: int, spent_s: float) -> bool:
    """Whether state of inputs of so many bytes takes no longer than any step here."""
    return OPEN_S + size / STATE_BYTES_S < spent_s + HERE_S


def could_pay(work: Work) -> bool:
    """Whether looking up could be the best way if it read nothing but what is new, and what is needed whole whatever
    that is; where it could not, a step needs no look at its keys."""
    least = replace(work, needed_bytes=least_bytes(work))
    return best(estimates(least), work.spent_s).reads == "touched"


def least_bytes(work: Work) -> int:
    """Return what a step reads at least."""
    return work.changed_bytes + work.whole_bytes


def free_memory() -> int:
    """Return about how many bytes of memory a process may still take, as far as the system says."""
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return FREE_UNKNOWN
