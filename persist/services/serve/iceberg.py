"""The Iceberg REST catalog of a location over HTTP; read only. `persist.services.publish.catalog` is what it serves.

    GET       /v1/config
    POST      /v1/oauth/tokens                      a client secret that is the token returns the token
    GET       /v1/namespaces                        ?parent= &pageToken= &pageSize=
    GET HEAD  /v1/namespaces/{namespace}
    GET       /v1/namespaces/{namespace}/tables     ?pageToken= &pageSize=
    GET HEAD  /v1/namespaces/{namespace}/tables/{table}
    GET       …/{table}/credentials
    POST      …/{table}/plan                        the files that a scan has to read
    POST      …/{table}/metrics                     accepted, and not stored
    GET       /v1/namespaces/{namespace}/views      none: a view of ours is a table

All other endpoints of the protocol write. The catalog refuses them with 406, as the protocol has it. Levels of a
namespace are separated by the character 0x1F. The server keeps nothing between requests.

Source: the Iceberg REST catalog's specification (`rest-catalog-open-api.yaml`), with its names of errors.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from persist.core.errors import PersistError
from persist.services.publish import CatalogReader, IcebergCatalog, NotListed
from persist.services.serve.error_codes import encode_error
from persist.services.serve.http import Gate, serve_beside
from persist.services.serve.rights import Tokens

NOT_STORED = {"Cache-Control": "no-store"}
PAGE_MAX = 1000
PUBLISH_INTERVAL_S = 1.0
BODY_BYTES_MAX = 1 << 20
SEPARATOR = "\x1f"
_KINDS = {
    400: "BadRequestException", 401: "NotAuthorizedException", 403: "ForbiddenException", 404: "NoSuchTableException",
    503: "ServiceUnavailableException",
}  # fmt: skip
Namespace = tuple[str, ...]
_TABLE = "namespaces/{namespace}/tables/{table}"
ENDPOINTS = [
    f"{method} /v1/{{prefix}}/{path}"
    for path, methods in {
        "namespaces": "GET", "namespaces/{namespace}": "GET HEAD", "namespaces/{namespace}/tables": "GET",
        _TABLE: "GET HEAD", f"{_TABLE}/credentials": "GET", f"{_TABLE}/plan": "POST", f"{_TABLE}/metrics": "POST",
        "namespaces/{namespace}/views": "GET",
    }.items()
    for method in methods.split()
]  # fmt: skip


class _Refused(Exception):
    """A request that is answered by an error of the protocol."""

    def __init__(self, code: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.code, self.kind = code, kind


@contextmanager
def serve_catalog(
    client: CatalogReader,
    address: str,
    *,
    token: str | None,
    insecure: bool,
    write_token: str | None = None,
    properties: Mapping[str, str] | None = None,
    format_version: int = 2,
    publish_interval_s: float = PUBLISH_INTERVAL_S,
) -> Iterator[str]:
    """Serve the location of a client as an Iceberg catalog at HOST:PORT; yield its URL. Port 0 takes a free one.

    Args:
        properties: sent to readers with each table, such as credentials of S3 (`s3.access-key-id`).
        publish_interval_s: a table is published at most once in so long.
    """
    catalog = IcebergCatalog(client, publish_interval_s, format_version)

    def make_app(gate: Gate) -> Starlette:
        return _Routes(catalog, gate, properties or {}).app()

    with serve_beside(make_app, "--iceberg", address, Tokens(token, write_token), insecure=insecure) as url:
        yield url


class _Routes:
    """The endpoints, each as a function of a request that returns JSON and runs on a thread of its own."""

    def __init__(self, catalog: IcebergCatalog, gate: Gate, properties: Mapping[str, str]) -> None:
        self._catalog = catalog
        self._gate = gate
        self._properties = dict(properties)

    def app(self) -> Starlette:
        """Return the application that serves the endpoints."""
        table = f"/v1/{_TABLE}"
        routes = [
            Route("/v1/config", self._make_endpoint(self._config)),
            Route("/v1/oauth/tokens", self._make_endpoint(self._answer_oauth, is_open=True), methods=["POST"]),
            Route("/v1/namespaces", self._make_endpoint(self._answer_namespaces)),
            Route("/v1/namespaces/{namespace}", self._make_endpoint(self._answer_namespace)),
            Route("/v1/namespaces/{namespace}/tables", self._make_endpoint(self._answer_tables)),
            Route("/v1/namespaces/{namespace}/views", self._make_endpoint(self._views)),
            Route(table, self._make_endpoint(self._answer_table)),
            Route(f"{table}/credentials", self._make_endpoint(self._answer_credentials)),
            Route(f"{table}/plan", self._make_endpoint(self._answer_plan), methods=["POST"]),
            Route(f"{table}/metrics", self._make_endpoint(self._metrics), methods=["POST"]),
        ]
        refusals = {HTTPException: self._refuse}
        return Starlette(routes=routes, exception_handlers=refusals)  # type: ignore[arg-type]

    def _make_endpoint(self, endpoint: Callable[[Request, bytes], Response], *, is_open: bool = False) -> Any:
        """Return a coroutine that answers an endpoint; `is_open` serves callers without a token."""

        async def respond(request: Request) -> Response:
            try:
                if refusal := self._gate.refuse(request, None if is_open else "iceberg"):
                    return _make_error(refusal[0], _KINDS[refusal[0]], refusal[1])
                body = await _decode_body(request)
                return await run_in_threadpool(endpoint, request, body)
            except _Refused as error:
                return _make_error(error.code, error.kind, str(error))
            except NotListed as error:
                missing = "Table" if "table" in request.path_params else "Namespace"
                return _make_error(404, f"NoSuch{missing}Exception", str(error))
            except PersistError as error:
                code = encode_error(error, hidden="").http
                return _make_error(code, _KINDS.get(code, "InternalServerError"), str(error))

        return respond

    async def _refuse(self, request: Request, error: HTTPException) -> Response:
        """Answer a request to an endpoint that writes or does not exist."""
        if error.status_code == 405 or request.method not in ("GET", "HEAD"):
            return _make_error(
                406,
                "UnsupportedOperationException",
                "This catalog is read only: write with persist, and the next load of the table shows it.",
            )
        return _make_error(error.status_code, "NotFoundException", f"There is no endpoint {request.url.path[:200]}.")

    def _config(self, request: Request, body: bytes) -> Response:
        """Answer with the catalog's configuration: its endpoints."""
        return JSONResponse({"defaults": {}, "overrides": {}, "endpoints": ENDPOINTS})

    def _answer_oauth(self, request: Request, body: bytes) -> Response:
        """Answer a request for an OAuth token."""
        form = {name: values[0] for name, values in parse_qs(body.decode("latin-1")).items()}
        if form.get("grant_type") != "client_credentials":
            return _make_oauth_error("unsupported_grant_type", "The grant_type has to be client_credentials.")
        secret = form.get("client_secret", "")
        if not self._gate.tokens.find_rights([("authorization", f"Bearer {secret}")]):
            return _make_oauth_error("invalid_client", "The client_secret has to be the token of the server.")
        token_type = "urn:ietf:params:oauth:token-type:access_token"
        granted = {"access_token": secret, "token_type": "bearer", "issued_token_type": token_type}
        return JSONResponse(granted, headers=NOT_STORED)

    def _answer_namespaces(self, request: Request, body: bytes) -> Response:
        """Answer with the namespaces."""
        parent = _parse_levels(request.query_params.get("parent", ""))
        page, following = _cut_page(request, self._catalog.namespaces(parent))
        return JSONResponse({"namespaces": page, "next-page-token": following})

    def _answer_namespace(self, request: Request, body: bytes) -> Response:
        """Answer with one namespace and its properties."""
        space = _parse_namespace(request)
        if request.method == "HEAD":
            self._catalog.tables(space)
            return Response(status_code=204)
        return JSONResponse({"namespace": space, "properties": self._catalog.properties(space)})

    def _answer_tables(self, request: Request, body: bytes) -> Response:
        """Answer with the tables of a namespace."""
        space = _parse_namespace(request)
        page, following = _cut_page(request, self._catalog.tables(space))
        identifiers = [{"namespace": space, "name": name} for name in page]
        return JSONResponse({"identifiers": identifiers, "next-page-token": following})

    def _views(self, request: Request, body: bytes) -> Response:
        """Answer with no views, because views are tables here."""
        self._catalog.tables(_parse_namespace(request))
        return JSONResponse({"identifiers": []})

    def _answer_table(self, request: Request, body: bytes) -> Response:
        """Answer with the metadata of a table."""
        space, name = _parse_namespace(request), request.path_params["table"]
        if request.method == "HEAD":
            self._catalog.check(space, name)
            return Response(status_code=204)
        loaded = self._catalog.load(space, name)
        headers = {"ETag": f'"{loaded.tag}"', "Cache-Control": "private"}
        if headers["ETag"] in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        answer = {"metadata-location": loaded.url, "metadata": loaded.metadata, "config": self._properties}
        return JSONResponse(answer, headers=headers)

    def _answer_credentials(self, request: Request, body: bytes) -> Response:
        """Answer with the credentials for a table's files."""
        self._catalog.check(_parse_namespace(request), request.path_params["table"])
        credential = {"prefix": self._catalog.url, "config": self._properties}
        return JSONResponse({"storage-credentials": [credential] if self._properties else []}, headers=NOT_STORED)

    def _answer_plan(self, request: Request, body: bytes) -> Response:
        """Answer with the files that a scan must read."""
        try:
            scan = json.loads(body)
            json.dumps(scan, ensure_ascii=False, allow_nan=False).encode()  # It is sent back with each file.
        except (ValueError, RecursionError) as error:
            raise _Refused(400, "BadRequestException", f"The body is not JSON: {ascii(str(error))[:500]}") from error
        if not isinstance(scan, dict):
            raise _Refused(400, "BadRequestException", "The body is not an object of JSON.")
        return JSONResponse(self._catalog.plan(_parse_namespace(request), request.path_params["table"], scan))

    def _metrics(self, request: Request, body: bytes) -> Response:
        """Accept the metrics of a scan, without storing them."""
        self._catalog.check(_parse_namespace(request), request.path_params["table"])
        return Response(status_code=204)


