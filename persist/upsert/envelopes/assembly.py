"""Changes of rows as events: which key each has, whether it is gone, and what else it says. Whole columns at a time."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from persist.codecs import boolean_array, boolean_values, int64_array
from persist.upsert.envelopes.json_rows import Bad
from persist.upsert.envelopes.wanted import BEFORE, DELETED

Mask: TypeAlias = npt.NDArray[np.bool_]
Problem: TypeAlias = tuple[Mask, Callable[[int], str]]


@dataclass(frozen=True)
class Changes:
    """Changes in the order of their messages.

    Attributes:
        rows: the number of each one's message, int64[n], ascending.
        deletes: bool[n]: whether the row is gone.
        after: struct[n], the row after the change; NULL where there is none.
        before: struct[n], the row before it as far as the message says; NULL where it does not.
        keys: struct[n], the key that the message has apart from the rows; NULL where there is none.
        others: further columns of the events.
    """

    rows: np.ndarray
    deletes: Mask
    after: pa.StructArray
    before: pa.StructArray
    keys: pa.StructArray | None = None
    others: Mapping[str, pa.Array] = field(default_factory=dict)

    def filtered(self, mask: Mask) -> "Changes":
        """Return those that the mask has."""
        if mask.all():
            return self

        def some(array: pa.Array) -> pa.Array:
            return array.filter(boolean_array(mask))

        keys = None if self.keys is None else some(self.keys)
        others = {name: some(column) for name, column in self.others.items()}
        return Changes(self.rows[mask], self.deletes[mask], some(self.after), some(self.before), keys, others)


@dataclass(frozen=True, slots=True)
class Assembled:
    """Events that are good, and messages that are not."""

    table: pa.Table
    bad: list[Bad]


def assembled(changes: Changes, key: tuple[str, ...], with_before: bool = False) -> Assembled:
    """Return the events of changes.

    A change of the key, which only rows before it show, is two events: the old key is gone, and the new one is there.
    Only a message's own key may have NULL in some of its fields: in a row, NULL may stand for what the row does not
    say.
    """
    columns = {name: key_column(changes, name) for name in key}
    bad = list[Bad]()
    good = np.ones(len(changes.rows), bool)
    may_be_null = _with_own_key(changes, columns)
    for name, column in columns.items():
        nulls = column.is_null() if may_be_null is None else pc.and_not(column.is_null(), may_be_null)
        good &= _without(nulls, good, changes, bad, _no_key(name))
    kept = changes.filtered(good)
    columns = {name: column.filter(boolean_array(good)) for name, column in columns.items()}
    value = [f for f in kept.after.type if f.name not in key and f.name not in kept.others]
    gone = boolean_array(kept.deletes)
    for f in value:
        column = kept.after.field(f.name)
        columns[f.name] = pc.if_else(gone, pa.scalar(None, f.type), column) if kept.deletes.any() else column
    columns.update({name: column for name, column in kept.others.items() if name not in columns})
    columns[DELETED] = gone
    if with_before:
        parts = [kept.before.field(f.name) for f in value]
        columns[BEFORE] = pa.StructArray.from_arrays(parts, fields=value, mask=kept.before.is_null())
    table = pa.table(columns)
    return Assembled(_with_moves(table, kept, key), bad)


def key_column(changes: Changes, name: str) -> pa.Array:
    """Return a column of the key: of the message's key, or else of the row that says so."""
    apart = changes.keys.field(name) if changes.keys is not None and _has(changes.keys, name) else None
    if apart is not None and not apart.null_count:
        return apart
    deletes = boolean_array(changes.deletes)
    if not _has(changes.after, name):
        return apart if apart is not None else pa.nulls(len(changes.rows))
    row = pc.if_else(deletes, _field(changes.before, name), _field(changes.after, name))
    return row if apart is None else pc.coalesce(apart, row.cast(apart.type))


def _field(rows: pa.StructArray, name: str) -> pa.Array:
    """Return a column of rows, NULL where there is no row."""
    return pc.struct_field(rows, [name])


def _has(rows: pa.StructArray, name: str) -> bool:
    return bool(rows.type.get_field_index(name) >= 0)


def _with_own_key(changes: Changes, columns: Mapping[str, pa.Array]) -> pa.Array | None:
    """Return which messages have keys of their own that say something, as bool; None where none have."""
    if changes.keys is None or not all(_has(changes.keys, name) for name in columns):
        return None
    some = [column.is_valid() for column in columns.values()]
    return pc.and_(changes.keys.is_valid(), reduce(pc.or_, some))


def _no_key(name: str) -> str:
    return f"the column {name!r} of its key is missing or null"


def _without(nulls: pa.Array, good: Mask, changes: Changes, bad: list[Bad], reason: str) -> Mask:
    mask = boolean_values(nulls)
    bad += [Bad(int(row), reason) for row in changes.rows[mask & good]]
    return ~mask


def _with_moves(table: pa.Table, changes: Changes, key: tuple[str, ...]) -> pa.Table:
    """Put a deletion of the old key before each event whose row had another one."""
    old = {name: _field(changes.before, name) for name in key if _has(changes.before, name)}
    if changes.keys is not None or len(old) < len(key) or not len(table):
        return table
    other = np.zeros(len(table), bool)
    known = ~changes.deletes
    for name, column in old.items():
        other |= boolean_values(pc.not_equal(column, table[name].combine_chunks()).fill_null(False))
        known &= boolean_values(column.is_valid())
    moved = other & known
    if not moved.any():
        return table
    gone = _deletions(table.filter(boolean_array(moved)), old, boolean_array(moved), set(changes.others))
    places = np.concatenate([np.flatnonzero(moved) * 2, np.arange(len(table)) * 2 + 1])
    return pa.concat_tables([gone, table]).take(int64_array(np.argsort(places, kind="stable")))


def _deletions(moved: pa.Table, old: Mapping[str, pa.Array], where: pa.Array, kept: set[str]) -> pa.Table:
    columns = {}
    for name in moved.column_names:
        column = moved[name]
        if name in old:
            columns[name] = pa.chunked_array([old[name].filter(where)])
        elif name == DELETED:
            columns[name] = pa.chunked_array([boolean_array(np.ones(len(moved), bool))])
        else:
            columns[name] = (
                column if name in kept or name == BEFORE else pa.chunked_array([pa.nulls(len(moved), column.type)])
            )
    return pa.table(columns, schema=moved.schema)


def refused(changes: Changes, problems: list[Problem]) -> tuple[Changes, list[Bad]]:
    """Take out the changes with a problem: masks, each with what makes a reason from a place; the first counts."""
    good, bad = np.ones(len(changes.rows), bool), list[Bad]()
    for mask, reason in problems:
        bad += [Bad(int(changes.rows[place]), reason(int(place))) for place in np.flatnonzero(mask & good)]
        good &= ~mask
    return changes.filtered(good), bad
