"""A location in a few lines: what each call does to it, and what it is refused with. Imports nothing of the library."""

from dataclasses import dataclass, field, replace
from typing import Any

Step = list[Any]
SHARED, EXCLUSIVE, READ = "shared", "exclusive", "read"


class Refused(Exception):
    """A call is not allowed; answer is what the caller must be told, as in `tests.races.history`."""

    def __init__(self, error: str, **fields: Any) -> None:
        super().__init__(error, fields)
        self.answer = {"error": error, **fields}


@dataclass(frozen=True, slots=True)
class State:
    """Everything but the updates.

    Attributes:
        frontiers: (since, upper) by collection; (0, 0) for those that are not there. Since is what compaction was
            allowed to, which is since itself if nobody holds it back.
        tokens: (collection, token) of the writes that had one.
        holder: the client that alone may write, or None.
        holder_id: its reentrance id.
        holds: whether readers may hold since back, so that it is not known exactly.
    """

    frontiers: dict[str, tuple[int, int]] = field(default_factory=dict)
    tokens: frozenset[tuple[str, str]] = field(default=frozenset(), repr=False)
    holder: str | None = None
    holder_id: str | None = None
    holds: bool = False

    def since(self, collection: str) -> int:
        return self.frontiers.get(collection, (0, 0))[0]

    def upper(self, collection: str) -> int:
        return self.frontiers.get(collection, (0, 0))[1]


def opened(state: State, client: str, args: dict[str, Any]) -> State:
    """Return the state after client opened the location exclusively, or raise Refused."""
    if state.holder is not None and state.holder_id != args["id"] and not args["force"]:
        raise Refused("Locked")
    return replace(state, holder=client, holder_id=args["id"])


def closed(state: State, client: str) -> State:
    """Return the state after an exclusive client closed, or raise Refused: another one has the location."""
    if state.holder != client:
        raise Refused("WriterFenced")
    return replace(state, holder=None, holder_id=None)


def committed(state: State, client: str, mode: str, steps: list[Step]) -> State:
    """Return the state after client, of that mode, committed all steps; the same if that changes nothing.

    Raises:
        Refused: it may not.
    """
    if mode == EXCLUSIVE and state.holder != client:
        raise Refused("WriterFenced")
    if mode == SHARED and state.holder is not None:
        raise Refused("Locked")
    if is_repeated(state, steps):
        return state
    frontiers, tokens = dict(state.frontiers), state.tokens
    for kind, collection, argument in steps:
        if kind == "token":
            tokens |= {(collection, argument)}
        else:
            frontiers[collection] = _after(kind, argument, *frontiers.get(collection, (0, 0)), state.holds)
    return replace(state, frontiers=frontiers, tokens=tokens)


def is_repeated(state: State, steps: list[Step]) -> bool:
    """Return whether the token of a commit was seen before."""
    return any(kind == "token" and (collection, token) in state.tokens for kind, collection, token in steps)


def _after(kind: str, argument: Any, since: int, upper: int, holds: bool) -> tuple[int, int]:
    if kind == "write":
        early = [time for _, time, _ in argument if time < upper]
        if early:
            raise Refused("UpdateNotBeyondUpper", time=min(early), upper=upper)
    elif kind == "seal":
        if argument < upper:
            raise Refused("FrontierRegression", frontier="upper", asked=argument, current=upper)
        upper = argument
    elif kind == "allow_compaction":
        if argument < since and not holds:
            raise Refused("FrontierRegression", frontier="since", asked=argument, current=since)
        since = max(since, argument)
    elif kind == "expect":
        if argument != upper:
            raise Refused("UpperMismatch", expected=argument, actual=upper)
    else:
        raise AssertionError(f"unknown step {kind!r}")
    return since, upper


def changes_nothing(state: State, client: str, mode: str, steps: list[Step]) -> bool:
    """Return whether client may commit all steps, and none of them has an effect."""
    try:
        after = committed(state, client, mode, steps)
    except Refused:
        return False
    if after is state:
        return True
    writes = any(kind == "write" and argument for kind, _, argument in steps)
    same = all(after.frontiers[name] == state.frontiers.get(name, (0, 0)) for name in after.frontiers)
    return same and not writes and after.tokens == state.tokens
