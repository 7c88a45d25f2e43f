"""The writing part of a client: a committer, leases, compaction, garbage collection, and their threads.

The threads refer to no object of the user. So a client that is dropped without `close` is freed, and its finalizers
stop the threads. `OpenOptions` has the options for opening a location, also for reading.
"""

import os
import threading
import uuid
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, get_args

import pyarrow as pa

from persist.blob.errors import Indeterminate, InvalidUsage
from persist.blob.protocol import Blob
from persist.blob.threads import Clock, Pool, SystemClock
from persist.codecs.types.schema import CollectionSchema
from persist.codecs.updates.updates import Stamp
from persist.core.errors import WriterFenced
from persist.core.log import kinds
from persist.core.log.records import COMMIT_DEADLINE_S
from persist.core.names import make_client_name
from persist.core.settings import Settings
from persist.engine.compact import CompactionReport, Compactor, LocalPartMaker, PartMaker
from persist.engine.follow.follower import Follower
from persist.engine.hold import ConsumerLeases, Leases
from persist.engine.location.resolver import KeyedQueue, Resolver
from persist.engine.read.parts.caches import PartCaches
from persist.engine.read.parts.reader import PartReader
from persist.engine.upkeep import CompactionSchedule, Garbage, GarbageReport, Upkeep
from persist.engine.write.commit_future import CommitFuture
from persist.engine.write.committer import Committer
from persist.engine.write.operations import Renew, Step, Write
from persist.engine.write.part_writer import PartWriter

Mode = Literal["shared", "exclusive", "read"]


@dataclass(frozen=True)
class OpenOptions:
    """The options of `persist.open`, which documents them.

    Raises InvalidUsage: an option does not fit, by itself or with the mode.
    """

    mode: Mode = "shared"
    reentrance_id: str | None = None
    force: bool = False
    seqno: int | None = None
    settings: Settings = field(default_factory=Settings)
    clock: Clock = field(default_factory=SystemClock)

    def __post_init__(self) -> None:
        mode, id_, seqno = self.mode, self.reentrance_id, self.seqno
        if mode not in get_args(Mode):
            raise InvalidUsage(f'mode={mode!r} is not a mode of a client: use "shared", "exclusive" or "read"')
        if mode != "exclusive" and (id_ is not None or self.force):
            raise InvalidUsage(f'reentrance_id and force are for mode="exclusive", and this is mode={mode!r}')
        if id_ is not None and not (isinstance(id_, str) and 0 < len(id_) <= 200 and id_.isprintable()):
            raise InvalidUsage(f"reentrance_id={id_!r} is not a text of 1 to 200 printable characters")
        if seqno is not None and (mode != "read" or isinstance(seqno, bool) or not isinstance(seqno, int) or seqno < 0):
            raise InvalidUsage(f'seqno={seqno!r} with mode={mode!r}: give a number of at least 0, and mode="read"')
        if not isinstance(self.settings, Settings):
            raise InvalidUsage(f"settings={self.settings!r} is not a Settings: use persist.Settings(retry_s=…)")


