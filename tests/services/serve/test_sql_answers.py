"""What Flight SQL is answered with, asked by messages without a line: what there is, statements, and their limits."""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

import persist
from persist.compute.query import Queries, QueryLimits, QueryResult
from persist.errors import InvalidUsage, Unavailable
from persist.services.serve import flight_sql
from persist.services.serve.flight_calls import DATA_BODY, DATA_HEADER, encode_batch, make_schema_message
from persist.services.serve.flight_sql import FlightSql, unpack_command
from persist.services.serve.messages import encode_fields, group_fields, read_fields
from persist.services.serve.sql_answers import ANSWERS, Asked, get_result_schema

PREFIX = "type.googleapis.com/arrow.flight.protocol.sql."
QUIET = persist.Settings(background=False)
ORDERS = pa.schema([("id", pa.int64()), ("status", pa.string())])


@pytest.fixture(scope="module")
def client() -> Iterator[persist.Client]:
    with persist.open(persist.MemoryBlob(), settings=QUIET) as client:
        keys = {"orders": {"id": int}, "sales.items": {"a": int, "b": int}}
        for name, key in keys.items():
            client.create_or_load(name, key=key, value={"status": str}, keyed=persist.Keyed())
        client["orders"].upsert([(1, "new")]).result()
        client["orders"].tag("opening")
        client.create_view("totals", "SELECT id, status FROM orders").refresh()
        yield client


@pytest.fixture(scope="module")
def queries(client: persist.Client) -> Queries:
    return Queries(client.engine, QueryLimits())


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The parameters of each query that was bound to snapshots."""
    found: list[tuple[Any, ...]] = []
    make = QueryResult.__init__

    def note(self: QueryResult, *arguments: Any, **options: Any) -> None:
        make(self, *arguments, **options)
        found.append(tuple(options["parameters"]))

    monkeypatch.setattr(QueryResult, "__init__", note)
    return found


@pytest.fixture
def sql(queries: Queries) -> Iterator[FlightSql]:
    sql = FlightSql(queries)
    yield sql
    sql.drop_old(0.0)


def wrapped(kind: str, *fields: tuple[int, bytes | int]) -> bytes:
    return encode_fields((1, f"{PREFIX}{kind}".encode()), (2, encode_fields(*fields)))


def told(queries: Queries, question: str, *fields: tuple[int, bytes | int]) -> list[tuple[Any, ...]]:
    """Return the rows of the answer to a question of what there is."""
    message = encode_fields(*fields)
    batch = ANSWERS[question][1](queries, Asked(message))
    assert batch.schema == get_result_schema(question, message)
    return [tuple(row.values()) for row in batch.to_pylist()]


def test_catalogs_and_schemas_are_told(queries: Queries) -> None:
    assert told(queries, "CommandGetCatalogs") == [("latest",), ("opening",)]
    every = [(catalog, schema) for catalog in ("latest", "opening") for schema in ("main", "sales")]
    assert sorted(told(queries, "CommandGetDbSchemas")) == every
    assert told(queries, "CommandGetDbSchemas", (1, b"opening"), (2, b"s%")) == [("opening", "sales")]
    assert [row[0] for row in told(queries, "CommandGetDbSchemas", (1, b"@5"))] == ["@5", "@5"], "any time is a catalog"
    assert told(queries, "CommandGetDbSchemas", (1, b"nowhere")) == []


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
def test_tables_are_told_by_patterns_and_kinds(
    queries: Queries, fields: tuple[tuple[int, bytes]], tables: list[str]
) -> None:
    rows = told(queries, "CommandGetTables", (1, b"latest"), *fields)
    assert [row[2] for row in rows] == tables
    assert {row[0] for row in rows} <= {"latest"}
    with_columns = told(queries, "CommandGetTables", (1, b"latest"), (5, 1), *fields)
    assert [row[:4] for row in with_columns] == rows
    assert {pa.ipc.read_schema(pa.py_buffer(row[4])) == ORDERS for row in with_columns if row[2] == "orders"} <= {True}
    assert told(queries, "CommandGetTables", (1, b"latest"), (5, 0), *fields) == rows
    assert {row[3] for row in rows if row[2] == "totals"} <= {"VIEW"}
    assert {row[3] for row in rows if row[2] != "totals"} <= {"TABLE"}


def test_keys_are_told_in_their_order(queries: Queries) -> None:
    rows = [("latest", "sales", "items", column, None, at) for column, at in (("a", 1), ("b", 2))]
    assert told(queries, "CommandGetPrimaryKeys", (1, b"latest"), (2, b"sales"), (3, b"items")) == rows
    assert [row[3:] for row in told(queries, "CommandGetPrimaryKeys", (3, b"items"))] == [row[3:] for row in rows]
    assert told(queries, "CommandGetPrimaryKeys", (2, b"main"), (3, b"items")) == []
    assert told(queries, "CommandGetPrimaryKeys", (3, b"totals")) == []
    for question in ("ExportedKeys", "ImportedKeys", "CrossReference"):
        assert told(queries, f"CommandGet{question}", (3, b"items")) == []
    assert told(queries, "CommandGetTableTypes") == [("TABLE",), ("VIEW",)]


def test_types_have_their_numbers_of_odbc(queries: Queries) -> None:
    rows = {row[0]: row for row in told(queries, "CommandGetXdbcTypeInfo")}
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
    assert [row[0] for row in told(queries, "CommandGetXdbcTypeInfo", (1, 12))] == ["VARCHAR"]
    assert [row[0] for row in told(queries, "CommandGetXdbcTypeInfo", (1, -7 & (2**64 - 1)))] == ["BOOLEAN"]
    assert told(queries, "CommandGetXdbcTypeInfo", (1, 77)) == []


def test_facts_of_the_server_are_told_by_their_numbers(queries: Queries) -> None:
    every = dict(told(queries, "CommandGetSqlInfo"))
    numbers = (0, 3, 4, 5, 8, 9, 10, 100, 101, 500, 503, 504, 505, 507, 513, 529)
    assert {number: every[number] for number in numbers} == {
        0: "persist", 3: True, 4: True, 5: False, 8: 0, 9: True, 10: False, 100: 600_000, 101: 0, 500: False,
        503: 1, 504: '"', 505: 1, 507: 3, 513: "\\", 529: "schema",
    }  # fmt: skip
    assert all(every[number] is True for number in (506, 515, 516, 518, 520, 532))
    assert all(every[number] is False for number in (501, 502))
    assert told(queries, "CommandGetSqlInfo", (1, 505), (1, 0), (1, 99_999)) == [(505, 1), (0, "persist")]


# Statements.


class Context:
    """A call, which tells when it ends."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], object]] = []

    def add_callback(self, call: Callable[[], object]) -> None:
        self.calls.append(call)


