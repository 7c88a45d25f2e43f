"""Answers to queries of `pg_catalog` and `information_schema`, from the collections of a location.

psql, drivers, SQLAlchemy and tools for reports query these tables in SQL of Postgres. Here they are tables of a DuckDB
of their own, in the schemas `pg` and `info`. So few parts of a query are rewritten: names of schemas, casts to
`regclass`, and operators with a schema. A schema is the part of the names of collections before the last dot, and
`main` for those without one. A key is shown as a primary key if each of its values has one row at most.

Rows of data are not here: a query that reads a collection is answered elsewhere.
"""

import re
import threading
import zlib
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Any

import pyarrow as pa

from persist.compute.query import quote_text
from persist.services.serve.postgres import values
from persist.services.serve.postgres.settings import SERVER_VERSION, Settings
from persist.services.serve.postgres.wire import Failure

_PG, _MAIN, _INFO = 11, 2200, 13_000
_FIRST_OID = 16_384
TIMEOUT_S = 30.0
ROWS_MAX = 1_000_000
_CALL = re.compile(r'"?(?!CAST\b)(\w+)"?\(.*\)', re.DOTALL)

# Types that no column of an answer has: (oid, name in pg_type, size, category, name in SQL).
_MORE_TYPES = [
    (18, "char", 1, "Z", '"char"'),
    (19, "name", 64, "S", "name"),
    (22, "int2vector", -1, "A", "int2vector"),
    (24, "regproc", 4, "N", "regproc"),
    (26, "oid", 4, "N", "oid"),
    (30, "oidvector", -1, "A", "oidvector"),
    (705, "unknown", -2, "X", "unknown"),
    (1042, "bpchar", -1, "S", "character"),
    (1043, "varchar", -1, "S", "character varying"),
    (1560, "bit", -1, "V", "bit"),
    (2205, "regclass", 4, "N", "regclass"),
    (2278, "void", 4, "P", "void"),
    (3802, "jsonb", -1, "U", "jsonb"),
]

_NAMES = re.compile(
    r"""'(?:[^']|'')*+(?:'|\Z)|--[^\n]*|/\*.*?(?:\*/|\Z)
    |(?P<asks>\bpg_\w+|\binformation_schema\b|\bversion\s*\(|\bcurrent_(?:schemas?|database|setting|user|role|catalog)\b
    |\bsession_user\b|\bset_config\b|\bformat_type\b|\bhas_\w+_privilege\b|\bto_reg\w+|::\s*"?reg\w+
    |\b(?:sh)?(?:obj|col)_description\b|\btxid_current\w*)""",
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)


def asks_catalog(sql: str) -> bool:
    """Return whether a query may read tables, types or settings of Postgres."""
    return any(match["asks"] for match in _NAMES.finditer(sql))


_REWRITES = re.compile(
    r"""(?P<array>'\{[^'{}\\]*+\}')\s*::\s*text\s*\[\]
    |(?P<kept>E?'(?:[^']|'')*+(?:'|\Z)(?!\s*::\s*"?(?:pg_catalog"?\s*\.\s*"?)?reg)|--[^\n]*|/\*.*?(?:\*/|\Z))
    |OPERATOR\s*\(\s*"?pg_catalog"?\s*\.\s*(?P<operator>[^)\s]+)\s*\)
    |(?P<collate>\bCOLLATE\s+(?:"?pg_catalog"?\s*\.\s*)?"?(?:default|C|POSIX|ucs_basic)"?)
    |(?P<named>'(?:[^']|'')*'|\$\d+)\s*::\s*"?(?:pg_catalog"?\s*\.\s*"?)?(?P<to>regclass|regtype|regnamespace|regproc)\b"?
    |(?P<column>(?<![\w".])[\w".]++)\s*::\s*"?(?:pg_catalog"?\s*\.\s*"?)?(?P<shown>regclass|regtype|regnamespace)\b"?
    |(?P<is_there>\btyp(?:receive|send|input|output)\s*(?:!=|<>)\s*0\b)
    |(?P<object>\bjson_build_object\b)
    |(?P<cast>\bAS\s+REGCLASS\s*\)\s*AS\s+OID\s*\))
    |(?P<search_path>SELECT\s+CASE\s+WHEN\s+trim\(s\[i\]\)[^;]*?string_to_array\(current_setting\('search_path'\),','\)\s+s\b)
    |\b(?:pg_catalog|"pg_catalog")\s*\.\s*(?="?\w+"?\s*\(|(?:text|bool|int[248]|float[48]|numeric|varchar|bytea|date
        |timestamp(?:tz)?|interval|uuid|json)\b)
    |\b(?P<user>current_user|session_user|current_role)\b(?!\s*\()
    |(?P<pg>\bpg_catalog|"pg_catalog")\s*\.\s*
    |(?P<info>\binformation_schema|"information_schema")\s*\.\s*""",
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)


