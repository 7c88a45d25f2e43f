"""Overwriting: the difference between what a collection holds and what a DataFrame does, as updates.

History is never rewritten: at one time, what is not in the DataFrame is retracted, and what is new in it is inserted.
Records that are in both as often are not touched. What is there is what was sealed last; the commit is rejected if
somebody else has added anything since, sealed or not.

Tasks of `df.write` can only upload the new rows. The driver then merges them with the present contents, slice by slice
of the key space, and uploads the difference; what the tasks uploaded is deleted. Memory: the budget of a client. It is
one process that reads the contents and the new rows; `persist.spark.write` does the same in tasks.
"""

from contextlib import ExitStack

from pyspark.sql.datasource import WriterCommitMessage

from persist.codecs import Part, PartStream, with_time
from persist.engine import Engine, snapshot
from persist.expression import parse_where
from persist.read import Scan, differences
from persist.sink import PlannedWrite, Uploads, writing
from persist.spark.surfaced_errors import surfaced_errors
from persist.spark.write.writer import PersistWriter, digest_of_all, parts_of
from persist.write import group_bytes_max


class OverwritingWriter(PersistWriter):
    """Makes the contents of a collection those of a DataFrame, as one commit of the difference."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Upload and commit the difference; raises Conflict if somebody else writes to the collection."""
        planned = self._planned
        with surfaced_errors():
            try:
                parts: tuple[Part, ...] = ()
                if not planned.is_done:
                    with writing(planned.target.location, planned.target.storage) as engine:
                        parts = difference(engine, planned, parts_of(messages))
                planned.commit(parts, digest_of_all(messages))
            finally:
                self.discard(messages)  # No record ever names these.

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete what tasks have stored: no record ever names it."""
        self.discard(messages)


def difference(engine: Engine, planned: PlannedWrite, parts: list[Part]) -> tuple[Part, ...]:
    """Upload the updates that turn the present contents into the rows of parts; return their descriptors.

    Raises:
        AsOfCompacted: since has passed the last sealed time.
        CorruptBlob, DiffOverflow, Unavailable.
    """
    time, target = planned.time, planned.target
    assert time is not None, "an overwrite has one time"
    handle = target.at(engine)
    with ExitStack() as stack:
        where = None if planned.where is None else parse_where(planned.where, target.schema)
        present = Scan(target.schema, (), 0, 0, target.schema.names, where)
        as_of = present_time(planned)
        if as_of is not None:
            present = stack.enter_context(snapshot(handle, as_of, form="diff", filter=where)).scan
        reader = engine.reader()
        writer = stack.enter_context(target.writer())
        uploads = stack.enter_context(Uploads(writer, target.id))
        stream = PartStream(target.schema, row_group_bytes_max=group_bytes_max(reader.memory_budget, target.schema))
        for rows in differences(present, parts, reader):
            uploads.put(stream.add(with_time(rows, time, target.schema)))
        uploads.put(stream.finish())
        return uploads.parts()


def present_time(planned: PlannedWrite) -> int | None:
    """Return the last sealed time, as of which the contents are replaced; None if nothing was sealed yet."""
    assert planned.upper.time is not None, "a collection that is complete is not overwritten"
    return planned.upper.time - 1 if planned.upper.time else None
