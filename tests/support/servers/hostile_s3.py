"""An S3 server that keeps to one lie: a conditional header that it loses or misreads, or a status that it swaps.

It may also have a bad day, as `HostileS3.between` and `drips` say.

Two endpoints serve the same objects: one tells the truth, the other lies, as a proxy in front of a sound store does.
What a request does is decided before its answer is falsified, so a lie about an answer changes nothing of what is
stored. A PUT checks its condition and stores under one lock.

It knows PUT with `If-None-Match` and `If-Match`, GET with a range, DELETE of one or many objects, and listings.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree

from tests.support.servers.fake_s3 import CHECKSUM

DRIP_S = 0.2
Answer = tuple[int, bytes, dict[str, str]]
Objects = dict[str, tuple[bytes, str]]
Between = Callable[[str, str, Callable[[Objects | None], Answer]], Answer]


@dataclass(frozen=True, slots=True)
class Lie:
    """One way not to keep to the contract.

    Attributes:
        name: for the names of tests.
        condition: what `If-None-Match: *` has become when it arrives: headers by name; None: it arrives as it is.
        request: the kind of request whose answer is swapped: PUT, GET or LIST.
        status: the true status of that answer.
        told: the status that is told instead; 0: none.
        code: the S3 error code in the body of what is told; '' for an empty body.
    """

    name: str
    condition: Mapping[str, str] | None = None
    request: str = ""
    status: int = 0
    told: int = 0
    code: str = ""

    def heard(self, headers: Mapping[str, str]) -> dict[str, str]:
        """Return the headers as they arrive."""
        if self.condition is None or "if-none-match" not in headers:
            return dict(headers)
        return {name: value for name, value in headers.items() if name != "if-none-match"} | dict(self.condition)

    def answer(self, request: str, truth: Answer) -> Answer:
        """Return the answer as it is told."""
        if not self.told or (request, truth[0]) != (self.request, self.status):
            return truth
        return self.told, _error(self.code) if self.code else b"", {}


TRUTH = Lie("the truth")
MISREAD = (
    Lie("drops the condition", {}),
    Lie("empties the condition", {"if-none-match": ""}),
    Lie("quotes the condition", {"if-none-match": '"*"'}),
    Lie("renames the condition", {"x-if-none-match": "*"}),
    Lie("reads the condition as a date", {"if-unmodified-since": "*"}),
    Lie("turns the condition around", {"if-match": "*"}),
)


def swapped(request: str, status: int, *told: tuple[int, str]) -> tuple[Lie, ...]:
    """Return a lie for each status, with its S3 error code, that is told in place of the true one."""
    return tuple(
        Lie(f"{request} {status} becomes {other} {code or 'without a body'}", None, request, status, other, code)
        for other, code in told
    )


@dataclass
class HostileS3:
    """The state of one server.

    Attributes:
        lie: what the lying endpoint does.
        objects: `/bucket/key`, unquoted, to bytes and their checksum.
        requests: the kind of each request that came in, and its path.
        between: what the lying endpoint does with a request: it gets the kind, the path, and what applies the request
            (to other objects, if they are given), as often as it likes, and returns the answer.
        drips: how many of the next values that the lying endpoint is asked for it sends at five bytes a second.
        is_stopping: set when what drips is to end.
        honest_url, lying_url: the endpoints.
    """

    lie: Lie = TRUTH
    objects: dict[str, tuple[bytes, str]] = field(default_factory=dict)
    requests: list[tuple[str, str]] = field(default_factory=list)
    between: Between | None = None
    drips: int = 0
    is_stopping: threading.Event = field(default_factory=threading.Event)
    honest_url: str = ""
    lying_url: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def apply(
        self, request: str, path: str, query: Mapping[str, str], headers: Mapping[str, str], body: bytes
    ) -> Answer:
        """Do what a request asks for, and return the true answer."""
        with self.lock:
            self.requests.append((request, path))
            if request == "PUT":
                return self._put(path, headers, body)
            if request == "LIST":
                return self._list(path, query)
            if request == "POST":
                return self._delete_many(path, body)
            if request == "DELETE":
                self.objects.pop(path, None)
                return 204, b"", {}
            return self._get(path, headers)

    def has_drip(self) -> bool:
        """Return whether an answer drips, and count it."""
        with self.lock:
            self.drips -= 1
            return self.drips >= 0

    def _put(self, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        exists = path in self.objects
        if (headers.get("if-none-match") == "*" and exists) or (headers.get("if-match") == "*" and not exists):
            return 412, _error("PreconditionFailed"), {}
        self.objects[path] = (body, headers.get(CHECKSUM, ""))
        return 200, b"", {"ETag": '"etag"'}

    def _get(self, path: str, headers: Mapping[str, str]) -> Answer:
        if path not in self.objects:
            return 404, _error("NoSuchKey"), {}
        value, checksum = self.objects[path]
        found = {"Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT", "ETag": '"etag"'}
        if "range" in headers:
            first, _, last = headers["range"].removeprefix("bytes=").partition("-")
            start, end = int(first), min(int(last or len(value) - 1), len(value) - 1)
            if start > end:
                return 416, _error("InvalidRange"), {}
            return 206, value[start : end + 1], found | {"Content-Range": f"bytes {start}-{end}/{len(value)}"}
        return 200, value, found | ({CHECKSUM: checksum} if checksum else {})

    def _list(self, bucket: str, query: Mapping[str, str]) -> Answer:
        first = f"{bucket.rstrip('/')}/"
        keys = sorted(path.removeprefix(first) for path in self.objects)
        after = max(query.get("start-after", ""), query.get("continuation-token", ""))
        found = [key for key in keys if key.startswith(query.get("prefix", "")) and key > after]
        page = found[: int(query.get("max-keys", "1000"))]
        more = ""
        if len(page) < len(found):
            more = f"<IsTruncated>true</IsTruncated><NextContinuationToken>{escape(page[-1])}</NextContinuationToken>"
        entries = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(self.objects[first + key][0])}</Size>"
            "<LastModified>2026-01-01T00:00:00Z</LastModified></Contents>"
            for key in page
        )
        return 200, f"<ListBucketResult>{more}{entries}</ListBucketResult>".encode(), {}

    def _delete_many(self, bucket: str, asked: bytes) -> Answer:
        for element in ElementTree.fromstring(asked).iter():
            if element.tag.endswith("Key"):
                self.objects.pop(f"{bucket.rstrip('/')}/{element.text}", None)
        return 200, b"<DeleteResult></DeleteResult>", {}


@contextmanager
def hostile_s3() -> Iterator[HostileS3]:
    """Run a server, which has no lie yet."""
    state = HostileS3()
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), _handler(state, lies=lies)) for lies in (False, True)]
    threads = [threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}) for server in servers]
    state.honest_url, state.lying_url = (f"http://127.0.0.1:{server.server_port}" for server in servers)
    for thread in threads:
        thread.start()
    try:
        yield state
    finally:
        state.is_stopping.set()
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            server.server_close()
            thread.join()


def _error(code: str) -> bytes:
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>made up</Message></Error>".encode()


def _handler(state: HostileS3, *, lies: bool) -> type[BaseHTTPRequestHandler]:
    # One request per connection, so that no thread waits for a second one when the server stops.
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            """Keep the tests' output clean."""

        def _serve(self) -> None:
            lie = state.lie if lies else TRUTH
            headers = {name.lower(): value for name, value in self.headers.items()}
            body = self.rfile.read(int(headers.get("content-length", "0")))
            url = urlsplit(self.path)
            query = {name: values[-1] for name, values in parse_qs(url.query).items()}
            request = "LIST" if "list-type" in query else self.command
            path = unquote(url.path)

            def apply(objects: Objects | None = None) -> Answer:
                state_then = state if objects is None else HostileS3(objects=objects)
                return state_then.apply(request, path, query, lie.heard(headers), body)

            between = state.between if lies else None
            truth = apply() if between is None else between(request, path, apply)
            self._answer(*lie.answer(request, truth))

        def _answer(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Connection", "close")
            self.end_headers()
            if self.command == "HEAD":
                return
            if not (lies and self.command == "GET" and state.has_drip()):
                self.wfile.write(body)
                return
            with suppress(OSError):  # Whoever waited has gone.
                for place in range(len(body)):
                    if state.is_stopping.wait(DRIP_S):
                        return
                    self.wfile.write(body[place : place + 1])

        do_GET = do_HEAD = do_PUT = do_DELETE = do_POST = _serve

    return Handler
