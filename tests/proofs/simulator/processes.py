"""Runs in real processes on one location, of which some are killed and some are stopped for a while.

Each slot's steps are done by a process of its own, all at once. A step that says that its client dies at a request
kills the process there, with SIGKILL. One process is killed when it has changed the store so many times, and others are
killed or stopped at moments that nobody chose. Another process goes
on with the steps that are left, until there are none; what belongs to the whole world is left out. Every process
writes down each call before it makes it, and each answer, so that a kill loses neither; the moments are those of the
machine's monotonic clock. Of a record it is known that it came into being after its request was sent, and before it
was answered or the record after it came: the judge takes the doubt into account.
"""

import json
import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from persist.blob.protocol import Blob, BlobEntry
from persist.blob.url import open_blob
from persist.core.log.framing import FORMAT
from tests.proofs.simulator.assigned import with_assigned_times
from tests.proofs.simulator.history import Commit, Event, History
from tests.proofs.simulator.language import SKEW_MAX_S, Step, generate
from tests.proofs.simulator.log_reader import Added, read_commit
from tests.proofs.simulator.players import SETTINGS, Run, features
from tests.proofs.simulator.standing import LOG
from tests.proofs.simulator.world import BEGAN_MS, ClientStore, World
from tests.support.invariants import check_named

TIMEOUT_S = 600.0
LIVES_MAX = 60
CHANGES_MAX = 8  # Of the store; opening a client and creating collections are some of them.
EVENT_IDS = 10**6  # Of one process.


@dataclass(frozen=True)
class Plan:
    """What one process does.

    Attributes:
        number: of all processes of a run, from 0.
        began_ns: when the clock of the world began.
        changes_max: of the store, after which the process is killed; None if it is not.
    """

    url: str
    options: dict[str, Any]
    journal: str
    number: int
    began_ns: int
    steps: list[Step] = field(repr=False)
    changes_max: int | None = None


class Journal:
    """A file that keeps what was written to it although its process is killed the next moment."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, **line: Any) -> None:
        os.write(self._file, json.dumps(line).encode() + b"\n")


class RealWorld(World):
    """The machine's clock."""

    def __init__(self, began_ns: int) -> None:
        super().__init__()
        self.began_ns = began_ns

    def next(self) -> int:
        """Return the present moment, in nanoseconds."""
        return time.monotonic_ns() - self.began_ns

    def now_s(self) -> float:
        return self.next() / 1e9

    def advance(self, seconds: float) -> None:
        time.sleep(seconds)


class WitnessedStore:
    """Passes requests on to a location, and writes down when records were about to be created and were.

    Args:
        changes_max: kill the process when it has changed the location so many times, by whichever of its clients.
    """

    def __init__(self, inner: Blob, world: RealWorld, write: Callable[..., None], changes_max: int | None) -> None:
        self.inner = inner
        self._world = world
        self._tell = write
        self._changes_left = changes_max
        self.stored: Counter[str] = Counter()

    @property
    def url(self) -> str:
        return self.inner.url

    def get(self, key: str, range: tuple[int, int] | None = None) -> bytes | None:
        return self.inner.get(key, range)

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[BlobEntry]:
        return self.inner.list(prefix, start_after)

    def set(self, client: str, key: str, value: bytes) -> None:
        self.inner.set(key, value)
        self._changed()

    def create(self, client: str, key: str, value: bytes) -> bool:
        if not key.startswith(LOG):
            created = self.inner.create(key, value)
        else:
            commit = json.loads(value)["commit"]
            self._tell(creates=commit, client=client, at=self._world.next())
            created = self.inner.create(key, value)
            self._tell(created=commit, client=client, at=self._world.next(), is_new=created)
        self._changed()
        return created

    def delete(self, client: str, key: str) -> None:
        self.inner.delete(key)
        self._changed()

    def _changed(self) -> None:
        if self._changes_left is not None:
            self._changes_left -= 1
            if self._changes_left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)


class MortalStore(ClientStore):
    """One whose end is that of the process."""

    def cut_at(self, calls: int, how: str) -> None:
        self._kills_at, self._side = calls, how

    _kills_at: int | None = None
    _side = "before"

    def _mutate(self, request: str, call: Callable[[], Any]) -> Any:
        if self._kills_at is not None:
            self._kills_at -= 1
            if self._kills_at < 0:
                if self._side == "after":
                    call()
                os.kill(os.getpid(), signal.SIGKILL)
        return super()._mutate(request, call)


