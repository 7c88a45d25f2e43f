"""A server of MySQL or MariaDB as a source: connections, tables and columns.

It maps the server's types to Arrow's, and the values of the client library to columns. Types of a copied table come
from the catalog, and those of later changes from the log; both map to the same types.
"""

import json
import logging
import os
import socket
import ssl
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from decimal import Decimal
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec
import pyarrow as pa

from persist.blob.errors import redact
from persist.connect.ingest.mysql.binlog import Gtids, parse_gtids
from persist.connect.ingest.postgres.database import to_line
from persist.connect.ingest.source import PositiveFloat, PositiveInt, load_password
from persist.core.errors import InvalidUsage, Unavailable
from persist.core.rendering import hide_passwords
from persist.engine.read.results.result import require_package

logger = logging.getLogger(__name__)
_SETTINGS = {"binlog_format": "ROW", "binlog_row_image": "FULL", "binlog_row_metadata": "FULL"}
_QUERY = {"unix_socket", "ssl_mode", "ssl_ca"}
_POSITION_LOST = 1236
_LOST = {1040, 1053, 1079, 1080, 1152, 1158, 1159, 1160, 1161, 1184, 1927, 2002, 2003, 2006, 2013, 2014, 2055}
_COLUMNS = (
    "SELECT table_name, column_name, data_type, column_type, numeric_precision, numeric_scale, column_key, extra, "
    "column_default, is_nullable, generation_expression "
    "FROM information_schema.columns WHERE table_schema = %s ORDER BY 1, ordinal_position"
)
_CASCADES = (
    "SELECT DISTINCT table_name, constraint_name FROM information_schema.referential_constraints "
    "WHERE constraint_schema = %s "
    "AND (delete_rule IN ('CASCADE', 'SET NULL') OR update_rule IN ('CASCADE', 'SET NULL'))"
)
NEEDS = "REPLICATION SLAVE and REPLICATION CLIENT on *.*, and SELECT on its tables"


