"""A database that a location flows into, and a sink of it that is cut off at any statement."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import persist
from persist.connect.egress.postgres import PostgresConfig, PostgresSink
from tests.connect.ingest.servers import Database


class Target(Database):
    """A database, and the location whose collections it gets."""

    def config(self, *collections: str, **options: Any) -> dict[str, Any]:
        return {"sink": self.url, "collections": [*collections], "name": "warehouse", **options}

    def egress(self, *collections: str, location: Any = None, **options: Any) -> Any:
        return persist.egress(location or self.location, self.config(*collections, **options), once=True)

    def cut_off(self, statement: int, *collections: str, **options: Any) -> "CutOff":
        return CutOff(self, statement, PostgresConfig(**self.config(*collections, **options)))


class CutOff(PostgresSink):
    """A sink whose server process ends before a statement, or, if there are no more statements, before a commit.

    Attributes:
        left: how many statements are left until then.
    """

    def __init__(self, target: Target, statement: int, config: PostgresConfig) -> None:
        super().__init__(config)
        self.target = target
        self.left = statement

    @contextmanager
    def _open_transaction(self, what: str) -> Iterator[Any]:
        with super()._open_transaction(what) as cursor:
            yield _Cursor(self, cursor)
            self.count(cursor)

    def count(self, cursor: Any) -> None:
        self.left -= 1
        if self.left == 0:
            [[pid]] = [(cursor.connection.info.backend_pid,)]
            self.target.rows(f"SELECT pg_terminate_backend({pid}, 10000)")


class _Cursor:
    def __init__(self, sink: CutOff, cursor: Any) -> None:
        self._sink = sink
        self._cursor = cursor

    def execute(self, *arguments: Any) -> None:
        self._sink.count(self._cursor)
        self._cursor.execute(*arguments)

    def copy_expert(self, *arguments: Any) -> None:
        self._sink.count(self._cursor)
        self._cursor.copy_expert(*arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)
