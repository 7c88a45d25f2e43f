"""Times as people type them."""

import persist


def time_of(text: str) -> int | str:
    """Return a time to read at, as the library takes it: a number, or the text of a moment or the name of a tag."""
    return int(text) if text.lstrip("-").isdigit() else text


def written_time_of(text: str) -> int | str:
    """Return a time to write at: a number, or the text of a moment.

    Raises:
        InvalidUsage: it is neither.
    """
    if text.lstrip("-").isdigit():
        return int(text)
    if not text[:4].isdigit():
        raise persist.InvalidUsage(
            f"{text!r} is no time: give a number, or, where times are moments, one such as 2026-11-21T12:00:00Z"
        )
    return text
