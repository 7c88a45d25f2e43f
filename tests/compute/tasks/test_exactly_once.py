"""Commits of what many tasks have uploaded: each happens once, however often it is tried."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, DoubleType, LongType, StringType, StructField, StructType

import persist
from persist.blob.stores.file import FileBlob
from persist.codecs.part.part import Part
from persist.codecs.part.stream import encode_parts
from persist.codecs.types.schema import CollectionSchema
from persist.compute.tasks.batch_times import BatchTimes, LateFilter
from persist.compute.tasks.batches import Mark, Share, commit_batch
from persist.compute.tasks.compaction_jobs import Job, group_neighbours, split_run
from persist.compute.tasks.keyed_work import commit_events, commit_resolution
from persist.compute.tasks.planned_write import PlannedWrite, SinkOptions, Target, open_for_writing, upload
from persist.compute.tasks.stream_hold import Offset, Position
from persist.compute.tasks.stream_source import NO_LIMITS, BatchLimits, SourceOptions, StreamSource, TimeCounts
from persist.connect.spark.uploads import plan_events
from persist.core.settings import Settings
from persist.engine.compact import Rewrite
from persist.engine.read.following.changes import read_changes
from persist.engine.read.parts.reader import PartReader
from persist.engine.read.planning.scan import Scan

EVENTS = BatchTimes.of(False, None, None, None)


@pytest.fixture
def location(tmp_path: Path) -> str:
    with persist.open(tmp_path) as client:
        for name in ("a", "b"):
            client.create_or_load(name, key={"k": pa.int64()}, value=None)
    return str(tmp_path)


def target(location: str, name: str) -> Target:
    with persist.open(location, mode="read") as client:
        return Target.of(client.load(name).handle, location, {})


def updates(keys: Sequence[int], time: int) -> pa.Table:
    return pa.table({"k": keys, "_time": [time] * len(keys), "_diff": [1] * len(keys)})


def uploaded(where: Target, tasks: Sequence[Sequence[int]], time: int) -> list[Part]:
    """Return the parts of several tasks."""
    return [part for keys in tasks for part in upload(where, [updates(keys, time).cast(where.schema.arrow)])]


def commit(location: str, mark: Mark, shares: Sequence[Share]) -> None:
    with open_for_writing(location, {}) as engine:
        commit_batch(engine, mark, shares, EVENTS)


def keys_of(location: str, name: str) -> list[int]:
    with persist.open(location, mode="read") as client:
        return sorted(key for key, _ in client.load(name).snapshot().rows())


def test_a_batch_of_two_collections_that_is_run_again_happens_once(location: str) -> None:
    mark = Mark("query", 0, "run 1")
    for run in ("run 1", "run 2"):
        a, b = target(location, "a"), target(location, "b")
        shares = [Share(a, uploaded(a, [[1], [2]], 5)), Share(b, uploaded(b, [[3]], 5))]
        commit(location, Mark(mark.query, 0, run), shares)
    assert (keys_of(location, "a"), keys_of(location, "b")) == ([1, 2], [3])
    with persist.open(location) as client:
        assert client.fsck().is_clean


def test_a_batch_of_a_checkpoint_that_is_behind_is_refused_and_leaves_nothing(location: str) -> None:
    a = target(location, "a")
    for batch in (0, 1):
        commit(location, Mark("query", batch, "run"), [Share(a, uploaded(a, [[batch]], batch))])
    before = {entry.key for entry in FileBlob(location).list("")}
    with pytest.raises(persist.errors.QueryMismatch):
        commit(location, Mark("query", 0, "copy"), [Share(a, uploaded(a, [[2]], 2))])
    assert {entry.key for entry in FileBlob(location).list("")} == before
    assert keys_of(location, "a") == [0, 1]


def test_a_planned_write_that_is_committed_twice_happens_once(location: str) -> None:
    options = SinkOptions(location=location, collection="a", time=3, seal=persist.Antichain(4), token="once")
    planned = PlannedWrite.append(options)
    planned.check()
    parts = uploaded(planned.target, [[1], [2]], 3)
    planned.commit(parts)
    planned.commit(parts)
    assert keys_of(location, "a") == [1, 2]
    again = PlannedWrite.append(options)
    again.check()
    assert again.is_done


def test_an_overwrite_is_refused_if_somebody_appends_between_its_plan_and_its_commit(location: str) -> None:
    planned = PlannedWrite.overwrite(SinkOptions(location=location, collection="a"))
    planned.check()
    parts = uploaded(planned.target, [[1]], 0)
    with persist.open(location) as client:
        client.load("a").write([((9, None), 5, 1)]).result()
    with pytest.raises(persist.errors.UpdatesBeyondUpper):
        planned.commit(parts)


def test_late_updates_are_left_out_and_counted() -> None:
    late = LateFilter(5)
    table = pa.concat_tables([updates([1, 2], 4), updates([3], 5)])
    assert late.drop_late(table)["k"].to_pylist() == [3]
    assert late.drop_late(updates([4], 6))["k"].to_pylist() == [4]
    assert late.count == 2
    assert LateFilter(None).drop_late(table) is table


def test_groups_are_of_neighbours_and_of_about_equal_size() -> None:
    sizes = [5, 1, 1, 1, 7, 3, 3, 3, 20, 1]
    groups = group_neighbours(range(10), sizes, 11)
    assert [each for group in groups for each in group] == [*range(10)]
    assert len(groups) == 4
    assert group_neighbours([1, 2], [0, 0], 100) == [[1, 2]]
    assert group_neighbours([], [], 100) == []


def test_no_job_makes_parts_of_what_history_touches_and_of_what_it_does_not() -> None:
    schema = CollectionSchema.of({"k": pa.int64()}, {"v": pa.int64()})
    rows = pa.table({"k": range(1000), "v": range(1000), "_time": [0] * 1000, "_diff": [1] * 1000})
    [(_, part)] = encode_parts(rows, schema)
    scan = Scan(schema, (), 1, 2, ("k", "v"), base=(part,))
    pieces = [Rewrite(scan, 1, is_quiet=is_quiet) for is_quiet in (False, True, True, False)]
    jobs = [job for job in split_run([7, *pieces], "c", 10**9, 10**9, 1) if isinstance(job, Job)]
    assert [[piece.is_quiet for piece in job.pieces] for job in jobs] == [[False], [True, True], [False]]
    assert split_run([7, *pieces], "c", 10**9, 10**9, 1)[0] == 7


GROUPS = 8
ROWS = GROUPS * 64 * 1024  # As many rows as there are in a row group, so many times.
KEYED_EVENTS = StructType([StructField("id", LongType()), StructField("x", DoubleType())])


def resolved_by_a_task(location: str, ids: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """Return how many bytes a task reads that resolves events of some keys, and how many updates it makes of them."""
    read, get = [], FileBlob.get

    def counted(blob: FileBlob, key: str, *more: Any, **named: Any) -> bytes | None:
        found = get(blob, key, *more, **named)
        read.append(len(found or b"") if key.startswith("part/") else 0)
        return found

    work = plan_events(SinkOptions(location=location, collection="rows", time=1, seal=2), KEYED_EVENTS)
    monkeypatch.setattr(FileBlob, "get", counted)
    made = work.store_result(pa.table({"id": ids, "x": np.full(len(ids), -1.0)}), resolves=True)
    monkeypatch.undo()
    return sum(read), sum(part.rows for part in made.parts)


def test_a_task_reads_the_row_groups_that_its_events_touch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    location = str(tmp_path)
    with persist.open(location, settings=Settings(background=False)) as client:
        rows = client.create_or_load("rows", key={"id": pa.int64()}, value={"x": pa.float64()}, keyed=persist.Keyed())
        values = np.random.default_rng(1).random(ROWS)
        rows.upsert(pa.table({"id": np.arange(ROWS) * 2, "x": values}), time=0, seal=1).result()
        (part,) = rows.handle.contents().parts
    assert part.bytes > ROWS * 6, "the values do not compress"
    clustered = np.arange(4000) + ROWS  # In the middle, half of them new.
    read, updates = resolved_by_a_task(location, clustered, monkeypatch)
    assert updates == 6000
    assert read < part.bytes * 2 / GROUPS, "one row group is touched, and the footer is read besides"
    read, updates = resolved_by_a_task(location, np.arange(0, ROWS * 2, ROWS * 2 // 4000), monkeypatch)
    assert updates > 7900
    assert read > part.bytes * 0.9, "spread evenly, they touch all of it"
    read, updates = resolved_by_a_task(location, np.arange(4000) + 2 * ROWS, monkeypatch)
    assert updates == 4000
    assert read < part.bytes / 20, "beyond the last key there is nothing to read"


NAMES = ArrayType(StringType())
PARTIAL = StructType([*(StructField(name, LongType()) for name in ("id", "a", "b")), StructField("_unchanged", NAMES)])


@pytest.mark.parametrize("resolve", ["seal", "background"])
def test_tasks_store_no_event_that_leaves_columns_as_they_are(tmp_path: Path, resolve: Any) -> None:
    location = str(tmp_path)
    with persist.open(location, settings=Settings(background=False)) as client:
        keyed = persist.Keyed(resolve=resolve)
        rows = client.create_or_load("rows", key={"id": int}, value={"a": int, "b": int}, keyed=keyed)
        rows.upsert([(1, (1, 7)), (2, (2, 8))], time=0, seal=1).result()
    events = {"id": [1, 2], "a": [5, 6], "b": [None, 9], "_unchanged": pa.array([["b"], None], pa.list_(pa.string()))}

    def work(seal: int | None) -> Any:
        return plan_events(SinkOptions(location=location, collection="rows", time=2, seal=seal, token="t"), PARTIAL)

    partial_events, whole = pa.table(events), pa.table(events).slice(1)
    for seal, resolves in ((3, False), (None, False), (2, True)):
        with pytest.raises(persist.InvalidUsage, match=r"leave columns as they are.*where=\"driver\""):
            work(seal).store_result(partial_events, resolves=resolves)
    assert work(None).store_result(whole, resolves=False).pended[0].rows == 1
    if resolve == "background":
        return  # Tasks never resolve these.
    made = work(3).store_result(partial_events, resolves=True)
    assert sum(part.rows for part in made.parts) == 4, "two rows go, and two come"
    separately = [work(3).store_result(partial_events.slice(at, 1), resolves=True).digest for at in (0, 1)]
    assert made.digest == sum(separately) % (1 << 64), "the digest does not depend on the tasks"
    replacing = partial_events.drop_columns(["_unchanged"])
    assert work(3).store_result(replacing, resolves=True).digest != made.digest, "NULL is not the same"
    with open_for_writing(location, {}) as engine:
        commit_resolution(engine, work(3), made)
    with persist.open(location) as client, client["rows"].snapshot() as snapshot:
        assert snapshot.to_pylist() == [{"id": 1, "a": 5, "b": 7}, {"id": 2, "a": 6, "b": 9}]
        client["rows"].upsert(partial_events, time=2, seal=3, token="t").result()


def test_late_events_of_a_batch_tell_the_columns_that_they_leave_as_they_are(tmp_path: Path) -> None:
    location = str(tmp_path)
    with persist.open(location, settings=Settings(background=False)) as client:
        rows = client.create_or_load("rows", key={"id": int}, value={"a": int, "b": int}, keyed=persist.Keyed())
        rows.upsert([(1, (1, 7))], time=0, seal=4).result()
    names = pa.array([["a", "b"], ["b"], None], pa.list_(pa.string()))
    events = pa.table({"id": [1, 1, 1], "a": [None, 5, 6], "b": [None, None, 9], "_unchanged": names})
    options = SinkOptions(location=location, collection="rows", time=2, seal=5, token="t")
    work = plan_events(options, PARTIAL, collects=True)
    with open_for_writing(location, {}) as engine:
        commit_events(engine, work, events, late_to="late")
    with persist.open(location) as client, client["late"].snapshot() as snapshot:
        reasons = {(row["a"], row["b"]): row["late_reason"] for row in snapshot.to_pylist()}
    assert reasons == {
        (None, None): "sealed; unchanged: a, b", (5, None): "sealed; unchanged: b", (6, 9): "sealed"
    }  # fmt: skip


def test_counts_of_times_add_up() -> None:
    def counts(given: dict[int, int]) -> TimeCounts:
        return TimeCounts(pa.array(list(given)).to_numpy(), pa.array(list(given.values())).to_numpy())

    total = counts({1: 2, 5: 1}) + counts({0: 4, 5: 7, 9: 1})
    assert dict(zip(total.times.tolist(), total.counts.tolist(), strict=True)) == {0: 4, 1: 2, 5: 8, 9: 1}
    assert total.within(1, 9).counts.tolist() == [2, 8]


@pytest.mark.parametrize(
    "position",
    [
        Position(3, None, 4, "x"),
        Position(3, None, None, "none"),
        Position(None, 0, 7, "x"),
        Position(None, 1, None, "x"),
    ],
)
def test_an_offset_survives_json(position: Position) -> None:
    for offset in (Offset("l", "c", position), Offset("l", "c")):
        assert Offset.of(json.loads(json.dumps(offset.to_json()))) == offset


ONE_TIME = BatchLimits(times=1)
Update = tuple[Any, ...]


@pytest.fixture
def filled_location(tmp_path: Path) -> str:
    """A location with `c`: one update at each time from 0 to 9."""
    with persist.open(tmp_path, settings=persist.Settings(background=False)) as client:
        rows = client.create_or_load("c", key={"k": pa.int64()}, value=None)
        for time in range(10):
            rows.write([((time, None), time, 1)], seal=time + 1)
        rows.compact()
    return str(tmp_path)


def read(source: StreamSource, start: Offset, end: Offset) -> list[Update]:
    """Return the updates of a micro-batch, each slice read as a task does it: by the address alone."""
    found: list[Update] = []
    for each in source.plan(start, end):
        with source.address.open_store() as storage:
            table = read_changes(each.scan, PartReader(storage.blob))
        found += [tuple(row.values()) for row in table.select(["k", "_time", "_diff"]).to_pylist()]
    return sorted(found)


def followed(options: SourceOptions, ends: list[Any], batches: int, limits: BatchLimits) -> list[Update]:
    """Run a query for so many micro-batches from what a checkpoint holds; append to it, and return what was read."""
    source = StreamSource(options)
    found: list[Update] = []
    try:
        for _ in range(batches):
            start = Offset.of(json.loads(ends[-1])) if ends else source.make_first_offset()
            end = source.find_next_offset(start, limits)
            ends.append(json.dumps(end.to_json()))
            found += read(source, start, end)
            source.commit(end)
    finally:
        source.close()
    return found


def test_each_update_is_read_once_across_restarts(filled_location: str) -> None:
    options = SourceOptions(location=filled_location, collection="c", as_of=None, start=0, hold="mine")
    ends: list[Any] = []
    found = followed(options, ends, 3, ONE_TIME) + followed(options, ends, 2, ONE_TIME)
    found += followed(options, ends, 1, NO_LIMITS)
    assert found == [(time, time, 1) for time in range(10)]


def test_a_repeated_micro_batch_holds_the_same_though_more_was_written_and_compacted(filled_location: str) -> None:
    options = SourceOptions(location=filled_location, collection="c", as_of=None, start=4, hold="mine")
    source = StreamSource(options)
    start = source.make_first_offset()
    end = source.find_next_offset(start, BatchLimits(updates=3))
    first = read(source, start, end)
    source.close()
    with persist.open(filled_location, settings=persist.Settings(background=False)) as client:
        rows = client.load("c")
        rows.write([((99, None), 10, 1)], seal=11)
        rows.allow_compaction(9).result()
        rows.compact()
    again = StreamSource(options)
    try:
        assert read(again, start, end) == first == [(4, 4, 1), (5, 5, 1), (6, 6, 1)]
    finally:
        again.close()
