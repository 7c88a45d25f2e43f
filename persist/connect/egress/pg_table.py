"""One collection as a table of Postgres, and the statements that update it.

The table has a row for each key, and the key is its primary key.

Contents are first copied into a second table, so readers never see part of them. The complete copy gets the name of the
target. If an empty target exists already, the copied rows are inserted into it instead. Changes are copied into a
temporary table, and applied from there: the last change of each key counts.

An insert must find no row, and an update or a deletion must find one. So the sink notices keys with several rows, and
writes of other programs.

`docs/use/egress.md` has the table of Postgres' types for Arrow's. Negative zero is sent as 0, because both are equal in
collections.
"""

import io
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from persist.codecs.evolution import read_default
from persist.codecs.nested import find_differences, get_column_node
from persist.codecs.types.arrow_types import is_bytes
from persist.codecs.types.objects import to_objects
from persist.codecs.types.schema import CollectionSchema
from persist.connect.egress.files import are_finite
from persist.connect.egress.sink import Leaving
from persist.core.errors import InvalidUsage

CHANGED = "_change"
COUNTED = (
    "Send a view that has one row for each key, none of them NULL, such as SELECT …, count(*) AS n FROM … GROUP BY ALL"
)


class PgTable:
    """A table of a sink with the columns of a schema version."""

    def __init__(self, leaving: Leaving, schema: CollectionSchema, place: tuple[str, str], copy: str) -> None:
        """Take a collection, its schema, the (schema, table) names, and the copy's name."""
        from psycopg2 import sql

        self._sql = sql
        self.leaving = leaving
        self.schema = schema
        self.place = place
        self.columns = [*schema.names]
        self.key = [*schema.key_names]
        self._types = {
            name: to_postgres_type(schema.arrow.field(name).type, f"{leaving.name}.{name}") for name in self.columns
        }
        self.table = sql.Identifier(*place)
        self.copy = sql.Identifier(place[0], copy)
        self._stage = sql.Identifier(f"stage_{copy[-16:]}_{schema.version}")
        if clash := {*self.columns} & {CHANGED, "_time", "_was", "_is", "_n", "_before", "_there"}:
            raise InvalidUsage(
                f"{leaving.name!r} has a column {min(clash)!r}, a name that this sink needs: rename the column"
            )

    @property
    def label(self) -> str:
        """The table's name for messages."""
        return ".".join(self.place)

    def _run(self, cursor: Any, text: str, values: Sequence[Any] = (), **parts: Any) -> None:
        """Run SQL in which {table}, {copy}, {stage}, {columns}, {key} and `parts` are replaced by names."""
        sql = self._sql
        parts |= {"table": self.table, "copy": self.copy, "stage": self._stage}
        parts |= {"columns": self._join_names(self.columns), "key": self._join_names(self.key)}
        cursor.execute(sql.SQL(text).format(**parts), values or None)

    def _join_names(self, names: Sequence[str], before: str = "", between: str = ", ") -> Any:
        """Return quoted names joined as SQL, each with a prefix."""
        sql = self._sql
        return sql.SQL(between).join(sql.SQL(before) + sql.Identifier(name) for name in names)

    def _match_keys(self, one: str, other: str) -> Any:
        """Return the SQL condition that two table aliases have equal keys."""
        sql = self._sql
        pairs = [
            sql.SQL(one) + sql.Identifier(name) + sql.SQL(" = " + other) + sql.Identifier(name) for name in self.key
        ]
        return sql.SQL(" AND ").join(pairs)

    def begin(self, cursor: Any) -> None:
        """Create the table for the copy. An existing target must fit, and be empty."""
        if self._is_there(cursor):
            self._check_columns(cursor)
            self._check_empty(cursor)
        sql = self._sql
        self._run(cursor, "DROP TABLE IF EXISTS {copy}")
        if self._is_there(cursor):
            self._run(cursor, "CREATE TABLE {copy} (LIKE {table} INCLUDING DEFAULTS)")
            return
        definitions = [sql.Identifier(name) + sql.SQL(" " + self._types[name]) for name in self.columns]
        self._run(cursor, "CREATE TABLE {copy} ({made})", made=sql.SQL(", ").join(definitions))

    def add(self, cursor: Any, batches: Iterable[pa.RecordBatch]) -> None:
        """Add contents to the table for the copy."""
        for batch in batches:
            self._copy(cursor, self.copy, self.columns, batch.select(self.columns))

    def replace_table(self, cursor: Any) -> None:
        """Rename the copy to the target table; if that exists, insert the copy's rows into it."""
        if not self._is_there(cursor):
            self._run(cursor, "ALTER TABLE {copy} ADD PRIMARY KEY ({key})")
            self._run(cursor, "ALTER TABLE {copy} RENAME TO {name}", name=self._sql.Identifier(self.place[1]))
            return
        self._run(cursor, "LOCK TABLE {table} IN EXCLUSIVE MODE")
        self._check_columns(cursor)
        self._check_empty(cursor)
        self._run(cursor, "INSERT INTO {table} ({columns}) SELECT {columns} FROM {copy}; DROP TABLE {copy}")

    def evolve(self, cursor: Any, before: "PgTable") -> None:
        """Change the table's columns from an earlier version's. Existing rows get the default of an added column."""
        sql, was, now = self._sql, before.schema, self.schema
        old, new = dict(zip(was.ids, was.names, strict=True)), dict(zip(now.ids, now.names, strict=True))
        for id_ in {*old} & {*new}:
            self._check_inner_changes(before, old[id_], new[id_])
        renamed = {id_: f"_renamed_{id_}" for id_ in old if id_ in new and old[id_] != new[id_]}
        for id_, name in old.items():  # First out of each other's way: two columns may have changed their names.
            if id_ not in new:
                self._run(cursor, "ALTER TABLE {table} DROP COLUMN {name}", name=sql.Identifier(name))
            elif id_ in renamed:
                self._rename(cursor, name, renamed[id_])
        for id_, name in new.items():
            kind = sql.SQL(self._types[name])
            if id_ not in old:
                parts = {"name": sql.Identifier(name), "kind": kind}
                text = "ALTER TABLE {table} ADD COLUMN {name} {kind} DEFAULT %s"
                self._run(cursor, text, [self._encode_default(name)], **parts)
                self._run(cursor, "ALTER TABLE {table} ALTER COLUMN {name} DROP DEFAULT", **parts)
            elif id_ in renamed:
                self._rename(cursor, renamed[id_], name)
            if id_ in old and before._types[old[id_]] != self._types[name]:
                text = "ALTER TABLE {table} ALTER COLUMN {name} TYPE {kind}"
                self._run(cursor, text, name=sql.Identifier(name), kind=kind)

    def _encode_default(self, name: str) -> str | None:
        """Return the default of a column for earlier rows, as text for Postgres."""
        default = pa.repeat(read_default(self.schema, name), 1)
        text: str | None = _encode_column(default, f"{self.leaving.name}.{name}").cast(pa.string())[0].as_py()
        return text

    def _check_inner_changes(self, before: "PgTable", name: str, new_name: str) -> None:
        """Check that existing documents keep their meaning: inner fields may only be added or widened."""
        nodes = get_column_node(before.schema, name), get_column_node(self.schema, new_name)
        for path, was, now in find_differences(*nodes):
            if was is None or (now and now.name == was.name and all(map(_is_number, (was.kind, now.kind)))):
                continue
            raise InvalidUsage(
                f"the field {path} of {self.leaving.name!r} was renamed, dropped or given another type, and rows of "
                f"the table {self.label} keep it as it was: give the sink up by --drop, empty its tables, and begin "
                "anew"
            )

    def _rename(self, cursor: Any, name: str, to: str) -> None:
        parts = {"name": self._sql.Identifier(name), "to": self._sql.Identifier(to)}
        self._run(cursor, "ALTER TABLE {table} RENAME COLUMN {name} TO {to}", **parts)

    def apply(self, cursor: Any, batches: Iterable[pa.RecordBatch]) -> None:
        """Apply inserts, updates and deletions of rows by key to the table."""
        names = [*self.columns, "_time", "_was", "_is"]
        self._run(
            cursor,
            "CREATE TEMP TABLE IF NOT EXISTS {stage} ON COMMIT DELETE ROWS AS SELECT {columns}, 0::bigint AS _time, "
            "true AS _was, true AS _is FROM {table} LIMIT 0",
        )
        is_empty = True
        for batch in batches:
            is_empty = False
            self._copy(cursor, self._stage, names, _split_transitions(batch, self.columns))
        if is_empty:
            return
        self._run(cursor, "ANALYZE {stage}")
        self._check_changes(cursor)
        last = "(SELECT DISTINCT ON ({key}) * FROM {stage} ORDER BY {key}, _time DESC) s"
        self._run(
            cursor,
            "DELETE FROM {table} t USING " + last + " WHERE NOT s._is AND {same}",
            same=self._match_keys("t.", "s."),
        )
        values = [name for name in self.columns if name not in self.key]
        sets = self._sql.SQL(", ").join(
            self._sql.SQL("{0} = EXCLUDED.{0}").format(self._join_names([v])) for v in values
        )
        action = self._sql.SQL("UPDATE SET {}").format(sets) if values else self._sql.SQL("NOTHING")
        self._run(
            cursor,
            "INSERT INTO {table} ({columns}) SELECT {columns} FROM " + last + " WHERE s._is "
            "ON CONFLICT ({key}) DO {action}",
            action=action,
        )

    def _check_changes(self, cursor: Any) -> None:
        """Raise InvalidUsage if an insert finds its key, or another change does not."""
        self._run(
            cursor,
            "SELECT {named}, s._was FROM (SELECT *, row_number() OVER w AS _n, lag(_is) OVER w AS _before FROM {stage} "
            "WINDOW w AS (PARTITION BY {key} ORDER BY _time)) s LEFT JOIN (SELECT *, true AS _there FROM {table}) t "
            "ON {same} WHERE s._was <> CASE WHEN s._n = 1 THEN t._there IS NOT NULL ELSE s._before END LIMIT 1",
            named=self._join_names(self.key, "s."),
            same=self._match_keys("t.", "s."),
        )
        if row := cursor.fetchone():
            key = ", ".join(f"{name}={value!r}" for name, value in zip(self.key, row, strict=False))
            state = "no row with" if row[-1] else "a row already with"
            raise InvalidUsage(
                f"the table {self.label} has {state} {key}, so the changes of {self.leaving.name!r} cannot be "
                "applied: the key has several rows there, or somebody has changed the table. Nothing of this step "
                f"was sent. {COUNTED}"
            )

    def _copy(self, cursor: Any, into: Any, names: Sequence[str], rows: pa.RecordBatch) -> None:
        """Send rows to a table of the server by COPY."""
        sql = self._sql
        text = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT csv)").format(into, self._join_names(names))
        cursor.copy_expert(text.as_string(cursor.connection), encode_copy_rows(rows, self.leaving.name))

    def _is_there(self, cursor: Any) -> bool:
        cursor.execute("SELECT to_regclass(%s) IS NOT NULL", (self.table.as_string(cursor.connection),))
        return bool(cursor.fetchone()[0])

    def _check_empty(self, cursor: Any) -> None:
        """Raise InvalidUsage if a new target table has rows."""
        self._run(cursor, "SELECT EXISTS (SELECT FROM {table})")
        if cursor.fetchone()[0]:
            raise InvalidUsage(
                f"the table {self.label} has rows that this sink has not sent: empty it, or give {self.leaving.name!r} "
                f'another table by tables = {{ "{self.leaving.name}" = "…" }}'
            )

    def _check_columns(self, cursor: Any) -> None:
        """Raise InvalidUsage unless an existing table can hold the collection."""
        table = self.table.as_string(cursor.connection)
        cursor.execute(
            "SELECT attname, format_type(atttypid, atttypmod), attnotnull AND NOT atthasdef AND attidentity = '' "
            "FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped",
            (table,),
        )
        actual = {name: (kind, is_needed) for name, kind, is_needed in cursor.fetchall()}
        for name, kind in self._types.items():
            if name not in actual:
                raise InvalidUsage(
                    f"the table {self.label} has no column {name!r}: ALTER TABLE {table} ADD COLUMN "
                    f'"{name}" {kind}, or let the sink make the table'
                )
            if not can_hold(kind, actual[name][0]):
                raise InvalidUsage(
                    f"the column {name!r} of the table {self.label} is {actual[name][0]}, which does not hold all "
                    f"values of {kind}: change its type, or let the sink make the table"
                )
        needed = [name for name, (_, is_needed) in actual.items() if is_needed and name not in self._types]
        if needed:
            raise InvalidUsage(
                f"the table {self.label} has a column {needed[0]!r} that {self.leaving.name!r} has not, and it must "
                "not be NULL: give it a default, or drop it"
            )
        cursor.execute(
            "SELECT array_agg(attname::text ORDER BY attname) FROM pg_index i JOIN pg_attribute a ON a.attrelid = "
            "i.indrelid AND a.attnum = ANY (i.indkey) WHERE i.indrelid = to_regclass(%s) AND i.indisunique AND "
            "i.indpred IS NULL AND i.indexprs IS NULL AND i.indnkeyatts = i.indnatts GROUP BY i.indexrelid",
            (table,),
        )
        if [sorted(self.key)] not in [[columns] for (columns,) in cursor.fetchall()]:
            raise InvalidUsage(
                f"the table {self.label} has no unique index on just ({', '.join(self.key)}), by which its rows are "
                f"found: ALTER TABLE {table} ADD PRIMARY KEY ({', '.join(self.key)})"
            )


