"""The plan that refreshes of a view run, stored with the definition, so that a refresh need not rewrite and lower it.

    program = { form, library, functions, rows, scopes, nodes, digest }

Fields:
    form       the version of this form. A plan of another form is made anew from the relation of the definition
    library    the release of `persist` that made the plan. The same holds for a plan of another release
    digest     of the other fields and of the relation and the columns of the definition, BLAKE2b, 8 bytes in hex. The
               same holds for a plan that does not have it: somebody has edited the definition
    functions  the functions of Python that it calls: name and version
    rows       the binary logarithm of the rows of each collection whose size determines the order of joins
    scopes     of recursions: number, parent, name, limit, depth
    nodes      each after its inputs, except for feedback: number, operator, inputs, columns, scope. The last node is
               the answer, with the columns of the view

    operator, stage, term    {"name of its class": [its fields, without those at the end that are defaults]}
    type of a value          {"type": type}                    as `persist.compute.sql.types` spells it
    constant                 {"constant": [type, text]}        the text is null for NULL
    constant list            {"list": [type, [text, …]]}       that is not NULL
    column names and types   {"columns": [[name, type], …]}
    records of a constant    {"records": [columns, [text, …] of each column]}
    tuples are lists; texts, numbers and booleans stand for themselves

The classes are in `persist.compute.dataflow.plan` and `persist.core.expression.term`. A source has the name
from the definition. It has only the columns that the plan reads.

The relation of the definition is what the view means, and the plan only a way to compute it. Both are in one record, so
neither is ever older than the other. Raise FORM whenever one of the classes changes, or earlier plans are wrong.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from hashlib import blake2b
from math import frexp
from typing import Any

import msgspec
import pyarrow as pa

from persist import __version__
from persist.compute.dataflow.plan import plan as operators
from persist.compute.dataflow.plan import stages
from persist.compute.dataflow.plan.optimise import Statistics
from persist.compute.dataflow.plan.plan import ROOT, Node, Plan, ScopeInfo
from persist.compute.sql.order import ROWS
from persist.compute.sql.types import format_scalar, name_arrow_type, parse_constant, to_array, to_arrow
from persist.core.errors import InvalidUsage
from persist.core.expression import term as terms

FORM = 3
GROWTH_MAX = 3  # A collection of eight times as many rows, or as few, may want another order of joins.
_CLASSES: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        *(operators.Source, operators.Constant, operators.Linear, operators.Concat, operators.Consolidate),
        *(operators.Join, operators.Reduce, operators.Enter, operators.Leave, operators.Variable),
        *(operators.Distinct, operators.Threshold, operators.Clamped, operators.Aggregates, operators.TopK),
        *(operators.Windowed, operators.Folded, operators.WindowFunction),
        *(stages.Map, stages.Filter, stages.Negate, stages.Explode, stages.Unnest, stages.TemporalFilter),
        *(terms.Col, terms.Lit, terms.Call),
    )
}
_PLAIN = (str, int, bool, float, type(None))


class _Unstorable(Exception):
    """A plan has a value that the stored form cannot express."""


class StoredPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The optimised plan of a view's refreshes, as stored."""

    form: int
    library: str
    functions: tuple[tuple[str, str], ...]
    rows: dict[str, int]
    scopes: tuple[tuple[int, int, str, int, int], ...]
    nodes: tuple[tuple[int, Any, tuple[int, ...], Any, int], ...]
    digest: str = ""

    def plan(self) -> Plan:
        """Return the plan; its answer is the last node."""
        nodes = {
            number: Node(number, _decode_value(operator), inputs, _decode_value(columns), scope)
            for number, operator, inputs, columns, scope in self.nodes
        }
        plan = Plan("view", 1, nodes)
        plan.scopes.update({info[0]: ScopeInfo(*info) for info in self.scopes})
        return plan

    def fits(self, statistics: Mapping[str, Statistics]) -> bool:
        """Return whether the sizes that ordered its joins are still about the same."""
        return all(abs(_measure(statistics.get(name)) - rows) <= GROWTH_MAX for name, rows in self.rows.items())


def encode_plan(
    plan: Plan, functions: tuple[tuple[str, str], ...], known: Mapping[str, Statistics | None]
) -> dict[str, Any] | None:
    """Return an optimised plan as it is stored; None if the form cannot express it.

    Args:
        plan: the answer is its last node.
        functions: of Python that it calls.
        known: statistics of the collections whose sizes determine the order of its joins.
    """
    try:
        nodes = tuple(
            (node.number, _encode_value(node.operator), node.inputs, _encode_value(node.schema), node.scope)
            for node in plan.nodes.values()
        )
    except _Unstorable:
        return None
    scopes = tuple(
        (info.number, info.parent, info.name, info.limit, info.depth)
        for info in plan.scopes.values()
        if info.number != ROOT
    )
    rows = {name: _measure(statistics) for name, statistics in known.items()}
    stored: dict[str, Any] = msgspec.to_builtins(StoredPlan(FORM, __version__, functions, rows, scopes, nodes))
    return stored


