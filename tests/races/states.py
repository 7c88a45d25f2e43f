"""What each recorded call makes of the model (`tests/model.py`), or is refused with."""

from dataclasses import dataclass, field, replace
from typing import Any

from tests import model

Step = list[Any]
SHARED, EXCLUSIVE, READ = "shared", "exclusive", "read"


@dataclass(frozen=True, slots=True)
class State:
    """Everything but the updates.

    Attributes:
        location: its collections by name; those that are not there are as if new.
        holds: whether readers may hold since back, so that it is not known exactly: at most what the model has.
    """

    location: model.Location = field(default_factory=model.Location)
    holds: bool = False

    def collection(self, name: str) -> model.Collection:
        return self.location.collections.get(name, model.Collection())

    def since(self, collection: str) -> int:
        return self.collection(collection).since

    def upper(self, collection: str) -> int:
        return self.collection(collection).upper


def opened(state: State, client: str, args: dict[str, Any]) -> State:
    """Return the state after client opened the location exclusively, or raise Refused."""
    return replace(state, location=state.location.opened(client, args["id"], force=args["force"]))


def closed(state: State, client: str) -> State:
    """Return the state after an exclusive client closed, or raise Refused: another one has the location."""
    return replace(state, location=state.location.closed(client))


def committed(state: State, client: str, mode: str, steps: list[Step]) -> State:
    """Return the state after client, of that mode, committed all steps; the same if that changes nothing.

    Raises:
        Refused: it may not.
    """
    state.location.check_writer(client, is_exclusive=mode == EXCLUSIVE)
    if is_repeated(state, steps):
        return state
    location = state.location
    for kind, name, argument in steps:
        collection = location.collections.get(name, model.Collection())
        if kind == "allow_compaction" and state.holds:
            location = location.having(
                name, collection.allowing(argument)
            )  # Since may be farther back than it is here.
        else:
            location = location.having(name, collection.after(kind, argument))
    return replace(state, location=location)


def is_repeated(state: State, steps: list[Step]) -> bool:
    """Return whether the token of a commit was seen before."""
    return any(kind == "token" and argument in state.collection(name).tokens for kind, name, argument in steps)


def changes_nothing(state: State, client: str, mode: str, steps: list[Step]) -> bool:
    """Return whether client may commit all steps, and none of them has an effect."""
    try:
        after = committed(state, client, mode, steps)
    except model.Refused:
        return False
    if after is state:
        return True
    writes = any(kind in ("write", "upsert") and argument for kind, _, argument in steps)
    return not writes and all(after.collection(name) == state.collection(name) for _, name, _ in steps)


def answer(refused: model.Refused) -> dict[str, Any]:
    """Return what the caller must be told, as in `tests.races.history`."""
    return {"error": refused.error, **refused.fields}
