"""Streaming upserts: every micro-batch of events is one commit, exactly once; see `persist.sink.keyed_batch`.

As `persist.spark.write.upsert_writer`, rows come to the driver; which batch they are of, tasks learn from Spark.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from persist.sink import Mark, commit_keyed_batch
from persist.spark.options.stream_write import StreamWriteOptions
from persist.spark.stream.writer import mark_of_task
from persist.spark.surfaced_errors import surfaced_errors
from persist.spark.write.event_rows import Replanning, planned, rows_of
from persist.spark.write.upsert_writer import ROWS_BYTES_MAX, Sent, check_size, sent_rows


@dataclass
class SentBatch(Sent):
    """The rows of one task, and for which batch."""

    mark: Mark


class UpsertStreamWriter(DataSourceStreamArrowWriter):
    """Gives the micro-batches of a query to a keyed collection; Spark makes one for each, and one to commit it."""

    def __init__(self, options: StreamWriteOptions, schema: StructType) -> None:
        """Load the collection and check that the DataFrame fits it, before any task starts."""
        self._times = options.times(schema.names)
        self._first = options.first_batch
        self._schema = schema
        column = options.column
        self._work = planned(
            options.location, options.collection, schema, column, None, None, None, options.storage,
            is_plain=self._times.is_plain,
        )  # fmt: skip

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of one task."""
        with surfaced_errors():
            rows, size = sent_rows(iterator)
            return SentBatch(rows, size, mark_of_task(self._first))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Commit a batch, unless it was committed before; raises what rejects it."""
        each = [message for message in messages if isinstance(message, SentBatch)]
        if not each:
            return  # Spark makes up a task where there is no partition, so this is a batch that has nothing to say.
        with surfaced_errors():
            mark = each[0].mark
            assert all(one.mark == mark for one in each), "messages are of one batch"
            assert mark.batch == batchId, "of the one that Spark says"
            check_size(sum(one.size for one in each), ROWS_BYTES_MAX, "a micro-batch has")
            rows = rows_of(self._schema, [one.rows for one in each if one.rows is not None])
            commit_keyed_batch(mark, self._work, rows, self._times, Replanning(self._work))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing is to be undone: tasks store nothing."""