def rewrite_catalog_query(sql: str, user: str) -> str:
    """Return a query of Postgres's catalogs with the names of our tables and functions."""

    def replace(match: re.Match[str]) -> str:
        if match["kept"] is not None:
            return match[0]
        if match["operator"] is not None:
            return f" {match['operator']} "
        if match["collate"] is not None:
            return ""
        if match["named"] is not None:
            return f"pg.{match['to'].lower()}_oid({match['named']})"
        if match["column"] is not None:
            return f"pg.{match['shown'].lower()}_name({match['column']})"
        if match["is_there"] is not None:
            return "true"
        if match["object"] is not None:
            return "json_object"
        if match["array"] is not None:
            return f"string_split(trim(replace({match['array']}, '\"', ''), '{{}}'), ',')"
        if match["cast"] is not None:  # It is an argument of col_description.
            return "AS VARCHAR) AS VARCHAR)"
        if match["search_path"] is not None:  # Grafana sends it, and DuckDB lacks this SQL.
            return "SELECT 'main'"
        if match["user"] is not None:
            return quote_text(user)
        return "pg." if match["pg"] is not None else "info." if match["info"] is not None else ""

    return _REWRITES.sub(replace, sql)


_OF_SESSION = re.compile(
    r"""'(?:[^']|'')*+(?:'|\Z)|"(?:[^"]|"")*+(?:"|\Z)|--[^\n]*|/\*.*?(?:\*/|\Z)
    |(?<![\w."])(?:(?P<user>current_user|session_user|current_role)\b(?!\s*\()
    |(?:pg_catalog\s*\.\s*)?(?:(?P<database>current_database)|(?P<pid>pg_backend_pid)|(?P<version>version))\s*\(\s*\))""",
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)


def insert_session_constants(sql: str, session: Settings) -> str:
    """Return a statement with constants in place of the user, the database and the number of its session."""
    values = {"user": session.user, "database": session.database, "version": f"PostgreSQL {SERVER_VERSION} (persist)"}

    def replace(match: re.Match[str]) -> str:
        if match.lastgroup is None:
            return match[0]
        return f"({session.pid})" if match["pid"] else f"({quote_text(values[match.lastgroup])})"

    return _OF_SESSION.sub(replace, sql)