def rows_of(sql: FlightSql, ticket: bytes, context: Context | None = None) -> list[Any]:
    schema, close, batches = sql.open_ticket(ticket, context or Context())
    rows = [row["x"] for batch in batches for row in batch.to_pylist()]
    assert all(batch.schema == schema for batch in batches)
    close()
    return rows


def ticket_of(sql: FlightSql, command: bytes) -> bytes:
    info = sql.info(command)
    [endpoint] = info.endpoints
    ticket: bytes = endpoint.ticket.ticket
    return ticket


def test_a_statement_is_bound_once_and_its_ticket_gives_the_same_however_often_it_is_taken(
    sql: FlightSql, bound: list[tuple[Any, ...]], client: persist.Client
) -> None:
    ticket = ticket_of(sql, wrapped("CommandStatementQuery", (1, b"SELECT count(*) AS x FROM orders")))
    for taken in range(2):
        context = Context()
        assert rows_of(sql, ticket, context) == [1]
        assert len(bound) == 1 + taken, "the first one reads the answer that was bound"
        assert len(context.calls) == 1
        client["orders"].upsert([(100, "new")]).result()
    client["orders"].delete([100])
    with pytest.raises(ValueError, match="there are no transactions here"):
        sql.info(wrapped("CommandStatementQuery", (1, b"SELECT 1"), (2, b"t")))
    with pytest.raises(ValueError, match="this server only reads, and CommandStatementUpdate"):
        sql.info(wrapped("CommandStatementUpdate", (1, b"SELECT 1")))


def test_what_is_no_ticket_of_this_server_is_refused(sql: FlightSql) -> None:
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
            sql.open_ticket(bad, Context())
    longest = b"SELECT 1".ljust(flight_sql.TEXT_MAX)
    sql.info(wrapped("CommandStatementQuery", (1, longest)))
    with pytest.raises(InvalidUsage, match="at most 131,072 are read"):
        sql.info(wrapped("CommandStatementQuery", (1, longest + b" ")))
    assert unpack_command(wrapped("X", (1, b"y"))) == ("X", encode_fields((1, b"y")))


def put(rows: pa.Table, handle: bytes, *more: bytes) -> Iterator[bytes]:
    """Yield the messages that give rows of parameters to a prepared statement, and end as a call does."""
    command = wrapped("CommandPreparedStatementQuery", (1, handle))
    descriptor = flight.FlightDescriptor.for_command(command).serialize()
    first, *rest = [make_schema_message(rows.schema), *(m for b in rows.to_batches() for m in encode_batch(b))]
    yield encode_fields((1, descriptor)) + first
    yield from rest
    yield from more
    raise ValueError("the call ended before all of its message had come")


