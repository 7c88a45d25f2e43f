"""Evaluates terms on Arrow columns: the meaning of each function, and its argument types.

The type of an expression is the type of its value on empty columns. So there is one source of truth: a program is
accepted if Arrow's kernels accept it when it runs.

Conditions are split into the parts that must all hold. A term that may raise must not be moved: a condition after a
join sees only records that have a partner. Before the join it would see all records. If it raises, such as a cast of a
text that is not a number, it would stop a program for a record that the join drops. So only terms that cannot raise are
moved.

A function of programs counts as raising unless it is known to be total; for functions of queries there is a list. Sums
and products raise on overflow, but no program relies on that: queries compute them at the best place, as DuckDB does.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from persist.codecs.errors import SchemaMismatch
from persist.codecs.types.schema import TIME
from persist.core.errors import InvalidUsage
from persist.core.expression.patterns import match_like_pattern
from persist.core.expression.sql_functions import SQL_FUNCTIONS, compute_together
from persist.core.expression.term import SQL, Call, Col, Lit, Place, Term, is_call, make_sql_call

Value = Any  # A pa.Array, or a pa.Scalar with that value for all records.
LAZY = ("sql.case", "sql.coalesce", "sql.and", "sql.or", "sql.error")
_ARROW_ERRORS = (pa.ArrowException, TypeError, ValueError, KeyError, AttributeError)


def evaluate(expression: Term, columns: Mapping[str, pa.Array]) -> Value:
    """Return the values of a term on columns."""
    if isinstance(expression, Col):
        return columns[expression.name]
    if isinstance(expression, Lit):
        return expression.value
    assert isinstance(expression, Call)
    if expression.function in LAZY:
        return _evaluate_lazily(expression, columns)
    arguments = [evaluate(argument, columns) for argument in expression.arguments]
    return _FUNCTIONS[expression.function](*arguments, *expression.options)


def evaluate_by_duckdb(expressions: Sequence[Term], columns: Mapping[str, pa.Array]) -> dict[int, pa.Array]:
    """Compute the terms that need DuckDB in one query; return results by position.

    One query takes little longer for all terms than for one. The result is empty if there are fewer
    than two, or if one raises. The caller then evaluates each by `evaluate`.
    """
    python_calls = {
        place: expression
        for place, expression in enumerate(expressions)
        if isinstance(expression, Call) and is_call(expression, "duckdb") and len(expression.arguments) > 1
    }
    if len(python_calls) < 2:
        return {}
    try:
        batches = []
        for call in python_calls.values():
            text, *arguments = call.arguments
            values = [broadcast(evaluate(argument, columns), len(columns)) for argument in arguments]
            batches.append((evaluate(text, columns).as_py(), values, call.options[-1]))
        return dict(zip(python_calls, compute_together(batches), strict=True))
    except (InvalidUsage, *_ARROW_ERRORS):
        return {}


class Rows(Mapping[str, pa.Array]):
    """Some rows of several columns; each column is taken at first use."""

    def __init__(self, columns: Mapping[str, pa.Array], rows: pa.Array) -> None:
        self._columns = columns
        self._rows = rows
        self._taken: dict[str, pa.Array] = {}

    def __getitem__(self, name: str) -> pa.Array:
        if name not in self._taken:
            self._taken[name] = self._columns[name].take(self._rows)
        return self._taken[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._rows)


def _evaluate_lazily(expression: Call, columns: Mapping[str, pa.Array]) -> Value:
    """Evaluate a lazy function: each branch sees only the records that reach it."""
    rows, kind = len(columns), expression.options[-1]
    if expression.function == "sql.error":
        if rows:
            text = broadcast(evaluate(expression.arguments[0], columns), rows).drop_null()
            if len(text):
                raise ValueError(str(text[0].as_py()).split("\n")[0])
        return pa.nulls(rows, kind)
    if expression.function == "sql.case":
        return _evaluate_case(expression.arguments, columns, rows, kind)
    if expression.function == "sql.coalesce":
        return _evaluate_coalesce(expression.arguments, columns, rows, kind)
    kleene = pc.and_kleene if expression.function == "sql.and" else pc.or_kleene
    settled = pa.scalar(expression.function == "sql.or")
    truths = broadcast(evaluate(expression.arguments[0], columns), rows)
    for argument in expression.arguments[1:]:
        is_open = pc.fill_null(pc.not_equal(truths, settled), True)
        at = pc.indices_nonzero(is_open)
        if len(at) == rows:
            truths = kleene(truths, broadcast(evaluate(argument, columns), rows))
        elif len(at):
            part = kleene(truths.take(at), broadcast(evaluate(argument, Rows(columns, at)), len(at)))
            truths = broadcast(pc.replace_with_mask(truths, is_open, part), rows)
    return truths


def _evaluate_case(arguments: Sequence[Term], columns: Mapping[str, pa.Array], rows: int, kind: pa.DataType) -> Value:
    """Evaluate a CASE: each branch sees only the records that reach it."""
    *branches, last = arguments
    remaining_rows, parts, places = pa.array(np.arange(rows)), [], []
    remaining = columns
    for condition, then in zip(branches[::2], branches[1::2], strict=True):
        holds = pc.fill_null(broadcast(evaluate(condition, remaining), len(remaining_rows)), False)
        at = remaining_rows.filter(holds)
        if len(at):
            parts.append(_evaluate_part(then, Rows(columns, at), kind))
            places.append(at)
            remaining_rows = remaining_rows.filter(pc.invert(holds))
            remaining = Rows(columns, remaining_rows)
    if len(remaining_rows):
        parts.append(_evaluate_part(last, remaining, kind))
        places.append(remaining_rows)
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return pa.array([], kind)
    order = np.empty(rows, np.int64)
    order[np.concatenate([indices.to_numpy() for indices in places])] = np.arange(rows)
    return pa.concat_arrays(parts).take(pa.array(order))


def _evaluate_coalesce(
    arguments: Sequence[Term], columns: Mapping[str, pa.Array], rows: int, kind: pa.DataType
) -> Value:
    """Evaluate a COALESCE: later arguments see only records that are still NULL."""
    values = _evaluate_part(arguments[0], columns, kind)
    for argument in arguments[1:]:
        at = pc.indices_nonzero(pc.is_null(values))
        if len(at) == rows:
            values = _evaluate_part(argument, columns, kind)
        elif len(at) and isinstance(argument, Lit | Col):  # These raise for no record.
            values = broadcast(pc.coalesce(values, _evaluate_part(argument, columns, kind)), rows)
        elif len(at):
            order = np.arange(rows)
            order[at.to_numpy()] = np.arange(rows, rows + len(at))
            values = pa.concat_arrays([values, _evaluate_part(argument, Rows(columns, at), kind)]).take(pa.array(order))
    return values


def _evaluate_part(expression: Term, columns: Mapping[str, pa.Array], kind: pa.DataType) -> pa.Array:
    """Return the values of a branch or argument, cast to a type."""
    values = broadcast(evaluate(expression, columns), len(columns))
    return values if values.type == kind else values.cast(kind)


def infer_type(expression: Term, schema: pa.Schema, operator: str) -> pa.DataType:
    """Return the type of an expression over columns of a schema."""

    def checked(term: Term) -> Value:
        """Evaluate a term on empty columns of the schema."""
        if isinstance(term, Col):
            at = schema.get_field_index(term.name)
            if at < 0:
                hint = f" ({TIME} is there only in programs of one dimension)" if term.name == TIME else ""
                has = [name for name in schema.names if name != TIME]
                raise SchemaMismatch(f"{operator}: there is no column {term.name!r}; the columns are {has}{hint}")
            return pa.nulls(0, schema.field(at).type)
        if isinstance(term, Lit):
            return term.value
        assert isinstance(term, Call)
        arguments = [checked(argument) for argument in term.arguments]
        try:
            return _FUNCTIONS[term.function](*arguments, *term.options)
        except _ARROW_ERRORS as error:
            kinds = ", ".join(str(argument.type) for argument in arguments)
            raise SchemaMismatch(
                f"{operator}: {term} does not fit its types ({kinds}): {error}. Cast one of them, or choose another "
                "column."
            ) from error

    kind = checked(expression).type
    if pat.is_null(kind):
        raise SchemaMismatch(f"{operator}: {expression} is NULL of no type; say which with lit(None, pa.int64())")
    return kind


def broadcast(value: Value, rows: int) -> pa.Array:
    """Return a value as an array of that length; scalars are repeated."""
    if isinstance(value, pa.Scalar):
        return pa.repeat(value, rows)
    return value.combine_chunks() if isinstance(value, pa.ChunkedArray) else value


def _divide_as_floats(one: Value, other: Value) -> Value:
    """Divide as floats; NULL for a zero divisor."""
    divisor = pc.cast(other, pa.float64(), safe=False)
    zero = pc.equal(divisor, 0.0)
    divisor = pc.if_else(zero, pa.scalar(None, pa.float64()), divisor)
    return pc.divide(pc.cast(one, pa.float64(), safe=False), divisor)


def _prepare_integer_division(dividend: Value, divisor: Value) -> tuple[Value, Value]:
    """Convert both numbers to one type; a zero divisor becomes NULL."""
    for operand in (dividend, divisor):
        if not (pat.is_integer(operand.type) or pat.is_floating(operand.type)):
            raise TypeError(f"{operand.type} is not a number")
    is_floating = pat.is_floating(dividend.type) or pat.is_floating(divisor.type)
    kind = pa.float64() if is_floating else pa.int64()
    dividend, divisor = (pc.cast(operand, kind, safe=not is_floating) for operand in (dividend, divisor))
    return dividend, pc.if_else(pc.equal(divisor, pa.scalar(0, kind)), pa.scalar(None, kind), divisor)


def _floor_divide(dividend: Value, divisor: Value) -> Value:
    """Divide and round down; NULL for a zero divisor."""
    dividend, divisor = _prepare_integer_division(dividend, divisor)
    if pat.is_floating(dividend.type):
        return pc.floor(pc.divide(dividend, divisor))
    quotient = pc.divide_checked(dividend, divisor)  # Towards zero.
    remainder = pc.subtract(dividend, pc.multiply(quotient, divisor))
    is_below = pc.and_(pc.not_equal(remainder, 0), pc.less(pc.bit_wise_xor(remainder, divisor), 0))
    return pc.subtract(quotient, pc.cast(is_below, pa.int64()))


def _modulo(dividend: Value, divisor: Value) -> Value:
    """Return the remainder of `_floor_divide`."""
    quotient = _floor_divide(dividend, divisor)
    dividend, divisor = _prepare_integer_division(dividend, divisor)
    if pat.is_floating(dividend.type):
        return _float_modulo(dividend, divisor)
    return pc.subtract(dividend, pc.multiply(quotient, divisor))


def _float_modulo(one: Value, other: Value) -> Value:
    """Return the exact remainder of floats, because a rounded quotient may overflow."""
    rows = next((len(operand) for operand in (one, other) if not isinstance(operand, pa.Scalar)), None)
    left_values, right_values = (broadcast(operand, 1 if rows is None else rows) for operand in (one, other))
    with np.errstate(invalid="ignore"):
        remainders_array = np.mod(
            *(array.fill_null(1.0).to_numpy(zero_copy_only=False) for array in (left_values, right_values))
        )
    is_null = pc.or_(pc.is_null(left_values), pc.is_null(right_values)).to_numpy(zero_copy_only=False)
    remainders = pa.array(remainders_array, mask=is_null)
    return remainders[0] if rows is None else remainders


def _check_condition(*values: Value) -> None:
    """Raise TypeError unless all values are booleans or NULL."""
    for value in values:
        if not (pat.is_boolean(value.type) or pat.is_null(value.type)):
            raise TypeError(f"{value.type} is not a condition")


def _on_conditions(function: Callable[..., Value]) -> Callable[..., Value]:
    """Wrap a function so that it refuses arguments that are not boolean."""

    def apply(*values: Value) -> Value:
        _check_condition(*values)
        return function(*values)

    return apply


def _if_else(condition: Value, then: Value, otherwise: Value) -> Value:
    """Return `then` where the condition is true, and `otherwise` elsewhere."""
    _check_condition(condition)
    # Arrow returns NULL for a NULL condition; here, as in SQL, such a condition is not true.
    return pc.if_else(pc.fill_null(condition, False), then, otherwise)


def _cast(value: Value, kind: pa.DataType) -> Value:
    """Cast values to a type; booleans become 0 and 1."""
    if pat.is_boolean(value.type) and (pat.is_integer(kind) or pat.is_floating(kind)):
        return pc.cast(pc.cast(value, pa.int8()), kind)
    return pc.cast(value, kind)


def _test_membership(value: Value, values: tuple[Any, ...]) -> Value:
    """Return whether values are among constants, with SQL's rules for NULL."""
    is_listed = pc.is_in(value, value_set=pa.array(list(values), value.type))
    # As in SQL, a value outside of the list may still equal a NULL in it.
    is_decided = pc.or_(is_listed, None not in values)
    return pc.if_else(pc.and_(pc.is_valid(value), is_decided), is_listed, pa.scalar(None, pa.bool_()))


