"""Stories whose every system call is recorded, cut off by a loss of power at every point.

A cut leaves one of the states of `tests.blob.power_cuts.disk`. The folder is made from it, opened like any other, and
compared with what had been acknowledged by then:

- to a `FileBlob`: each key has the value of the last call that returned, or of one that had not; never part of a value,
  and never a temporary file. The folder takes new values.
- to a client: the history of what it was asked until then, and of a new client that reads everything, is judged as
  that of processes of which one was killed (`tests/proofs/simulator`).
"""

import os
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

import persist
from persist.blob.stores.file import FileBlob
from tests.blob.power_cuts.disk import Disk, Tree, materialise
from tests.blob.power_cuts.recorder import Event, Killed, Mark, Recorder
from tests.proofs.simulator.judge import judge
from tests.proofs.simulator.language import Step, generate
from tests.proofs.simulator.players import features
from tests.proofs.simulator.processes import Plan, ProcessRun, history_of

T = TypeVar("T")

LOCATION = "above/location"
SCRATCH = "/dev/shm" if os.path.isdir("/dev/shm") else None  # These folders live for a millisecond.


class Violation(AssertionError):
    """A promise was broken."""


class Call(msgspec.Struct, frozen=True):
    """One call of a FileBlob; the value is None for "delete", "delete_page" (of this one key) and "get"."""

    operation: str
    key: str
    value: bytes | None = None


class Answer(msgspec.Struct, frozen=True):
    """A call returned."""

    call: Call
    result: bool | bytes | None


def value(text: str) -> bytes:
    """Return a value long enough to be torn."""
    return f"<{text}>".encode() * 40


FIRST_CALLS = (
    Call("create", "log/1", value("first")),
    Call("set", "part/c/1", value("part")),
    Call("create", "log/2", value("second")),
    Call("set", "part/c/1", value("replaced")),
    Call("create", "log/2", value("loser")),
    Call("delete", "part/c/1"),
    Call("create", "part/c/2", value("other")),
    Call("set", "part/d/1", value("of another")),
    Call("delete_page", "part/d/1"),
)
EARLY_CALLS = (Call("create", "log/0", value("zeroth")),)
LATER_CALLS = (
    Call("get", "log/2"),
    Call("create", "log/1", value("late")),
    Call("set", "part/c/1", value("late part")),
    Call("create", "log/3", value("third")),
)


@dataclass
class Ledger:
    """What each key may hold after a cut.

    Attributes:
        allowed: the values; None stands for absence.
    """

    allowed: dict[str, set[bytes | None]] = field(default_factory=dict)

    def apply(self, what: object) -> None:
        """Take in a call that begins, or its answer."""
        if isinstance(what, Call):
            allowed = self.allowed.setdefault(what.key, {None})
            if what.operation in ("set", "delete", "delete_page") or (what.operation == "create" and None in allowed):
                allowed.add(what.value)
        elif isinstance(what, Answer):
            call = what.call
            if call.operation == "create" and not what.result:
                self.allowed[call.key] -= {None, call.value}
            elif call.operation == "get":
                assert what.result in self.allowed[call.key], f"{call} returned {what.result!r} while all was well"
                self.allowed[call.key] = {what.result}  # Who has read it may rely on it.
            else:
                self.allowed[call.key] = {call.value}

    def check(self, found: dict[str, bytes]) -> None:
        """Raise Violation unless these are values that the keys may hold."""
        for key, allowed in self.allowed.items():
            if found.get(key) not in allowed:
                raise Violation(f"{key} holds {_short(found.get(key))}, and may hold {[_short(v) for v in allowed]}")
        if foreign := found.keys() - self.allowed.keys():
            raise Violation(f"nobody stored {foreign}")


def record_calls(top: str, *, blob_type: type[FileBlob] = FileBlob) -> Recorder:
    """Make the first calls in an empty folder."""
    recorder = Recorder(top)
    with recorder.installed():
        _make_calls(recorder, blob_type(os.path.join(top, LOCATION)), FIRST_CALLS)
    recorder.check_complete()
    return recorder


def record_two_lives(top: str, killed_after: int, *, is_older: bool) -> tuple[Recorder, int]:
    """Make the first calls until the process is killed, after so many events, and the later calls in another process.

    Args:
        is_older: the other process has been there, and written, before the one that is killed.

    Returns:
        the recording, and at which event the process was killed.
    """
    recorder = Recorder(top)
    other = FileBlob(os.path.join(top, LOCATION))
    with recorder.installed():
        if is_older:
            _make_calls(recorder, other, EARLY_CALLS)
        killed_at = recorder.kill_at = len(recorder.events) + killed_after
        with suppress(Killed):
            _make_calls(recorder, FileBlob(os.path.join(top, LOCATION)), FIRST_CALLS)
        recorder.kill_at = None
        _make_calls(recorder, other, LATER_CALLS)
    recorder.check_complete()
    return recorder, killed_at


