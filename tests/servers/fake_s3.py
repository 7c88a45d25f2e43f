"""An S3 server that fails on purpose, in the ways that moto cannot: lost answers and errors around a PUT.

It knows PUT (with `If-None-Match: *`), GET and DELETE of whole objects, and remembers the headers of every request.
"""

import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Trouble(Enum):
    """What goes wrong with one request: its status and S3 error code, and whether it was applied before."""

    DROPPED_AFTER = (0, "", True)  # Applied; the connection is closed without an answer.
    DROPPED_BEFORE = (0, "", False)
    ERROR_AFTER = (500, "InternalError", True)
    ERROR_BEFORE = (500, "InternalError", False)
    SLOW_DOWN = (503, "SlowDown", False)
    CONFLICT = (409, "ConditionalRequestConflict", False)
    DENIED = (403, "AccessDenied", False)
    BAD_GATEWAY = (502, "", True)  # A proxy in between answers, without an S3 error code.

    def __init__(self, status: int, code: str, is_applied: bool) -> None:
        self.status = status
        self.code = code
        self.is_applied = is_applied


@dataclass
class FakeS3:
    """The state of one server.

    Attributes:
        url: its endpoint.
        objects: `/bucket/key` as in the request line, to bytes.
        requests: method and headers (names in lower case) of what came in.
        troubles: what goes wrong with the next requests, in turn.
    """

    url: str = ""
    objects: dict[str, bytes] = field(default_factory=dict)
    requests: list[tuple[str, Mapping[str, str]]] = field(default_factory=list)
    troubles: deque[Trouble] = field(default_factory=deque)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def apply(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
        """Do what a request asks for, and return status and body."""
        with self.lock:
            if method == "PUT":
                if headers.get("if-none-match") == "*" and path in self.objects:
                    return 412, _error("PreconditionFailed")
                self.objects[path] = body
                return 200, b""
            if method == "DELETE":
                self.objects.pop(path, None)
                return 204, b""
            found = self.objects.get(path)
            return (404, _error("NoSuchKey")) if found is None else (200, found)


@contextmanager
def fake_s3(*troubles: Trouble) -> Iterator[FakeS3]:
    """Run a server whose first requests meet these troubles."""
    state = FakeS3(troubles=deque(troubles))
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(state))
    state.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _error(code: str) -> bytes:
    if not code:
        return b"<html>a page of a proxy</html>"
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>made up by the test</Message></Error>".encode()


def _handler(state: FakeS3) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        # HTTP/1.0: one request for each connection, so that no thread waits for a second one when the server stops.
        def log_message(self, format: str, *args: object) -> None:
            """Keep the tests' output clean."""

        def _serve(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            if headers.get("expect") == "100-continue":
                self.send_response_only(100)
                self.end_headers()
            body = self.rfile.read(int(headers.get("content-length", "0")))
            with state.lock:
                state.requests.append((self.command, headers))
                trouble = state.troubles.popleft() if state.troubles else None
            status, answer = 0, b""
            if trouble is None or trouble.is_applied:
                status, answer = state.apply(self.command, self.path, headers, body)
            if trouble is not None:
                status, answer = trouble.status, _error(trouble.code)
            if status:
                self._answer(status, answer)

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_PUT = do_DELETE = _serve

    return Handler