def _extract_time_part(value: Value, unit: str) -> Value:
    if unit not in _PARTS:
        raise ValueError(f"{unit!r} is not a part of a date; there are {', '.join(_PARTS)}")
    return getattr(pc, unit)(value)


def _round_down(value: Value, unit: str | None) -> Value:
    """Round numbers down; round timestamps down to the unit."""
    return pc.floor(value) if unit is None else pc.floor_temporal(value, unit=unit)


def _count_bits(value: Value) -> Value:
    """Return the number of binary digits of each whole number."""
    if not pat.is_integer(value.type):
        raise TypeError(f"{value.type} is not a whole number")
    remaining_bits = pc.abs_checked(pc.cast(value, pa.int64()))
    bits = pc.subtract(remaining_bits, remaining_bits)
    for step in (32, 16, 8, 4, 2, 1):
        is_longer = pc.greater_equal(remaining_bits, 1 << step)
        bits = pc.add(bits, pc.if_else(is_longer, step, 0))
        remaining_bits = pc.if_else(is_longer, pc.shift_right(remaining_bits, step), remaining_bits)
    return pc.add(bits, remaining_bits)  # One digit is left, or none.


def _slice(value: Value, start: int, stop: int | None) -> Value:
    return pc.utf8_slice_codeunits(value, start, stop)


