"""Flight SQL, asked by Apache's driver, which nobody here wrote, and by messages that no driver would send."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import adbc_driver_flightsql.dbapi as flightsql
import pyarrow as pa
import pyarrow.flight as flight
import pytest
from adbc_driver_manager import Error

import persist
from persist.api.client import Client
from persist.blob.protocol import MemoryBlob
from persist.compute.query import QUERIES_MAX
from persist.services.serve.flight_sql import FlightSql
from persist.services.serve.messages import encode_fields
from persist.sql import QueryLimits
from tests.support.stepped import WAIT_S

LOCAL = "grpc://127.0.0.1:0"
TOKEN = "a-token-of-the-tests"
QUIET = persist.Settings(background=False)
HEADER = "adbc.flight.sql.authorization_header"
ENDLESS = "SELECT sum(a.range + b.range) FROM range(1000000) a, range(1000000) b"


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """A client whose location no test changes."""
    with opened() as client:
        yield client


@contextlib.contextmanager
def opened() -> Iterator[Client]:
    with persist.open(MemoryBlob(), settings=QUIET) as client:
        orders = client.create_or_load("orders", key={"id": int}, value={"status": str, "amount": float})
        orders.write([((1, ("new", 2.5)), 0, 1), ((2, ("new", 1.5)), 0, 1)], seal=1).result()
        orders.tag("opening", 0)
        orders.write([((1, ("new", 2.5)), 4, -1), ((1, ("paid", 2.5)), 4, 1)], seal=5).result()
        items = client.create_or_load("sales.items", key={"id": int}, value={"n": int}, keyed=persist.Keyed())
        items.upsert([(7, 3)]).result()
        with contextlib.closing(
            client.create_view("totals", "SELECT status, sum(amount) AS t FROM orders GROUP BY 1")
        ) as view:
            view.refresh()
        yield client


def connected(url: str, token: str | None = TOKEN) -> Any:
    return flightsql.connect(url, db_kwargs={HEADER: f"Bearer {token}"} if token else {}, autocommit=True)


@pytest.fixture(scope="module")
def connection(client: Client) -> Iterator[Any]:
    with client.serve(LOCAL, token=TOKEN, sql=True) as server, connected(server.url) as connection:
        yield connection


@pytest.fixture(scope="module")
def raw(client: Client) -> Iterator[Any]:
    """A connection that sends any bytes."""
    with client.serve(LOCAL, sql=True) as server, flight.connect(server.url) as raw:
        yield raw


def rows(connection: Any, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql, [*parameters] or None)
        found: list[tuple[Any, ...]] = cursor.fetchall()
        return found


def refusal(connection: Any, sql: str, *parameters: Any) -> str:
    with pytest.raises(Error) as told:
        rows(connection, sql, *parameters)
    return str(told.value)


def test_a_query_gives_the_rows_and_types_of_the_collections(client: Client, connection: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT * FROM orders ORDER BY id")
        found = cursor.fetch_arrow_table()
    assert found.equals(client.sql("SELECT * FROM orders ORDER BY id").to_arrow())
    assert rows(connection, "SELECT o.status, i.n FROM orders o JOIN sales.items i ON i.id = o.id + 6") == [("paid", 3)]
    assert rows(connection, "FROM totals ORDER BY status") == [("new", 1.5), ("paid", 2.5)]
    assert rows(connection, "SELECT * FROM orders WHERE id > 5") == []


@pytest.mark.thorough(except_every=2)
@pytest.mark.parametrize(
    ("table", "status"),
    [
        ("main.orders", "paid"),
        ("latest.main.orders", "paid"),
        ("Latest.orders", "paid"),
        ("opening.main.orders", "new"),
        ('"@4".orders', "paid"),
        ("orders VERSION AS OF 3", "new"),
        ("main.orders FOR SYSTEM_TIME AS OF 'opening' AS o", "new"),
    ],
)
def test_a_catalog_is_a_time(connection: Any, table: str, status: str) -> None:
    assert rows(connection, f"SELECT status FROM {table} WHERE id = 1") == [(status,)]


def test_an_answer_that_waits_for_its_client_shows_nothing_erased() -> None:
    with opened() as client, client.serve(LOCAL, sql=True) as server, flight.connect(server.url) as raw:
        command = flight.FlightDescriptor.for_command(_command("StatementQuery", "SELECT id FROM orders"))
        [endpoint] = raw.get_flight_info(command).endpoints
        client["orders"].erase([1], reason="request 17")
        assert raw.do_get(endpoint.ticket).read_all()["id"].to_pylist() == [2]


def test_answers_that_nobody_reads_go_while_the_store_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    has_failed, has_dropped = threading.Event(), threading.Event()

    def fail(*_: Any) -> None:
        has_failed.set()
        raise persist.errors.Unavailable("the store is away")

    def drop_old(*_: Any) -> None:
        if has_failed.is_set():
            has_dropped.set()

    monkeypatch.setattr(FlightSql, "drop_old", drop_old)
    with opened() as client, client.serve(LOCAL, sql=True):
        monkeypatch.setattr(client.engine.follower, "wait_for", fail)
        assert has_dropped.wait(WAIT_S)


def test_parameters_of_prepared_statements(connection: Any) -> None:
    assert rows(connection, "SELECT id FROM orders WHERE status = ? AND amount < ?", "new", 2.0) == [(2,)]
    assert rows(connection, "SELECT $2, $1", 1, "x") == [("x", 1)]
    with connection.cursor() as cursor:
        assert cursor.adbc_prepare("SELECT id FROM orders WHERE id = ?").names == ["$1"]
        for wanted in (1, 2):
            cursor.execute("SELECT id FROM orders WHERE id = ?", [wanted])
            assert cursor.fetchall() == [(wanted,)]
    assert "2 parameters, and 1 were given" in refusal(connection, "SELECT ?, ?", 1)
    assert "have names" in refusal(connection, "SELECT $one", 1)


def test_a_tool_is_told_what_there_is(client: Client, connection: Any) -> None:
    listed = connection.adbc_get_objects(depth="tables").read_all().to_pylist()
    assert [catalog["catalog_name"] for catalog in listed] == ["latest", "opening"]
    for catalog in listed:
        tables = {
            (schema["db_schema_name"], table["table_name"], table["table_type"])
            for schema in catalog["catalog_db_schemas"]
            for table in schema["db_schema_tables"]
        }
        assert tables == {("main", "orders", "TABLE"), ("main", "totals", "VIEW"), ("sales", "items", "TABLE")}
    like = connection.adbc_get_objects(depth="tables", catalog_filter="latest", table_name_filter="o_d%").read_all()
    [schema, _] = like.to_pylist()[0]["catalog_db_schemas"]
    assert [table["table_name"] for table in schema["db_schema_tables"]] == ["orders"]
    assert connection.adbc_get_table_types() == ["TABLE", "VIEW"]
    assert connection.adbc_get_table_schema("orders").names == ["id", "status", "amount"]
    assert connection.adbc_get_info()["vendor_name"] == "persist"
    with connection.cursor() as cursor:
        assert cursor.adbc_execute_schema("SELECT 1::BIGINT AS one") == pa.schema([("one", pa.int64())])


@pytest.mark.parametrize(
    "command", ["PrimaryKeys", "ExportedKeys", "ImportedKeys", "CrossReference", "XdbcTypeInfo", "Catalogs"]
)
def test_each_question_has_the_columns_that_were_announced(raw: Any, command: str) -> None:
    asked = _any(f"CommandGet{command}", encode_fields((2, b"sales"), (3, b"items")))
    descriptor = flight.FlightDescriptor.for_command(asked)
    info = raw.get_flight_info(descriptor)
    table = raw.do_get(info.endpoints[0].ticket).read_all()
    assert table.schema == info.schema == raw.get_schema(descriptor).schema
    if command == "PrimaryKeys":
        assert table.column("column_name").to_pylist() == ["id"]
    if command == "XdbcTypeInfo":
        assert table.num_rows > 10


@pytest.fixture(scope="module")
def limited(client: Client) -> Iterator[Any]:
    limits = QueryLimits(memory_bytes=64 << 20, rows_max=1000)
    with client.serve(LOCAL, sql=limits) as server, connected(server.url, None) as connection:
        yield connection


@pytest.mark.parametrize(
    ("sql", "told"),
    [
        ("DELETE FROM orders", "this server only reads"),
        ("INSERT INTO orders VALUES (3, 'x', 1.0)", "this server only reads"),
        ("CREATE TABLE x (a INT)", "this server only reads"),
        ("SET memory_limit = '100GB'", "is neither a query"),
        ("SELECT 1; SELECT 2", "it has 2 statements"),
        ("INSTALL httpfs", "is neither a query"),
        ("FROM read_csv('/etc/passwd')", "reads something that is not a collection"),
        ("FROM '/etc/passwd'", "does not exist"),
        ("SELECT * FROM glob('/*')", "reads something that is not a collection"),
        ("FROM nowhere", "The collections are ['orders', 'sales.items', 'totals']"),
        ('FROM "@x y".main.orders', "is not a time, moment or tag"),
        ('FROM "@99".main.orders', "AsOfNotSealed"),
        ("FROM range(2000)", "more than 1,000 rows"),
    ],
)
def test_what_a_client_may_not_do_is_refused_in_words(limited: Any, sql: str, told: str) -> None:
    assert told in refusal(limited, sql)


def test_a_query_that_takes_too_long_is_refused_in_words(client: Client) -> None:
    with client.serve(LOCAL, sql=QueryLimits(timeout_s=0.1)) as server, connected(server.url, None) as connection:
        for _ in range(2):
            assert "it took longer than 0.1 s" in refusal(connection, ENDLESS)


def test_a_query_of_too_much_memory_is_refused_in_words(client: Client) -> None:
    limits = QueryLimits(memory_bytes=64 << 20)
    with client.serve(LOCAL, sql=limits) as server, connected(server.url, None) as connection:
        sql = "SELECT list(range) FROM range(1000000000)"
        assert "needs more than 67,108,864 bytes of memory" in refusal(connection, sql)


def test_a_driver_cannot_write(connection: Any) -> None:
    with connection.cursor() as cursor:
        with pytest.raises(Error, match="only reads"):
            cursor.adbc_ingest("x", pa.table({"a": [1]}))
        with pytest.raises(Error, match="only reads"):
            cursor.executemany("SELECT ?", [[1], [2]])


@pytest.mark.costly("the driver makes six connections, and drops as many streams")
def test_a_query_of_a_client_that_has_gone_ends(client: Client) -> None:
    with client.serve(LOCAL, sql=True) as server:
        for _ in range(QUERIES_MAX + 2):
            with connected(server.url, None) as connection, connection.cursor() as cursor:
                cursor.execute("SELECT a.range FROM range(1500000) a")
                cursor.fetchone()
        with connected(server.url, None) as connection:
            assert rows(connection, "SELECT 1") == [(1,)]


@pytest.mark.parametrize(
    "command",
    [
        b"",
        b"\x0a",
        b"\xff" * 100,
        encode_fields((1, b"type.googleapis.com/arrow.flight.protocol.sql.CommandStatementQuery"), (2, b"\xff")),
        encode_fields((1, b"type.googleapis.com/arrow.flight.protocol.sql.CommandNever")),
        encode_fields((1, b"type.googleapis.com/arrow.flight.protocol.sql.TicketStatementQuery"), (2, b"\x0a\x02{}")),
        encode_fields(
            (1, b"type.googleapis.com/arrow.flight.protocol.sql.CommandStatementQuery"),
            (2, encode_fields((1, b"SELECT '" + b"x" * 200_000 + b"'"))),
        ),
    ],
)
def test_what_is_no_message_is_refused(raw: Any, command: bytes) -> None:
    with pytest.raises((pa.ArrowInvalid, flight.FlightError)):
        raw.get_flight_info(flight.FlightDescriptor.for_command(command))
    with pytest.raises((pa.ArrowInvalid, flight.FlightError)):
        raw.do_get(flight.Ticket(command)).read_all()
    with pytest.raises((pa.ArrowInvalid, flight.FlightError)):
        [*raw.do_action(flight.Action("CreatePreparedStatement", command))]


def test_a_server_speaks_sql_only_if_it_is_told_to(client: Client) -> None:
    with client.serve(LOCAL) as server, connected(server.url, None) as connection:
        assert "there is no action" in refusal(connection, "SELECT 1")
        with flight.connect(server.url) as raw, pytest.raises(pa.ArrowInvalid, match=r"it needs serve\(sql=True\)"):
            raw.get_flight_info(flight.FlightDescriptor.for_command(_command("StatementQuery", "SELECT 1")))


@pytest.mark.parametrize("wrong", [{"memory_bytes": 0}, {"timeout_s": -1}, {"rows_max": 0}, {"rows_max": True}])
def test_limits_that_are_none_are_refused(client: Client, wrong: dict[str, Any]) -> None:
    with pytest.raises(persist.errors.InvalidUsage, match=rf"QueryLimits\({next(iter(wrong))}="):
        QueryLimits(**wrong)
    with pytest.raises(persist.errors.InvalidUsage, match="is not True, False or QueryLimits"):
        client.serve(LOCAL, sql=1)  # type: ignore[arg-type]


def _any(kind: str, message: bytes) -> bytes:
    return encode_fields((1, f"type.googleapis.com/arrow.flight.protocol.sql.{kind}".encode()), (2, message))


def _command(kind: str, sql: str) -> bytes:
    return _any(f"Command{kind}", encode_fields((1, sql.encode())))
