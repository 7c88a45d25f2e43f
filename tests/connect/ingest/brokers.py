"""Brokers for tests: the mock cluster of the client library, which listens on loopback; and a registry of schemas."""

import ctypes
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.support.stepped import WAIT_S

PARTITIONS = 4  # Of topics that the mock cluster makes by itself.


class Cluster:
    """A cluster with one broker at `address`."""

    def __init__(self) -> None:
        from confluent_kafka import Producer

        self._producer = Producer({"bootstrap.servers": "", "test.mock.num.brokers": 1, "log_level": 0})
        broker = next(iter(self._producer.list_topics(timeout=WAIT_S).brokers.values()))
        self.address = f"{broker.host}:{broker.port}"

    def send(self, topic: str, *messages: Any, partition: int = 0, at_ms: int = 0) -> None:
        """Send values, or pairs of key and value; what is neither bytes nor None is sent as JSON."""
        for message in messages:
            key, value = message if isinstance(message, tuple) else (None, message)
            more = {"timestamp": at_ms} if at_ms else {}
            self._producer.produce(topic, key=_bytes(key), value=_bytes(value), partition=partition, **more)
        assert self._producer.flush(60) == 0


class FragileCluster(Cluster):
    """A cluster whose broker goes away and comes back; only the C interface of the library has that."""

    def __init__(self) -> None:
        import confluent_kafka

        folder = Path(confluent_kafka.__file__).parent.parent / "confluent_kafka.libs"
        self._library = ctypes.CDLL(str(next(folder.glob("librdkafka*"))))
        self._library.rd_kafka_conf_new.restype = ctypes.c_void_p
        self._library.rd_kafka_new.restype = ctypes.c_void_p
        self._library.rd_kafka_new.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]
        self._library.rd_kafka_mock_cluster_new.restype = ctypes.c_void_p
        self._library.rd_kafka_mock_cluster_new.argtypes = [ctypes.c_void_p, ctypes.c_int]
        self._library.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
        for name in ("mock_cluster_bootstraps", "mock_cluster_destroy", "destroy"):
            getattr(self._library, f"rd_kafka_{name}").argtypes = [ctypes.c_void_p]
        for name in ("up", "down"):
            getattr(self._library, f"rd_kafka_mock_broker_set_{name}").argtypes = [ctypes.c_void_p, ctypes.c_int32]
        self._client = self._library.rd_kafka_new(0, self._library.rd_kafka_conf_new(), None, 0)
        self._cluster = self._library.rd_kafka_mock_cluster_new(self._client, 1)
        self.address = self._library.rd_kafka_mock_cluster_bootstraps(self._cluster).decode()
        self._producer = confluent_kafka.Producer({"bootstrap.servers": self.address, "log_level": 0})

    def set_down(self) -> None:
        """Let the broker refuse all connections, and cut those that there are."""
        self._library.rd_kafka_mock_broker_set_down(self._cluster, 1)

    def set_up(self) -> None:
        """Let the broker answer again."""
        self._library.rd_kafka_mock_broker_set_up(self._cluster, 1)

    def close(self) -> None:
        """End it."""
        del self._producer
        self._library.rd_kafka_mock_cluster_destroy(self._cluster)
        self._library.rd_kafka_destroy(self._client)


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