class Writer:
    """The writing half of an `Engine`; every method may be called from any thread.

    Attributes:
        committer: makes records from submitted steps.
        leases: the lease of this client, and the claims of its reads.
        consumers: the leases of consumers that resume by name.
        garbage: deletes unneeded blobs.
        compactor: compacts by the policy of the settings, in this process.
        compaction: the schedule of automatic compaction.
        name: this client's name for people.
        keyed: a queue that runs requests to keyed collections that resolve events, in call order.
        resolver: turns events into updates.
        upkeep: automatic work: leases, compaction and garbage.
    """

    def __init__(
        self,
        blob: Blob,
        follower: Follower,
        pool: Pool,
        options: OpenOptions,
        reader: Callable[[], PartReader],
    ) -> None:
        """Start the writing half; in mode "exclusive", first take the location over.

        `reader`: returns a reader of parts, for one read.

        Raises:
            Locked: another client has the location exclusively, and this one requests it, too.
        """
        settings, clock = options.settings, options.clock
        self._blob = blob
        self._follower = follower
        self._pool = pool
        self._settings = settings
        self._clock = clock
        self.name = name = make_client_name()
        budget, deadline_s = settings.memory_budget, min(settings.retry_s, COMMIT_DEADLINE_S)
        self.committer = committer = Committer(blob, follower, pool, clock, name, budget, deadline_s)
        self._stop_with_client(committer.request_stop)
        if options.mode == "exclusive":
            self._take_over(options, name)

        def leases(consumer: str = "") -> Leases:
            linger_s = settings.tuning.hold_linger_s
            return Leases(follower, committer.submit, committer.check_may_wait, clock, linger_s, name, consumer)

        self.leases = leases()
        self.consumers = ConsumerLeases(leases)
        self.garbage = Garbage(blob, follower, committer)
        stop = threading.Event()
        self.compactor = self.build_compactor(self.make_local_part_maker(stop), stop)
        self.resolver = Resolver(
            follower,
            committer.submit,
            PartWriter(blob, follower.find_next_seqno, budget),
            reader,
            clock,
        )
        self.compaction = CompactionSchedule(self.compactor, follower, clock, settings, self.resolver.resolve_due)
        self.keyed = KeyedQueue(settings.memory_budget, committer.may_wait)
        collect, shorten_log = self.garbage.collect, self.garbage.shorten_log
        self.upkeep = Upkeep(
            self.leases, self.consumers, self.compaction, collect, shorten_log, clock, settings, follower
        )
        committer.groups.appended = self.upkeep.note_commit
        self._stop_with_client(self.upkeep.request_stop)

    def write_step(
        self,
        collection: str,
        schema: CollectionSchema,
        updates: Any,
        stamp: Stamp | None = None,
        *,
        digest_by: Sequence[str] = (),
    ) -> Write | None:
        """Return the step that adds updates, None if there are none; see `WriteSteps.of`.

        If a collection has too many runs, the caller waits for a merge first.
        """
        if self.committer.may_wait():
            self.compaction.merge_small_runs(collection)
        return self.committer.write_steps.of(collection, schema, updates, stamp, by=digest_by)

    def make_checked_step(self, collection: str, schema: CollectionSchema, table: pa.Table) -> Write | None:
        """Return the step that adds a checked table of `schema.arrow`; as `write_step`."""
        if self.committer.may_wait():
            self.compaction.merge_small_runs(collection)
        return self.committer.write_steps.from_checked(collection, schema, table) if len(table) else None

    def allow_compaction(self, step: kinds.AllowCompaction, name: str) -> CommitFuture:
        """Commit that since may advance, after this client's hold has moved to its least claim."""
        self.leases.settle_soon(step.collection)
        self.consumers.settle_soon(step.collection)
        return self.submit([step], {step.collection: name})

    def submit(self, steps: Sequence[Step], names: dict[str, str], renew: Renew | None = None) -> CommitFuture:
        """Queue steps as one commit, after earlier requests to the same collections, including seals that resolve."""
        busy = None if self.keyed.is_in_job() else next((id_ for id_ in names if self.keyed.is_busy(id_)), None)
        if busy is None:
            return self.committer.submit(steps, names, renew=renew)
        future = self.make_future()
        commit = partial(self.committer.submit, steps, names, renew=renew)
        return self.keyed.submit([busy], future, lambda: commit().get_commit(), 0)

    def make_future(self) -> CommitFuture:
        """Return the future of a commit that the keyed queue makes."""
        return self.committer.make_future(self.keyed.prepare_wait)

    def settle(self) -> None:
        """Wait until all earlier requests are committed or refused, unless the caller's thread is needed for that."""
        if self.committer.may_wait() and not self.keyed.is_in_job():
            self.keyed.settle()
            self.committer.settle(threading.TIMEOUT_MAX)

    def compact(self, collection: str, name: str, *, full: bool) -> CompactionReport:
        """Compact a collection, in this thread; full: do all possible work, not only due work."""
        self.committer.check_may_wait()
        if full:
            self.resolver.resolve_due(self._follower.refresh_and_require(collection, name))
        return self.compactor.compact(collection, name, full=full, destroy=full)

    def collect_garbage(self, *, dry_run: bool = False) -> GarbageReport:
        """End the expired leases, and delete unneeded blobs, in this thread; with dry_run, only list them."""
        if dry_run:
            return self.garbage.plan()
        self.committer.check_may_wait()
        return self.garbage.collect(lambda: self.leases.end_expired(self.consumers.list_ids()))

    def maintain(self) -> None:
        """Do the due work of the background threads."""
        self.upkeep.tick()

    def part_writer(self) -> PartWriter:
        """Return a writer that stores parts for a later commit."""
        return PartWriter(self._blob, self._follower.find_next_seqno, self._settings.memory_budget)

    def make_local_part_maker(self, stop: threading.Event) -> LocalPartMaker:
        """Return a maker of parts in this process, until stop is set."""
        budget = self._settings.memory_budget
        # These parts are about to be replaced: in the caches of readers, they would only take room.
        reader = PartReader(self._blob, self._pool, PartCaches.passing(), budget)
        return LocalPartMaker(reader, self.part_writer(), self._pool, self._settings.tuning.part_bytes, stop)

    def build_compactor(self, maker: PartMaker, stop: threading.Event) -> Compactor:
        """Return a compactor that uses a part maker, until stop is set."""
        return Compactor(self._follower, self.committer.submit, self._settings.tuning, maker, stop, self._clock)

    def close(self) -> None:
        """Finish all requests, release leases and the location, and end the threads."""
        self.keyed.close()
        self.upkeep.close()
        self.consumers.close()
        self.leases.close()
        unlocked = None if self.committer.groups.epoch is None else self.committer.submit([kinds.CloseWriter()], {})
        self.committer.close()
        # The future's own method would count as a look at its error, and raising that here would lose all others.
        if unlocked is not None and unlocked.done() and isinstance(Future.exception(unlocked), WriterFenced):
            unlocked.exception()  # Another client has taken over: there is nothing to give back.

    def _take_over(self, options: OpenOptions, name: str) -> None:
        """Become the only writer of the location. Raises Locked."""
        reentrance_id = options.reentrance_id or uuid.uuid4().hex
        try:
            opening = self.committer.submit([kinds.OpenWriter(reentrance_id, name, options.force)], {})
            self.committer.groups.epoch = opening.result()
        except BaseException as error:
            if isinstance(error, Indeterminate):
                error.add_note(f"If it is, reentrance_id={reentrance_id!r} takes the location over at once.")
            self.committer.close()
            raise

    def _stop_with_client(self, stop: Callable[[], object]) -> None:
        """Stop threads when their client is dropped without `close`."""
        # When the process ends, its user may still close the client, for which they are needed.
        weakref.finalize(self, _call_unless_forked, os.getpid(), stop).atexit = False


def _call_unless_forked(pid: int, stop: Callable[[], object]) -> None:
    """Call stop in the process `pid` only: a fork has no thread to stop, and its locks may be held for ever."""
    if os.getpid() == pid:
        stop()
