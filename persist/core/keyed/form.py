"""The declaration of a keyed collection: `create_or_load(..., keyed=Keyed(...))`.

A stored declaration names a machine: `upsert`, a built-in one, or the user's.
"""

import datetime
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
import pyarrow as pa
import pyarrow.types as pat

from persist.blob.options import check_fields
from persist.codecs.errors import SchemaMismatch, did_you_mean
from persist.codecs.types.arrow_types import decode_type, encode_type, is_flat
from persist.codecs.types.schema import CollectionSchema
from persist.core.errors import InvalidUsage
from persist.core.keyed.machine import NAME, VERSION, Machine, Replacing
from persist.core.keyed.machines import BOXED
from persist.core.log.fields import GroupForm, KeyedForm, MachineForm
from persist.core.state_rules.contents import CollectionState
from persist.core.state_rules.keyed_rules import RESERVED

Policy = Literal["seal", "background"]
Ties = Literal["last", "greatest"]


@dataclass(frozen=True, slots=True)
class Behind:
    """A distance behind the greatest `order_by` value seen: a number, or a `timedelta` for times."""

    distance: int | datetime.timedelta


@dataclass(frozen=True, slots=True)
class Keyed:
    """Makes a collection keyed: it takes events, and has one value per key, or the values that its machine computes.

    Attributes:
        order_by: the columns that order the events of a key. Of two events, the one with the greater values counts; an
            event below the present row changes nothing at any time. The first column decides first; NULL is below
            everything, NaN above every number.
        tombstone: the column that marks a row as a deletion of its key: a boolean if it is true, a string with
            `tombstone_value` if it equals that, any other value if it is not NULL. Tombstones are kept, and not shown.
        tombstone_value: see `tombstone`.
        late_bound: a value of the first column of order_by, which must be an integer, a date, a time or a timestamp:
            events below it are late and refused. Or `Behind` with a distance from the greatest value seen. It only
            moves forward.
        ties: which event counts among events of a key with equal time and order_by. "last": the event that
            arrived last, in the order of the log. "greatest": the one with the greatest value, and a deletion only if
            there is no other event, so that the order of arrival does not matter. Values are compared column by column,
            in the order in which the collection got its columns; NULL is the greatest, as in storage.
        resolve: "seal": the client that seals turns the events into updates. "background": a seal does not; readers
        resolve the events that they need, and maintenance turns events into updates. Reads are the same with both.
        machine: computes the values of a key from an event; None is `upsert`: the event replaces the present row.
        groups: value columns with an order of their own (`persist.core.keyed.partial`): from the name of an ordering
            column, or a tuple of names, to the columns that it orders. All of them can be NULL. An event changes a
            group unless the group's order in the present row is greater, independently of other columns.
    """

    order_by: Sequence[str] = ()
    tombstone: str | None = None
    tombstone_value: str | None = None
    late_bound: Any = None
    ties: Ties = "last"
    resolve: Policy = "seal"
    machine: Machine | None = None
    groups: Mapping[str | tuple[str, ...], Sequence[str]] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        check_fields(self, but=("order_by", "tombstone", "late_bound", "machine", "groups"))
        is_list = isinstance(self.order_by, Iterable) and not isinstance(self.order_by, str)
        if not is_list or not all(isinstance(name, str) for name in self.order_by):
            raise InvalidUsage(f'order_by={self.order_by!r} is not a list of columns: give one, such as ["at"]')
        object.__setattr__(self, "order_by", tuple(self.order_by))
        if self.tombstone is not None and not isinstance(self.tombstone, str):
            raise InvalidUsage(
                f"tombstone={self.tombstone!r} is not the name of one column: a key is deleted by exactly one. "
                "Give its name; combine several columns into one before."
            )
        if self.tombstone_value is not None and self.tombstone is None:
            raise InvalidUsage(f"tombstone_value={self.tombstone_value!r} needs tombstone=, the column that it is in")
        if isinstance(self.machine, type) or (self.machine is not None and not isinstance(self.machine, Machine)):
            raise InvalidUsage(
                f"machine={self.machine!r} is not a machine: give an instance, such as InsertIfAbsent(); see "
                "persist.core.keyed.machine.Machine"
            )
        if self.late_bound is not None and not self.order_by:
            raise InvalidUsage(f"late_bound={self.late_bound!r} needs order_by=, the columns that order events")
        if not isinstance(self.groups, Mapping) or not all(
            _are_names((order,) if isinstance(order, str) else order) and _are_names(columns)
            for order, columns in self.groups.items()
        ):
            raise InvalidUsage(
                f"groups={self.groups!r} is not a dict from ordering columns to lists of the columns that they order: "
                'give one, such as {"paid_at": ["paid", "method"]}'
            )
        object.__setattr__(self, "groups", {order: tuple(columns) for order, columns in self.groups.items()})
        if self.groups and self.machine is not None:
            raise InvalidUsage("groups= is for upserts, and machine= sets another rule for events: give one of them")


