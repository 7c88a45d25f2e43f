"""Runs of the simulator, one after the other, and what comes of them.

A campaign of a seed is a series of episodes. Each has an empty location of its own, a seed of its own and a few hundred
steps, so that a failure can be repeated and made short by itself.
"""

import gc
import random
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from persist.blob.protocol import Blob, MemoryBlob
from persist.blob.stores.file import FileBlob
from persist.engine.follow import directory
from persist.engine.follow import directory_pages as pages
from persist.sql import InputBehind
from tests.proofs.simulator.history import History
from tests.proofs.simulator.judge import judge
from tests.proofs.simulator.judgement import Violation
from tests.proofs.simulator.language import Step, generate
from tests.proofs.simulator.players import Run, features
from tests.proofs.simulator.relayed import relayed_steps
from tests.proofs.simulator.served import ServedRun, served_steps
from tests.proofs.simulator.shrink import TRIES, shrink
from tests.proofs.simulator.shuffle import Manner, shuffled

SIZES = (100, 300, 300, 600)
SHOWN_MAX = 10
FLAT_OUT = 0.25
# How an episode is run, and how often: shuffled by the baton, or in turns on files or with servers.
SCHEDULERS = {"shuffled": 0.9, "on files": 0.03, "served": 0.07}
KEYED = 0.3
COLLECTORS = 0.25
CLONES = 0.3
PUBLISHES = 0.3
SLEEPS = 0.25
RECOVERS = 0.2
THROUGH = 0.2


@dataclass(frozen=True, slots=True)
class Episode:
    """How one run is made: everything follows from it, but the turns of threads where nobody shuffles them."""

    seed: int
    size: int
    scheduler: str = "shuffled"
    flat_out: bool = False
    is_keyed: bool = False
    collects: bool = False
    clones: bool = False
    publishes: bool = False
    sleeps: bool = False
    through: bool = False
    recovers: bool = False

    def steps(self) -> list[Step]:
        kinds = {"flat_out": self.flat_out, "is_keyed": self.is_keyed, "collects": self.collects}
        more = {"clones": self.clones, "publishes": self.publishes, "sleeps": self.sleeps, "recovers": self.recovers}
        steps = generate(self.seed, self.size, features(), **kinds, **more)
        if self.scheduler == "served":
            return served_steps(steps, self.seed)
        if self.scheduler == "on files":  # Iceberg names files by absolute paths.
            chance = random.Random(self.seed)
            return [step | {"table": chance.choice(["delta", "iceberg"])} for step in steps]
        return relayed_steps(steps, self.seed) if self.through and self.scheduler == "shuffled" else steps

    @property
    def has_pages(self) -> bool:
        """Whether the directory of its location is in pages."""
        return self.seed % 3 == 0

    @property
    def manner(self) -> Manner:
        """Of a shuffled one: those who collect are stopped for long, and the others go on meanwhile."""
        return Manner(patience=0.8, waits_s=5.0) if self.collects or self.sleeps else Manner()

    def __str__(self) -> str:
        more = {"flat out": self.flat_out, "keyed": self.is_keyed, "collectors": self.collects, "clones": self.clones}
        more |= {"published": self.publishes, "asleep": self.sleeps, "through": self.through, "recovers": self.recovers}
        more["pages"] = self.has_pages
        return " ".join([f"seed={self.seed} size={self.size} {self.scheduler}", *(name for name in more if more[name])])


