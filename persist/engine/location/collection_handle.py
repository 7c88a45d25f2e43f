"""One collection of an engine, with the basic operations for reads and writes.

A handle identifies the collection by id: after a drop, it does not refer to a new collection of the same name.
"""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, get_args

import pyarrow as pa
import pyarrow.compute as pc

from persist.codecs.errors import SchemaMismatch
from persist.codecs.nested import describe_changes
from persist.codecs.part.part import Part
from persist.codecs.types.schema import CollectionSchema
from persist.codecs.updates.updates import Stamp, to_plain_rows
from persist.core.antichain import END, Antichain, encode_frontier, to_antichain
from persist.core.errors import (
    AsOfNotSealed,
    CollectionNotFound,
    InvalidUsage,
    KeyedCollection,
    attach_timeline,
)
from persist.core.keyed.form import find_machine
from persist.core.keyed.intake import EventTable
from persist.core.keyed.machine import Machine
from persist.core.log import kinds
from persist.core.log.fields import KeyedForm
from persist.core.log.keys import check_parts
from persist.core.state_rules.collection_rules import ExpectUpper
from persist.core.state_rules.contents import CollectionState, check_readable, get_last_sealed, summarize_unsealed
from persist.core.state_rules.schemas import load_newest_schema, load_schema_version
from persist.core.timeline import (
    Moment,
    Timeline,
    Times,
    format_time,
    is_column_name,
    is_moment,
    read_timeline,
)
from persist.engine.hold import Claim, WantedClaim, make_empty_claim
from persist.engine.location.collection_times import LATEST, CollectionTimes
from persist.engine.location.engine import Engine
from persist.engine.location.moments import MOMENTS, MomentMap, check_timeout
from persist.engine.read.keyed.resolution import require_machine
from persist.engine.read.merging import read_snapshot_tables
from persist.engine.read.parts.reader import ClaimedRead
from persist.engine.read.planning.snapshot_plan import plan_snapshot
from persist.engine.write.commit_future import CommitFuture
from persist.engine.write.operations import Asked, AtCommit, Step, Write


