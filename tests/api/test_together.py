"""Contents of several collections at one point of the log: what each would give, in one look and one record."""

import gc

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import persist
from persist.blob.layers.metered import MeteredBlob
from persist.blob.protocol import MemoryBlob
from persist.core.settings import Tuning
from persist.engine.read.parts.reader import PartReader

KEY = {"k": pa.int64()}
QUIET = persist.Settings(background=False)


def opened(blob: object) -> persist.Client:
    return persist.open(blob, settings=QUIET)  # type: ignore[arg-type]


def collections(client: persist.Client, count: int = 5) -> list[persist.Collection]:
    """Return collections c0, c1 …, of which each holds one record more at each time up to 9."""
    made = [client.create_or_load(f"c{number}", key=KEY) for number in range(count)]
    for number, each in enumerate(made):
        each.write([((10 * number + time, None), time, 1) for time in range(10)], seal=10).result()
    return made


def test_snapshots_hold_what_each_collection_holds_as_of_its_time(blob: MemoryBlob) -> None:
    with opened(blob) as client:
        made = collections(client)
        wanted: dict[persist.Collection | str, int | None] = {made[0]: 3, "c1": None, made[2]: 9, "c3": 0}
        found = client.snapshots(wanted)
        assert [*found] == [*wanted]
        for each, as_of in wanted.items():
            alone = (client[each] if isinstance(each, str) else each).snapshot(as_of)
            assert found[each].as_of == alone.as_of
            assert found[each].to_arrow().equals(alone.to_arrow())


def test_snapshots_cost_one_look_and_one_record_however_many_there_are(blob: MemoryBlob) -> None:
    with opened(blob) as client:
        collections(client, 30)
    metered = MeteredBlob(blob)
    with opened(metered) as client:
        before, seqno = metered.get_counts(), client.engine.follower.state.seqno
        found = client.snapshots(dict.fromkeys(f"c{number}" for number in range(30)))
        after = metered.get_counts()
        assert client.engine.follower.state.seqno == seqno + 1
        assert after["create"].requests - before["create"].requests <= 2  # The probe of the store, the first time.
        assert after["get"].requests - before["get"].requests <= 30 + 4  # A state object each, where it has one.
        assert all(each.count() == 10 for each in found.values())


def test_each_snapshot_keeps_since_of_its_collection_until_it_is_closed(blob: MemoryBlob) -> None:
    with opened(blob) as client, opened(blob) as other:
        first, second, *_ = collections(client)
        found = client.snapshots({first: 3, second: 5})
        for each in (first, second):
            other[each.name].allow_compaction(8).result()
            other[each.name].compact()
        other.gc()
        client.engine.follower.refresh()
        assert (first.since.time, second.since.time) == (3, 5)
        assert [found[each].count() for each in (first, second)] == [4, 6]
        found[first].close()
        del found
        gc.collect()
        first.allow_compaction(8).result()
        second.allow_compaction(8).result()
        assert (first.since.time, second.since.time) == (8, 8)


@pytest.mark.parametrize("why", ["compacted", "not sealed", "dropped", "no such name", "of another client"])
def test_one_that_cannot_be_read_leaves_nothing_claimed(blob: MemoryBlob, why: str) -> None:
    with opened(blob) as client, opened(blob) as other:
        first, second, *_ = collections(client)
        wanted: dict[persist.Collection | str, int | None] = {first: 3, second: 4}
        expected: type[Exception] = persist.InvalidUsage
        if why == "compacted":
            other["c1"].allow_compaction(6).result()
            expected = persist.errors.AsOfCompacted
        elif why == "not sealed":
            wanted[second] = 10
            expected = persist.errors.AsOfNotSealed
        elif why == "dropped":
            other["c1"].drop().result()
            expected = persist.errors.CollectionNotFound
        elif why == "no such name":
            wanted["c99"] = None
            expected = persist.errors.CollectionNotFound
        else:
            wanted[other["c2"]] = None
        with pytest.raises(expected):
            client.snapshots(wanted)
        first.allow_compaction(8).result()
        assert first.since.time == 8


def test_snapshots_begin_after_what_this_client_was_asked_to_write(blob: MemoryBlob) -> None:
    with opened(blob) as client:
        first, second, *_ = collections(client)
        both: dict[persist.Collection | str, int | None] = {first: None, "c1": None}
        futures = [first.write([((99, None), 10, 1)], seal=11), second.write([((99, None), 10, 1)], seal=11)]
        assert {each.count() for each in client.snapshots(both).values()} == {11}
        assert all(future.done() for future in futures)


Rows = list[tuple[int, int, int]]


def made(client: persist.Client, *names: str) -> list[persist.Collection]:
    return [client.create_or_load(name, key=KEY) for name in names]


def rows(progress: persist.Progress) -> Rows:
    table = progress.updates.select(["k", "_time", "_diff"])
    return sorted(tuple(row.values()) for row in table.to_pylist())


def both(client: persist.Client, a: persist.Collection, b: persist.Collection, time: int) -> None:
    """Add the time to both collections, and seal it, in one commit."""
    with client.multi_write() as multi:
        for each in (a, b):
            multi.write(each, [((time, None), time, 1)])
            multi.seal(each, time + 1)


