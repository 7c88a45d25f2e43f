"""Rewriting of plans: unneeded columns and records are left out, and operators are merged. Rules about outer joins and
subqueries apply before a query is a plan (`persist.compute.sql.rewrite`). This module does the rest, for programs in
Python and for queries, in this order:

1. *Unneeded data are left out at their origin* (`trim_plan`). Unread columns are neither read from collections, nor
   computed, nor arranged, except by `arrange_by_key`. A condition after a join moves before it, if it reads one input
   only and never raises. A bound in time moves as well, so the join forgets records whose time is over.
2. *Operators are merged* (`_merge_operators`). Adjacent linear operators become one; maps of maps become one map.
   Linear operators before a join or a reduction become stages of its input, and later ones stages of its output, unless
   another operator reads them. A join of a join becomes a delta join of all inputs, which keeps nothing in between.

In programs that write collections, operators that depend on times stay separate, because their output is stored. Delta
joins first look up the input with the fewest partners. Sizes of sources are estimated from the descriptors of parts,
without a request. These are the number of rows, the key, and the bounds of whole numbers, which limit the number of
distinct values. Estimates only change the order of look-ups, never results.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from math import prod
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from persist.codecs.part.part import Part
from persist.codecs.types.schema import TIME
from persist.compute.dataflow.plan.origin import find_separate, list_expressions
from persist.compute.dataflow.plan.plan import (
    Aggregates,
    Arrange,
    Concat,
    Consolidate,
    Constant,
    Join,
    Linear,
    Node,
    Operator,
    Plan,
    Reduce,
    Source,
    Stages,
    list_incoming_edges,
)
from persist.compute.dataflow.plan.stages import (
    BatchFunction,
    Filter,
    FilterFunction,
    FlatMap,
    Map,
    MapFunction,
    Stage,
    TemporalFilter,
    Unnest,
    split_bound,
)
from persist.core.errors import CollectionNotFound
from persist.core.expression.evaluation import may_raise
from persist.core.expression.term import Col, Lit, Term, iterate_leaves, list_columns, substitute_columns
from persist.core.state_rules.contents import CollectionState
from persist.engine.location.collection_handle import CollectionHandle
from persist.engine.location.engine import Engine
from persist.engine.location.opening import load_handle

# Pairs of operator and sole reader that are joined, in order: a stack between two joins goes to the later one.
_LINEAR = (Linear, Linear)
_FUSED = (_LINEAR, (Linear, Join | Reduce), (Join | Reduce, Linear), (Join, Join))


def optimise_plan(plan: Plan) -> Plan:
    """Return an equivalent plan that does less."""
    smaller_plan = plan.drop_unused()
    apart = find_separate(smaller_plan)
    while _merge_operators(smaller_plan, apart, *_LINEAR):
        pass
    smaller_plan = trim_plan(smaller_plan)
    while sum(_merge_operators(smaller_plan, apart, *kinds) for kinds in _FUSED):
        pass
    readers = smaller_plan.find_readers()
    for node in smaller_plan.nodes.values():
        if isinstance(node.operator, Join) and not node.operator.after:  # Nobody need read its keys.
            read = list_read_columns(smaller_plan, node, readers[node.number])
            smaller_plan.replace_node(node.number, schema=_select_fields(node.schema, read))
    return smaller_plan


def trim_plan(plan: Plan) -> Plan:
    """Return an equivalent plan without unread columns and unneeded records.

    `plan`: a plan whose joins and reductions carry no stages yet.
    """
    smaller_plan = plan.drop_unused()
    apart, readers, placed = find_separate(smaller_plan), smaller_plan.find_readers(), list[int]()
    for node in reversed(list(smaller_plan.nodes.values())):  # Readers come first, and read less by then.
        conditions = _move_conditions(smaller_plan, node, readers[node.number], apart)
        if node.number not in apart:
            _trim(smaller_plan, node, list_read_columns(smaller_plan, node, readers[node.number]))
        placed.append(node.number)
        if not isinstance(node.operator, Join | Concat | Consolidate):
            continue  # Their inputs must have exactly their columns. Others read columns by name.
        inputs = list(node.inputs)
        for at, names in enumerate(_list_reads(smaller_plan.nodes[node.number])):
            source = smaller_plan.nodes[inputs[at]]
            assert names is not None  # Joins have no stages yet that could read all.
            if isinstance(source.operator, Arrange):
                continue
            schema = _select_fields(source.schema, names)
            stages = (*conditions.get(at, ()), *([] if schema is source.schema else [make_projection(schema)]))
            if stages:
                inputs[at] = smaller_plan.add(Linear(stages), (source.number,), schema, node.scope).number
                readers[source.number].remove(node.number)
                readers[source.number].append(inputs[at])
                placed.append(inputs[at])
        smaller_plan.replace_node(node.number, inputs=tuple(inputs))
    smaller_plan.nodes = {number: smaller_plan.nodes[number] for number in reversed(placed)}
    for node in list(smaller_plan.nodes.values()):
        inputs_now = (
            number if number in plan.nodes else _skip_projection(smaller_plan, number) for number in node.inputs
        )
        smaller_plan.replace_node(node.number, inputs=tuple(inputs_now))
    return smaller_plan.drop_unused()


def _skip_projection(plan: Plan, number: int) -> int:
    """Return an operator, or its input if it only passes all columns on."""
    node = plan.nodes[number]
    is_same = (
        node.operator == Linear((make_projection(node.schema),)) and plan.nodes[node.inputs[0]].schema == node.schema
    )
    return node.inputs[0] if is_same else number


def _trim(plan: Plan, node: Node, needed: set[str]) -> None:
    """Drop the output columns of an operator that no reader needs."""
    operator, names = node.operator, needed
    match operator:
        case Source(written=False) | Concat() | Consolidate():
            names = needed or {*node.schema.names[:1]}  # One column suffices for the number of records.
        case Constant(table):
            names = needed or {*node.schema.names[:1]}
            operator = Constant(table.select(_select_fields(node.schema, names).names))
        case Linear(stages):
            stages, _ = _trim_stages(stages, needed)
            if not needed >= {*node.schema.names} and not (stages and isinstance(stages[-1], Map)):
                stages = (*stages, make_projection(_select_fields(node.schema, needed)))
            operator = Linear(stages)
        case Join(on):
            names = needed | {left_name for pairs in on for left_name, _ in pairs}
        case Reduce(keys, _, Aggregates(outputs, is_complete=False)):
            outputs = tuple(output for output in outputs if output[0] in needed) or outputs[:1]
            values = tuple(dict.fromkeys(of for _, _, of in outputs))
            operator = replace(operator, values=values, logic=Aggregates(outputs))
            names = {*keys, *(name for name, _, _ in outputs)}
        case _:
            return
    plan.replace_node(node.number, operator=operator, schema=_select_fields(node.schema, names))


def _select_fields(schema: pa.Schema, names: Set[str]) -> pa.Schema:
    """Return the fields of a schema that have some names."""
    return schema if names >= {*schema.names} else pa.schema([field for field in schema if field.name in names])


def make_projection(schema: pa.Schema) -> Map:
    """Return the stage that picks the columns of a schema."""
    return Map(tuple((name, Col(name)) for name in schema.names))


def list_read_columns(plan: Plan, node: Node, readers: Iterable[int]) -> set[str]:
    """Return which columns of an operator some others read."""
    every, read = {*node.schema.names}, set[str]()
    for reader in map(plan.nodes.__getitem__, readers):
        for number, names in zip(list_incoming_edges(reader), _list_reads(reader), strict=True):
            if number == node.number:
                read |= every if names is None else every & names
    return read


def _list_reads(node: Node) -> list[set[str] | None]:
    """Return the columns that a node reads of each input; None for all, or if unknown."""
    names = {*node.schema.names}
    match node.operator:
        case Linear(stages):
            return [_trim_stages(stages, names)[1]]
        case Reduce(by, values, _, before):
            return [_trim_stages(before, {*by, *values})[1]]
        case Concat() | Consolidate():
            return [names for _ in node.inputs]
        case Join(on, before, after):
            needed = _trim_stages(after, names)[1]
            left_keys = {left_name for pairs in on for left_name, _ in pairs}
            keys = [left_keys, *(left_keys | {right_name for _, right_name in pairs} for pairs in on)]
            inputs = zip(before, keys, strict=True)
            return [
                None if needed is None else _trim_stages(stages, needed | own_keys)[1] for stages, own_keys in inputs
            ]
    return [None for _ in list_incoming_edges(node)]


def _trim_stages(stages: Stages, needed: set[str]) -> tuple[Stages, set[str] | None]:
    """Return stages that compute only the needed columns, and the columns that they read; None for all."""
    needed_stages, read, is_all = list[Stage](), set(needed), False
    for stage in reversed(stages):
        match stage:
            case Map(outputs):
                stage = stage if is_all else Map(tuple(output for output in outputs if output[0] in read))
                read, is_all = set(), False
            case Unnest(lists):
                read -= {name for name, _ in lists}
            case MapFunction() | BatchFunction() | FlatMap() | FilterFunction():
                is_all = True
        read = read.union(*map(list_columns, list_expressions(stage)))
        needed_stages.append(stage)
    return tuple(reversed(needed_stages)), None if is_all else read - {TIME}


def _move_conditions(plan: Plan, node: Node, readers: Sequence[int], apart: Set[int]) -> dict[int, Stages]:
    """Move conditions from the only reader of a join to the join's inputs; return them by input."""
    reader, conditions = plan.nodes[readers[0]] if len(readers) == 1 else node, dict[int, Stages]()
    if not isinstance(node.operator, Join) or not isinstance(reader.operator, Linear) or reader.number in apart:
        return conditions
    stages = [*reader.operator.stages]
    while stages and isinstance(stages[0], Filter | TemporalFilter):
        parts = [
            (_find_sole_input(plan, node, node.operator, term, part), part)
            for term, part in _split_conditions(stages[0])
        ]
        if len({at for at, _ in parts}) == 1:
            parts = [(parts[0][0], stages[0])]
        stages[:1] = stay = [part for at, part in parts if at is None]
        for at, part in parts:
            if at is not None:
                conditions[at] = (*conditions.get(at, ()), part)
        if stay:
            break
    plan.replace_node(reader.number, operator=Linear(tuple(stages)))
    return conditions


