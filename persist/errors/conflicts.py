"""Somebody else was first: read again, then try again."""

from persist.blob import Conflict


class CollectionExists(Conflict):
    """Another client created a collection of that name first."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"a collection {self.name!r} exists already. Load it with create_or_load."


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


class ViewRedefined(Conflict):
    """Somebody else has given a view another definition meanwhile; nothing was changed.

    Attributes:
        expected, actual: the number of the definition that was expected, and that of the present one.
    """

    def __init__(self, name: str, expected: int, actual: int) -> None:
        super().__init__(name, expected, actual)
        self.name = name
        self.expected = expected
        self.actual = actual

    def __str__(self) -> str:
        return (
            f"the view {self.name!r} has its definition {self.actual} by now, and not {self.expected}: somebody else "
            "has given it another one. Load it again, and look at its definition."
        )


class LeaseExpired(Conflict):
    """What a reader relies on is not kept for it any more; it gets this and never a wrong answer (rule 11)."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what

    def __str__(self) -> str:
        return f"{self.what}. Begin again: take a new snapshot, or subscribe anew."


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
