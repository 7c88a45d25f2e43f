"""`persist.spark.foreach_batch_writer`: one streaming query, many collections, one commit for each micro-batch."""

import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from persist.codecs.types.schema import TIME_MAX
from persist.compute.tasks.batch_times import BatchTimes
from persist.compute.tasks.batches import Mark, Share, commit_batch, commit_keyed_batch, commit_large_batch, log_late
from persist.compute.tasks.keyed_work import KeyedWork, Stored
from persist.compute.tasks.planned_write import SinkOptions, Target, open_for_writing
from persist.connect.spark.frames import ignores_case, spell_columns
from persist.connect.spark.options import COUNT_MAX, check_whole, resolve_for_tasks
from persist.connect.spark.uploads import (
    RESERVED,
    Replanning,
    Rows,
    UploadTask,
    partition_by_key,
    plan_events,
    upload_by_tasks,
)
from persist.connect.spark.workers import check_workers, explain_missing_collection
from persist.connect.spark.write_functions.upserting import (
    ON_DRIVER_BYTES_MAX,
    gather_rows,
    partition_events,
    run_event_job,
)
from persist.core.antichain import END, Antichain, to_time
from persist.core.errors import InvalidUsage, UpdateNotBeyondUpper
from persist.core.names import check_printable_text
from persist.core.state_rules.contents import CollectionState
from persist.engine.location.collection_handle import CollectionHandle
from persist.engine.location.engine import Engine
from persist.engine.location.opening import load_handle

Frames = Callable[[DataFrame], DataFrame]


