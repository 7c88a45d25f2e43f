"""A program that goes on from sealed outputs and reads of its sources only what its changes touch.

Its arrangements are made partial (`persist.compute.dataflow.operators.arrangement`), and what they request ends here:

    a source          reads the parts that may hold the keys (`persist.compute.dataflow.ports.past`)
    a stored output   is read where another operator requests what an output holds
    a stored group    is the state of counts and sums, where an output shows them: nothing below is read for it

A stored group is the state of its reduction if the output has a count of its records, and each sum has a count of its
values, or no value can be NULL. The state is linear in the records, so what is new is added to it. A group that is not
in the output may still have records whose multiplicities add up to zero, and so may the values of a sum that is NULL.
Where an output keeps groups whole (`Aggregates.is_complete`), it shows these, too. Otherwise the records of such a
group are requested, unless no source ever had a negative multiplicity.

All sources are read as of one time, the last one that the program has taken in. So every pass takes in the same times
of each source, and what an operator requests is exactly what it would hold if it had been running all the time.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from persist.codecs.order.sums import whole_numbers
from persist.compute.dataflow.operators.aggregates import NULLS, SLOTS, Wanted, whole_slots
from persist.compute.dataflow.operators.arrangement import Arrangement
from persist.compute.dataflow.operators.join import JoinOperator
from persist.compute.dataflow.operators.operators import EntryOperator, Operator, SinkOperator
from persist.compute.dataflow.operators.reduce import TotalReduce
from persist.compute.dataflow.plan.origin import reads_time
from persist.compute.dataflow.plan.plan import (
    ROOT,
    Aggregates,
    Arrange,
    Concat,
    Consolidate,
    Constant,
    Join,
    Linear,
    Node,
    Persist,
    Plan,
    Reduce,
    Source,
    Stages,
)
from persist.compute.dataflow.plan.stages import (
    Explode,
    Filter,
    FilterFunction,
    FlatMap,
    Map,
    Negate,
    move_times,
)
from persist.compute.dataflow.ports.output import Output
from persist.compute.dataflow.ports.past import Past, Reading
from persist.compute.dataflow.ports.sources import SourceReader
from persist.compute.dataflow.updates.batch import Keys, Layout, to_batch
from persist.compute.dataflow.updates.times import Flags, Ints
from persist.compute.dataflow.updates.words import NULL, Domain
from persist.core.expression.term import Call, Col, Lit, Term, calls

SUMS = ("sum", "wide_sum")
STRICT = ("add", "subtract", "multiply", "cast")  # Of values these give a value, or fail.
OPERATORS = Source | Constant | Linear | Concat | Consolidate | Join | Reduce | Arrange | Persist


def why_whole(plan: Plan) -> str | None:
    """Return why a program cannot go on without all of its sources; None if it can."""
    if plan.dimensions != 1:
        return f"its times have {plan.dimensions} dimensions"
    for node in plan.nodes.values():
        if node.scope != ROOT:
            return f"{node.title} is recursive"
        if not isinstance(node.operator, OPERATORS):
            return f"{node.title} lives in the program that runs it"
        if move_times(_every_stage(node)):
            return f"{node.title} changes by itself as time goes on"
    return "it looks at the times of updates" if reads_time(plan) else None


def _every_stage(node: Node) -> Stages:
    match node.operator:
        case Linear(stages):
            return stages
        case Join(_, before, after):
            return (*(stage for stages in before for stage in stages), *after)
        case Reduce(_, _, _, before, after):
            return (*before, *after)
    return ()


@dataclass(frozen=True, slots=True)
class Accumulation:
    """A reduction whose state are sums.

    Attributes:
        node: of the plan.
        operator: that runs it.
        aggregates: its columns behind the key.
        is_complete: a group is there while one of them is not zero.
    """

    node: Node
    operator: TotalReduce
    aggregates: Sequence[Wanted]
    is_complete: bool


@dataclass
class Partial:
    """The partial state of a running program.

    Attributes:
        as_of: what its requests read is what collections held as of this time.
        sources: what reads each source.
        pasts: these, and what reads outputs.
    """

    as_of: int
    sources: list[Past] = field(default_factory=list)
    pasts: list[Past] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        plan: Plan,
        operators: Sequence[Operator],
        entries: Mapping[int, EntryOperator],
        accumulations: Sequence[Accumulation],
        readers: Mapping[int, SourceReader],
        outputs: Sequence[Output],
        domain: Domain,
        as_of: int,
    ) -> "Partial":
        """Make all arrangements of a program partial, and let them request what they need."""
        made = cls(as_of)
        pasts: dict[int, Past] = {}
        for number, entry in entries.items():
            node = plan.nodes[number]
            if isinstance(node.operator, Constant):
                entry.stored = partial(_constants, domain, node.operator.table.select(node.schema.names))
                continue
            past = Past(plan.name, node.title, readers[number].handle, node.schema, domain, as_of)
            pasts[number] = past
            made.sources.append(past)
            made.pasts.append(past)
            entry.stored = past.contents
            entry.has_few = partial(getattr, past, "is_small")
        for operator in operators:
            if isinstance(operator, Arrangement):
                operator.become_partial()
        by_operator = {accumulation.operator: accumulation for accumulation in accumulations}
        positive = _Positive(plan, pasts)
        for output in outputs:
            output.handle = replace(output.handle, is_kept=True)  # What is read of it is read in no time.
            operator = output.sink.inputs[0]
            if isinstance(operator, EntryOperator) or output.corrects or output.compares or output.upper <= as_of:
                continue
            stored = _Stored(
                made,
                operator,
                output,
                Past(
                    plan.name,
                    f"output {output.handle.name}",
                    output.handle,
                    output.sink.schema,
                    domain,
                    as_of,
                ),
            )
            made.pasts.append(stored.past)
            operator.stored = stored.contents
            accumulation = by_operator.get(operator) if isinstance(operator, TotalReduce) else None
            if accumulation is not None and (seeds := _seeds(stored, accumulation, plan, positive, domain)) is not None:
                accumulation.operator.arrangement.seeds = seeds.updates
        return made

    def move(self, as_of: int) -> None:
        """Let requests read as of a later time, up to which the program has taken in its sources."""
        self.as_of = as_of
        for past in self.pasts:
            past.move(as_of)

    def begin(self, *, refuses: bool) -> None:
        """Begin a refresh: forget what the one before has read.

        Args:
            refuses: whether to refuse to read all of a source that is not small.
        """
        for past in self.pasts:
            past.readings = []
        for past in self.sources:
            past.refuses = refuses

    @property
    def readings(self) -> list[Reading]:
        """What was read since the refresh began."""
        return [reading for past in self.pasts for reading in past.readings]

    def close(self) -> None:
        """Stop reading."""
        for past in self.pasts:
            past.close()


def requested_columns(
    plan: Plan,
    operators: Sequence[Operator],
    entries: Mapping[int, EntryOperator],
    accumulated: Set[Operator],
) -> set[tuple[str, tuple[str, ...]]]:
    """Return the collections of a plan, each with columns by which its refreshes may request records of it.

    What a reduction requests of a source that it reads itself is left out: only the data tell whether that is much.

    Args:
        operators, entries: that run the plan.
        accumulated: reductions whose state are sums, which an output mostly shows.
    """
    found: set[tuple[str, tuple[str, ...]]] = set()
    nodes = {entry: plan.nodes[number] for number, entry in entries.items()}

    def request(operator: Operator, columns: tuple[int, ...]) -> None:
        requested = Keys(columns, np.empty((len(columns), 0), np.int64))
        keys = requested.traced(operator.origins)[0] if operator.origins else requested
        match operator:
            case EntryOperator():
                node = nodes[operator]
                if isinstance(node.operator, Source):
                    names = (node.schema.names[column] for column in columns)
                    found.add((node.operator.collection, tuple(sorted(names))))
            case JoinOperator():
                path, own = operator.path_of(requested)
                if own is not None:
                    request(path.start, own.columns)
            case TotalReduce():
                own_keys = tuple(column for column in (keys.columns if keys else ()) if column < operator.keys)
                if own_keys:
                    request(operator.arrangement, own_keys)
            case _ if keys is not None:
                for source in operator.inputs:
                    request(source, keys.columns)

    stored = {operator.inputs[0] for operator in operators if isinstance(operator, SinkOperator)}
    for operator in operators:
        match operator:
            case JoinOperator():
                for path in operator.paths:
                    for step in path.steps:
                        if step.keys:
                            request(step.arrangement, tuple(range(len(step.keys))))
            case TotalReduce() if operator.keys and not (
                isinstance(operator.arrangement.inputs[0], EntryOperator)
                or (operator in stored and operator in accumulated)
            ):
                request(operator.arrangement, tuple(range(operator.keys)))
    return found


def _constants(domain: Domain, table: pa.Table, keys: Keys | None) -> Ints:
    """Return constants for some keys. Nothing keeps their words, so they are encoded at each request."""
    rows = [domain.encode(column) for column in table.columns]
    count = table.num_rows
    updates = np.array([*rows, np.zeros(count, np.int64), np.ones(count, np.int64)], np.int64)
    return updates if keys is None else updates[:, keys.selects(updates)]


class _Stored:
    """An output of an operator in its collection, where that can be read as of the time."""

    def __init__(self, partial: Partial, operator: Operator, output: Output, past: Past) -> None:
        self.partial, self.past = partial, past
        self._operator, self._output = operator, output

    @property
    def is_readable(self) -> bool:
        """Whether the collection holds what the operator gave up to now."""
        contents = self._output.handle.known()
        return contents.since <= self.partial.as_of < contents.upper

    def contents(self, keys: Keys | None) -> Ints:
        """Return the contents of the operator's output for some keys."""
        return self.past.contents(keys) if self.is_readable else self._operator.computed(keys)

    def records(self, keys: Keys) -> Ints:
        """Return the same as one update of each record."""
        updates = self.past.contents(None if not keys.columns else keys)
        return to_batch(updates, Layout(len(updates) - 2, 0, 1))[1:]


