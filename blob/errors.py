"""The error groups, by what a handler does about them, and the errors storage itself can raise.

They stand in the lowest layer so that every layer raises the final class at once and none has to be mapped on
the way up; `persist.errors` adds the errors that speak of collections and re-exports these.
"""


class PersistError(Exception):
    """Anything `persist` raises on purpose."""


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


class StoreFull(Unavailable):
    """The store has no room left, by its size or a quota, and did nothing: make room, then try again."""


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


class CorruptBlob(Corruption):
    """A blob is missing, truncated or does not match its checksum or its own structure.

    Attributes:
        key: the blob's key within the location.
    """

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(key, reason)
        self.key = key
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"blob {self.key!r} is corrupt: {self.reason}. Restore it from a copy; "
            "nothing that depends on it was returned."
        )


class MissingBlob(CorruptBlob):
    """A blob that something refers to is not there."""


class IncompatibleVersion(Corruption):
    """A blob was written in a format that this version does not know.

    Attributes:
        key: the blob's key within the location.
    """

    def __init__(self, key: str, found: int, supported: int) -> None:
        super().__init__(key, found, supported)
        self.key = key
        self.found = found
        self.supported = supported

    def __str__(self) -> str:
        return (
            f"blob {self.key!r} has format version {self.found}, and this version of persist reads versions "
            f"up to {self.supported}. Upgrade persist to read this location; it was left untouched."
        )
