"""Sources: a persisted collection as a snapshot, followed by its changes.

A hold keeps the history of a source that a program needs. If the program writes outputs, the hold is permanent, has the
name of the program, and outlives every process until `Program.drop`; otherwise it is leased. A permanent hold is at the
time from which the program would resume. It moves in the commit that seals the outputs further, so it always matches
them.
"""

import time as clock
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from persist.blob.errors import InvalidUsage
from persist.codecs.errors import SchemaMismatch
from persist.codecs.types.schema import CollectionSchema, Shape
from persist.compute.dataflow.plan.draft import Draft
from persist.compute.dataflow.plan.plan import Source
from persist.compute.dataflow.plan.types import format_schema, is_compatible
from persist.compute.dataflow.ports.hints import make_hint
from persist.compute.dataflow.ports.inputs import Gate, InputHandle
from persist.compute.dataflow.ports.past import ExplainLoss, encode_contents, encode_table
from persist.compute.dataflow.updates.times import Ints
from persist.compute.dataflow.updates.words import Domain
from persist.core.antichain import Antichain, to_antichain, to_frontier
from persist.core.errors import AsOfNotSealed
from persist.core.expression.term import Term
from persist.core.state_rules.contents import CollectionState
from persist.core.state_rules.schemas import attach_versions, load_schema_version
from persist.engine.collection.descriptions import set_hold_schema, take_hold
from persist.engine.collection.reads import begin_listen, snapshot
from persist.engine.collection.unsealed_updates import UnsealedUpdates
from persist.engine.hold import Hold
from persist.engine.location.collection_handle import CollectionHandle
from persist.engine.location.engine import Engine
from persist.engine.location.opening import load_handle
from persist.engine.read.following.listen import Listen, Progress

BRIEF_BYTES_MAX = 16 << 20  # The size of a source that is read in far less time than the grace of blobs.
LEASED_EVERY_S = 1.0  # How often the hold of a program without outputs is moved, at most.


