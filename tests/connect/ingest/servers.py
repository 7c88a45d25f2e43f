"""A real Postgres for tests: Debian's, wherever its programs are; it listens on a socket in a folder of its own."""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def postgres_programs() -> Path | None:
    """Return the folder with initdb and postgres, or None where there is no server."""
    folders = [Path(os.path.realpath(found)).parent for found in [shutil.which("initdb")] if found]
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((folder for folder in folders if (folder / "initdb").exists() and (folder / "postgres").exists()), None)


class Server:
    """A server that runs; `url` is where."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self.programs = programs
        self.folder = folder
        self.url = f"postgresql:///postgres?host={folder}&user=postgres"
        self._process: Any = None
        self._user: dict[str, Any] = {}
        if os.getuid() == 0:  # It does not run as root.
            names = [entry.pw_name for entry in pwd.getpwall()]
            self._user = {
                "user": "postgres" if "postgres" in names else "nobody",
                "group": "nogroup",
                "extra_groups": [],
            }

    def make(self) -> None:
        """Make the database."""
        if self._user:
            shutil.chown(self.folder, self._user["user"])
        arguments = ["-D", str(self.folder / "data"), "-U", "postgres", "-A", "trust", "-N", "-E", "UTF8"]
        subprocess.run(
            [str(self.programs / "initdb"), *arguments], check=True, capture_output=True, cwd="/", **self._user
        )

    def start(self) -> None:
        """Start it, and wait until it answers."""
        options = {"wal_level": "logical", "listen_addresses": "", "unix_socket_directories": str(self.folder)}
        options |= {"fsync": "off", "max_wal_senders": "20", "max_replication_slots": "20"}
        command = [str(self.programs / "postgres"), "-D", str(self.folder / "data")]
        for name, value in options.items():
            command += ["-c", f"{name}={value}"]
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/", **self._user
        )
        ready = [str(self.programs / "pg_isready"), "-q", "-h", str(self.folder)]
        while subprocess.run(ready).returncode:
            assert self._process.poll() is None, "the server ended"

    def stop(self) -> None:
        """Stop it at once, as a crash would."""
        if self._process is not None:
            self._process.send_signal(3)
            self._process.wait()
            self._process = None


class Database:
    """A database of its own on a server, and the location that flows in or out of it."""

    def __init__(self, server: Server, name: str, location: str) -> None:
        import psycopg2

        self.location = location
        admin = psycopg2.connect(server.url)
        admin.autocommit = True
        admin.cursor().execute(f"CREATE DATABASE {name}")
        admin.close()
        self.url = server.url.replace("/postgres?", f"/{name}?")
        self.connection = psycopg2.connect(self.url)
        self.connection.autocommit = True

    def run(self, *statements: str) -> None:
        """Run statements, as one transaction."""
        self.connection.cursor().execute("; ".join(statements))

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Return what a query gives."""
        cursor = self.connection.cursor()
        cursor.execute(query)
        found: list[tuple[Any, ...]] = cursor.fetchall()
        return found


@contextmanager
def running() -> Iterator[Server]:
    """Run a server in a folder of its own."""
    programs = postgres_programs()
    assert programs is not None
    folder = Path(tempfile.mkdtemp(prefix="pg-"))  # Short, because the path of a socket may not be long.
    server = Server(programs, folder)
    try:
        server.make()
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