def _split_conditions(stage: Filter | TemporalFilter) -> list[tuple[Term, Stage]]:
    """Return each condition of a filter, with a stage for that condition alone."""
    if isinstance(stage, Filter):
        return [(stage.condition, stage)]
    halves = ((stage.lower, replace(stage, upper=None)), (stage.upper, replace(stage, lower=None)))
    return [(term, half) for term, half in halves if term is not None]


def _find_sole_input(plan: Plan, node: Node, join: Join, condition: Term, stage: Stage) -> int | None:
    """Return the only join input that a condition reads, if it may move."""
    names = list_columns(condition)
    for at, (source, pairs) in enumerate(zip(map(plan.nodes.__getitem__, node.inputs), ((), *join.on), strict=True)):
        if names and names <= {*source.schema.names} - {right_name for _, right_name in pairs}:
            kinds = {field.name: field.type for field in source.schema}
            is_total = isinstance(stage, TemporalFilter) and split_bound(condition, kinds) is not None
            # Other operators may read an arrangement.
            may_move = is_total or not may_raise(condition, kinds)
            return at if may_move and not isinstance(source.operator, Arrange) else None
    return None


def simplify_stages(stages: Sequence[Stage]) -> Stages:
    """Return equivalent stages: maps merged, filters before renaming maps."""
    simpler_stages: list[Stage] = []
    for stage in stages:
        last = simpler_stages[-1] if simpler_stages else None
        if isinstance(stage, Map) and isinstance(last, Map) and _is_cheap(last, stage):
            by = dict(last.outputs)
            simpler_stages[-1] = Map(tuple((name, substitute_columns(term, by)) for name, term in stage.outputs))
        elif isinstance(last, Map) and (earlier := _move_filter(last, stage)) is not None:
            simpler_stages[-1:] = [earlier, last]
        else:
            simpler_stages.append(stage)
    return tuple(simpler_stages)