class Catalog:
    """The tables of Postgres's catalogs over the collections of a location, in a DuckDB of their own; for any thread.

    The first query loads them, which takes 0.1 s. `open_database` returns an empty DuckDB, which reads no files.
    """

    def __init__(self, open_database: Callable[[], Any]) -> None:
        self._open_database = open_database
        self._connection: Any = None
        self._lock = threading.Lock()
        self._tables: Sequence[Any] | None = None

    def answer(
        self, sql: str, tables: Sequence[Any], session: Settings, running: Callable[[Callable[[], None]], None]
    ) -> pa.Table | None:
        """Return the result of a query; None if it reads other tables. `running` gets a function that cancels it."""
        text = rewrite_catalog_query(sql, session.user)
        with self._lock:
            if self._tables is None:
                self.close()  # The database of a query that failed while it created the views.
                self._create_views(self._open_database())
            if self._tables != tables:
                self._load_catalogs(tables)
                self._tables = tables
            cursor = self._connection.cursor()
        with cursor:
            settings = ", ".join(f"{quote_text(name)}: {quote_text(value)}" for name, value in session.values.items())
            variables = {"version": self._version, "database": session.database, "user": session.user}
            for name, value in variables.items():
                cursor.execute(f"SET VARIABLE pg_{name} = {quote_text(value)}")
            cursor.execute(f"SET VARIABLE pg_pid = {session.pid}")
            cursor.execute(f"SET VARIABLE pg_settings = MAP {{{settings}}}")
            cursor.execute("SET search_path = 'pg,main'")
            timer = threading.Timer(TIMEOUT_S, cursor.interrupt)
            timer.daemon = True
            timer.start()
            try:
                # A query must not change the tables, which all sessions share.
                if [statement.type.name for statement in cursor.extract_statements(text)] != ["SELECT"]:
                    return None
                running(cursor.interrupt)
                table = cursor.sql(text).limit(ROWS_MAX).to_arrow_table()
            except Exception as error:
                if "Table with name" in str(error):
                    return None
                raise Failure("42000", f"the catalog cannot answer this: {error}") from error
            finally:
                timer.cancel()
        names = [match[1] if (match := _CALL.fullmatch(name)) else name for name in table.column_names]
        return table.rename_columns(names)

    def close(self) -> None:
        """Close the database; idempotent."""
        if self._connection is not None:
            self._connection.close()

    def _create_views(self, connection: Any) -> None:
        """Create the catalog tables that do not depend on collections, in an empty database."""
        self._connection = connection
        connection.execute("CREATE SCHEMA pg; CREATE SCHEMA info; CREATE SCHEMA hidden")
        ((version,),) = connection.execute("SELECT version()").fetchall()
        self._version = f"PostgreSQL {SERVER_VERSION} (persist, on DuckDB {version})"
        types = [
            (oid, name, size, category, sql_name) for oid, (sql_name, name, size, category) in values.TYPES.items()
        ]
        kinds = {"oid": "bigint", "typname": "text", "typlen": "int", "typcategory": "text", "shown": "text"}
        self._load_table("types", kinds, [*types, *_MORE_TYPES])
        self._load_table("arrays", {"oid": "bigint", "item": "bigint"}, sorted(values.ARRAYS.items()))
        connection.execute("SET VARIABLE pg_settings = MAP {'': ''}")
        self._load_catalogs(())
        connection.execute(files(__package__).joinpath("catalog.sql").read_text())

    def _load_catalogs(self, tables: Sequence[Any]) -> None:
        """Load the catalogs' tables for some collections into DuckDB."""
        used = set[int]()
        schemas = {"pg_catalog": _PG, "main": _MAIN, "information_schema": _INFO}
        for about in tables:
            if about.schema not in schemas:
                schemas[about.schema] = _make_oid(f"schema {about.schema}", used)
        relations, attributes, constraints = [], [], []
        for about in tables:
            oid = _make_oid(about.name, used)
            kind = "v" if about.is_view else "r"
            relations.append((oid, about.table, schemas[about.schema], kind, len(about.columns), bool(about.key)))
            numbers = {}
            for at, column_field in enumerate(about.columns, 1):
                column = values.describe_listed_column(column_field)
                numbers[column_field.name] = at
                is_key = column_field.name in about.key
                attributes.append((oid, column_field.name, column.oid, column.size, at, column.modifier, is_key))
            if about.key and not about.is_view:
                index = _make_oid(f"key {about.name}", used)
                name = f"{about.table}_pkey"
                relations.append((index, name, schemas[about.schema], "i", len(about.key), False))
                key = [numbers[column] for column in about.key]
                constraints.append((index, name, schemas[about.schema], oid, key, ", ".join(map(_name, about.key))))
        self._load_table(
            "namespaces", {"oid": "bigint", "nspname": "text"}, [(oid, name) for name, oid in schemas.items()]
        )
        kinds = {"oid": "bigint", "relname": "text", "relnamespace": "bigint", "relkind": "text", "relnatts": "int"}
        self._load_table("relations", kinds | {"relhasindex": "boolean"}, relations)
        kinds = {"attrelid": "bigint", "attname": "text", "atttypid": "bigint", "attlen": "int", "attnum": "int"}
        self._load_table("attributes", kinds | {"atttypmod": "int", "attnotnull": "boolean"}, attributes)
        kinds = {"oid": "bigint", "conname": "text", "connamespace": "bigint", "conrelid": "bigint", "conkey": "int[]"}
        self._load_table("keys", kinds | {"columns": "text"}, constraints)

    def _load_table(self, name: str, kinds: dict[str, str], rows: Sequence[tuple[Any, ...]]) -> None:
        """Load one catalog table into DuckDB."""
        arrow = {"bigint": pa.int64(), "int": pa.int32(), "text": pa.string(), "boolean": pa.bool_()}
        fields = [pa.field(column, arrow.get(kind, pa.list_(pa.int32()))) for column, kind in kinds.items()]
        columns = [*zip(*rows, strict=True)] or [()] * len(fields)
        arrays = [pa.array(column, kind.type) for column, kind in zip(columns, fields, strict=True)]
        loaded = pa.Table.from_arrays(arrays, schema=pa.schema(fields))
        self._connection.register("loaded rows", loaded)
        self._connection.execute(f'CREATE OR REPLACE TABLE hidden."{name}" AS FROM "loaded rows"')
        self._connection.unregister("loaded rows")


def _name(column: str) -> str:
    """Return the name of a column in SQL, quoted if necessary."""
    return column if re.fullmatch(r"[a-z_][a-z0-9_]*", column) else '"' + column.replace('"', '""') + '"'


def _make_oid(name: str, used: set[int]) -> int:
    """Return an unused oid for a name, by its hash: the same in every session, as clients use it later."""
    oid = zlib.crc32(name.encode()) % (2**31 - _FIRST_OID) + _FIRST_OID
    while oid in used:
        oid += 1
    used.add(oid)
    return oid
