"""Why a query is run otherwise than it was written, for `View.explain`.

What was done is told from the plans before and after each step of `persist.sql.rewrite`, so no rewrite keeps a book of
what it does, and none can be forgotten in it that changes one of the things that are compared here.
"""

from collections import Counter
from collections.abc import Iterator

from persist.expression import factored_conjuncts
from persist.sql.algebra import Filter, Join, Node, Project, Scan, Temporal, children
from persist.sql.order import NOTHING, Known, estimated
from persist.sql.rewrite import steps_of

_MARKS = (("semi", "a semijoin", "semijoins", "true"), ("unless", "an antijoin", "antijoins", "false"))


def reasons(plan: Node, known: Known = NOTHING) -> list[str]:
    """Return what the rewrites have done to a plan, each with why; nothing if it is run as it was written.

    Args:
        known: what is known of the sizes of collections, as for `rewritten`.
    """
    pushed, placed, done = steps_of(plan, known)
    return [
        *_of_joins(plan, pushed),
        *_of_conditions(plan, pushed),
        *_of_order(pushed, placed, known),
        *_of_columns(plan, done),
    ]


def _every(node: Node) -> Iterator[Node]:
    yield node
    for each in children(node):
        yield from _every(each)


def _of_joins(before: Node, after: Node) -> list[str]:
    told = []
    crosses = _crosses(before) - _crosses(after)
    if crosses > 0:
        shown = _became(crosses, "cross product", "a join by key", "joins by key")
        told.append(f"{shown}: a condition above says what is equal")
    was, now = _hows(before), _hows(after)
    for how, one, many, value in _MARKS:
        if now[how] > was[how]:
            shown = _became(now[how] - was[how], "mark", one, many)
            told.append(f"{shown}: only rows for which it is {value} are asked for")
    outer = sum(was[how] - now[how] for how in ("left", "single"))
    if outer > 0:
        shown = _became(outer, "outer join", "an inner one", "inner ones")
        told.append(f"{shown}: a condition above is true of no row without a partner")
    if sum(was.values()) > sum(now.values()):
        count = sum(was.values()) - sum(now.values())
        shown = "1 join is" if count == 1 else f"{count} joins are"
        told.append(f"{shown} left out: what a subquery gives has the values for which it was asked already")
    if _joins_below_bounds(after) < _joins_below_bounds(before):
        told.append("bounds of time went below joins: these forget what is over")
    return told


def _hows(plan: Node) -> Counter[str]:
    """Return how many joins of each kind there are."""
    return Counter(str(each.how) for each in _every(plan) if isinstance(each, Join))


def _crosses(plan: Node) -> int:
    return sum(
        isinstance(each, Join) and each.how == "inner" and not (each.equal or each.same) for each in _every(plan)
    )


def _joins_below_bounds(plan: Node) -> int:
    bounds = [each for each in _every(plan) if isinstance(each, Temporal)]
    return sum(isinstance(each, Join) for bound in bounds for each in _every(bound))


def _of_conditions(before: Node, after: Node) -> list[str]:
    was, now = _conditions(before), _conditions(after)
    more = [f"{count - was[name]} to {name!r}" for name, count in now.items() if count > was[name]]
    return [f"conditions went down, {', '.join(more)}: fewer rows come out of there"] if more else []


def _conditions(plan: Node) -> Counter[str]:
    """Return how many conditions are asked of what is read of each collection, before anything else is done with it."""
    found: Counter[str] = Counter()
    for each in _every(plan):
        if isinstance(each, Filter):
            below = each.input
            while isinstance(below, Project | Filter):
                below = below.input
            if isinstance(below, Scan):
                found[below.collection] += len(factored_conjuncts(each.condition))
    return found


def _of_order(before: Node, after: Node, known: Known) -> list[str]:
    told = []
    was = [[name for name, _ in each] for each in _orders(before, known)]
    for each in _orders(after, known):
        names = [name for name, _ in each]
        if names not in was:
            shown = ", ".join(f"{name} (about {max(1.0, rows):,.0f} rows)" for name, rows in each)
            told.append(f"joins are in the order {shown}: by what is known of sizes, least is in between then")
    return told


def _orders(node: Node, known: Known) -> list[list[tuple[str, float]]]:
    """Return of all inner joins of three relations or more what they join, in order, and how large that is."""
    if isinstance(node, Join) and node.how == "inner" and not node.same:
        leaves = list(_leaves(node))
        here = [(_named(each), estimated(each, known).rows) for each in leaves]
        return [*([here] if len(here) > 2 else []), *(found for each in leaves for found in _orders(each, known))]
    return [found for each in children(node) for found in _orders(each, known)]


def _leaves(node: Node) -> Iterator[Node]:
    if isinstance(node, Join) and node.how == "inner" and not node.same:
        yield from _leaves(node.left)
        yield from _leaves(node.right)
    else:
        yield node


def _named(node: Node) -> str:
    return (
        " and ".join(dict.fromkeys(repr(each.collection) for each in _every(node) if isinstance(each, Scan))) or "rows"
    )


def _of_columns(before: Node, after: Node) -> list[str]:
    was, now = _columns(before), _columns(after)
    return [
        f"{name!r} is read without {len(columns - now[name])} of {len(columns)} columns: nothing reads those"
        for name, columns in was.items()
        if name in now and now[name] < columns
    ]


def _columns(plan: Node) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for each in _every(plan):
        if isinstance(each, Scan):
            found.setdefault(each.collection, set()).update(each.columns)
    return found


def _became(count: int, what: str, one: str, many: str) -> str:
    return f"1 {what} became {one}" if count == 1 else f"{count} {what}s became {many}"