def compute_digest(definition: Mapping[str, Any]) -> str:
    """Return a digest of the stored definition that the plan belongs to."""
    program = {**definition["program"], "digest": ""}
    members = (program, definition["plan"], definition["columns"])
    return blake2b(msgspec.json.encode(members, order="sorted"), digest_size=8).hexdigest()


def read_plan(stored: dict[str, Any] | None) -> StoredPlan | None:
    """Return a stored plan; None if another version stored it, or none."""
    if stored is None or stored.get("form") != FORM or stored.get("library") != __version__:
        return None
    return msgspec.convert(stored, StoredPlan)


def _measure(statistics: Statistics | None) -> int:
    """Return the binary logarithm of a collection's rows, as a whole number."""
    return frexp(max(ROWS, 0.0 if statistics is None else statistics.rows))[1]


def _encode_value(value: Any) -> Any:
    """Return a part of a plan as JSON."""
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, tuple):
        return [*map(_encode_value, value)]
    if isinstance(value, pa.DataType):
        return {"type": _spell_type(value)}
    if isinstance(value, pa.ListScalar) and value.is_valid:
        stored = {"list": [_spell_type(value.type), [*map(_format_constant, value.values)]]}
        if terms.Lit(_decode_value(stored)) == terms.Lit(value):
            return stored
        raise _Unstorable
    if isinstance(value, pa.Scalar):
        return {"constant": [_spell_type(value.type), _format_constant(value)]}
    if isinstance(value, pa.Schema):
        return {"columns": [[field.name, _spell_type(field.type)] for field in value]}
    if isinstance(value, pa.Table):
        return {
            "records": [_encode_value(value.schema), [[*map(_format_constant, column)] for column in value.columns]]
        }
    if is_dataclass(value) and _CLASSES.get(type(value).__name__) is type(value):
        encoded = [getattr(value, field.name) for field in fields(value)]
        for field in reversed(fields(value)):
            if field.default is MISSING or encoded[-1] != field.default:
                break
            encoded.pop()
        return {type(value).__name__: [*map(_encode_value, encoded)]}
    raise _Unstorable


def _spell_type(kind: pa.DataType) -> str:
    """Return the name of a type. Raises _Unstorable if it has none."""
    with suppress(StopIteration):
        name = name_arrow_type(kind)
        if to_arrow(name) == kind:
            return name
    raise _Unstorable


def _format_constant(value: pa.Scalar) -> str | None:
    """Return a constant as text; raise `_Unstorable` if it has none."""
    kind = _spell_type(value.type)
    with suppress(pa.ArrowException, InvalidUsage, ValueError, TypeError, ArithmeticError):
        text = format_scalar(value)
        if parse_constant(kind, text) == terms.Lit(value):
            return text
    raise _Unstorable


def _decode_value(value: Any) -> Any:
    """Return the part of a plan that JSON describes."""
    if isinstance(value, _PLAIN):
        return value
    payload: Any
    kind, payload = (None, value) if isinstance(value, list) else next(iter(value.items()))
    if kind is None or kind in _CLASSES:
        decoded = []
        for item in payload:  # A call for each would cost more than the rest.
            decoded.append(item if isinstance(item, _PLAIN) else _decode_value(item))
        return tuple(decoded) if kind is None else _CLASSES[kind](*decoded)
    if kind == "type":
        return to_arrow(payload)
    if kind == "constant":
        return parse_constant(*payload).value
    if kind == "list":
        kind, texts = to_arrow(payload[0]), payload[1]
        return pa.ListArray.from_arrays([0, len(texts)], _decode_column(kind.value_type, texts), kind)[0]
    if kind == "columns":
        return pa.schema([(name, to_arrow(type_)) for name, type_ in payload])
    assert kind == "records"
    schema: pa.Schema = _decode_value(payload[0])
    return pa.table(
        [_decode_column(field.type, texts) for field, texts in zip(schema, payload[1], strict=True)], schema
    )


def _decode_column(kind: pa.DataType, texts: Sequence[str | None]) -> pa.Array:
    """Return a column of constants from their stored texts."""
    return to_array([parse_constant(name_arrow_type(kind), text) for text in texts], kind)