class SourceReader:
    """Reads one source into its gate.

    Args:
        alternatives: lists of conditions. Only records that meet all of one list need be read; empty: all records.
        renews: the program has changed: it reads with the newest schema from now on.
        is_brief: the read ends soon, so it takes no lease if there are permanent holds. A source of a few MiB takes
            none either if the program need not make these holds (as for views), because a failed read can begin again.

    Attributes:
        named: the last known time of each permanent hold, by its name.
        as_of: the time as of which its contents are read.
        filter: the condition on the records that are read; None for all records.
        coarse_to: changes before this time count as changes at it, so that some cancel out.
        has_lost: changes were read but not taken in, and will not come again.
    """

    def __init__(
        self,
        program: Draft,
        engine: Engine,
        operator: Source,
        schema: pa.Schema,
        gate: Gate,
        domain: Domain,
        alternatives: Sequence[Sequence[Term]] = (),
        *,
        renews: bool = False,
        is_brief: bool = False,
    ) -> None:
        self.operator = operator
        self._explained = ExplainLoss(operator.collection)
        self._engine = engine
        self._holders = program.list_holds(operator.collection)
        self._makes_holds = program.makes_holds()
        self._schema = schema
        self._gate = gate
        self._domain = domain
        self.coarse_to: int | None = None
        self.as_of = 0
        self.named: dict[str, int] = {}
        self._leased: Hold | None = None
        self._first: Hold | None = None  # Keeps the snapshot readable until it has been read.
        self._moved_at = clock.monotonic()
        self._listen: Listen | None = None
        self.has_lost = False
        self._is_given = False
        with self._explained:
            self.handle = program.load_source(engine, operator.collection)
            contents = self.handle.get_known_state()
            if not (is_brief or self._makes_holds):
                is_brief = sum(part.bytes for part in contents.parts) <= BRIEF_BYTES_MAX
            self._is_brief = bool(self._holders) and is_brief
            if not renews:
                self._keep_schema(contents)
        self._check_schema()
        versions = attach_versions(self.handle.schema, contents)
        self.filter = make_hint(alternatives, versions) if alternatives else None
        self._renews = renews
        self._unsealed = UnsealedUpdates(self.handle, schema.names) if operator.unsealed else None

    def _keep_schema(self, contents: CollectionState) -> None:
        """Use the schema version with which the outputs began, if any.

        They were computed from these columns. A newer version may give the name of one of them to another column.
        """
        holds = [contents.holds[name] for name in self._holders if name in contents.holds]
        # A view that only reads views of it began with any version.
        own_holds = [hold for hold in holds if hold.columns] or holds
        versions = sorted({hold.schema for hold in own_holds if hold.schema is not None})
        if versions == [self.handle.schema.version]:
            return
        schemas = [load_schema_version(contents, version) for version in versions]
        for earlier, later in pairwise(schemas):
            columns = [self._find_columns(schema_version) for schema_version in (earlier, later)]
            if columns[0] != columns[1]:
                raise SchemaMismatch(
                    f"source {self.operator.collection!r}: outputs that are refreshed together began with different "
                    f"versions of its schema, {earlier.version} and {later.version}, in which the columns "
                    f"{self._schema.names} are not the same. Refresh them one by one, or create them again."
                )
        if schemas:
            self.handle = replace(self.handle, schema=schemas[-1])

    def _find_columns(self, schema: CollectionSchema) -> list[tuple[int, Shape] | None]:
        """Return the id and shape of each read column in a schema; None if missing."""
        ids = dict(zip(schema.names, zip(schema.ids, schema.shapes, strict=True), strict=True))
        return [ids.get(name) for name in self._schema.names]

    def _check_schema(self) -> None:
        """Raise SchemaMismatch if the collection lacks a column or type of the program."""
        actual = self.handle.schema
        for field in self._schema:
            actual_type = actual.arrow.field(field.name).type if field.name in actual.names else None
            if actual_type != field.type and not is_compatible(actual_type, field.type):
                problem = "is not there" if actual_type is None else f"is of type {actual_type}"
                raise SchemaMismatch(
                    f"source {self.operator.collection!r}: the program reads column {field.name!r} as {field.type}, "
                    f"but it {problem}; the collection has {format_schema(actual.arrow)}"
                )

    def get_requested_time(self) -> int | None:
        """Return the time as of which the program reads the contents, if it sets one."""
        if self.operator.as_of is None:
            return None
        with self._explained:
            return self.handle.as_time("as_of", self.operator.as_of)

    def start(self, as_of: int) -> None:
        """Begin with the contents as of a time, which need not be sealed yet.

        Raises HoldNotFound: a hold is missing that this reader does not make.
        """
        self.as_of = as_of
        if self._engine.mode == "read":
            return
        with self._explained:
            handle = self.handle
            self._first = None if self._is_brief else take_hold(handle, as_of, None)
            version = handle.schema.version
            # One may be further already, because another copy of the program has moved it.
            time = as_of if self._makes_holds else None
            held = {} if self._makes_holds else handle.get_known_state().holds
            self.named = {
                name: held[name].time if name in held else take_hold(handle, time, name, version).time
                for name in self._holders
            }
            if not self._holders:
                self._leased = take_hold(handle, as_of, None)
            for name in self._holders if self._renews else ():
                set_hold_schema(handle, name, version)
            self.handle = replace(handle, is_kept=self._is_brief)

    def skip_contents(self) -> None:
        """Read only the changes after `as_of`, because operators load contents on request."""
        with self._explained:
            self._listen = begin_listen(self.handle, self.as_of, None, columns=self._schema.names, filter=self.filter)
        self._gate.frontier = Antichain(self.as_of + 1)

    def find_held_time(self) -> int | None:
        """Return the least time of the permanent holds on this source; None without any."""
        holds = self.handle.get_known_state().holds
        return min([holds[name].time for name in self._holders if name in holds], default=None)

    def open_input(self) -> InputHandle:
        """Read a source that the program writes; return the input for its updates."""
        with self._explained:
            contents = self.handle.contents()
        if contents.upper > self.as_of and not self.take(contents):
            raise AsOfNotSealed(self.as_of, to_antichain(contents.upper), 0.0)
        self._is_given = True
        if self._listen is not None:
            self._listen.close()
        return InputHandle(self.operator.collection, self.handle.schema, self._gate, self._domain, 1)

    def load_advance(self) -> CollectionState | None:
        """Return the newest state if it is sealed beyond what was taken."""
        handle, listen = self.handle, self._listen
        if self._is_given:
            return None  # The commit of the program notices other writes.
        with self._explained:
            if listen is None:
                contents = handle.get_known_state()
                return contents if contents.upper > self.as_of else None
            listen.check_unclosed()
            if listen.is_finished:
                return None
            contents = handle.get_known_state()
            is_ahead = self._unsealed is not None and self._unsealed.have_changed(listen.reached)
            return contents if listen.has_advanced(contents) or is_ahead else None

    @property
    def reached(self) -> int:
        """The first time whose updates were not taken yet."""
        if self._is_given:
            return to_frontier(self._gate.frontier)
        return self.as_of + 1 if self._listen is None or self._listen.is_finished else self._listen.reached

    def take(self, contents: CollectionState, until: int | None = None) -> bool:
        """Take the updates that a state seals; return whether there were any.

        `until`: after the first contents, take only updates before this time.
        """
        with self._explained:
            if self._listen is None and not self._read_contents():
                return False
            # Updates after the time at which it begins are taken at once.
            listen = self._listen
            if listen is None or listen.is_finished:
                return True
            if listen.has_advanced(contents) and (until is None or until > listen.reached):
                self._take_progress(listen.advance(contents, until))
            if until is None and not listen.is_finished:
                self._look_ahead(listen.reached)
        return True

    def note_moved_holds(self, durable: int | None) -> None:
        """Remember that a commit has moved the permanent holds to a time."""
        if durable is not None:
            self.named = {name: max(time, durable) for name, time in self.named.items()}

    def reload_holds(self) -> None:
        """Load the permanent holds again: one was moved or dropped."""
        with self._explained:
            holds = self.handle.contents().holds
        self.named = {name: holds[name].time for name in self.named if name in holds}

    def move_leased(self) -> None:
        """Let the source be compacted up to the time that was read, now and then."""
        read_to = self._gate.frontier.time
        if self._leased is None or read_to is None or clock.monotonic() - self._moved_at < LEASED_EVERY_S:
            return
        self._moved_at = clock.monotonic()
        if read_to - 1 > self._leased.time:
            self._leased.advance(read_to - 1)

    def close(self) -> None:
        """Stop reading. A permanent hold stays."""
        if self._listen is not None:
            self._listen.close()
            self._listen = None
        self.release_snapshot()
        if self._leased is not None:
            self._leased.close()
            self._leased = None

    def _read_contents(self) -> bool:
        """Take the initial contents; return whether their time is sealed.

        Every call of the store may fail, and then this is done again. So nothing is kept before the last call, and
        after it nothing can fail.
        """
        # The schema stays the checked one, whatever happens to other columns.
        handle, names = self.handle, self._schema.names
        try:
            version = handle.schema.version
            contents = snapshot(
                handle, self.as_of, columns=names, where=self.filter, form="diff", schema=version, timeout_s=0.0
            )
        except AsOfNotSealed:
            return False
        # Arrangements sum the contents up, so equal rows need not be adjacent.
        updates = encode_contents(self._domain, self._schema, contents.iterate_unsummed(), self.as_of)
        listen = begin_listen(handle, self.as_of, None, columns=names, filter=self.filter)
        if updates.shape[1]:
            self._gate.add(updates)
        self._gate.frontier = Antichain(self.as_of + 1)
        self._listen = listen
        self.release_snapshot()
        return True

    def release_snapshot(self) -> None:
        """Release the snapshot of the initial contents."""
        if self._first is not None:
            self._first.close()
            self._first = None

    def _take_progress(self, progress: Progress) -> None:
        """Add a progress's updates to the gate, and advance its frontier."""
        try:
            table = progress.updates
            times = table["_time"].combine_chunks().to_numpy()
            if self.coarse_to is not None:
                times = np.maximum(times, self.coarse_to)
            self._add_to_gate(table, times)
            passed = None if self._unsealed is None else self._unsealed.retract_before(to_frontier(progress.upper))
            if passed is not None:
                self._add_to_gate(passed, passed["_time"].combine_chunks().to_numpy())
            self._gate.frontier = progress.upper
        except BaseException:
            self.has_lost = True
            raise

    def _look_ahead(self, reached: int) -> None:
        """Emit new updates at times that are not sealed yet; retract updates that vanished."""
        if self._unsealed is None or (ahead := self._unsealed.compute_changes(reached)) is None:
            return
        try:
            self._add_to_gate(ahead, ahead["_time"].combine_chunks().to_numpy())
        except BaseException:
            self.has_lost = True
            raise

    def _add_to_gate(self, table: pa.Table, times: Ints) -> None:
        """Add the updates of a table, which come at some times, to the gate."""
        if table.num_rows:
            self._gate.consolidates = self.coarse_to is not None or self._unsealed is not None
            *rows, diffs = encode_table(self._domain, self._schema, table)
            self._gate.add(np.array([*rows, times, diffs], np.int64))