def _are_names(names: Any) -> bool:
    """Return whether the value is a collection of texts, not a text."""
    return isinstance(names, Collection) and not isinstance(names, str) and all(isinstance(name, str) for name in names)


def build_form(keyed: Keyed, schema: CollectionSchema) -> KeyedForm:
    """Return the stored form of a declaration, after checking that it fits a schema."""
    if not schema.key_names:
        raise SchemaMismatch("a keyed collection needs a key: give key= at least one column")
    if reserved := [name for name in (*schema.names,) if name in RESERVED]:
        raise SchemaMismatch(f"column {reserved[0]!r} means something else in events of a keyed collection. Rename it.")
    fields = schema.value.fields if keyed.machine is None else keyed.machine.event_fields(schema)
    if wrong := [field.name for field in fields if field.name in (*RESERVED, *schema.key_names, "_time", "_diff")]:
        raise SchemaMismatch(f"the machine's event field {wrong[0]!r} means something else in events. Rename it.")
    events = {field.name: field.type for field in fields}
    for name in keyed.order_by:
        _check_flat(name, events, "order_by", "an event")
    if len(set(keyed.order_by)) < len(keyed.order_by):
        raise SchemaMismatch(f"order_by={list(keyed.order_by)} has a column twice. Name it once.")
    _check_tombstone(keyed, schema)
    groups = _make_groups(keyed, schema)
    machine = make_machine_form(keyed.machine)
    _check_machine(machine)
    _check_policy(keyed, machine, schema)
    bound, late_by = _parse_late(keyed, events)
    is_value = tuple(fields) == schema.value.fields
    return KeyedForm(
        machine=machine,
        fields=None if is_value else tuple((field.name, encode_type(field.type)) for field in fields),
        order_by=tuple(keyed.order_by),
        tombstone=keyed.tombstone,
        tombstone_value=keyed.tombstone_value,
        late_by=late_by,
        late_bound=bound,
        resolve=keyed.resolve,
        ties=keyed.ties,
        groups=groups,
    )


def _make_groups(keyed: Keyed, schema: CollectionSchema) -> tuple[GroupForm, ...]:
    """Return the stored form of a declaration's groups."""
    groups = tuple(
        GroupForm((order_by,) if isinstance(order_by, str) else tuple(order_by), tuple(columns))
        for order_by, columns in keyed.groups.items()
    )
    fields = {name: schema.arrow.field(name) for name in schema.value_names}
    kinds = {name: field.type for name, field in fields.items()}
    for group in groups:
        for name in group.order_by:
            _check_flat(name, kinds, "groups", "the collection")
    names = [name for group in groups for name in group.names]
    for name in names:
        if name not in fields:
            hint = did_you_mean(name, list(fields))
            raise SchemaMismatch(f"groups names {name!r}, which is not a value column{hint or ','} {list(fields)}")
        if name in schema.required:
            raise SchemaMismatch(
                f"groups names {name!r}, which is not null by the schema (nullable=False): a row may come before the "
                "first event of a group, so the columns of groups can be NULL"
            )
        if names.count(name) > 1 or name in keyed.order_by or name == keyed.tombstone:
            raise SchemaMismatch(
                f"groups names {name!r}, which has a place in another group, in order_by or as the tombstone already: "
                "a column has one order"
            )
    if not all(group.order_by for group in groups):
        raise SchemaMismatch("groups has a group without an ordering column: leave its columns out of groups")
    return _sort_groups(groups, [*fields])


def _sort_groups(groups: Sequence[GroupForm], names: Sequence[str]) -> tuple[GroupForm, ...]:
    """Return groups and their columns in the order of names, because their declared order has no meaning."""
    whole = [GroupForm(group.order_by, tuple(sorted(group.columns, key=names.index))) for group in groups]
    return tuple(sorted(whole, key=lambda group: names.index(group.order_by[0])))


