"""Commits of what many tasks have uploaded: each happens once, however often it is tried."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

import persist
from persist.blob.stores.file import FileBlob
from persist.codecs.part.part import Part
from persist.compute.tasks.batch_times import BatchTimes, LateFilter
from persist.compute.tasks.batches import Mark, Share, commit_batch
from persist.compute.tasks.planned_write import PlannedWrite, SinkOptions, Target, open_for_writing, upload

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
