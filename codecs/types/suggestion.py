"""What a name that does not exist was probably meant to be."""

from collections.abc import Iterable
from difflib import get_close_matches

_KNOWN_MAX = 1000  # Of more names, comparing with all of them would take longer than the reader of the message.


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return ", did you mean …?" with the known name that is most like the one given, or nothing if none is like it."""
    if not isinstance(name, str):
        return ""
    names = [*known][:_KNOWN_MAX]
    folded = {each.casefold(): each for each in names}
    found = get_close_matches(name.casefold(), folded, n=1)
    return f", did you mean {folded[found[0]]!r}?" if found else ""
