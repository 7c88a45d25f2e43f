"""Shared parts of machines (columns of touched keys as integers, updates of picked rows), and four small machines.

Integers identify rows: equal integers mean equal rows (NULL equals NULL, and NaN equals NaN). So a machine is
arithmetic over groups, times and identities, and rows are taken once, at the end.

Two machines ignore a repeated event: `AppendDistinct` adds each event's value to its key, unless the key has it
already; with `InsertIfAbsent` a key's first event counts until an event deletes the key.

`Checked` takes change events with their old row, which must equal the present row. A difference means that events were
lost, repeated or reordered. A policy decides what happens then.

`PerKey` calls a Python function for each key, for rules that the built-in machines do not have.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from persist.codecs.errors import InvalidUpdate, SchemaMismatch
from persist.codecs.order.arrays import get_boolean_values, get_int64_values, make_int64_array
from persist.codecs.order.digits import compute_dense_ranks
from persist.codecs.order.ordering import combine_chunks, make_canonical, make_order_keys
from persist.codecs.types.schema import CollectionSchema, Side
from persist.codecs.updates.tuples import iterate_tuples
from persist.codecs.updates.updates import to_updates
from persist.core.errors import BeforeDiffers, InvalidUsage
from persist.core.keyed.machine import DELETED, GROUP, Touched

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Pick = tuple[Ints, Ints, int]  # Rows, by number; the time of each; and the diff of all.


def get_present_groups(touched: Touched) -> Ints:
    """Return the group of each present row, ascending."""
    return get_int64_values(combine_chunks(touched.present[GROUP]))


def get_event_groups(touched: Touched) -> Ints:
    """Return the group of each event, ascending."""
    return get_int64_values(combine_chunks(touched.events[GROUP]))


def get_event_times(touched: Touched) -> Ints:
    """Return the time of each event, ascending within a group."""
    return get_int64_values(combine_chunks(touched.events["_time"]))


def mark_deletions(touched: Touched) -> Flags:
    """Return which events delete their key."""
    return get_boolean_values(combine_chunks(touched.events[DELETED]))


def mark_changes(*columns: Ints) -> Flags:
    """Return which rows differ from the row before in any column."""
    first = np.ones(len(columns[0]), np.bool_)
    first[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    return first


def find_group_starts(groups: Ints) -> Ints:
    """Return for each row of ascending groups the number of the first row of its group."""
    first = mark_changes(groups)
    return np.flatnonzero(first)[np.cumsum(first) - 1] if len(groups) else groups


def shift_in_groups(
    groups: Ints, values: npt.NDArray[np.generic], initial: npt.NDArray[np.generic]
) -> npt.NDArray[np.generic]:
    """Return for each row the value of the previous row in its group; for the first, the group's initial value."""
    earlier = np.empty_like(values)
    earlier[1:] = values[:-1]
    first = mark_changes(groups)
    earlier[first] = initial[groups[first]]
    return earlier


def find_last_before(groups: Ints, where: Flags) -> Ints:
    """Return the last flagged row before each row in its group; -1 without one."""
    # The last such row before each one; where that is of an earlier group, there is none.
    last = np.full(len(groups), -1)
    last[1:] = np.maximum.accumulate(np.where(where, np.arange(len(groups)), -1))[:-1]
    return np.where(last >= find_group_starts(groups), last, -1)


def number_distinct_rows(tables: Sequence[pa.Table], names: Sequence[str]) -> list[Ints]:
    """Number the rows of several tables: rows that are equal in these columns get equal numbers."""
    lengths = [len(table) for table in tables]
    if not names:
        return [np.zeros(length, np.int64) for length in lengths]
    tables_joined = make_canonical(pa.concat_tables([table.select(names) for table in tables]).combine_chunks())
    return np.split(compute_dense_ranks(make_order_keys(tables_joined, names)), np.cumsum(lengths)[:-1])