def _split_transitions(transitions: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    """Return changes of rows as new rows with the columns `_was` and `_is`.

    They show whether the row existed before and exists after.
    """
    change = transitions.column(CHANGED)
    was, comes = pc.not_equal(change, "insert"), pc.not_equal(change, "delete")
    arrays = [transitions.column(name) for name in (*columns, "_time")]
    return pa.RecordBatch.from_arrays([*arrays, was, comes], [*columns, "_time", "_was", "_is"])


_PLAIN = {
    pa.bool_(): "boolean", pa.int8(): "smallint", pa.int16(): "smallint", pa.uint8(): "smallint",
    pa.int32(): "integer", pa.uint16(): "integer", pa.int64(): "bigint", pa.uint32(): "bigint",
    pa.uint64(): "numeric(20,0)", pa.float16(): "real", pa.float32(): "real", pa.float64(): "double precision",
    pa.date32(): "date", pa.date64(): "date",
}  # fmt: skip
# Types that hold all values of another one: a table that is there may have them.
_WIDER = {
    "smallint": ("integer", "bigint", "numeric"),
    "integer": ("bigint", "numeric"),
    "bigint": ("numeric",),
    "numeric(20,0)": ("numeric",),
    "real": ("double precision",),
    "timestamp without time zone": (),
}
_JSON = msgspec.json.Encoder(enc_hook=str)


def to_postgres_type(kind: pa.DataType, where: str) -> str:
    """Return the Postgres type of a column, as the server writes it."""
    if kind in _PLAIN:
        return _PLAIN[kind]
    if pt.is_decimal(kind):
        digits, scale = max(kind.precision, kind.scale), max(kind.scale, 0)
        return f"numeric({digits - min(kind.scale, 0)},{scale})"
    if pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind):
        return "text"
    if is_bytes(kind):
        return "bytea"
    if pt.is_time(kind):
        return "time without time zone"
    if pt.is_timestamp(kind):
        return "timestamp without time zone" if kind.tz is None else "timestamp with time zone"
    if pt.is_duration(kind):
        return "interval"
    if pt.is_nested(kind):
        return "jsonb"
    raise InvalidUsage(f"the column {where} has the type {kind}, which Postgres has no counterpart for: leave it out")


