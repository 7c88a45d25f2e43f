"""One location, open in one process: a client's resources, and the basic operations.

`persist.open` makes it; it is `Client.engine`. Its operations identify collections by id; operations on one collection
are in `CollectionHandle`.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from typing import Self

import pyarrow as pa

from persist.blob.errors import InvalidUsage, ReadOnlyStore, StoreFull, StoreMisconfigured
from persist.blob.protocol import is_remote
from persist.blob.threads import Pool
from persist.codecs.part.lending import release_freed
from persist.codecs.types.schema import CollectionSchema
from persist.core.closing import close_after
from persist.core.errors import ClientClosed, Conflict, LogInterrupted, ReadOnly, SchemaMismatch
from persist.core.log import kinds
from persist.core.metrics import Metrics, register_metrics
from persist.core.names import OWN_PREFIX
from persist.core.progress import trace_commit
from persist.core.settings import Storage
from persist.core.state_rules.keyed_rules import check_new_names
from persist.engine.follow.follower import Follower
from persist.engine.follow.log_queries import build_log_table
from persist.engine.follow.pinned_follower import PinnedFollower
from persist.engine.hold import Claim, WantedClaim, make_empty_claim
from persist.engine.location.writer import Mode, OpenOptions, Writer
from persist.engine.read.keyed.resolution import Folds
from persist.engine.read.parts.caches import PartCaches, SpilledRows
from persist.engine.read.parts.reader import PartReader
from persist.engine.write.commit_future import CommitFuture
from persist.engine.write.operations import Renew, Step
from persist.engine.write.part_writer import MEMORY_BUDGET
from persist.engine.write.unclosed_clients import Unclosed

IO_THREADS, REMOTE_IO_THREADS = 4, 16  # Many where each request waits for a network; memory is bounded elsewhere.


class Engine:
    """Owns the resources of one client until `close`; safe to use from many threads of its process.

    Attributes:
        storage, blob: the store with its wrappers, and the outermost wrapper, which serves all requests.
        mode, settings, clock: as the location was opened.
        origin: opens the location again in another process (`persist.engine.location.opening.Origin`).
        follower: the client's copy of the location's state.
        pool: the threads of this client for requests, decoding and encoding.
        caches: cached data of parts.
        spilled: decoded data of point reads, in the cache folder; None without one.
        folds: caches the updates of sealed events that are not resolved in the log yet.
    """

    def __init__(self, storage: Storage, options: OpenOptions) -> None:
        """Open a location. The engine owns the storage from here on, unless this raises.

        Raises:
            Locked: another client has the location exclusively, and this one requests it, too.
            Corruption: the newest checkpoint or a later record is damaged.
        """
        self.storage = storage
        self.blob = blob = storage.blob
        self._url = blob.url  # Each wrapper calls the one inside it, and every commit needs the URL.
        self.mode: Mode = options.mode
        self.settings = options.settings
        self.clock = clock = options.clock
        self._is_closed = False
        self.origin: object = None
        self._counted_also: dict[str, Callable[[], Mapping[str, float]]] = {}
        self._pid = os.getpid()
        poll_s = options.settings.poll_s
        budget = self.settings.memory_budget
        threads_max = REMOTE_IO_THREADS if is_remote(blob) else IO_THREADS
        # From the default on, memory is returned less often: that costs CPU time, because pages come back as zeros.
        step_bytes = budget if budget >= MEMORY_BUDGET else budget // 4
        self.pool = pool = Pool(threads_max, "persist-io", partial(release_freed, step_bytes))
        self.follower = (
            Follower(blob, clock, poll_s, pool=pool, cache=storage.cache, policy=self.settings.tuning.policy)
            if options.seqno is None
            else PinnedFollower(blob, clock, options.seqno, pool=pool)
        )
        self.caches = caches = PartCaches(storage.cache)
        folder = self.settings.cache_folder
        self.spilled = spilled = (
            None if folder is None else SpilledRows(folder, self.settings.cache_folder_bytes, blob.url, clock)
        )
        self.folds = Folds(storage.cache)
        self.when_committed: Callable[[CommitFuture], object] | None = None  # Called with each submitted commit.

        def reader() -> PartReader:  # It does not refer to the engine, because threads have it.
            return PartReader(blob, pool, caches, budget, spilled)

        self._reader = reader
        self._naming: dict[CommitFuture, frozenset[str]] = {}  # The names that queued commits give or free.
        self._writer: Writer | None = None
        if self.mode != "read":
            try:
                self._writer = Writer(blob, self.follower, pool, options, reader)
            except BaseException:
                self.pool.shutdown(wait=True)
                raise
        committer = None if self._writer is None else self._writer.committer
        self._unclosed = Unclosed(self, blob.url, committer, self.settings.exit_timeout_s)
        shape = self._writer is None, self.spilled is None
        self._unregister = register_metrics(self.metrics, {"location": blob.url}, shape)

    @property
    def url(self) -> str:
        """The URL of the location."""
        return self._url

    @cached_property
    def place(self) -> str:
        """The location in a unique form: its URL, or its path without links and `..`."""
        return os.path.realpath(self._url) if os.path.isabs(self._url) else self._url

    @property
    def seqno(self) -> int:
        """The seqno of the last record of the log. Cost: one GET."""
        self.check_open("seqno")
        return self.follower.refresh().seqno

    def names(self, prefix: str = "") -> list[str]:
        """Return the names of all collections with a prefix, sorted; hidden ones only for their own prefix.

        Cost: one GET.
        """
        self.check_open("collections")
        self.wait_for_names()
        self.follower.refresh()
        names = self.follower.apply_to_state(lambda state: [name for name, _ in state.ids.iterate_prefix(prefix)])
        is_own = prefix.startswith(OWN_PREFIX)
        return [name for name in names if is_own or not name.startswith(OWN_PREFIX)]

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._is_closed

    def check_open(self, action: str) -> None:
        """Raise an error if nothing can be read here.

        Raises:
            ClientClosed: `close` was called; the message names the action.
            InvalidUsage: this is a forked process.
        """
        if self._is_closed:
            raise ClientClosed(action)
        if os.getpid() != self._pid:
            raise InvalidUsage(
                f"{action} was called in process {os.getpid()}, and this client was opened in {self._pid}: its "
                "threads do not exist after the fork. Open a new client in each process."
            )

    def writer(self, action: str) -> Writer:
        """Return the part of the engine that writes.

        Raises:
            ReadOnly: the mode is "read"; the message names the action.
            ClientClosed, InvalidUsage: as `check_open`.
        """
        self.check_open(action)
        if self._writer is None:
            raise ReadOnly(action)
        return self._writer

    def reader(self) -> PartReader:
        """Return a reader of parts, with this client's caches. Request one for each read: the engine may be closed.

        Raises:
            ClientClosed, InvalidUsage: as `check_open`.
        """
        self.check_open("reading")
        return self._reader()

    def submit(
        self, action: str, steps: Sequence[Step], names: dict[str, str], renew: Renew | None = None
    ) -> CommitFuture:
        """Queue steps as one commit, after all earlier ones; return at once, or as soon as there is room.

        Args:
            action: the name of the caller's operation in errors.
            names: the names of the collections in the steps, by id, for errors.
            renew: makes the steps again for each state that the record may follow, in the committing thread.

        Raises:
            ReadOnly, ClientClosed, InvalidUsage: as `writer`. Uploads for the steps are deleted then.
            SchemaMismatch: a new collection has a column with a reserved name. Uploads are deleted then, too.
        """
        try:
            for step in steps:
                if isinstance(step, kinds.Create) and not step.name.startswith(OWN_PREFIX):
                    check_new_names(CollectionSchema.from_json(step.schema).names)
            future = self.writer(action).submit(steps, names, renew)
        except (ClientClosed, SchemaMismatch):
            self.abandon(steps)
            raise
        if naming := frozenset(_list_changed_names(steps, names)):
            self._naming[future] = naming
            future.add_done_callback(partial(_forget_naming, self._naming))
        trace_commit(future, action, self.url, names)
        if self.when_committed is not None:
            self.when_committed(future)
        return future

    def settle(self) -> None:
        """Wait until all earlier writes of this client are done, because its reads must include them (rule 3)."""
        if self._writer is not None:
            self._writer.settle()

    def wait_for_names(self, *names: str) -> None:
        """Wait for queued commits that create, rename or drop a collection of these names; without names, of any.

        Callers that look up a name call it first, so that the lookup includes this client's earlier requests.
        """
        if any(not names or not naming.isdisjoint(names) for naming in [*self._naming.values()]):
            self.settle()

    def find_newest_id(self, name: str) -> str | None:
        """Return the id of the collection of a name; None if there is none. Cost: one GET."""
        self.wait_for_names(name)
        self.follower.refresh()
        return self.follower.find_id(name)

    def check_clock(self) -> None:
        """Raise ClockAhead if this client's clock is known to be more than a day ahead of the store's."""
        error = self.follower.clock_check.make_error(self.follower.state.seqno, may_write=self._writer is not None)
        if error is not None:
            raise error

    def abandon(self, steps: Sequence[Step]) -> None:
        """Delete the uploads of steps that will not be submitted."""
        if self._writer is not None:  # A client that only reads has uploaded nothing.
            self._writer.committer.groups.abandon(steps)

    def claim(self, collection: str, name: str, time: int, consumer: str = "") -> Claim:
        """Keep the since of a collection at or before time for a read, and the blobs of the present state.

        The claim keeps nothing if the client or the store is read-only, or has no room for a commit. Cost: a commit for
        the first claim on a collection, nothing for later claims at or after its time.

        Raises:
            AsOfCompacted: since has passed time.
            CollectionNotFound: the collection was dropped.
        """
        return self.claim_all([WantedClaim(collection, name, time)], consumer)[0]

    def claim_unseen(self, claim: WantedClaim) -> Claim | None:
        """Claim without a refresh first, if the record of the claim shows the newest state.

        Return None otherwise, or if the known state refuses the claim: then refresh, and call `claim`.
        """
        if self._writer is None or self.follower.looks.is_enough or not self.follower.knows_end:
            return None
        with suppress(InvalidUsage, Conflict, ReadOnlyStore, StoreMisconfigured, StoreFull, LogInterrupted):
            return self._writer.leases.claim_unseen(claim)
        return None

    def claim_all(self, requests: Sequence[WantedClaim], consumer: str = "") -> list[Claim]:
        """Make a claim on each of many collections, all or none, in one commit; see `claim`.

        `consumer`: the only consumer of these claims. Earlier consumers of that name lose theirs.
        """
        self.check_open("reading")
        if self._writer is not None:
            try:
                if consumer:
                    return self._writer.consumers.claim_all(consumer, requests)
                return self._writer.leases.claim_all(requests)
            except (ReadOnlyStore, StoreMisconfigured, StoreFull, LogInterrupted):
                pass
        return [make_empty_claim(claim.collection) for claim in requests]

    def history(self, last: int | None, collection: str | None = None) -> pa.Table:
        """Return the last records of the log as a table; see `persist.engine.follow.log_queries`."""
        self.check_open("history")
        return build_log_table(self.blob, self.follower.refresh(), last, collection, self.pool.map)

    def count_also(self, group: str, counts: Callable[[], Mapping[str, float]]) -> None:
        """Add a group to `metrics`, whose values a function returns."""
        self._counted_also[group] = counts

    def metrics(self) -> Metrics:
        """Return this client's counters; also after `close`."""
        hole = self.follower.past.hole
        beyond = 0 if hole is None else hole.last - hole.end
        groups: dict[str, Mapping[str, float]] = {"log": {"seqno": self.follower.state.seqno, "beyond_end": beyond}}
        if self._writer is not None:
            groups |= {"commits": self._writer.committer.groups.counts(), "leases": self._count_leases(self._writer)}
        if self.spilled is not None:
            groups["spilled"] = self.spilled.counts()
        groups |= {name: counts() for name, counts in self._counted_also.items()}
        storage = self.storage
        return Metrics(
            store=storage.metered.get_counts(),
            retries=storage.retried.get_counts(),
            cache=storage.cached.get_counts(),
            groups=groups,
        )

    @staticmethod
    def _count_leases(writer: Writer) -> dict[str, int]:
        lease_counts, consumers = writer.leases.counts(), writer.consumers.counts()
        return {what: count + consumers[what] for what, count in lease_counts.items()}

    def close(self) -> None:
        """Finish all requests, free threads and sockets, and raise unseen errors; idempotent.

        In a forked process it does nothing, because the parent owns the resources.
        """
        if self._is_closed:
            return
        is_own = os.getpid() == self._pid
        if self._writer is not None and is_own:
            self._writer.keyed.close()  # Queued jobs there call this engine, which must not refuse them.
        self._is_closed = True
        if not is_own:
            return
        self._unregister()
        self._unclosed.note_close()
        if self._writer is not None:
            self._writer.close()
        self.follower.close()
        self.pool.shutdown(wait=True)
        self.storage.close()
        if self.spilled is not None:
            self.spilled.close()
        if self._writer is not None:
            self._writer.committer.unobserved.raise_all()

    def close_when_dropped(self) -> None:
        """Let this engine be freed without a warning: a shared engine has no owner that closes it."""
        self._unclosed.is_shared = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        close_after(error, self.close)


def _list_changed_names(steps: Sequence[Step], names: Mapping[str, str]) -> Iterator[str]:
    """Yield the names that steps assign or free. `names`: the names of collections by id."""
    for step in steps:
        if isinstance(step, (kinds.Create, kinds.Clone, kinds.Rename)):
            yield step.name
        if isinstance(step, (kinds.Destroy, kinds.Rename)) and step.collection in names:
            yield names[step.collection]


def _forget_naming(naming: dict[CommitFuture, frozenset[str]], future: CommitFuture) -> None:
    """Forget a finished commit that changed names of collections."""
    naming.pop(future, None)
