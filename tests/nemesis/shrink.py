"""Finds a short list of steps that still fails, by leaving steps out (delta debugging: Zeller, Hildebrandt, 2002).

Threads make some failures come and go, so each candidate gets several tries.
"""

from collections.abc import Callable

from tests.nemesis.generator import Step

TRIES = 4
ATTEMPTS_MAX = 400


def shrink(steps: list[Step], fails: Callable[[list[Step]], bool], *, tries: int = TRIES) -> list[Step]:
    """Return a part of steps for which fails is true, and of which no step can be left out.

    At most `ATTEMPTS_MAX` candidates are tried, each up to tries times.
    """
    attempts = 0

    def still_fails(candidate: list[Step]) -> bool:
        nonlocal attempts
        attempts += 1
        return any(fails(candidate) for _ in range(tries))

    size = max(1, len(steps) // 2)
    while attempts < ATTEMPTS_MAX:
        shorter, at = steps, 0
        while at < len(shorter) and attempts < ATTEMPTS_MAX:
            candidate = shorter[:at] + shorter[at + size :]
            if candidate and still_fails(candidate):
                shorter = candidate
            else:
                at += size
        if size == 1 and len(shorter) == len(steps):
            break
        steps, size = shorter, max(1, size // 2)
    return steps