def _seeds(
    stored: _Stored, accumulation: Accumulation, plan: Plan, positive: "_Positive", domain: Domain
) -> "_Seeds | None":
    """Return what reads the state of a reduction from its output; None if that does not show enough."""
    node, operator, aggregates = accumulation.node, accumulation.operator, accumulation.aggregates
    assert isinstance(node.operator, Reduce)
    assert isinstance(node.operator.logic, Aggregates)
    places = {column: at for at, column in enumerate(operator.origins) if column is not None}  # In the output.
    width = operator.keys
    if not all(isinstance(stage, Map) for stage in node.operator.after):
        return None  # A filter hides groups.
    if not all(at in places for at in range(width)):
        return None
    shown = {number: places[width + number] for number in range(len(aggregates)) if width + number in places}
    records = next(
        (n for n, one in enumerate(aggregates) if one.is_counted and one.kind == "count" and n in shown), None
    )
    if records is None:
        return None
    columns = [value for _, _, value in node.operator.logic.outputs]
    last = node.operator.before[-1] if node.operator.before else None
    terms = dict(last.outputs) if isinstance(last, Map) else {}
    values = [str(terms.get(column, column)) for column in columns]  # Several columns may be copies of one.
    slots: list[_Slot] = []
    for number, one in enumerate(aggregates):
        if one.is_counted:
            continue
        counts = [
            n
            for n, other in enumerate(aggregates)
            if other.kind == "count" and values[n] == values[number] and n in shown
        ]
        is_never_null = not counts and not accumulation.is_complete and positive.is_never_null(node, columns[number])
        count = counts[0] if counts else records if is_never_null else None
        if one.kind == "count":
            if number not in shown:
                return None
            slots.append(_Slot(number, None, shown[number], None, None))
            continue
        if one.kind == "total":
            if number not in shown:
                return None
            slots.append(_Slot(number, shown[number], None, one.result, None))
            continue
        sums = [
            n for n, other in enumerate(aggregates) if other.kind in SUMS and values[n] == values[number] and n in shown
        ]
        if not sums or count is None or one.kind not in (*SUMS, "mean") or not _is_exact(one.of):
            return None
        slots.append(
            _Slot(
                number,
                shown[sums[0]],
                shown[count],
                aggregates[sums[0]].result,
                columns[number] if is_never_null else None,
            )
        )
    return _Seeds(
        stored, tuple(places[at] for at in range(width)), shown[records], slots, accumulation, positive, domain
    )


