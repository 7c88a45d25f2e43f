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

from typing import TypeVar

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
from persist.timeline import Timeline

__all__ = [
    "AsOfCompacted",
    "AsOfNotSealed",
    "ClientClosed",
    "CodecMismatch",
    "CollectionExists",
    "CollectionNeeded",
    "CollectionNotFound",
    "Conflict",
    "CorruptBlob",
    "Corruption",
    "DescriptionMoved",
    "DiffOverflow",
    "FrontierRegression",
    "HoldMoved",
    "HoldNotFound",
    "IncompatibleVersion",
    "Indeterminate",
    "InvalidUpdate",
    "InvalidUsage",
    "KeyedCollection",
    "LateEvents",
    "LeaseExpired",
    "Locked",
    "LogInterrupted",
    "LogReplaced",
    "NegativeMultiplicity",
    "NotKeyed",
    "PendingEvents",
    "PersistError",
    "QueryMismatch",
    "ReadOnly",
    "SchemaMismatch",
    "SchemaMoved",
    "TagMoved",
    "TagNotFound",
    "TokenReused",
    "Unavailable",
    "UpdateNotBeyondUpper",
    "UpdatesBeyondUpper",
    "UploadExpired",
    "UpperMismatch",
    "WriterFenced",
]


class AboutTimes:
    """Mixed into errors that name times of one collection.

    Attributes:
        timeline: the unit of the collection's timeline, so that the times are shown as moments, too; None if they only
            count.
    """

    timeline: str | None = None

    def shown(self, time: "int | Antichain | None") -> str:
        """Return a time or a frontier for a message."""
        number = time.time if isinstance(time, Antichain) else time
        if number is None or self.timeline is None:
            return str(time)
        moment = Timeline(self.timeline).text_of(number)
        return f"{time} ({moment})"


T = TypeVar("T", bound=BaseException)


def with_timeline(error: T, unit: str | None) -> T:
    """Let an error that names times of a collection show them as moments, too, if the collection has a timeline."""
    if isinstance(error, AboutTimes):
        error.timeline = unit
    return error


class UpdateNotBeyondUpper(AboutTimes, InvalidUsage):
    """A write holds an update at a time that was sealed already; the whole write was rejected (rule 2)."""

    def __init__(self, time: int, upper: Antichain) -> None:
        super().__init__(time, upper)
        self.time = time
        self.upper = upper

    def __str__(self) -> str:
        if self.upper.is_empty:
            return (
                f"update at time {self.shown(self.time)} is not beyond upper={self.upper}: the collection is "
                "complete for ever and takes no more updates. Write to another collection."
            )
        return (
            f"update at time {self.shown(self.time)} is not beyond upper={self.shown(self.upper)}: times before "
            f"{self.upper.time} are sealed. "
            f"Write at times >= {self.upper.time}; nothing of this write was applied."
        )


class KeyedCollection(InvalidUsage):
    """A keyed collection was asked for what it cannot do, because only resolved events become its updates."""

    def __init__(self, name: str, action: str) -> None:
        super().__init__(name, action)
        self.name = name
        self.action = action

    def __str__(self) -> str:
        if self.action == "late_bound":
            return (
                f"the events of the keyed collection {self.name!r} have no watermark, so none of them is late: it was "
                "created without order_by. A late bound needs one."
            )
        return (
            f"the collection {self.name!r} is keyed, so {self.action} is refused: what it adds would depend on events "
            "that are not resolved yet. Use upsert(), transition() or delete(keys), and seal()."
        )


