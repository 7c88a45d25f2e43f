"""Connections of the page that end: uvicorn's protocol, which by itself waits for ever for whoever is slow.

uvicorn begins to count the time when an answer is out. Here it counts from the first byte: a request that is not whole
within `REQUEST_S`, body included, ends its connection, as does an answer of which nothing is taken in `ANSWER_S`. More
than `CONNECTIONS_MAX` connections are closed as they come.
"""

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

from persist.web.limits import ANSWER_S, CONNECTIONS_MAX, REQUEST_S


class BoundedConnection(H11Protocol):
    """One connection."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS_MAX:
            transport.abort()
        self._end_in(REQUEST_S)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_never()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._waits_for_request:
            if self._timer is None:
                self._end_in(REQUEST_S)
        else:
            self._end_never()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.more_body and self._timer is None:
            self._end_in(REQUEST_S)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._end_never()
        self._end_in(ANSWER_S)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._end_never()

    @property
    def _waits_for_request(self) -> bool:
        """Whether the request that is under way, or comes next, is not whole."""
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body

    def _end_in(self, after_s: float) -> None:
        self._timer = self.loop.call_later(after_s, self.transport.abort)

    def _end_never(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
