"""The rules for a commit to a keyed collection: declarations, new events, and resolutions.

Events are not updates. They stay in pending parts, beside the history and never in it, until one `Resolve` replaces
them by updates. The *watermark* of an event is its value in the first column of `order_by`, as an integer. An event is
late if its watermark is below the *late bound*.

Invariants of a keyed collection, in addition to `persist.core.state_rules.contents`:

- only a `Resolve` adds updates to it: a plain append is refused, because the contents are unknown until then;
- `resolved` is at or before upper; with the policy "seal" it is upper, so that a seal past pending events is refused;
- all updates are at times before `resolved`, and every event at a time beyond `resolved` is in a pending part;
- each pending part has an event at a time beyond `resolved`; its rows before `resolved` do not count;
- since is before `resolved`: the next resolution begins with the contents as of the last resolved time;
- the late bound never goes back, and no event was added whose watermark was below it.

Arrival is the order of (number of the part, `_seq` in it). Numbers are assigned in the order of the log, so the result
depends neither on the resolving client nor on the time.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec
import pyarrow.types as pat

from persist.codecs.nested import list_all_ids
from persist.codecs.part.part import Footer, Part
from persist.codecs.types.arrow_types import decode_scalar, decode_type, is_flat
from persist.codecs.types.schema import CollectionSchema
from persist.core.antichain import END, decode_frontier, to_antichain
from persist.core.errors import (
    FrontierRegression,
    InvalidUsage,
    KeyedCollection,
    LateEvents,
    NotKeyed,
    PendingEvents,
    SchemaMismatch,
    Superseded,
    UpdatesBeyondUpper,
)
from persist.core.log import kinds
from persist.core.log.fields import Frontier, GroupForm, KeyedForm, Watermarks
from persist.core.state_rules.contents import CollectionState, append_parts, check_beyond_upper

WATERMARK_OF_NULL = -(2**63)
RESERVED = ("_deleted", "_seq")  # Columns of events, see `persist.core.keyed.events`.
UNCHANGED = "_unchanged"  # Another one. No new collection has it, and earlier versions allowed it.


@dataclass(frozen=True, slots=True)
class PlannedPend:
    """A `Pend` whose parts are not encoded yet; time_min and time_max are of its events."""

    collection: str
    time_min: int
    time_max: int
    watermarks: Watermarks | None
    schema: int = 1


def create_contents(step: kinds.Create) -> CollectionState:
    """Return the contents of a new collection. Raises ValueError if its declaration is not valid."""
    contents = CollectionState(step.collection, step.name, step.schema, view=step.view)
    if step.keyed is None:
        return contents
    check_form(step.keyed, contents.schema)
    is_background = step.keyed.resolve == "background"
    return msgspec.structs.replace(
        contents,
        keyed=step.keyed,
        late_bound=step.keyed.late_bound,
        resolved_times=(0,) if is_background else None,
    )


def check_new_names(names: Iterable[str]) -> None:
    """Raise SchemaMismatch if a new column has a name reserved in events."""
    if UNCHANGED in names:
        raise SchemaMismatch(
            f"column {UNCHANGED!r} means something else: in events, it lists columns that stay as they are. Rename it, "
            "or give such events to an existing keyed collection."
        )


def check_form(keyed: KeyedForm, schema: CollectionSchema) -> None:
    """Raise ValueError if a stored declaration does not fit its schema."""
    fields = {name: schema.arrow.field(name).type for name in schema.value_names}
    events = fields if keyed.fields is None else {name: decode_type(kind) for name, kind in keyed.fields}
    if not schema.key_names:
        raise ValueError("a keyed collection has no key columns")
    if not {*keyed.order_by} <= events.keys() or not all(is_flat(events[name]) for name in keyed.order_by):
        raise ValueError(
            f"its events are ordered by {list(keyed.order_by)}, but some of these columns are missing or nested"
        )
    grouped = [name for group in keyed.groups for name in group.names]
    ordering = {*keyed.order_by, keyed.tombstone}
    if not {*grouped} <= fields.keys() - ordering or len({*grouped}) < len(grouped):
        raise ValueError(f"its groups name {grouped}, of which some are missing, or have another order, too")
    if not all(group.order_by and all(is_flat(fields[name]) for name in group.order_by) for group in keyed.groups):
        raise ValueError("a group of its columns has no flat column to order it")
    if keyed.tombstone is not None:
        if keyed.tombstone not in fields or not is_flat(fields[keyed.tombstone]):
            raise ValueError(
                f"the tombstone column {keyed.tombstone!r} is missing or nested: it must be a flat value column"
            )
        if keyed.tombstone_value is not None:
            decode_scalar(keyed.tombstone_value, fields[keyed.tombstone])
    elif keyed.tombstone_value is not None:
        raise ValueError("it has a tombstone value, and no tombstone column")
    if (keyed.late_by is not None or keyed.late_bound is not None) and not keyed.order_by:
        raise ValueError("it has a late bound, and no order")
    if keyed.late_by is not None and keyed.late_by < 0:
        raise ValueError(f"its late bound lies {keyed.late_by} behind the greatest watermark")
    if not 0 < len(keyed.machine.name) <= 128 or keyed.machine.version < 0:
        raise ValueError(f"{keyed.machine.name[:200]!r} version {keyed.machine.version} cannot be a machine")


def load_form(contents: CollectionState, schema: CollectionSchema, *, resolves: bool = True) -> KeyedForm | None:
    """Return a collection's keyed form, with the column names of this schema.

    `resolves`: whether the form is for a resolution; plain reads need no watermarks.
    """
    if contents.keyed is None or schema.version == len(contents.earlier) + 1:
        return contents.keyed
    form = contents.keyed if resolves else msgspec.structs.replace(contents.keyed, order_by=(), groups=())
    return _rename_form_columns(form, contents.schema, schema)


def _rename_form_columns(form: KeyedForm, before: CollectionSchema, after: CollectionSchema) -> KeyedForm:
    """Return a declaration with its columns' names in another version."""
    if form.fields is not None:
        return form  # Its events have columns of their own.
    named = dict(zip(after.ids, after.names, strict=True))
    ids = dict(zip(before.names, before.ids, strict=True))

    def rename(what: str, name: str) -> str:
        if (new_name := named.get(ids[name])) is None:
            raise SchemaMismatch(
                f"column {name!r} is the {what} of a keyed collection, and version {after.version} of its schema does "
                "not have it: its events could not be resolved"
            )
        return new_name

    order_by = tuple(rename("order_by", name) for name in form.order_by)
    tombstone = None if form.tombstone is None else rename("tombstone", form.tombstone)
    groups = tuple(
        GroupForm(
            tuple(rename("order of a group", name) for name in group.order_by),
            tuple(named[ids[name]] for name in group.columns if ids[name] in named),
        )
        for group in form.groups
    )
    return msgspec.structs.replace(form, order_by=order_by, tombstone=tombstone, groups=groups)


