"""Reads one collection for a sink, and moves its hold after the target.

Contents are sent in slices of keys, or, without a key, in shares by a hash of the rows. The position is a key or a hash
instead of a number of rows, because rows have no particular order, and compaction moves the slices.

    share [LOWER, UPPER)   the rows whose hash, an integer below `HASHES`, is inside

A hash depends on the row's values alone (`hash_rows`), in the types of the sent schema version. So a share is definite,
however the collection is stored, and a copy can continue from its position after any compaction.

All parts are read once. Their updates are consolidated as far as memory allows, split by hash, and written to an
unnamed temporary file with an index of the shares. Then each share is consolidated alone. So the disk needs room for
the contents, compressed by LZ4, and a process that continues a copy reads all parts again.

Memory: a chunk and a share, about four times each while they are consolidated.
Rejected: shares by ranges of sorted rows, because a position would then be a whole row, of any size.
"""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from persist.api.collection import Collection
from persist.codecs.order.arrays import make_int64_array
from persist.codecs.order.digest import hash_rows
from persist.codecs.order.sums import consolidate
from persist.codecs.part.key_range import KeyRange
from persist.codecs.types.schema import TIME_MAX, CollectionSchema
from persist.compute.tasks.stream_hold import StreamHold
from persist.compute.tasks.stream_source import BatchEnds, BatchLimits
from persist.connect.egress.sink import SINK, Leaving, Piece, Reached, Standing
from persist.core.antichain import END, to_time
from persist.core.errors import HoldNotFound, InvalidUsage, LeaseExpired
from persist.core.state_rules.contents import CollectionState, check_changes_readable, get_last_sealed
from persist.engine.collection.descriptions import make_describe_step, take_hold
from persist.engine.read.following.changes import Changes, Transitions
from persist.engine.read.merging import Form, read_snapshot
from persist.engine.read.parts.reader import ClaimedRead
from persist.engine.read.planning.scan import Scan
from persist.engine.read.planning.snapshot_plan import plan_changes_scan, plan_snapshot

HASHES = 1 << 32
CHUNK_BYTES = 16 << 20
SHARES_MAX = 1 << 10  # Each of them has a run in the file for each chunk.


