"""The errors of columns, codecs and single updates, which the caller must fix; nothing was written.

Each has its full message: what was wrong with its value, what is allowed, and what to do. For a name that does not
exist, `did_you_mean` suggests the most similar one.
"""

from collections.abc import Iterable
from difflib import get_close_matches

from persist.blob.errors import InvalidUsage

_KNOWN_MAX = 1000  # Comparing more names would take longer than reading the message.


class SchemaMismatch(InvalidUsage):
    """Columns are wrong, missing, unexpected or of another type, or a schema is not allowed."""


class CodecMismatch(InvalidUsage):
    """The codec differs from the stored one, or a codec is required and missing."""


class InvalidUpdate(InvalidUsage):
    """One update cannot be stored: its time or diff is not allowed, or a field cannot hold its value."""


class DiffOverflow(InvalidUsage, OverflowError):
    """A sum of diffs exceeds int64. Sums never wrap."""


def did_you_mean(name: object, allowed_names: Iterable[str]) -> str:
    """Return ", did you mean …?" with the most similar known name, or "" without one."""
    if not isinstance(name, str):
        return ""
    names = [*allowed_names][:_KNOWN_MAX]
    folded = {known_name.casefold(): known_name for known_name in names}
    nearest = get_close_matches(name.casefold(), folded, n=1)
    return f", did you mean {folded[nearest[0]]!r}?" if nearest else ""
