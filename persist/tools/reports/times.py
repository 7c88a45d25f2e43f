"""Times as people type them."""

import re
from collections.abc import Callable
from functools import partial

import persist

_NUMBER = re.compile(r"[+-]?[0-9]+")
DIGITS_MAX = 30  # Longer ones are no times, and Python converts no very long ones.


def time_of(text: str) -> int | str:
    """Return a time to read at, as the library takes it: a number, or the text of a moment or the name of a tag.

    Raises:
        InvalidUsage: it is a number that no time can be.
    """
    if not _NUMBER.fullmatch(text):
        return text
    if len(text) > DIGITS_MAX:
        raise persist.InvalidUsage(f"a number of {len(text):,} digits is no time: give one from 0 to 2^63 - 2")
    return int(text)


def written_time_of(text: str) -> int | str:
    """Return a time to write at: a number, or the text of a moment.

    Raises:
        InvalidUsage: it is neither.
    """
    from persist.core.timeline import NOW  # Here, because it loads what the help of a command does without.

    time = time_of(text)
    if isinstance(time, str) and text != NOW and not re.match(r"[0-9]{4}-", text):
        raise persist.InvalidUsage(
            f"{text!r:.60} is no time: give a number, or, where times are moments, one such as 2026-11-21T12:00:00Z"
        )
    return time


def times_of(collection: "persist.Collection") -> Callable[[int], str]:
    """Return how times of a collection are told to people: as moments where they are, else as numbers."""
    from persist.core.timeline import time_text  # Here for the same reason.

    return partial(time_text, timeline=collection.timeline)