def iterate_rounds(groups: Ints, times: Ints) -> Iterator[Ints]:
    """Yield the events of each group's first time, then of each group's second time, and so on, as row numbers.

    Work that depends on earlier times runs for all groups at once, in as many rounds as a group has times.
    """
    if not len(groups):
        return
    # The number of each event's time among the times of its group.
    number = np.cumsum(mark_changes(groups, times)) - 1
    number -= number[find_group_starts(groups)]
    order = np.argsort(number, kind="stable")
    yield from np.split(order, np.flatnonzero(np.diff(number[order])) + 1)


def concat_rows(touched: Touched) -> pa.Table:
    """Return the present rows and then the events, if events are rows of the collection."""
    names = [*touched.schema.names]
    return pa.concat_tables([touched.present.select(names), touched.events.select(names)]).combine_chunks()


def make_updates(schema: CollectionSchema, rows: pa.Table, picks: Sequence[Pick]) -> pa.Table:
    """Return picks, which are rows with times and a diff, as updates."""
    picked_rows = rows.select([*schema.names]).take(make_int64_array(_join([numbers for numbers, _, _ in picks])))
    times = make_int64_array(_join([times for _, times, _ in picks]))
    diffs = make_int64_array(_join([np.full(len(numbers), diff) for numbers, _, diff in picks]))
    return pa.Table.from_arrays([*picked_rows.columns, times, diffs], schema=schema.arrow)


def _join(parts: Sequence[Ints]) -> Ints:
    """Return int64 arrays as one."""
    return np.concatenate([np.empty(0, np.int64), *parts]).astype(np.int64)


class AppendDistinct:
    """Appends the values that a key does not have yet; a deletion removes all values of its key.

    `by`: the value columns that identify a repeated event, such as an event's id; None means all of them.
    """

    name, version, has_one_value = "append-distinct", 1, False

    def __init__(self, by: Sequence[str] | None = None) -> None:
        self._by = None if by is None else tuple(by)
        self.options: Mapping[str, Any] = {} if by is None else {"by": list(by)}

    def event_fields(self, schema: CollectionSchema) -> tuple[pa.Field, ...]:
        """Return the value fields: an event is a row to append."""
        for name in self._by or ():
            if name not in schema.value_names:
                raise SchemaMismatch(f"by={list(self._by or ())}: {name!r} is not one of {list(schema.value_names)}.")
        return schema.value.fields

    def step(self, touched: Touched) -> pa.Table:
        """Return the updates that the events cause; see `persist.core.keyed.machine.Machine.step`."""
        groups, times, is_deletion = get_event_groups(touched), get_event_times(touched), mark_deletions(touched)
        present = get_present_groups(touched)
        by = touched.schema.value_names if self._by is None else self._by
        identity = np.concatenate(number_distinct_rows([touched.present, touched.events], by))
        # A deletion ends an epoch of its key: what was known before it is not known after it.
        total: Ints = np.cumsum(is_deletion) - is_deletion
        epochs = np.concatenate([np.zeros(len(present), np.int64), total - total[find_group_starts(groups)]])
        owners = np.concatenate([present, groups])
        live = np.concatenate([np.ones(len(present), np.bool_), ~is_deletion])
        stands = _mark_firsts(owners, epochs, identity, live)
        stands[: len(present)] = True
        ends = _find_epoch_ends(owners, epochs, groups[is_deletion], times[is_deletion], touched.groups)
        goes = stands & (ends >= 0)
        added = np.flatnonzero(stands[len(present) :])
        picks = [
            (np.flatnonzero(goes), ends[goes], -1),
            (added + len(present), times[added], 1),
        ]
        return make_updates(touched.schema, concat_rows(touched), picks)


def _mark_firsts(owners: Ints, epochs: Ints, identity: Ints, live: Flags) -> Flags:
    """Return the first live row of each owner, epoch and identity."""
    rows = np.flatnonzero(live)
    order = rows[np.lexsort((identity[rows], epochs[rows], owners[rows]))]
    first = mark_changes(owners[order], epochs[order], identity[order])
    stands = np.zeros(len(owners), np.bool_)
    stands[order[first]] = True
    return stands


