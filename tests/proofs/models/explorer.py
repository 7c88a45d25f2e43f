"""Visits every state that a protocol can come to, whoever goes on when, and finds the shortest way to a wrong one.

A model is a small state machine: where it starts, which moves each participant may make from a state, and what must
hold of every state. One move is one thing that nobody can cut in two: a request of the store, a look at a clock, the
arrival of a message. What may happen to a request (it fails, it happens without an answer, it arrives late) is a move
of its own, and so is the death of a participant. One that is suspended makes no move meanwhile, so every pause is
covered.

States are plain tuples. Those that were seen are kept, so a state is looked at once however many ways lead to it. The
search goes by the number of moves, so the way that is printed is one of the shortest.
"""

from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

S = TypeVar("S", bound=Hashable)  # What all states of one model are.
STATES_MAX = 3_000_000


class Model(Protocol[S]):
    """A protocol as a state machine."""

    def start(self) -> S:
        """Return the state in which it begins."""
        ...

    def moves(self, state: S) -> Iterable[tuple[str, S]]:
        """Return what may happen next: words for a person, and the state after it."""
        ...

    def wrong(self, state: S) -> Iterable[str]:
        """Return what must never be so, and is so in a state."""
        ...

    def is_over(self, state: S) -> bool:
        """Return whether nobody has to do anything more, so that a state without a move is not a deadlock."""
        ...


class Wrong(AssertionError):
    """A state in which something is wrong; the message has the moves that lead there.

    Attributes:
        moves: the words of each.
    """

    def __init__(self, what: str, moves: list[str], state: object) -> None:
        numbered = "\n".join(f"  {n}. {move}" for n, move in enumerate(moves, start=1))
        super().__init__(f"{what}, after\n{numbered}\n{state}")
        self.moves = moves


@dataclass(frozen=True)
class Explored(Generic[S]):
    """What was visited.

    Attributes:
        states: how many different ones.
        moves: how many ways lead from one to another.
        ends: the states from which nothing goes on.
    """

    states: int
    moves: int
    ends: tuple[S, ...]


def explore(model: Model[S], states_max: int = STATES_MAX) -> Explored[S]:
    """Visit all states of a model.

    Raises:
        Wrong: one of them is wrong, or is a deadlock.
        MemoryError: there are more than states_max of them: the model is too large to be explored.
    """
    first = model.start()
    came_from: dict[S, tuple[S, str] | None] = {first: None}
    waiting, moves_seen, ends = deque([first]), 0, []
    while waiting:
        state = waiting.popleft()
        for what in model.wrong(state):
            raise Wrong(what, _way(came_from, state), state)
        is_end = True
        for words, after in model.moves(state):
            moves_seen += 1
            is_end = False
            if after not in came_from:
                came_from[after] = (state, words)
                waiting.append(after)
        if is_end:
            ends.append(state)
            if not model.is_over(state):
                raise Wrong("nobody can go on, and not all is done", _way(came_from, state), state)
        if len(came_from) > states_max:
            raise MemoryError(f"{type(model).__name__} has more than {states_max:,} states")
    return Explored(len(came_from), moves_seen, tuple(ends))


def _way(came_from: dict[S, tuple[S, str] | None], state: S) -> list[str]:
    moves = []
    step = came_from[state]
    while step is not None:
        before, words = step
        moves.append(words)
        step = came_from[before]
    return moves[::-1]