@dataclass(frozen=True, slots=True)
class _Slot:
    """Where an output shows the state of one aggregate.

    Attributes:
        number: of the aggregate.
        total: place of the sum of its values; None for a count.
        count: place of the number of its values that are not NULL; None if the state has no use for it.
        kind: type of the sum.
        value: column of the values, if the count is that of the records because no value is NULL.
    """

    number: int
    total: int | None
    count: int | None
    kind: pa.DataType | None
    value: str | None


@dataclass(frozen=True, slots=True)
class _Seeds:
    """Reads the state of groups from an output.

    Attributes:
        keys: places of the key columns in the output.
        records: place of the number of records.
    """

    stored: _Stored
    keys: tuple[int, ...]
    records: int
    slots: Sequence[_Slot]
    accumulation: Accumulation
    positive: "_Positive"
    domain: Domain

    def updates(self, keys: Ints) -> Ints | None:
        """Return the state of some groups as updates of key words, slots, the time and sums.

        None if the output does not show it.
        """
        node, values = self.accumulation.node, [slot.value for slot in self.slots if slot.value is not None]
        if not self.stored.is_readable or not all(self.positive.is_never_null(node, value) for value in values):
            return None
        groups = self.stored.records(Keys(self.keys, keys))
        if groups.shape[1] and (groups[-1] != 1).any():
            return None
        counts = groups[self.records]
        rows = [np.arange(groups.shape[1])]
        slots, amounts = [np.zeros(groups.shape[1], np.int64)], [counts]
        is_hidden = np.zeros(groups.shape[1], np.bool_)
        for slot in self.slots:
            base = 1 + slot.number * SLOTS
            if slot.count is not None:
                nulls = counts - groups[slot.count]
                rows.append(np.flatnonzero(nulls))
                slots.append(np.full(len(rows[-1]), base + NULLS))
                amounts.append(nulls[rows[-1]])
            if slot.total is None:
                continue
            assert slot.kind is not None
            words = groups[slot.total]
            is_hidden |= words == NULL
            places = np.flatnonzero(words != NULL)
            totals = whole_numbers(pa.chunked_array([self.domain.decode(words[places], slot.kind)])).astype(object)
            which, into, amount = whole_slots(totals)
            rows.append(places[which])
            slots.append(into + base)
            amounts.append(amount)
        every = np.concatenate(rows)
        state = np.empty((len(self.keys) + 3, len(every)), np.int64)
        for row, place in enumerate(self.keys):
            state[row] = groups[place].take(every)
        state[-3], state[-2], state[-1] = np.concatenate(slots), self.stored.partial.as_of, np.concatenate(amounts)
        if self.accumulation.is_complete:
            return state
        hidden = self._hidden_keys(keys, groups, is_hidden)
        if not hidden.shape[1]:
            return state
        rest = Keys(tuple(range(len(self.keys))), hidden)
        requested = self.accumulation.operator.arrangement.computed(rest)
        return np.concatenate((state[:, ~rest.selects(state)], requested), axis=1)

    def _hidden_keys(self, keys: Ints, groups: Ints, is_hidden: Flags) -> Ints:
        """Return the keys whose groups the output does not show, or not whole."""
        shown = groups.take(self.keys, axis=0)
        if self.positive.is_positive(self.accumulation.node):
            return shown[:, :0]
        is_missing = ~Keys(tuple(range(len(shown))), shown).selects(keys)
        return np.concatenate((keys[:, is_missing], shown[:, is_hidden]), axis=1)


