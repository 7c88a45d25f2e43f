"""AWS policies, as far as those of `docs/run/security.md` go, held against the requests that are really sent.

`Gate` is a server in front of an S3 server, and looks at every request before it passes. A request signed with the
access key of a role that has policies is refused with 403 when they do not allow it, as S3 would. What a policy says
must be understood here: an element, operator or condition key that is not is an error, never ignored.
"""

import json
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree

ACTIONS = {
    "GetObject": "s3:GetObject",
    "PutObject": "s3:PutObject",
    "DeleteObject": "s3:DeleteObject",
    "DeleteObjects": "s3:DeleteObject",
    "ListObjectsV2": "s3:ListBucket",
}
_ROLE = re.compile(r"Credential=([^/]+)/")


@dataclass(frozen=True)
class Need:
    """A right that a request needs: an action on a resource, in a context of condition keys."""

    action: str
    resource: str
    context: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Call:
    """One request: whose, what, and where, as it goes over the wire (path-style).

    `keys` are the objects concerned: none for a listing, many for a deletion in bulk.
    """

    role: str
    operation: str
    method: str
    bucket: str
    keys: tuple[str, ...]
    query: Mapping[str, str]
    headers: Mapping[str, str]

    def needs(self, encrypted: Mapping[tuple[str, str], str]) -> list[Need]:
        """Return what S3 checks; encrypted tells the KMS key of each (bucket, key)."""
        bucket = f"arn:aws:s3:::{self.bucket}"
        if self.operation == "ListObjectsV2":
            context = {"s3:prefix": self.query["prefix"]} if "prefix" in self.query else {}
            return [Need("s3:ListBucket", bucket, context)]
        context = {"s3:if-none-match": self.headers["if-none-match"]} if "if-none-match" in self.headers else {}
        needs = [Need(ACTIONS[self.operation], f"{bucket}/{key}", context) for key in self.keys]
        if self.headers.get("x-amz-server-side-encryption") == "aws:kms":
            needs.append(Need("kms:GenerateDataKey", self.headers["x-amz-server-side-encryption-aws-kms-key-id"]))
        if self.operation == "GetObject" and (self.bucket, *self.keys) in encrypted:
            needs.append(Need("kms:Decrypt", encrypted[self.bucket, self.keys[0]]))
        return needs


@dataclass(frozen=True)
class Grant:
    """One action on one resource pattern, of an Allow statement."""

    sid: str
    action: str
    resource: str
    conditions: tuple[tuple[str, str, str], ...]

    def allows(self, need: Need) -> bool:
        return (
            need.action == self.action
            and _like(self.resource, need.resource)
            and all(_holds(*condition, need.context) for condition in self.conditions)
        )


def grants(policy: Mapping[str, Any]) -> list[Grant]:
    """Take a policy apart."""
    assert policy.keys() == {"Version", "Statement"}
    assert policy["Version"] == "2012-10-17"
    found = []
    for statement in policy["Statement"]:
        assert statement.keys() <= {"Sid", "Effect", "Action", "Resource", "Condition"}, statement
        assert statement["Effect"] == "Allow", statement
        conditions = tuple(
            (operator, key, value)
            for operator, keys in statement.get("Condition", {}).items()
            for key, value in keys.items()
        )
        for action in _listed(statement["Action"]):
            assert action in {*ACTIONS.values(), "kms:Decrypt", "kms:GenerateDataKey"}, action
            for resource in _listed(statement["Resource"]):
                found.append(Grant(statement["Sid"], action, resource, conditions))
    return found


def policies_in(folder: Path, values: Mapping[str, str]) -> dict[str, list[Grant]]:
    """Return the policies in a folder by their name, with values in place of words such as BUCKET."""
    found = {}
    for path in folder.glob("*.json"):
        body = path.read_text()
        for word, value in values.items():
            body = re.sub(rf"\b{word}\b", value, body)
        found[path.stem] = grants(json.loads(body))
    return found


