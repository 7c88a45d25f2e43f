"""Replacement of the values of keys with one value each, and checks for repeated keys.

`KeyReplacement` serves an overwrite, and a delete with a condition, of a keyed collection. Unlike events, they do not
depend on watermarks: new rows become the values of their keys, and other rows that meet the condition are removed. With
a tombstone column, a removed row becomes a tombstone with its watermark, so that a late row does not restore its key.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from persist.codecs.errors import InvalidUpdate
from persist.codecs.order.arrays import get_boolean_values, get_int64_values, make_boolean_array, make_int64_array
from persist.codecs.order.digits import compute_dense_ranks
from persist.codecs.order.ordering import combine_chunks, make_order_keys, sort_table
from persist.codecs.order.sums import consolidate
from persist.codecs.part.filters import list_referenced_columns
from persist.codecs.part.printing import print_filter
from persist.codecs.types.objects import to_dicts
from persist.codecs.types.schema import CollectionSchema
from persist.core.errors import DuplicateKeys, InvalidUsage
from persist.core.keyed.events import mark_deletions, mark_tombstones
from persist.core.keyed.form import describe_orders
from persist.core.keyed.machine import SEQ
from persist.core.log.fields import KeyedForm
from persist.engine.read.lookups.lookup import Lookup, Wanted
from persist.engine.read.lookups.requested_keys import find_distinct_keys
from persist.engine.read.parts.reader import PartReader
from persist.engine.read.planning.scan import negate_diffs

KEYS_NAMED = 10


@dataclass(frozen=True, slots=True)
class KeyReplacement:
    """For `compute_differences`: computes the updates that replace rows of a keyed collection.

    Attributes:
        name: the name of the collection in errors.
        where: the condition on removed rows and on new ones; None for all rows.
    """

    name: str
    schema: CollectionSchema
    form: KeyedForm
    where: pc.Expression | None

    def replace_keys(self, new: pa.Table, present: pa.Table) -> pa.Table:
        """Return the updates to add, consolidated by the columns of key and value."""
        names = [*self.schema.names]
        present = consolidate(present, names)
        is_new, goes = match_keys(present, new, self.schema.key_names), self._mark_live(present)
        if self.where is not None:
            goes &= _mark_passing(present, self.where)
        goes &= ~is_new
        parts = [new.select([*names, "_diff"]), negate_diffs(present.filter(make_boolean_array(goes | is_new)))]
        if goes.any() and (self.form.tombstone is not None or self.form.is_ordered):
            parts.append(self._make_tombstones(present.filter(make_boolean_array(goes))))
        return consolidate(pa.concat_tables([part.cast(parts[0].schema) for part in parts]), names)

    def check(self, new: pa.Table) -> None:
        """Check that new rows can be the values of their keys.

        Raises:
            DuplicateKeys: of the new rows.
            InvalidUpdate: a key is NULL.
            InvalidUsage: a row does not meet the condition, or is a tombstone.
        """
        check_one_row_per_key(new, self.schema, self.name, "keyed")
        nulls = np.ones(len(new), np.bool_)
        for name in self.schema.key_names:
            nulls &= get_boolean_values(combine_chunks(pc.is_null(new[name])))
        if nulls.any():
            raise InvalidUpdate(f"a row for the keyed collection {self.name!r} has NULL as its key: leave it out")
        if not self._mark_live(new).all():
            raise InvalidUsage(
                f"a row for {self.name!r} is a tombstone by its column {self.form.tombstone!r}, and an overwrite "
                "takes only rows that exist: leave the row out, and its key is deleted"
            )
        if self.where is not None and (fails := int((~_mark_passing(new, self.where)).sum())):
            raise InvalidUsage(
                f"where={print_filter(self.where)} is not true for {fails:,} of {len(new):,} rows, so they would be "
                "added without replacing present rows: leave them out, or widen the filter. Nothing was written."
            )

    def check_absent(self, new: pa.Table, old: pa.Table, present: pa.Table) -> None:
        """Raise DuplicateKeys if a new row has the key of a present row outside of `old`."""
        keys = self.schema.key_names
        taken = match_keys(present, new, keys) & ~match_keys(present, old, keys) & self._mark_live(present)
        if taken.any():
            raise DuplicateKeys(self.name, find_repeated_keys(present, keys, np.flatnonzero(taken)), "keyed")

    def _mark_live(self, rows: pa.Table) -> "np.ndarray[Any, np.dtype[np.bool_]]":
        """Return bool[rows]: whether a row is not a tombstone."""
        if self.form.tombstone is None:
            return np.ones(len(rows), np.bool_)
        dead: np.ndarray[Any, np.dtype[np.bool_]]
        dead = get_boolean_values(combine_chunks(mark_tombstones(rows[self.form.tombstone], self.form)))
        return ~dead

    def _make_tombstones(self, gone: pa.Table) -> pa.Table:
        """Return removed rows as tombstones, with their ordering columns and without values."""
        if self.form.tombstone is None:
            raise InvalidUsage(
                f"rows of {self.name!r} would be deleted, and late events could restore them: the collection orders "
                f"events by {describe_orders(self.form)} and has no tombstone column to record deletions. Create "
                "one with tombstone=."
            )
        column = mark_deletions(gone, self.form, pa.chunked_array([make_boolean_array(np.ones(len(gone), np.bool_))]))
        if column is None:
            raise InvalidUsage(
                f"rows of {self.name!r} would be deleted, and only an event can set their tombstone column "
                f"{self.form.tombstone!r}: delete their keys with upsert(), by rows in which it is not NULL"
            )
        ended = {name: pa.nulls(len(gone), gone[name].type) for group in self.form.groups for name in group.columns}
        for name, values in {**ended, self.form.tombstone: column}.items():
            at = gone.schema.get_field_index(name)
            gone = gone.set_column(at, gone.schema.field(at), values)
        return gone


def match_keys(rows: pa.Table, others: pa.Table, keys: Sequence[str]) -> "np.ndarray[Any, np.dtype[np.bool_]]":
    """Return bool[rows]: whether a row has the same key as one of the others."""
    all_rows = pa.concat_tables([rows.select(keys), others.select(keys)]).combine_chunks()
    if not len(all_rows):
        return np.zeros(0, np.bool_)
    ranks = compute_dense_ranks(make_order_keys(all_rows, keys))
    is_there = np.zeros(int(ranks.max()) + 1, np.bool_)
    is_there[ranks[len(rows) :]] = True
    return is_there[ranks[: len(rows)]]


def check_one_row_per_key(rows: pa.Table, schema: CollectionSchema, name: str, action: str) -> None:
    """Raise DuplicateKeys if rows with `_diff` repeat a key; action is for the error."""
    keys = [*schema.key_names]
    if not keys or not len(rows):
        return
    order, starts = sort_table(rows, keys)
    repeats = ~starts | (get_int64_values(combine_chunks(rows["_diff"]))[order] > 1)
    if repeats.any():
        first = find_repeated_keys(rows, keys, order[repeats])
        raise DuplicateKeys(name, first, action)


def make_kept_filter(where: pc.Expression | None, schema: CollectionSchema) -> pc.Expression | None:
    """Return a filter of the rows that an overwrite with `where` keeps; None without any."""
    if where is None or {*schema.key_names}.issuperset(list_referenced_columns(where, schema.arrow)):
        return None
    return ~pc.coalesce(where, pc.scalar(False))


def check_kept_rows(kept: Lookup, new: pa.Table, name: str, reader: PartReader) -> None:
    """Raise DuplicateKeys if a remaining row has the key of a new row."""
    schema = kept.scan.schema
    if not schema.key_names or not len(new):
        return
    keys = find_distinct_keys(new.select([*schema.key_names]), schema)
    if len(found := kept.read_contents(Wanted.of(keys, schema), "diff", reader)):
        raise DuplicateKeys(name, find_repeated_keys(found, schema.key_names, np.arange(len(found))), "kept")


def find_repeated_keys(
    rows: pa.Table, keys: Sequence[str], repeats: "np.ndarray[Any, np.dtype[np.int64]]"
) -> list[tuple[Any, ...]]:
    """Return the first distinct keys of some rows. `repeats`: the numbers of these rows, in the order of keys."""
    some = rows.select(keys).take(make_int64_array(np.asarray(repeats, np.int64))).combine_chunks()
    _, starts = sort_table(some, keys)
    firsts = some.take(make_int64_array(np.flatnonzero(starts)[:KEYS_NAMED]))
    return [tuple(row.values()) for row in to_dicts(firsts)]


def _mark_passing(rows: pa.Table, where: pc.Expression) -> "np.ndarray[Any, np.dtype[np.bool_]]":
    """Return bool[rows]: whether a row passes a condition."""
    passing = np.zeros(len(rows), np.bool_)
    numbered = rows.append_column(SEQ, make_int64_array(np.arange(len(rows), dtype=np.int64)))
    passing[get_int64_values(combine_chunks(numbered.filter(where)[SEQ]))] = True
    return passing
