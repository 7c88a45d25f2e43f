"""The streaming writer's own calls, as Spark makes them, with what Spark does not make happen on demand."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

import persist
from persist.blob.stores.file import FileBlob
from persist.compute.tasks import batches
from persist.compute.tasks.planned_write import open_for_writing
from persist.connect.spark.data_source.writers import PersistStreamWriter
from persist.connect.spark.options import StreamWriteOptions

PLAIN = "k long, v string"
UPDATES = PLAIN + ", _time long, _diff long"
TIMES = {"_time": pa.int64(), "_diff": pa.int64(), "at": pa.timestamp("us", "UTC")}
ARROW = pa.schema({"k": pa.int64(), "v": pa.string(), **TIMES})


@pytest.fixture
def location(tmp_path: Path) -> str:
    with persist.open(tmp_path) as client:
        client.create_or_load("c", key={"k": pa.int64()}, value={"v": pa.string()})
    return str(tmp_path)


@contextmanager
def in_task(query: str, batch: int, run: str) -> Iterator[None]:
    """Let this process be a task of a batch, with the properties that Spark gives to one."""
    before, context = TaskContext.get(), object.__new__(TaskContext)
    context._localProperties = {
        "sql.streaming.queryId": query,
        "streaming.sql.batchId": str(batch),
        "spark.jobGroup.id": run,
    }
    TaskContext._setTaskContext(context)
    try:
        yield
    finally:
        TaskContext._setTaskContext(before)


class Query:
    """A query with two tasks, of which each batch is planned, written and committed as Spark does it."""

    def __init__(self, location: str, ddl: str = PLAIN, *, query: str = "q", run: str = "r1", **options: Any) -> None:
        given = {"path": location, "collection": "c", "checkpointLocation": "/x"}
        self._given = given | {name: str(value) for name, value in options.items()}
        kinds = {"long": LongType(), "string": StringType(), "timestamp": TimestampType()}
        fields = [field.split() for field in ddl.split(", ")]
        self._schema = StructType([StructField(name, kinds[kind]) for name, kind in fields])
        self.query, self.run = query, run

    def writer(self) -> PersistStreamWriter:
        return PersistStreamWriter(StreamWriteOptions.of(self._given), self._schema)

    def write(self, writer: PersistStreamWriter, batch: int, rows: list[dict[str, Any]]) -> list[Any]:
        schema = pa.schema([ARROW.field(name) for name in self._schema.names])
        tables = [pa.Table.from_pylist(rows[at::2], schema=schema) for at in (0, 1)]
        with in_task(self.query, batch, self.run):
            return [writer.write(iter(table.to_batches())) for table in tables]

    def batch(
        self, batch: int, rows: list[dict[str, Any]], meanwhile: Callable[[], object] = lambda: None
    ) -> list[Any]:
        messages = self.write(self.writer(), batch, rows)
        meanwhile()
        try:
            self.writer().commit(messages, batch)
        except BaseException:
            self.writer().abort(messages, batch)
            raise
        return messages


def plain(*keys: int) -> list[dict[str, Any]]:
    return [{"k": k, "v": "x"} for k in keys]


def at(time: int, *keys: int, diff: int = 1) -> list[dict[str, Any]]:
    return [{"k": k, "v": "x", "_time": time, "_diff": diff} for k in keys]


def updates(location: str) -> list[tuple[int, int]]:
    """Return time and key of every sealed update, sorted."""
    with persist.open(location, mode="read") as client:
        c = client.load("c")
        return sorted((time, k) for (k, _), time, _ in c.changes(0, c.upper.time or 0).updates())


def upper(location: str) -> int | None:
    with persist.open(location, mode="read") as client:
        return client.load("c").upper.time


def is_clean(location: str) -> bool:
    """Whether the location holds no part that the collection does not name."""
    with persist.open(location, mode="read") as client:
        named = {part.blob for part in client.load("c").handle.contents().parts if part.blob}
    return {entry.key for entry in FileBlob(location).list("part/")} == named


def other_seals(location: str, time: int) -> Callable[[], object]:
    def seal() -> None:
        with persist.open(location) as client:
            client.load("c").seal(time).result()

    return seal


def test_each_batch_of_plain_rows_gets_one_sealed_time(location: str) -> None:
    query = Query(location)
    query.batch(0, plain(1, 2, 3))
    query.batch(1, [])
    query.batch(2, plain(4))
    assert updates(location) == [(0, 1), (0, 2), (0, 3), (1, 4)]
    assert (upper(location), is_clean(location)) == (2, True)


def test_a_batch_that_is_run_again_changes_nothing(location: str) -> None:
    first = Query(location)
    first.batch(0, plain(1))
    messages = first.batch(1, plain(2))
    first.writer().commit(messages, 1)  # Of the same parts, which are not deleted.
    again = Query(location, run="r2")
    again.batch(1, plain(2))  # Spark's own log did not have it yet when it crashed.
    again.batch(1, plain(2))
    again.batch(2, [])
    Query(location, run="r3").batch(2, [])
    assert updates(location) == [(0, 1), (1, 2)]
    assert is_clean(location)
    again = Query(location, run="r4")
    again.batch(3, plain(3))
    assert updates(location)[-1] == (2, 3)


def test_another_writer_that_seals_first_only_moves_the_time(location: str) -> None:
    query = Query(location)
    query.batch(0, plain(*range(50)), other_seals(location, 7))
    assert updates(location) == [(7, k) for k in range(50)]
    assert (upper(location), is_clean(location)) == (8, True)


def test_a_collection_that_is_complete_takes_no_batch(location: str) -> None:
    with (
        persist.open(location) as client,
        pytest.raises(persist.errors.UpdateNotBeyondUpper, match="complete for ever"),
    ):
        client.load("c").seal(persist.Antichain()).result()
        Query(location).batch(0, plain(1))


@pytest.mark.parametrize("known", [False, True])
def test_a_lost_answer_to_a_commit_leaves_all_to_the_next_run(
    location: str, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit landed, or not; the writer is told neither, and must not delete what a record may name."""
    real = batches._commit_shares

    def lost(*args: Any) -> None:
        if known:
            real(*args)
        raise persist.Indeterminate("the answer was lost")

    monkeypatch.setattr(batches, "_commit_shares", lost)
    with pytest.raises(persist.Indeterminate):
        Query(location).batch(0, plain(1))
    assert len([*FileBlob(location).list("part/")]) == 1
    monkeypatch.setattr(batches, "_commit_shares", real)
    Query(location, run="r2").batch(0, plain(1))
    assert updates(location) == [(0, 1)]
    assert is_clean(location) == known  # What did not land is collected as garbage.