def evolve_form(contents: CollectionState, after: CollectionSchema) -> KeyedForm | None:
    """Return a collection's keyed form after its schema evolves."""
    form = contents.keyed
    if form is None:
        return None
    if form.fields is not None:
        raise InvalidUsage(
            f"the events of {contents.name!r} have columns of their own, because its machine {form.machine.name!r} "
            "asks for them: events that are pending could not be read under another schema. Create a collection with "
            "the new schema and this machine, and write the events to it again; or write its changes into a plain "
            "collection, which can evolve."
        )
    if reserved := [name for name in after.names if name in RESERVED]:
        raise SchemaMismatch(f"column {reserved[0]!r} means something else in events of a keyed collection. Rename it.")
    schema_before = contents.schema
    if (
        form.ties == "greatest"
        and not list_all_ids(schema_before) <= list_all_ids(after)
        and list_due_parts(contents, contents.upper)
    ):
        raise InvalidUsage(
            f"events of {contents.name!r} are sealed and not resolved yet, and their values say which of them count "
            "(ties is 'greatest'): no column can be dropped before."
        ).with_remedy("Use {compact:call}, then {evolve:call} again.")
    evolved = _rename_form_columns(form, schema_before, after)
    if form.order_by and (form.late_by is not None or contents.late_bound is not None):
        type_before, type_after = (
            schema_before.arrow.field(form.order_by[0]).type,
            after.arrow.field(evolved.order_by[0]).type,
        )
        if type_before != type_after and not (pat.is_integer(type_before) and pat.is_integer(type_after)):
            raise SchemaMismatch(
                f"column {evolved.order_by[0]!r} has a late bound, so its type {type_before} cannot become "
                f"{type_after}: only integers can be widened in such a column"
            )
    try:
        check_form(evolved, after)
    except ValueError as error:
        raise SchemaMismatch(f"the collection {contents.name!r} is keyed, and {error}") from error
    return evolved


