"""When a writing client compacts without being asked.

It looks for due work in the collections the client has lately used, every `Tuning.compaction_interval_s` and as soon as
many commits have been made; in all collections of the location whenever garbage is collected, so that one writing
client anywhere is enough to look after what nobody writes to any more. What since has passed is destroyed when it has
waited for `Settings.destroy_after_s`, which this client counts from when it first saw it.
"""

import logging
import random
from collections import Counter
from collections.abc import Callable

from persist.blob import Clock
from persist.compact import Compactor, must_destroy
from persist.errors import ClientClosed, CollectionNotFound, PersistError
from persist.replica import Follower
from persist.settings import Settings
from persist.state import CollectionState

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
        resolve: Callable[[CollectionState], object] = lambda contents: None,
    ) -> None:
        """Make one; resolve turns the sealed events of a keyed collection into updates, if that is due."""
        self._resolve = resolve
        self._compactor = compactor
        self._follower = follower
        self._clock = clock
        self._runs_max = settings.tuning.runs_max
        destroy_after_s = settings.destroy_after_s
        self._destroy_after_s = settings.grace_s / 2 if destroy_after_s is None else destroy_after_s
        self._sweep_interval_s = settings.gc_interval_s
        # Clients that were opened together should not compact together.
        self._sweep_at_s = clock.monotonic_s() + settings.gc_interval_s * random.uniform(0.25, 0.75)
        self._undestroyed: dict[str, float] = {}  # Since when, by the clock.
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
        failed: PersistError | None = None
        for id_, entry in state.entries.items():
            if not sweeps and entry.contents is None:
                continue
            try:
                # As of the refresh above: a location of many idle collections must not cost requests for each.
                self._resolve(self._follower.known(id_, entry.name))
                contents = self._follower.known(id_, entry.name)
                is_overdue = self._is_overdue(contents)
                if self._compactor.is_due(contents, destroy=is_overdue):
                    self._compactor.compact(id_, entry.name, destroy=is_overdue)
            except CollectionNotFound:
                self._undestroyed.pop(id_, None)
            except ClientClosed:
                raise
            except PersistError as error:
                logger.warning("compaction of %r failed and will be tried again: %s", entry.name, error)
                failed = failed or error
        if failed is not None:
            raise failed

    def committed(self, collection: str) -> bool:
        """Take note of a commit that added updates; tell whether there were so many that compaction is due."""
        self._commits[collection] += 1
        return self._commits[collection] >= COMMITS_MAX

    def relieve(self, collection: str) -> None:
        """Make the caller, who is about to write, wait for a merge if there are too many runs to go on."""
        entry = self._follower.state.entries.get(collection)
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
        return now_s - seen_s >= self._destroy_after_s
