"""Detects a client's clock that is far ahead: the times that it seals are sealed for ever, for all clients.

The clock is compared with the date that the store gave the newest record, and if that is old, with the date of an
object written now. Only a store with its own clock can show this. A folder has the machine's clock, and its earlier
dates help only while they are younger than `AHEAD_S`.
"""

import threading
from datetime import UTC, datetime

from persist.blob.protocol import Blob
from persist.blob.threads import Clock
from persist.core.errors import ClockAhead
from persist.core.log.keys import CLOCK_KEY, list_records
from persist.core.timeline import AHEAD_S


class ClockCheck:
    """Compares the clock of one client with the dates of its store; safe to use from threads."""

    def __init__(self, blob: Blob, clock: Clock) -> None:
        self._blob = blob
        self._clock = clock
        self._lock = threading.Lock()
        self._dated_s = float("-inf")  # The newest date of an object in the store.

    def make_error(self, seqno: int, *, may_write: bool = True) -> ClockAhead | None:
        """Return an error if the clock is more than a day ahead of the store's; None if not, or if unknown.

        Cost: nothing within a day of the last check; otherwise a LIST, and if the newest record is old, a PUT and
        another LIST.

        Args:
            seqno: the seqno of the newest record.
            may_write: whether an object may be written to read the store's time from it.
        """
        with self._lock:
            now_s = self._clock.wall_ms() / 1000
            if now_s - self._dated_s <= AHEAD_S:
                return None
            records = (entry.modified_s for _, entry in list_records(self._blob, seqno - 1))
            self._dated_s = max(self._dated_s, next(records, self._dated_s))
            if now_s - self._dated_s <= AHEAD_S or not may_write:
                return None
            self._blob.set(CLOCK_KEY, b"now")
            dates = [entry.modified_s for entry in self._blob.list(CLOCK_KEY)]
            if not dates:
                return None  # A repair deleted it meanwhile.
            self._dated_s = max(dates)
            if now_s - self._dated_s <= AHEAD_S:
                return None
            return ClockAhead(*(datetime.fromtimestamp(at, UTC).isoformat() for at in (now_s, self._dated_s)))
