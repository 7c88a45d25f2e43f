"""Writes of `format("persist")`: tasks upload parts or send events, the driver commits one record.

Until that record exists nothing of the write is visible. A task that fails, is killed or runs twice leaves at most
blobs with unique names that no record names. If the commit is rejected, the parts are deleted; if its outcome is
unknown, they stay.

A data source cannot make Spark range and sort rows by key: the caller does that, or `persist.spark.write` does. Rows in
any order are correct. If they are sorted by key, the parts of the write do not overlap, so nothing needs to be merged
later.

Overwriting commits the difference between a collection and a DataFrame at one time, and history stays. Records that
are missing in the DataFrame are retracted, and its new records are inserted. A record with the same count in both
stays. Tasks of `df.write` can only upload the new rows. So the driver merges them with the present contents, slice by
slice of the key space, within the memory budget of a client. `persist.spark.write` does it in tasks.

Tasks send the events of keyed collections to the driver, because a data source cannot make Spark bring all events of a
key together. `persist.spark.upsert` takes batches that are too large for the driver.

Every micro-batch of a streaming write is one commit, exactly once; see `persist.compute.tasks`. The driver learns only
the number of the batch. So tasks send their query, run and batch in their messages. A batch without rows is a
commit of its number alone.

These faults end the query with `QueryMismatch`:

- Two queries with one id run at the same time: the second has committed, and the first tries to.
- A checkpoint was copied or restored, and is older than the last commit.
- A checkpoint belongs to another location or collection, or to a collection that was dropped and created again.

One fault counts as a repetition: a run that is new to the collection sends a batch with the number of the last batch.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from persist.codecs.part.part import Part
from persist.codecs.types.schema import DIFF, TIME
from persist.codecs.updates.updates import set_time
from persist.compute.tasks.batches import Mark, Share, commit_batch, commit_keyed_batch, log_late
from persist.compute.tasks.keyed_work import commit_events, seal_committed
from persist.compute.tasks.planned_write import PlannedWrite, SinkOptions, Target, Uploads, open_for_writing
from persist.connect.spark.frames import match_names
from persist.connect.spark.options import StreamWriteOptions, WriteOptions
from persist.connect.spark.types import to_stored_schema
from persist.connect.spark.uploads import (
    RESERVED,
    Replanning,
    Rows,
    Uploaded,
    UploadTask,
    pack_rows,
    plan_events,
    unpack_rows,
)
from persist.connect.spark.workers import explain_missing_collection, surface_errors
from persist.core.antichain import END, Antichain, to_time
from persist.core.errors import CollectionExists, InvalidUsage, UpdateNotBeyondUpper
from persist.core.expression.filters import parse_where
from persist.engine.collection.reads import snapshot
from persist.engine.location.opening import create_row_target, load_handle, open_engine, read_engine
from persist.engine.read.keyed.key_replacement import check_kept_rows, check_one_row_per_key, make_kept_filter
from persist.engine.read.lookups.lookup import Lookup
from persist.engine.read.merging import compute_differences
from persist.engine.read.planning.scan import Scan
from persist.engine.write.part_writer import open_run

TASK_BYTES_MAX, ROWS_BYTES_MAX = 64 << 20, 256 << 20


@dataclass
class Answer(WriterCommitMessage):
    """The message of a task to the driver: its uploads; for a stream, also its batch and collection.

    The driver compares the collection, which may have been dropped and created again while tasks ran.
    """

    uploaded: Uploaded
    mark: Mark | None = None
    target: Target | None = None


@dataclass(frozen=True)
class DataFrameWrite:
    """A planned batch write, and how rows of the DataFrame become updates."""

    planned: PlannedWrite
    rows: Rows
    multiset: bool = False

    @classmethod
    def append(cls, options: WriteOptions, schema: StructType, *, folds: bool = True) -> "DataFrameWrite":
        """Plan to append rows; check what can be checked before any task starts."""
        with explain_missing_collection(options.collection):
            planned = PlannedWrite.append(
                options, has_times="_time" in match_names(schema.names, RESERVED, folds=folds)
            )
        return cls._make(planned, schema, options.column, folds=folds)

    @classmethod
    def overwrite(
        cls, options: WriteOptions, schema: StructType, where: str | None = None, *, folds: bool = True
    ) -> "DataFrameWrite":
        """Plan to make the contents equal to a DataFrame, or the part that `where` selects.

        By default, the time is the commit's, which seals it. Raises UpdatesBeyondUpper: another writer appends.
        """
        if extra := sorted({TIME, DIFF} & {*match_names(schema.names, RESERVED, folds=folds)}):
            raise InvalidUsage(
                f'mode "overwrite" takes the rows that are to be there, and the DataFrame has {" and ".join(extra)}. '
                'Drop these columns, and say the time with the option time; or use mode "append" for updates.'
            )
        if options.column is not None:
            raise InvalidUsage(
                f"time={options.column!r} names a column, which does not go with overwriting: the difference is at one "
                "time. Give a number or a moment."
            )
        with explain_missing_collection(options.collection):
            planned = PlannedWrite.overwrite(options, where)
        if options.where is not None:  # Read it here, before any task starts.
            parse_where(options.where, planned.target.schema)
        return replace(cls._make(planned, schema, None, folds=folds), multiset=options.multiset)

    @classmethod
    def _make(cls, planned: PlannedWrite, schema: StructType, column: str | None, *, folds: bool) -> "DataFrameWrite":
        """Return a checked write; raise InvalidUsage for a keyed collection."""
        if planned.target.keyed is not None:
            raise InvalidUsage(
                f"the collection {planned.target.name!r} is keyed, so only events change it: give them with "
                'option("mode", "upsert"), or with persist.spark.upsert(df, …); delete keys with persist.spark.delete'
            )
        rows = Rows(planned.target.schema, planned.time if column is None else column, folds)
        rows.check(schema)
        planned.check()
        return cls(planned, rows)

    @property
    def task(self) -> UploadTask:
        """The work of each task; only a digest if the token was used before."""
        planned = self.planned
        return UploadTask(planned.target, self.rows, digest_by=planned.digest_columns, only_digest=planned.is_done)


def create_target(
    options: WriteOptions, schema: StructType, *, timeline: Any = ..., is_new: bool = False, folds: bool = True
) -> None:
    """Create the collection of a write; it may exist with this key, unless `is_new`."""
    assert options.key is not None, "only a write with a key creates"
    with open_engine(options.location, options.storage) as engine:
        is_there = options.collection in engine.names()
        if is_there and is_new:
            raise CollectionExists(options.collection)
        names = load_handle(engine, options.collection).schema.names if is_there else schema.names
        stored = to_stored_schema(schema, creates=not is_there)
        columns = pa.schema([field.with_nullable(True) for field in stored])
        more: dict[str, Any] = {"timeline": timeline, "time": options.time}
        key = match_names(options.key, names, folds=folds)
        create_row_target(engine, options.collection, columns, key=key, **more)


class PersistWriter(DataSourceArrowWriter):
    """Appends the rows of a DataFrame to a collection as one commit."""

    def __init__(self, write: DataFrameWrite) -> None:
        self._planned = write.planned
        self._task = write.task

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Upload the updates of one task."""
        return Answer(self._task.run(iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit the parts of all tasks, and a seal if the options have one, as one record."""
        uploaded = combine_uploads(messages)
        with surface_errors():
            self._planned.commit(uploaded.parts, uploaded.digest)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete the parts of tasks after one of them failed.

        If `commit` failed, it has deleted the parts itself, unless its outcome is unknown. Then the parts stay, because
        a record may name them. `Client.gc` deletes them if none does.
        """
        if not all(messages):
            discard(self._planned.target, messages)


class OverwritingWriter(PersistWriter):
    """Makes a collection equal to a DataFrame, by one commit of the difference."""

    def __init__(self, write: DataFrameWrite) -> None:
        super().__init__(write)
        self._multiset = write.multiset

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Upload and commit the difference; begin again if another writer commits first.

        Raises:
            Conflict: another writer writes to the collection, and the options fix the time.
            DuplicateKeys: rows repeat a key.
        """
        with surface_errors():
            try:
                commit_difference(self._planned, combine_uploads(messages), multiset=self._multiset)
            finally:
                self.abort(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete the tasks' parts, which are never committed."""
        discard(self._planned.target, messages)


def combine_uploads(messages: Iterable[WriterCommitMessage | None]) -> Uploaded:
    """Return the combined uploads of all tasks that answered."""
    return Uploaded.combine([message.uploaded for message in messages if isinstance(message, Answer)])


def discard(target: Target, messages: Iterable[WriterCommitMessage | None]) -> None:
    """Delete uploaded parts of tasks, which no record names or will name."""
    with surface_errors(), target.open_writer() as writer:
        writer.discard(combine_uploads(messages).parts)


def commit_difference(planned: PlannedWrite, new: Uploaded, *, multiset: bool) -> None:
    """Commit the difference of contents and uploaded rows; begin again after another commit."""

    def attempt(planned: PlannedWrite) -> None:
        parts = () if planned.is_done else _upload_difference(planned, new.parts, multiset=multiset)
        planned.commit(parts, new.digest)

    planned.commit_with_retries(attempt)


def _upload_difference(planned: PlannedWrite, parts: Sequence[Part], *, multiset: bool) -> tuple[Part, ...]:
    """Upload the updates that turn the present contents into the rows of `parts`."""
    time, target = planned.time, planned.target
    assert time is not None, "an overwrite has one time"
    with ExitStack() as stack:
        engine = stack.enter_context(open_for_writing(target.location, target.storage))
        where = None if planned.where is None else parse_where(planned.where, target.schema)
        present = Scan(target.schema, (), 0, 0, target.schema.names, where)
        kept_lookup, as_of = None, find_replaced_time(planned)
        if as_of is not None:
            if not multiset and (kept_filter := make_kept_filter(where, target.schema)) is not None:
                kept_snapshot = snapshot(target.at(engine), as_of, form="diff", where=kept_filter)
                kept_lookup = Lookup(stack.enter_context(kept_snapshot).scan)
            present = stack.enter_context(snapshot(target.at(engine), as_of, form="diff", where=where)).scan
        reader = engine.reader()
        writer = stack.enter_context(target.open_writer())
        uploads = stack.enter_context(Uploads(writer, target.id))
        stream = open_run(reader.memory_budget, target.schema)

        def check(rows: pa.Table) -> None:
            if not multiset:
                check_one_row_per_key(rows, target.schema, target.name, "overwrite")
            if kept_lookup is not None:
                check_kept_rows(kept_lookup, rows, target.name, reader)

        for rows in compute_differences(present, [*parts], reader, check):
            uploads.add(stream.add(set_time(rows, time, target.schema)))
        uploads.add(stream.finish())
        return uploads.finish()


def find_replaced_time(planned: PlannedWrite) -> int | None:
    """Return the last sealed time, whose contents a write replaces; None if nothing is sealed."""
    assert planned.upper != END, "a collection that is complete is not overwritten"
    return planned.upper - 1 if planned.upper else None


@dataclass
class Sent(WriterCommitMessage):
    """The rows of a task as an Arrow stream, sent to the driver; for a stream, also its batch."""

    rows: bytes | None
    size: int
    mark: Mark | None = None

    @classmethod
    def of(cls, batches: Iterable[pa.RecordBatch], mark: Mark | None = None) -> "Sent":
        """Pack the rows of a task; raises InvalidUsage if they are too many."""
        with surface_errors():
            rows, size = pack_rows(batches, TASK_BYTES_MAX)
            _check_size(size, TASK_BYTES_MAX, "a task has")
            return cls(rows, size, mark)


def receive_rows(messages: Iterable[WriterCommitMessage | None], schema: StructType, what: str) -> pa.Table:
    """Return the rows in all messages as a table; raise InvalidUsage if they are too large."""
    sent = [message for message in messages if isinstance(message, Sent)]
    _check_size(sum(message.size for message in sent), ROWS_BYTES_MAX, what)
    return unpack_rows(schema, [message.rows for message in sent if message.rows is not None])


def _check_size(size: int, most: int, what: str) -> None:
    """Raise InvalidUsage if events are too large for the driver."""
    if size > most:
        raise InvalidUsage(
            f"{what} {size:,} bytes of events, and the data source takes {most:,} to the driver. Use "
            "persist.spark.upsert(df, …), which resolves them in tasks; of a stream in foreachBatch, by "
            "persist.spark.foreach_batch_writer."
        )


class UpsertWriter(DataSourceArrowWriter):
    """Upserts the rows of a DataFrame into a keyed collection as one commit."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._schema = schema
        self._late_to = options.late_collection
        self._work = plan_events(options, schema, collects=options.late in ("drop", "collect"))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of one task to the driver."""
        return Sent.of(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit all rows as events, and a seal if the options have one."""
        with surface_errors(), open_for_writing(self._work.target.location, self._work.target.storage) as engine:
            if self._work.is_done:
                seal_committed(engine, self._work)
            else:
                rows = receive_rows(messages, self._schema, "the DataFrame has")
                commit_events(engine, self._work, rows, late_to=self._late_to)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing, because tasks store nothing."""


class PersistStreamWriter(DataSourceStreamArrowWriter):
    """Appends micro-batches to a collection; tasks and driver have an object each."""

    def __init__(self, options: StreamWriteOptions, schema: StructType) -> None:
        """Load the collection and check that the DataFrame fits it, before any task starts."""
        self._times = options.make_times(match_names(schema.names, RESERVED))
        self._first = options.first_batch
        with explain_missing_collection(options.collection), read_engine(options.location, options.storage) as engine:
            handle = load_handle(engine, options.collection)
            upper = handle.contents().upper
            target = Target.of(handle, options.location, options.storage)
        if upper == END and self._times.late == "error":
            raise UpdateNotBeyondUpper(0, Antichain())
        rows = Rows(target.schema, 0 if self._times.is_plain else options.column)
        rows.check(schema)
        self._task = UploadTask(target, rows, to_time(upper) if self._times.late == "drop" else None)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Upload the updates of one task."""
        return Answer(self._task.run(iterator), _read_task_mark(self._first), self._task.target)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Commit a batch, unless it was committed before; raises what rejects it."""
        mark = _get_common_mark(messages, batchId)
        if mark is not None:
            uploaded = combine_uploads(messages)
            target = next(message.target for message in messages if isinstance(message, Answer))
            assert target is not None, "a task of a stream says it"
            with surface_errors(), open_for_writing(target.location, target.storage) as engine:
                log_late(target, mark, uploaded.late)
                commit_batch(engine, mark, [Share(target, [*uploaded.parts])], self._times)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Delete the parts of tasks after one of them failed; see `PersistWriter.abort`."""
        if not all(messages):
            discard(self._task.target, messages)


class UpsertStreamWriter(DataSourceStreamArrowWriter):
    """Writes micro-batches of events to a keyed collection; tasks send rows to the driver."""

    def __init__(self, options: StreamWriteOptions, schema: StructType) -> None:
        """Load the collection and check that the DataFrame fits it, before any task starts."""
        self._times = options.make_times(match_names(schema.names, RESERVED))
        self._first = options.first_batch
        self._schema = schema
        to = SinkOptions(
            location=options.location, collection=options.collection, time=options.column, storage=options.storage
        )
        self._work = plan_events(to, schema, is_plain=self._times.is_plain)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of one task to the driver."""
        return Sent.of(iterator, _read_task_mark(self._first))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Commit a batch, unless it was committed before; raises what rejects it."""
        mark = _get_common_mark(messages, batchId)
        if mark is not None:
            target = self._work.target
            with surface_errors(), open_for_writing(target.location, target.storage) as engine:
                rows = receive_rows(messages, self._schema, "a micro-batch has")
                commit_keyed_batch(engine, mark, self._work, rows, self._times, Replanning(self._work))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing, because tasks store nothing."""


def _read_task_mark(first: int) -> Mark:
    """Return the query, batch and run of this task, from its local properties."""
    context = TaskContext.get()
    names = ("sql.streaming.queryId", "streaming.sql.batchId", "spark.jobGroup.id")
    query, batch, run = (context.getLocalProperty(name) if context is not None else None for name in names)
    if query is None or batch is None:
        raise InvalidUsage("a streaming write runs outside a streaming query: Spark says neither query nor batch")
    return Mark(query, int(batch), run or query, first)


def _get_common_mark(messages: list[WriterCommitMessage | None], batch: int) -> Mark | None:
    """Return the query, batch and run that all messages of a batch name; None without messages."""
    marks = {message.mark for message in messages if isinstance(message, Answer | Sent)}
    assert len(marks) < 2, "messages are of one batch"
    mark = next(iter(marks), None)
    assert mark is None or mark.batch == batch, "of the one that Spark says"
    return mark
