"""A collection's updates beyond its upper, for readers that work ahead of the seal.

There are two kinds of pieces: parts of the history with times beyond the upper, and unfinished writes of this client,
which are not durable yet. Each result is the difference to the earlier results. So a write that fails, or a part that
is erased or compacted, is retracted, and a write that becomes a part changes nothing. Nothing here is definite: once a
time is sealed, the reader must retract these updates (`retract_before`), and read the sealed ones.

A write that gets its time from its commit appears once it is durable: before that it has no time.
"""

from collections.abc import Hashable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from persist.blob.errors import InvalidUsage
from persist.codecs.types.schema import TIME_MAX
from persist.codecs.updates.small import SmallUpdates, gather_updates
from persist.core.state_rules.contents import CollectionState
from persist.core.state_rules.schemas import attach_versions
from persist.engine.location.collection_handle import CollectionHandle
from persist.engine.read.following.changes import read_changes
from persist.engine.read.planning.scan import Scan, negate_diffs
from persist.engine.read.planning.snapshot_plan import UnreadParts
from persist.engine.write.commit_future import CommitFuture
from persist.engine.write.operations import Write

Pieces = dict[Hashable, "int | tuple[Write, CommitFuture]"]


class UnsealedUpdates:
    """Tracks the unsealed updates of a collection beyond a time. Memory: those returned and not yet retracted.

    `columns`: the columns to read.

    Raises:
        InvalidUsage: the collection is keyed, so its updates are unknown until a seal.
    """

    def __init__(self, handle: CollectionHandle, columns: Sequence[str]) -> None:
        if handle.contents().keyed is not None:
            raise InvalidUsage(
                f"collection {handle.name!r} is keyed: its events become updates when their time is sealed, so it has "
                "no unsealed updates to read. Leave unsealed=True out."
            )
        self._handle = handle
        self._columns = tuple(columns)
        self._unread = UnreadParts()
        self._told: dict[Hashable, pa.Table] = {}
        self._writes: dict[Hashable, CommitFuture] = {}  # The writes already returned.

    def have_changed(self, lower: int) -> bool:
        """Return whether parts or writes came or went since the last `compute_changes`."""
        return self._list_pieces(lower)[1].keys() != self._told.keys()

    def compute_changes(self, lower: int) -> pa.Table | None:
        """Return the changes at times >= lower since the last call, with `_time` and `_diff`; None without any."""
        contents, pieces = self._list_pieces(lower)
        come = {
            key: self._read_part(contents, piece, lower)
            if isinstance(piece, int)
            else self._get_write_updates(piece[0])
            for key, piece in pieces.items()
            if key not in self._told
        }
        # Nothing is forgotten before all has been read, because reading may fail and is repeated then.
        retracted = [negate_diffs(self._told.pop(key)) for key in self._told.keys() - pieces.keys()]
        self._told |= come
        futures = {key: piece[1] for key, piece in pieces.items() if not isinstance(piece, int)}
        self._writes = {key: future for key, future in (self._writes | futures).items() if key in self._told}
        return pa.concat_tables([*come.values(), *retracted]) if come or retracted else None

    def retract_before(self, upper: int) -> pa.Table | None:
        """Retract and forget all returned updates of times before upper."""
        passed = []
        for key, table in self._told.items():
            is_passed = pc.less(table["_time"], upper)
            passed.append(negate_diffs(table.filter(is_passed)))
            self._told[key] = table.filter(pc.invert(is_passed))
        return pa.concat_tables(passed) if passed else None

    def _list_pieces(self, lower: int) -> tuple[CollectionState, Pieces]:
        """Return the collection's state, and the pieces with times from `lower` on."""
        handle = self._handle
        seqno, [contents] = handle.engine.follower.read_known_states([(handle.id, handle.name)])
        pieces: Pieces = {number: number for number in self._unread.find_numbers_from_frontier(contents, lower)}
        if handle.engine.mode != "read":
            committer = handle.engine.writer("a source").committer
            for write, future in committer.list_pending_writes(handle.id):
                if self._is_readable(write, lower):
                    pieces[write] = write, future
        for key, future in self._writes.items():
            if future.durable_at is not None and future.durable_at > seqno:
                pieces[key] = -1  # It is a part of a later state, so it is not gone.
        return contents, pieces

    def _is_readable(self, write: Write, lower: int) -> bool:
        """Return whether the updates of an unfinished write can be read from memory."""
        is_here = isinstance(write.data, pa.Table | SmallUpdates) and not write.at_commit and write.events is None
        return is_here and write.time_min >= lower and write.schema.version == self._handle.schema.version

    def _read_part(self, contents: CollectionState, number: int, lower: int) -> pa.Table:
        """Return the updates of a part at or after a time."""
        schema = attach_versions(self._handle.schema, contents)
        scan = Scan(schema, (contents.numbered[number],), lower, TIME_MAX + 1, self._columns).with_newest_types()
        return read_changes(scan.prune(), self._handle.engine.reader())

    def _get_write_updates(self, write: Write) -> pa.Table:
        """Return the updates of a write in progress."""
        data = gather_updates([write.data], write.schema) if isinstance(write.data, SmallUpdates) else write.data
        assert isinstance(data, pa.Table)
        return data.select([*self._columns, "_time", "_diff"])
