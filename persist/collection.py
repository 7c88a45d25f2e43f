"""One collection, as a client sees it: write, seal, read as of a time, follow changes."""

from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from persist.antichain import Antichain, as_time
from persist.codecs import TIME_MAX, CollectionSchema, Part
from persist.compact.report import CompactionReport
from persist.errors import (
    AsOfCompacted,
    AsOfNotSealed,
    CollectionNotFound,
    HoldMoved,
    HoldNotFound,
    InvalidUsage,
)
from persist.hold.holds import Hold, HoldInfo, LeasedHold, NamedHold
from persist.log.keys import check_parts
from persist.log.records import AllowCompaction, Destroy, ReleaseHold, Seal, SetHold
from persist.names import check_hold_name
from persist.read.changes import Changes, read_changes
from persist.read.guard import Reading
from persist.read.listen import Listen, Progress
from persist.read.plan import Explanation, changes_scan, explained, snapshot_scan
from persist.read.scan import Scan
from persist.read.snapshot import Form, Snapshot, check_request, snapshot_slices, snapshot_tables
from persist.state.contents import CollectionState
from persist.state.state import ExpectUpper
from persist.timeline import Moment, Timeline
from persist.write.future import CommitFuture
from persist.write.operations import Step, Write, token_steps

if TYPE_CHECKING:
    from persist.client import Client

READ_TIMEOUT_S = 30.0


