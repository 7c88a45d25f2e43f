"""The properties of a collection: frontiers, schema, name, description, history; and the calls that change or drop it.

Also its publication: a table that other programs read without copying.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, get_args

import pyarrow as pa

from persist.codecs.types.arrow_types import format_type
from persist.codecs.types.schema import CollectionSchema
from persist.compute.index import IndexInfo, create_index, drop_index, load_indexes
from persist.core.antichain import END, Antichain, to_antichain
from persist.core.errors import InvalidUsage, PersistError
from persist.core.keyed.form import Keyed
from persist.core.log import kinds
from persist.core.log.fields import Table
from persist.core.names import OWN_PREFIX, check_free_name
from persist.core.rendering import Completed, render_html_table
from persist.core.state_rules.contents import Unsealed, summarize_unsealed
from persist.core.timeline import Moment, Timeline, add_timeline, show_time
from persist.engine.collection.descriptions import About, get_collection_description, make_describe_step
from persist.engine.collection.evolution import WantedEvolution, evolve
from persist.engine.follow.log_queries import LAST
from persist.engine.location.collection_handle import CollectionHandle
from persist.engine.location.opening import drop
from persist.engine.write.commit_future import CommitFuture
from persist.engine.write.write_options import WriteOptions
from persist.services.publish import Published, list_published, make_format, parse_schedule, publish, unpublish


class DescriptionProperties:
    """A mixin: the description of a location or a collection."""

    @property
    def about(self) -> About:
        """The comment and properties. Cost: one GET."""
        raise NotImplementedError

    @property
    def comment(self) -> str:
        """The comment for people; "" without one. Cost: one GET."""
        return self.about.comment

    @property
    def properties(self) -> Mapping[str, str]:
        """Texts by name that users set by `describe`. Cost: one GET."""
        return self.about.properties


class CollectionBase(Completed):
    """The id, name, schema and frontiers of one collection."""

    _INTERNAL = frozenset({"handle"})

    def __init__(self, handle: CollectionHandle) -> None:
        self.handle = handle
        self.schema: CollectionSchema = handle.schema

    @property
    def id(self) -> str:
        """The id, unique in the location. A redefined view that begins anew gets another."""
        return self.handle.id

    @property
    def name(self) -> str:
        """The name, as far as this client knows."""
        return self.handle.name

    @property
    def timeline(self) -> Timeline | None:
        """The converter between moments and times; None if times are plain numbers."""
        return self.handle.timeline

    @property
    def upper(self) -> Antichain:
        """The seal frontier: no more updates will come at times not beyond it. Cost: one GET.

        If times are moments, `str` shows the moment.
        """
        return add_timeline(to_antichain(self.handle.contents().upper), self.timeline)

    @property
    def since(self) -> Antichain:
        """The compaction frontier: the first time that can still be read. Cost: one GET."""
        return add_timeline(to_antichain(self.handle.contents().since), self.timeline)

    @property
    def unsealed(self) -> Unsealed | None:
        """The updates that are not sealed, and so not readable; or None. One GET."""
        return summarize_unsealed(self.handle.contents())

    def __eq__(self, other: object) -> bool:
        """Return whether both are handles on the same collection; their clients may differ."""
        if not isinstance(other, CollectionBase):
            return NotImplemented
        return (self.id, self.handle.engine.place) == (other.id, other.handle.engine.place)

    def __hash__(self) -> int:
        return hash((self.id, self.handle.engine.place))

    def _repr_html_(self) -> str:
        """Return the known facts as a table. Cost: no request."""
        rows = [("location", self.handle.engine.url)]
        with suppress(PersistError):
            contents = self.handle.get_known_state()
            about, schema = get_collection_description(contents), contents.schema
            rows += [("comment", about.comment)] if about.comment else []
            rows += [*about.properties.items()]
            rows += [(what, str(to_antichain(getattr(contents, what)))) for what in ("since", "upper")]
            rows += [("schema", f"{schema.version}")]
            for name in schema.columns:
                role = "key " if name in schema.key_names else ""
                comment = f": {about.columns[name].comment}" if name in about.columns else ""
                rows.append((f"{role}{name}", f"{format_type(schema.declared.field(name).type)}{comment}"))
        return render_html_table(f"Collection {self.name}", rows)

    def __repr__(self) -> str:
        """Describe the collection as this client knows it. Cost: no request."""
        progress = ""
        with suppress(PersistError):
            contents = self.handle.get_known_state()
            hidden = summarize_unsealed(contents)
            upper = contents.upper
            sealed = f"sealed before {show_time(upper, self.timeline)}" if upper else "nothing sealed"
            if upper == END:
                sealed = "complete for ever"
            progress = f", {sealed}" + (f", {hidden} not sealed" if hidden is not None else "")
        return f"<Collection {self.name!r} at {self.handle.engine.url}{progress}>"


class DescribingCalls(CollectionBase, DescriptionProperties):
    """The part of `Collection` that changes schema, name and description."""

    def evolve(
        self,
        *,
        add: Mapping[str, Any] | None = None,
        defaults: Mapping[str, Any] | None = None,
        drop: Sequence[str] = (),
        rename: Mapping[str, str] | None = None,
        widen: Mapping[str, Any] | None = None,
        reorder: Sequence[str] | None = None,
        comments: Mapping[str, str] | None = None,
        keyed: Keyed | None = None,
        properties: Mapping[str, str | None] | None = None,
        message: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> int:
        """Change the schema for all readers and times; return its version.

        A call without effect makes no version. No data is rewritten. Older records have the default of an added column,
        so that new retractions cancel them. Records that differ only in a dropped column become equal, and their diffs
        are summed. This handle continues with the new schema; others keep theirs for writing, which works as long as
        columns are only added. Arguments use the old names, except reorder, comments, and defaults, which name added
        columns.

        A name may be a path to a field inside of a column, such as `address.zip`, `items.element.sku` and
        `prices.value.net`. Quote a field's name that contains dots: `'"like.this"'`. A column's name needs no quotes.

        Args:
            add: the types of new value columns or fields of structs, by name, in forms of `create_or_load`. They come
                last. A name that was dropped before gets a new column.
            defaults: the values of added columns in older records, and in rows that lack the columns; NULL by default.
                At most 64 KiB for all columns.
            drop: value columns to remove.
            rename: a dict of old to new names, for fields as whole paths; names may be exchanged.
            widen: columns with wider types, which hold every value that the present ones hold.
            reorder: all value columns in another order.
            comments: texts for columns, as `describe` takes them.
            keyed: make the collection keyed: from now on it takes events, and no updates. It must have one value per
                key at every readable time, and no unsealed updates. Cost: reading it.
            properties: texts by name, as `describe` takes them, in the same commit.

        Raises:
            SchemaMismatch: a column is unknown, a name is taken, a default does not fit, or a type is not wider. Or the
                change is not allowed for a key column; the message has the remedy.
            NotOneValue: it is to become keyed, and some keys have several values; the first ten are named.
            InvalidUsage: it is to become keyed, and some of its rows would be tombstones.
            UpdatesBeyondUpper: it is to become keyed, and holds updates that are not sealed.
            SchemaMoved: the collection was evolved since this handle was loaded; load it again, and decide anew.
        """
        evolution = WantedEvolution(add or {}, defaults or {}, drop, rename or {}, widen or {}, reorder, keyed)
        beside: list[kinds.Describe | kinds.Note] = [
            *WriteOptions(message=message, metadata=metadata).make_notes([self.id])
        ]
        if properties:
            beside.append(make_describe_step(self.handle, None, properties, None, None))
        self.handle = evolve(self.handle, evolution, comments, beside)
        self.schema = self.handle.schema
        return self.schema.version

    @property
    def about(self) -> About:
        """The comments and properties of the collection and its columns. Cost: one GET."""
        return get_collection_description(self.handle.contents())

    def describe(
        self,
        comment: str | None = None,
        *,
        properties: Mapping[str, str | None] | None = None,
        columns: Mapping[str, Any] | None = None,
        expected: About | None = None,
    ) -> CommitFuture:
        """Set comments and properties of the collection and its columns; others stay.

        Args:
            comment: a text; "" for none.
            properties: texts by name; None removes one.
            columns: by the name of a column, a comment, or `{"comment": …, "properties": …}`.
            expected: an earlier `about`; the call fails if it has changed since.

        Returns:
            a future that resolves when that is durable; or to `DescriptionMoved` if another client came first, or
            `InvalidUsage` if all texts would take more than 64 KiB.

        Raises:
            SchemaMismatch: a column is unknown.
            InvalidUsage: a value is not a text.
        """
        self.handle.engine.writer("describe")
        return self.handle.submit("describe", [make_describe_step(self.handle, comment, properties, columns, expected)])

    def history(self, last: int | None = LAST) -> pa.Table:
        """Return the records of the log that concern the collection, as a table; see `Client.history`.

        `last`: how many of the newest records of the log are examined; None for all that are kept.
        """
        return self.handle.engine.history(last, self.id)

    def rename(self, name: str) -> CommitFuture:
        """Give the collection another name. Handles stay valid.

        Returns:
            a future that resolves when that is durable, or to `CollectionExists` if the name is taken.

        Raises:
            InvalidUsage: it is not a good name.
        """
        self.handle.engine.writer("rename")
        check_free_name(name)
        if self.name.startswith(OWN_PREFIX):
            raise InvalidUsage(
                f"collection {self.name!r} is internal to the library, which finds it by its name: keep the name"
            )
        return self.handle.submit("rename", [kinds.Rename(self.id, name)])

    def drop(self) -> CommitFuture:
        """Remove the collection; its name becomes free for a new one at once.

        Garbage collection deletes the blobs of the collection once no reader can use them any more. The commit also
        drops its indexes and, for a view, releases its inputs.

        Raises (the future):
            CollectionNeeded: views read it.
        """
        return drop(self.handle)


Deleting = Literal["vectors", "none"]


class PublishingCalls(CollectionBase):
    """The part of `Collection` that publishes tables for other programs."""

    def publish(
        self,
        table: Table = "delta",
        as_of: int | Moment | None = None,
        *,
        deletes: Deleting = "vectors",
        every: str | None = None,
        feed: bool = False,
        digest: bool = False,
        catalog: Any = None,
        identifier: str | None = None,
        format_version: int | None = None,
    ) -> Published:
        """Publish the contents as of a sealed time as a table; return its version.

        The table names the parts of the collection. If later updates have changed rows of a part, the table leaves
        these rows out, and has a small file with the present ones. So the cost is proportional to the changes since the
        last version. The table keeps its files despite compaction; see `unpublish`. If it has the time already, the
        call only finishes an interrupted publication.

        Args:
            table: the format of the table. Iceberg needs pyiceberg.
            as_of: a time, a moment, a tag or "latest"; None means the latest sealed one.
            deletes: how rows of a file are left out. "vectors" uses deletion vectors or position deletes of the format.
                "none" writes the other rows of such a file again, for readers that support neither.
            every: keep the table current from now on: "seal", "keyframe", or a span such as "10 minutes". Clients that
                write to the location do so in the background, or in `Client.maintain`. None ends that.
            feed: for Delta, a change feed. From its second version on, each version has a file of the rows that changed
                since the one before. The changes since the newest version stay readable.
            catalog: for Iceberg, a catalog of pyiceberg that gets each version, or its name in the configuration of
                pyiceberg. `every` needs the name.
            identifier: the name of the table there, such as "shop.orders"; its namespace must exist.
            digest: put the digest of the rows with the version. That reads all of them.
            format_version: the version of Iceberg's format: 2, or 3 with deletion vectors, nanoseconds and row lineage.
                None keeps the version of the table; a new table gets 2.

        Raises:
            InvalidUsage: a column has no type in that format; or its place has a table of another writer.
            AsOfCompacted, AsOfNotSealed: the time cannot be read.
            NegativeMultiplicity: of a record, which no table can show.
            Unavailable: the catalog did not take the version, which is published: publish again.
        """
        if (catalog is None) != (identifier is None) or (catalog is not None and table != "iceberg"):
            raise InvalidUsage("catalog and identifier go together, with the table 'iceberg'")
        if deletes not in get_args(Deleting):
            raise InvalidUsage(f'deletes={deletes!r} is not a way to leave rows out: give "vectors" or "none"')
        if feed and table != "delta":
            raise InvalidUsage(f'feed=True goes with the table "delta": {table!r} has no change feed')
        if format_version is not None and (table != "iceberg" or format_version not in (2, 3)):
            raise InvalidUsage(f"format_version={format_version!r} goes with the table 'iceberg', and is 2 or 3")
        options = {"deletes": deletes, **({"feed": "true"} if feed else {}), **parse_schedule(every)}
        if format_version is not None:
            options["format-version"] = str(format_version)
        if identifier is not None:
            options |= {"identifier": identifier, **({"catalog": catalog} if isinstance(catalog, str) else {})}
        self.handle.engine.settle()
        format = make_format(self.handle, table, options, None if isinstance(catalog, str) else catalog)
        return publish(self.handle, format, as_of, options=options, digest=digest)

    def unpublish(self, table: Table = "delta") -> bool:
        """Remove a published table; return whether there was one.

        Garbage collection deletes the files of the table after the grace period.
        """
        return unpublish(self.handle, table)

    def published(self) -> list[Published]:
        """Return the newest version of each published table. Cost: one GET."""
        return list_published(self.handle)


class IndexingCalls(CollectionBase):
    """The part of `Collection` that creates and drops indexes."""

    def index(self, *columns: str) -> IndexInfo:
        """Create or refresh an index by some columns; return it.

        A new index reads the contents once and stores as much again; one commit creates it. `get(where=)` and refreshes
        of views find records by an index where that reads less, here and on Spark. Answers never depend on an index:
        changes that it lacks are read from the collection. `View.refresh` refreshes the indexes of the view's inputs,
        and clients do so in the background if much has changed. The changes that it lacks are not compacted.

        An index follows renamed columns. If columns are added, dropped or widened, the next refresh builds it anew.

        Args:
            columns: key or value columns; a look-up must have values for all of them.

        Raises:
            SchemaMismatch: a column is unknown, or there twice.
            InvalidUsage: a column has a type without look-ups, or the columns are the key of the collection.
            AsOfCompacted: no sealed time can be read, because since has passed all of them.
        """
        return IndexInfo.of(create_index(self.handle, columns), self.handle)

    def indexes(self) -> list[IndexInfo]:
        """Return the indexes of the collection, by their columns. Cost: one GET."""
        self.handle.contents()
        return sorted(
            (IndexInfo.of(index, self.handle) for index in load_indexes(self.handle)), key=lambda x: x.columns
        )

    def drop_index(self, *columns: str) -> CommitFuture:
        """Remove the index by some columns. Answers stay the same.

        Raises:
            InvalidUsage: there is none.
            SchemaMismatch: a column is unknown.
        """
        return drop_index(self.handle, columns)
