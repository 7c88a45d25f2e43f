"""Streams of a collection: what all micro-batches hold together, where each ends, and what a stopped query finds.

Most of it asks the reader what Spark would ask, in the order in which Spark asks it, without Spark: `Query`. Real
queries then show that this is what Spark does.
"""

import json
import random
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

import persist
from persist.blob.stores.file import FileBlob
from persist.compute.tasks import stream_source as stream_source
from persist.connect.spark.data_source.reader import PersistStreamReader
from persist.connect.spark.data_source.source import PersistDataSource
from tests.support.stepped import WAIT_S

Update = tuple[int, str, int, int]
CHANGES = {"collection": "orders", "form": "changes"}


class Query:
    """A query as Spark runs it: every end is written down before it is read, and committed when the next one is."""

    def __init__(self, path: str, options: dict[str, Any], ends: list[dict[str, Any]] | None = None) -> None:
        """Start, or start again: with the ends that a checkpoint holds, of which the last was not committed."""
        source = PersistDataSource({"path": path, **{name.lower(): str(value) for name, value in options.items()}})
        reader = source.streamReader(source.schema())
        assert isinstance(reader, PersistStreamReader)
        self.reader = reader
        self.ends: list[dict[str, Any]] = [] if ends is None else [*ends]

    def __enter__(self) -> "Query":
        return self

    def __exit__(self, *_: object) -> None:
        self.reader.stop()

    def start_of(self, batch: int) -> dict[str, Any]:
        # Spark forgets the initial offset, and asks for it again.
        return self.ends[batch - 1] if batch else self.reader.initialOffset()

    def read(self, batch: int) -> pa.Table:
        """Read a micro-batch, or read it again."""
        start, end = (json.loads(json.dumps(each)) for each in (self.start_of(batch), self.ends[batch]))
        batches = [b for part in self.reader.partitions(start, end) for b in self.reader.read(part)]
        return pa.Table.from_batches(batches) if batches else pa.table({"_time": pa.array([], pa.int64())})

    def next(self) -> pa.Table | None:
        """Run one more micro-batch; None if there is nothing new."""
        start = self.start_of(len(self.ends))
        end = self.reader.latestOffset(start, self.reader.getDefaultReadLimit())
        if end == start:
            return None
        self.ends.append(end)
        if len(self.ends) > 1:
            self.reader.commit(self.ends[-2])
        return self.read(len(self.ends) - 1)

    def all(self) -> list[pa.Table]:
        """Run micro-batches for as long as there is something new."""
        found = []
        while (table := self.next()) is not None:
            found.append(table)
        return found

    @property
    def hold(self) -> str:
        name: str = self.ends[-1]["hold"]
        return name


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_source, "POLL_S", 0.0)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "location")


@pytest.fixture
def orders(path: str) -> Iterator[persist.Collection]:
    """Twenty keys that change at some of the times below 60, a few times sealed in one go, in parts of many times."""
    with persist.open(path, settings=persist.Settings(background=False)) as client:
        orders = client.create_or_load("orders", key={"k": pa.int64()}, value={"v": pa.string()})
        write_history(orders)
        yield orders


def write_history(orders: persist.Collection) -> None:
    chance = random.Random(5)
    held: dict[int, str] = {}
    for sealed in range(0, 60, 6):
        updates: list[Any] = []
        for time in sorted(chance.sample(range(sealed, sealed + 6), 3)):
            for k in chance.sample(range(20), chance.randint(1, 8)):
                updates += [((k, held[k]), time, -1)] if k in held else []
                held[k] = f"v{time}"
                updates.append(((k, held[k]), time, 1))
        orders.write(updates, seal=sealed + 6).result()


def listed(table: pa.Table) -> list[Any]:
    return sorted(tuple(row.values()) for row in table.to_pylist())


def history(orders: persist.Collection, lower: int, upper: int) -> list[Update]:
    return listed(orders.changes(lower, upper).to_arrow())