class NotKeyed(InvalidUsage):
    """Events were given to a collection that is not keyed."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return (
            f"the collection {self.name!r} is not keyed, so it takes updates and no events. Use write(), or create a "
            "collection with keyed=persist.Keyed()."
        )


class PendingEvents(AboutTimes, InvalidUsage):
    """A seal would pass events that are pending, without resolving them."""

    def __init__(self, name: str, upper: Antichain, first: int) -> None:
        super().__init__(name, upper, first)
        self.name = name
        self.upper = upper
        self.first = first

    def __str__(self) -> str:
        return (
            f"events of the keyed collection {self.name!r} at time {self.shown(self.first)} are pending, and a seal "
            f"to {self.shown(self.upper)} would pass them. Seal by Collection.seal(), or with upsert(..., seal=...): "
            "these resolve them."
        )


class LateEvents(InvalidUsage):
    """Events came whose watermark is below the late bound; all of what came with them was refused."""

    def __init__(self, watermark: int, bound: int) -> None:
        super().__init__(watermark, bound)
        self.watermark = watermark
        self.bound = bound

    def __str__(self) -> str:
        least = "NULL" if self.watermark == -(2**63) else self.watermark
        return (
            f"an event has the watermark {least}, below the late bound {self.bound}: it is late, and nothing of this "
            'was applied. Leave late events out, or have them collected with late="collect".'
        )


class FrontierRegression(AboutTimes, InvalidUsage):
    """A seal or allow_compaction would move a frontier back (rules 1 and 4)."""

    def __init__(self, frontier: str, asked: Antichain, current: Antichain) -> None:
        super().__init__(frontier, asked, current)
        self.frontier = frontier
        self.asked = asked
        self.current = current

    def __str__(self) -> str:
        return (
            f"{self.frontier} cannot go back from {self.shown(self.current)} to {self.shown(self.asked)}. "
            f"Ask for a frontier at or beyond {self.current}."
        )


class AsOfCompacted(AboutTimes, InvalidUsage):
    """A read asks for a time before since (rule 3); lower is set if it asked for changes."""

    def __init__(self, as_of: int, since: Antichain, lower: int | None = None) -> None:
        super().__init__(as_of, since, lower)
        self.as_of = as_of
        self.since = since
        self.lower = lower

    def __str__(self) -> str:
        if self.lower is not None and self.since.time is not None:
            return (
                f"changes from {self.shown(self.lower)} on cannot be told from what came before: "
                f"since={self.shown(self.since)}, so times up to {self.since.time} are one. "
                f"Ask for changes from {self.since.time + 1} or later."
            )
        since = self.shown(self.since)
        what = f"as_of={self.shown(self.as_of)} is before since={since}: history before since has been compacted."
        if self.since.is_empty:
            return f"{what} Since is empty: no time can be read any more."
        return f"{what} Read at as_of >= {self.since.time}."


class AsOfNotSealed(AboutTimes, InvalidUsage):
    """A read asks for a time that was not sealed within the caller's timeout (rule 3).

    Attributes:
        as_of: the time; None is the latest sealed one, of which there is none.
        unsealed: what is there at times that are not sealed, in words; "" if that is nothing, or not known.
        until: the upper bound, if the read asked for changes.
    """

    def __init__(
        self, as_of: int | None, upper: Antichain, timeout_s: float, unsealed: str = "", until: int | None = None
    ) -> None:
        super().__init__(as_of, upper, timeout_s, unsealed, until)
        self.as_of = as_of
        self.upper = upper
        self.timeout_s = timeout_s
        self.unsealed = unsealed
        self.until = until

    def __str__(self) -> str:
        there = f" Not sealed yet are {self.unsealed}." if self.unsealed else ""
        if self.as_of is None:
            there = there or " The collection is empty: write, then seal(upper) makes times before upper readable."
            return f"nothing is sealed yet, so there is no latest time to read.{there}"
        known = "nothing is sealed yet" if self.upper.time == 0 else f"times before {self.upper.time} are sealed"
        waited = f"{known}, and waiting {self.timeout_s:g} s did not change that.{there}"
        if self.until is not None:
            return (
                f"changes until {self.shown(self.until)} are not complete, because upper={self.shown(self.upper)}: "
                f"{waited} Ask for changes "
                f"until {self.upper.time} (the default), seal to {self.until} or later, or allow a longer timeout."
            )
        return (
            f"as_of={self.shown(self.as_of)} is not before upper={self.shown(self.upper)}: {waited} Read at an earlier "
            f"time, seal to {self.as_of + 1} or later, or allow a longer timeout."
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
    """The location has no such collection, or the one this handle stood for was destroyed.

    Attributes:
        known: the collections that there are.
        reads: whether it was asked for by a client that only reads, and so cannot create one.
    """

    def __init__(self, name: str, url: str, known: tuple[str, ...], reads: bool = False) -> None:
        super().__init__(name, url, known, reads)
        self.name = name
        self.url = url
        self.known = known
        self.reads = reads

    def __str__(self) -> str:
        if self.name in self.known:
            return (
                f"the collection {self.name!r} at {self.url} that this handle stands for was destroyed, and another "
                "one has its name now. Load it again."
            )
        shown = ", ".join(map(repr, self.known[:8])) + (", …" if len(self.known) > 8 else "")
        has = f"it has {shown}." if self.known else "it has no collections at all: is the URL right?"
        if self.reads:
            return f"no collection {self.name!r} at {self.url}: {has} This client only reads: load one that is there."
        return f"no collection {self.name!r} at {self.url}: {has} Create it with create_or_load."


class CollectionExists(Conflict):
    """Another client created a collection of that name first."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"a collection {self.name!r} exists already. Load it with create_or_load."


