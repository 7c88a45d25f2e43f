"""Makes the operators that run a plan.

Operators are made in the order in which they run: each after its inputs. A scope is one operator, after all operators
whose output enters it. Joins and reductions read arrangements, which are made once for each input, key and columns, and
shared.
"""

import time as clock
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

import pyarrow as pa

from persist.blob.errors import InvalidUsage
from persist.codecs.errors import DiffOverflow
from persist.compute.dataflow.operators.aggregates import ACCUMULABLE, AggregateCall, explode_to_slots, find_result_type
from persist.compute.dataflow.operators.arrangement import Arrangement
from persist.compute.dataflow.operators.folds import make_fold_logic
from persist.compute.dataflow.operators.join import BoundedJoin, JoinOperator, JoinPaths, find_bound
from persist.compute.dataflow.operators.large_groups import (
    Ranking,
    make_aggregate_ranking,
    make_fold_ranking,
    make_top_ranking,
)
from persist.compute.dataflow.operators.linear import Shape, compile_stages, compile_traced
from persist.compute.dataflow.operators.logic import (
    Logic,
    compute_distinct,
    make_multiset_logic,
    make_sum_logic,
    make_threshold_logic,
    make_top_k_logic,
    make_user_logic,
)
from persist.compute.dataflow.operators.loop import EnterOperator, LeaveOperator, Loop, VariableOperator
from persist.compute.dataflow.operators.operators import (
    CaptureOperator,
    ConcatOperator,
    ConsolidateOperator,
    EntryOperator,
    InspectOperator,
    LinearOperator,
    Operator,
    Position,
    ProbeOperator,
    SealedWithOperator,
    SinkOperator,
    StashingOperator,
    make_inspector,
)
from persist.compute.dataflow.operators.ranked_windows import make_window_ranking
from persist.compute.dataflow.operators.reduce import PartialReduce, ReduceOperator, TotalReduce
from persist.compute.dataflow.operators.windows import make_window_logic
from persist.compute.dataflow.plan import plan as plans
from persist.compute.dataflow.plan.draft import Captured, Probed
from persist.compute.dataflow.plan.optimise import Statistics
from persist.compute.dataflow.plan.stages import Map, derive_schema, make_stage_key, may_move_times, trace_columns
from persist.compute.dataflow.plan.types import select_fields
from persist.compute.dataflow.ports.output import KeptLinear, KeptOutput, make_kept_schema
from persist.compute.dataflow.running.seeds import Accumulation
from persist.compute.dataflow.state.costs import USUAL, Costs
from persist.compute.dataflow.state.spine import Allocate
from persist.compute.dataflow.updates.batch import Layout
from persist.compute.dataflow.updates.times import Ints
from persist.compute.dataflow.updates.words import Domain
from persist.core.errors import WouldRecompute
from persist.core.expression.term import Lit
from persist.core.progress import check_limits


@dataclass
class Graph:
    """The operators of a running program.

    Attributes:
        operators: all operators outside of scopes, in the order in which they run; a scope is one of them.
        entries: the operators of inputs and sources, by the number of their node.
        sinks: the operators of outputs and of hidden collections.
        kept: the operators whose output is stored in hidden collections, by the name of the collection.
        accumulations: the reductions whose state consists of sums.
        limits: the reductions to the first records of groups, with their nodes.
    """

    operators: list[Operator] = field(default_factory=list)
    entries: dict[int, EntryOperator] = field(default_factory=dict)
    sinks: list[SinkOperator] = field(default_factory=list)
    kept: dict[str, KeptLinear] = field(default_factory=dict)
    accumulations: list[Accumulation] = field(default_factory=list)
    limits: dict[Operator, plans.Node] = field(default_factory=dict)

    def run(self) -> None:
        """Make one pass. An operator's updates are freed after its last reader."""
        for operator, read in zip(self.operators, self._last_read, strict=True):
            operator.advance_frontier()
            check_limits()
            began_s = clock.perf_counter()
            try:
                operator.run()
            except DiffOverflow as error:
                raise DiffOverflow(f"operator {operator.title} failed: {error}") from error
            except WouldRecompute as error:
                raise WouldRecompute(error.name, f"{error.problem}, by {operator.title}") from error
            operator.seconds += clock.perf_counter() - began_s
            operator.given_out += 0 if operator.out is None else operator.out.shape[1]
            for source in read:
                source.out = None
        for operator in self.operators:
            operator.finish_pass()

    @cached_property
    def _last_read(self) -> list[list[Operator]]:
        """Return the inputs that each operator reads last."""
        last = {source: at for at, operator in enumerate(self.operators) for source in operator.inputs}
        read: list[list[Operator]] = [[] for _ in self.operators]
        for source, at in last.items():
            read[at] += [] if source in self.sinks else [source]
        for operator, sources in zip(self.operators, read, strict=True):
            if isinstance(operator, StashingOperator):
                operator.is_last_reader = set(operator.inputs) == set(sources)
        return read

    def free_updates(self) -> None:
        """Free the updates of the operators in the last pass."""
        for operator in self.operators:
            operator.out = None


