"""Optimistic commits: a loser plans again, waits a bounded random time, and gives up with a clear error."""

from collections.abc import Callable

import pytest

import persist
from persist.blob.protocol import MemoryBlob
from persist.core.errors import Conflict, InvalidUsage, Superseded, UpperMismatch
from persist.engine.write.retrying import ATTEMPTS_MAX, WAIT_FIRST_S, WAIT_MAX_S, commit_with_retry
from tests.support.clocks import ImpatientClock


class RecordingClock(ImpatientClock):
    """Remembers how long it slept each time."""

    def __init__(self) -> None:
        super().__init__()
        self.slept_s: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        super().sleep(seconds)


def losing(times: int, error: Callable[[], Exception] = lambda: Superseded("another was first")) -> Callable[[], int]:
    """Return a plan that loses so many times, and then returns how often it was called."""
    calls = 0

    def plan() -> int:
        nonlocal calls
        calls += 1
        if calls <= times:
            raise error()
        return calls

    return plan


def test_a_loser_plans_again() -> None:
    assert commit_with_retry(losing(3), action="write", clock=RecordingClock()) == 4


def test_a_plan_that_never_wins_gives_up_with_the_last_reason() -> None:
    clock = RecordingClock()
    with pytest.raises(Conflict, match=rf"^overwrite: other clients committed first {ATTEMPTS_MAX} times.*another was"):
        commit_with_retry(losing(ATTEMPTS_MAX), action="overwrite", clock=clock)
    assert commit_with_retry(losing(ATTEMPTS_MAX - 1), action="overwrite", clock=clock) == ATTEMPTS_MAX


def test_the_second_attempt_follows_at_once() -> None:
    clock = RecordingClock()
    commit_with_retry(losing(1), action="write", clock=clock)
    assert clock.slept_s == []


def test_waits_are_random_and_bounded() -> None:
    clock = RecordingClock()
    commit_with_retry(losing(ATTEMPTS_MAX - 1), action="write", clock=clock)
    assert len(clock.slept_s) == ATTEMPTS_MAX - 2
    assert all(0 <= slept <= min(WAIT_FIRST_S * 2**n, WAIT_MAX_S) for n, slept in enumerate(clock.slept_s))
    assert len(set(clock.slept_s)) > ATTEMPTS_MAX // 2


def test_an_error_that_is_no_conflict_passes_at_once() -> None:
    plan = losing(1, lambda: InvalidUsage("the rows do not fit"))
    with pytest.raises(InvalidUsage, match="do not fit"):
        commit_with_retry(plan, action="write", clock=RecordingClock())
    assert plan() == 2


def test_what_prepare_raises_ends_the_attempts() -> None:
    plan, seen = losing(2), []

    def prepare(error: persist.PersistError) -> None:
        seen.append(error)
        if len(seen) == 2:
            raise InvalidUsage("the collection was dropped") from error

    with pytest.raises(InvalidUsage, match="was dropped"):
        commit_with_retry(plan, action="write", clock=RecordingClock(), prepare=prepare)
    assert len(seen) == 2
    assert plan() == 3


def test_only_the_conflicts_that_a_caller_names_count() -> None:
    plan = losing(1)
    with pytest.raises(Superseded):
        commit_with_retry(plan, action="seal", clock=RecordingClock(), conflicts=(UpperMismatch,))


class Overtaken(MemoryBlob):
    """Lets another client commit before each of the next few records."""

    def __init__(self) -> None:
        super().__init__()
        self.overtake: list[Callable[[], object]] = []

    def create(self, key: str, value: bytes) -> bool:
        if key.startswith("log/") and self.overtake:
            first, *later = self.overtake
            self.overtake = []  # What comes first is not overtaken itself.
            first()
            self.overtake = later
        return super().create(key, value)


def test_an_overwrite_that_loses_to_another_client_is_made_again() -> None:
    blob, clock = Overtaken(), RecordingClock()
    with persist.open(blob, clock=clock) as one, persist.open(blob, clock=ImpatientClock()) as other:
        mine = one.create_or_load("c", key={"k": int}, value={"v": int})
        theirs = other.load("c")

        mine.write([(0, 0)]).result()
        blob.overtake = [lambda key=key: theirs.write([(key, 0)]).result() for key in (2, 3, 4)]  # type: ignore[misc]
        mine.overwrite([(1, 10)]).result()
        assert not blob.overtake
        assert list(mine.snapshot().rows()) == [(1, 10)]
