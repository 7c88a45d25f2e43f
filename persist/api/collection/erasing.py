"""The part of `Collection` that takes records out of all times."""

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from persist.api.collection.describing import CollectionBase
from persist.core.names import OWED_PREFIX
from persist.core.state_rules.contents import CollectionState, Erasure
from persist.engine.location.engine import Engine

if TYPE_CHECKING:
    from persist.services.erase import ErasureReport, Traces


class ErasingCalls(CollectionBase):
    """The part of `Collection` that erases records from all times."""

    def erase(self, keys: Any = None, *, where: str | pc.Expression | None = None, reason: str) -> "ErasureReport":
        """Erase records from all times, as if they had never been written; all others stay as they are.

        No other call changes the contents of a sealed time (rule 23). So the log records each erasure, and
        `Snapshot.digest` changes. The record contains the writer, the number of updates, the moment and the reason, and
        nothing of the data. Holds and tags stay, and so do later writes.

        It erases from the collection, its clones, the collections it was cloned from, and pending events. Views that
        depend on these begin anew. Indexes and published tables are built again. The next `Client.gc` after the grace
        period deletes the bytes; `traces` lists the objects that still contain them.

        Args:
            keys: whose records to erase, as `Snapshot.get` takes them: `[1, 2]`.
            where: instead of keys, a condition over key and value columns that is true for the records to erase. It is
                tested on all stored rows and waiting events, also on deleted and replaced rows that compaction has not
                merged. In a keyed collection, each key that has such a row is erased: `ErasureReport.former_keys`
                counts those whose present row does not match.
            reason: why, for people; do not name the person.

        Cost: reading the columns of the condition or key, of the parts that may hold such records; then reading and
        writing these parts; one commit; and computing the views. Memory: `memory_budget`.

        Raises:
            InvalidUsage: both of keys and where are set, or neither, or they do not fit; the reason is empty; or the
                collection is a view. Or a clone lacks such a column, or has renamed it. Or a view that must begin anew
                has a tag or a named hold.
            SchemaMismatch: a column is unknown.
            Superseded: others wrote faster than this could follow.
            CorruptBlob: a part is damaged; nothing was erased.
        """
        from persist.services.erase import erase

        return erase(self.handle, keys, where, reason=reason)

    def erasures(self) -> list[Erasure]:
        """Return all erasures of the collection, oldest first. Cost: one GET."""
        return [*self.handle.contents().erasures]

    def traces(
        self,
        keys: Any = None,
        *,
        where: str | pc.Expression | None = None,
        texts: Sequence[str] = (),
    ) -> "Traces":
        """Search the store for erased values; return the objects that have them.

        Parts are searched for matching rows. Every other object from before the last erasure counts as having them,
        unread. A result without objects proves the erasure. Keys and conditions are not logged.

        Args:
            keys, where: as for `erase`; without them, only objects from before the erasure count.
            texts: also search for these texts, such as an address, in every object of the store.

        Cost: a LIST of everything, and reading all parts of the collections concerned; with texts, reading everything.
        Memory: one object.

        Raises:
            InvalidUsage, SchemaMismatch: as `erase`.
        """
        from persist.services.erase import find_traces

        return find_traces(self.handle, keys, where, texts=texts)


def register_erasure_upkeep(engine: Engine) -> None:
    """Let a writing client finish erasures whose processes have died."""
    engine_ref = weakref.ref(engine)  # The thread that does so must not keep the client alive.

    def settle(contents: CollectionState) -> bool:
        """Finish an erasure; return whether the collection names one."""
        is_owed = contents.name.startswith(OWED_PREFIX)
        alive = engine_ref() if is_owed else None
        if alive is not None:
            from persist.services.erase import complete_old

            complete_old(alive, contents)
        return is_owed  # The process that erased has some time to finish by itself.

    engine.writer("erase").compaction.also.append(settle)
