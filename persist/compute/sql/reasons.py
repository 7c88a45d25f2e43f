"""Explanations of a plan for people: why a query runs differently than written, and which joins grow without end.

`View.explain` compares the plans before and after each step of `persist.compute.sql.rewrite`: so rewrites record
nothing, and each change of the compared properties is reported.

The state and the work of a join of two growing inputs without a key grow with both of them. Such a query is correct,
and may be intended for small inputs, so it only warns.
"""

from collections import Counter
from collections.abc import Iterator

from persist.compute.sql.algebra import (
    Aggregate,
    Filter,
    Join,
    Let,
    Node,
    Project,
    Recursive,
    Ref,
    Scan,
    Temporal,
    TopK,
    Values,
    children,
    count_cross_joins,
    walk,
)
from persist.compute.sql.graph import list_read_columns, list_scans, lower_relation
from persist.compute.sql.order import NOTHING, Known, estimate_relation
from persist.compute.sql.rewrite import rewrite_stepwise
from persist.core.expression.evaluation import factor_conjuncts

_MARKS = (("semi", "a semijoin", "semijoins", "true"), ("unless", "an antijoin", "antijoins", "false"))


def explain_rewrites(plan: Node, statistics: Known = NOTHING) -> list[str]:
    """Explain each change that the rewrites made to a plan.

    Args:
        statistics: what is known of the sizes of collections, as for `rewritten`.
    """
    pushed, placed = rewrite_stepwise(plan, statistics)
    return [
        *_explain_joins(plan, pushed),
        *_explain_conditions(plan, pushed),
        *_explain_first_rows(pushed, placed),
        *_explain_order(pushed, placed, statistics),
        *_explain_columns(plan, placed),
    ]


def _explain_joins(before: Node, after: Node) -> list[str]:
    lines = []
    keyed = count_cross_joins(before) - count_cross_joins(after)
    if keyed > 0:
        change = _format_change(keyed, "cross product", "a join by key", "joins by key")
        lines.append(f"{change}: a condition above says what is equal")
    was, now = _count_kinds(before), _count_kinds(after)
    for how, singular, many, value in _MARKS:
        if now[how] > was[how]:
            change = _format_change(now[how] - was[how], "mark", singular, many)
            lines.append(f"{change}: only rows for which it is {value} are asked for")
    outer = sum(was[how] - now[how] for how in ("left", "single"))
    if outer > 0:
        change = _format_change(outer, "outer join", "an inner one", "inner ones")
        lines.append(f"{change}: a condition above is true of no row without a partner")
    if sum(was.values()) > sum(now.values()):
        count = sum(was.values()) - sum(now.values())
        change = "1 join is" if count == 1 else f"{count} joins are"
        lines.append(f"{change} left out: what a subquery gives has the values for which it was asked already")
    if _joins_below_bounds(after) < _joins_below_bounds(before):
        lines.append("bounds of time went below joins: these forget what is over")
    return lines


def _count_kinds(plan: Node) -> Counter[str]:
    """Return how many joins of each kind there are."""
    return Counter(str(node.how) for node in walk(plan) if isinstance(node, Join))


def _joins_below_bounds(plan: Node) -> int:
    bounds = [node for node in walk(plan) if isinstance(node, Temporal)]
    return sum(isinstance(node, Join) for bound in bounds for node in walk(bound))


def _explain_conditions(before: Node, after: Node) -> list[str]:
    was, now = _count_conditions(before), _count_conditions(after)
    more = [f"{count - was[name]} to {name!r}" for name, count in now.items() if count > was[name]]
    return [f"conditions went down, {', '.join(more)}: fewer rows come out of there"] if more else []


def _count_conditions(plan: Node) -> Counter[str]:
    """Return the number of conditions directly on each collection."""
    counts: Counter[str] = Counter()
    for node in walk(plan):
        if isinstance(node, Filter):
            below = node.input
            while isinstance(below, Project | Filter):
                below = below.input
            if isinstance(below, Scan):
                counts[below.collection] += len(factor_conjuncts(node.condition))
    return counts


def _explain_first_rows(before: Node, after: Node) -> list[str]:
    was, now = ([node for node in walk(plan) if isinstance(node, TopK)] for plan in (before, after))
    limits = Counter(node.limit for node in now) - Counter(node.limit for node in was)
    return [f"a window looks at the first {limit} of each partition: no others are asked for" for limit in limits]