def contents(orders: persist.Collection, as_of: int) -> list[Update]:
    rows = orders.snapshot(as_of, form="diff").to_arrow().to_pylist()
    return sorted((row["k"], row["v"], as_of, row["_diff"]) for row in rows)


def permanent(orders: persist.Collection) -> dict[str, int]:
    return {hold.name: hold.time for hold in orders.holds() if hold.name is not None}


@pytest.mark.thorough(except_every=4)
@pytest.mark.parametrize(
    ("updates", "times"),
    [(None, None), (1, None), (7, None), (40, None), (None, 1), (None, 4), (25, 3), (2**62, 10**9)],
)
def test_all_micro_batches_together_are_the_history_within_limits(
    orders: persist.Collection, path: str, updates: int | None, times: int | None
) -> None:
    limits = {"max_updates_per_trigger": updates, "max_times_per_trigger": times}
    given = {name: value for name, value in limits.items() if value is not None}
    with Query(path, {**CHANGES, "start": 0, **given}) as query:
        batches = query.all()
    assert [update for batch in batches for update in listed(batch)] != []
    assert sorted(update for batch in batches for update in listed(batch)) == history(orders, 0, 60)
    counts = Counter(time for _, _, time, _ in history(orders, 0, 60))
    uppers = [0, *(end["upper"] for end in query.ends)]
    assert uppers[-1] == 60
    for batch, lower, upper in zip(batches, uppers, uppers[1:], strict=False):
        assert listed(batch) == history(orders, lower, upper)
        held = [time for time in counts if lower <= time < upper]
        assert len(held) <= (times or 60)
        assert len(held) == 1 or sum(counts[time] for time in held) <= (updates or 10**9)
        # No more would have fitted: a batch ends where the first time is that does not.
        following = [*held, upper]
        assert upper == 60 or len(following) > (times or 60) or sum(counts[t] for t in following) > (updates or 10**9)


def test_what_was_compacted_into_large_parts_is_cut_at_the_same_times(orders: persist.Collection, path: str) -> None:
    given = {**CHANGES, "start": 0, "max_updates_per_trigger": 25, "max_times_per_trigger": 3}
    with Query(path, given) as query:
        query.all()
    orders.compact()
    assert any(part.blob and part.time_min + 6 < part.time_max for part in orders.handle.contents().history_parts)
    with Query(path, given) as again:
        assert again.all()
    assert [end["upper"] for end in again.ends] == [end["upper"] for end in query.ends]


def test_a_stream_begins_with_contents_and_goes_on_with_changes(orders: persist.Collection, path: str) -> None:
    for as_of in (20, 59, "latest"):
        with Query(path, {**CHANGES, "as_of": as_of, "max_updates_per_trigger": 1}) as query:
            first, *rest = query.all()
        time = 59 if as_of == "latest" else int(as_of)
        assert listed(first) == contents(orders, time)
        assert sorted(update for batch in rest for update in listed(batch)) == history(orders, time + 1, 60)


def test_columns_are_chosen_and_updates_do_not_depend_on_how_they_are_cut(
    orders: persist.Collection, path: str
) -> None:
    wanted = sorted((v, time, diff) for _, v, time, diff in history(orders, 0, 60))
    for slices in (1, 7):
        with Query(path, {**CHANGES, "start": 0, "columns": "v", "partitions": slices}) as query:
            (batch,) = query.all()
        assert batch.column_names == ["v", "_time", "_diff"]
        assert listed(batch) == wanted


def test_a_stopped_query_goes_on_after_compaction_and_without_loss(orders: persist.Collection, path: str) -> None:
    with Query(path, {**CHANGES, "start": 0, "max_times_per_trigger": 4}) as query:
        read = [listed(query.next()) for _ in range(3)]
    held = permanent(orders)
    # The third micro-batch is not committed: what it holds can be read again.
    assert held == {query.hold: query.ends[1]["upper"] - 1}
    before = history(orders, 0, 60)
    orders.allow_compaction(59).result()
    orders.compact()
    assert orders.since == persist.Antichain(held[query.hold])
    with Query(path, CHANGES, query.ends) as again:
        assert listed(again.read(2)) == read[2]
        rest = [update for batch in again.all() for update in listed(batch)]
    assert sorted([update for batch in read for update in batch] + rest) == before
    assert permanent(orders) == {query.hold: again.ends[-2]["upper"] - 1}


