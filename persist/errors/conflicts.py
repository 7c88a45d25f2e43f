"""Somebody else was first: read again, then try again."""

from dataclasses import dataclass

from persist.blob import Conflict


@dataclass(eq=False, repr=False)
class CollectionExists(Conflict):
    """Another client created a collection of that name first."""

    name: str

    template = "a collection {name!r} exists already. Load it with create_or_load."


@dataclass(eq=False, repr=False)
class QueryMismatch(Conflict):
    """A batch of a streaming query cannot follow the last one that was committed here.

    last is the batch committed last, None if there is none; run is the run that has taken over, if that is why.
    """

    query: str
    batch: int
    last: int | None
    run: str | None

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


@dataclass(eq=False, repr=False)
class Locked(Conflict):
    """Another client has the location exclusively (rule 12)."""

    holder: str

    template = (
        "{holder} has this location exclusively, so nobody else writes here. Wait until it closes; if it is "
        'gone for good, open with mode="exclusive" and its reentrance_id, or with force=True.'
    )


@dataclass(eq=False, repr=False)
class WriterFenced(Conflict):
    """This exclusive client is not the newest one any more: whatever it asks for is refused, for ever (rule 12)."""

    epoch: int
    newest: int

    template = (
        "this client opened the location exclusively at seqno {epoch}, and another one did at seqno "
        "{newest}: nothing it asks for is written any more. Close it, and open again if it should take over."
    )


class Superseded(Conflict):
    """A compaction found that another one has replaced what it was about to replace; what it made is thrown away."""


@dataclass(eq=False, repr=False)
class ViewRedefined(Conflict):
    """Somebody else has given a view another definition meanwhile; nothing was changed.

    Attributes:
        expected, actual: the number of the definition that was expected, and that of the present one.
    """

    name: str
    expected: int
    actual: int

    template = (
        "the view {name!r} has its definition {actual} by now, and not {expected}: somebody else "
        "has given it another one. Load it again, and look at its definition."
    )


@dataclass(eq=False, repr=False)
class LeaseExpired(Conflict):
    """What a reader relies on is not kept for it any more; it gets this and never a wrong answer (rule 11)."""

    what: str

    template = "{what}. Begin again: take a new snapshot, or subscribe anew."


@dataclass(eq=False, repr=False)
class SchemaMoved(Conflict):
    """Somebody else has evolved the collection meanwhile; nothing was changed.

    Attributes:
        expected, actual: the version that the change was made from, and the newest.
        mine, theirs: what was to be changed, and what has been changed since.
    """

    expected: int
    actual: int
    mine: tuple[str, ...]
    theirs: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"the change was made from version {self.expected} of the schema ({'; '.join(self.mine)}), and there is "
            f"version {self.actual} by now ({'; '.join(self.theirs)}); nothing was changed. Load the collection again, "
            "and decide anew."
        )


@dataclass(eq=False, repr=False)
class DescriptionMoved(Conflict):
    """Somebody else has changed the comment or the properties meanwhile; nothing was changed."""

    expected: int | None
    actual: int

    template = (
        "comment and properties were expected to be as in version {expected}, and there is version "
        "{actual} by now: somebody else has changed them. Read `about` again, and decide anew."
    )


@dataclass(eq=False, repr=False)
class UploadExpired(Conflict):
    """Parts were uploaded so long before their commit that they may have been collected; nothing was committed."""

    blob: str

    template = (
        "{blob} was uploaded too long ago to be committed: what no record names is deleted after a while. "
        "Nothing was applied. Write it again, or collect garbage with a longer orphan_grace_s."
    )
