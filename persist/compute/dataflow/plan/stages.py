"""The linear operators, as data: what each does to one record at a time, whatever the others are.

Every linear operator is a stage of a `Linear` node, and stages that follow each other are fused: the optimiser
concatenates their lists. A stage knows its columns and how to print itself; `persist.compute.dataflow.operators.linear`
runs it.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from persist.blob.errors import InvalidUsage
from persist.codecs.errors import SchemaMismatch
from persist.codecs.types.arrow_types import check_type
from persist.codecs.types.schema import TIME
from persist.core.expression.evaluation import infer_type
from persist.core.expression.term import Call, Col, Lit, Term


@dataclass(frozen=True, slots=True)
class Map:
    """Replace all columns by the results of expressions."""

    outputs: tuple[tuple[str, Term], ...]

    def derive_schema(self, input_schema: pa.Schema, operator: str) -> pa.Schema:
        return pa.schema([(name, infer_type(term, input_schema, operator)) for name, term in self.outputs])

    def __str__(self) -> str:
        return f"map({', '.join(_describe_assignment(name, term) for name, term in self.outputs)})"


@dataclass(frozen=True, slots=True)
class Filter:
    """Keep the records for which a condition is true."""

    condition: Term

    def derive_schema(self, input_schema: pa.Schema, operator: str) -> pa.Schema:
        kind = infer_type(self.condition, input_schema, operator)
        if not pat.is_boolean(kind):
            raise SchemaMismatch(f"{operator}: the condition {self.condition} is of type {kind}, and not boolean")
        return drop_time_column(input_schema)

    def __str__(self) -> str:
        return f"filter({self.condition})"


@dataclass(frozen=True, slots=True)
class FilterFunction:
    """Keep the records for which a Python function returns true."""

    function: Callable[[Any], Any]

    def derive_schema(self, input_schema: pa.Schema, operator: str) -> pa.Schema:
        return drop_time_column(input_schema)

    def __str__(self) -> str:
        return f"filter({describe_function(self.function)})"


@dataclass(frozen=True, slots=True)
class MapFunction:
    """Compute one record from each, by a Python function."""

    function: Callable[[Any], Any]
    columns: pa.Schema

    def derive_schema(self, input_schema: pa.Schema, operator: str) -> pa.Schema:
        return self.columns

    def __str__(self) -> str:
        return f"map({describe_function(self.function)})"


@dataclass(frozen=True, slots=True)
class BatchFunction:
    """Compute one record from each, by a function of record batches."""

    function: Callable[[pa.RecordBatch], Any]
    columns: pa.Schema

    def derive_schema(self, input_schema: pa.Schema, operator: str) -> pa.Schema:
        return self.columns

    def __str__(self) -> str:
        return f"map_batches({describe_function(self.function)})"


@dataclass(frozen=True, slots=True)
class FlatMap:
    """Compute any number of updates from each record, by a Python function.

    Attributes:
        gives: the function's results: "records", "diffs" (pairs of record and diff) or "updates" (triples of record,
            time and diff); times are joined with the time of the update, and diffs multiplied with its diff.
        dimensions: how many dimensions the program's times have.
    """

    function: Callable[[Any], Any]
    columns: pa.Schema
    gives: str = "records"
    dimensions: int = 1

    def derive_schema(self, input_schema: pa.Schema, operator: str) -> pa.Schema:
        return self.columns

    def __str__(self) -> str:
        kind = {"records": "flat_map", "diffs": "explode", "updates": "join_function"}[self.gives]
        return f"{kind}({describe_function(self.function)})"


@dataclass(frozen=True, slots=True)
class Negate:
    """Negate the diffs."""

    def derive_schema(self, input_schema: pa.Schema, operator: str) -> pa.Schema:
        return drop_time_column(input_schema)

    def __str__(self) -> str:
        return "negate()"


@dataclass(frozen=True, slots=True)
class Explode:
    """Multiply diffs by the value of an integer expression; NULL counts as 0."""

    by: Term

    def derive_schema(self, input_schema: pa.Schema, operator: str) -> pa.Schema:
        _check_integer("a multiplicity", self.by, input_schema, operator)
        return drop_time_column(input_schema)

    def __str__(self) -> str:
        return f"explode({self.by})"


@dataclass(frozen=True, slots=True)
class Unnest:
    """Repeat each record for each element of its lists, with a column for the elements of each list.

    Shorter lists are filled up with NULL. A record without elements is left out.
    """

    lists: tuple[tuple[str, Term], ...]

    def derive_schema(self, input_schema: pa.Schema, operator: str) -> pa.Schema:
        fields = list(drop_time_column(input_schema))
        for name, term in self.lists:
            kind = infer_type(term, input_schema, operator)
            if not (pat.is_list(kind) or pat.is_large_list(kind)):
                raise SchemaMismatch(f"{operator}: {term} is of type {kind}, and not a list")
            fields.append(pa.field(name, kind.value_type))
        return pa.schema(fields)

    def __str__(self) -> str:
        return f"unnest({', '.join(_describe_assignment(name, term) for name, term in self.lists)})"


@dataclass(frozen=True, slots=True)
class TemporalFilter:
    """Let each record exist at times of `[lower, upper)` only, in one dimension; never if a bound is NULL.

    A bound that is a column plus or minus a constant never fails: beyond int64, it is a time after or before all
    others.
    """

    lower: Term | None
    upper: Term | None
    dimension: int = 0

    def derive_schema(self, input_schema: pa.Schema, operator: str) -> pa.Schema:
        for bound in (self.lower, self.upper):
            if bound is not None:
                _check_integer("a bound", bound, input_schema, operator)
        return drop_time_column(input_schema)

    def __str__(self) -> str:
        return f"temporal_filter({self.lower}, {self.upper})"


def split_bound(bound: Term, kinds: Mapping[Any, pa.DataType]) -> tuple[str, int] | None:
    """Split a bound `column + constant` into both; None for other bounds."""
    match bound:
        case Col(name):
            by = 0
        case Call("add", (Col(name), Lit(value))) | Call("add", (Lit(value), Col(name))):
            by = value.as_py()
        case Call("subtract", (Col(name), Lit(value))):
            by = value.as_py()
            by = -by if isinstance(by, int) else by
        case _:
            return None
    is_signed = name in kinds and pat.is_signed_integer(kinds[name])
    return (name, by) if is_signed and isinstance(by, int) and abs(by) < 2**62 else None


@dataclass(frozen=True, slots=True)
class Delay:
    """Let each update come at the value of an expression, if that is later, in one dimension."""

    to: Term
    dimension: int = 0

    def derive_schema(self, input_schema: pa.Schema, operator: str) -> pa.Schema:
        _check_integer("a time", self.to, input_schema, operator)
        return drop_time_column(input_schema)

    def __str__(self) -> str:
        return f"delay({self.to})"


Stage = (
    Map
    | Filter
    | FilterFunction
    | MapFunction
    | BatchFunction
    | FlatMap
    | Negate
    | Explode
    | Unnest
    | TemporalFilter
    | Delay
)


def may_move_times(stages: Sequence[Stage]) -> bool:
    """Return whether stages may change the times of updates."""
    for stage in stages:
        if isinstance(stage, TemporalFilter | Delay) or (isinstance(stage, FlatMap) and stage.gives == "updates"):
            return True
    return False


def trace_columns(stages: Sequence[Stage], columns: Sequence[str], names: Sequence[str]) -> tuple[int | None, ...]:
    """Return for each result the input column that it copies, or None.

    Args:
        columns: the names before the stages.
        names: the names of the results.
    """
    places = dict(zip(columns, range(len(columns)), strict=True))
    for stage in stages:
        match stage:
            case Map(outputs):
                copies = [(name, term.name) for name, term in outputs if isinstance(term, Col)]
                places = {name: places[copied] for name, copied in copies if copied in places}
            case Unnest(lists):
                places = {name: at for name, at in places.items() if name not in dict(lists)}
            case MapFunction() | BatchFunction() | FlatMap():
                places = {}
    return tuple(map(places.get, names))


def derive_schema(stages: Sequence[Stage], schema: pa.Schema, operator: str, *, has_time: bool) -> pa.Schema:
    """Return the columns after some stages; each stage is checked. `has_time`: expressions may read `_time`."""
    for stage in stages:
        columns = schema.append(pa.field(TIME, pa.int64())) if has_time else schema
        schema = stage.derive_schema(columns, operator)
    return schema


def to_record_schema(columns: Any, operator: str) -> pa.Schema:
    """Return the declared columns of a function: a dict of names and types, or a schema."""
    pairs = list(columns.items()) if isinstance(columns, Mapping) else columns
    try:
        schema = pa.schema(pairs)
    except (TypeError, ValueError) as error:
        raise SchemaMismatch(
            f"{operator}: schema={columns!r} does not say which columns there are; give a dict of names and types"
        ) from error
    check_columns(schema, operator)
    return schema


def check_columns(schema: pa.Schema, operator: str) -> None:
    """Raise SchemaMismatch unless names are distinct, other than `_time` and `_diff`, and types are supported."""
    for field in schema:
        check_type(field.type, f"{operator}: column {field.name!r}")
        if field.name in (TIME, "_diff"):
            raise SchemaMismatch(f"{operator}: a column cannot be called {field.name!r}: choose another name")
    if len(set(schema.names)) < len(schema.names):
        raise SchemaMismatch(f"{operator}: the columns {schema.names} are not distinct; rename one of them")


def drop_time_column(schema: pa.Schema) -> pa.Schema:
    """Return a schema without `_time`."""
    at = schema.get_field_index(TIME)
    return schema if at < 0 else schema.remove(at)


def describe_function(function: Callable[..., Any]) -> str:
    """Return the name of a function for plans and messages."""
    return str(getattr(function, "__qualname__", None) or repr(function)).rsplit(".", 1)[-1]


def check_function(function: Any, operator: str) -> None:
    """Raise InvalidUsage if something cannot be called."""
    if not callable(function):
        raise InvalidUsage(f"{operator}: {function!r} is not a function")


class _ByIdentity:
    """A key that is equal for the same object only. It keeps the object alive, so that its address stays unique."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByIdentity) and self._value is other._value

    def __hash__(self) -> int:
        return id(self._value)


def make_stage_key(stage: Stage) -> Hashable:
    """Return a key that is equal for equal stages; functions are equal only to themselves."""
    if isinstance(stage, Map | Filter | Negate | Explode | Unnest | Delay):
        with suppress(TypeError):  # Some constants have no hash.
            hash(stage)
            return stage
    return _ByIdentity(stage)


def _check_integer(what: str, expression: Term, input_schema: pa.Schema, operator: str) -> None:
    """Raise SchemaMismatch unless an expression fits int64; `what` names it in the message."""
    kind = infer_type(expression, input_schema, operator)
    if not pat.is_integer(kind):
        raise SchemaMismatch(f"{operator}: {what} must be an integer, but {expression} is of type {kind}")
    if pat.is_uint64(kind):
        raise SchemaMismatch(f"{operator}: {what} must fit int64, but {expression} is of type {kind}: cast it to int64")


def _describe_assignment(name: str, expression: Term) -> str:
    """Return `name=expression`, or the name alone if it is that column."""
    text = str(expression)
    return text if text == name else f"{name}={text}"