class MysqlConfig(msgspec.Struct, kw_only=True):
    """The options of a database; `docs/use/ingest-databases.md` explains them.

    Attributes:
        batch_rows: the least number of changes in a commit, if so many are available.
        copy_rows: how many rows of a table's initial contents are one commit.
    """

    source: str
    tables: list[str] | None = None
    exclude: list[str] = []
    prefix: str = ""
    password_file: str | None = None
    batch_rows: PositiveInt = 20_000
    copy_rows: PositiveInt = 50_000
    heartbeat_s: PositiveFloat = 10.0


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table now; `default`: what older rows have, as SQL; None for NULL, "" if unknown."""

    name: str
    kind: str
    type: pa.DataType | None
    is_key: bool
    default: str | None


class Server:
    """The server and database of a URL; `name` has no secrets, `check` detects MariaDB."""

    def __init__(self, config: MysqlConfig) -> None:
        self.library = require_package("pymysql>=1.1")
        require_package("mysql-replication>=1.0.9", "pymysqlreplication")
        self.config = config
        self.is_mariadb = False
        url = hide_passwords(config.source)
        try:
            parts = urlsplit(config.source)
            port, query = parts.port or 3306, dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
        except ValueError as error:
            raise InvalidUsage(f"{url} is not an address of a database: {hide_passwords(str(error))}") from None
        self.schema = unquote(parts.path.strip("/"))
        unknown = {*query} - _QUERY
        if parts.netloc.count("@") > 1 or not self.schema or "/" in self.schema or unknown:
            raise InvalidUsage(
                f"{url} is not an address of a database: write mysql://user@host:3306/database, and %40 for @ in a "
                f"password. Behind a ? may be {', '.join(sorted(_QUERY))}"
            )
        host = parts.hostname or "localhost"
        self.name = f"mysql://{host}{'' if port == 3306 else f':{port}'}/{self.schema}"
        is_near = host in ("localhost", "127.0.0.1", "::1") or "unix_socket" in query
        self._mode = query.get("ssl_mode", "disabled" if is_near else "required")
        if self._mode not in ("disabled", "required", "verify"):
            raise InvalidUsage(f"ssl_mode={self._mode!r} is not disabled, required or verify")
        self._password = unquote(parts.password or "") or (
            os.environ.get("MYSQL_PWD", "") if config.password_file is None else load_password(config.password_file)
        )
        self.settings: dict[str, Any] = {
            "host": host, "port": port, "user": unquote(parts.username or "") or None, "password": self._password,
            "unix_socket": query.get("unix_socket"), "charset": "utf8mb4", "connect_timeout": 10,
        }  # fmt: skip
        if self._mode != "disabled":
            context = ssl.create_default_context(cafile=query.get("ssl_ca"))
            if self._mode == "required":
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            self.settings["ssl"] = context

    def open_connection(self, **more: Any) -> Any:
        """Connect, and return the connection.

        Raises:
            Unavailable: the server does not answer, or not by TLS.
            InvalidUsage: the server refuses this user.
        """
        try:
            connection = self.connect(**self.settings, database=self.schema, autocommit=True, **more)
        except (self.library.Error, OSError) as error:
            raise self.make_error(error) from None
        return connection

    def connect(self, **settings: Any) -> Any:
        """Connect; a lost connection raises ConnectionError, and another thread can close it."""
        from pymysql.connections import Connection

        server = self

        class Link(Connection):  # type: ignore[misc]
            def connect(self, sock: Any = None) -> None:
                super().connect(sock)
                if server._mode != "disabled" and not isinstance(self._sock, ssl.SSLSocket):
                    self._force_close()
                    raise InvalidUsage(f"{server.name} has no TLS: say ?ssl_mode=disabled if that is meant")

            def _read_packet(self, *arguments: Any) -> Any:
                try:
                    return super()._read_packet(*arguments)
                except server.library.OperationalError as error:
                    raise (ConnectionError(str(error)) if server.is_lost(error) else error) from None

            def cut(self) -> None:
                with suppress(AttributeError, OSError):
                    self._sock.shutdown(socket.SHUT_RDWR)

            def forget(self) -> None:
                self._force_close()

        return Link(**settings)

    def is_lost(self, error: BaseException) -> bool:
        """Return whether an error means that the server does not answer, and not that it refuses."""
        if isinstance(error, self.library.Error):
            return isinstance(error, self.library.InterfaceError) or (error.args and error.args[0] in _LOST)
        return isinstance(error, (OSError, Unavailable, EOFError))

    def make_error(self, error: BaseException) -> InvalidUsage | Unavailable:
        """Return the error for a problem with the server, without passwords."""
        if isinstance(error, (InvalidUsage, Unavailable)):
            return error
        text = redact(hide_passwords(to_line(error)), [self._password or ""])  # type: ignore[arg-type]
        if self.is_lost(error):
            return Unavailable(f"{self.name} does not answer: {text}")
        if isinstance(error, self.library.Error) and error.args and error.args[0] == _POSITION_LOST:
            return InvalidUsage(
                f"{self.name} does not have what came after the last transaction that was taken in: {text}. Its log "
                "was purged, or it is another server with other transactions"
            )
        return InvalidUsage(f"{self.name} refuses: {text}. The user needs {NEEDS}")

    def check(self, connection: Any) -> None:
        """Raise InvalidUsage unless the server's settings log whole rows; detect MariaDB."""
        with connection.cursor() as cursor:
            cursor.execute("SELECT version()")
            self.is_mariadb = "mariadb" in cursor.fetchone()[0].lower()
            cursor.execute("SHOW GLOBAL VARIABLES")
            variables = {name: str(value) for name, value in cursor.fetchall()}
        settings = _SETTINGS | ({} if self.is_mariadb else {"gtid_mode": "ON", "binlog_row_value_options": ""})
        settings |= {"log_bin": "ON", "log_bin_compress": "OFF", "binlog_transaction_compression": "OFF"}
        absent = {"log_bin_compress", "binlog_transaction_compression", "binlog_row_value_options"}
        for name, value in settings.items():
            has = variables.get(name, value if name in absent else "not there")
            if has.upper() != value:
                raise InvalidUsage(
                    f"{self.name}: the server has {name} = {has}, and {value or 'an empty one'} is needed: SET GLOBAL "
                    f"{name} = '{value}', or set it in the server's configuration. Its earlier log stays as it is"
                )

    def load_executed(self, connection: Any) -> Gtids:
        """Return the transactions that the server has executed."""
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT @@global.{'gtid_binlog_pos' if self.is_mariadb else 'gtid_executed'}")
            return parse_gtids(cursor.fetchone()[0] or "", is_mariadb=self.is_mariadb)

    def tables(self, connection: Any) -> dict[str, list[Column]]:
        """Return the requested tables, each with its columns."""
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT table_name, table_type FROM information_schema.tables WHERE table_schema = %s", (self.schema,)
            )
            kinds = {name: kind for name, kind in cursor.fetchall() if kind != "VIEW" and kind != "SEQUENCE"}
            cursor.execute(_COLUMNS, (self.schema,))
            columns: dict[str, list[Column]] = {}
            no_key: dict[str, str] = {}  # A column of its key that is not taken in.
            generated: list[tuple[str, str, str]] = []
            for row in cursor.fetchall():
                is_generated = "GENERATED" in row[7].upper().replace("DEFAULT_GENERATED", "")
                is_excluded = f"{row[0]}.{row[1]}" in self.config.exclude
                if is_generated and not is_excluded:
                    generated.append((row[0], row[1], row[10]))
                if not is_generated and not is_excluded:
                    columns.setdefault(row[0], []).append(_make_column(*row[1:10], is_sql=self.is_mariadb))
                elif row[6] == "PRI":
                    no_key[row[0]] = row[1]
            cursor.execute(_CASCADES, (self.schema,))
            cascades = dict(cursor.fetchall())
        names = [*kinds] if self.config.tables is None else self.config.tables
        if not names:
            raise InvalidUsage(f"{self.name} has no tables that this user may read. The user needs {NEEDS}")
        for name in names:
            if name not in kinds:
                raise InvalidUsage(f"{self.name} has no table {name!r}; it has {', '.join(sorted(kinds)) or 'none'}")
            self._check_table(name, kinds[name], columns.get(name, []), cascades)
            if name in no_key:
                raise InvalidUsage(
                    f"the column {name}.{no_key[name]} is of the table's key, and is excluded or computed by the "
                    "server: without it, rows cannot be distinguished. Name in tables those that are meant, without "
                    f"{name}, or do not exclude the column"
                )
        self._check_excluded(columns, names)
        for table, name, expression in generated:
            if table in names:
                logger.warning(
                    "%s: the column %r is left out, because the server computes it. A view can compute it: (%s) AS %s. "
                    "Say exclude = [\"%s.%s\"] if it is not needed", table, name, expression, name, table, name,
                )  # fmt: skip
        return {name: columns[name] for name in sorted(names)}

    def _check_table(self, name: str, kind: str, columns: Sequence[Column], cascades: dict[str, str]) -> None:
        """Raise InvalidUsage if a table cannot be ingested."""
        remedy = "name in tables those that are meant, without it"
        if kind != "BASE TABLE":
            raise InvalidUsage(f"the table {name} is a {kind.lower()} table, which cannot be followed: {remedy}")
        if name in cascades:
            raise InvalidUsage(
                f"the table {name} has the foreign key {cascades[name]}, by which the server changes rows without "
                f"writing that to its log (CASCADE or SET NULL): {remedy}, or make the key RESTRICT"
            )
        for column in columns:
            if column.type is None:
                raise InvalidUsage(
                    f"the type {column.kind} of {name}.{column.name} is not known: exclude it, by exclude = "
                    f'["{name}.{column.name}"]'
                )

    def _check_excluded(self, columns: dict[str, list[Column]], tables: Sequence[str]) -> None:
        """Raise InvalidUsage if an excluded column does not exist."""
        for name in self.config.exclude:
            table, _, column = name.partition(".")
            if table not in tables or not column:
                raise InvalidUsage(f"exclude: {self.name} has no column {name!r} that is taken in. Write table.column")


