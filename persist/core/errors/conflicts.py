"""Errors caused by other clients: they came first, so read and try again; or the log was replaced."""

import shlex
from dataclasses import dataclass

from persist.blob.errors import Conflict, Corruption, Unavailable


@dataclass(eq=False, repr=False)
class CollectionExists(Conflict):
    """Another client created a collection of that name first."""

    name: str

    template = "a collection {name!r} exists already. Load it, or choose another name."


@dataclass(eq=False, repr=False)
class QueryMismatch(Conflict):
    """A batch of a streaming query cannot follow the last one committed here.

    `last` is the last committed batch, or None; `run` is the newer run of the query, if there is one.
    """

    query: str
    batch: int
    last: int | None
    run: str | None

    def describe(self) -> str:
        what = f"batch {self.batch} of query {self.query}"
        if self.last is None:
            return (
                f"{what} is the first that this collection sees of the query: its checkpoint belongs to another "
                "location or collection, or the collection was made anew. Nothing was written. Start the query with a "
                f'new checkpointLocation; or, if it is to go on here, with the option first_batch="{self.batch}".'
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


@dataclass(eq=False, repr=False)
class Locked(Conflict):
    """Another client has the location exclusively (rule 12)."""

    holder: str

    template = (
        "{holder} has this location exclusively, so no other client may write here. Wait until it closes. If it is "
        'gone for good, take it over from Python: persist.open(…, mode="exclusive", force=True), or with its '
        "reentrance_id."
    )


@dataclass(eq=False, repr=False)
class WriterFenced(Conflict):
    """A newer exclusive client has replaced this one, whose requests are refused for ever (rule 12)."""

    epoch: int
    newest: int

    template = (
        "this client opened the location exclusively at seqno {epoch}, and another one did at seqno "
        "{newest}: nothing it asks for is written any more. Close it, and open again if it should take over."
    )


class Superseded(Conflict):
    """Another client changed the same thing first; this operation's output is deleted."""


@dataclass(eq=False, repr=False)
class ViewRedefined(Conflict):
    """Another client has changed the definition of a view; nothing was changed here.

    Attributes:
        expected, actual: the number of the expected definition, and of the present one.
    """

    name: str
    expected: int
    actual: int

    template = (
        "the view {name!r} has its definition {actual} now, and not {expected}: another client has redefined it. "
        "Load the view again, and check its definition."
    )


@dataclass(eq=False, repr=False)
class LeaseExpired(Conflict):
    """The reader's lease has ended, so its data may be gone (rule 11)."""

    what: str

    template = "{what}. Begin again: read or subscribe anew."


class SinkMoved(Conflict):
    """Another process sends the same collections to the same target."""


class TargetUnavailable(Unavailable):
    """The target of a sink does not answer. Its contents determine where to continue."""


@dataclass(eq=False, repr=False)
class SchemaMoved(Conflict):
    """Another client evolved the collection first. Nothing was changed.

    Attributes:
        expected, actual: the version that the change was made from, and the newest.
        mine, theirs: the intended changes, and the changes since the expected version.
    """

    expected: int
    actual: int
    mine: tuple[str, ...]
    theirs: tuple[str, ...]

    def describe(self) -> str:
        return (
            f"the change was made from version {self.expected} of the schema ({'; '.join(self.mine)}), and there is "
            f"version {self.actual} by now ({'; '.join(self.theirs)}); nothing was changed. Load the collection again, "
            "and decide anew."
        )


@dataclass(eq=False, repr=False)
class DescriptionMoved(Conflict):
    """Another client changed the description first. Nothing was changed."""

    expected: int | None
    actual: int

    template = (
        "comment and properties were expected in version {expected}, and are in version {actual} now: "
        "another client has changed them. Read `about` again, and decide anew."
    )


@dataclass(eq=False, repr=False)
class UploadExpired(Conflict):
    """Parts were uploaded too long before their commit. Nothing was committed."""

    blob: str

    template = (
        "{blob} was uploaded too long ago to be committed: what no record names is deleted after a while. "
        "Nothing was applied. Write it again, or collect garbage with a longer orphan_grace_s."
    )


@dataclass(eq=False, repr=False)
class LogReplaced(Corruption):
    """The log was replaced: records that this client read are missing or different.

    The client stops for good, and does not acknowledge its pending operations.

    Attributes:
        url: of the location.
        seqno: of a record that the client knows.
        known: the commit id of the record when it was read.
        found: the present commit id; None without a record.
    """

    url: str
    seqno: int
    known: str
    found: str | None

    def describe(self) -> str:
        now = "is gone" if self.found is None else f"is commit {self.found} now"
        return (
            f"the log of {self.url} is not the one that this client has read: the record at seqno {self.seqno}, which "
            f"it knows as commit {self.known}, {now}. Perhaps a backup was restored in place while this client was "
            "open; then what was committed since the backup is lost. A client goes on only after the log that it has "
            "read, so this one reads and writes nothing any more, and what it was asked for is not acknowledged. If "
            "records were lost by other means, restore them from a copy. Otherwise close all clients, run "
            f"{_describe_set_aside(self.url)}, which moves to lost/ what was written beyond the end of the log, "
            "open new clients, and write again what is missing."
        )


@dataclass(eq=False, repr=False)
class LogInterrupted(Corruption):
    """Records are missing before the log's end. The location cannot be written.

    Attributes:
        url: of the location.
        end: the seqno of the last record before the gap; -1 if there is none.
        first: the seqno of the first record beyond the gap, or of the newest checkpoint.
        last: the seqno of the last record that was seen.
        is_checkpoint: a checkpoint lies beyond the gap, so the location cannot be read either.
    """

    url: str
    end: int
    first: int
    last: int
    is_checkpoint: bool = False

    def describe(self) -> str:
        thing = "checkpoint" if self.is_checkpoint else "record"
        what = f"a {thing} at seqno {self.first}" if self.first == self.last else f"records {self.first} to {self.last}"
        where = "beyond that" if self.first > self.end else "beside it"
        hole_end = self.first - (not self.is_checkpoint)
        hole = "" if hole_end <= self.end else f", and those from {self.end + 1} to {hole_end} are missing"
        readable = f"What was committed up to seqno {self.end} can be read in a newly opened client; nothing can"
        return (
            f"the log of {self.url} ends at seqno {self.end}, and {where} lies {what}, made after others than are "
            f"here{hole}. {'Nothing can be read, or' if self.is_checkpoint else readable} "
            "be written. If records were lost, restore them from a copy. If a backup was restored in place, close all "
            f"clients, run {_describe_set_aside(self.url)}, which moves what lies beyond to lost/, and open new ones."
        )


def _describe_set_aside(url: str) -> str:
    """Return the command that moves a log's records after a gap away."""
    return f"`persist fsck --repair --set-aside {shlex.quote(url)}`"
