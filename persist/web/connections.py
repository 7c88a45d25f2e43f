"""Connections of the page that end: uvicorn's protocol, which by itself waits for ever for whoever is slow.

uvicorn begins to count the time when an answer is out. Here it counts from the first byte: a request that is not whole
within `REQUEST_S`, body included, ends its connection, as does an answer of which nothing is taken in `ANSWER_S`. More
than `CONNECTIONS_MAX` connections are closed as they come.
"""

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

from persist.web.limits import ANSWER_S, CONNECTIONS_MAX, REQUEST_S


class BoundedConnection(H11Protocol):
    """One connection, and what ends it if the request does not come, or the answer is not taken."""

    _until_asked: asyncio.TimerHandle | None = None
    _until_taken: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS_MAX:
            transport.abort()
        self._look_at_request()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._until_asked, self._until_taken):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look_at_request()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look_at_request()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._until_taken = self.loop.call_later(ANSWER_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._until_taken is not None:
            self._until_taken.cancel()

    def _look_at_request(self) -> None:
        """Begin to count if a request is waited for, and stop if it is whole."""
        is_whole = self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body
        if is_whole and self._until_asked is not None:
            self._until_asked.cancel()
            self._until_asked = None
        elif not is_whole and self._until_asked is None:
            self._until_asked = self.loop.call_later(REQUEST_S, self.transport.abort)
