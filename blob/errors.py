"""The base classes of errors, grouped by what a caller can do about them, and the errors that a store can raise.

The lowest layer defines them, so every layer can raise the final class, and no layer above has to translate errors.
`persist.errors` re-exports them, and adds the errors about collections.
"""

import errno
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from string import Formatter
from typing import Any, Protocol, Self


class Face(Protocol):
    """How an interface, such as Python, spells calls and options in messages."""

    def name_call(self, name: str) -> str:
        """Return a library call's name as this interface spells it."""

    def name_option(self, name: str, value: str) -> str:
        """Return an option as this interface spells it; "" means any value."""


class _Python:
    """The spelling of calls and options in Python."""

    def name_call(self, name: str) -> str:
        return f"{name}()"

    def name_option(self, name: str, value: str) -> str:
        is_plain = not value or value.isdigit() or value in ("True", "False", "None")
        return f"{name}={value}" if is_plain else f'{name}="{value}"'


PYTHON = _Python()
MESSAGE_CHARS_MAX = 10_000  # A message is for people and logs: what lists thousands of names is cut in the middle.
NAMES_SHOWN_MAX = 20
SECRET_CHARS_MIN = 4  # Shorter secrets are part of too many words.


def _shorten(text: str) -> str:
    """Return a text; a very long one without its middle."""
    excess = len(text) - MESSAGE_CHARS_MAX
    if excess <= 0:
        return text
    head, tail = text[: MESSAGE_CHARS_MAX * 3 // 4], text[-MESSAGE_CHARS_MAX // 4 :]
    return f"{head} … ({excess:,} characters are left out) … {tail}"


class PersistError(Exception):
    """Anything `persist` raises on purpose.

    An error with attributes is a `dataclass(eq=False, repr=False)`: its fields are the arguments of the constructor,
    and `template` is the message, a format string over the fields. `{name:names}` lists texts in quotes, and
    `{upper:time}` shows a time of one collection. An error whose message has several forms defines `describe` instead.

    `remedy` is the advice to the user. It is a format string over the attributes, with two more forms that each
    interface spells itself: `{compact:call}` for a call of the library, and `{late:option:collect}` for an option.
    """

    template = ""
    remedy = ""

    def __post_init__(self) -> None:
        # Errors cross process boundaries in Spark: pickle builds them anew of their arguments.
        self.args = tuple(getattr(self, field.name) for field in fields(self) if field.init)  # type: ignore[arg-type]

    def __str__(self) -> str:
        return self.format_message(PYTHON)

    def describe(self) -> str:
        """Return the message without the remedy."""
        return _Words(self, PYTHON).format(self.template) if self.template else super().__str__()

    def format_message(self, face: Face) -> str:
        """Return the message and the remedy, with calls and options as an interface spells them."""
        return " ".join(filter(None, [_shorten(self.describe()), _Words(self, face).format(self.remedy)]))

    def with_remedy(self, remedy: str) -> Self:
        """Return this error with another remedy in its message."""
        self.remedy = remedy
        return self

    def format_time(self, time: Any) -> str:
        """Return a time or a frontier for a message. Errors that know a timeline add its moments."""
        return str(time)


class _Words(Formatter):
    """A formatter of error templates: fills in attributes, calls and options."""

    def __init__(self, error: PersistError, face: Face) -> None:
        self._error = error
        self._face = face

    def parse(self, template: str) -> Iterator[Any]:
        """Split a template; calls and options have no attribute to look up."""
        for literal, name, spec, conversion in super().parse(template):
            is_word = spec is not None and spec.partition(":")[0] in ("call", "option")
            yield (literal, "args", f"{name}:{spec}", None) if is_word else (literal, name, spec, conversion)

    def get_value(self, key: int | str, args: Any, kwargs: Any) -> Any:
        """Return an attribute of the error."""
        return getattr(self._error, str(key))

    def format_field(self, value: Any, format_spec: str) -> str:
        """Format a placeholder of a message template: a time, a call or an option."""
        match format_spec.split(":", 2):
            case [name, "call"]:
                return self._face.name_call(name)
            case [name, "option", *option]:
                return self._face.name_option(name, "".join(option))
        if format_spec == "names":
            more = len(value) - NAMES_SHOWN_MAX
            return ", ".join([*map(repr, value[:NAMES_SHOWN_MAX]), *([f"and {more:,} more"] if more > 0 else [])])
        return self._error.format_time(value) if format_spec == "time" else str(format(value, format_spec))


class InvalidUsage(PersistError, ValueError):
    """The caller's mistake: fix the call. Nothing was written."""


class StoreMisconfigured(InvalidUsage):
    """The store cannot be used with these settings: no such bucket, no right to it, no credentials, a bad option."""


class ReadOnlyStore(InvalidUsage):
    """A write to a store that offers no atomic create, and so is open for reading only."""


class Conflict(PersistError):
    """Someone else was first: read again, then retry. Nothing was written."""


class Unavailable(PersistError):
    """The store refused or did not answer, and certainly did nothing: retry with back-off.

    `timed_out`: whether the wait for an answer ran out of time.
    """

    timed_out: bool = False


@dataclass(eq=False, repr=False)
class NotDeleted(Unavailable):
    """Some of many keys could not be deleted, and the others were; deleting all of them again is safe.

    `failed`: by key that may still exist, the reason; at most one page of keys.
    """

    failed: Mapping[str, PersistError]
    url: str

    def describe(self) -> str:
        key, error = next(iter(self.failed.items()))
        return (
            f"{len(self.failed)} of many keys at {self.url} could not be deleted, the first of them {key!r}: {error} "
            "Deleting them again is safe."
        )


class StoreFull(Unavailable):
    """The store or a limit of this process has no room, and nothing was done: make room, then try again."""


# The remedy for each system error that is a limit.
FULL = {
    errno.ENOSPC: "Free some space (gc deletes unneeded objects)",
    errno.EDQUOT: "Free some space (gc deletes unneeded objects)",
    errno.EFBIG: "Let this process write larger files (ulimit -f)",
    errno.EMFILE: "Let this process open more files (ulimit -n), or close some",
    errno.ENFILE: "Let this machine open more files (fs.file-max), or close some",
}


def find_exceeded_limit(error: BaseException | None) -> str | None:
    """Return the system limit behind an error, with a remedy; or None."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in FULL:
            return f"{os.strerror(error.errno)}. {FULL[error.errno]}"
        error = error.__cause__ or error.__context__
    return None


class Throttled(Unavailable):
    """The store refused because requests come too fast, and did nothing: send fewer of them."""


class Indeterminate(PersistError):
    """A write may or may not have landed: read back before trying again.

    `timed_out`: whether the wait for an answer ran out of time.
    """

    timed_out: bool = False


class Corruption(PersistError):
    """Stored bytes are damaged or contradict each other: stop, and examine the named blob."""


@dataclass(eq=False, repr=False)
class CorruptBlob(Corruption):
    """A blob is missing, truncated or does not match its checksum or its own structure.

    Attributes:
        key: the blob's key within the location.
        reason: what is wrong with it.
        advice: what the user can do about it.
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
        unknown: what this version does not know in the blob, if it knows the format number.
    """

    key: str
    found: int
    supported: int
    unknown: str = ""

    def describe(self) -> str:
        if self.unknown:
            return (
                f"blob {self.key!r} has format version {self.found} and something that this version of persist does "
                f"not know: {self.unknown}. It is undamaged; use the version of persist that wrote it."
            )
        return (
            f"blob {self.key!r} has format version {self.found}, and this version of persist reads versions "
            f"up to {self.supported}. Upgrade persist to read this location; it was left untouched."
        )


def redact(text: str, secrets: Iterable[str]) -> str:
    """Return a text with `***` in place of secrets."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= SECRET_CHARS_MIN:
            text = text.replace(secret, "***")
    return text
