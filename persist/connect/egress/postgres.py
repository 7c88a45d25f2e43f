"""Postgres as a sink: the rows and positions of a step are one transaction.

The positions are in the table `persist_positions`, beside the tables. A step locks the row of a collection there, and
checks that the step begins at this position. If the outcome of a commit is unknown, this row shows it.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import msgspec
import xxhash

from persist.connect.egress.pg_table import COUNTED, PgTable
from persist.connect.egress.sink import Leaving, Piece, Reached, Standing, build_sink_name, make_moved_error
from persist.connect.ingest.postgres.database import PgAddress, to_line
from persist.connect.ingest.source import PositiveInt
from persist.core.errors import InvalidUsage, TargetUnavailable, Unavailable

POSITIONS = "persist_positions"
NAME_BYTES_MAX = 63


class PostgresConfig(msgspec.Struct, kw_only=True):
    """The options of a database as a target; `docs/use/egress.md` explains them."""

    sink: str
    collections: list[str]
    tables: dict[str, str] = {}
    schema: str = "public"
    name: str | None = None
    batch_rows: PositiveInt = 100_000


class PostgresSink:
    """A sink of tables."""

    def __init__(self, config: PostgresConfig) -> None:
        self._address = PgAddress(config.sink, "persist egress")
        self.config = config
        self.name = self._address.name
        self.hold = config.name or build_sink_name("postgres", self.name, config.schema)
        self.collections = config.collections
        self.batch_rows = config.batch_rows
        if unknown := {*config.tables} - {*config.collections}:
            raise InvalidUsage(f"tables: {min(unknown)!r} is not one of the collections {config.collections}")
        self._connection: Any = None
        self._location = ""

    def begin(self, location: str, leaving: Sequence[Leaving]) -> Mapping[str, Standing]:
        """Connect, and return the stored positions."""
        for collection in leaving:
            if not collection.is_keyed:
                raise InvalidUsage(
                    f"the collection {collection.name!r} has no key, by which rows of a table are found. {COUNTED}"
                )
        self.close()
        self._location = location
        try:
            self._connection = self._address.open_connection()
        except Unavailable as error:
            raise TargetUnavailable(str(error)) from None
        with self._open_transaction("positions") as cursor:
            cursor.execute("SELECT to_regclass(%s)", (self._positions.as_string(cursor.connection),))
            if cursor.fetchone()[0] is None:
                self._run(
                    cursor,
                    "CREATE TABLE IF NOT EXISTS {positions} (location text, sink text, collection text, name text, "
                    "upper bigint, position text NOT NULL, moved_at timestamptz NOT NULL DEFAULT now(), "
                    "PRIMARY KEY (location, sink, collection))",
                )
            self._run(
                cursor,
                "SELECT collection, position FROM {positions} WHERE location = %s AND sink = %s",
                (location, self.hold),
            )
            positions = cursor.fetchall()
        ids = {collection.id for collection in leaving}
        return {id_: Standing(Reached.of(position, self.name)) for id_, position in positions if id_ in ids}

    def take(self, step: Sequence[Piece]) -> Sequence[Piece]:
        """Apply a step and move its positions in one transaction."""
        with self._open_transaction(", ".join(piece.leaving.name for piece in step)) as cursor:
            for piece in step:
                self._move_position(cursor, piece)
            for piece in step:
                self._apply(cursor, piece)
        return step

    def forget(self, location: str, leaving: Sequence[Leaving]) -> None:
        """Delete the positions and unfinished copies."""
        self.begin(location, ())
        with self._open_transaction("positions") as cursor:
            for collection in leaving:
                values = (location, self.hold, collection.id)
                self._run(cursor, "DELETE FROM {positions} WHERE (location, sink, collection) = (%s, %s, %s)", values)
                copy = self._identifier(self._get_place(collection)[0], self._get_copy_name(collection))
                self._run(cursor, "DROP TABLE IF EXISTS {copy}", copy=copy)

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            with suppress(self._address.library.Error):
                self._connection.close()
            self._connection = None

    def _apply(self, cursor: Any, piece: Piece) -> None:
        """Change a target table by a piece, in the open transaction."""
        table = self._make_table(piece.leaving, piece.schema)
        position, after = piece.before, piece.after
        if position is None:
            table.begin(cursor)
        elif position.stage == "copying":
            table.add(cursor, piece.read())
        elif after.stage == "following" and position.stage == "copied":
            table.replace_table(cursor)
        else:
            assert piece.earlier is not None, "it has the columns of some version"
            if position.schema != after.schema:
                table.evolve(cursor, self._make_table(piece.leaving, piece.earlier))
            table.apply(cursor, piece.read())

    def _move_position(self, cursor: Any, piece: Piece) -> None:
        """Store a collection's new position; raise SinkMoved unless the piece begins at the old one."""
        key = (self._location, self.hold, piece.leaving.id)
        after = (piece.leaving.name, piece.after.upper, piece.after.to_json())
        if piece.before is None:
            self._run(
                cursor,
                "INSERT INTO {positions} (location, sink, collection, name, upper, position) "
                "VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING",
                (*key, *after),
            )
        else:
            self._run(
                cursor,
                "UPDATE {positions} SET name = %s, upper = %s, position = %s, moved_at = now() "
                "WHERE (location, sink, collection) = (%s, %s, %s) AND position = %s",
                (*after, *key, piece.before.to_json()),
            )
        if cursor.rowcount != 1:
            raise make_moved_error(self, piece.leaving.name)

    @contextmanager
    def _open_transaction(self, what: str) -> Iterator[Any]:
        """Yield a cursor of a transaction, which commits unless an error is raised. `what`: for errors."""
        library = self._address.library
        try:
            with self._connection, self._connection.cursor() as cursor:
                yield cursor
        except (library.OperationalError, library.InterfaceError) as error:
            raise TargetUnavailable(str(self._address.make_unavailable(error))) from None
        except library.errors.UniqueViolation as error:
            raise InvalidUsage(
                f"{self.name} refuses a row of {what}: {to_line(error)}. A table has one row for each key. {COUNTED}"
            ) from None
        except library.errors.NotNullViolation as error:
            raise InvalidUsage(
                f"{self.name} refuses a row of {what}: {to_line(error)}. A key of a table cannot be NULL. {COUNTED}"
            ) from None
        except library.Error as error:
            raise InvalidUsage(f"{self.name} refuses {what}: {to_line(error)}. Nothing of this was sent") from None

    @property
    def _positions(self) -> Any:
        """The name of the table of positions, as SQL."""
        return self._identifier(self.config.schema, POSITIONS)

    def _identifier(self, *names: str) -> Any:
        """Return a name, with its schema in front, quoted as SQL."""
        from psycopg2 import sql

        return sql.Identifier(*names)

    def _run(self, cursor: Any, text: str, values: Sequence[Any] = (), **parts: Any) -> None:
        """Run SQL in which {positions} and `parts` are replaced by names."""
        from psycopg2 import sql

        cursor.execute(sql.SQL(text).format(positions=self._positions, **parts), values or None)

    def _make_table(self, leaving: Leaving, schema: Any) -> PgTable:
        """Return the target table of a collection in a version of its schema."""
        return PgTable(leaving, schema, self._get_place(leaving), self._get_copy_name(leaving))

    def _get_place(self, leaving: Leaving) -> tuple[str, str]:
        """Return the schema and name of a collection's table."""
        name = self.config.tables.get(leaving.name, leaving.name)
        schema, dot, table = name.partition(".")
        place = (schema, table) if dot else (self.config.schema, name)
        if not all(0 < len(part.encode()) <= NAME_BYTES_MAX for part in place):
            raise InvalidUsage(
                f"{name!r} is not a name of a table, which has 1 to {NAME_BYTES_MAX} bytes: name one by "
                f'tables = {{ "{leaving.name}" = "…" }}'
            )
        return place

    def _get_copy_name(self, leaving: Leaving) -> str:
        """Return the name of the staging table for contents."""
        where = f"{self._location} {self.hold} {leaving.id}".encode()
        return f"persist_copy_{xxhash.xxh64(where).hexdigest()}"
