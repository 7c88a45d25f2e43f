"""Parses times as people type them, and formats times for people."""

from collections.abc import Callable
from functools import partial

import persist


def parse_write_time(text: str) -> int | str:
    """Return a time to write at: a number, or a moment as text."""
    # Here, because it loads what the help of a command does without.
    from persist.core.timeline import Timeline, is_column_name, parse_time

    if is_column_name(text):
        raise persist.InvalidUsage(
            f'{text!r:.60} is not a time: give a number, or, where times are moments, "now", "yesterday", "-1d" or one '
            "such as 2026-11-21T12:00:00Z"
        )
    time: int | str = parse_time(text, Timeline("ms"))
    return time


def make_time_format(collection: "persist.Collection") -> Callable[[int], str]:
    """Return a function that formats times as moments, or numbers."""
    from persist.core.timeline import show_time  # Here for the same reason.

    return partial(show_time, timeline=collection.timeline)
