"""The rules for a commit to one collection, and its result: rules 1, 2 and 4, conditions, holds, tokens.

Rules of keyed collections are in `persist.core.state_rules.keyed_rules`. Tags are named times that act as holds.
Retention is compaction that each seal allows, so since follows upper after any client's seal, as far as holds and tags
allow.

Readers that replay the log and writers that draft a commit use the same function, so that they cannot disagree. A draft
has steps that are not mutations: appends whose parts are not encoded yet, and conditions. A condition that held for the
draft holds at the commit: if another record came between, it would occupy the slot in the log.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any, TypeVar

import msgspec

from persist.codecs.types.schema import TIME_MAX, CollectionSchema
from persist.core.antichain import END, decode_frontier, encode_frontier, to_antichain, to_time_integer
from persist.core.errors import (
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
    attach_timeline,
)
from persist.core.log import kinds
from persist.core.log.fields import CollectionMutation, Frontier, Numbers
from persist.core.names import DERIVED_HOLDS, check_hold_name, check_tag_name, is_id
from persist.core.state_rules.annotations import (
    add_tokens,
    apply_description,
    check_archives,
    check_note,
    record_batch,
    update_archives,
)
from persist.core.state_rules.contents import (
    CollectionState,
    Held,
    append_parts,
    apply_replacement,
    check_beyond_upper,
    check_plain,
    check_runs,
    get_definition_number,
    summarize_unsealed,
)
from persist.core.state_rules.erasures import apply_erasure, count_erasures
from persist.core.state_rules.keyed_rules import (
    PlannedPend,
    add_events,
    add_planned_events,
    apply_late_bound,
    check_form,
    check_pending,
    compute_since_max,
    create_contents,
    resolve_events,
    seal_contents,
)
from persist.core.state_rules.publications import apply_publication, check_published
from persist.core.state_rules.schemas import (
    apply_evolve,
    apply_redefine,
    check_columns_exist,
    check_versions,
    check_writable_version,
)

TAGS_MAX = 1024


class PlannedAppend(msgspec.Struct, frozen=True):
    """An `Append` whose parts are not encoded yet.

    `time_min` is the least time of its updates, `schema` their version.
    """

    collection: str
    time_min: int
    schema: int = 1


class Condition(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    """A condition of an operation: the operation is refused unless it holds."""

    collection: str


class ExpectUpper(Condition, frozen=True, tag="expect_upper"):
    """Requires that upper has this value."""

    upper: Frontier


class ExpectNothingBeyondUpper(Condition, frozen=True, tag="expect_nothing_beyond_upper"):
    """Requires that upper has this value, and no update is beyond it."""

    upper: Frontier


class ExpectParts(Condition, frozen=True, tag="expect_parts"):
    """Requires that the next part gets this number: no part was added."""

    next_number: int


class ExpectErasures(Condition, frozen=True, tag="expect_erasures"):
    """Requires this number of erasures: nothing was erased meanwhile."""

    erasures: int


class ExpectRuns(Condition, frozen=True, tag="expect_runs"):
    """Requires that the history has these runs, with exactly these parts."""

    runs: tuple[Numbers, ...]


class ExpectDerived(Condition, frozen=True, tag="expect_derived"):
    """Requires that dependent views and indexes have exactly these holds, sorted."""

    holds: tuple[str, ...]


class ExpectDefinition(Condition, frozen=True, tag="expect_definition"):
    """Requires that the view has the definition of this number."""

    number: int


@dataclass(frozen=True, slots=True)
class SetHolds:
    """Several permanent holds of a collection, set together."""

    collection: str
    steps: tuple[kinds.SetHold, ...]


Planned = PlannedAppend | PlannedPend
CollectionStep = CollectionMutation | Planned | Condition | SetHolds

S = TypeVar("S")


def merge_holds(steps: Sequence[S]) -> "Iterable[S | kinds.SetHold | SetHolds]":
    """Return the steps, with consecutive holds of a collection as one `SetHolds`."""
    return _gather_holds(steps) if kinds.SetHold in {*map(type, steps)} else steps


def _gather_holds(steps: Iterable[S]) -> "Iterator[S | kinds.SetHold | SetHolds]":
    """Yield the steps, with consecutive permanent holds of a collection joined."""
    for collection, alike in groupby(steps, _get_hold_collection):
        if collection is None:
            yield from alike
            continue
        holds = tuple(step for step in alike if isinstance(step, kinds.SetHold))
        yield from (SetHolds(collection, holds),) if len(holds) > 1 else holds


def _get_hold_collection(step: object) -> str | None:
    """Return the collection of a permanent hold's step; None for other steps."""
    return step.collection if isinstance(step, kinds.SetHold) and step.lease is None else None


