"""A MariaDB for tests: Debian's, if it is installed, and otherwise what it answered when the tests were recorded.

The recording has each request of a test with the answers, also the bytes of the log. A test that asks for something
else than when it was recorded fails, and names the request. Where MariaDB is installed, tests use it, and
`PERSIST_RECORD=yes pytest tests/connect/ingest/test_mysql.py` records them again.
"""

import lzma
import os
import re
import select
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

TAPES = Path(__file__).with_name("mariadb_tapes.xz")
QUIT, DUMP, REGISTER = b"\x01", b"\x12", b"\x15"  # Commands. The latter two have a random number of the client.
Tape = list[list[bytes]]  # Requests with their answers, in order.


def mariadb_programs() -> tuple[str, str] | None:
    """Return mariadbd and mariadb-install-db, or None where there is no server or no client library for it."""
    folders = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
    server, install = (shutil.which(name, path=folders) for name in ("mariadbd", "mariadb-install-db"))
    try:
        import pymysqlreplication  # noqa: F401
    except ImportError:
        return None
    return (server, install) if server and install else None


class MariaDb:
    """A server that runs, or a recording of one; `url` is where."""

    def __init__(self, folder: Path, number: int = 1, **options: str) -> None:
        self.folder = folder
        self.number = number
        self.socket = str(folder / "socket")
        self.url = f"mysql://root@localhost/shop?unix_socket={self.socket}"
        self._options = options
        self._process: Any = None
        self._programs = mariadb_programs()
        self._tape: Tape = []
        self._recorded: Tape = []
        self._listening = socket.socket(socket.AF_UNIX)

    def make(self) -> None:
        """Make the databases of the server."""
        if self._programs is not None:
            arguments = [
                f"--datadir={self.folder / 'data'}",
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
            ]
            command = [self._programs[1], "--no-defaults", "--user=root", *arguments]
            subprocess.run(command, check=True, capture_output=True)

    def start(self) -> None:
        """Start it, and wait until it answers."""
        if self._programs is None:
            self._listen(self.socket)
            return
        server_socket = str(self.folder / "server") if is_recording() else self.socket
        options = {
            "datadir": str(self.folder / "data"), "socket": server_socket, "pid-file": str(self.folder / "pid"),
            "server-id": str(self.number), "log-bin": "binlog", "binlog-format": "ROW", "binlog-row-metadata": "FULL",
            "innodb-flush-log-at-trx-commit": "0", "innodb-buffer-pool-size": "16M", "log-slave-updates": "ON",
            "gtid-strict-mode": "ON", **self._options,
        }  # fmt: skip
        arguments = [f"--{name}={value}" for name, value in options.items()]
        self._process = subprocess.Popen(
            [self._programs[0], "--no-defaults", "--user=root", "--skip-networking", *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        while True:
            assert self._process.poll() is None, "the server ended"
            with suppress(OSError), socket.socket(socket.AF_UNIX) as asked:
                asked.connect(server_socket)
                break
            time.sleep(0.05)  # It tells nobody when it is ready.
        if is_recording():
            self._listen(self.socket, server_socket)

    def stop(self) -> None:
        """Stop it at once, as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        self._listening.close()

    def open_connection(self, database: str | None = None) -> Any:
        """Return a connection."""
        import pymysql

        return pymysql.connect(unix_socket=self.socket, user="root", database=database, autocommit=True)

    @contextmanager
    def use_tape(self, test: str) -> Iterator[None]:
        """Record what a test asks, or answer it as recorded."""
        name = f"{test} {self.number}"
        self._tape, self._recorded = [], load_tapes().get(name, [])
        yield
        if is_recording():
            answered = [entry for entry in self._tape if entry[1]]  # A connection may be cut off before its answer.
            TAPES.write_bytes(lzma.compress(msgspec.msgpack.encode(load_tapes() | {name: answered}), preset=9))

    def _listen(self, path: str, server: str = "") -> None:
        self._listening.bind(path)
        self._listening.listen()

        def accept() -> None:
            with suppress(OSError):  # It was closed.
                while True:
                    client, _ = self._listening.accept()
                    serve = (self._record, client, server) if server else (self._replay, client)
                    threading.Thread(target=serve[0], args=serve[1:], daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()

    def _record(self, client: socket.socket, path: str) -> None:
        """Pass on the bytes of a connection, and note them."""
        tape, entry = self._tape, [b"greeting", b""]
        tape.append(entry)
        with client, socket.socket(socket.AF_UNIX) as server, suppress(OSError):
            server.connect(path)
            while True:
                source = select.select([client, server], [], [])[0][0]
                if not (content := source.recv(1 << 20)):
                    return
                if source is client:
                    entry = [b"login" if entry[0] == b"greeting" else self._name_request(content[4:]), b""]
                    tape.append(entry)
                else:
                    entry[1] += content
                (server if source is client else client).sendall(content)

    def _replay(self, client: socket.socket) -> None:
        """Answer the requests of a connection as recorded."""
        with client, client.makefile("rb") as requests, suppress(OSError):
            request = b"greeting"
            while request != QUIT:
                client.sendall(self._find_answer(request))
                if not (header := requests.read(4)):
                    return
                content = requests.read(int.from_bytes(header[:3], "little"))
                request = b"login" if request == b"greeting" else self._name_request(content)

    def _name_request(self, request: bytes) -> bytes:
        """Return a request without what differs in each run; one for the log has from where to where it is read."""
        if request[:1] == DUMP:
            starts = [asked for asked, _ in self._tape if b"@slave_connect_state" in asked]
            ends = [answer for asked, answer in self._tape if asked.endswith(b"@@global.gtid_binlog_pos")]
            return b" ".join([DUMP, starts[-1], ends[-1]])
        return REGISTER if request[:1] == REGISTER else re.sub(rb"'/[^']*/", b"'/", request)

    def _find_answer(self, request: bytes) -> bytes:
        """Return the next recorded answer to a request, or an error of the server."""
        found = [at for at, (asked, _) in enumerate(self._recorded) if asked == request]
        content = b"\xff\x51\x04#HY000This was not recorded: " + request
        answer = len(content).to_bytes(3, "little") + b"\x01" + content
        if found:
            answer = (self._recorded[found[0]] if len(found) == 1 else self._recorded.pop(found[0]))[1]
        self._tape.append([request, answer])
        return answer


def is_recording() -> bool:
    return bool(os.environ.get("PERSIST_RECORD"))


def load_tapes() -> dict[str, Tape]:
    """Return the recorded tests by names."""
    return msgspec.msgpack.decode(lzma.decompress(TAPES.read_bytes()), type=dict[str, Tape]) if TAPES.exists() else {}


@contextmanager
def running(number: int = 1, **options: str) -> Iterator[MariaDb]:
    """Run a server in a folder of its own."""
    folder = Path(tempfile.mkdtemp(prefix="my-"))
    server = MariaDb(folder, number, **options)
    try:
        server.make()
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
