"""The protocol of machines, which turn events into updates for many keys at a time.

A keyed collection has one machine. Resolution (`persist.core.keyed.events`) groups the sealed events by key, looks the
keys up, and passes both to the machine, which returns the removed and the added values with their times. The machine of
`upsert` is `Replacing`: the newest event of a key is its value.

Promises of a machine, from which the promises of resolution follow:

- *It is a function*: equal rows and events of a key result in equal updates, in every process and for ever. The
  collection stores the machine's name, version and options; another machine is refused. A change of the results needs
  a new version.
- *Keys are independent*: the result for a key depends only on the rows and events of that key.
- *Steps compose*: resolving the events before a time, and then the other ones on that result, is the same as resolving
  all at once. So the results do not depend on the times of seals.
- *Every update is at the time of an event of its key.*

An incomplete event is refused at its arrival: fields of `event_fields` that are not nullable must have a value in
events that do not delete. A machine may also raise `PersistError` for events that it refuses in a resolution: then
nothing is resolved, and the seal fails with this error. Such a machine has a method `may_refuse(schema)` that returns
True, and needs resolve="seal": in the background, its events would be sealed already, so sealed contents would become
unreadable.

`docs/inside/format.md` ("Keyed collections") has the rule of `Replacing`. With declared watermarks, the result of some
events is the event with the greatest watermark, and among equal ones the latest: a running maximum for each key.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from persist.codecs.order.arrays import get_boolean_values, get_int64_values, make_int64_array
from persist.codecs.order.digits import compute_dense_ranks
from persist.codecs.order.ordering import combine_chunks, make_order_keys
from persist.codecs.types.schema import CollectionSchema
from persist.core.log.fields import KeyedForm

GROUP = "\tgroup"  # No column of a collection has a control character in its name.
GIVEN = ""  # The column with the value columns that a partial event sets. No collection has a column of that name.
NUMBER = "\tnumber"  # The number of an event, for callers that list refused events.
DELETED = "_deleted"
SEQ = "_seq"


@dataclass(frozen=True, slots=True)
class Touched:
    """The keys that have events, with their present rows and these events.

    Attributes:
        schema: of the collection.
        groups: how many keys there are. They are numbered from 0, and each has at least one event.
        present: the key and value columns of `schema`, and `GROUP`, int64 and ascending: the rows that each key has
            before the first of its events, with repetitions. A key without a value has no row. With a tombstone column,
            tombstones are rows like any other.
        events: the key columns, the `event_fields`, `_time` (int64), `_deleted` (bool, without NULL: whether the key is
            deleted; then all event fields may be NULL) and `GROUP`. They are sorted by group, then time, then a
            declared `order_by`, then arrival, or the values of events with ties="greatest" (deletions first). The order
            is total.
    """

    schema: CollectionSchema
    groups: int
    present: pa.Table
    events: pa.Table


@runtime_checkable
class Machine(Protocol):
    """Computes the values of a key from events; see the module's docstring for its promises.

    Attributes:
        name: stored with the collection; 1 to 128 printable characters.
        version: stored with the collection; 0 or more.
        has_one_value: whether a key has at most one value, in one copy; `fsck` and a return to a plain collection rely
            on it.
    """

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> int: ...

    @property
    def has_one_value(self) -> bool: ...

    @property
    def options(self) -> Mapping[str, Any]:
        """The constructor's arguments as JSON values, which are stored with the collection."""

    def event_fields(self, schema: CollectionSchema) -> tuple[pa.Field, ...]:
        """Return the fields of an event besides its key, of which none is called `_time`, `_seq`, `_deleted`, `_diff`.

        Names that are also columns of the collection may have other types here, but not the names in `order_by`.
        """

    def step(self, touched: Touched) -> pa.Table:
        """Return the updates that events cause, with the columns of `touched.schema.arrow`, in any order.

        Equal updates, and updates that cancel, are consolidated afterwards. Implement it vectorised, without Python for
        each row; memory proportional to the input.
        """


Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

NAME, VERSION = "upsert", 1