def _move_filter(made: Map, stage: Stage) -> Filter | TemporalFilter | None:
    """Return a filter before a map that is equivalent to one behind it; None if that reads computed columns."""
    by = dict(made.outputs)
    if not isinstance(stage, Filter | TemporalFilter) or TIME in by:
        return None
    terms = [stage.condition] if isinstance(stage, Filter) else [stage.lower, stage.upper]
    read = set[str]().union(*(list_columns(term) for term in terms if term is not None)) - {TIME}
    if not all(isinstance(by[name], Col | Lit) for name in read):
        return None
    moved = [None if term is None else substitute_columns(term, by) for term in terms]
    if isinstance(stage, TemporalFilter):
        return replace(stage, lower=moved[0], upper=moved[1])
    return None if moved[0] is None else Filter(moved[0])


def _is_cheap(inner: Map, outer: Map) -> bool:
    """Return whether putting one map into another computes nothing twice."""
    uses = Counter(leaf.name for _, term in outer.outputs for leaf in iterate_leaves(term) if isinstance(leaf, Col))
    return all(isinstance(inner_term, Col | Lit) or uses[name] <= 1 for name, inner_term in inner.outputs) and not any(
        # A column that is called like the time would change its meaning.
        name == TIME
        for name, _ in inner.outputs
    )


