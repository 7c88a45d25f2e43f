"""Joins whose state and work grow with both of their inputs, and what they come to: two growing inputs without a key.

Such a query is right, and may be what is wanted of small inputs, so it is not refused: whoever creates it is warned.
"""

from collections.abc import Callable

from persist.sql.algebra import (
    Aggregate,
    Join,
    Let,
    Node,
    Recursive,
    Ref,
    Scan,
    SetOperation,
    Temporal,
    TopK,
    Values,
    children,
)
from persist.sql.graph import scans_of
from persist.sql.rewrite import rewritten

_MANY = 10**30  # More than any estimate needs.


class UnboundedState(UserWarning):
    """A view joins two inputs that grow without a key, so each change is compared with all of the other one."""


def unbounded(plan: Node, records: Callable[[str], int]) -> list[str]:
    """Return what to warn of in a plan: each join of growing inputs without a key, and how many pairs it looks at.

    Args:
        records: returns how many records a collection that the plan scans has by now.
    """
    return _Growth(records).found(rewritten(plan))


class _Growth:
    def __init__(self, records: Callable[[str], int]) -> None:
        self._records = records
        self._values: dict[int, Node] = {}

    def found(self, node: Node) -> list[str]:
        if isinstance(node, Let):
            self._values[node.number] = node.value
        told = [each for below in children(node) for each in self.found(below)]
        match node:
            case Join(_, left, right, (), ()) if self._grows(left) and self._grows(right):
                told.append(self._told(node))
        return list(dict.fromkeys(told))

    def _told(self, node: Join) -> str:
        sides = [" and ".join(map(repr, self._read(each))) or "rows" for each in (node.left, node.right)]
        pairs = self._size(node.left) * self._size(node.right)
        return (
            f"the query joins {sides[0]} with {sides[1]} without a key: it compares all of their records, about "
            f"{pairs:,} pairs by now, and each change of one of them with all of the other. Let columns of both be "
            "equal (ON a.x = b.x), or bound one of them by a GROUP BY, a LIMIT or _now()"
        )

    def _read(self, node: Node) -> list[str]:
        found = list(scans_of(node))
        if isinstance(node, Ref) and node.number in self._values:
            found += self._read(self._values[node.number])
        return list(dict.fromkeys([*found, *(each for below in children(node) for each in self._read(below))]))

    def _grows(self, node: Node) -> bool:
        """Return whether a relation has the more rows the more its inputs have, without an end."""
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

    def _size(self, node: Node) -> int:
        """Return about how many rows a relation has: as if conditions kept all, and keys were those of one side."""
        match node:
            case Scan(collection):
                return self._records(collection)
            case Values(_, rows):
                return len(rows)
            case Aggregate(_, _, _, sets) if not any(sets):
                return 1
            case TopK(input_, _, limit) if limit is not None:
                return min(limit, self._size(input_))
            case Ref(number):
                return self._size(self._values[number]) if number in self._values else 1
            case Let(_, _, body):
                return self._size(body)
            case Join(how, left) if how in ("semi", "anti", "mark", "unless", "single"):
                return self._size(left)
            case Join(_, left, right, equal, same) if not (equal or same):
                return min(_MANY, self._size(left) * self._size(right))
            case SetOperation("union", left, right):
                return self._size(left) + self._size(right)
        return max(map(self._size, children(node)), default=1)
