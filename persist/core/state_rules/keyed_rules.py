"""The rules for a commit to a keyed collection: declaring it, adding events, resolving them, and refusals.

Events are not updates. They wait in pending parts, beside the history and never in it, until one `Resolve` puts what
they amount to in their place. Invariants of a keyed collection, in addition to `persist.core.state_rules.contents`:

- only a `Resolve` adds updates to it: a plain append is refused, because the present contents are not known yet;
- `resolved` is at or before upper; with the policy "seal" it is upper, so that a seal past pending events is refused;
- all updates are at times before `resolved`, and every event at a time beyond `resolved` is in a pending part;
- each pending part holds an event at a time beyond `resolved`; its rows before `resolved` do not count;
- since is before `resolved`: what is resolved next begins with the contents as of the last resolved time;
- the late bound never goes back, and no event came whose watermark was below it.

Arrival is the order of (number of the part, `_seq` in it). Numbers are drawn in the order of the log, so the outcome
depends neither on who resolves nor on when.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec
import pyarrow.types as pat

from persist.codecs.nested import all_ids
from persist.codecs.part.part import Footer, Part
from persist.codecs.types.arrow_types import is_flat, scalar_from_json, type_from_json
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
from persist.core.state_rules.contents import CollectionState, appended, check_beyond_upper

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


def created(step: kinds.Create) -> CollectionState:
    """Return the contents of a new collection; raises ValueError if its declaration cannot be understood."""
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
    """Raise SchemaMismatch if a column to be added has a name that means something else in events."""
    if UNCHANGED in names:
        raise SchemaMismatch(
            f"column {UNCHANGED!r} means something else: in events, it lists columns that stay as they are. Rename it, "
            "or give such events to an existing keyed collection."
        )


def check_form(keyed: KeyedForm, schema: CollectionSchema) -> None:
    """Raise ValueError if a stored declaration does not fit the schema that is stored with it."""
    fields = {name: schema.arrow.field(name).type for name in schema.value_names}
    events = fields if keyed.fields is None else {name: type_from_json(kind) for name, kind in keyed.fields}
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
            scalar_from_json(keyed.tombstone_value, fields[keyed.tombstone])
    elif keyed.tombstone_value is not None:
        raise ValueError("it has a tombstone value, and no tombstone column")
    if (keyed.late_by is not None or keyed.late_bound is not None) and not keyed.order_by:
        raise ValueError("it has a late bound, and no order")
    if keyed.late_by is not None and keyed.late_by < 0:
        raise ValueError(f"its late bound lies {keyed.late_by} behind the greatest watermark")
    if not 0 < len(keyed.machine.name) <= 128 or keyed.machine.version < 0:
        raise ValueError(f"{keyed.machine.name[:200]!r} version {keyed.machine.version} cannot be a machine")


def load_form(contents: CollectionState, schema: CollectionSchema, *, resolves: bool = True) -> KeyedForm | None:
    """Return how contents resolve events, with the names that columns have in a version of their schema.

    Args:
        resolves: whether events are to be resolved. A reader needs no watermarks.

    Raises:
        SchemaMismatch: that version lacks a column that is needed.
    """
    if contents.keyed is None or schema.version == len(contents.earlier) + 1:
        return contents.keyed
    form = contents.keyed if resolves else msgspec.structs.replace(contents.keyed, order_by=(), groups=())
    return _form_under(form, contents.schema, schema)


def _form_under(form: KeyedForm, before: CollectionSchema, after: CollectionSchema) -> KeyedForm:
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


def evolved_form(contents: CollectionState, after: CollectionSchema) -> KeyedForm | None:
    """Return how contents resolve events when their schema is another version.

    Raises:
        SchemaMismatch: the declaration does not fit it.
        InvalidUsage: the events have columns of their own, which are not in the schema.
    """
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
    if form.ties == "greatest" and not all_ids(schema_before) <= all_ids(after) and due(contents, contents.upper):
        raise InvalidUsage(
            f"events of {contents.name!r} are sealed and not resolved yet, and their values say which of them count "
            "(ties is 'greatest'): no column can be dropped before."
        ).with_remedy("Use {compact:call}, then {evolve:call} again.")
    evolved = _form_under(form, schema_before, after)
    if form.order_by and (form.late_by is not None or contents.late_bound is not None):
        was, is_ = schema_before.arrow.field(form.order_by[0]).type, after.arrow.field(evolved.order_by[0]).type
        if was != is_ and not (pat.is_integer(was) and pat.is_integer(is_)):
            raise SchemaMismatch(
                f"column {evolved.order_by[0]!r} is what the late bound is of, a number of {was}, and would mean "
                f"something else as {is_}: of such a column, only integers can be widened"
            )
    try:
        check_form(evolved, after)
    except ValueError as error:
        raise SchemaMismatch(f"the collection {contents.name!r} is keyed, and {error}") from error
    return evolved


def make_keyed(contents: CollectionState, form: KeyedForm) -> CollectionState:
    """Make plain contents those of a keyed collection, with their newest schema.

    The rows are not checked here: the caller has checked them (`persist.engine.collection.evolution`).

    Raises:
        InvalidUsage: they are keyed, or since is not before upper.
        UpdatesBeyondUpper: there are unsealed updates, which are not events.
        ValueError: the declaration does not fit the schema.
    """
    if contents.keyed is not None:
        raise InvalidUsage(
            f"the collection {contents.name!r} is keyed already: how it resolves events stays what it is, because the "
            "same events would amount to something else. Write its upserts into a collection that is keyed otherwise."
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
    if contents.since > since_max(after):
        raise InvalidUsage(
            f"since={contents.since} of {contents.name!r} is not before upper={contents.upper}, and a keyed collection "
            "needs what was sealed last: seal it further first"
        )
    return after


def keyed_form(contents: CollectionState) -> KeyedForm:
    """Return how contents resolve events.

    Raises:
        NotKeyed: they do not.
    """
    if contents.keyed is None:
        raise NotKeyed(contents.name)
    return contents.keyed


def planned(contents: CollectionState, step: PlannedPend) -> CollectionState:
    """Return contents with a placeholder for a draft's events, so that commits that do not know of them lose."""
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
    return pended(contents, kinds.Pend(step.collection, (part,), watermarks=step.watermarks))


