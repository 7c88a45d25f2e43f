"""The errors that speak of columns, codecs and single updates; all are the caller's to fix, and nothing was written.

Each is built with its full message: what was wrong with its value, what is allowed, and what to do. If a name does not
exist, `did_you_mean` says what it was probably meant to be.
"""

from collections.abc import Iterable
from difflib import get_close_matches

from persist.blob.errors import InvalidUsage

_KNOWN_MAX = 1000  # Of more names, comparing with all of them would take longer than the reader of the message.


class SchemaMismatch(InvalidUsage):
    """Columns are wrong, missing, unexpected or of another type, or a schema is not allowed."""


class CodecMismatch(InvalidUsage):
    """The stored codec is not the one that was given, or one is needed and none was given."""


class InvalidUpdate(InvalidUsage):
    """One update cannot be stored: its time or diff is not allowed, or a field cannot hold its value."""


class DiffOverflow(InvalidUsage, OverflowError):
    """A sum of diffs leaves int64. Sums never wrap."""


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return ", did you mean …?" with the known name that is most like the one given, or nothing if none is like it."""
    if not isinstance(name, str):
        return ""
    names = [*known][:_KNOWN_MAX]
    folded = {known_name.casefold(): known_name for known_name in names}
    nearest = get_close_matches(name.casefold(), folded, n=1)
    return f", did you mean {folded[nearest[0]]!r}?" if nearest else ""
