"""GROUP BY: aggregates with FILTER and DISTINCT, grouping sets, and the one row of a query without keys.

A change of sums costs the changed records; a change of minima and maxima costs the group. An aggregate that returns a
value of one record picks the first record in an order (`PICKED`); an aggregate that needs all records is a fold
(`FOLDED`). An aggregate over distinct values reads a distinct collection. Their results are joined by the key, where
NULL equals NULL. A query without keys returns one row even for no rows: an added row of NULLs, which no aggregate
counts, keeps its group.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.types as pat

from persist.compute.dataflow.plan.plan import WindowFunction
from persist.compute.dataflow.program import Program
from persist.compute.dataflow.stream import Stream
from persist.compute.sql.algebra import Aggregate, Aggregation
from persist.compute.sql.rows import Rows, choose_free_name, make_null, select_terms
from persist.compute.sql.types import to_arrow
from persist.core.expression.evaluation import infer_type
from persist.core.expression.term import Aggregate as Summary
from persist.core.expression.term import Col, Lit, Term, make_sql_call

_COMPUTED = re.compile(r"[vow]\d|there$|is_out$")  # Names of computed columns in this module.


def lower_aggregate(node: Aggregate, rows: Rows, program: Program) -> Rows:
    """Return a row for each group of each grouping set."""
    node = msgspec.structs.replace(node, aggregates=tuple(map(_replace_count_if, node.aggregates)))
    keys = dict[str, Term]()
    for at, key in enumerate(map(rows.to_stream_term, node.keys)):
        is_free = isinstance(key, Col) and key.name not in keys and not _COMPUTED.match(key.name)
        keys[key.name if isinstance(key, Col) and is_free else choose_free_name(f"k{at}", (*keys, *rows.columns))] = key
    kinds = {name: infer_type(key, rows.stream.schema, "map") for name, key in keys.items()}
    values = dict[str, Term]()
    for at, aggregation in enumerate(node.aggregates):
        if is_folded(aggregation) or is_picked(aggregation):
            values |= _list_columns(aggregation, at, rows)
        else:
            values[f"v{at}"] = _filter_value(aggregation, rows)
    stream = select_terms(rows.stream, {**keys, **values, "there": Lit(pa.scalar(True))})
    union: Rows | None = None
    for grouping_set in node.sets:
        grouped = _aggregate_one_set(node, stream, [[*keys][at] for at in grouping_set], kinds, program)
        if union is not None:
            first = union.to_stream()
            grouped = Rows.of(first + grouped.to_stream(first.columns))
        union = grouped
    assert union is not None
    return union


def is_picked(aggregation: Aggregation) -> bool:
    """Return whether an aggregate is a value of its group's first record in an order."""
    return aggregation.function in ("arg_min", "arg_max") or bool(aggregation.order and aggregation.function in PICKED)


def is_folded(aggregation: Aggregation) -> bool:
    """Return whether an aggregate needs all records of a group together."""
    return aggregation.function in FOLDED


def _list_columns(aggregation: Aggregation, at: int, rows: Rows) -> dict[str, Term]:
    """Return the columns of an aggregate: its arguments, its order, and its FILTER."""
    arguments, _ = split_arguments(aggregation.function, aggregation.arguments)
    columns = {f"v{at}_{number}": rows.to_stream_term(argument) for number, argument in enumerate(arguments)}
    columns |= {f"o{at}_{number}": rows.to_stream_term(key.by) for number, key in enumerate(aggregation.order)}
    return columns if aggregation.where is None else columns | {f"w{at}": rows.to_stream_term(aggregation.where)}


def split_arguments(function: str, arguments: Sequence[Term]) -> tuple[Sequence[Term], tuple[Any, ...]]:
    """Return the columns among a fold's arguments, and the constants."""
    if function == "string_agg":
        [value, separator] = arguments
        return [value], (_read_constant(separator),)
    if function == "quantile":
        value, *constants = arguments
        return [value], tuple(map(_read_constant, constants))
    return arguments, ()


def _read_constant(term: Term) -> Any:
    """Return a constant's value; a decimal as numerator and denominator."""
    assert isinstance(term, Lit)
    value = term.value.as_py()
    return value.as_integer_ratio() if isinstance(value, Decimal) else value


def build_fold(
    function: str, name: str, result: pa.DataType, constants: tuple[Any, ...], kinds: Sequence[pa.DataType]
) -> WindowFunction:
    """Return a fold with its constants in the form that `operators.folds` reads."""
    if function == "quantile":
        is_between, down, *shares = constants
        is_list = pat.is_list(result) and (is_between or result != kinds[0])
        constants = (is_between, is_list, down, *shares)
    return WindowFunction(name, function, result, constants=constants)