def pended(contents: CollectionState, step: kinds.Pend) -> CollectionState:
    """Return contents with more events."""
    keyed_form(contents)
    for part in step.parts:
        check_beyond_upper(contents, part.time_min)
    numbered = dict(enumerate(step.parts, contents.next_number))
    return msgspec.structs.replace(
        _with_watermarks(contents, step.watermarks),
        pending={**contents.pending, **numbered},
        next_number=contents.next_number + len(step.parts),
        inline_bytes=contents.inline_bytes + sum(len(part.inline) for part in step.parts),
    )


def due(contents: CollectionState, end: int) -> tuple[int, ...]:
    """Return the numbers of the pending parts that hold an event before end, in order of arrival; none are resolved.

    In a part on both sides of the resolved times, the later events count, whose times are not known exactly.
    """
    if end <= contents.resolved:
        return ()
    return tuple(number for number, part in contents.pending.items() if part.time_min < end)


def pending_after(contents: CollectionState, end: int) -> dict[int, Part]:
    """Return the pending parts that still hold an event when all before end are resolved."""
    return {number: part for number, part in contents.pending.items() if part.time_max >= end}


def unused_after(contents: CollectionState, end: int) -> tuple[str, ...]:
    """Return the blobs that contents do not refer to any more when all events before end are resolved."""
    after = {part.blob for part in (*contents.numbered.values(), *pending_after(contents, end).values())}
    return tuple(dict.fromkeys(p.blob for p in contents.pending.values() if p.blob and p.blob not in after))


