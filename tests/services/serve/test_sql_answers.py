"""What Flight SQL is answered with, asked by messages without a line: what there is, statements, and their limits."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from persist.compute.query import Queries
from persist.errors import InvalidUsage, Unavailable
from persist.services.serve import flight_sql
from persist.services.serve.flight_calls import DATA_BODY, DATA_HEADER, batch_messages, schema_message
from persist.services.serve.flight_sql import FlightSql, is_sql, unpack_command
from persist.services.serve.messages import encode_fields, group_fields, read_fields
from persist.services.serve.sql_answers import ANSWERS, Asked, result_schema

PREFIX = "type.googleapis.com/arrow.flight.protocol.sql."
ORDERS = pa.schema([("id", pa.int64()), ("status", pa.string())])


@dataclass(frozen=True)
class About:
    schema: str
    table: str
    is_view: bool = False
    key: tuple[str, ...] = ("id",)
    columns: pa.Schema = ORDERS


class Answer:
    """An answer of one row for each parameter."""

    def __init__(self, schema: pa.Schema, row: Sequence[Any]) -> None:
        self.schema, self.row = schema, row
        self.times: dict[tuple[str, ...], int] = {("main", "orders"): 7}
        self.why, self.closes = "", 0

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        value = pa.array([self.row[0] if self.row else 1]).cast(self.schema.types[0])
        yield pa.RecordBatch.from_arrays([value], schema=self.schema)

    def interrupt(self, why: str) -> None:
        self.why = self.why or why

    def close(self) -> None:
        self.closes += 1


class Known:
    """Who answers queries: those that end in so many question marks have so many parameters."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, tuple[Any, ...], Any]] = []
        self.answers: list[Answer] = []

    def catalogs(self) -> list[str]:
        return ["latest", "opening"]

    def tables(self) -> list[About]:
        return [About("main", "orders"), About("main", "totals", True, ()), About("sales", "items", key=("a", "b"))]

    def ask(
        self, sql: str, parameters: Sequence[Any] = (), times: Mapping[tuple[str, ...], int] | None = None
    ) -> Answer:
        self.asked.append((sql, tuple(parameters), times))
        if "wrong" in sql or (None in parameters and "typed" in sql):
            raise InvalidUsage("this cannot be asked")
        kind = pa.string() if any(isinstance(each, str) for each in parameters) else pa.int64()
        self.answers.append(Answer(pa.schema([("x", kind)]), parameters))
        return self.answers[-1]

    def parameters(self, sql: str) -> int:
        return sql.count("?")

    def turn(self) -> AbstractContextManager[object]:
        return nullcontext()


def wrapped(kind: str, *fields: tuple[int, bytes | int]) -> bytes:
    return encode_fields((1, f"{PREFIX}{kind}".encode()), (2, encode_fields(*fields)))


def told(question: str, *fields: tuple[int, bytes | int]) -> list[tuple[Any, ...]]:
    """Return the rows of the answer to a question of what there is."""
    message = encode_fields(*fields)
    batch = ANSWERS[question][1](cast(Queries, Known()), Asked(message))
    assert batch.schema == result_schema(question, message)
    return [tuple(row.values()) for row in batch.to_pylist()]


def test_catalogs_and_schemas_are_told() -> None:
    assert told("CommandGetCatalogs") == [("latest",), ("opening",)]
    every = [(catalog, schema) for catalog in ("latest", "opening") for schema in ("main", "sales")]
    assert sorted(told("CommandGetDbSchemas")) == every
    assert told("CommandGetDbSchemas", (1, b"opening"), (2, b"s%")) == [("opening", "sales")]
    assert [row[0] for row in told("CommandGetDbSchemas", (1, b"@5"))] == ["@5", "@5"], "any time is a catalog"
    assert told("CommandGetDbSchemas", (1, b"nowhere")) == []


