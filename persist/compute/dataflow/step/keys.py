"""Keys that are touched, by their values: which records of a stream or of a collection have them.

What is needed is said by terms (`touched.py`); here these meet the keys that exchanges were found to bring. A condition
tells by hashes which rows are needed, a filter by values which parts and row groups may have some.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import and_, or_
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from persist.codecs.order.arrays import boolean_array
from persist.codecs.order.digest import row_hashes
from persist.compute.dataflow.step.stages import Keys
from persist.compute.dataflow.step.touched import Brought, Need, Term

LISTED_MAX = 500  # Values of a column that are named one by one to find parts; of more, the range is.
Hashes = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class TouchedKeys:
    """Keys that an exchange brings.

    Attributes:
        tables: columns of keys, in the order of the exchange's, as it brings them; a key may be there twice.
    """

    tables: tuple[pa.Table, ...]

    @cached_property
    def hashes(self) -> Hashes:
        """The hashes of all keys, ascending."""
        table_hashes = [row_hashes(table, table.column_names) for table in self.tables]
        return np.unique(np.concatenate([np.empty(0, np.uint64), *table_hashes]))

    def parts(self, at: Sequence[int] | None) -> "TouchedKeys":
        """Return some columns of the keys; None for all."""
        return self if at is None else TouchedKeys(tuple(table.select([*at]) for table in self.tables))

    @property
    def nbytes(self) -> int:
        """What it takes."""
        return sum(table.nbytes for table in self.tables)

    def values(self, at: int, kind: pa.DataType) -> pa.Array | None:
        """Return the distinct values of a column of the keys, as of a type; None if they are not exactly of it."""
        columns = [_exactly(table.column(at), kind) for table in self.tables]
        if any(column is None for column in columns):
            return None
        chunks = [chunk for column in columns if column is not None for chunk in column.chunks]
        return pa.chunked_array(chunks, kind).unique()

    def as_keys(self, schema: pa.Schema, *, nulls: bool = False) -> pa.Table | None:
        """Return the keys as rows of columns of a collection; None if they are not exactly of its types.

        Args:
            nulls: whether some of their values may be NULL.
        """
        key_tables = []
        for table in self.tables:
            columns = [_exactly(column, kind) for column, kind in zip(table.columns, schema.types, strict=True)]
            if any(column is None or (column.null_count and not nulls) for column in columns):
                return None
            key_tables.append(pa.table(columns, schema=schema))
        return pa.concat_tables([schema.empty_table(), *key_tables])


Known: TypeAlias = Mapping[Brought, TouchedKeys]


def keys_for(term: Term, known: Known) -> TouchedKeys:
    """Return the keys by which a term says what is needed."""
    return known[term.keys].parts(term.at)


@dataclass(frozen=True)
class Condition:
    """Which records of a stream are needed: those with one of some hashes, by some columns, of one of the terms."""

    terms: tuple[tuple[Keys, Hashes], ...]

    @classmethod
    def of(cls, need: Need, known: Known) -> "Condition | None":
        """Return the condition that a need stands for; None if all is needed."""
        if need is None:
            return None
        by_columns: dict[Keys, list[Hashes]] = {}
        for term in sorted(need, key=repr):
            by_columns.setdefault(term.columns, []).append(keys_for(term, known).hashes)
        return cls(tuple((columns, np.unique(np.concatenate(hashes))) for columns, hashes in by_columns.items()))

    @property
    def columns(self) -> Keys:
        """What it reads."""
        return tuple(dict.fromkeys(name for columns, _ in self.terms for name in columns))

    def holds(self, table: pa.Table) -> npt.NDArray[np.bool_]:
        """Return for which rows it holds."""
        matches = np.zeros(len(table), np.bool_)
        for columns, hashes in self.terms:
            if len(hashes):
                own = row_hashes(table, columns)
                at = np.minimum(hashes.searchsorted(own), np.int64(len(hashes) - 1))
                matches |= hashes[at] == own
        return matches

    def kept(self, table: pa.Table) -> pa.Table:
        """Return the rows for which it holds."""
        return table.filter(boolean_array(self.holds(table)))


def filter_of(need: Need, known: Known, columns: pa.Schema) -> pc.Expression | None:
    """Return a filter that every record which is needed passes; None if there is none that leaves something out."""
    if not need:
        return None
    filters = []
    for term in need:
        keys = keys_for(term, known)
        if not len(keys.hashes):
            continue
        condition = _filter(term.columns, keys, columns)
        if condition is None:
            return None
        filters.append(condition)
    return reduce(or_, filters) if filters else None


def _filter(names: Sequence[str], keys: TouchedKeys, columns: pa.Schema) -> pc.Expression | None:
    """Return what all touched keys pass."""
    filters = []
    for at, name in enumerate(names):
        kind = columns.field(name).type
        values = keys.values(at, kind) if _is_ordered(kind) else None
        if values is not None:
            filters.append(_among(pc.field(name), values))
    return reduce(and_, filters) if filters else None


def _exactly(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray | None:
    """Return values as of a type in which equal ones are equal, too; None if there is no such way."""
    if column.type == kind:
        return column
    if not (pat.is_integer(column.type) and pat.is_integer(kind)):
        return None
    try:
        return column.cast(kind)
    except pa.ArrowInvalid:  # One is too large: a record with it is in another collection.
        return None


def _is_ordered(kind: pa.DataType) -> bool:
    """Whether a filter of Arrow compares values as keys are compared; of floats, it does not."""
    return bool(pat.is_integer(kind) or pat.is_string(kind) or pat.is_date(kind) or pat.is_timestamp(kind))


def _among(column: pc.Expression, values: pa.Array) -> pc.Expression:
    there = values.drop_null()
    if not len(there):
        return column.is_null()
    if len(there) <= LISTED_MAX:
        condition = column.isin(there)
    else:
        bounds = pc.min_max(there)
        condition = (column >= bounds["min"]) & (column <= bounds["max"])
    return condition | column.is_null() if values.null_count else condition
