"""The background work of a writing client: renewing leases, compacting, and collecting garbage.

One thread renews leases, because a late lease costs readers their reads, and other work may take hours. Another thread
compacts and collects garbage.

Compaction looks at the collections that the client has lately used, every `Tuning.compaction_interval_s`, and sooner
after many commits. With the first garbage collection it looks at all collections, so that one writing client serves a
whole location. With later ones it looks at collections that have changed since or have work left. The state of a
collection determines its due work; a `LookAfter` may report more. Retracted data that since has passed is destroyed
half of `grace_s` after this client first saw it.
"""

import logging
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable

from persist.blob.errors import StoreFull
from persist.blob.threads import Clock
from persist.core.errors import ClientClosed, CollectionNotFound, PersistError
from persist.core.settings import Settings
from persist.core.state_rules.contents import CollectionState
from persist.core.state_rules.frozen_map import FrozenMap
from persist.core.state_rules.state import CollectionEntry
from persist.engine.compact import Compactor, must_destroy
from persist.engine.follow.follower import Follower
from persist.engine.hold import ConsumerLeases, Leases

# Does the due work of a collection. Returns true if more may become due without a change of the collection.
LookAfter = Callable[[CollectionState], bool | None]

RELIEF_SHARE = 8  # Writers wait for merges of at most this fraction of a part.
COMMITS_MAX = 16  # After this many commits, a collection is looked at before the interval ends.

logger = logging.getLogger(__name__)

# Threads must not disturb the shared generator, which a program may have seeded, and forks must not draw the same.
_chance = random.SystemRandom()


