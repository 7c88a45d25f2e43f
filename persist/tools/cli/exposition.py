"""Metrics of a location over HTTP, in Prometheus' text format, which Grafana reads by way of any scraper.

    GET /metrics

Families, beside those of `persist.core.metrics` (dots become underscores, counters end in `_total`):

    persist_up                           1 if the store answered this time
    persist_seqno                        the last record of the log
    persist_collections                  how many there are
    persist_collection_<rows|bytes|parts|holds|unsealed_updates|since|upper>     by collection
    persist_collection_failed            by collection: 1 if its last refresh, its source or a sink failed
    persist_collection_lag_seconds       by collection: how far its upper is behind now, if its times are moments

A scrape costs one GET of the log, and one for each collection that has changed since the last one. If there are more
than COLLECTIONS_MAX collections, only the totals are told. Names are data, and are escaped. Answers go to whoever sends
the token. Without one, they go only to this machine, and only if asked for by a name of this machine: so a page in a
browser that has its name point here gets nothing.
"""

import contextlib
import math
import re
import socket
import socketserver
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import urlsplit

import persist
from persist.core.closing import Closes
from persist.core.metrics import Reading, readings
from persist.engine.collection.failures import failures_of
from persist.services.serve.messages import host_of, is_loopback, listening
from persist.services.serve.rights import RIGHTS, Tokens
from persist.tools.reports.surveys import Facts, KnownFacts

COLLECTIONS_MAX = 2000
CONNECTIONS_MAX = 8
TIMEOUT_S = 10.0
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Exposition:
    """The text of a client's metrics; safe to use from many threads."""

    def __init__(self, client: "persist.Client") -> None:
        self._client = client
        self._known = KnownFacts(client)
        self._lock = threading.Lock()

    def text(self) -> str:
        """Return all metrics as they are now; if the store does not answer, those of the client."""
        metrics: list[Reading] = []
        with self._lock:
            try:
                metrics += self._of_location()
                up = 1
            except persist.PersistError:
                up = 0
        metrics.append(Reading("persist.up", up, False))
        return text_of([*metrics, *readings(self._client.metrics())])

    def _of_location(self) -> Iterator[Reading]:
        seqno = self._client.seqno  # This looks for new records; the rest is about the state as it then is.
        names = self._client.engine.follower.state.names()
        yield Reading("persist.seqno", seqno, False)
        yield Reading("persist.collections", len(names), False)
        if len(names) <= COLLECTIONS_MAX:
            now_s = time.time()
            for facts in self._known.of(names):
                yield from _of_collection(facts, now_s)


def _of_collection(facts: Facts, now_s: float) -> Iterator[Reading]:
    hidden = facts.unsealed
    values: dict[str, float | None] = {
        "rows": facts.rows,
        "bytes": facts.bytes,
        "parts": facts.parts,
        "holds": len(facts.contents.holds),
        "unsealed_updates": 0 if hidden is None else hidden.updates,
        "since": facts.since,
        "upper": facts.upper,
        "lag_seconds": facts.lag_s(now_s),
        "failed": int(bool(failures_of(facts.contents))),
    }
    for name, value in values.items():
        if value is not None:
            yield Reading(f"persist.collection.{name}", value, False, attributes={"collection": facts.name})


def text_of(readings: Iterable[Reading]) -> str:
    """Return readings in the text format, each family with its type once."""
    families: dict[str, tuple[str, list[str]]] = {}
    for reading in readings:
        name = re.sub(r"[^a-zA-Z0-9_]", "_", reading.name) + ("_total" if reading.is_counter else "")
        _, lines = families.setdefault(name, ("counter" if reading.is_counter else "gauge", []))
        lines.append(f"{name}{_labels(reading.attributes)} {_number(reading.value)}")
    text = [line for name, (kind, lines) in families.items() for line in (f"# TYPE {name} {kind}", *lines)]
    return "\n".join(text) + "\n"


def _labels(attributes: Mapping[str, str]) -> str:
    if not attributes:
        return ""
    escaped = {k: v.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n") for k, v in attributes.items()}
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped.items()) + "}"


def _number(value: float) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    return str(value)


class MetricsServer(Closes):
    """Serves the metrics of a client until it is closed; use it in a `with`.

    Attributes:
        url: of the metrics.
    """

    def __init__(
        self,
        client: "persist.Client",
        address: str,
        *,
        token: str | None,
        insecure: bool,
        write_token: str | None = None,
    ) -> None:
        """Begin to serve at HOST:PORT; port 0 takes a free one.

        Raises:
            InvalidUsage: that is no address, is taken, or can be reached by others and has no token.
        """
        host, port = _parsed(address)
        is_local = is_loopback(host)
        if not is_local and token is None and not insecure:
            raise persist.InvalidUsage(
                f"--metrics {address}: others reach this address, and there is no token. Set PERSIST_SERVE_TOKEN, "
                "listen at 127.0.0.1, or say --insecure"
            )
        handler = _handler(Exposition(client), Tokens(token, write_token), is_local and token is None)
        self._server = _Server(listening(host, port), handler)
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._server.server_address[1]}/metrics"
        self._thread = threading.Thread(target=self._server.serve_forever, name="persist-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving; idempotent."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Server(socketserver.ThreadingTCPServer):
    """Answers a few connections at a time, and closes others at once."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, listener: socket.socket, handler: Any) -> None:
        self._room = threading.Semaphore(CONNECTIONS_MAX)
        super().__init__(listener.getsockname(), handler, bind_and_activate=False)
        self.socket.close()  # The base class has made one that listens at nothing.
        self.socket = listener

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        # The handler's own limit is for each byte; a request has it once.
        ending = threading.Timer(TIMEOUT_S, _read_no_more, (request,))
        ending.daemon = True
        ending.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            ending.cancel()
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that go away in the middle."""


def _read_no_more(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RD)


def _handler(exposition: Exposition, tokens: Tokens, checks_host: bool) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = TIMEOUT_S
        server_version, sys_version = "persist", ""

        def do_GET(self) -> None:
            if RIGHTS["metrics"] not in tokens.rights(self.headers.items()):
                self._answer(401, "The token is missing or wrong: send Authorization: Bearer TOKEN.\n")
            elif checks_host and not is_loopback(host_of(self.headers.get("Host", ""))):
                self._answer(403, "Ask for this by 127.0.0.1 or localhost.\n")
            elif self.path.partition("?")[0] != "/metrics":
                self._answer(404, "There is nothing here: ask for /metrics.\n")
            else:
                self._answer(200, exposition.text())

        def _answer(self, status: int, text: str) -> None:
            data = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(data)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing: standard error is for people."""

    return Handler


def _parsed(address: str) -> tuple[str, int]:
    parts = urlsplit(f"//{address}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or port is None or parts.path or parts.query or parts.username:
        raise persist.InvalidUsage(
            f"--metrics {address!r} is no HOST:PORT, such as 127.0.0.1:9464; port 0 takes a free one"
        )
    return host, port
