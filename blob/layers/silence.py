"""Says what is asked of a store that does not answer, before whoever waits has to wonder.

A request of S3 may be under way for twenty seconds before it fails, and is then repeated for a minute. `Silence` knows
the requests that are under way and small, and one thread looks at them: whatever has had no answer for `after_s` is
said once, as a warning of the logger `persist.blob`, and again every half a minute. The thread is there only while
requests are under way. Reads of unknown size and large uploads are left out: on a slow line they take their time.
"""

import logging
import threading
from dataclasses import dataclass

from persist.blob.threads import Clock

EVERY_S = 30.0
LOOKS = 6  # In the time after which something is said.

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Asked:
    """One request, with all its attempts.

    Attributes:
        last: how its last attempt failed, as text: an error would keep its traceback, and with it the whole client.
    """

    operation: str
    key: str
    began_s: float
    last: str = "no answer came yet"


class Silence:
    """Watches the requests of one client to one store. Safe for many threads.

    Args:
        url: what the store is called.
        after_s: how long a request may stay without an answer before something is said.
        for_s: how long a request is tried, which is what is said.
    """

    def __init__(self, url: str, clock: Clock, after_s: float, for_s: float) -> None:
        self._url, self._clock, self._after_s, self._for_s = url, clock, after_s, for_s
        self._lock = threading.Lock()
        self._asked: set[Asked] = set()
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()
        self._said_s: float | None = None

    def begin(self, asked: Asked) -> None:
        """Watch a request, until `end`."""
        with self._lock:
            self._asked.add(asked)
            if self._thread is None and self._for_s > self._after_s and not self._closed.is_set():
                self._thread = threading.Thread(target=self._watch, name="persist-silence", daemon=True)
                self._thread.start()

    def end(self, asked: Asked) -> None:
        """Watch it no longer."""
        with self._lock:
            self._asked.discard(asked)

    def say(self, asked: Asked, within_s: float = 0.0) -> None:
        """Say that a request has no answer, if it has waited long enough, or will have within some seconds."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            is_news = self._said_s is None or now_s - self._said_s >= EVERY_S
            if not is_news or not now_s + within_s - asked.began_s > self._after_s < self._for_s:
                return
            self._said_s = now_s
        logger.warning(
            "%s of %r at %s is tried for up to %g s: %s", asked.operation, asked.key, self._url, self._for_s, asked.last
        )

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        if (thread := self._thread) is not None:
            thread.join()

    def _watch(self) -> None:
        while not self._closed.wait(self._after_s / LOOKS):
            with self._lock:
                longest = min(self._asked, key=lambda asked: asked.began_s, default=None)
                if longest is None:
                    break
            self.say(longest)
        with self._lock:
            self._thread = None
