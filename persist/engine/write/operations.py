"""Operations that callers submit, and the merge of many operations into few mutations.

An `Operation` is one caller's request, accepted or rejected as a whole: a write, a seal, or all of a multi-collection
commit. `merge_operations` turns accepted operations into one `Change` per collection, ordered by their first
operations. The changes have the net effect of the operations in sequence. Appends commute, and all are valid, so they
may precede the last seal. Holds keep the order of the calls, and since is the least of the holds and of the allowed
times, in whatever order these came. A name is only reused after its collection was destroyed, so the `Change` of that
collection comes first. Leases are granted first, because holds need them, and other mutations of the location come
last. Compactions and resolutions come before the appends, on which they do not depend: a resolution that depends on
events of the same group was refused. An operation that cannot be reordered, such as a rename, gets its own record.

A caller without a time requests the time of the commit, with `AtCommit`. Rule 21 defines that time, and which of these
operations may share a record. The time is assigned when the record is built, from the state that the record follows:
beyond the upper of every concerned collection, and on a timeline not before the clock. So a write without a time is
never late. A record that loses the race for its seqno gets another time with its next attempt; encoded parts are
reused.

All operations of one record without a time on the same collection get one time, as if they were one write: their
updates are appended at it, their events in call order, and one seal follows them. Operations that name a time never
share a record with them on the same collection, so each sees the state that it would see alone.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import msgspec
import pyarrow as pa

from persist.blob.errors import InvalidUsage
from persist.codecs.part.part import Part
from persist.codecs.types.schema import TIME_MAX, TIME_UNITS, CollectionSchema
from persist.codecs.updates.small import SmallUpdates
from persist.core.antichain import decode_frontier, encode_frontier
from persist.core.log import kinds
from persist.core.log.fields import CollectionMutation, LocationMutation, TokenMark
from persist.core.log.kinds import Mutation
from persist.core.state_rules.collection_rules import Condition, PlannedAppend
from persist.core.state_rules.contents import CollectionState
from persist.core.state_rules.draft import DraftStep
from persist.core.state_rules.keyed_rules import PlannedPend
from persist.core.state_rules.state import State
from persist.engine.write.commit_future import CommitFuture


class Write(msgspec.Struct, frozen=True, eq=False):
    """Updates for one collection: a few, to encode with others, or parts that are being uploaded.

    Attributes:
        bytes: the memory of the updates until they are durable.
        digest: the digest of the updates, if requested.
        is_kept: the parts stay after a rejection, because the caller deletes or reuses them.
        events: facts about events for a keyed collection, if these are events; `schema` is then the events' schema.
        at_commit: the updates get the time of their commit; until then it is 0.
        is_single: each key has at most one row after each of the updates (`Part.is_single`).
    """

    collection: str
    schema: CollectionSchema
    time_min: int
    bytes: int
    data: "SmallUpdates | pa.Table | Future[tuple[Part, ...]]"
    is_kept: bool = False
    events: "PlannedPend | None" = None
    digest: int | None = None
    at_commit: bool = False
    is_single: bool = False

    @property
    def time_max(self) -> int | None:
        """The last time of the updates; None if that is known only when they are stored."""
        if isinstance(self.data, SmallUpdates):
            return self.data.time_max
        return None if isinstance(self.data, Future) else int(self.data["_time"].to_numpy().max())

    @property
    def versions(self) -> Iterable[int]:
        """The schema versions of the updates."""
        if self.events is None and isinstance(self.data, Future):
            return sorted({part.schema for part in self.data.result()})
        return (self.schema.version,)

    def upload_error(self) -> BaseException | None:
        """Wait for the upload, if any, and return its error; None if it succeeded."""
        if not isinstance(self.data, Future):
            return None
        if (error := self.data.exception()) is not None:
            return error
        if any(part.time_min < self.time_min for part in self.data.result()):
            return InvalidUsage(
                "the updates were changed while they were being written: their buffers must stay as they are until "
                "the future resolves. Write them again; nothing was applied."
            )
        return None


class Asked(msgspec.Struct, frozen=True):
    """The digest of a request, such as its updates or new rows; None if unknown.

    It is not committed: `add_token` replaces it by the step that stores the token.
    """

    collection: str
    digest: int | None


class AtCommit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="kind"):
    """The step that assigns the time of the commit to writes, and seals that time.

    Attributes:
        timeline: the collection's unit of time, None if its times only count.
        time: the required time, because other steps depend on it; None for any time.
        allow_future: whether the time may come from a clock that is more than a day ahead of the store's.
    """

    collection: str
    timeline: str | None = None
    time: int | None = None
    allow_future: bool = False


Step: TypeAlias = Write | Mutation | Condition | Asked | AtCommit
Renew = Callable[[State], Sequence[Step]]  # Raises as the rules of a commit do.
# Called with the steps, and the names of their collections.
Commit = Callable[[Sequence[Step], dict[str, str]], CommitFuture]


@dataclass(frozen=True, slots=True)
class Submission:
    """The id of an operation that one client sends to another to commit.

    Attributes:
        submitter: the random id of the sending client.
        number: identifies the operation; later operations of the client have greater numbers.
        after: a record of the log that existed before the client sent it.
        is_own: this client sent it, and resolves its outcome.
    """

    submitter: str
    number: int
    after: int
    is_own: bool


class Operation(msgspec.Struct, frozen=True, eq=False):
    """A caller's request: all of its steps are committed, or none.

    Attributes:
        names: the names of the concerned collections, by id.
        bytes: the memory of all its writes.
        submission: its id, if another client sent it or is to commit it; otherwise None.
        at_commit: its steps that request the time of the commit.
        shares_time: it only writes at the time of the commit, so it may share this time with other operations.
        renew: makes its steps again for the state that the record follows, if they depend on it.
    """

    steps: tuple[Step, ...]
    names: dict[str, str]
    future: CommitFuture
    bytes: int
    submission: Submission | None = None
    at_commit: tuple[AtCommit, ...] = ()
    shares_time: bool = False
    renew: "Renew | None" = None

    @classmethod
    def of(
        cls,
        steps: Sequence[Step],
        names: dict[str, str],
        future: CommitFuture,
        submission: Submission | None,
        renew: "Renew | None" = None,
    ) -> "Operation":
        """Make an operation from steps. Many operations are small, so this avoids passes over the steps."""
        size = sum([step.bytes for step in steps if isinstance(step, Write)])
        at_commit = tuple([step for step in steps if isinstance(step, AtCommit)])
        # Without a write, the rules must see the seal; see `plan`.
        has_writes = bool(at_commit) and Write in {*map(type, steps)}
        shares_time = has_writes and all(map(_may_share_time, steps))
        return cls(tuple(steps), names, future, size, submission, at_commit, shares_time, renew)

    @property
    def uploads(self) -> list["Future[tuple[Part, ...]]"]:
        """The uploads that must end before this can be committed."""
        return [s.data for s in self.steps if isinstance(s, Write) and isinstance(s.data, Future)]

    @property
    def is_alone(self) -> bool:
        """Whether it gets a record of its own, because its place among other operations matters."""
        return not _ALONE.isdisjoint(map(type, self.steps))

    @property
    def is_in_order(self) -> bool:
        """Whether its steps are in the order in which a record stores mutations.

        That order is conditions, writes, holds, seal. If so, applying a record with this operation alone checks the
        steps in the caller's order.
        """
        reached: dict[str, int] = {}
        for step in self.steps:
            place = PLACES.get(type(step), 0 if isinstance(step, Condition) else None)
            if place is None:
                return False
            if place == ANYWHERE:
                continue
            place_before = reached.get(step.collection, 0)
            is_repeated = place == place_before and (
                place == SEAL or (isinstance(step, Write) and step.events is not None)
            )
            if place < place_before or is_repeated or (isinstance(step, kinds.GrantLease) and reached):
                return False
            reached[step.collection] = place
        return True

    @property
    def is_ready(self) -> bool:
        """Whether all uploads of the operation have ended."""
        for step in self.steps:
            if isinstance(step, Write) and isinstance(step.data, Future) and not step.data.done():
                return False
        return True

    def plan(self, times: Mapping[str, int]) -> list[DraftStep]:
        """Return the steps for validation by `persist.core.state_rules.draft.Draft`, given the assigned times.

        If several operations share a time, their collections are sealed once all are valid, not by each of them.
        """
        last = {at_commit.collection: at_commit for at_commit in self.at_commit}  # Earlier writes have the same time.
        steps: list[DraftStep] = []
        for step in self.steps:
            if isinstance(step, Write):
                time = times[step.collection] if step.at_commit else step.time_min
                if step.events is not None:
                    events = step.events
                    steps.append(replace(events, time_min=time, time_max=time) if step.at_commit else events)
                else:
                    steps += [PlannedAppend(step.collection, time, version) for version in step.versions]
            elif isinstance(step, AtCommit):
                if not self.shares_time and step is last[step.collection]:
                    steps.append(self.build_seal(step, times))
            elif isinstance(step, kinds.Tokens) and self.at_commit:
                steps.append(complete_token(step, times))
            elif not isinstance(step, Asked):
                steps.append(step)
        return steps

    def build_seal(self, requested: AtCommit, times: Mapping[str, int]) -> kinds.Seal:
        """Return the seal of a collection after its assigned time, or to a later upper of an earlier step."""
        end = max(self.find_seal_before(requested), times[requested.collection] + 1)
        return kinds.Seal(requested.collection, encode_frontier(end))

    def find_seal_before(self, requested: AtCommit) -> int:
        """Return the upper to which the operation seals a collection before the step that requests the commit time."""
        upper = 0
        for step in self.steps:
            if step is requested:
                break
            if isinstance(step, kinds.Seal) and step.collection == requested.collection:
                upper = decode_frontier(step.upper)
        return upper


def _may_share_time(step: Step) -> bool:
    """Return whether a step lets other steps share its assigned time."""
    if isinstance(step, Write):
        return step.at_commit
    return step.time is None if isinstance(step, AtCommit) else isinstance(step, kinds.Tokens | kinds.Note)


_ALONE = {kind for kind in kinds.KINDS.values() if kind.is_alone}

# The place of a step in `Change.mutations`, after conditions. No other step depends on tokens, batches and notes.
# An `AllowCompaction` is missing: a record leaves it out if it changes nothing, also if since would go back.
ANYWHERE, SEAL = -1, 4
PLACES: dict[type, int] = {
    **dict.fromkeys((kinds.Tokens, kinds.Batch, kinds.Note, Asked), ANYWHERE),
    kinds.GrantLease: 0,
    kinds.Resolve: 1,
    Write: 2,
    kinds.SetHold: 3,
    kinds.ReleaseHold: 3,
    kinds.Seal: SEAL,
    AtCommit: SEAL,
}


# The places of mutations in a record, by their kinds; those of one place keep the order of the calls.
_IN_RECORD: dict[type, int] = {
    **dict.fromkeys(_ALONE, 11),
    kinds.Create: 0,
    kinds.Clone: 0,
    kinds.Replace: 1,
    kinds.Resolve: 2,
    kinds.Publish: 3,
    kinds.Append: 4,
    kinds.Pend: 4,
    kinds.AdvanceLateBound: 5,
    kinds.Tokens: 6,
    kinds.Batch: 7,
    kinds.SetHold: 8,
    kinds.ReleaseHold: 8,
    kinds.Seal: 9,
    kinds.AllowCompaction: 10,
    kinds.Note: 12,
    kinds.Destroy: 13,
}


@dataclass(slots=True)
class Change:
    """The net effect of some operations on one collection."""

    id: str
    writes: list[Write] = field(default_factory=list)
    tokens: list[TokenMark] = field(default_factory=list)
    seal: kinds.Seal | None = None
    allow_compaction: kinds.AllowCompaction | None = None
    others: list[Mutation] = field(default_factory=list)

    def add(self, step: Step, times: Mapping[str, int]) -> None:
        """Add a step, which is valid after the earlier ones."""
        if isinstance(step, Write):
            self.writes.append(step)
        elif isinstance(step, AtCommit):
            end = times[step.collection] + 1
            if self.seal is None or decode_frontier(self.seal.upper) < end:
                self.seal = kinds.Seal(step.collection, encode_frontier(end))
        elif isinstance(step, kinds.Tokens):
            self.tokens += complete_token(step, times).tokens
        elif isinstance(step, kinds.Seal):
            self.seal = step
        elif isinstance(step, kinds.AllowCompaction):
            compaction_before = self.allow_compaction
            if compaction_before is None or decode_frontier(compaction_before.since) < decode_frontier(step.since):
                self.allow_compaction = step
        elif isinstance(step, CollectionMutation):
            self.others.append(step)
        else:
            assert isinstance(step, Condition | Asked), f"callers cannot ask for {step!r:.200}"

    def mutations(
        self, contents: CollectionState | None, encoded: Sequence[kinds.Append | kinds.Pend]
    ) -> list[Mutation]:
        """Return the mutations with this effect. `contents`: the state before, or None; `encoded`: encoded writes."""
        net: list[Mutation] = [*self.others, *encoded]
        if self.tokens:
            net.append(kinds.Tokens(self.id, tuple(self.tokens)))
        ends = [step.end for step in self.others if isinstance(step, kinds.Resolve)]
        if self.seal is not None and (contents is None or self.seal.upper not in (contents.upper_times, *ends)):
            net.append(self.seal)
        allowed = self.allow_compaction
        if allowed is not None and (contents is None or decode_frontier(allowed.since) > contents.allowed):
            net.append(allowed)
        if contents is not None and kinds.Rename(self.id, contents.name) in net:
            net.remove(kinds.Rename(self.id, contents.name))
        places = [*map(_IN_RECORD.__getitem__, map(type, net))]
        return [net[i] for i in sorted(range(len(net)), key=places.__getitem__)]


def complete_token(step: kinds.Tokens, times: Mapping[str, int]) -> kinds.Tokens:
    """Return a step of tokens with the time that the commit assigned to their collection, if any."""
    time = times.get(step.collection)
    if time is None:
        return step
    return kinds.Tokens(step.collection, tuple(TokenMark(mark.token, time, mark.digest) for mark in step.tokens))


def merge_operations(
    operations: Sequence[Operation], times: Mapping[str, int]
) -> tuple[list[kinds.GrantLease], dict[str, Change], list[LocationMutation]]:
    """Return the grants of leases, the net change of each collection, and other mutations of the location."""
    grants: list[kinds.GrantLease] = []
    changes: dict[str, Change] = {}
    other_steps: list[LocationMutation] = []
    for operation in operations:
        for step in operation.steps:
            if isinstance(step, kinds.GrantLease):
                grants.append(step)
            elif isinstance(step, LocationMutation):
                other_steps.append(step)
            else:
                change = changes.get(step.collection)
                if change is None:
                    change = changes[step.collection] = Change(step.collection)
                elif isinstance(step, kinds.Destroy):  # Collections are dropped in the order of the steps.
                    changes[step.collection] = changes.pop(step.collection)
                change.add(step, times)
    return grants, changes, other_steps


def split_into_records(operations: Sequence[Operation]) -> list[list[Operation]]:
    """Split operations, in their order, into groups that may share a record.

    On one collection, operations share the time of the commit only if they write at that time and do nothing else.
    Operations that name their times do not share a record with them.
    """
    if len(operations) == 1 or not any(operation.at_commit for operation in operations):
        return [[*operations]]
    records: list[list[Operation]] = [[]]
    sharing: dict[str, bool | None] = {}  # For each collection of a record: None excludes other operations.
    for operation in operations:
        how = operation.shares_time
        if how and len(operation.steps) == 2 and sharing.get(operation.at_commit[0].collection) is True:
            records[-1].append(operation)
            continue
        closed = bool(operation.at_commit) and not how
        ids = {step.collection for step in operation.steps} - {""}
        if any(id_ in sharing and (closed or sharing[id_] is not how) for id_ in ids):
            records.append([])
            sharing = {}
        records[-1].append(operation)
        sharing.update(dict.fromkeys(ids, None if closed else how))
    return records


def assign_times(operations: Iterable[Operation], upper_of: Callable[[str], int], wall_ms: int) -> dict[str, int]:
    """Return the times, by collection, that a commit now assigns to operations without a time.

    A time is beyond the upper of its collection, and on a timeline not before the clock. Collections that one operation
    writes together get one time: one moment on their timelines, or one number without timelines.

    Args:
        upper_of: returns the newest upper of a collection.
        wall_ms: the clock, in milliseconds since 1970.
    """
    together: dict[str, dict[str, AtCommit]] = {}  # The collections of one time, for each of them.
    uppers: dict[str, int] = {}
    for operation in operations:
        asks: dict[str, AtCommit] = {}
        if len(operation.at_commit) == 1 and operation.at_commit[0].collection in together:
            continue  # As most of very many small writes: it shares the time of those before it.
        for request in operation.at_commit:
            uppers[request.collection] = max(upper_of(request.collection), operation.find_seal_before(request))
            asks |= together.get(request.collection, {}) | {request.collection: request}
        together |= dict.fromkeys(asks, asks)
    times: dict[str, int] = {}
    for id_, asks in together.items():
        if id_ not in times:
            times |= choose_common_times(asks, uppers, wall_ms)
    return times


def choose_common_times(asks: Mapping[str, AtCommit], uppers: Mapping[str, int], wall_ms: int) -> dict[str, int]:
    """Return a common time of collections: one moment on timelines, and one number without timelines.

    On timelines of different units that is a time of the coarsest of them.
    """
    rates = {
        id_: 1000 ** TIME_UNITS.index(request.timeline) for id_, request in asks.items() if request.timeline is not None
    }
    # None may be written where all are sealed: then the last one is refused.
    least = {id_: min(upper, TIME_MAX) for id_, upper in uppers.items()}
    number = max((least[id_] for id_ in asks if id_ not in rates), default=0)
    coarsest = min(rates.values(), default=1)
    # Rounded up: a time of a finer timeline that lies between two of the coarsest is not beyond the first of them.
    bounds = (-(-least[id_] * coarsest // rate) for id_, rate in rates.items())
    moment = max(wall_ms * coarsest // 1000, *bounds, 0)
    assigned = {id_: min(moment * (rates[id_] // coarsest), TIME_MAX) if id_ in rates else number for id_ in asks}
    chosen = {id_: request.time for id_, request in asks.items() if request.time is not None}
    return assigned | chosen


def is_clock_time(requested: AtCommit, times: Mapping[str, int], upper: int) -> bool:
    """Return whether the clock, not the upper, sets a commit's time, which must then not be far ahead."""
    assigned = times.get(requested.collection)
    is_guarded = requested.timeline is not None and not requested.allow_future
    return is_guarded and assigned is not None and assigned > upper
