"""Databases of DuckDB in memory, each lent to one borrower at a time.

Opening one takes some 40 ms of processor time, which is more than a small query. So the process keeps a few idle ones.
`lend_database` takes an idle database with the same settings, or opens one, and connects to it. At the end, a database
that is still empty becomes idle, and any other is closed.

A closed connection takes its registered tables and temporary macros with it. Schemas, catalogs and functions stay in
the database, and so do settings that some table functions change. So the borrower sets `is_empty` only if it made none
of them, and its text calls no table function (`cannot_change_database`).

Invariant: an idle database is empty and has no connection. A forked process leaves its parent's databases alone,
because it does not have their threads.
"""

import os
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from persist.codecs.types.calculator import get_calculator
from persist.compute.query.tables import DUCKDB, SEALED_OFF, WITH_FILES, list_words
from persist.core.errors import InvalidUsage
from persist.engine.read.results.result import require_package

MEMORY_BYTES_MIN = 16 << 20
IDLE_MAX = 2  # With the same settings.


@dataclass(frozen=True, slots=True)
class QueryLimits:
    """The limits of a query by a client of a server.

    Attributes:
        memory_bytes: how much memory DuckDB may use. Nothing is spilled to disk.
        timeout_s: the longest time from the request for the first row to the last row.
        rows_max: the most rows of the answer.
    """

    memory_bytes: int = 1 << 30
    timeout_s: float = 300.0
    rows_max: int = 100_000_000

    def __post_init__(self) -> None:
        for name, value, least in (
            ("memory_bytes", self.memory_bytes, MEMORY_BYTES_MIN),
            ("timeout_s", self.timeout_s, 0.001),
            ("rows_max", self.rows_max, 1),
        ):
            kinds = (int, float) if name == "timeout_s" else (int,)
            if isinstance(value, bool) or not isinstance(value, kinds) or not least <= value < 2**62:
                raise InvalidUsage(f"QueryLimits({name}={value!r}) is not a number of at least {least:,}")


@dataclass(frozen=True, slots=True)
class _Settings:
    """The settings of a database. A limit of memory also forbids spills and files."""

    reads_files: bool
    memory_bytes: int | None

    def open_database(self) -> Any:
        """Return a new database."""
        duckdb = require_package(DUCKDB)
        reads_files = self.reads_files and self.memory_bytes is None
        config = dict(WITH_FILES if reads_files else SEALED_OFF)
        if self.memory_bytes is not None:
            config |= {"memory_limit": f"{self.memory_bytes // 1024}KiB", "temp_directory": ""}
        database = duckdb.connect(config=config)
        database.execute("SET GLOBAL TimeZone = 'UTC'")  # As in views; otherwise it is the machine's.
        if not reads_files:
            database.execute("SET lock_configuration = true")
        return database


class LentDatabase:
    """A connection to a database that is lent to one borrower.

    Attributes:
        connection: the connection of DuckDB.
        is_empty: whether the borrower leaves nothing in the database. The borrower sets it.
    """

    def __init__(self, settings: _Settings) -> None:
        self._kind = os.getpid(), settings
        self._database = _take_idle_database(self._kind) or settings.open_database()
        self.connection = self._database.cursor()
        self.is_empty = False

    def close(self) -> None:
        """Give the database back; idempotent."""
        database, self._database = self._database, None
        if database is None:
            return
        self.connection.close()
        idle = _idle[self._kind]
        if (self.is_empty and len(idle) < IDLE_MAX) or self._kind[0] != os.getpid():
            idle.append(database)  # To close one of a parent would wait for threads that a fork does not copy.
        else:
            database.close()


def open_database(limits: QueryLimits) -> Any:
    """Return a connection to an empty database that reads no files; the caller closes it."""
    return _Settings(False, limits.memory_bytes).open_database()


@contextmanager
def lend_database(*, reads_files: bool = False, limits: QueryLimits | None = None) -> Iterator[LentDatabase]:
    """Context that lends a database of DuckDB, and takes it back at the end.

    Args:
        reads_files: whether queries may read files and URLs, for which DuckDB may load extensions.
        limits: of queries by clients of a server; None for queries of this process.
    """
    lent = LentDatabase(_Settings(reads_files and limits is None, None if limits is None else limits.memory_bytes))
    try:
        yield lent
    finally:
        lent.close()


_HARMLESS = {"generate_series", "range", "unnest"}


@cache
def _list_table_functions() -> frozenset[str]:
    """Return the names of DuckDB's table functions that may change a database."""
    names = "SELECT lower(function_name) FROM duckdb_functions() WHERE function_type NOT IN ('scalar', 'aggregate')"
    with get_calculator().cursor() as connection:
        return frozenset(name for (name,) in connection.execute(names).fetchall()) - _HARMLESS


def cannot_change_database(sql: str) -> bool:
    """Return whether a text surely calls no table function that may change a database."""
    return _list_table_functions().isdisjoint(map(str.lower, list_words(sql)))


# By process and settings. Each operation on a deque is atomic, so no lock can be in use at a fork.
_idle: defaultdict[tuple[int, _Settings], deque[Any]] = defaultdict(deque)


def _take_idle_database(kind: tuple[int, _Settings]) -> Any:
    """Return an idle database with these settings, which is idle no more; None without one."""
    try:
        return _idle[kind].pop()
    except IndexError:
        return None
