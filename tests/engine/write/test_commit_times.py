"""Times that the commit assigns (rule 21): whose they are, what they are, what is told of them, and what is stored."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import persist
from persist.blob.layers.unreliable import Fault, UnreliableBlob
from persist.blob.protocol import MemoryBlob
from persist.core.antichain import Antichain
from tests.support.clocks import ImpatientClock
from tests.support.reads import rows_with
from tests.support.stepped import Gate, Stepped

KEY, VALUE = {"k": pa.int64()}, {"v": pa.string()}
QUIET = persist.Settings(background=False)
NOW_MS = 1_700_000_000_000


def opened(blob: object, clock: ImpatientClock | None = None) -> persist.Client:
    return persist.open(blob, clock=clock or ImpatientClock(), settings=QUIET)  # type: ignore[arg-type]


def history(collection: persist.Collection) -> list[tuple[Any, ...]]:
    table = collection.changes(0).to_arrow()
    return [tuple(row.values()) for row in table.to_pylist()]


def test_rule_21_a_write_without_a_time_is_beyond_upper_whoever_came_first(blob: MemoryBlob) -> None:
    with opened(blob) as one, opened(blob) as two:
        mine = one.create_or_load("c", key=KEY, value=VALUE)
        other = two.load("c")
        mine.seal(41).result()
        assert other.upper == Antichain(41)
        mine.seal(42).result()  # Of which the other client does not know yet.
        written = other.write([(1, "a")])
        assert written.time == 42
        assert mine.upper == Antichain(43)
        with one.multi_write() as multi:
            multi.write(mine, [(2, "b")])
            ahead = one.create_or_load("ahead", key=KEY, value=VALUE)
            multi.write(ahead, [(2, "b")])
        assert multi.time_of(mine) == multi.time_of(ahead) == 43
        assert history(mine) == [(1, "a", 42, 1), (2, "b", 43, 1)]
        assert one.fsck().problems == ()


def test_a_race_that_is_lost_gives_another_time_and_stores_nothing_again(blob: MemoryBlob) -> None:
    rows = 30_000
    table = pa.table({"k": np.arange(rows), "v": [str(n) for n in range(rows)]})
    with opened(blob) as one, opened(blob) as two:
        mine = one.create_or_load("c", key=KEY, value=VALUE)
        other = two.load("c")
        for number in range(5):
            mine.write([(number, "mine")]).result()
        assert other.write(table).time == 5
        assert two.metrics().groups["commits"]["lost_races"] >= 1
        (stored,) = blob.list("part/")
        file = pq.read_table(pa.BufferReader(blob.get(stored.key) or b""))
        assert pc.unique(file["_time"]).to_pylist() == [0]
        assert other.changes(5).to_arrow()["_time"].to_pylist() == [5] * rows


def test_who_loses_a_race_stores_only_what_is_not_refused_now(blob: MemoryBlob) -> None:
    store, gate = Stepped(blob), Gate()
    with opened(store) as one, opened(blob) as two:
        mine = one.create_or_load("c", key=KEY, value=VALUE)
        store.before("create", "log/", gate)
        first = mine.write([((1, "a"), 0, 1)])
        gate.wait_until_reached()
        late, later = mine.write([((2, "b"), 1, 1)]), mine.write([((3, "c"), 9, 1)])
        store.before("create", "log/", lambda: two.load("c").seal(5).result())
        gate.open()
        first.result()
        with pytest.raises(persist.errors.UpdateNotBeyondUpper):
            late.result()
        later.result()
        assert store.is_done
        mine.seal(10).result()
        assert history(mine) == [(1, "a", 0, 1), (3, "c", 9, 1)]


def test_writes_that_name_no_time_keep_their_place_among_those_that_do(blob: MemoryBlob) -> None:
    with opened(blob) as client:
        c = client.create_or_load("c", key=KEY, value=VALUE)
        first, second = c.write([(1, "a")]), c.write([(2, "b")])
        c.seal(20)
        third = c.write([(3, "c")])
        explicit = c.write([((4, "d"), 30, 1)], seal=31)
        last = c.write([(5, "e")])
        assert (first.time, third.time, explicit.time, last.time) == (0, 20, None, 31)
        assert second.time in (0, 1)  # In one record with the first, or in the next.
        assert c.upper == Antichain(32)


def test_a_timeline_gives_the_moment_of_the_clock_and_never_goes_back(blob: MemoryBlob) -> None:
    clock = ImpatientClock()
    with opened(blob, clock) as client:
        seconds = client.create_or_load("s", key=KEY, value=VALUE, timeline="s")
        micros = client.create_or_load("us", key=KEY, value=VALUE, timeline="us")
        first = seconds.write([(1, "a")])
        assert first.time == NOW_MS // 1000
        assert seconds.write([(2, "b")]).time == NOW_MS // 1000 + 1
        clock.jump(-3600)
        assert seconds.write([(3, "c")]).time == NOW_MS // 1000 + 2
        with client.multi_write() as multi:
            multi.write(seconds, [(4, "d")])
            multi.write(micros, [(4, "d")])
        assert multi.time_of(seconds) == NOW_MS // 1000 + 3
        assert multi.time_of(micros) == (NOW_MS // 1000 + 3) * 10**6


def test_a_lost_answer_is_found_and_the_future_tells_the_time_in_the_log(blob: MemoryBlob) -> None:
    store = UnreliableBlob(blob)
    with opened(store) as client:
        c = client.create_or_load("c", key=KEY, value=VALUE)
        c.seal(7).result()
        store.script_faults("create", Fault.HAPPENED_BUT_FAILED)
        written = c.write([(1, "a")])
        assert written.time == 7
        assert history(c) == [(1, "a", 7, 1)]


def test_a_token_that_is_used_again_tells_the_first_time(blob: MemoryBlob) -> None:
    with opened(blob) as client:
        c = client.create_or_load("c", key=KEY, value=VALUE)
        keyed = client.create_or_load("keyed", key=KEY, value=VALUE, keyed=persist.Keyed())
        assert c.write([(1, "a")], token="load").time == 0
        assert keyed.upsert([(1, "a")], token="load").time == 0
        c.write([(2, "b")]).result()
        keyed.upsert([(2, "b")]).result()
    with opened(blob) as client:
        c, keyed = client.load("c"), client.load("keyed")
        assert c.write([(1, "a")], token="load").time == 0
        assert keyed.upsert([(1, "a")], token="load").time == 0
        with pytest.raises(persist.errors.TokenReused):
            c.write([(1, "z")], token="load").result()
        assert c.overwrite([(9, "z")], token="whole").time == 2
        assert c.overwrite([(9, "z")], token="whole").time == 2
        assert len(history(c)) == 5


@pytest.mark.parametrize("rows", [3, 30_000])
def test_a_stamped_part_reads_as_of_its_time_everywhere(blob: MemoryBlob, rows: int) -> None:
    table = pa.table({"k": np.arange(rows), "v": [str(n) for n in range(rows)]})
    with opened(blob) as client:
        c = client.create_or_load("c", key=KEY, value=VALUE)
        c.seal(5).result()
        assert c.write(table).time == 5
        assert c.write(table, diff=2).time == 6  # Equal bytes but for diffs; equal ones at another time follow.
        assert c.write(table).time == 7
        (first, *_) = c.handle.contents().history_parts
        assert (first.stamped, first.time_min, first.time_max) == (True, 5, 5)
        for as_of, count in ((4, 0), (5, rows), (6, 3 * rows), (7, 4 * rows)):
            assert c.snapshot(as_of).count() == count
            assert rows_with(c.snapshot(as_of), [1]).num_rows == count // rows
        changes = c.changes(6, 7).to_arrow()
        assert pc.unique(changes["_time"]).to_pylist() == [6]
        assert len(changes) == rows
        filtered = c.changes(0, where=pc.field("k") == 2).to_arrow()
        assert filtered["_time"].to_pylist() == [5, 6, 7]
        before = c.changes(0).to_arrow().sort_by([("k", "ascending"), ("_time", "ascending")])
        assert client.fsck().problems == ()
        c.compact()
        assert c.changes(0).to_arrow().sort_by([("k", "ascending"), ("_time", "ascending")]).equals(before)
        assert client.fsck().problems == ()


def test_a_collection_that_is_complete_takes_nothing_more(blob: MemoryBlob) -> None:
    with opened(blob) as client:
        c = client.create_or_load("c", key=KEY, value=VALUE)
        c.seal(Antichain()).result()
        with pytest.raises(persist.errors.UpdateNotBeyondUpper):
            c.write([(1, "a")]).result()
        last = client.create_or_load("last", key=KEY, value=VALUE)
        last.seal(2**63 - 2).result()
        assert last.write([(1, "a")]).time == 2**63 - 2
        with pytest.raises(persist.errors.UpdateNotBeyondUpper):
            last.write([(1, "a")]).result()


def test_what_names_a_seal_names_its_times(blob: MemoryBlob) -> None:
    with opened(blob) as client:
        c = client.create_or_load("c", key=KEY, value=VALUE)
        keyed = client.create_or_load("keyed", key=KEY, value=VALUE, keyed=persist.Keyed())
        with pytest.raises(persist.InvalidUsage, match="seals just after"):
            c.write([(1, "a")], seal=5)
        with pytest.raises(persist.InvalidUsage, match="seals just after"):
            keyed.upsert([(1, "a")], seal=5)
        with pytest.raises(persist.InvalidUsage, match="diffs of their own"):
            c.write([((1, "a"), 4, 1)], diff=2)
        assert c.write([]).time is None
        assert c.upper == Antichain(0)


def test_several_writes_to_a_collection_in_one_block_get_one_time_whatever_else_the_block_does() -> None:
    with persist.open(persist.MemoryBlob()) as client:
        one, other = (client.create_or_load(name, key={"k": int}, value={"v": int}) for name in ("one", "other"))
        with client.multi_write() as multi:
            multi.write(one, [(1, 1)])
            multi.write(one, [(2, 2)])
            multi.seal(other, 5)
        assert {time for _, time, _ in one.changes(0).updates()} == {multi.time_of(one)}
