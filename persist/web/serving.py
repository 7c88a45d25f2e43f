"""Listening for browsers, and connections that end: uvicorn by itself waits for ever for whoever is slow.

uvicorn begins to count the time when an answer is out. Here it counts from the first byte: a request that is not whole
within `REQUEST_S`, body included, ends its connection, as does an answer of which nothing is taken in `ANSWER_S`. More
than `CONNECTIONS_MAX` connections are closed as they come.
"""

import asyncio
import secrets
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import persist
from persist.notify import listening

try:
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol

    from persist.web.app import Names, make_app
    from persist.web.explorer import Explorer
except ImportError as missing:
    raise persist.InvalidUsage(
        f"the page needs the package {missing.name}, which is not installed: "
        "pip install 'starlette>=0.45' 'uvicorn>=0.34'"
    ) from missing

MEMORY_BUDGET = 16 << 20  # Of the client: so the slices are small of which a page of contents needs the first.
CONNECTIONS_MAX = 128
REQUEST_S = 10.0  # How long a request may take to come.
ANSWER_S = 30.0  # How long an answer may wait for somebody to take some of it.
HEADER_BYTES_MAX = 16 << 10
GRACE_S = 1  # For answers under way when the server is stopped.


@dataclass(frozen=True)
class Served:
    """A page that can be opened.

    Attributes:
        url: of the page, with its token.
        run: serves until the process is interrupted, or stop is called.
        stop: ends it, from another thread.
    """

    url: str
    run: Callable[[], None]
    stop: Callable[[], None]


@contextmanager
def served(
    client: "persist.Client", host: str, port: int, token: str | None = None, allow_hosts: Sequence[str] = ()
) -> Iterator[Served]:
    """Listen at an address; yield what serves the page there.

    Args:
        port: 0 for any that is free.
        token: the secret in the URL; made here if it is not given.
        allow_hosts: names by which it may be asked for beside its own, such as that of a proxy.

    Raises:
        InvalidUsage: the address cannot be listened at.
    """
    token = token or secrets.token_urlsafe(16)
    with listening(host, port) as listener:
        listener.setblocking(False)
        shown_host = f"[{host}]" if ":" in host else host
        server = uvicorn.Server(
            uvicorn.Config(
                make_app(Explorer(client), token, names_of(host, allow_hosts)),
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

        def stop() -> None:
            server.should_exit = True

        url = f"http://{shown_host}:{listener.getsockname()[1]}/{token}/"
        yield Served(url, lambda: server.run(sockets=[listener]), stop)


def names_of(host: str, allowed: Sequence[str]) -> Names:
    """Return by which names the page may be asked for that listens at a host."""
    own = {host}
    if is_wildcard := host in ("", "0.0.0.0", "::"):
        own |= {socket.gethostname(), socket.getfqdn()}
    return Names(frozenset(name.lower().rstrip(".") for name in (*own, *allowed)), is_wildcard)


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