def apply_step(contents: CollectionState | None, step: CollectionStep) -> CollectionState:
    """Return a collection's state after a mutation or a draft's step.

    Raises:
        InvalidUsage, Conflict: a rule does not allow it.
        ValueError: no writer would make such a step.
    """
    if isinstance(step, kinds.Makes):
        # An error here would otherwise be raised in every reader of the collection.
        CollectionSchema.from_json(step.schema)
        return create_contents(step) if isinstance(step, kinds.Create) else create_clone(step)
    if contents is None:
        raise ValueError(f"the first mutation of collection {step.collection} does not create it")
    if isinstance(step, _REWRITES) and any(part.schema > len(contents.earlier) + 1 for part in step.parts):
        raise ValueError("it brings parts of a schema version that does not exist yet")
    try:
        return RULES[type(step)](contents, step)
    except PersistError as error:
        attach_timeline(error, contents.timeline)
        raise


_REWRITES = kinds.Replace | kinds.Erase | kinds.Publish | kinds.Resolve
_replace_fields = msgspec.structs.replace


def create_clone(step: kinds.Clone) -> CollectionState:
    """Return the contents of a new clone. Raises ValueError if its parts do not match its statistics."""
    end = encode_frontier(step.as_of + 1)
    is_background = step.keyed is not None and step.keyed.resolve == "background"
    contents = CollectionState(
        step.collection,
        step.name,
        step.schema,
        step.earlier,
        since_times=(step.as_of,),
        upper_times=end,
        allowed_times=(step.as_of,),
        numbered=dict(enumerate(step.parts)),
        next_number=len(step.parts),
        history=step.runs,
        keyframes=() if step.keyframe is None else (step.keyframe,),
        history_from=0 if step.keyframe is None else step.keyframe.as_of + 1,
        inline_bytes=sum(len(part.inline) for part in step.parts),
        keyed=step.keyed,
        resolved_times=end if is_background else None,
        late_bound=step.late_bound,
    )
    if any(part.time_max > step.as_of for part in step.parts):
        raise ValueError(f"a part has times after {step.as_of}, the time of the clone")
    if step.keyed is not None:
        check_form(step.keyed, contents.schema)
    check_contents(contents)
    return contents


def _apply_append(contents: CollectionState, step: kinds.Append) -> CollectionState:
    check_plain(contents)
    for part in step.parts:
        check_beyond_upper(contents, part.time_min)
        check_writable_version(contents, part.schema)
    return append_parts(contents, step.parts)


def _check_planned_append(contents: CollectionState, step: PlannedAppend) -> CollectionState:
    """Check an append before its parts are encoded; return the state unchanged."""
    check_plain(contents)
    check_beyond_upper(contents, step.time_min)
    check_writable_version(contents, step.schema)
    return contents


def _apply_pend(contents: CollectionState, step: kinds.Pend) -> CollectionState:
    for part in step.parts:
        check_writable_version(contents, part.schema)
    return add_events(contents, step)


def _apply_planned_pend(contents: CollectionState, step: PlannedPend) -> CollectionState:
    check_writable_version(contents, step.schema)
    return add_planned_events(contents, step)


