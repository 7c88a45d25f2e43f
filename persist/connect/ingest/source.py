"""The interface between a source of rows and the loop that commits them."""

import logging
import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Protocol, Self

import msgspec

from persist.api.client import Client
from persist.api.collection import Collection
from persist.blob.threads import Backoff, Clock
from persist.core.errors import InvalidUsage, Unavailable
from persist.engine.collection.failures import clear_failure, store_failure
from persist.engine.location.collection_handle import CollectionHandle

logger = logging.getLogger(__name__)


class SourceMoved(InvalidUsage):
    """The source changed during a read. The loop reads the batch again."""


class SourceUnavailable(Unavailable):
    """The source does not answer. The loop waits, and reads again."""


class SourceBusy(SourceUnavailable):
    """Another process uses the source and will release it soon, so the loop waits even with `once`."""


RETRY_S = 600.0


class Outage:
    """Waits for the next attempt while a source or sink does not answer, `RETRY_S` at most for an outage.

    Args:
        tell: stores a problem in the location; None clears it.
        once: raise a problem at once, unless it is `SourceBusy`.
    """

    def __init__(self, clock: Clock, tell: Callable[[Exception | None], None], *, once: bool) -> None:
        self._clock = clock
        self._tell = tell
        self._once = once
        self._backoff: Backoff | None = None

    def end(self) -> None:
        """Note that the source or sink answered: the next outage begins with short waits."""
        self._backoff = None
        self._tell(None)

    def wait(self, problem: Exception) -> None:
        """Store the problem and wait for the next attempt. Raises it if waiting is not allowed."""
        self._tell(problem)
        if self._once and not isinstance(problem, SourceBusy):
            raise problem
        self._backoff = self._backoff or Backoff(self._clock, RETRY_S, first_s=0.2, bound_max_s=5.0)
        if not self._backoff.wait():
            raise problem
        logger.warning("%s; it is tried again", problem)


PositiveInt = Annotated[int, msgspec.Meta(gt=0)]
PositiveFloat = Annotated[float, msgspec.Meta(gt=0)]


class StoredProperty(msgspec.Struct, frozen=True):
    """A value that a source stores on a collection, as JSON, in the property `NAME`."""

    NAME: ClassVar[str]

    @classmethod
    def from_properties(cls, collection: Collection) -> Self | None:
        """Return the value that is stored on a collection, or None."""
        text = collection.about.properties.get(cls.NAME)
        return None if text is None else msgspec.json.decode(text, type=cls)

    def to_properties(self) -> dict[str, str]:
        """Return the property to store, by name."""
        return {self.NAME: msgspec.json.encode(self).decode()}


def load_password(path: str) -> str:
    """Return the first line of a password file."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.readline().rstrip("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InvalidUsage(f"password_file={path!r} cannot be read: {reason}") from None


UNSENT: Any = object()  # A long value that an update leaves as it is, and the source does not send.


def advise_copy(names: Iterable[str]) -> str:
    """Return text for errors: how to copy these collections again."""
    renames = "; ".join(f"persist rename LOCATION {name} {name}-before" for name in names)
    return f"To copy again and keep the history: {renames}; and give the same command again"


SOURCE = "ingest.source"  # A property of collections: what fills them.
BEHIND = "ingest.behind"  # A property of one of them: how many bytes of the source were still to be read.


@dataclass(frozen=True, slots=True)
class Target:
    """A collection that a source fills, and how to create it.

    Attributes:
        key, value: columns and types of a new collection; an existing one keeps its own.
        keyed: whether the source sends events by key instead of updates.
        timeline: which moments its times mean; None if times are positions of the source.
        comment, properties: of a new collection.
    """

    name: str
    key: Mapping[str, Any]
    value: Mapping[str, Any]
    keyed: bool = False
    timeline: str | None = None
    comment: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Change:
    """Rows for a collection: updates, or events if it is keyed; `time`: of all rows, unless they have times."""

    collection: str
    rows: Any
    time: int | None = None


@dataclass(slots=True)
class Batch:
    """The rows of one commit, and what it stores beside them.

    Attributes:
        changes: an iterator that is read while the commit is made; if it raises, nothing is committed.
        upper: all collections of the source are sealed to it; None if nothing is sealed yet.
        moments: pairs of a time and its moment in µs since 1970, ascending; the last time is upper - 1. Only sources
            whose times are positions fill it.
        rows: how many rows the changes have; correct after they were read.
        is_durable: whether the batch was committed; set by the loop.
        since: by collection, the time before which its contents are not known.
        properties: by collection, the properties that this commit sets.
        behind: how many bytes of the source are unread after this batch; None if unknown.
        targets: further collections to create if they are missing.
    """

    changes: Iterable[Change]
    upper: int | None
    rows: int = 0
    moments: Sequence[tuple[int, int]] = ()
    is_durable: bool = False
    since: Mapping[str, int] = field(default_factory=dict)
    properties: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    behind: int | None = None
    targets: Sequence[Target] = ()


@dataclass
class Run:
    """The state of the loop that runs a source, as the source may read it.

    Attributes:
        collections: by name, the collections that the source fills.
        once: the source ends when it has read all that exists now.
        stop: set when the source has to end.
        uppers: the upper of each collection, as this loop last saw it.
        behind: how many bytes of the source are unread, as stored with the collections.
        outage: waits while the source does not answer.
    """

    client: Client
    collections: dict[str, Collection]
    once: bool
    stop: threading.Event
    uppers: dict[str, int] = field(init=False)
    behind: int | None = field(init=False, default=None)
    outage: Outage = field(init=False)

    def __post_init__(self) -> None:
        uppers = {name: collection.upper.time for name, collection in self.collections.items()}
        for name, upper in uppers.items():
            if upper is None:
                raise InvalidUsage(
                    f"the collection {name!r} is sealed for ever, so a source cannot write to it: choose another"
                )
        self.uppers = {name: upper for name, upper in uppers.items() if upper is not None}

        self.outage = Outage(self.client.engine.clock, self._tell, once=self.once)

    def _tell(self, problem: Exception | None) -> None:
        """Store a problem on the first collection, unless the same one is stored; None clears it."""
        handles = [self.first_handle]
        clear_failure(handles) if problem is None else store_failure(handles, problem)

    @property
    def first_handle(self) -> CollectionHandle:
        """The collection on which problems of the source are stored."""
        return self.collections[min(self.collections)].handle


class Source(Protocol):
    """A source of batches for collections.

    `batches` continues at the uppers of the collections. So the times of commits are positions of the source, or a
    further collection stores the position for each time.

    Attributes:
        name: for messages and logs, without secrets.
        moments: the collection that maps moments to times; None if times are moments.
    """

    name: str
    moments: str | None = None

    def targets(self, client: Client) -> Sequence[Target]:
        """Return the collections that the source fills, except that of moments."""

    def batches(self, run: Run) -> Generator[Batch]:
        """Yield batches until the run stops; with `once`, until all is read.

        If this raises `Unavailable`, the loop waits and calls it again.
        """

    def close(self) -> None:
        """Close files and connections that stay open between batches."""
        return
