"""Turns updates in any form into the step of a commit that adds them.

Small writes wait to be encoded together with others. A pool uploads larger ones at once. A stream is read in the
caller's thread: each piece is sorted and uploaded while the next one is read. So a stream may be larger than memory,
and its parts are committed together.

A caller may reuse its buffers when the call returns. Arrow cannot distinguish its own memory from a NumPy array's, so
updates that are encoded later are copied before. Only a table too large to sort at once is not copied: the call waits
for its upload.
"""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import replace
from itertools import chain, islice
from typing import Any

import msgspec
import pyarrow as pa

from persist.blob.threads import Clock
from persist.codecs.order.arrays import copy_table
from persist.codecs.order.digest import compute_digest
from persist.codecs.part.part import Part
from persist.codecs.types.schema import TIME_MAX, CollectionSchema
from persist.codecs.updates.inputs import TableStream, open_stream
from persist.codecs.updates.small import convert_small_updates, gather_updates
from persist.codecs.updates.updates import Stamp, add_times, stream_updates, to_updates
from persist.core.keyed.intake import EventTable
from persist.core.state_rules.keyed_rules import PlannedPend
from persist.core.timeline import Timeline, read_timeline
from persist.engine.write.operations import Write
from persist.engine.write.part_writer import PartWriter

SMALL_WRITE_BYTES_MAX = 64 << 10

Upload = Future[tuple[Part, ...]]


