"""What is known of how large sources are, so that joins look up first where few partners are to be found.

It is read from the descriptors of parts when a program is opened, without a request: how many rows there are, which
columns are a key, and between which bounds whole numbers lie, which says how many different ones there can be. It is
a hint. What a program computes does not depend on it, only in which order it looks things up.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import prod
from types import MappingProxyType
from typing import Any

from persist.codecs import Part
from persist.dataflow.plan.plan import Arrange, Consolidate, Join, Linear, Plan, Source
from persist.dataflow.plan.stages import Filter, Map
from persist.dataflow.plan.stages import Stage as LinearStage
from persist.engine import CollectionHandle, Engine, loaded
from persist.errors import CollectionNotFound
from persist.expression import Col
from persist.state import CollectionState

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
