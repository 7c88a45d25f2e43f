"""Conditions on words: comparisons that need no Arrow, because words are in the order of their values.

A filter keeps the records for which its condition is true, so of three truth values only one is asked for. `and` is
true where all of its parts are, `or` where one is; NOT asks for false instead of true, and a comparison is false where
its opposite is true. NULL makes no comparison true and none false. So every condition is a few numpy calls on columns
as they are kept, where Arrow would make columns of them first.

What is compared are columns and constants of one type, and columns whose cast only multiplies their word, with a
constant: that is divided instead, so nothing overflows. Of texts, whose words are numbers in the order of arrival, only
`=`, `<>` and `IN` are done here. Floats are not: the two families of functions disagree about NaN. A condition that has
a part of another kind is taken apart at its outermost `and`.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from persist.dataflow.updates.times import Flags, Ints
from persist.dataflow.updates.words import NULL, Domain, is_narrow, is_ordered
from persist.expression import Call, Col, Lit, Term

Words = Callable[[str], Ints]  # The words of a column.
Truth = Callable[[Words], Flags]
_DAY_US = 86_400_000_000
_OPPOSITES = {
    "equal": "not_equal",
    "not_equal": "equal",
    "less": "greater_equal",
    "greater_equal": "less",
    "greater": "less_equal",
    "less_equal": "greater",
}
_TURNED = {"less": "greater", "greater": "less", "less_equal": "greater_equal", "greater_equal": "less_equal"}
_COMPARED: dict[str, Any] = {name: getattr(np, name) for name in _OPPOSITES}


def on_words(condition: Term, kinds: Mapping[str, pa.DataType], domain: Domain) -> Truth | None:
    """Return where a condition is true, given the words of columns; None if that takes Arrow.

    Args:
        kinds: the types of the columns whose words are at hand, or cost little.
    """
    return _Compiler(kinds, domain).truth(condition, True)


class _Compiler:
    def __init__(self, kinds: Mapping[str, pa.DataType], domain: Domain) -> None:
        self._kinds = kinds
        self._domain = domain

    def truth(self, condition: Term, wanted: bool) -> Truth | None:
        """Return where a condition is true, or where it is false."""
        if not isinstance(condition, Call):
            return None
        name, arguments = condition.function.removeprefix("sql."), condition.arguments
        if name in ("and", "or"):
            every = (name == "and") == wanted
            return _joined([self.truth(each, wanted) for each in arguments], np.logical_and if every else np.logical_or)
        if name == "not":
            return self.truth(arguments[0], not wanted)
        if name in ("is_null", "is_not_null"):
            return self._null(arguments[0], (name == "is_null") == wanted)
        if name in _OPPOSITES:
            return self._compared(name if wanted else _OPPOSITES[name], *arguments)
        if name in ("in", "not_in") and condition.function != name:
            is_in = (name == "in") == wanted
            each = [self._compared("equal" if is_in else "not_equal", arguments[0], other) for other in arguments[1:]]
            return _joined(each, np.logical_or if is_in else np.logical_and)
        return None

    def _null(self, value: Term, wanted: bool) -> Truth | None:
        if not isinstance(value, Col) or value.name not in self._kinds:
            return None
        name = value.name
        return (lambda words: words(name) == NULL) if wanted else (lambda words: words(name) != NULL)

    def _compared(self, name: str, one: Term, other: Term) -> Truth | None:
        if isinstance(one, Lit):
            one, other, name = other, one, _TURNED.get(name, name)
        if isinstance(other, Lit):
            found = self._scaled(one)
            return None if found is None else self._with_constant(name, *found, other.value)
        if not (isinstance(one, Col) and isinstance(other, Col)):
            return None
        kind = self._kinds.get(one.name)
        if kind is None or kind != self._kinds.get(other.name) or not _is_done(name, kind):
            return None
        compare, first, second = _COMPARED[name], one.name, other.name

        def truth(words: Words) -> Flags:
            ones, others = words(first), words(second)
            found: Flags = compare(ones, others) & (ones != NULL) & (others != NULL)
            return found

        return truth

    def _scaled(self, value: Term) -> tuple[str, pa.DataType, pa.DataType, int] | None:
        """Return a column, its type, the type that it is cast to, and by what that multiplies its word."""
        if isinstance(value, Col):
            kind = self._kinds.get(value.name)
            return None if kind is None else (value.name, kind, kind, 1)
        if not (isinstance(value, Call) and value.function == "sql.cast" and isinstance(value.arguments[0], Col)):
            return None
        name, to = value.arguments[0].name, value.options[0]
        kind = self._kinds.get(name)
        factor = None if kind is None else _factor(kind, to)
        return None if kind is None or factor is None else (name, kind, to, factor)

    def _with_constant(
        self, name: str, column: str, kind: pa.DataType, to: pa.DataType, factor: int, constant: pa.Scalar
    ) -> Truth | None:
        if constant.type != to or not _is_done(name, kind) or (factor > 1 and not is_ordered(to)):
            return None
        if not constant.is_valid:
            return lambda words: np.zeros(len(words(column)), np.bool_)
        bound, rest = divmod(self._domain.constant(constant), factor)
        if rest and name in ("equal", "not_equal"):
            if name == "equal":
                return lambda words: np.zeros(len(words(column)), np.bool_)
            return lambda words: words(column) != NULL
        if rest and name in ("less", "greater_equal"):
            bound += 1  # No word is between the two.
        compare = _COMPARED[name]
        if name in ("equal", "greater") or (name == "greater_equal" and bound > NULL):
            return lambda words: compare(words(column), bound)  # NULL is the least word.

        def truth(words: Words) -> Flags:
            found = words(column)
            kept: Flags = compare(found, bound) & (found != NULL)
            return kept

        return truth


def _joined(parts: Sequence[Truth | None], how: Any) -> Truth | None:
    known = [each for each in parts if each is not None]
    if len(known) < len(parts) or not known:
        return None
    return lambda words: reduce(how, [each(words) for each in known])


def _is_done(name: str, kind: pa.DataType) -> bool:
    """Return whether a comparison of values of a type is one of their words."""
    if pat.is_floating(kind) or pat.is_nested(kind) or pat.is_dictionary(kind):
        return False
    return is_ordered(kind) or (name in ("equal", "not_equal") and (pat.is_string(kind) or pat.is_binary(kind)))


def _factor(kind: pa.DataType, to: pa.DataType) -> int | None:
    """Return by what a cast that cannot fail multiplies words; None if it is not such a cast."""
    if pat.is_signed_integer(kind) and pat.is_signed_integer(to) and kind.bit_width <= to.bit_width:
        return 1
    if pat.is_date32(kind) and pat.is_timestamp(to) and to.unit == "us" and to.tz is None:
        return _DAY_US
    if is_narrow(kind) and is_narrow(to) and to.scale >= kind.scale:
        return 10 ** (to.scale - kind.scale) if to.precision - to.scale >= kind.precision - kind.scale else None
    return None