def _merge_operators(plan: Plan, apart: Set[int], source_kind: Any, reader_kind: Any) -> bool:
    """Merge operators of one kind with readers of another kind; return whether any merged.

    `apart`: the operators that are not merged.
    """
    changed = False
    # Both sides of a self-join may read an operator: then its work is shared as it is.
    stay = apart | {number for number, readers in plan.find_readers().items() if len(readers) > 1}
    for reader in list(plan.nodes.values()):
        if not isinstance(reader.operator, reader_kind) or reader.number not in plan.nodes.keys() - apart:
            continue
        for at, number in enumerate(reader.inputs):
            source, node = plan.nodes[number], plan.nodes[reader.number]
            if (
                number in stay
                or not isinstance(source.operator, source_kind)
                or _belongs_to_bounded_join(plan, source, node)
            ):
                continue
            operator = _merge_pair(source.operator, node.operator, at)
            if operator is not None:
                inputs = (*node.inputs[:at], *source.inputs, *node.inputs[at + 1 :])
                # Users' names, but not the name of a stack before a join or a reduction.
                is_input = isinstance(source.operator, Linear) and not isinstance(node.operator, Linear)
                names = [name for name in (source.name * (not is_input), node.name) if name]
                plan.replace_node(node.number, operator=operator, inputs=inputs, name=" . ".join(names))
                del plan.nodes[number]
                changed = True
    return changed


def _belongs_to_bounded_join(plan: Plan, source: Node, reader: Node) -> bool:
    """Return whether linear stages between a keyless join and a reduction stay with the join.

    With an inequality among them, the join keeps its left input in the order of the compared term.
    """
    below = plan.nodes[source.inputs[0]].operator if isinstance(source.operator, Linear) else None
    return isinstance(reader.operator, Reduce) and isinstance(below, Join) and not any(below.on)


def _merge_pair(source: Operator, reader: Operator, at: int) -> Operator | None:
    """Return one operator for a source and its reader (input `at`); None if impossible."""
    match source, reader:
        case [Linear(stages), Linear(later)]:
            return Linear(simplify_stages((*stages, *later)))
        case [Linear(stages), Reduce()]:
            return replace(reader, before=simplify_stages((*stages, *reader.before)))
        case [Linear(stages), Join(_, prepared)]:
            return replace(
                reader, before=(*prepared[:at], simplify_stages((*stages, *prepared[at])), *prepared[at + 1 :])
            )
        case [Join() | Reduce(), Linear(stages)]:
            return replace(source, after=simplify_stages((*source.after, *stages)))
        case [Join(), Join()]:
            on, prepared = (*source.on, *reader.on), (*source.before, *reader.before[1:])
            is_bare = at == 0 and not source.after and not reader.before[0] and source.null_equals == reader.null_equals
            # A cross join is not looked up by a key.
            return Join(on, prepared, reader.after, reader.null_equals) if is_bare and all(on) else None
    return None


PARTS_MAX = 200  # For a collection with more parts, only the number of rows is estimated.
COVERED_LEAST = 0.9  # The share of rows in parts that have bounds of a column.
FILTER_KEEPS = 0.3  # The guessed share of rows that pass a filter.