def _replace_count_if(aggregation: Aggregation) -> Aggregation:
    """Return count_if as DuckDB defines it: a sum of 1 and 0, which is NULL without either."""
    return msgspec.structs.replace(aggregation, function="sum") if aggregation.function == "count_if" else aggregation


def _filter_value(aggregation: Aggregation, rows: Rows) -> Term:
    """Return an aggregate's argument, which is NULL where its FILTER is false."""
    value = rows.to_stream_term(aggregation.arguments[0]) if aggregation.arguments else Lit(pa.scalar(True))
    if aggregation.function in ("sum", "avg"):
        value = to_summable(value, rows.stream.schema, aggregation.function)
    return (
        value
        if aggregation.where is None
        else keep_if(rows.to_stream_term(aggregation.where), value, rows.stream.schema)
    )


def to_summable(value: Term, schema: pa.Schema, function: str) -> Term:
    """Convert a value to a type that can be summed."""
    kind = infer_type(value, schema, "map")
    if pat.is_boolean(kind) or pat.is_uint64(kind):
        return make_sql_call("cast", pa.int8() if pat.is_boolean(kind) else pa.decimal128(20, 0), value)
    if function == "sum" and pat.is_float32(kind):
        return make_sql_call("cast", pa.float64(), value)
    return value


def keep_if(condition: Term, value: Term, schema: pa.Schema) -> Term:
    """Return a value where a condition holds, and NULL elsewhere."""
    kind = infer_type(value, schema, "map")
    return make_sql_call("case", kind, condition, value, make_null(kind))


def _aggregate_one_set(
    node: Aggregate, stream: Stream, keys: list[str], kinds: dict[str, pa.DataType], program: Program
) -> Rows:
    """Return the rows of one grouping set."""
    groups = _aggregate_groups(node, stream if keys else stream + _make_null_row(stream, program), keys)
    outputs: list[Term] = [Col(name) if name in keys else make_null(kind) for name, kind in kinds.items()]
    for at, aggregation in enumerate(node.aggregates):
        kind, value = to_arrow(aggregation.type), Col(f"v{at}")
        outputs.append(value if groups.schema.field(value.name).type == kind else make_sql_call("cast", kind, value))
    for numbers in node.groupings:
        bits = 0
        for at in numbers:
            bits = 2 * bits + ([*kinds][at] not in keys)
        outputs.append(Lit(pa.scalar(bits, pa.int64())))
    return Rows.of(groups).compute(outputs)


def _make_null_row(rows: Stream, program: Program) -> Stream:
    """Return a row of NULLs."""
    return program.constant(pa.table({field.name: pa.nulls(1, field.type) for field in rows.schema}))


def _aggregate_groups(node: Aggregate, rows: Stream, keys: list[str]) -> Stream:
    """Return a row per key, by the operator that each aggregate needs."""
    plain, folded, apart = dict[str, Aggregation](), dict[str, Aggregation](), list[Stream]()
    for at, aggregation in enumerate(node.aggregates):
        name = f"v{at}"
        if is_picked(aggregation):
            apart.append(_pick_first(name, aggregation, rows, keys))
        elif is_folded(aggregation):
            folded[name] = aggregation
        elif _is_distinct(aggregation):
            # A group of which no value is left must not be lost: NULLs stay, and count for nothing.
            apart.append(
                _accumulate_groups({name: aggregation}, rows.project(*keys, name).distinct(), keys, is_global=True)
            )
        else:
            plain[name] = aggregation
    if node.complete:
        return _accumulate_completely(plain, rows, keys)
    parts = [_accumulate_groups(plain, rows, keys, is_global=not keys)] if plain else []
    parts += [_fold_groups(folded, rows, keys)] if folded else []
    parts += apart
    if not parts:
        return rows.project(*keys).distinct()
    groups, *joined_parts = parts
    for part in joined_parts:
        groups = groups.join(part, keys, null_equals=True) if keys else groups.cross(part)
    return groups


def _pick_first(name: str, aggregation: Aggregation, rows: Stream, keys: list[str]) -> Stream:
    """Return the value of each key's first record in an order; among ties, the least value."""
    number, function = name[1:], aggregation.function
    value, order = f"v{number}_0", [(f"o{number}_{at}", key) for at, key in enumerate(aggregation.order)]
    down = [key.descending != (function == "last") for _, key in order]
    nulls = [by for by, key in order if key.nulls_first != (function == "last")]
    by, needed = [column for column, _ in order], list[str]()
    if function in ("arg_min", "arg_max"):
        extreme = f"v{number}_1"
        by, down, needed = [extreme, *by], [function == "arg_max", *down], [extreme]
    elif function == "any":
        needed = [value]
    # Records that do not count come last, and have no value: so a group of which none counts is not lost.
    conditions: list[Term] = [make_sql_call("is_null", pa.bool_(), Col(column)) for column in needed]
    if aggregation.where is not None or not keys:
        holds = Col("there" if aggregation.where is None else f"w{number}")
        conditions.append(make_sql_call("distinct_from", pa.bool_(), holds, Lit(pa.scalar(True))))
    if function in ("arg_min", "arg_max"):
        conditions.append(make_sql_call("is_null", pa.bool_(), Col(value)))
    columns: dict[str, Term] = {column: Col(column) for column in (*keys, *by)}
    kind = rows.schema.field(value).type
    if conditions:
        is_out = conditions[0] if len(conditions) == 1 else make_sql_call("or", pa.bool_(), *conditions)
        columns |= {"is_out": is_out, name: make_sql_call("case", kind, is_out, make_null(kind), Col(value))}
        by, down = ["is_out", *by], [False, *down]
    else:
        columns |= {name: Col(value)}
    first = select_terms(rows, columns).group_by(*keys)
    return first.top_k(1, by, descending=down, nulls_first=nulls).distinct().project(*keys, name)


