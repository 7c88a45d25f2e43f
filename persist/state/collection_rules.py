"""What a commit may do to one collection, and what the collection is then: rules 1, 2 and 4, conditions, holds, tokens.

What concerns keyed collections alone is in `persist.state.keyed_rules`.
Tags are holds that have the name of a time. Retention is compaction that is allowed with each seal, so since follows
upper whoever seals, and no further than holds and tags let it.

The same function answers a reader that replays the log and a writer that drafts a commit, so that they cannot
disagree. A draft has steps that are no mutations: appends whose parts are not encoded yet, and conditions, which hold
because the slot of the log that the record is for is the compare-and-set.
"""

from dataclasses import dataclass
from operator import attrgetter

import msgspec

from persist.antichain import Antichain, as_time
from persist.codecs import TIME_MAX, CollectionSchema
from persist.errors import (
    AsOfCompacted,
    AsOfNotSealed,
    FrontierRegression,
    HoldMoved,
    InvalidUsage,
    PersistError,
    Superseded,
    TagMoved,
    UpdatesBeyondUpper,
    UpperMismatch,
    ViewRedefined,
    with_timeline,
)
from persist.log import (
    AdvanceLateBound,
    AllowCompaction,
    Append,
    Batch,
    CollectionMutation,
    Create,
    Describe,
    DropTag,
    Evolve,
    Frontier,
    Note,
    Pend,
    Redefine,
    ReleaseHold,
    Rename,
    Replace,
    Resolve,
    Seal,
    SetHold,
    SetRetention,
    SetTag,
    Tokens,
)
from persist.names import check_hold_name, check_tag_name, is_id
from persist.state.about import check_note, described
from persist.state.contents import (
    CollectionState,
    Held,
    appended,
    check_beyond_upper,
    check_plain,
    definition_number,
    replaced,
)
from persist.state.keyed_rules import (
    PlannedPend,
    created,
    pended,
    planned,
    resolved,
    sealed,
    since_max,
    with_late_bound,
)
from persist.state.queries import with_batch
from persist.state.schemas import check_columns_there, check_written, evolved, redefined
from persist.state.tokens import with_tokens
from persist.state.unsealed_writes import unsealed

TAGS_MAX = 1024


@dataclass(frozen=True, slots=True)
class PlannedAppend:
    """An `Append` whose parts are not encoded yet; time_min is the least time of its updates, schema their version."""

    collection: str
    time_min: int
    schema: int = 1


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


@dataclass(frozen=True, slots=True)
class ExpectParts:
    """A condition: no part has come since the next one was to have this number."""

    collection: str
    next_number: int


@dataclass(frozen=True, slots=True)
class ExpectDefinition:
    """A condition: the view still has the definition of this number."""

    collection: str
    number: int


Condition = ExpectParts | ExpectUpper | ExpectNothingBeyondUpper | ExpectDefinition
Planned = PlannedAppend | PlannedPend
CollectionStep = CollectionMutation | Planned | Condition


def after_step(contents: CollectionState | None, step: CollectionStep) -> CollectionState:
    """Return one collection's contents after a mutation, or after what stands for one in a draft.

    Raises:
        InvalidUsage, Conflict: a rule does not allow it.
        ValueError: it is not one that a writer would make.
    """
    if isinstance(step, Create):
        CollectionSchema.from_json(step.schema)  # What raises here would raise with whoever reads the collection.
        return created(step)
    if contents is None:
        raise ValueError(f"the first mutation of collection {step.collection} does not create it")
    try:
        return _after(contents, step)
    except PersistError as error:
        with_timeline(error, contents.timeline)
        raise


def _after(contents: CollectionState, step: CollectionStep) -> CollectionState:
    change = msgspec.structs.replace
    if isinstance(step, PlannedAppend):
        check_plain(contents)
        check_beyond_upper(contents, step.time_min)
        check_written(contents, step.schema)
        return contents
    if isinstance(step, PlannedPend):
        check_written(contents, step.schema)
        return planned(contents, step)
    if isinstance(step, Condition):
        _check_condition(contents, step)
        return contents
    if isinstance(step, Append):
        check_plain(contents)
        for part in step.parts:
            check_beyond_upper(contents, part.time_min)
            check_written(contents, part.schema)
        return appended(contents, step.parts)
    if isinstance(step, Pend):
        for part in step.parts:
            check_written(contents, part.schema)
        return pended(contents, step)
    if isinstance(step, Resolve):
        _check_resolved(contents, step)
        return _with_since(resolved(contents, step))
    if isinstance(step, AdvanceLateBound):
        return with_late_bound(contents, step.bound)
    if isinstance(step, Replace):
        after = replaced(contents, step)
        if any(part.schema > len(contents.earlier) + 1 for part in step.parts):
            raise ValueError("it brings parts of a schema version that there is not yet")
        return after
    if isinstance(step, Tokens):
        return change(contents, tokens=with_tokens(contents, step))
    if isinstance(step, Batch):
        return change(contents, queries=with_batch(contents.queries, step))
    if isinstance(step, Seal):
        _check_forward("upper", contents.upper, step.upper)
        if step.upper == contents.upper_times:
            return contents
        return _with_retention(_with_since(sealed(contents, step.upper)))
    if isinstance(step, AllowCompaction):
        _check_forward("since", contents.since, step.since)
        allowed = max(Antichain(*contents.allowed_times), Antichain(*step.since))
        return _with_since(change(contents, allowed_times=allowed.elements))
    if isinstance(step, SetHold):
        return _with_since(change(contents, holds={**contents.holds, step.hold: _held(contents, step)}))
    if isinstance(step, Note):
        check_note(step)
        return contents
    if isinstance(step, Evolve):
        return evolved(contents, step)
    if isinstance(step, Redefine):
        return redefined(contents, step)
    if isinstance(step, Rename):
        return change(contents, name=step.name)
    if isinstance(step, Describe):
        _check_columns(contents, step)
        return change(contents, about=described(contents.about, step.words, step.columns, step.version))
    if isinstance(step, SetRetention):
        return _with_retention(change(contents, retention=_checked_retention(step.times)))
    if isinstance(step, SetTag | DropTag):
        return _with_since(change(contents, tags=_with_tag(contents, step)))
    assert isinstance(step, ReleaseHold)
    held = contents.holds.get(step.hold)
    if held is not None and step.expected not in (None, held.time):
        raise HoldMoved(step.hold, step.expected, held.time)
    return _with_since(change(contents, holds={name: h for name, h in contents.holds.items() if name != step.hold}))


