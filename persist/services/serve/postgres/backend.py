"""The location behind all sessions of a server: its queries, its catalog, and its subscriptions."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from persist.codecs.types.schema import TIME_MAX
from persist.compute.query import ServedSql
from persist.core.errors import InvalidUsage
from persist.core.timeline import Timeline, parse_time, parse_time_word, starts_with_date
from persist.services.serve.postgres.catalog import Catalog
from persist.services.serve.postgres.settings import AS_OF, DATABASES, Settings
from persist.services.serve.postgres.statements import Subscribe
from persist.services.serve.postgres.values import describe_listed_column
from persist.services.serve.postgres.wire import Column, Failure

_SECONDS = Timeline("s")  # Any unit tells whether a text is a moment.


class Backend:
    """Answers the statements of sessions; for any thread. `url` is shown in no error."""

    def __init__(self, url: str, load: Callable[[str], Any], queries: ServedSql) -> None:
        self.url = url
        self.queries = queries
        self._load = load
        self._catalog = Catalog(queries.empty_database)

    def close(self) -> None:
        """Close the catalog; idempotent."""
        self._catalog.close()

    def check_database(self, database: str, user: str) -> None:
        """Raise Failure if a database is not a time of the location."""
        catalogs = self.queries.list_catalogs()
        if database in (*DATABASES, user, *catalogs):
            return
        if len(database) > 1 and database.startswith("@"):
            self.check_time(database)
            return
        examples = ", ".join(catalogs[:20])
        raise Failure(
            "3D000",
            f'there is no database "{database}": a database is a time, such as {examples}, or "@2026-11-23T12:00Z"',
        )

    def check_time(self, as_of: str) -> None:
        """Raise Failure if a text is neither a number, a moment, a word for a time nor the tag of a collection."""
        bare = as_of.strip().removeprefix("@")
        if bare in (catalogs := self.queries.list_catalogs()):
            return
        why = "it is not a time"
        try:
            time = parse_time(bare, _SECONDS)
            if starts_with_date(bare) and time is bare:
                time = _SECONDS.to_time(bare)
            if (isinstance(time, int) and time <= TIME_MAX) or parse_time_word(bare, 0) is not None:
                return
        except InvalidUsage as error:
            why = str(error)
        raise Failure(
            "22023",
            f'{AS_OF} = "{as_of:.60}": {why}',
            'Give a number, a moment such as "2026-11-23T12:00Z", "now", "yesterday", "-1d", or one of '
            f"{', '.join(catalogs[:20])}.",
        )

    def answer_catalog_query(
        self, sql: str, session: Settings, running: Callable[[Callable[[], None]], None]
    ) -> pa.Table | None:
        """Return the answer of a query of Postgres's catalogs; None if it reads something else."""
        with self.queries.wait_for_turn():
            return self._catalog.answer(sql, self.queries.list_tables(), session, running)

    def list_columns(self, sql: str) -> Mapping[str, Sequence[Column]]:
        """Return the columns of the collections that a statement may name, by their names."""
        text = sql.lower()
        tables = [about for about in self.queries.list_tables() if about.table.lower() in text]
        return {about.name: [*map(describe_listed_column, about.columns)] for about in tables}

    def listen(self, subscribe: Subscribe) -> tuple[Any, int | None, pa.Schema]:
        """Return the listen of a SUBSCRIBE, the time at which it ends, and the columns.

        Raises CollectionNotFound: there is none.
        """
        collection = self._load(subscribe.name.removeprefix("main."))
        handle = collection.handle
        as_of = None if subscribe.as_of is None else handle.as_time("as_of", _time(subscribe.as_of))
        end = None if subscribe.up_to is None else handle.as_time("until", _time(subscribe.up_to))
        schema = pa.schema([collection.schema.arrow.field(column) for column in collection.schema.columns])
        listen = (
            collection.subscribe(as_of, times="int", timeout_s=0.0)
            if subscribe.snapshot
            else collection.listen(as_of, times="int")
        )
        return listen, end, schema


def _time(text: str) -> int | str:
    """Return a time as a number if its text has only digits."""
    return int(text) if text.isdecimal() else text