def test_parts_are_deleted_if_a_task_failed(location: str) -> None:
    query = Query(location)
    messages = query.write(query.writer(), 0, plain(1, 2))
    query.writer().abort([messages[0], None], 0)
    messages = query.write(query.writer(), 0, plain(1, 2))
    query.writer().abort([None, messages[1]], 0)
    assert len([*FileBlob(location).list("part/")]) == 2  # Those of the tasks that failed, which nobody knows.


def test_two_queries_with_one_id_are_noticed(location: str) -> None:
    one, other = Query(location), Query(location, run="r2")
    one.batch(0, plain(1))
    other.batch(0, plain(1))  # As if run again; from here on the other one goes on.
    with pytest.raises(persist.errors.QueryMismatch, match="two queries with one id are running"):
        one.batch(1, plain(2))
    other.batch(1, plain(2))
    with pytest.raises(persist.errors.QueryMismatch, match="two queries with one id are running"):
        one.batch(1, plain(2))
    with pytest.raises(persist.errors.QueryMismatch, match="the last one here is batch 1"):
        Query(location, run="r3").batch(0, plain(1))
    assert updates(location) == [(0, 1), (1, 2)]
    assert is_clean(location)


def test_a_checkpoint_of_another_location_is_noticed(location: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    for n in range(3):
        Query(location).batch(n, plain(n))
    other = str(tmp_path_factory.mktemp("other"))
    with persist.open(other) as client:
        client.create_or_load("c", key={"k": pa.int64()}, value={"v": pa.string()})
    with pytest.raises(persist.errors.QueryMismatch, match="its checkpoint belongs to another location") as caught:
        Query(other).batch(3, plain(3))
    assert 'first_batch="3"' in str(caught.value)
    assert (updates(other), is_clean(other)) == ([], True)
    Query(other, first_batch=3).batch(3, plain(3))
    Query(other, first_batch=3).batch(4, plain(4))
    assert updates(other) == [(0, 3), (1, 4)]


def test_a_collection_made_anew_during_a_batch_gets_nothing_of_it(location: str) -> None:
    def replaced() -> None:
        with persist.open(location) as client:
            client.load("c").drop().result()
            client.create_or_load("c", key={"k": pa.int64()}, value={"v": pa.string()})

    with pytest.raises(persist.errors.CollectionNotFound):
        Query(location).batch(0, plain(1), replaced)
    assert updates(location) == []


def test_updates_are_sealed_to_their_largest_time_or_not_at_all(location: str) -> None:
    query = Query(location, UPDATES)
    query.batch(0, [*at(3, 1), *at(5, 1, diff=-1)])
    assert (upper(location), updates(location)) == (6, [(3, 1), (5, 1)])
    query.batch(1, [])
    assert upper(location) == 6
    Query(location, UPDATES, query="q2", seal="none").batch(0, at(8, 2))
    assert upper(location) == 6
    with pytest.raises(persist.errors.UpdateNotBeyondUpper, match="update at time 5 is not beyond upper=6"):
        query.batch(2, [*at(5, 9), *at(9, 9)])
    assert (upper(location), is_clean(location)) == (6, True)


EVENTS = "k long, v string, at timestamp"


def event(seconds: int, key: int) -> dict[str, Any]:
    return {"k": key, "v": "x", "at": seconds * 1_000_000}


def test_event_times_seal_behind_a_watermark(location: str) -> None:
    per_s = 10**6
    query = Query(location, EVENTS, time="at", watermark=10 * per_s)
    query.batch(0, [event(100, 1), event(95, 2)])
    assert upper(location) == 90 * per_s
    query.batch(1, [event(91, 3)])  # Late, but not too late.
    assert upper(location) == 90 * per_s
    query.batch(2, [event(120, 4)])
    assert upper(location) == 110 * per_s
    assert updates(location) == [(91 * per_s, 3), (95 * per_s, 2), (100 * per_s, 1)]
    with pytest.raises(persist.errors.UpdateNotBeyondUpper):
        query.batch(3, [event(109, 5), event(130, 6)])
    assert (upper(location), is_clean(location)) == (110 * per_s, True)


def test_late_updates_are_dropped_counted_and_logged(location: str, caplog: pytest.LogCaptureFixture) -> None:
    query = Query(location, UPDATES, watermark=2, late="drop")
    query.batch(0, at(10, 1))
    with caplog.at_level(logging.WARNING, "persist"):
        query.batch(1, [*at(7, 2), *at(8, 3)])
        assert "batch 1 of query q: 1 late updates to 'c' were dropped" in caplog.text
        caplog.clear()
        # Another writer seals after the tasks have looked: the driver drops what has become late.
        query.batch(2, [*at(9, 4), *at(11, 5), *at(12, 6), *at(20, 7)], other_seals(location, 12))
        assert "batch 2 of query q: 2 late updates" in caplog.text
    other_seals(location, 30)()
    assert updates(location) == [(8, 3), (10, 1), (12, 6), (20, 7)]
    assert is_clean(location)
    query.batch(3, at(5, 8))
    assert (upper(location), is_clean(location)) == (30, True)


@pytest.mark.parametrize(
    ("ddl", "options", "message"),
    [
        (PLAIN, {"seal": "max"}, "seal goes with rows that have times"),
        (PLAIN, {"watermark": 3, "late": "drop"}, "watermark, late goes with rows that have times"),
        (PLAIN, {"time": 5}, "time='5' is not a column of the rows"),
        (UPDATES, {"seal": "max", "watermark": 1}, "seal and watermark both say"),
        (UPDATES, {"seal": "13"}, "seal='13' is not one of 'max', 'none'"),
        (UPDATES, {"late": "ignore"}, "late='ignore' is not one of 'error', 'drop'"),
        (UPDATES, {"watermark": -1}, "option watermark='-1' is not a number from 0"),
        (UPDATES, {"time": "k"}, "have a column '_time', and time='k' is given for all of them"),
        (EVENTS, {"time": "when"}, "time='when' is not a column of the rows"),
        (PLAIN, {"time": "v"}, "column '_time' has type string"),
        (EVENTS, {"timeColumn": "at"}, "option 'timecolumn' is not an option for streaming to"),
        (EVENTS, {}, "'at' is unexpected"),
        (PLAIN, {"trigger": "1s"}, "option 'trigger' is not an option for streaming to"),
        ("k long", {}, "'v' \\(string\\) is missing"),
    ],
)
def test_a_query_that_cannot_be_says_why(location: str, ddl: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(persist.InvalidUsage, match=message):
        Query(location, ddl, **options).writer()


@pytest.mark.parametrize(
    ("ddl", "rows", "message"),
    [
        (UPDATES, [{"k": 1, "v": "x", "_time": None, "_diff": 1}], "has NULL in _time"),
        (UPDATES, [{"k": 1, "v": "x", "_time": 1, "_diff": None}], "has NULL in _diff"),
    ],
)
def test_bad_rows_are_named_and_leave_nothing(location: str, ddl: str, rows: list[Any], message: str) -> None:
    query = Query(location, ddl)
    with pytest.raises(persist.errors.InvalidUpdate, match=message):
        query.batch(0, rows)
    with pytest.raises(persist.errors.InvalidUpdate, match="update 0 has NULL in _time"):
        Query(location, EVENTS, time="at").batch(0, [{"k": 1, "v": "x", "at": None}])
    assert is_clean(location)


def test_a_client_for_one_commit_does_nothing_in_the_background(location: str) -> None:
    with open_for_writing(location, {}) as engine:
        assert engine.settings.background is False