def prepared(sql: FlightSql, text: str) -> tuple[bytes, pa.Schema | None, pa.Schema]:
    done = sql.run_action(
        "CreatePreparedStatement", wrapped("ActionCreatePreparedStatementRequest", (1, text.encode()))
    )
    kind, message = unpack_command(done or b"")
    assert kind == "ActionCreatePreparedStatementResult"
    fields = group_fields(message)
    columns = pa.ipc.read_schema(pa.py_buffer(fields[2])) if fields[2] else None
    return fields[1], columns, pa.ipc.read_schema(pa.py_buffer(fields[3]))


def test_a_prepared_statement_is_answered_for_each_row_of_its_parameters(
    sql: FlightSql, bound: list[tuple[Any, ...]]
) -> None:
    handle, columns, parameters = prepared(sql, "SELECT ?::BIGINT AS x")
    assert (columns, parameters.names) == (pa.schema([("x", pa.int64())]), ["$1"])
    command = wrapped("CommandPreparedStatementQuery", (1, handle))
    with pytest.raises(InvalidUsage, match="has 1 parameters, and none were given"):
        sql.info(command)
    assert group_fields(group_fields(sql.put(put(pa.table({"a": [3, 4, 5]}), handle)))[1])[1] == handle
    assert rows_of(sql, ticket_of(sql, command)) == [3, 4, 5]
    assert bound == [(None,)], "it is bound to the contents once, when it is prepared"
    assert rows_of(sql, ticket_of(sql, command)) == [3, 4, 5]
    assert bound == [(None,), (3,)]
    with pytest.raises(InvalidUsage, match="has 1 parameters, and 2 were given"):
        sql.put(put(pa.table({"a": [3], "b": [4]}), handle))
    none, columns, parameters = prepared(sql, "SELECT 1 AS x")
    assert (columns is not None, parameters.names) == (True, [])
    assert rows_of(sql, ticket_of(sql, wrapped("CommandPreparedStatementQuery", (1, none)))) == [1]
    typed, columns, _ = prepared(sql, "SELECT x FROM unnest(?) AS t(x)")
    assert columns is None, "it depends on the types of its parameters"
    sql.put(put(pa.table({"a": [[1], [2, 3]]}), typed))
    assert rows_of(sql, ticket_of(sql, wrapped("CommandPreparedStatementQuery", (1, typed)))) == [1, 2, 3]
    with pytest.raises(InvalidUsage, match="DuckDB refuses the query"):
        prepared(sql, "FROM nowhere")
    assert sql.run_action("ClosePreparedStatement", wrapped("ActionClosePreparedStatementRequest", (1, none))) == b""
    with pytest.raises(InvalidUsage, match="there is no such prepared statement"):
        sql.info(wrapped("CommandPreparedStatementQuery", (1, none)))
    with pytest.raises(ValueError, match="this server only reads"):
        sql.put(iter([encode_fields((1, encode_fields((2, wrapped("CommandStatementUpdate")))))]))


@pytest.mark.parametrize("table", ["orders", "latest.main.orders"])
def test_an_execution_reads_what_was_committed_since_the_statement_was_prepared(
    client: persist.Client, sql: FlightSql, table: str
) -> None:
    handle, _, _ = prepared(sql, f"SELECT id AS x FROM {table} WHERE id >= 10")
    client["orders"].upsert([(10, "new")]).result()
    ticket = ticket_of(sql, wrapped("CommandPreparedStatementQuery", (1, handle)))
    client["orders"].delete([10])
    assert rows_of(sql, ticket) == [10]
    assert rows_of(sql, ticket_of(sql, wrapped("CommandPreparedStatementQuery", (1, handle)))) == []


