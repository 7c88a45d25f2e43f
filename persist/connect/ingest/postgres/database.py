"""A Postgres database as a source: its connections, and the tables of its publication."""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from persist.blob.errors import redact
from persist.connect.ingest.postgres.pgoutput import Column
from persist.connect.ingest.postgres.types import SESSION, TEXT, PgType, TypeCatalog
from persist.connect.ingest.source import PositiveFloat, PositiveInt, SourceBusy
from persist.core.errors import InvalidUsage, Unavailable
from persist.core.rendering import hide_passwords
from persist.engine.read.results.result import require_package


class PgAddress:
    """The server and database of a URL; `name` has no secrets, `library` is psycopg2."""

    def __init__(self, url: str, application: str) -> None:
        """Parse a URL; `application` names our connections on the server."""
        self.library = require_package("psycopg2-binary>=2.9.10")
        self._application = application
        self._dsn = self._parse_url(url)
        port = self._dsn.get("port", "5432")
        at = f"{self._dsn.get('host', '')}{'' if port == '5432' else f':{port}'}"
        self.name = f"postgres://{at}/{self._dsn.get('dbname', '')}"

    def open_connection(self, *, replication: bool = False) -> Any:
        """Connect, and return the connection. `replication`: for the replication protocol.

        Raises Unavailable: the server does not answer, or does not let this user in.
        """
        dsn = {**self._dsn, "application_name": self._application}
        dsn["client_encoding"] = "UTF8"
        host = dsn.get("host") or os.environ.get("PGHOST", "")
        is_near = host in ("", "localhost", "127.0.0.1", "::1") or host.startswith("/")
        if "sslmode" not in dsn and "PGSSLMODE" not in os.environ and not is_near:
            dsn["sslmode"] = "require"
        kind = {}
        if replication:
            from psycopg2.extras import LogicalReplicationConnection

            kind = {"connection_factory": LogicalReplicationConnection}
        try:
            connection = self.library.connect(**dsn, **kind)
            with connection.cursor() as cursor:  # PGTZ and PGDATESTYLE would go before options of the connection.
                cursor.execute(SESSION)
            if not replication:
                connection.commit()
            return connection
        except self.library.Error as error:
            raise self.make_unavailable(error) if self.is_lost(error) else error from None

    def is_lost(self, error: Any) -> bool:
        """Return whether an error means that the server does not answer, and not that it refuses.

        A server that stops during replication sends an error without a code or a class.
        """
        library = self.library
        if isinstance(error, (library.OperationalError, library.InterfaceError, Unavailable)):
            return True
        return bool(type(error) is library.DatabaseError and error.pgcode is None)

    def make_unavailable(self, error: Exception) -> Unavailable:
        """Return the error for a server that does not answer, without passwords."""
        text = redact(hide_passwords(to_line(error)), [self._dsn.get("password", "")])
        return Unavailable(f"{self.name} does not answer: {text}")

    def _parse_url(self, source: str) -> dict[str, Any]:
        """Return the connection settings in a URL."""
        dsn, reason = dict[str, Any](), ""
        try:
            dsn = dict(self.library.extensions.parse_dsn(source))
        except self.library.Error as error:
            reason = to_line(error)
        if source.partition("?")[0].count("@") > ("user" in dsn):  # A part of the password counts as something else.
            reason = "a password in it has %40 for @, %2F for /, and %25 for %"
        if reason:
            raise InvalidUsage(f"{hide_passwords(source)} is not an address of a database: {reason}")
        return dsn


logger = logging.getLogger(__name__)
CLOCK_US = "(extract(epoch FROM clock_timestamp()) * 1000000)::int8"


