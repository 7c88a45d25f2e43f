"""States of groups, read from the outputs that show them.

A reduction of counts and sums keeps a few sums for each group. If an output stores its results, the output shows these
sums, so nothing below the reduction is read for them. A partial program reads the states of the groups that it looks
up. A program that loads its arrangements first reads all of them.

An output shows the state of a group if it has a count of the group's records. Each sum also needs a count of its
values, or values that are never NULL. The state is linear in the records, so new records are added to it. A group that
the output lacks may still have records whose multiplicities add up to zero, and so may the values of a sum that is
NULL. An output that keeps groups whole (`Aggregates.is_complete`) shows these as well. Otherwise the records of such
groups are requested, unless no source ever had a negative multiplicity.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from persist.compute.dataflow.operators.aggregates import NULLS, SLOTS, AggregateCall, split_values_by_kind
from persist.compute.dataflow.operators.reduce import TotalReduce
from persist.compute.dataflow.plan import plan as plans
from persist.compute.dataflow.plan.stages import Explode, Filter, FilterFunction, FlatMap, Map, Negate
from persist.compute.dataflow.ports.past import Past
from persist.compute.dataflow.updates.batch import Keys, Layout, to_batch
from persist.compute.dataflow.updates.times import Flags, Ints
from persist.compute.dataflow.updates.words import NULL, Domain
from persist.core.expression.term import Call, Col, Lit, Term, is_call

SUMS = ("sum", "wide_sum")
STRICT = ("add", "subtract", "multiply", "cast")  # Their result is NULL only if an argument is.


@dataclass(frozen=True, slots=True)
class Accumulation:
    """A reduction whose state consists of sums.

    Attributes:
        aggregates: the aggregates of its columns, which follow the key.
        is_complete: a group exists while one of them is not zero, even without records; see `Aggregates`.
    """

    node: plans.Node
    operator: TotalReduce
    aggregates: Sequence[AggregateCall]
    is_complete: bool


@dataclass(frozen=True, slots=True)
class _Slot:
    """Where an output shows the state of one aggregate.

    Attributes:
        total: place of the sum of its values; None for a count.
        count: place of the number of its values that are not NULL; None if the state does not need it.
        value: column of the values, if the count is the number of records; they must not be NULL then.
    """

    number: int
    total: int | None
    count: int | None
    kind: pa.DataType | None
    value: str | None


@dataclass(frozen=True, slots=True)
class Seeds:
    """Reads the state of groups from an output.

    Attributes:
        keys: places of the key columns in the output.
        records: place of the column that counts records, and how much each record adds to it.
        slots: places of the other aggregates.
    """

    past: Past
    keys: tuple[int, ...]
    records: tuple[int, int]
    slots: Sequence[_Slot]
    accumulation: Accumulation
    nulls: "NullsAndSigns"
    domain: Domain

    @classmethod
    def try_make(
        cls, past: Past, accumulation: Accumulation, plan: plans.Plan, nulls: "NullsAndSigns", domain: Domain
    ) -> "Seeds | None":
        """Return a reader of the state of a reduction, or None if its output does not show enough."""
        node, aggregates = accumulation.node, accumulation.aggregates
        assert isinstance(node.operator, plans.Reduce)
        width = accumulation.operator.keys
        places = {column: at for at, column in enumerate(accumulation.operator.origins) if column is not None}
        has_all_groups = all(isinstance(stage, Map) for stage in node.operator.after)
        if not has_all_groups or not places.keys() >= {*range(width)}:
            return None
        shown_places = {number: places[width + number] for number in range(len(aggregates)) if width + number in places}
        steps = {
            number: aggregate.constant if aggregate.kind == "sum" else 1
            for number, aggregate in enumerate(aggregates)
            if aggregate.is_counted and number in shown_places
        }
        number, step = next(((number, step) for number, step in steps.items() if step), (None, 0))
        if number is None or not step:
            return None
        slots = _find_slots(accumulation, shown_places, shown_places[number] if step == 1 else None)
        if slots is None:
            return None
        keys = tuple(places[at] for at in range(width))
        return cls(past, keys, (shown_places[number], step), slots, accumulation, nulls, domain)

    def read_states(self, keys: Ints | None) -> Ints | None:
        """Return the state of some groups, or all, as updates.

        None if the output does not show it, or cannot be read at the time.
        """
        node, values = self.accumulation.node, [slot.value for slot in self.slots if slot.value is not None]
        if not self.past.is_readable or not all(self.nulls.is_never_null(node, value) for value in values):
            return None
        updates = self.past.read(None if keys is None or not self.keys else Keys(self.keys, keys))
        groups = to_batch(updates, Layout(len(updates) - 2, 0, 1))[1:]
        place, step = self.records
        if groups.shape[1] and ((groups[-1] != 1).any() or (groups[place] % step).any()):
            return None
        counts = groups[place] // step
        rows = [np.arange(groups.shape[1])]
        slots, amounts = [np.zeros(groups.shape[1], np.int64)], [counts]
        is_hidden = np.zeros(groups.shape[1], np.bool_)
        for slot in self.slots:
            base = 1 + slot.number * SLOTS
            if slot.count is not None:
                nulls = counts - groups[slot.count]
                rows.append(nulls.nonzero()[0])
                slots.append(np.full(len(rows[-1]), base + NULLS))
                amounts.append(nulls[rows[-1]])
            if slot.total is None:
                continue
            assert slot.kind is not None
            words = groups[slot.total]
            is_hidden |= words == NULL
            places = (words != NULL).nonzero()[0]
            which, into, amount = split_values_by_kind("sum", words[places], slot.kind, self.domain)
            rows.append(places[which])
            slots.append(into + base)
            amounts.append(amount)
        every = np.concatenate(rows)
        state = np.empty((len(self.keys) + 3, len(every)), np.int64)
        for row, place in enumerate(self.keys):
            state[row] = groups[place].take(every)
        state[-3], state[-2], state[-1] = np.concatenate(slots), self.past.as_of, np.concatenate(amounts)
        return self._add_hidden_groups(state, keys, groups.take(self.keys, axis=0), is_hidden)

    def _add_hidden_groups(self, state: Ints, keys: Ints | None, groups: Ints, is_hidden: Flags) -> Ints | None:
        """Add the groups that the output does not show, or only in part, to a state.

        Args:
            groups: keys of the groups that the output shows.
            is_hidden: which of them have a sum that is NULL.
        """
        is_whole = keys is not None and groups.shape[1] == keys.shape[1] and not is_hidden.any()
        # A group without records has no state if there are only counts of them.
        if (
            self.accumulation.is_complete
            or not self.slots
            or is_whole
            or self.nulls.is_positive(self.accumulation.node)
        ):
            return state
        if keys is None:
            return None
        is_missing = ~Keys(tuple(range(len(groups))), groups).selects(keys)
        hidden = Keys(tuple(range(len(groups))), np.concatenate((keys[:, is_missing], groups[:, is_hidden]), axis=1))
        if not hidden.words.shape[1]:
            return state
        requested = self.accumulation.operator.arrangement.compute_contents(hidden)
        return np.concatenate((state[:, ~hidden.selects(state)], requested), axis=1)


@dataclass(frozen=True, slots=True)
class FirstRecords:
    """Reads the first records of groups from an output that shows them.

    Attributes:
        places: of the columns of these records in the output.
        keys: how many of these columns are the key.
    """

    past: Past
    places: tuple[int, ...]
    keys: int
    node: plans.Node
    nulls: "NullsAndSigns"

    @classmethod
    def try_make(
        cls, past: Past, operator: TotalReduce, node: plans.Node, nulls: "NullsAndSigns"
    ) -> "FirstRecords | None":
        """Return a reader of the results of a reduction, or None if its output does not show all of them."""
        assert isinstance(node.operator, plans.Reduce)
        places = {column: at for at, column in enumerate(operator.origins) if column is not None}
        shows_all = all(isinstance(stage, Map) for stage in node.operator.after)
        if not shows_all or len(places) < operator.out_layout.words:
            return None
        return cls(past, tuple(places[column] for column in sorted(places)), operator.keys, node, nulls)

    def read_records(self, keys: Ints) -> Ints | None:
        """Return the first records of some groups, as updates.

        None if the output cannot be read at the time, or groups may have records of negative multiplicity.
        """
        if not self.past.is_readable or not self.nulls.is_positive(self.node):
            return None
        requested = Keys(self.places[: self.keys], keys) if self.keys else None
        return self.past.read(requested).take([*self.places, -2, -1], axis=0)


def _find_slots(accumulation: Accumulation, shown: Mapping[int, int], records: int | None) -> list[_Slot] | None:
    """Return where an output shows its aggregates' sums; None if one is missing.

    Args:
        shown: the places of aggregates in the output, by their numbers.
        records: the place of the number of records, if it is there.
    """
    node, aggregates = accumulation.node, accumulation.aggregates
    assert isinstance(node.operator, plans.Reduce)
    assert isinstance(node.operator.logic, plans.Aggregates)
    columns = [value for _, _, value in node.operator.logic.outputs]
    last = node.operator.before[-1] if node.operator.before else None
    terms = dict(last.outputs) if isinstance(last, Map) else {}
    values = [str(terms.get(column, column)) for column in columns]  # Several columns may be copies of one.

    def find(number: int, *kinds: str) -> int | None:
        """Return the place of an aggregate of these kinds, of the same values."""
        numbers = (n for n in shown if aggregates[n].kind in kinds and values[n] == values[number])
        return next((shown[n] for n in numbers), None)

    slots: list[_Slot] = []
    for number, aggregate in enumerate(aggregates):
        if aggregate.is_counted:
            continue
        if aggregate.kind in ("count", "total"):
            if number not in shown:
                return None
            is_count = aggregate.kind == "count"
            total, count = (None, shown[number]) if is_count else (shown[number], None)
            slots.append(_Slot(number, total, count, None if is_count else aggregate.result, None))
            continue
        count, total = find(number, "count"), find(number, *SUMS)
        needs_values = count is None and not accumulation.is_complete
        count = records if needs_values else count
        if total is None or count is None or aggregate.kind not in (*SUMS, "mean") or not _is_exact(aggregate.of):
            return None
        kind = next(aggregates[n].result for n, place in shown.items() if place == total)
        slots.append(_Slot(number, total, count, kind, columns[number] if needs_values else None))
    return slots


def _is_exact(kind: pa.DataType) -> bool:
    """Return whether sums of such values are exact, so that a sum of sums loses nothing."""
    return bool((pat.is_integer(kind) and not pat.is_uint64(kind)) or pat.is_decimal128(kind))


class NullsAndSigns:
    """Proves by descriptors of parts that columns have no NULL, and that multiplicities are not negative.

    `pasts`: the reader of each source, by the number of its node.
    """

    def __init__(self, plan: plans.Plan, pasts: Mapping[int, Past]) -> None:
        self._plan, self._pasts = plan, pasts

    def is_positive(self, node: plans.Node) -> bool:
        """Return whether no group of a reduction can have had records of negative multiplicity."""
        todo, visited = [*node.inputs], {node.number}
        if any(isinstance(stage, Negate | Explode | FlatMap) for stage in plans.list_stages(node)):
            return False
        while todo:
            below = self._plan.nodes[todo.pop()]
            if below.number in visited:
                continue
            visited.add(below.number)
            if any(isinstance(stage, Negate | Explode | FlatMap) for stage in plans.list_stages(below)):
                return False
            if isinstance(below.operator, plans.Reduce) and isinstance(
                below.operator.logic, plans.Aggregates | plans.Distinct | plans.TopK
            ):
                continue  # Its results have positive multiplicities, whatever its records have.
            todo += below.inputs
            match below.operator:
                case plans.Source():
                    if not self._pasts[below.number].is_positive:
                        return False
                case (
                    plans.Constant()
                    | plans.Linear()
                    | plans.Join()
                    | plans.Concat()
                    | plans.Consolidate()
                    | plans.Arrange()
                ):
                    pass
                case _:
                    return False
        return True

    def is_never_null(self, node: plans.Node, column: str) -> bool:
        """Return whether a column that a reduction aggregates cannot be NULL."""
        assert isinstance(node.operator, plans.Reduce)
        return self._is_result_never_null(node.operator.before, self._plan.nodes[node.inputs[0]], column)

    def _is_result_never_null(self, stages: plans.Stages, node: plans.Node, column: str) -> bool:
        """Return whether a column after some stages on the output of a node cannot be NULL."""
        columns = _trace_null_columns(stages, {column})
        return columns is not None and all(self._is_column_never_null(node, name) for name in columns)

    def _is_column_never_null(self, node: plans.Node, column: str) -> bool:
        """Return whether a column is known to have no NULL."""
        inputs = [self._plan.nodes[number] for number in node.inputs]
        match node.operator:
            case plans.Source():
                return not self._pasts[node.number].may_be_null(column)
            case plans.Linear(stages):
                return self._is_result_never_null(stages, inputs[0], column)
            case plans.Concat() | plans.Consolidate() | plans.Arrange():
                return all(self._is_column_never_null(source, column) for source in inputs)
            case plans.Join(_, _, after):
                columns = _trace_null_columns(after, {column})
                return columns is not None and all(self._is_joined_never_null(node, name) for name in columns)
        return False

    def _is_joined_never_null(self, node: plans.Node, column: str) -> bool:
        """Return whether a join's column is known to have no NULL."""
        assert isinstance(node.operator, plans.Join)
        for number, pairs, stages in zip(node.inputs, ((), *node.operator.on), node.operator.before, strict=True):
            source = self._plan.nodes[number]
            last = stages[-1] if stages else None
            names = dict(last.outputs).keys() if isinstance(last, Map) else {*source.schema.names}
            if column in names and column not in {right_name for _, right_name in pairs}:
                return self._is_result_never_null(stages, source, column)
        return False


def _trace_null_columns(stages: plans.Stages, columns: set[str]) -> set[str] | None:
    """Return input columns, one of which is NULL if a result is; None if unknown."""
    for stage in reversed(stages):
        if isinstance(stage, Map):
            outputs = dict(stage.outputs)
            strict = _list_null_sources([outputs.get(name) for name in columns])
            if strict is None:
                return None
            columns = strict
        elif not isinstance(stage, Filter | FilterFunction):
            return None
    return columns


def _list_null_sources(terms: Sequence[Term | None]) -> set[str] | None:
    """Return the columns whose NULLs alone make terms NULL; None if unknown."""
    names, todo = set[str](), [*terms]
    while todo:
        match todo.pop():
            case Col(name):
                names.add(name)
            case Lit(value) if value.is_valid:
                pass
            case Call(_, arguments) as call if is_call(call, *STRICT):
                todo += arguments
            case _:
                return None
    return names