def _fold_groups(aggregations: dict[str, Aggregation], rows: Stream, keys: list[str]) -> Stream:
    """Return a row per key with aggregates of its records in an order."""
    calls, needed = [], set[str]()
    for name, aggregation in aggregations.items():
        number = name[1:]
        columns, constants = split_arguments(aggregation.function, aggregation.arguments)
        arguments = tuple(f"v{number}_{at}" for at in range(len(columns)))
        within = tuple((f"o{number}_{at}", key.descending, key.nulls_first) for at, key in enumerate(aggregation.order))
        # The row of NULLs that keeps an empty group is not a row of the group; most folds skip NULLs.
        is_needed = not keys and aggregation.function == "list"
        where = f"w{number}" if aggregation.where is not None else "there" if is_needed else ""
        kinds = [rows.schema.field(argument).type for argument in arguments]
        call = build_fold(aggregation.function, name, to_arrow(aggregation.type), constants, kinds)
        call = replace(call, arguments=arguments, within=within, where=where, is_distinct=aggregation.distinct)
        calls.append(call)
        needed |= {*arguments, *(column for column, *_ in within), *([where] if where else [])}
    return rows.project(*keys, *sorted(needed)).group_by(*keys).fold(calls)


def _accumulate_groups(
    aggregations: dict[str, Aggregation], rows: Stream, keys: list[str], *, is_global: bool
) -> Stream:
    """Return a row per key with aggregates that are sums or extremes."""
    summaries = {
        name: _lower_one(name, aggregation, rows, is_global=is_global) for name, aggregation in aggregations.items()
    }
    return rows.group_by(*keys).aggregate(summaries)


def _accumulate_completely(aggregations: dict[str, Aggregation], rows: Stream, keys: list[str]) -> Stream:
    """Return a row per key with counts and totals that are the group's whole state. The added row of NULLs counts."""
    summaries = {
        name: Summary("count", Lit(pa.scalar(1)))
        if aggregation.function == "count_star" and aggregation.where is None
        else Summary("total" if aggregation.function == "total" else "count", Col(name))
        for name, aggregation in aggregations.items()
    }
    return rows.group_by(*keys).aggregate(summaries, is_complete=True)


def _is_distinct(aggregation: Aggregation) -> bool:
    """Return whether DISTINCT can change the result of an aggregate."""
    return aggregation.distinct and _SUMMARIES.get(aggregation.function, "min") not in ("min", "max")


FOLDED = frozenset(
    (
        *("bit_and", "bit_or", "bit_xor", "mode", "list", "string_agg", "histogram", "quantile", "mad"),
        *("skewness", "kurtosis", "kurtosis_pop", "covar_pop", "covar_samp", "corr", "regr_avgx", "regr_avgy"),
        *("regr_count", "regr_intercept", "regr_r2", "regr_slope", "regr_sxx", "regr_sxy", "regr_syy"),
    )
)
PICKED = ("first", "last", "any")  # Without an ORDER BY, these are the least or the greatest value.


def _lower_one(name: str, aggregation: Aggregation, rows: Stream, *, is_global: bool) -> Summary:
    """Return the dataflow aggregate that computes one SQL aggregate."""
    value, function = Col(name), aggregation.function
    if function == "count_star" and aggregation.where is None:
        return Summary("count", Col("there") if is_global else Lit(pa.scalar(1)))
    if function == "sum" and pat.is_integer(rows.schema.field(name).type):
        return Summary("wide_sum", value)
    return Summary(_SUMMARIES.get(function, "min"), value)


_SUMMARIES = {
    **dict.fromkeys(("count_star", "count"), "count"),
    **dict.fromkeys(("max", "bool_or", "last"), "max"),
    "sum": "sum",
    "avg": "mean",
    **{name: name for name in ("stddev_samp", "stddev_pop", "var_samp", "var_pop", "sem")},
}