async def _decode_body(request: Request) -> bytes:
    """Return the body of a request as a JSON object."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > BODY_BYTES_MAX:
            raise _Refused(413, "BadRequestException", f"The body is longer than {BODY_BYTES_MAX} bytes.")
    return bytes(body)


def _parse_namespace(request: Request) -> Namespace:
    """Return the namespace in the path of a request."""
    return _parse_levels(request.path_params["namespace"])


def _parse_levels(text: str) -> Namespace:
    """Return a namespace from a text with separators."""
    return tuple(text.split(SEPARATOR)) if text else ()


def _cut_page(request: Request, listed: Sequence[Any]) -> tuple[Sequence[Any], str | None]:
    """Return the requested page of a list, and the token of the next one; the whole list if no page is requested.

    A token is the number of entries before the page. If others come or go meanwhile, an entry may be missed or come
    twice, as the protocol allows.
    """
    size, token = request.query_params.get("pageSize"), request.query_params.get("pageToken") or "0"
    if size is None and "pageToken" not in request.query_params:
        return listed, None
    size = size or str(PAGE_MAX)
    if not (size.isdecimal() and token.isdecimal() and int(size[:9]) > 0 and len(token) < 10):
        raise _Refused(400, "BadRequestException", "pageSize has to be a number above 0, and pageToken one of ours.")
    start, end = int(token), int(token) + min(int(size[:9]), PAGE_MAX)
    return listed[start:end], str(end) if end < len(listed) else None


def _make_error(code: int, kind: str, message: str) -> Response:
    """Return an error response in the form of the catalog's protocol."""
    return JSONResponse({"error": {"message": message, "type": kind, "code": code}}, code)


def _make_oauth_error(kind: str, message: str) -> Response:
    """Return an error response of OAuth: status 401 or 400."""
    return JSONResponse({"error": kind, "error_description": message}, 401 if kind == "invalid_client" else 400)
