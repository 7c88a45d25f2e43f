"""Streaming writes: every micro-batch is one commit, exactly once; see `persist.sink.batch_commit`.

Tasks learn from Spark which query, run and batch they work for, and say it in their messages, because the driver is
told the number of the batch only. A batch without rows is a commit, too, of nothing but its number.

What is noticed, and ends the query with `QueryMismatch`: two queries with one id at the same time, once the second has
committed and the first tries to; a checkpoint that was copied or restored and is behind; and a checkpoint of another
location or collection, or of a collection that was made anew. What cannot be told from a repetition, and counts as one:
a batch of the same number as the last one, by a run that the collection has not seen.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from persist.engine import loaded, read_engine
from persist.errors import InvalidUsage, UpdateNotBeyondUpper
from persist.sink import LateFilter, Mark, Share, Target, commit_batch, gathered, report_late, upload
from persist.spark.options.stream_write import StreamWriteOptions
from persist.spark.surfaced_errors import surfaced_errors
from persist.spark.write.updates import Rows
from persist.spark.write.writer import Uploaded


@dataclass
class Batched(Uploaded):
    """What one task stored, for which batch, and how many late updates it left out."""

    target: Target
    mark: Mark
    late: int


class PersistStreamWriter(DataSourceStreamArrowWriter):
    """Appends the micro-batches of a query to a collection; Spark makes one for each batch, and one to commit it."""

    def __init__(self, options: StreamWriteOptions, schema: StructType) -> None:
        """Load the collection and check that the DataFrame fits it, before any task starts."""
        self._times = options.times(schema.names)
        self._first = options.first_batch
        with read_engine(options.location, options.storage) as engine:
            handle = loaded(engine, options.collection)
            upper = handle.contents().upper
            self._target = Target.of(handle, options.location, options.storage)
        if upper.is_empty and self._times.late == "error":
            raise UpdateNotBeyondUpper(0, upper)
        time = upper.time if self._times.is_plain else None
        self._rows = Rows(self._target.schema, time, options.column, options.unit)
        self._rows.check(schema)
        self._lower = upper.time if self._times.late == "drop" else None

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Upload the updates of one task. Memory: about four times `BUFFER_BYTES_MAX`, and a part."""
        with surfaced_errors():
            late = LateFilter(self._lower)
            tables = (late.kept(self._rows.updates(table)) for table in gathered(iterator))
            return Batched(upload(self._target, tables), self._target, mark_of_task(self._first), late.count)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Commit a batch, unless it was committed before; raises what rejects it."""
        found = [message for message in messages if isinstance(message, Batched)]
        if not found:
            return  # Spark makes up a task where there is no partition, so this is a batch that has nothing to say.
        with surfaced_errors():
            mark = found[0].mark
            assert all(each.mark == mark for each in found), "messages are of one batch"
            assert mark.batch == batchId, "of the one that Spark says"
            report_late(found[0].target, mark, sum(each.late for each in found))
            parts = [part for each in found for part in each.parts]
            commit_batch(mark, [Share(found[0].target, parts)], self._times)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Delete what tasks have stored, if the commit was certainly not tried because one of them failed.

        Otherwise `commit` itself has deleted the parts of a rejected commit; or it is not known whether it landed, and
        a record may name them yet: they are left, and the next run asks the log.
        """
        if all(messages):
            return
        with surfaced_errors(), self._target.writer() as writer:
            writer.discard(part for each in messages if isinstance(each, Batched) for part in each.parts)


def mark_of_task(first: int) -> Mark:
    """Return which batch of which query, in which run, a task works for; first as `Mark` has it."""
    context = TaskContext.get()
    names = ("sql.streaming.queryId", "streaming.sql.batchId", "spark.jobGroup.id")
    query, batch, run = (context.getLocalProperty(name) if context is not None else None for name in names)
    if query is None or batch is None:
        raise InvalidUsage("a streaming write runs outside a streaming query: Spark says neither query nor batch")
    return Mark(query, int(batch), run or query, first)