class Builder:
    """Makes the operators of a plan."""

    def __init__(
        self,
        plan: plans.Plan,
        domain: Domain,
        captures: dict[int, Captured],
        probes: dict[int, Probed],
        allocate: Allocate,
        kept: Mapping[int, str] = MappingProxyType({}),
        estimate: Callable[[int], Statistics | None] = lambda _: None,
        costs: Costs = USUAL,
    ) -> None:
        self.plan = plan
        self._costs = costs
        self.domain = domain
        self.graph = Graph()
        self._captures = captures
        self._probes = probes
        self._allocate = allocate
        self._kept = kept
        self._estimate = estimate
        self._made: dict[int, Operator] = {}
        self._loops: dict[int, Loop] = {}
        self._under_way: set[int] = set()
        self._arrangements: dict[tuple[object, ...], Arrangement] = {}

    def build_graph(self) -> Graph:
        """Return the running graph."""
        self.graph.operators = self._make_scope(plans.ROOT)
        return self.graph

    def _make_scope(self, scope: int) -> list[Operator]:
        """Make all operators directly in a scope, and the scopes inside of it."""
        operators: list[Operator] = []
        for node in list(self.plan.nodes.values()):
            if node.scope == scope:
                self._build_after_inputs(node, operators)
        for info in self.plan.scopes.values():
            if info.parent == scope and info.number != plans.ROOT:
                self._build_scope(info.number, operators)
        return operators

    def _build_after_inputs(self, node: plans.Node, operators: list[Operator]) -> None:
        """Make the operator of a node, after those of its inputs."""
        if node.number in self._made:
            return
        for number in node.inputs:
            source = self.plan.nodes[number]
            if source.scope == node.scope:
                self._build_after_inputs(source, operators)
            elif isinstance(node.operator, plans.Leave):
                self._build_scope(source.scope, operators)
        self._made[node.number] = operator = self._make_operator(node, operators)
        operators.append(operator)
        if isinstance(operator, KeptLinear):
            operators += self._store_output(node, operator)

    def _build_scope(self, scope: int, operators: list[Operator]) -> None:
        """Make the operators of a scope, after the outer operators whose output enters it."""
        if scope in self._loops:
            return
        info = self.plan.scopes[scope]
        if scope in self._under_way:
            raise InvalidUsage(
                f"scope {info.name!r} is entered by a stream that depends on one that leaves it; use two scopes, "
                "or a variable"
            )
        self._under_way.add(scope)
        sources = []
        for node in list(self.plan.nodes.values()):
            if isinstance(node.operator, plans.Enter) and self._is_within(node.scope, scope):
                source = self.plan.nodes[node.inputs[0]]
                if source.scope == info.parent:
                    self._build_after_inputs(source, operators)
                    sources.append(self._made[source.number])
        loop = Loop(Position(info.name, [], self.plan.dimensions, info.depth - 1, self._costs), info.limit)
        self._loops[scope] = loop
        loop.inputs = sources
        loop.operators = self._make_scope(scope)
        for node in self.plan.nodes.values():
            if isinstance(node.operator, plans.Variable) and node.scope == scope:
                variable, feedback = self._made[node.number], node.operator.feedback
                assert isinstance(variable, VariableOperator)
                assert feedback is not None
                variable.feedback = self._made[feedback]
        operators.append(loop)

    def _is_within(self, scope: int, around: int) -> bool:
        """Return whether a scope is another one, or is nested in it."""
        while scope not in (plans.ROOT, around):
            scope = self.plan.scopes[scope].parent
        return scope == around

    def _make_operator(self, node: plans.Node, operators: list[Operator]) -> Operator:
        """Return the operator of a node, with its inputs connected."""
        if isinstance(node.operator, plans.Join):
            return self._make_join(node, node.operator, operators)
        if isinstance(node.operator, plans.Reduce):
            return self._make_reduce(node, node.operator, operators)
        at = self._make_position(node, [self._made[number] for number in node.inputs])
        match node.operator:
            case plans.Source() | plans.Input() | plans.Constant() | plans.Upper():
                entry = self.graph.entries[node.number] = EntryOperator(at)
                return entry
            case plans.Linear(stages):
                input_schema = self.plan.nodes[node.inputs[0]].schema
                if node.number in self._kept:
                    return KeptLinear(
                        at, compile_traced(stages, input_schema, node.schema.names, self.domain, at.title)
                    )
                shape = compile_stages(stages, input_schema, node.schema.names, self.domain, at.title)
                linear = LinearOperator(at, shape)
                linear.moves_times = may_move_times(stages)
                linear.origins = trace_columns(stages, input_schema.names, node.schema.names)
                return linear
            case plans.Concat() | plans.Arrange():
                return ConcatOperator(at)
            case plans.SealedWith():
                return SealedWithOperator(at)
            case plans.Consolidate():
                return ConsolidateOperator(at, node.schema)
            case plans.Enter(column):
                names = self.plan.nodes[node.inputs[0]].schema.names
                return EnterOperator(at, names.index(column) if column else None)
            case plans.Variable():
                return VariableOperator(at, node.schema)
            case plans.Leave():
                [number] = node.inputs
                loop = self._loops[self.plan.nodes[number].scope]
                return LeaveOperator(self._make_position(node, [loop]), loop, self._made[number])
            case plans.Inspect(function):
                inspect = make_inspector(function, node.schema, self.domain, at.title)
                return InspectOperator(at, inspect)
            case plans.Probe():
                return ProbeOperator(at, self._probes[node.number])
            case plans.Capture():
                captured = self._captures[node.number]
                return CaptureOperator(at, node.schema, captured, self.domain)
            case plans.Persist(collection, keys):
                sink = SinkOperator(at, node.schema, collection, keys)
                self.graph.sinks.append(sink)
                return sink

    def _make_position(self, node: plans.Node, inputs: Sequence[Operator], title: str = "") -> Position:
        """Return an operator's title, inputs and dimensions of time, for its constructor."""
        depth = self.plan.scopes[node.scope].depth
        return Position(title or node.title, inputs, self.plan.dimensions, depth, self._costs)

    def _store_output(self, node: plans.Node, made: KeptLinear) -> list[Operator]:
        """Return the operators that store the output of an operator in a hidden collection."""
        output, schema = KeptOutput(made), make_kept_schema(node.schema)
        keys = (schema.names[-1],)
        sink = SinkOperator(self._make_position(node, [output], output.title), schema, self._kept[node.number], keys)
        self.graph.sinks.append(sink)
        self.graph.kept[sink.collection] = made
        return [output, sink]

    def share_arrangement(
        self,
        node: plans.Node,
        source: int,
        before: plans.Stages,
        keys: tuple[str, ...],
        values: tuple[str, ...],
        schema: pa.Schema,
        operators: list[Operator],
    ) -> Arrangement:
        """Return the arrangement of a node's output, after some stages, by key; equal ones are shared."""
        source = self._skip_arranges(source)
        what = (source, *map(make_stage_key, before), keys, values)
        shared = self._arrangements.get(what)
        if shared is None:
            input_schema = self.plan.nodes[source].schema
            shape = compile_stages(before, input_schema, [*keys, *values], self.domain, node.title)
            shared = self._make_arrangement(
                node, source, len(keys), len(values), shape, select_fields(schema, (*keys, *values))
            )
            shared.moves_times = may_move_times(before)
            shared.origins = trace_columns(before, input_schema.names, [*keys, *values])
            self._arrangements[what] = shared
            operators.append(shared)
        return shared

    def _skip_arranges(self, number: int) -> int:
        """Return the node below a chain of `Arrange` nodes."""
        while isinstance(self.plan.nodes[number].operator, plans.Arrange):
            number = self.plan.nodes[number].inputs[0]
        return number

    def _make_arrangement(
        self,
        node: plans.Node,
        source: int,
        keys: int,
        values: int,
        shape: Shape,
        schema: pa.Schema,
        *,
        adds_up: bool = False,
    ) -> Arrangement:
        """Make an arrangement of a node's output, after a linear shape."""
        at = self._make_position(node, [self._made[source]], f"{node.title}.input")
        layout = Layout(keys, values, at.outer + at.depth)
        return Arrangement(at, layout, shape, schema, self._allocate, adds_up=adds_up)

    def _derive_schema(self, stages: plans.Stages, source: int, node: plans.Node) -> pa.Schema:
        """Return the columns of a node's output after some stages."""
        return derive_schema(stages, self.plan.nodes[source].schema, node.title, has_time=self.plan.dimensions == 1)

    def _make_join(self, node: plans.Node, join: plans.Join, operators: list[Operator]) -> Operator:
        """Make the operator of a join, and the arrangements of its inputs."""
        stages_of_inputs = zip(join.before, node.inputs, strict=True)
        schemas = [self._derive_schema(stages, number, node) for stages, number in stages_of_inputs]
        columns = list_joined_columns(schemas, join)

        def arrangement(number: int, keys: tuple[str, ...], values: tuple[str, ...]) -> Arrangement:
            return self.share_arrangement(
                node, node.inputs[number], join.before[number], keys, values, schemas[number], operators
            )

        def partners(number: int, keys: tuple[str, ...]) -> float | None:
            statistics = self._estimate(node.inputs[number])
            remaining = None if statistics is None else statistics.apply_stages(join.before[number])
            return None if remaining is None else remaining.estimate_partners(keys)

        paths = JoinPaths(schemas, join.on, columns.names, arrangement, partners).make_paths()
        shape = compile_stages(join.after, columns, node.schema.names, self.domain, node.title)
        inputs = [path.start for path in paths]
        position, terms = self._make_position(node, inputs), find_bound(join, schemas)
        if terms is None or position.outer + position.depth > 1:
            operator = JoinOperator(position, paths, shape, null_equals=join.null_equals)
        else:
            operator = BoundedJoin(
                position, paths, shape, null_equals=join.null_equals, terms=terms, domain=self.domain
            )
        operator.moves_times = may_move_times(join.after)
        operator.origins = trace_columns(join.after, columns.names, node.schema.names)
        for number, path in enumerate(paths):
            for step in path.steps:
                # A look-up compares with times of future updates of the input that the path begins with.
                step.arrangement.add_reader(lambda at=inputs[number]: at.frontier)  # type: ignore[misc]
        return operator

    def _make_reduce(self, node: plans.Node, reduce: plans.Reduce, operators: list[Operator]) -> Operator:
        """Make the operator of a reduction, and the arrangement of its input."""
        input_schema = self._derive_schema(reduce.before, node.inputs[0], node)
        columns = pa.schema(
            [*(input_schema.field(name) for name in reduce.keys), *_list_logic_columns(reduce, input_schema)]
        )
        aggregates = _list_aggregates(reduce, input_schema, columns)
        is_accumulated = bool(aggregates) and all(aggregate.kind in ACCUMULABLE for aggregate in aggregates)
        is_complete = isinstance(reduce.logic, plans.Aggregates) and reduce.logic.is_complete
        if is_accumulated:
            arrangement = self._make_accumulation(node, reduce, aggregates, input_schema)
            operators.append(arrangement)
            logic, ranking = make_sum_logic(aggregates, self.domain, is_complete=is_complete), None
        else:
            arrangement = self.share_arrangement(
                node, node.inputs[0], reduce.before, reduce.keys, reduce.values, input_schema, operators
            )
            logic, ranking = self._make_logic(node, reduce, input_schema, aggregates)
        shape = compile_stages(reduce.after, columns, node.schema.names, self.domain, node.title)
        at = self._make_position(node, [arrangement])
        kind: type[ReduceOperator] = TotalReduce if at.outer + at.depth == 1 else PartialReduce
        operator = kind(at, arrangement, logic, columns, shape, self._allocate, ranking)
        arrangement.add_reader(lambda: operator.frontier)
        operator.moves_times = may_move_times(reduce.after)
        operator.origins = trace_columns(reduce.after, columns.names, node.schema.names)
        if is_accumulated and isinstance(operator, TotalReduce):
            self.graph.accumulations.append(Accumulation(node, operator, aggregates, is_complete))
        if isinstance(reduce.logic, plans.TopK) and not reduce.logic.skip and isinstance(operator, TotalReduce):
            operator.limit = reduce.logic.count
            self.graph.limits[operator] = node
        return operator

    def _make_accumulation(
        self, node: plans.Node, reduce: plans.Reduce, requests: list[AggregateCall], input_schema: pa.Schema
    ) -> Arrangement:
        """Return the arrangement of a reduction whose aggregates are sums."""
        source = self._skip_arranges(node.inputs[0])
        # An aggregate that only counts records has no word.
        outputs = reduce.logic.outputs if isinstance(reduce.logic, plans.Aggregates) else ()
        values = [of for (_, _, of), aggregate in zip(outputs, requests, strict=True) if not aggregate.is_counted]
        names = [*reduce.keys, *values]
        shape = compile_stages(reduce.before, self.plan.nodes[source].schema, names, self.domain, node.title)
        keys = len(reduce.keys)
        schema = pa.schema([*(input_schema.field(name) for name in reduce.keys), ("slot", pa.int64())])

        def slots(updates: Ints) -> Ints:
            return explode_to_slots(shape(updates), keys, requests, self.domain)

        arrangement = self._make_arrangement(node, source, keys, 1, slots, schema, adds_up=True)
        arrangement.moves_times = may_move_times(reduce.before)
        arrangement.origins = (*trace_columns(reduce.before, self.plan.nodes[source].schema.names, reduce.keys), None)
        return arrangement

    def _make_logic(
        self, node: plans.Node, reduce: plans.Reduce, input_schema: pa.Schema, requests: list[AggregateCall]
    ) -> tuple[Logic, Ranking | None]:
        """Return the logic of a reduction, and the function that orders its large groups, if there is one."""
        values, domain, costs = select_fields(input_schema, reduce.values), self.domain, self._costs
        match reduce.logic:
            case plans.Distinct():
                return compute_distinct, None
            case plans.Threshold(function):
                return make_threshold_logic(function, node.title), None
            case plans.Aggregates():
                return make_multiset_logic(requests, domain), make_aggregate_ranking(requests, domain, costs)
            case plans.TopK(count, _, skip, _, counted):
                order = _make_order(reduce.logic, values)
                logic = make_top_k_logic(count, order, values.types, domain, skip=skip, counted=counted)
                return logic, make_top_ranking(count, skip, order, values.types, domain, counted, costs)
            case plans.Windowed(calls):
                logic = make_window_logic(calls, values, domain, costs)
                return logic, make_window_ranking(calls, values, domain, costs)
            case plans.Folded(calls):
                return make_fold_logic(calls, values, domain), make_fold_ranking(calls, values, domain, costs)
            case plans.UserReduce(function, columns):
                keys = select_fields(input_schema, reduce.keys)
                return make_user_logic(function, keys, values, columns, domain, node.title), None


