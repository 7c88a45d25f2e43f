"""What a task does with its events: of what is stored it reads the row groups that they touch, and no others."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, DoubleType, LongType, StringType, StructField, StructType

import persist
from persist.blob.stores.file import FileBlob
from persist.compute.tasks.keyed_work import commit_events, commit_resolution
from persist.compute.tasks.planned_write import SinkOptions, open_for_writing
from persist.connect.spark.uploads import plan_events
from persist.core.settings import Settings

GROUPS = 8
ROWS = GROUPS * 64 * 1024  # As many rows as there are in a row group, so many times.
EVENTS = StructType([StructField("id", LongType()), StructField("x", DoubleType())])


def resolved_by_a_task(location: str, ids: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """Return how many bytes a task reads that resolves events of some keys, and how many updates it makes of them."""
    read, get = [], FileBlob.get

    def counted(blob: FileBlob, key: str, *more: Any, **named: Any) -> bytes | None:
        found = get(blob, key, *more, **named)
        read.append(len(found or b"") if key.startswith("part/") else 0)
        return found

    work = plan_events(SinkOptions(location=location, collection="rows", time=1, seal=2), EVENTS)
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
