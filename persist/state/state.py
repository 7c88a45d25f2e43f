"""The state of a location as a pure function of its commit log: `apply(state, record) -> state`.

No I/O happens here, and every rule about what a commit may do is checked here and nowhere else, so that a
writer validating its own commit and a reader replaying the log cannot disagree. All values are immutable; a reader
keeps the `CollectionState` it started from for as long as it likes.

A location may hold many collections of which a client uses few. An `Entry` is therefore a *base* (a pointer to a
stored `CollectionState`; the `CollectionState` itself, when no checkpoint has stored it yet; or none for a collection
that begins with its pending mutations) plus the mutations *pending* since then. The `contents` are the fold of the
second over the first, and are present only when somebody needed them. Applying a record to an entry without contents
only appends to its pending mutations; `with_contents` replays and checks them once the base has been fetched.

Invariants, for every state reachable by `apply`:
- `since` and `upper` of a collection never go back;
- when an `Append` was applied, all its times were beyond the upper of that moment;
- `since` is the least of what compaction was allowed up to and every hold, or beyond it;
- a token is remembered as long as a write with its times could be applied once more;
- names are unique among the collections that exist, ids for ever;
- an entry's `leased` are those of the holds in its contents that live by a lease, and these leases exist;
- if `contents` is present, it equals the fold of `pending` over the base.

What a collection's contents are, and what compaction may do to them, is in `persist.state.contents`; what concerns the
location as a whole in `persist.state.location`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import msgspec

from persist.antichain import Antichain
from persist.codecs import CollectionSchema
from persist.errors import (
    AsOfCompacted,
    CollectionExists,
    CollectionNotFound,
    FrontierRegression,
    HoldMoved,
    InvalidUsage,
    LeaseExpired,
    UpdateNotBeyondUpper,
    UpdatesBeyondUpper,
    UpperMismatch,
)
from persist.log.envelope import BlobRef
from persist.log.records import (
    AllowCompaction,
    Append,
    Batch,
    CollectionMutation,
    Create,
    Destroy,
    EndLease,
    Frontier,
    LocationMutation,
    Mutation,
    Record,
    ReleaseHold,
    Replace,
    Seal,
    SetHold,
    Tokens,
)
from persist.names import check_hold_name, check_name, is_id
from persist.state.contents import CollectionState, Held, appended, replaced
from persist.state.frozen_map import Changes, FrozenMap
from persist.state.location import Control, check_uploaded, check_writer, with_destroyed, with_unused
from persist.state.location import step as control_step
from persist.state.queries import is_repeated, with_batch

PENDING_MAX = 64  # Mutations an entry keeps before it takes its contents for its base.
TOKENS_KEPT = 4096  # Of writes whose times are sealed, so that doing them twice is refused anyway.


@dataclass(frozen=True, slots=True)
class Entry:
    """What is known of one collection: see the module's docstring.

    Attributes:
        leased: (hold, lease) of each hold that lives by a lease. It is kept here, and not with the leases, so that a
            client that reads thousands of collections has no record in the location's `Control` that lists them all.
    """

    id: str
    name: str
    base: BlobRef | CollectionState | None = None
    pending: tuple[CollectionMutation, ...] = ()
    contents: CollectionState | None = None
    leased: tuple[tuple[str, str], ...] = ()

    @property
    def readers(self) -> tuple[str, ...]:
        """The leases by which holds on this collection live, each once."""
        return tuple(dict.fromkeys(lease for _, lease in self.leased))

    def with_contents(self, base: CollectionState | None) -> "Entry":
        """Return this entry with its contents, given what its base pointer leads to (None when it has none)."""
        contents = base
        for mutation in self.pending:
            contents = _step(contents, mutation)
        return replace(self, contents=contents)


@dataclass(frozen=True, slots=True)
class State:
    """Everything the log says up to and including seqno, where the record is commit; -1 and None for an empty log."""

    location: str | None = None
    seqno: int = -1
    entries: FrozenMap[Entry] = field(default_factory=FrozenMap)
    ids: FrozenMap[str] = field(default_factory=FrozenMap)
    control: Control = field(default_factory=Control)
    commit: str | None = None

    def names(self) -> tuple[str, ...]:
        """Return the names of all collections, sorted."""
        return tuple(sorted(self.ids))

    def with_entry(self, entry: Entry) -> "State":
        """Return this state with an equivalent form of one entry (contents filled in, or another base)."""
        return replace(self, entries=self.entries.with_changes({entry.id: entry}))


class DoesNotFollow(ValueError):
    """A record names another predecessor than the one that is known: one of the two does not belong to this log."""


def apply(state: State, record: Record) -> State:
    """Return the state after record.

    Cost: O(mutations), and O(collections) for the end of a lease; no I/O.

    Raises:
        InvalidUsage, Conflict: one of the rules does not allow it; the state is unchanged. A record in the log never
            raises these, because its writer applied it before creating it.
        DoesNotFollow: the record was made after another one than the last that state knows.
        ValueError: the record belongs to another location or position, or is not one that a writer would make.
    """
    if record.seqno != state.seqno + 1:
        raise ValueError(f"it says seqno {record.seqno} where {state.seqno + 1} belongs")
    if state.location not in (None, record.location):
        raise ValueError(f"it belongs to location {record.location}, and this is {state.location}")
    if not is_id(record.location):
        raise ValueError(f"its location {record.location!r} is not 32 hex digits")
    if not is_id(record.commit):
        raise ValueError(f"its commit {record.commit[:200]!r} is not 32 hex digits")
    if record.previous != state.commit:
        raise DoesNotFollow(f"it follows the commit {record.previous}, and the record before it is {state.commit}")
    check_writer(state.control, record.epoch, record.mutations)
    after = _Changing(Changes(state.entries), Changes(state.ids), state.control, _extended)
    for mutation in record.mutations:
        if isinstance(mutation, Append | Replace):
            check_uploaded(state.control, mutation)
        after.add(mutation, record.seqno, record.written_ms)
    entries, ids = state.entries.with_changes(after.entries), state.ids.with_changes(after.ids)
    return State(record.location, record.seqno, entries, ids, after.control, record.commit)


@dataclass(frozen=True, slots=True)
class PlannedAppend:
    """An `Append` whose parts are not encoded yet; time_min is the least time of its updates."""

    collection: str
    time_min: int


@dataclass(frozen=True, slots=True)
class ExpectUpper:
    """Not a mutation but a condition: the operation it is part of is only valid while upper is this."""

    collection: str
    upper: Antichain


@dataclass(frozen=True, slots=True)
class ExpectNothingBeyondUpper:
    """A condition, too: upper is this, and there are no updates at times beyond it."""

    collection: str
    upper: Antichain


Condition = ExpectUpper | ExpectNothingBeyondUpper
Step = Mutation | PlannedAppend | Condition


class Draft:
    """A state being extended by operations that are not in the log yet, to tell which of them are valid.

    It follows names and frontiers but not parts, so that a writer can validate thousands of small operations before
    it encodes what they wrote into one batch. The checks are the same functions that `apply` uses. All collections
    concerned must have their contents, except those of which an operation only releases holds.

    Args:
        state: what is known.
        epoch: that of the writer, if it opened the location exclusively.
    """

    def __init__(self, state: State, epoch: int | None = None) -> None:
        self._seqno = state.seqno + 1
        self._epoch = epoch
        self._new_tokens: set[tuple[str, str]] = set()
        self._appended: set[str] = set()  # Collections that operations before this one add updates to.
        self._now = _Changing(Changes(state.entries), Changes(state.ids), state.control, _with_step)

    def extend(self, steps: Iterable[Step]) -> bool:
        """Add all steps of one operation, or none of them if one is not valid.

        Returns:
            False if all its tokens, or its batch of a query, were seen already: it was done before, and nothing was
            added.

        Raises:
            InvalidUsage, Conflict: what the operation would get if it came next in the log.
        """
        steps = tuple(steps)
        now = self._now
        check_writer(now.control, self._epoch, steps)
        if all(isinstance(step, PlannedAppend) for step in steps):
            for step in steps:  # They change nothing that is followed here, so nothing has to be undone.
                assert isinstance(step, PlannedAppend)
                _step(now.entry_for(step).contents, step)
                self._appended.add(step.collection)
            return True
        if self._repeats_batch(steps):
            return False
        tokens = [(s.collection, token) for s in steps if isinstance(s, Tokens) for token, _ in s.tokens]
        if tokens and self._done(tokens):
            return False
        draft = _Changing(Changes(now.entries), Changes(now.ids), now.control, _with_step)
        for step in steps:
            if isinstance(step, ExpectNothingBeyondUpper) and step.collection in self._appended:
                raise UpdatesBeyondUpper(step.upper, None)
            draft.add(step, self._seqno, 0)
        now.entries.update(draft.entries)
        now.ids.update(draft.ids)
        now.control = draft.control
        self._new_tokens.update(tokens)
        self._appended.update(step.collection for step in steps if isinstance(step, PlannedAppend))
        return True

    def _repeats_batch(self, steps: tuple[Step, ...]) -> bool:
        """Tell whether steps are a batch that a collection has: one record adds it to all, so any will do."""
        repeated = False
        for mark in steps:
            if isinstance(mark, Batch) and not mark.again:
                entry = self._now.entries.now(mark.collection)
                if entry is not None and entry.contents is not None:
                    repeated |= is_repeated(entry.contents.queries, mark)
        return repeated

    def _done(self, tokens: list[tuple[str, str]]) -> bool:
        seen = [self._has_seen(*each) for each in tokens]
        if any(seen) and not all(seen):
            known = [token for (_, token), was in zip(tokens, seen, strict=True) if was]
            raise InvalidUsage(
                f"the token {known[0]!r} was used before for some of these collections and not for the others, so "
                "this is not a repetition of that commit. Use a token of its own for each commit; nothing was applied."
            )
        return any(seen)

    def _has_seen(self, collection: str, token: str) -> bool:
        entry = self._now.entries.now(collection)
        known = entry.contents.tokens if entry is not None and entry.contents is not None else {}
        return token in known or (collection, token) in self._new_tokens


class _Changing:
    """What mutations are applied to, one after the other; extend says how an entry takes one in."""

    def __init__(
        self,
        entries: Changes[Entry],
        ids: Changes[str],
        control: Control,
        extend: "Callable[[Entry, CollectionStep], Entry]",
    ) -> None:
        self.entries = entries
        self.ids = ids
        self.control = control
        self._extend = extend

    def add(self, step: Step, seqno: int, written_ms: int) -> None:
        """Apply one mutation of the record at seqno."""
        if isinstance(step, LocationMutation):
            before, self.control = self.control, control_step(self.control, step, seqno)
            if isinstance(step, EndLease) and step.lease in before.leases:
                self._release_all(step.lease)
            return
        entry = self.entry_for(step)
        if isinstance(step, Destroy):
            self.control = with_destroyed(self.control, entry.id, entry.readers, seqno, written_ms)
            self.entries[entry.id] = None
            self.ids[entry.name] = None
            return
        if isinstance(step, SetHold) and step.lease is not None:
            if step.lease not in self.control.leases:
                raise LeaseExpired("the lease this hold lives by has ended, so since may have passed it")
            entry = _with_leased(entry, step.hold, step.lease)
        elif isinstance(step, ReleaseHold):
            entry = _without_leased(entry, step.hold)
        elif isinstance(step, Replace):
            self.control = with_unused(self.control, step, entry.readers, seqno, written_ms)
        self.entries[entry.id] = self._extend(entry, step)
        self.ids[entry.name] = entry.id

    def _release_all(self, lease: str) -> None:
        """Release all holds that live by a lease."""
        concerned = [entry for _, entry in self.entries.each() if entry.leased and lease in entry.readers]
        for entry in concerned:
            for hold, by in entry.leased:
                if by == lease:
                    entry = self._extend(_without_leased(entry, hold), ReleaseHold(entry.id, hold))
            self.entries[entry.id] = entry

    def entry_for(self, step: "CollectionStep") -> Entry:
        """Return the entry that step is about, a new one for `Create`, if there may be one."""
        entry = self.entries.now(step.collection)
        if isinstance(step, Create):
            if not is_id(step.collection):
                raise ValueError(f"{step.collection!r} is not the id of a collection: 32 hex digits")
            if any(dropped.collection == step.collection and dropped.is_destroyed for dropped in self.control.dropped):
                raise ValueError(f"the id {step.collection} was that of a collection whose blobs are being deleted")
            check_name(step.name)
            if self.ids.now(step.name) is not None or entry is not None:
                raise CollectionExists(step.name)
            return Entry(step.collection, step.name)
        if entry is None:
            raise CollectionNotFound(step.collection, "this location", tuple(n for n, _ in self.ids.each()))
        return entry


CollectionStep = CollectionMutation | PlannedAppend | Condition


def _with_leased(entry: Entry, hold: str, lease: str) -> Entry:
    for known, by in entry.leased:
        if known == hold and by != lease:
            raise ValueError(f"{hold!r} is the id of a hold that lives by another lease")
        if known == hold:
            return entry
    return replace(entry, leased=(*entry.leased, (hold, lease)))


def _without_leased(entry: Entry, hold: str) -> Entry:
    if all(known != hold for known, _ in entry.leased):
        return entry
    return replace(entry, leased=tuple(each for each in entry.leased if each[0] != hold))


def _extended(entry: Entry, mutation: CollectionStep) -> Entry:
    """Return entry with mutation pending, and in its contents if it has them."""
    assert not isinstance(mutation, PlannedAppend | Condition)
    contents = entry.contents
    if contents is not None or isinstance(mutation, Create):
        contents = _step(contents, mutation)
    if contents is not None and len(entry.pending) >= PENDING_MAX:
        return replace(entry, base=contents, pending=(), contents=contents)
    return replace(entry, pending=(*entry.pending, mutation), contents=contents)


def _with_step(entry: Entry, step: CollectionStep) -> Entry:
    """Return entry with only its contents changed, for a draft."""
    if entry.contents is None and isinstance(step, ReleaseHold):
        return entry
    contents = _step(entry.contents, step)
    return entry if contents is entry.contents else replace(entry, contents=contents)


def _step(contents: CollectionState | None, step: CollectionStep) -> CollectionState:
    """Return one collection's contents after one mutation: where the rules live."""
    change = msgspec.structs.replace
    if isinstance(step, Create):
        CollectionSchema.from_json(step.schema)  # What raises here would raise with whoever reads the collection.
        return CollectionState(step.collection, step.name, step.schema)
    if contents is None:
        raise ValueError(f"the first mutation of collection {step.collection} does not create it")
    if isinstance(step, PlannedAppend):
        _check_beyond_upper(contents, step.time_min)
        return contents
    if isinstance(step, Condition):
        _check_condition(contents, step)
        return contents
    if isinstance(step, Append):
        for part in step.parts:
            _check_beyond_upper(contents, part.time_min)
        return appended(contents, step.parts)
    if isinstance(step, Replace):
        return replaced(contents, step)
    if isinstance(step, Tokens):
        return change(contents, tokens=_with_tokens(contents, step))
    if isinstance(step, Batch):
        return change(contents, queries=with_batch(contents.queries, step))
    if isinstance(step, Seal):
        _check_forward("upper", contents.upper, step.upper)
        return change(contents, upper_times=step.upper)
    if isinstance(step, AllowCompaction):
        _check_forward("since", contents.since, step.since)
        allowed = max(Antichain(*contents.allowed_times), Antichain(*step.since))
        return _with_since(change(contents, allowed_times=allowed.elements))
    if isinstance(step, SetHold):
        _check_hold(contents, step)
        return _with_since(change(contents, holds={**contents.holds, step.hold: Held(step.time, step.lease)}))
    assert isinstance(step, ReleaseHold)
    held = contents.holds.get(step.hold)
    if held is not None and step.expected not in (None, held.time):
        raise HoldMoved(step.hold, step.expected, held.time)
    return _with_since(change(contents, holds={name: h for name, h in contents.holds.items() if name != step.hold}))