class ProcessRun(Run):
    """A run of some steps on a location that others use, too."""

    store_type = MortalStore
    sees_all = False
    slow_s = 0.02

    def __init__(self, plan: Plan, write: Callable[..., None] | None = None) -> None:
        super().__init__()
        self._plan = plan
        self._tell = write or Journal(plan.journal).write
        self.world = self.moments = RealWorld(plan.began_ns)  # type: ignore[assignment]
        store = open_blob(plan.url, plan.options)
        self.tap = WitnessedStore(store, self.world, self._tell, plan.changes_max)  # type: ignore[assignment]
        self.name = f"p{plan.number}."
        self._numbers = iter(range(plan.number * EVENT_IDS, (plan.number + 1) * EVENT_IDS))  # type: ignore[assignment]

    def live(self) -> None:
        """Do all steps."""
        for step in self._plan.steps:
            self._tell(step=step["id"])
            self._do(step)
        for number in list(self.slots):
            self._leave(number)
        self._await(self.gone)
        self._tell(ended=True)

    def read_everything(self) -> None:
        """See `Run`."""
        self._read_everything()
        self._await(self.gone)

    def _began(self, slot: Any, op: str, args: dict[str, Any]) -> Event:
        event = super()._began(slot, op, args)
        self._tell(event=asdict(event))
        return event

    def _ended(self, slot: Any, event: Event, faults_before: int, answer: list[Any]) -> None:
        super()._ended(slot, event, faults_before, answer)
        self._tell(event=asdict(event))

    def _look(self, pending: Any) -> None:
        super()._look(pending)
        self._tell(event=asdict(pending.event))

    def _close(self, slot: Any, step: Step) -> None:
        pending = [*slot.pending]
        super()._close(slot, step)
        for each in pending:
            self._tell(event=asdict(each.event))


def live(plan: Plan) -> None:
    """Be a process of a run."""
    ProcessRun(plan).live()
    os._exit(0)  # Errors that nobody looked at are in the history, if they matter.


@dataclass
class Fate:
    """What befalls processes: how many are killed, and how many stopped for a while.

    The process of the first slot is killed after `CHANGES_MAX` changes of the store, so that one is, however busy the
    machine and whoever is ahead. All else is at moments that nobody chose, and processes may be done before.
    """

    kills: int = 0
    stops: int = 0
    pause_s: float = 0.15


class _Life:
    """The processes, one after the other, that do the steps of one slot."""

    def __init__(self, race: "Race", steps: list[Step], changes_max: int | None) -> None:
        self._race = race
        self._steps = steps
        first = [step for step in steps if step["op"] in ("open", "create_or_load")][:5]
        self._beginning = [{**step, "id": -1 - n} for n, step in enumerate(first)]
        self.process: Any = None
        self._plan: Plan | None = None
        self._changes_max = changes_max
        self.is_over = not steps

    def go_on(self) -> None:
        """Begin the next process if the last one has ended, unless all is done."""
        if self.is_over or (self.process is not None and self.process.is_alive()):
            return
        if self.process is not None:
            self._bury()
        if not self._steps or len(self._race.plans) >= LIVES_MAX:
            self.is_over = True
            return
        first = self._steps if self.process is None else [*self._beginning, *self._steps]
        self._plan, self._changes_max = self._race.new_plan(first, self._changes_max), None
        self.process = self._race.context.Process(target=live, args=(self._plan,), daemon=True)
        self.process.start()

    def _bury(self) -> None:
        assert self._plan is not None
        lines = read_lines(self._plan.journal)
        code = self.process.exitcode
        assert code == -signal.SIGKILL or any("ended" in line for line in lines), f"a process failed: {self._plan}"
        begun = {line["step"] for line in lines if "step" in line}
        self._race.counts["killed"] += code == -signal.SIGKILL
        self._steps = [step for step in self._steps if step["id"] > max(begun, default=-1)]


