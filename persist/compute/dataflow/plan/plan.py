"""A program as a data structure: nodes that name their operator, their inputs, their columns and their scope.

A plan can be printed, rewritten (`persist.compute.dataflow.plan.optimise`) and run
(`persist.compute.dataflow.running.graph`); it holds no running state, and building it reads and writes nothing. An
operator is one of the classes below; linear ones are the stages of a `Linear`. Joins and reductions can carry stages on
their inputs and on their output, where the optimiser puts them.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import pyarrow as pa

from persist.compute.dataflow.plan.stages import Stage, describe_function
from persist.core.timeline import Moment

ROOT = 0
Stages = tuple[Stage, ...]
Bound = tuple[str, int] | None


@dataclass(frozen=True, slots=True)
class Source:
    """A persisted collection: a snapshot, then its changes.

    Attributes:
        unsealed: its records are passed on before their time is sealed. Complete results do not depend on this, so it
            does not count when sources are compared.
        written: the running program receives its updates beyond the upper, and commits them.
    """

    collection: str
    as_of: int | Moment | None = None
    unsealed: bool = field(default=False, compare=False)
    written: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Input:
    """Updates that a user inserts into the running program, in memory."""

    name: str
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Constant:
    """Records that are there from the first time on, once each; for ever complete."""

    table: pa.Table


@dataclass(frozen=True, slots=True)
class Upper:
    """How far a persisted collection is sealed; it has no records."""

    collection: str


@dataclass(frozen=True, slots=True)
class SealedWith:
    """The records of the first input, complete only as far as all inputs are."""


@dataclass(frozen=True, slots=True)
class Linear:
    """Linear stages, applied in order."""

    stages: Stages


@dataclass(frozen=True, slots=True)
class Concat:
    """All updates of all inputs."""


@dataclass(frozen=True, slots=True)
class Consolidate:
    """The same updates, summed per record and time, once they are complete."""


@dataclass(frozen=True, slots=True)
class Join:
    """Pairs of records that agree in key: the columns of the left, then the columns of the right without its key.

    With more than two inputs it is a delta join: a change of one input looks up all others in sequence, in arrangements
    of the inputs themselves.

    Attributes:
        on: for the second and each later input, pairs (column of the inputs before it, column of it).
        before: per input, stages that come before the arrangement.
        after: stages that come after.
        null_equals: whether NULL equals NULL in the keys; else it equals nothing.
    """

    on: tuple[tuple[tuple[str, str], ...], ...]
    before: tuple[Stages, ...] = ((), ())
    after: Stages = ()
    null_equals: bool = False


@dataclass(frozen=True, slots=True)
class Distinct:
    """Each record once, if its multiplicity is positive."""


@dataclass(frozen=True, slots=True)
class Threshold:
    """Each record with a multiplicity that a function computes from its multiplicity."""

    function: Callable[[int], int]


@dataclass(frozen=True, slots=True)
class Aggregates:
    """One record per key, with aggregates of value columns.

    Attributes:
        outputs: (column, kind, value column).
        is_complete: the outputs are counts and totals that determine a group's state: it exists while one is not zero.
    """

    outputs: tuple[tuple[str, str, str], ...]
    is_complete: bool = False


@dataclass(frozen=True, slots=True)
class Clamped:
    """A function of a multiplicity: subtract `less`, then clamp to 0 and `most`."""

    less: int = 0
    most: int | None = None

    def __call__(self, count: int) -> int:
        count = max(0, count - self.less)
        return count if self.most is None else min(count, self.most)


Counted: TypeAlias = Literal["row_number", "rank", "dense_rank"]


@dataclass(frozen=True, slots=True)
class TopK:
    """The first `count` records of each key in an order, after `skip` others; a record counts once per copy.

    Attributes:
        by: columns, and whether each is descending.
        nulls_first: columns of which NULL comes first.
        counted: what `count` limits; by rank, records with equal ranks are selected or left out together.
    """

    count: int
    by: tuple[tuple[str, bool], ...]
    skip: int = 0
    nulls_first: tuple[str, ...] = ()
    counted: Counted = "row_number"


@dataclass(frozen=True, slots=True)
class WindowFunction:
    """One column that a window function adds, or an aggregate of a key's records in an order.

    Attributes:
        name, result: the name and the type of the column.
        arguments: the columns that the function reads.
        number: the number that some functions take, such as the rows of `lag` or the buckets of `ntile`.
        by: the order of the partition: columns, whether each is descending, and whether NULL comes first.
        start, end: the bounds of the frame, both inclusive: (mode, offset). "rows" counts rows, and "groups" groups of
            peers. "range" with 0 includes all peers of the row, and "value" ends at the value of a column of the row.
            None is the end of the partition.
        start_at, end_at: the column of a bound by "value"; it has the type of the only column of the order.
        exclude: which rows of the frame are left out: "current row", "group", "ties"; empty for none.
        within: the order of the rows of a frame, if it differs from the order of the partition; as `by`.
        where: a boolean column; rows of which it is not true are left out.
        is_distinct: rows that agree in the arguments are one.
        ignores_nulls: rows with an argument that is NULL are left out.
        constants: the function's constant arguments, such as the shares of quantiles.
    """

    name: str
    function: str
    result: pa.DataType
    arguments: tuple[str, ...] = ()
    number: int = 1
    by: tuple[tuple[str, bool, bool], ...] = ()
    start: Bound = None
    end: Bound = None
    start_at: str = ""
    end_at: str = ""
    exclude: str = ""
    within: tuple[tuple[str, bool, bool], ...] = ()
    where: str = ""
    is_distinct: bool = False
    ignores_nulls: bool = False
    constants: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Windowed:
    """Each record with the results of window functions over its key; see `operators.windows`."""

    calls: tuple[WindowFunction, ...]


@dataclass(frozen=True, slots=True)
class Folded:
    """One record per key with aggregates of its records in an order; see `operators.folds`."""

    calls: tuple[WindowFunction, ...]


@dataclass(frozen=True, slots=True)
class UserReduce:
    """The results of a Python function for a key and its records with their multiplicities."""

    function: Callable[[Any, Any], Any]
    columns: pa.Schema


Logic = Distinct | Threshold | Aggregates | TopK | Windowed | Folded | UserReduce


@dataclass(frozen=True, slots=True)
class Reduce:
    """The results of a logic for each key's records.

    Attributes:
        keys, values: columns of the input, after the stages `before`.
    """

    keys: tuple[str, ...]
    values: tuple[str, ...]
    logic: Logic
    before: Stages = ()
    after: Stages = ()


@dataclass(frozen=True, slots=True)
class Arrange:
    """Keep an index of the input by key, which joins and reductions by that key share."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Enter:
    """Bring a collection into a scope: it is there from its first iteration on.

    `at`: the column with the first iteration of each record, which the result lacks; None: iteration 0 for all.
    """

    at: str = ""


