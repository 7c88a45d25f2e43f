"""A REST catalog of Iceberg in memory, on loopback, with what the specification calls `commitTransaction`."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

ENDPOINTS = [
    "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "POST /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "POST /v1/{prefix}/namespaces/{namespace}/register",
]
TOGETHER = "POST /v1/{prefix}/transactions/commit"


class RestCatalog:
    """What the server holds.

    Attributes:
        tables: the metadata of each table, by its name.
        changes: the tables that each request has changed.
        is_down: whether requests that change something fail.
    """

    def __init__(self, endpoints: list[str]) -> None:
        self.endpoints = endpoints
        self.tables: dict[str, Any] = {}
        self.changes: list[list[str]] = []
        self.is_down = False

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        """Return status and answer of a request."""
        from pyiceberg.table.metadata import TableMetadataUtil

        parts = [unquote(part) for part in path.removeprefix("/v1/").split("/")]
        if parts == ["config"]:
            return 200, {"defaults": {}, "overrides": {}, "endpoints": self.endpoints}
        if method == "POST" and self.is_down:
            return 503, {"error": {"message": "the catalog is down", "type": "Down", "code": 503}}
        if parts[-1] == "register":
            path = urlparse(body["metadata-location"]).path
            self.tables[f"{parts[1]}.{body['name']}"] = TableMetadataUtil.parse_raw(Path(unquote(path)).read_text())
            return 200, self._shown(f"{parts[1]}.{body['name']}")
        if parts == ["transactions", "commit"]:
            return self._change(body["table-changes"])
        name = f"{parts[1]}.{parts[3]}"
        if name not in self.tables:
            return 404, {"error": {"message": "no such table", "type": "NoSuchTableException", "code": 404}}
        if method == "POST":
            status, refused = self._change([body])
            return (status, refused) if status != 204 else (200, self._shown(name))
        return 200, self._shown(name)

    def _change(self, requests: list[Any]) -> tuple[int, Any]:
        from pyiceberg.table import CommitTableRequest
        from pyiceberg.table.update import update_table_metadata

        changed = {}
        for each in requests:
            request = CommitTableRequest.model_validate(each)
            name = ".".join([*request.identifier.namespace.root, request.identifier.name])
            for requirement in request.requirements:
                requirement.validate(self.tables[name])
            changed[name] = update_table_metadata(self.tables[name], request.updates)
        self.tables |= changed
        self.changes.append([*changed])
        return 204, None

    def _shown(self, name: str) -> Any:
        metadata = json.loads(self.tables[name].model_dump_json())
        return {"metadata-location": "memory", "metadata": metadata, "config": {}}


@contextmanager
def served(endpoints: list[str]) -> Iterator[tuple[RestCatalog, Any]]:
    """Yield a catalog with some endpoints, and pyiceberg's client of it."""
    from pyiceberg.catalog.rest import RestCatalog as Client

    catalog = RestCatalog(endpoints)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer("GET")

        def do_POST(self) -> None:
            self._answer("POST")

        def _answer(self, method: str) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(size)) if size else None
            status, answer = catalog.answer(method, urlparse(self.path).path, body)
            data = b"" if answer is None else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield catalog, Client("rest", uri=f"http://127.0.0.1:{server.server_address[1]}")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