def resolved(contents: CollectionState, step: kinds.Resolve) -> CollectionState:
    """Return contents after a resolution.

    Raises:
        Superseded: something else is resolved, or other events are pending, than it was made for.
        FrontierRegression: it ends before upper, with the policy "seal", or before what is resolved.
        ValueError: its updates are at times that it does not resolve.
    """
    keyed = keyed_form(contents)
    start, end = decode_frontier(step.start), decode_frontier(step.end)
    if contents.resolved != start:
        raise Superseded(f"events up to {contents.resolved} are resolved already, and this began at {start}")
    if end < start or (keyed.resolve == "seal" and start == end):
        raise FrontierRegression("upper", to_antichain(end), to_antichain(start))
    if due(contents, end) != step.pending or set(unused_after(contents, end)) != set(step.unused):
        raise Superseded(f"other events before {end} are pending than this resolution was made of")
    for part in step.parts:
        if part.time_min < start or part.time_max >= end:
            raise ValueError(f"a part has times from {part.time_min} to {part.time_max}, and {start} to {end} resolve")
    pending = pending_after(contents, end)
    resolved_bytes = sum(len(part.inline) for number, part in contents.pending.items() if number not in pending)
    after = appended(_with_watermarks(contents, step.watermarks), step.parts)
    return msgspec.structs.replace(
        after,
        pending=pending,
        inline_bytes=after.inline_bytes - resolved_bytes,
        upper_times=step.end if end > contents.upper else contents.upper_times,
        resolved_times=None if keyed.resolve == "seal" else step.end,
    )


def sealed(contents: CollectionState, upper: Frontier) -> CollectionState:
    """Return contents sealed to upper, which is not behind the present one.

    Raises:
        PendingEvents: events before upper are pending, and are to be resolved with the seal.
    """
    after = msgspec.structs.replace(contents, upper_times=upper)
    if contents.keyed is None:
        return after
    waiting = due(contents, after.upper)
    if contents.keyed.resolve == "seal":
        if waiting:
            first = min(contents.pending[number].time_min for number in waiting)
            raise PendingEvents(contents.name, to_antichain(after.upper), first)
        return after
    # Without pending events, everything is resolved.
    return after if waiting else msgspec.structs.replace(after, resolved_times=upper)


def since_max(contents: CollectionState) -> int:
    """Return how far since may go: of a keyed collection to the last resolved time, of others anywhere."""
    return END if contents.keyed is None else max(0, contents.resolved - 1)


def with_late_bound(contents: CollectionState, step: kinds.AdvanceLateBound) -> CollectionState:
    """Return contents with the late bound of step, unless it is farther already."""
    if not keyed_form(contents).order_by:
        raise KeyedCollection(contents.name, "late_bound")
    known_bound = contents.late_bound
    return msgspec.structs.replace(
        contents, late_bound=step.bound if known_bound is None else max(known_bound, step.bound)
    )


def _with_watermarks(contents: CollectionState, watermarks: Watermarks | None) -> CollectionState:
    """Return contents after events with these watermarks came.

    Raises:
        LateEvents: the least of them is below the late bound.
    """
    if watermarks is None:
        return contents
    least, greatest = watermarks
    if contents.late_bound is not None and least < contents.late_bound:
        raise LateEvents(least, contents.late_bound)
    late_by = keyed_form(contents).late_by
    if late_by is None or greatest == WATERMARK_OF_NULL:
        return contents
    bound = max(greatest - late_by, WATERMARK_OF_NULL)
    return with_late_bound(contents, kinds.AdvanceLateBound(contents.id, bound))


def check_pending(contents: CollectionState) -> None:
    """Raise ValueError if contents break an invariant of the module's docstring, as far as descriptors show."""
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
        raise ValueError("how far it is resolved does not go with its policy")
    if any(part.time_max < contents.resolved for part in contents.pending.values()):
        raise ValueError("a pending part holds no events that are not resolved")
    if any(part.time_max >= contents.resolved for part in contents.numbered.values()):
        raise ValueError(f"it has updates at times that are not resolved, beyond {contents.resolved}")
    if contents.since > since_max(contents):
        raise ValueError(f"since is {contents.since}, and only {contents.resolved} is resolved")
