"""Events that come without an order, as the rows of a DataFrame do: whether the columns tell their order instead.

Two events of one key at one time that say different things must differ in a column of `order_by`, or nobody can say
which of them counts. Events that are the same in all columns may be many: in what order they come makes no difference.
"""

import numpy as np
import pyarrow as pa

from persist.codecs import CollectionSchema, InvalidUpdate, canonical, is_flat
from persist.codecs.order.digits import RowSorter
from persist.codecs.order.ordering import order_keys, row_sorter
from persist.log.records import KeyedForm
from persist.upsert.machine import SEQ

SHOWN_CHARS = 200


def check_told_apart(events: pa.Table, schema: CollectionSchema, form: KeyedForm) -> None:
    """Raise InvalidUpdate if two events of a key cannot be told apart in order; the message names columns that could.

    Args:
        events: rows of `persist.upsert.events`, in any order.
        schema: of the collection.
    """
    names = [*schema.key_names, "_time", *form.order_by]
    rows = canonical(events.drop_columns([SEQ, "_diff"]).combine_chunks())
    order, starts = row_sorter(rows, names).sort()
    tied = np.flatnonzero(~starts)
    if not len(tied):
        return
    # Neighbours among equals are enough: if each is the same as the one before it, all are the same.
    numbers = np.empty(len(order), np.int64)
    whole, first = RowSorter(order_keys(rows, rows.column_names)).sort()
    numbers[whole] = np.cumsum(first)
    differing = tied[numbers[order[tied]] != numbers[order[tied - 1]]]
    if len(differing):
        one, other = (rows.slice(int(order[at]), 1).to_pylist()[0] for at in (differing[0] - 1, differing[0]))
        raise InvalidUpdate(_problem(one, other, rows.schema, schema, form))


def _problem(
    one: dict[str, object], other: dict[str, object], columns: pa.Schema, schema: CollectionSchema, form: KeyedForm
) -> str:
    key = {name: one[name] for name in schema.key_names}
    differing = [name for name in columns.names if one[name] != other[name]]
    flat = [name for name in differing if not name.startswith("_") and is_flat(columns.field(name).type)]
    ordered = f"they are equal in order_by, {[*form.order_by]}" if form.order_by else "the collection has no order_by"
    would = f", such as one of {flat}" if flat else ""
    return (
        f"the key {key!r:.{SHOWN_CHARS}} has two events at time {one['_time']} that differ in {differing}, and rows "
        f"of a DataFrame have no order: {ordered}, so nobody can say which of them counts. Give them different times, "
        f"or keep the last of them only; or create the collection with order_by, the columns that tell{would}."
    )
