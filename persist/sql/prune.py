"""Columns that nobody reads are left out of a plan, and what can be told of a relation's columns."""

from collections.abc import Iterable, Sequence

from persist.expression import Place, Term, moved, placed, places_in, shifted
from persist.sql.algebra import (
    Aggregate,
    Distinct,
    Filter,
    Join,
    Let,
    Node,
    Project,
    Recursive,
    Ref,
    Scan,
    SetOperation,
    Temporal,
    TopK,
    Unnest,
    Values,
    Window,
    children,
    replaced,
    terms_of,
    with_terms,
)
from persist.sql.types import kind_in, kind_of, to_arrow


def width_of(node: Node) -> int:
    """Return how many columns a relation has."""
    return len(types_of(node))


def types_of(node: Node) -> tuple[str, ...]:
    """Return the types of the columns of a relation."""
    match node:
        case Scan(_, _, types) | Values(types) | Ref(_, types):
            return types
        case Project(input_, outputs):
            return types_in(outputs, types_of(input_))
        case Filter(input_) | Temporal(input_) | Distinct(input_) | TopK(input_):
            return types_of(input_)
        case Join(how, left, right):
            if how in ("semi", "anti", "unless"):
                return types_of(left)
            return (*types_of(left), *(("boolean",) if how == "mark" else types_of(right)))
        case Aggregate(input_, keys, aggregates, _, groupings):
            made = (*(aggregation.type for aggregation in aggregates), *("int64" for _ in groupings))
            return (*types_in(keys, types_of(input_)), *made)
        case SetOperation(_, left) | Recursive(_, _, left):
            return types_of(left)
        case Window(input_, calls):
            return (*types_of(input_), *(call.type for call in calls))
        case Unnest(input_, lists):
            given = types_of(input_)
            elements = (to_arrow(kind).value_type for kind in types_in(lists, given))
            return (*given, *map(kind_of, elements))
        case Let(_, _, body):
            return types_of(body)
    raise AssertionError(node)


def types_in(expressions: Iterable[Term], given: Sequence[str]) -> tuple[str, ...]:
    """Return the types of expressions over columns of given types."""
    return tuple(given[term.index] if isinstance(term, Place) else kind_of(kind_in(term)) for term in expressions)


def by_side(conditions: Sequence[Term], width: int) -> tuple[list[Term], list[Term], list[Term]]:
    """Return the conditions that read the left only, those that read the right only, by its columns, and the rest."""
    lefts, rights, both = [], [], []
    for part in conditions:
        reads = places_in(part)
        if reads and max(reads) < width:
            lefts.append(part)
        elif reads and min(reads) >= width:
            rights.append(shifted(part, -width))
        else:
            both.append(part)
    return lefts, rights, both


def pruned(plan: Node) -> Node:
    """Return a plan that makes the same columns, and leaves others out where they are made."""
    every = list(range(width_of(plan)))
    return _needed(plan, every)


def _needed(node: Node, needed: Sequence[int]) -> Node:
    """Return a relation with some columns of a node, in that order."""
    match node:
        case Project(input_, outputs):
            kept, _ = _over(Project(input_, tuple(outputs[at] for at in needed)), ())
            return kept
        case Filter() | Temporal():
            made, place = _over(node, needed)
            return _picked(made, [place[at] for at in needed])
        case Aggregate():
            groups, _ = _over(node, ())
            return _picked(groups, needed)
        case Scan(collection, columns, types):
            if not needed:
                return _picked(node, needed)
            return Scan(collection, tuple(columns[at] for at in needed), tuple(types[at] for at in needed))
        case Join():
            return _join(node, needed)
        case Window(input_, calls):
            wanted = list(range(width_of(input_)))
            return _picked(Window(_needed(input_, wanted), calls), needed)
        case TopK(input_, _, 1, 0, partition) if {*map(Place, needed)} <= {*partition}:
            # What makes one row of a partition the first one is not asked for.
            wanted = _union((), partition)
            if partition == tuple(map(Place, wanted)):
                return _picked(Distinct(_needed(input_, wanted)), [wanted.index(at) for at in needed])
            return _picked(replaced(node, pruned), needed)
        case SetOperation("union", left, right):
            return SetOperation("union", _needed(left, needed), _needed(right, needed))
        case Let(number, value, body):
            return Let(number, pruned(value), _needed(body, needed))
    return _picked(replaced(node, pruned), needed)


