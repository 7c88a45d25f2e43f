"""Streaming writes: every micro-batch is one commit, exactly once; see `persist.sink`.

Tasks learn from Spark which query, run and batch they work for, and say it in their messages, because the driver is
told the number of the batch only. A batch without rows is a commit, too, of nothing but its number.

What is noticed, and ends the query with `QueryMismatch`: two queries with one id at the same time, once the second has
committed and the first tries to; a checkpoint that was copied or restored and is behind; and a checkpoint of another
location or collection, or of a collection that was made anew. What cannot be told from a repetition, and counts as one:
a batch of the same number as the last one, by a run that the collection has not seen.
"""

from collections.abc import Iterator

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from persist.engine import loaded, read_engine
from persist.errors import InvalidUsage, UpdateNotBeyondUpper
from persist.sink import Mark, Share, SinkOptions, Target, commit_batch, commit_keyed_batch, report_late
from persist.spark.data_source.writers import Answer, Sent, discard, sent_rows, uploaded_by
from persist.spark.events import Replanning, planned
from persist.spark.options import StreamWriteOptions
from persist.spark.tasks import surfaced_errors, writable
from persist.spark.uploads import Rows, UploadTask


class PersistStreamWriter(DataSourceStreamArrowWriter):
    """Appends the micro-batches of a query to a collection; Spark makes one for each batch, and one to commit it."""

    def __init__(self, options: StreamWriteOptions, schema: StructType) -> None:
        """Load the collection and check that the DataFrame fits it, before any task starts."""
        self._times = options.times(schema.names)
        self._first = options.first_batch
        with writable(options.collection), read_engine(options.location, options.storage) as engine:
            handle = loaded(engine, options.collection)
            upper = handle.contents().upper
            target = Target.of(handle, options.location, options.storage)
        if upper.is_empty and self._times.late == "error":
            raise UpdateNotBeyondUpper(0, upper)
        rows = Rows(target.schema, 0 if self._times.is_plain else None, options.column)
        rows.check(schema)
        self._task = UploadTask(target, rows, upper.time if self._times.late == "drop" else None)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Upload the updates of one task."""
        return Answer(self._task.run(iterator), _mark_of_task(self._first), self._task.target)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Commit a batch, unless it was committed before; raises what rejects it."""
        mark = _mark_of_batch(messages, batchId)
        if mark is not None:
            uploaded = uploaded_by(messages)
            target = next(message.target for message in messages if isinstance(message, Answer))
            assert target is not None, "a task of a stream says it"
            with surfaced_errors():
                report_late(target, mark, uploaded.late)
                commit_batch(mark, [Share(target, [*uploaded.parts])], self._times)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Delete what tasks have stored, if the commit was certainly not tried because one of them failed.

        Otherwise `commit` itself has deleted the parts of a rejected commit; or it is not known whether it landed, and
        a record may name them yet: they are left, and the next run asks the log.
        """
        if not all(messages):
            discard(self._task.target, messages)


class UpsertStreamWriter(DataSourceStreamArrowWriter):
    """Gives the micro-batches of a query to a keyed collection: rows come to the driver, as of `UpsertWriter`."""

    def __init__(self, options: StreamWriteOptions, schema: StructType) -> None:
        """Load the collection and check that the DataFrame fits it, before any task starts."""
        self._times = options.times(schema.names)
        self._first = options.first_batch
        self._schema = schema
        to = SinkOptions(
            location=options.location, collection=options.collection, time=options.column, storage=options.storage
        )
        self._work = planned(to, schema, is_plain=self._times.is_plain)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of one task."""
        return Sent.of(iterator, _mark_of_task(self._first))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Commit a batch, unless it was committed before; raises what rejects it."""
        mark = _mark_of_batch(messages, batchId)
        if mark is not None:
            with surfaced_errors():
                rows = sent_rows(messages, self._schema, "a micro-batch has")
                commit_keyed_batch(mark, self._work, rows, self._times, Replanning(self._work))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing is to be undone: tasks store nothing."""


def _mark_of_task(first: int) -> Mark:
    """Return which batch of which query, in which run, a task works for; first as `Mark` has it."""
    context = TaskContext.get()
    names = ("sql.streaming.queryId", "streaming.sql.batchId", "spark.jobGroup.id")
    query, batch, run = (context.getLocalProperty(name) if context is not None else None for name in names)
    if query is None or batch is None:
        raise InvalidUsage("a streaming write runs outside a streaming query: Spark says neither query nor batch")
    return Mark(query, int(batch), run or query, first)


def _mark_of_batch(messages: list[WriterCommitMessage | None], batch: int) -> Mark | None:
    """Return what all tasks of a batch worked for; None if no task did, since Spark makes one up for no partitions."""
    marks = {message.mark for message in messages if isinstance(message, Answer | Sent)}
    assert len(marks) < 2, "messages are of one batch"
    mark = next(iter(marks), None)
    assert mark is None or mark.batch == batch, "of the one that Spark says"
    return mark
