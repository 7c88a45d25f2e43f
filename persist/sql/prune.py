"""What makes a plan smaller: columns that nobody reads are left out, and relations are joined in a good order.

A relation is joined next if what is kept in between then stays small.

What is known of collections (rows, and of whole numbers how many values lie within their bounds) and what conditions
look like give a rough size of each relation, and of a join: |A| · |B| over the number of values of the key. From every
relation on, the one is added next with which the join is smallest, a cross product last. Of these orders, the one with
the least rows in between is taken. Without anything known, all collections are taken for equally large.

The estimates decide about speed and memory only. They may change from one start to the next, and results do not.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from types import MappingProxyType

import pyarrow as pa

from persist.dataflow import Statistics
from persist.expression import (
    Call,
    Lit,
    Place,
    Term,
    all_of,
    calls,
    factored_conjuncts,
    moved,
    placed,
    places_in,
    shifted,
    sql_call,
)
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
    filtered,
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
        case TopK(input_, _, 1, 0, partition, "row_number") if {*map(Place, needed)} <= {*partition}:
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


Known = Mapping[str, Statistics]
NOTHING: Known = MappingProxyType({})
ROWS = 1000.0  # Of a collection of which nothing is known.
EQUAL_KEEPS, OTHER_KEEPS = 0.1, 0.3  # Of the rows, an equality with a constant and any other condition.
SEMI_KEEPS = 0.5


def estimated(node: Node, known: Known) -> Statistics:
    """Return about how large a relation is."""
    match node:
        case Scan(collection, columns):
            statistics = known.get(collection, Statistics(ROWS))
            rows = max(1.0, statistics.rows)
            return Statistics(rows, None, statistics.distinct).renamed((name, at) for at, name in enumerate(columns))
        case Filter(input_, condition):
            below = estimated(input_, known)
            for conjunct in factored_conjuncts(condition):
                below = below.kept(_share(conjunct, below))
            return below
        case Project(input_, outputs):
            copies = ((output.index, at) for at, output in enumerate(outputs) if isinstance(output, Place))
            return estimated(input_, known).renamed(copies)
        case Temporal(input_) | Distinct(input_):
            return estimated(input_, known)
        case Aggregate(input_, keys):
            below = estimated(input_, known)
            counts = {at: _values(below, key) for at, key in enumerate(keys)}
            return Statistics(max(1.0, min(prod(counts.values()), below.rows)), None, counts)
        case Join(how, left, right) if how == "inner":
            width, one, other = width_of(left), estimated(left, known), estimated(right, known)
            return _joined(one, _shifted(other, width), [(a, shifted(b, width)) for a, b in node.equal])
        case Join(how, left) if how in ("semi", "anti", "unless"):
            return estimated(left, known).kept(SEMI_KEEPS)
    below_all = [estimated(child, known) for child in children(node)]
    return Statistics(max((estimate.rows for estimate in below_all), default=ROWS))


def _share(condition: Term, given: Statistics) -> float:
    """Return which share of the rows about passes a condition."""
    if not isinstance(condition, Call):
        return OTHER_KEEPS
    if calls(condition, "equal", "in") and isinstance(condition.arguments[-1], Lit):
        key = condition.arguments[0]
        is_known = isinstance(key, Place) and key.index in given.distinct
        share = 1 / _values(given, key) if is_known else EQUAL_KEEPS
        return float(min(1.0, share * (len(condition.arguments) - 1)))
    if calls(condition, "or"):
        return float(min(1.0, sum(_share(argument, given) for argument in condition.arguments)))
    if calls(condition, "like", "prefix", "suffix", "contains"):
        return EQUAL_KEEPS
    return OTHER_KEEPS


def _joined(one: Statistics, other: Statistics, keys: Sequence[tuple[Term, Term]]) -> Statistics:
    values = prod(max(_values(one, a), _values(other, b)) for a, b in keys)
    if len(keys) > 1:  # Their columns depend on each other, as those of a key and of what refers to it do.
        values = min(values, one.rows, other.rows)
    rows = max(1.0, one.rows * other.rows / max(values, 1.0))
    counts = {**one.distinct, **other.distinct}
    for a, b in keys:
        least = min(_values(one, a), _values(other, b))
        counts |= {key.index: least for key in (a, b) if isinstance(key, Place)}
    return Statistics(rows, None, counts)


def _values(given: Statistics, key: Term) -> float:
    return given.values(key.index if isinstance(key, Place) else None)


def _shifted(given: Statistics, by: int) -> Statistics:
    return given.renamed((at, at + by) for at in given.distinct)


def ordered(node: Node, known: Known = NOTHING) -> Node:
    """Put the relations of inner joins in an order that keeps what is in between small.

    Args:
        known: what is known of the sizes of collections; it decides about speed only.
    """
    if not isinstance(node, Join) or node.how != "inner" or node.same:
        return replaced(node, lambda child: ordered(child, known))
    relations: list[Node] = []
    pairs: list[tuple[Term, Term]] = []
    conditions: list[Term] = []
    _flatten(node, 0, relations, pairs, conditions)
    if len(relations) < 3:
        return replaced(node, lambda child: ordered(child, known))
    widths = [width_of(leaf) for leaf in relations]
    starts = [sum(widths[:at]) for at in range(len(widths))]

    def owners(expression: Term) -> set[int]:
        return {max(at for at, start in enumerate(starts) if start <= index) for index in places_in(expression)}

    estimates = [_shifted(estimated(leaf, known), start) for leaf, start in zip(relations, starts, strict=True)]
    order = _order(estimates, [(one, other, owners(one), owners(other)) for one, other in pairs])
    place: dict[int, int] = {}
    joined: Node | None = None
    left_pairs = list(pairs)
    left_conditions = list(conditions)
    for at in order:
        relation = ordered(relations[at], known)
        here = set(place)
        mine = {starts[at] + n for n in range(widths[at])}
        if joined is None:
            place = {starts[at] + n: n for n in range(widths[at])}
            joined = relation
            continue
        equal, kept = [], []
        for one, other in left_pairs:
            if places_in(one) <= mine and places_in(other) <= here:
                one, other = other, one
            if places_in(one) <= here and places_in(other) <= mine:
                ours = placed(one, place)
                theirs = shifted(other, -starts[at])
                equal.append((ours, theirs))
            else:
                kept.append((one, other))
        left_pairs = kept
        place = {**place, **{index: len(place) + n for n, index in enumerate(sorted(mine))}}
        now = [conjunct for conjunct in left_conditions if places_in(conjunct) <= place.keys()]
        left_conditions = [conjunct for conjunct in left_conditions if conjunct not in now]
        condition = all_of([placed(conjunct, place) for conjunct in now]) if now else None
        joined = Join("inner", joined, relation, tuple(equal), (), condition)
    assert joined is not None
    rest = [sql_call("equal", pa.bool_(), *pair) for pair in left_pairs]
    joined = filtered(joined, [placed(equality, place) for equality in rest])
    return Project(joined, tuple(Place(place[index]) for index in range(sum(widths))))


def _flatten(
    node: Node,
    start: int,
    relations: list[Node],
    pairs: list[tuple[Term, Term]],
    conditions: list[Term],
) -> None:
    """Collect the relations of inner joins of inner joins, and what their rows agree in, by columns of the whole."""
    if not isinstance(node, Join) or node.how != "inner" or node.same:
        relations.append(node)
        return
    width = width_of(node.left)
    _flatten(node.left, start, relations, pairs, conditions)
    _flatten(node.right, start + width, relations, pairs, conditions)
    for one, other in node.equal:
        pairs.append((shifted(one, start), shifted(other, start + width)))
    if node.condition is not None:
        conditions += [shifted(condition, start) for condition in factored_conjuncts(node.condition)]


def _order(relations: Sequence[Statistics], pairs: Sequence[tuple[Term, Term, set[int], set[int]]]) -> list[int]:
    """Return the relations in an order; pairs are keys, with the relations that their sides read."""
    orders = [_order_from(start, relations, pairs) for start in range(len(relations))]
    return min(orders)[-1]


def _order_from(
    start: int, relations: Sequence[Statistics], pairs: Sequence[tuple[Term, Term, set[int], set[int]]]
) -> tuple[int, float, list[int]]:
    """Return how many cross products an order has, how many rows are in between, and the order."""
    order, so_far, crosses, rows = [start], relations[start], 0, 0.0
    while len(order) < len(relations):
        here, best = set(order), None
        for at in range(len(relations)):
            if at in here:
                continue
            keys = [(a, b) for a, b, one, other in pairs if one <= here and other == {at}]
            keys += [(b, a) for a, b, one, other in pairs if other <= here and one == {at}]
            made = _joined(so_far, relations[at], keys)
            rank = (not keys, made.rows, at)
            if best is None or rank < best[0]:
                best = (rank, made, at)
        assert best is not None
        (is_cross, _, at), so_far = best[0], best[1]
        crosses, rows = crosses + is_cross, rows + so_far.rows
        order.append(at)
    return crosses, rows - so_far.rows, order