def make_keyed(contents: CollectionState, form: KeyedForm) -> CollectionState:
    """Turn plain contents into those of a keyed collection.

    The caller has checked the rows (`persist.engine.collection.evolution`).

    Raises:
        InvalidUsage: the collection is keyed already, or since is not before upper.
        UpdatesBeyondUpper: there are unsealed updates, which are not events.
        ValueError: the declaration does not fit the schema.
    """
    if contents.keyed is not None:
        raise InvalidUsage(
            f"the collection {contents.name!r} is keyed already: how it resolves events stays what it is, because "
            "the same events would have another result. Write its upserts into a collection that is keyed otherwise."
        )
    check_form(form, contents.schema)
    latest = max((part.time_max for part in contents.history_parts), default=-1)
    if latest >= contents.upper:
        raise UpdatesBeyondUpper(to_antichain(contents.upper), latest)
    is_background = form.resolve == "background"
    after = msgspec.structs.replace(
        contents,
        keyed=form,
        late_bound=form.late_bound,
        resolved_times=contents.upper_times if is_background else None,
    )
    if contents.since > compute_since_max(after):
        raise InvalidUsage(
            f"since={contents.since} of {contents.name!r} is not before upper={contents.upper}, and a keyed collection "
            "needs what was sealed last: seal it further first"
        )
    return after


def get_keyed_form(contents: CollectionState) -> KeyedForm:
    """Return the keyed form of contents; raise NotKeyed without one."""
    if contents.keyed is None:
        raise NotKeyed(contents.name)
    return contents.keyed


def add_planned_events(contents: CollectionState, step: PlannedPend) -> CollectionState:
    """Add a placeholder for events that are not encoded yet. Resolutions without these events then conflict."""
    part = Part(
        bytes=0,
        rows=1,
        memory=0,
        checksum="",
        footer=Footer(0, ""),
        time_min=step.time_min,
        time_max=step.time_max,
        negatives=0,
        diff_sum=1,
    )
    return add_events(contents, kinds.Pend(step.collection, (part,), watermarks=step.watermarks))


def add_events(contents: CollectionState, step: kinds.Pend) -> CollectionState:
    """Return contents with more pending events."""
    get_keyed_form(contents)
    for part in step.parts:
        check_beyond_upper(contents, part.time_min)
    numbered = dict(enumerate(step.parts, contents.next_number))
    return msgspec.structs.replace(
        _apply_watermarks(contents, step.watermarks),
        pending={**contents.pending, **numbered},
        next_number=contents.next_number + len(step.parts),
        inline_bytes=contents.inline_bytes + sum(len(part.inline) for part in step.parts),
    )


def list_due_parts(contents: CollectionState, end: int) -> tuple[int, ...]:
    """Return the numbers of pending parts with unresolved events before end.

    A part with events on both sides of `resolved` counts, because the times of its unresolved events are unknown.
    """
    if end <= contents.resolved:
        return ()
    return tuple(number for number, part in contents.pending.items() if part.time_min < end)


def list_still_pending(contents: CollectionState, end: int) -> dict[int, Part]:
    """Return the parts with events at or after end, which stay pending."""
    return {number: part for number, part in contents.pending.items() if part.time_max >= end}


def list_unused_after_resolve(contents: CollectionState, end: int) -> tuple[str, ...]:
    """Return the blobs that a resolution up to end leaves unused."""
    after = {part.blob for part in (*contents.numbered.values(), *list_still_pending(contents, end).values())}
    return tuple(dict.fromkeys(p.blob for p in contents.pending.values() if p.blob and p.blob not in after))


