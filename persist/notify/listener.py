"""Being told of new records by a server: a thread that asks it to wait for one, and wakes who waits here.

What the server says is only ever taken for a reason to look at the log sooner; the record itself is read from the
store, and a seqno that turns out to be untrue keeps the next ones from being believed for a second
(`Follower.hint`). When the server cannot be reached, the client polls as it would without one, and the thread tries
again after a pause that grows to `RETRY_S_MAX`.

A second thread tells the server of records that this client has seen first, most often because it made them. It sends
the newest only, so there is nothing to queue up, and nobody waits for it.
"""

import contextlib
import logging
import threading
import uuid
from collections.abc import Iterable

import msgspec
import pyarrow.flight as flight

from persist.notify.address import Notify
from persist.notify.calls import CALL_FAILED, ask, connected
from persist.notify.messages import Committed, Leave, Newest, Wait, decode_message
from persist.replica import Follower

WAIT_S = 10.0
ANSWER_S = 5.0  # What an answer may take beyond that.
RETRY_S_MIN, RETRY_S_MAX = 0.2, 30.0

logger = logging.getLogger(__name__)


class Listener:
    """Owns the two threads; `close` ends them."""

    def __init__(self, follower: Follower, notify: Notify) -> None:
        self._follower = follower
        self._notify = notify
        self._waiter = uuid.uuid4().hex
        self._stop = threading.Event()
        self._news = threading.Event()
        self._heard = -1
        self._counts = {"connected": 0, "pushes": 0, "failures": 0}
        self._client: flight.FlightClient | None = None
        self._threads = [
            threading.Thread(target=self._listen, name="persist-notified", daemon=True),
            threading.Thread(target=self._tell, name="persist-notifying", daemon=True),
        ]
        follower.on_advance = self._advanced
        for thread in self._threads:
            thread.start()

    def counts(self) -> dict[str, int]:
        """Return whether a server answers (one or none), how often it told of a record, and how often it failed."""
        return dict(self._counts)

    def request_stop(self) -> None:
        """Let the threads end, without waiting for them."""
        self._stop.set()
        self._news.set()

    def close(self) -> None:
        """End the threads; idempotent. Takes one answer of the server, or `ANSWER_S` if it gives none."""
        self.request_stop()
        client = self._client
        if client is not None:
            with contextlib.suppress(*CALL_FAILED):
                self._ask(client, "leave", Leave(self._waiter), 1.0)
        for thread in self._threads:
            thread.join(WAIT_S + ANSWER_S)
        self._follower.on_advance = lambda seqno: None

    def _listen(self) -> None:
        pause_s, is_known = RETRY_S_MIN, False
        while not self._stop.is_set():
            try:
                with contextlib.closing(connected(self._notify)) as client:
                    self._client = client
                    for seqno in self._answers(client):
                        self._heard = max(self._heard, seqno)
                        self._counts["connected"], self._counts["pushes"] = 1, self._counts["pushes"] + 1
                        pause_s, is_known = RETRY_S_MIN, False
                        self._follower.hint(seqno)
            except CALL_FAILED as error:
                self._counts["connected"], self._counts["failures"] = 0, self._counts["failures"] + 1
                if not is_known and not self._stop.is_set():
                    logger.warning("%s does not tell of new records, so this client polls: %s", self._notify.url, error)
                is_known = True
            finally:
                self._client = None
                self._follower.is_told = False
            self._stop.wait(pause_s)
            pause_s = min(2 * pause_s, RETRY_S_MAX)

    def _answers(self, client: flight.FlightClient) -> Iterable[int]:
        """Yield the newest seqno whenever it has changed."""
        after = -1
        while not self._stop.is_set():
            answer = self._ask(client, "wait", Wait(after, self._waiter, WAIT_S), WAIT_S + ANSWER_S)
            newest = decode_message(answer, Newest)
            if newest.location not in (None, self._follower.state.location or newest.location):
                raise ValueError(f"it serves the location {newest.location}, which is another one")
            self._counts["connected"] = 1
            self._follower.is_told = True
            if newest.seqno > after:
                after = newest.seqno
                yield newest.seqno

    def _advanced(self, seqno: int) -> None:
        if seqno > self._heard:
            self._news.set()

    def _tell(self) -> None:
        told = -1
        while not self._stop.is_set():
            self._news.wait()
            self._news.clear()
            client, seqno = self._client, self._follower.state.seqno
            if client is None or seqno <= max(told, self._heard) or self._stop.is_set():
                continue
            told = seqno
            with contextlib.suppress(*CALL_FAILED):  # The other thread says so.
                self._ask(client, "committed", Committed(seqno), ANSWER_S)

    def _ask(self, client: flight.FlightClient, what: str, message: msgspec.Struct, timeout_s: float) -> bytes:
        return ask(client, self._notify, what, msgspec.json.encode(message), timeout_s)
