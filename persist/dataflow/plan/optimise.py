"""Rewriting of plans: the same results, with less work. Each rewriting is local, and all are done until none applies.

- Linear operators that follow each other become one; maps of maps become one map.
- Linear operators before a join or a reduction become part of how it arranges its input, those after it of how it gives
  its output, unless somebody else reads them too.
- A condition after a join that reads one input only, and never raises, moves before it.
- A join of a join becomes a delta join of all inputs, so that nothing in between is kept.
- In programs that write collections, operators that tell times apart stay as they are: what they give is kept.
- Columns that nobody reads after a join are left out of its arrangements, unless `arrange_by_key` asked for them.
"""

from collections import Counter
from collections.abc import Iterable, Sequence, Set
from dataclasses import replace

import pyarrow as pa

from persist.codecs import TIME
from persist.dataflow.plan.origin import kept_apart
from persist.dataflow.plan.plan import ROOT, Arrange, Join, Linear, Node, Plan, Reduce, Stages
from persist.dataflow.plan.stages import Filter, Map, Negate, Stage, through
from persist.expression import Col, Lit, Term, columns_of, leaves, may_raise, replaced_columns


def optimised(plan: Plan) -> Plan:
    """Return an equivalent plan that does less."""
    smaller_plan = plan.without_unused()
    apart = kept_apart(smaller_plan)
    changed = True
    while changed:
        fused = [
            _fuse_linear(smaller_plan, apart),
            _fuse_inputs(smaller_plan, apart),
            _fuse_outputs(smaller_plan, apart),
        ]
        changed = any([*fused, _merge_joins(smaller_plan)])
    readers = smaller_plan.consumers()
    for node in reversed(list(smaller_plan.nodes.values())):  # Who reads a join comes first: it may read less by then.
        if isinstance(node.operator, Join):
            _shrink(smaller_plan, node, node.operator, readers[node.number])
    return smaller_plan


def simplified(stages: Sequence[Stage]) -> Stages:
    """Return stages with maps of maps as one, and maps that change nothing left out where that can be told."""
    simpler_stages: list[Stage] = []
    for stage in stages:
        last = simpler_stages[-1] if simpler_stages else None
        if isinstance(stage, Map) and isinstance(last, Map) and _is_cheap(last, stage):
            by = dict(last.outputs)
            simpler_stages[-1] = Map(tuple((name, replaced_columns(term, by)) for name, term in stage.outputs))
        else:
            simpler_stages.append(stage)
    return tuple(simpler_stages)


def _is_cheap(inner: Map, outer: Map) -> bool:
    """Return whether putting one map into another computes nothing twice."""
    uses = Counter(leaf.name for _, term in outer.outputs for leaf in leaves(term) if isinstance(leaf, Col))
    return all(isinstance(inner_term, Col | Lit) or uses[name] <= 1 for name, inner_term in inner.outputs) and not any(
        # A column that is called like the time would change its meaning.
        name == TIME
        for name, _ in inner.outputs
    )


def _sole_reader(plan: Plan, consumers: dict[int, list[int]], number: int) -> bool:
    return len(consumers[number]) == 1


def _fuse_linear(plan: Plan, apart: set[int]) -> bool:
    consumers, changed = plan.consumers(), False
    for node in list(plan.nodes.values()):
        if not isinstance(node.operator, Linear) or node.number in apart or node.inputs[0] in apart:
            continue
        source = plan.nodes[node.inputs[0]]
        if isinstance(source.operator, Linear) and _sole_reader(plan, consumers, source.number):
            stages = simplified((*source.operator.stages, *node.operator.stages))
            plan.change(node.number, operator=Linear(stages), inputs=source.inputs, name=_name(source, node))
            del plan.nodes[source.number]
            changed = True
    return changed


def _fuse_inputs(plan: Plan, apart: set[int]) -> bool:
    consumers, changed = plan.consumers(), False
    for node in list(plan.nodes.values()):
        if not isinstance(node.operator, Join | Reduce):
            continue
        for at, number in enumerate(node.inputs):
            source = plan.nodes.get(number)
            if source is None or not isinstance(source.operator, Linear) or number in apart:
                continue
            # Both sides of a self-join may read it: then its work is shared as it is.
            if not _sole_reader(plan, consumers, number):
                continue
            operator = plan.nodes[node.number].operator
            stages = source.operator.stages
            if isinstance(operator, Join):
                before = list(operator.before)
                before[at] = simplified((*stages, *before[at]))
                operator = replace(operator, before=tuple(before))
            else:
                assert isinstance(operator, Reduce)
                operator = replace(operator, before=simplified((*stages, *operator.before)))
            inputs = list(plan.nodes[node.number].inputs)
            inputs[at] = source.inputs[0]
            plan.change(node.number, operator=operator, inputs=tuple(inputs))
            del plan.nodes[number]
            changed = True
    return changed


