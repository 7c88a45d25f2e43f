"""Moves older tokens out of a collection's state, with the record that would make them too many.

Cost: a PUT for one of 2,048 commits with a token. An attempt that loses the race for its seqno leaves an unused object,
because the next one needs another name: blobs below the floor of uploads may be collected.
"""

from persist.blob.protocol import Blob
from persist.core.log import kinds
from persist.core.log.fields import Archiving
from persist.core.log.kinds import Mutation
from persist.core.log.token_archives import ArchivedTokens, store_archive
from persist.core.state_rules.annotations import build_archiving_step, plan_archiving
from persist.core.state_rules.contents import CollectionState
from persist.core.state_rules.state import State
from persist.engine.follow.follower import Follower


def add_archiving(
    blob: Blob, follower: Follower, state: State, contents: CollectionState | None, mutation: Mutation
) -> Mutation:
    """Return a mutation that also archives older tokens, if that is due. `state`: the state before its record."""
    if contents is None or not isinstance(mutation, kinds.Tokens):
        return mutation
    plan = plan_archiving(contents.tokens, contents.archives, mutation)
    if plan is None:
        return mutation
    marks, merged, dropped = plan
    assert state.location is not None
    stored_archives = () if contents.archives is None else contents.archives.stored
    tokens = [
        follower.tokens.read(state.location, contents.id, archive)
        for archive in stored_archives[len(stored_archives) - merged :]
    ]
    moved = ArchivedTokens.merge([*tokens, ArchivedTokens.of(marks)])
    format = max(state.format, Archiving.came_with)
    archive = store_archive(blob, state.location, contents.id, state.seqno + 1, moved, format=format)
    follower.tokens.keep(archive, moved)
    return build_archiving_step(mutation, contents.archives, archive, len(marks), merged, dropped)