def test_the_first_micro_batch_is_repeated_with_what_was_chosen_then(orders: persist.Collection, path: str) -> None:
    with Query(path, CHANGES) as query:
        first = listed(query.next())
    orders.write([((99, "new"), 60, 1)], seal=61).result()
    orders.allow_compaction(60).result()
    orders.compact()
    with Query(path, CHANGES, query.ends) as again:
        assert listed(again.read(0)) == first == contents(orders, 59)
        assert [listed(batch) for batch in again.all()] == [[(99, "new", 60, 1)]]
    assert list(permanent(orders)) == [query.hold]


def test_nothing_is_left_behind_by_a_query_that_wrote_no_offset_down(orders: persist.Collection, path: str) -> None:
    with Query(path, CHANGES) as query:
        query.reader.latestOffset(query.reader.initialOffset(), ReadAllAvailable())
    assert orders.holds() == []


def test_a_query_keeps_its_hold_though_nobody_read_its_first_micro_batch(orders: persist.Collection, path: str) -> None:
    with Query(path, CHANGES) as query:
        query.ends.append(query.reader.latestOffset(query.reader.initialOffset(), ReadAllAvailable()))
        orders.write([((99, "new"), 60, 1)], seal=61).result()
        assert [listed(batch) for batch in query.all()] == [[(99, "new", 60, 1)]]
        assert permanent(orders) == {query.hold: 59}


def test_an_idle_query_holds_nothing_but_its_permanent_hold(orders: persist.Collection, path: str) -> None:
    orders.compact()  # So that there are blobs to keep.
    with Query(path, {**CHANGES, "hold": "mine"}) as query:
        query.next()
        assert {hold.name for hold in orders.holds()} == {"mine", None}
        assert query.next() is None
        assert {hold.name for hold in orders.holds()} == {"mine"}


def test_a_stream_ends_with_the_collection(orders: persist.Collection, path: str) -> None:
    with Query(path, {**CHANGES, "start": 50}) as query:
        query.next()
        orders.write([((99, "last"), 70, 1)], seal=persist.Antichain()).result()
        assert [listed(batch) for batch in query.all()] == [[(99, "last", 70, 1)]]
        assert query.ends[-1]["upper"] == "complete"
        for _ in range(2):
            query.reader.commit(query.ends[-1])
            assert orders.holds() == []
    with Query(path, CHANGES, query.ends) as again:
        assert again.next() is None
    with Query(path, CHANGES) as later:
        first, *rest = later.all()
        assert listed(first) == contents(orders, 70)
        assert [listed(batch) for batch in rest] == [[]]
        assert later.ends[-1]["upper"] == "complete"
    with Query(path, {**CHANGES, "start": "latest"}) as later:
        assert [listed(batch) for batch in later.all()] == [[]]


def test_a_stream_waits_for_what_is_not_sealed_yet(orders: persist.Collection, path: str) -> None:
    options: list[dict[str, Any]] = [{"as_of": 62}, {"start": 62}, {"start": "latest"}]
    queries = [Query(path, {**CHANGES, **each}) for each in options]
    assert [[listed(b) for b in query.all()] for query in queries] == [[], [[]], [[]]]
    updates: list[Any] = [((99, "late"), time, 1) for time in (61, 62, 63)]
    orders.write(updates, seal=64).result()
    late = [(99, "late", time, 1) for time in (61, 62, 63)]
    as_of, lower, latest = ([listed(b) for b in query.all()] for query in queries)
    assert as_of == [contents(orders, 62), late[2:]]
    assert lower == [late[1:]]
    assert latest == [late]
    for query in queries:
        query.reader.stop()