class UpperReader:
    """Follows the upper of a collection, without a read or a hold."""

    def __init__(self, engine: Engine, collection: str, gate: Gate) -> None:
        self._gate = gate
        with ExplainLoss(collection):
            self.handle: CollectionHandle = load_handle(engine, collection)

    def load_advance(self) -> CollectionState | None:
        """Return the collection's known state if it is sealed further than the gate; or None."""
        with ExplainLoss(self.handle):
            contents = self.handle.get_known_state()
        return contents if to_antichain(contents.upper) > self._gate.frontier else None

    def take(self, contents: CollectionState, until: int | None = None) -> bool:
        """Advance the gate to the upper of a state."""
        self._gate.frontier = to_antichain(contents.upper)
        return True


def check_writable(handle: CollectionHandle) -> CollectionHandle:
    """Raise InvalidUsage unless a program may write a collection from an input."""
    if handle.keyed is not None or {handle.schema.key.codec_name, handle.schema.value.codec_name} != {None}:
        raise InvalidUsage(
            f"source {handle.name!r}: written=True is for collections of plain updates, and this one is keyed or has "
            "codecs: write it with a client, and leave written=True out"
        )
    return handle


Followed: TypeAlias = SourceReader | UpperReader


def poll_all(
    sources: Sequence[Followed],
    timeout_s: float,
    is_stopped: Callable[[], bool] = lambda: False,
    until: int | None = None,
) -> bool:
    """Take new sealed updates of any source, or wait for some; return whether there were any.
    Cost: one refresh of the log for all of them.

    Args:
        is_stopped: ends the wait; call `wake_polls` when its answer changes.
        until: take what is before this time only.
    """
    if not sources:
        return False

    def look() -> list[tuple[Followed, CollectionState]] | None:
        if is_stopped():
            return []
        return [(source, contents) for source in sources if (contents := source.load_advance()) is not None] or None

    advanced_sources = sources[0].handle.engine.follower.wait_for(look, timeout_s)
    has_taken = [source.take(contents, until) for source, contents in advanced_sources or ()]
    return any(has_taken)


