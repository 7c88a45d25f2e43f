"""How much history of a collection is kept: holds, tags, retention, since and compaction."""

from persist.antichain import Antichain
from persist.collection.base import CollectionBase
from persist.compact import CompactionReport
from persist.engine import (
    Retained,
    allow_compaction,
    drop_tag,
    list_holds,
    retained,
    retention_step,
    set_tag,
    take_hold,
)
from persist.hold import Hold, HoldInfo
from persist.retention import Retention
from persist.timeline import Moment
from persist.write import CommitFuture


class KeepingCalls(CollectionBase):
    """The part of `Collection` that says which times stay readable."""

    def hold(self, time: int | Moment | Antichain | None = None, *, name: str | None = None) -> Hold:
        """Keep since at or before a time, durably. Cost: a commit, or nothing if something holds it already.

        Args:
            time: where, as a number, a frontier such as `since` or, if the collection has a timeline, a moment; of a
                named hold that exists it may be left out.
            name: makes the hold permanent. Without a name it is released with this client, or when its lease runs out.
                If there is a hold of that name it is returned as it is, and its `time` may be another one.

        Raises:
            AsOfCompacted: since has passed time.
            HoldNotFound: there is no hold of that name, and no time was given to make one.
            ReadOnly: this client only reads.
        """
        return take_hold(self.handle, time, name)

    def holds(self) -> list[HoldInfo]:
        """Return all holds on this collection, of whatever client, least time first. Cost: one GET."""
        return list_holds(self.handle)

    def tag(self, name: str, time: int | Moment | None = None, *, move: bool = False) -> int:
        """Name a sealed time, durably, and keep it readable until the tag is dropped; return the time.

        The name is accepted wherever a time is: `snapshot(as_of="quarter-end")`.

        Args:
            name: does not look like a time. A tag that is there already, at that time, is no error.
            time: None means the latest sealed one.
            move: let a tag that is at another time move, to a later one or back.

        Raises:
            TagMoved: the tag is at another time, and is not to move; or somebody else has moved it meanwhile.
            AsOfCompacted, AsOfNotSealed: the time cannot be read, or not yet.
            InvalidUsage: the name looks like a time, or is none.
            ReadOnly: this client only reads.
        """
        return set_tag(self.handle, name, time, move=move)

    def tags(self) -> dict[str, int]:
        """Return the times that have names, by name. Cost: one GET."""
        return dict(self.handle.contents().tags)

    def drop_tag(self, name: str) -> CommitFuture:
        """Give up a tag: the time may be compacted then.

        Raises:
            TagNotFound: there is none of that name.
            ReadOnly: this client only reads.
        """
        return drop_tag(self.handle, name)

    @property
    def retention(self) -> Retained | None:
        """How much history is kept readable, and what keeps more of it; None if all that is not given up. One GET."""
        return retained(self.handle, self.holds())

    def retain(self, retention: Retention | None) -> CommitFuture:
        """Let since follow upper from now on, so many times behind it, as far as holds and tags let it.

        This happens with every seal, whoever seals. History that nobody can read any more is destroyed by compaction.

        Args:
            retention: how many times before upper stay readable; if the collection has a timeline, also a span such as
                "7 days", or a timedelta. None: since moves only where `allow_compaction` lets it.

        Raises:
            InvalidUsage: it is none of these.
            ReadOnly: this client only reads.
        """
        self.handle.engine.writer("retain")
        return self.handle.submit("retain", [retention_step(self.handle, retention)])

    def allow_compaction(self, since: int | Moment | Antichain) -> CommitFuture:
        """Give up telling times before since apart, as soon as no hold needs them; reads before it fail from then on.

        `Collection.since` tells how far that is: the least of what was allowed and of every live hold.

        Returns:
            a future that resolves when that is durable, or to `FrontierRegression` if since would go back.
        """
        return allow_compaction(self.handle, since)

    def compact(self, *, only_due: bool = False) -> CompactionReport:
        """Make reading cheap, and destroy what since has passed; readers notice nothing. See `persist.compact.planner`.

        A keyframe is made as of the last sealed time, runs of similar size are merged, small writes leave the log, and
        what was retracted before since is written away: `Client.gc` deletes it after the grace period. Cost: reading
        what is rewritten, a PUT for each new part, and a commit for each piece of work. Memory: `memory_budget`.

        Args:
            only_due: do only what is worth it by now.

        Raises:
            CorruptBlob: a part cannot be believed; nothing that it is part of was replaced.
            DiffOverflow: a multiplicity does not fit int64.
            InvalidUsage: `memory_budget` cannot hold a row group.
            CollectionNotFound, ReadOnly, Unavailable, ClientClosed.
        """
        return self.handle.engine.writer("compact").compact(self.id, self.name, full=not only_due)