class WriteSteps:
    """Makes the steps of one client; safe to use from many threads."""

    def __init__(self, parts: PartWriter, pool: Executor, clock: Clock) -> None:
        self._parts = parts
        self._pool = pool
        self._clock = clock

    def of(
        self, collection: str, schema: CollectionSchema, updates: Any, stamp: Stamp | None, *, by: Sequence[str] = ()
    ) -> Write | None:
        """Return the step that adds updates in any form of `to_updates`; start the upload of large ones.

        With a stamp, the updates are plain rows, which get the time of the commit if the stamp has none. With columns
        in `by`, the step has their digest. Return None without updates. Raises the errors of `to_updates` and of a
        stream; then no upload remains.
        """
        at_commit = stamp is not None and stamp.time is None
        if stamp is not None:
            updates = add_times(updates, schema, stamp)
        small = convert_small_updates(updates, schema)
        if small is not None and small.diff_abs_sum < 2**63:
            digest = (
                _compute_digest(gather_updates([small], schema), by) if by else None
            )  # As a table it costs more than all else.
            return Write(collection, schema, small.time_min, small.bytes, small, digest=digest, at_commit=at_commit)
        data = open_stream(updates)
        if isinstance(data, TableStream):
            pieces = stream_updates(data, schema, moments=self._get_timeline(schema))
            write = self._write_stream(collection, schema, pieces, by)
        else:
            table = to_updates(data, schema, moments=self._get_timeline(schema))
            write = self._write_table(collection, schema, table, by) if len(table) else None
        return msgspec.structs.replace(write, at_commit=True) if at_commit and write is not None else write

    def from_checked(self, collection: str, schema: CollectionSchema, table: pa.Table) -> Write:
        """Return the step that adds a checked table of `schema.arrow`, not empty, whose buffers no caller has."""
        return self._write_table(collection, schema, table, (), is_ours=True)

    def hold_or_store_updates(
        self, collection: str, schema: CollectionSchema, updates: Any, stamp: Stamp | None, *, by: Sequence[str] = ()
    ) -> tuple[pa.Table | tuple[Part, ...], int]:
        """Return updates in memory, if there is room, or else as unnamed stored parts; and their digest.

        A table may take half of the budget, because most of its memory belongs to the caller; of a stream, one piece is
        in memory. Updates in memory are not sorted; those from a table may share the caller's buffers. Raises the
        errors of `of`, and of an upload.
        """
        if stamp is not None:
            updates = add_times(updates, schema, stamp)
        data = open_stream(updates)
        if isinstance(data, TableStream):
            pieces = gather_pieces(
                stream_updates(data, schema, moments=self._get_timeline(schema)), self._parts.piece_bytes
            )
            begun = [*islice(pieces, 2)]
            if len(begun) == 2:
                write = self._write_pieces(collection, schema, chain(map(begun.pop, (0, 0)), pieces), by)
                return _list_stored_parts(write), write.digest or 0
            table = begun[0] if begun else schema.arrow.empty_table()
        else:
            table = to_updates(data, schema, moments=self._get_timeline(schema))
        if table.nbytes <= 4 * self._parts.piece_bytes:
            return table, _compute_digest(table, by) or 0
        write = self._write_table(collection, schema, table, by)
        return _list_stored_parts(write), write.digest or 0

    def _get_timeline(self, schema: CollectionSchema) -> Timeline | None:
        """Return the timeline of a schema with this client's clock; None without one."""
        timeline = read_timeline(schema)
        return None if timeline is None else replace(timeline, wall_ms=self._clock.wall_ms)

    def of_events(self, collection: str, events: EventTable) -> Write:
        """Return the step that adds one or more events; start the upload of many.

        The events must not share buffers with the caller.
        """
        times = events.table["_time"].to_numpy()
        planned = PlannedPend(collection, int(times.min()), int(times.max()), events.watermarks, events.schema.version)
        size = int(events.table.nbytes)
        if size <= SMALL_WRITE_BYTES_MAX:
            data: pa.Table | Upload = events.table
        else:
            data = self._start_upload(collection, events.schema, events.table)
        at_commit = events.at_commit
        return Write(collection, events.schema, planned.time_min, size, data, events=planned, at_commit=at_commit)

    def _write_table(
        self, collection: str, schema: CollectionSchema, table: pa.Table, by: Sequence[str], *, is_ours: bool = False
    ) -> Write:
        """Return the step that adds a table; is_ours: the caller cannot change its buffers."""
        size = table.get_total_buffer_size()
        if size > SMALL_WRITE_BYTES_MAX:
            size = table.nbytes  # The used size of these buffers, which takes longer to compute.
        fits = size <= self._parts.piece_bytes
        if fits and not is_ours:
            table = copy_table(table)
        digest = _compute_digest(table, by)
        # numpy rather than Arrow's kernels: for few rows those cost more than all else, and give up the GIL each time.
        diffs = table["_diff"].to_numpy()
        largest = max(abs(int(diffs.min())), abs(int(diffs.max())))
        # A small write is encoded together with others, so it must be sure not to overflow by itself.
        if size <= SMALL_WRITE_BYTES_MAX and largest * len(diffs) < 2**63:
            return Write(collection, schema, _find_first_time(table), size, table, digest=digest)
        upload = self._start_upload(collection, schema, table)
        if not (fits or is_ours):
            upload.exception()  # Waits; what went wrong is raised by the future of the commit.
        return Write(collection, schema, _find_first_time(table), size, upload, digest=digest)

    def _write_stream(
        self, collection: str, schema: CollectionSchema, tables: Iterator[pa.Table], by: Sequence[str]
    ) -> Write | None:
        """Return the step that adds a stream; None if it is empty."""
        pieces = gather_pieces(tables, self._parts.piece_bytes)
        begun = [*islice(pieces, 2)]
        if len(begun) < 2:
            return self._write_table(collection, schema, begun[0], by, is_ours=True) if begun else None
        return self._write_pieces(collection, schema, chain(map(begun.pop, (0, 0)), pieces), by)  # Nothing keeps them.

    def _write_pieces(
        self, collection: str, schema: CollectionSchema, pieces: Iterator[pa.Table], by: Sequence[str]
    ) -> Write:
        """Return the step that adds pieces; each is uploaded as it arrives."""
        uploads: list[Upload] = []
        time_min = TIME_MAX
        digest = 0
        try:
            for piece in pieces:
                if uploads and uploads[-1].exception() is not None:
                    break  # The commit will be rejected with this error, so stop reading.
                time_min = min(time_min, _find_first_time(piece))
                digest += _compute_digest(piece, by) or 0
                uploads.append(self._start_upload(collection, schema, piece))
        except BaseException:
            self._parts.discard(_collect_parts(uploads))
            raise
        return Write(collection, schema, time_min, 0, self._join_uploads(uploads), digest=digest if by else None)

    def _start_upload(self, collection: str, schema: CollectionSchema, table: pa.Table) -> Upload:
        """Encode and upload a table in the pool."""
        return self._pool.submit(self._parts.upload, collection, schema, table)

    def _join_uploads(self, uploads: Sequence[Upload]) -> Upload:
        """Join finished uploads into one, with all their parts, or with their first error."""
        errors = [error for upload in uploads if (error := upload.exception()) is not None]
        parts = _collect_parts(uploads)
        whole: Upload = Future()
        if errors:
            self._parts.discard(parts)
            whole.set_exception(errors[0])
        else:
            whole.set_result(tuple(parts))
        return whole


def gather_pieces(tables: Iterable[pa.Table], bytes_max: int) -> Iterator[pa.Table]:
    """Yield the rows of tables, in order, as non-empty tables of at least bytes_max; the last may be smaller.

    The buffers are copies, because a stream may reuse its buffers for the next table. Memory: a piece, and one table of
    the stream twice.
    """
    pieces: list[pa.Table] = []
    size = 0
    for table in tables:
        if len(table):
            pieces.append(copy_table(table))
            size += table.nbytes
        if size >= bytes_max:
            yield pa.concat_tables(pieces)
            pieces, size = [], 0
    if pieces:
        yield pa.concat_tables(pieces)


def _list_stored_parts(write: Write) -> tuple[Part, ...]:
    """Return the parts of a write whose upload has ended."""
    assert isinstance(write.data, Future), "what is not held is uploaded"
    return write.data.result()


def _collect_parts(uploads: Sequence[Upload]) -> list[Part]:
    """Wait for all uploads, and return the parts of those that did not fail."""
    return [part for upload in uploads if upload.exception() is None for part in upload.result()]


def _compute_digest(table: pa.Table, by: Sequence[str]) -> int | None:
    return compute_digest(table, by) if by else None


def _find_first_time(table: pa.Table) -> int:
    return int(table["_time"].to_numpy().min())
