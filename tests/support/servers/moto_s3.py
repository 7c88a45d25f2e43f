"""A real S3 server on loopback for tests: moto over HTTP, in a process of its own.

`scripts/servers/moto` starts it.

moto checks `If-None-Match` and stores in two steps, so that two writers can both win; and it closes the buffer of a
value that is overwritten while somebody reads it, who then gets a 500. One lock around all that writes objects or reads
one makes it keep the promises that S3 makes. A page of a listing has `PAGE_KEYS` keys, a tenth of S3's, so that tests
need not store a thousand.
"""

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

PAGE_KEYS = 100
_OF_OBJECTS = (
    "put_object",
    "copy_object",
    "_key_response_post",
    "_key_response_delete",
    "_bucket_response_delete_keys",
    "get_object",
    "head_object",
)


def _locked(call: Callable[..., Any], lock: AbstractContextManager[Any]) -> Callable[..., Any]:
    def locked(*args: Any, **kwargs: Any) -> Any:
        with lock:
            return call(*args, **kwargs)

    return locked


def _make_atomic() -> None:
    from moto.s3.responses import S3Response

    lock = threading.RLock()
    for name in _OF_OBJECTS:
        setattr(S3Response, name, _locked(getattr(S3Response, name), lock))


def version() -> str:
    """Return which moto it is."""
    import moto

    return f"moto {moto.__version__}"


@contextmanager
def running(seen: Callable[[str, str, str], object] | None = None, page_keys: int = PAGE_KEYS) -> Iterator[str]:
    """Serve on a free port of 127.0.0.1; yields the endpoint. seen gets the method, path and query of each request."""
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    os.environ["MOTO_S3_DEFAULT_MAX_KEYS"] = str(page_keys)
    _make_atomic()
    served = DomainDispatcherApplication(create_backend_app)

    def serve(request: dict[str, Any], answer: Any) -> Any:
        if seen is not None:
            seen(request["REQUEST_METHOD"], request["PATH_INFO"], request.get("QUERY_STRING", ""))
        return served(request, answer)

    server = make_server("127.0.0.1", 0, serve, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
