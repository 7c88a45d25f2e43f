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

from persist.dataflow import Aggregate as DataflowAggregate
from persist.dataflow import Call as DataflowCall
from persist.dataflow import Expression as DataflowExpression
from persist.dataflow import Program, Stream, col, columns_of, lit
from persist.sql.algebra import Aggregate, Aggregation
from persist.sql.lower_expression import lowered, numbered
from persist.sql.types import to_arrow

NARROW = 18  # Digits of a decimal that fit one word.


def aggregated(node: Aggregate, stream: Stream, program: Program) -> Stream:
    """Return a row for each group of each grouping set."""
    node = msgspec.structs.replace(node, aggregates=tuple(map(_without_count_if, node.aggregates)))
    keys: dict[str, Any] = {f"k{at}": lowered(each) for at, each in enumerate(node.keys)}
    kinds = {name: stream.map(x=each).schema.field("x").type for name, each in keys.items()}
    values: dict[str, Any] = {f"v{at}": _value(each, stream) for at, each in enumerate(node.aggregates)}
    values |= {f"o{at}": lowered(each.arguments[1]) for at, each in enumerate(node.aggregates) if _is_picked(each)}
    rows = stream.map(**keys, **values, there=lit(True))
    found = None
    for each in node.sets:
        made = _one_set(node, rows, each, kinds, program)
        found = made if found is None else found + made
    assert found is not None
    return found


def _without_count_if(aggregation: Aggregation) -> Aggregation:
    """Return count_if as what it is in DuckDB: a sum of 1 and 0, which is NULL if there is none of either."""
    return msgspec.structs.replace(aggregation, function="sum") if aggregation.function == "count_if" else aggregation


def _value(aggregation: Aggregation, stream: Stream) -> DataflowExpression:
    """Return what is aggregated: NULL where the condition of its FILTER does not hold."""
    value = lowered(aggregation.arguments[0]) if aggregation.arguments else lit(True)
    kind = stream.map(x=value).schema.field("x").type
    if aggregation.function in ("sum", "avg") and (pat.is_boolean(kind) or pat.is_uint64(kind)):
        kind = pa.int8() if pat.is_boolean(kind) else pa.decimal128(20, 0)
        value = DataflowCall("sql.cast", (value,), (kind,))
    if aggregation.function == "sum" and pat.is_float32(kind):
        kind = pa.float64()
        value = DataflowCall("sql.cast", (value,), (kind,))
    if aggregation.where is None:
        return value
    return DataflowCall("sql.case", (lowered(aggregation.where), value, lit(None, kind)), (kind,))


def _one_set(
    node: Aggregate, rows: Stream, picked: Sequence[int], kinds: dict[str, pa.DataType], program: Program
) -> Stream:
    keys = [f"k{at}" for at in picked]
    if not keys:
        rows = rows + _nothing(rows, program)
    found = _grouped(node, rows, keys)
    outputs: list[DataflowExpression] = [col(name) if name in keys else lit(None, kind) for name, kind in kinds.items()]
    for at, each in enumerate(node.aggregates):
        kind = to_arrow(each.type)
        made = col(f"v{at}")
        outputs.append(
            made if found.schema.field(f"v{at}").type == kind else DataflowCall("sql.cast", (made,), (kind,))
        )
    for numbers in node.groupings:
        bits = 0
        for at in numbers:
            bits = 2 * bits + (at not in picked)
        outputs.append(lit(bits, pa.int64()))
    return numbered(found, outputs)


def _nothing(rows: Stream, program: Program) -> Stream:
    """Return a row of NULLs."""
    return program.constant(pa.table({field.name: pa.nulls(1, field.type) for field in rows.schema}))