def choose_step_end(sources: Sequence[SourceReader], updates_max: int) -> int | None:
    """Return the time that ends a step of about updates_max updates, or None.

    No source is taken further than another one is sealed. It is an estimate: the updates of a part count as evenly
    spread over its times. One time at least is taken, however many updates it has.
    """
    states = [(source.handle.get_known_state(), source.reached) for source in sources]
    upper = min((state.upper for state, _ in states), default=0)
    spans = [
        (max(part.time_min, reached), part.time_max, part.rows)
        for state, reached in states
        for part in state.history_parts
        if part.time_max >= reached
    ]
    if sum(rows for _, _, rows in spans) <= updates_max or upper <= min(reached for _, reached in states):
        return None
    firsts, lasts, rows = (np.array(column, np.float64) for column in zip(*spans, strict=True))

    def updates_before(time: int) -> float:
        return float((rows * np.clip((time - firsts) / (lasts - firsts + 1), 0, 1)).sum())

    low, high = min(first for first, _, _ in spans) + 1, upper
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if updates_before(middle) <= updates_max else (low, middle - 1)
    return min(low, upper)


def wake_polls(sources: Sequence[Followed]) -> None:
    """Let threads that wait in `poll_all` look again."""
    for source in sources[:1]:
        source.handle.engine.follower.wake()
