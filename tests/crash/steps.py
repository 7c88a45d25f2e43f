"""SIGKILL before and after each change to the store that a story makes, from "blob uploaded" to "record created".

The story is told once without a kill, which gives its steps: the n-th `set`, `create` or `delete` of a kind of key,
before and after. Then for each step it is told again on a new location, and ends there. A call happens when its record
is created: before that it must be absent, and from then on it must be there although nobody was told.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import persist
from persist.blob import Blob, open_blob
from tests.crash.checker import Violation, check_with_fsck, recovered
from tests.crash.child import Job, Step
from tests.crash.kills import Tally
from tests.crash.nursery import Life, Nursery
from tests.crash.story import KEYED, LARGE_ROWS, UNLOGGED, Model, Op, Teller, random_ops, small_policy
from tests.invariants import check_named

BEFORE_THE_RECORD = ("part", "list")
PROOF = 1  # The second create of a record offers the first one again, to see that the store refuses what exists.
BY_ANOTHER_THREAD = ("checkpoint", "directory", "state")
ENCORE = 3
# Nobody else uses the location, so garbage may go at once. What happens by itself would be at no step in particular.
SETTINGS: dict[str, Any] = {"grace_s": 0, "orphan_grace_s": 0, "background": False}


def story() -> tuple[Op, ...]:
    """Return calls that store every kind of blob there is, with the sizes of `make_everything_small`."""
    calls: list[dict[str, Any]] = [
        {"kind": "create", "names": ("apples",)},
        {"kind": "create", "names": ("pears",)},
        {"kind": "write", "names": ("apples",), "time": 0, "rows": 3},
        {"kind": "write", "names": ("apples",), "time": 1, "rows": LARGE_ROWS},
        {"kind": "evolve", "names": ("apples",)},
        {"kind": "seal", "names": ("apples",), "time": 3},
        {"kind": "multi", "names": ("pears", "apples"), "time": 4, "rows": LARGE_ROWS, "upper": 5},
        {"kind": "multi", "names": ("apples", "pears"), "time": 6, "rows": 2},
        {"kind": "allow_compaction", "names": ("apples",), "time": 2},
        {"kind": "seal", "names": ("apples",), "time": 7},
    ]
    calls += [
        {"kind": "compact", "names": ("apples",)},
        {"kind": "destroy", "names": ("pears",)},
        {"kind": "write", "names": ("apples",), "time": 8, "rows": 1},
        {"kind": "gc"},
        {"kind": "allow_compaction", "names": ("apples",), "time": 9},
        {"kind": "seal", "names": ("apples",), "time": 11},
        {"kind": "compact", "names": ("apples",)},
        {"kind": "gc"},
        {"kind": "write", "names": ("apples",), "time": 12, "rows": 1},
    ]
    for name in KEYED:
        calls += [
            {"kind": "create", "names": (name,)},
            {"kind": "write", "names": (name,), "time": 1, "rows": LARGE_ROWS},
            {"kind": "write", "names": (name,), "time": 0, "rows": 2},
            {"kind": "evolve", "names": (name,)},
            {"kind": "seal", "names": (name,), "time": 2},
            {"kind": "write", "names": (name,), "time": 3, "rows": 1},
            {"kind": "seal", "names": (name,), "time": 5},
            {"kind": "compact", "names": (name,)},
            {"kind": "allow_compaction", "names": (name,), "time": 4},
        ]
    calls.append({"kind": "gc"})
    return tuple(Op(number, **call) for number, call in enumerate(calls))


def steps_of(nursery: Nursery, location: str, options: dict[str, Any]) -> list[Step]:
    """Tell the story to its end on a new location, and return the steps it took."""
    life = nursery.live(Job(location, options, settings=SETTINGS, script=story()))
    if not life.ended or life.acknowledged != len(story()):
        raise Violation(f"nobody killed the child, and it did not finish its story: {life}")
    return sorted(set(life.steps))


def kill_at_each(
    nursery: Nursery,
    new_location: Callable[[], str],
    options: dict[str, Any],
    steps: Sequence[Step],
    *,
    retry: bool = False,
    tally: Tally | None = None,
) -> Tally:
    """Tell the story once for each step, to a child that dies there, on a new location each time.

    Args:
        retry: make the write that was in flight again, with its token, and see that it happened once.
        tally: what is to be added to.

    Raises:
        Violation: a promise was broken; the message says at which step.
    """
    tally = tally or Tally()
    for step in steps:
        location = new_location()
        life = nursery.live(Job(location, options, settings=SETTINGS, script=story(), kill_at=step))
        if life.ended and step.kind in BY_ANOTHER_THREAD:
            continue  # One checkpoint fewer than the first time, because another one was still being made.
        if life.ended:
            raise Violation(f"the story was told to its end without {step}")
        try:
            _look(location, options, step, life, tally, retry=retry)
        except (Violation, persist.PersistError) as error:
            raise Violation(f"{step} at {location}, after {life.acknowledged} calls: {error!r}") from error
    return tally


def _look(location: str, options: dict[str, Any], step: Step, life: Life, tally: Tally, *, retry: bool) -> None:
    """Judge what was left; then make more calls, and judge that."""
    with closing(open_blob(location, options)) as blob:
        with persist.open(blob) as client:
            recovery = recovered(client, blob, Model(), life.asked, life.acknowledged, retry=retry)
        if not recovery.retried:
            _check_found(step, life, recovery.found)
        tally.add(life, recovery)
        asked = []
        with persist.open(blob) as client:
            teller = Teller(client)
            for op, _ in zip(random_ops(step.n, recovery.model.after([]), len(story())), range(ENCORE), strict=False):
                asked.append(op)
                future = teller.ask(op)
                if future is not None:
                    future.result()
        with persist.open(blob) as client:
            recovered(client, blob, recovery.model, asked, len(asked), examine=False)
        _check_that_garbage_goes(blob)


def _check_that_garbage_goes(blob: Blob) -> None:
    """What the dead client uploaded or replaced is deleted, and nothing else."""
    with persist.open(blob, settings=persist.Settings(tuning=small_policy(), **SETTINGS)) as client:
        named: set[str] = set()
        for name in client.collections():
            client.load(name).compact()
            named |= {part.blob for part in client.load(name).handle.contents().stored_parts if part.blob}
        client.gc()
        check_named(blob)
        if (there := {entry.key for entry in blob.list("part/")}) != named:
            raise Violation(f"garbage {sorted(there - named)} is left over, {sorted(named - there)} is gone")
        check_with_fsck(client)


def _check_found(step: Step, life: Life, found: int) -> None:
    in_flight = life.asked[life.acknowledged :]
    if not in_flight or in_flight[0].kind in UNLOGGED:
        return
    if step.kind == "log" and step.n == PROOF:
        expected = life.acknowledged + 1
    elif step.kind in BEFORE_THE_RECORD or (step.kind == "log" and step.side == "before"):
        expected = life.acknowledged
    elif step.kind == "log":
        expected = life.acknowledged + 1
    else:
        assert step.kind in BY_ANOTHER_THREAD or step.operation == "delete", step
        return
    if found != expected:
        raise Violation(f"{found} calls have happened, and {expected} should have; in flight was {in_flight}")