def test_what_one_commit_did_to_several_collections_is_seen_in_one_step(client: persist.Client) -> None:
    a, b = made(client, "a", "b")
    both(client, a, b, 0)
    with client.follow({a: 0, b: None}) as following:
        first = following.poll()
        assert first is not None
        assert {each.name: rows(first[each]) for each in first} == {"b": [(0, 0, 1)]}
        for time in range(1, 4):
            both(client, a, b, time)
            step = following.poll()
            assert step is not None
            assert len(step) == 2
            assert rows(step[a]) == rows(step[b]) == [(time, time, 1)]
            assert step[a].upper == step[b].upper == time + 1
        assert following.poll() is None


def test_contents_come_first_if_they_are_asked_for_and_are_of_one_point_of_the_log(client: persist.Client) -> None:
    a, b = made(client, "a", "b")
    for time in range(3):
        both(client, a, b, time)
    a.write([((7, None), 3, 1)], seal=4).result()
    with client.follow({a: None, b: 1}, contents=True) as following:
        first = next(following)
        assert first.seqno == client.seqno
        assert rows(first[a]) == [(0, 3, 1), (1, 3, 1), (2, 3, 1), (7, 3, 1)]
        assert rows(first[b]) == [(0, 1, 1), (1, 1, 1)]
        step = next(following)
        assert list(step) == [b]
        assert rows(step[b]) == [(2, 2, 1)]


def test_since_waits_for_what_is_followed_and_not_for_what_was_given(client: persist.Client) -> None:
    a, b = made(client, "a", "b")
    for time in range(3):
        both(client, a, b, time)
    following = client.follow({a: 0, b: 0})
    a.allow_compaction(2).result()
    assert a.since == 0
    assert next(following).seqno == client.seqno
    following.close()
    a.allow_compaction(2).result()
    assert a.since == 2


def test_it_ends_when_all_collections_are_complete_for_ever(client: persist.Client) -> None:
    a, b = made(client, "a", "b")
    following = client.follow({a: None, b: None})
    both(client, a, b, 0)
    a.seal(persist.Antichain()).result()
    steps = [next(following)]
    assert not following.is_finished
    b.seal(persist.Antichain()).result()
    steps += list(following)
    assert [sorted(each.name for each in step) for step in steps] == [["a", "b"], ["b"]]
    assert following.is_finished


@pytest.mark.parametrize("contents", [False, True])
def test_if_one_of_the_times_cannot_be_read_none_is_followed(client: persist.Client, contents: bool) -> None:
    a, b = made(client, "a", "b")
    for time in range(3):
        both(client, a, b, time)
    b.allow_compaction(2).result()
    with pytest.raises(persist.errors.AsOfCompacted):
        client.follow({a: 0, b: 0}, contents=contents)
    a.allow_compaction(2).result()
    assert a.since == 2


def test_what_is_no_collection_of_this_client_is_refused(client: persist.Client) -> None:
    (mine,) = made(client, "a")
    with persist.open(MemoryBlob()) as other:
        (theirs,) = made(other, "a")
        for wrong in ({}, {mine: 0, theirs: 0}, {"a": 0}, [mine]):
            with pytest.raises(persist.InvalidUsage, match=r"this client|not a dict"):
                client.follow(wrong)  # type: ignore[arg-type]


def test_what_one_collection_gave_is_given_again_if_another_one_cannot_be_read() -> None:
    store = MemoryBlob()
    settings = persist.Settings(background=False, tuning=Tuning(inline_bytes=1))
    with persist.open(store, settings=settings) as writer, persist.open(store, settings=settings) as reader:
        a, b = made(writer, "a", "b")
        both(writer, a, b, 0)
        followed, missing = (reader[each.name] for each in (a, b))
        with reader.follow({followed: 0, missing: 0}) as following:
            before = {entry.key for entry in store.list("")}
            both(writer, a, b, 1)
            for each in (a, b):  # What was written is in a blob of its own then.
                each.compact()
            parts = [entry.key for entry in store.list("") if entry.key not in before and b.id in entry.key]
            kept = {key: store.get(key) for key in parts}
            for key in parts:
                store.delete(key)
            with pytest.raises(persist.PersistError):
                following.poll()
            for key, data in kept.items():
                assert data is not None
                store.set(key, data)
            step = following.poll()
            assert step is not None
            assert {each.name: rows(step[each]) for each in step} == {"a": [(1, 1, 1)], "b": [(1, 1, 1)]}