class Gate:
    """Lets the requests of a role pass that its grants allow; everything of a role without any."""

    def __init__(self, behind: str) -> None:
        self.roles: dict[str, Sequence[Grant]] = {}
        self.calls: list[Call] = []
        self.refused: list[Call] = []
        self.encrypted: dict[tuple[str, str], str] = {}
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self, urlsplit(behind).netloc))
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def close(self) -> None:
        """End the server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def of(self, *roles: str) -> list[Call]:
        """Return the calls of some roles so far."""
        with self._lock:
            return [call for call in self.calls if call.role in roles]

    def allowed(self, calls: Sequence[Call], granted: Sequence[Grant]) -> bool:
        """Tell whether all calls would have passed with these grants."""
        needs = {(n.action, n.resource, *n.context.items()): n for c in calls for n in c.needs(self.encrypted)}
        return all(any(grant.allows(need) for grant in granted) for need in needs.values())

    def passes(self, call: Call) -> bool:
        """Note a request, and tell whether it may pass."""
        with self._lock:
            self.calls.append(call)
            if call.headers.get("x-amz-server-side-encryption") == "aws:kms":
                key_id = call.headers["x-amz-server-side-encryption-aws-kms-key-id"]
                self.encrypted[call.bucket, call.keys[0]] = key_id
            if call.role not in self.roles or self.allowed([call], self.roles[call.role]):
                return True
            self.refused.append(call)
            return False


def _handler(gate: Gate, behind: str) -> type[BaseHTTPRequestHandler]:
    # HTTP/1.0 has one request per connection, so no thread waits for a second one when the server stops.
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            """Keep the tests' output clean."""

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", "0")))
            if not gate.passes(_call(self.command, self.path, dict(self.headers.items()), body)):
                text = b"<?xml version='1.0'?><Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
                self._answer(403, {}, text)
                return
            connection = HTTPConnection(behind)
            connection.request(self.command, self.path, body, dict(self.headers.items()))
            with connection.getresponse() as answer:
                self._answer(answer.status, dict(answer.getheaders()), answer.read())
            connection.close()

        def _answer(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
            self.send_response_only(status)
            for name, value in headers.items():
                if name.lower() not in ("content-length", "connection", "transfer-encoding"):
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_PUT = do_DELETE = do_POST = _serve

    return Handler


def _call(method: str, path: str, given: Mapping[str, str], body: bytes) -> Call:
    url = urlsplit(path)
    # The path goes over the wire percent-encoded once; what is encoded in a key comes back as it was.
    bucket, _, key = unquote(url.path.removeprefix("/")).partition("/")
    query = {name: values[0] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
    headers = {name.lower(): value for name, value in given.items()}
    operations = {"GET": "GetObject", "PUT": "PutObject", "DELETE": "DeleteObject", "POST": "DeleteObjects"}
    operation = "ListObjectsV2" if "list-type" in query else operations[method]
    keys: tuple[str, ...] = (key,) if key else ()
    if operation == "DeleteObjects":
        keys = tuple(each.text or "" for each in ElementTree.fromstring(body).iter() if each.tag.endswith("Key"))
    role = _ROLE.search(headers.get("authorization", ""))
    return Call(role.group(1) if role else "", operation, method, bucket, keys, query, headers)


def _holds(operator: str, key: str, value: str, context: Mapping[str, str]) -> bool:
    assert key in {"s3:prefix", "s3:if-none-match"}, key
    if operator == "StringLike":
        return key in context and _like(value, context[key])
    assert operator == "Null", operator
    return (key not in context) is {"true": True, "false": False}[value]


def _like(pattern: str, text: str) -> bool:
    parts = (".*" if c == "*" else "." if c == "?" else re.escape(c) for c in pattern)
    return re.fullmatch("".join(parts), text, re.DOTALL) is not None


def _listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value