def _with_since(contents: CollectionState) -> CollectionState:
    """Return contents with since as far as compaction is allowed and the holds let it (rule 4)."""
    held = [Antichain(hold.time) for hold in contents.holds.values()]
    reach = min((Antichain(*contents.allowed_times), *held))
    return msgspec.structs.replace(contents, since_times=max(contents.since, reach).elements)


def _with_tokens(contents: CollectionState, step: Tokens) -> dict[str, int]:
    tokens = {**contents.tokens, **dict(step.tokens)}
    if len(tokens) > TOKENS_KEPT:
        upper = contents.upper.time  # Once: this is done at every commit while many tokens are kept.
        sealed = [token for token, time_min in tokens.items() if upper is None or time_min < upper]
        for token in sealed[: max(0, len(sealed) - TOKENS_KEPT)]:
            del tokens[token]
    return tokens


def _check_condition(contents: CollectionState, step: Condition) -> None:
    if contents.upper != step.upper:
        raise UpperMismatch(step.upper, contents.upper)
    if isinstance(step, ExpectNothingBeyondUpper):
        latest = max((part.time_max for part in contents.history_parts), default=-1)
        if contents.upper.has_beyond(latest):
            raise UpdatesBeyondUpper(step.upper, latest)


def _check_beyond_upper(contents: CollectionState, time: int) -> None:
    if not contents.upper.has_beyond(time):
        raise UpdateNotBeyondUpper(time, contents.upper)


def _check_forward(which: str, current: Antichain, asked: Frontier) -> None:
    if not current <= Antichain(*asked):
        raise FrontierRegression(which, Antichain(*asked), current)


def _check_hold(contents: CollectionState, step: SetHold) -> None:
    if not contents.since.has_beyond(step.time):
        raise AsOfCompacted(step.time, contents.since)
    held = contents.holds.get(step.hold)
    if step.lease is not None:
        if not is_id(step.hold) or (held is not None and held.lease != step.lease):
            raise ValueError(f"{step.hold!r} is not the id of a hold, or that of another lease")
        return
    check_hold_name(step.hold)
    actual = None if held is None else held.time
    if actual != step.expected:
        raise HoldMoved(step.hold, step.expected, actual)
    if actual is not None and step.time < actual:
        raise FrontierRegression(f"the hold {step.hold!r}", Antichain(step.time), Antichain(actual))
