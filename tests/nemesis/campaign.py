"""Runs of the Nemesis, one after the other, and what comes of them.

A campaign of a seed is a series of episodes. Each has an empty location of its own, a seed of its own and a few hundred
steps, so that a failure can be repeated and made short by itself.
"""

import gc
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from persist.blob import Blob, FileBlob, MemoryBlob
from tests.nemesis.generator import Step, generate
from tests.nemesis.history import History
from tests.nemesis.runner import Run, features
from tests.nemesis.served import ServedRun, served_steps
from tests.nemesis.shrink import shrink
from tests.nemesis.validator import Violation, judge

SIZES = (100, 300, 300, 600)
SHOWN_MAX = 10
FLAT_OUT = 0.25
SERVED = 0.1
KEYED = 0.3


@dataclass(frozen=True, slots=True)
class Episode:
    """How one run is made: everything but the turns of the threads follows from it."""

    seed: int
    size: int
    on_files: bool = False
    flat_out: bool = False
    is_served: bool = False
    is_keyed: bool = False

    def steps(self) -> list[Step]:
        steps = generate(self.seed, self.size, features(), flat_out=self.flat_out, is_keyed=self.is_keyed)
        return served_steps(steps, self.seed) if self.is_served else steps

    def __str__(self) -> str:
        how = (" on files" if self.on_files else "") + (" flat out" if self.flat_out else "")
        how += (" served" if self.is_served else "") + (" keyed" if self.is_keyed else "")
        return f"seed={self.seed} size={self.size}{how}"


@dataclass(slots=True)
class Report:
    """What happened, in numbers."""

    operations: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    retries: Counter[str] = field(default_factory=Counter)
    requests: int = 0
    commits: int = 0

    def add(self, other: "Report") -> None:
        self.operations += other.operations
        self.outcomes += other.outcomes
        self.faults += other.faults
        self.retries += other.retries
        self.requests += other.requests
        self.commits += other.commits

    def __str__(self) -> str:
        lines = [f"operations {self.operations.total()}, commits {self.commits}, writing requests {self.requests}"]
        counts = {"operation": self.operations, "outcome": self.outcomes, "fault": self.faults, "counted": self.retries}
        for title, each in counts.items():
            lines += [f"  {title} {name}: {n}" for name, n in sorted(each.items())]
        return "\n".join(lines)


def episodes(seed: int, *, flat_out: float = FLAT_OUT) -> Iterator[Episode]:
    """Yield the episodes of a campaign, without end; flat_out is the share of those with compaction all the time."""
    chance = random.Random(seed)
    while True:
        on_files = chance.random() < 0.05
        yield Episode(
            chance.randrange(10**9),
            chance.choice(SIZES),
            on_files,
            chance.random() < flat_out,
            chance.random() < SERVED,
            chance.random() < KEYED,
        )


def execute(episode: Episode, steps: list[Step]) -> tuple[History, list[Violation], Report]:
    """Do steps, as one run of that episode; return what happened and what is wrong with it."""
    folder = tempfile.mkdtemp(prefix="nemesis-") if episode.on_files else None
    try:
        blob: Blob = FileBlob(Path(folder), fsync=False) if folder else MemoryBlob()
        run = ServedRun(blob, episode.seed) if episode.is_served else Run(blob)
        history = run.execute(steps)
    finally:
        if folder:
            shutil.rmtree(folder)
        gc.collect()  # Clients that crashed are cycles with what was taken from them, and their threads end with them.
    report = Report(
        faults=run.faults, retries=run.retries, requests=sum(history.stored.values()), commits=len(history.commits)
    )
    report.operations.update(event.op for event in history.events)
    report.outcomes.update(str(event.error or event.outcome[0]) for event in history.events)
    return history, judge(history), report


def explain(episode: Episode, history: History, violations: list[Violation]) -> str:
    """Return what people need to see of a failure: how to repeat it, and the shortest history that still fails."""
    rules = {violation.rule for violation in violations}
    found: list[tuple[History, list[Violation]]] = [(history, violations)]

    def fails(steps: list[Step]) -> bool:
        history, violations, _ = execute(episode, steps)
        if not any(violation.rule in rules for violation in violations):
            return False
        if len(history.events) <= len(found[-1][0].events):
            found.append((history, violations))
        return True

    steps = shrink(episode.steps(), fails)
    history, violations = found[-1]
    lines = [f"The Nemesis found a violation: {episode}", *(str(each) for each in violations[:SHOWN_MAX])]
    lines += ["", f"The shortest history that still fails ({len(history.events)} calls):", *history.lines()]
    return "\n".join([*lines, "", f"Its {len(steps)} steps:", *map(repr, steps)])