@dataclass(frozen=True)
class Statistics:
    """Statistics of a stream, whose columns have names, or of a relation of a query, whose columns have numbers.

    Attributes:
        rows: about how many records it has.
        key: columns that are unique together; None if unknown.
        distinct: for some columns, the greatest possible number of different values.
    """

    rows: float
    key: frozenset[Hashable] | None = None
    distinct: Mapping[Any, float] = field(default_factory=lambda: MappingProxyType({}))

    def estimate_distinct(self, column: Hashable) -> float:
        """Estimate a column's distinct values; the root of the rows if unknown."""
        return max(1.0, min(self.rows, self.distinct.get(column, self.rows**0.5)))

    def estimate_partners(self, columns: Sequence[Hashable]) -> float:
        """Estimate how many records share the values of some columns."""
        if self.key is not None and self.key <= {*columns}:
            return 1.0
        return max(1.0, self.rows / prod(map(self.estimate_distinct, columns)))

    def scale(self, share: float) -> "Statistics":
        """Return the statistics of a share of the records."""
        return Statistics(self.rows * share, self.key, self.distinct)

    def rename(self, columns: Iterable[tuple[Hashable, Hashable]]) -> "Statistics":
        """Return the statistics of some columns under other names: (old, new) pairs."""
        pairs = list(columns)
        then = dict(pairs)
        key = frozenset(map(then.get, self.key)) if self.key is not None and self.key <= then.keys() else None
        return Statistics(self.rows, key, {new: self.distinct[old] for old, new in pairs if old in self.distinct})

    def apply_stages(self, stages: Sequence[Stage]) -> "Statistics | None":
        """Return the statistics after some linear stages; None if unknown."""
        statistics = self
        for stage in stages:
            match stage:
                case Filter():
                    statistics = statistics.scale(FILTER_KEEPS)
                case Map(outputs):
                    statistics = statistics.rename((term.name, name) for name, term in outputs if isinstance(term, Col))
                case _:
                    return None
        return statistics


def estimate_streams(engine: Engine | None, plan: Plan) -> Callable[[int], Statistics | None]:
    """Return a function from the number of an operator to statistics of its output, or None if nothing is known."""

    @cache
    def estimate(number: int) -> Statistics | None:
        node = plan.nodes[number]
        match node.operator:
            case Source(collection) if engine is not None:
                with suppress(CollectionNotFound):  # Opening the source raises it.
                    return estimate_collection(load_handle(engine, collection))
            case Linear() | Arrange() | Consolidate():
                statistics = estimate(node.inputs[0])
                stages = node.operator.stages if isinstance(node.operator, Linear) else ()
                return None if statistics is None else statistics.apply_stages(stages)
        return None

    return estimate


def estimate_collection(handle: CollectionHandle) -> Statistics:
    """Return statistics of a collection, from the descriptors of its parts."""
    return _estimate_contents(handle.contents(), handle.schema.key_names)


def _estimate_contents(contents: CollectionState, key: Sequence[str]) -> Statistics:
    """Return the estimated rows of a collection, its key, and distinct values."""
    parts = contents.parts
    rows = sum(part.diff_sum for part in contents.history_parts) if contents.history_from == 0 else 0
    if contents.keyframes:
        newest = max(contents.keyframes, key=lambda keyframe: keyframe.as_of)
        rows = max(rows, sum(part.diff_sum for part in contents.list_parts(newest.parts)))
    return Statistics(
        float(max(rows, 0)), frozenset(key) or None, _count_distinct(parts) if len(parts) <= PARTS_MAX else {}
    )


def _count_distinct(parts: Sequence[Part]) -> dict[str, int]:
    """Return upper bounds of the distinct values of integer columns.

    A column is included if the parts with most of the rows have its bounds, because tiny parts may lack them.
    """
    bounds: dict[str, tuple[int, int]] = {}
    covered: Counter[str] = Counter()
    for part in parts:
        for name, (low, high, _) in part.stats.items():
            if isinstance(low, int) and isinstance(high, int) and type(low) is type(high) is int:
                known_bounds = bounds.get(name, (low, high))
                bounds[name] = min(known_bounds[0], low), max(known_bounds[1], high)
                covered[name] += part.rows
    most = COVERED_LEAST * sum(part.rows for part in parts)
    return {name: high - low + 2 for name, (low, high) in bounds.items() if covered[name] >= most}