def _length(value: Value) -> Value:
    is_text = pat.is_string(value.type) or pat.is_large_string(value.type)
    return pc.cast(pc.utf8_length(value) if is_text else pc.binary_length(value), pa.int64())


def _concat(*values: Value) -> Value:
    return pc.binary_join_element_wise(*values, "")


def _add(one: Value, other: Value) -> Value:
    if pat.is_string(one.type) and pat.is_string(other.type):
        return _concat(one, other)
    return pc.add_checked(*_unify_types(one, other))


def _unify_types(one: Value, other: Value) -> tuple[Value, Value]:
    """Convert an integer that meets a float to the nearest float."""
    if pat.is_floating(one.type) and pat.is_integer(other.type):
        return one, pc.cast(other, one.type, safe=False)
    if pat.is_integer(one.type) and pat.is_floating(other.type):
        return pc.cast(one, other.type, safe=False), other
    return one, other


def _on_unified_types(function: Callable[[Value, Value], Value]) -> Callable[[Value, Value], Value]:
    """Wrap a function so that both its numbers have one type."""
    return lambda one, other: function(*_unify_types(one, other))


_PARTS = (
    *("year", "month", "day", "hour", "minute", "second", "millisecond", "microsecond", "nanosecond", "quarter"),
    *("day_of_week", "day_of_year", "iso_week", "iso_year", "week"),
)