def _find_epoch_ends(owners: Ints, epochs: Ints, deleted: Ints, times: Ints, count: int) -> Ints:
    """Return when each row's epoch ends: a deletion's time, or -1."""
    counts = np.bincount(deleted, minlength=count)
    bases = np.cumsum(counts) - counts
    # Each deletion of an owner ends one epoch: they are sorted, the n-th is at bases[owner] + n.
    is_ended = epochs < counts[owners]
    return np.where(is_ended, np.append(times, -1)[np.where(is_ended, bases[owners] + epochs, -1)], -1)


class InsertIfAbsent:
    """Inserts the value of an event if its key has none; after a deletion, the next event counts."""

    name, version, has_one_value = "insert-if-absent", 1, True
    options: ClassVar[Mapping[str, Any]] = {}

    def event_fields(self, schema: CollectionSchema) -> tuple[pa.Field, ...]:
        """Return the value fields: an event is the row that its key should have."""
        return schema.value.fields

    def step(self, touched: Touched) -> pa.Table:
        """Return the updates that the events cause; see `persist.core.keyed.machine.Machine.step`."""
        groups, times, is_deletion = get_event_groups(touched), get_event_times(touched), mark_deletions(touched)
        present = get_present_groups(touched)
        is_present = np.bincount(present, minlength=touched.groups) > 0
        is_held = shift_in_groups(groups, ~is_deletion, is_present).astype(np.bool_)
        comes, goes = ~is_deletion & ~is_held, is_deletion & is_held
        inserted = find_last_before(groups, comes)
        # A deleted value was inserted by an event of this step, or was there before.
        inserted_here, inserted_earlier = goes & (inserted >= 0), goes & (inserted < 0)
        ends = np.full(touched.groups, -1)
        ends[groups[inserted_earlier]] = times[inserted_earlier]
        old = np.flatnonzero(ends[present] >= 0)
        picks = [
            (old, ends[present[old]], -1),
            (inserted[inserted_here] + len(present), times[inserted_here], -1),
            (np.flatnonzero(comes) + len(present), times[comes], 1),
        ]
        return make_updates(touched.schema, concat_rows(touched), picks)


BEFORE = "_before"
ABSENT = -1
OnDifference = Literal["fail", "skip", "trust"]