@dataclass(frozen=True, slots=True)
class CollectionHandle(CollectionTimes):
    """A collection by id, with the schema that the user of this handle has.

    Attributes:
        engine: reads and writes it.
        id: unique in the location, for ever.
        loaded_as: the name of the collection when it was loaded.
        schema: its key and value columns.
        keyed: how it resolves events, if it is keyed.
        machine: resolves its events, if this process has it.
        is_kept: reads claim nothing, because a permanent hold keeps their history. Such reads must be shorter than the
            grace period, for which unused blobs are kept.
        allow_future: whether writes may get their time from a clock that is far ahead.
        create: the step that creates the collection in the first commit; None if it exists.
    """

    engine: Engine
    id: str
    loaded_as: str
    schema: CollectionSchema
    keyed: KeyedForm | None = None
    machine: Machine | None = None
    is_kept: bool = False
    allow_future: bool = False
    create: kinds.Create | None = None

    def with_future_times(self, *, allow_future: bool) -> "CollectionHandle":
        """Return the handle with another `allow_future`."""
        return self if allow_future == self.allow_future else replace(self, allow_future=allow_future)

    @property
    def name(self) -> str:
        """The known name of the collection; if it was dropped, the name that it was loaded by."""
        entry = self.engine.follower.entry(self.id)
        return self.loaded_as if entry is None else entry.name

    def contents(self) -> CollectionState:
        """Return the newest state of the collection; an empty one before its creating commit. Cost: one GET.

        Raises CollectionNotFound: it was dropped.
        """
        self.engine.check_open("reading")
        if self.create is not None and self.engine.follower.entry(self.id) is None:
            return CollectionState(self.id, self.loaded_as, self.create.schema)
        return self.engine.follower.refresh_and_require(self.id, self.loaded_as)

    def get_known_state(self) -> CollectionState:
        """Return the known state of the collection, without a request. Raises CollectionNotFound: it was dropped."""
        if self.create is not None and self.engine.follower.entry(self.id) is None:
            return CollectionState(self.id, self.loaded_as, self.create.schema)
        contents = self.engine.follower.load(self.id)
        return self.engine.follower.require(self.id, self.loaded_as) if contents is None else contents

    def remembers_token(self, contents: CollectionState, token: str | None) -> bool:
        """Return whether contents have a write with a token; cost and errors as of `TokenMemory.find`."""
        return self.engine.follower.find_token(contents, token) is not None

    def get_reading_schema(self, version: int | None = None) -> CollectionSchema:
        """Return the newest known schema, or a version of it, with the codecs of its user."""
        return self.load_schema(self.get_known_state(), version)

    def load_schema(self, contents: CollectionState, version: int | None) -> CollectionSchema:
        """Return the newest schema of a state, or a version of it, with the codecs of its user."""
        return load_newest_schema(self.schema, contents) if version is None else load_schema_version(contents, version)

    def newest(self) -> "CollectionHandle":
        """Return a handle on the same collection with its newest schema."""
        return self.adapt_to(self.get_known_state())

    def adapt_to(self, contents: CollectionState) -> "CollectionHandle":
        """Return a handle on the same collection with the newest schema of a state."""
        schema = load_newest_schema(self.schema, contents)
        if schema is self.schema and contents.keyed == self.keyed:
            return self
        machine = self.machine
        if contents.keyed is not None:
            machine = find_machine(contents.keyed, machine, contents.name)
        return replace(self, schema=schema, keyed=contents.keyed, machine=machine)

    def as_keyed(self) -> "CollectionHandle":
        """Return a new handle if the collection has become keyed since it was loaded, by the known state."""
        entry = None if self.keyed is not None else self.engine.follower.entry(self.id)
        is_later = entry is not None and entry.contents is not None and entry.contents.keyed is not None
        return self.newest() if is_later else self

    def get_current_schema(self, contents: CollectionState) -> CollectionSchema:
        """Return the user's schema; raise an error if it is not the newest, because differences need that."""
        if contents.keyed is not None and self.keyed is None:
            raise KeyedCollection(self.name, "what this handle asks for")
        if self.schema.version != len(contents.earlier) + 1:
            newest = contents.schema
            base = load_schema_version(contents, self.schema.version)
            raise SchemaMismatch(
                f"collection {self.name!r} was loaded with version {base.version} of its schema, and has version "
                f"{newest.version} by now: {'; '.join(describe_changes(base, newest))}. The write would be "
                "computed for the older version: load it again."
            )
        return self.schema

    def wait_sealed(
        self, as_of: int | Moment | None, timeout_s: float | None, *, until: int | None = None
    ) -> tuple[CollectionState, int]:
        """Wait until as_of is sealed; return the state then, with all own writes (rule 3), and the time to read.

        Args:
            timeout_s: how long to wait for the seal; None without a limit.
            as_of: None means the latest sealed time; if nothing is sealed, the call fails at once.
            until: the upper bound of the requested changes, for the error.

        Raises:
            AsOfCompacted, AsOfNotSealed: as_of cannot be read, or not within timeout_s.
        """
        self.engine.check_open("reading")
        self.engine.settle()
        if isinstance(as_of, str) and self._means_last_sealed(as_of):
            as_of = None
        check_timeout(timeout_s)
        if as_of is not None:
            as_of = self._await_time(as_of, timeout_s)

        def look() -> CollectionState | None:
            contents = self.get_known_state()
            if as_of is not None:
                check_readable(contents, as_of)
            return contents if (as_of or 0) < contents.upper else None

        timeout_s = 0.0 if as_of is None else timeout_s
        contents = self.engine.follower.wait_for(look, timeout_s)
        if contents is None:
            contents = self.get_known_state()  # From a moment later: the seal may just have come.
        if (as_of or 0) >= contents.upper:
            hidden = summarize_unsealed(contents)
            advice = hidden.advice if hidden else ""
            view = "" if contents.view is None else self.name
            upper = to_antichain(contents.upper)
            error = AsOfNotSealed(as_of, upper, timeout_s or 0.0, advice, until, view)
            raise attach_timeline(error, contents.timeline)
        time = get_last_sealed(contents) if as_of is None else as_of
        check_readable(contents, time)
        return contents, time

    def _await_time(self, as_of: int | Moment, timeout_s: float | None) -> int:
        """Return the time of as_of; wait for moments that a source has not reached."""
        if timeout_s == 0 or self.timeline is not None or not is_moment(as_of):
            return self.as_time("as_of", as_of)

        def look() -> int | None:
            try:
                return self.as_time("as_of", as_of)
            except AsOfNotSealed:
                return None

        time = self.engine.follower.wait_for(look, timeout_s)
        return self.as_time("as_of", as_of) if time is None else time

    def claim(self, time: int, consumer: str = "", *, end: int | None = None) -> tuple[CollectionState, ClaimedRead]:
        """Claim a time; return a state after the claim, and a reader of its parts.

        Args:
            consumer: see `Engine.claim_all`.
            end: see `fold`.

        Raises:
            AsOfCompacted: since has passed time.
        """
        claim = make_empty_claim(self.id) if self.is_kept else self.engine.claim(self.id, self.name, time, consumer)
        return self._start_read(claim, time, end)

    def _start_read(self, claim: Claim, time: int, end: int | None) -> tuple[CollectionState, ClaimedRead]:
        """Return the contents to read at a time, and the read's claim."""
        try:
            # A claim that needs no commit may be as old as the state; blobs outlive both by the grace period.
            contents = self.get_known_state()
            check_readable(contents, time)
            contents = self.fold(contents, end=end)
        except BaseException:
            claim.release()
            raise
        return contents, ClaimedRead(self.engine.reader, claim, self.needs, contents.name)

    def fold(self, contents: CollectionState, *, end: int | None = None) -> CollectionState:
        """Return contents with all sealed events resolved, for reads by this client.

        The resulting updates are in parts that only this client has. Cost: the first time, reading the events and the
        rows of their keys.

        Args:
            end: only times before it are read; None for all. A machine that fails on later events then does not fail
                this read.
        """
        if contents.keyed is None or contents.resolved_times is None:
            return contents
        return self.engine.folds.fold(contents, lambda: self.load_machine(contents), self.engine.reader, end)

    def load_machine(self, contents: CollectionState) -> Machine:
        """Return the machine with which a keyed collection resolves events."""
        assert contents.keyed is not None
        return require_machine(find_machine(contents.keyed, self.machine, self.name), contents.keyed, self.name)

    def make_pend_step(self, events: EventTable) -> Write:
        """Return the step that adds events to a commit, and start their upload."""
        return self.engine.writer("upsert").committer.write_steps.of_events(self.id, events)

    def wait_and_claim(
        self, as_of: int | Moment | None, timeout_s: float | None, consumer: str = ""
    ) -> tuple[CollectionState, int, ClaimedRead]:
        """Wait for a sealed time, then claim it. Cost: a commit, or a refresh if the claim is free."""
        check_timeout(timeout_s)
        early = None if consumer else self._claim_unseen(as_of)
        if early is not None:
            return early
        _, time = self.wait_sealed(as_of, timeout_s)
        contents, reading = self.claim(time, consumer, end=time + 1)
        return contents, time, reading

    def _claim_unseen(self, as_of: int | Moment | None) -> tuple[CollectionState, int, ClaimedRead] | None:
        """Do `wait_and_claim` without a refresh before the claim, if that is possible.

        Return None if a refresh is needed. It is possible for the latest time, and for times that are known to be
        sealed. The state includes the record of the claim, and so everything committed before the call.
        """
        self.engine.check_open("reading")
        exact_as_of = as_of if type(as_of) is int and as_of >= 0 else None
        if self.is_kept:
            if exact_as_of is None or self.get_known_state().upper <= exact_as_of:
                return None
            contents, reading = self.claim(exact_as_of, end=exact_as_of + 1)
            return contents, exact_as_of, reading
        if exact_as_of is None and not (as_of is None or as_of == LATEST):
            return None
        self.engine.settle()

        def sealed_time() -> int | None:
            """Return the time if it is sealed as far as known, otherwise None."""
            entry = self.engine.follower.entry(self.id)
            contents = None if entry is None else entry.contents
            if contents is None or (exact_as_of or 0) >= contents.upper:
                return None
            return get_last_sealed(contents) if exact_as_of is None else exact_as_of

        time = sealed_time()
        claim = None if time is None else self.engine.claim_unseen(WantedClaim(self.id, self.name, time))
        if claim is None:
            return None
        if time is None or sealed_time() != time:
            claim.release()
            return None
        contents, reading = self._start_read(claim, time, end=time + 1)
        self.engine.follower.looks.note()
        return contents, time, reading

    def needs(self, blob: str) -> bool:
        """Return whether the newest state refers to a blob. Cost: one GET."""
        self.engine.follower.looks.force_next_look()
        try:
            contents = self.contents()
        except CollectionNotFound:
            return False
        return any(part.blob == blob for part in contents.stored_parts)

    def stamp(self, time: int | Moment | None, diff: int | None) -> Stamp | None:
        """Return the time and diff that plain rows lack, or None.

        Return None without time and diff, because then the rows may be updates. A text that is not a number, a moment
        or a word for a time names the column that has the times.
        """
        if time is None:
            return None if diff is None else Stamp(None, diff)
        return Stamp(time if is_column_name(time) else self.to_exact_time("time", time), diff)

    def write_steps(self, updates: Any, stamp: Stamp | None = None, *, token: str | None = None) -> list[Step]:
        """Return the steps that add updates, or plain rows with a stamp, to a commit; start their upload.

        The input may have any form that `Collection.write` accepts. Plain rows without a time get the time of the
        commit, which seals after it. With a token, their digest is also included.

        Raises:
            SchemaMismatch, InvalidUpdate, CodecMismatch: they do not fit the collection.
            ReadOnly, ClientClosed: this client cannot write.
        """
        self.check_plain("write")
        by = () if token is None else (*self.schema.names, "_time")
        if stamp is None or stamp.time is None:
            updates, is_plain = to_plain_rows(updates, self.schema)
            if is_plain:
                stamp = stamp or Stamp(None)
            elif stamp is not None:
                raise InvalidUsage(
                    f"diff={stamp.diff!r} is for plain rows, but these are updates with times and diffs of their own"
                )
        step = self.engine.writer("write").write_step(self.id, self.schema, updates, stamp, digest_by=by)
        if step is None:
            return []
        request = [] if token is None else [Asked(self.id, step.digest)]
        return [step, *([self.commit_time_step()] if step.at_commit else []), *request]

    def commit_time_step(self, time: int | None = None) -> AtCommit:
        """Return the step that assigns the commit's time to writes without one; time: the required one, if any."""
        return AtCommit(self.id, self.schema.timeline, time, self.allow_future)

    def make_part_steps(self, parts: Sequence[Part], *, keep: bool = False) -> list[Write]:
        """Return the steps that add parts to a commit. `PartWriter` has stored the parts already.

        `keep`: do not delete them if the commit is rejected.
        """
        try:
            check_parts(self.id, parts)
        except ValueError as error:
            raise InvalidUsage(f"these parts cannot be committed: {error}. Upload them with PartWriter.") from error
        self.check_plain("add_parts")
        if not parts:
            return []
        uploaded: Future[tuple[Part, ...]] = Future()
        uploaded.set_result(tuple(parts))
        return [Write(self.id, self.schema, min(part.time_min for part in parts), 0, uploaded, keep)]

    def expect_step(self, upper: int | Moment | Antichain) -> ExpectUpper:
        """Return the step that rejects a commit unless the collection has this upper."""
        return ExpectUpper(self.id, encode_frontier(self.frontier("expected upper", upper)))

    def seal_step(self, upper: int | Moment | Antichain) -> kinds.Seal:
        """Return the step that seals the collection in a commit."""
        return kinds.Seal(self.id, encode_frontier(self.frontier("upper", upper)))

    def submit(self, action: str, steps: Sequence[Step]) -> CommitFuture:
        """Queue steps on this collection as one commit; see `Engine.submit`."""
        created = [] if self.create is None else [self.create]
        return self.engine.submit(action, [*created, *steps], {self.id: self.name})

    @property
    def timeline(self) -> Timeline | None:
        """The conversion between times and moments; None if times are only numbers."""
        return read_timeline(self.schema)

    def format_time(self, time: int) -> str:
        """Return a time for people: the number, and its moment if there is a timeline."""
        return format_time(time, self.timeline)

    def moments(self, times: Times | None) -> Timeline | None:
        """Return the converter of `_time` to timestamps; None for numbers.

        `times`: None means timestamps if the collection has a timeline.
        """
        if times is None:
            return self.timeline
        if times not in get_args(Times):
            raise InvalidUsage(f'times={times!r} is not a form of a time: give "int" or "timestamp"')
        if times == "timestamp" and self.timeline is None:
            raise InvalidUsage(
                f'times="timestamp" needs a timeline, and the collection {self.name!r} has none: its times are numbers '
                "that only count."
            ).with_remedy("Ask for {times:option:int}, or create one with {timeline:option:us}.")
        return self.timeline if times == "timestamp" else None

    def choose_time(self, contents: CollectionState, as_of: int | Moment | None) -> int:
        """Return the time to read at; None and "latest" are the last sealed time of that state.

        Raises AsOfNotSealed: nothing is sealed in it.
        """
        if as_of is not None and not self._means_last_sealed(as_of):
            return self.as_time("as_of", as_of)
        if contents.upper == 0:
            return self.wait_sealed(None, 0.0)[1]  # It raises the reason, or finds a sealed time by now.
        return get_last_sealed(contents)

    def check_write_times(self, steps: Sequence[Step], *, allow_future: bool) -> None:
        """Refuse writes with an implausible first or last time; for a stream only the first is known."""
        for step in steps:
            if isinstance(step, Write) and not step.at_commit:
                try:
                    ends = [step.time_min, *([] if step.time_max is None else [step.time_max])]
                    self.check_times(ends, allow_future=allow_future)
                except InvalidUsage:
                    self.engine.abandon(steps)
                    raise

    def check_plain(self, action: str) -> None:
        """Raise KeyedCollection if the collection is keyed, so that it has no plain updates."""
        if self.keyed is not None:
            raise KeyedCollection(self.name, action)

    def _load_moment_map(self) -> MomentMap | None:
        """Return the map between times and moments, if times are positions in a source; else None.

        Cost: one GET, and a few more for each conversion.
        """
        id_ = None if self.timeline is not None else self._find_moment_map(self.contents())
        if id_ is None:
            return None
        contents = self.engine.follower.load(id_)
        if contents is None:
            raise InvalidUsage(f"the collection with the moments of {self.name!r} was dropped: give times as numbers")
        moments = CollectionHandle(self.engine, id_, contents.name, contents.schema)

        def read(filter: pc.Expression) -> pa.Table:
            contents, time, reading = moments.wait_and_claim(None, 0.0)
            try:
                scan = plan_snapshot(contents, moments.schema, time, None, filter)
                return pa.concat_tables([scan.empty([*scan.columns]), *read_snapshot_tables(scan, "rows", reading)])
            finally:
                reading.close()

        return MomentMap(self.name, contents.upper, read)

    def _find_moment_map(self, contents: CollectionState) -> str | None:
        """Return the id of the moment map of a collection, or of all inputs of a view; None without one."""
        map_name = contents.about.properties.get(MOMENTS)
        if map_name is not None or contents.view is None:
            return map_name
        inputs = [self.engine.follower.load(id_) for id_ in contents.view["inputs"]]
        maps = {None if input_ is None else self._find_moment_map(input_) for input_ in inputs}
        return maps.pop() if len(maps) == 1 else None

    def read_until(self) -> datetime | None:
        """Return the moment up to which the source of the collection was read; None if unknown. Cost: a few GETs."""
        moments = self._load_moment_map()
        return None if moments is None or moments.upper in (0, END) else moments.last()

    def find_moment(self, time: int) -> datetime | None:
        """Return the moment of a time; None if unknown. Cost: a few GETs if times are positions."""
        if self.timeline is not None:
            return self.timeline.to_datetime(time)
        moments = self._load_moment_map()
        return None if moments is None else moments.at(time)