def compute_bounds(lower: int, memory: int, share_bytes: int) -> list[int]:
    """Return ascending hashes that divide contents into shares of about `share_bytes`."""
    remaining = HASHES - lower
    count = min(SHARES_MAX, max(1, -(-memory * remaining // (HASHES * share_bytes))))
    return [lower + remaining * share // count for share in range(count + 1)]


class Shares:
    """Contents divided by hash into shares between ascending bounds, in a temporary file. For one thread."""

    def __init__(self, scan: Scan, reading: ClaimedRead, bounds: Sequence[int]) -> None:
        self._scan = scan
        self._reading = reading
        self._bounds = np.array(bounds, np.int64)
        self._file = tempfile.TemporaryFile(prefix="persist-egress-")  # noqa: SIM115  `close` closes it.
        self._runs: list[list[int]] = [[] for _ in bounds[1:]]  # By share: where they begin in the file.
        self._is_read = False

    def read_rows(self, share: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a share, with `_diff`. Raises as `read_snapshot`."""
        if not self._is_read:
            with self._reading.explain_missing():
                self._read()
        runs = [self._read_run(start) for start in self._runs[share]]
        if runs:
            table = consolidate(pa.concat_tables(runs), self._scan.columns)
            del runs
            yield from self._scan.cast_to_result(table).to_batches()

    def close(self) -> None:
        """Close the temporary file, which deletes it."""
        with suppress(OSError):  # Closing fails on a full disk with unwritten data.
            self._file.close()

    def _read(self) -> None:
        """Read all parts, and write their rows to the file in chunks."""
        reader, names = self._reading(), [*self._scan.columns, "_diff"]
        chunk: list[pa.Table] = []
        for table in chain(self._scan.read_base_rows(reader, names), self._scan.updates(reader, names)):
            self._reading.check(reader)
            chunk.append(table)
            if sum(rows.nbytes for rows in chunk) >= CHUNK_BYTES:
                self._store_chunk(chunk)
        if chunk:
            self._store_chunk(chunk)
        self._is_read = True

    def _store_chunk(self, chunk: list[pa.Table]) -> None:
        """Write a chunk's rows to the file, ordered by share."""
        table = consolidate(pa.concat_tables(chunk), self._scan.columns)
        chunk.clear()
        hashes = hash_rows(_cast_to_sent_types(table, self._scan), self._scan.columns) >> np.uint64(32)
        shares = np.searchsorted(self._bounds, hashes.astype(np.int64), side="right") - 1
        # Bring the rows of each share together; share s has the rows [starts[s], starts[s + 1]).
        order = np.argsort(shares, kind="stable")
        table = table.take(make_int64_array(order))
        starts = np.searchsorted(shares[order], np.arange(len(self._bounds)))
        try:
            for share in np.flatnonzero(np.diff(starts)).tolist():
                start, end = starts[share : share + 2].tolist()
                self._runs[share].append(self._file.tell())
                options = pa.ipc.IpcWriteOptions(compression="lz4")
                with pa.ipc.new_stream(self._file, table.schema, options=options) as writer:
                    writer.write_table(table.slice(start, end - start))
            self._file.flush()
        except OSError as error:
            raise InvalidUsage(
                f"contents without a key are sorted in a temporary file, in {tempfile.gettempdir()!r}: {error}. Make "
                "room there, or name another folder by TMPDIR"
            ) from error

    def _read_run(self, start: int) -> pa.Table:
        """Return the rows that a chunk has of a share, from their offset in the file."""
        self._file.seek(start)
        with pa.ipc.open_stream(self._file) as run:
            return run.read_all()


def _cast_to_sent_types(table: pa.Table, scan: Scan) -> pa.Table:
    """Return rows in the sent types, on which their hashes depend.

    A value that does not fit these types belongs to a row that cancels out. So any hash will do that is equal for equal
    rows.
    """
    if scan.narrow is None:
        return table
    try:
        for at, name in enumerate(table.column_names):
            target_field = scan.narrow.arrow.field(name)
            if table.schema.types[at] != target_field.type:
                table = table.set_column(at, target_field, table.column(at).cast(target_field.type, safe=False))
    except pa.ArrowException:
        return scan.cast_to_result(table)
    return table


SLICE_BYTES = 32 << 20
ANEW = "give the sink up by --drop, empty its tables, and begin anew"


class Feed:
    """The outgoing updates of one collection. For one thread at a time.

    Attributes:
        handle: of the collection.
        reached: the target's position; None if it has nothing.
        held: the position up to which the hold was moved.
        seen: the end of the last piece without rows, which the target did not store.
    """

    def __init__(self, collection: Collection, hold: str, sink: str) -> None:
        """`hold`: the name of its hold; `sink`: the name of the sink."""
        self.handle = collection.handle
        self._name = hold
        self._sink = sink
        self._hold = StreamHold(self.handle, ANEW)
        self._reading: ClaimedRead | None = None
        self._ends = BatchEnds()
        self.leaving = Leaving(self.handle.id, collection.name, bool(self.handle.get_reading_schema().key_names))
        self.reached: Reached | None = None
        self.seen = 0
        self._promised: Reached | None = None
        self.held: Reached | None = None

    def resume(self, standing: Standing | None) -> None:
        """Continue at the target's position.

        Raises:
            HoldNotFound, HoldMoved: the hold is missing, or ahead of the position.
            AsOfCompacted: contents of an unfinished copy cannot be read any more.
            InvalidUsage: the collection was restored to an earlier state.
        """
        self.close()
        reached = None if standing is None else standing.reached
        self.reached = self.held = reached
        self._promised = None if standing is None else standing.promised
        self.seen = 0
        if reached is None:
            return
        if reached.upper is None and reached.stage == "following":
            self.release()  # A process that was killed may have left it.
            return
        if reached.stage != "following":  # A process that died before it took the hold has begun.
            self._hold.acquire(reached.position(self._name))
        contents = self.handle.contents()
        self._hold.check(contents, reached.position(self._name))
        self._store_sink_name(contents)
        if contents.upper < (END if reached.upper is None else reached.upper):
            raise InvalidUsage(
                f"the target has got more of {self.leaving.name!r} than is sealed up to {contents.upper}: the "
                f"collection was put back to an earlier state. So {ANEW}"
            )

    def make_first_piece(self, contents: CollectionState) -> Piece | None:
        """Return the piece without rows that begins a copy; None if nothing is readable yet.

        The target stores this piece before the hold is made. If a hold exists, the target lost its position.
        """
        if self._name in contents.holds:
            raise InvalidUsage(
                f"the target has no position of {self.leaving.name!r}, and there is a hold {self._name!r} "
                f"already: the target has lost its position, or another sink has that name. Choose another name, "
                f"or {ANEW}"
            )
        schema = self.handle.load_schema(contents, None)
        as_of: int | None = None
        if contents.since < contents.upper:
            as_of = get_last_sealed(contents)
        elif contents.upper > 0 or contents.since > 0:
            return None  # It cannot be read until more is sealed.
        upper = 0 if as_of is None else None if as_of == TIME_MAX else as_of + 1
        after = Reached("copying", as_of, upper, None, schema.version)
        return Piece(self.leaving, None, after, schema)

    def read_contents(self) -> Iterator[Piece]:
        """Yield the pieces of contents that were not sent yet; the caller sends each before the next.

        Memory: a slice of about `SLICE_BYTES`.
        """
        at = self.reached
        assert at is not None
        assert at.stage == "copying"
        if at.as_of is None:
            schema = self.handle.get_reading_schema(at.schema)
            yield Piece(self.leaving, at, replace(at, stage="copied"), schema, schema)
            return
        scan, schema, reading = self._plan_contents(at, None)
        for below, rows in self._split(scan, reading, at):
            position = self.reached
            assert position is not None
            after = replace(position, stage="copied") if below is None else replace(position, below=below)
            yield Piece(self.leaving, position, after, schema, schema, rows)

    def make_promised_piece(self) -> Piece | None:
        """Return the piece that the target promised before a crash, once; otherwise None."""
        at, after = self.reached, self._promised
        if at is None or after is None:
            return None
        self._promised = None
        if at.stage == "following":
            return replace(self.read_changes(after.upper, schema=after.schema), after=after)
        below = after.below if after.stage == "copying" else None  # Else they are the last of the contents.
        scan, schema, reading = self._plan_contents(at, below)
        rows = self._read_rows(scan, reading)
        if not schema.key_names and (at.below or below):
            bounds = [at.below[0] if at.below else 0, below[0] if below else HASHES]
            rows = _read_only_share(Shares(scan, reading, bounds))
        return Piece(self.leaving, at, after, schema, schema, rows)

    def mark_sent(self, after: Reached, *, is_taken: bool) -> None:
        """Record that the target stored `after`; without `is_taken`, that no rows lie before it."""
        if is_taken:
            if self.reached is None:
                self._hold.acquire(after.position(self._name))
                self._store_sink_name(self.handle.contents())
            self.reached = after
        else:
            assert after.upper is not None, "what ends all is taken"
            self.seen = after.upper

    def _plan_contents(self, at: Reached, below: tuple[Any, ...] | None) -> tuple[Scan, CollectionSchema, ClaimedRead]:
        """Return the scan of contents that are not sent yet, below a key, its schema and claim."""
        assert at.as_of is not None
        contents, reading = self._claim_times(at.as_of, end=at.as_of + 1)
        schema = self.handle.load_schema(contents, at.schema)
        bounds = (at.below, below) if schema.key_names else ()
        keys = KeyRange(*(None if bound is None else [*bound] for bound in bounds))
        scan = replace(plan_snapshot(contents, schema, at.as_of, None), keys=keys).prune()
        scan.check_columns()
        return scan, schema, reading

    def _split(
        self, scan: Scan, reading: ClaimedRead, at: Reached
    ) -> Iterator[tuple[tuple[Any, ...] | None, Iterator[pa.RecordBatch]]]:
        """Yield contents in pieces, each with the key or hash below which it ends; None for the last."""
        if scan.schema.key_names or not (at.below or scan.memory > 2 * SLICE_BYTES):
            for piece in scan.cut_into_slices(SLICE_BYTES) or [scan]:
                below = piece.keys.upper
                yield None if below is None else tuple(below), self._read_rows(piece, reading)
            return
        bounds = compute_bounds(at.below[0] if at.below else 0, scan.memory, SLICE_BYTES)
        with closing(Shares(scan, reading, bounds)) as shares:
            for share, upper in enumerate(bounds[1:]):
                yield None if upper == HASHES else (upper,), shares.read_rows(share)

    def make_visible(self) -> Piece:
        """Return the piece that shows copied contents to the target's readers."""
        at = self.reached
        assert at is not None
        schema = self.handle.get_reading_schema(at.schema)
        return Piece(self.leaving, at, replace(at, stage="following", below=None), schema, schema)

    def end(self, contents: CollectionState, limit: int) -> int | None:
        """Return the end of a piece of about `limit` updates; None if that completes the collection."""
        at = self.reached
        assert at is not None
        assert at.upper is not None
        lower, upper = at.upper, contents.upper
        contents = self.handle.fold(contents, end=upper)
        scan = plan_changes_scan(contents, self.handle.load_schema(contents, None), lower, upper, ())
        end = self._ends.find_end(scan, self.handle.engine.reader(), BatchLimits(updates=limit))
        return to_time(end)

    def read_changes(self, end: int | None, at: Reached | None = None, *, schema: int | None = None) -> Piece:
        """Return a piece with the changes from the target's position, or `at`, up to a time; None for all."""
        at = at or self.reached
        assert at is not None
        assert at.upper is not None
        lower, upper = at.upper, END if end is None else end
        contents, reading = self._claim_times(max(0, lower - 1), end=upper)
        check_changes_readable(contents, lower)
        newest = self.handle.load_schema(contents, schema)
        earlier = self.handle.load_schema(contents, at.schema)
        scan = plan_changes_scan(contents, newest, lower, upper, None)
        scan.check_columns()
        pairs = Transitions.of_columns(newest, None) if self.leaving.is_keyed else None
        after = replace(at, upper=end, schema=newest.version)
        return Piece(self.leaving, at, after, newest, earlier, Changes(scan, reading, None, pairs).to_batches())

    @property
    def reached_upper(self) -> int | None:
        """The upper that the target has; None if complete, or if it has nothing."""
        return None if self.reached is None else self.reached.upper

    @property
    def is_finished(self) -> bool:
        """Whether the target has all, and the collection is complete."""
        return self.reached is not None and self.reached.upper is None

    def has_more(self, contents: CollectionState, at: Reached | None = None) -> bool:
        """Return whether more is sealed than was sent, or than the position `at` has."""
        at = at or self.reached
        return at is not None and at.upper is not None and contents.upper > max(at.upper, self.seen)

    def keep(self) -> None:
        """Move the collection's hold up to the target's position. Cost: a commit, or nothing."""
        at = self.reached
        if at is None or at == self.held or at.stage != "following":
            return
        self._hold.move(at.position(self._name))
        self.held = at
        if at.upper is not None and self._reading is not None:
            self._reading.move(max(0, at.upper - 1))

    def release(self) -> bool:
        """Release the hold, if there is one; return whether there was."""
        self.close()
        with suppress(HoldNotFound):
            take_hold(self.handle, None, self._name).release()
            self._set_sink_name(None)
            return True
        return False

    def _store_sink_name(self, contents: CollectionState) -> None:
        """Store the sink's name on the collection, for `persist status`."""
        if self._name in contents.holds and contents.about.properties.get(SINK + self._name) != self._sink:
            self._set_sink_name(self._sink)

    def _set_sink_name(self, sink: str | None) -> None:
        """Store the name of the sink as a property of the collection; None removes it."""
        step = make_describe_step(self.handle, None, {SINK + self._name: sink}, None, None)
        self.handle.submit("egress", [step]).result()

    def _read_rows(self, scan: Scan, reading: ClaimedRead) -> Iterator[pa.RecordBatch]:
        """Yield contents that a scan reads; without a key, with `_diff`."""
        form: Form = "rows" if self.leaving.is_keyed else "diff"
        with reading.explain_missing():
            for table in read_snapshot(scan, form, reading()):
                yield from table.to_batches()

    def _claim_times(self, time: int, *, end: int) -> tuple[CollectionState, ClaimedRead]:
        """Claim the right to read times from `time` on; return the state up to `end`, and the claim."""
        if self._reading is not None:
            try:
                self._reading()
            # This process was stopped for a long time. The permanent hold still covers its position.
            except LeaseExpired:
                self.close()
            else:
                return self.handle.fold(self.handle.get_known_state(), end=end), self._reading
        contents, self._reading = self.handle.claim(time, end=end)
        return contents, self._reading

    def close(self) -> None:
        """Release the reader's lease."""
        if self._reading is not None:
            self._reading.close()
            self._reading = None


def _read_only_share(shares: Shares) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the first share, then close the file."""
    with closing(shares):
        yield from shares.read_rows(0)
