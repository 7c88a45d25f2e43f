"""Refreshing is linearizable: whoever asks sees every record that was created before."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import persist
from persist.blob.errors import MissingBlob, Unavailable
from persist.blob.layers.metered import MeteredBlob
from persist.blob.protocol import Blob, MemoryBlob
from persist.core.log import kinds
from persist.core.log import records as commits
from persist.core.log.keys import make_record_key
from persist.core.log.records import read_record
from persist.core.state_rules.state import PENDING_MAX, State, apply_record
from persist.engine.follow import follower
from persist.engine.follow.checkpoint import INTERVAL, write_checkpoint
from persist.engine.follow.follower import Follower
from persist.engine.follow.log_identity import TOPS_MAX, Past
from persist.errors import LogReplaced
from tests.engine.follow.test_directory import Writer
from tests.support.checkpoints import wait_for_checkpoint
from tests.support.clocks import ImpatientClock
from tests.support.stepped import Stepped, wait_until


def test_who_asks_while_another_thread_reads_is_not_served_by_what_that_had_read_before(blob: MemoryBlob) -> None:
    """What two threads share are the requests of one that began after both had asked."""
    store = Stepped(blob)
    settings = persist.Settings(background=False)
    with persist.open(blob, settings=settings) as writer, ThreadPoolExecutor(1) as pool:
        c = writer.create_or_load("c", key={"k": pa.int64()})
        follower = Follower(store, ImpatientClock())
        asked = []

        def meanwhile() -> None:
            c.seal(1).result()
            issued = follower.looks._issued
            asked.append(pool.submit(follower.refresh))
            wait_until(lambda: follower.looks._issued > issued)

        store.after("get", "log/", meanwhile)  # That finds no further record.
        first = follower.refresh()
        assert store.is_done
        assert asked[0].result().seqno == first.seqno + 1 == writer.seqno


def test_who_is_told_of_a_record_reads_that_one_and_asks_for_no_other(blob: MemoryBlob) -> None:
    metered = MeteredBlob(blob)
    store = Stepped(metered)
    with persist.open(blob, settings=persist.Settings(background=False)) as writer:
        c = writer.create_or_load("c", key={"k": pa.int64()})
        follower = Follower(store, ImpatientClock(), poll_s=3600.0)
        gets = []

        def sealed_and_told() -> None:
            seqno = c.seal(1).result()
            gets.append(metered.get_counts()["get"].requests)
            follower.hint(seqno)

        store.after("get", "log/", sealed_and_told)  # When the one who waits has found nothing, and before it waits.
        seqno = follower.wait_for(lambda: follower.state.seqno if follower.state.seqno == writer.seqno else None, 60.0)
        assert seqno == writer.seqno
        assert metered.get_counts()["get"].requests - gets[0] == 1


def test_while_what_was_hinted_at_is_not_there_another_hint_counts_after_a_second(blob: MemoryBlob) -> None:
    clock = ImpatientClock()
    following = Follower(blob, clock)
    taken = []
    for after_s in (0, 0.5, 0.4, 0.2, 0.9):
        clock.sleep(after_s)
        before = following._hints
        following.hint(100)
        taken.append(following._hints != before)
    assert taken == [True, False, False, True, False]


def test_a_hint_of_what_is_not_there_changes_no_answer(blob: MemoryBlob) -> None:
    with persist.open(blob, settings=persist.Settings(background=False)) as writer:
        c = writer.create_or_load("c", key={"k": pa.int64()})
        follower = Follower(blob, ImpatientClock())
        for upper, liar in enumerate((2**62, -5, follower.state.seqno), start=1):
            follower.hint(liar)
            seqno = c.seal(upper).result()
            assert follower.wait_for(lambda: follower.state.seqno, 60.0) == seqno


def test_a_client_goes_on_without_any_checkpoint_if_the_log_tells_all() -> None:
    """It was opened from one, and has not read the contents that this one names."""
    blob = MemoryBlob()
    settings = persist.Settings(background=False)
    with persist.open(blob, settings=settings) as client:
        collection = client.create_or_load("c", key={"k": pa.int64()}, value=None)
        for time in range(1, 4 * INTERVAL):
            collection.seal(time).result()
            wait_for_checkpoint(client)
    assert [*blob.list("state/")]
    with persist.open(blob, mode="read") as reader:
        for prefix in ("checkpoint/", "directory/", "state/"):
            for entry in list(blob.list(prefix)):
                blob.delete(entry.key)
        assert reader["c"].upper.time == 4 * INTERVAL - 1


class Waited(threading.Condition):
    """Takes note of how long somebody would wait, and does not wait."""

    def __init__(self, follower: Follower) -> None:
        super().__init__(follower._lock)
        self.pauses_s: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.pauses_s.append(timeout)
        return False


def pauses(following: Follower, answers: list[object], timeout_s: float | None = None) -> list[float | None]:
    """Return the pauses of who waits until the last of some answers; one that can be called happens first."""
    following._advanced = waited = Waited(following)
    coming = iter(answers)

    def look() -> object:
        answer = next(coming)
        return answer() if callable(answer) else answer

    assert following.wait_for(look, timeout_s) is answers[-1]
    return waited.pauses_s


@pytest.mark.parametrize(
    ("is_remote", "poll_s", "longest_s"), [(False, "by store", 0.005), (True, "by store", 1.0), (True, 9, 9)]
)
def test_only_where_a_request_costs_money_pauses_become_long(is_remote: bool, poll_s: Any, longest_s: float) -> None:
    blob = MemoryBlob()
    blob.is_remote = is_remote  # type: ignore[attr-defined]
    assert Follower(blob, ImpatientClock(), poll_s).longest_pause_s == longest_s


def test_pauses_double_while_the_log_stands_still_and_begin_anew_when_it_moves() -> None:
    writer = Writer(MemoryBlob())
    writer.create(1)
    following = Follower(writer.blob, ImpatientClock(), poll_s=0.03)

    def moved() -> None:
        writer.create(1)
        following.refresh()

    assert pauses(following, [None, None, None, None, None, 7]) == [0.005, 0.01, 0.02, 0.03, 0.03]
    writer.create(1)
    assert pauses(following, [None, None, 7]) == [0.005, 0.01]
    assert pauses(following, [None, None, moved, None, None, 7]) == [0.005, 0.01, 0.005, 0.01]
    following.is_told = True
    assert pauses(following, [None, 7]) == [0.03]
    assert following.first_pause_s == 0.03
    told = Follower(writer.blob, ImpatientClock(), poll_s=1.0)
    told.is_told = True
    assert pauses(told, [None, None, None, None, 7]) == [0.25, 0.5, 1.0, 1.0]


def test_nobody_waits_longer_than_they_have_time_nor_after_the_client_is_closed() -> None:
    writer = Writer(MemoryBlob())
    writer.create(1)
    clock = ImpatientClock()
    following = Follower(writer.blob, clock, poll_s=3600.0)
    following.is_told = True
    [pause_s] = pauses(following, [None, 7], timeout_s=0.2)
    assert pause_s == pytest.approx(0.2, abs=0.001)
    assert pauses(following, [lambda: clock.sleep(1), None], timeout_s=0.5) == []
    assert pauses(following, [lambda: following.hint(99), 7]) == []
    assert pauses(following, [lambda: following.wake(), 7]) == []
    with pytest.raises(persist.errors.ClientClosed):
        following.wait_for(lambda: following.close(), None)


def test_in_one_look_a_thread_asks_once_and_who_waits_looks_again() -> None:
    store = MeteredBlob(MemoryBlob())
    writer = Writer(store)  # type: ignore[arg-type]
    writer.create(1)
    following = Follower(store, ImpatientClock(), poll_s=0.001)

    def gets() -> int:
        return store.get_counts()["get"].requests

    with following.looks.share_look():
        with following.looks.share_look():
            before = gets()
            following.refresh()
            following.refresh()
            assert gets() == before + 1
        following.refresh()
        assert gets() == before + 1
        assert pauses(following, [None, None, 7]) == [0.001, 0.001]
        assert gets() == before + 3  # The first of these looks was that of before.
        following.looks.force_next_look()
        writer.create(1)
        assert following.refresh().seqno == 1
    before = gets()
    following.refresh()
    following.refresh()
    assert gets() == before + 2
    following.looks.force_next_look()
    following.refresh()
    following.refresh()
    assert gets() == before + 4


def test_what_a_committer_has_applied_is_not_applied_again_unless_the_state_has_moved() -> None:
    writer, other = Writer(MemoryBlob()), Writer(MemoryBlob())
    writer.create(1)
    record = read_record(writer.blob, 0)
    assert record is not None
    empty = other.follower.state
    after = apply_record(empty, record)
    other.follower.advance(record, (empty, after))
    assert other.follower.state is after
    following = Follower(MemoryBlob(), ImpatientClock())
    following.advance(record, (empty, after))
    assert following.state is not after
    assert following.state.commit == after.commit


def test_so_many_of_the_last_records_are_kept_for_the_next_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "RECENT_MAX", 3)
    writer = Writer(MemoryBlob())
    for _ in range(5):
        writer.create(1)
    assert [*writer.follower.get_recent_records()[1]] == [2, 3, 4]


def test_the_newest_record_is_known_or_read() -> None:
    store = MeteredBlob(MemoryBlob())
    writer = Writer(store)  # type: ignore[arg-type]
    writer.create(1)
    writer.checkpoint()
    opened = Follower(store, ImpatientClock())
    for following, costs in ((writer.follower, 0), (opened, 0)):
        before = store.get_counts()["get"].requests
        record = following.get_newest_record()
        assert record is not None
        assert record.seqno == 0
        assert store.get_counts()["get"].requests == before + costs
    opened._recent.clear()
    assert opened.get_newest_record() == read_record(store, 0)


def test_a_collection_that_changes_often_is_loaded_though_nobody_reads_it() -> None:
    writer = Writer(MemoryBlob())
    writer.create(2)
    writer.checkpoint()
    following = Follower(writer.blob, ImpatientClock())
    for time in range(1, PENDING_MAX):
        writer.commit(kinds.Seal(writer.ids[0], (time,)))
    busy, quiet = (following.refresh().entries[id_] for id_ in writer.ids)
    assert (busy.contents, quiet.contents) == (None, None)
    writer.commit(kinds.Seal(writer.ids[0], (PENDING_MAX,)))
    busy, quiet = (following.refresh().entries[id_] for id_ in writer.ids)
    assert busy.contents is not None
    assert busy.contents.upper == PENDING_MAX
    assert quiet.contents is None


def test_what_was_known_when_others_committed_must_be_there_still() -> None:
    writer = Writer(MemoryBlob())
    writer.create(1)
    following = Follower(writer.blob, ImpatientClock())
    first = following.state
    assert following.past.list_tops(first) == [(0, first.commit)]
    writer.create(1)
    winner = read_record(writer.blob, 1)
    assert winner is not None
    following.apply_winner(winner)
    assert following.past.list_tops(following.state) == [(0, first.commit), (1, winner.commit)]
    assert following.past.check_tops(following.state)
    assert following.past.list_tops(following.state) == [(1, winner.commit)]
    following.apply_winner(winner)  # It is known already.
    assert following.past.list_tops(following.state) == [(1, winner.commit)]


def test_contents_of_collections_far_away_are_read_while_the_log_is_looked_at() -> None:
    class Far(MemoryBlob):
        is_remote = True

    writer = Writer(Far())
    writer.create(3)
    writer.checkpoint()
    with ThreadPoolExecutor(4) as threads:
        assert Follower(Far(), ImpatientClock()).refresh_and_load(["x"], threads).location is None
        following = Follower(writer.blob, ImpatientClock())
        writer.create(1)
        state = following.refresh_and_load([*writer.ids[:2], "9" * 32], threads)
        assert state.seqno == 1
        assert [state.entries[id_].contents is not None for id_ in writer.ids] == [True, True, False, True]
        assert following.refresh_and_load(writer.ids[:2], threads) is state


def grown(length: int, floor: int) -> Writer:
    """Return a log of so many records, one of which says that it begins at floor, and a checkpoint made after it."""
    writer = Writer(MemoryBlob())
    for seqno in range(length):
        writer.commit(kinds.TruncateLog(floor)) if seqno == floor else writer.create(1)
    writer.checkpoint()
    return writer


def test_a_checkpoint_without_its_record_nor_any_later_is_not_believed() -> None:
    writer = grown(9, floor=5)
    for seqno in [*range(5), 8]:
        writer.blob.delete(make_record_key(seqno))
    with pytest.raises(MissingBlob, match=r"it is missing, and checkpoint/.* was made after it"):
        Follower(writer.blob, ImpatientClock())


def test_who_opens_a_location_while_the_record_of_its_checkpoint_is_truncated_takes_the_next_checkpoint() -> None:
    writer = grown(9, floor=5)
    store = Stepped(writer.blob)

    def truncated() -> None:
        writer.commit(kinds.TruncateLog(9))
        writer.checkpoint()
        for seqno in range(9):
            writer.blob.delete(make_record_key(seqno))

    store.before("get", make_record_key(8), truncated)
    opened = Follower(store, ImpatientClock())
    assert store.is_done
    assert opened.state.seqno == writer.follower.state.seqno


@pytest.mark.parametrize("records", [4, 5, 6, 12])
def test_who_opens_a_location_reads_page_after_page_of_its_log(records: int, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Writer(MemoryBlob())
    for _ in range(records):
        writer.create(1)
    monkeypatch.setattr(commits, "LISTED_MAX", 5)
    metered = MeteredBlob(writer.blob)
    assert Follower(metered, ImpatientClock()).state.seqno == records - 1
    assert metered.get_counts()["get"].requests == records


def test_a_client_that_was_asleep_goes_on_from_a_checkpoint_only_where_the_log_after_its_state_is_gone() -> None:
    for floor, is_skipped in ((2, False), (3, True)):
        writer = Writer(MemoryBlob())
        writer.create(1)
        writer.create(1)
        clock = ImpatientClock()
        following = Follower(writer.blob, clock)  # It knows the record 1.
        writer.create(1)
        writer.create(1)
        writer.commit(kinds.TruncateLog(floor))
        writer.checkpoint()
        clock.sleep(121)
        seen = list[int]()
        following.on_advance = seen.append
        assert following.refresh().seqno == 4
        assert seen == ([] if is_skipped else [2, 3, 4])
        assert following.submissions.knows(1) is not is_skipped


def test_a_client_goes_on_from_no_checkpoint_whose_record_is_not_in_the_log() -> None:
    for lost in (range(0), range(3, 5)):
        writer = Writer(MemoryBlob())
        for _ in range(3):
            writer.create(1)
        following = Follower(writer.blob, ImpatientClock())
        writer.create(1)
        writer.create(1)
        writer.checkpoint()
        for seqno in lost:
            writer.blob.delete(make_record_key(seqno))
        if lost:
            with pytest.raises(persist.errors.LogInterrupted) as caught:
                following.restart()
            assert (caught.value.end, caught.value.first) == (2, 4)
        else:
            assert following.restart().seqno == 4


def begun(blob: Blob, state: State) -> Past:
    past = Past(blob, threading.RLock())
    past.begin(state, (0.0, 0.0))
    return past


def test_a_record_is_asked_for_from_where_the_log_begins_on() -> None:
    writer = Writer(MemoryBlob())
    for _ in range(3):
        writer.create(1)
    states = []
    for floor in (3, 4):
        writer.commit(kinds.TruncateLog(floor))
        states.append(writer.follower.state)
    past = begun(writer.blob, states[0])
    past.prove_now(states[0])
    writer.blob.delete(make_record_key(3))
    past.prove_now(states[1])
    with pytest.raises(persist.errors.LogReplaced):
        past.prove_now(states[0])


def test_who_never_pauses_asks_for_the_record_of_the_last_look_and_the_one_after_it() -> None:
    """Who pauses asks for the newest one. A look is due when either clock has gone so far."""
    writer = Writer(MemoryBlob())
    states = []
    for _ in range(5):
        writer.create(1)
        states.append(writer.follower.state)
    asked = list[str]()

    class Watched(MemoryBlob):
        def get(self, key: str, range: tuple[int, int] | None = None) -> bytes | None:
            asked.append(key)
            return writer.blob.get(key, range)

    def looks(past: Past, at: int, now: tuple[float, float]) -> list[str]:
        asked.clear()
        past.check(states[at], now, 10.0)
        return [*asked]

    past = begun(Watched(), states[0])
    past.note_state(states[1], (5.0, 5.0))
    past.note_state(states[2], (6.0, 6.0))
    assert looks(past, 2, (9.9, 9.9)) == []
    assert looks(past, 2, (10.0, 0.0)) == [make_record_key(0), make_record_key(1)]
    assert looks(past, 2, (10.0, 0.0)) == []
    past.note_state(states[3], (11.0, 1.0))
    past.note_state(states[4], (12.0, 2.0))
    assert looks(past, 4, (12.0, 10.0)) == [make_record_key(2), make_record_key(3)]
    assert looks(past, 4, (30.0, 30.0)) == [make_record_key(4)], "nothing was learned for so long"


def test_of_very_many_records_that_others_wrote_the_last_ones_are_asked_for() -> None:
    writer = Writer(MemoryBlob())
    writer.create(1)
    state = writer.follower.state
    past = begun(writer.blob, state)
    past.note_continuation(State())
    assert past.list_tops(State()) == []
    states = [replace(state, seqno=seqno) for seqno in range(TOPS_MAX + 3)]
    for each in states:
        past.note_continuation(each)
    assert [seqno for seqno, _ in past.list_tops(states[-1])] == [*range(3, TOPS_MAX + 3), TOPS_MAX + 2]
    past.check_fates([(top, "there") for top in past.list_tops(states[-1])[:4]])
    assert [seqno for seqno, _ in past.list_tops(states[-1])] == [*range(7, TOPS_MAX + 3), TOPS_MAX + 2]


def test_the_next_seqno_is_as_of_a_minute_ago_at_most() -> None:
    writer, clock = Writer(MemoryBlob()), ImpatientClock()
    writer.create(1)
    clock.sleep(10)
    following = Follower(writer.blob, clock)
    writer.create(1)
    for sleeps_s, expected in ((0, 1), (59.9, 1), (0.2, 2), (0, 2)):
        clock.sleep(sleeps_s)
        assert following.find_next_seqno() == expected


def test_a_record_created_in_a_slot_that_the_state_has_passed_by_a_checkpoint_is_looked_for() -> None:
    """The state may be at the very slot: what is there is the record that the checkpoint was made after."""
    blob, settings = MemoryBlob(), persist.Settings(background=False)
    with persist.open(blob, settings=settings) as client:
        c = client.create_or_load("c", key={"k": pa.int64()})
        c.seal(1).result()
        late = Follower(blob, ImpatientClock())
        there = read_record(blob, client.seqno)
        assert there is not None
        assert late.state.seqno == there.seqno
        created = msgspec.structs.replace(there, commit="f" * 32)
        for upper in (2, 3, 4):
            c.seal(upper).result()
        client.engine.submit("truncate", [kinds.TruncateLog(client.seqno)], {}).result()
        assert write_checkpoint(blob, *client.engine.follower.get_recent_records())
        assert late.was_truncated(created, past_is_there=True)
        beyond = msgspec.structs.replace(there, seqno=client.seqno + 1, commit="e" * 32)
        assert not client.engine.follower.was_truncated(beyond, past_is_there=True)


class FailingOnce(MemoryBlob):
    """A store that does not answer the next read of a record when `is_down`."""

    is_down = False

    def get(self, key: str, range: tuple[int, int] | None = None) -> bytes | None:
        if self.is_down and key.startswith("log/"):
            self.is_down = False
            raise Unavailable("it does not answer")
        return super().get(key, range)


@pytest.mark.parametrize("learned_s", [100.0, 199.0])
def test_a_look_at_the_past_that_failed_is_made_again(learned_s: float) -> None:
    blob = FailingOnce()
    with persist.open(blob, settings=persist.Settings(background=False)) as client:
        client.create_or_load("c", key={"k": pa.int64()}).seal(1).result()
        state = client.engine.follower.state
    past = begun(blob, state)
    past.check(state, (100.0, 100.0), 10.0)
    past.note_state(state, (learned_s, learned_s))
    blob.delete(make_record_key(state.seqno))
    blob.is_down = True
    with pytest.raises(Unavailable):
        past.check(state, (200.0, 200.0), 10.0)
    with pytest.raises(LogReplaced):
        past.check(state, (200.0, 200.0), 10.0)


def test_records_that_a_failed_look_did_not_find_are_looked_for_again() -> None:
    blob = FailingOnce()
    writer = Writer(blob)
    writer.create(1)
    following = Follower(blob, ImpatientClock())
    first = following.state
    writer.create(1)
    winner = read_record(blob, 1)
    assert winner is not None
    following.apply_winner(winner)
    tops = following.past.list_tops(following.state)
    blob.is_down = True
    with pytest.raises(Unavailable):
        following.past.check_tops(following.state)
    assert following.past.list_tops(following.state) == tops == [(0, first.commit), (1, winner.commit)]