@dataclass(frozen=True, slots=True)
class Leave:
    """Bring the fixed point of an iteration out of its scope."""


@dataclass(frozen=True, slots=True)
class Variable:
    """The output of the node `feedback` in the previous iteration of a scope."""

    name: str
    feedback: int | None = None


@dataclass(frozen=True, slots=True)
class Inspect:
    """Call a function with each batch of updates that passes, as a pa.Table."""

    function: Callable[[pa.Table], object]


@dataclass(frozen=True, slots=True)
class Probe:
    """Report how far the input is complete."""

    name: str


@dataclass(frozen=True, slots=True)
class Capture:
    """Keep the complete updates of the input in memory. `early`: also show updates whose time is not complete."""

    name: str
    early: bool = False


@dataclass(frozen=True, slots=True)
class Persist:
    """Write the complete updates of the input to a collection, and seal it."""

    collection: str
    keys: tuple[str, ...]


Operator = (
    Source
    | Input
    | Constant
    | Upper
    | SealedWith
    | Linear
    | Concat
    | Consolidate
    | Join
    | Reduce
    | Arrange
    | Enter
    | Leave
    | Variable
    | Inspect
    | Probe
    | Capture
    | Persist
)
ENDS = (Probe, Capture, Persist, Inspect)


@dataclass(frozen=True, slots=True)
class Node:
    """One operator of a plan.

    Attributes:
        inputs: numbers of other nodes.
        scope: number of the scope it is in.
    """

    number: int
    operator: Operator
    inputs: tuple[int, ...]
    schema: pa.Schema
    scope: int = ROOT
    name: str = ""

    @property
    def title(self) -> str:
        """The name of the operator in messages."""
        return self.name or f"{type(self.operator).__name__.lower()}#{self.number}"


