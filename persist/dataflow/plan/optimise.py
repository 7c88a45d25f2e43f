"""Rewriting of plans: the same results, with less work. Each rewriting is local, and all are done until none applies.

- Linear operators that follow each other become one; maps of maps become one map; conditions and bounds in time come
  before a map that does not compute what they read.
- Linear operators before a join or a reduction become part of how it arranges its input, those after it of how it gives
  its output, unless somebody else reads them too.
- A condition after a join that reads one input only, and never raises, moves before it. So does a bound in time: the
  join then forgets what is over.
- A join of a join becomes a delta join of all inputs, so that nothing in between is kept.
- In programs that write collections, operators that tell times apart stay as they are: what they give is kept.
- Columns that nobody reads after a join are left out of its arrangements, unless `arrange_by_key` asked for them.

Joins look up first where few partners are to be found. How large sources are is read from the descriptors of parts when
a program is opened, without a request: how many rows there are, which columns are a key, and between which bounds whole
numbers lie, which says how many different ones there can be. It is a hint. What a program computes does not depend on
it, only in which order it looks things up.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import prod
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from persist.codecs import TIME, Part
from persist.dataflow.plan.origin import kept_apart
from persist.dataflow.plan.plan import Arrange, Consolidate, Join, Linear, Node, Operator, Plan, Reduce, Source, Stages
from persist.dataflow.plan.stages import Among, Filter, Map, Negate, Stage, TemporalFilter, moved_column, through
from persist.dataflow.plan.stages import Stage as LinearStage
from persist.engine import CollectionHandle, Engine, loaded
from persist.errors import CollectionNotFound
from persist.expression import Col, Lit, Term, columns_of, leaves, may_raise, replaced_columns
from persist.state import CollectionState

# Which operator becomes one with its sole reader, and what is tried first: a stack between two joins goes to the later.
_FUSED = ((Linear, Linear), (Linear, Join | Reduce), (Join | Reduce, Linear), (Join, Join))


def optimised(plan: Plan) -> Plan:
    """Return an equivalent plan that does less."""
    smaller_plan = plan.without_unused()
    apart = kept_apart(smaller_plan)
    # Both sides of a self-join may read an operator: then its work is shared as it is.
    shared = {number for number, readers in smaller_plan.consumers().items() if len(readers) > 1}
    while sum(_fuse(smaller_plan, apart | shared, apart, *kinds) for kinds in _FUSED):
        pass
    readers = smaller_plan.consumers()
    for node in reversed(list(smaller_plan.nodes.values())):  # Who reads a join comes first: it may read less by then.
        if isinstance(node.operator, Join):
            _shrink(smaller_plan, node, node.operator, readers[node.number])
    return smaller_plan


def simplified(stages: Sequence[Stage]) -> Stages:
    """Return stages with maps of maps as one, and conditions and bounds before maps that only rename what they read."""
    simpler_stages: list[Stage] = []
    for stage in stages:
        last = simpler_stages[-1] if simpler_stages else None
        if isinstance(stage, Map) and isinstance(last, Map) and _is_cheap(last, stage):
            by = dict(last.outputs)
            simpler_stages[-1] = Map(tuple((name, replaced_columns(term, by)) for name, term in stage.outputs))
        elif isinstance(last, Map) and (earlier := _before(last, stage)) is not None:
            simpler_stages[-1:] = [earlier, last]
        else:
            simpler_stages.append(stage)
    return tuple(simpler_stages)


def _before(made: Map, stage: Stage) -> Filter | TemporalFilter | None:
    """Return what stands before a map for a condition or bounds behind it; None if these read what it computes."""
    by = dict(made.outputs)
    if not isinstance(stage, Filter | TemporalFilter) or TIME in by:
        return None
    terms = [stage.condition] if isinstance(stage, Filter) else [stage.lower, stage.upper]
    read = set[str]().union(*(columns_of(term) for term in terms if term is not None)) - {TIME}
    if not all(isinstance(by[name], Col | Lit) for name in read):
        return None
    moved = [None if term is None else replaced_columns(term, by) for term in terms]
    if isinstance(stage, TemporalFilter):
        return replace(stage, lower=moved[0], upper=moved[1])
    return None if moved[0] is None else Filter(moved[0])


def _is_cheap(inner: Map, outer: Map) -> bool:
    """Return whether putting one map into another computes nothing twice."""
    uses = Counter(leaf.name for _, term in outer.outputs for leaf in leaves(term) if isinstance(leaf, Col))
    return all(isinstance(inner_term, Col | Lit) or uses[name] <= 1 for name, inner_term in inner.outputs) and not any(
        # A column that is called like the time would change its meaning.
        name == TIME
        for name, _ in inner.outputs
    )


def _fuse(plan: Plan, stay: Set[int], apart: Set[int], source_kind: Any, reader_kind: Any) -> bool:
    """Let operators of two kinds be one where the second reads the first; return whether there were any.

    Args:
        stay: what does not become a part of its reader.
        apart: what does not become a part of what it reads.
    """
    changed = False
    for reader in list(plan.nodes.values()):
        if not isinstance(reader.operator, reader_kind) or reader.number not in plan.nodes.keys() - apart:
            continue
        for at, number in enumerate(reader.inputs):
            source, node = plan.nodes[number], plan.nodes[reader.number]
            if number in stay or not isinstance(source.operator, source_kind) or _is_of_bound(plan, source, node):
                continue
            operator = _fused(source.operator, node.operator, at)
            if operator is not None:
                inputs = (*node.inputs[:at], *source.inputs, *node.inputs[at + 1 :])
                # What users called them; a stack of an input is not what its join or reduction is called.
                is_input = isinstance(source.operator, Linear) and not isinstance(node.operator, Linear)
                names = [name for name in (source.name * (not is_input), node.name) if name]
                plan.change(node.number, operator=operator, inputs=inputs, name=" . ".join(names))
                del plan.nodes[number]
                changed = True
    return changed


def _is_of_bound(plan: Plan, source: Node, reader: Node) -> bool:
    """Whether an operator between a join without a key and a reduction belongs to the join, which may keep its left in
    the order of what a condition there compares."""
    below = plan.nodes[source.inputs[0]].operator if isinstance(source.operator, Linear) else None
    return isinstance(reader.operator, Reduce) and isinstance(below, Join) and not any(below.on)


def _fused(source: Operator, reader: Operator, at: int) -> Operator | None:
    """Return one operator for two, of which the second reads the first as its input number at; None if none can be."""
    match source, reader:
        case Linear(stages), Linear(later):
            return Linear(simplified((*stages, *later)))
        case Linear(stages), Reduce():
            return replace(reader, before=simplified((*stages, *reader.before)))
        case Linear(stages), Join(_, before):
            return replace(reader, before=(*before[:at], simplified((*stages, *before[at])), *before[at + 1 :]))
        case Join() | Reduce(), Linear(stages):
            return replace(source, after=simplified((*source.after, *stages)))
        case Join(), Join():
            on, before = (*source.on, *reader.on), (*source.before, *reader.before[1:])
            is_bare = at == 0 and not source.after and not reader.before[0] and source.null_equals == reader.null_equals
            # A cross join is not looked up by a key.
            return Join(on, before, reader.after, reader.null_equals) if is_bare and all(on) else None
    return None


def _shrink(plan: Plan, node: Node, join: Join, readers: Sequence[int]) -> None:
    """Let a join look up only records that may pass, and keep and give only columns that are read."""
    given_columns = read_by_all(reads_of(plan.nodes[reader], node.number) for reader in readers)
    schema = _kept(node.schema, given_columns)
    before, after = list(join.before), [*_narrowed(join.after, node.schema, given_columns)]
    has_time = plan.dimensions == 1
    schemas = [
        through(stages, plan.nodes[number].schema, node.title, has_time=has_time)
        for stages, number in zip(join.before, node.inputs, strict=True)
    ]
    keys = [set[str](), *({other for _, other in pairs} for pairs in join.on)]
    # Others may read an index that was asked for.
    is_own = [not isinstance(plan.nodes[number].operator, Arrange) for number in node.inputs]
    while after and isinstance(after[0], Filter | TemporalFilter):
        inputs = [(_sole_input(term, schemas, keys, part), part) for term, part in _conditions(after[0])]
        pushed = {at for at, _ in inputs if at is not None and is_own[at]}
        if not pushed:
            break
        if len({at for at, _ in inputs}) == 1:
            inputs = [(inputs[0][0], after[0])]
        left = [part for at, part in inputs if at not in pushed]
        for at, part in inputs:
            if at is not None and at in pushed:
                before[at] = (*before[at], part)
        after[:1] = left
        if left:
            break
    needed = _read_by(after, {*schema.names})
    if needed is not None:
        needed |= {one for pairs in join.on for one, _ in pairs}
        for at, input_schema in enumerate(schemas):
            if is_own[at]:
                before[at] = _narrowed(before[at], input_schema, needed | keys[at])
    plan.change(node.number, operator=replace(join, before=tuple(before), after=tuple(after)), schema=schema)


def _conditions(stage: Filter | TemporalFilter) -> list[tuple[Term, Stage]]:
    """Return the conditions that a stage is made of, each with the stage that is it alone."""
    if isinstance(stage, Filter):
        return [(stage.condition, stage)]
    halves = ((stage.lower, replace(stage, upper=None)), (stage.upper, replace(stage, lower=None)))
    return [(term, half) for term, half in halves if term is not None]


def _sole_input(condition: Term, schemas: Sequence[pa.Schema], keys: Sequence[set[str]], stage: Stage) -> int | None:
    """Return the input of a join before which a condition can be done; None if it reads several, or may raise."""
    names = columns_of(condition)
    for at, schema in enumerate(schemas):
        if names and names <= {*schema.names} - keys[at]:
            kinds = {field.name: field.type for field in schema}
            is_total = isinstance(stage, TemporalFilter) and moved_column(condition, kinds) is not None
            return at if is_total or not may_raise(condition, kinds) else None
    return None


def _kept(schema: pa.Schema, needed: Set[str] | None) -> pa.Schema:
    return schema if needed is None else pa.schema([field for field in schema if field.name in needed])


def _narrowed(stages: Stages, schema: pa.Schema, needed: Set[str] | None) -> Stages:
    """Return stages, and behind them one that leaves out what is not needed of the columns that they give."""
    kept = _kept(schema, needed).names
    return stages if kept == schema.names else simplified((*stages, Map(tuple((name, Col(name)) for name in kept))))


def reads_of(reader: Node, number: int) -> set[str] | None:
    """Return which columns of an input a node reads; None for all, or if that cannot be told."""
    match reader.operator:
        case Linear(stages):
            return _read_by(stages, None)
        case Reduce(keys, values, _, stages):
            return _read_by(stages, {*keys, *values})
        case Join(_, before):
            inputs = zip(before, reader.inputs, strict=True)
            return read_by_all(_read_by(stages, None) for stages, source in inputs if source == number)
    return None


def read_by_all(reads: Iterable[set[str] | None]) -> set[str] | None:
    every = list(reads)
    return None if None in every else set[str]().union(*(names for names in every if names is not None))


def _read_by(stages: Sequence[Stage], needed: set[str] | None) -> set[str] | None:
    """Return which columns some stages read to give those that are needed; None is for all."""
    for stage in reversed(stages):
        if isinstance(stage, Map):
            needed = set().union(*(columns_of(term) for _, term in stage.outputs))
        elif not isinstance(stage, Filter | Negate | Among):
            return None
        elif needed is not None and not isinstance(stage, Negate):
            needed = needed | (columns_of(stage.condition) if isinstance(stage, Filter) else {*stage.columns})
    return None if needed is None else needed - {TIME}


PARTS_MAX = 200  # Whose statistics are looked at; of a collection of more, the number of rows is all that is known.
COVERED_LEAST = 0.9  # Of the rows, by parts that tell the bounds of a column.
FILTER_KEEPS = 0.3  # Of the rows that pass a filter, for want of anything better.


@dataclass(frozen=True)
class Statistics:
    """What is known of a stream, whose columns have names, or of a relation of a query, whose columns have numbers.

    Attributes:
        rows: about how many records it has.
        key: columns that tell them apart; None if there are none.
        distinct: of some columns, how many different values they have at most.
    """

    rows: float
    key: frozenset[Hashable] | None = None
    distinct: Mapping[Any, float] = field(default_factory=lambda: MappingProxyType({}))

    def values(self, column: Hashable) -> float:
        """Return about how many different values a column has; of one of which nothing is known, the root of the rows,
        which lies between one value and one for each row."""
        return max(1.0, min(self.rows, self.distinct.get(column, self.rows**0.5)))

    def partners(self, columns: Sequence[Hashable]) -> float:
        """Return about how many records have the same values of some columns."""
        if self.key is not None and self.key <= {*columns}:
            return 1.0
        return max(1.0, self.rows / prod(map(self.values, columns)))

    def kept(self, share: float) -> "Statistics":
        """Return what is known of a share of the records."""
        return Statistics(self.rows * share, self.key, self.distinct)

    def renamed(self, columns: Iterable[tuple[Hashable, Hashable]]) -> "Statistics":
        """Return what is known of some columns: each as it is called now, and as it is called then."""
        pairs = list(columns)
        then = dict(pairs)
        key = frozenset(map(then.get, self.key)) if self.key is not None and self.key <= then.keys() else None
        return Statistics(self.rows, key, {new: self.distinct[old] for old, new in pairs if old in self.distinct})

    def after(self, stages: Sequence[LinearStage]) -> "Statistics | None":
        """Return what is known after some linear stages; None if that is nothing."""
        statistics = self
        for stage in stages:
            match stage:
                case Filter():
                    statistics = statistics.kept(FILTER_KEEPS)
                case Map(outputs):
                    statistics = statistics.renamed(
                        (term.name, name) for name, term in outputs if isinstance(term, Col)
                    )
                case _:
                    return None
        return statistics


def statistics_of(engine: Engine | None, plan: Plan) -> dict[int, Statistics]:
    """Return what is known of the sources of a plan, by their nodes; nothing where no join of it has a choice."""
    joins = [node.operator for node in plan.nodes.values() if isinstance(node.operator, Join)]
    if engine is None or not any(len(join.on) > 1 for join in joins):
        return {}
    known = {}
    for node in plan.nodes.values():
        if isinstance(node.operator, Source):
            with suppress(CollectionNotFound):  # Whoever opens the source says so.
                known[node.number] = of_collection(loaded(engine, node.operator.collection))
    return known


def of_collection(handle: CollectionHandle) -> Statistics:
    """Return what the descriptors of a collection's parts tell of it."""
    return _of_contents(handle.contents(), handle.schema.key_names)


