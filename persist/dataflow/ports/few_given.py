"""A few updates that are given to an input, as words at once: through Arrow's tables, one takes longer than its step.

Only what needs no conversion is taken here: tuples of the plain shape, and tables whose columns have the types of the
input, of integers, booleans and texts. For anything else, and for whatever is not as it should be, the answer is None:
then the ordinary way converts it, or says what is wrong with it.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from persist.codecs import TIME_MAX, CollectionSchema
from persist.dataflow.updates.times import Ints
from persist.dataflow.updates.words import NULL, Domain, Interner

Rule = Callable[[list[Any]], "list[int] | Ints | None"]
FEW_GIVEN = 32  # From about so many rows on, columns are faster.


class FewGiven:
    """Turns a few updates of one dimension of times into words.

    Args:
        schema: of the input.
        domain: where texts have their numbers.
    """

    def __init__(self, schema: CollectionSchema, domain: Domain) -> None:
        has_codec = schema.key.codec_name is not None or schema.value.codec_name is not None
        self._is_possible = not has_codec and all(map(_is_plain, schema.types))
        self._schema = schema
        self._rules = (
            [
                _rule(kind, name in schema.required, domain)
                for name, kind in zip(schema.names, schema.types, strict=False)
            ]
            if self._is_possible
            else []
        )
        self._widths = len(schema.key.fields), len(schema.value.fields)
        self._known: pa.Schema | None = None  # Of the table before, which fitted.

    def words(self, given: Any) -> Ints | None:
        """Return updates as int64[columns + 2, n], those of diff 0 left out; None if they are not for here."""
        if not self._is_possible:
            return None
        if type(given) is list:
            columns = self._of_tuples(given) if 0 < len(given) <= FEW_GIVEN else None
        else:
            columns = self._of_table(given) if type(given) is pa.Table and 0 < given.num_rows <= FEW_GIVEN else None
        if columns is None:
            return None
        times, diffs = columns[-2:]
        if not _are_whole(times, 0, TIME_MAX) or not _are_whole(diffs, -(2**63), 2**63 - 1):
            return None
        rows = []
        for rule, values in zip(self._rules, columns, strict=False):
            row = rule(values)
            if row is None:
                return None
            rows.append(row)
        found = np.array([*rows, times, diffs], np.int64)
        return found if all(diffs) else found[:, found[-1] != 0]

    def _of_tuples(self, given: list[Any]) -> list[list[Any]] | None:
        keys, values = self._widths
        columns: list[list[Any]] = [[] for _ in range(keys + values + 2)]
        for update in given:
            if type(update) is not tuple or len(update) != 3:
                return None
            pair, time, diff = update
            if type(pair) is not tuple or len(pair) != 2:
                return None
            key, value = _fields(pair[0], keys), _fields(pair[1], values)
            if key is None or value is None:
                return None
            for column, each in zip(columns, (*key, *value, time, diff), strict=True):
                column.append(each)
        return columns

    def _of_table(self, given: pa.Table) -> list[list[Any]] | None:
        if self._known is None or not given.schema.equals(self._known):
            wanted = self._schema.arrow
            if given.schema.names != wanted.names or given.schema.types != wanted.types:
                return None
            self._known = given.schema
        try:
            return [given.column(at).to_pylist() for at in range(given.num_columns)]
        except UnicodeDecodeError:
            return None


def _is_plain(kind: pa.DataType) -> bool:
    return bool(pat.is_signed_integer(kind) or pat.is_boolean(kind) or pat.is_string(kind))


def _fields(side: Any, count: int) -> tuple[Any, ...] | None:
    """Return the fields of a key or a value; None if it does not have that many."""
    if count == 1:
        return (side,)
    if not count:
        return () if side is None else None
    return side if type(side) is tuple and len(side) == count else None


def _rule(kind: pa.DataType, is_required: bool, domain: Domain) -> Rule:
    """Return the function from values of a column to words, or to None if one is not exactly of its type."""
    if pat.is_string(kind):
        interner = domain.interner(kind)
        return lambda values: _of_texts(values, interner, is_required)
    if pat.is_boolean(kind):
        return lambda values: _of_plain(values, bool, 0, 1, is_required)
    most = 2 ** (kind.bit_width - 1) - 1
    least = -most if kind.bit_width == 64 else -most - 1  # The least int64 stands for NULL.
    return lambda values: _of_plain(values, int, least, most, is_required)


def _of_plain(values: list[Any], exact: type[int], least: int, most: int, is_required: bool) -> list[int] | None:
    found: list[int] = []
    for value in values:
        if type(value) is exact and least <= value <= most:
            found.append(value)
        elif value is None and not is_required:
            found.append(NULL)
        else:
            return None
    return found


def _of_texts(values: list[Any], interner: Interner, is_required: bool) -> Ints | None:
    for value in values:
        if type(value) is not str:
            if value is not None or is_required:
                return None
        elif not value.isascii() and not _is_utf8(value):
            return None
    return interner.numbers_of(values)


def _is_utf8(text: str) -> bool:
    """Return whether UTF-8 can hold a text, as it cannot half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _are_whole(values: list[Any], least: int, most: int) -> bool:
    return all(type(value) is int and least <= value <= most for value in values)