def _apply_resolve(contents: CollectionState, step: kinds.Resolve) -> CollectionState:
    if any(part.schema < len(contents.earlier) + 1 for part in step.parts):
        raise Superseded("the collection has evolved since its events were resolved")  # They may mean less by now.
    return _advance_since(resolve_events(contents, step))


def _apply_seal(contents: CollectionState, step: kinds.Seal) -> CollectionState:
    _check_forward("upper", contents.upper, decode_frontier(step.upper))
    if step.upper == contents.upper_times:
        return contents
    return _apply_retention(_advance_since(seal_contents(contents, step.upper)))


def _apply_allow_compaction(contents: CollectionState, step: kinds.AllowCompaction) -> CollectionState:
    since = decode_frontier(step.since)
    _check_forward("since", contents.since, since)
    return _advance_since(_replace_fields(contents, allowed_times=encode_frontier(max(contents.allowed, since))))


def _apply_tokens(contents: CollectionState, step: kinds.Tokens) -> CollectionState:
    tokens = add_tokens(contents.tokens, step, contents.upper, contents.archives)
    archives = update_archives(contents.archives, step)
    return _replace_fields(contents, tokens=tokens, archived=msgspec.UNSET if archives is None else archives)


def _apply_note(contents: CollectionState, step: kinds.Note) -> CollectionState:
    check_note(step)
    return contents


def _advance_since(contents: CollectionState) -> CollectionState:
    """Advance since as far as compaction is allowed and holds permit (rule 4)."""
    hold_times = [*map(attrgetter("time"), contents.holds.values()), *contents.tags.values()]
    reach = min(contents.allowed, compute_since_max(contents), *hold_times)
    return _replace_fields(contents, since_times=encode_frontier(reach)) if reach > contents.since else contents


def _apply_retention(contents: CollectionState) -> CollectionState:
    """Let compaction advance as far as the retention allows.

    A collection that is complete for ever keeps its history.
    """
    if contents.retention is None or not contents.upper_times:
        return contents
    allowed = max(contents.allowed, contents.upper - contents.retention)
    return _advance_since(_replace_fields(contents, allowed_times=encode_frontier(allowed)))


def _apply_retain(contents: CollectionState, step: kinds.SetRetention) -> CollectionState:
    """Set the retention, and apply it."""
    if step.times is not None and not 1 <= step.times <= TIME_MAX:
        raise InvalidUsage(f"retention={step.times} is not a number of times from 1 to {TIME_MAX}, or None to keep all")
    return _apply_retention(_replace_fields(contents, retention=step.times))


def _apply_tag(contents: CollectionState, step: kinds.SetTag | kinds.DropTag) -> CollectionState:
    return _advance_since(_replace_fields(contents, tags=_update_tags(contents, step)))


def _update_tags(contents: CollectionState, step: kinds.SetTag | kinds.DropTag) -> dict[str, int]:
    """Return the tags of a collection after a tag was set or dropped."""
    actual = contents.tags.get(step.tag)
    if actual != step.expected:
        raise TagMoved(step.tag, step.expected, actual)
    other_tags = {name: time for name, time in contents.tags.items() if name != step.tag}
    if isinstance(step, kinds.DropTag):
        return other_tags
    check_tag_name(step.tag)
    to_time_integer("tag time", step.time, most=END)
    if step.time < contents.since:
        raise AsOfCompacted(step.time, to_antichain(contents.since))
    if step.time >= contents.upper:
        raise AsOfNotSealed(step.time, to_antichain(contents.upper), 0.0)
    if len(other_tags) >= TAGS_MAX:
        raise InvalidUsage(
            f"the collection has {len(other_tags)} tags, and at most {TAGS_MAX} are kept: drop some first"
        )
    return dict(sorted({**other_tags, step.tag: step.time}.items()))


def _apply_describe(contents: CollectionState, step: kinds.Describe) -> CollectionState:
    known_ids = {str(id_) for id_ in contents.schema.ids} if step.columns else set()
    if not known_ids.issuperset(step.columns):
        raise InvalidUsage(f"{sorted(step.columns)} are not all ids of columns of this collection: {sorted(known_ids)}")
    return _replace_fields(contents, about=apply_description(contents.about, step.words, step.columns, step.version))


