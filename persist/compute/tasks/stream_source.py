"""The driver's side of a stream: how far it can read, the plans of its micro-batches, and its hold.

Tasks get an address of the collection, and open its store themselves. A plan is a function of two offsets and the
collection's history between them, which no compaction changes as long as since stays at or before the first. The
permanent hold (`persist.compute.tasks.stream_hold`) ensures that. A claim of this process, by its lease, keeps the
blobs of a plan while tasks read them. It is released when there is nothing to do, because engines (such as Spark) kill
this process without closing it.

A limited micro-batch ends at a time, and has all updates before it. Descriptors give the number of updates of parts
with one time. From other parts the column `_time` is read, once, as far as needed to find the end.
"""

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from persist.blob.errors import MissingBlob
from persist.blob.lru import Cache, Kind
from persist.codecs.part.part import Part
from persist.codecs.types.schema import TIME_MAX, CollectionSchema
from persist.compute.tasks.stream_hold import NO_HOLD, Offset, Position, StreamHold, check_hold_is_free
from persist.core.antichain import END, to_antichain, to_time
from persist.core.errors import AsOfCompacted, AsOfNotSealed, CollectionNotFound, InvalidUsage, LeaseExpired
from persist.core.settings import Storage, open_storage
from persist.core.state_rules.contents import CollectionState, check_changes_readable, check_readable, get_first_time
from persist.core.state_rules.keyed_rules import load_form
from persist.engine.collection.keyed_events import get_keyed_form
from persist.engine.location.opening import load_handle, open_engine, read_engine
from persist.engine.location.writer import Mode, OpenOptions
from persist.engine.read.following.changes import Transitions, UpsertEvents
from persist.engine.read.parts.reader import ClaimedRead, PartReader, make_collected_error
from persist.engine.read.planning.scan import Scan
from persist.engine.read.planning.snapshot_plan import plan_changes_scan, plan_snapshot

COUNTS_BYTES_MAX = 32 << 20

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class BatchLimits:
    """The largest size of a micro-batch; None for no limit."""

    updates: int | None = None
    times: int | None = None


NO_LIMITS = BatchLimits()


@dataclass(frozen=True)
class TimeCounts:
    """Ascending times, and how many updates each has."""

    times: Ints
    counts: Ints

    @property
    def nbytes(self) -> int:
        """The bytes of memory of both arrays."""
        return int(self.times.nbytes + self.counts.nbytes)

    def __add__(self, other: "TimeCounts") -> "TimeCounts":
        times, where = np.unique(np.concatenate([self.times, other.times]), return_inverse=True)
        counts = np.zeros(len(times), np.int64)
        np.add.at(counts, where, np.concatenate([self.counts, other.counts]))
        return TimeCounts(times, counts)

    def within(self, lower: int, upper: int) -> "TimeCounts":
        """Return the counts of the times with `lower <= time < upper`."""
        a, b = self.times.searchsorted([lower, upper])
        return TimeCounts(self.times[a:b], self.counts[a:b])


_NOTHING = TimeCounts(np.zeros(0, np.int64), np.zeros(0, np.int64))


class BatchEnds:
    """Finds where micro-batches end. Memory: `COUNTS_BYTES_MAX`, and 16 bytes for each time of a few parts."""

    def __init__(self) -> None:
        cache = Cache(COUNTS_BYTES_MAX, is_lru=True)
        self._kept: Kind[str, TimeCounts] = cache.add_kind(lambda counts: counts.nbytes, share=1)

    def find_end(self, scan: Scan, reader: PartReader, limits: BatchLimits) -> int:
        """Return the greatest end for a scan within the limits; at least one time.

        Cost: reads the parts that have several times each, once.

        Raises CorruptBlob: a part is missing or damaged.
        """
        if limits.times is None and (limits.updates is None or sum(p.rows for p in scan.parts) <= limits.updates):
            return scan.time_upper
        parts = sorted(scan.parts, key=lambda part: part.time_min)
        # Of times that later parts cannot have, and of times that they can.
        updates = times = 0
        open_counts = _NOTHING
        for at, part in enumerate(parts):
            open_counts += self._load_counts(part, scan, reader)
            bound = parts[at + 1].time_min if at + 1 < len(parts) else scan.time_upper
            closed = open_counts.within(0, bound)
            end = _find_first_beyond(closed, updates, times, limits)
            if end is not None:
                return end
            updates, times = updates + int(closed.counts.sum()), times + len(closed.times)
            open_counts = open_counts.within(bound, scan.time_upper)
        return scan.time_upper

    def _load_counts(self, part: Part, scan: Scan, reader: PartReader) -> TimeCounts:
        """Return a part's number of updates at each time of a scan."""
        if part.time_min == part.time_max:
            counts = TimeCounts(np.array([part.time_min]), np.array([part.rows]))
        else:
            cached = self._kept.get(part.rows_id)
            counts = _count_times(part, scan.schema, reader) if cached is None else cached
            self._kept.put(part.rows_id, counts)
        return counts.within(scan.time_lower, scan.time_upper)