def test_answers_that_are_not_read_are_released(
    client: persist.Client, sql: FlightSql, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reads() -> int:
        return int(client.metrics().groups["leases"]["reads"])

    monkeypatch.setattr(flight_sql, "BOUND_MAX", 2)
    sql = FlightSql(Queries(client.engine, QueryLimits()))
    before = reads()
    tickets = [
        ticket_of(sql, wrapped("CommandStatementQuery", (1, f"SELECT {n} AS x FROM orders WHERE id = 1".encode())))
        for n in range(3)
    ]
    assert reads() == before + 2
    assert [rows_of(sql, ticket) for ticket in tickets] == [[0], [1], [2]]
    assert reads() == before
    handle, _, _ = prepared(sql, "FROM orders")
    assert reads() == before + 1
    sql.run_action("ClosePreparedStatement", wrapped("ActionClosePreparedStatementRequest", (1, handle)))
    assert reads() == before
    prepared(sql, "FROM orders")
    sql.drop_old()
    assert reads() == before + 1
    sql.drop_old(0.0)
    assert reads() == before


def test_parameters_are_bounded_and_whole(sql: FlightSql, monkeypatch: pytest.MonkeyPatch) -> None:
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
    sizes = [len(group_fields(m).get(DATA_BODY, b"")) for m in encode_batch(rows.to_batches()[0])]
    assert max(sizes) > 0
    both, _, _ = prepared(sql, "SELECT ?, ? AS x")
    sql.put(put(rows, both))
    with pytest.raises(InvalidUsage, match="result has other types for some rows"):
        rows_of(sql, ticket_of(sql, wrapped("CommandPreparedStatementQuery", (1, both))))


def test_of_prepared_statements_those_go_that_were_used_longest_ago(
    queries: Queries, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flight_sql, "PREPARED_MAX", 2)
    sql = FlightSql(queries)
    first, second = (prepared(sql, "SELECT 1")[0] for _ in range(2))
    asked = [wrapped("CommandPreparedStatementQuery", (1, handle)) for handle in (first, second)]
    sql.info(asked[0])  # Now the second was used longest ago.
    prepared(sql, "SELECT 1")
    sql.info(asked[0])
    with pytest.raises(InvalidUsage, match="there is no such prepared statement"):
        sql.info(asked[1])
    monkeypatch.setattr(flight_sql, "PREPARED_S", 0.0)
    sql = FlightSql(queries)
    handle, _, _ = prepared(sql, "SELECT 1")
    with pytest.raises(InvalidUsage, match="there is no such prepared statement"):
        sql.info(wrapped("CommandPreparedStatementQuery", (1, handle)))


def test_only_so_many_answers_are_read_and_each_one_that_ends_makes_room(
    queries: Queries, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flight_sql, "QUERIES_MAX", 2)
    sql = FlightSql(queries)
    ticket = ticket_of(sql, wrapped("CommandStatementQuery", (1, b"SELECT 1")))
    opened = [sql.open_ticket(ticket, Context()) for _ in range(2)]
    for _ in range(2):
        with pytest.raises(Unavailable, match="2 queries run already"):
            sql.open_ticket(ticket, Context())
        opened.pop()[1]()
        opened.append(sql.open_ticket(ticket, Context()))
    bad = wrapped("TicketStatementQuery", (1, b'{"sql":"FROM nowhere","times":[]}'))
    opened.pop()[1]()
    for _ in range(3):
        with pytest.raises(InvalidUsage, match="DuckDB refuses the query"):
            sql.open_ticket(bad, Context())
    for _ in range(2):
        opened[0][1]()  # Twice is once.
    opened += [sql.open_ticket(ticket, Context()) for _ in range(2)]
    with pytest.raises(Unavailable):
        sql.open_ticket(ticket, Context())
    for _, close, _ in opened:
        close()


def test_a_query_is_cancelled_by_its_ticket_or_by_who_has_gone(sql: FlightSql) -> None:
    command = wrapped("CommandStatementQuery", (1, b"SELECT 1 AS x"))
    info = sql.info(command)
    whole = encode_fields((1, info.serialize()))
    assert sql.run_action("CancelFlightInfo", whole) == encode_fields((1, 3)), "it does not run"
    context = Context()
    _, close, batches = sql.open_ticket(info.endpoints[0].ticket.ticket, context)
    assert sql.run_action("CancelFlightInfo", whole) == encode_fields((1, 1))
    with pytest.raises(InvalidUsage, match="the query was ended: it was cancelled"):
        next(batches)
    close()
    assert sql.run_action("CancelQuery", wrapped("ActionCancelQueryRequest", (1, info.serialize()))) == wrapped(
        "ActionCancelQueryResult", (1, 3)
    )
    handle, _, _ = prepared(sql, "SELECT ?::BIGINT AS x")
    sql.put(put(pa.table({"a": [1, 2]}), handle))
    ticket = ticket_of(sql, wrapped("CommandPreparedStatementQuery", (1, handle)))
    context = Context()
    _, close, batches = sql.open_ticket(ticket, context)
    next(batches)
    [gone] = context.calls
    gone()
    with pytest.raises(InvalidUsage, match="the query was ended: its client has gone"):
        next(batches)
    close()
    with pytest.raises(ValueError, match="the query to cancel is not a FlightInfo"):
        sql.run_action("CancelFlightInfo", encode_fields((1, b"x")))
    assert sql.run_action("CloseSession", b"") == encode_fields((1, 1))
    assert sql.run_action("wait", b"") is None
    assert [*read_fields(encode_fields((1, 3)))] == [(1, 3)]