class CollectionNeeded(InvalidUsage):
    """A collection was to be destroyed that views read."""

    def __init__(self, name: str, views: list[str]) -> None:
        super().__init__(name, views)
        self.name = name
        self.views = views

    def __str__(self) -> str:
        return (
            f"collection {self.name!r} cannot be destroyed: the views {', '.join(map(repr, self.views))} read it. "
            "Destroy these first."
        )


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


class UpperMismatch(AboutTimes, Conflict):
    """A write or seal expected another upper: somebody else came first. Nothing of it was applied."""

    def __init__(self, expected: Antichain, actual: Antichain) -> None:
        super().__init__(expected, actual)
        self.expected = expected
        self.actual = actual

    def __str__(self) -> str:
        return (
            f"expected upper={self.shown(self.expected)}, and it is {self.shown(self.actual)}; nothing of this was "
            "applied. Read what was written meanwhile, then decide anew."
        )


class UpdatesBeyondUpper(AboutTimes, Conflict):
    """A commit was to be alone in what it adds to the sealed contents, and somebody else has added updates, too.

    time is the latest of theirs, None if they come with the same record of the log.
    """

    def __init__(self, upper: Antichain, time: int | None) -> None:
        super().__init__(upper, time)
        self.upper = upper
        self.time = time

    def __str__(self) -> str:
        until = "" if self.time is None else f", until {self.shown(self.time)},"
        seal = "seal" if self.time is None else f"seal({self.time + 1})"
        return (
            f"updates at times beyond upper={self.shown(self.upper)}{until} are there already, so another writer "
            "appends to this collection, or this one has not sealed what it wrote; nothing of this was applied. Let it "
            f"finish and {seal}, then try again."
        )


class TokenReused(InvalidUsage):
    """The token of a write names another one, of other data, that was done before (rule 7)."""

    def __init__(self, token: str, collection: str) -> None:
        super().__init__(token, collection)
        self.token = token
        self.collection = collection

    def __str__(self) -> str:
        return (
            f"the token {self.token!r} was used before, for a write of other data to the collection "
            f"{self.collection!r}: this is not a repetition of it, and nothing was written. Give each write a token of "
            "its own, and the same one only when the same data is tried again, at the same times."
        )


class QueryMismatch(Conflict):
    """A batch of a streaming query cannot follow the last one that was committed here.

    last is the batch committed last, None if there is none; run is the run that has taken over, if that is why.
    """

    def __init__(self, query: str, batch: int, last: int | None, run: str | None) -> None:
        super().__init__(query, batch, last, run)
        self.query = query
        self.batch = batch
        self.last = last
        self.run = run

    def __str__(self) -> str:
        what = f"batch {self.batch} of query {self.query}"
        if self.last is None:
            return (
                f"{what} is the first that this collection sees of the query: its checkpoint belongs to another "
                "location or collection, or the collection was made anew. Nothing was written. Start the query with a "
                f'new checkpointLocation; or, if it is to go on here, with the option firstBatch="{self.batch}".'
            )
        if self.run is not None:
            return (
                f"{what} comes from a run that another one, {self.run}, has displaced: two queries with one id are "
                "running, from one checkpoint or a copy of it. Nothing was written. Stop one of them, and give it a "
                "checkpointLocation of its own."
            )
        return (
            f"{what} cannot be written, because the last one here is batch {self.last}, and a query does not go back: "
            "its checkpoint was copied for another query, or restored from an old copy. Nothing was written. Start it "
            "with a new checkpointLocation."
        )


