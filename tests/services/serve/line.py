"""A line between a client and a server that a test can cut at a moment of its choice."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from persist.services.serve.messages import parse_address


class Line:
    """Passes bytes on between whoever connects to `url` and the server behind it, until it is cut."""

    def __init__(self, server_url: str) -> None:
        self.lead_to(server_url)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"grpc://127.0.0.1:{self._listening.getsockname()[1]}"
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._is_cut = False
        self._flows = threading.Event()
        self._flows.set()
        self._start(self._accept)

    def lead_to(self, server_url: str) -> None:
        """Let connections from now on lead to another server."""
        address = parse_address(server_url)
        self._target = (address.host, address.port)

    def stall(self) -> None:
        """Hold back all bytes until `resume`."""
        self._flows.clear()

    def resume(self) -> None:
        """Let what was held back go on."""
        self._flows.set()

    def interrupt(self) -> None:
        """Break all connections there are; the next ones get through."""
        with self._lock:
            for each in self._open:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
            self._open = []

    def cut(self) -> None:
        """Let nothing through any more, in either direction, and no new connection; idempotent."""
        self.resume()
        with self._lock:
            self._is_cut = True
            for each in (self._listening, *self._open):
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
                each.close()

    def close(self) -> None:
        self.cut()
        for thread in self._threads:
            thread.join()

    def _start(self, do: object, *arguments: object) -> None:
        thread = threading.Thread(target=do, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                here, _ = self._listening.accept()
                try:
                    there = socket.create_connection(self._target)
                except OSError:  # There is no server now.
                    here.close()
                    continue
                with self._lock:
                    self._open += (here, there)
                    if self._is_cut:
                        here.close()
                        there.close()
                        return
                    self._start(self._pass_on, here, there)
                    self._start(self._pass_on, there, here)

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self._flows.wait()
                target.sendall(data)
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


@contextmanager
def line_to(server_url: str) -> Iterator[Line]:
    """Make a line, and close it afterwards."""
    line = Line(server_url)
    try:
        yield line
    finally:
        line.close()