def test_a_collection_without_anything_sealed_can_be_followed(path: str) -> None:
    with persist.open(path) as client:
        empty = client.create_or_load("orders", key={"k": pa.int64()}, value={"v": pa.string()})
        with Query(path, CHANGES) as query:
            assert query.all() == []
            empty.write([((1, "a"), 3, 1)], seal=4).result()
            assert [listed(batch) for batch in query.all()] == [[(1, "a", 3, 1)]]


def test_what_cannot_be_read_is_not_written_down_as_a_beginning(orders: persist.Collection, path: str) -> None:
    orders.allow_compaction(70).result()  # Since may pass upper.
    for options in (CHANGES, {**CHANGES, "start": "latest"}, {**CHANGES, "start": 70}):
        with Query(path, options) as query, pytest.raises(persist.errors.AsOfCompacted, match=r"since=70"):
            query.next()
        assert query.ends == []
    assert orders.holds() == []


def test_with_available_now_a_query_ends_where_it_was_when_it_started(orders: persist.Collection, path: str) -> None:
    for options in ({"start": 0, "max_times_per_trigger": 9}, {"as_of": "latest"}, {"start": "latest"}):
        with Query(path, {**CHANGES, **options}) as query:
            query.reader.prepareForTriggerAvailableNow()
            upper = orders.upper.time
            assert upper is not None
            orders.write([((99, "new"), upper, 1)], seal=upper + 1).result()
            query.all()
            assert query.ends[-1]["upper"] == upper
    with Query(path, {**CHANGES, "as_of": 99}) as query:
        query.reader.prepareForTriggerAvailableNow()
        assert query.all() == []
    with (
        Query(path, {**CHANGES, "as_of": 99, "timeout_s": 0.01}) as query,
        pytest.raises(persist.errors.AsOfNotSealed, match=r"waiting 0\.01 s"),
    ):
        query.reader.prepareForTriggerAvailableNow()


def test_with_available_now_a_query_that_may_wait_waits_for_the_first_seal(path: str) -> None:
    with persist.open(path, settings=persist.Settings(background=False)) as client:
        late = client.create_or_load("late", key={"k": pa.int64()}, value={"v": pa.string()})
        late.write([((1, "a"), 4, 1)]).result()
        options = {"collection": "late", "form": "changes"}
        with (
            Query(path, {**options, "timeout_s": 0}) as query,
            pytest.raises(persist.errors.AsOfNotSealed, match=r"1 update at time 4: sealing to 5 makes"),
        ):
            query.reader.prepareForTriggerAvailableNow()
        with Query(path, {**options, "timeout_s": WAIT_S}) as query, ThreadPoolExecutor(1) as pool:
            preparing = pool.submit(query.reader.prepareForTriggerAvailableNow)
            with pytest.raises(TimeoutError):
                preparing.result(0.3)
            late.seal(5).result()
            preparing.result(WAIT_S)


def test_a_stream_of_rows_is_for_collections_that_only_grow(path: str) -> None:
    with persist.open(path) as client:
        clicks = client.create_or_load("clicks", key={"k": pa.int64()}, value={"v": pa.string()})
        clicks.write([((1, "a"), 0, 2), ((2, "b"), 0, 1)], seal=1).result()
        with Query(path, {"collection": "clicks", "form": "rows"}) as query:
            assert listed(query.next()) == [(1, "a"), (1, "a"), (2, "b")]
            clicks.write([((1, "a"), 1, 1), ((3, "c"), 2, 2)], seal=3).result()
            assert listed(query.next()) == [(1, "a"), (3, "c"), (3, "c")]
            clicks.write([((1, "a"), 3, -1)], seal=4).result()
            with pytest.raises(persist.InvalidUsage, match=r'takes something back, .* \.option\("form", "changes"\)'):
                query.next()


