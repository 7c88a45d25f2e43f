"""One connection of a client: its socket, with TLS or without, and the messages that wait to be sent."""

import contextlib
import select
import socket
import ssl
import struct
import time

from persist.services.serve.postgres.wire import ProtocolViolation

SEND_BYTES = 64 << 10
MESSAGE_S = 30.0  # How long a message may take from its first byte.


class Connection:
    """Sends and receives messages of one client; for one thread, but for `end`.

    `slow_s`: how long the client may take nothing of its answer.
    """

    def __init__(self, client: socket.socket, slow_s: float) -> None:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._socket = client
        self._slow_s = slow_s
        self._waiting: list[bytes | memoryview] = []
        self._waiting_bytes = 0
        self._deadline_s: float | None = None

    def send(self, *pieces: bytes | memoryview) -> None:
        """Add messages to a buffer, which is sent when it is full."""
        self._waiting += pieces
        self._waiting_bytes += sum(map(len, pieces))
        if self._waiting_bytes >= SEND_BYTES:
            self.flush()

    def flush(self) -> None:
        """Send all buffered messages."""
        pieces, self._waiting, self._waiting_bytes = self._waiting, [], 0
        self._socket.settimeout(self._slow_s)
        small: list[bytes | memoryview] = []
        for piece in pieces:
            if len(piece) < SEND_BYTES:
                small.append(piece)
                continue
            self._socket.sendall(b"".join(small))
            small = []
            self._socket.sendall(piece)
        if small:
            self._socket.sendall(b"".join(small))

    def wait_until(self, after_s: float | None) -> None:
        """Limit the time for receiving, in seconds from now; None for no limit."""
        self._deadline_s = None if after_s is None else time.monotonic() + after_s

    def receive(self, count: int) -> bytes:
        """Return the next `count` bytes from the client.

        Raises:
            TimeoutError: they did not arrive in time.
            EOFError: the client has gone.
        """
        data = bytearray()
        while len(data) < count:
            left_s = None if self._deadline_s is None else max(self._deadline_s - time.monotonic(), 0.001)
            self._socket.settimeout(left_s)
            piece = self._socket.recv(min(count - len(data), 1 << 20))
            if not piece:
                raise EOFError
            data += piece
        return bytes(data)

    def receive_body(self, bytes_max: int) -> bytes:
        """Return the body of a message, which begins with its length. Raises ProtocolViolation if it is too long."""
        (length,) = struct.unpack("!i", self.receive(4))
        if not 4 <= length <= bytes_max:
            raise ProtocolViolation(f"a message has {length:,} bytes, and at most {bytes_max:,} are read")
        return self.receive(length - 4)

    @property
    def has_tls(self) -> bool:
        """Whether the connection is encrypted."""
        return isinstance(self._socket, ssl.SSLSocket)

    def begin_tls(self, context: ssl.SSLContext | None) -> None:
        """Answer a request for TLS, and encrypt the connection if there is a context."""
        self._socket.sendall(b"N" if context is None else b"S")
        if context is None:
            return
        # Bytes from before the handshake must not count as a part of the encrypted connection.
        if select.select([self._socket], [], [], 0)[0] and self._socket.recv(1, socket.MSG_PEEK) != b"\x16":
            raise ProtocolViolation("there are unencrypted bytes after the request for TLS")
        self._socket = context.wrap_socket(self._socket, server_side=True)

    @property
    def is_gone(self) -> bool:
        """Whether the client has closed the connection."""
        try:
            poll = select.poll()
            poll.register(self._socket, select.POLLRDHUP | select.POLLHUP | select.POLLERR)
            return bool(poll.poll(0))
        except (OSError, ValueError):
            return True

    def end(self) -> None:
        """Disconnect, from any thread."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket; idempotent."""
        with contextlib.suppress(OSError):
            self._socket.close()

    def linger(self) -> None:
        """Read some more bytes of the client: with unread bytes at the end, it may not see an error."""
        self._socket.settimeout(0.1)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
            for _ in range(16):
                if not self._socket.recv(1 << 16):
                    return
