"""A database of Postgres as a source: which tables and columns a publication has."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa

from persist.errors import InvalidUsage
from persist.ingest.pg_address import PgAddress
from persist.ingest.pg_types import arrow_type_of, has_counterpart
from persist.ingest.pgoutput import Column

logger = logging.getLogger(__name__)
CLOCK_US = "(extract(epoch FROM clock_timestamp()) * 1000000)::int8"


class PostgresConfig(msgspec.Struct, kw_only=True):
    """The options of a database.

    Attributes:
        source: its URL, as libpq takes it. A password is better in a password file, or in PGPASSWORD.
        publication: whose tables are taken in.
        tables: only these of its tables.
        exclude: columns that are left out, as table.column.
        as_text: columns that are kept as text, whatever their type.
        prefix: what the names of collections begin with.
        slot: the replication slot; else one that is named for location and publication.
        batch_rows: how many changes become one commit, at least, if so many are there.
        copy_bytes: how much of a table's first contents becomes one commit.
        heartbeat_s: how often an idle database is taken to have had no more changes, which a commit says.
    """

    source: str
    publication: str
    tables: list[str] | None = None
    exclude: list[str] = []
    as_text: list[str] = []
    prefix: str = ""
    slot: str | None = None
    batch_rows: int = 20_000
    heartbeat_s: float = 10.0
    copy_bytes: int = 8 << 20


@dataclass(frozen=True, slots=True)
class Published:
    """A table of a publication, as the server's catalog has it now."""

    schema: str
    name: str
    identity: str
    columns: tuple[Column, ...]
    numbers: Mapping[str, int]
    filter: str | None

    @property
    def full_name(self) -> str:
        return self.name if self.schema == "public" else f"{self.schema}.{self.name}"

    @property
    def key(self) -> list[str]:
        return [column.name for column in self.columns if column.is_key]


class Database(PgAddress):
    """A database, and what its publication has."""

    def __init__(self, config: PostgresConfig) -> None:
        super().__init__(config.source, "persist ingest")
        self.config = config
        self.name += f" publication {config.publication}"
        for option in ("batch_rows", "copy_bytes", "heartbeat_s"):
            if not getattr(config, option) > 0:
                raise InvalidUsage(f"{option}={getattr(config, option)} must be above 0")
        self._domains: dict[int, tuple[int, int]] = {}

    def published(self, connection: Any) -> list[Published]:
        """Return the tables of the publication that are wanted."""
        config = self.config
        with connection, connection.cursor() as cursor:
            cursor.execute("SELECT 1 FROM pg_publication WHERE pubname = %s", (config.publication,))
            if cursor.fetchone() is None:
                cursor.execute("SELECT pubname FROM pg_publication ORDER BY 1")
                there = ", ".join(name for (name,) in cursor.fetchall()) or "none"
                raise InvalidUsage(
                    f"{self.name}: there is no such publication (there: {there}). Make it: CREATE PUBLICATION "
                    f"{config.publication} FOR TABLE …"
                )
            cursor.execute("SELECT oid::int8, typbasetype::int8, typtypmod FROM pg_type WHERE typbasetype <> 0")
            self._domains = {oid: (base, modifier) for oid, base, modifier in cursor.fetchall()}
            is_15 = connection.server_version >= 150000
            more = "p.attnames::text[], p.rowfilter" if is_15 else "NULL, NULL"
            cursor.execute(
                f"SELECT p.schemaname, p.tablename, c.oid, c.relreplident, {more} FROM pg_publication_tables p "
                "JOIN pg_namespace n ON n.nspname = p.schemaname "
                "JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename "
                "WHERE p.pubname = %s ORDER BY 1, 2",
                (config.publication,),
            )
            tables = [self._table(cursor, *row) for row in cursor.fetchall()]
        wanted = None if config.tables is None else set(config.tables)
        unknown = (wanted or set()) - {table.full_name for table in tables}
        if unknown:
            raise InvalidUsage(f"{self.name} has no table {min(unknown)!r}: leave it out of tables, or publish it")
        chosen = [table for table in tables if wanted is None or table.full_name in wanted]
        if not chosen:
            raise InvalidUsage(f"{self.name} has no tables: ALTER PUBLICATION {config.publication} ADD TABLE …")
        for option in ("exclude", "as_text"):
            self._check_columns(option, chosen)
        for table in chosen:
            self._check_table(table)
        return chosen

    def _check_columns(self, option: str, tables: list[Published]) -> None:
        there = {f"{table.full_name}.{name}": table for table in tables for name in table.numbers}
        for name in getattr(self.config, option):
            if name not in there:
                raise InvalidUsage(f"{option}: {self.name} has no column {name!r}. Write table.column")
            if option == "exclude" and name.rpartition(".")[2] in there[name].key:
                raise InvalidUsage(f"exclude: {name!r} is of the key of its table, which tells its rows apart")

    def _check_table(self, table: Published) -> None:
        if table.identity != "f" and not table.key:
            raise InvalidUsage(
                f"the table {table.full_name} has no key by which changes could be told: give it a primary key, or say "
                f"ALTER TABLE {table.full_name} REPLICA IDENTITY FULL, or leave it out by tables"
            )
        odd = [
            column.name
            for column in self.kept(table.full_name, table.columns)
            if not has_counterpart(*self._base(column))
        ]
        if odd:
            logger.warning("%s: these columns are kept as text: %s", table.full_name, ", ".join(odd))

    def _table(
        self, cursor: Any, schema: str, name: str, oid: int, identity: str, columns: list[str] | None, where: str | None
    ) -> Published:
        cursor.execute(
            "SELECT a.attname, a.atttypid::int8, a.atttypmod, a.attnum, "
            "coalesce(a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1]), false) "
            "FROM pg_attribute a LEFT JOIN pg_index i ON i.indrelid = a.attrelid AND "
            "CASE WHEN %s = 'i' THEN i.indisreplident ELSE i.indisprimary END "
            "WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '' ORDER BY a.attnum",
            (identity, oid),
        )
        rows = [row for row in cursor.fetchall() if columns is None or row[0] in columns]
        published = tuple(Column(row[0], row[1], row[2], row[4]) for row in rows)
        return Published(schema, name, identity, published, {row[0]: row[3] for row in rows}, where)

    def kept(self, table: str, columns: Sequence[Column]) -> list[Column]:
        """Return the columns of a table that are not left out."""
        return [column for column in columns if f"{table}.{column.name}" not in self.config.exclude]

    def types(self, table: str, columns: Sequence[Column]) -> dict[str, pa.DataType]:
        """Return what the columns of a table become."""
        return {
            column.name: pa.string()
            if f"{table}.{column.name}" in self.config.as_text
            else arrow_type_of(*self._base(column))
            for column in self.kept(table, columns)
        }

    def _base(self, column: Column) -> tuple[int, int]:
        """Return the type and modifier that a column has below its domains."""
        base, modifier = column.type, column.modifier
        while base in self._domains:
            base, own = self._domains[base]
            modifier = own if modifier == -1 else modifier
        return base, modifier