def test_times_may_be_timestamps(path: str) -> None:
    noon = datetime(2026, 11, 21, 12, tzinfo=UTC)
    with persist.open(path) as client:
        clicks = client.create_or_load("orders", key={"k": pa.int64()}, value={"v": pa.string()}, timeline="ms")
        line = clicks.timeline
        assert line is not None
        times = [line.to_time(noon + timedelta(seconds=k)) for k in range(4)]
        clicks.write([((k, "x"), time, 1) for k, time in enumerate(times)], seal=times[-1] + 1).result()
        for options, first in (
            ({"start": "2026-11-21 12:00:01.0004"}, [2, 3]),
            ({"start": "2026-11-21T14:00:02+02:00"}, [2, 3]),
            ({"as_of": "2026-11-21T12:00:01.9999Z"}, [0, 1]),
        ):
            with Query(path, {**CHANGES, **options}) as query:
                assert [row[0] for row in listed(query.next())] == first


def test_a_batch_is_read_as_of_a_timestamp(path: str) -> None:
    def read(**options: str) -> list[int]:
        source = PersistDataSource({"path": path, "collection": "clicks", **options})
        reader = source.reader(source.schema())
        return sorted(k for part in reader.partitions() for b in reader.read(part) for k in b["k"].to_pylist())

    noon = datetime(2026, 11, 21, 12, tzinfo=UTC)
    with persist.open(path) as client:
        clicks = client.create_or_load("clicks", key={"k": pa.int64()}, timeline="s")
        assert clicks.timeline is not None
        times = [clicks.timeline.to_time(noon + timedelta(hours=k)) for k in range(4)]
        clicks.write([((k, None), time, 1) for k, time in enumerate(times)], seal=times[-1] + 1).result()
        client.create_or_load("plain", key={"k": pa.int64()}).seal(1).result()
    assert read(as_of="2026-11-21T13:59:59.9Z") == [0, 1]
    assert read(as_of="2026-11-21 13:00:00") == read(as_of="2026-11-21T14:00+01:00", form="diff") == [0, 1]
    assert read(form="changes", start="2026-11-21 12:00:00.1", until="2026-11-21 14:00") == [1]
    assert read(form="changes", start="2026-11-21 12:00", until="2026-11-21 14:00:00.1") == [0, 1, 2]
    with pytest.raises(persist.errors.AsOfNotSealed):
        read(as_of="2026-11-22", timeout_s="0")
    with pytest.raises(persist.InvalidUsage, match="write it as 2026-11-21T12:00:00Z"):
        read(as_of="2026-21-11")
    with pytest.raises(persist.InvalidUsage, match="the collection 'plain' has no timeline"):
        read(collection="plain", as_of="2026-11-21")


@pytest.mark.parametrize("moved_to", [55, None])
def test_a_hold_that_somebody_moved_or_removed_stops_the_query(
    orders: persist.Collection, path: str, moved_to: int | None
) -> None:
    with Query(path, {**CHANGES, "start": 0, "max_times_per_trigger": 4, "hold": "mine"}) as query:
        query.next()
        query.next()
        hold = orders.hold(name="mine")
        if moved_to is None:
            hold.release()
        else:
            hold.advance(moved_to)
        error, text, advice = (
            (persist.errors.HoldNotFound, "no named hold 'mine': it has none", "make it again at time")
            if moved_to is None
            else (persist.errors.HoldMoved, "'mine' was expected to be at .*, and is at 55", "copy of its checkpoint")
        )
        for ask in (query.next, lambda: query.read(1), lambda: query.reader.commit(query.ends[-1])):
            with pytest.raises(error, match=text) as caught:
                ask()
            assert advice in caught.value.__notes__[0]
    with Query(path, CHANGES, query.ends) as again, pytest.raises(error, match=text):
        again.next()
    assert len(query.ends) == 2


