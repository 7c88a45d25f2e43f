"""Arrangements: hidden collections that hold what another collection holds, so that it is found or computed for less.

    owner         name                                                      content
    a collection  .index.<id of the owner>.<ids of columns>                 its records, in the order of these columns
    a view        .groups.<id of the owner>.<number>                        counts and totals that its query reads

Invariants:

- An arrangement has a definition, as a view has (`CollectionState.view`). Its `inputs` are the ids of all that it
  reads. On each of these it has one permanent hold, called after its id. The hold keeps what the next refresh reads.
- It can only be read as of its last sealed time: each of its commits gives up the past. A reader at another time adds
  or subtracts the changes in between.
- Its name says whose it is, so nothing has to list the arrangements of an owner. Listings leave it out, and errors
  name its owner.
- The commit that drops the owner drops it, too. The same holds for a view that begins anew.
- Nothing is erased from an arrangement. The record of an erasure drops it, and it is made again from what is left.

An index is a hint, which is refreshed when that pays (`persist.compute.index`). The groups of a view are its state, so
they move in its commits (`persist.compute.sql.groups`).
"""

from collections.abc import Sequence
from contextlib import suppress

from persist.core.errors import CollectionNotFound
from persist.core.log import kinds
from persist.core.names import ARRANGEMENT_PREFIXES, INDEX_PREFIX, index_hold, view_hold
from persist.core.state_rules.contents import CollectionState
from persist.engine.location.engine import Engine
from persist.engine.write.operations import Step


def list_arrangements(
    engine: Engine, owner: str, prefixes: Sequence[str] = ARRANGEMENT_PREFIXES
) -> list[CollectionState]:
    """Return the arrangements of a collection, as far as this client knows; prefixes: of the kinds that are wanted."""
    ids = engine.follower.over_all(
        lambda state: [id_ for prefix in prefixes for _, id_ in state.ids.iterate_prefix(f"{prefix}{owner}.")]
    )
    every = []
    for id_ in ids:
        with suppress(CollectionNotFound):  # It has gone meanwhile.
            every.append(engine.follower.known(id_, id_))
    return every


def steps_to_drop(engine: Engine, dropped: Sequence[CollectionState]) -> tuple[list[Step], dict[str, str]]:
    """Return the steps that drop collections, views or arrangements, and the names of what they concern, by id.

    Their arrangements go with them, and they release what they read and what stays.
    """
    every, names = {contents.id: contents for contents in dropped}, dict[str, str]()
    for owner in dropped:
        owned = list_arrangements(engine, owner.id)
        every |= {contents.id: contents for contents in owned}
        for contents in (owner, *owned):
            names |= dict.fromkeys((*_inputs(contents), contents.id), owner.name)
    # What reads others is dropped before them.
    order = sorted(every.values(), key=lambda contents: -len(every.keys() & _inputs(contents)))
    steps: list[Step] = [kinds.Destroy(contents.id) for contents in order]
    for contents in order:
        hold = index_hold(contents.id) if contents.name.startswith(INDEX_PREFIX) else view_hold(contents.id)
        steps += [kinds.ReleaseHold(id_, hold) for id_ in _inputs(contents) if id_ not in every]
    return steps, names | {owner.id: owner.name for owner in dropped}


def _inputs(contents: CollectionState) -> Sequence[str]:
    return contents.view["inputs"] if contents.view else ()
