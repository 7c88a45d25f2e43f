"""The queue of one client: who waits for room, what is under way, and what is committed together."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from persist.blob.errors import CorruptBlob, InvalidUsage, Unavailable
from persist.blob.protocol import MemoryBlob
from persist.core.log import kinds
from persist.core.log.fields import TokenMark
from persist.core.log.keys import make_part_key
from persist.core.log.records import read_record
from persist.core.state_rules.collection_rules import ExpectNothingBeyondUpper
from persist.engine.follow.follower import Follower
from persist.engine.write import committer
from persist.engine.write.commit_future import CommitFuture
from persist.engine.write.committer import Committer
from persist.engine.write.part_writer import PartWriter
from persist.errors import ClientClosed, UpdatesBeyondUpper, UploadExpired
from tests.core.state_rules.test_refusals import SCHEMA, part
from tests.engine.follow.test_directory import Writer
from tests.engine.write.test_left_open import Owner
from tests.engine.write.test_operations import FIELDS, A, B, uploading, write
from tests.engine.write.test_parts_of_writes import table
from tests.support.clocks import ImpatientClock
from tests.support.stepped import WAIT_S, wait_until


@pytest.fixture
def owner() -> Iterator[Owner]:
    """A committer with room for ten bytes, which has begun the collection A."""
    owner = Owner(memory_budget=10)
    owner.watched.note_close()
    owner.committer.submit([kinds.Create(A, "a", FIELDS)], {A: "a"}).result()
    yield owner
    owner.gate.open()
    owner.committer.close()
    owner.committer.unobserved.take()


def held(owner: Owner, size: int) -> CommitFuture:
    """Ask for a write of so many bytes, which waits at the gate."""
    owner.store.before("create", "log/", owner.gate)
    future = owner.committer.submit([write(size=size)], {A: "a"})
    owner.gate.wait_until_reached()
    return future


def test_whoever_asks_for_more_than_there_is_room_for_waits_until_there_is(owner: Owner) -> None:
    first = held(owner, 6)
    second = owner.committer.submit([write(time=6, size=4)], {A: "a"})  # Exactly what is left.
    assert owner.committer.list_pending() == (2, ("a",))
    asked = threading.Event()

    def ask() -> None:
        owner.committer.submit([write(time=7, size=1)], {A: "a"}).result()
        asked.set()

    waiting = threading.Thread(target=ask)
    waiting.start()
    waiting.join(0.05)
    assert owner.committer.list_pending() == (2, ("a",))
    owner.gate.open()
    waiting.join(WAIT_S)
    assert asked.is_set()
    assert first.result() < second.result()
    assert owner.committer.list_pending() == (0, ())
    owner.committer.submit([write(time=8, size=99)], {A: "a"}).result()  # More than there ever is, alone.


def test_what_is_under_way_is_told_until_it_is_durable(owner: Owner) -> None:
    first = held(owner, 3)
    second = owner.committer.submit([write(time=6, size=2), write(B, size=1)], {A: "a"})
    under_way = owner.committer.list_pending_writes(A)
    assert [(each.time_min, future) for each, future in under_way] == [(5, first), (6, second)]
    assert [future for _, future in owner.committer.list_pending_writes(B)] == [second]
    assert not owner.committer.settle(0.0)
    owner.gate.open()
    assert owner.committer.settle(60.0)
    assert owner.committer.list_pending_writes(A) == []
    assert second.exception() is not None  # There is no collection B.
    assert owner.committer.groups.counts()["records"] >= 2


def test_what_is_asked_for_alone_is_committed_at_once_though_nobody_waits(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committer, "LINGER_S", 60.0)
    done = threading.Event()
    owner.committer.submit([write(size=1)], {A: "a"}).add_done_callback(lambda _: done.set())
    assert done.wait(WAIT_S)


def test_what_became_of_operations_is_counted(owner: Owner) -> None:
    def counted(*names: str) -> list[int]:
        return [owner.committer.groups.counts()[name] for name in names]

    what = ("records", "operations", "repeated", "rejected")
    assert counted(*what) == [1, 1, 0, 0]
    token = kinds.Tokens(A, (TokenMark("once", 5),))
    for id_, remembered in ((A, []), (A, [token]), (A, [token]), (B, [])):
        owner.committer.submit([write(id_, size=1), *remembered], {A: "a"}).exception()
    assert counted(*what) == [3, 4, 1, 1]


def test_an_upload_that_is_not_committed_is_deleted_only_where_it_is_known_that_nothing_names_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    writer = Writer(MemoryBlob())
    writer.create(1)
    writer.checkpoint()
    (id_,) = writer.ids
    uploaded = list(PartWriter(writer.blob, lambda: 1).upload(id_, SCHEMA, table(5)))
    follower = Follower(writer.blob, ImpatientClock())
    with ThreadPoolExecutor(1) as pool:
        making = Committer(writer.blob, follower, pool, ImpatientClock(), "a test")
        failed, future = uploading(id_)
        making.groups.abandon([failed])
        future.set_exception(Unavailable("no answer"))
        assert caplog.text == "", "nothing was uploaded, so there is nothing to delete"
        assert follower.state.entries[id_].contents is None
        for is_known, stays in ((False, True), (True, False)):
            if is_known:
                follower.load(id_)
            making.groups.abandon([uploading(id_, *uploaded)[0]])
            assert [writer.blob.get(part.blob) is not None for part in uploaded] == [stays] * len(uploaded)
        making.close()


def test_upkeep_is_told_of_each_commit_that_adds_updates(owner: Owner) -> None:
    told: list[str] = []
    owner.committer.groups.appended = told.append
    owner.committer.submit([kinds.Seal(A, (1,))], {A: "a"}).result()
    assert told == []
    for _ in range(2):
        owner.committer.submit([write(size=1)], {A: "a"}).result()
    assert told == [A, A]


def test_an_upload_that_comes_too_late_costs_its_own_operation_only(owner: Owner) -> None:
    owner.committer.submit([kinds.VoidUploads(1)], {}).result()
    held(owner, 1)
    late = msgspec.structs.replace(part(1, 5), blob=make_part_key(A, 0))
    futures = [owner.committer.submit(steps, {A: "a"}) for steps in ([uploading(A, late)[0]], [write(size=1)])]
    owner.gate.open()
    assert isinstance(futures[0].exception(), UploadExpired)
    assert futures[1].result() > 0


def test_a_commit_is_refused_while_something_is_not_sealed(owner: Owner) -> None:
    expects = ExpectNothingBeyondUpper(A, (0,))
    owner.committer.submit([expects], {A: "a"}).result()
    owner.committer.submit([write(size=1)], {A: "a"}).result()
    assert isinstance(owner.committer.submit([expects], {A: "a"}).exception(), UpdatesBeyondUpper)


def test_a_damaged_collection_costs_the_operations_on_it_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("persist.engine.follow.checkpoint.STORED_PENDING_MAX", 0)
    writer = Writer(MemoryBlob())
    writer.create(2)
    writer.seal_in_turn(2)
    writer.checkpoint()
    damaged, sound = writer.ids
    for entry in writer.blob.list(f"state/{damaged}/"):
        writer.blob.set(entry.key, b"damaged")
    with ThreadPoolExecutor(1) as pool:
        follower = Follower(writer.blob, ImpatientClock())
        making = Committer(writer.blob, follower, pool, ImpatientClock(), "a test")
        futures = [making.submit([kinds.Seal(id_, (50,))], {id_: "c"}) for id_ in (damaged, sound)]
        assert isinstance(futures[0].exception(), CorruptBlob)
        assert futures[1].result() > 0
        making.close()


def test_what_is_asked_for_while_the_store_is_busy_shares_a_record_but_for_what_is_alone(owner: Owner) -> None:
    held(owner, 1)
    futures = [
        owner.committer.submit([step], {A: "a"})
        for step in (
            kinds.Seal(A, (8,)),
            kinds.Seal(A, (9,)),
            kinds.Rename(A, "b"),
            kinds.Seal(A, (10,)),
            kinds.Seal(A, (11,)),
        )
    ]
    owner.gate.open()
    first, *rest = [future.result() for future in futures]
    assert rest == [first, first + 1, first + 2, first + 2]
    record = read_record(owner.store, first)
    assert record is not None
    assert record.mutations == (kinds.Seal(A, (9,)),)


def test_a_callback_neither_waits_for_a_commit_nor_for_room_and_may_close_its_client(owner: Owner) -> None:
    told: list[object] = []

    def back(_: object) -> None:
        told.append(owner.committer.may_wait())
        later = owner.committer.submit([kinds.Seal(A, (9,)), write(time=9, size=99)], {A: "a"})
        try:
            later.result()
        except InvalidUsage as error:
            told.append(str(error).partition(" waits")[0])
        owner.committer.close()
        told.append(later)

    future = held(owner, 1)
    future.add_done_callback(back)
    assert owner.committer.may_wait()
    owner.committer.check_may_wait()
    owner.gate.open()
    future.result()
    wait_until(lambda: len(told) == 3)
    assert told[:2] == [False, "a future's callback"]
    assert isinstance(told[2], CommitFuture)
    assert told[2].exception(60) is None
    with pytest.raises(ClientClosed):
        owner.committer.submit([], {})


def test_who_wants_to_know_when_the_thread_has_ended_is_told_then_or_at_once(owner: Owner) -> None:
    told: list[str] = []
    held(owner, 1)
    owner.committer.call_when_ended(lambda: told.append("later"))
    owner.committer.request_stop()
    assert told == []
    owner.gate.open()
    owner.committer.close()
    assert told == ["later"]
    owner.committer.call_when_ended(lambda: told.append("now"))
    assert told == ["later", "now"]


def test_whatever_goes_wrong_the_callers_hear_of_it_and_the_thread_lives_on(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(owner.committer.groups, "_validate", lambda *given, **options: 1 // 0)
        assert isinstance(owner.committer.submit([kinds.Seal(A, (5,))], {A: "a"}).exception(60), ZeroDivisionError)
    assert owner.committer.submit([kinds.Seal(A, (6,))], {A: "a"}).exception(60) is None
    assert owner.committer.settle(60.0)