def test_a_removed_hold_can_be_made_again_until_its_history_is_gone(orders: persist.Collection, path: str) -> None:
    with Query(path, {**CHANGES, "start": 0, "max_times_per_trigger": 4}) as query:
        query.next()
    time = query.ends[-1]["upper"] - 1
    orders.hold(name=query.hold).release()
    orders.hold(time, name=query.hold)
    with Query(path, CHANGES, query.ends) as again:
        assert listed(again.next()) == history(orders, time + 1, 60)
    orders.hold(name=query.hold).release()
    orders.allow_compaction(30).result()
    with Query(path, CHANGES, query.ends) as again, pytest.raises(persist.errors.HoldNotFound) as caught:
        again.next()
    assert f"changes after {time} are lost: begin with a new checkpointLocation" in caught.value.__notes__[0]


def test_two_queries_with_one_checkpoint_notice_each_other(orders: persist.Collection, path: str) -> None:
    with Query(path, {**CHANGES, "start": 0, "max_times_per_trigger": 4}) as query:
        query.next()
        query.next()
        with Query(path, {**CHANGES, "max_times_per_trigger": 4}, query.ends) as copy:
            assert copy.next() is not None
            with pytest.raises(persist.errors.HoldMoved, match="was expected to be at") as caught:
                query.next()
    assert "one with the same hold, or with a copy of its checkpoint" in caught.value.__notes__[0]


def test_a_hold_of_another_query_is_not_taken(orders: persist.Collection, path: str) -> None:
    orders.hold(3, name="mine")
    with Query(path, {**CHANGES, "hold": "mine"}) as query, pytest.raises(persist.errors.HoldMoved) as caught:
        query.next()
    assert "expected to be not there, and is at 3" in str(caught.value)
    assert "give this one another name with the option hold" in caught.value.__notes__[0]
    assert permanent(orders) == {"mine": 3}


def test_without_a_hold_nothing_is_written_and_nothing_is_kept(orders: persist.Collection, path: str) -> None:
    orders.compact()
    before = {entry.key for entry in FileBlob(path).list("")}
    with Query(path, {**CHANGES, "start": 0, "max_times_per_trigger": 4, "hold": "none"}) as query:
        query.next()
        query.next()
    assert {entry.key for entry in FileBlob(path).list("")} == before
    orders.allow_compaction(40).result()
    with (
        Query(path, CHANGES, query.ends) as again,
        pytest.raises(persist.errors.AsOfCompacted, match="since=") as caught,
    ):
        again.next()
    assert "Begin with a new checkpointLocation" in caught.value.__notes__[0]


@pytest.mark.parametrize("is_stored", [False, True])
@pytest.mark.parametrize("begun", [1, 2])
def test_history_that_goes_while_a_query_without_a_hold_runs_stops_it(
    orders: persist.Collection, path: str, begun: int, is_stored: bool
) -> None:
    """Rather than that a micro-batch lacks updates, or has those of several times at one."""
    if is_stored:  # In blobs, which the query claims as soon as it reads some.
        orders.compact()
        assert not any(part.inline for part in orders.handle.contents().parts)
    with Query(path, {**CHANGES, "start": 0, "max_times_per_trigger": 4, "hold": "none"}) as query:
        for _ in range(begun):
            query.next()
        orders.allow_compaction(40).result()
        orders.compact()
        with pytest.raises(persist.errors.AsOfCompacted, match="since="):
            query.next()


def test_a_store_that_cannot_be_written_is_followed_without_a_hold(orders: persist.Collection, path: str) -> None:
    readable = f"fsspec+file://{path}"  # fsspec has no atomic create for folders.
    with Query(readable, CHANGES) as query, pytest.raises(persist.InvalidUsage) as caught:
        query.next()
    assert 'use .option("hold", "none")' in caught.value.__notes__[0]
    with Query(readable, {**CHANGES, "hold": "none"}) as query:
        assert [listed(batch) for batch in query.all()] == [contents(orders, 59)]