_FUNCTIONS: dict[str, Callable[..., Value]] = {
    "add": _add,
    "subtract": _on_unified_types(pc.subtract_checked),
    "multiply": _on_unified_types(pc.multiply_checked),
    "divide": _divide_as_floats,
    "floor_divide": _floor_divide,
    "modulo": _modulo,
    "negate": pc.negate_checked,
    "abs": pc.abs_checked,
    "equal": _on_unified_types(pc.equal),
    "not_equal": _on_unified_types(pc.not_equal),
    "less": _on_unified_types(pc.less),
    "less_equal": _on_unified_types(pc.less_equal),
    "greater": _on_unified_types(pc.greater),
    "greater_equal": _on_unified_types(pc.greater_equal),
    "and": _on_conditions(pc.and_kleene),
    "or": _on_conditions(pc.or_kleene),
    "not": _on_conditions(pc.invert),
    "if_else": _if_else,
    "cast": _cast,
    "is_null": pc.is_null,
    "is_in": _test_membership,
    "among": lambda value, values: pc.is_in(value, value_set=values),
    "like": match_like_pattern,
    "is_valid": pc.is_valid,
    "is_nan": pc.is_nan,
    "coalesce": pc.coalesce,
    "least": pc.min_element_wise,
    "greatest": pc.max_element_wise,
    "lower": pc.utf8_lower,
    "upper": pc.utf8_upper,
    "length": _length,
    "strip": pc.utf8_trim_whitespace,
    "slice": _slice,
    "starts_with": pc.starts_with,
    "ends_with": pc.ends_with,
    "contains": pc.match_substring,
    "replace": pc.replace_substring,
    "concat": _concat,
    "part": _extract_time_part,
    "bit_length": _count_bits,
    "floor": _round_down,
    **SQL_FUNCTIONS,
}


