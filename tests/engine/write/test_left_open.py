"""What is done about clients that nobody closed; `test_unclosed.py` has the ends of real processes."""

import atexit
import gc
import multiprocessing.util
import os
import re
import sys
import threading
import warnings
from collections.abc import Iterator

import pytest

from persist.blob.protocol import MemoryBlob
from persist.blob.threads import Pool, SystemClock
from persist.core.log import kinds
from persist.engine.follow.follower import Follower
from persist.engine.write import unclosed_clients as unclosed
from persist.engine.write.committer import Committer
from persist.engine.write.part_writer import MEMORY_BUDGET
from persist.engine.write.unclosed_clients import Unclosed
from tests.engine.write.test_operations import FIELDS, A, B
from tests.support.clocks import ImpatientClock
from tests.support.stepped import WAIT_S, Gate, Stepped


class Owner:
    """Stands for a client, which refers to what stands for it."""

    def __init__(self, timeout_s: float = 60.0, memory_budget: int = MEMORY_BUDGET) -> None:
        self.store, self.gate = Stepped(MemoryBlob()), Gate()
        self.pool = Pool(1, "a test")
        follower = Follower(self.store, ImpatientClock())
        self.committer = Committer(self.store, follower, self.pool, SystemClock(), "a test", memory_budget)
        self.watched = Unclosed(self, "memory://x", self.committer, timeout_s)
        self.itself = self  # So that it goes when garbage is collected, and not before.

    def ask(self, *names: str) -> None:
        """Ask for a commit to collections of these names, which waits at the gate."""
        self.store.before("create", "log/", self.gate)
        ids = [A, B][: len(names)]
        steps = [kinds.Create(id_, name, FIELDS) for id_, name in zip(ids, names, strict=True)]
        self.committer.submit(steps, dict(zip(ids, names, strict=True)))
        self.gate.wait_until_reached()

    def open_when_waited_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let the commit go on as soon as somebody waits for it for longer than until the notice."""
        settle = self.committer.settle

        def open_and_settle(timeout_s: float) -> bool:
            if timeout_s > 1:
                self.gate.open()
            return settle(timeout_s)

        monkeypatch.setattr(self.committer, "settle", open_and_settle)


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[unclosed._Registry]:
    """A registry of this test alone, and no status of this process."""
    fresh = unclosed._Registry()
    fresh._has_atexit = True
    monkeypatch.setattr(unclosed, "_registry", fresh)
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    yield fresh
    for each in [*fresh.unclosed]:
        each.note_close()
    fresh.forget()


def test_what_was_asked_for_and_is_not_done_is_said_in_words() -> None:
    owner = Owner()
    assert owner.watched.describe_pending() == "nothing was pending"
    owner.ask("a")
    assert owner.watched.describe_pending() == "1 operation of 'a' was pending"
    owner.committer.submit([kinds.Create(B, "b", FIELDS)], {B: "b"})
    assert owner.watched.describe_pending() == "2 operations of 'a', 'b' were pending"
    owner.gate.open()
    owner.committer.close()
    assert owner.watched.describe_pending() == "nothing was pending"
    assert Unclosed(owner, "memory://x", None, 1.0).describe_pending() == "nothing was pending"


def test_a_client_that_was_closed_is_neither_waited_for_nor_warned_of(
    registry: unclosed._Registry, capsys: pytest.CaptureFixture[str]
) -> None:
    owner = Owner()
    assert registry.collect() == ([owner.watched], [owner.committer.unobserved])
    owner.watched.note_close()
    owner.committer.close()
    assert registry.collect()[0] == []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        unclosed._finish_all()
        del owner
        gc.collect()
    assert capsys.readouterr().err == ""
    assert not registry.has_failed


def test_when_the_process_ends_what_was_asked_for_is_finished_and_the_client_is_named(
    registry: unclosed._Registry, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = Owner()
    owner.ask("a")
    owner.open_when_waited_for(monkeypatch)
    with pytest.warns(ResourceWarning, match="a client of memory://x was not closed; 1 operation of 'a' was pending"):
        unclosed._finish_all()
    assert owner.watched.describe_pending() == "nothing was pending"
    assert (capsys.readouterr().err, registry.has_failed) == ("", False)
    owner.committer.close()


@pytest.mark.parametrize("notice_s", [0.01, 60.0])
def test_what_is_not_done_in_time_is_printed_and_fails_the_process(
    registry: unclosed._Registry, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, notice_s: float
) -> None:
    monkeypatch.setattr(unclosed, "NOTICE_AFTER_S", notice_s)
    owner = Owner(timeout_s=0.05)
    owner.ask("a")
    with pytest.warns(ResourceWarning):
        unclosed._finish_all()
    lines = capsys.readouterr().err.splitlines()
    said = "persist: memory://x: 1 operation of 'a' was pending"
    assert lines == [
        f"{said}; finishing for 0 s at most, Ctrl-C gives up",
        f"{said} when the process ended, and may be lost",
    ]
    assert registry.has_failed
    with pytest.raises(OSError, match="this makes the exit status"):
        sys.stderr.flush()
    assert not hasattr(sys.stderr, "nothing of that name")
    first = sys.stderr
    unclosed._fail_the_process()
    assert sys.stderr is first, "once is enough"
    owner.gate.open()
    owner.committer.close()


def test_what_takes_long_is_waited_for_and_said_to_be(
    registry: unclosed._Registry, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unclosed, "NOTICE_AFTER_S", 0.01)
    owner = Owner(timeout_s=1e6)
    owner.ask("a")
    owner.open_when_waited_for(monkeypatch)
    with pytest.warns(ResourceWarning):
        unclosed._finish_all()
    (said,) = capsys.readouterr().err.splitlines()
    pending = "persist: memory://x: 1 operation of 'a' was pending"
    assert re.fullmatch(rf"{pending}; finishing for (1000000|9999\d\d) s at most, Ctrl-C gives up", said)
    assert not registry.has_failed
    owner.committer.close()


def test_each_error_that_nobody_looked_at_is_printed_once_when_the_process_ends(
    registry: unclosed._Registry, capsys: pytest.CaptureFixture[str]
) -> None:
    owner = Owner()
    for _ in range(2):
        owner.committer.submit([kinds.Seal(A, (1,))], {A: "a"})
    looked_at = owner.committer.submit([kinds.Seal(B, (1,))], {B: "b"})
    assert looked_at.exception() is not None
    with pytest.warns(ResourceWarning):
        unclosed._finish_all()
    first, *rest = capsys.readouterr().err.splitlines()
    assert first == "persist: memory://: 2 operations failed, and no caller read their errors:"
    assert {line.split(":")[0] for line in rest} == {"  CollectionNotFound"}
    assert len(rest) == 2
    assert registry.has_failed
    registry.has_failed = False
    with pytest.warns(ResourceWarning):
        unclosed._finish_all()
    assert not registry.has_failed, "they were reported"
    shared = ValueError("the same")
    unclosed._report_errors("memory://x", [shared, None, shared])
    assert capsys.readouterr().err.splitlines() == [
        "persist: memory://x: 3 operations failed, and no caller read their errors:",
        "  ValueError: the same",
    ]
    owner.committer.close()


def collect(owners: list[Owner]) -> None:
    """Let go of clients, which Python may collect at once, and collect them."""
    owners.clear()
    gc.collect()


def test_a_client_that_is_collected_finishes_warns_and_is_forgotten(registry: unclosed._Registry) -> None:
    owners = [Owner()]
    owners[0].ask("a")
    gate, committer, watched = owners[0].gate, owners[0].committer, owners[0].watched
    with pytest.warns(ResourceWarning, match="1 operation of 'a' was pending"):
        collect(owners)
    assert registry.collect()[0] == [watched], "it has something to finish"
    gate.open()
    committer.close()
    assert registry.collect()[0] == []
    idle = [Owner()]
    committer, has_ended = idle[0].committer, threading.Event()
    with pytest.warns(ResourceWarning, match="nothing was pending"):
        collect(idle)
    assert registry.collect()[0] == []
    committer.call_when_ended(has_ended.set)
    assert has_ended.wait(WAIT_S), "its thread goes on"


def test_what_belongs_to_the_parent_of_a_fork_is_left_to_it(
    registry: unclosed._Registry, capsys: pytest.CaptureFixture[str]
) -> None:
    owner = Owner()
    watched, committer = owner.watched, owner.committer
    watched.pid = registry._pid = os.getpid() + 1
    assert registry.collect() == ([], [])
    registry.remove(watched)
    assert registry.unclosed == {watched}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        unclosed._finish_dropped(watched)
        unclosed._finish_all()
        unclosed._report_lost(os.getpid() + 1, "memory://x", {1: ValueError("lost")})
        assert capsys.readouterr().err == ""
        unclosed._report_lost(os.getpid(), "memory://x", {1: ValueError("lost")})
        assert "ValueError: lost" in capsys.readouterr().err
    registry.has_failed = True
    other = Owner()
    assert registry.collect() == ([other.watched], [other.committer.unobserved])
    assert not registry.has_failed
    for each in (committer, other.committer):
        each.close()
    watched.note_close()


def test_a_process_is_asked_once_to_wait_for_its_clients_when_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(atexit, "register", asked.append)
    monkeypatch.setattr(unclosed, "_registry", unclosed._Registry())
    owners = [Owner(), Owner()]
    assert asked == [unclosed._finish_all]
    for owner in owners:
        owner.watched.note_close()
        owner.committer.close()


def test_a_test_runner_may_let_all_be_forgotten(
    registry: unclosed._Registry, capsys: pytest.CaptureFixture[str]
) -> None:
    owner = Owner()
    owner.committer.submit([kinds.Seal(A, (1,))], {A: "a"})
    owner.committer.close()
    registry.has_failed = True
    unclosed.forget()
    assert registry.collect() == ([], [])
    assert not registry.has_failed
    unclosed._finish_all()
    owner.committer.unobserved.take()
    assert capsys.readouterr().err == ""
    owner.watched.note_close()


def test_only_a_child_of_multiprocessing_is_told_by_its_own_finalizers(registry: unclosed._Registry) -> None:
    before = {*multiprocessing.util._finalizer_registry}  # type: ignore[attr-defined]
    registry._receive_dropped()
    assert {*multiprocessing.util._finalizer_registry} == before  # type: ignore[attr-defined]