def _make_column(
    name: str,
    kind: str,
    full: str,
    precision: Any,
    scale: Any,
    key: str,
    extra: str,
    default: Any,
    nullable: str,
    *,
    is_sql: bool,
) -> Column:
    """Return a column from its row in information_schema."""
    type_ = to_arrow_type(kind, unsigned="unsigned" in full, precision=int(precision or 0), scale=int(scale or 0))
    if default is None or str(default).upper() == "NULL":
        older = None if nullable == "YES" else "''" if type_ in (pa.string(), pa.binary()) else "0"
        older = "" if older is not None and kind in ("enum", "set", "date", "datetime", "timestamp", "time") else older
    else:
        text = str(default) if is_sql else "'" + str(default).replace("\\", "\\\\").replace("'", "''") + "'"
        is_literal = text[:1] in "'-0123456789" and "DEFAULT_GENERATED" not in extra.upper()
        older = text if is_literal else ""
    return Column(name, kind, type_, key == "PRI", older)


ZERO = datetime(1970, 1, 1)
NO_TIME, SECOND = timedelta(), timedelta(seconds=1)
BINARY = "binary"  # A character set.
_DIGITS_MAX = 38
_WHOLE = {
    "tinyint": (pa.int8(), pa.uint8()), "smallint": (pa.int16(), pa.uint16()), "mediumint": (pa.int32(), pa.uint32()),
    "int": (pa.int32(), pa.uint32()), "bigint": (pa.int64(), pa.uint64()),
}  # fmt: skip
_OTHERS = {
    "float": pa.float32(), "double": pa.float64(), "year": pa.int16(), "date": pa.date32(), "bit": pa.uint64(),
    "datetime": pa.timestamp("us"), "timestamp": pa.timestamp("us", "UTC"), "time": pa.string(), "enum": pa.string(),
    "set": pa.string(), "json": pa.string(), "geometry": pa.binary(),
}  # fmt: skip
_TEXTS = {"char", "varchar", "tinytext", "text", "mediumtext", "longtext"}
_BYTES = {"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob", "uuid", "inet4", "inet6"}
_GEOMETRIES = {"point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon", "geometrycollection"}
PADDED = {"binary", "uuid", "inet4", "inet6"}  # The log leaves zeros at their end out.
BY_CODE = {
    1: "tinyint", 2: "smallint", 3: "int", 4: "float", 5: "double", 8: "bigint", 9: "mediumint", 10: "date",
    12: "datetime", 18: "datetime", 7: "timestamp", 17: "timestamp", 11: "time", 19: "time", 13: "year", 16: "bit",
    245: "json", 246: "decimal", 247: "enum", 248: "set", 255: "geometry", 15: "varchar", 254: "char", 252: "text",
}  # fmt: skip