def test_a_state_that_is_larger_than_the_budget_comes_in_parts_that_end_together(
    client: persist.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = made(client, "a", "b")
    for time in range(3):
        both(client, a, b, time)
    monkeypatch.setattr(PartReader, "slice_bytes", 1)
    with client.follow({a: 0, b: None}) as following:
        steps = [next(following)]
        both(client, a, b, 3)
        while not steps[-1].is_last:
            steps.append(next(following))
        assert len(steps) == 5
        assert {step.seqno for step in steps} == {client.seqno - 1}
        assert [{each.name: step[each].upper.time for each in step} for step in steps[:-1]] == [
            *[{"a": 1}] * 2,
            *[{"b": 0}] * 2,
        ]
        assert {each.name: step.upper.time for each, step in steps[-1].progress.items()} == {"a": 3, "b": 3}
        assert len(steps[-1][a].updates) == 0
        assert steps[-1][a].updates.schema == steps[0][a].updates.schema
        assert [row for step in steps if a in step for row in rows(step[a])] == [(1, 1, 1), (2, 2, 1)]
        assert [row for step in steps if b in step for row in rows(step[b])] == [(0, 0, 1), (1, 1, 1), (2, 2, 1)]
        both(client, a, b, 4)
        assert not next(following).is_last


Steps = st.lists(st.tuples(st.sampled_from(["both", "a", "b", "poll", "close"]), st.integers(1, 5)), max_size=12)


@given(Steps, st.sampled_from([1, 100, 1 << 20]), st.booleans())
def test_parts_of_a_state_add_up_to_what_that_state_holds(
    commits: list[tuple[str, int]], slice_bytes: int, contents: bool
) -> None:
    """A follower that takes in what it was given whenever a step is the last one has each state as a whole."""
    settings = persist.Settings(background=False)
    with pytest.MonkeyPatch.context() as patch, persist.open(MemoryBlob(), settings=settings) as client:
        patch.setattr(PartReader, "slice_bytes", slice_bytes)
        a, b = made(client, "a", "b")
        model: dict[str, Rows] = {"a": [], "b": []}
        uppers = dict.fromkeys("ab", 0)
        states: dict[int, tuple[dict[str, int], dict[str, Rows]]] = {}

        def commit(names: str, count: int) -> None:
            with client.multi_write() as multi:
                for each in (a, b):
                    if each.name in names:
                        at = uppers[each.name]
                        added = [(key, at, 1) for key in range(count)]
                        multi.write(each, [((key, None), time, diff) for key, time, diff in added])
                        multi.seal(each, at + 1)
                        model[each.name] = [*model[each.name], *added]
                        uppers[each.name] = at + 1
            states[client.seqno] = dict(uppers), {name: [*held] for name, held in model.items()}

        commit("ab", 3)
        given: dict[str, Rows] = {"a": [], "b": []}
        begun = {a: 0, b: 0} if contents else {a: None, b: None}
        with client.follow(begun, contents=contents) as following:
            pending: dict[str, Rows] = {"a": [], "b": []}
            seen = dict.fromkeys("ab", 0)
            for what, count in [*commits, *[("poll", 1)] * 200]:
                if what in ("both", "a", "b"):
                    commit("ab" if what == "both" else what, count)
                    continue
                if (step := following.poll()) is None:
                    continue
                for each in step:
                    pending[each.name] += rows(step[each])
                    if step.is_last:
                        seen[each.name] = step[each].upper.time or 0
                    else:
                        assert step[each].upper == seen[each.name]
                if step.is_last:
                    for name in given:
                        given[name] += pending.pop(name)
                    pending = {"a": [], "b": []}
                    known, held = states[max(seqno for seqno in states if seqno <= step.seqno)]
                    assert all(seen[name] in (known[name], 1) for name in seen) if contents else seen == known
                    for name in given:
                        assert sorted(given[name]) == sorted(row for row in held[name] if row[1] < seen[name])
        assert {name: sorted(held) for name, held in given.items()} == {n: sorted(h) for n, h in model.items()}


def test_a_part_of_a_state_that_could_not_be_read_comes_with_the_next_step(
    client: persist.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = made(client, "a", "b")
    both(client, a, b, 0)
    monkeypatch.setattr(PartReader, "slice_bytes", 1)
    with client.follow({a: None, b: None}) as following:
        assert rows(next(following)[a]) == [(0, 0, 1)]
        with monkeypatch.context() as patch:
            patch.setattr(PartReader, "tables", unavailable)
            with pytest.raises(persist.Unavailable):
                following.poll()
        step = next(following)
        assert step.is_last
        assert {each.name: rows(step[each]) for each in step} == {"a": [], "b": [(0, 0, 1)]}


def unavailable(*_: object, **__: object) -> None:
    raise persist.Unavailable("the store did not answer")


@pytest.mark.timeout(60)
def test_what_follows_a_complete_collection_from_its_last_time_ends(client: persist.Client) -> None:
    a, b = made(client, "a", "b")
    both(client, a, b, 0)
    a.seal(persist.Antichain()).result()
    last = 2**63 - 2
    for start in ("latest", last):
        with a.listen(start) as listen:
            step = listen.poll()
            assert step is not None, start
            assert step.upper.is_empty
            assert not step.updates.num_rows
            assert listen.is_finished
    with client.follow({a: last}) as following:
        assert [step[a].upper.is_empty for step in iter(following.poll, None)] == [True]
    with client.follow({a: last, b: 0}) as following:
        joint = following.poll()
        assert joint is not None
        assert joint[a].upper.is_empty
        assert following.poll() is None
        b.write([((5, None), 5, 1)], seal=6).result()
        assert (joint := following.poll()) is not None
        assert rows(joint[b]) == [(5, 5, 1)]