def _make_order(top: plans.TopK, values: pa.Schema) -> list[tuple[int, bool, bool]]:
    """Return the order of a group's records: columns, whether descending, and whether NULL comes first."""
    return [
        (values.get_field_index(name), down, name in top.nulls_first) for name, down in top.by if name in values.names
    ]


def list_joined_columns(schemas: Sequence[pa.Schema], join: plans.Join) -> pa.Schema:
    """Return the columns of a join before the stages after it."""
    fields = list(schemas[0])
    for schema, pairs in zip(schemas[1:], join.on, strict=True):
        keys = {right_name for _, right_name in pairs}
        fields += [column for column in schema if column.name not in keys]
    return pa.schema(fields)


def _list_logic_columns(reduce: plans.Reduce, input_schema: pa.Schema) -> list[pa.Field]:
    """Return the columns that a reduction computes, without its group keys."""
    match reduce.logic:
        case plans.Aggregates(outputs):
            return [
                pa.field(name, find_result_type(kind, input_schema.field(of).type, name)) for name, kind, of in outputs
            ]
        case plans.TopK():
            return [input_schema.field(name) for name in reduce.values]
        case plans.Windowed(calls):
            every = [input_schema.field(name) for name in reduce.values]
            return [*every, *(pa.field(call.name, call.result) for call in calls)]
        case plans.Folded(calls):
            return [pa.field(call.name, call.result) for call in calls]
        case plans.UserReduce(_, columns):
            return list(columns)
    return []


def _list_aggregates(reduce: plans.Reduce, input_schema: pa.Schema, columns: pa.Schema) -> list[AggregateCall]:
    """Return the aggregate calls of a reduction; none for other logic.

    If the map before the reduction computes an integer constant as an argument, the call has this constant.
    """
    if not isinstance(reduce.logic, plans.Aggregates):
        return []
    constants = {}
    for stage in reduce.before[-1:]:
        if isinstance(stage, Map):
            constants = {
                name: term.value.as_py()
                for name, term in stage.outputs
                if isinstance(term, Lit) and type(term.value.as_py()) is int
            }
    return [
        AggregateCall(name, kind, input_schema.field(of).type, columns.field(name).type, constants.get(of))
        for name, kind, of in reduce.logic.outputs
    ]
