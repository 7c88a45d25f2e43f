"""What a writing client does beside answering calls: it renews its lease, compacts, and collects garbage.

Two threads do it. One has the lease alone, because a lease that is late costs readers their reads, and compaction or a
collection of garbage may take hours. The other has these two, one after the other.

It looks for a compaction that is due in the collections that the client has lately used, every
`Tuning.compaction_interval_s` and as soon as many commits have been made. It looks in all collections of the location
the first time that it collects garbage, so that one writing client anywhere is enough to look after what nobody writes
to any more. Each later time it looks in those that have changed since, and in those in which something was left: what
is due in a collection depends on its contents, unless whoever looks says otherwise. What since has passed is destroyed
when it has waited for half of `grace_s`, counted from when this client first saw it.
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
from persist.core.state_rules.state import CollectionEntry, State
from persist.engine.compact import Compactor, must_destroy
from persist.engine.follow.follower import Follower
from persist.engine.hold import ConsumerLeases, Leases

# Does what is due in a collection. True if something may be due there later though the collection does not change.
LookAfter = Callable[[CollectionState], bool | None]

COMMITS_MAX = 16  # Of one collection, before it is looked at without waiting for the interval.

logger = logging.getLogger(__name__)


class CompactionSchedule:
    """Knows what is due, and since when; `tick` does it in the thread that calls it."""

    def __init__(
        self,
        compactor: Compactor,
        follower: Follower,
        clock: Clock,
        settings: Settings,
        resolve: LookAfter = lambda contents: None,
    ) -> None:
        """Make one; resolve turns the sealed events of a keyed collection into updates, if that is due."""
        self.also: list[LookAfter] = []  # Done for each collection after that.
        self._resolve = resolve
        self._compactor = compactor
        self._follower = follower
        self._clock = clock
        self._runs_max = settings.tuning.runs_max
        self._sweep_interval_s = settings.gc_interval_s
        # Clients that were opened together should not compact together.
        self._sweep_at_s = clock.monotonic_s() + settings.gc_interval_s * random.uniform(0.25, 0.75)
        self._undestroyed: dict[str, float] = {}  # Since when, by the clock.
        self._swept: FrozenMap[CollectionEntry] | None = None  # What was there when the last whole sweep began,
        self._left: set[str] = set()  # and where something was left.
        self._relieved_at: dict[str, int] = {}
        self._commits: Counter[str] = Counter()

    def tick(self) -> None:
        """Do what is due by now.

        Raises:
            PersistError: what went wrong first, after all collections have had their turn.
        """
        self._commits.clear()
        state = self._follower.refresh()
        if self._follower.interrupted is not None:
            return  # Nothing can be committed.
        now_s = self._clock.monotonic_s()
        sweeps = now_s >= self._sweep_at_s
        if sweeps:
            self._sweep_at_s = now_s + self._sweep_interval_s
            self._sweep(self._is_overdue)
        else:
            known = [(id_, entry.name) for id_, entry in state.entries.in_memory() if entry.contents is not None]
            _, failed = self._look_after(known, self._is_overdue)
            if failed is not None:
                raise failed

    def sweep(self, *, destroys: bool) -> int:
        """Do what is due now in all collections; return in how many something was.

        Args:
            destroys: also destroy all that since has passed, as a process must that does not live to see it overdue.

        Cost: the first time, a request for each collection of which this client does not know the contents; later for
        those that have changed since the last time, or in which something was left; and the work itself. Memory: the
        ids of the first time.

        Raises:
            PersistError: as `tick`.
        """
        self._follower.refresh()
        if self._follower.interrupted is not None:
            return 0
        return self._sweep((lambda contents: True) if destroys else self._is_overdue)

    def _sweep(self, is_overdue: Callable[[CollectionState], bool]) -> int:
        """Look after all collections in which something may be due; return in how many something was done."""
        entries, before = self._follower.state.entries, self._swept
        if before is None or not entries.is_over_the_same_as(before):
            # Most of them are idle, so nothing of them is kept in memory.
            worked, failed = self._look_after(self._follower.over_all(_all_in), is_overdue, self._follower.glanced)
        else:
            changed = {id_: entry.name for id_, entry in entries.changes_since(before).items() if entry is not None}
            left = [(id_, id_) for id_ in self._left - changed.keys()]
            worked, failed = self._look_after([*changed.items(), *left], is_overdue)
        self._swept = entries  # Only now: what has not had its turn, as others were interrupted, has it the next time.
        if failed is not None:
            raise failed
        return worked

    def _look_after(
        self,
        collections: Iterable[tuple[str, str]],
        is_overdue: Callable[[CollectionState], bool],
        look: Callable[[str, str], CollectionState] | None = None,
    ) -> tuple[int, PersistError | None]:
        """Look after collections, by (id, name); return in how many something was done, and what failed first."""
        look = look or self._follower.known
        worked = 0
        failed: PersistError | None = None
        for id_, name in collections:
            try:
                has_worked, is_left = self._looked_after(id_, name, is_overdue, look)
                worked += has_worked
                (self._left.add if is_left else self._left.discard)(id_)
            except CollectionNotFound:
                self._undestroyed.pop(id_, None)
                self._left.discard(id_)
            except ClientClosed:
                raise
            except PersistError as error:
                logger.warning("upkeep of %r failed and will be tried again: %s", name, error)
                failed = failed or error
                self._left.add(id_)
        return worked, failed

    def _looked_after(
        self,
        id_: str,
        name: str,
        is_overdue: Callable[[CollectionState], bool],
        look: Callable[[str, str], CollectionState],
    ) -> tuple[bool, bool]:
        """Do what is due in a collection; return whether there was a compaction, and whether something may be left."""
        # As of the last look: a location of many idle collections must not cost requests for each.
        contents = look(id_, name)
        entry = self._follower.entry(id_)

        def now() -> CollectionState:
            return contents if self._follower.entry(id_) is entry else self._follower.known(id_, name)

        is_left = bool(self._resolve(contents))
        destroys, has_worked = is_overdue(now()), False
        if self._compactor.is_due(now(), destroy=destroys):
            self._compactor.compact(id_, name, destroy=destroys)
            has_worked = True
            if destroys:  # What is retracted from now on waits anew.
                self._undestroyed.pop(id_, None)
        for look_after in self.also:
            is_left |= bool(look_after(now()))
        return has_worked, is_left or must_destroy(now()) is not None or self._compactor.is_due(now())

    def committed(self, collection: str) -> bool:
        """Take note of a commit that added updates; tell whether there were so many that compaction is due."""
        self._commits[collection] += 1
        return self._commits[collection] >= COMMITS_MAX

    def relieve(self, collection: str) -> None:
        """Make the caller, who is about to write, wait for a merge if there are too many runs to go on."""
        entry = self._follower.entry(collection)
        if entry is None or entry.contents is None or len(entry.contents.history) < self._runs_max:
            return
        drawn, relieved_at = entry.contents.next_number, self._relieved_at.get(collection, 0)
        if drawn - relieved_at < self._runs_max // 4:
            return
        self._relieved_at[collection] = drawn
        try:
            self._compactor.compact(collection, entry.name, move_out=True)
        except PersistError as error:
            logger.warning("%r has too many runs, and compaction failed: %s", entry.name, error)

    def stop(self) -> None:
        """Let what is under way end soon, with ClientClosed; idempotent."""
        self._compactor.close()

    def _is_overdue(self, contents: CollectionState) -> bool:
        """Tell whether something has waited to be destroyed for long enough."""
        if must_destroy(contents) is None:
            self._undestroyed.pop(contents.id, None)
            return False
        now_s = self._clock.monotonic_s()
        seen_s = self._undestroyed.setdefault(contents.id, now_s)
        return now_s - seen_s >= self._follower.policies.newest.grace_s / 2


WAKE_MAX_S = 30.0
WAKE_MIN_S = 0.05
SHORTEN_S = 60.0  # Between two looks whether the log is too long.


class Upkeep:
    """Owns the two threads, unless settings say otherwise; `tick` does now what is due.

    Attributes:
        compaction: what of it is due.
    """

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
        self._collect_at_s = clock.monotonic_s() + settings.gc_interval_s * random.uniform(0.5, 1.0)
        self._shorten_at_s = clock.monotonic_s() + SHORTEN_S * random.uniform(0.5, 1.0)
        self._expire_at_s = clock.monotonic_s() + follower.policies.newest.lease_s / 10
        self._threads: tuple[RepeatingThread, ...] = ()
        if settings.background:
            linger_s = min(settings.tuning.hold_linger_s, WAKE_MAX_S)

            def leases_s() -> float:
                return max(WAKE_MIN_S, min(linger_s, follower.policies.newest.lease_s / 10))

            work_s = max(WAKE_MIN_S, min(settings.tuning.compaction_interval_s, settings.gc_interval_s))
            self._threads = (
                RepeatingThread("persist-leases", self.tick_leases, leases_s),
                RepeatingThread("persist-upkeep", self.tick_work, lambda: work_s * random.uniform(0.75, 1.25)),
            )

    def tick(self) -> None:
        """Do what is due by now.

        Raises:
            PersistError: the store did not answer, or the log is damaged; what is due stays due.
        """
        try:
            self.tick_leases()
        except StoreFull:
            self.tick_work()  # Collecting garbage is what makes room, also for leases.
            raise
        self.tick_work()

    def tick_leases(self) -> None:
        """Renew or end the leases of this client, and end those of others that have run out."""
        self._leases.tick()
        self._consumers.tick()
        now_s = self._clock.monotonic_s()
        if now_s >= self._expire_at_s:
            self._leases.end_expired(self._consumers.ids())
            self._expire_at_s = now_s + self._follower.policies.newest.lease_s / 10

    def tick_work(self) -> None:
        """Compact, then collect garbage, or shorten a log that is too long; also if the first fails."""
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

    def committed(self, collection: str) -> None:
        """Take note of a commit that added updates: after many, compaction does not wait for its time."""
        if self.compaction.committed(collection):
            for thread in self._threads[1:]:
                thread.wake()

    def request_stop(self) -> None:
        """Let the threads end soon, and a compaction that is under way."""
        self.compaction.stop()
        for thread in self._threads:
            thread.request_stop()

    def close(self) -> None:
        """End the threads; idempotent."""
        self.request_stop()
        for thread in self._threads:
            thread.join()


class RepeatingThread:
    """A daemon thread that does one thing again and again, after a pause each time, until it is stopped.

    What goes wrong is logged, and done again after the next pause. ClientClosed ends the thread.
    """

    def __init__(self, name: str, do: Callable[[], object], pause_s: Callable[[], float]) -> None:
        self._do = do
        self._pause_s = pause_s
        self._is_stopped = False
        self._woken = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Pause no longer."""
        self._woken.set()

    def request_stop(self) -> None:
        """Let the thread end after what it is doing."""
        self._is_stopped = True
        self._woken.set()

    def join(self) -> None:
        """Wait for the end of the thread, unless this is called by it."""
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
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
            except Exception:  # Whatever it is: without this thread, a lease would run out under those who read.
                logger.exception("upkeep of the location failed in a way nobody thought of; it will be tried again")


def _all_in(state: State) -> list[tuple[str, str]]:
    return [(id_, entry.name) for id_, entry in state.entries.each()]
