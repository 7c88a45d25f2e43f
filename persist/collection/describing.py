"""What a collection is: its schema, name, description and record of changes, and its end."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from persist.collection.base import CollectionBase
from persist.engine import About, WantedEvolution, about_collection, describe_step, destroy, evolve
from persist.errors import InvalidUsage
from persist.log import Rename
from persist.names import OWN_PREFIX, check_free_name
from persist.replica import LAST
from persist.upsert import Keyed
from persist.write import CommitFuture, note_steps


class DescribingCalls(CollectionBase):
    """The part of `Collection` that says what it is, and changes that."""

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
        message: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> int:
        """Change the schema, durably, for every reader and every time from then on; return its version.

        What changes nothing makes no version. No data is rewritten. Records of before and after cancel: a record that
        is older than a column has the column's default. Dropping a column adds up what it told apart. This handle goes
        on with the new schema; others keep theirs for writing, which works as long as columns are only added. Names
        are those of before, but in reorder and comments, and in defaults, which are of columns that are added.

        Args:
            add: value columns with their types, as `create_or_load` takes them, at the end; a name that was dropped
                before is another column.
            defaults: what older records have in them; NULL where none is given. At most 64 KiB for all columns.
            drop: value columns.
            rename: old names to new ones; they may be exchanged.
            widen: columns with wider types, which hold every value that the present ones hold.
            reorder: all value columns in another order.
            comments: what to say of columns, as `describe` does.
            keyed: make the collection keyed: from now on it takes events, and no updates. It must have one value per
                key at every time that can be read, and nothing that is not sealed. Cost: reading it.
            message, metadata: as for `write`.

        Raises:
            SchemaMismatch: a column is unknown, a name taken, a default does not fit, a type is not wider, or it is a
                key column and may not change like that; the message says what to do instead.
            NotOneValue: it is to become keyed, and some keys have several values; the first ten are named.
            UpdatesBeyondUpper: it is to become keyed, and holds updates that are not sealed.
            SchemaMoved: the collection was evolved since this handle was loaded; load it again, and decide anew.
            ReadOnly: this client only reads.
        """
        wanted = WantedEvolution(add or {}, defaults or {}, drop, rename or {}, widen or {}, reorder, keyed)
        notes = note_steps(message, metadata, [self.id])
        self.handle = evolve(self.handle, wanted, comments, notes)
        self.schema = self.handle.schema
        return self.schema.version

    @property
    def about(self) -> About:
        """What the collection and its columns say of themselves. Cost: one GET."""
        return about_collection(self.handle.contents())

    @property
    def comment(self) -> str:
        """What the collection is, for people; "" if nobody said. Cost: one GET."""
        return self.about.comment

    @property
    def properties(self) -> Mapping[str, str]:
        """Texts by name that people and tools gave it; see `describe`. Cost: one GET."""
        return self.about.properties

    def describe(
        self,
        comment: str | None = None,
        *,
        properties: Mapping[str, str | None] | None = None,
        columns: Mapping[str, Any] | None = None,
        expected: About | None = None,
    ) -> CommitFuture:
        """Say what the collection is, and its columns; what is not given stays as it is.

        Args:
            comment: a text; "" for none.
            properties: texts by name; None removes one.
            columns: by the name of a column, a comment, or `{"comment": …, "properties": …}`.
            expected: what `about` gave, if nothing may have changed since.

        Returns:
            a future that resolves when that is durable; or to `DescriptionMoved` if somebody else came first, or
            `InvalidUsage` if all of it would take more than 64 KiB.

        Raises:
            SchemaMismatch: there is no such column.
            InvalidUsage: something is no text.
            ReadOnly: this client only reads.
        """
        self.handle.engine.writer("describe")
        return self.handle.submit("describe", [describe_step(self.handle, comment, properties, columns, expected)])

    def history(self, last: int | None = LAST) -> pa.Table:
        """Return the records of the log that concern the collection, as a table; see `Client.history`.

        Args:
            last: how many records of the log are looked at, newest of all; None for all that are kept.
        """
        return self.handle.engine.history(last, self.id)

    def rename(self, name: str) -> CommitFuture:
        """Call the collection by another name, under which everybody finds it from then on; handles stay valid.

        Returns:
            a future that resolves when that is durable, or to `CollectionExists` if the name is taken.

        Raises:
            InvalidUsage: it is not a good name.
            ReadOnly: this client only reads.
        """
        self.handle.engine.writer("rename")
        check_free_name(name)
        if self.name.startswith(OWN_PREFIX):
            raise InvalidUsage(f"collection {self.name!r} is the library's own, which finds it by its name: leave it")
        return self.handle.submit("rename", [Rename(self.id, name)])

    def destroy(self) -> CommitFuture:
        """Remove the collection; its name becomes free for a new one at once.

        Its blobs are deleted by garbage collection, when nobody can be reading them any more. A view lets go of what it
        reads in the same commit.

        Raises (the future):
            CollectionNeeded: views read it.
        """
        return destroy(self.handle)
