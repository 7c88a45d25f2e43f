"""Creates a view, or loads the existing one of its name and definition.

The state of a join of two growing inputs without a key grows with both inputs, and so does the work of each change.
Such a query is correct, and may be intended for small inputs, so a new view of it only warns.
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from persist.compute.sql import algebra
from persist.compute.sql.compile import parse_key
from persist.compute.sql.definition import Start, parse_start
from persist.compute.sql.draft import Catalog, draft_view
from persist.compute.sql.graph import estimate_sizes, list_scans, load_definition
from persist.compute.sql.order import NOTHING, Known, estimate_relation
from persist.compute.sql.view import LiveView, load_view_by_name
from persist.core.errors import AsOfCompacted, CollectionExists, InvalidUsage
from persist.core.names import check_free_name
from persist.engine.location.collection_handle import CollectionHandle
from persist.engine.location.engine import Engine
from persist.engine.location.opening import load_handle
from persist.engine.write.retrying import commit_with_retry


def load_or_create_view(
    engine: Engine,
    name: str,
    sql: str,
    key: Sequence[str] | None,
    start: Start,
    options: Mapping[str, Any],
    *,
    keeps_groups: bool = False,
    is_new: bool = False,
) -> LiveView:
    """Load the view of a name, or create it; see `Client.create_view` for arguments and errors.

    `is_new`: raise CollectionExists if the name is taken.
    """
    check_free_name(name)

    def load_or_create() -> LiveView:
        if not is_new and engine.find_newest_id(name) is not None:
            return _load_if_same(engine, name, sql, key, start, options)
        return _create_view(engine, name, sql, key, start, options, keeps_groups=keeps_groups)

    # Another client created it in between, or has let an input be compacted.
    return commit_with_retry(
        load_or_create,
        action="create_view",
        clock=engine.clock,
        conflicts=(AsOfCompacted,) if is_new else (CollectionExists, AsOfCompacted),
        prepare=lambda error: engine.follower.looks.force_next_look(),
    )


def _load_if_same(
    engine: Engine, name: str, sql: str, key: Sequence[str] | None, start: Start, options: Mapping[str, Any]
) -> LiveView:
    """Return the existing view; raise an error if its definition differs."""
    if load_definition(load_handle(engine, name)) is None:
        raise InvalidUsage(f"there is a collection {name!r} that is not a view: choose another name for the view")
    live = load_view_by_name(engine, name, options)
    if live.definition.sql.strip() != sql.strip() or (key is not None and live.definition.key != parse_key(key)):
        raise InvalidUsage(
            f"there is a view {name!r} with another definition: {live.definition.sql!r:.300}. Choose another name, "
            "or drop it."
        ).with_remedy("{redefine:call} gives it this one.")
    begin = None if start is None else parse_start(start, live.handle.get_known_state().timeline)
    if begin not in (None, live.definition.start):
        raise InvalidUsage(
            f"view {name!r} begins at {live.definition.start}, and not at {begin}: leave start= out, choose another "
            f"name, or begin it anew, with another history, by redefine(start={begin})"
        )
    return live


def _create_view(
    engine: Engine,
    name: str,
    sql: str,
    key: Sequence[str] | None,
    start: Start,
    options: Mapping[str, Any],
    *,
    keeps_groups: bool,
) -> LiveView:
    """Commit a new view; return it."""
    draft = draft_view(Catalog(engine), name, sql, key, start, keeps_groups=keeps_groups)
    for reason in list_unbounded_joins(draft.bound, estimate_sizes(engine, draft.definition.reads)):
        warnings.warn(f"view {name!r}: {reason}.", UnboundedState, stacklevel=6)  # At the client's caller.
    engine.submit("create_view", draft.steps, dict(draft.names)).result()
    live = LiveView(CollectionHandle(engine, draft.readable.id, name, draft.readable.schema), draft.definition, options)
    if start is None:  # With a start, the user has decided.
        live.warn_of_behind(is_new=True)
    return live


class UnboundedState(UserWarning):
    """Warning: a view joins two growing inputs without a key, so each change reads all records of the other."""


def list_unbounded_joins(plan: algebra.Node, statistics: Known = NOTHING) -> list[str]:
    """Return a warning for each join of growing inputs without a key.

    Args:
        plan: a rewritten plan.
        statistics: the statistics of collections, as for `rewrite_plan`.
    """
    return _Growth(statistics).describe_growing_joins(plan)


class _Growth:
    """Finds the joins of a plan whose inputs both grow without end."""

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
        """Return the collections that a node reads, directly or through references."""
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
