"""Touched keys: those of which a step brings something new. They say which records of the past are read and shuffled.

Keys are told apart by hashes: equal keys have equal ones, NULL and NaN included, and whether a record is kept depends
on the hash of its key alone, so that a key is kept or left out as a whole. Two keys with the same hash cost a little
reading. The values themselves only say where in a collection to look: parts, row groups, or single keys.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import and_, or_

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from persist.codecs import boolean_array, row_hashes
from persist.spark.step.needs import Need
from persist.spark.step.stages import Keys

LISTED_MAX = 500  # Values of a column that are named one by one to find parts; of more, the range is.
Hashes = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class TouchedKeys:
    """The keys of which an exchange brings something new.

    Attributes:
        tables: columns of keys, in the order of the exchange's, as it brings them; a key may be there twice.
    """

    tables: tuple[pa.Table, ...]

    @cached_property
    def hashes(self) -> Hashes:
        """Of all keys, ascending."""
        found = [row_hashes(each, each.column_names) for each in self.tables]
        return np.unique(np.concatenate([np.empty(0, np.uint64), *found]))

    @property
    def nbytes(self) -> int:
        """What it takes."""
        return sum(each.nbytes for each in self.tables)

    def values(self, at: int, kind: pa.DataType) -> pa.Array | None:
        """Return the distinct values of a column of the keys, as of a type; None if they are not exactly of it."""
        columns = [_exactly(each.column(at), kind) for each in self.tables]
        if any(column is None for column in columns):
            return None
        chunks = [chunk for column in columns if column is not None for chunk in column.chunks]
        return pa.chunked_array(chunks, kind).unique()

    def as_keys(self, schema: pa.Schema) -> pa.Table | None:
        """Return the keys as rows of the key columns of a collection; None if they are not exactly of its types."""
        found = []
        for each in self.tables:
            columns = [_exactly(column, kind) for column, kind in zip(each.columns, schema.types, strict=True)]
            if any(column is None or column.null_count for column in columns):
                return None
            found.append(pa.table(columns, schema=schema))
        return pa.concat_tables([schema.empty_table(), *found])


@dataclass(frozen=True)
class Condition:
    """Which records of a stream are needed: those with one of some hashes, by some columns, of one of the terms."""

    terms: tuple[tuple[Keys, Hashes], ...]

    @classmethod
    def of(cls, need: Need, known: Mapping[int, TouchedKeys]) -> "Condition | None":
        """Return what a need comes to; None if all is needed."""
        if need is None:
            return None
        return cls(tuple((each.columns, known[each.exchange].hashes) for each in sorted(need, key=repr)))

    def holds(self, table: pa.Table) -> npt.NDArray[np.bool_]:
        """Return for which rows it holds."""
        found = np.zeros(len(table), np.bool_)
        for columns, hashes in self.terms:
            if len(hashes):
                own = row_hashes(table, columns)
                at = np.minimum(hashes.searchsorted(own), np.int64(len(hashes) - 1))
                found |= hashes[at] == own
        return found

    def kept(self, table: pa.Table) -> pa.Table:
        """Return the rows for which it holds."""
        return table.filter(boolean_array(self.holds(table)))


def filter_of(need: Need, known: Mapping[int, TouchedKeys], columns: pa.Schema) -> pc.Expression | None:
    """Return a filter that every record which is needed passes; None if there is none that leaves something out."""
    if not need:
        return None
    found = []
    for term in need:
        if not len(known[term.exchange].hashes):
            continue
        each = _filter(term.columns, known[term.exchange], columns)
        if each is None:
            return None
        found.append(each)
    return reduce(or_, found) if found else None


def _filter(names: Sequence[str], keys: TouchedKeys, columns: pa.Schema) -> pc.Expression | None:
    """Return what all touched keys pass."""
    found = []
    for at, name in enumerate(names):
        kind = columns.field(name).type
        values = keys.values(at, kind) if _is_ordered(kind) else None
        if values is not None:
            found.append(_among(pc.field(name), values))
    return reduce(and_, found) if found else None


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
        found = column.isin(there)
    else:
        bounds = pc.min_max(there)
        found = (column >= bounds["min"]) & (column <= bounds["max"])
    return found | column.is_null() if values.null_count else found
