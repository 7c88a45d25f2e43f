"""Conditions as the parts that must all hold, and which terms may raise: what decides where a condition can be done.

A condition after a join sees only records that have a partner. Before the join it would see all, and one that raises,
such as a cast of a text that is no number, would stop what has done nothing wrong. So only what cannot raise is moved.

Of the functions of programs, those that are not known to be total are taken for ones that may raise. Of the functions
of queries, those that raise are known. Sums and products raise where they overflow, which is taken for no purpose of
anybody's: in queries they are done wherever it is best, as in DuckDB.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from persist.expression.term import SQL, Call, Col, Lit, Place, Term, calls, sql_call

_MAY_RAISE = (
    *("divide_whole", "remainder", "error", "date_part", "date_trunc", "date_diff", "make_date", "chr", "repeat"),
    *("lpad", "rpad", "sqrt", "ln", "log", "log2", "log10", "asin", "acos"),
)
_WITH_UNIT = ("date_part", "date_trunc")  # By a constant unit, these have a value for every time.
_TOTAL = (
    *("and", "or", "not", "is_null", "is_in", "lower", "upper", "length", "strip", "starts_with", "ends_with"),
    *("contains", "concat", "divide"),
)
_TOTAL_OF_ALIKE = (  # Where types differ, Arrow casts, and a cast may raise.
    *("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"),
    *("coalesce", "least", "greatest", "if_else"),
)
Kinds = Mapping[Any, pa.DataType]  # The types of columns, by name or number.


def all_of(conditions: Sequence[Term]) -> Term:
    """Return the condition that all of these hold, of which there is one at least."""
    return conditions[0] if len(conditions) == 1 else sql_call("and", pa.bool_(), *conditions)


def conjuncts(condition: Term | None) -> list[Term]:
    """Return the conditions of an `and`, in their order; of no condition, none."""
    if isinstance(condition, Call) and calls(condition, "and"):
        return [part for argument in condition.arguments for part in conjuncts(argument)]
    return [] if condition is None else [condition]


def factored_conjuncts(condition: Term) -> list[Term]:
    """Return the conditions that must all hold, with what all branches of an `or` have in common: of a b OR a c, a."""
    if isinstance(condition, Call) and calls(condition, "and"):
        return [part for argument in condition.arguments for part in factored_conjuncts(argument)]
    if isinstance(condition, Call) and calls(condition, "or"):
        branches = [factored_conjuncts(argument) for argument in condition.arguments]
        common = [part for part in branches[0] if all(part in others for others in branches[1:])]
        if not common:
            return [condition]
        rest = [[part for part in branch if part not in common] for branch in branches]
        return [*common, sql_call("or", pa.bool_(), *map(all_of, rest))] if all(rest) else common
    is_true = isinstance(condition, Lit) and condition.value.type == pa.bool_() and condition.value.as_py() is True
    return [] if is_true else [condition]


def may_raise(term: Term, kinds: Kinds) -> bool:
    """Return whether a term over columns of some types fails on some records, as far as that is known."""
    if not isinstance(term, Call):
        return False
    if any(may_raise(argument, kinds) for argument in term.arguments):
        return True
    if not term.function.startswith(SQL):
        return not _is_total(term, kinds)
    if calls(term, "cast"):
        # Constants are computed once, before there are records.
        return not isinstance(term.arguments[0], Lit) and not _always_fits(_kind(term.arguments[0], kinds), term.kind)
    if calls(term, *_WITH_UNIT):
        return not isinstance(term.arguments[0], Lit)
    return calls(term, *_MAY_RAISE)


def _is_total(call: Call, kinds: Kinds) -> bool:
    if call.function in _TOTAL:
        return True
    # The condition of a conditional is of a type of its own.
    compared = call.arguments[1 if call.function == "if_else" else 0 :]
    return call.function in _TOTAL_OF_ALIKE and _are_alike([_kind(argument, kinds) for argument in compared])


def _kind(term: Term, kinds: Kinds) -> pa.DataType:
    if isinstance(term, Col):
        return kinds[term.name]
    if isinstance(term, Place):
        return kinds[term.index]
    if isinstance(term, Lit):
        return term.value.type
    assert isinstance(term, Call)
    if term.function.startswith(SQL):
        return term.kind
    from persist.expression.evaluation import type_of  # Here: numpy's functions take long to load.

    return type_of(term, pa.schema(list(kinds.items())), "a condition")


def _are_alike(kinds: Sequence[pa.DataType]) -> bool:
    return all(kind == kinds[0] for kind in kinds) or all(
        (pat.is_integer(kind) and not pat.is_uint64(kind)) or pat.is_floating(kind) for kind in kinds
    )


def _always_fits(narrow: pa.DataType, wide: pa.DataType) -> bool:
    """Return whether a type of queries has a value for every value of another one."""
    if narrow == wide or pat.is_string(wide):
        return True
    if pat.is_date(wide) or wide in (pa.timestamp("us"), pa.timestamp("us", "UTC")):
        return bool(pat.is_date(narrow) or pat.is_timestamp(narrow))
    if pat.is_float64(wide):
        return bool(
            pat.is_floating(narrow) or pat.is_boolean(narrow) or pat.is_integer(narrow) or pat.is_decimal(narrow)
        )
    if pat.is_integer(wide) and pat.is_integer(narrow):
        (least, most), (low, high) = _range(narrow), _range(wide)
        return bool(low <= least and most <= high)
    if pat.is_boolean(narrow):
        return bool(pat.is_integer(wide) or pat.is_decimal(wide))
    if not pat.is_decimal(wide):
        return False
    places = wide.precision - wide.scale
    if pat.is_integer(narrow):
        return bool(len(str(_range(narrow)[1])) <= places)
    return bool(pat.is_decimal(narrow) and narrow.precision - narrow.scale <= places and narrow.scale <= wide.scale)


def _range(kind: pa.DataType) -> tuple[int, int]:
    bits = kind.bit_width
    return (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if pat.is_signed_integer(kind) else (0, 2**bits - 1)