@pytest.mark.parametrize(
    ("fields", "tables"),
    [
        ((), ["orders", "totals", "items"]),
        (((3, b"o_ders"),), ["orders"]),
        (((3, b"o"),), []),
        (((3, b"%s"),), ["orders", "totals", "items"]),
        (((3, b"o%\\s"),), ["orders"]),
        (((3, b"\\%"),), []),
        (((2, b"sales"),), ["items"]),
        (((4, b"VIEW"),), ["totals"]),
        (((4, b"VIEW"), (4, b"TABLE")), ["orders", "totals", "items"]),
        (((4, b"X"),), []),
    ],
)
def test_tables_are_told_by_patterns_and_kinds(fields: tuple[tuple[int, bytes]], tables: list[str]) -> None:
    rows = told("CommandGetTables", (1, b"latest"), *fields)
    assert [row[2] for row in rows] == tables
    assert {row[0] for row in rows} <= {"latest"}
    with_columns = told("CommandGetTables", (1, b"latest"), (5, 1), *fields)
    assert [row[:4] for row in with_columns] == rows
    assert all(pa.ipc.read_schema(pa.py_buffer(row[4])) == ORDERS for row in with_columns)
    assert told("CommandGetTables", (1, b"latest"), (5, 0), *fields) == rows
    assert {row[3] for row in rows if row[2] == "totals"} <= {"VIEW"}
    assert {row[3] for row in rows if row[2] != "totals"} <= {"TABLE"}


def test_keys_are_told_in_their_order() -> None:
    rows = [("latest", "sales", "items", column, None, at) for column, at in (("a", 1), ("b", 2))]
    assert told("CommandGetPrimaryKeys", (1, b"latest"), (2, b"sales"), (3, b"items")) == rows
    assert [row[3:] for row in told("CommandGetPrimaryKeys", (3, b"items"))] == [row[3:] for row in rows]
    assert told("CommandGetPrimaryKeys", (2, b"main"), (3, b"items")) == []
    assert told("CommandGetPrimaryKeys", (3, b"totals")) == []
    for question in ("ExportedKeys", "ImportedKeys", "CrossReference"):
        assert told(f"CommandGet{question}", (3, b"items")) == []
    assert told("CommandGetTableTypes") == [("TABLE",), ("VIEW",)]


