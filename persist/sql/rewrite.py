"""What can be told of a relation from its plan."""

from persist.sql.algebra import Aggregate, Column, Distinct, Filter, Join, Let, Node, Project


def unique_columns(node: Node) -> list[frozenset[int]]:
    """Return sets of columns in which no two rows agree, as far as the plan tells."""
    match node:
        case Aggregate(_, keys, _, sets) if len(sets) == 1:
            return [frozenset(range(len(keys)))]
        case Filter(input_):
            return unique_columns(input_)
        case Let(_, _, body):
            return unique_columns(body)
        case Project(input_, outputs):
            places = {each.index: at for at, each in reversed(list(enumerate(outputs))) if isinstance(each, Column)}
            found = unique_columns(input_)
            return [frozenset(places[at] for at in each) for each in found if each <= places.keys()]
        case Distinct():
            return []
        case Join():
            return _of_join(node)
    return []


def _of_join(node: Join) -> list[frozenset[int]]:
    if node.how in ("semi", "anti", "mark", "single", "unless"):
        return unique_columns(node.left)
    return []
