"""The definition of a view: the text of its query, and the plan that it was bound to. It is stored with the collection.

    definition = { version, sql, inputs, reads, columns, key, plan, number, since, earlier }

Fields:
    version  of this format; a newer one is refused
    sql      the query as it was written, for people
    inputs   the ids of all collections that the view depends on, directly or through other views
    reads    the collections that the plan scans: name and id
    columns  name and type (`persist.compute.sql.types`) of each
    key      the columns that are the key of the collection
    plan     a relation (`persist.compute.sql.algebra`)
    number   counts the definitions of this view, from 1
    since    the time from which the view follows this definition; 0 for all times
    earlier  the last EARLIER_KEPT definitions before it: text and since
    start    the time at which the view begins: before it there are no answers
    program  the plan that refreshes run (`persist.compute.sql.stored`); without it, each refresh makes one from the
    relation

A relation is stored as its `kind` and its members without defaults; each of its expressions as one of

    { kind: "column", index }
    { kind: "constant", type, value }            value as text; without it, NULL
    { kind: "call", function, type, arguments, at }

A view begins at the earliest time at which all its inputs can be read. If it reads another view, it begins at that
view's start, or at its last change of definition: no program computes the earlier contents any more.

The answer at a time needs all inputs to have sealed it. The times of unrelated inputs, such as timestamps and counters,
may be so far apart that a view never uses one of them. That is correct but never intended, so creating or refreshing
such a view warns.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from persist.blob.threads import SystemClock
from persist.codecs.types.schema import CollectionSchema
from persist.compute.sql.algebra import Node
from persist.compute.sql.stored import compute_digest
from persist.compute.sql.types import format_scalar, name_arrow_type, parse_constant, to_arrow
from persist.core.antichain import to_time_integer
from persist.core.errors import IncompatibleVersion, InvalidUsage
from persist.core.expression.term import SQL, Call, Lit, Place, Term, make_sql_call
from persist.core.log.fields import KeyedForm
from persist.core.state_rules.contents import CollectionState
from persist.core.timeline import NOW, Moment, Timeline, format_time, is_moment, is_tag, parse_time, parse_time_word

VERSION = 2  # The first one has no program.
EARLIER_KEPT = 100


class EarlierDefinition(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An earlier definition of a view, and the time at which it began."""

    sql: str
    since: int


class Definition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A view's query, plan, inputs and key, as stored."""

    version: int
    sql: str
    inputs: tuple[str, ...]
    reads: dict[str, str]
    columns: tuple[tuple[str, str], ...]
    key: tuple[str, ...]
    plan: Node
    number: int = 1
    since: int = 0
    earlier: tuple[EarlierDefinition, ...] = ()
    start: int = 0
    program: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the definition in its stored form."""
        plain = msgspec.structs.replace(self, plan=None)
        stored = {**msgspec.to_builtins(plain), "plan": to_json(self.plan)}
        if self.program is None:  # As the first version has it.
            del stored["program"]
        else:
            stored["program"] = {**self.program, "digest": compute_digest(stored)}
        return stored

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> "Definition":
        """Return the definition from its stored form. Raises IncompatibleVersion: it is newer."""
        if stored.get("version") not in (1, VERSION):
            raise IncompatibleVersion("the definition of a view", stored.get("version", 0), VERSION)
        program = stored.get("program")
        if isinstance(program, dict) and program.get("digest") != compute_digest(stored):
            stored = {**stored, "program": None}
        return msgspec.convert(stored, cls, dec_hook=decode_term)


def to_json(value: Any) -> Any:
    """Return a plan, or a part of one, as it is stored."""
    match value:
        case Place(index):
            return {"kind": "column", "index": index}
        case Lit(scalar):
            text = format_scalar(scalar)
            return {"kind": "constant", "type": name_arrow_type(scalar.type)} | (
                {} if text is None else {"value": text}
            )
        case Call(function, arguments, (kind,), at):
            stored: dict[str, Any] = {
                "kind": "call",
                "function": function.removeprefix(SQL),
                "type": name_arrow_type(kind),
            }
            stored |= {"arguments": [*map(to_json, arguments)]} if arguments else {}
            return stored | ({} if at is None else {"at": at})
        case tuple():
            return [*map(to_json, value)]
        case msgspec.Struct():
            config = value.__struct_config__
            fields = msgspec.structs.fields(value)
            names = [field.name for field in fields if field.required or getattr(value, field.name) != field.default]
            tag = {} if config.tag is None else {config.tag_field: config.tag}
            return tag | dict(zip(names, map(to_json, [getattr(value, name) for name in names]), strict=True))
    return value


def decode_term(wanted: type, stored: dict[str, Any]) -> Term:
    """Return a term from its stored form; msgspec calls this for each term."""
    assert wanted is Term
    match stored:
        case {"kind": "column", "index": int(index), **rest} if not rest:
            return Place(index)
        case {"kind": "constant", "type": str(kind), **rest} if {*rest} <= {"value"}:
            return parse_constant(kind, rest.get("value"))
        case {"kind": "call", "function": str(function), "type": str(kind), **rest} if {*rest} <= {"arguments", "at"}:
            # One call of Python for each level, so that deep terms can be read.
            arguments = map(partial(decode_term, Term), rest.get("arguments", ()))
            return make_sql_call(function, to_arrow(kind), *arguments, at=rest.get("at"))
    raise ValueError(f"{stored!r:.200} is not an expression of a plan")


Start = int | Moment | None


class InputBehind(UserWarning):
    """Warning: a view is empty because an input is not sealed far enough."""


@dataclass(frozen=True, slots=True)
class Readable:
    """A collection that a view may read.

    Attributes:
        last: its last sealed time, or the first possible time without one; None for a view that was never refreshed.
        since: the first time that can be read; for a view, under its present definition.
        inputs: the ids of all collections that it depends on.
        redefined: the time from which a redefined view follows its present definition; otherwise 0.
        keyed: how it resolves events; None if it is not keyed.
    """

    id: str
    name: str
    schema: CollectionSchema
    timeline: str | None
    last: int | None
    since: int
    inputs: tuple[str, ...]
    is_view: bool
    redefined: int = 0
    keyed: KeyedForm | None = None


def find_shared_timeline(inputs: Iterable[Readable]) -> str | None:
    """Return the timeline of all inputs; None, which means numbers, if they differ."""
    timelines = {readable.timeline for readable in inputs}
    return timelines.pop() if len(timelines) == 1 else None


def parse_start(start: Start, unit: str | None) -> int | None:
    """Parse a user's start of a view; None for "now" and "latest"."""
    if isinstance(start, str) and start.strip().lower() in (NOW, "latest"):
        return None
    timeline = None if unit is None else Timeline(unit)
    start = parse_time(start, timeline)
    start = parse_time_word(start, SystemClock().wall_ms()) or start
    if is_tag(start):
        raise InvalidUsage(f'start={start!r:.100} is not a time: give a number, a moment, or "{NOW}"')
    if is_moment(start):
        if timeline is None:
            raise InvalidUsage(
                f"start={start!r:.100} is a moment, and the inputs of the view share no timeline: give a number"
            )
        return timeline.to_time(start)
    return to_time_integer("start", start)