def _expect_parts(contents: CollectionState, step: ExpectParts) -> CollectionState:
    """Raise Superseded if parts were added since the operation was planned."""
    if contents.next_number != step.next_number:
        raise Superseded("another commit added parts meanwhile: try again")
    return contents


def _expect_erasures(contents: CollectionState, step: ExpectErasures) -> CollectionState:
    """Raise Superseded if records were erased since the operation was planned."""
    if count_erasures(contents) != step.erasures:
        raise Superseded(f"records of {contents.name!r} were erased meanwhile: try again")
    return contents


def _expect_runs(contents: CollectionState, step: ExpectRuns) -> CollectionState:
    """Raise Superseded if runs have changed since the operation was planned."""
    if not set(contents.history).issuperset(step.runs):
        raise Superseded("a run that this compaction replaces has other parts by now: another compaction came first")
    return contents


def _expect_derived(contents: CollectionState, step: ExpectDerived) -> CollectionState:
    """Raise Superseded if views or indexes have come or gone since."""
    if list_derived_holds(contents) != step.holds:
        raise Superseded(f"a view or an index of {contents.name!r} has come or gone meanwhile: try again")
    return contents


def list_derived_holds(contents: CollectionState) -> tuple[str, ...]:
    """Return the holds of the views and indexes that depend on a collection, sorted."""
    return tuple(sorted(hold for hold in contents.holds if hold.startswith(DERIVED_HOLDS)))


def _expect_definition(contents: CollectionState, step: ExpectDefinition) -> CollectionState:
    """Raise ViewRedefined unless the view has the expected definition."""
    if (number := get_definition_number(contents)) != step.number:
        raise ViewRedefined(contents.name, step.number, number)
    return contents


def _expect_upper(contents: CollectionState, step: ExpectUpper | ExpectNothingBeyondUpper) -> CollectionState:
    """Raise UpperMismatch unless upper is as expected."""
    if (expected := decode_frontier(step.upper)) != contents.upper:
        raise UpperMismatch(to_antichain(expected), to_antichain(contents.upper))
    return contents


def _expect_nothing_beyond_upper(contents: CollectionState, step: ExpectNothingBeyondUpper) -> CollectionState:
    """Check upper, and that there are no unsealed updates."""
    _expect_upper(contents, step)
    hidden = None if contents.keyed is not None else summarize_unsealed(contents)
    if hidden is not None:
        first = hidden.first if hidden.is_exact else None
        raise UpdatesBeyondUpper(to_antichain(contents.upper), hidden.last, first=first, updates=hidden.updates)
    return contents


def _check_forward(frontier: str, current: int, requested: int) -> None:
    """Raise FrontierRegression if a frontier would move back."""
    if requested < current:
        raise FrontierRegression(frontier, to_antichain(requested), to_antichain(current))


def _apply_set_holds(contents: CollectionState, step: SetHolds) -> CollectionState:
    """Set several permanent holds, in order.

    Since never passes a hold, so moving a hold forward is always valid, and since advances once, after all holds.
    Before a hold that is new or goes back, since advances first, because it determines whether the hold is allowed.
    """
    holds, is_since_late = dict(contents.holds), False
    for place, set_hold in enumerate(step.steps):
        held_before = holds.get(set_hold.hold)
        if is_since_late and (held_before is None or set_hold.time < held_before.time):
            contents, is_since_late = _advance_since(_replace_fields(contents, holds=holds)), False
        holds[set_hold.hold] = _build_hold(contents, held_before, set_hold)
        is_since_late |= held_before is not None or place == 0
    return _advance_since(_replace_fields(contents, holds=holds))


