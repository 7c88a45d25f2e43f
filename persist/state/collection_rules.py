"""What a commit may do to one collection, and what the collection is then: rules 1, 2 and 4, conditions, holds, tokens.

What concerns keyed collections alone is in `persist.state.keyed_rules`.

The same function answers a reader that replays the log and a writer that drafts a commit, so that they cannot
disagree. A draft has steps that are no mutations: appends whose parts are not encoded yet, and conditions, which hold
because the slot of the log that the record is for is the compare-and-set.
"""

from dataclasses import dataclass

import msgspec

from persist.antichain import Antichain
from persist.codecs import CollectionSchema
from persist.errors import (
    AsOfCompacted,
    FrontierRegression,
    HoldMoved,
    PersistError,
    UpdatesBeyondUpper,
    UpperMismatch,
    with_timeline,
)
from persist.log.records import (
    AdvanceLateBound,
    AllowCompaction,
    Append,
    Batch,
    CollectionMutation,
    Create,
    Frontier,
    Pend,
    ReleaseHold,
    Replace,
    Resolve,
    Seal,
    SetHold,
    Tokens,
)
from persist.names import check_hold_name, is_id
from persist.state.contents import CollectionState, Held, Remembered, appended, replaced
from persist.state.keyed_rules import (
    PlannedPend,
    check_beyond_upper,
    check_plain,
    created,
    pended,
    planned,
    resolved,
    sealed,
    since_max,
    with_late_bound,
)
from persist.state.queries import with_batch

TOKENS_KEPT = 4096  # Of writes whose times are sealed, so that doing them twice is refused anyway.


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
        return contents
    if isinstance(step, PlannedPend):
        return planned(contents, step)
    if isinstance(step, Condition):
        _check_condition(contents, step)
        return contents
    if isinstance(step, Append):
        check_plain(contents)
        for part in step.parts:
            check_beyond_upper(contents, part.time_min)
        return appended(contents, step.parts)
    if isinstance(step, Pend):
        return pended(contents, step)
    if isinstance(step, Resolve):
        return _with_since(resolved(contents, step))
    if isinstance(step, AdvanceLateBound):
        return with_late_bound(contents, step.bound)
    if isinstance(step, Replace):
        return replaced(contents, step)
    if isinstance(step, Tokens):
        return change(contents, tokens=_with_tokens(contents, step))
    if isinstance(step, Batch):
        return change(contents, queries=with_batch(contents.queries, step))
    if isinstance(step, Seal):
        _check_forward("upper", contents.upper, step.upper)
        return contents if step.upper == contents.upper_times else _with_since(sealed(contents, step.upper))
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
    reach = min((Antichain(*contents.allowed_times), *held, *since_max(contents)))
    return msgspec.structs.replace(contents, since_times=max(contents.since, reach).elements)


def _with_tokens(contents: CollectionState, step: Tokens) -> dict[str, Remembered]:
    tokens = {**contents.tokens, **{mark.token: Remembered(mark.time_min, mark.digest) for mark in step.tokens}}
    if len(tokens) > TOKENS_KEPT:
        upper = contents.upper.time  # Once: this is done at every commit while many tokens are kept.
        sealed = [token for token, each in tokens.items() if upper is None or each.time_min < upper]
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
