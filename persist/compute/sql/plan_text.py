"""Writes the nodes of a plan as DuckDB's SQL, for contents at one time; `persist.compute.sql.first_build` runs it.

The SQL of a node means exactly what our operators compute. Nodes that order records, read times, or call functions that
DuckDB may compute differently have no SQL. If the SQL raises, our operators do the work. A record of multiplicity 2 is
two rows.

- **Sums of floats are exact**, whatever their order. Each value is the sum of a multiple of 2**-8, one of 2**-36 and
  one of 2**-64, each cut off by adding and subtracting a large number. The sums of each kind need no rounding, and two
  exact additions round once. A value that is too large or too fine raises. (Demmel and Nguyen, Fast Reproducible
  Floating-Point Summation, 2013.)
- **Means** are quotients of two whole numbers below 2**53, so DuckDB rounds once; otherwise they raise.
- **Floats** have no -0.0 in our operators, so 0.0 is added wherever a float is read or computed.
- **A difference** whose subtracted records are those with some keys is an anti join. Other negated records have a
  column of weights, which the next join or reduction sums up.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

import pyarrow as pa
import pyarrow.types as pat

from persist.compute.dataflow.operators.aggregates import find_result_type
from persist.compute.dataflow.plan import plan as plans
from persist.compute.dataflow.plan.stages import Filter, Map, Negate
from persist.compute.query import quote_name, quote_text
from persist.compute.sql.types import name_arrow_type, to_duckdb
from persist.core.expression.sql_functions import fill_in_columns
from persist.core.expression.sql_numbers import LIMB, can_cast
from persist.core.expression.term import SQL, Call, Col, Lit, Term

WEIGHT = quote_name(" weight")
EXACT = 1 << 53  # Whole numbers up to this one are exact as floats.
_DIGITS = (8, 36, 64)  # Behind the binary point of the three parts of a float.
_COUNT_MAX = 1 << 26  # So many lower parts have an exact sum.
_SIGNS = {
    "equal": "=", "not_equal": "<>", "less": "<", "less_equal": "<=", "greater": ">", "greater_equal": ">=",
    "distinct_from": "IS DISTINCT FROM", "not_distinct_from": "IS NOT DISTINCT FROM", "and": "AND", "or": "OR",
    "like": "LIKE", "not_like": "NOT LIKE",
}  # fmt: skip
_PATTERNS = {"prefix": "starts_with", "suffix": "ends_with", "contains": "contains"}
_FUNCTIONS = ("coalesce", "nullif", "year", "quarter", "month", "day")
_NUMBERS = {"add": "+", "subtract": "-", "multiply": "*"}
_OF_PROGRAMS = ("and", "or", "not", "is_null")  # Functions that programs and queries share.
_OF_WHOLE_NUMBERS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
# Knuth's exact addition, twice: the sum is h + g, rounded once, if nothing is lost.
_SUM = (
    ("h", "s0 + s1"), ("b", "h - s0"), ("e", "(s0 - (h - b)) + (s1 - b)"),
    ("g", "e + s2"), ("c", "g - e"), ("lost", "(e - (g - c)) + (s2 - c)"), ("sum", "h + g"), ("sure", "lost = 0"),
)  # fmt: skip
# Dekker's division: q, and what it lacks, d. Either d is exact, or its error is too small to change how q + d rounds.
_MEAN = (
    *_SUM[:-1], ("t", "sum - h"), ("low", "(h - (sum - t)) + (g - t)"), ("q", "sum / n"), ("k", "134217729.0 * q"),
    ("u", "k - (k - q)"), ("r", "(sum - u * n) - (q - u) * n"), ("rest", "r + low"), ("x", "rest - r"),
    ("d", "rest / n"), ("mean", "q + d"), ("y", "134217729.0 * d"), ("slack", "d * 8.881784197001252e-16"),
    ("even", "(r - (rest - x)) + (low - x) = 0 AND y - (y - d) = d AND d * n = rest"),
    ("sure", "lost = 0 AND (even OR q + (d - slack) = q + (d + slack))"),
)  # fmt: skip
_ROUNDINGS = {"sum": _SUM, "mean": _MEAN}
_VARIABLE = re.compile(r"\b[a-z]\w*")


class Untranslatable(Exception):
    """A node has no SQL that surely means the same."""


@dataclass(frozen=True, slots=True)
class Relation:
    """The contents of a node, as SQL. `is_weighted`: the column WEIGHT has the multiplicity of each row."""

    text: str
    schema: pa.Schema
    is_weighted: bool = False

    @property
    def names(self) -> list[str]:
        """The names of the columns, quoted for SQL."""
        return [quote_name(name) for name in self.schema.names]


def is_plain(kind: pa.DataType) -> bool:
    """Return whether DuckDB has exactly the values of a type, in the same order."""
    if pat.is_integer(kind) or pat.is_decimal128(kind) or pat.is_boolean(kind) or pat.is_string(kind):
        return not pat.is_decimal128(kind) or kind.scale >= 0
    return pat.is_float32(kind) or pat.is_float64(kind) or kind in (pa.date32(), pa.timestamp("us"))


def check_columns(schema: pa.Schema) -> None:
    """Raise Untranslatable if DuckDB cannot represent the name or type of a column, or a name is reserved."""
    names = {name.casefold() for name in schema.names if not name.startswith(" ")}
    if len(names) < len(schema) or not all(map(is_plain, schema.types)):
        raise Untranslatable


def write_node(
    plan: plans.Plan, node: plans.Node, inputs: Sequence[Relation], relations: Mapping[int, Relation]
) -> Relation:
    """Return SQL for the contents of a node, from the SQL of its inputs and of earlier nodes."""
    check_columns(node.schema)
    relation = _write_operator(plan, node, inputs, relations)
    if relation.schema.names == node.schema.names:
        return relation
    return _select(relation, [*map(quote_name, node.schema.names)], node.schema)  # The others are not read.


def _write_operator(
    plan: plans.Plan, node: plans.Node, inputs: Sequence[Relation], relations: Mapping[int, Relation]
) -> Relation:
    """Return the SQL of a node, which may still have columns that no node reads."""
    match node.operator:
        case plans.Linear(stages):
            return _apply_stages(inputs[0], stages)
        case plans.Arrange() | plans.Consolidate():
            return inputs[0]
        case plans.Concat():
            return _find_anti_join(plan, node, relations) or _concatenate(inputs, node.schema)
        case plans.Join():
            return _join(node.operator, inputs)
        case plans.Reduce():
            return _reduce(node.operator, _apply_stages(inputs[0], node.operator.before))
    raise Untranslatable


def _select(relation: Relation, columns: Sequence[str], schema: pa.Schema, clauses: str = "") -> Relation:
    """Return a relation with other columns; its weights stay."""
    weight = [WEIGHT] if relation.is_weighted else []
    listed = ", ".join([*columns, *weight]) or "0 AS nothing"
    return replace(relation, text=f"SELECT {listed} FROM ({relation.text}) {clauses}", schema=schema)


def _apply_stages(relation: Relation, stages: plans.Stages) -> Relation:
    """Return a relation after linear stages. Raises Untranslatable for other stages."""
    for stage in stages:
        match stage:
            case Filter(condition):
                clause = f"WHERE {write_term(condition, relation.schema)[0]}"
                relation = _select(relation, relation.names, relation.schema, clause)
            case Map(outputs):
                written = [(name, *write_term(term, relation.schema)) for name, term in outputs]
                schema = pa.schema([(name, kind) for name, _, kind in written])
                check_columns(schema)
                columns = [
                    f"{text} + 0 AS {quote_name(name)}" if pat.is_floating(kind) else f"{text} AS {quote_name(name)}"
                    for name, text, kind in written
                ]
                relation = _select(relation, columns, schema)
            case Negate():
                weight = f"-{WEIGHT}" if relation.is_weighted else "-1"
                listed = ", ".join([*relation.names, f"{weight} AS {WEIGHT}"])
                relation = Relation(f"SELECT {listed} FROM ({relation.text})", relation.schema, True)
            case _:
                raise Untranslatable
    return relation


def _concatenate(inputs: Sequence[Relation], schema: pa.Schema) -> Relation:
    """Return UNION ALL of relations, with weights if one has them."""
    is_weighted = any(relation.is_weighted for relation in inputs)
    texts = []
    for relation in inputs:
        weight = [] if not is_weighted else [WEIGHT] if relation.is_weighted else [f"1 AS {WEIGHT}"]
        names = map(quote_name, schema.names)
        texts.append(f"SELECT {', '.join([*names, *weight]) or '0 AS nothing'} FROM ({relation.text})")
    return Relation(" UNION ALL ".join(texts), schema, is_weighted)


def _find_anti_join(plan: plans.Plan, node: plans.Node, relations: Mapping[int, Relation]) -> Relation | None:
    """Return the anti join for a union that subtracts the records with some keys, or None."""
    if len(node.inputs) != 2:
        return None
    first, second = (plan.nodes[number] for number in node.inputs)
    join = second.operator
    if not isinstance(join, plans.Join) or second.inputs[:1] != (first.number,) or len(second.inputs) != 2:
        return None
    keys, distinct = join.on[0], plan.nodes[second.inputs[1]]
    reduce = distinct.operator
    is_distinct = isinstance(reduce, plans.Reduce) and isinstance(reduce.logic, plans.Distinct) and not reduce.after
    copies = [stage for stage in join.after if not isinstance(stage, Negate)]
    minuend = relations[first.number]
    if (
        not is_distinct
        or {right for _, right in keys} != {*distinct.schema.names}
        or any(join.before)
        or len(copies) != len(join.after) - 1
        or minuend.is_weighted
        or second.schema.names != first.schema.names
        or not all(
            isinstance(stage, Map) and all(isinstance(term, Col) and term.name == name for name, term in stage.outputs)
            for stage in copies
        )
    ):
        return None
    right = relations[distinct.number]
    condition = _match_keys([(f"l.{quote_name(a)}", f"r.{quote_name(b)}") for a, b in keys], join)
    columns = ", ".join(f"l.{name}" for name in minuend.names) or "0 AS nothing"
    return Relation(
        f"SELECT {columns} FROM ({minuend.text}) AS l ANTI JOIN ({right.text}) AS r ON {condition}", node.schema
    )


def _match_keys(pairs: Sequence[tuple[str, str]], join: plans.Join) -> str:
    """Return the SQL condition that the keys of a join are equal."""
    sign = "IS NOT DISTINCT FROM" if join.null_equals else "="
    return " AND ".join(f"{key} {sign} {partner}" for key, partner in pairs) or "true"


def _join(join: plans.Join, inputs: Sequence[Relation]) -> Relation:
    """Return the inner join of relations, with the stages before and after."""
    sides = [sum_weights(_apply_stages(relation, stages)) for relation, stages in zip(inputs, join.before, strict=True)]
    places = {name: f"t0.{quote_name(name)}" for name in sides[0].schema.names}
    fields = [*sides[0].schema]
    text = f"({sides[0].text}) AS t0"
    for number, (side, pairs) in enumerate(zip(sides[1:], join.on, strict=True), 1):
        keys = [(places[name], f"t{number}.{quote_name(right)}") for name, right in pairs]
        text += f" JOIN ({side.text}) AS t{number} ON {_match_keys(keys, join)}"
        named = {right for _, right in pairs}
        for column in side.schema:
            if column.name not in named:
                fields.append(column)
                places[column.name] = f"t{number}.{quote_name(column.name)}"
    schema = pa.schema(fields)
    check_columns(schema)
    columns = ", ".join(f"{places[name]} AS {quote_name(name)}" for name in schema.names) or "0 AS nothing"
    return _apply_stages(Relation(f"SELECT {columns} FROM {text}", schema), join.after)


def sum_weights(relation: Relation) -> Relation:
    """Return each row as often as the sum of its weights; a negative sum raises."""
    if not relation.is_weighted:
        return relation
    grouped = ", ".join(relation.names)
    summed = f"SELECT {', '.join([*relation.names, f'sum({WEIGHT}) AS {WEIGHT}'])} FROM ({relation.text})"
    summed += f" GROUP BY {grouped} HAVING sum({WEIGHT}) <> 0" if grouped else f" HAVING sum({WEIGHT}) <> 0"
    count = f"CASE WHEN {WEIGHT} < 0 THEN error('negative') ELSE CAST({WEIGHT} AS BIGINT) END"
    listed = ", ".join([*relation.names, f"unnest(range({count})) AS nothing"])
    columns = grouped or "nothing"
    return Relation(f"SELECT {columns} FROM (SELECT {listed} FROM ({summed}))", relation.schema)


def _reduce(reduce: plans.Reduce, relation: Relation) -> Relation:
    """Return a GROUP BY, or a DISTINCT, of a relation. Raises Untranslatable."""
    keys = [quote_name(name) for name in reduce.keys]
    fields = [relation.schema.field(name) for name in reduce.keys]
    if isinstance(reduce.logic, plans.Distinct) and keys:
        counted = f"HAVING sum({WEIGHT}) > 0" if relation.is_weighted else ""
        text = f"SELECT {', '.join(keys)} FROM ({relation.text}) GROUP BY {', '.join(keys)} {counted}"
        return _apply_stages(Relation(text, pa.schema(fields)), reduce.after)
    if not isinstance(reduce.logic, plans.Aggregates):
        raise Untranslatable
    relation = sum_weights(relation)
    columns, text, floats = [], relation.text, list[tuple[int, str]]()
    for at, (name, kind, of) in enumerate(reduce.logic.outputs):
        of_type, column = relation.schema.field(of).type, quote_name(of)
        fields.append(pa.field(name, find_result_type(kind, of_type, name)))
        if kind in _ROUNDINGS and pat.is_floating(of_type):
            text = _split_floats(text, column, at)
            columns += _sum_parts(column, at)
            floats.append((at, kind))
        else:
            columns.append(f"{_write_aggregate(kind, column, of_type, fields[-1].type)} AS {quote_name(name)}")
    schema = pa.schema(fields)
    check_columns(schema)
    group = f"GROUP BY {', '.join(keys)}" if keys else "HAVING count(*) > 0"
    text = f"SELECT {', '.join([*keys, *columns])} FROM ({text}) {group}"
    for at, kind in floats:
        text = _round_floats(text, at, kind, quote_name(reduce.logic.outputs[at][0]))
    if reduce.logic.is_complete:
        condition = " OR ".join(f"{quote_name(name)} <> 0" for name, *_ in reduce.logic.outputs)
        text = f"SELECT * FROM ({text}) WHERE {condition}"
    relation = Relation(text, schema)
    return _apply_stages(_select(relation, relation.names, schema) if floats else relation, reduce.after)


def _write_aggregate(kind: str, column: str, of_type: pa.DataType, result: pa.DataType) -> str:
    """Return SQL for an exact aggregate. Raises Untranslatable for others."""
    scale = of_type.scale if pat.is_decimal(of_type) else 0
    is_whole = pat.is_integer(of_type) or pat.is_decimal(of_type)
    match kind:
        case "count":
            return f"count({column})"
        case "min" | "max":
            return f"{kind}({column})"
        case "sum" | "wide_sum" if is_whole:
            return _cast(f"sum({column})", result)
        case "total" if is_whole:
            return _cast(f"coalesce(sum({column}), 0)", result)
        case "mean" if is_whole:
            total = _take_digits(_cast(f"sum({column})", pa.decimal128(38, scale)), scale)
            return _divide_exactly(total, f"count({column}) * {10**scale}::HUGEINT", f"count({column}) = 0")
    raise Untranslatable


def _split_floats(text: str, column: str, at: int) -> str:
    """Return a relation with each finite float split into three parts and a rest."""
    finite = f"CASE WHEN isfinite({column}) THEN CAST({column} AS DOUBLE) ELSE 0.0 END"
    text = f'SELECT *, {finite} AS " rest {at} 0" FROM ({text})'
    for number, digits in enumerate(_DIGITS):
        large = f"CAST({1.5 * 2.0 ** (52 - digits)!r} AS DOUBLE)"
        text = f'SELECT *, (" rest {at} {number}" + {large}) - {large} AS " part {at} {number}" FROM ({text})'
        remainder = f'" rest {at} {number}" - " part {at} {number}" AS " rest {at} {number + 1}"'
        text = f"SELECT *, {remainder} FROM ({text})"
    return text


def _sum_parts(column: str, at: int) -> list[str]:
    """Return SQL for the sums of parts of floats, their count, and whether these are exact."""
    is_exact = (
        f'count(*) < {_COUNT_MAX} AND count(*) * max(abs(" rest {at} 0")) < {float(EXACT >> _DIGITS[0])!r}'
        f' AND bool_and(" rest {at} {len(_DIGITS)}" = 0)'
    )
    sums = [f'sum(" part {at} {number}") AS " s{number} {at}"' for number in range(len(_DIGITS))]
    special = f'sum(CAST({column} AS DOUBLE)) FILTER (NOT isfinite({column})) AS " special {at}"'
    return [*sums, special, f'count({column}) AS " n {at}"', f'{is_exact} AS " exact {at}"']


def _round_floats(text: str, at: int, kind: str, name: str) -> str:
    """Return a relation with the sum or the mean of floats, from the sums of their parts."""
    for variable, formula in _ROUNDINGS[kind]:
        formula = _VARIABLE.sub(lambda match: f'" {match[0]} {at}"', formula)
        text = f'SELECT *, {formula} AS " {variable} {at}" FROM ({text})'
    cases = [
        (f'" n {at}" = 0', "NULL"),
        (f'" special {at}" IS NOT NULL', f'" special {at}"'),
        (f'" exact {at}" AND " sure {at}"', f'" {kind} {at}" + 0.0'),
    ]
    result = " ".join(f"WHEN {condition} THEN {value}" for condition, value in cases)
    return f"SELECT *, CASE {result} ELSE error('inexact') END AS {name} FROM ({text})"


def _take_digits(text: str, scale: int) -> str:
    """Return SQL for a decimal as a whole number of its last digit."""
    return f"CAST({text} * CAST({10**scale} AS DECIMAL({scale + 1},0)) AS HUGEINT)"


def _divide_exactly(total: str, count: str, is_null: str) -> str:
    """Return SQL for a quotient of whole numbers, rounded once; it raises if inexact."""
    is_exact = f"abs({total}) <= {EXACT} AND {count} <= {EXACT}"
    quotient = f"CAST({total} AS DOUBLE) / CAST({count} AS DOUBLE)"
    return f"CASE WHEN {is_null} THEN NULL WHEN {is_exact} THEN {quotient} ELSE error('inexact') END"


def _cast(text: str, kind: pa.DataType) -> str:
    """Return the SQL of a cast to an Arrow type."""
    return f"CAST({text} AS {to_duckdb(name_arrow_type(kind))})"


def write_column(name: str, kind: pa.DataType) -> str:
    """Return SQL for a column, without -0.0 and with one NaN."""
    text = quote_name(name)
    if not pat.is_floating(kind):
        return text
    canonical = f"CASE WHEN isnan({text}) THEN 'nan' ELSE {text} + 0.0 END"
    return f"{_cast(canonical, kind)} AS {text}"


def write_term(term: Term, schema: pa.Schema) -> tuple[str, pa.DataType]:
    """Return SQL for an expression over columns, and its type."""
    match term:
        case Col(name) if name in schema.names:
            return quote_name(name), schema.field(name).type
        case Lit(value) if is_plain(value.type):
            text = "NULL" if not value.is_valid else quote_text(value.cast(pa.string()).as_py())
            return _cast(text, value.type), value.type
        case Call("sql.duckdb", (Lit(text), *columns), (kind,)):
            pairs = [write_term(column, schema) for column in columns]
            if is_plain(kind) and all(is_plain(of) for _, of in pairs):
                return _cast(fill_in_columns(text.as_py(), [f"({column})" for column, _ in pairs]), kind), kind
        case Call(function, arguments, options):
            kind = options[0] if function.startswith(SQL) else pa.bool_()
            texts, kinds = zip(*(write_term(argument, schema) for argument in arguments), strict=True)
            is_same = function in _OF_PROGRAMS or (function in _OF_WHOLE_NUMBERS and all(map(pat.is_integer, kinds)))
            if (function.startswith(SQL) or is_same) and is_plain(kind) and all(map(is_plain, kinds)):
                return f"({_write_call(function.removeprefix(SQL), texts, kinds, kind)})", kind
    raise Untranslatable


def _write_call(name: str, texts: Sequence[str], kinds: Sequence[pa.DataType], kind: pa.DataType) -> str:
    """Return SQL for a function's call. Raises Untranslatable."""
    if name in _SIGNS:
        return f" {_SIGNS[name]} ".join(texts)
    if name in _FUNCTIONS:
        return _cast(f"{name}({', '.join(texts)})", kind)
    is_number = not any(map(pat.is_temporal, [*kinds, kind])) and not any(map(pat.is_boolean, [*kinds, kind]))
    match name:
        case "add" | "subtract" | "multiply" if len(texts) == 2 and is_number and not any(map(pat.is_string, kinds)):
            if not pat.is_decimal(kind):
                texts = [_cast(text, kind) for text in texts]
            return _cast(f" {_NUMBERS[name]} ".join(texts), kind)
        case "subtract" if len(texts) == 1 and pat.is_signed_integer(kind):
            return _cast(f"-{_cast(texts[0], kind)}", kind)
        case "divide" if kind == pa.float64():
            return " / ".join(_to_double(text, of) for text, of in zip(texts, kinds, strict=True))
        case "cast" if kind == pa.float64() and is_number and not pat.is_string(kinds[0]):
            return _to_double(texts[0], kinds[0])
        case "cast" if kind == kinds[0] or (can_cast(kinds[0], kind) and not pat.is_floating(kind)):
            return _cast(texts[0], kind)
        case "prefix" | "suffix" | "contains":
            return f"{_PATTERNS[name]}({', '.join(texts)})"
        case "in" | "not_in":
            return f"{texts[0]} {'NOT ' if name == 'not_in' else ''}IN ({', '.join(texts[1:])})"
        case "not":
            return f"NOT {texts[0]}"
        case "is_null" | "is_not_null":
            return f"{texts[0]} IS {'NOT ' if name == 'is_not_null' else ''}NULL"
        case "case":
            whens = " ".join(f"WHEN {a} THEN {b}" for a, b in zip(texts[:-1:2], texts[1:-1:2], strict=True))
            return _cast(f"CASE {whens} ELSE {texts[-1]} END", kind)
        case "lower_limb" | "upper_limb" if pat.is_decimal(kinds[0]):
            digits, limb = _take_digits(texts[0], kinds[0].scale), f"{1 << LIMB}::HUGEINT"
            lower = f"({digits} & ({limb} - 1))"
            return _cast(lower if name == "lower_limb" else f"(({digits} - {lower}) // {limb})", pa.int64())
        case "joined_limbs":
            last_digit = _cast(
                quote_text(f"{Decimal(1).scaleb(-kind.scale):f}"), pa.decimal128(kind.scale + 1, kind.scale)
            )
            return _cast(f"{_cast(_join_limbs(texts), pa.decimal128(38, 0))} * {last_digit}", kind)
        case "mean_of_limbs":
            count = f"CAST({texts[2]} AS HUGEINT) * CAST(10 ** {texts[3]} AS HUGEINT)"
            return _divide_exactly(f"({_join_limbs(texts)})", f"({count})", f"{texts[0]} IS NULL OR {texts[2]} = 0")
    raise Untranslatable


def _join_limbs(texts: Sequence[str]) -> str:
    """Return the SQL of an integer sum, from its lower and its upper part."""
    return f"CAST({texts[0]} AS HUGEINT) + CAST({texts[1]} AS HUGEINT) * {1 << LIMB}::HUGEINT"


def _to_double(text: str, of: pa.DataType) -> str:
    """Return SQL for a number as a float, rounded once."""
    if not pat.is_decimal(of) or of.precision <= 15:
        return f"CAST({text} AS DOUBLE)"
    few = _cast(quote_text(f"{Decimal(10**15 - 1).scaleb(-of.scale):f}"), pa.decimal128(38, of.scale))
    by_text = f"CAST(CAST({text} AS VARCHAR) AS DOUBLE)"
    return f"CASE WHEN abs({text}) <= {few} THEN CAST({text} AS DOUBLE) ELSE {by_text} END"
