"""Arrangements: hidden collections with the contents of other collections, for reads and refreshes at less cost.

    owner         name                                                      content
    a collection  .index.<id of the owner>.<ids of columns>                 its records, in the order of these columns
    a view        .groups.<id of the owner>.<number>                        counts and totals that its query reads

Invariants:

- An arrangement has a definition, as a view has (`CollectionState.view`). The `inputs` of the definition are the ids of
  the collections that the arrangement reads.
- It has one permanent hold on each of these, named by its id. The hold keeps the input of its next refresh.
- Only its last sealed time is readable. A reader at another time adds or subtracts the changes in between.
- Its name has the id of the owner, so no collection lists its arrangements. Listings leave an arrangement out, and
  errors name its owner.
- A commit that drops the owner also drops the arrangement. A commit that recreates a view does the same.
- An erasure erases nothing from an arrangement. Its record drops the arrangement, and a later commit recreates it.

An index is a hint: a client refreshes it when that pays (`persist.compute.index`). The groups of a view are its state,
and move in its commits (`persist.compute.sql.groups`).
"""

from collections.abc import Sequence
from contextlib import suppress

from persist.core.errors import CollectionNotFound
from persist.core.log import kinds
from persist.core.names import ARRANGEMENT_PREFIXES, INDEX_PREFIX, make_index_hold_name, make_view_hold_name
from persist.core.state_rules.contents import CollectionState
from persist.engine.location.engine import Engine
from persist.engine.write.operations import Step


def list_arrangements(
    engine: Engine, owner: str, prefixes: Sequence[str] = ARRANGEMENT_PREFIXES
) -> list[CollectionState]:
    """Return the known arrangements of a collection; `prefixes` selects their kinds."""
    ids = engine.follower.apply_to_state(
        lambda state: [id_ for prefix in prefixes for _, id_ in state.ids.iterate_prefix(f"{prefix}{owner}.")]
    )
    every = []
    for id_ in ids:
        with suppress(CollectionNotFound):  # It has gone meanwhile.
            every.append(engine.follower.require(id_, id_))
    return every


def make_drop_steps(engine: Engine, dropped: Sequence[CollectionState]) -> tuple[list[Step], dict[str, str]]:
    """Return the steps that drop collections, with their arrangements and holds, and names for errors, by id."""
    every, names = {contents.id: contents for contents in dropped}, dict[str, str]()
    for owner in dropped:
        owned = list_arrangements(engine, owner.id)
        every |= {contents.id: contents for contents in owned}
        for contents in (owner, *owned):
            names |= dict.fromkeys((*_list_inputs(contents), contents.id), owner.name)
    # A reader is dropped before its inputs.
    order = sorted(every.values(), key=lambda contents: -len(every.keys() & _list_inputs(contents)))
    steps: list[Step] = [kinds.Destroy(contents.id) for contents in order]
    for contents in order:
        hold = (
            make_index_hold_name(contents.id)
            if contents.name.startswith(INDEX_PREFIX)
            else make_view_hold_name(contents.id)
        )
        steps += [kinds.ReleaseHold(id_, hold) for id_ in _list_inputs(contents) if id_ not in every]
    return steps, names | {owner.id: owner.name for owner in dropped}


def _list_inputs(contents: CollectionState) -> Sequence[str]:
    """Return the ids of the collections that a view or arrangement reads."""
    return contents.view["inputs"] if contents.view else ()
