"""Filters on what a program reads of its sources, from the conditions of its first operators.

A filter is a hint: it passes each record that an operator keeps, and may pass others, which the operator drops. So a
condition that this module cannot convert only costs time. Parts whose statistics exclude a filter are not read.

It converts comparisons of columns, and of texts inside of JSON documents, with constants of their type. If a
condition may raise, later ones are left out, because they would hide its error.
"""

import math
import re
from collections.abc import Iterator, Sequence
from functools import reduce
from operator import and_, eq, ge, gt, le, lt, or_

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from persist.codecs.evolution import find_newest_types
from persist.codecs.part.filters import bind_filter
from persist.codecs.types.schema import CollectionSchema
from persist.compute.dataflow.plan.plan import Arrange, Join, Linear, Plan, Reduce, Stages
from persist.compute.dataflow.plan.stages import Filter
from persist.compute.dataflow.plan.types import is_compatible
from persist.core.expression.documents import has_simple_path, join_paths, make_document_expression
from persist.core.expression.evaluation import may_raise, split_conjuncts
from persist.core.expression.term import SQL, Call, Col, Lit, Term, list_columns

_COMPARED = {"equal": eq, "less": lt, "less_equal": le, "greater": gt, "greater_equal": ge}
TESTS_MAX = 200  # A longer condition has no filter, because Arrow nests each test in the next.
_TURNED = {eq: eq, lt: gt, gt: lt, le: ge, ge: le}
_TEXTS = "->>", "json_extract_string"
_STEP = re.compile(r"""(?s)"(->>?|json_extract(?:_string)?)"\((.*), CAST\('((?:[^']|'')*)' AS VARCHAR\)\)""")


def list_conditions(plan: Plan, number: int) -> list[tuple[Term, ...]]:
    """Return the first conditions of each reader of a source; empty if one needs all records."""
    alternatives = []
    for stages in _list_first_stages(plan, number):
        first = next((at for at, stage in enumerate(stages) if not isinstance(stage, Filter)), len(stages))
        alternatives.append(tuple(stage.condition for stage in stages[:first] if isinstance(stage, Filter)))
    return alternatives if all(alternatives) else []


def _list_first_stages(plan: Plan, number: int) -> Iterator[Stages]:
    """Yield the first stages that each reader of a node applies."""
    for node in plan.nodes.values():
        for at, source in enumerate(node.inputs):
            if source == number:
                match node.operator:
                    case Linear(stages) | Reduce(before=stages):
                        yield stages
                    case Join(before=before):
                        yield before[at]
                    case Arrange():
                        yield from _list_first_stages(plan, node.number)
                    case _:
                        yield ()


def make_hint(alternatives: Sequence[Sequence[Term]], schema: CollectionSchema) -> pc.Expression | None:
    """Return the filter of records that may meet all conditions of one alternative; None for all records."""
    hints = _Hints(schema)
    hint = _join_with_or([hints.convert_all(conditions) for conditions in alternatives])
    if hint is None:
        return None
    try:
        bind_filter(hint, schema.arrow)
    except pa.ArrowException:
        return None  # Arrow does not compare such values.
    return hint


class _Hints:
    """Converts conditions over the columns of a collection."""

    def __init__(self, schema: CollectionSchema) -> None:
        self._documents = find_newest_types(schema).json  # Texts of a widened column may be no documents.
        self._kinds = {name: schema.arrow.field(name).type for name in schema.names}

    def convert_all(self, conditions: Sequence[Term]) -> pc.Expression | None:
        """Return the filter of records that may meet all conditions before the first that may raise."""
        filters = []
        for part in (part for condition in conditions for part in split_conjuncts(condition)):
            filter = self._convert(part)
            if filter is not None:
                filters.append(filter)
            elif not self._kinds.keys() >= list_columns(part) or may_raise(part, self._kinds):
                break
        return reduce(and_, filters[:TESTS_MAX]) if filters else None

    def _convert(self, term: Term) -> pc.Expression | None:
        """Return the filter of records that may meet a condition; None if it cannot be converted."""
        if isinstance(term, Col) and self._kinds.get(term.name) == pa.bool_():
            return pc.field(term.name)
        if not isinstance(term, Call):
            return None
        name = term.function.removeprefix(SQL)
        if name == "and":
            return self.convert_all([term])
        if name == "or":
            return _join_with_or([self._convert(argument) for argument in term.arguments])
        if name in ("is_null", "is_not_null"):
            value, _ = self._convert_value(term.arguments[0])
            return None if value is None else value.is_null() if name == "is_null" else value.is_valid()
        if term.function == "sql.in":
            value, *members = term.arguments
            return self._convert(Call("or", tuple(Call("sql.equal", (value, member)) for member in members)))
        return self._compare(term, name) if name in _COMPARED else None

    def _compare(self, term: Call, name: str) -> pc.Expression | None:
        """Return the filter of a comparison with a constant."""
        compare, (column, constant) = _COMPARED[name], term.arguments
        if isinstance(column, Lit):
            compare, column, constant = _TURNED[compare], constant, column
        value, kind = self._convert_value(column)
        literal = None if not isinstance(constant, Lit) or kind is None else _fit_literal(constant.value, kind)
        if value is None or literal is None:
            return None
        # NaN is greater than all numbers, and Arrow compares it as less than none.
        is_of_nan = pat.is_floating(kind) and compare in (gt, ge)
        return ~(le if compare is gt else lt)(value, literal) if is_of_nan else compare(value, literal)

    def _convert_value(self, term: Term) -> tuple[pc.Expression | None, pa.DataType | None]:
        """Return a column, or the text of a value of documents, with its type; None if a term is something else."""
        match term:
            case Col(name) if name in self._kinds and not pat.is_nested(self._kinds[name]):
                return pc.field(name), self._kinds[name]
            case Call("sql.duckdb", (Lit(text), Col(name))) if name in self._documents:
                return _read_path(text.as_py(), name), pa.string()
        return None, None


def _join_with_or(filters: Sequence[pc.Expression | None]) -> pc.Expression | None:
    """Return the filter of records that pass one of some filters; None if one is None, or none is given."""
    known_filters = [filter for filter in filters if filter is not None]
    return reduce(or_, known_filters) if 0 < len(filters) == len(known_filters) <= TESTS_MAX else None


def _fit_literal(literal: pa.Scalar, kind: pa.DataType) -> pc.Expression | None:
    """Return a constant as a type of a column; None if it has no equal there, or is NaN."""
    is_alike = literal.type == kind or (is_compatible(kind, literal.type) and not pat.is_floating(kind))
    if not literal.is_valid or not is_alike or (pat.is_floating(kind) and math.isnan(literal.as_py())):
        return None
    try:
        return pc.scalar(literal.cast(kind))
    except pa.ArrowException:
        return None


def _read_path(text: str, column: str) -> pc.Expression | None:
    """Return the text of a value in documents, from a path expression of DuckDB; None for others."""
    steps: list[tuple[str, str | int]] = []
    while text != '"$1"':
        step = _STEP.fullmatch(text)
        if step is None or (step[1] in _TEXTS) == bool(steps):
            return None
        steps.insert(0, ("json_extract" if steps else "json_extract_string", step[3].replace("''", "'")))
        text = step[2]
    [(function, path), *remaining_steps] = join_paths(steps)
    return (
        None
        if remaining_steps or not has_simple_path(path)
        else make_document_expression(function, pc.field(column), path)
    )