@dataclass(frozen=True, slots=True)
class ScopeInfo:
    """A scope of iteration. `depth`: the number of coordinates of its times, besides the program's."""

    number: int
    parent: int
    name: str
    limit: int
    depth: int


@dataclass
class Plan:
    """All nodes and scopes of a program."""

    name: str
    dimensions: int
    nodes: dict[int, Node] = field(default_factory=dict)
    scopes: dict[int, ScopeInfo] = field(default_factory=lambda: {ROOT: ScopeInfo(ROOT, ROOT, "root", 0, 0)})

    def add(
        self, operator: Operator, inputs: tuple[int, ...], schema: pa.Schema, scope: int = ROOT, name: str = ""
    ) -> Node:
        """Add a node and return it."""
        node = Node(1 + max(self.nodes, default=0), operator, inputs, schema, scope, name)
        self.nodes[node.number] = node
        return node

    def add_plan(self, other: "Plan", places: Mapping[int, int]) -> dict[int, int]:
        """Add another plan's nodes and scopes; return their new numbers.

        `places`: nodes of `other` that need not be added, with the numbers of their equals in this plan.
        """
        first, scopes = max(self.nodes, default=0), max(self.scopes)
        numbers = {number: places.get(number, first + number) for number in other.nodes}
        for info in other.scopes.values():
            if info.number != ROOT:
                parent = info.parent + scopes if info.parent != ROOT else ROOT
                number = info.number + scopes
                self.scopes[number] = ScopeInfo(number, parent, info.name, info.limit, info.depth)
        for node in other.nodes.values():
            if node.number in places:
                continue
            operator = node.operator
            if isinstance(operator, Variable) and operator.feedback is not None:
                operator = Variable(operator.name, numbers[operator.feedback])
            inputs = tuple([numbers[source] for source in node.inputs])
            scope = node.scope + scopes if node.scope != ROOT else ROOT
            self.nodes[numbers[node.number]] = Node(
                numbers[node.number], operator, inputs, node.schema, scope, node.name
            )
        return numbers

    def replace_node(self, number: int, **changes: Any) -> Node:
        """Replace attributes of a node."""
        node = self.nodes[number] = replace(self.nodes[number], **changes)
        return node

    def find_readers(self) -> dict[int, list[int]]:
        """Return for each node the nodes that read it, feedback included."""
        readers: dict[int, list[int]] = {number: [] for number in self.nodes}
        for node in self.nodes.values():
            for source in list_incoming_edges(node):
                readers[source].append(node.number)
        return readers

    def drop_unused(self) -> "Plan":
        """Return the plan without nodes that no output, capture or probe needs."""
        todo, needed = [n.number for n in self.nodes.values() if isinstance(n.operator, ENDS)], set[int]()
        while todo:
            number = todo.pop()
            if number not in needed:
                needed.add(number)
                todo += list_incoming_edges(self.nodes[number])
        # Inputs stay, because users may insert into them.
        nodes = {n: node for n, node in self.nodes.items() if n in needed or isinstance(node.operator, Input)}
        return Plan(self.name, self.dimensions, nodes, dict(self.scopes))

    def __str__(self) -> str:
        return "\n".join(self._describe_nodes())

    def _describe_nodes(self) -> Iterator[str]:
        """Yield a heading, and a line that describes each node."""
        yield f"program {self.name!r}, times of {self.dimensions} dimension{'s' * (self.dimensions > 1)}"
        for node in self.nodes.values():
            indent = "  " * (1 + self.scopes[node.scope].depth)
            inputs = ", ".join(f"%{number}" for number in node.inputs)
            columns = ", ".join(f"{field.name}: {field.type}" for field in node.schema)
            named = f" as {node.name!r}" if node.name else ""
            yield f"{indent}%{node.number} = {describe_operator(node.operator)}({inputs}) -> [{columns}]{named}"


def list_stages(node: Node) -> Stages:
    """Return all linear stages that an operator carries."""
    match node.operator:
        case Linear(stages):
            return stages
        case Join(_, before, after):
            return (*(stage for stages in before for stage in stages), *after)
        case Reduce(_, _, _, before, after):
            return (*before, *after)
    return ()


def list_incoming_edges(node: Node) -> list[int]:
    """Return the nodes that a node reads, feedback included."""
    if isinstance(node.operator, Variable) and node.operator.feedback is not None:
        return [*node.inputs, node.operator.feedback]
    return list(node.inputs)