def can_hold(ours: str, theirs: str) -> bool:
    """Return whether a Postgres column of type `theirs` holds all values of type `ours`.

    Text may be of any type: the server parses it, and reports errors.
    """
    if ours == theirs or ours == "text" or (ours == "jsonb" and theirs in ("json", "text")):
        return True
    if ours.startswith("numeric(") and theirs.startswith("numeric("):
        (digits, scale), (their_digits, their_scale) = _parse_precision(ours), _parse_precision(theirs)
        return their_scale >= scale and their_digits - their_scale >= digits - scale
    return theirs in _WIDER.get(ours, ()) or (ours.startswith("numeric(") and theirs == "numeric")


def encode_copy_rows(rows: pa.RecordBatch | pa.Table, table: str) -> io.BytesIO:
    """Return rows as CSV for COPY. NULL is empty, and empty text is in quotes."""
    import pyarrow.csv as pa_csv

    columns = [_encode_column(rows.column(name), f"{table}.{name}") for name in rows.schema.names]
    out = io.BytesIO()
    texts = pa.Table.from_arrays(columns, [*rows.schema.names])
    pa_csv.write_csv(texts, out, pa_csv.WriteOptions(include_header=False))
    out.seek(0)
    return out


def _encode_column(values: pa.Array | pa.ChunkedArray, where: str) -> pa.Array:
    """Return values in a type that Arrow writes as text which Postgres reads."""
    kind = values.type
    try:
        if kind == pa.float16():
            values, kind = values.cast(pa.float32()), pa.float32()
        if pt.is_floating(kind):
            return pc.add(values, pa.scalar(0.0, kind))
        if is_bytes(kind):
            return _encode_hex(values)
        if pt.is_time(kind):
            return values.cast(pa.time64("us"))
        if pt.is_timestamp(kind):
            return _encode_moments(
                values.cast(pa.timestamp("us", None if kind.tz is None else "UTC")), "i8", 86_400_000_000
            )
        if pt.is_date(kind):
            return _encode_moments(values.cast(pa.date32()), "i4", 1)
        if pt.is_duration(kind):
            number = values.cast(pa.duration("us")).cast(pa.int64()).cast(pa.string())
            return pc.binary_join_element_wise(number, pa.scalar("microseconds"), " ")
        if pt.is_nested(kind):
            if not are_finite(values):
                raise ValueError("it has NaN or an infinity, and JSON has none")
            return pa.array([None if v is None else _JSON.encode(v).decode() for v in to_objects(values)], pa.string())
    except (pa.ArrowException, ValueError) as error:
        raise InvalidUsage(
            f"a value of the column {where} does not fit {to_postgres_type(kind, where)}: "
            f"{' '.join(str(error).split())}"
        ) from None
    return values