def _build_hold(contents: CollectionState, before: Held | None, step: kinds.SetHold) -> Held:
    """Check that a step may set a hold, and return the new hold."""
    _check_hold(contents, before, step)
    if step.schema is not None and not 1 <= step.schema <= len(contents.earlier) + 1:
        raise ValueError(f"a hold names version {step.schema} of a schema that has {len(contents.earlier) + 1}")
    schema_version = before.schema if before is not None and step.schema is None else step.schema
    columns = before.columns if before is not None and step.columns is None else step.columns or ()
    if step.columns:
        check_columns_exist(contents, step.columns)
    return Held(step.time, step.lease, schema_version, columns)


def _apply_release_hold(contents: CollectionState, step: kinds.ReleaseHold) -> CollectionState:
    held_now = contents.holds.get(step.hold)
    if held_now is not None and step.expected not in (None, held_now.time):
        raise HoldMoved(step.hold, step.expected, held_now.time)
    remaining = dict(contents.holds)  # Ten times as fast as a comprehension, of which a million holds make 0.4 s.
    remaining.pop(step.hold, None)
    return _advance_since(_replace_fields(contents, holds=remaining))


def _check_hold(contents: CollectionState, held: Held | None, step: kinds.SetHold) -> None:
    """Raise an error if a hold may not be set. `held`: the present hold."""
    to_time_integer("hold time", step.time, most=END)
    if step.time < contents.since:
        raise AsOfCompacted(step.time, to_antichain(contents.since))
    if step.lease is not None:
        if not is_id(step.hold) or (held is not None and held.lease != step.lease):
            raise ValueError(f"{step.hold!r} is not the id of a hold, or another lease has it")
        return
    if held is None or held.lease is not None:  # The name of a permanent one was checked when it was set.
        check_hold_name(step.hold)
    actual = None if held is None else held.time
    if actual != step.expected:
        raise HoldMoved(step.hold, step.expected, actual)
    if actual is not None and step.time < actual:
        raise FrontierRegression(f"the hold {step.hold!r}", to_antichain(step.time), to_antichain(actual))


# The rule of each kind of mutation, and of each step of a draft: from contents to contents. `Create` and `Clone` have
# none before them, and `Destroy` leaves none.
RULES: dict[type, Callable[[CollectionState, Any], CollectionState]] = {
    PlannedAppend: _check_planned_append,
    PlannedPend: _apply_planned_pend,
    ExpectParts: _expect_parts,
    ExpectUpper: _expect_upper,
    ExpectNothingBeyondUpper: _expect_nothing_beyond_upper,
    ExpectDefinition: _expect_definition,
    ExpectErasures: _expect_erasures,
    ExpectDerived: _expect_derived,
    ExpectRuns: _expect_runs,
    kinds.Append: _apply_append,
    kinds.Pend: _apply_pend,
    kinds.Resolve: _apply_resolve,
    kinds.AdvanceLateBound: apply_late_bound,
    kinds.Replace: apply_replacement,
    kinds.Erase: apply_erasure,
    kinds.Tokens: _apply_tokens,
    kinds.Batch: lambda before, step: _replace_fields(before, queries=record_batch(before.queries, step)),
    kinds.Seal: _apply_seal,
    kinds.AllowCompaction: _apply_allow_compaction,
    kinds.SetHold: lambda before, step: _apply_set_holds(before, SetHolds(step.collection, (step,))),
    SetHolds: _apply_set_holds,
    kinds.ReleaseHold: _apply_release_hold,
    kinds.SetTag: _apply_tag,
    kinds.DropTag: _apply_tag,
    kinds.SetRetention: _apply_retain,
    kinds.Note: _apply_note,
    kinds.Describe: _apply_describe,
    kinds.Evolve: apply_evolve,
    kinds.Redefine: apply_redefine,
    kinds.Publish: apply_publication,
    kinds.Unpublish: apply_publication,
    kinds.Rename: lambda before, step: _replace_fields(before, name=step.name),
}


def check_contents(contents: CollectionState) -> None:
    """Raise ValueError if stored contents break an invariant that descriptors show."""
    check_runs(contents)
    check_versions(contents)
    check_pending(contents)
    check_published(contents)
    check_archives(contents.id, contents.archives)