class Checked:
    """Replaces the value of a key if the event's old row is the key's present row.

    Events have the value columns and `_before`, a struct of these, as `persist.connect.envelopes.debezium(…,
    before=True)` returns them. An event with `_before` NULL has no old row, and is not checked.

    Args:
        on_difference: "fail": resolving fails with `BeforeDiffers`. "skip": the event changes nothing. "trust": the
            event replaces the present row.
        created_absent: treat a NULL `_before` of an event that is not a deletion as "there was no row". For producers
            that send every old row, and no row twice; rows of a snapshot are often sent twice.
    """

    name, version, has_one_value = "checked", 1, True

    def __init__(self, on_difference: OnDifference = "fail", *, created_absent: bool = False) -> None:
        if on_difference not in get_args(OnDifference):
            raise InvalidUsage(f"on_difference={on_difference!r} is not 'fail', 'skip' or 'trust'.")
        self._policy, self._created_absent = on_difference, created_absent
        self.options: Mapping[str, Any] = {"on_difference": on_difference, "created_absent": created_absent}

    def event_fields(self, schema: CollectionSchema) -> tuple[pa.Field, ...]:
        """Return the value fields, and a struct of the same fields."""
        if not schema.value_names:
            raise SchemaMismatch("a collection without value columns has no row before a change to check.")
        return (
            *schema.value.fields,
            pa.field(BEFORE, pa.struct([schema.arrow.field(name) for name in schema.value_names])),
        )

    def may_refuse(self, schema: CollectionSchema) -> bool:
        """Return whether an event with a wrong old row is refused."""
        return self._policy == "fail"

    def step(self, touched: Touched) -> pa.Table:
        """Return the updates that the events cause; see `persist.core.keyed.machine.Machine.step`.

        Raises BeforeDiffers: an old row differs, and the policy is "fail".
        """
        groups, times, is_deletion = get_event_groups(touched), get_event_times(touched), mark_deletions(touched)
        present_identity, after, image_before, unchecked = self._number_rows(touched, is_deletion)
        counts = np.ones(len(groups), np.bool_)
        value_before = shift_in_groups(groups, after, present_identity).astype(np.int64)
        differs = ~unchecked & (image_before != value_before)
        if differs.any() and self._policy == "fail":
            raise self._make_difference_error(touched, int(np.flatnonzero(differs)[0]), value_before)
        if differs.any() and self._policy == "skip":
            counts = _mark_accepted(groups, after, image_before, unchecked, present_identity, differs)
        return _build_replacements(touched, np.flatnonzero(counts), groups, times, after)

    def _number_rows(self, touched: Touched, gone: Flags) -> tuple[Ints, Ints, Ints, Flags]:
        """Number present, new and old rows, alike if equal; mark unchecked events."""
        names = [*touched.schema.value_names]
        structs = combine_chunks(touched.events[BEFORE])
        # Members under a NULL struct may be anything, so they are made NULL.
        images = pa.Table.from_arrays([pc.struct_field(structs, [name]) for name in names], names=names)
        present, after, image_before = number_distinct_rows([touched.present, touched.events, images], names)
        identity_by_group = np.full(touched.groups, ABSENT)
        identity_by_group[get_present_groups(touched)] = present
        silent = get_boolean_values(structs.is_null())
        is_absent = silent & ~gone if self._created_absent else np.zeros(len(silent), np.bool_)
        return (
            identity_by_group,
            np.where(gone, ABSENT, after),
            np.where(silent, ABSENT, image_before),
            silent & ~is_absent,
        )

    def _make_difference_error(self, touched: Touched, at: int, value_before: Ints) -> BeforeDiffers:
        """Return the error for event `at`, whose old row is not present."""
        names = [*touched.schema.value_names]
        event = touched.events.slice(at, 1).to_pylist()[0]
        group = int(get_event_groups(touched)[at])
        present_row = None
        if value_before[at] != ABSENT:
            earlier = at > 0 and get_event_groups(touched)[at - 1] == group
            rows = touched.events.slice(at - 1, 1) if earlier else _select_group(touched, group)
            present_row = rows.select(names).to_pylist()[0]
        key = tuple(event[name] for name in touched.schema.key_names)
        return BeforeDiffers(key[0] if len(key) == 1 else key, event["_time"], event[BEFORE], present_row)


def _select_group(touched: Touched, group: int) -> pa.Table:
    """Return the present row of a key, as a table."""
    return touched.present.slice(int(np.searchsorted(get_present_groups(touched), group)), 1)


def _mark_accepted(groups: Ints, after: Ints, said: Ints, unchecked: Flags, held: Ints, differs: Flags) -> Flags:
    """Return which events are accepted; a wrong old row skips an event."""
    counts = np.ones(len(groups), np.bool_)
    value = held.copy()
    rows = np.flatnonzero(np.isin(groups, groups[differs]))
    for round_ in iterate_rounds(groups[rows], np.arange(len(rows))):
        at = rows[round_]
        fits = unchecked[at] | (said[at] == value[groups[at]])
        counts[at] = fits
        value[groups[at[fits]]] = after[at[fits]]
    return counts


def _build_replacements(touched: Touched, kept: Ints, groups: Ints, times: Ints, after: Ints) -> pa.Table:
    """Return updates in which each accepted event replaces its key's row."""
    groups, times, after = groups[kept], times[kept], after[kept]
    present = get_present_groups(touched)
    row_of = np.full(touched.groups, -1)
    row_of[present] = np.arange(len(present))
    rows = np.where(after != ABSENT, kept + len(present), -1)
    goes = shift_in_groups(groups, rows, row_of).astype(np.int64)
    picks = [(goes[goes >= 0], times[goes >= 0], -1), (rows[rows >= 0], times[rows >= 0], 1)]
    return make_updates(touched.schema, concat_rows(touched), picks)


@dataclass(frozen=True, slots=True)
class Event:
    """An event, as Python values.

    Attributes:
        value: the event's fields: a scalar for one, a tuple for several; None for a deletion, or if the only field is
            NULL.
        time: of the event.
        is_deletion: whether the event deletes its key, unlike a NULL value.
    """

    value: Any
    time: int
    is_deletion: bool = False