def test_a_checkpoint_of_something_else_is_refused(orders: persist.Collection, path: str, tmp_path: Path) -> None:
    with Query(path, {**CHANGES, "start": 0, "max_times_per_trigger": 9}) as query:
        query.next()
    other = str(tmp_path / "other")
    with persist.open(other) as client:
        client.create_or_load("orders", key={"k": pa.int64()}, value={"v": pa.string()}).seal(5).result()
    persist.Client(orders.handle.engine).create_or_load("items", key={"k": pa.int64()}, value={"v": pa.string()}).seal(
        5
    ).result()
    for place, options in ((other, CHANGES), (path, {**CHANGES, "collection": "items"})):
        with Query(place, options, query.ends) as wrong:
            for ask in (wrong.next, lambda wrong=wrong: wrong.read(0)):
                with pytest.raises(persist.InvalidUsage, match="the checkpoint is of the collection with id") as caught:
                    ask()
                assert query.ends[0]["collection"] in str(caught.value)
                assert "new checkpointLocation" in str(caught.value)
    with (
        Query(path, {**CHANGES, "hold": "other"}, query.ends) as wrong,
        pytest.raises(persist.InvalidUsage, match="option hold='other', and the query began with the hold 'spark-"),
    ):
        wrong.next()
    ahead = {**query.ends[0], "upper": 99}
    with Query(path, CHANGES, [ahead]) as wrong, pytest.raises(persist.InvalidUsage, match="put back to an earlier"):
        wrong.next()


@pytest.mark.parametrize(
    "written", [{}, {"version": 2}, {"version": 1, "location": "x", "collection": "y", "upper": 3}]
)
def test_an_offset_of_another_version_is_refused(
    orders: persist.Collection, path: str, written: dict[str, Any]
) -> None:
    with Query(path, CHANGES, [written]) as query, pytest.raises(persist.InvalidUsage, match="does not know"):
        query.next()


class Rows:
    """A sink that keeps what each micro-batch held, and fails in one of them if told to."""

    def __init__(self) -> None:
        self.batches: dict[int, list[list[Update]]] = {}
        self.fails_at: int | None = None

    def __call__(self, frame: DataFrame, batch: int) -> None:
        self.batches.setdefault(batch, []).append(sorted(tuple(row) for row in frame.collect()))
        if batch == self.fails_at:
            raise RuntimeError("the sink is told to fail")

    def updates(self) -> list[Update]:
        return sorted(update for repeated in self.batches.values() for update in repeated[-1])


def run(spark: SparkSession, path: str, options: dict[str, Any], sink: Rows, checkpoint: Path) -> None:
    stream = spark.readStream.format("persist").options(**options).load(path)
    writer = stream.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    finally:
        query.stop()


@pytest.mark.thorough
def test_spark_stops_and_goes_on_where_it_was(
    spark: SparkSession, orders: persist.Collection, path: str, tmp_path: Path
) -> None:
    """A micro-batch fails, its history is compacted as far as the hold allows, and all of it is read again."""
    before = history(orders, 0, 60)
    sink, options = Rows(), {**CHANGES, "start": 0, "max_updates_per_trigger": 90}
    sink.fails_at = 1
    with pytest.raises(StreamingQueryException, match="told to fail"):
        run(spark, path, options, sink, tmp_path / "checkpoint")
    assert list(sink.batches) == [0, 1]
    orders.allow_compaction(59).result()
    orders.compact()
    (held,) = permanent(orders).values()
    assert orders.since == persist.Antichain(held)
    sink.fails_at = None
    run(spark, path, options, sink, tmp_path / "checkpoint")
    assert len(sink.batches) > 2, "the limits hold with Trigger.AvailableNow, too"
    assert [len(repeated) for repeated in sink.batches.values()] == [1, 2, *[1] * (len(sink.batches) - 2)]
    assert sink.batches[1][0] == sink.batches[1][1]
    assert sink.updates() == before