class Replacing:
    """The machine of `upsert`; see the module's docstring.

    Args:
        order_by: the columns of the watermark, most significant first; without any, the last arrival is the newest.
        has_tombstone: whether deletions leave a marked row.
    """

    name, version, has_one_value = NAME, VERSION, True
    options: ClassVar[Mapping[str, Any]] = {}  # The declaration has all that it depends on.

    def __init__(self, order_by: Sequence[str] = (), *, has_tombstone: bool = False) -> None:
        self._order_by = tuple(order_by)
        self._has_tombstone = has_tombstone

    @classmethod
    def of(cls, form: KeyedForm) -> "Replacing":
        """Return the machine of a declaration."""
        return cls(form.order_by, has_tombstone=form.tombstone is not None)

    def event_fields(self, schema: CollectionSchema) -> tuple[pa.Field, ...]:
        """Return the value fields: an event is the row that its key should have."""
        return schema.value.fields

    def step(self, touched: Touched) -> pa.Table:
        """Return the updates that the events cause; see `Machine.step`."""
        names = [*touched.schema.names]
        groups, times = (
            get_int64_values(combine_chunks(touched.events[GROUP])),
            get_int64_values(combine_chunks(touched.events["_time"])),
        )
        last = _mark_last_events(groups, times)
        events = touched.events if last.all() else touched.events.take(make_int64_array(np.flatnonzero(last)))
        groups, times = groups[last], times[last]
        # The present rows of each key, then its events: rows of one table. Each row has the number of the row before it
        # with the same key.
        rows = pa.concat_tables([touched.present.select(names), events.select(names)]).combine_chunks()
        present = get_int64_values(combine_chunks(touched.present[GROUP]))
        order, group = merge_present_first(present, groups)
        if self._order_by:
            stands = _mark_greatest_so_far(rank_watermarks(rows, self._order_by)[order], group)
            order, group = order[stands], group[stands]
        is_event = order >= len(present)
        at = order[is_event] - len(present)
        is_row = np.ones(len(order), np.bool_)
        if not self._has_tombstone:
            is_row[is_event] = ~get_boolean_values(combine_chunks(events[DELETED]))[at]
        has_before = np.zeros(len(order), np.bool_)
        has_before[1:] = (group[1:] == group[:-1]) & is_row[:-1]
        time = np.zeros(len(order), np.int64)
        time[is_event] = times[at]
        goes, comes = np.flatnonzero(is_event & has_before), np.flatnonzero(is_event & is_row)
        return _make_updates(touched.schema, rows, order, time, goes, comes)


def rank_watermarks(rows: pa.Table, order_by: Sequence[str]) -> Ints:
    """Return the ranks of rows by `order_by`, int64[rows]; NULL ranks lowest."""
    columns = []
    for column in make_order_keys(rows, order_by):
        columns += [pc.is_valid(column), column]
    return compute_dense_ranks(columns)


def _mark_last_events(groups: Ints, times: Ints) -> Flags:
    """Return which events are the last of their key and time."""
    last = np.ones(len(groups), np.bool_)
    last[:-1] = (groups[1:] != groups[:-1]) | (times[1:] != times[:-1])
    return last


def merge_present_first(present: Ints, groups: Ints) -> tuple[Ints, Ints]:
    """Return the order of present rows and events by group; their groups."""
    groups_of_both = np.concatenate([present, groups])
    order = np.argsort(groups_of_both, kind="stable")
    return order, groups_of_both[order]


def _mark_greatest_so_far(ranks: Ints, group: Ints) -> Flags:
    """Return which rows rank at or above all earlier ones of their group."""
    if not len(ranks):
        return np.zeros(0, np.bool_)
    width = int(ranks.max()) + 1
    stands: Flags = np.maximum.accumulate(group * width + ranks) == group * width + ranks
    return stands


def _make_updates(
    schema: CollectionSchema, rows: pa.Table, order: Ints, time: Ints, goes: Ints, comes: Ints
) -> pa.Table:
    """Return retractions of rows before places `goes`, and insertions at places `comes`."""
    chosen = np.concatenate([order[goes - 1], order[comes]])
    times, diffs = np.concatenate([time[goes], time[comes]]), np.ones(len(chosen), np.int64)
    diffs[: len(goes)] = -1
    if len(chosen) == len(rows) and bool(np.bincount(chosen, minlength=len(rows)).all()):
        # Mostly each row goes or comes once, and then they may stay where they are: they are sorted later anyway.
        times[chosen], diffs[chosen] = times.copy(), diffs.copy()
    else:
        rows = rows.take(make_int64_array(chosen))
    return pa.Table.from_arrays([*rows.columns, make_int64_array(times), make_int64_array(diffs)], schema=schema.arrow)
