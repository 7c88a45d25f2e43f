"""Cuts a plan into stages. A stage is the work of one task on its share of some streams; shuffles connect stages.

    source stage   reads a slice of a collection, and applies the linear operators that follow
    keyed stage    reads all records of its keys from each input: joins and reductions by these keys, and what is
                   linear after them
    exchange       sends each record of a node's stream to the task that its key determines

A join or a reduction stays in the stage of an input that is already partitioned by its key. An output stays there, too,
because equal records have equal keys. So there is one shuffle for each change of key. Contents and later updates pass
through the same stages.

A plan with recursion, or with expressions that read times, cannot be cut.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from graphlib import TopologicalSorter

import pyarrow as pa

from persist.compute.dataflow.plan import plan as plans
from persist.compute.dataflow.plan.stages import Delay, Explode, Filter, Map, Negate, Unnest
from persist.compute.dataflow.plan.stages import Stage as LinearStage
from persist.core.errors import InvalidUsage
from persist.core.expression.term import Col

Keys = tuple[str, ...]


@dataclass(frozen=True)
class Exchange:
    """A shuffle: sends the output of a node to another stage, by key.

    Attributes:
        keys: the columns that determine a record's task; None: any task may receive it; (): one task receives all.
        columns: the columns of the records.
    """

    number: int
    node: int
    keys: Keys | None
    columns: pa.Schema


@dataclass
class StagePlan:
    """The work of the tasks of one stage.

    Attributes:
        nodes: the stage's operators, each after its inputs, without the source.
        feeds: for each input that another stage computes: (node, place of the input), and the exchange that brings it.
        source: the source node that the stage reads; None for a keyed stage.
        sinks: nodes that are outputs.
    """

    number: int
    source: plans.Node | None = None
    nodes: list[plans.Node] = field(default_factory=list)
    reads: list[Exchange] = field(default_factory=list)
    gives: list[Exchange] = field(default_factory=list)
    feeds: dict[tuple[int, int], Exchange] = field(default_factory=dict)
    sinks: list[plans.Node] = field(default_factory=list)


def split_into_stages(plan: plans.Plan) -> list[StagePlan]:
    """Return the stages of a plan, each after its inputs. `plan`: not optimised, so that its joins have two inputs."""
    return _StageBuilder(plan).build()


class _StageBuilder:
    """Assigns the nodes of a plan to stages, and adds the shuffles between stages."""

    def __init__(self, plan: plans.Plan) -> None:
        self._plan = plan
        self._stages: list[StagePlan] = []
        self._at: dict[int, StagePlan] = {}
        self._keyed: dict[int, Keys | None] = {}  # By which columns of it a node's stream is shared out.
        self._exchanges = 0
        self._consumers = plan.find_readers()

    def build(self) -> list[StagePlan]:
        """Assign all nodes to stages, and return these in the order of their dependencies."""
        order = TopologicalSorter(
            {number: plans.list_incoming_edges(node) for number, node in self._plan.nodes.items()}
        )
        for number in order.static_order():
            self._place_node(self._plan.nodes[number])
        after = {stage.number: {self._at[read.node].number for read in stage.reads} for stage in self._stages}
        return [self._stages[number] for number in TopologicalSorter(after).static_order()]

    def _place_node(self, node: plans.Node) -> None:
        """Assign a node to an input's stage, or to a new one."""
        match node.operator:
            case plans.Source():
                stage = self._add_stage()
                stage.source = node
                self._set_stage(node, stage, None)
            case plans.Constant():
                self._assign(self._add_stage(), node, None)
            case plans.Linear(stages):
                self._assign(self._at[node.inputs[0]], node, _trace_keys(self._keyed[node.inputs[0]], stages))
            case plans.Consolidate() | plans.Arrange():
                self._assign(self._at[node.inputs[0]], node, self._keyed[node.inputs[0]])
            case plans.Concat():
                self._place_concat(node)
            case plans.Join((pairs,)):
                self._place_join(node, [tuple(left_key for left_key, _ in pairs), tuple(its for _, its in pairs)])
            case plans.Reduce(keys):
                self._place_reduce(node, keys)
            case plans.Persist(_, keys):
                if self._keyed[node.inputs[0]] is None:
                    self._place_join(node, [keys])
                else:
                    self._assign(self._at[node.inputs[0]], node, self._keyed[node.inputs[0]])
                self._at[node.number].sinks.append(node)
            case _:
                raise InvalidUsage(f"{node.title} cannot be computed by the tasks of a cluster")

    def _place_concat(self, node: plans.Node) -> None:
        """Assign a concatenation to an input's stage, or a new one."""
        keyed_inputs = [(number, self._keyed[number]) for number in node.inputs if self._keyed[number] is not None]
        for number, keys in reversed(keyed_inputs):
            assert keys is not None
            if self._can_place(node, self._at[number], [keys] * len(node.inputs)):
                self._assign_with_exchanges(self._at[number], node, [keys] * len(node.inputs))
                return
        if len({self._at[number].number for number in node.inputs}) == 1:
            self._assign(self._at[node.inputs[0]], node, None)
            return
        keys = self._find_group_keys(node)
        self._assign_with_exchanges(self._add_stage(), node, [keys] * len(node.inputs))

    def _find_group_keys(self, node: plans.Node) -> Keys | None:
        """Return the keys of the grouping that reads the node; None without one."""
        if len(self._consumers[node.number]) == 1:
            after = self._plan.nodes[self._consumers[node.number][0]].operator
            if isinstance(after, plans.Reduce) and not after.before and after.keys:
                return after.keys
        return None

    def _place_reduce(self, node: plans.Node, keys: Keys) -> None:
        """Assign a reduction to its input's stage, or to a new stage."""
        input_keys = self._keyed[node.inputs[0]]
        if input_keys is not None and set(input_keys) <= set(keys):
            self._assign(self._at[node.inputs[0]], node, input_keys)
        else:
            self._assign_with_exchanges(self._add_stage(), node, [keys])

    def _place_join(self, node: plans.Node, wanted: Sequence[Keys]) -> None:
        """Assign a node whose inputs must be partitioned by these keys."""
        for number, keys in zip(node.inputs, wanted, strict=True):
            if self._keyed[number] == keys and self._can_place(node, self._at[number], wanted):
                self._assign_with_exchanges(self._at[number], node, wanted)
                return
        self._assign_with_exchanges(self._add_stage(), node, wanted)

    def _can_place(self, node: plans.Node, stage: StagePlan, wanted: Sequence[Keys]) -> bool:
        """Return whether a node fits a stage: equal partition keys, and no cycle of stages."""
        for number, keys in zip(node.inputs, wanted, strict=True):
            if self._at[number] is stage:
                if self._keyed[number] != keys:
                    return False
            elif self._depends_on(self._at[number], stage):
                return False
        return True

    def _depends_on(self, stage: StagePlan, on: StagePlan) -> bool:
        """Return whether a stage is another one, or reads its output indirectly."""
        return stage is on or any(self._depends_on(self._at[exchange.node], on) for exchange in stage.reads)

    def _assign_with_exchanges(self, stage: StagePlan, node: plans.Node, wanted: Sequence[Keys | None]) -> None:
        """Assign a node to a stage, with exchanges for inputs from other stages."""
        for place, (number, keys) in enumerate(zip(node.inputs, wanted, strict=True)):
            if self._at[number] is not stage:
                stage.feeds[node.number, place] = self._add_exchange(stage, number, keys)
        self._assign(stage, node, wanted[0])

    def _add_exchange(self, to: StagePlan, number: int, keys: Keys | None) -> Exchange:
        """Return the exchange of a node into a stage; add it if missing."""
        for exchange in to.reads:
            if (exchange.node, exchange.keys) == (number, keys):
                return exchange
        new_exchange = Exchange(self._exchanges, number, keys, self._plan.nodes[number].schema)
        self._exchanges += 1
        to.reads.append(new_exchange)
        self._at[number].gives.append(new_exchange)
        return new_exchange

    def _assign(self, stage: StagePlan, node: plans.Node, keys: Keys | None) -> None:
        """Add a node, whose output has these partition keys, to a stage."""
        stage.nodes.append(node)
        self._set_stage(node, stage, keys)

    def _set_stage(self, node: plans.Node, stage: StagePlan, keys: Keys | None) -> None:
        """Note the stage of a node, and the partition keys of its output."""
        self._at[node.number], self._keyed[node.number] = stage, keys

    def _add_stage(self) -> StagePlan:
        """Add an empty stage to the plan, and return it."""
        self._stages.append(StagePlan(len(self._stages)))
        return self._stages[-1]


def _trace_keys(keys: Keys | None, stages: Sequence[LinearStage]) -> Keys | None:
    """Return the partition keys after some linear stages; None if stages drop them."""
    for stage in stages:
        if keys is None or isinstance(stage, Filter | Negate | Explode | Unnest | Delay):
            continue
        if not isinstance(stage, Map):
            return None
        names: dict[str, str] = {}
        for name, term in stage.outputs:
            if isinstance(term, Col):
                names.setdefault(term.name, name)
        if not set(keys) <= names.keys():
            return None
        keys = tuple(names[key] for key in keys)
    return keys