_MAY_RAISE = ("divide_whole", "remainder", "error", "duckdb", "python")
_TOTAL = (
    *("and", "or", "not", "is_null", "is_in", "lower", "upper", "length", "strip", "starts_with", "ends_with"),
    *("contains", "concat", "divide"),
)
_TOTAL_OF_ALIKE = (  # If types differ, Arrow casts, and a cast may raise.
    *("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"),
    *("coalesce", "least", "greatest", "if_else"),
)
Kinds = Mapping[Any, pa.DataType]  # The types of columns, by name or number.


def join_with_and(conditions: Sequence[Term]) -> Term:
    """Join one or more conditions with AND."""
    return conditions[0] if len(conditions) == 1 else make_sql_call("and", pa.bool_(), *conditions)


def split_conjuncts(condition: Term | None) -> list[Term]:
    """Return the conditions of an `and`, in their order; of no condition, none."""
    if isinstance(condition, Call) and is_call(condition, "and"):
        return [part for argument in condition.arguments for part in split_conjuncts(argument)]
    return [] if condition is None else [condition]


def factor_conjuncts(condition: Term) -> list[Term]:
    """Return the conjuncts, also those common to all branches of an OR, such as `a` of `(a AND b) OR (a AND c)`."""
    if isinstance(condition, Call) and is_call(condition, "and"):
        return [part for argument in condition.arguments for part in factor_conjuncts(argument)]
    if isinstance(condition, Call) and is_call(condition, "or"):
        branches = [factor_conjuncts(argument) for argument in condition.arguments]
        common = [part for part in branches[0] if all(part in other_branch for other_branch in branches[1:])]
        if not common:
            return [condition]
        remainders = [[part for part in branch if part not in common] for branch in branches]
        return (
            [*common, make_sql_call("or", pa.bool_(), *map(join_with_and, remainders))] if all(remainders) else common
        )
    is_true = isinstance(condition, Lit) and condition.value.type == pa.bool_() and condition.value.as_py() is True
    return [] if is_true else [condition]