def foreach_batch_writer(
    location: str,
    writes: Mapping[str, Frames],
    *,
    seal: str | None = None,
    watermark: int | None = None,
    late: str | None = None,
    late_collection: str | None = None,
    query_id: str | None = None,
    first_batch: int = 0,
    allow_future: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> Callable[[DataFrame, int], None]:
    """Return a function for `writeStream.foreachBatch`, which writes to many collections at once, exactly once.

    One record adds a micro-batch to all of the collections, so readers see it in all or in none. Plain rows get the
    time of the commit in all of the collections. Updates seal all of the collections to the same time, after the
    largest time of the batch. Copied checkpoints and similar faults are noticed; see
    `persist.connect.spark.data_source.writers`. A batch that runs again does nothing if any of the collections has it.

    A keyed collection takes events; it is then the only one. Large batches of events are resolved by tasks, as by
    `persist.spark.upsert`.

    Args:
        location: where the collections are.
        writes: by collection, a function from the batch to the rows to write. All return plain rows, or all return
            updates with `_time` and `_diff`. If there are several functions, the batch is cached meanwhile.
        seal, watermark, late, late_collection: for updates and events, as the options of streaming writes.
        query_id: names the query; None takes Spark's id. Needed if one query uses several such functions for one
            collection, and under Spark Connect, which hides the id. Simultaneous runs of a query go unnoticed there.
        first_batch: the number of the first batch that is written here, for a query that wrote elsewhere before.
        allow_future: on a timeline, accept times that are more than a day ahead of the clock.

    Raises:
        InvalidUsage: the arguments contradict each other. The query raises errors of the collections.
    """
    if not writes or not all(isinstance(name, str) and callable(of) for name, of in writes.items()):
        raise InvalidUsage(f"writes={writes!r:.200} does not map names of collections to functions: give at least one")
    if query_id is not None:
        check_printable_text("query_id", query_id)
    check_whole("watermark", watermark, 0, TIME_MAX)
    check_whole("first_batch", first_batch, 0, COUNT_MAX)
    rules: dict[str, Any] = {"seal": seal, "watermark": watermark, "late": late, "late_collection": late_collection}
    times: Callable[..., BatchTimes] = partial(BatchTimes.of, **rules, allow_future=allow_future)
    times(False, is_keyed=True)
    place = resolve_for_tasks(location)
    return _Writer(place, dict(writes), times, query_id, first_batch, dict(storage_options or {})).write


@dataclass
class _Writer:
    """The function that `foreach_batch_writer` returns, and the engines that it keeps open."""

    location: str
    writes: dict[str, Frames]
    times: Callable[..., BatchTimes]
    query_id: str | None
    first_batch: int
    storage: dict[str, Any]
    engines: dict[str, Engine] = field(default_factory=dict, compare=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        """Leave the engines out: Spark Connect sends the function to its server."""
        return self.__dict__ | {"engines": {}}

    def open_engine(self, query: str) -> Engine:
        """Return the open engine of a query, which keeps decoded state between batches.

        The engine closes after an error, and with the last reference to the function.
        """
        engine = self.engines.get(query)
        if engine is None or engine.is_closed:
            engine = self.engines[query] = open_for_writing(self.location, self.storage)
            weakref.finalize(self, engine.close)
        return engine

    def write(self, df: DataFrame, batch: int) -> None:
        """Write one micro-batch to all collections, unless it was written before."""
        check_workers(df.sparkSession)
        mark = self._make_mark(df, batch)
        engine = self.open_engine(mark.query)
        try:
            self._write(engine, df, mark)
        except BaseException:
            engine.close()
            raise

    def _write(self, engine: Engine, df: DataFrame, mark: Mark) -> None:
        """Write one micro-batch of plain rows, updates or events."""
        contents = {name: _load_contents(engine, name) for name in self.writes}
        targets = {name: Target.of(handle, self.location, self.storage) for name, (handle, _) in contents.items()}
        states = [state for _, state in contents.values()]
        if any(state.keyed is not None for state in states):
            self._upsert(engine, df, mark, states)
            return
        if mark.is_done(states):
            shares = [Share(target, []) for target in targets.values()]
            commit_batch(engine, mark, shares, BatchTimes(is_plain=True))
            return
        if len(self.writes) > 1:
            df = df.persist()
        try:
            frames = {name: spell_columns(of(df), RESERVED) for name, of in self.writes.items()}
            times = self._make_times(frames)
            commit_batch(engine, mark, self._upload_frames(frames, targets, states, times, mark), times)
        finally:
            if len(self.writes) > 1:
                df.unpersist()

    def _upsert(self, engine: Engine, df: DataFrame, mark: Mark, states: list[CollectionState]) -> None:
        """Write a micro-batch of events: on the driver, or by tasks if it is large."""
        if len(states) > 1:
            raise InvalidUsage(
                f"the writes are to {', '.join(map(repr, self.writes))}, of which some are keyed: events for a keyed "
                "collection are written by a query, or a foreach_batch_writer with a query_id, of its own."
            )
        ((name, of),) = self.writes.items()
        frame = spell_columns(of(df), RESERVED)
        times = self._make_times({name: frame}, is_keyed=True)
        options = SinkOptions(location=self.location, collection=name, storage=self.storage)
        work = plan_events(options, frame.schema, is_plain=times.is_plain, folds=ignores_case(frame.sparkSession))
        plan = Replanning(work)
        rows = gather_rows(frame, ON_DRIVER_BYTES_MAX)
        if rows is not None:
            commit_keyed_batch(engine, mark, work, rows, times, plan)
            return
        latest = None if times.is_plain else frame.agg(F.max("_time")).collect()[0][0]
        by_keys = partition_events(frame, work, None)

        def store(work: KeyedWork, resolves: bool) -> Stored:
            return run_event_job(by_keys, work, resolves=resolves)

        commit_large_batch(engine, mark, work, latest, times, plan, store)

    def _upload_frames(
        self,
        frames: dict[str, DataFrame],
        targets: dict[str, Target],
        states: list[CollectionState],
        times: BatchTimes,
        mark: Mark,
    ) -> list[Share]:
        """Run an upload job for each collection; if one fails, delete the parts of all."""
        time = None
        if times.is_plain:
            uppers = [state.upper for state in states]
            if END in uppers:
                raise UpdateNotBeyondUpper(max(to_time(upper) or 0 for upper in uppers), Antichain())
            time = 0  # The commit replaces it by its own time.
        tasks = {}
        for (name, frame), state in zip(frames.items(), states, strict=True):
            rows = Rows(targets[name].schema, time, folds=ignores_case(frame.sparkSession))
            rows.check(frame.schema)
            tasks[name] = UploadTask(targets[name], rows, to_time(state.upper) if times.late == "drop" else None)
        shares: list[Share] = []
        try:
            for name, task in tasks.items():
                uploaded = upload_by_tasks(partition_by_key(frames[name], task.target.schema), task)
                log_late(task.target, mark, uploaded.late)
                shares.append(Share(task.target, [*uploaded.parts]))
        except BaseException:
            for share in shares:
                with share.target.open_writer() as writer:
                    writer.discard(share.parts)
            raise
        return shares

    def _make_times(self, frames: dict[str, DataFrame], *, is_keyed: bool = False) -> BatchTimes:
        """Return how the rows get times and seals; raise InvalidUsage if only some frames have times."""
        plain = [name for name, frame in frames.items() if "_time" not in frame.columns]
        if plain and len(plain) < len(frames):
            raise InvalidUsage(
                f"what is written to {', '.join(map(repr, plain))} has no column _time, and what is written to the "
                "others has one: give times to all of them, or to none."
            )
        return self.times(bool(plain), is_keyed=is_keyed)

    def _make_mark(self, df: DataFrame, batch: int) -> Mark:
        """Return the query, batch and run of a micro-batch."""
        query = run = None
        with suppress(PySparkException):  # Spark Connect hides the query.
            context = df.sparkSession.sparkContext
            query = context.getLocalProperty("sql.streaming.queryId")
            run = context.getLocalProperty("spark.jobGroup.id")
        query = self.query_id or query
        if query is None:
            raise InvalidUsage(
                "Spark does not say which query this batch belongs to, so the writer cannot identify it. Give "
                "foreach_batch_writer a query_id of its own, the same whenever the query is started."
            )
        return Mark(query, batch, run or query, self.first_batch)


def _load_contents(engine: Engine, name: str) -> tuple[CollectionHandle, CollectionState]:
    """Return a collection and its state."""
    with explain_missing_collection(name):
        handle = load_handle(engine, name)
    return handle, handle.contents()
