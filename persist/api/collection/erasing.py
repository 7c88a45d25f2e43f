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

        This is the one call that changes what a sealed time holds (rule 23), so it is a record of its own, and
        `Snapshot.digest` tells it. The record says who erased how many updates, when and why, and never what. Holds and
        tags stay, and keep what is left. What is written after it is new data, which stays.

        It erases from the collection, from its clones and what it was cloned from, and from pending events. Views that
        depend on these begin anew, indexes and published tables are made anew. The bytes go from the store with the
        next `Client.gc` after the grace period; `traces` tells what still has them.

        Args:
            keys: whose records to erase, as `Snapshot.get` takes them: `[1, 2]`.
            where: instead of keys, a condition over key and value columns that is true for what to erase. It is tested
                on all stored rows and waiting events, also on deleted and replaced rows that compaction has not
                merged. In a keyed collection, each key that has such a row is erased: `ErasureReport.former_keys`
                counts those whose present row does not match.
            reason: why, for people; do not name the person.

        Cost: reading the columns that decide, of the parts that may hold such records; then reading and writing these
        parts; one commit; and computing the views. Memory: `memory_budget`.

        Raises:
            InvalidUsage: keys and where are both given or both left out, or do not fit; there is no reason; it is a
                view; a clone has no such column, or has given its name to another; or a view that must begin anew has
                a tag or a named hold.
            SchemaMismatch: a column is unknown.
            Superseded: others wrote faster than this could follow.
            CorruptBlob: a part cannot be believed; nothing was erased.
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

        All that is from before the last erasure counts, without a look inside; parts are searched for rows. It gives a
        receipt when nothing is left. Keys and conditions are not logged.

        Args:
            keys, where: what was erased, as of `erase`; without them only what is from before counts.
            texts: also look for these, such as an address, in each object of the store, whatever it is of.

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
        is_owed = contents.name.startswith(OWED_PREFIX)
        alive = engine_ref() if is_owed else None
        if alive is not None:
            from persist.services.erase import complete_old

            complete_old(alive, contents)
        return is_owed  # Whoever made the erasure is given a while for it.

    engine.writer("erase").compaction.also.append(settle)