def _count_times(part: Part, schema: CollectionSchema, reader: PartReader) -> TimeCounts:
    """Return how many updates a part has at each time."""
    total = _NOTHING
    for _, table in reader.tables([part], schema, ["_time"]):
        times, counts = np.unique(table["_time"].to_numpy(), return_counts=True)
        total += TimeCounts(times, counts)
    return total


def _find_first_beyond(counts: TimeCounts, updates: int, times: int, limits: BatchLimits) -> int | None:
    """Return the first time beyond the limits, or None."""
    fits = np.ones(len(counts.times), np.bool_)
    if limits.updates is not None:
        fits &= updates + np.cumsum(counts.counts) <= limits.updates
    if limits.times is not None:
        fits &= times + np.arange(1, len(counts.times) + 1) <= limits.times
    if times == 0 and len(fits):
        fits[0] = True
    beyond = np.flatnonzero(~fits)
    return int(counts.times[beyond[0]]) if len(beyond) else None


@dataclass(frozen=True)
class CollectionAddress:
    """The place of a collection, for tasks: they open the store themselves. The URL is absolute."""

    url: str
    storage: Mapping[str, Any]
    collection: str

    @contextmanager
    def open_store(self) -> Iterator[Storage]:
        """Open the store, for reading what a plan names.

        Raises:
            LeaseExpired: a blob is missing because the collection does not need it any more.
            CorruptBlob: a blob is missing although the collection needs it.
        """
        storage = open_storage(self.url, self.storage)
        try:
            yield storage
        except MissingBlob as error:
            if self._is_needed(error.key):
                raise
            raise make_collected_error(error) from error
        finally:
            storage.close()

    def _is_needed(self, key: str) -> bool:
        """Return whether the present state of the collection names a blob."""
        with read_engine(self.url, self.storage) as engine:
            try:
                return load_handle(engine, self.collection).needs(key)
            except CollectionNotFound:
                return False


RowsByKey = Literal["transitions", "upserts"]


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """The collection to follow, and the beginning: one of as_of and start is set.

    Attributes:
        as_of: begin with the contents as of this time, or "latest".
        start: begin without contents, with the updates at this time and later.
        rows_by_key: the form of rows by key: "transitions", or "upserts" including tombstones, for keyed collections.
            None for records and updates.
        hold: the name of the permanent hold, "none" for no hold, None for a random name.
        partitions: the most slices of a micro-batch; None for slices that fit into memory.
        timeout_s: how long as_of may stay unsealed; None for no limit.
    """

    location: str
    collection: str
    as_of: int | str | None = "latest"
    start: int | str | None = None
    columns: tuple[str, ...] | None = None
    rows_by_key: RowsByKey | None = None
    hold: str | None = None
    partitions: int | None = None
    timeout_s: float | None = None
    storage: Mapping[str, Any] = field(default_factory=dict)


_LOST = (
    "The changes after the checkpoint are gone, because the query keeps no history with hold=none. Begin with a new "
    "checkpointLocation; without the option hold, history stays for the query."
)
POLL_S = 0.5  # How long to look for new updates before the engine gets an empty answer.
SLICE_BYTES = 16 << 20


