"""Serving the page: where, and until when."""

import secrets
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import persist
from persist.notify import listening
from persist.web.limits import HEADER_BYTES_MAX

try:
    import uvicorn

    from persist.web.app import Names, make_app
    from persist.web.connections import BoundedConnection
    from persist.web.explorer import Explorer
except ImportError as missing:
    raise persist.InvalidUsage(
        f"the page needs the package {missing.name}, which is not installed. pip install 'persist-collections[ui]'"
    ) from missing

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
    return Names(frozenset(each.lower().rstrip(".") for each in (*own, *allowed)), is_wildcard)