class PerKey:
    """Calls a function for each event, from the key's values before it to the values after it.

    Slow, because it runs Python for each event (about ten microseconds and the time of the function): a vectorised
    machine, see `persist.core.keyed.machine.Machine`, is some hundred times faster.

    Args:
        function: takes the key, the list of its present values (with repetitions, in any order), and an `Event`;
            returns the values after it. Deletions have `Event.is_deletion`. The function must depend on
            nothing else, and not on the seals: see the promises of `Machine`. It may be called again for the same
            event.
        name, version: stored with the collection. Use another version for another function.
        event: the fields of an event besides its key; None for the value's fields.
        has_one_value: a key has at most one value; more are refused.
        options: other parameters of the function, as JSON; stored and compared, too.
    """

    def __init__(
        self,
        function: Callable[[Any, list[Any], Event], Iterable[Any]],
        *,
        name: str,
        version: int,
        event: Mapping[str, pa.DataType] | None = None,
        has_one_value: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._function, self._event = function, None if event is None else dict(event)
        self.name, self.version, self.has_one_value = name, version, has_one_value
        self.options: Mapping[str, Any] = dict(options or {})
        try:
            json.dumps(self.options)
        except (TypeError, ValueError) as error:
            raise InvalidUsage(f"options={options!r} are not JSON: {error}.") from error

    def event_fields(self, schema: CollectionSchema) -> tuple[pa.Field, ...]:
        """Return the declared fields of events, or the fields of the value."""
        return schema.value.fields if self._event is None else Side.of(self._event, "value").fields

    def step(self, touched: Touched) -> pa.Table:
        """Return the updates that the events cause; see `persist.core.keyed.machine.Machine.step`."""
        schema = touched.schema
        # A codec's objects belong to the collection's value, and an event may have other fields.
        side = schema.value if self._event is None else Side(self.event_fields(schema))
        arriving = CollectionSchema(schema.key, side, schema.timeline)
        values_by_group: dict[int, list[Any]] = {}
        for group, ((_, value), _, _) in zip(
            get_present_groups(touched).tolist(), _to_tuples(touched.present, schema), strict=True
        ):
            values_by_group.setdefault(group, []).append(value)
        deletion_flags = touched.events[DELETED].to_pylist()
        updates = list[tuple[tuple[Any, Any], int, int]]()
        groups = touched.events[GROUP].to_pylist()
        for group, is_gone, ((key, value), time, _) in zip(
            groups, deletion_flags, _to_tuples(touched.events, arriving), strict=True
        ):
            old_values = values_by_group.get(group, [])
            after = self._apply_function(key, old_values, Event(None if is_gone else value, time, is_gone))
            values_by_group[group] = after
            if after != old_values:
                updates += [((key, held_value), time, -1) for held_value in old_values]
                updates += [((key, held_value), time, 1) for held_value in after]
        return to_updates(updates, schema) if updates else schema.arrow.empty_table()

    def _apply_function(self, key: Any, before: Sequence[Any], event: Event) -> list[Any]:
        """Call the user's function for one key and event; check its result."""
        after = [*self._function(key, [*before], event)]
        if self.has_one_value and len(after) > 1:
            raise InvalidUpdate(
                f"the machine {self.name!r} gives {len(after)} values for the key {key!r} at time {event.time}, and "
                "was declared to give one at most."
            )
        return after


def _to_tuples(rows: pa.Table, schema: CollectionSchema) -> Sequence[Any]:
    """Return rows as `((key, value), time, diff)`; present rows have no time, which becomes 0."""
    columns = {name: rows[name] for name in schema.names}
    time = rows["_time"] if "_time" in rows.column_names else pa.array([0] * len(rows), pa.int64())
    table = pa.table({**columns, "_time": time, "_diff": pa.array([1] * len(rows), pa.int64())})
    return [*iterate_tuples(make_canonical(table.cast(schema.arrow)), schema)]