def _make_calls(recorder: Recorder, blob: FileBlob, calls: Sequence[Call]) -> None:
    for call in calls:
        recorder.mark(call)
        if call.operation == "delete_page":
            result = bool(blob.delete_page([call.key]))
        elif call.value is None:
            result = getattr(blob, call.operation)(call.key)
        else:
            result = getattr(blob, call.operation)(call.key, call.value)
        recorder.mark(Answer(call, result))


class Cuts:
    """Counts the cuts and looks at what each leaves."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._seed = seed
        self._views: dict[frozenset[tuple[str, bytes | None]], dict[str, bytes]] = {}
        self.points = 0
        self.states = 0

    def check_calls(self, events: Sequence[Event], most: int, since: int = 0) -> None:
        """Cut a recording of calls of a FileBlob off after each event from `since` on.

        Args:
            most: how many states of each point are looked at, if there are more.

        Raises:
            Violation: one of the states is not as it must be; the message says which.
        """
        disk, ledger = Disk(), Ledger()
        for i, event in enumerate(events):
            disk.apply(event)
            if isinstance(event, Mark):
                ledger.apply(event.what)
            if i < since:
                continue
            self.points += 1
            for tree in disk.states(most, self._chance):
                self.states += 1
                try:
                    ledger.check(self._seen_by_blob(tree))
                except Violation as error:
                    raise Violation(f"seed {self._seed}, cut after event {i}, {event}: {error}") from error

    def check_story(self, events: Sequence[Event], most: int, share: float = 1.0) -> None:
        """The same for a recording of `record_story`, of which a share of the states is looked at."""
        disk = Disk()
        told: list[dict[str, Any]] = []
        for i, event in enumerate(events):
            disk.apply(event)
            if isinstance(event, Mark):
                told.append(event.what)
            self.points += 1
            for tree in disk.states(most, self._chance):
                if self._chance.random() >= share:
                    continue
                self.states += 1
                try:
                    _check_client(tree, told)
                except (Violation, persist.PersistError, ValueError, KeyError) as error:  # Even the log may be torn.
                    raise Violation(f"seed {self._seed}, cut after event {i}, {event}: {error!r}") from error

    def _seen_by_blob(self, tree: Tree) -> dict[str, bytes]:
        """Return keys and values of what a cut left, after some use of it."""
        key = frozenset(tree.items())
        if key not in self._views:
            self._views[key] = _on_disk(tree, _view)
        return self._views[key]


def _view(location: str) -> dict[str, bytes]:
    blob = FileBlob(location, fsync=False)
    found = {entry.key: blob.get(entry.key) for entry in blob.list("")}
    listed = {entry.key: entry.bytes for entry in blob.list("")}
    if {key: len(data or b"") for key, data in found.items()} != listed:
        raise Violation(f"the listing is {listed}, and the values are {found}")
    if not blob.create("log/new", b"new") or blob.get("log/new") != b"new":
        raise Violation("the folder takes no new value")
    return {key: data for key, data in found.items() if data is not None}


def story(seed: int = 1, size: int = 70) -> list[Step]:
    """Return what a client does that nothing else befalls."""
    calm = ("faults", "crash", "stop")
    steps = [step for step in generate(seed, size, features(), flat_out=True) if step["slot"] == 0]
    return [{k: v for k, v in step.items() if k not in calm} for step in steps if step["op"] not in ("crash", "down")]


def record_story(top: str, steps: list[Step], *, syncs: bool = True) -> Recorder:
    """Do steps with a client of an empty folder, one after the other."""
    recorder = Recorder(top, syncs=syncs)
    plan = Plan(os.path.join(top, LOCATION), {}, "", 0, 0, steps)
    with recorder.installed():
        ProcessRun(plan, lambda **line: recorder.mark(line)).live()
    recorder.check_complete()
    return recorder


def _check_client(tree: Tree, told: list[dict[str, Any]]) -> None:
    def check(location: str) -> None:
        lines = [*told]
        plan = Plan(location, {"fsync": False}, "", 1, 0, [])
        ProcessRun(plan, lambda **line: lines.append(line)).read_everything()
        if violations := judge(history_of(lines, location, {}, 0)):
            raise Violation("; ".join(map(str, violations[:3])))

    _on_disk(tree, check)


def _on_disk(tree: Tree, use: Callable[[str], T]) -> T:
    with tempfile.TemporaryDirectory(dir=SCRATCH) as top:
        materialise(tree, top)
        return use(os.path.join(top, LOCATION))


def new_folders(top: str) -> Iterator[str]:
    """Yield empty folders without end."""
    for number in range(1_000_000):
        folder = os.path.join(top, str(number))
        os.mkdir(folder)
        yield folder


def _short(data: bytes | None) -> str:
    return "nothing" if data is None else f"{data[:20]!r}… of {len(data)} bytes"
