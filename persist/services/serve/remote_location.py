"""The client's side of a server over Arrow Flight: news of records, and commits through it.

A thread (`Listener`) waits at the server for a record, and wakes the waiting readers here. The server's answer is only
a hint to read the log sooner: the record itself is read from the store. After a wrong seqno, further hints are ignored
for a second (`Follower.hint`). If the server cannot be reached, the client polls the store, and the thread calls the
server again after a pause that grows to `RETRY_S_MAX`. A second thread notifies the server of records that this client
has seen first, usually its own. It only sends the newest seqno, so it needs no queue, and no caller waits for it.

`FlightRelay` lets a server commit operations, with one request at a time. If the server cannot be reached, is too slow
or refuses, the client commits by itself, and calls the server again after a pause. Operations without an answer are
looked up in the log (`persist.engine.write.committer`).
"""

import contextlib
import logging
import threading
import uuid
from collections.abc import Iterable, Sequence

import msgspec
import pyarrow as pa
import pyarrow.flight as flight

from persist.blob import wire
from persist.blob.threads import Clock
from persist.core.errors import InvalidUsage
from persist.engine.follow.follower import Follower
from persist.engine.location.engine import Engine
from persist.engine.write.operations import Operation
from persist.engine.write.relay import Answer
from persist.engine.write.relay_messages import REQUEST_BYTES_MAX, decode_answers, encode_request
from persist.services.serve.messages import (
    CommitRequest,
    Commits,
    Committed,
    Leave,
    Newest,
    Notify,
    Wait,
    decode_message,
    parse_address,
)

WAIT_S = 10.0
ANSWER_S = 5.0  # Seconds for an answer beyond that.
COMMIT_S = 10.0  # Seconds for a commit.
RETRY_S_MIN, RETRY_S_MAX = 0.2, 30.0

logger = logging.getLogger(__name__)


def connect(server: Notify) -> flight.FlightClient:
    """Return a client of Flight for a server; nothing is sent yet."""
    return wire.connect(parse_address(server.url).url, server.certificate)


def call_action(client: flight.FlightClient, server: Notify, what: str, body: bytes, timeout_s: float) -> bytes:
    """Send one action to a server; return its answer. Raises one of `wire.CALL_FAILED`."""
    for answer in wire.call_action(client, server.token, what, body, timeout_s):
        return answer
    raise ValueError(f"the server sent no answer to {what!r}")


class Listener:
    """Notifies the follower of the server's records, and the server of ours, on two threads."""

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
        follower.on_advance = self._note_advance
        for thread in self._threads:
            thread.start()

    def counts(self) -> dict[str, int]:
        """Return whether the server answers (0 or 1), and the numbers of received records and failures."""
        return dict(self._counts)

    def request_stop(self) -> None:
        """Let the threads end, without waiting for them."""
        self._stop.set()
        self._news.set()

    def close(self) -> None:
        """End the threads; idempotent. This waits for one answer of the server, at most `ANSWER_S`."""
        self.request_stop()
        client = self._client
        if client is not None:
            with contextlib.suppress(*wire.CALL_FAILED):
                self._ask(client, "leave", Leave(self._waiter), 1.0)
        for thread in self._threads:
            thread.join(WAIT_S + ANSWER_S)
        self._follower.on_advance = lambda seqno: None

    def _listen(self) -> None:
        """Pass announced seqnos to the follower, until stopped; reconnect after errors."""
        pause_s, is_known = RETRY_S_MIN, False
        while not self._stop.is_set():
            try:
                with contextlib.closing(connect(self._notify)) as client:
                    self._client = client
                    for seqno in self._iterate_seqnos(client):
                        self._heard = max(self._heard, seqno)
                        self._counts["connected"], self._counts["pushes"] = 1, self._counts["pushes"] + 1
                        pause_s, is_known = RETRY_S_MIN, False
                        self._follower.hint(seqno)
            except wire.CALL_FAILED as error:
                self._counts["connected"], self._counts["failures"] = 0, self._counts["failures"] + 1
                if not is_known and not self._stop.is_set():
                    logger.warning("%s does not tell of new records, so this client polls: %s", self._notify.url, error)
                is_known = True
            finally:
                self._client = None
                self._follower.is_told = False
            self._stop.wait(pause_s)
            pause_s = min(2 * pause_s, RETRY_S_MAX)

    def _iterate_seqnos(self, client: flight.FlightClient) -> Iterable[int]:
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

    def _note_advance(self, seqno: int) -> None:
        """Wake the notifying thread if the server has not announced this record."""
        if seqno > self._heard:
            self._news.set()

    def _tell(self) -> None:
        """Notify the server of newer seqnos that this client has read, until stopped."""
        newest_told = -1
        while not self._stop.is_set():
            self._news.wait()
            self._news.clear()
            client, seqno = self._client, self._follower.state.seqno
            if client is None or seqno <= max(newest_told, self._heard) or self._stop.is_set():
                continue
            newest_told = seqno
            with contextlib.suppress(*wire.CALL_FAILED):  # The other thread reports it.
                self._ask(client, "committed", Committed(seqno), ANSWER_S)

    def _ask(self, client: flight.FlightClient, what: str, message: msgspec.Struct, timeout_s: float) -> bytes:
        """Send an action to the server; return its answer."""
        return call_action(client, self._notify, what, msgspec.json.encode(message), timeout_s)