class CompactionSchedule:
    """The due compactions of a client; `tick` runs them in the calling thread.

    `also`: further work for each collection, done after its compaction.
    """

    def __init__(
        self,
        compactor: Compactor,
        follower: Follower,
        clock: Clock,
        settings: Settings,
        resolve: LookAfter = lambda contents: None,
    ) -> None:
        """`resolve`: resolves the sealed events of a keyed collection, if due; returns whether work remains."""
        self.also: list[LookAfter] = []
        self._resolve = resolve
        self._compactor = compactor
        self._follower = follower
        self._clock = clock
        self._runs_max = settings.tuning.runs_max
        self._relief_bytes = settings.tuning.part_bytes // RELIEF_SHARE
        self._sweep_interval_s = settings.gc_interval_s
        # Clients that were opened together should not compact together.
        self._sweep_at_s = clock.monotonic_s() + settings.gc_interval_s * _chance.uniform(0.25, 0.75)
        self._undestroyed: dict[str, float] = {}  # When data to destroy was first seen, by collection.
        self._swept: FrozenMap[CollectionEntry] | None = None  # The collections when the last sweep began,
        self._unfinished: set[str] = set()  # and those with work left.
        self._relieved_at: dict[str, int] = {}
        self._commits: Counter[str] = Counter()

    def tick(self) -> None:
        """Do the due work. Raises PersistError: the first error, after work on all collections."""
        self._commits.clear()
        state = self._follower.refresh()
        if self._follower.past.hole is not None:
            return  # Nothing can be committed.
        now_s = self._clock.monotonic_s()
        sweeps = now_s >= self._sweep_at_s
        if sweeps:
            self._sweep_at_s = now_s + self._sweep_interval_s
            self._sweep_collections(self._is_overdue)
        else:
            used = [(id_, entry.name) for id_, entry in state.entries.iterate_in_memory() if entry.contents is not None]
            _, error = self._compact_all(used, self._is_overdue)
            if error is not None:
                raise error

    def sweep(self, *, destroys: bool) -> int:
        """Do the due work of all collections; return how many of them had work.

        Args:
            destroys: also destroy all retracted data that since has passed, however recent: a short-lived process never
                sees it overdue.

        Cost: the work, and a request for each collection without a known state; later calls only for collections that
        have changed since, or have work left.

        Raises:
            PersistError: as `tick`.
        """
        self._follower.refresh()
        if self._follower.past.hole is not None:
            return 0
        return self._sweep_collections((lambda contents: True) if destroys else self._is_overdue)

    def _sweep_collections(self, is_overdue: Callable[[CollectionState], bool]) -> int:
        """Do the due work of all collections; return how many of them had work."""
        entries, swept = self._follower.state.entries, self._swept
        if swept is None or not entries.shares_base_with(swept):
            # Most of them are idle, so their contents do not stay in memory.
            all_ids = self._follower.apply_to_state(
                lambda state: [(id_, entry.name) for id_, entry in state.entries.iterate_all()]
            )
            worked, error = self._compact_all(all_ids, is_overdue, self._follower.peek)
        else:
            changed = {id_: entry.name for id_, entry in entries.changes_since(swept).items() if entry is not None}
            unfinished = [(id_, id_) for id_ in self._unfinished - changed.keys()]
            worked, error = self._compact_all([*changed.items(), *unfinished], is_overdue)
        self._swept = entries  # Only now, so that an interrupted sweep is repeated.
        if error is not None:
            raise error
        return worked

    def _compact_all(
        self,
        collections: Iterable[tuple[str, str]],
        is_overdue: Callable[[CollectionState], bool],
        look: Callable[[str, str], CollectionState] | None = None,
    ) -> tuple[int, PersistError | None]:
        """Do the due work of collections by (id, name); return how many had work, and the first error."""
        look = look or self._follower.require
        worked = 0
        first_error: PersistError | None = None
        for id_, name in collections:
            try:
                has_worked, is_unfinished = self._compact_one(id_, name, is_overdue, look)
                worked += has_worked
                (self._unfinished.add if is_unfinished else self._unfinished.discard)(id_)
            except CollectionNotFound:
                self._undestroyed.pop(id_, None)
                self._unfinished.discard(id_)
            except ClientClosed:
                raise
            except PersistError as error:
                logger.warning("upkeep of %r failed and will be tried again: %s", name, error)
                first_error = first_error or error
                self._unfinished.add(id_)
        return worked, first_error

    def _compact_one(
        self,
        id_: str,
        name: str,
        is_overdue: Callable[[CollectionState], bool],
        look: Callable[[str, str], CollectionState],
    ) -> tuple[bool, bool]:
        """Do the due work of a collection; return whether it was compacted, and whether work is left."""
        # As of the last look: idle collections must not cost a request each.
        contents = look(id_, name)
        entry = self._follower.entry(id_)

        def now() -> CollectionState:
            return contents if self._follower.entry(id_) is entry else self._follower.require(id_, name)

        is_unfinished = bool(self._resolve(contents))
        destroys, has_worked = is_overdue(now()), False
        if self._compactor.is_due(now(), destroy=destroys):
            self._compactor.compact(id_, name, destroy=destroys)
            has_worked = True
            if destroys:  # Later retractions wait anew.
                self._undestroyed.pop(id_, None)
        for look_after in self.also:
            is_unfinished |= bool(look_after(now()))
        return has_worked, is_unfinished or must_destroy(now()) is not None or self._compactor.is_due(now())

    def count_commit(self, collection: str) -> bool:
        """Count a commit that added updates; return whether so many make compaction due."""
        self._commits[collection] += 1
        return self._commits[collection] >= COMMITS_MAX

    def merge_small_runs(self, collection: str) -> None:
        """Merge small runs before a write, if the collection has too many runs.

        So a history stays short even if no client runs long enough to compact in the background.
        """
        entry = self._follower.entry(collection)
        if entry is None or entry.contents is None or len(entry.contents.history) < self._runs_max:
            return
        drawn, relieved_at = entry.contents.next_number, self._relieved_at.get(collection, 0)
        if drawn - relieved_at < self._runs_max // 4:
            return
        self._relieved_at[collection] = drawn
        try:
            self._compactor.compact(collection, entry.name, merge_bytes_max=self._relief_bytes)
        except PersistError as error:
            logger.warning("%r has too many runs, and compaction failed: %s", entry.name, error)

    def stop(self) -> None:
        """End a running compaction soon, with ClientClosed; idempotent."""
        self._compactor.close()

    def _is_overdue(self, contents: CollectionState) -> bool:
        """Return whether data has waited long enough to be destroyed."""
        if must_destroy(contents) is None:
            self._undestroyed.pop(contents.id, None)
            return False
        now_s = self._clock.monotonic_s()
        seen_s = self._undestroyed.setdefault(contents.id, now_s)
        return now_s - seen_s >= self._follower.policies.newest.grace_s / 2


WAKE_MAX_S = 30.0
WAKE_MIN_S = 0.05
SHORTEN_S = 60.0  # Between two looks at the length of the log.