def list_sources(plan: Plan, output: str) -> set[str]:
    """Return the collections that an output depends on."""
    return {operator.collection for operator in _iterate_operators_before(plan, output) if isinstance(operator, Source)}


def find_early(plan: Plan) -> set[int]:
    """Return the sources and inputs that emit records before their time is complete."""
    begin = [n.number for n in plan.nodes.values() if isinstance(n.operator, Capture) and n.operator.early]
    watched = {node.number for node in _iterate_dependencies(plan, begin)}
    return watched | {n.number for n in plan.nodes.values() if isinstance(n.operator, Source) and n.operator.unsealed}


def has_inputs(plan: Plan, output: str) -> bool:
    """Return whether an output depends on inputs in memory, which are not stored."""
    return any(isinstance(operator, Input) for operator in _iterate_operators_before(plan, output))


def _iterate_operators_before(plan: Plan, output: str) -> Iterator[Operator]:
    """Return an iterator over the operators that an output depends on."""
    begin = [
        n.number for n in plan.nodes.values() if isinstance(n.operator, Persist) and n.operator.collection == output
    ]
    return (node.operator for node in _iterate_dependencies(plan, begin))


def _iterate_dependencies(plan: Plan, begin: list[int]) -> Iterator[Node]:
    """Yield some nodes, and all nodes that they depend on."""
    todo, visited = [*begin], set[int]()
    while todo:
        node = plan.nodes[todo.pop()]
        if node.number not in visited:
            visited.add(node.number)
            todo += list_incoming_edges(node)
            yield node


def describe_operator(operator: Operator) -> str:
    """Describe an operator for people, with its stages in brackets."""
    match operator:
        case Linear(stages):
            return f"linear[{_describe_stages(stages)}]"
        case Join(on, before, after, null_equals):
            pairs = " ; ".join(
                " & ".join(f"{left_name}={right_name}" for left_name, right_name in equal) or "all" for equal in on
            )
            kind = "join" if len(on) == 1 else "delta_join"
            kind += " null=null" * null_equals
            ahead = "".join(f", input {at}: [{_describe_stages(stages)}]" for at, stages in enumerate(before) if stages)
            return f"{kind}[{pairs}{ahead}{_describe_after(after)}]"
        case Reduce(keys, _, logic, before, after):
            ahead = f", input: [{_describe_stages(before)}]" if before else ""
            return f"reduce[by {', '.join(keys) or 'nothing'}: {_describe_logic(logic)}{ahead}{_describe_after(after)}]"
        case Source(collection, as_of, unsealed, written):
            when = ("" if as_of is None else f" as of {as_of}") + " unsealed" * unsealed + " written" * written
            return f"source[{collection!r}{when}]"
        case Input(name, _) | Variable(name, _) | Probe(name) | Capture(name):
            return f"{type(operator).__name__.lower()}[{name!r}]"
        case Constant(table):
            return f"constant[{table.num_rows} records]"
        case Upper(collection):
            return f"upper[{collection!r}]"
        case SealedWith():
            return "sealed with"
        case Arrange(keys):
            return f"arrange[by {', '.join(keys)}]"
        case Persist(collection, keys):
            return f"persist[{collection!r} by {', '.join(keys)}]"
        case Inspect(function):
            return f"inspect[{describe_function(function)}]"
        case Enter(at):
            return f"enter at {at}" if at else "enter"
    return type(operator).__name__.lower()


def _describe_stages(stages: Stages) -> str:
    """Return linear stages as text, in their order."""
    return " . ".join(map(str, stages))


def _describe_after(after: Stages) -> str:
    """Return the stages on an operator's output as text; nothing without stages."""
    return f", output: [{_describe_stages(after)}]" if after else ""


def _describe_logic(logic: Logic) -> str:
    """Return the logic of a reduction as text, such as `top 3 by delay`."""
    match logic:
        case Aggregates(outputs):
            return ", ".join(f"{name}={kind}({of})" for name, kind, of in outputs)
        case Threshold(function) | UserReduce(function, _):
            return f"{type(logic).__name__.lower()} {describe_function(function)}"
        case TopK(count, by, skip):
            after = f" after {skip}" if skip else ""
            return f"top {count}{after} by {', '.join(name + ' desc' * down for name, down in by)}"
        case Windowed(calls):
            return f"window {', '.join(call.function for call in calls)}"
        case Folded(calls):
            return f"fold {', '.join(f'{call.name}={call.function}' for call in calls)}"
    return "distinct"
