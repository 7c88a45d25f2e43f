"""Compaction by Spark's tasks: it makes what one process makes, and trouble in tasks ends as trouble in one process."""

import hashlib
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import persist
import persist.spark
from persist.blob.errors import MissingBlob
from persist.blob.protocol import MemoryBlob
from persist.blob.stores.file import FileBlob
from persist.compute.tasks.compaction_jobs import TaskStore
from persist.connect.spark import compacting as maintenance
from persist.core.settings import Tuning
from persist.core.state_rules.contents import CollectionState
from persist.engine.compact import Compactor, LocalPartMaker
from tests.support.tuned import tuned

SMALL = Tuning(part_bytes=64 << 10, keyframe_rows_min=20, merge_runs=3, inline_runs=4)
SETTINGS = tuned(background=False, grace_s=0, orphan_grace_s=0, tuning=replace(SMALL, hold_linger_s=0))
ROWS = 12_000


def rows(at: int, keys: np.ndarray[Any, Any], value: str, diff: int) -> pa.Table:
    """Records whose text does not compress away, so that some thousands of them are several parts."""
    texts = [f"{value}{hashlib.sha256(b'%d' % key).hexdigest()}" for key in keys.tolist()]
    return pa.table({"k": keys, "v": texts, "_time": np.full(len(keys), at), "_diff": np.full(len(keys), diff)})


def filled(path: Path, name: str = "c", rounds: int = 5) -> str:
    """A location with a collection in which records are replaced again and again, some of them not yet sealed."""
    with persist.open(path, settings=SETTINGS) as client:
        c = client.create_or_load(name, key={"k": pa.int64()}, value={"v": pa.string()})
        c.write(rows(0, np.arange(ROWS), "v0-", 1), seal=1).result()
        for at in range(1, rounds):
            keys = np.arange(at % 3, ROWS, 3)
            before = f"v{at - 3 if at > 3 else 0}-"
            c.write(pa.concat_tables([rows(at, keys, before, -1), rows(at, keys, f"v{at}-", 1)])).result()
            c.seal(at + 1).result()
        c.write(rows(rounds + 3, np.arange(50), "later", 1)).result()
    return str(path)


def state(location: str, name: str = "c") -> CollectionState:
    with persist.open(location, mode="read") as client:
        return client.load(name).handle.contents()


def contents(location: str, name: str = "c") -> list[pa.Table]:
    """All that can be read: the contents at all times, and the changes after the first of them."""
    with persist.open(location, mode="read") as client:
        c = client.load(name)
        since, upper = c.since.time or 0, c.upper.time or 0
        found = [
            c.snapshot(at).to_arrow().sort_by([("k", "ascending"), ("v", "ascending")]) for at in range(upper)[since:]
        ]
        order = [(name, "ascending") for name in ("k", "v", "_time")]
        return [*found, c.changes(since + 1, upper).to_arrow().sort_by(order)]


def parts(location: str) -> set[str]:
    return {entry.key for entry in FileBlob(location).list("part/")}


def is_clean(location: str) -> bool:
    with persist.open(location, mode="read") as client:
        return client.fsck().is_clean


def compact(
    spark: SparkSession, location: str, collection: str | None = "c", **changed: Any
) -> persist.CompactionReport:
    return persist.spark.compact(spark, location, collection, **{"settings": SETTINGS, **changed})


