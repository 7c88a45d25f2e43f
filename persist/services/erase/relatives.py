"""The collections that share records with another one: clones, and what they were cloned from."""

from collections.abc import Set
from contextlib import suppress

from persist.core.errors import CollectionNotFound
from persist.core.state_rules.state import State
from persist.engine.location.collection_handle import CollectionHandle
from persist.engine.location.opening import loaded_by_id


def related(handle: CollectionHandle) -> list[CollectionHandle]:
    """Return a collection with all its direct and indirect clones and origins.

    Views are not included: their inputs determine their contents.
    """
    engine = handle.engine
    engine.follower.refresh()
    others = sorted(engine.follower.over_all(lambda state: find_relatives(state, handle.id)) - {handle.id})
    relatives = [handle.newest()]
    for id_ in others:
        with suppress(CollectionNotFound):  # It was dropped just now.
            relative = loaded_by_id(engine, id_, id_)
            if relative.known().view is None:
                relatives.append(relative)
    return relatives


def find_relatives(state: State, collection: str) -> Set[str]:
    """Return the ids of a collection and its relatives that a state has."""
    shares = {id_: entry.folders for id_, entry in state.entries.each() if entry.folders}
    ids, new = {collection}, {collection}
    while new:
        folders = {folder for id_ in new for folder in (id_, *shares.get(id_, ()))}
        new = (folders | {id_ for id_, shared in shares.items() if not folders.isdisjoint((id_, *shared))}) - ids
        ids |= new
    return {id_ for id_ in ids if state.entries.get(id_) is not None}
