"""Joins that grow without end, of which a view warns.

The state and the work of a join of two growing inputs without a key grow with both of them. Such a query is correct,
and may be intended for small inputs, so it only warns.
"""

from persist.compute.sql import algebra
from persist.compute.sql.graph import list_scans
from persist.compute.sql.order import NOTHING, Known, estimate_relation


class UnboundedState(UserWarning):
    """A view joins two growing inputs without a key, so each change meets all records of the other input."""


def list_unbounded_joins(plan: algebra.Node, statistics: Known = NOTHING) -> list[str]:
    """Return a warning for each join of growing inputs without a key.

    Args:
        plan: a rewritten plan.
        statistics: of collections, as for `rewrite_plan`.
    """
    return _Growth(statistics).describe_growing_joins(plan)


class _Growth:
    def __init__(self, known: Known) -> None:
        self._known = {**known}
        self._values: dict[int, algebra.Node] = {}

    def describe_growing_joins(self, node: algebra.Node) -> list[str]:
        """Describe the joins below a node that grow without end."""
        if isinstance(node, algebra.Let):
            self._values[node.number] = node.value
            self._known[node.number] = estimate_relation(node.value, self._known)
        lines = [line for below in algebra.list_inputs(node) for line in self.describe_growing_joins(below)]
        match node:
            case algebra.Join(_, left, right, (), ()) if self._grows(left) and self._grows(right):
                lines.append(self._describe_join(node))
        return list(dict.fromkeys(lines))

    def _describe_join(self, node: algebra.Join) -> str:
        """Describe a join without a key, which compares all records."""
        sides = [
            " and ".join(map(repr, self._list_growing_sources(side))) or "rows" for side in (node.left, node.right)
        ]
        pairs = round(estimate_relation(node.left, self._known).rows * estimate_relation(node.right, self._known).rows)
        return (
            f"the query joins {sides[0]} with {sides[1]} without a key: it compares all of their records, about "
            f"{pairs:,} pairs by now, and each change of one of them with all of the other. Let columns of both be "
            "equal (ON a.x = b.x), or bound one of them by a GROUP BY, a LIMIT or _now()"
        )

    def _list_growing_sources(self, node: algebra.Node) -> list[str]:
        collections = list(list_scans(node))
        if isinstance(node, algebra.Ref) and node.number in self._values:
            collections += self._list_growing_sources(self._values[node.number])
        return list(
            dict.fromkeys(
                [
                    *collections,
                    *(
                        collection
                        for below in algebra.list_inputs(node)
                        for collection in self._list_growing_sources(below)
                    ),
                ]
            )
        )

    def _grows(self, node: algebra.Node) -> bool:
        """Return whether a relation grows with its inputs, without an end."""
        match node:
            case algebra.Scan() | algebra.Recursive():
                return True
            case algebra.Values():
                return False
            case algebra.Aggregate(_, _, _, sets) if not any(sets):
                return False
            case algebra.TopK(_, _, limit, _, partition) if limit is not None and not partition:
                return False
            case algebra.Temporal(_, _, upper) if upper is not None:
                return False
            case algebra.Ref(number):
                return number not in self._values or self._grows(self._values[number])
            case algebra.Join(how, left) if how in ("semi", "anti", "mark", "unless", "single"):
                return self._grows(left)
            case algebra.Let(_, _, body):
                return self._grows(body)
        return any(map(self._grows, algebra.list_inputs(node)))
