"""GROUP BY: aggregates with FILTER and DISTINCT, grouping sets, and the one row of a group of nothing.

Aggregates that are sums cost what a change touches; minima and maxima cost their group. `arg_min` and `arg_max` are the
first record of their group in an order, and joined to the others like what is distinct. An aggregate over distinct
values is one over a distinct collection, and is joined to the others by the key, where NULL equals NULL. A query
without keys has one row even of nothing: a row of NULLs, which counts for nothing, keeps its group there.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.types as pat

from persist.dataflow import Program, Stream
from persist.expression import Aggregate as Summary
from persist.expression import Col, Lit, Term, columns_of, sql_call, type_of
from persist.sql.algebra import Aggregate, Aggregation
from persist.sql.lower_join import lowered, null_of, numbered
from persist.sql.types import to_arrow

NARROW = 18  # Digits of a decimal that fit one word.


def aggregated(node: Aggregate, stream: Stream, program: Program) -> Stream:
    """Return a row for each group of each grouping set."""
    node = msgspec.structs.replace(node, aggregates=tuple(map(_without_count_if, node.aggregates)))
    keys: dict[str, Any] = {f"k{at}": lowered(key) for at, key in enumerate(node.keys)}
    kinds = {name: type_of(key, stream.schema, "map") for name, key in keys.items()}
    values: dict[str, Any] = {f"v{at}": _value(aggregation, stream) for at, aggregation in enumerate(node.aggregates)}
    values |= {
        f"o{at}": lowered(aggregation.arguments[1])
        for at, aggregation in enumerate(node.aggregates)
        if _is_picked(aggregation)
    }
    rows = stream.map(**keys, **values, there=True)
    union = None
    for grouping_set in node.sets:
        made = _one_set(node, rows, grouping_set, kinds, program)
        union = made if union is None else union + made
    assert union is not None
    return union


def _without_count_if(aggregation: Aggregation) -> Aggregation:
    """Return count_if as what it is in DuckDB: a sum of 1 and 0, which is NULL if there is none of either."""
    return msgspec.structs.replace(aggregation, function="sum") if aggregation.function == "count_if" else aggregation


def _value(aggregation: Aggregation, stream: Stream) -> Term:
    """Return what is aggregated: NULL where the condition of its FILTER does not hold."""
    value = lowered(aggregation.arguments[0]) if aggregation.arguments else Lit(pa.scalar(True))
    kind = type_of(value, stream.schema, "map")
    if aggregation.function in ("sum", "avg") and (pat.is_boolean(kind) or pat.is_uint64(kind)):
        kind = pa.int8() if pat.is_boolean(kind) else pa.decimal128(20, 0)
        value = sql_call("cast", kind, value)
    if aggregation.function == "sum" and pat.is_float32(kind):
        kind = pa.float64()
        value = sql_call("cast", kind, value)
    return value if aggregation.where is None else kept_where(aggregation.where, value, kind)


def kept_where(condition: Term, value: Term, kind: pa.DataType) -> Term:
    """Return a value of a stream, NULL where the condition of a FILTER does not hold."""
    return sql_call("case", kind, lowered(condition), value, null_of(kind))


def _one_set(
    node: Aggregate, rows: Stream, picked: Sequence[int], kinds: dict[str, pa.DataType], program: Program
) -> Stream:
    keys = [f"k{at}" for at in picked]
    if not keys:
        rows = rows + _nothing(rows, program)
    groups = _grouped(node, rows, keys)
    outputs: list[Term] = [Col(name) if name in keys else null_of(kind) for name, kind in kinds.items()]
    for at, aggregation in enumerate(node.aggregates):
        kind = to_arrow(aggregation.type)
        made = Col(f"v{at}")
        outputs.append(made if groups.schema.field(f"v{at}").type == kind else sql_call("cast", kind, made))
    for numbers in node.groupings:
        bits = 0
        for at in numbers:
            bits = 2 * bits + (at not in picked)
        outputs.append(Lit(pa.scalar(bits, pa.int64())))
    return numbered(groups, outputs)


def _nothing(rows: Stream, program: Program) -> Stream:
    """Return a row of NULLs."""
    return program.constant(pa.table({field.name: pa.nulls(1, field.type) for field in rows.schema}))


def _grouped(node: Aggregate, rows: Stream, keys: list[str]) -> Stream:
    apart = {
        f"v{at}": aggregation
        for at, aggregation in enumerate(node.aggregates)
        if _is_distinct(aggregation) or _is_picked(aggregation)
    }
    plain = {f"v{at}": aggregation for at, aggregation in enumerate(node.aggregates) if f"v{at}" not in apart}
    is_global = not keys
    groups = _aggregated(plain, rows, keys, is_global=is_global) if plain else None
    for name, aggregation in apart.items():
        # A group of which no value is left must not be lost: NULLs stay, and count for nothing.
        if _is_picked(aggregation):
            one = _picked(name, aggregation, rows, keys)
        else:
            one = _aggregated({name: aggregation}, rows.project(*keys, name).distinct(), keys, is_global=True)
        if groups is not None:
            one = groups.join(one, keys, null_equals=True) if keys else groups.cross(one)
        groups = one
    return rows.project(*keys).distinct() if groups is None else groups


def _aggregated(wanted: dict[str, Aggregation], rows: Stream, keys: list[str], *, is_global: bool) -> Stream:
    """Return a row per key with aggregates. Sums of wide decimals are those of their limbs, put together."""
    made: dict[str, Summary] = {}
    outputs: dict[str, Any] = {key: Col(key) for key in keys}
    for name, aggregation in wanted.items():
        kind = rows.schema.field(name).type
        if aggregation.function in ("sum", "avg") and pat.is_decimal(kind) and kind.precision > NARROW:
            for number in ("lower", "upper"):
                limb = sql_call(f"{number}_limb", pa.int64(), Col(name))
                made[f"{name}_{number}"] = Summary("wide_sum", limb)
            limbs = (Col(f"{name}_lower"), Col(f"{name}_upper"))
            if aggregation.function == "sum":
                outputs[name] = sql_call("joined_limbs", pa.decimal128(38, kind.scale), *limbs)
            else:
                made[f"{name}_count"] = Summary("count", sql_call("upper_limb", pa.int64(), Col(name)))
                scale = Lit(pa.scalar(kind.scale, pa.int64()))
                outputs[name] = sql_call("mean_of_limbs", pa.float64(), *limbs, Col(f"{name}_count"), scale)
        else:
            made[name] = _aggregate(name, aggregation, rows, is_global=is_global)
            outputs[name] = Col(name)
    groups = rows.project(*keys, *_read(made)).group_by(*keys).agg(**made)
    return groups if all(name in made for name in wanted) else groups.map(**outputs)


def _read(made: dict[str, Summary]) -> list[str]:
    return sorted(set().union(*(columns_of(summary.of) for summary in made.values())))


def _picked(name: str, aggregation: Aggregation, rows: Stream, keys: list[str]) -> Stream:
    """Return of each key the value where what it goes by is least or greatest; of several such, the least value."""
    by = name.replace("v", "o")
    kinds = {column: rows.schema.field(column).type for column in (name, by)}
    both = sql_call("and", pa.bool_(), *(sql_call("is_not_null", pa.bool_(), Col(column)) for column in kinds))
    columns: dict[str, Any] = {key: Col(key) for key in keys}
    columns |= {column: sql_call("case", kind, both, Col(column), null_of(kind)) for column, kind in kinds.items()}
    is_greatest = aggregation.function == "arg_max"
    first = rows.map(**columns).group_by(*keys).top_k(1, [by, name], descending=[is_greatest, False])
    return first.project(*keys, name)


def _is_picked(aggregation: Aggregation) -> bool:
    return aggregation.function in ("arg_min", "arg_max")


def _is_distinct(aggregation: Aggregation) -> bool:
    return aggregation.distinct and aggregation.function in ("count", "sum", "avg")


def _aggregate(name: str, aggregation: Aggregation, rows: Stream, *, is_global: bool) -> Summary:
    value, function = Col(name), aggregation.function
    if function == "count_star" and aggregation.where is None:
        return Summary("count", Col("there") if is_global else Lit(pa.scalar(1)))
    if function == "sum" and pat.is_integer(rows.schema.field(name).type):
        return Summary("wide_sum", value)
    return Summary(_SUMMARIES.get(function, "min"), value)


_SUMMARIES = {"count_star": "count", "count": "count", "sum": "sum", "avg": "mean", "max": "max", "bool_or": "max"}