def to_arrow_type(kind: str, *, unsigned: bool = False, precision: int = 0, scale: int = 0) -> pa.DataType | None:
    """Return the Arrow type for a type name of the catalog; None if unknown."""
    if kind in _WHOLE:
        return _WHOLE[kind][unsigned]
    if kind == "decimal":
        return pa.decimal128(precision, scale) if precision <= _DIGITS_MAX else pa.string()
    if kind in _TEXTS:
        return pa.string()
    if kind in _BYTES or kind in _GEOMETRIES:
        return pa.binary()
    return _OTHERS.get(kind)


def get_logged_type(column: Any) -> pa.DataType | None:
    """Return the Arrow type of a column that the log describes."""
    kind = BY_CODE.get(column.type, "")
    if kind in _TEXTS and column.character_set_name == BINARY:
        return pa.binary()
    return to_arrow_type(
        kind,
        unsigned=bool(column.unsigned),
        precision=getattr(column, "precision", 0),
        scale=getattr(column, "decimals", 0),
    )


def decode_logged_values(columns: Sequence[Any], values: dict[str, Any], sources: dict[str, str]) -> list[Any]:
    """Return a logged row with the values that a query would return."""
    row = []
    for column in columns:
        value = values[column.name]
        if value is None:
            if sources.get(column.name) == "empty set":
                value = ""
        elif column.type == 248:
            value = ",".join(member for member in column.set_values if member in value)
        elif column.type == 19 and value < NO_TIME:
            fraction = -value % SECOND  # The library reads it wrongly.
            value = value + 2 * fraction - SECOND if fraction else value
        elif column.type == 16:
            value = int(value, 2)
        elif column.type == 254 and isinstance(value, bytes):
            value = value.ljust(column.max_length, b"\0")
        elif column.type == 13 and value == 1900:
            value = 0  # Years begin at 1901, and the log has none of 0000 but that.
        elif column.type in (7, 17) and value == ZERO:
            value = None  # A timestamp of zeros; the first moment that one can have is a second later.
        elif column.type == 245:
            value = _format_document(value)
        row.append(value)
    return row


