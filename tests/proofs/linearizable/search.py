"""Is there an order of all calls with the answers that were given? Exact, and for short histories.

The search puts one call after the other that may come next: one that began before any call that is left has ended. What
was tried is remembered as the calls that are done and the state after them (Lowe, "Testing for linearizability", 2017).
A call without an answer may come anywhere after its beginning, with any answer, or not at all.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tests.proofs.linearizable.specification import Answer, Call, State, answered, sharing


@dataclass(frozen=True, slots=True)
class Done:
    """One call of one client.

    Attributes:
        began, ended: moments; it took effect between them. Without an answer it ended at infinity.
        answer: None if nobody knows it.
    """

    client: int
    call: Call
    began: float
    ended: float
    answer: Answer | None

    def __str__(self) -> str:
        return f"client {self.client} @{self.began:g}-{self.ended:g} {self.call} -> {self.answer}"


class Contradiction(AssertionError):
    """No order explains the answers; the message has the calls, and the longest order that explains some of them."""

    def __init__(self, history: Sequence[Done], longest: Sequence[Done]) -> None:
        lines = "\n".join(f"  {each}" for each in sorted(history, key=lambda done: done.began))
        placed = "\n".join(f"  {each.call} -> {each.answer}" for each in longest)
        super().__init__(f"these answers have no order:\n{lines}\nThe longest one that was found:\n{placed}")


def check_order(first: State, history: Sequence[Done], *, may_share: bool = False) -> None:
    """Raise Contradiction unless the calls can be put in one order that explains all answers.

    Args:
        may_share: whether a server commits writes of several clients in one record, at one time.
    """
    calls = sorted(history, key=lambda done: done.began)
    everything = sum(1 << n for n, done in enumerate(calls) if done.answer is not None)
    longest: tuple[int, ...] = ()
    tried: set[tuple[int, State]] = set()
    waiting: list[tuple[int, State, tuple[int, ...]]] = [(0, first, ())]
    while waiting:
        placed, state, order = waiting.pop()
        if placed & everything == everything:
            return
        if (placed, state) in tried:
            continue
        tried.add((placed, state))
        longest = max(longest, order, key=len)
        left = [n for n in range(len(calls)) if not placed >> n & 1]
        first_end = min(calls[n].ended for n in left)
        for n in reversed(left):
            done = calls[n]
            if done.began > first_end:
                continue
            outcomes = [answered(state, done.call), sharing(state, done.call) if may_share else None]
            for outcome in outcomes:
                if outcome is not None and done.answer in (None, outcome[1]):
                    waiting.append((placed | 1 << n, outcome[0], (*order, n)))
    raise Contradiction(calls, [calls[n] for n in longest])
