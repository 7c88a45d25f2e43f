"""Publishing a collection: as a table that other programs read, without copying."""

from typing import Any, Literal, get_args

from persist.collection.describing import CollectionBase
from persist.errors import InvalidUsage
from persist.log import Table
from persist.publish import Published, format_of, publish, published_tables, unpublish, wanted_every
from persist.timeline import Moment

Deleting = Literal["vectors", "none"]


class PublishingCalls(CollectionBase):
    """The part of `Collection` that lets other programs read it as a table of their format."""

    def publish(
        self,
        table: Table = "delta",
        as_of: int | Moment | None = None,
        *,
        deletes: Deleting = "vectors",
        every: str | None = None,
        digest: bool = False,
        catalog: Any = None,
        identifier: str | None = None,
    ) -> Published:
        """Let other programs read what the collection holds as of a sealed time, as a table; return its new version.

        Parts are named as they lie. Of rows that later updates have changed, the table leaves out what the parts hold
        and has a small file with what holds now. So publishing costs what was changed, and the next version what was
        changed since. The table keeps its files, whatever is compacted; see `unpublish`. If it has the time already,
        nothing is done, but what somebody has left half done is finished.

        Args:
            table: its format. Iceberg needs pyiceberg.
            as_of: a time, a moment, a tag or "latest"; None means the latest sealed one.
            deletes: how rows of a file are left out: "vectors", as the format does it, by deletion vectors or position
                deletes; "none" writes the others of such a file anew, for readers that know neither.
            every: keep the table current from now on: "seal", "keyframe", or a span such as "10 minutes". Clients that
                write to the location do so in the background, or in `Client.maintain`. None ends that.
            catalog: for Iceberg, a catalog of pyiceberg, or the name of one that pyiceberg is configured with, which is
                told of each version. Only one that is named is remembered, and told of what `every` publishes.
            identifier: what the table is called there, such as "shop.orders"; its namespace must be there.
            digest: put the digest of the rows with the version. That reads all of them.

        Raises:
            InvalidUsage: a column has no type in that format; or a table of somebody else lies where it is to be.
            AsOfCompacted, AsOfNotSealed: the time cannot be read.
            NegativeMultiplicity: of a record, which no table can show.
            Unavailable: the catalog did not take the version, which is published: publish again.
            ReadOnly: this client only reads.
        """
        if (catalog is None) != (identifier is None) or (catalog is not None and table != "iceberg"):
            raise InvalidUsage("catalog and identifier go together, with the table 'iceberg'")
        if deletes not in get_args(Deleting):
            raise InvalidUsage(f'deletes={deletes!r} is no way to leave rows out: give "vectors" or "none"')
        options = {"deletes": deletes, **wanted_every(every)}
        if identifier is not None:
            options |= {"identifier": identifier, **({"catalog": catalog} if isinstance(catalog, str) else {})}
        self.handle.engine.settle()
        format = format_of(self.handle, table, options, None if isinstance(catalog, str) else catalog)
        return publish(self.handle, format, as_of, options=options, digest=digest)

    def unpublish(self, table: Table = "delta") -> bool:
        """Give a published table up; return whether there was one. Readers find it no more.

        What only the table needed is deleted by garbage collection, after the grace period.

        Raises:
            ReadOnly: this client only reads.
        """
        return unpublish(self.handle, table)

    def published(self) -> list[Published]:
        """Return the tables that the collection is published as, as their newest versions are. Cost: one GET."""
        return published_tables(self.handle)