def test_types_have_their_numbers_of_odbc() -> None:
    rows = {row[0]: row for row in told("CommandGetXdbcTypeInfo")}
    assert {name: row[1:3] for name, row in rows.items()} == {
        "BOOLEAN": (-7, 1), "TINYINT": (-6, 3), "SMALLINT": (5, 5), "INTEGER": (4, 10), "BIGINT": (-5, 19),
        "REAL": (7, 24), "DOUBLE": (8, 53), "DECIMAL": (3, 38), "VARCHAR": (12, None), "BLOB": (-3, None),
        "DATE": (91, 10), "TIME": (92, 15), "TIMESTAMP": (93, 26),
    }  # fmt: skip
    quoted = {name for name, row in rows.items() if row[3] is not None}
    assert quoted == {"VARCHAR", "DATE", "TIME", "TIMESTAMP"}
    assert {row[3:5] for name, row in rows.items() if name in quoted} == {("'", "'")}
    radix = {name: row[17] for name, row in rows.items() if row[17] is not None}
    assert radix == dict.fromkeys(("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "DECIMAL"), 10) | {
        "REAL": 2,
        "DOUBLE": 2,
    }
    assert [name for name, row in rows.items() if row[7]] == ["VARCHAR"], "is told apart by case"
    assert {(row[6], row[8], row[10]) for row in rows.values()} == {(1, 3, False)}
    assert [row[0] for row in told("CommandGetXdbcTypeInfo", (1, 12))] == ["VARCHAR"]
    assert [row[0] for row in told("CommandGetXdbcTypeInfo", (1, -7 & (2**64 - 1)))] == ["BOOLEAN"]
    assert told("CommandGetXdbcTypeInfo", (1, 77)) == []


def test_facts_of_the_server_are_told_by_their_numbers() -> None:
    every = dict(told("CommandGetSqlInfo"))
    numbers = (0, 3, 4, 5, 8, 9, 10, 100, 101, 500, 503, 504, 505, 507, 513, 529)
    assert {number: every[number] for number in numbers} == {
        0: "persist", 3: True, 4: True, 5: False, 8: 0, 9: True, 10: False, 100: 600_000, 101: 0, 500: False,
        503: 1, 504: '"', 505: 1, 507: 3, 513: "\\", 529: "schema",
    }  # fmt: skip
    assert all(every[number] is True for number in (506, 515, 516, 518, 520, 532))
    assert all(every[number] is False for number in (501, 502))
    assert told("CommandGetSqlInfo", (1, 505), (1, 0), (1, 99_999)) == [(505, 1), (0, "persist")]


# Statements.


class Context:
    """A call, which tells when it ends."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], object]] = []

    def add_callback(self, call: Callable[[], object]) -> None:
        self.calls.append(call)


def rows_of(sql: FlightSql, ticket: bytes, context: Context | None = None) -> list[Any]:
    schema, close, batches = sql.opened(ticket, context or Context())
    rows = [row["x"] for batch in batches for row in batch.to_pylist()]
    assert all(batch.schema == schema for batch in batches)
    close()
    return rows


def ticket_of(sql: FlightSql, command: bytes) -> bytes:
    info = sql.info(command)
    [endpoint] = info.endpoints
    ticket: bytes = endpoint.ticket.ticket
    return ticket


def test_a_statement_is_bound_when_it_is_asked_for_and_gives_the_same_however_often_it_is_taken() -> None:
    known = Known()
    sql = FlightSql(cast(Queries, known))
    ticket = ticket_of(sql, wrapped("CommandStatementQuery", (1, b"SELECT 1")))
    assert is_sql(ticket)
    assert {each.closes for each in known.answers} == {1}
    assert {each[2] for each in known.asked} == {None}
    for _ in range(2):
        context = Context()
        assert rows_of(sql, ticket, context) == [1]
        assert known.asked[-1] == ("SELECT 1", (), {("main", "orders"): 7})
        assert known.answers[-1].closes == 1
        assert len(context.calls) == 1
    with pytest.raises(ValueError, match="there are no transactions here"):
        sql.info(wrapped("CommandStatementQuery", (1, b"SELECT 1"), (2, b"t")))
    with pytest.raises(ValueError, match="this server only reads, and CommandStatementUpdate"):
        sql.info(wrapped("CommandStatementUpdate", (1, b"SELECT 1")))


def test_what_is_no_ticket_of_this_server_is_refused() -> None:
    sql = FlightSql(cast(Queries, Known()))
    for bad, reason in [
        (
            wrapped("CommandStatementQuery", (1, b"SELECT 1")),
            "a ticket of the kind 'CommandStatementQuery' does not belong",
        ),
        (wrapped("TicketStatementQuery"), "the ticket does not belong to this server"),
        (wrapped("TicketStatementQuery", (1, b"\xff")), "the ticket does not belong to this server"),
        (wrapped("TicketStatementQuery", (1, b'{"sql":"x","times":[],"parameters":"!"}')), "not an Arrow"),
        (wrapped("TicketStatementQuery", (1, b'{"sql":"x","times":[],"parameters":"AAAA"}')), "not an Arrow"),
        (encode_fields((1, b"x")), "the command is not a command of Flight SQL"),
    ]:
        with pytest.raises(ValueError, match=reason):
            sql.opened(bad, Context())
    long = flight_sql.TEXT_MAX
    sql.info(wrapped("CommandStatementQuery", (1, b"x" * long)))
    with pytest.raises(InvalidUsage, match="at most 131,072 are read"):
        sql.info(wrapped("CommandStatementQuery", (1, b"x" * (long + 1))))
    assert unpack_command(wrapped("X", (1, b"y"))) == ("X", encode_fields((1, b"y")))
    assert [is_sql(each) for each in (b"", wrapped("X"), PREFIX.encode(), b"xx" + PREFIX.encode())] == [
        False, True, False, True,
    ]  # fmt: skip


def put(rows: pa.Table, handle: bytes, *more: bytes) -> Iterator[bytes]:
    """Yield the messages that give rows of parameters to a prepared statement, and end as a call does."""
    command = wrapped("CommandPreparedStatementQuery", (1, handle))
    descriptor = flight.FlightDescriptor.for_command(command).serialize()
    first, *rest = [schema_message(rows.schema), *(m for b in rows.to_batches() for m in batch_messages(b))]
    yield encode_fields((1, descriptor)) + first
    yield from rest
    yield from more
    raise ValueError("the call ended before all of its message had come")


def prepared(sql: FlightSql, text: str) -> tuple[bytes, pa.Schema | None, pa.Schema]:
    done = sql.done("CreatePreparedStatement", wrapped("ActionCreatePreparedStatementRequest", (1, text.encode())))
    kind, message = unpack_command(done or b"")
    assert kind == "ActionCreatePreparedStatementResult"
    fields = group_fields(message)
    columns = pa.ipc.read_schema(pa.py_buffer(fields[2])) if fields[2] else None
    return fields[1], columns, pa.ipc.read_schema(pa.py_buffer(fields[3]))


def test_a_prepared_statement_is_answered_for_each_row_of_its_parameters() -> None:
    known = Known()
    sql = FlightSql(cast(Queries, known))
    handle, columns, parameters = prepared(sql, "SELECT ?")
    assert (columns, parameters.names) == (pa.schema([("x", pa.int64())]), ["$1"])
    command = wrapped("CommandPreparedStatementQuery", (1, handle))
    with pytest.raises(InvalidUsage, match="has 1 parameters, and none were given"):
        sql.info(command)
    assert group_fields(group_fields(sql.put(put(pa.table({"a": [3, 4, 5]}), handle)))[1])[1] == handle
    assert rows_of(sql, ticket_of(sql, command)) == [3, 4, 5]
    assert [each.closes for each in known.answers[-3:]] == [1, 1, 1]
    with pytest.raises(InvalidUsage, match="has 1 parameters, and 2 were given"):
        sql.put(put(pa.table({"a": [3], "b": [4]}), handle))
    none, columns, parameters = prepared(sql, "SELECT 1")
    assert (columns is not None, parameters.names) == (True, [])
    assert rows_of(sql, ticket_of(sql, wrapped("CommandPreparedStatementQuery", (1, none)))) == [1]
    typed, columns, _ = prepared(sql, "SELECT typed ?")
    assert columns is None, "it depends on the types of its parameters"
    sql.put(put(pa.table({"a": [1]}), typed))
    assert rows_of(sql, ticket_of(sql, wrapped("CommandPreparedStatementQuery", (1, typed)))) == [1]
    with pytest.raises(InvalidUsage, match="this cannot be asked"):
        prepared(sql, "wrong")
    assert sql.done("ClosePreparedStatement", wrapped("ActionClosePreparedStatementRequest", (1, none))) == b""
    with pytest.raises(InvalidUsage, match="there is no such prepared statement"):
        sql.info(wrapped("CommandPreparedStatementQuery", (1, none)))
    with pytest.raises(ValueError, match="this server only reads"):
        sql.put(iter([encode_fields((1, encode_fields((2, wrapped("CommandStatementUpdate")))))]))


def test_parameters_are_bounded_and_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    sql = FlightSql(cast(Queries, Known()))
    handle, _, _ = prepared(sql, "SELECT ?")
    most = flight_sql.PARAMETER_ROWS_MAX
    sql.put(put(pa.table({"a": range(most)}), handle))
    with pytest.raises(InvalidUsage, match="there are 1,025 rows of parameters"):
        sql.put(put(pa.table({"a": range(most + 1)}), handle))
    with pytest.raises(InvalidUsage, match="take more than 1,048,576 bytes"):
        sql.put(put(pa.table({"a": ["x" * (1 << 20)]}), handle))
    with monkeypatch.context() as patched:
        messages = [*islice(put(pa.table({"a": [1]}), handle), 2)]
        taken = sum(len(group_fields(m).get(kind, b"")) for m in messages for kind in (DATA_HEADER, DATA_BODY))
        patched.setattr(flight_sql, "PARAMETER_BYTES_MAX", taken)
        sql.put(iter(messages))
        patched.setattr(flight_sql, "PARAMETER_BYTES_MAX", taken - 1)
        with pytest.raises(InvalidUsage, match="take more than"):
            sql.put(iter(messages))
    with pytest.raises(ValueError, match="the parameters are not an Arrow table"):
        sql.put(put(pa.table({"a": [1]}), handle, encode_fields((DATA_HEADER, b"x"), (DATA_BODY, b"y"))))
    offsets = (1).to_bytes(4, "little") + (2).to_bytes(4, "little")
    damaged = (m.replace(offsets, offsets[:4] + b"\x77\x00\x00\x00") for m in put(pa.table({"a": ["x", "y"]}), handle))
    with pytest.raises(ValueError, match="the parameters are not an Arrow table"):
        sql.put(damaged)
    rows = pa.table({"a": [1, 2], "b": ["x", None]})
    sizes = [len(group_fields(m).get(DATA_BODY, b"")) for m in batch_messages(rows.to_batches()[0])]
    assert max(sizes) > 0
    both, _, _ = prepared(sql, "SELECT ?, ?")
    sql.put(put(rows, both))
    with pytest.raises(InvalidUsage, match="types of its columns are not the same for all rows"):
        rows_of(sql, ticket_of(sql, wrapped("CommandPreparedStatementQuery", (1, both))))


def test_of_prepared_statements_those_go_that_were_used_longest_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight_sql, "PREPARED_MAX", 2)
    sql = FlightSql(cast(Queries, Known()))
    first, second = (prepared(sql, "SELECT 1")[0] for _ in range(2))
    asked = [wrapped("CommandPreparedStatementQuery", (1, handle)) for handle in (first, second)]
    sql.info(asked[0])  # Now the second was used longest ago.
    third, _, _ = prepared(sql, "SELECT 1")
    sql.info(asked[0])
    with pytest.raises(InvalidUsage, match="there is no such prepared statement"):
        sql.info(asked[1])
    monkeypatch.setattr(flight_sql, "PREPARED_S", 0.0)
    prepared(sql, "SELECT 1")
    for handle in (first, third):
        with pytest.raises(InvalidUsage, match="there is no such prepared statement"):
            sql.info(wrapped("CommandPreparedStatementQuery", (1, handle)))


def test_only_so_many_queries_run_and_each_one_that_ends_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight_sql, "QUERIES_MAX", 2)
    sql = FlightSql(cast(Queries, Known()))
    ticket = ticket_of(sql, wrapped("CommandStatementQuery", (1, b"SELECT 1")))
    opened = [sql.opened(ticket, Context()) for _ in range(2)]
    for _ in range(2):
        with pytest.raises(Unavailable, match="2 queries run already"):
            sql.opened(ticket, Context())
        opened.pop()[1]()
        opened.append(sql.opened(ticket, Context()))
    bad = wrapped("TicketStatementQuery", (1, b'{"sql":"wrong","times":[]}'))
    opened.pop()[1]()
    for _ in range(3):
        with pytest.raises(InvalidUsage, match="this cannot be asked"):
            sql.opened(bad, Context())
    opened[0][1]()
    opened[0][1]()  # Twice is once.
    for _ in range(2):
        opened.append(sql.opened(ticket, Context()))
    with pytest.raises(Unavailable):
        sql.opened(ticket, Context())


def test_a_query_is_cancelled_by_its_ticket_or_by_who_has_gone() -> None:
    known = Known()
    sql = FlightSql(cast(Queries, known))
    command = wrapped("CommandStatementQuery", (1, b"SELECT 1"))
    info = sql.info(command)
    whole = encode_fields((1, info.serialize()))
    assert sql.done("CancelFlightInfo", whole) == encode_fields((1, 3)), "it does not run"
    context = Context()
    _, close, batches = sql.opened(info.endpoints[0].ticket.ticket, context)
    assert sql.done("CancelFlightInfo", whole) == encode_fields((1, 1))
    assert known.answers[-1].why == "it was cancelled"
    close()
    assert sql.done("CancelQuery", wrapped("ActionCancelQueryRequest", (1, info.serialize()))) == wrapped(
        "ActionCancelQueryResult", (1, 3)
    )
    handle, _, _ = prepared(sql, "SELECT ?")
    sql.put(put(pa.table({"a": [1, 2]}), handle))
    ticket = ticket_of(sql, wrapped("CommandPreparedStatementQuery", (1, handle)))
    context = Context()
    _, close, batches = sql.opened(ticket, context)
    next(batches)
    [gone] = context.calls
    gone()
    with pytest.raises(InvalidUsage, match="the query was ended: its client has gone"):
        next(batches)
    close()
    with pytest.raises(ValueError, match="the query to cancel is not a FlightInfo"):
        sql.done("CancelFlightInfo", encode_fields((1, b"x")))
    assert sql.done("CloseSession", b"") == encode_fields((1, 1))
    assert sql.done("wait", b"") is None
    assert [*read_fields(encode_fields((1, 3)))] == [(1, 3)]