def may_raise(term: Term, kinds: Kinds) -> bool:
    """Return whether a term may raise; `kinds` are the columns' types."""
    if not isinstance(term, Call):
        return False
    if any(may_raise(argument, kinds) for argument in term.arguments):
        return True
    if not term.function.startswith(SQL):
        return not _never_raises(term, kinds)
    if is_call(term, "cast"):
        # Constants are computed once, before there are records.
        return not isinstance(term.arguments[0], Lit) and not _holds_all_values(
            _infer_kind(term.arguments[0], kinds), term.kind
        )
    if is_call(term, "duckdb"):
        return not all(isinstance(argument, Lit) for argument in term.arguments)  # As constants that are cast.
    return is_call(term, *_MAY_RAISE)


def _never_raises(call: Call, kinds: Kinds) -> bool:
    """Return whether a call has a value for all records."""
    if call.function in _TOTAL:
        return True
    # The condition of a conditional is of a type of its own.
    compared = call.arguments[1 if call.function == "if_else" else 0 :]
    return call.function in _TOTAL_OF_ALIKE and _are_alike([_infer_kind(argument, kinds) for argument in compared])


def _infer_kind(term: Term, kinds: Kinds) -> pa.DataType:
    """Return the type of a term; `kinds` are the columns' types."""
    if isinstance(term, Col):
        return kinds[term.name]
    if isinstance(term, Place):
        return kinds[term.index]
    if isinstance(term, Lit):
        return term.value.type
    assert isinstance(term, Call)
    if term.function.startswith(SQL):
        return term.kind
    return infer_type(term, pa.schema(list(kinds.items())), "a condition")


def _are_alike(kinds: Sequence[pa.DataType]) -> bool:
    """Return whether types are equal, or all are numbers except uint64."""
    return all(kind == kinds[0] for kind in kinds) or all(
        (pat.is_integer(kind) and not pat.is_uint64(kind)) or pat.is_floating(kind) for kind in kinds
    )


def _holds_all_values(narrow: pa.DataType, wide: pa.DataType) -> bool:
    """Return whether the wide type can represent all values of the narrow."""
    if narrow == wide or pat.is_string(wide):
        return True
    if pat.is_date(wide) or wide in (pa.timestamp("us"), pa.timestamp("us", "UTC")):
        return bool(pat.is_date(narrow) or pat.is_timestamp(narrow))
    if pat.is_float64(wide):
        return bool(
            pat.is_floating(narrow) or pat.is_boolean(narrow) or pat.is_integer(narrow) or pat.is_decimal(narrow)
        )
    if pat.is_integer(wide) and pat.is_integer(narrow):
        (least, most), (low, high) = _get_range(narrow), _get_range(wide)
        return bool(low <= least and most <= high)
    if pat.is_boolean(narrow):
        return bool(pat.is_integer(wide) or pat.is_decimal(wide))
    if not pat.is_decimal(wide):
        return False
    places = wide.precision - wide.scale
    if pat.is_integer(narrow):
        return bool(len(str(_get_range(narrow)[1])) <= places)
    return bool(pat.is_decimal(narrow) and narrow.precision - narrow.scale <= places and narrow.scale <= wide.scale)


def _get_range(kind: pa.DataType) -> tuple[int, int]:
    """Return the least and the greatest value of an integer type."""
    bits = kind.bit_width
    return (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if pat.is_signed_integer(kind) else (0, 2**bits - 1)
