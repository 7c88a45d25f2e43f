"""A real MariaDB for tests: Debian's, if it is installed; it listens on a socket in a folder of its own."""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


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
    """A server that runs; `url` is where."""

    def __init__(self, folder: Path, number: int = 1, **options: str) -> None:
        self.folder = folder
        self.number = number
        self.socket = str(folder / "socket")
        self.url = f"mysql://root@localhost/shop?unix_socket={self.socket}"
        self._options = options
        self._process: Any = None
        programs = mariadb_programs()
        assert programs is not None
        self._server, self._install = programs

    def make(self) -> None:
        """Make the databases of the server."""
        arguments = [f"--datadir={self.folder / 'data'}", "--auth-root-authentication-method=normal", "--skip-test-db"]
        subprocess.run([self._install, "--no-defaults", "--user=root", *arguments], check=True, capture_output=True)

    def start(self) -> None:
        """Start it, and wait until it answers."""
        options = {
            "datadir": str(self.folder / "data"), "socket": self.socket, "pid-file": str(self.folder / "pid"),
            "server-id": str(self.number), "log-bin": "binlog", "binlog-format": "ROW", "binlog-row-metadata": "FULL",
            "innodb-flush-log-at-trx-commit": "0", "innodb-buffer-pool-size": "16M", "log-slave-updates": "ON",
            "gtid-strict-mode": "ON", **self._options,
        }  # fmt: skip
        arguments = [f"--{name}={value}" for name, value in options.items()]
        self._process = subprocess.Popen(
            [self._server, "--no-defaults", "--user=root", "--skip-networking", *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        while True:
            assert self._process.poll() is None, "the server ended"
            with suppress(OSError), socket.socket(socket.AF_UNIX) as asked:
                asked.connect(self.socket)
                return
            time.sleep(0.05)  # It tells nobody when it is ready.

    def stop(self) -> None:
        """Stop it at once, as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def open_connection(self, database: str | None = None) -> Any:
        """Return a connection."""
        import pymysql

        return pymysql.connect(unix_socket=self.socket, user="root", database=database, autocommit=True)


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