@dataclass(frozen=True)
class PlannedSlice:
    """One task's input: a part of the contents as of a time, or, if `as_of` is None, of an interval's updates.

    `events`: converts updates to rows by key, if requested.
    """

    scan: Scan
    as_of: int | None
    events: Transitions | UpsertEvents | None = None


class StreamSource:
    """Follows one collection for one query; for one thread at a time."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        mode: Mode = "read" if options.hold == NO_HOLD else "shared"
        self._engine = open_engine(options.location, options.storage, OpenOptions(mode))
        try:
            self._handle = load_handle(self._engine, options.collection)
            if options.rows_by_key == "upserts":
                get_keyed_form(self._handle)
        except BaseException:
            self._engine.close()
            raise
        self._follower = self._engine.follower
        self._clock = self._engine.clock
        self._opened_s = self._clock.monotonic_s()
        self._drawn = f"spark-{uuid.uuid4().hex[:16]}"
        self._hold = StreamHold(self._handle)
        self._reading: ClaimedRead | None = None
        self._claimed = 0
        self._last: int | None = None  # With Trigger.AvailableNow, where it ends.
        self._ends = BatchEnds()
        self._begun: Position | None = None  # The query's beginning, if this process determined it.
        self._seen: Offset | None = None

    @property
    def address(self) -> CollectionAddress:
        """The address of the collection, for tasks."""
        return CollectionAddress(self._engine.url, self._options.storage, self._options.collection)

    def make_first_offset(self) -> Offset:
        """Return the offset of a query that has read nothing."""
        location = self._follower.state.location
        assert location is not None, "a location with a collection has an id"
        return Offset(location, self._handle.id)

    def stop_at_sealed(self) -> None:
        """Stop at the time that is sealed now, or at `as_of` if that is later."""
        options = self._options
        if options.timeout_s is not None and options.as_of == "latest":
            # The latest sealed time needs no wait, but a caller with a timeout means the first one.
            self._follower.wait_for(lambda: self._known if self._known.upper > 0 else None, options.timeout_s)
            self._handle.wait_sealed(None, 0.0)
        elif options.timeout_s is not None and options.as_of is not None:
            self._handle.wait_sealed(options.as_of, options.timeout_s)
        self._last = self._handle.contents().upper

    def find_newest_offset(self) -> Offset | None:
        """Return the offset of everything sealed, by the known state."""
        if self._seen is None or self._seen.position is None:
            return self._seen
        return replace(self._seen, position=replace(self._seen.position, upper=to_time(self._known.upper)))

    def find_next_offset(self, start: Offset, limits: BatchLimits) -> Offset:
        """Return the end of the micro-batch; the same offset if nothing is new.

        Cost: a GET at least, and up to `POLL_S` of waiting for something to read.

        Raises:
            HoldNotFound, HoldMoved: the hold is missing, or is after `start`.
            AsOfCompacted, AsOfNotSealed: the contents with which the query begins cannot be read.
            InvalidUsage: start is not of this collection.
        """
        self._check_collection(start)
        position_before = start.position
        if position_before is None:
            position = self._begun = self._find_first_end(limits)
        elif position_before.upper is None:
            position = position_before
            self._clock.sleep(self._patience_s)  # The engine calls again at once.
        else:
            contents = self._wait_for_more(position_before)
            self._check_hold(self._known, position_before)
            position = position_before if contents is None else self._limit_position(contents, position_before, limits)
        self._seen = replace(start, position=position)
        if position == position_before:
            self._release_claim()
        return self._seen

    def plan(self, start: Offset, end: Offset) -> list[PlannedSlice]:
        """Return the slices between two offsets. Cost: a GET; and a commit before the first micro-batch."""
        self._check_collection(start)
        self._check_collection(end)
        at, position_before = end.position, start.position
        if at is None or at == position_before:
            return []
        contents = self._handle.contents()
        if position_before is None:
            self._hold.acquire(at)
        else:
            self._check_hold(contents, position_before)
        self._check_reached(contents, at)
        lower = at.lower if position_before is None else position_before.upper
        pieces = self._plan_slices(contents, at, lower)
        if all(part.inline for piece in pieces for part in piece.scan.all_parts):
            return pieces
        return self._plan_slices(
            self._claim(at.began if position_before is None else position_before.reached), at, lower
        )

    def commit(self, end: Offset) -> None:
        """Move the hold to an offset; release it at the end."""
        at = end.position
        if at is None:
            return
        if at.upper is not None:
            self._check_hold(self._known, at)
            self._hold.move(at)
        elif at.hold in self._known.holds:  # In a query of several sources this is not the last micro-batch.
            self._hold.move(at)

    def close(self) -> None:
        """End the lease and free threads and sockets; the permanent hold stays."""
        self._engine.close()

    @property
    def _known(self) -> CollectionState:
        """The collection's state that this client knows, without reading the log."""
        return self._handle.get_known_state()

    @property
    def _patience_s(self) -> float:
        """How long to wait for new updates; not at all if the stream has an end."""
        return POLL_S if self._last is None else 0.0

    def _find_limit(self, contents: CollectionState) -> int:
        """Return the time before which this stream may read now."""
        return contents.upper if self._last is None else min(contents.upper, self._last)

    def _find_first_end(self, limits: BatchLimits) -> Position | None:
        """Return the end of the first micro-batch; None until its beginning is sealed."""
        hold = self._options.hold or self._drawn
        check_hold_is_free(hold, self._handle.contents())
        if self._options.start is None:
            as_of = self._find_contents_time()
            if as_of is None:
                return None
            return Position(as_of, None, as_of + 1, hold)
        lower = self._get_first_time()
        if lower is None:
            return Position(None, TIME_MAX, None, hold)
        at = Position(None, lower, lower, hold)
        contents = self._wait_for_more(at)
        return at if contents is None else self._limit_position(contents, at, limits)

    def _get_first_time(self) -> int | None:
        """Return the first requested time; None if nothing will ever come."""
        contents, requested = self._known, self._options.start
        assert requested is not None
        lower = (
            to_time(self._find_limit(contents)) if requested == "latest" else self._handle.as_bound("start", requested)
        )
        if lower is not None:
            check_changes_readable(contents, lower)
        return lower

    def _find_contents_time(self) -> int | None:
        """Return the time of the initial contents; None until it is sealed."""
        requested = self._options.as_of
        assert requested is not None
        as_of = None if requested == "latest" else self._handle.as_time("as_of", requested)

        def sealed() -> CollectionState | None:
            contents = self._known
            if as_of is not None:
                check_readable(contents, as_of)
            return contents if (as_of or 0) < self._find_limit(contents) else None

        contents = self._follower.wait_for(sealed, self._patience_s)
        if contents is not None:
            time = as_of if as_of is not None else _find_last_time(contents, self._find_limit(contents))
            check_readable(contents, time)
            return time
        timeout_s = self._options.timeout_s
        if timeout_s is not None and self._clock.monotonic_s() - self._opened_s >= timeout_s:
            raise AsOfNotSealed(as_of, to_antichain(self._known.upper), timeout_s)
        return None

    def _wait_for_more(self, at: Position) -> CollectionState | None:
        """Wait for a state with more sealed times; None after the time-out."""

        def sealed() -> CollectionState | None:
            return self._known if self._find_limit(self._known) > at.frontier else None

        return self._follower.wait_for(sealed, self._patience_s)

    def _limit_position(self, contents: CollectionState, at: Position, limits: BatchLimits) -> Position:
        """Return the next position within contents and limits."""
        assert at.upper is not None, "nothing comes after the end of all"
        upper, contents = self._find_limit(contents), self._handle.fold(contents)
        scan = plan_changes_scan(contents, self._handle.schema, at.upper, upper, ())
        return replace(at, upper=to_time(self._ends.find_end(scan, self._engine.reader(), limits)))

    def _plan_slices(self, contents: CollectionState, at: Position, lower: int | None) -> list[PlannedSlice]:
        """Slice what is read up to a position: contents, or updates from lower on."""
        schema, contents = self._handle.schema, self._handle.fold(contents)
        raw = self._options.rows_by_key == "upserts"
        columns = (
            schema.names if self._options.columns is None else schema.check_distinct("columns", self._options.columns)
        )
        # With the key, how updates are consolidated does not depend on how they are cut, nor on how they are stored.
        columns = (*columns, *(name for name in schema.key_names if name not in columns))
        if lower is None:
            assert at.as_of is not None
            scan = plan_snapshot(contents, schema, at.as_of, columns, raw=raw)
        else:
            try:
                check_changes_readable(contents, lower)
            except AsOfCompacted as error:
                error.add_note(_LOST)
                raise
            scan = plan_changes_scan(contents, schema, lower, at.frontier, columns, raw=raw)
        scan.check_columns()
        slices = (
            scan.slices(self._options.partitions) if self._options.partitions else scan.cut_into_slices(SLICE_BYTES)
        )
        events: Transitions | UpsertEvents | None = None
        if raw:
            events = UpsertEvents(scan.schema, load_form(contents, scan.schema, resolves=False))
        elif self._options.rows_by_key == "transitions":
            events = Transitions.of_columns(scan.schema, self._options.columns)
        as_of = at.as_of if lower is None else None
        return [PlannedSlice(piece, as_of, events) for piece in slices if piece.all_parts]

    def _claim(self, time: int) -> CollectionState:
        """Keep history from a time on for running tasks; return the contents.

        Tasks of a plan may run until a later plan is made; only then may its blobs be deleted.
        """
        if self._reading is not None:
            try:
                self._reading()
            except LeaseExpired:  # This process stood still for a long time. The permanent hold keeps the needed data.
                self._reading = None
        if self._reading is None:
            contents, self._reading = self._handle.claim(time)
            self._claimed = time
            return contents
        if time > self._claimed:
            self._reading.move(time)
            self._claimed = time
        return self._known

    def _release_claim(self) -> None:
        """Release the claim: all tasks have ended, and the engine may end this process next."""
        if self._reading is not None:
            self._reading.close()
            self._reading = None
            if self._engine.mode != "read":
                self._engine.writer("reading").leases.settle(self._handle.id)

    def _check_hold(self, contents: CollectionState, at: Position) -> None:
        """Check that updates after a position are kept for this query only."""
        if at == self._begun:
            self._hold.acquire(at)  # The engine need not have planned a micro-batch that it did not request.
            contents = self._known
        self._hold.check(contents, at)
        self._check_reached(contents, at)

    def _check_reached(self, contents: CollectionState, at: Position) -> None:
        """Raise InvalidUsage if a checkpoint is ahead of the collection."""
        if at.frontier <= contents.upper or at.upper == at.lower:  # An interval may begin beyond upper.
            return
        raise InvalidUsage(
            f"the checkpoint has read up to {to_antichain(at.frontier)}, and the collection {self._handle.name!r} is "
            f"sealed up to {to_antichain(contents.upper)}: it was put back to an earlier state. Begin with a new "
            "checkpointLocation."
        )

    def _check_collection(self, offset: Offset) -> None:
        """Raise InvalidUsage if an offset is of another collection."""
        beginning = self.make_first_offset()
        if (offset.location, offset.collection) != (beginning.location, beginning.collection):
            raise InvalidUsage(
                f"the checkpoint is of the collection with id {offset.collection} of the location with id "
                f"{offset.location}, and {self._handle.name!r} at {self._engine.url} is collection "
                f"{beginning.collection} of location {beginning.location}. Give the path and the collection that "
                "the query began with, or begin with a new checkpointLocation."
            )
        hold = self._options.hold
        if hold is not None and offset.position is not None and offset.position.hold != hold:
            raise InvalidUsage(
                f"option hold={hold!r}, and the query began with the hold {offset.position.hold!r}, which is in its "
                "checkpoint. Leave the option as it was, or begin with a new checkpointLocation."
            )


def _find_last_time(contents: CollectionState, upper: int) -> int:
    """Return the last time before upper that can have updates."""
    if upper != END:
        return upper - 1
    return max([get_first_time(contents), *(part.time_max for part in contents.parts)])
