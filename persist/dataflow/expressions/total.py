"""Which expressions give a value for every record, so that they may be evaluated on records that nobody asked about.

A condition after a join sees only records that have a partner. Before the join it would see all, and one that raises,
such as a cast of a text that is no number, would stop a program that has done nothing wrong. So only what cannot raise
is moved. What is not known to be such is taken for one that can.
"""

import pyarrow as pa
import pyarrow.types as pat

from persist.dataflow.expressions.evaluation import type_of
from persist.dataflow.expressions.expression import Call, Col, Expression, Lit

_ALIKE = frozenset(  # Where types differ, Arrow casts, and a cast may raise.
    {
        *("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"),
        *("coalesce", "least", "greatest", "if_else"),
        *(f"sql.{name}" for name in ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")),
        *(f"sql.{name}" for name in ("distinct_from", "not_distinct_from", "in", "not_in", "coalesce")),
    }
)
_ANY = frozenset(
    {
        *("and", "or", "not", "is_null", "is_in", "lower", "upper", "length", "strip", "starts_with", "ends_with"),
        *("contains", "concat", "divide"),
        *(f"sql.{name}" for name in ("and", "or", "not", "is_null", "is_not_null", "lower", "upper", "length")),
        *(f"sql.{name}" for name in ("like", "not_like", "ilike", "not_ilike", "prefix", "suffix", "contains")),
    }
)


def is_total(expression: Expression, schema: pa.Schema) -> bool:
    """Return whether an expression over columns of a schema is known never to raise."""
    if isinstance(expression, Col | Lit):
        return True
    if not isinstance(expression, Call) or not all(is_total(each, schema) for each in expression.arguments):
        return False
    if expression.function in _ANY:
        return True
    # The condition of a conditional is of a type of its own.
    compared = expression.arguments[1 if expression.function == "if_else" else 0 :]
    return expression.function in _ALIKE and _are_alike([type_of(each, schema, "join") for each in compared])


def _are_alike(kinds: list[pa.DataType]) -> bool:
    return all(kind == kinds[0] for kind in kinds) or all(
        (pat.is_integer(kind) and not pat.is_uint64(kind)) or pat.is_floating(kind) for kind in kinds
    )