def choose_start(start: Start, inputs: Sequence[Readable], unit: str | None) -> int:
    """Return the time at which a view of some inputs begins.

    Args:
        start: the user's argument: None for the earliest time, "now" for the last time that all inputs have sealed.
        unit: the unit of the view's timeline; None if times are numbers.
    """
    earliest = max((readable.since for readable in inputs), default=0)
    if start is None:
        return earliest
    time = parse_start(start, unit)
    if time is None:
        return max(earliest, min((readable.last for readable in inputs if readable.last is not None), default=0))
    timeline = None if unit is None else Timeline(unit)
    for readable in inputs:
        if time < readable.since:
            lies = f"start={format_time(time, timeline)} is before"
            if readable.since == readable.redefined:
                why = f"{readable.since}, from which on view {readable.name!r} holds what it is defined as now"
            else:
                why = f"since={format_time(readable.since, timeline)} of {readable.name!r}, which the view reads"
            raise InvalidUsage(
                f"{lies} {why}. The earliest start of this view is start={earliest}; leave it out for that"
            )
    return time


def explain_lag(name: str, start: int, inputs: Sequence[CollectionState]) -> str | None:
    """Return a warning if one lagging input keeps a view from using others.

    Args:
        start: where the view begins.
        inputs: the present states of all its plain collections.
    """
    sealed = {contents.name: contents.upper for contents in inputs}
    if len({*sealed.values()}) < 2 and all(upper > start for upper in sealed.values()):
        return None
    last = min(inputs, key=lambda contents: sealed[contents.name])
    upper = sealed[last.name]
    unit = last.timeline if len({contents.timeline for contents in inputs}) == 1 else None
    timeline = None if unit is None else Timeline(unit)
    is_sealed = f"{last.name!r} is sealed to {format_time(upper, timeline)}"
    if upper <= start and (start > 0 or len({*sealed.values()}) > 1):
        why = f"view {name!r} has no answer yet: it begins at {format_time(start, timeline)}"
        return f"{why}, and {is_sealed}, {start + 1 - upper} behind that{_describe_units(inputs, last)}"
    for contents in inputs:
        first = min((part.time_min for part in contents.parts), default=None)
        if first is not None and first >= upper and sealed[contents.name] > upper:
            why = f"view {name!r} sees nothing of {contents.name!r}, whose first update is at "
            by = f"{is_sealed}, {sealed[contents.name] - upper} behind {contents.name!r}"
            return f"{why}{format_time(first, timeline)}: {by}{_describe_units(inputs, last)}"
    return None


def _describe_units(inputs: Sequence[CollectionState], last: CollectionState) -> str:
    """Return the end of a warning: the timelines, if they differ, or what to seal."""
    for contents in inputs:
        if contents.timeline != last.timeline:
            units = [f"{readable.name!r} has {readable.timeline or 'no timeline'}" for readable in (last, contents)]
            return f". Their times count different things: {', and '.join(units)}"
    return f". Seal {last.name!r} further"