def check_same_form(given: KeyedForm | None, stored: KeyedForm | None, collection: str) -> None:
    """Raise SchemaMismatch if a declaration differs from the stored one; the message shows the difference."""
    if given is not None and stored is not None:
        names = sorted({name for form in (given, stored) for group in form.groups for name in group.names})
        given, stored = (
            msgspec.structs.replace(form, groups=_sort_groups(form.groups, names)) for form in (given, stored)
        )
    if given == stored:
        return
    if given is None or stored is None:
        is_stored, is_given = ("keyed" if form is not None else "not keyed" for form in (stored, given))
        raise SchemaMismatch(
            f"the collection {collection!r} is stored as {is_stored}, and given as {is_given}: that cannot be changed. "
            "Give keyed= as it was created with, or use another collection name."
        )
    names = [field.name for field in msgspec.structs.fields(KeyedForm)]
    differing = [name for name in names if getattr(given, name) != getattr(stored, name)]
    differences = [
        f"{name} is stored as {_describe_form(stored, name)}, given as {_describe_form(given, name)}"
        for name in differing
    ]
    raise SchemaMismatch(
        f"the collection {collection!r} is keyed otherwise than given: {'; '.join(differences)}. The same events "
        "would have another result, so this cannot be changed. Give what is stored, or use another collection name."
    )


def describe_orders(form: KeyedForm) -> list[str]:
    """Return the columns that order the events of a collection, for messages."""
    return [*form.order_by, *(name for group in form.groups for name in group.order_by)]


def watermark_to_int(value: Any, kind: pa.DataType) -> int:
    """Return a watermark as an integer; raise InvalidUsage for another type."""
    try:
        scalar = value if isinstance(value, pa.Scalar) else pa.scalar(value, kind)
        number = scalar.cast(kind).value if pat.is_temporal(kind) else scalar.cast(kind).as_py()
        if isinstance(value, float) and number != value:
            raise ValueError("it would be rounded")
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InvalidUsage(
            f"late_bound={value!r} is not a value of the first column of order_by, of type {kind}"
        ) from error
    if number is None:
        raise InvalidUsage(f"late_bound={value!r} is NULL: give a value of type {kind}")
    return int(number)


def get_watermark_type(form: KeyedForm, schema: CollectionSchema) -> pa.DataType:
    """Return the type of the first column of `order_by`."""
    name = form.order_by[0]
    if form.fields is None:
        return schema.arrow.field(name).type
    return next(decode_type(kind) for field_name, kind in form.fields if field_name == name)


def is_integer_watermark(kind: pa.DataType) -> bool:
    """Return whether watermarks of a type are stored as integers, so that a late bound is possible."""
    return bool(pat.is_integer(kind) or (pat.is_temporal(kind) and not pat.is_duration(kind)))


def _parse_late(keyed: Keyed, events: dict[str, pa.DataType]) -> tuple[int | None, int | None]:
    """Return the late bound and the distance of a declaration as integers in the watermark's unit."""
    if keyed.late_bound is None:
        return None, None
    kind = events[keyed.order_by[0]]
    if not is_integer_watermark(kind):
        raise SchemaMismatch(
            f"late_bound={keyed.late_bound!r} bounds the column {keyed.order_by[0]!r} of type {kind}: with a late "
            "bound, the first column of order_by must have integers, dates, times or timestamps"
        )
    if not isinstance(keyed.late_bound, Behind):
        return watermark_to_int(keyed.late_bound, kind), None
    return None, _parse_distance(keyed.late_bound.distance, kind)