class FlightRelay:
    """Lets one server commit operations; for one thread at a time, apart from `counts` and `close`."""

    def __init__(self, server: Notify, clock: Clock) -> None:
        self._server = server
        self._clock = clock
        self._client: flight.FlightClient | None = None
        self._due_s, self._pause_s = 0.0, RETRY_S_MIN
        self._counts = {"requests": 0, "failures": 0}

    def counts(self) -> dict[str, int]:
        """Return the number of requests to the server, and of those without an answer."""
        return dict(self._counts)

    def check(self, location: str | None) -> None:
        """Raise InvalidUsage if the server answers, but does not commit for this location."""
        try:
            answer = call_action(self._connect(), self._server, "commits", b"{}", COMMIT_S)
            commits = decode_message(answer, Commits)
        except (
            pa.ArrowInvalid,
            flight.FlightUnauthenticatedError,
            flight.FlightUnauthorizedError,
            ValueError,
        ) as error:
            self.close()
            raise InvalidUsage(
                f"{self._server.url} does not commit for this client: {error}. Give the address and a token that "
                "may write of a Client.serve(commits=True) of the same location."
            ) from error
        except wire.CALL_FAILED as error:
            self._note_failure(error)
            return
        if location is not None and commits.location != location:
            self.close()
            raise InvalidUsage(
                f"{self._server.url} serves the location {commits.location}, and this is {location}: "
                "commit_through must name a server of the same location"
            )

    def commit(self, location: str, operations: Sequence[Operation]) -> Sequence[Answer] | None:
        """Send operations to the server; see `persist.engine.write.relay.Relay`."""
        if self._clock.monotonic_s() < self._due_s:
            return None
        data = encode_request(location, operations)
        if len(data) > REQUEST_BYTES_MAX:
            return None
        self._counts["requests"] += 1
        try:
            command = msgspec.json.encode(CommitRequest(len(data)))
            answers = decode_answers(
                wire.exchange_pieces(self._connect(), self._server.token, command, data, COMMIT_S), len(operations)
            )
        except wire.CALL_FAILED as error:
            self._note_failure(error)
            return [None] * len(operations)
        self._pause_s = RETRY_S_MIN
        return answers

    def close(self) -> None:
        """Close the connection; idempotent."""
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(*wire.CALL_FAILED):
                client.close()

    def _connect(self) -> flight.FlightClient:
        """Return the client of the server, made at the first call."""
        if self._client is None:
            self._client = connect(self._server)
        return self._client

    def _note_failure(self, error: BaseException) -> None:
        """Count a failure, and let a growing pause pass before the next call of the server."""
        if self._pause_s == RETRY_S_MIN:
            logger.warning("%s does not commit, so this client does so by itself: %s", self._server.url, error)
        self._counts["failures"] += 1
        self._due_s = self._clock.monotonic_s() + self._pause_s
        self._pause_s = min(2 * self._pause_s, RETRY_S_MAX)
        self.close()


def commit_through(engine: Engine, server: Notify) -> None:
    """Let a client commit through a server."""
    committer = engine.writer("commit_through").committer
    relay = FlightRelay(server, engine.clock)
    relay.check(engine.follower.state.location)
    committer.groups.relay = relay
    committer.call_when_ended(relay.close)
    engine.count_also("commit_through", relay.counts)
