"""A location with a few collections, and a server of Postgres clients over it."""

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

import persist
from persist.api.serving import Servers

ITEMS = pa.table(
    {
        "k": pa.array([1, 2], pa.int64()),
        "price": pa.array([Decimal("12.30"), None], pa.decimal128(10, 2)),
        "moment": pa.array([datetime(2026, 1, 1, 12, 0, 0, 120_000, UTC), None], pa.timestamp("us", "UTC")),
        "codes": pa.array([[1, 2], None], pa.list_(pa.int64())),
        "raw": pa.array([b"\x00\xff", None], pa.binary()),
        "day": pa.array([date(2026, 1, 2), None], pa.date32()),
    }
)
ORDERS = [{"id": 1, "status": "new", "amount": 9.5}, {"id": 2, "status": "paid", "amount": 1.25}]


@contextmanager
def a_server(**options: Any) -> Iterator[tuple[persist.Client, Servers]]:
    """Yield a client of a location with `orders`, `shop.items` and the keyed `users`, and the server."""
    with persist.open(persist.MemoryBlob()) as client:
        client.write("orders", ORDERS, key=["id"])
        client.write("shop.items", ITEMS, key=["k"])
        users = client.create_or_load("users", key={"id": int}, value={"name": str}, keyed=persist.Keyed())
        users.upsert([(1, "ann"), (2, "bob")]).result()
        with client.serve(postgres="127.0.0.1:0", **options) as servers:
            yield client, servers


def port_of(servers: Servers) -> int:
    """Return the port of the server."""
    return int(servers.postgres_url.rpartition(":")[2].partition("/")[0])


class Raw:
    """A connection that sends any bytes."""

    def __init__(self, servers: Servers, startup: bytes | None = None) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port_of(servers)))
        self.socket.settimeout(60)
        if startup is not None:
            self.socket.sendall(startup)

    def message(self, kind: bytes, body: bytes = b"") -> None:
        """Send a message."""
        self.socket.sendall(kind + struct.pack("!i", len(body) + 4) + body)

    def read(self) -> bytes:
        """Return all that the server sends until it closes the connection."""
        data = bytearray()
        with self.socket, suppress(ConnectionError):
            while piece := self.socket.recv(1 << 16):
                data += piece
        return bytes(data)

    def read_until(self, kind: bytes) -> list[tuple[bytes, bytes]]:
        """Return the messages up to one of a kind."""
        messages: list[tuple[bytes, bytes]] = []
        while not messages or messages[-1][0] != kind:
            head = self._exactly(5)
            messages.append((head[:1], self._exactly(int.from_bytes(head[1:], "big") - 4)))
        return messages

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = self.socket.recv(count - len(data))
            assert piece, "the server has closed the connection"
            data += piece
        return data

    def close(self) -> None:
        self.socket.close()


def startup(user: str = "me", **options: str) -> bytes:
    """Return a first message."""
    pairs = {"user": user, "database": "latest", **options}
    body = struct.pack("!i", 3 << 16) + b"".join(f"{name}\0{value}\0".encode() for name, value in pairs.items()) + b"\0"
    return struct.pack("!i", len(body) + 4) + body
