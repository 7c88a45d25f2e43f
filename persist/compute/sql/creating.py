"""Creates a view, or loads the existing one of its name and definition."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from persist.compute.sql.compile import parse_key
from persist.compute.sql.definition import Start, parse_start
from persist.compute.sql.draft import Catalog, draft_view
from persist.compute.sql.graph import estimate_sizes, load_definition
from persist.compute.sql.reasons import UnboundedState, list_unbounded_joins
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

    `is_new` raises CollectionExists in place of loading it.
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
