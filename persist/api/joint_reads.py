"""Several collections of one client at one point of the log: their contents, and what follows; and the log itself.

Each joint read takes one look at the log and one record with all claims, however many collections there are. Single
reads would take a look and a record for each collection.
"""

from collections.abc import Mapping
from typing import TypeVar

import pyarrow as pa

from persist.api.collection import Collection
from persist.core.errors import InvalidUsage
from persist.core.timeline import Moment, Times
from persist.engine.collection.reads import READ_TIMEOUT_S, WantedListen, open_listens, open_snapshots
from persist.engine.follow.log_queries import LAST
from persist.engine.location.engine import Engine
from persist.engine.location.opening import load_handles
from persist.engine.read.following.listen import JointListen
from persist.engine.read.results.snapshot import Snapshot

Named = TypeVar("Named", bound=Collection | str)


class ReadingTogether:
    """The part of `Client` that reads several collections, or the log."""

    engine: Engine

    def snapshots(
        self, collections: Mapping[Named, int | Moment | None], *, timeout_s: float | None = READ_TIMEOUT_S
    ) -> dict[Named, Snapshot]:
        """Return the contents of several collections at one point of the log.

        Args:
            collections: collections of this client, or names; each with a time or moment. None is the latest sealed
                time of each, in one state of the location: a commit that sealed several of them is in all or in none.
            timeout_s: how long to wait for times to be sealed; None waits without limit.

        Returns:
            dict: the snapshots, by the keys of collections. Close each snapshot, or drop all references to it.

        Cost: one look at the log, one commit for all claims, and the contents of collections that were not loaded yet,
        several at a time.

        Raises:
            AsOfCompacted, AsOfNotSealed: one of the times cannot be read; then nothing is claimed.
            CollectionNotFound: a name is unknown, or its collection was dropped.
            InvalidUsage: collections is empty, or one is not of this client.
        """
        self.engine.check_open("snapshots")
        times = _check_same_client(collections, self.engine)
        named = [collection if isinstance(collection, str) else collection.handle for collection in times]
        self.engine.settle()
        with self.engine.follower.looks.share_look():
            handles = load_handles(self.engine, named)
            snapshots = open_snapshots([*zip(handles, times.values(), strict=True)], timeout_s)
        return dict(zip(times, snapshots, strict=True))

    def history(self, last: int | None = LAST) -> pa.Table:
        """Return the newest records of the log as a table.

        Each row is a commit: seqno, moment (by the writer's clock), writer, operations, collections by their present
        names, updates and bytes. Its last columns have the `message=` and `metadata=` of its writes, each on a line.

        Args:
            last: how many records, at most; None for all that the log still keeps.

        Cost: a GET for each record.
        """
        return self.engine.history(last)

    def follow(
        self,
        collections: Mapping[Collection, int | Moment | None],
        *,
        contents: bool = False,
        times: Times | None = None,
        timeout_s: float | None = READ_TIMEOUT_S,
    ) -> JointListen[Collection]:
        """Follow several collections together: each step shows all of them in one state of the location.

        One step has all changes of a commit to several collections. Cost: one commit for all claims, however many there
        are; then one refresh for all.

        Args:
            collections: collections of this client, each with the time after which its changes are returned. None means
                all changes, or with contents the latest sealed time.
            contents: begin with the contents of all of them as of their times, taken at one point of the log.
            timeout_s: with contents, how long to wait for the times to be sealed; None waits without limit.

        Raises:
            AsOfCompacted, AsOfNotSealed: one of the times cannot be read; then none is followed.
            InvalidUsage: collections is empty, or one is not of this client.
        """
        self.engine.check_open("follow")
        requests = []
        for collection, as_of in _check_same_client(collections, self.engine).items():
            if isinstance(collection, str):
                raise InvalidUsage(f"{collection!r} is not a collection of this client: use what its load() returned")
            time = None if as_of is None else collection.handle.as_time("as_of", as_of)
            requests.append(WantedListen(collection.handle.newest(), time, collection.handle.moments(times)))
            if contents:
                collection.handle.wait_sealed(time, timeout_s)
        listens = open_listens(requests, contents=contents)
        return JointListen(self.engine.follower, dict(zip(collections, listens, strict=True)))


def _check_same_client(
    collections: Mapping[Named, int | Moment | None], engine: Engine
) -> Mapping[Named, int | Moment | None]:
    """Return collections; raise InvalidUsage if empty, or one has another engine."""
    if not isinstance(collections, Mapping) or not collections:
        raise InvalidUsage(f"collections={collections!r} is not a dict of collections and times: give {{orders: 10}}")
    for named in collections:
        if not isinstance(named, str) and not (isinstance(named, Collection) and named.handle.engine is engine):
            raise InvalidUsage(f"{named!r} is not a collection of this client: use what its load() returned")
    return collections
