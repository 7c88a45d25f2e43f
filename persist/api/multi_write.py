"""Several writes, events and seals, of one or more collections, as one commit."""

from collections.abc import Mapping
from typing import Any

import pyarrow.compute as pc

from persist.api.collection import Collection
from persist.api.follow import Following, make_ack_step
from persist.core.antichain import Antichain, encode_frontier
from persist.core.errors import InvalidUsage
from persist.core.keyed.partial import Missing
from persist.core.log import kinds
from persist.core.state_rules.collection_rules import ExpectNothingBeyondUpper, ExpectUpper
from persist.core.timeline import Moment
from persist.engine.collection.commit import Commit
from persist.engine.collection.descriptions import make_describe_step
from persist.engine.collection.keyed_events import check_upserts, convert_events, get_keyed_form
from persist.engine.collection.plain_rows import convert_plain_events
from persist.engine.read.results.snapshot import build_filter


class MultiWrite:
    """Collects steps in a `with` block and commits them when it ends: all of them, or none (rule 6).

    Nothing happens if the block raises. Otherwise, its end waits until the commit is durable, and raises the error of a
    rejected commit. Memory: everything written in the block.
    """

    def __init__(self, commit: Commit) -> None:
        self._commit = commit

    @property
    def seqno(self) -> int | None:
        """The commit's seqno after the block ends; as in `CommitFuture` if nothing changed."""
        return self._commit.seqno

    def time_of(self, collection: Collection) -> int | None:
        """Return the time that the commit assigned to a collection's writes, or None.

        All collections get one time. On timelines of different units, that is one moment.

        Raises InvalidUsage: the block has not ended, or nothing was committed.
        """
        if self._commit.committed is None:
            raise InvalidUsage("a multi_write knows its times only when its `with` block has ended: read them then")
        return self._commit.committed.times.get(collection.id)

    def write(
        self, collection: Collection, updates: Any, *, time: int | Moment | None = None, diff: int | None = None
    ) -> None:
        """Add updates to the commit. They are checked at once; see `Collection.write`."""
        commit = self._commit
        handle = commit.check_time(collection.handle, time)
        commit.check(handle)
        steps = handle.write_steps(updates, handle.stamp(time, diff), token=commit.options.token)
        handle.check_write_times(steps, allow_future=commit.options.allow_future)
        commit.add(handle, steps)

    def upsert(self, collection: Collection, events: Any, *, time: int | Moment | None = None) -> None:
        """Add values for keys to the commit, as `Collection.upsert`.

        If the collection is not keyed, upserts must come before the block's other steps on it. Their effect is computed
        from the contents when the block ends, and again if other clients commit first.

        Raises:
            InvalidUsage: the machine of the keyed collection has other events: use `transition`; or the order is wrong.
            DuplicateKeys: a collection is not keyed, and the rows of one call repeat a key.
            UpdateNotBeyondUpper: the block has sealed the time of an event.
        """
        handle = self._commit.check_time(collection.handle, time)
        self._commit.check(handle)
        check_upserts(handle)
        if handle.as_keyed().keyed is not None:
            self.transition(collection, events, time=time)
            return
        self._commit.add_upsert(handle, convert_plain_events(handle, events, handle.stamp(time, None)))

    def update(
        self, collection: Collection, rows: Any, *, time: int | Moment | None = None, missing: Missing = "error"
    ) -> None:
        """Add changes of some columns by key, as `Collection.update`.

        If the collection is not keyed, updates and upserts must come before the block's other steps on it. If it is
        keyed, they are events among the other events, and the block seals their times.

        Raises: as `Collection.update`; some errors come when the block ends.
        """
        self._commit.update(collection.handle, rows, time=time, missing=missing)

    def transition(self, collection: Collection, events: Any, *, time: int | Moment | None = None) -> None:
        """Add events for a keyed collection's machine, as `Collection.transition`.

        Raises:
            NotKeyed: the collection is not keyed.
            UpdateNotBeyondUpper: the block has sealed the time of an event.
        """
        commit = self._commit
        handle = commit.check_time(collection.handle, time)
        commit.check(handle)
        get_keyed_form(handle)
        commit.add_events(handle, convert_events(handle, events, handle.stamp(time, None)))

    def overwrite(
        self,
        collection: Collection,
        rows: Any,
        *,
        time: int | Moment | None = None,
        where: str | pc.Expression | None = None,
        multiset: bool = False,
    ) -> None:
        """Add a replacement of the contents. It must be the collection's first step.

        Without a time, or for a keyed collection, the difference is computed from the contents when the block ends, and
        again if other clients commit first. For a plain collection with a time it is computed now, and the commit is
        rejected with `UpperMismatch` if others commit first.
        """
        filter = build_filter(collection.schema, where)
        self._commit.overwrite(collection.handle, rows, time=time, where=filter, multiset=multiset)

    def delete(
        self,
        collection: Collection,
        keys: Any = None,
        *,
        where: str | pc.Expression | None = None,
        time: int | Moment | None = None,
    ) -> None:
        """Add retractions of present records. They must be the collection's first step.

        For a keyed collection, keys are deleted by events, at any place among its other events.
        """
        self._commit.delete(collection.handle, keys, time=time, where=build_filter(collection.schema, where))

    def seal(self, collection: Collection, upper: int | Moment | Antichain) -> None:
        """Add a seal. It comes after earlier writes and before later ones.

        If the collection is keyed with resolve="seal", all events before upper are resolved, even pending ones.

        Raises:
            FrontierRegression: the block has sealed a keyed collection farther.
        """
        self._commit.check(collection.handle)
        collection.handle.check_plausible("upper", upper, allow_future=self._commit.options.allow_future)
        self._commit.add_seal(collection.handle, collection.handle.frontier("upper", upper))

    def allow_compaction(self, collection: Collection, since: int | Moment | Antichain) -> None:
        """Let since advance, as `Collection.allow_compaction` does."""
        frontier = encode_frontier(collection.handle.frontier("since", since))
        self._commit.add(collection.handle, [kinds.AllowCompaction(collection.id, frontier)])

    def describe(self, collection: Collection, *, properties: Mapping[str, str | None]) -> None:
        """Change properties of a collection in the commit, as `Collection.describe`; None removes one."""
        self._commit.add(collection.handle, [make_describe_step(collection.handle, None, properties, None, None)])

    def ack(self, following: Following) -> None:
        """Acknowledge all updates that `following` returned, in the commit.

        The commit is rejected with `HoldMoved` if another consumer of that name acknowledged them meanwhile. So only
        one of the two writes its results.
        """
        step, acked = make_ack_step(following)
        self._commit.add(following.handle, [step])
        self._commit.call_when_durable(acked)

    def expect_upper(self, collection: Collection, upper: int | Moment | Antichain, *, alone: bool = False) -> None:
        """Reject the commit with `UpperMismatch` if the collection has another upper.

        This is the fence between two processes that do the same work. Each process computes the next updates of a
        target, and commits them expecting the upper from which it began. One commit succeeds. The other does nothing,
        and its process continues from the upper in the error. The target's upper is the only offset that has to be
        stored. With `ack`, the hold of a consumer is the same fence.

        Args:
            alone: also reject it if there are updates at times beyond upper (`UpdatesBeyondUpper`).
        """
        self._commit.check(collection.handle)
        if self._commit.changes(collection.handle):
            raise InvalidUsage(
                f"expect_upper is about {collection.name!r} as it is before this block, and the block has events, "
                "a change or a seal of it already: put it first"
            )
        condition = ExpectNothingBeyondUpper if alone else ExpectUpper
        expected = encode_frontier(collection.handle.frontier("upper", upper))
        self._commit.add(collection.handle, [condition(collection.id, expected)])

    def __enter__(self) -> "MultiWrite":
        self._commit.__enter__()
        return self

    async def __aenter__(self) -> "MultiWrite":
        return self.__enter__()

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        import asyncio  # Here: who never awaits starts without it, 8 ms sooner.

        await asyncio.to_thread(self.__exit__, kind, error, traceback)

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._commit.__exit__(kind, error, traceback)
