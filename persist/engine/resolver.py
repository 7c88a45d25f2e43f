"""Makes resolutions of keyed collections: updates in the place of events, stored and ready to be committed.

What is made holds only for the contents it was made of; the record is refused otherwise, and its parts are to be
deleted then. `resolve_due` is what maintenance does where resolve="background".
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import chain

import pyarrow as pa

from persist.antichain import Antichain
from persist.blob import Conflict, InvalidUsage, MissingBlob
from persist.codecs import CollectionSchema, Part
from persist.errors import Locked, Superseded, UploadExpired
from persist.log import Watermarks, kinds
from persist.read import PartReader, Purging, machine_needed, resolved_updates
from persist.replica import Follower
from persist.state import CollectionState, due, keyed_form, unused_after
from persist.upsert import Machine, machine_of
from persist.write import CommitFuture, PartWriter, Step

Submit = Callable[[Sequence[Step], dict[str, str]], CommitFuture]


class Resolver:
    """Resolves collections of one client; every method may be called from any thread.

    Args:
        submit: commits steps.
        part_writer, reader: stores parts; gives what reads them, for one read.
    """

    def __init__(
        self,
        follower: Follower,
        submit: Submit,
        part_writer: PartWriter,
        reader: Callable[[], PartReader],
    ) -> None:
        self._follower = follower
        self._submit = submit
        self._part_writer = part_writer
        self._reader = reader
        self._given: dict[str, Machine] = {}
        self._purging = Purging()

    def know(self, collection: str, machine: Machine) -> None:
        """Remember the machine that a user gave for a collection, for maintenance."""
        self._given[collection] = machine

    def made(
        self,
        contents: CollectionState,
        schema: CollectionSchema,
        machine: Machine,
        end: Antichain,
        own: pa.Table | None = None,
        watermarks: Watermarks | None = None,
    ) -> kinds.Resolve:
        """Return the resolution of what is pending before end, and of own events; its updates are stored.

        Tombstones that are not needed any more go with it. Memory: a slice of the events, and own.
        """
        writer, reader = self._part_writer, self._reader()
        stored: list[Part] = []
        inline_bytes = contents.inline_bytes
        purged = self._purging.purged(contents, schema, end, reader)
        on_keys = (lambda keys: None) if purged is None else purged.touched
        updates = resolved_updates(contents, schema, machine, end, reader, own, on_keys)
        gone = iter(()) if purged is None else (purged.updates(schema) for _ in range(1))
        try:
            for table in chain(updates, gone):
                if not len(table):
                    continue
                made = writer.stored_parts(contents.id, table, schema, inline_bytes)
                stored += made
                inline_bytes += sum(len(part.inline) for part in made)
                self._purging.resolved(contents.id, len(table))
        except BaseException:
            writer.discard(stored)
            raise
        return kinds.Resolve(
            contents.id,
            contents.resolved.elements,
            end.elements,
            due(contents, end.elements),
            tuple(stored),
            watermarks=watermarks,
            unused=unused_after(contents, end.elements),
        )

    def discard(self, parts: Sequence[Part]) -> None:
        """Delete the parts of a resolution that was refused."""
        if parts:
            self._part_writer.discard(parts)

    def resolve(self, id_: str, name: str, given: Machine | None) -> bool:
        """Turn the events of a collection up to its upper into updates; return whether there were any.

        Args:
            given: the machine that the user brought, if it is none of those that are known.
        """
        contents = self._follower.current(id_, name)
        while due(contents, contents.upper_times):
            made: tuple[Part, ...] = ()
            try:
                machine = machine_of(keyed_form(contents), given, name)
                step = self.made(
                    contents, contents.schema, machine_needed(machine, keyed_form(contents), name), contents.upper
                )
                made = step.parts
                self._submit([step], {id_: name}).result()
                return True
            except (Superseded, UploadExpired):
                self.discard(made)
            except (InvalidUsage, Conflict):
                self.discard(made)
                raise
            except MissingBlob:
                if self._follower.current(id_, name) == contents:
                    raise
            contents = self._follower.current(id_, name)
        return False

    def resolve_due(self, contents: CollectionState) -> None:
        """Do what maintenance does for a collection: resolve what is sealed, if its machine is known here.

        Where another client has the location for itself, that one resolves.
        """
        if contents.keyed is None or contents.keyed.resolve != "background" or not due(contents, contents.upper_times):
            return
        given = self._given.get(contents.id)
        if machine_of(contents.keyed, given, contents.name) is not None:
            with suppress(Locked):
                self.resolve(contents.id, contents.name, given)
