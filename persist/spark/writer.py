"""Writing: tasks upload parts, the driver commits one record.

Until that record exists nothing of the write is visible; a task that fails, is killed or runs twice leaves at most
blobs that no record names, under names of their own. If the commit is rejected, the parts are deleted; if it is not
known whether it landed, they are left.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from persist.client import open as open_client
from persist.codecs import CollectionSchema, Part, to_updates
from persist.collection import Collection
from persist.errors import UpdateNotBeyondUpper
from persist.part_writer import PartWriter
from persist.spark.surface import surfaced_errors
from persist.spark.types import as_collection_expects
from persist.spark.write_options import WriteOptions
from persist.storage import open_storage

BUFFER_BYTES_MAX = 128 << 20


@dataclass
class Uploaded(WriterCommitMessage):
    """The parts that one task stored."""

    parts: tuple[Part, ...]


class PersistWriter(DataSourceArrowWriter):
    """Appends the rows of a DataFrame to a collection as one commit."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        """Load the collection and check that the DataFrame fits it, before any task starts."""
        self._options = options
        with open_client(options.location, mode="read", storage_options=options.storage) as client:
            collection = client.load(options.collection)
            self._id: str = collection.id
            self._schema: CollectionSchema = collection.schema
            upper = collection.upper
            self._seqno = client._follower.next_seqno()
        self._updates(to_arrow_schema(schema, timezone="UTC").empty_table())
        if options.time is not None and not upper.has_beyond(options.time):
            raise UpdateNotBeyondUpper(options.time, upper)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Upload the updates of one task. Memory: up to BUFFER_BYTES_MAX at a time."""
        with surfaced_errors(), self._uploads() as uploads:
            parts: list[Part] = []
            try:
                for table in _gathered(iterator):
                    parts += uploads.upload(self._id, self._schema, self._updates(table))
            except BaseException:
                uploads.discard(parts)
                raise
            return Uploaded(tuple(parts))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit all parts, and the seal if one was asked for, as one record; raises what rejects it."""
        parts = [part for message in messages if isinstance(message, Uploaded) for part in message.parts]
        location, storage = self._options.location, self._options.storage
        with surfaced_errors(), open_client(location, storage_options=storage) as client:
            # By id: the parts were made for this very collection, not for another that has got its name since.
            collection = Collection(client, self._id, self._options.collection, self._schema)
            collection.commit_parts(parts, seal=self._options.seal).result()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete what tasks have stored, if the commit was certainly not tried because one of them failed.

        Otherwise `commit` itself has deleted the parts of a rejected commit, or it is not known whether it landed.
        """
        if all(messages):
            return
        with surfaced_errors(), self._uploads() as uploads:
            for message in messages:
                if isinstance(message, Uploaded):
                    uploads.discard(message.parts)

    @contextmanager
    def _uploads(self) -> Iterator[PartWriter]:
        storage = open_storage(self._options.location, self._options.storage)
        try:
            yield PartWriter(storage.blob, lambda: self._seqno)
        finally:
            storage.close()

    def _updates(self, table: pa.Table) -> pa.Table:
        time = self._options.time
        default_diff = 1 if time is not None else None
        table = as_collection_expects(table, self._schema.arrow)
        return to_updates(table, self._schema, default_time=time, default_diff=default_diff)


def _gathered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield tables of about BUFFER_BYTES_MAX bytes; none for no rows."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        if batch.num_rows:
            held.append(batch)
        if sum(each.nbytes for each in held) >= BUFFER_BYTES_MAX:
            yield pa.Table.from_batches(held)
            held = []
    if held:
        yield pa.Table.from_batches(held)
