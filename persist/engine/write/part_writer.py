"""Turns updates into encoded, checksummed parts, and stores them under the keys that the commit record will name.

    part/<collection>/<known seqno, 20 digits>-<uuid>.parquet

Every upload gets a random name, so nothing is ever overwritten, and an upload that no record refers to is harmless.
Names begin with the next seqno that the uploader knew, so that garbage collection can declare old uploads void
(`persist.core.state_rules.location`). Small batches need no blob of their own: their bytes are part of the record, as
long as the collection's inline bytes stay under `INLINE_TOTAL_MAX`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from itertools import groupby

import msgspec
import pyarrow as pa

from persist.blob.errors import Indeterminate, PersistError, Unavailable
from persist.blob.protocol import Blob
from persist.codecs.errors import DiffOverflow
from persist.codecs.part.part import Part
from persist.codecs.part.stream import PART_BYTES_TARGET, ROW_GROUP_BYTES_MAX, PartStream, encode_parts
from persist.codecs.types.arrow_types import list_leaf_types
from persist.codecs.types.schema import CollectionSchema
from persist.codecs.updates.small import SmallUpdates, gather_updates
from persist.core.keyed.events import number_by_arrival
from persist.core.log import kinds
from persist.core.log.fields import Watermarks
from persist.core.log.keys import make_part_key
from persist.engine.write.operations import Write

INLINE_PART_MAX = 64 << 10
BATCH_BYTES_MAX = 16 << 10  # From about here on, the Parquet file is so much shorter that it is worth making.
INLINE_TOTAL_MAX = 1 << 20
MEMORY_BUDGET = 256 << 20
LEAF_BYTES_MIN = 512


class PartWriter:
    """Encodes updates as parts and stores them.

    `piece_bytes`: the approximate size of a table that is sorted at once.
    """

    def __init__(
        self,
        blob: Blob,
        next_seqno: Callable[[], int],
        memory_budget: int = MEMORY_BUDGET,
    ) -> None:
        """Make a writer that uploads to blob.

        Args:
            next_seqno: returns a recent value of the log's next seqno.
            memory_budget: the memory that encoding may use beyond its input; see `Settings.memory_budget`.
        """
        self._blob = blob
        self._next_seqno = next_seqno
        self.piece_bytes = memory_budget // 8
        self._memory_budget = memory_budget

    def upload(self, collection: str, schema: CollectionSchema, table: pa.Table) -> tuple[Part, ...]:
        """Encode table and store its parts; return their descriptors. Cost: one PUT for each part.

        If the table is too large to sort within the budget, its pieces are sorted separately: their parts overlap in
        key, and the next merge combines them.

        Raises:
            DiffOverflow: the diffs of equal updates sum to more than int64 holds.
            Unavailable: the store did not accept a part; parts stored before are deleted again.
        """
        stored: list[Part] = []
        group_bytes = compute_group_bytes_max(self._memory_budget, schema)
        try:
            for piece in _cut_slices(table, self.piece_bytes):
                for data, part in encode_parts(piece, schema, row_group_bytes_max=group_bytes):
                    stored.append(self.put(collection, data, part))
        except BaseException:
            self.discard(stored)
            raise
        return tuple(stored)

    def append(self, collection: str, writes: Sequence[Write], inline_bytes: int) -> kinds.Append | None:
        """Return the mutation that adds all writes; None if rows cancel. `inline_bytes`: present inline bytes."""
        parts = [part for write in writes if isinstance(write.data, Future) for part in _list_uploaded_parts(write)]
        for at_commit in (False, True):
            small = [w for w in writes if w.at_commit is at_commit and not isinstance(w.data, Future)]
            if not small:
                continue
            for data, part in self._encode_together(small, _compute_batch_room(inline_bytes)):
                stored_part = self.store(collection, data, part, inline_bytes)
                stored_part = stored_part.mark_single() if all(write.is_single for write in small) else stored_part
                parts.append(stored_part.set_time(0) if at_commit else stored_part)
                inline_bytes += len(stored_part.inline)
        return kinds.Append(collection, tuple(parts)) if parts else None

    def encode(self, collection: str, writes: Sequence[Write], inline_bytes: int) -> list[kinds.Append | kinds.Pend]:
        """Return the mutations that add the updates and events of all writes. inline_bytes: as for `append`.

        Events keep the order of the writes: adjacent small ones become one part. Parts that get the time of the commit
        have time 0 until it is known.
        """
        append = self.append(collection, [write for write in writes if write.events is None], inline_bytes)
        inline_bytes += sum(len(part.inline) for part in append.parts) if append is not None else 0
        events = [write for write in writes if write.events is not None]
        parts: list[Part] = []
        for (is_small, _, at_commit), group in groupby(events, _make_group_key):
            if not is_small:
                parts += [part for write in group for part in _list_uploaded_parts(write)]
                continue
            small = [*group]
            table = number_by_arrival(_join_writes(small, small[0].schema))
            stored_parts = self.store_parts(collection, table, small[0].schema, inline_bytes)
            inline_bytes += sum(len(part.inline) for part in stored_parts)
            parts += [part.set_time(0) for part in stored_parts] if at_commit else stored_parts
        pend = kinds.Pend(collection, tuple(parts), watermarks=_merge_watermarks(events)) if parts else None
        return [mutation for mutation in (append, pend) if mutation is not None]

    def store_parts(self, collection: str, table: pa.Table, schema: CollectionSchema, inline_bytes: int) -> list[Part]:
        """Encode a table as parts: small ones inline, others stored; none if its rows cancel.

        If a part cannot be stored, the earlier ones are deleted.
        """
        stored: list[Part] = []
        group_bytes, room = compute_group_bytes_max(self._memory_budget, schema), _compute_batch_room(inline_bytes)
        try:
            encoded = encode_parts(table, schema, row_group_bytes_max=group_bytes, batch_bytes_max=room)
            for data, part in encoded:  # All but the last are too large to travel in the record.
                stored.append(self.store(collection, data, part, inline_bytes))
        except BaseException:
            self.discard(stored)
            raise
        return stored

    def store(self, collection: str, data: bytes, part: Part, inline_bytes: int) -> Part:
        """Return an encoded part, inline if it is small, otherwise stored."""
        if len(data) <= INLINE_PART_MAX and inline_bytes + len(data) <= INLINE_TOTAL_MAX:
            return msgspec.structs.replace(part, inline=data)
        return self.put(collection, data, part)

    def discard(self, parts: Iterable[Part]) -> None:
        """Delete parts that no record refers to; garbage collection repeats failed deletions."""
        for part in parts:
            if part.blob:
                try:
                    self._blob.delete(part.blob)
                except PersistError:
                    continue

    def put(self, collection: str, data: bytes, part: Part) -> Part:
        """Store one encoded part of a collection; return its descriptor. Raises Unavailable if it was not stored."""
        key = make_part_key(collection, self._next_seqno())
        try:
            self._blob.set(key, data)
        except Indeterminate as error:
            # The blob may be there or not, but no record will name it: of the write, nothing has happened.
            raise Unavailable(f"a part could not be stored, so nothing was written: {error}") from error
        return msgspec.structs.replace(part, blob=key)

    def _encode_together(self, writes: Sequence[Write], batch_bytes_max: int) -> list[tuple[bytes, Part]]:
        """Encode small writes as one part, or each alone if the sums of their diffs overflow."""
        if any(write.schema.version != writes[0].schema.version for write in writes):
            # Some writers have an older schema: each version becomes a part of its own.
            versions = sorted({write.schema.version for write in writes})
            groups = ([write for write in writes if write.schema.version == version] for version in versions)
            return [part for group in groups for part in self._encode_together(group, batch_bytes_max)]
        schema = writes[0].schema
        try:
            return encode_parts(_join_writes(writes, schema), schema, batch_bytes_max=batch_bytes_max)
        except DiffOverflow:  # Rare, and each takes of the room: as files, which may go anywhere.
            return [encoded for write in writes for encoded in encode_parts(_join_writes([write], schema), schema)]


def compute_group_bytes_max(memory_budget: int, schema: CollectionSchema) -> int:
    """Return the size of row groups for a memory budget, so that many can be read within it.

    If there are very many columns, row groups are larger: each takes 0.2 KB and 0.1 ms for each column, however small
    it is.
    """
    least = max(256 << 10, LEAF_BYTES_MIN * sum(len(list_leaf_types(kind)) for kind in schema.types))
    return min(max(memory_budget // 32, least), ROW_GROUP_BYTES_MAX)


def open_run(
    memory_budget: int, schema: CollectionSchema, *, part_bytes: int = PART_BYTES_TARGET, sources: Sequence[Part] = ()
) -> PartStream:
    """Return a stream that encodes rows as parts of one run, each of at most a quarter of the budget."""
    return PartStream(
        schema,
        part_bytes_target=min(part_bytes, memory_budget // 4),
        row_group_bytes_max=compute_group_bytes_max(memory_budget, schema),
        sources=sources,
    )


def _cut_slices(table: pa.Table, bytes_max: int) -> Iterator[pa.Table]:
    """Yield slices of a table of at most about bytes_max each."""
    rows = -(-len(table) // max(1, -(-table.nbytes // bytes_max)))
    for start in range(0, len(table), max(1, rows)):
        yield table.slice(start, rows)


def _compute_batch_room(inline_bytes: int) -> int:
    """Return the greatest size of an inline batch beside existing inline bytes; 0 if there is no room."""
    bytes_max = min(BATCH_BYTES_MAX, INLINE_PART_MAX)
    return bytes_max if inline_bytes + bytes_max <= INLINE_TOTAL_MAX else 0


def _join_writes(writes: Sequence[Write], schema: CollectionSchema) -> pa.Table:
    """Return the rows of several writes as one table."""
    values = [write.data for write in writes if isinstance(write.data, SmallUpdates)]
    tables = [write.data for write in writes if isinstance(write.data, pa.Table)]
    if values:
        tables.append(gather_updates(values, schema))
    return pa.concat_tables(tables)


def _merge_watermarks(writes: Sequence[Write]) -> Watermarks | None:
    """Return the least and the greatest watermark of the events in some writes."""
    watermarks = [write.events.watermarks for write in writes if write.events is not None and write.events.watermarks]
    return (min(least for least, _ in watermarks), max(greatest for _, greatest in watermarks)) if watermarks else None


def _make_group_key(events: Write) -> tuple[bool, int, bool]:
    """Return the properties that events need in common to be encoded together: size class, schema, and commit time."""
    return not isinstance(events.data, Future), events.schema.version, events.at_commit


def _list_uploaded_parts(write: Write) -> list[Part]:
    """Return the parts of a write that was uploaded."""
    assert isinstance(write.data, Future), "what is uploaded has a future"
    parts = (part.mark_single() if write.is_single else part for part in write.data.result())
    return [part.set_time(0) if write.at_commit else part for part in parts]
