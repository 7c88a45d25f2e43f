"""Writing: tasks upload parts, the driver commits one record.

Until that record exists nothing of the write is visible; a task that fails, is killed or runs twice leaves at most
blobs that no record names, under names of their own. If the commit is rejected, the parts are deleted; if it is not
known whether it landed, they are left.

Spark cannot be asked here for rows that are ranged and sorted by key: the caller does that, or `persist.spark.write`
does. Any order is right; with that one the parts of the write do not overlap, so that nothing need be merged later.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from persist.codecs import Part
from persist.sink import DigestSum, digests_added, gathered, upload
from persist.spark.surfaced_errors import surfaced_errors
from persist.spark.write.dataframe_write import DataFrameWrite


@dataclass
class Uploaded(WriterCommitMessage):
    """The parts that one task stored, and the digest of the rows that it was given, if it matters."""

    parts: tuple[Part, ...]
    digest: int | None = field(default=None, kw_only=True)


class PersistWriter(DataSourceArrowWriter):
    """Appends the rows of a DataFrame to a collection as one commit."""

    def __init__(self, write: DataFrameWrite) -> None:
        self._planned = write.planned
        self._rows = write.rows

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Upload the updates of one task. Memory: about four times `BUFFER_BYTES_MAX`, and a part."""
        with surfaced_errors():
            digest = DigestSum(self._planned.digest_by)
            return Uploaded(self._uploaded(iterator, digest), digest=digest.total)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit all parts, and the seal if one was asked for, as one record; raises what rejects it."""
        with surfaced_errors():
            self._planned.commit(parts_of(messages), digest_of_all(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete what tasks have stored, if the commit was certainly not tried because one of them failed.

        Otherwise `commit` itself has deleted the parts of a rejected commit; or it is not known whether it landed, and
        a record may name them yet: they are left, and collected if none does.
        """
        if not all(messages):
            self.discard(messages)

    def discard(self, messages: Iterable[WriterCommitMessage | None]) -> None:
        """Delete what tasks have stored, which no record names or will."""
        with surfaced_errors(), self._planned.target.writer() as writer:
            writer.discard(parts_of(messages))

    def _uploaded(self, batches: Iterator[pa.RecordBatch], digest: DigestSum) -> tuple[Part, ...]:
        """Upload what one task has of the write; nothing if it was done before."""
        tables = (digest.passed(self._rows.updates(rows)) for rows in gathered(batches))
        if self._planned.is_done:
            for _ in tables:  # Whether this is a repetition, their digest tells.
                pass
            return ()
        return upload(self._planned.target, tables)


def digest_of_all(messages: Iterable[WriterCommitMessage | None]) -> int | None:
    """Return the digest of the rows of all tasks."""
    return digests_added(message.digest for message in messages if isinstance(message, Uploaded))


def parts_of(messages: Iterable[WriterCommitMessage | None]) -> list[Part]:
    """Return the parts of all tasks that have stored some."""
    return [part for message in messages if isinstance(message, Uploaded) for part in message.parts]