@dataclass(slots=True)
class Report:
    """What happened, in numbers."""

    operations: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    retries: Counter[str] = field(default_factory=Counter)
    requests: int = 0
    commits: int = 0
    turns: int = 0
    virtual_s: float = 0.0

    def add(self, other: "Report") -> None:
        self.operations += other.operations
        self.outcomes += other.outcomes
        self.faults += other.faults
        self.retries += other.retries
        self.requests += other.requests
        self.commits += other.commits
        self.turns += other.turns
        self.virtual_s += other.virtual_s

    def __str__(self) -> str:
        lines = [f"operations {self.operations.total()}, commits {self.commits}, requests {self.requests}"]
        lines += [f"turns {self.turns}, virtual days {self.virtual_s / 86400:.1f}"]
        counts = {"operation": self.operations, "outcome": self.outcomes, "fault": self.faults, "counted": self.retries}
        for title, each in counts.items():
            lines += [f"  {title} {name}: {n}" for name, n in sorted(each.items())]
        return "\n".join(lines)


def episodes(seed: int, *, flat_out: float = FLAT_OUT) -> Iterator[Episode]:
    """Yield the episodes of a campaign, without end; flat_out is the share of those with compaction all the time."""
    chance = random.Random(seed)
    while True:
        [scheduler] = chance.choices([*SCHEDULERS], [*SCHEDULERS.values()])
        kinds = [
            chance.random() < share
            for share in (flat_out, KEYED, COLLECTORS, CLONES, PUBLISHES, SLEEPS, THROUGH, RECOVERS)
        ]
        yield Episode(chance.randrange(10**9), chance.choice(SIZES), scheduler, *kinds)


def execute(episode: Episode, steps: list[Step], blob: Blob | None = None) -> tuple[History, list[Violation], Report]:
    """Do steps, as one run of that episode; return what happened and what is wrong with it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InputBehind)  # That is what `refresh` is to say.
        history, run = _executed(episode, steps, blob)
    gc.collect()  # Clients that crashed are cycles with what was taken from them, and their threads end with them.
    violations = [Violation("invariant", broken) for broken in run.tap.broken] + judge(history)
    report = Report(
        faults=run.faults,
        retries=run.retries,
        requests=run.tap.requests,
        commits=len(history.commits),
        turns=0 if run.world.baton is None else run.world.baton.turns,
        virtual_s=run.world.now_s(),
    )
    report.operations.update(event.op for event in history.events)
    report.outcomes.update(str(event.error or event.outcome[0]) for event in history.events)
    return history, violations, report


@contextmanager
def _tiny_pages() -> Iterator[None]:
    """Let directories of a few collections be written as those of a million are: in pages."""
    sizes = [(directory, "INLINE_BYTES_MAX", 1000), (directory, "WHOLE_BYTES_MAX", 1500), (pages, "PAGE_BYTES", 600)]
    with pytest.MonkeyPatch.context() as patch:
        for place, name, size in [*sizes, (pages, "OBJECT_BYTES_MAX", 1500), (pages, "KNOWN_PAGES", 3)]:
            patch.setattr(place, name, size)
        yield


def _executed(episode: Episode, steps: list[Step], blob: Blob | None) -> tuple[History, Run]:
    with _tiny_pages() if episode.has_pages else nullcontext():
        return _run(episode, steps, blob)


def _run(episode: Episode, steps: list[Step], blob: Blob | None) -> tuple[History, Run]:
    run: Run
    if episode.scheduler == "shuffled":
        history, run = shuffled(steps, episode.seed, episode.manner, blob)
    elif episode.scheduler == "served":
        run = ServedRun(blob or MemoryBlob(), episode.seed)
        history = run.execute(steps)
    else:
        with tempfile.TemporaryDirectory(prefix="persist-simulator-") as folder:
            run = Run(FileBlob(Path(folder), fsync=False))
            history = run.execute(steps)
    return history, run


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

    steps = shrink(episode.steps(), fails, tries=1 if episode.scheduler == "shuffled" else TRIES)
    history, violations = found[-1]
    lines = [f"The simulator found a violation: {episode}", *(str(each) for each in violations[:SHOWN_MAX])]
    lines += ["", f"The shortest history that still fails ({len(history.events)} calls):", *history.lines()]
    return "\n".join([*lines, "", f"Its {len(steps)} steps:", *map(repr, steps)])