def of_input(
    plan: Plan, known: Mapping[int, Statistics], number: int, before: Sequence[LinearStage]
) -> Statistics | None:
    """Return what is known of an input of a join after the stages before it; None if that is nothing."""
    node, stages = plan.nodes[number], [*before]
    while number not in known:
        if not isinstance(node.operator, Linear | Arrange | Consolidate):
            return None
        stages = [*(node.operator.stages if isinstance(node.operator, Linear) else ()), *stages]
        number = node.inputs[0]
        node = plan.nodes[number]
    return known[number].after(stages)


def _of_contents(contents: CollectionState, key: Sequence[str]) -> Statistics:
    parts = contents.parts
    rows = sum(part.diff_sum for part in contents.history_parts) if contents.history_from == 0 else 0
    if contents.keyframes:
        newest = max(contents.keyframes, key=lambda keyframe: keyframe.as_of)
        rows = max(rows, sum(part.diff_sum for part in contents.parts_of(newest.parts)))
    return Statistics(float(max(rows, 0)), frozenset(key) or None, _distinct(parts) if len(parts) <= PARTS_MAX else {})


def _distinct(parts: Sequence[Part]) -> dict[str, int]:
    """Return of columns of whole numbers how many values there are within their bounds, and NULL.

    Tiny parts, of a column whose bounds most rows are within, need not have any.
    """
    bounds: dict[str, tuple[int, int]] = {}
    covered: Counter[str] = Counter()
    for part in parts:
        for name, (low, high, _) in part.stats.items():
            if isinstance(low, int) and isinstance(high, int) and type(low) is type(high) is int:
                before = bounds.get(name, (low, high))
                bounds[name] = min(before[0], low), max(before[1], high)
                covered[name] += part.rows
    most = COVERED_LEAST * sum(part.rows for part in parts)
    return {name: high - low + 2 for name, (low, high) in bounds.items() if covered[name] >= most}
