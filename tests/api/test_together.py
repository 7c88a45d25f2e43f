"""Contents of several collections at one point of the log: what each would give, in one look and one record."""

import gc
import threading

import pyarrow as pa
import pytest

import persist
from persist.blob.layers.metered import MeteredBlob
from persist.blob.protocol import MemoryBlob
from tests.support.stepped import WAIT_S

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


def test_the_latest_of_all_is_of_one_state_while_somebody_commits_to_all(blob: MemoryBlob) -> None:
    with opened(blob) as client, opened(blob) as writer:
        names = [each.name for each in collections(client)]
        theirs, done = [writer[name] for name in names], threading.Event()

        def write() -> None:
            for time in range(10, 60):
                with writer.multi_write() as multi:
                    for each in theirs:
                        multi.write(each, [((1000 + time, None), time, 1)])
                        multi.seal(each, time + 1)
            done.set()

        thread = threading.Thread(target=write, daemon=True)
        thread.start()
        seen = set()
        while not done.is_set():
            found = client.snapshots(dict.fromkeys(names))
            times = {each.as_of for each in found.values()}
            assert len(times) == 1
            assert {each.count() for each in found.values()} == {time + 1 for time in times}
            seen |= times
        thread.join(WAIT_S)
        assert client.snapshots(dict.fromkeys(names))["c0"].as_of == 59


def test_snapshots_begin_after_what_this_client_was_asked_to_write(blob: MemoryBlob) -> None:
    with opened(blob) as client:
        first, second, *_ = collections(client)
        both: dict[persist.Collection | str, int | None] = {first: None, "c1": None}
        futures = [first.write([((99, None), 10, 1)], seal=11), second.write([((99, None), 10, 1)], seal=11)]
        assert {each.count() for each in client.snapshots(both).values()} == {11}
        assert all(future.done() for future in futures)