def _parse_distance(distance: Any, kind: pa.DataType) -> int:
    """Return a distance of watermarks as an integer of the column's unit."""
    if isinstance(distance, datetime.timedelta) and pat.is_timestamp(kind):
        number = distance // datetime.timedelta(microseconds=1) * 1000
        return _check_not_negative(number // {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}[kind.unit], distance)
    if isinstance(distance, datetime.timedelta) and pat.is_date(kind):
        return _check_not_negative(distance.days * (1 if pat.is_date32(kind) else 86_400_000), distance)
    if isinstance(distance, int) and not isinstance(distance, bool):
        return _check_not_negative(distance, distance)
    raise InvalidUsage(
        f"Behind({distance!r}) is not a distance in the first column of order_by, of type {kind}: give "
        "an integer in their unit, or a timedelta if they are timestamps or dates"
    )


def _check_not_negative(number: int, distance: Any) -> int:
    if number < 0:
        raise InvalidUsage(f"Behind({distance!r}) is negative: the late bound lies behind the greatest value seen")
    return number


def _check_flat(name: str, fields: dict[str, pa.DataType], what: str, whose: str) -> None:
    """Raise SchemaMismatch unless `fields` has a flat field of that name."""
    if name not in fields:
        hint = did_you_mean(name, list(fields))
        raise SchemaMismatch(
            f"{what} names {name!r}, which is not a value column of {whose}{hint or ','} {list(fields)}"
        )
    if not is_flat(fields[name]):
        raise SchemaMismatch(f"{what} names {name!r} of type {fields[name]}: only flat columns have a place there")


def _check_tombstone(keyed: Keyed, schema: CollectionSchema) -> None:
    """Raise SchemaMismatch unless the tombstone column fits the schema."""
    if keyed.tombstone is None:
        return
    fields = {name: schema.arrow.field(name).type for name in schema.value_names}
    _check_flat(keyed.tombstone, fields, "tombstone", "the collection")
    kind = fields[keyed.tombstone]
    if keyed.tombstone_value is not None and not (pat.is_string(kind) or pat.is_large_string(kind)):
        raise SchemaMismatch(
            f"tombstone_value={keyed.tombstone_value!r} goes with a column of strings, and {keyed.tombstone!r} is "
            f"{kind}: a boolean deletes if it is true, anything else if it is not NULL. Leave tombstone_value out."
        )


def _check_machine(machine: MachineForm) -> None:
    """Raise InvalidUsage unless a machine's name, version and options can be stored."""
    try:
        written = msgspec.json.decode(msgspec.json.encode(machine.options))
    except (msgspec.MsgspecError, TypeError) as error:
        raise InvalidUsage(
            f"the options of the machine {describe_machine(machine)} cannot be written as JSON: {error}"
        ) from error
    if written != machine.options:
        raise InvalidUsage(
            f"the options of the machine {describe_machine(machine)} are not the same when read back from JSON"
        )
    if not 0 < len(machine.name) <= 128 or not machine.name.isprintable() or machine.version < 0:
        raise InvalidUsage(f"a machine has a name of 1 to 128 printable characters and a version, not {machine!r}")


def _check_policy(keyed: Keyed, machine: MachineForm, schema: CollectionSchema) -> None:
    """Raise SchemaMismatch if events that are resolved in the background may be refused."""
    may_refuse = getattr(keyed.machine, "may_refuse", None)
    if keyed.resolve == "background" and may_refuse is not None and may_refuse(schema):
        raise SchemaMismatch(
            f"the machine {describe_machine(machine)} may refuse events when they are resolved, and with "
            'resolve="background" they would be sealed by then: what is sealed could not be read any more. Give '
            'resolve="seal".'
        )


def _describe_form(form: KeyedForm, name: str) -> str:
    """Return a member of a stored declaration as text for messages."""
    value = getattr(form, name)
    return describe_machine(value) if isinstance(value, MachineForm) else repr(value)


def make_machine_form(machine: Machine | None) -> MachineForm:
    """Return the stored form of a machine; None means `upsert`."""
    if machine is None:
        return MachineForm(NAME, VERSION)
    return MachineForm(machine.name, machine.version, dict(machine.options))


def find_machine(form: KeyedForm, given: Machine | None, collection: str) -> Machine | None:
    """Return the machine of a collection; None if this process lacks it, which matters only for resolution.

    Args:
        given: the user's machine.
        collection: its name, for messages.
    """
    stored = form.machine
    if given is not None and make_machine_form(given) != stored:
        raise SchemaMismatch(
            f"the collection {collection!r} is stored with the machine {describe_machine(stored)}, and "
            f"{describe_machine(make_machine_form(given))} was given: the same events would have another result. "
            "Give the stored one, or use another collection name."
        )
    if (stored.name, stored.version) == (NAME, VERSION):
        return Replacing.of(form)  # With its present columns: an earlier machine may have older names for them.
    if given is not None:
        return given
    boxed = BOXED.get((stored.name, stored.version))
    return None if boxed is None else boxed(stored.options)


def has_one_value(contents: CollectionState) -> bool:
    """Return whether the collection's known machine allows one value per key."""
    machine = None if contents.keyed is None else find_machine(contents.keyed, None, contents.name)
    return machine is not None and machine.has_one_value


def describe_machine(form: MachineForm) -> str:
    """Return the name of a machine for messages."""
    options = "".join(f", {name}={value!r}" for name, value in sorted(form.options.items()))
    return f"{form.name!r} version {form.version}{options}"