def _explain_order(before: Node, after: Node, statistics: Known) -> list[str]:
    lines = []
    was = [[name for name, _ in order] for order in _list_join_orders(before, statistics)]
    for order in _list_join_orders(after, statistics):
        names = [name for name, _ in order]
        if names not in was:
            sizes = ", ".join(f"{name} (about {max(1.0, rows):,.0f} rows)" for name, rows in order)
            lines.append(f"joins are in the order {sizes}: by what is known of sizes, least is in between then")
    return lines


def _list_join_orders(node: Node, statistics: Known) -> list[list[tuple[str, float]]]:
    """Return the order and the sizes of inner joins of three relations or more."""
    if isinstance(node, Join) and node.how == "inner" and not node.same:
        leaves = list(_leaves(node))
        leaf_sizes = [(_name_relation(leaf), estimate_relation(leaf, statistics).rows) for leaf in leaves]
        return [
            *([leaf_sizes] if len(leaf_sizes) > 2 else []),
            *(order for leaf in leaves for order in _list_join_orders(leaf, statistics)),
        ]
    return [order for child in children(node) for order in _list_join_orders(child, statistics)]


def _leaves(node: Node) -> Iterator[Node]:
    if isinstance(node, Join) and node.how == "inner" and not node.same:
        yield from _leaves(node.left)
        yield from _leaves(node.right)
    else:
        yield node


def _name_relation(node: Node) -> str:
    return " and ".join(dict.fromkeys(repr(scan.collection) for scan in walk(node) if isinstance(scan, Scan))) or "rows"


def _explain_columns(before: Node, after: Node) -> list[str]:
    was, now = list_scans(before), list_read_columns(lower_relation(after))
    return [
        f"{name!r} is read without {len(columns) - len(now[name])} of {len(columns)} columns: nothing reads those"
        for name, columns in was.items()
        if name in now and now[name].keys() < columns.keys()
    ]


def _format_change(count: int, what: str, one: str, many: str) -> str:
    return f"1 {what} became {one}" if count == 1 else f"{count} {what}s became {many}"


class UnboundedState(UserWarning):
    """A view joins two inputs that grow without a key, so each change is compared with all of the other one."""


def list_unbounded_joins(plan: Node, statistics: Known = NOTHING) -> list[str]:
    """Return a warning for each join of growing inputs without a key.

    Args:
        plan: as it is rewritten.
        statistics: what is known of the sizes of collections, as for `rewritten`.
    """
    return _Growth(statistics).describe_growing_joins(plan)


class _Growth:
    def __init__(self, known: Known) -> None:
        self._known = {**known}
        self._values: dict[int, Node] = {}

    def describe_growing_joins(self, node: Node) -> list[str]:
        """Describe the joins below a node that grow without end."""
        if isinstance(node, Let):
            self._values[node.number] = node.value
            self._known[node.number] = estimate_relation(node.value, self._known)
        lines = [line for below in children(node) for line in self.describe_growing_joins(below)]
        match node:
            case Join(_, left, right, (), ()) if self._grows(left) and self._grows(right):
                lines.append(self._describe_join(node))
        return list(dict.fromkeys(lines))

    def _describe_join(self, node: Join) -> str:
        sides = [
            " and ".join(map(repr, self._list_growing_sources(side))) or "rows" for side in (node.left, node.right)
        ]
        pairs = round(estimate_relation(node.left, self._known).rows * estimate_relation(node.right, self._known).rows)
        return (
            f"the query joins {sides[0]} with {sides[1]} without a key: it compares all of their records, about "
            f"{pairs:,} pairs by now, and each change of one of them with all of the other. Let columns of both be "
            "equal (ON a.x = b.x), or bound one of them by a GROUP BY, a LIMIT or _now()"
        )

    def _list_growing_sources(self, node: Node) -> list[str]:
        collections = list(list_scans(node))
        if isinstance(node, Ref) and node.number in self._values:
            collections += self._list_growing_sources(self._values[node.number])
        return list(
            dict.fromkeys(
                [
                    *collections,
                    *(collection for below in children(node) for collection in self._list_growing_sources(below)),
                ]
            )
        )

    def _grows(self, node: Node) -> bool:
        """Return whether a relation grows with its inputs, without an end."""
        match node:
            case Scan() | Recursive():
                return True
            case Values():
                return False
            case Aggregate(_, _, _, sets) if not any(sets):
                return False
            case TopK(_, _, limit, _, partition) if limit is not None and not partition:
                return False
            case Temporal(_, _, upper) if upper is not None:
                return False
            case Ref(number):
                return number not in self._values or self._grows(self._values[number])
            case Join(how, left) if how in ("semi", "anti", "mark", "unless", "single"):
                return self._grows(left)
            case Let(_, _, body):
                return self._grows(body)
        return any(map(self._grows, children(node)))
