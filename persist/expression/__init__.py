"""Expressions: one tree of terms, what is parsed into it, and what computes it.

Promise to those above: a term means the same whoever wrote it, terms that are built alike are equal, and there are two
evaluators: `evaluate` for columns in memory, and Arrow's own engine for filters of files (`arrow_filter`).
"""

from typing import TYPE_CHECKING

from persist.expression.evaluation import all_of, conjuncts, factored_conjuncts, may_raise
from persist.expression.term import (
    DUCKDB,
    INTERVAL,
    SQL,
    Aggregate,
    Call,
    Col,
    Expression,
    Lit,
    Place,
    Term,
    calls,
    col,
    columns_of,
    leaves,
    lit,
    moved,
    placed,
    places_in,
    replaced_columns,
    shifted,
    sql_call,
    term_of,
    when,
)
from persist.late_names import late_names

if TYPE_CHECKING:
    from persist.expression.evaluation import as_array, evaluate, together, type_of
    from persist.expression.filters import arrow_filter, parse_where
    from persist.expression.python_functions import (
        PythonFunction,
        add_function,
        calls_of_python,
        check_functions,
        functions_of_python,
        python_function,
    )
    from persist.expression.sql_numbers import is_cast, of_unscaled, unscaled

__getattr__ = late_names(
    __name__,
    {
        "evaluation": ["as_array", "evaluate", "together", "type_of"],
        "filters": ["arrow_filter", "parse_where"],
        "python_functions": [
            "PythonFunction",
            "add_function",
            "calls_of_python",
            "check_functions",
            "python_function",
            "functions_of_python",
        ],
        "sql_numbers": ["is_cast", "of_unscaled", "unscaled"],
    },
)
