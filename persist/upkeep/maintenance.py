"""What a writing client does beside answering calls: it keeps its lease alive and collects garbage."""

import logging
import random
import threading
from collections.abc import Callable

from persist.blob import StoreFull
from persist.blob.clock import Clock
from persist.errors import ClientClosed, PersistError
from persist.hold.leases import Leases
from persist.settings import Settings

WAKE_MAX_S = 30.0

logger = logging.getLogger("persist")


class Maintenance:
    """Owns a thread, unless settings say otherwise; `tick` does now what is due."""

    def __init__(self, leases: Leases, collect: Callable[[], object], clock: Clock, settings: Settings) -> None:
        self._leases = leases
        self._collect = collect
        self._clock = clock
        self._settings = settings
        # Clients that were opened together should not collect together.
        self._collect_at_s = clock.monotonic_s() + settings.gc_interval_s * random.uniform(0.5, 1.0)
        self._expire_at_s = clock.monotonic_s() + settings.lease_s / 10
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        if settings.background:
            self._thread = threading.Thread(target=self._run, name="persist-maintenance", daemon=True)
            self._thread.start()

    def tick(self) -> None:
        """Do what is due by now.

        Raises:
            PersistError: the store did not answer, or the log is damaged; what is due stays due.
        """
        full: StoreFull | None = None
        for each in (self._leases.tick, self._expire_when_due, self._collect_when_due):
            try:
                each()
            except StoreFull as error:  # Collecting what comes last is what makes room.
                full = full or error
        if full is not None:
            raise full

    def _expire_when_due(self) -> None:
        now_s = self._clock.monotonic_s()
        if now_s >= self._expire_at_s:
            self._leases.end_expired()
            self._expire_at_s = now_s + self._settings.lease_s / 10

    def _collect_when_due(self) -> None:
        now_s = self._clock.monotonic_s()
        if now_s >= self._collect_at_s:
            self._collect_at_s = now_s + self._settings.gc_interval_s
            self._collect()

    def request_stop(self) -> None:
        """Let the thread end soon."""
        self._stop.set()

    def close(self) -> None:
        """End the thread; idempotent."""
        self.request_stop()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        due = (self._settings.hold_linger_s, self._settings.lease_s / 10, self._settings.gc_interval_s, WAKE_MAX_S)
        while not self._stop.wait(max(0.05, min(due))):
            try:
                self.tick()
            except ClientClosed:
                return
            except PersistError as error:
                logger.warning("maintenance of the location failed and will be tried again: %s", error)
            except Exception:  # Whatever it is: without this thread, the lease would run out under those who read.
                logger.exception(
                    "maintenance of the location failed in a way nobody thought of; it will be tried again"
                )
