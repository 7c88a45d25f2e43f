"""Finds the relatives of a collection, which share records with it, and collections with results of queries on them.

An erasure also erases from the relatives: clones of the collection, and the collections that it was cloned from.

A view begins anew when something is erased from its inputs, because its definition determines its contents. A clone of
a view only has the view's rows: it cannot be determined which of them come from an erased record. So an erasure reports
such clones, everything derived from them, and the views of which the collection itself is a clone. A search without
texts reports each of them as a trace, so there is no receipt.

A view that begins anew gets a new id, and a view may be dropped before its clone. Therefore a clone of a view has the
property `DERIVED_FROM`: the ids of the view and of all that the view depended on. Clones of the clone have it as well.
"""

from collections.abc import Iterable, Set
from contextlib import suppress

from persist.compute.sql import load_dependents
from persist.core.antichain import END
from persist.core.errors import CollectionNotFound
from persist.core.names import DERIVED_FROM, OWN_PREFIX
from persist.core.state_rules.state import State
from persist.engine.location.collection_handle import CollectionHandle
from persist.engine.location.engine import Engine
from persist.engine.location.opening import load_handle_by_id

WHY = (
    "it holds what a query gave of these records, and no erasure follows there: erase from it, or drop it. A search "
    "for texts looks in it, too"
)


def list_family(handle: CollectionHandle) -> list[CollectionHandle]:
    """Return a collection with all direct and indirect clones and origins.

    Views are not included: their inputs determine their contents.
    """
    engine = handle.engine
    engine.follower.refresh()
    others = sorted(engine.follower.apply_to_state(lambda state: find_relatives(state, handle.id)) - {handle.id})
    relatives = [handle.newest()]
    for id_ in others:
        with suppress(CollectionNotFound):  # It was dropped just now.
            relative = load_handle_by_id(engine, id_, id_)
            if relative.get_known_state().view is None:
                relatives.append(relative)
    return relatives


def find_relatives(state: State, collection: str) -> Set[str]:
    """Return the ids of a collection and its relatives in a state."""
    shares = {id_: entry.folders for id_, entry in state.entries.iterate_all() if entry.folders}
    ids, new = {collection}, {collection}
    while new:
        folders = {folder for id_ in new for folder in (id_, *shares.get(id_, ()))}
        new = (folders | {id_ for id_, shared in shares.items() if not folders.isdisjoint((id_, *shared))}) - ids
        ids |= new
    return {id_ for id_ in ids if state.entries.get(id_) is not None}


def list_unfollowed(handle: CollectionHandle) -> list[CollectionHandle]:
    """Return collections with results of queries on the family, by name; no views.

    Cost: a GET for each clone of the location.
    """
    engine = handle.engine
    family = list_family(handle)
    collections: dict[str, CollectionHandle] = {}
    ids = {relative.id for relative in family}
    for id_ in engine.follower.apply_to_state(lambda state: find_relatives(state, handle.id)) - ids:
        with suppress(CollectionNotFound):
            collections[id_] = load_handle_by_id(engine, id_, id_)  # A view that this is a clone of.
    sources = ids | _list_dependents(family)
    clones = {id_: {*folders, *derived} for id_, folders, derived in _list_clones(engine)}
    while new := {
        id_ for id_, of in clones.items() if id_ not in ids | collections.keys() and not sources.isdisjoint(of)
    }:
        handles = [load_handle_by_id(engine, id_, id_) for id_ in sorted(new)]
        views = _list_dependents(handles)
        collections |= {
            held.id: held for held in (*handles, *(load_handle_by_id(engine, id_, id_) for id_ in sorted(views)))
        }
        sources |= new | views
    named = (held for held in collections.values() if not held.name.startswith(OWN_PREFIX))
    return sorted(named, key=lambda held: held.name)


def list_longer_views(family: Iterable[CollectionHandle]) -> list[str]:
    """Return the names of views that can be read at earlier times than their inputs."""
    names = set()
    for relative in family:
        since = relative.contents().since
        views = load_dependents(relative.engine, relative)
        names |= {
            view.name for view in views if view.contents().upper not in (0, END) and view.contents().since < since
        }
    return sorted(names)


def _list_dependents(handles: Iterable[CollectionHandle]) -> set[str]:
    """Return the ids of the views that depend on collections."""
    return {view.id for handle in handles for view in load_dependents(handle.engine, handle)}


def _list_clones(engine: Engine) -> list[tuple[str, tuple[str, ...], list[str]]]:
    """Return each clone's id, the collections whose parts it shares, and its origins."""
    clones = engine.follower.apply_to_state(
        lambda state: [(id_, e.folders) for id_, e in state.entries.iterate_all() if e.folders]
    )
    derived = []
    for id_, folders in clones:
        with suppress(CollectionNotFound):
            properties = engine.follower.refresh_and_require(id_, id_).about.properties
            derived.append((id_, folders, properties.get(DERIVED_FROM, "").split()))
    return derived
