"""An S3 server that fails on purpose, in the ways that moto cannot: lost answers and errors around a request.

It knows PUT (with `If-None-Match: *`), GET and DELETE of whole objects, gives a PUT's checksum back with the
GET, deletes many objects at once, lists what a test says, and remembers the headers of every request.
"""

import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from xml.etree import ElementTree

CHECKSUM = "x-amz-checksum-sha256"


class Trouble(Enum):
    """What goes wrong with one request: how it is answered, and whether it was applied before."""

    DROPPED_AFTER = ("drop", "", True)
    DROPPED_BEFORE = ("drop", "", False)
    SILENCE_AFTER = ("wait", "", True)
    ERROR_AFTER = ("500", "InternalError", True)
    ERROR_BEFORE = ("500", "InternalError", False)
    SLOW_DOWN = ("503", "SlowDown", False)
    CONFLICT = ("409", "ConditionalRequestConflict", False)
    DENIED = ("403", "AccessDenied", False)
    INVALID = ("400", "InvalidRequest", False)
    PROXY_ERROR_AFTER = ("502", "", True)  # Something in between answers, without an S3 error code.

    def __init__(self, answer: str, code: str, is_applied: bool) -> None:
        self.answer = answer
        self.code = code
        self.is_applied = is_applied


@dataclass
class FakeS3:
    """The state of one server.

    Attributes:
        url: its endpoint.
        objects: `/bucket/key` as in the request line, to bytes.
        checksums: the same, to the checksum that came with the PUT.
        requests: method and headers (names in lower case) of what came in.
        undeletable: `/bucket/key` to the error code that a deletion gives for it.
        listings: the keys, with the location's prefix, of the next pages of listings; the last page is an empty one.
        echo: what error messages repeat, as a careless server would.
        troubles: what goes wrong with the next requests, in turn.
        is_stopping: set when those that wait have to give up.
    """

    url: str = ""
    objects: dict[str, bytes] = field(default_factory=dict)
    checksums: dict[str, str] = field(default_factory=dict)
    requests: list[tuple[str, Mapping[str, str]]] = field(default_factory=list)
    undeletable: dict[str, str] = field(default_factory=dict)
    listings: deque[list[str]] = field(default_factory=deque)
    echo: str = ""
    troubles: deque[Trouble] = field(default_factory=deque)
    is_stopping: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def apply(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
        """Do what a request asks for, and return status and body."""
        with self.lock:
            if method == "PUT":
                if headers.get("if-none-match") == "*" and path in self.objects:
                    return 412, _error("PreconditionFailed")
                self.objects[path] = body
                self.checksums[path] = headers.get(CHECKSUM, "")
                return 200, b""
            if method == "POST":
                return self._delete_many(path.partition("?")[0], body)
            if method == "GET" and "list-type=2" in path:
                return 200, self._list()
            if method == "DELETE" and (code := self.undeletable.get(path)):
                return _REFUSALS[code], _error(code, self.echo)
            if method == "DELETE":
                self.objects.pop(path, None)
                return 204, b""
            found = self.objects.get(path)
            return (404, _error("NoSuchKey")) if found is None else (200, found)

    def _delete_many(self, bucket: str, asked: bytes) -> tuple[int, bytes]:
        try:
            keys = [
                str(element.text) for element in ElementTree.fromstring(asked).iter() if element.tag.endswith("Key")
            ]
        except ElementTree.ParseError:
            return 400, _error("MalformedXML")
        outcomes = ""
        for key in keys:
            path = f"{bucket}/{key}"
            if code := self.undeletable.get(path):
                outcomes += (
                    f"<Error><Key>{escape(key)}</Key><Code>{code}</Code><Message>made up {self.echo}</Message></Error>"
                )
            else:
                self.objects.pop(path, None)
                outcomes += f"<Deleted><Key>{escape(key)}</Key></Deleted>"
        return 200, f"<DeleteResult>{outcomes}</DeleteResult>".encode()

    def _list(self) -> bytes:
        keys = self.listings.popleft() if self.listings else []
        entries = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>1</Size><LastModified>2026-01-01T00:00:00Z</LastModified></Contents>"
            for key in keys
        )
        more = (
            "<IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>" if self.listings else ""
        )
        return f"<ListBucketResult>{more}{entries}</ListBucketResult>".encode()


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
        state.is_stopping.set()
        server.shutdown()
        server.server_close()
        thread.join()


_REFUSALS = {"AccessDenied": 403, "InternalError": 500, "NoSuchKey": 404, "SlowDown": 503}


def _error(code: str, echo: str = "") -> bytes:
    if not code:
        return b"<html>a page of a proxy</html>"
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>made up {escape(echo)}</Message></Error>".encode()


def _handler(state: FakeS3) -> type[BaseHTTPRequestHandler]:
    # HTTP/1.0 has one request per connection, so no thread waits for a second one when the server stops.
    class Handler(BaseHTTPRequestHandler):
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
            if trouble is None:
                self._answer(status, answer, state.checksums.get(self.path, ""))
            elif trouble.answer == "wait":
                state.is_stopping.wait()
            elif trouble.answer != "drop":
                self._answer(int(trouble.answer), _error(trouble.code, state.echo), "")

        def _answer(self, status: int, body: bytes, checksum: str) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("ETag", '"made up"')
            self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
            if checksum and self.command == "GET":
                self.send_header(CHECKSUM, checksum)
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_PUT = do_DELETE = do_POST = _serve

    return Handler