def test_spark_follows_what_is_written_while_it_runs(
    spark: SparkSession, orders: persist.Collection, path: str, tmp_path: Path
) -> None:
    sink = Rows()
    stream = spark.readStream.format("persist").options(**CHANGES).load(path)
    query = stream.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        query.processAllAvailable()
        assert sink.updates() == contents(orders, 59)
        for time in (60, 61):
            orders.write([((time, "new"), time, 1)], seal=time + 1).result()
            query.processAllAvailable()
            assert list(sink.batches.values())[-1] == [[(time, "new", time, 1)]]
        assert json.loads(query.lastProgress["sources"][0].json)["latestOffset"]["upper"] == 62
        orders.hold(name=next(iter(permanent(orders)))).release()
        orders.write([((62, "new"), 62, 1)], seal=63).result()
        with pytest.raises(StreamingQueryException) as caught:
            query.processAllAvailable()
        assert "persist.errors.HoldNotFound: this collection has no named hold 'spark-" in str(caught.value)
        assert "nothing is lost yet: make it again at time 61" in str(caught.value)
        assert "persist/connect/spark" not in str(caught.value)
    finally:
        query.stop()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"collection": "orders"}, 'a stream has no form by default: use .option("form", "changes")'),
        ({**CHANGES, "form": "diff"}, "option form='diff' is not one of 'rows', 'changes', 'transitions', 'upserts'"),
        ({**CHANGES, "as_of": 3, "start": 3}, "Leave one of them out"),
        ({**CHANGES, "start": 4}, "persist.errors.AsOfCompacted: changes from 4 on are merged with earlier ones"),
        ({**CHANGES, "as_of": 4}, "persist.errors.AsOfCompacted: as_of=4 is before since=5"),
        ({**CHANGES, "as_of": 99, "timeout_s": 0}, "persist.errors.AsOfNotSealed: as_of=99 is not before upper=60"),
        ({**CHANGES, "start": "2026-11-21"}, "the collection 'orders' has no timeline"),
        ({**CHANGES, "start": "noon"}, "'noon' is not a time, moment or tag of this collection"),
        ({**CHANGES, "max_times_per_trigger": 0}, "option max_times_per_trigger='0' is not a number from 1 to"),
        (
            {**CHANGES, "max_time_per_trigger": 1},
            "max_times_per_trigger: the greatest number of different times in a micro-batch",
        ),
        ({**CHANGES, "start": 9, "until": 12}, "option 'until' is not an option for a stream from"),
        ({**CHANGES, "hold": "a/b"}, "hold name 'a/b' is not allowed"),
        ({**CHANGES, "columns": "k,color"}, "persist.errors.SchemaMismatch: columns ['k', 'color']"),
        ({**CHANGES, "collection": "nope"}, "persist.errors.CollectionNotFound: no collection 'nope' at"),
    ],
)
def test_bad_options_say_what_is_right(
    orders: persist.Collection, path: str, options: dict[str, Any], message: str
) -> None:
    orders.allow_compaction(5).result()
    before = {entry.key for entry in FileBlob(path).list("")}
    with pytest.raises(persist.PersistError) as caught, Query(path, options) as query:
        query.next()
    assert message in f"{type(caught.value).__module__}.{type(caught.value).__name__}: {caught.value}"
    assert {entry.key for entry in FileBlob(path).list("")} == before


@pytest.mark.thorough
def test_spark_shows_what_is_wrong_with_an_option(spark: SparkSession, orders: persist.Collection, path: str) -> None:
    orders.allow_compaction(5).result()
    for options, message in (
        ({"collection": "orders"}, "persist.errors.InvalidUsage: a stream has no form by default"),
        ({**CHANGES, "start": 4}, "persist.errors.AsOfCompacted: changes from 4 on are merged"),
    ):
        stream = spark.readStream.format("persist").options(**options).load(path)
        with pytest.raises(Exception, match=message) as caught:
            stream.writeStream.format("noop").trigger(availableNow=True).start().awaitTermination()
        assert "File " not in str(caught.value)
    for column in ("_time", "_diff"):
        assert column in spark.readStream.format("persist").options(**CHANGES).load(path).columns
