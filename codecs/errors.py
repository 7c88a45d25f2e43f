"""The errors that speak of columns, codecs and single updates; all are the caller's to fix, and nothing was
written.

Each is built with its full message: what was wrong with its value, what is allowed, and what to do.
"""

from persist.blob import InvalidUsage


class SchemaMismatch(InvalidUsage):
    """Columns are wrong, missing, unexpected or of another type, or a schema is not allowed."""


class CodecMismatch(InvalidUsage):
    """The stored codec is not the one that was given, or one is needed and none was given."""


class InvalidUpdate(InvalidUsage):
    """One update cannot be stored: its time or diff is not allowed, or a field cannot hold its value."""


class DiffOverflow(InvalidUsage, OverflowError):
    """A sum of diffs leaves int64. Sums never wrap."""
