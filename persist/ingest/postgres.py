"""Postgres, by logical replication: each transaction is a time, the position of its commit in the server's log.

The first contents are those at the point at which the replication slot was made. Then come transactions. `upper` is
where to go on, and the server is told only what is durable. Tables with a key become keyed collections. Tables without
one, which send their old rows (REPLICA IDENTITY FULL), become collections that count equal rows.
"""

import json
import logging
import re
from collections.abc import Generator, Sequence

from persist.blob import Backoff
from persist.client import Client
from persist.collection import Collection
from persist.errors import InvalidUsage, Unavailable
from persist.ingest.copied import Copied, Copy
from persist.ingest.pg_address import one_line
from persist.ingest.pg_copy import SLOT_CHARS_MAX, PgCopy, SlotInUse
from persist.ingest.pg_database import Database, PostgresConfig, Published
from persist.ingest.pg_stream import COLUMNS, Stream
from persist.ingest.source import SOURCE, Batch, Run, Target

logger = logging.getLogger(__name__)
RETRY_S = 600.0
UNDEFINED = "42704"  # A code of the server.


class Postgres:
    """A source of a publication's tables."""

    def __init__(self, config: PostgresConfig) -> None:
        self._database = Database(config)
        self.config = config
        self.name = self._database.name
        self._tables: dict[str, Published] = {}
        self._slot = config.slot or ""
        self.moments = f"{config.prefix}{config.slot or config.publication}.transactions"

    def targets(self, client: Client) -> Sequence[Target]:
        """Return a collection for each table. What a copy has left that cannot go on is dropped."""
        connection = self._database.connected()
        try:
            self._tables = {self._collection_of(table): table for table in self._database.published(connection)}
        finally:
            connection.close()
        for name, table in self._tables.items():
            if name in client and client.load(name).upper.time == 0:
                collection = client.load(name)
                if collection.about.properties.get(SOURCE) == self.name and not self._can_go_on(collection, table):
                    collection.drop().result()
        return [self._target(name, table) for name, table in self._tables.items()]

    def batches(self, run: Run) -> Generator[Batch]:
        """Yield contents that are not there yet, and then transactions. A lost connection is made anew."""
        self._slot = self._slot or self._slot_of(run)
        tries: Backoff | None = None
        while not run.stop.is_set():
            try:
                if not all(run.uppers[name] for name in self._tables):
                    server = PgCopy(self._database, self._tables, self._slot)
                    for batch in Copy(server, [*self._tables], run).batches():
                        yield batch
                        tries = None
                        if run.stop.is_set():
                            return
                for batch in Stream(self._database, self._tables, self._slot, run).batches():
                    yield batch
                    tries = None
                return
            except (self._database.library.Error, Unavailable) as error:
                if getattr(error, "pgcode", None) == UNDEFINED and "publication" in str(error):
                    drops = "; ".join(f"persist drop LOCATION {name}" for name in run.collections)
                    raise InvalidUsage(
                        f"{self.name}: the publication was made anew, and changes of before that cannot be read: "
                        f"{one_line(error)}. To copy the tables again: {drops}; and give the same command again"
                    ) from None
                if not self._database.is_lost(error):
                    raise InvalidUsage(f"{self.name} refuses: {one_line(error)}") from None
                problem = error if isinstance(error, Unavailable) else self._database.unavailable(error)
                if run.once and not isinstance(error, SlotInUse):
                    raise problem from None
                tries = tries or Backoff(run.client.engine.clock, RETRY_S, first_s=0.2, bound_max_s=5.0)
                if not tries.wait():
                    raise problem from None
                run.failed(problem)

    def close(self) -> None:
        """Do nothing: connections are closed where they are made."""

    def _collection_of(self, table: Published) -> str:
        return self.config.prefix + table.full_name

    def _target(self, name: str, table: Published) -> Target:
        types = self._database.types(table.full_name, table.columns)
        key = {column: types.pop(column) for column in table.key}
        properties = {COLUMNS: json.dumps(dict(table.numbers))}
        return Target(name, key, types, bool(key), None, f"the table {table.full_name}", properties)

    def _slot_of(self, run: Run) -> str:
        location = run.client.engine.follower.state.location
        assert location is not None, "its collections are there"
        name = f"persist_{location[:12]}_{self.config.publication}".lower()
        return re.sub(r"[^a-z0-9_]", "_", name)[:SLOT_CHARS_MAX]

    def _can_go_on(self, collection: Collection, table: Published) -> bool:
        """Return whether the copy of a table can go on with what it has left."""
        copied = Copied.of(collection)
        have = {name: collection.schema.arrow.field(name).type for name in collection.schema.names}
        is_same = have == self._database.types(table.full_name, table.columns)
        return copied is not None and is_same and (bool(table.key) or copied.is_done)
