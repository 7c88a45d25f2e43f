"""The stored groups of a view: hidden views with counts and totals, which a refresh reads instead of the inputs.

The state of a group cannot be derived from an answer with averages or shares, nor from the rows that a LIMIT leaves. So
a view that is made with `indexes="auto"` is cut at its aggregates. Each GROUP BY of counts, exact sums and means
becomes a view of the library's own, and its readers compute the original result from it:

    SELECT k, avg(v) FROM t GROUP BY k    =    SELECT k, mean(lower, upper, c) FROM groups WHERE n <> 0
    groups(k, n, c, lower, upper)         =    SELECT k, count(*), count(v), total(v % 2**62), total(v // 2**62) …

        name    .groups.<id of the view>.<number>
        key     the columns of the GROUP BY; without any, the number of records
        plan    an aggregate that is `complete` (`persist.compute.sql.algebra`)

All of these are outputs of one program and move in one commit with the view, as views that read each other do. Such a
view has the complete state of a group, even with negative multiplicities: a step continues from it exactly, and needs
no facts about the inputs (`persist.compute.dataflow.running.partial`). Its readers only need the last time, so its
history is given up at each commit. It goes when its view goes. It stays when its view gets another query that can use
the same groups; other groups of that query are not stored.

A GROUP BY with a sum of floats, which is rounded when it is read, or with a minimum, which does not determine its
successor, stays as it is. The same holds for an aggregate that reads a correlated subquery's columns: it is not a
relation by itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.types as pat

from persist.compute.sql import algebra
from persist.compute.sql.rows import make_null
from persist.compute.sql.types import to_arrow
from persist.core.expression.term import Lit, Place, Term, make_sql_call

TOTAL = "decimal(38,0)"
UNSTORED = ("interval", "null")
_ZERO = Lit(pa.scalar(0, pa.int64()))


@dataclass(frozen=True, slots=True)
class Groups:
    """The definition of a hidden view that stores an aggregate's groups.

    Attributes:
        name: the name of the collection.
        plan: the aggregate whose groups it stores.
        columns: the name and the type of each column.
        key: the names of its key columns.
    """

    name: str
    plan: algebra.Node
    columns: tuple[tuple[str, str], ...]
    key: tuple[str, ...]


def split_at_aggregates(
    plan: algebra.Node, prefix: str, kept: Sequence[Groups] | None = None
) -> tuple[algebra.Node, list[Groups]]:
    """Split a plan at its aggregates: the plan above, and the stored groups.

    Args:
        plan: a rewritten plan.
        prefix: the beginning of the groups' names, to which numbers are added.
        kept: existing views: the plan reads groups from these alone.
    """
    if any(isinstance(node, algebra.Temporal | algebra.Recursive) for node in algebra.iterate_nodes(plan)):
        return plan, []  # No step is taken of it.
    groups: list[Groups] = []

    def below(node: algebra.Node) -> algebra.Node:
        """Replace the aggregates of a relation from the bottom up."""
        node = algebra.replace_children(node, below)
        if not isinstance(node, algebra.Aggregate) or not _can_be_stored(node):
            return node
        if kept is not None:
            answer = _compute_from_groups(kept, node)
            groups.extend([] if answer is None or answer[1] in groups else [answer[1]])
            return node if answer is None else answer[0]
        groups_cut = _SplitAggregate(node, algebra.infer_types(node.input))
        groups.append(groups_cut.make_groups(f"{prefix}{len(groups)}"))
        return groups_cut.compute_aggregate(groups[-1])

    return below(plan), groups


def _compute_from_groups(kept: Sequence[Groups], node: algebra.Aggregate) -> tuple[algebra.Node, Groups] | None:
    """Return an aggregate computed from stored groups, and these; None if none suffice."""
    for groups in kept:
        stored = groups.plan
        if isinstance(stored, algebra.Aggregate) and (stored.input, stored.keys, stored.sets) == (
            node.input,
            node.keys,
            node.sets,
        ):
            candidate = _SplitAggregate(node, algebra.infer_types(node.input), [*stored.aggregates])
            if len(candidate.stored) == len(stored.aggregates):
                return candidate.compute_aggregate(groups), groups
    return None


def _can_be_stored(node: algebra.Aggregate) -> bool:
    """Return whether the groups of an aggregate can be stored."""
    input_types = algebra.infer_types(node.input)
    bound = {inner.number for inner in algebra.iterate_nodes(node.input) if isinstance(inner, algebra.Let)}
    return (
        bool(node.aggregates)
        and not node.complete
        and not node.groupings
        and node.sets == (tuple(range(len(node.keys))),)
        and not any(
            isinstance(inner, algebra.Ref) and inner.number not in bound for inner in algebra.iterate_nodes(node.input)
        )
        and not any(kind in UNSTORED for kind in algebra.infer_term_types(node.keys, input_types))
        and all(_is_determined(aggregation, input_types) for aggregation in node.aggregates)
    )


def _is_determined(aggregation: algebra.Aggregation, given: Sequence[str]) -> bool:
    """Return whether counts and integer sums determine an aggregate's result."""
    if aggregation.distinct or aggregation.order:
        return False
    if aggregation.function in ("count_star", "count"):
        return True
    if aggregation.function not in ("sum", "avg"):
        return False
    [kind] = algebra.infer_term_types(aggregation.arguments[:1], given)
    arrow = to_arrow(kind)
    return bool(pat.is_integer(arrow) or pat.is_boolean(arrow) or pat.is_decimal128(arrow))