def _picked(node: Node, needed: Sequence[int]) -> Node:
    if list(needed) == list(range(width_of(node))):
        return node
    return Project(node, tuple(map(Place, needed)))


def _union(needed: Iterable[int], expressions: Iterable[Term]) -> list[int]:
    return sorted(set(needed).union(*map(places_in, expressions)))


def _over(node: Project | Filter | Temporal | Aggregate, passed: Sequence[int]) -> tuple[Node, dict[int, int]]:
    """Return a node whose input has only the columns that it reads or that pass, one at least; and their places."""
    wanted = _union(passed, terms_of(node)) or [0]
    place = {index: at for at, index in enumerate(wanted)}
    made = with_terms(node, lambda term: placed(term, place))
    return replaced(made, lambda below: _needed(below, wanted)), place


def _join(node: Join, needed: Sequence[int]) -> Node:
    width, others = width_of(node.left), width_of(node.right)
    is_one_sided = node.how in ("semi", "anti", "unless", "mark")
    condition = places_in(node.condition) if node.condition is not None else set()
    pairs = (*node.equal, *node.same)
    lefts = _union((at for at in needed if at < width), (one for one, _ in pairs))
    lefts = sorted({*lefts, *(at for at in condition if at < width)}) or [0]
    rights = _union((at - width for at in needed if at >= width and not is_one_sided), (other for _, other in pairs))
    rights = sorted({*rights, *(at - width for at in condition if at >= width)}) or [0]
    ours = {index: at for at, index in enumerate(lefts)}
    theirs = {index: at for at, index in enumerate(rights)}

    def to(index: int) -> Place:
        return Place(ours[index] if index < width else len(lefts) + theirs[index - width])

    def both(each: tuple[Term, Term]) -> tuple[Term, Term]:
        return placed(each[0], ours), placed(each[1], theirs)

    join = Join(
        node.how,
        _needed(node.left, lefts),
        _needed(node.right, rights),
        tuple(map(both, node.equal)),
        tuple(map(both, node.same)),
        None if node.condition is None else moved(node.condition, to),
    )
    assert others or not is_one_sided
    if node.how == "mark":
        return _picked(join, [len(lefts) if at == width else ours[at] for at in needed])
    return _picked(join, [to(at).index for at in needed])


def is_empty_without(node: Node, empty: frozenset[int]) -> bool:
    """Return whether a relation surely has no rows if those with some numbers have none."""
    match node:
        case Scan():
            return False
        case Values(_, rows):
            return not rows
        case Ref(number):
            return number in empty
        case Aggregate(input_, _, _, sets):
            return all(sets) and is_empty_without(input_, empty)
        case Join(how, left, right):
            sides = is_empty_without(left, empty), is_empty_without(right, empty)
            return any(sides) if how in ("inner", "semi") else all(sides) if how == "full" else sides[how == "right"]
        case SetOperation(how, left, right):
            parts = is_empty_without(left, empty), is_empty_without(right, empty)
            return all(parts) if how == "union" else parts[0] or (how == "intersect" and parts[1])
        case Let(number, value, body):
            return is_empty_without(body, empty | {number} if is_empty_without(value, empty) else empty)
        case Recursive(_, _, anchor):
            return is_empty_without(anchor, empty)
    return all(is_empty_without(child, empty) for child in children(node))


def unique_columns(node: Node) -> list[frozenset[int]]:
    """Return sets of columns in which no two rows agree, as far as the plan tells."""
    match node:
        case Aggregate(_, keys, _, sets) if len(sets) == 1:
            return [frozenset(range(len(keys)))]
        case Filter(input_) | Temporal(input_):
            return unique_columns(input_)
        case Let(_, _, body):
            return unique_columns(body)
        case Project(input_, outputs):
            places = {
                output.index: at for at, output in reversed(list(enumerate(outputs))) if isinstance(output, Place)
            }
            unique_sets = unique_columns(input_)
            return [frozenset(places[at] for at in columns) for columns in unique_sets if columns <= places.keys()]
        case Join(how, left) if how in ("semi", "anti", "mark", "single", "unless"):
            return unique_columns(left)
        case Join(how, left) if how in ("inner", "left") and has_one_partner(node):
            return unique_columns(left)
    return []


def has_one_partner(join: Join) -> bool:
    """Return whether no row of the left has two partners, because the right has no two rows of one key."""
    keys = {other.index for _, other in (*join.equal, *join.same) if isinstance(other, Place)}
    return any(unique <= keys for unique in unique_columns(join.right))
