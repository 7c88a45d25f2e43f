"""Commits parts that a test has stored or made up, as an engine does whose tasks upload by themselves."""

from collections.abc import Sequence

from persist.api.collection import Collection
from persist.codecs.part.part import Part
from persist.core.antichain import Antichain
from persist.engine.write.commit_future import CommitFuture
from persist.engine.write.operations import Step
from persist.engine.write.write_options import add_token


def commit_parts(
    collection: Collection, parts: Sequence[Part], *, seal: Antichain | None = None, token: str | None = None
) -> CommitFuture:
    """Append parts, and perhaps seal, as one commit. Those of a commit that is rejected are deleted."""
    handle = collection.handle
    steps: list[Step] = [*handle.make_part_steps(parts)]
    if seal is not None:
        steps.append(handle.seal_step(seal))
    return handle.submit("write", add_token(token, [collection.id], steps))