def _grouped(node: Aggregate, rows: Stream, keys: list[str]) -> Stream:
    apart = {f"v{at}": each for at, each in enumerate(node.aggregates) if _is_distinct(each) or _is_picked(each)}
    plain = {f"v{at}": each for at, each in enumerate(node.aggregates) if f"v{at}" not in apart}
    is_global = not keys
    found = _aggregated(plain, rows, keys, is_global=is_global) if plain else None
    for name, each in apart.items():
        # A group of which no value is left must not be lost: NULLs stay, and count for nothing.
        if _is_picked(each):
            one = _picked(name, each, rows, keys)
        else:
            one = _aggregated({name: each}, rows.project(*keys, name).distinct(), keys, is_global=True)
        if found is not None:
            one = found.join(one, keys, null_equals=True) if keys else found.cross(one)
        found = one
    return rows.project(*keys).distinct() if found is None else found


def _aggregated(wanted: dict[str, Aggregation], rows: Stream, keys: list[str], *, is_global: bool) -> Stream:
    """Return a row per key with aggregates. Sums of wide decimals are those of their limbs, put together."""
    made: dict[str, DataflowAggregate] = {}
    outputs: dict[str, Any] = {key: col(key) for key in keys}
    for name, each in wanted.items():
        kind = rows.schema.field(name).type
        if each.function in ("sum", "avg") and pat.is_decimal(kind) and kind.precision > NARROW:
            for number in ("lower", "upper"):
                limb = DataflowCall(f"sql.{number}_limb", (col(name),), (pa.int64(),))
                made[f"{name}_{number}"] = DataflowAggregate("wide_sum", limb)
            limbs = (col(f"{name}_lower"), col(f"{name}_upper"))
            if each.function == "sum":
                outputs[name] = DataflowCall("sql.joined_limbs", limbs, (pa.decimal128(38, kind.scale),))
            else:
                made[f"{name}_count"] = DataflowAggregate(
                    "count", DataflowCall("sql.upper_limb", (col(name),), (pa.int64(),))
                )
                scale = lit(kind.scale, pa.int64())
                outputs[name] = DataflowCall(
                    "sql.mean_of_limbs", (*limbs, col(f"{name}_count"), scale), (pa.float64(),)
                )
        else:
            made[name] = _aggregate(name, each, rows, is_global=is_global)
            outputs[name] = col(name)
    found = rows.project(*keys, *_read(made)).group_by(*keys).agg(**made)
    return found if all(name in made for name in wanted) else found.map(**outputs)


def _read(made: dict[str, DataflowAggregate]) -> list[str]:
    return sorted(set().union(*(columns_of(each.of) for each in made.values())))


def _picked(name: str, aggregation: Aggregation, rows: Stream, keys: list[str]) -> Stream:
    """Return of each key the value where what it goes by is least or greatest; of several such, the least value."""
    by = name.replace("v", "o")
    kinds = {each: rows.schema.field(each).type for each in (name, by)}
    known = [DataflowCall("sql.is_not_null", (col(each),), (pa.bool_(),)) for each in kinds]
    both = DataflowCall("sql.and", tuple(known), (pa.bool_(),))
    columns: dict[str, Any] = {key: col(key) for key in keys}
    columns |= {
        each: DataflowCall("sql.case", (both, col(each), lit(None, kind)), (kind,)) for each, kind in kinds.items()
    }
    is_greatest = aggregation.function == "arg_max"
    first = rows.map(**columns).group_by(*keys).top_k(1, [by, name], descending=[is_greatest, False])
    return first.project(*keys, name)


def _is_picked(aggregation: Aggregation) -> bool:
    return aggregation.function in ("arg_min", "arg_max")


def _is_distinct(aggregation: Aggregation) -> bool:
    return aggregation.distinct and aggregation.function in ("count", "sum", "avg")


def _aggregate(name: str, aggregation: Aggregation, rows: Stream, *, is_global: bool) -> DataflowAggregate:
    value, function = col(name), aggregation.function
    if function == "count_star":
        if aggregation.where is not None:
            return value.count()
        return col("there").count() if is_global else lit(1).count()
    if function == "count":
        return value.count()
    if function == "sum":
        kind = rows.schema.field(name).type
        return DataflowAggregate("wide_sum", value) if pat.is_integer(kind) else value.sum()
    if function == "avg":
        return value.mean()
    return value.max() if function in ("max", "bool_or") else value.min()
