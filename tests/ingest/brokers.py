"""Brokers for tests: the mock cluster of the client library, which listens on loopback; and a registry of schemas."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PARTITIONS = 4  # Of topics that the mock cluster makes by itself.


class Cluster:
    """A cluster with one broker at `address`."""

    def __init__(self) -> None:
        from confluent_kafka import Producer

        self._producer = Producer({"bootstrap.servers": "", "test.mock.num.brokers": 1, "log_level": 0})
        broker = next(iter(self._producer.list_topics(timeout=60).brokers.values()))
        self.address = f"{broker.host}:{broker.port}"

    def send(self, topic: str, *messages: Any, partition: int = 0, at_ms: int = 0) -> None:
        """Send values, or pairs of key and value; what is no bytes and no None is sent as JSON."""
        for message in messages:
            key, value = message if isinstance(message, tuple) else (None, message)
            more = {"timestamp": at_ms} if at_ms else {}
            self._producer.produce(topic, key=_bytes(key), value=_bytes(value), partition=partition, **more)
        assert self._producer.flush(60) == 0


def _bytes(given: Any) -> bytes | None:
    return given if given is None or isinstance(given, bytes) else json.dumps(given).encode()


@contextmanager
def registry(schemas: Mapping[int, Any], password: str | None = None) -> Iterator[str]:
    """Yield the address of a registry with schemas by number."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            number = int(self.path.rpartition("/")[2])
            is_in = password is None or "Authorization" in self.headers
            found = schemas.get(number)
            code = 401 if not is_in else 404 if found is None else 200
            said = json.dumps({"schema": json.dumps(found)} if code == 200 else {"error_code": code}).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        user = "" if password is None else f"me:{password}@"
        yield f"http://{user}127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert len(asked) == len(set(asked)), "each schema is asked for once"