@dataclass
class _SplitAggregate:
    """One aggregate in two parts: its stored groups, and the terms computed from them.

    Attributes:
        input_types: the types of its input.
        stored: the counts and totals that the hidden view stores, without repetitions.
    """

    node: algebra.Aggregate
    input_types: Sequence[str]
    stored: list[algebra.Aggregation] = field(default_factory=lambda: [algebra.Aggregation("count_star", "int64")])
    outputs: list[Term] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.outputs = [Place(at) for at in range(len(self.node.keys))]
        self.outputs += [self._rebuild_aggregate(aggregation) for aggregation in self.node.aggregates]

    def make_groups(self, name: str) -> Groups:
        """Return the stored groups as a view of a name."""
        keys = [(f"k{at}", kind) for at, kind in enumerate(algebra.infer_term_types(self.node.keys, self.input_types))]
        columns = (*keys, *((f"v{at}", aggregation.type) for at, aggregation in enumerate(self.stored)))
        plan = algebra.Aggregate(self.node.input, self.node.keys, tuple(self.stored), self.node.sets, complete=True)
        return Groups(name, plan, columns, tuple(key for key, _ in keys) or ("v0",))

    def compute_aggregate(self, groups: Groups) -> algebra.Node:
        """Return the aggregate's rows, computed from stored groups."""
        names, kinds = zip(*groups.columns, strict=True)
        is_there = make_sql_call("not_equal", pa.bool_(), Place(len(self.node.keys)), _ZERO)
        return algebra.Project(algebra.Filter(algebra.Scan(groups.name, names, kinds), is_there), tuple(self.outputs))

    def _rebuild_aggregate(self, aggregation: algebra.Aggregation) -> Term:
        """Return the term of an aggregate over counts and totals."""
        if aggregation.function == "count_star" and aggregation.where is None:
            n = Place(len(self.node.keys))
            return n if self.node.keys else make_sql_call("subtract", pa.int64(), n, Lit(pa.scalar(1, pa.int64())))
        if aggregation.function in ("count_star", "count"):
            return self._add_aggregate(aggregation.function, "int64", aggregation.arguments, aggregation.where)
        [value] = aggregation.arguments[:1]
        arrow = to_arrow(algebra.infer_term_types([value], self.input_types)[0])
        if not pat.is_decimal(arrow):
            value = make_sql_call("cast", pa.int8(), value) if pat.is_boolean(arrow) else value
            arrow = pa.decimal128(38, 0)
            value = make_sql_call("cast", arrow, value)
        count = self._add_aggregate("count", "int64", (value,), aggregation.where)
        limbs = [
            self._add_aggregate("total", TOTAL, (make_sql_call(f"{which}_limb", pa.int64(), value),), aggregation.where)
            for which in ("lower", "upper")
        ]
        kind = to_arrow(aggregation.type)
        if aggregation.function == "avg":
            scale = Lit(pa.scalar(arrow.scale, pa.int64()))
            total, exact_type = make_sql_call("mean_of_limbs", pa.float64(), *limbs, count, scale), pa.float64()
        else:
            exact_type = pa.decimal128(38, arrow.scale)
            total = make_sql_call("joined_limbs", exact_type, *limbs)
        is_none = make_sql_call("equal", pa.bool_(), count, _ZERO)
        total = make_sql_call("case", exact_type, is_none, make_null(exact_type), total)
        return total if exact_type == kind else make_sql_call("cast", kind, total)

    def _add_aggregate(self, function: str, kind: str, arguments: tuple[Term, ...], where: Term | None) -> Place:
        """Add a stored aggregate, unless it is there; return its column."""
        aggregation = algebra.Aggregation(function, kind, arguments, where=where)
        if aggregation not in self.stored:
            self.stored.append(aggregation)
        return Place(len(self.node.keys) + self.stored.index(aggregation))