def _fuse_outputs(plan: Plan, apart: set[int]) -> bool:
    consumers, changed = plan.consumers(), False
    for node in list(plan.nodes.values()):
        if not isinstance(node.operator, Linear) or node.number not in plan.nodes or node.number in apart:
            continue
        source = plan.nodes[node.inputs[0]]
        if isinstance(source.operator, Join | Reduce) and _sole_reader(plan, consumers, source.number):
            after = simplified((*source.operator.after, *node.operator.stages))
            operator = replace(source.operator, after=after)
            plan.change(node.number, operator=operator, inputs=source.inputs, name=_name(source, node))
            del plan.nodes[source.number]
            changed = True
    return changed


def _name(source: Node, node: Node) -> str:
    """Return what to call two nodes that became one: what their users called them."""
    return " . ".join(name for name in (source.name, node.name) if name)


def _merge_joins(plan: Plan) -> bool:
    """Let a join of a join be one join of all inputs."""
    consumers, changed = plan.consumers(), False
    for node in list(plan.nodes.values()):
        if not isinstance(node.operator, Join) or node.operator.before[0] or node.number not in plan.nodes:
            continue
        source = plan.nodes.get(node.inputs[0])
        if source is None or not isinstance(source.operator, Join) or source.operator.after:
            continue
        if not _sole_reader(plan, consumers, source.number) or source.operator.null_equals != node.operator.null_equals:
            continue
        if not all(pairs for pairs in (*source.operator.on, *node.operator.on)):
            continue  # A cross join is not looked up by a key.
        operator = Join(
            (*source.operator.on, *node.operator.on),
            (*source.operator.before, *node.operator.before[1:]),
            node.operator.after,
            node.operator.null_equals,
        )
        inputs = (*source.inputs, *node.inputs[1:])
        plan.change(node.number, operator=operator, inputs=inputs, name=_name(source, node))
        del plan.nodes[source.number]
        changed = True
    return changed


def _shrink(plan: Plan, node: Node, join: Join, readers: Sequence[int]) -> None:
    """Let a join look up only records that may pass, and keep and give only columns that are read."""
    given_columns = _read_by_all(_reads_of(plan.nodes[reader], node.number) for reader in readers)
    schema = _kept(node.schema, given_columns)
    before, after = list(join.before), [*_narrowed(join.after, node.schema, given_columns)]
    has_time = plan.dimensions == 1 and node.scope == ROOT
    schemas = [
        through(stages, plan.nodes[number].schema, node.title, has_time=has_time)
        for stages, number in zip(join.before, node.inputs, strict=True)
    ]
    keys = [set[str](), *({other for _, other in pairs} for pairs in join.on)]
    # Others may read an index that was asked for.
    is_own = [not isinstance(plan.nodes[number].operator, Arrange) for number in node.inputs]
    while after and isinstance(after[0], Filter):
        at = _sole_input(after[0].condition, schemas, keys)
        if at is None or not is_own[at]:
            break
        before[at] = (*before[at], after.pop(0))
    needed = _read_by(after, {*schema.names})
    if needed is not None:
        needed |= {one for pairs in join.on for one, _ in pairs}
        for at, input_schema in enumerate(schemas):
            if is_own[at]:
                before[at] = _narrowed(before[at], input_schema, needed | keys[at])
    plan.change(node.number, operator=replace(join, before=tuple(before), after=tuple(after)), schema=schema)


def _sole_input(condition: Term, schemas: Sequence[pa.Schema], keys: Sequence[set[str]]) -> int | None:
    """Return the input of a join before which a condition can be done; None if it reads several, or may raise."""
    names = columns_of(condition)
    for at, schema in enumerate(schemas):
        if names and names <= {*schema.names} - keys[at]:
            return None if may_raise(condition, {field.name: field.type for field in schema}) else at
    return None


def _kept(schema: pa.Schema, needed: Set[str] | None) -> pa.Schema:
    return schema if needed is None else pa.schema([field for field in schema if field.name in needed])


def _narrowed(stages: Stages, schema: pa.Schema, needed: Set[str] | None) -> Stages:
    """Return stages, and behind them one that leaves out what is not needed of the columns that they give."""
    kept = _kept(schema, needed).names
    return stages if kept == schema.names else simplified((*stages, Map(tuple((name, Col(name)) for name in kept))))


def _reads_of(reader: Node, number: int) -> set[str] | None:
    """Return which columns of an input a node reads; None for all, or if that cannot be told."""
    match reader.operator:
        case Linear(stages):
            return _read_by(stages, None)
        case Reduce(keys, values, _, stages):
            return _read_by(stages, {*keys, *values})
        case Join(_, before):
            inputs = zip(before, reader.inputs, strict=True)
            return _read_by_all(_read_by(stages, None) for stages, source in inputs if source == number)
    return None


def _read_by_all(reads: Iterable[set[str] | None]) -> set[str] | None:
    every = list(reads)
    return None if None in every else set[str]().union(*(names for names in every if names is not None))


def _read_by(stages: Sequence[Stage], needed: set[str] | None) -> set[str] | None:
    """Return which columns some stages read to give those that are needed; None is for all."""
    for stage in reversed(stages):
        if isinstance(stage, Map):
            needed = set().union(*(columns_of(term) for _, term in stage.outputs))
        elif not isinstance(stage, Filter | Negate):
            return None
        elif needed is not None and isinstance(stage, Filter):
            needed = needed | columns_of(stage.condition)
    return None if needed is None else needed - {TIME}