def _is_exact(kind: pa.DataType) -> bool:
    """Whether sums of such values are exact, so that a sum of sums loses nothing."""
    return bool((pat.is_integer(kind) and not pat.is_uint64(kind)) or pat.is_decimal128(kind))


class _Positive:
    """Tells what descriptors of parts say of streams: whether values may be NULL, or multiplicities negative."""

    def __init__(self, plan: Plan, pasts: Mapping[int, Past]) -> None:
        self._plan, self._pasts = plan, pasts

    def is_positive(self, node: Node) -> bool:
        """Return whether no group of a reduction can have had records of negative multiplicity."""
        left, seen = [*node.inputs], set[int]()
        while left:
            number = left.pop()
            if number in seen:
                continue
            seen.add(number)
            below = self._plan.nodes[number]
            if any(isinstance(stage, Negate | Explode | FlatMap) for stage in _every_stage(below)):
                return False
            match below.operator:
                case Source():
                    if not self._pasts[number].is_positive:
                        return False
                case Constant() | Linear() | Join() | Concat() | Consolidate() | Arrange():
                    pass
                case _:
                    return False
            left += below.inputs
        return not any(isinstance(stage, Negate | Explode | FlatMap) for stage in _every_stage(node))

    def is_never_null(self, node: Node, column: str) -> bool:
        """Return whether a column that a reduction aggregates cannot be NULL."""
        assert isinstance(node.operator, Reduce)
        return self._after(node.operator.before, self._plan.nodes[node.inputs[0]], {column})

    def _after(self, stages: Stages, node: Node, columns: set[str]) -> bool:
        """Return whether columns after some stages, of what a node gives, cannot be NULL."""
        read = _columns_before(stages, columns)
        return read is not None and all(self._is_column_never_null(node, column) for column in read)

    def _is_column_never_null(self, node: Node, column: str) -> bool:
        below = [self._plan.nodes[number] for number in node.inputs]
        match node.operator:
            case Source():
                return not self._pasts[node.number].may_be_null(column)
            case Linear(stages):
                return self._after(stages, below[0], {column})
            case Concat() | Consolidate() | Arrange():
                return all(self._is_column_never_null(source, column) for source in below)
            case Join(on, before, after):
                read = _columns_before(after, {column})
                return read is not None and all(self._is_joined_never_null(below, on, before, name) for name in read)
        return False

    def _is_joined_never_null(
        self, below: Sequence[Node], on: Sequence[Sequence[tuple[str, str]]], before: Sequence[Stages], column: str
    ) -> bool:
        for source, pairs, stages in zip(below, ((), *on), before, strict=True):
            names = {name for stage in stages[-1:] if isinstance(stage, Map) for name, _ in stage.outputs}
            names = names or {*source.schema.names}
            if column in names and column not in {other for _, other in pairs}:
                return self._after(stages, source, {column})
        return False


def _columns_before(stages: Stages, columns: set[str]) -> set[str] | None:
    """Return the columns before some stages of which others are NULL only if one of those is; None if not known."""
    for stage in reversed(stages):
        if isinstance(stage, Map):
            read = _columns_of_strict(dict(stage.outputs), columns)
            if read is None:
                return None
            columns = read
        elif not isinstance(stage, Filter | FilterFunction):
            return None
    return columns


def _columns_of_strict(outputs: Mapping[str, Term], columns: set[str]) -> set[str] | None:
    """Return the columns of which some results are made so that they are NULL only if one of those is; else None."""
    names, left = set[str](), [outputs.get(name) for name in columns]
    while left:
        match left.pop():
            case Col(name):
                names.add(name)
            case Lit(value) if value.is_valid:
                pass
            case Call(_, arguments) as call if calls(call, *STRICT):
                left += arguments
            case _:
                return None
    return names
