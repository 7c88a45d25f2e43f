"""Finds a short list of steps that still fails, by leaving steps out (delta debugging: Zeller, Hildebrandt, 2002).

Threads make some failures come and go, so each candidate gets several tries.
"""

from collections.abc import Callable

from tests.proofs.simulator.language import Step

TRIES = 3
RUNS_MAX = 200


def shrink(steps: list[Step], fails: Callable[[list[Step]], bool], *, tries: int = TRIES) -> list[Step]:
    """Return a part of steps for which fails is true, and of which no step can be left out.

    Each candidate is tried up to tries times, until there were `RUNS_MAX` runs in all.
    """
    runs = 0

    def still_fails(candidate: list[Step]) -> bool:
        nonlocal runs
        for _ in range(tries):
            runs += 1
            if fails(candidate):
                return True
        return False

    size = max(1, len(steps) // 2)
    while runs < RUNS_MAX:
        shorter, at = steps, 0
        while at < len(shorter) and runs < RUNS_MAX:
            candidate = shorter[:at] + shorter[at + size :]
            if candidate and still_fails(candidate):
                shorter = candidate
            else:
                at += size
        if size == 1 and len(shorter) == len(steps):
            break
        steps, size = shorter, max(1, size // 2)
    return steps