class Collection:
    """A handle on one collection; make it with `Client.create_or_load` or `Client.load`.

    It stands for that very collection, by id: after `destroy`, it does not turn into a new one of the same name.

    Attributes:
        client: the client it belongs to.
        id: unique in the location, for ever.
        name: what it is called.
        schema: its key and value columns.
    """

    def __init__(self, client: "Client", id_: str, name: str, schema: CollectionSchema) -> None:
        self.client = client
        self.id = id_
        self.name = name
        self.schema = schema

    @property
    def timeline(self) -> Timeline | None:
        """What times are, if they are moments: it turns moments into times, and back."""
        return None if self.schema.timeline is None else Timeline(self.schema.timeline)

    @property
    def upper(self) -> Antichain:
        """The seal frontier: no more updates will come at times not beyond it. Cost: one GET."""
        return self._contents().upper

    @property
    def since(self) -> Antichain:
        """The compaction frontier: the first time that can still be read. Cost: one GET."""
        return self._contents().since

    def write(
        self,
        updates: Any,
        *,
        token: str | None = None,
        expected_upper: int | Antichain | None = None,
        seal: int | Antichain | None = None,
    ) -> CommitFuture:
        """Append updates, and perhaps seal, as one commit: all of it or nothing.

        Args:
            updates: `((key, value), time, diff)` tuples, or anything Arrow (`pa.Table`, `pa.RecordBatch`, an object
                with `__arrow_c_stream__`) that has the key and value columns, `_time` and `_diff`. Updates with diff 0
                are dropped.
            token: names this write, so that trying it again, in whatever process, does nothing if it was done before.
                Remembered while the updates' times are not sealed, and of the last `persist.state.state.TOKENS_KEPT`
                writes after that; a repetition of an older one is refused, because its times are sealed.
            expected_upper: the upper that the collection must have (compare-and-append).
            seal: the upper to seal to; see `seal`.

        Returns:
            a future that resolves when all is durable, or to `UpdateNotBeyondUpper` if an update is at a sealed time,
            `UpperMismatch` if upper is not the expected one, `FrontierRegression` if seal is behind upper, `Locked` or
            `WriterFenced` if another client has the location exclusively.

        Raises:
            SchemaMismatch, InvalidUpdate, CodecMismatch: they do not fit the collection; nothing was written.
            ReadOnly, ClientClosed: this client cannot write.
        """
        expected = [] if expected_upper is None else [self._expect_step(expected_upper)]
        sealing = [] if seal is None else [self._seal_step(seal)]
        token_steps(token, [self.id], [])  # Complain before anything is uploaded.
        writes = self._write_steps(updates)
        steps: list[Step] = [*expected, *writes, *sealing, *token_steps(token, [self.id], writes)]
        return self.client._submit("write", steps, {self.id: self.name})

    def seal(self, upper: int | Antichain, *, expected_upper: int | Antichain | None = None) -> CommitFuture:
        """Promise that no more updates will come at times not beyond upper; `Antichain()` completes it for ever.

        Returns:
            a future that resolves when the seal is durable, or to `FrontierRegression` if upper is behind the
            current one, `UpperMismatch` if that is not expected_upper. A seal to the current upper does nothing.
        """
        expected = [] if expected_upper is None else [self._expect_step(expected_upper)]
        return self.client._submit("seal", [*expected, self._seal_step(upper)], {self.id: self.name})

    def allow_compaction(self, since: int | Antichain) -> CommitFuture:
        """Give up telling times before since apart, as soon as no hold needs them; reads before it fail from then on.

        `Collection.since` tells how far that is: the least of what was allowed and of every live hold.

        Returns:
            a future that resolves when that is durable, or to `FrontierRegression` if since would go back.
        """
        step = AllowCompaction(self.id, Antichain.at(since).elements)
        return self.client._allow_compaction(step, self.name)

    def compact(self, *, only_due: bool = False) -> CompactionReport:
        """Make reading cheap, and destroy what since has passed; readers notice nothing. See `persist.compact.planner`.

        A keyframe is made as of the last sealed time, runs of similar size are merged, small writes leave the log, and
        what was retracted before since is written away: `Client.gc` deletes it after the grace period. Cost: reading
        what is rewritten, a PUT for each new part, and a commit for each piece of work. Memory: `memory_budget`.

        Args:
            only_due: do only what `Settings.compaction` says is worth it by now.

        Raises:
            CorruptBlob: a part cannot be believed; nothing that it is part of was replaced.
            DiffOverflow: a multiplicity does not fit int64.
            InvalidUsage: `memory_budget` cannot hold a row group.
            CollectionNotFound, ReadOnly, Unavailable, ClientClosed.
        """
        return self.client._compact(self.id, self.name, full=not only_due)

    def hold(self, time: int | Moment | None = None, *, name: str | None = None) -> Hold:
        """Keep since at or before a time, durably. Cost: a commit, or nothing if something holds it already.

        Args:
            time: where, as a number or, if the collection has a timeline, a moment; of a named hold that exists it may
                be left out.
            name: makes the hold permanent. Without a name it is released with this client, or when its lease runs out.
                If there is a hold of that name it is returned as it is, and its `time` may be another one.

        Raises:
            AsOfCompacted: since has passed time.
            HoldNotFound: there is no hold of that name, and no time was given to make one.
            ReadOnly: this client only reads.
        """
        self.client._check_writable("hold")
        time = None if time is None else self.as_time("hold time", time)
        if name is not None:
            return self._named_hold(check_hold_name(name), time)
        if time is None:
            raise InvalidUsage("hold() needs the time that since must not pass: hold(time), or hold(name=…)")
        self._check_readable(time)
        leases = self.client._claims()
        return LeasedHold(leases, self.id, leases.claim(self.id, self.name, time, reads=False), time)

    def holds(self) -> list[HoldInfo]:
        """Return all holds on this collection, of whatever client, least time first. Cost: one GET."""
        contents = self._contents()
        leases = self.client._follower.state.control.leases
        found = []
        for name, held in contents.holds.items():
            lease = leases.get(held.lease or "")
            if lease is None:
                found.append(HoldInfo(name, held.time))
            else:
                found.append(HoldInfo(None, held.time, lease.holder, lease.expires_ms))
        return sorted(found, key=lambda hold: hold.time)

    def destroy(self) -> CommitFuture:
        """Remove the collection; its name becomes free for a new one at once.

        Its blobs are deleted by garbage collection, when nobody can be reading them any more.
        """
        return self.client._submit("destroy", [Destroy(self.id)], {self.id: self.name})

    def snapshot(
        self,
        as_of: int | Moment | None = None,
        *,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,
        form: Form = "rows",
        timeout_s: float | None = READ_TIMEOUT_S,
    ) -> Snapshot:
        """Return the contents as of a time, to be read as Arrow, pandas, Polars, batches or Python rows.

        Args:
            as_of: the time; None means the latest sealed one. If the collection has a timeline it may be a moment: its
                contents are those of the last time that is not after it.
            columns: the columns wanted; None means all of them.
            filter: a `pyarrow.compute` expression over key and value columns.
            form: "rows" (each record as often as its multiplicity) or "diff" (once, with `_diff`).
            timeout_s: how long to wait for as_of to be sealed; None waits without limit.

        Raises:
            AsOfCompacted, AsOfNotSealed: as_of cannot be read.
            SchemaMismatch, InvalidUsage: columns or filter do not fit.
        """
        check_request(self.schema, columns, filter, form)
        contents, time, reading = self._claimed(as_of, timeout_s)
        scan = snapshot_scan(contents, self.schema, time, columns, filter)

        def explain() -> Explanation:
            return explained(contents, scan, form, len(snapshot_slices(scan, form, self.client._slice_bytes)))

        return Snapshot(scan, form, reading, explain)

    def changes(
        self,
        lower: int | Moment,
        upper: int | Moment,
        *,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,
        timeout_s: float | None = READ_TIMEOUT_S,
    ) -> Changes:
        """Return the updates with `lower <= time < upper`, consolidated, in time order.

        Args:
            lower, upper: the bounds, as numbers or, if the collection has a timeline, moments.
            timeout_s: how long to wait for `upper - 1` to be sealed; None waits without limit.

        Raises:
            AsOfCompacted: history between `lower - 1` and since has been compacted.
            AsOfNotSealed: upper is beyond the collection's upper.
            InvalidUsage: the interval is not `0 <= lower <= upper`.
        """
        lower, upper = self.as_bound("lower", lower), self.as_bound("upper", upper, most=TIME_MAX + 1)
        check_request(self.schema, columns, filter, "diff")
        if lower > upper:
            raise InvalidUsage(
                f"changes({lower}, {upper}) is backwards: the interval is [lower, upper), so lower <= upper"
            )
        contents = self._contents()
        _check_since(contents, lower)
        if upper > lower and contents.upper.has_beyond(upper - 1):
            contents, _ = self._sealed(upper - 1, timeout_s)
            _check_since(contents, lower)
        contents, reading = self._claim(max(0, lower - 1))
        try:
            _check_since(contents, lower)
            return Changes(self._changes_scan(contents, lower, upper, columns, filter), reading)
        except BaseException:
            reading.close()
            raise

    def listen(self, as_of: int | Moment) -> Listen:
        """Follow the updates after as_of, with progress; since waits for how far that has come.

        Raises:
            AsOfCompacted: as_of is before since.
        """
        as_of = self.as_time("as_of", as_of)
        _check_since(self._contents(), as_of + 1)
        _, reading = self._claim(as_of)
        return self._listen(as_of + 1, reading, None)

    def subscribe(self, as_of: int | Moment | None = None, *, timeout_s: float | None = READ_TIMEOUT_S) -> Listen:
        """Return the contents as of a time as the first progress (at time as_of), then what `listen` returns.

        Both are taken at one point of the log, so that no update is seen twice or missed. None means the latest
        sealed time; timeout_s is how long to wait for as_of to be sealed.

        Raises:
            AsOfCompacted, AsOfNotSealed: as_of cannot be read.
        """
        contents, time, reading = self._claimed(as_of, timeout_s)
        try:
            scan = snapshot_scan(contents, self.schema, time, None, None)
            with reading.explained():
                empty = scan.empty([*scan.columns, "_diff"])
                found = pa.concat_tables([empty, *snapshot_tables(scan, "diff", reading)])
        except BaseException:
            reading.close()
            raise
        times = pa.repeat(pa.scalar(time, pa.int64()), len(found))
        updates = found.add_column(len(self.schema.names), self.schema.arrow.field("_time"), times)
        return self._listen(time + 1, reading, Progress(updates, Antichain(time + 1)))

    def commit_parts(
        self, parts: Sequence[Part], *, seal: Antichain | None = None, token: str | None = None
    ) -> CommitFuture:
        """Append parts that were stored with `persist.write.part_writer.PartWriter`, and perhaps seal, as one commit.

        For engines whose tasks encode and upload by themselves. Parts of a commit that is rejected are deleted. With a
        token it happens once, as `write` does.
        """
        steps = self._part_steps(parts)
        if seal is not None:
            steps.append(self._seal_step(seal))
        steps += token_steps(token, [self.id], steps)
        return self.client._submit("commit_parts", steps, {self.id: self.name})

    def as_time(self, what: str, given: int | Moment) -> int:
        """Return a number as it is, and of a moment the last time not after it; what says in errors what it is.

        Raises:
            InvalidUsage: it is neither, or a moment and the collection has no timeline.
        """
        if isinstance(given, (datetime, str)):
            return self._timeline_for(what, given).time_of(given)
        return as_time(what, given)

    def as_bound(self, what: str, given: int | Moment, *, most: int = TIME_MAX) -> int:
        """Like `as_time`, with the first time that is not before a moment: the bound of an interval."""
        if isinstance(given, (datetime, str)):
            return self._timeline_for(what, given).bound_of(given)
        return as_time(what, given, most=most)

    def _timeline_for(self, what: str, given: Moment) -> Timeline:
        if self.timeline is None:
            raise InvalidUsage(
                f"{what} {given!r} is not an integer in [0, {TIME_MAX}], and the collection {self.name!r} has no "
                'timeline by which a moment would be one. Give a number, or create one with timeline="us".'
            )
        return self.timeline

    def __repr__(self) -> str:
        return f"<Collection {self.name!r} at {self.client.url}>"

    def _write_steps(self, updates: Any) -> list[Step]:
        self.client._check_writable("write")
        step = self.client._write_step(self.id, self.schema, updates)
        return [step] if step is not None else []

    def _part_steps(self, parts: Sequence[Part], *, keep: bool = False) -> list[Step]:
        try:
            check_parts(self.id, parts)
        except ValueError as error:
            raise InvalidUsage(f"these parts cannot be committed: {error}. Upload them with PartWriter.") from error
        if not parts:
            return []
        uploaded: Future[tuple[Part, ...]] = Future()
        uploaded.set_result(tuple(parts))
        return [Write(self.id, self.schema, min(part.time_min for part in parts), 0, uploaded, keep)]

    def _expect_step(self, upper: int | Antichain) -> ExpectUpper:
        return ExpectUpper(self.id, Antichain.at(upper))

    def _seal_step(self, upper: int | Antichain) -> Seal:
        return Seal(self.id, Antichain.at(upper).elements)

    def _contents(self) -> CollectionState:
        self.client._check_open("reading")
        return self.client._follower.current(self.id, self.name)

    def _sealed(self, as_of: int | Moment | None, timeout_s: float | None) -> tuple[CollectionState, int]:
        """Wait until as_of (None: any time) is sealed; return the contents of that moment and the time to read."""
        self.client._check_open("reading")
        if as_of is not None:
            as_of = self.as_time("as_of", as_of)
        if timeout_s is not None and not (isinstance(timeout_s, (int, float)) and timeout_s >= 0):
            raise InvalidUsage(
                f"timeout_s={timeout_s!r} is not a number of seconds; give 0 or more, or None for no limit"
            )
        follower = self.client._follower

        def sealed() -> CollectionState | None:
            contents = follower.known(self.id, self.name)
            if as_of is not None and not contents.since.has_beyond(as_of):
                raise AsOfCompacted(as_of, contents.since)
            return None if contents.upper.has_beyond(as_of or 0) else contents

        contents = follower.wait_for(sealed, timeout_s)
        if contents is None:
            raise AsOfNotSealed(as_of, follower.known(self.id, self.name).upper, timeout_s or 0.0)
        time = _latest(contents) if as_of is None else as_of
        if not contents.since.has_beyond(time):
            raise AsOfCompacted(time, contents.since)
        return contents, time

    def _claimed(self, as_of: int | Moment | None, timeout_s: float | None) -> tuple[CollectionState, int, Reading]:
        """Like `_sealed`, of a moment from which on since waits for the read."""
        _, time = self._sealed(as_of, timeout_s)
        contents, reading = self._claim(time)
        return contents, time, reading

    def _claim(self, time: int) -> tuple[CollectionState, Reading]:
        """Keep since at or before time; return the contents of a moment after that, and what to read them with."""
        claim = self.client._claim(self.id, self.name, time)
        try:
            # What a claim costs no commit for may be as old as the state; blobs outlive both by the grace period.
            contents = self.client._follower.known(self.id, self.name)
            if not contents.since.has_beyond(time):
                raise AsOfCompacted(time, contents.since)
        except BaseException:
            claim.release()
            raise
        return contents, Reading(self.client._source, claim, self.needs)

    def needs(self, blob: str) -> bool:
        """Return whether the collection, as it is now, refers to a blob."""
        try:
            contents = self._contents()
        except CollectionNotFound:
            return False
        return any(part.blob == blob for part in contents.parts)

    def _check_readable(self, time: int) -> None:
        since = self._contents().since
        if not since.has_beyond(time):
            raise AsOfCompacted(time, since)

    def _named_hold(self, name: str, time: int | None) -> NamedHold:
        while True:
            holds = self._contents().holds
            found = holds.get(name)
            if found is None and time is None:
                raise HoldNotFound(name, tuple(n for n, held in holds.items() if held.lease is None))
            if found is not None and found.lease is None:
                return NamedHold(
                    name,
                    found.time,
                    lambda expected, to: self._move_hold(name, expected, to),
                    lambda at: self._drop(name, at),
                )
            assert time is not None
            with suppress(HoldMoved):  # Somebody else made it in between: return theirs.
                self._move_hold(name, None, time)

    def _move_hold(self, name: str, expected: int | None, time: int) -> None:
        step = SetHold(self.id, name, time, None, expected)
        self.client._submit("hold", [step], {self.id: self.name}).result()

    def _drop(self, name: str, expected: int) -> None:
        self.client._submit("release", [ReleaseHold(self.id, name, expected)], {self.id: self.name}).result()

    def _changes_scan(
        self,
        contents: CollectionState,
        lower: int,
        upper: int,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,
    ) -> Scan:
        return changes_scan(contents, self.schema, lower, upper, columns, filter)

    def _listen(self, lower: int, reading: Reading, first: Progress | None) -> Listen:
        def read(reading: Reading, contents: CollectionState, lower: int, upper: int) -> pa.Table:
            return read_changes(self._changes_scan(contents, lower, upper), reading())

        return Listen(self.client._follower, self.id, self.name, lower, reading, read, first)


def _latest(contents: CollectionState) -> int:
    """Return the last sealed time of contents, which has one."""
    return TIME_MAX if contents.upper.time is None else contents.upper.time - 1


def _check_since(contents: CollectionState, lower: int) -> None:
    """Raise unless updates from lower on can be told apart: since is at most `lower - 1`, or nothing came before."""
    if lower == 0 and contents.since == Antichain(0):
        return
    if not contents.since.has_beyond(lower - 1):
        raise AsOfCompacted(lower - 1, contents.since, lower)