def resolve_events(contents: CollectionState, step: kinds.Resolve) -> CollectionState:
    """Return contents after a resolution.

    Raises:
        Superseded: the resolved time or the pending events have changed since the resolution was computed.
        FrontierRegression: the resolution ends before the resolved time or, with the policy "seal", before upper.
        ValueError: the updates are at times that the step does not resolve.
    """
    keyed = get_keyed_form(contents)
    start, end = decode_frontier(step.start), decode_frontier(step.end)
    if contents.resolved != start:
        raise Superseded(f"events up to {contents.resolved} are resolved already, and this began at {start}")
    if end < start or (keyed.resolve == "seal" and start == end):
        raise FrontierRegression("upper", to_antichain(end), to_antichain(start))
    if list_due_parts(contents, end) != step.pending or set(list_unused_after_resolve(contents, end)) != set(
        step.unused
    ):
        raise Superseded(f"the events pending before {end} changed after this resolution read them")
    for part in step.parts:
        if part.time_min < start or part.time_max >= end:
            raise ValueError(f"a part has times from {part.time_min} to {part.time_max}, and {start} to {end} resolve")
    pending = list_still_pending(contents, end)
    resolved_bytes = sum(len(part.inline) for number, part in contents.pending.items() if number not in pending)
    after = append_parts(_apply_watermarks(contents, step.watermarks), step.parts)
    return msgspec.structs.replace(
        after,
        pending=pending,
        inline_bytes=after.inline_bytes - resolved_bytes,
        upper_times=step.end if end > contents.upper else contents.upper_times,
        resolved_times=None if keyed.resolve == "seal" else step.end,
    )


def seal_contents(contents: CollectionState, upper: Frontier) -> CollectionState:
    """Return contents sealed to upper, which is not behind the present one.

    Raises PendingEvents: events before upper are pending, which the seal must resolve.
    """
    after = msgspec.structs.replace(contents, upper_times=upper)
    if contents.keyed is None:
        return after
    waiting = list_due_parts(contents, after.upper)
    if contents.keyed.resolve == "seal":
        if waiting:
            first = min(contents.pending[number].time_min for number in waiting)
            raise PendingEvents(contents.name, to_antichain(after.upper), first)
        return after
    # Without pending events, everything is resolved.
    return after if waiting else msgspec.structs.replace(after, resolved_times=upper)


def compute_since_max(contents: CollectionState) -> int:
    """Return how far since may advance: not beyond resolved times."""
    return END if contents.keyed is None else max(0, contents.resolved - 1)


def apply_late_bound(contents: CollectionState, step: kinds.AdvanceLateBound) -> CollectionState:
    """Return contents after the late bound advances; it never goes back."""
    if not get_keyed_form(contents).order_by:
        raise KeyedCollection(contents.name, "late_bound")
    known_bound = contents.late_bound
    return msgspec.structs.replace(
        contents, late_bound=step.bound if known_bound is None else max(known_bound, step.bound)
    )


def _apply_watermarks(contents: CollectionState, watermarks: Watermarks | None) -> CollectionState:
    """Return contents with the late bound that the watermarks of events imply.

    Raises LateEvents: the least of them is below the late bound.
    """
    if watermarks is None:
        return contents
    least, greatest = watermarks
    if contents.late_bound is not None and least < contents.late_bound:
        raise LateEvents(least, contents.late_bound)
    late_by = get_keyed_form(contents).late_by
    if late_by is None or greatest == WATERMARK_OF_NULL:
        return contents
    bound = max(greatest - late_by, WATERMARK_OF_NULL)
    return apply_late_bound(contents, kinds.AdvanceLateBound(contents.id, bound))


def check_pending(contents: CollectionState) -> None:
    """Raise ValueError if stored pending events contradict the rest of the state."""
    if contents.keyed is None:
        if contents.pending or contents.resolved_times is not None or contents.late_bound is not None:
            raise ValueError("it is not keyed, and has pending events, a late bound or something to resolve")
        return
    check_form(contents.keyed, contents.schema)
    if not contents.pending.keys().isdisjoint(contents.numbered):
        raise ValueError("a part is both pending and in the history")
    if sorted(contents.pending) != [*contents.pending]:
        raise ValueError("its pending parts are not in the order in which they came")
    if contents.resolved > contents.upper:
        raise ValueError(f"it is resolved up to {contents.resolved}, beyond its upper {contents.upper}")
    if (contents.keyed.resolve == "seal") != (contents.resolved_times is None):
        raise ValueError("its resolved time contradicts its policy")
    if any(part.time_max < contents.resolved for part in contents.pending.values()):
        raise ValueError("a pending part holds no events that are not resolved")
    if any(part.time_max >= contents.resolved for part in contents.numbered.values()):
        raise ValueError(f"it has updates at times that are not resolved, beyond {contents.resolved}")
    if contents.since > compute_since_max(contents):
        raise ValueError(f"since is {contents.since}, and only {contents.resolved} is resolved")