def _check_resolved(contents: CollectionState, step: Resolve) -> None:
    """Raise Superseded if a resolution was made under another version of the schema: events may mean less by now."""
    newest = len(contents.earlier) + 1
    if any(part.schema > newest for part in step.parts):
        raise ValueError("it brings parts of a schema version that there is not yet")
    if any(part.schema < newest for part in step.parts):
        raise Superseded("the collection has evolved since its events were resolved")


def _with_since(contents: CollectionState) -> CollectionState:
    """Return contents with since as far as compaction is allowed and the holds let it (rule 4)."""
    # As integers, and not as frontiers: of many views of one collection, each has a hold on it that moves each time.
    held = [*map(attrgetter("time"), contents.holds.values()), *contents.tags.values()]
    least = (Antichain(min(held)),) if held else ()
    reach = min((Antichain(*contents.allowed_times), *least, *since_max(contents)))
    return msgspec.structs.replace(contents, since_times=max(contents.since, reach).elements)


def _with_retention(contents: CollectionState) -> CollectionState:
    """Return contents with compaction allowed as far as the retention says. What is complete for ever stays."""
    upper = contents.upper.time
    if contents.retention is None or upper is None:
        return contents
    allowed = max(Antichain(*contents.allowed_times), Antichain(max(0, upper - contents.retention)))
    return _with_since(msgspec.structs.replace(contents, allowed_times=allowed.elements))


def _checked_retention(times: int | None) -> int | None:
    if times is not None and not 1 <= times <= TIME_MAX:
        raise InvalidUsage(f"retention={times} is not a number of times from 1 to {TIME_MAX}, or None to keep all")
    return times


def _with_tag(contents: CollectionState, step: SetTag | DropTag) -> dict[str, int]:
    actual = contents.tags.get(step.tag)
    if actual != step.expected:
        raise TagMoved(step.tag, step.expected, actual)
    others = {name: time for name, time in contents.tags.items() if name != step.tag}
    if isinstance(step, DropTag):
        return others
    check_tag_name(step.tag)
    as_time("tag time", step.time, most=TIME_MAX + 1)
    if not contents.since.has_beyond(step.time):
        raise AsOfCompacted(step.time, contents.since)
    if contents.upper.has_beyond(step.time):
        raise AsOfNotSealed(step.time, contents.upper, 0.0)
    if len(others) >= TAGS_MAX:
        raise InvalidUsage(f"the collection has {len(others)} tags, and at most {TAGS_MAX} are kept: drop some first")
    return dict(sorted({**others, step.tag: step.time}.items()))


def _check_columns(contents: CollectionState, step: Describe) -> None:
    known = {str(id_) for id_ in contents.schema.ids} if step.columns else set()
    if not known.issuperset(step.columns):
        raise InvalidUsage(f"{sorted(step.columns)} are not all ids of columns of this collection: {sorted(known)}")


def _check_condition(contents: CollectionState, step: Condition) -> None:
    if isinstance(step, ExpectParts):
        if contents.next_number != step.next_number:
            raise Superseded("something was written while what is stored was looked at: try again")
        return
    if isinstance(step, ExpectDefinition):
        if (number := definition_number(contents)) != step.number:
            raise ViewRedefined(contents.name, step.number, number)
        return
    if contents.upper != step.upper:
        raise UpperMismatch(step.upper, contents.upper)
    if isinstance(step, ExpectNothingBeyondUpper):
        hidden = None if contents.keyed is not None else unsealed(contents)
        if hidden is not None:
            first = hidden.first if hidden.is_exact else None
            raise UpdatesBeyondUpper(step.upper, hidden.last, first=first, updates=hidden.updates)


def _check_forward(which: str, current: Antichain, asked: Frontier) -> None:
    if not current <= Antichain(*asked):
        raise FrontierRegression(which, Antichain(*asked), current)


def _held(contents: CollectionState, step: SetHold) -> Held:
    _check_hold(contents, step)
    if step.schema is not None and not 1 <= step.schema <= len(contents.earlier) + 1:
        raise ValueError(f"a hold names version {step.schema} of a schema that has {len(contents.earlier) + 1}")
    before = contents.holds.get(step.hold)
    known = before.schema if before is not None and step.schema is None else step.schema
    columns = before.columns if before is not None and step.columns is None else step.columns or ()
    if step.columns:
        check_columns_there(contents, step.columns)
    return Held(step.time, step.lease, known, columns)


def _check_hold(contents: CollectionState, step: SetHold) -> None:
    as_time("hold time", step.time, most=TIME_MAX + 1)
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
