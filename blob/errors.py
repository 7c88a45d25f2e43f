"""The error groups, by what a handler does about them, and the errors storage itself can raise.

They stand in the lowest layer so that every layer raises the final class at once and none has to be mapped on
the way up; `persist.errors` adds the errors that speak of collections and re-exports these.
"""

import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from string import Formatter
from typing import Any


class PersistError(Exception):
    """Anything `persist` raises on purpose.

    An error with attributes is a `dataclass(eq=False, repr=False)`: its fields are the arguments of the constructor,
    and `template` is the message as a format string over them. `{name:names}` lists texts in quotes, and `{upper:time}`
    shows a time of one collection. An error whose message has several forms defines `__str__` instead.
    """

    template = ""

    def __post_init__(self) -> None:
        # Errors cross process boundaries in Spark: pickle builds them anew of their arguments.
        self.args = tuple(getattr(self, field.name) for field in fields(self) if field.init)  # type: ignore[arg-type]

    def __str__(self) -> str:
        return _Words(self).format(self.template) if self.template else super().__str__()

    def shown(self, time: Any) -> str:
        """Return a time or a frontier for a message. Errors that know of a timeline show moments, too."""
        return str(time)


class _Words(Formatter):
    """Fills a template with the attributes of an error."""

    def __init__(self, error: PersistError) -> None:
        self._error = error

    def get_value(self, key: int | str, args: Any, kwargs: Any) -> Any:
        return getattr(self._error, str(key))

    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec == "names":
            return ", ".join(map(repr, value))
        return self._error.shown(value) if format_spec == "time" else str(format(value, format_spec))


class InvalidUsage(PersistError, ValueError):
    """The caller's mistake: fix the call. Nothing was written."""


class StoreMisconfigured(InvalidUsage):
    """The store cannot work as it is set up: no such bucket, no right to it, no credentials, a bad option."""


class ReadOnlyStore(InvalidUsage):
    """A write to a store that offers no atomic create, and so is open for reading only."""


class Conflict(PersistError):
    """Someone else was first: read again, then retry. Nothing was written."""


class Unavailable(PersistError):
    """The store refused or did not answer, and certainly did nothing: retry with back-off.

    Attributes:
        timed_out: whether it was given up because no answer came in time.
    """

    timed_out: bool = False


@dataclass(eq=False, repr=False)
class NotDeleted(Unavailable):
    """Some of many keys could not be deleted, the others were; deleting all of them again is safe.

    Attributes:
        failed: what is not known to be deleted, and why, at most one page of keys.
    """

    failed: Mapping[str, PersistError]
    url: str

    def __str__(self) -> str:
        key, error = next(iter(self.failed.items()))
        return (
            f"{len(self.failed)} of many keys at {self.url} could not be deleted, the first of them {key!r}: {error} "
            "Deleting them again is safe."
        )


class StoreFull(Unavailable):
    """The store, or a limit of this process, leaves no room, and nothing was done: make room, then try again."""


# What to do about each error of the system that is one.
FULL = {
    errno.ENOSPC: "Free some space (gc deletes what nobody needs)",
    errno.EDQUOT: "Free some space (gc deletes what nobody needs)",
    errno.EFBIG: "Let this process write larger files (ulimit -f)",
    errno.EMFILE: "Let this process open more files (ulimit -n), or close some",
    errno.ENFILE: "Let this machine open more files (fs.file-max), or close some",
}


def limit_behind(error: BaseException | None) -> str | None:
    """Return the limit that an error ran into, or an error that it wraps, and what to do; None if it was none."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in FULL:
            return f"{os.strerror(error.errno)}. {FULL[error.errno]}"
        error = error.__cause__ or error.__context__
    return None


class Throttled(Unavailable):
    """The store refused because requests come too fast, and did nothing: send fewer of them."""


class Indeterminate(PersistError):
    """A write may or may not have landed: read back before trying again.

    Attributes:
        timed_out: whether it was given up because no answer came in time.
    """

    timed_out: bool = False


class Corruption(PersistError):
    """Stored bytes contradict themselves: stop, and look at the blob that is named."""


@dataclass(eq=False, repr=False)
class CorruptBlob(Corruption):
    """A blob is missing, truncated or does not match its checksum or its own structure.

    Attributes:
        key: the blob's key within the location.
        reason: what is wrong with it.
        advice: what to do about it.
    """

    key: str
    reason: str
    advice: str = "Restore it from a copy"

    template = "blob {key!r} is corrupt: {reason}. {advice}; nothing that depends on it was returned."


class MissingBlob(CorruptBlob):
    """A blob that something refers to is not there."""


@dataclass(eq=False, repr=False)
class IncompatibleVersion(Corruption):
    """A blob was written in a format that this version does not know. It is undamaged, and nothing was changed.

    Attributes:
        key: the blob's key within the location.
        unknown: what in it is not known, if its number is.
    """

    key: str
    found: int
    supported: int
    unknown: str = ""

    def __str__(self) -> str:
        if self.unknown:
            return (
                f"blob {self.key!r} has format version {self.found} and something that this version of persist does "
                f"not know: {self.unknown}. It is undamaged; use the version of persist that wrote it."
            )
        return (
            f"blob {self.key!r} has format version {self.found}, and this version of persist reads versions "
            f"up to {self.supported}. Upgrade persist to read this location; it was left untouched."
        )
