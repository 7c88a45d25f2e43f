"""Having a server commit for this client: `persist.write.relay.Relay` over Arrow Flight.

One request at a time, like one record at a time. When the server cannot be reached, does not answer in time or refuses,
the client commits by itself, and asks again after a pause that grows to `RETRY_S_MAX`. Nothing that a server says is
taken for more than an answer: what it did not answer is looked up in the log (`persist.write.committer`).
"""

import contextlib
import logging
from collections.abc import Sequence

import msgspec
import pyarrow as pa
import pyarrow.flight as flight

from persist.blob import Clock
from persist.errors import InvalidUsage
from persist.notify.address import Notify
from persist.notify.calls import CALL_FAILED, ask, ask_in_pieces, connected
from persist.notify.messages import CommitRequest, Commits, decode_message
from persist.write import REQUEST_BYTES_MAX, Answer, Operation, answers_from, request_bytes

ANSWER_S = 10.0
RETRY_S_MIN, RETRY_S_MAX = 0.2, 30.0

logger = logging.getLogger(__name__)


class FlightRelay:
    """Asks one server; for one thread at a time, apart from `counts` and `close`."""

    def __init__(self, server: Notify, clock: Clock) -> None:
        self._server = server
        self._clock = clock
        self._client: flight.FlightClient | None = None
        self._due_s, self._pause_s = 0.0, RETRY_S_MIN
        self._counts = {"requests": 0, "failures": 0}

    def counts(self) -> dict[str, int]:
        """Return how often the server was asked, and how often it did not answer."""
        return dict(self._counts)

    def check(self, location: str | None) -> None:
        """Ask the server whether it commits for others, and where; one that gives no answer may do so later.

        Raises:
            InvalidUsage: it does not, not for this client, or for another location.
        """
        try:
            answer = ask(self._connected(), self._server, "commits", b"{}", ANSWER_S)
            found = decode_message(answer, Commits)
        except (pa.ArrowInvalid, flight.FlightUnauthenticatedError, ValueError) as error:
            self.close()
            raise InvalidUsage(
                f"{self._server.url} does not commit for this client: {error}. Give the address and the token "
                "of a Client.serve(commits=True) of the same location."
            ) from error
        except CALL_FAILED as error:
            self._failed(error)
            return
        if location is not None and found.location != location:
            self.close()
            raise InvalidUsage(
                f"{self._server.url} serves the location {found.location}, and this is {location}: "
                "commit_through must name a server of the same location"
            )

    def commit(self, location: str, operations: Sequence[Operation]) -> Sequence[Answer] | None:
        """Have operations committed; see `persist.write.relay.Relay`."""
        if self._clock.monotonic_s() < self._due_s:
            return None
        data = request_bytes(location, operations)
        if len(data) > REQUEST_BYTES_MAX:
            return None
        self._counts["requests"] += 1
        try:
            command = msgspec.json.encode(CommitRequest(len(data)))
            answers = answers_from(
                ask_in_pieces(self._connected(), self._server, command, data, ANSWER_S), len(operations)
            )
        except CALL_FAILED as error:
            self._failed(error)
            return [None] * len(operations)
        self._pause_s = RETRY_S_MIN
        return answers

    def close(self) -> None:
        """Close the connection; idempotent."""
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(*CALL_FAILED):
                client.close()

    def _connected(self) -> flight.FlightClient:
        if self._client is None:
            self._client = connected(self._server)
        return self._client

    def _failed(self, error: BaseException) -> None:
        if self._pause_s == RETRY_S_MIN:
            logger.warning("%s does not commit, so this client does so by itself: %s", self._server.url, error)
        self._counts["failures"] += 1
        self._due_s = self._clock.monotonic_s() + self._pause_s
        self._pause_s = min(2 * self._pause_s, RETRY_S_MAX)
        self.close()
