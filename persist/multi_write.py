"""Several writes, events and seals, of one or more collections, as one commit."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow.compute as pc

from persist.antichain import Antichain
from persist.codecs import Part
from persist.collection import Collection
from persist.engine import (
    Commit,
    asked_to_delete,
    check_upserts,
    delete_steps,
    describe_step,
    keyed_form,
    overwrite_steps,
    taken_events,
)
from persist.errors import InvalidUsage
from persist.follow import Following
from persist.log import kinds
from persist.names import check_hold_name
from persist.read import checked_filter
from persist.state import ExpectNothingBeyondUpper, ExpectUpper
from persist.timeline import Moment


class MultiWrite:
    """Collects steps in a `with` block and commits them when it ends: all of them, or none (rule 6).

    Nothing happens if the block raises. If it does not, leaving it waits until the commit is durable and raises its
    error if it was rejected. Memory: everything written in the block.
    """

    def __init__(self, commit: Commit, *, allow_future: bool = False) -> None:
        self._commit = commit
        self._allow_future = allow_future

    @property
    def seqno(self) -> int | None:
        """The seqno of the commit, once the block has ended; as in `CommitFuture`, if the commit changed nothing."""
        return self._commit.seqno

    def time_of(self, collection: Collection) -> int | None:
        """Return the time that the commit gave to what was written to a collection without one; None if it gave none.

        All collections get one time. On timelines of different units, that is one moment.

        Raises:
            InvalidUsage: the block has not ended, or nothing was committed.
        """
        if self._commit.committed is None:
            raise InvalidUsage("a multi_write has given no times yet: ask after its `with` block")
        return self._commit.committed.times.get(collection.id)

    def write(
        self, collection: Collection, updates: Any, *, time: int | Moment | None = None, diff: int | None = None
    ) -> None:
        """Add updates to the commit; takes what `Collection.write` takes and checks them at once."""
        commit, handle = self._commit, collection.handle
        commit.check(handle)
        handle.check_meant("time", time, allow_future=self._allow_future)
        steps = handle.write_steps(updates, handle.stamp(time, diff), token=commit.token)
        handle.check_written(steps, allow_future=self._allow_future)
        commit.add(handle, steps)

    def upsert(self, collection: Collection, events: Any, *, time: int | Moment | None = None) -> None:
        """Add events of a keyed collection to the commit; takes what `Collection.upsert` takes, and checks it at once.

        Raises:
            NotKeyed: the collection is none; or InvalidUsage: its machine has other events, for `transition`.
            UpdateNotBeyondUpper: the block has sealed the time of an event.
        """
        self._commit.check(collection.handle)
        check_upserts(collection.handle)
        self.transition(collection, events, time=time)

    def transition(self, collection: Collection, events: Any, *, time: int | Moment | None = None) -> None:
        """Add events for the machine of a keyed collection to the commit, as `Collection.transition`.

        Raises:
            NotKeyed: the collection is none.
            UpdateNotBeyondUpper: the block has sealed the time of an event.
        """
        commit, handle = self._commit, collection.handle
        commit.check(handle)
        handle.check_meant("time", time, allow_future=self._allow_future)
        keyed_form(handle)
        commit.add_events(handle, taken_events(handle, events, handle.stamp(time, None)))

    def overwrite(
        self,
        collection: Collection,
        rows: Any,
        *,
        time: int | Moment | None = None,
        where: str | pc.Expression | None = None,
    ) -> None:
        """Add what makes rows the contents from a time on, as `Collection.overwrite`, before any write to it.

        Raises:
            KeyedCollection: the collection takes events: what it holds is not known until they are resolved.
        """
        self._check_unwritten(collection)
        collection.handle.check_meant("time", time, allow_future=self._allow_future)
        filter = checked_filter(collection.schema, where)
        self._commit.add(collection.handle, overwrite_steps(collection.handle, rows, time, filter, self._commit.token))

    def delete(
        self,
        collection: Collection,
        keys: Any = None,
        *,
        where: str | pc.Expression | None = None,
        time: int | Moment | None = None,
    ) -> None:
        """Add retractions of what is there, as `Collection.delete`, before any write to the collection.

        For a keyed collection, add events that delete keys, at any place among its other events.
        """
        collection.handle.check_meant("time", time, allow_future=self._allow_future)
        if collection.handle.keyed is not None:
            self._commit.check(collection.handle)
            asked = asked_to_delete(collection.handle, keys, where, time, None)
            if asked.events is None:
                raise InvalidUsage(f"delete(where=…) of the keyed {collection.name!r} in a block. Give keys.")
            self._commit.add_events(collection.handle, asked.events)
            return
        self._check_unwritten(collection)
        filter = checked_filter(collection.schema, where)
        steps = delete_steps(collection.handle, keys, filter, time, self._commit.token)
        self._commit.add(collection.handle, steps)

    def seal(self, collection: Collection, upper: int | Moment | Antichain) -> None:
        """Add a seal to the commit. It comes after the writes before it and before those after it.

        If the collection is keyed with resolve="seal", all events before upper are resolved, pending ones too.

        Raises:
            FrontierRegression: the block has sealed a keyed collection farther.
        """
        self._commit.check(collection.handle)
        collection.handle.check_meant("upper", upper, allow_future=self._allow_future)
        self._commit.add_seal(collection.handle, collection.handle.frontier("upper", upper))

    def allow_compaction(self, collection: Collection, since: int | Moment | Antichain) -> None:
        """Let since advance, as `Collection.allow_compaction` does."""
        frontier = collection.handle.frontier("since", since)
        self._commit.add(collection.handle, [kinds.AllowCompaction(collection.id, frontier.elements)])

    def describe(self, collection: Collection, *, properties: Mapping[str, str | None]) -> None:
        """Change properties of a collection in the commit, as `Collection.describe`; None removes one."""
        self._commit.add(collection.handle, [describe_step(collection.handle, None, properties, None, None)])

    def ack(self, following: Following) -> None:
        """Add to the commit that everything `following` has given out is consumed, so that it will not come again.

        The commit is rejected with `HoldMoved` if another consumer of that name acknowledged it meanwhile: what is
        written with it is then written once, by one of the two.
        """
        step, acked = following.ack_step()
        self._commit.add(following.handle, [step])
        self._commit.when_committed(acked)

    def move_hold(self, collection: Collection, name: str, time: int | Moment, *, expected: int) -> None:
        """Move a permanent hold forward in the commit, from the time at which it is expected to be.

        The commit is rejected with `HoldMoved` if it is elsewhere, or not there, when the commit comes.
        """
        to = collection.handle.as_time("hold time", time)
        self._commit.add(collection.handle, [kinds.SetHold(collection.id, check_hold_name(name), to, None, expected)])

    def add_parts(
        self, collection: Collection, parts: Sequence[Part], *, keep: bool = False, digest: int | None = None
    ) -> None:
        """Add parts that were stored with `persist.write.part_writer.PartWriter`; they are deleted if the block raises.

        This is for engines whose tasks encode and upload by themselves.

        Args:
            keep: do not delete them if the commit is rejected (with InvalidUsage or Conflict): the caller commits them
                in another way, or deletes them. Those of a commit that was done before are deleted.
            digest: of what the parts hold, to be compared if the commit has a token: the sum of those of
                `persist.codecs.digest_of`, by the columns of key and value, and `_time`.
        """
        self._commit.add_parts(collection.handle, parts, keep=keep, digest=digest)

    def expect_upper(self, collection: Collection, upper: int | Moment | Antichain, *, alone: bool = False) -> None:
        """Let the commit be rejected (`UpperMismatch`) if the collection has another upper when it comes.

        This is the fence between two processes that do the same work: each reads what it needs, computes the next
        step of a target, and commits it expecting the upper from which it began. One of them commits; the other
        one's commit does nothing at all, whatever else is in it, and it goes on from the upper that it is told. No
        offsets need to be kept besides: the target's upper says how far the work has come. With `ack`, the hold of a
        consumer is the same fence.

        Args:
            alone: also reject it if somebody has added updates at times beyond upper (`UpdatesBeyondUpper`).
        """
        self._commit.check(collection.handle)
        if self._commit.has_events_of(collection.handle):
            raise InvalidUsage(
                f"expect_upper is about {collection.name!r} as it is before this block, and the block has events or a "
                "seal of it already: put it first"
            )
        condition = ExpectNothingBeyondUpper if alone else ExpectUpper
        expected = collection.handle.frontier("upper", upper).elements
        self._commit.add(collection.handle, [condition(collection.id, expected)])

    def _check_unwritten(self, collection: Collection) -> None:
        self._commit.check(collection.handle)
        if self._commit.holds_steps_on(collection.handle):
            raise InvalidUsage(
                f"an overwrite or delete is the difference to what is sealed, so it comes before all else that this "
                f"block does with {collection.name!r}, and only once: put it first, or into a block of its own"
            )

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