@pytest.fixture
def nothing_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the driver merge nothing itself, however little there is of it."""

    def refuse(*_: object) -> Any:
        raise AssertionError("this should have been done by a task")

    monkeypatch.setattr(maintenance, "HERE_BYTES", 0)
    monkeypatch.setattr(maintenance, "LEVEL_BYTES", 0)
    monkeypatch.setattr(LocalPartMaker, "make", refuse)
    monkeypatch.setattr(LocalPartMaker, "build_change_test", refuse)


def test_tasks_make_of_a_collection_what_one_process_makes(
    spark: SparkSession, tmp_path: Path, nothing_here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = filled(tmp_path / "one"), filled(tmp_path / "other")
    before = contents(one)
    report = compact(spark, one)
    assert contents(one) == before
    assert is_clean(one)
    monkeypatch.undo()
    with persist.open(other, settings=SETTINGS) as client:
        expected = client.load("c").compact()
    assert (report.keyframes, report.runs_merged) == (expected.keyframes, expected.runs_merged)
    assert (report.parts_read, report.rows_read, report.rows_written) == (
        expected.parts_read, expected.rows_read, expected.rows_written
    )  # fmt: skip
    assert expected.parts_written > 10
    assert abs(report.parts_written - expected.parts_written) <= 0.25 * expected.parts_written
    assert [len(run) > 1 for run in state(one).history] == [len(run) > 1 for run in state(other).history]
    assert compact(spark, one) == persist.CompactionReport()


@pytest.mark.thorough
def test_what_since_has_passed_is_forgotten_and_untouched_parts_are_shared(
    spark: SparkSession, tmp_path: Path, nothing_here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = filled(tmp_path / "location")
    compact(spark, location)
    with persist.open(location, settings=SETTINGS) as client:
        c = client.load("c")
        # The first of these changes some parts of the keyframe, the second takes back what it does.
        c.write(rows(5, np.arange(300), "new", 1), seal=6).result()
        c.write(rows(6, np.arange(6000, 6100), "gone", 1)).result()
        c.write(rows(6, np.arange(6000, 6100), "gone", -1), seal=7).result()
        c.allow_compaction(6).result()
    before = contents(location)
    other = shutil.copytree(location, tmp_path / "other")
    report = compact(spark, location)
    assert (report.keyframes, report.forgotten) == ((6,), 6)
    assert contents(location) == before
    monkeypatch.undo()
    with persist.open(other, settings=SETTINGS) as client:
        expected = client.load("c").compact()
    assert (report.parts_shared, report.rows_written) == (expected.parts_shared, expected.rows_written)
    assert report.parts_shared > 3
    assert is_clean(location)
    assert [part.time_min for part in state(location).history_parts] == [8]


@pytest.mark.thorough
def test_a_number_of_slices_is_the_number_of_tasks(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location, large = filled(tmp_path / "location"), persist.Settings(background=False)
    asked: list[int] = []
    done = maintenance.SparkPartMaker._run_jobs

    def counting(self: Any, jobs: Any) -> Any:
        asked.append(len(jobs))
        return done(self, jobs)

    monkeypatch.setattr(maintenance.SparkPartMaker, "_run_jobs", counting)
    before = contents(location)
    # What lives in the log becomes one part: so little is not worth a task.
    assert compact(spark, location, partitions=3, settings=large).parts_written == 1 + 3
    assert asked == [3]
    assert contents(location) == before
    assert compact(spark, filled(tmp_path / "small"), settings=large).parts_written == 1 + 1
    assert asked == [3]


@pytest.mark.thorough
def test_all_collections_are_compacted_and_one_that_cannot_be_read_keeps_no_other_from_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    location = filled(tmp_path / "location", "broken")
    filled(tmp_path / "location", "a")
    filled(tmp_path / "location", "z")
    broken = state(location, "broken").parts[0]
    path = Path(location, broken.blob)
    path.chmod(0o600)
    path.write_bytes(path.read_bytes()[:-100] + bytes(100))
    before = state(location, "broken")
    stored = {key for key in parts(location) if before.id in key}
    with pytest.raises(persist.errors.CorruptBlob) as failed:
        compact(spark, location, None, partitions=2)
    assert failed.value.key == broken.blob
    assert "'broken'" in failed.value.__notes__[0]
    assert state(location, "broken") == before
    assert {key for key in parts(location) if before.id in key} == stored
    assert all(state(location, name).keyframes for name in ("a", "z"))


@pytest.mark.thorough
def test_a_part_that_is_missing_is_named_and_the_parts_of_the_other_tasks_are_deleted(
    spark: SparkSession, tmp_path: Path
) -> None:
    location = filled(tmp_path / "location")
    with persist.open(location, settings=SETTINGS) as client:
        client.load("c").write(rows(5, np.arange(2000), "new", 1), seal=6).result()
    before = state(location)
    [first] = [part for part in before.parts if part.time_max == 5]  # Only the first of the tasks needs it.
    Path(location, first.blob).unlink()
    stored = parts(location)
    with pytest.raises(MissingBlob) as failed:
        compact(spark, location, partitions=4, settings=persist.Settings(background=False))
    assert failed.value.key == first.blob
    assert state(location) == before
    assert parts(location) == stored


@pytest.mark.thorough
def test_a_sum_that_does_not_fit_is_said_and_all_other_work_is_done(
    spark: SparkSession, tmp_path: Path, nothing_here: None
) -> None:
    location = filled(tmp_path / "location")
    with persist.open(location, settings=SETTINGS) as client:
        c = client.load("c")
        for at in (5, 6):
            c.write([((1, "x"), at, 2**63 - 1)], seal=at + 1).result()
    with pytest.raises(persist.errors.DiffOverflow):
        compact(spark, location)
    assert not state(location).keyframes
    assert is_clean(location)


def test_of_two_compactors_one_throws_away_what_its_tasks_made(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = filled(tmp_path / "location")
    before, stored, put = contents(location), parts(location), Compactor._commit_step

    def late(*arguments: Any) -> None:
        monkeypatch.undo()
        assert len(parts(location)) >= len(stored) + 2, "those of this compaction"
        with persist.open(location, settings=SETTINGS) as rival:
            rival.load("c").compact()
        put(*arguments)

    monkeypatch.setattr(Compactor, "_commit_step", late)
    assert compact(spark, location, partitions=2).superseded == 1
    assert contents(location) == before
    assert parts(location) - stored <= {part.blob for part in state(location).parts}


def test_a_store_that_tasks_cannot_reach_fails_the_job_with_the_reason_and_changes_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = filled(tmp_path / "location")
    before, stored = state(location), parts(location)
    elsewhere = {"endpoint_url": "http://127.0.0.1:9", "region": "x", "access_key_id": "x", "secret_access_key": "x"}
    settings = persist.Settings(background=False, tuning=Tuning(attempts_max=1))
    monkeypatch.setattr(maintenance, "TaskStore", lambda *_: TaskStore("s3://nowhere/at/all", elsewhere, settings))
    with pytest.raises(PySparkException, match=r"persist\.errors\.Unavailable: .*127\.0\.0\.1:9"):
        compact(spark, location, partitions=2)
    assert state(location) == before
    assert parts(location) == stored


@pytest.mark.thorough
def test_uploads_that_were_declared_void_meanwhile_are_not_committed(
    spark: SparkSession, tmp_path: Path, nothing_here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = filled(tmp_path / "location")
    before, put = contents(location), Compactor._commit_step

    def late(*arguments: Any) -> None:
        with persist.open(location, settings=SETTINGS) as other:
            other.load("c").seal(6).result()
            other.gc()
        put(*arguments)

    monkeypatch.setattr(Compactor, "_commit_step", late)
    with pytest.raises(persist.errors.UploadExpired):
        compact(spark, location)
    assert contents(location)[: len(before) - 1] == before[:-1]
    assert is_clean(location)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"partitions": 0}, "partitions=0 is not a whole number"),
        ({"partitions": True}, "partitions=True is not"),
        ({"location": MemoryBlob()}, "not one that other processes can open"),
        ({"location": "memory://x"}, "not one that other processes can open"),
        ({"collection": "nobody"}, "nobody"),
        ({"settings": 7}, "settings=7"),
    ],
    ids=str,
)
def test_arguments_that_cannot_work_are_refused(
    spark: SparkSession, tmp_path: Path, wrong: dict[str, Any], message: str
) -> None:
    with persist.open(tmp_path) as client:
        client.create_or_load("c", key={"k": pa.int64()})
    arguments = {"location": str(tmp_path), "collection": "c"} | wrong
    with pytest.raises(persist.InvalidUsage, match=message):
        persist.spark.compact(spark, **arguments)