def _format_document(value: Any) -> str:
    """Return a decoded document as the server's text. The library has names and texts as bytes."""
    match value:
        case dict():
            members = (f"{_format_document(name)}: {_format_document(inner)}" for name, inner in value.items())
            return f"{{{', '.join(members)}}}"
        case list():
            return f"[{', '.join(map(_format_document, value))}]"
        case Decimal():
            return f"{value:f}"
        case bytes():
            value = value.decode()
        case datetime():
            value = value.isoformat(" ", "microseconds")
        case time():
            value = value.isoformat("microseconds")
        case None | bool() | int() | float() | str():
            pass
        case _:
            raise InvalidUsage(
                "the log has only a part of a document, because binlog_row_value_options of a session is "
                "PARTIAL_JSON: leave it empty, drop the collections, and copy the tables again"
            )
    return json.dumps(value, ensure_ascii=False)


def to_column(values: list[Any], kind: pa.DataType, where: str) -> pa.Array:
    """Return values of a query or of the log as an array of a type.

    Dates such as 0000-00-00, which no calendar has, become NULL; times of day become text.
    """
    try:
        if pa.types.is_string(kind):
            return pa.array([to_text(value) for value in values], kind)
        if pa.types.is_binary(kind):
            return pa.array([value.encode() if isinstance(value, str) else value for value in values], kind)
        if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
            return pa.array([None if isinstance(value, str) else value for value in values], kind)
        if kind == pa.uint64():
            values = [int.from_bytes(value, "big") if isinstance(value, bytes) else value for value in values]
        return pa.array(values, kind)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise InvalidUsage(
            f"a value of {where} is not of type {kind}: {' '.join(str(error).split())}. Leave the column out, "
            f"by exclude = "
            f'["{where}"]; a collection that is there is renamed first, and keeps its history'
        ) from None


def to_text(value: Any) -> Any:
    """Return a value as text; None stays."""
    if isinstance(value, timedelta):
        micros = value // timedelta(microseconds=1)
        sign, micros = ("-", -micros) if micros < 0 else ("", micros)
        seconds, micros = divmod(micros, 1_000_000)
        text = f"{sign}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
        return f"{text}.{micros:06d}" if micros else text
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, bytes):
        raise ValueError("its character set is not known")
    return value