class Upkeep:
    """The two background threads, if the settings have them; `tick` does the due work at once."""

    def __init__(
        self,
        leases: Leases,
        consumers: ConsumerLeases,
        compaction: CompactionSchedule,
        collect: Callable[[], object],
        shorten_log: Callable[[], object],
        clock: Clock,
        settings: Settings,
        follower: Follower,
    ) -> None:
        self._follower = follower
        self.compaction = compaction
        self._leases = leases
        self._consumers = consumers
        self._collect = collect
        self._shorten_log = shorten_log
        self._clock = clock
        self._settings = settings
        # Clients that were opened together should not collect together.
        self._collect_at_s = clock.monotonic_s() + settings.gc_interval_s * _chance.uniform(0.5, 1.0)
        self._shorten_at_s = clock.monotonic_s() + SHORTEN_S * _chance.uniform(0.5, 1.0)
        self._expire_at_s = clock.monotonic_s() + follower.policies.newest.lease_s / 10
        self._threads: tuple[RepeatingThread, ...] = ()
        if settings.background:
            linger_s = min(settings.tuning.hold_linger_s, WAKE_MAX_S)

            def leases_s() -> float:
                return max(WAKE_MIN_S, min(linger_s, follower.policies.newest.lease_s / 10))

            work_s = max(WAKE_MIN_S, min(settings.tuning.compaction_interval_s, settings.gc_interval_s))
            self._threads = (
                RepeatingThread("persist-leases", self.tick_leases, leases_s),
                RepeatingThread("persist-upkeep", self.tick_work, lambda: work_s * _chance.uniform(0.75, 1.25)),
            )

    def tick(self) -> None:
        """Do the due work. Raises PersistError: the store did not answer, or the log is damaged; the work stays due."""
        try:
            self.tick_leases()
        except StoreFull:
            self.tick_work()  # Collecting garbage makes room, also for leases.
            raise
        self.tick_work()

    def tick_leases(self) -> None:
        """Renew or end the leases of this client, and end expired leases of other clients."""
        self._leases.tick()
        self._consumers.tick()
        now_s = self._clock.monotonic_s()
        if now_s >= self._expire_at_s:
            self._leases.end_expired(self._consumers.list_ids())
            self._expire_at_s = now_s + self._follower.policies.newest.lease_s / 10

    def tick_work(self) -> None:
        """Compact; then, even after an error, collect garbage or shorten the log."""
        try:
            self.compaction.tick()
        finally:
            now_s = self._clock.monotonic_s()
            if now_s >= self._collect_at_s:
                self._collect_at_s = now_s + self._settings.gc_interval_s
                self._collect()
            elif now_s >= self._shorten_at_s:
                self._shorten_at_s = now_s + SHORTEN_S
                self._shorten_log()

    def note_commit(self, collection: str) -> None:
        """Count a commit that added updates; after many, wake the thread that compacts."""
        if self.compaction.count_commit(collection):
            for thread in self._threads[1:]:
                thread.wake()

    def request_stop(self) -> None:
        """Let the threads, and a running compaction, end soon."""
        self.compaction.stop()
        for thread in self._threads:
            thread.request_stop()

    def close(self) -> None:
        """End the threads; idempotent."""
        self.request_stop()
        for thread in self._threads:
            thread.join()


class RepeatingThread:
    """A daemon thread that repeats one call, after a pause each time, until it is stopped.

    Errors are logged. ClientClosed ends the thread.
    """

    def __init__(self, name: str, do: Callable[[], object], pause_s: Callable[[], float]) -> None:
        self._do = do
        self._pause_s = pause_s
        self._is_stopped = False
        self._woken = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """End the present pause."""
        self._woken.set()

    def request_stop(self) -> None:
        """Let the thread end after the present call."""
        self._is_stopped = True
        self._woken.set()

    def join(self) -> None:
        """Wait for the end of the thread, unless the caller is this thread."""
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        """Do the work after each pause, until stopped; log errors."""
        while True:
            self._woken.wait(self._pause_s())
            self._woken.clear()
            if self._is_stopped:
                return
            try:
                self._do()
            except ClientClosed:
                return
            except PersistError as error:
                logger.warning("upkeep of the location failed and will be tried again: %s", error)
            except Exception:  # Without this thread, a lease would expire while its readers read.
                logger.exception("upkeep of the location failed unexpectedly; it will be tried again")
