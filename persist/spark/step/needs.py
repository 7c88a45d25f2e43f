"""What a step needs of the past: of each stream, the records of the keys that something changes for.

A keyed stage makes what it gives under a key of what it is given under that key. So of the past it needs what its
*touched* keys hold: those of the updates that are new. What is needed of a stream is a set of terms, `columns in the
touched keys of an exchange`, of which one must hold, or everything. It is found by going through the plan backwards:

    reduction         of its input the touched keys of all exchanges of its stage, and what is needed of its output
    join              of each input the touched keys of the other one: what is new on one side meets the past of the
                      other one, and never its own. And what is needed of its output, as far as that is said by columns
                      of that input. What is said of one side by other columns than the key, needs everything of the
                      other side
    what is linear    what is needed of its output, by the columns that it passes on; by computed ones, everything
    an output         nothing: its past is there already
    `OnlyNew`         nothing: what it leaves out is told from an output (`standing.py`)

The promise to whoever reads less: of records for which a term holds, every stream then has exactly what it had, and
of others anything. What is new is exact, because a term holds for all that it meets. So reading more is always right.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import TypeAlias

from persist.dataflow import (
    Arrange,
    Concat,
    Consolidate,
    Explode,
    Filter,
    FilterFunction,
    Join,
    Linear,
    Map,
    Negate,
    Node,
    Persist,
    Reduce,
)
from persist.dataflow import Stage as LinearStage
from persist.expression import Col
from persist.spark.step.stages import Keys, StagePlan
from persist.spark.step.standing import OnlyNew


@dataclass(frozen=True, slots=True)
class Term:
    """Records whose columns, in this order, are one of the keys of which an exchange brings something new."""

    columns: Keys
    exchange: int


Need: TypeAlias = frozenset[Term] | None  # None: everything.
NOTHING: frozenset[Term] = frozenset()


def needs_of(stages: Sequence[StagePlan]) -> dict[int, Need]:
    """Return what is needed of the past of each node that the stages have or read.

    Args:
        stages: of a plan, each after those that it reads from; or those that some stages are made of.
    """
    found: dict[int, Need] = {}
    for stage in reversed(stages):
        for node in reversed(stage.nodes):
            after = found.get(node.number, NOTHING)
            for place, number in enumerate(node.inputs):
                own = _asked(stage, node, place, after)
                before = found.get(number, NOTHING)
                found[number] = None if own is None or before is None else before | own
    return found


def known_only(need: Need, known: Set[int]) -> Need:
    """Return what is needed if the touched keys of some exchanges only are known."""
    return need if need is None or all(each.exchange in known for each in need) else None


def before(stages: Sequence[StagePlan], asked: Set[int]) -> list[StagePlan]:
    """Return what has to be run for what some exchanges bring: the stages before them, which write nothing."""
    by_node = {node.number: stage for stage in stages for node in _given_by(stage)}
    left = [each for stage in stages for each in stage.reads if each.number in asked]
    inside, read = set[int](), set(asked)
    while left:
        giver = by_node[left.pop().node]
        if giver.number not in inside:
            inside.add(giver.number)
            read |= {each.number for each in giver.reads}
            left += giver.reads
    return [
        replace(
            stage,
            nodes=[node for node in stage.nodes if not isinstance(node.operator, Persist)],
            gives=[each for each in stage.gives if each.number in read],
            sinks=[],
        )
        for stage in stages
        if stage.number in inside
    ]


def sources_of(stages: Sequence[StagePlan]) -> dict[int, set[int] | None]:
    """Return of each exchange the stages whose sources it is made of; None if of anything else."""
    nodes = {node.number: (node, stage) for stage in stages for node in _given_by(stage)}

    def found(number: int, seen: set[int]) -> set[int] | None:
        node, stage = nodes[number]
        if number in seen:
            return set()
        seen.add(number)
        if not node.inputs:
            return {stage.number} if node is stage.source else None
        parts = [found(each, seen) for each in node.inputs]
        return None if None in parts else set[int]().union(*(each for each in parts if each))

    return {each.number: found(each.node, set()) for stage in stages for each in stage.reads}


def levels_of(stages: Sequence[StagePlan]) -> dict[int, int]:
    """Return how many changes of key lie before each stage."""
    found: dict[int, int] = {}
    givers = {node.number: stage.number for stage in stages for node in _given_by(stage)}
    for stage in stages:
        inputs = [found[givers[each.node]] for each in stage.reads]
        found[stage.number] = max(inputs, default=-1) + 1
    return found


def _given_by(stage: StagePlan) -> list[Node]:
    return [*([] if stage.source is None else [stage.source]), *stage.nodes]


def _asked(stage: StagePlan, node: Node, place: int, after: Need) -> Need:
    """Return what a node needs of an input, given what is needed of its output."""
    match node.operator:
        case Persist():
            return NOTHING
        case Linear(stages):
            return _before(stages, after)
        case Concat():
            return after
        case Consolidate() | Arrange():
            return after
        case Join((pairs,), ((), ()), ()):
            own = _touched(stage, node, place, _brings(stage, node, 1 - place))
            names = dict(pairs)
            return _both(own, None if after is None else _through_join(after, node, stage, place, names))
        case Reduce(keys, before=(), after=()):
            own = _touched(stage, node, place, {each.number for each in stage.reads})
            fits = after is not None and all({*each.columns} <= {*keys} for each in after)
            return _both(own, after if fits else None)
    return None


def _touched(stage: StagePlan, node: Node, place: int, exchanges: Set[int]) -> Need:
    """Return the term for an input of a node: that its keys are touched by what some exchanges bring."""
    exchange = stage.feeds.get((node.number, place))
    keys = stage.keyed.get(node.inputs[place]) if exchange is None else exchange.keys
    return frozenset(Term(keys, each) for each in exchanges) if keys else None


def _brings(stage: StagePlan, node: Node, place: int) -> set[int]:
    """Return the exchanges that an input of a node is made of, within its stage."""
    if (exchange := stage.feeds.get((node.number, place))) is not None:
        return {exchange.number}
    own = {each.number: each for each in stage.nodes}
    giver = own[node.inputs[place]]
    return {number for at in range(len(giver.inputs)) for number in _brings(stage, giver, at)}


def _both(one: Need, other: Need) -> Need:
    return None if one is None or other is None else one | other


def _before(stages: Sequence[LinearStage], need: Need) -> Need:
    """Return what is needed before some linear stages."""
    for stage in reversed(stages):
        if isinstance(stage, OnlyNew):
            return NOTHING
        if need is None or not need:
            return need
        if isinstance(stage, Filter | FilterFunction | Negate | Explode):
            continue
        if not isinstance(stage, Map):
            return None
        names = {name: each.name for name, each in stage.outputs if isinstance(each, Col)}
        if not all({*each.columns} <= names.keys() for each in need):
            return None
        need = frozenset(Term(tuple(names[name] for name in each.columns), each.exchange) for each in need)
    return need


def _through_join(need: frozenset[Term], node: Node, stage: StagePlan, place: int, names: Mapping[str, str]) -> Need:
    """Return what is needed of one side of a join for what is needed of the pairs."""
    right = {*node.schema.names[stage.widths[node.number] :]}
    found = set[Term]()
    for each in need:
        is_of_left = not right & {*each.columns}
        is_of_right = {*each.columns} <= right | names.keys()
        if place == 0 and is_of_left:
            found.add(each)
        elif place == 1 and is_of_right:
            found.add(Term(tuple(names.get(name, name) for name in each.columns), each.exchange))
        else:
            return None
    return frozenset(found)