def _encode_moments(values: pa.Array | pa.ChunkedArray, number: str, day: int) -> pa.Array | pa.ChunkedArray:
    """Return dates or moments; the least and the greatest integers become infinities, as in DuckDB."""
    ends = np.iinfo(number).max, -np.iinfo(number).max
    numbers = values.cast(pa.int32() if day == 1 else pa.int64()).cast(pa.int64())
    is_far = pc.or_(pc.less(numbers, -719_162 * day), pc.greater_equal(numbers, 10_237_747 * day))
    if not pc.any(is_far, min_count=0).as_py():
        return values
    is_end = [pc.equal(numbers, end) for end in ends]
    if pc.any(pc.and_not(is_far, pc.or_(*is_end)), min_count=0).as_py():
        raise ValueError("a date is before the year 1 or after 29999")
    texts = pc.if_else(pc.or_(*is_end), None, values).cast(pa.string())
    return pc.if_else(is_end[0], "infinity", pc.if_else(is_end[1], "-infinity", texts))


def _encode_hex(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return bytes as Postgres's hexadecimal text."""
    chunk = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    chunk = chunk.cast(pa.large_binary())
    offsets = np.frombuffer(chunk.buffers()[1], np.int64)[chunk.offset : chunk.offset + len(chunk) + 1]
    data = b"" if chunk.buffers()[2] is None else chunk.buffers()[2].slice(int(offsets[0])).to_pybytes()
    digits = pa.py_buffer(data[: int(offsets[-1] - offsets[0])].hex().encode())
    places = pa.py_buffer(np.ascontiguousarray(2 * (offsets - offsets[0])))
    texts = pa.LargeStringArray.from_buffers(len(chunk), places, digits)
    marked = pc.binary_join_element_wise(pa.scalar("\\x", pa.large_string()), texts, pa.scalar("", pa.large_string()))
    return pc.if_else(chunk.is_valid(), marked, pa.scalar(None, pa.large_string()))


def _is_number(kind: pa.DataType) -> bool:
    return bool(pt.is_integer(kind) or pt.is_floating(kind))


def _parse_precision(numeric: str) -> tuple[int, int]:
    """Return the digits and decimal places in text such as numeric(10,2)."""
    digits, _, scale = numeric.removeprefix("numeric(").rstrip(")").partition(",")
    return int(digits), int(scale or 0)