class PostgresConfig(msgspec.Struct, kw_only=True):
    """The options of a database; `docs/use/ingest-databases.md` explains them.

    Attributes:
        batch_rows: how many changes are collected before a commit, if the server has so many.
        copy_bytes: how many bytes of a table become one commit, while the table is copied at first.
    """

    source: str
    publication: str
    tables: list[str] | None = None
    exclude: list[str] = []
    as_text: list[str] = []
    prefix: str = ""
    slot: str | None = None
    batch_rows: PositiveInt = 20_000
    heartbeat_s: PositiveFloat = 10.0
    copy_bytes: PositiveInt = 8 << 20


class SlotInUse(SourceBusy):
    """Another process reads from the replication slot."""


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A table of a publication, as in the catalog now. `no_key`: why it has no key, or ""."""

    schema: str
    name: str
    identity: str
    columns: tuple[Column, ...]
    numbers: Mapping[str, int]
    filter: str | None
    generated: Mapping[str, str]
    no_key: str

    @property
    def full_name(self) -> str:
        """The name of the table, with its schema unless that is public."""
        return self.name if self.schema == "public" else f"{self.schema}.{self.name}"

    @property
    def key(self) -> list[str]:
        """The names of the columns that identify a row."""
        return [column.name for column in self.columns if column.is_key]


class Database(PgAddress):
    """A database whose publication is ingested: loads its tables, columns and types."""

    def __init__(self, config: PostgresConfig) -> None:
        super().__init__(config.source, "persist ingest")
        self.config = config
        self.name += f" publication {config.publication}"
        self.types = TypeCatalog()

    def load_published(self, connection: Any) -> list[PublishedTable]:
        """Return the requested tables of the publication."""
        config = self.config
        with connection, connection.cursor() as cursor:
            cursor.execute("SELECT 1 FROM pg_publication WHERE pubname = %s", (config.publication,))
            if cursor.fetchone() is None:
                cursor.execute("SELECT pubname FROM pg_publication ORDER BY 1")
                publications = ", ".join(name for (name,) in cursor.fetchall()) or "none"
                raise InvalidUsage(
                    f"{self.name}: there is no such publication (there: {publications}). Make it: CREATE PUBLICATION "
                    f"{config.publication} FOR TABLE …"
                )
            is_15 = connection.server_version >= 150000
            more = "p.attnames::text[], p.rowfilter" if is_15 else "NULL, NULL"
            cursor.execute(
                f"SELECT p.schemaname, p.tablename, c.oid, c.relreplident, {more} FROM pg_publication_tables p "
                "JOIN pg_namespace n ON n.nspname = p.schemaname "
                "JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename "
                "WHERE p.pubname = %s ORDER BY 1, 2",
                (config.publication,),
            )
            tables = [self._load_table(cursor, *row) for row in cursor.fetchall()]
            self.types.load(cursor, (column.type for table in tables for column in table.columns))
        selected = None if config.tables is None else set(config.tables)
        unknown = (selected or set()) - {table.full_name for table in tables}
        if unknown:
            raise InvalidUsage(f"{self.name} has no table {min(unknown)!r}: leave it out of tables, or publish it")
        chosen = [table for table in tables if selected is None or table.full_name in selected]
        if not chosen:
            raise InvalidUsage(f"{self.name} has no tables: ALTER PUBLICATION {config.publication} ADD TABLE …")
        for option in ("exclude", "as_text"):
            self._check_columns(option, chosen)
        for table in chosen:
            self._check_table(table)
        return chosen

    def _check_columns(self, option: str, tables: list[PublishedTable]) -> None:
        """Raise InvalidUsage if an option names a missing column, or excludes a key column."""
        tables_by_column = {f"{t.full_name}.{name}": t for t in tables for name in (*t.numbers, *t.generated)}
        for name in getattr(self.config, option):
            if name not in tables_by_column:
                raise InvalidUsage(f"{option}: {self.name} has no column {name!r}. Write table.column")
            if option == "exclude" and name.rpartition(".")[2] in tables_by_column[name].key:
                raise InvalidUsage(f"exclude: {name!r} is of the key of its table, which tells its rows apart")

    def _check_table(self, table: PublishedTable) -> None:
        """Raise InvalidUsage if a table cannot be ingested."""
        if table.identity != "f" and not table.key:
            raise InvalidUsage(
                f"the table {table.full_name} has no key to identify changes{table.no_key}: give it a primary key, "
                f"or run ALTER TABLE {table.full_name} REPLICA IDENTITY FULL, or leave it out by tables"
            )
        if table.no_key:
            logger.warning("%s has no key here, and its rows are counted%s", table.full_name, table.no_key)
        for name, expression in table.generated.items():
            if f"{table.full_name}.{name}" not in self.config.exclude:
                logger.warning(
                    "%s: the column %r is left out, because it is generated, and the server does not send it. A view "
                    "can compute it: (%s) AS %s. Say exclude = [\"%s.%s\"] if it is not needed",
                    table.full_name, name, expression, name, table.full_name, name,
                )  # fmt: skip
        odd = [
            path
            for name, type_ in self.find_types(table.full_name, table.columns, table.key).items()
            for path, inner in type_.walk(name)
            if not inner.has_counterpart
        ]
        if odd:
            logger.warning("%s: these columns are kept as text: %s", table.full_name, ", ".join(odd))

    def _load_table(
        self, cursor: Any, schema: str, name: str, oid: int, identity: str, columns: list[str] | None, where: str | None
    ) -> PublishedTable:
        """Load the columns, key and types of a published table."""
        cursor.execute(
            "SELECT a.attname, a.atttypid::int8, a.atttypmod, a.attnum, "
            "coalesce(a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1]), false), i.indimmediate, "
            "CASE WHEN a.attgenerated <> '' THEN pg_get_expr(d.adbin, d.adrelid) END FROM pg_attribute a "
            "LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum "
            "LEFT JOIN pg_index i ON i.indrelid = a.attrelid AND "
            "CASE WHEN %s = 'i' THEN i.indisreplident ELSE i.indisprimary END "
            "WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum",
            (identity, oid),
        )
        attributes = cursor.fetchall()
        sends = cursor.connection.server_version >= 180000  # Then a publication may send generated columns.
        rows = [row for row in attributes if columns is None or row[0] in columns]
        rows = [row for row in rows if row[6] is None or (sends and columns is not None)]
        names = {row[0] for row in rows}
        absent = [row[0] for row in attributes if row[4] and row[0] not in names]
        no_key = f", because {', '.join(absent)} of its key is not sent" if absent else ""
        if any(row[4] and not row[5] for row in attributes):
            no_key = ", because its key is DEFERRABLE, so two rows may have the same for a while"
        published = tuple(Column(row[0], row[1], row[2], row[4] and not no_key) for row in rows)
        generated = {row[0]: row[6] for row in attributes if row[6] is not None and row[0] not in names}
        return PublishedTable(
            schema, name, identity, published, {row[0]: row[3] for row in rows}, where, generated, no_key
        )

    def select_columns(self, table: str, columns: Sequence[Column]) -> list[Column]:
        """Return the columns of a table that the options do not exclude."""
        return [column for column in columns if f"{table}.{column.name}" not in self.config.exclude]

    def load_types(
        self, cursor: Any, table: str, columns: Sequence[Column], key: Sequence[str] = ()
    ) -> dict[str, PgType]:
        """Load and return the types of a table's columns, by name."""
        self.types.load(cursor, (column.type for column in columns))
        return self.find_types(table, columns, key)

    def find_types(self, table: str, columns: Sequence[Column], key: Sequence[str] = ()) -> dict[str, PgType]:
        """Return the loaded types of columns; nested ones of the key stay text."""
        types = {}
        for column in self.select_columns(table, columns):
            type_ = self.types.make_type(column.type, column.modifier)
            is_text = f"{table}.{column.name}" in self.config.as_text or (type_.is_nested and column.name in key)
            types[column.name] = TEXT if is_text else type_
        return types


def to_line(error: Exception) -> str:
    """Return the text of an error, on one line."""
    return " ".join(str(error).split())
