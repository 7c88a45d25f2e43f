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
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from persist.codecs import TIME
from persist.dataflow.plan.origin import kept_apart
from persist.dataflow.plan.plan import ROOT, Arrange, Join, Linear, Node, Plan, Reduce, Stages
from persist.dataflow.plan.stages import Filter, Map, Stage, through
from persist.expression import Col, Lit, columns_of, leaves, may_raise, replaced_columns


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
    for node in list(smaller_plan.nodes.values()):
        if isinstance(node.operator, Join):
            _narrow(smaller_plan, node)
            _push_conditions(smaller_plan, smaller_plan.nodes[node.number])
            _prune(smaller_plan, smaller_plan.nodes[node.number])
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


def _input_schema(plan: Plan, node: Node, at: int) -> pa.Schema:
    assert isinstance(node.operator, Join)
    has_time = plan.dimensions == 1 and node.scope == ROOT
    return through(node.operator.before[at], plan.nodes[node.inputs[at]].schema, node.title, has_time=has_time)


def _push_conditions(plan: Plan, node: Node) -> None:
    """Move conditions after a join before it, where they read one input only."""
    join = node.operator
    assert isinstance(join, Join)
    before, after = list(join.before), list(join.after)
    schemas = [_input_schema(plan, node, at) for at in range(len(node.inputs))]
    owners = dict.fromkeys(schemas[0].names, 0)
    for at, pairs in enumerate(join.on, 1):
        keys = {other for _, other in pairs}
        owners |= {name: at for name in schemas[at].names if name not in keys}
    while after and isinstance(after[0], Filter):
        names = columns_of(after[0].condition)
        inputs = {owners.get(name) for name in names}
        if len(inputs) != 1 or None in inputs or TIME in names - set(owners):
            break
        [to] = (place for place in inputs if place is not None)
        if isinstance(plan.nodes[node.inputs[to]].operator, Arrange) or may_raise(
            after[0].condition, {field.name: field.type for field in schemas[to]}
        ):
            break
        before[to] = (*before[to], after.pop(0))
    plan.change(node.number, operator=replace(join, before=tuple(before), after=tuple(after)))


def _narrow(plan: Plan, node: Node) -> None:
    """Let a join give only the columns that its readers read."""
    join = node.operator
    assert isinstance(join, Join)
    needed: set[str] = set()
    for number in plan.consumers()[node.number]:
        reads = _reads_of(plan.nodes[number], node.number)
        if reads is None:
            return
        needed |= reads
    kept = [name for name in node.schema.names if name in needed]
    if len(kept) < len(node.schema.names):
        after = simplified((*join.after, Map(tuple((name, Col(name)) for name in kept))))
        schema = pa.schema([node.schema.field(name) for name in kept])
        plan.change(node.number, operator=replace(join, after=after), schema=schema)


def _reads_of(reader: Node, number: int) -> set[str] | None:
    """Return which columns of an input a node reads; None for all, or if that cannot be told."""
    match reader.operator:
        case Linear(stages) | Reduce(_, _, _, stages, _):
            return _read_by(stages)
        case Join(_, before):
            names = set[str]()
            for input_stages, source in zip(before, reader.inputs, strict=True):
                reads = _read_by(input_stages) if source == number else set[str]()
                if reads is None:
                    return None
                names |= reads
            return names
    return None


def _read_by(stages: Sequence[Stage]) -> set[str] | None:
    """Return which columns some stages read, if they drop the others; else None."""
    read_names: set[str] = set()
    for stage in stages:
        if isinstance(stage, Map):
            names = {name for _, term in stage.outputs for name in columns_of(term)}
            return read_names | names - {TIME}
        if not isinstance(stage, Filter):
            return None
        read_names |= columns_of(stage.condition) - {TIME}
    return None


def _prune(plan: Plan, node: Node) -> None:
    """Leave columns out of a join's arrangements that nothing after it reads."""
    join = node.operator
    assert isinstance(join, Join)
    needed = _read_by(join.after)
    if needed is None:
        return
    needed |= {one for pairs in join.on for one, _ in pairs}
    before = list(join.before)
    for at, number in enumerate(node.inputs):
        if isinstance(plan.nodes[number].operator, Arrange):
            continue
        schema = _input_schema(plan, node, at)
        keys = {other for _, other in join.on[at - 1]} if at else set()
        kept = [name for name in schema.names if name in needed | keys]
        if len(kept) < len(schema.names):
            before[at] = simplified((*before[at], Map(tuple((name, Col(name)) for name in kept))))
    plan.change(node.number, operator=replace(join, before=tuple(before)))
