"""Every error of the library, grouped by what a handler does about it.

    PersistError
    ├── InvalidUsage (also ValueError)  the caller's mistake; fix the call
    ├── Conflict                        someone else was first; read again, then retry
    ├── Unavailable                     the store did nothing; retry with back-off
    ├── Indeterminate                   the write may have landed; read back before trying again
    └── Corruption                      bytes contradict themselves; stop, naming the blob

Errors that speak of storage or of columns are defined in the layer that raises them and re-exported here.
All of them survive pickling, because they cross process boundaries in Spark.
"""

from persist.antichain import Antichain
from persist.blob import (
    Conflict,
    CorruptBlob,
    Corruption,
    IncompatibleVersion,
    Indeterminate,
    InvalidUsage,
    PersistError,
    Unavailable,
)
from persist.codecs import CodecMismatch, DiffOverflow, InvalidUpdate, SchemaMismatch

__all__ = [
    "AsOfCompacted",
    "AsOfNotSealed",
    "ClientClosed",
    "CodecMismatch",
    "CollectionExists",
    "CollectionNotFound",
    "Conflict",
    "CorruptBlob",
    "Corruption",
    "DiffOverflow",
    "FrontierRegression",
    "IncompatibleVersion",
    "Indeterminate",
    "InvalidUpdate",
    "InvalidUsage",
    "NegativeMultiplicity",
    "PersistError",
    "ReadOnly",
    "SchemaMismatch",
    "Unavailable",
    "UpdateNotBeyondUpper",
]


class UpdateNotBeyondUpper(InvalidUsage):
    """A write holds an update at a time that was sealed already; the whole write was rejected (rule 2)."""

    def __init__(self, time: int, upper: Antichain) -> None:
        super().__init__(time, upper)
        self.time = time
        self.upper = upper

    def __str__(self) -> str:
        if self.upper.is_empty:
            return (
                f"update at time {self.time} is not beyond upper={self.upper}: the collection is complete for ever "
                "and takes no more updates. Write to another collection."
            )
        return (
            f"update at time {self.time} is not beyond upper={self.upper}: times before {self.upper.time} are sealed. "
            f"Write at times >= {self.upper.time}; nothing of this write was applied."
        )


class FrontierRegression(InvalidUsage):
    """A seal or allow_compaction would move a frontier back (rules 1 and 4)."""

    def __init__(self, frontier: str, asked: Antichain, current: Antichain) -> None:
        super().__init__(frontier, asked, current)
        self.frontier = frontier
        self.asked = asked
        self.current = current

    def __str__(self) -> str:
        return (
            f"{self.frontier} cannot go back from {self.current} to {self.asked}. "
            f"Ask for a frontier at or beyond {self.current}."
        )


class AsOfCompacted(InvalidUsage):
    """A read asks for a time before since (rule 3); lower is set if it asked for changes."""

    def __init__(self, as_of: int, since: Antichain, lower: int | None = None) -> None:
        super().__init__(as_of, since, lower)
        self.as_of = as_of
        self.since = since
        self.lower = lower

    def __str__(self) -> str:
        if self.lower is not None and self.since.time is not None:
            return (
                f"changes from {self.lower} on cannot be told from what came before: since={self.since}, so times up "
                f"to {self.since.time} are one. Ask for changes from {self.since.time + 1} or later."
            )
        what = f"as_of={self.as_of} is before since={self.since}: history before since has been compacted."
        if self.since.is_empty:
            return f"{what} Since is empty: no time can be read any more."
        return f"{what} Read at as_of >= {self.since.time}."


class AsOfNotSealed(InvalidUsage):
    """A read asks for a time that was not sealed within the caller's timeout (rule 3); as_of None is the latest."""

    def __init__(self, as_of: int | None, upper: Antichain, timeout_s: float) -> None:
        super().__init__(as_of, upper, timeout_s)
        self.as_of = as_of
        self.upper = upper
        self.timeout_s = timeout_s

    def __str__(self) -> str:
        if self.as_of is None:
            return (
                f"nothing is sealed yet, so there is no latest time to read, and waiting {self.timeout_s:g} s did not "
                "change that. Seal the collection, or allow a longer timeout."
            )
        known = "nothing is sealed yet" if self.upper.time == 0 else f"times before {self.upper.time} are sealed"
        return (
            f"as_of={self.as_of} is not before upper={self.upper}: {known}, and waiting {self.timeout_s:g} s did not "
            f"change that. Read at an earlier time, seal to {self.as_of + 1} or later, or allow a longer timeout."
        )


class NegativeMultiplicity(InvalidUsage):
    """Rows were asked for, but some record has a negative multiplicity, which rows cannot show (rule 13)."""

    def __init__(self, example: str, multiplicity: int, as_of: int) -> None:
        super().__init__(example, multiplicity, as_of)
        self.example = example
        self.multiplicity = multiplicity
        self.as_of = as_of

    def __str__(self) -> str:
        return (
            f"the record {self.example} has multiplicity {self.multiplicity} as of {self.as_of}, and rows cannot show "
            'that. Ask for form="diff" to see multiplicities, or write the missing insertion.'
        )


class CollectionNotFound(InvalidUsage):
    """The location has no such collection, or the one this handle stood for was destroyed."""

    def __init__(self, name: str, url: str, known: tuple[str, ...]) -> None:
        super().__init__(name, url, known)
        self.name = name
        self.url = url
        self.known = known

    def __str__(self) -> str:
        if self.name in self.known:
            return (
                f"the collection {self.name!r} at {self.url} that this handle stands for was destroyed, and another "
                "one has its name now. Load it again."
            )
        shown = ", ".join(map(repr, self.known[:8])) + (", …" if len(self.known) > 8 else "")
        has = f"it has {shown}" if self.known else "it has no collections at all: is the URL right?"
        return f"no collection {self.name!r} at {self.url}: {has}. Create it with create_or_load."


class CollectionExists(Conflict):
    """Another client created a collection of that name first."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"a collection {self.name!r} exists already. Load it with create_or_load."


class ReadOnly(InvalidUsage):
    """A client opened with mode="read" was asked to write (rule 12)."""

    def __init__(self, action: str) -> None:
        super().__init__(action)
        self.action = action

    def __str__(self) -> str:
        return (
            f'{self.action} needs a writing client, and this one was opened with mode="read". Open with mode="shared".'
        )


class ClientClosed(InvalidUsage):
    """The client was closed before the call."""

    def __init__(self, action: str) -> None:
        super().__init__(action)
        self.action = action

    def __str__(self) -> str:
        return f"{self.action} came after close(), and nothing was done. Open a new client with persist.open."