class Race:
    """One run; `run` returns its history.

    Args:
        folder: where the processes write down what they do.
    """

    def __init__(self, url: str, options: dict[str, Any], folder: Path) -> None:
        self._url, self._options, self._folder = url, options, folder
        folder.mkdir(exist_ok=True)
        self._began_ns = time.monotonic_ns()
        self.plans: list[Plan] = []
        self.counts: Counter[str] = Counter()
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["tests.proofs.simulator.processes", "boto3", "pandas"])

    def run(self, seed: int, size: int, slots: int, fate: Fate, *, is_keyed: bool = False) -> History:
        """Do size steps, in as many processes at once as there are slots."""
        chance = random.Random(seed)
        steps = [_by_process(s) for s in generate(seed, size, features(), is_keyed=is_keyed, slots=slots)]
        lives = [
            _Life(
                self,
                [step for step in steps if step["slot"] == slot and step["op"] != "down"],
                CHANGES_MAX if fate.kills and slot == 0 else None,
            )
            for slot in range(slots)
        ]
        strokes = ["kill"] * (fate.kills - 1) + ["stop"] * fate.stops
        chance.shuffle(strokes)
        ends_s = time.monotonic() + TIMEOUT_S
        while not all(life.is_over for life in lives):
            assert time.monotonic() < ends_s, "the processes do not come to an end"
            for life in lives:
                life.go_on()
            time.sleep(chance.uniform(0.02, 0.08))
            if strokes and chance.random() < 0.3:
                self._strike(
                    strokes, [life for life in lives if life.process and life.process.is_alive()], fate, chance
                )
        last = self.new_plan([])
        ProcessRun(last).read_everything()
        return self._history()

    def new_plan(self, steps: list[Step], changes_max: int | None = None) -> Plan:
        number = len(self.plans)
        journal = str(self._folder / f"{number:03d}.jsonl")
        self.plans.append(Plan(self._url, self._options, journal, number, self._began_ns, steps, changes_max))
        return self.plans[-1]

    def _strike(self, strokes: list[str], lives: list[_Life], fate: Fate, chance: random.Random) -> None:
        if not lives:
            return
        pid = chance.choice(lives).process.pid
        with suppress(ProcessLookupError):  # It has come to its end in this moment.
            if strokes.pop() == "kill":
                os.kill(pid, signal.SIGKILL)
                return
            os.kill(pid, signal.SIGSTOP)
            time.sleep(fate.pause_s)
            os.kill(pid, signal.SIGCONT)
            self.counts["stopped"] += 1

    def _history(self) -> History:
        lines = [line for plan in self.plans for line in read_lines(plan.journal)]
        history = history_of(lines, self._url, self._options, self._began_ns)
        self.counts["sent"] = sum("creates" in line for line in lines)
        self.counts["lost"] = sum("created" in line and not line["is_new"] for line in lines)
        self.counts["acknowledged"] = sum(e.ok for e in history.events if e.op in ("write", "upsert", "seal"))
        return history


def history_of(lines: list[dict[str, Any]], url: str, options: dict[str, Any], began_ns: int) -> History:
    """Return the history that processes have written down, with the log as it is."""
    events: dict[int, Event] = {}
    sent: dict[str, tuple[str, int]] = {}
    answered: dict[str, int] = {}
    for line in lines:
        if "event" in line:
            events[line["event"]["id"]] = Event(**line["event"])
        elif "creates" in line:
            # Others send it again later, to have the store prove that it refuses what exists.
            first = sent.get(line["creates"])
            if first is None or line["at"] < first[1]:
                sent[line["creates"]] = line["client"], line["at"]
        elif "created" in line:
            answered[line["created"]] = min(line["at"], answered.get(line["created"], line["at"]))
    commits: list[Commit] = []
    added = Added()
    with closing(open_blob(url, options)) as blob:
        check_named(blob)
        blobs = _Blobs(blob)
        for entry in blob.list(LOG):
            client, at = sent[json.loads(blobs[entry.key])["commit"]]
            at = max([at, *(commit.at for commit in commits[-1:])])
            commits.append(read_commit(blobs[entry.key], at, client, at / 1e9, blobs, added))
    by = time.monotonic_ns() - began_ns
    for commit in reversed(commits):
        by = commit.by = max(commit.at, min(by, answered.get(commit.commit, by)))
    settings = SETTINGS | {"skew_max_s": SKEW_MAX_S, "began_ms": BEGAN_MS, "format": FORMAT}
    wrong = with_assigned_times([*events.values()], commits)
    assert not wrong, wrong
    return History([*events.values()], commits, {}, settings)


class _Blobs(dict[str, bytes]):
    """What a location holds, read when it is asked for."""

    def __init__(self, blob: Blob) -> None:
        super().__init__()
        self._blob = blob

    def __missing__(self, key: str) -> bytes:
        found = self._blob.get(key)
        assert found is not None, key
        self[key] = found
        return found


def _by_process(step: Step) -> Step:
    """Return a step without long outages, which would take as long as they say."""
    faults = step.get("faults", {})
    is_short = sum(map(len, faults.values())) == 1
    return step if is_short else {name: value for name, value in step.items() if name != "faults"}


def read_lines(journal: str) -> list[dict[str, Any]]:
    """Return the lines of a journal, whose last one may be torn."""
    path = Path(journal)
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]
