"""The web application of the page: files, requests of the page, and metrics; all are GET, below a secret path."""

import asyncio
import hmac
import ipaddress
import json
import logging
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

import persist
from persist.services.serve.http import Served, serve_app
from persist.services.serve.messages import is_loopback, parse_host
from persist.tools.web.explorer import Explorer
from persist.tools.web.metrics import Exposition

SCRIPTS = ("page", "asking", "showing", "list", "collection", "query", "health", "drawing", "graphs", "moments")
FILES = {
    "": ("page.html", "text/html; charset=utf-8"),
    "page.css": ("page.css", "text/css; charset=utf-8"),
    **{f"{name}.js": (f"{name}.js", "text/javascript; charset=utf-8") for name in SCRIPTS},
}
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",  # The address has the token.
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
LISTENERS_MAX = 32
POLL_S = 1.0
OTHER_NAME = "Ask by the address that persist ui printed; a proxy's name is given to it as --allow-host NAME.\n"
logger = logging.getLogger(__name__)
Answer = Callable[[Explorer, Request], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Names:
    """The host names under which the page may be requested, in lower case.

    A page of another site, whose name was made to point here (DNS rebinding), is refused by its name.
    `any_address`: accept every IP address, because the server listens at all addresses of this machine.
    """

    hosts: frozenset[str] = frozenset()
    any_address: bool = False

    def has(self, header: str) -> bool:
        """Return whether a Host header names this server; loopback always does."""
        host = parse_host(header)
        return host in self.hosts or is_loopback(host) or (self.any_address and _is_address(host))


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def make_app(explorer: Explorer, exposition: Exposition, token: str, names: Names) -> Starlette:
    """Return the web application of the page, which answers only below `/<token>/`."""
    listeners = Listeners(explorer)

    async def answer(request: Request) -> Response:
        """Check host and token, then send a file, an event stream or a JSON answer."""
        if not names.has(request.headers.get("host", "")):
            return _add_headers(PlainTextResponse(OTHER_NAME, status_code=403))
        token_text, _, path = request.url.path.removeprefix("/").partition("/")
        if not hmac.compare_digest(token_text.encode(), token.encode()):
            return _add_headers(PlainTextResponse("Open the address that persist ui printed.\n", status_code=403))
        if path in FILES:
            name, kind = FILES[path]
            return _add_headers(Response((files(__package__) / name).read_bytes(), media_type=kind))
        if path == "api/events":
            return _add_headers(await listeners.make_response(request))
        if path == "metrics":
            return _add_headers(await exposition.make_response())
        if path == "api/download":
            return _add_headers(await run_in_threadpool(_answer_request, explorer, _answer_download, request))
        if (question := QUESTIONS.get(path)) is not None:
            return _add_headers(await run_in_threadpool(_answer_request, explorer, question, request))
        return _add_headers(JSONResponse({"error": "There is nothing at this address."}, status_code=404))

    return Starlette(routes=[Route("/{path:path}", answer, methods=["GET"])])


def _answer_request(
    explorer: Explorer, question: Callable[[Explorer, Request], Response | dict[str, Any]], request: Request
) -> Response:
    """Return a question's answer as JSON; errors of the library get a status."""
    try:
        answer = question(explorer, request)
        return answer if isinstance(answer, Response) else JSONResponse(answer)
    except persist.errors.CollectionNotFound as error:
        return _refuse_request(error, 404)
    except persist.InvalidUsage as error:
        return _refuse_request(error, 400)
    except (persist.Unavailable, persist.Indeterminate) as error:
        return _refuse_request(error, 503)
    except persist.PersistError as error:
        return _refuse_request(error, 500)
    except Exception as error:  # The page shows the error and goes on; the log has details.
        logger.exception("the page could not answer %s", request.url.path.rpartition("/")[2])
        return _refuse_request(error, 500)


def _refuse_request(error: Exception, status: int) -> Response:
    """Return an error as JSON with a status."""
    return JSONResponse({"error": " ".join(str(error).split())}, status_code=status)


def _add_headers(response: Response) -> Response:
    response.headers.update(HEADERS)
    return response


def _get_text(request: Request, name: str) -> str:
    """Return a parameter of a request; raise InvalidUsage without it."""
    value = request.query_params.get(name)
    if value is None:
        raise persist.InvalidUsage(f"the request lacks {name}")
    return value


def _get_number(request: Request, name: str, default: int) -> int:
    """Return a parameter of a request as a number."""
    value = request.query_params.get(name, str(default))
    if not value.isascii() or not value.isdigit() or len(value) > 12:
        raise persist.InvalidUsage(f"{name}={value!r:.50} is not a number")
    return int(value)


def _parse_order(request: Request) -> dict[str, Any]:
    """Return the sort arguments that a request has."""
    return {"sort": request.query_params.get("sort"), "descending": request.query_params.get("order") == "desc"}


def _answer_download(explorer: Explorer, request: Request) -> Response:
    """Answer with a file that is written while it is sent."""
    parameters = request.query_params
    download = explorer.results.download(
        parameters.get("format", "csv"),
        name=parameters.get("name"),
        sql=parameters.get("sql"),
        as_of=parameters.get("as_of"),
        where=parameters.get("where"),
        **_parse_order(request),
    )
    headers = {"Content-Disposition": f'attachment; filename="{download.name}"'}
    return StreamingResponse(download.content, media_type=download.kind, headers=headers)


def _get_version(request: Request) -> int | None:
    """Return the requested version of the schema, or None."""
    return _get_number(request, "schema", 0) if "schema" in request.query_params else None


QUESTIONS: dict[str, Answer] = {
    "api/collections": lambda e, r: e.collections(
        search=r.query_params.get("search", ""), offset=_get_number(r, "offset", 0), limit=_get_number(r, "limit", 50)
    ),
    "api/collection": lambda e, r: e.collection(_get_text(r, "name")),
    "api/contents": lambda e, r: e.results.contents(
        _get_text(r, "name"),
        r.query_params.get("as_of"),
        offset=_get_number(r, "offset", 0),
        limit=_get_number(r, "limit", 50),
        key=r.query_params.get("key"),
        schema=_get_version(r),
        **_parse_order(r),
        where=r.query_params.get("where"),
    ),
    "api/sql": lambda e, r: e.results.query(_get_text(r, "sql"), r.query_params.get("as_of"), **_parse_order(r)),
    "api/over-time": lambda e, r: e.results.over_time(_get_text(r, "sql"), _get_number(r, "points", 24)),
    "api/health": lambda e, r: e.flows.health(),
    "api/changes": lambda e, r: e.changes(
        _get_text(r, "name"), _get_text(r, "from"), _get_text(r, "until"), schema=_get_version(r)
    ),
    "api/history": lambda e, r: e.history(_get_text(r, "name"), _get_text(r, "key")),
    "api/difference": lambda e, r: e.difference(_get_text(r, "name"), _get_text(r, "first"), _get_text(r, "second")),
    "api/plan": lambda e, r: e.plan(_get_text(r, "name"), r.query_params.get("as_of")),
    "api/dataflow": lambda e, r: e.dataflow(_get_text(r, "name")),
    "api/lineage": lambda e, r: e.flows.lineage(),
    "api/commits": lambda e, r: e.records.commits(),
}


class Listeners:
    """Sends the newest seqno to open pages, by server-sent events."""

    def __init__(self, explorer: Explorer) -> None:
        self._explorer = explorer
        self._count = 0

    async def make_response(self, request: Request) -> Response:
        """Return an endless event stream; refuse it beyond the limit."""
        if self._count >= LISTENERS_MAX:
            return JSONResponse({"error": "Too many pages follow this location already."}, status_code=503)
        return StreamingResponse(self._stream_events(request), media_type="text/event-stream")

    async def _stream_events(self, request: Request) -> AsyncIterator[str]:
        """Yield an event for each change of the newest seqno, until the page closes."""
        self._count += 1
        try:
            last_state: dict[str, Any] | None = None
            while not await request.is_disconnected():
                state = await run_in_threadpool(self._wait_for_news)
                if state != last_state:
                    last_state = state
                    yield f"data: {json.dumps(state)}\n\n"
                await asyncio.sleep(POLL_S)
        finally:
            self._count -= 1

    def _wait_for_news(self) -> dict[str, Any]:
        """Return the newest seqno, or an error."""
        try:
            return {"seqno": self._explorer.seqno}
        except persist.PersistError as error:
            return {"error": " ".join(str(error).split())}


MEMORY_BUDGET = 16 << 20  # The client's budget: small slices, because a page needs only the first one.


@contextmanager
def serve_page(
    client: "persist.Client", host: str, port: int, token: str | None = None, allow_hosts: Sequence[str] = ()
) -> Iterator[Served]:
    """Serve the page at an address; yield its URL.

    Args:
        port: 0 for any that is free.
        token: the secret in the URL; a random one by default.
        allow_hosts: further accepted host names, such as a proxy's.

    Raises:
        InvalidUsage: the server cannot listen at the address.
    """
    token = token or secrets.token_urlsafe(16)
    explorer = Explorer(client)
    page = make_app(explorer, Exposition(client), token, get_accepted_names(host, allow_hosts))
    with serve_app(page, host, port) as server, ThreadPoolExecutor(1, "persist-first-list") as thread:
        thread.submit(
            _ignore_unavailable, explorer.collections
        )  # Warms the cache before a browser requests the first list.
        yield replace(server, url=f"{server.url}/{token}/")


def _ignore_unavailable(look: Callable[[], object]) -> None:
    """Call a function; ignore errors of the library."""
    with suppress(persist.PersistError):  # The next request gets the error.
        look()


def get_accepted_names(host: str, allowed: Sequence[str]) -> Names:
    """Return the names under which the page may be requested: the host, and allowed ones."""
    names = {host}
    if is_wildcard := host in ("", "0.0.0.0", "::"):
        names |= {socket.gethostname(), socket.getfqdn()}
    return Names(frozenset(name.lower().rstrip(".") for name in (*names, *allowed)), is_wildcard)
