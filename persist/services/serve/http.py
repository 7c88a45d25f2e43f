"""A server of HTTP, for the page, the metrics and the Iceberg catalog, with a limit for each connection.

A slow client loses its connection; uvicorn alone limits only the wait after an answer. Here the time counts from when
the connection opens, and again from the end of each answer. The next request must be complete, with its body, within
`REQUEST_S`. A client must take some of its answer within `ANSWER_S`. More than `CONNECTIONS_MAX` connections are closed
as they come.
"""

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from uvicorn.protocols.http.h11_impl import H11Protocol

from persist.services.serve.messages import (
    check_strangers,
    is_loopback,
    join_host_port,
    open_listening_socket,
    parse_host,
    parse_host_port,
)
from persist.services.serve.rights import RIGHTS, Tokens

CONNECTIONS_MAX = 128
REQUEST_S = 10.0  # How long a request may take to come.
ANSWER_S = 30.0  # How long an answer may wait for the client to read some of it.
HEADER_BYTES_MAX = 16 << 10
GRACE_S = 1  # For answers under way when the server is stopped.


@dataclass(frozen=True)
class Served:
    """An HTTP server: its URL, a function that serves until interrupted, and one that ends it."""

    url: str
    run: Callable[[], None]
    stop: Callable[[], None]


@contextmanager
def serve_app(app: Starlette, host: str, port: int) -> Iterator[Served]:
    """Listen at an address; yield the server of an application there. `port`: 0 for any that is free."""
    with open_listening_socket(host, port) as listener:
        listener.setblocking(False)
        server = uvicorn.Server(
            uvicorn.Config(
                app,
                http=BoundedConnection,
                ws="none",
                h11_max_incomplete_event_size=HEADER_BYTES_MAX,
                log_level="error",
                access_log=False,  # It would show the token.
                timeout_graceful_shutdown=GRACE_S,
                lifespan="off",
                server_header=False,
            )
        )

        def stop(*_: object) -> None:
            server.should_exit = True

        def run() -> None:
            is_main = threading.current_thread() is threading.main_thread()
            # A handler that raises would interrupt how the loop is made, and leave a half of one.
            previous = signal.signal(signal.SIGTERM, stop) if is_main else None
            try:
                server.run(sockets=[listener])
            finally:
                if is_main:
                    signal.signal(signal.SIGTERM, previous)

        yield Served(f"http://{join_host_port(host, listener.getsockname()[1])}", run, stop)


@dataclass(frozen=True)
class Gate:
    """Lets callers in by their tokens. Without tokens, a server on loopback answers only by a name of this machine.

    So a page in a browser whose name points here gets nothing.
    """

    tokens: Tokens
    is_local: bool

    def refuse(self, request: Request, endpoint: str | None) -> tuple[int, str] | None:
        """Return the status and the reason for refusing a request, or None; endpoint None is open to all tokens."""
        headers = request.headers
        if self.is_local and not self.tokens.are_needed:
            if not is_loopback(parse_host(headers.get("host", ""))):
                return 403, "Ask for this by 127.0.0.1 or localhost."
            # A load of the catalog publishes, so a page of another site must not cause one.
            if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") or "origin" in headers:
                return 403, "This answers no pages of other sites."
        if endpoint is not None and RIGHTS[endpoint] not in self.tokens.find_rights(headers.items()):
            return 401, "The token is missing or wrong: send Authorization: Bearer TOKEN."
        return None


@contextmanager
def serve_beside(
    make_app: Callable[[Gate], Starlette], option: str, address: str, tokens: Tokens, *, insecure: bool
) -> Iterator[str]:
    """Serve an application at HOST:PORT on a thread of its own; yield its URL. Port 0 takes a free one.

    `option`: the option of the command line that the address comes from; errors name it.
    """
    host, port = parse_host_port(option, address)
    check_strangers(f"{option} {address}", host, is_safe=tokens.are_needed or insecure)
    with serve_app(make_app(Gate(tokens, is_loopback(host))), host, port) as server:
        thread = threading.Thread(target=server.run, name=f"persist{option[1:]}", daemon=True)
        thread.start()
        try:
            yield server.url
        finally:
            server.stop()
            thread.join()


class BoundedConnection(H11Protocol):
    """A connection that ends if its request is not complete in time, or its answer is not read."""

    _until_asked: asyncio.TimerHandle | None = None
    _until_taken: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS_MAX:
            transport.abort()
        self._update_time_limit()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._until_asked, self._until_taken):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._update_time_limit()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._update_time_limit()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._until_taken = self.loop.call_later(ANSWER_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._until_taken is not None:
            self._until_taken.cancel()

    def _update_time_limit(self) -> None:
        """Start the time limit of the next request, or stop it if the request is complete."""
        is_whole = self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body
        if is_whole and self._until_asked is not None:
            self._until_asked.cancel()
            self._until_asked = None
        elif not is_whole and self._until_asked is None:
            self._until_asked = self.loop.call_later(REQUEST_S, self.transport.abort)