class Locked(Conflict):
    """Another client has the location exclusively (rule 12)."""

    def __init__(self, holder: str) -> None:
        super().__init__(holder)
        self.holder = holder

    def __str__(self) -> str:
        return (
            f"{self.holder} has this location exclusively, so nobody else writes here. Wait until it closes; if it is "
            'gone for good, open with mode="exclusive" and its reentrance_id, or with force=True.'
        )


class WriterFenced(Conflict):
    """This exclusive client is not the newest one any more: whatever it asks for is refused, for ever (rule 12)."""

    def __init__(self, epoch: int, newest: int) -> None:
        super().__init__(epoch, newest)
        self.epoch = epoch
        self.newest = newest

    def __str__(self) -> str:
        return (
            f"this client opened the location exclusively at seqno {self.epoch}, and another one did at seqno "
            f"{self.newest}: nothing it asks for is written any more. Close it, and open again if it should take over."
        )


class Superseded(Conflict):
    """A compaction found that another one has replaced what it was about to replace; what it made is thrown away."""


class LeaseExpired(Conflict):
    """What a reader relies on is not kept for it any more; it gets this and never a wrong answer (rule 11)."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what

    def __str__(self) -> str:
        return f"{self.what}. Begin again: take a new snapshot, or subscribe anew."


class HoldMoved(AboutTimes, Conflict):
    """A named hold is not where its owner left it: another process moves it too, or has taken the name."""

    def __init__(self, name: str, expected: int | None, actual: int | None) -> None:
        super().__init__(name, expected, actual)
        self.name = name
        self.expected = expected
        self.actual = actual

    def __str__(self) -> str:
        def place(time: int | None) -> str:
            return "not there" if time is None else f"at {self.shown(time)}"

        return (
            f"the hold {self.name!r} was expected to be {place(self.expected)}, and is {place(self.actual)}; it was "
            "not moved. Load it again to go on from where it is."
        )


class HoldNotFound(InvalidUsage):
    """The collection has no hold of that name."""

    def __init__(self, name: str, known: tuple[str, ...]) -> None:
        super().__init__(name, known)
        self.name = name
        self.known = known

    def __str__(self) -> str:
        has = f"it has {', '.join(map(repr, self.known[:8]))}" if self.known else "it has none"
        return f"this collection has no named hold {self.name!r}: {has}. Make it with hold(time, name={self.name!r})."


class SchemaMoved(Conflict):
    """Somebody else has evolved the collection meanwhile; nothing was changed.

    Attributes:
        expected, actual: the version that the change was made from, and the newest.
        mine, theirs: what was to be changed, and what has been changed since.
    """

    def __init__(self, expected: int, actual: int, mine: tuple[str, ...], theirs: tuple[str, ...]) -> None:
        super().__init__(expected, actual, mine, theirs)
        self.expected = expected
        self.actual = actual
        self.mine = mine
        self.theirs = theirs

    def __str__(self) -> str:
        return (
            f"the change was made from version {self.expected} of the schema ({'; '.join(self.mine)}), and there is "
            f"version {self.actual} by now ({'; '.join(self.theirs)}); nothing was changed. Load the collection again, "
            "and decide anew."
        )


class TagMoved(AboutTimes, Conflict):
    """A tag is not where it was when it was to be made, moved or dropped: somebody else came first."""

    def __init__(self, name: str, expected: int | None, actual: int | None) -> None:
        super().__init__(name, expected, actual)
        self.name = name
        self.expected = expected
        self.actual = actual

    def __str__(self) -> str:
        def place(time: int | None) -> str:
            return "not there" if time is None else f"at {self.shown(time)}"

        return (
            f"the tag {self.name!r} was expected to be {place(self.expected)}, and is {place(self.actual)}; it was "
            "left as it is. To move a tag that exists, give move=True."
        )


class TagNotFound(InvalidUsage):
    """The collection has no tag of that name."""

    def __init__(self, name: str, known: tuple[str, ...]) -> None:
        super().__init__(name, known)
        self.name = name
        self.known = known

    def __str__(self) -> str:
        has = f"it has {', '.join(map(repr, self.known[:8]))}" if self.known else "it has none"
        return (
            f"{self.name!r} is no time, no moment, and no tag of this collection: {has}. Make one with "
            f"tag({self.name!r}, time)."
        )


class DescriptionMoved(Conflict):
    """Somebody else has changed the comment or the properties meanwhile; nothing was changed."""

    def __init__(self, expected: int | None, actual: int) -> None:
        super().__init__(expected, actual)
        self.expected = expected
        self.actual = actual

    def __str__(self) -> str:
        return (
            f"comment and properties were expected to be as in version {self.expected}, and there is version "
            f"{self.actual} by now: somebody else has changed them. Read `about` again, and decide anew."
        )


class UploadExpired(Conflict):
    """Parts were uploaded so long before their commit that they may have been collected; nothing was committed."""

    def __init__(self, blob: str) -> None:
        super().__init__(blob)
        self.blob = blob

    def __str__(self) -> str:
        return (
            f"{self.blob} was uploaded too long ago to be committed: what no record names is deleted after a while. "
            "Nothing was applied. Write it again, or collect garbage with a longer orphan_grace_s."
        )


class LogReplaced(Corruption):
    """The log is not the one that this client has read: what it knows is gone, or something else is in its place.

    The client stops for good. Nothing that it was asked for since it last looked is acknowledged.

    Attributes:
        url: of the location.
        seqno: of a record that the client knows.
        known: the commit id that it knows the record by.
        found: the one that is there now; None if there is no record.
    """

    def __init__(self, url: str, seqno: int, known: str, found: str | None) -> None:
        super().__init__(url, seqno, known, found)
        self.url = url
        self.seqno = seqno
        self.known = known
        self.found = found

    def __str__(self) -> str:
        now = "is gone" if self.found is None else f"is commit {self.found} now"
        return (
            f"the log of {self.url} is not the one that this client has read: the record at seqno {self.seqno}, which "
            f"it knows as commit {self.known}, {now}. Perhaps a backup was restored in place while this client was "
            "open; then what was committed since the backup is lost. A client goes on only after the log that it has "
            "read, so this one reads and writes nothing any more. Close it, run fsck, open a new one, and write again "
            "what is missing."
        )


class LogInterrupted(Corruption):
    """Records lie beyond the end of the log, after a hole, or made after records that are not there; nobody may write.

    Attributes:
        url: of the location.
        end: the seqno of the last record that follows from those before it; -1 if there is none.
        first: the seqno of the first record beyond it.
        last: that of the last one that was seen.
    """

    def __init__(self, url: str, end: int, first: int, last: int) -> None:
        super().__init__(url, end, first, last)
        self.url = url
        self.end = end
        self.first = first
        self.last = last

    def __str__(self) -> str:
        what = f"a record at seqno {self.first}" if self.first == self.last else f"records {self.first} to {self.last}"
        hole = "" if self.first == self.end + 1 else f", and those from {self.end + 1} to {self.first - 1} are missing"
        return (
            f"the log of {self.url} ends at seqno {self.end}, and beyond that lies {what}, made after others than are "
            f"here{hole}. What was committed up to seqno {self.end} can be read in a newly opened client; nothing can "
            "be written. If records were lost, restore them from a copy. If a backup was restored in place, run fsck "
            "with repair and set_aside, which moves what lies beyond to lost/, and open new clients."
        )
