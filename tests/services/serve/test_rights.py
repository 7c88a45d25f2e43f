"""Every endpoint of a server, for every kind of caller: the matrix of `persist.services.serve.rights`."""

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

import persist
from persist.blob.errors import ReadOnlyStore
from persist.blob.protocol import MemoryBlob
from persist.blob.served import ServedBlob
from persist.services.serve.messages import encode_fields
from persist.services.serve.rights import RIGHTS, NotAllowed, Right, Tokens
from persist.tools.web.explorer import Explorer
from persist.tools.web.metrics import serve_metrics
from tests.services.serve.test_serve import statement
from tests.support.stepped import WAIT_S

LOCAL = "grpc://127.0.0.1:0"
READS, WRITES = "it-lets-read", "it-lets-write"
QUIET = persist.Settings(background=False, retry_s=5)
# Who asks, by the tokens of the server, and what it may do. READ alone is what `token=` promises where writers differ.
ALL, READ, READ_COMMIT = {*Right}, {Right.READ}, {Right.READ, Right.COMMIT}
MATRIX: list[tuple[tuple[str | None, str | None], dict[str | None, set[Right]]]] = [
    ((READS, WRITES), {None: set(), "wrong": set(), READS: READ, WRITES: ALL}),
    ((READS, None), {None: set(), "wrong": set(), READS: READ_COMMIT, WRITES: set()}),
    ((None, None), {None: READ_COMMIT, "wrong": READ_COMMIT}),
]
CASES = [(tokens, caller, rights) for tokens, callers in MATRIX for caller, rights in callers.items()]
Connection = tuple[flight.FlightClient, flight.FlightCallOptions]
Use = Callable[[flight.FlightClient, flight.FlightCallOptions], Any]


def act(kind: str) -> Use:
    return lambda client, options: [*client.do_action(flight.Action(kind, b"{}"), options)]


def exchange(command: dict[str, Any]) -> Use:
    descriptor = flight.FlightDescriptor.for_command(json.dumps(command).encode().replace(b": ", b":"))

    def call(client: flight.FlightClient, options: flight.FlightCallOptions) -> None:
        writer, reader = client.do_exchange(descriptor, options)
        writer.write_metadata(b"xyz")
        writer.done_writing()
        reader.read_chunk()

    return call


def put_rows(client: flight.FlightClient, options: flight.FlightCallOptions) -> None:
    schema = pa.schema([("a", pa.int64())])
    writer, _ = client.do_put(flight.FlightDescriptor.for_command(b"x"), schema, options)
    writer.close()


# What more than reading is needed for; all other endpoints read.
CHANGES = {
    "DoAction/commits": Right.COMMIT,
    "DoExchange/commit": Right.COMMIT,
    "DoAction/blob.delete": Right.STORE,
    "DoExchange/put": Right.STORE,
}
NAMED = statement("FROM orders")
TICKET = flight.Ticket(b"wrong")
USES: dict[str, Use] = {
    "GetFlightInfo": lambda client, options: client.get_flight_info(NAMED, options),
    "GetSchema": lambda client, options: client.get_schema(NAMED, options),
    "DoGet": lambda client, options: client.do_get(TICKET, options).read_all(),
    "DoPut": put_rows,
    "ListActions": lambda client, options: client.list_actions(options),
    "DoExchange/commit": exchange({"commit": 3}),
    "DoExchange/put": exchange({"put": "log/stray", "bytes": 3, "is_new": False}),
    **{name: act(name.partition("/")[2]) for name in RIGHTS if name.startswith("DoAction/")},
}


@pytest.fixture
def client(blob: MemoryBlob) -> Iterator[persist.Client]:
    with persist.open(blob, settings=QUIET) as client:
        orders = client.create_or_load("orders", key={"id": int}, value={"status": str})
        orders.write([(1, "new")], time=0, seal=1).result()
        yield client


def serving(client: persist.Client, tokens: tuple[str | None, str | None]) -> Any:
    token, write_token = tokens
    return client.serve(LOCAL, token=token, write_token=write_token, commits=True, store=True, sql=True)


def is_let_in(use: Use, connection: Connection) -> bool:
    try:
        use(*connection)
    except (pa.ArrowException, OSError, StopIteration) as error:
        # Or else the call was heard, and what it asks for is not right.
        return "the token is missing or wrong" not in str(error) and "this token only allows reading" not in str(error)
    return True


def test_every_endpoint_of_the_table_is_in_the_matrix_and_no_other_is_served(client: persist.Client) -> None:
    assert {"metrics", "iceberg", "DoAction", "DoExchange", *USES} == RIGHTS.keys()
    with serving(client, (READS, WRITES)) as server, flight.FlightClient(server.url) as connection:
        options = flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {WRITES}".encode())])
        assert {f"DoAction/{action.type}" for action in connection.list_actions(options)} <= RIGHTS.keys()
        methods = {name.rpartition("/")[2] for name in server.flight._calls._methods}
        assert methods == {name for name in RIGHTS if "/" not in name} - {"metrics", "iceberg"}
        with pytest.raises(pa.ArrowInvalid, match="there is no 'DoAction/drop'"):
            [*connection.do_action(flight.Action("drop", b"{}"), options)]


@pytest.mark.parametrize(("tokens", "caller", "rights"), CASES)
def test_a_caller_has_the_rights_of_its_token_at_every_endpoint_and_no_others(
    client: persist.Client,
    blob: MemoryBlob,
    tokens: tuple[str | None, str | None],
    caller: str | None,
    rights: set[Right],
) -> None:
    headers = [] if caller is None else [(b"authorization", f"Bearer {caller}".encode())]
    options = flight.FlightCallOptions(timeout=WAIT_S, headers=headers)
    with serving(client, tokens) as server, flight.FlightClient(server.url) as connection:
        let_in = {name for name, use in USES.items() if is_let_in(use, (connection, options))}
    assert let_in == {name for name in USES if CHANGES.get(name, Right.READ) in rights}
    assert (blob.get("log/stray") is not None) == (Right.STORE in rights)


@pytest.mark.parametrize(("tokens", "caller", "rights"), CASES)
def test_without_the_right_nothing_of_a_location_is_changed_by_a_client(
    client: persist.Client,
    blob: MemoryBlob,
    tokens: tuple[str | None, str | None],
    caller: str | None,
    rights: set[Right],
) -> None:
    before = [entry.key for entry in blob.list("log/")]
    with serving(client, tokens) as server:
        # Its way to the store leads through the server, too.
        store, through = {"token": caller}, persist.Notify(server.url, caller)

        def commit() -> None:
            with persist.open(server.url, storage_options=store, commit_through=through, settings=QUIET) as other:
                other["orders"].write([(2, "x")]).result()
                other.drop("orders").result()

        def erase() -> None:
            with persist.open(server.url, storage_options=store, settings=QUIET) as other:
                other["orders"].erase([1], reason="none")

        for change, right in ((commit, Right.COMMIT), (erase, Right.STORE)):
            if right not in rights:
                with pytest.raises(persist.PersistError, match="token"):
                    change()
                assert [entry.key for entry in blob.list("log/")] == before
    assert [*client["orders"].snapshot().rows()] == [(1, "new")]


def test_a_token_that_reads_is_refused_commits_when_the_client_is_opened(client: persist.Client) -> None:
    with (
        serving(client, (READS, WRITES)) as server,
        pytest.raises(persist.InvalidUsage, match=r"this token only allows reading.*a token that may write"),
    ):
        persist.open(client.engine.storage.blob, commit_through=persist.Notify(server.url, READS), settings=QUIET)


def test_a_value_of_many_pieces_is_refused_with_the_reason(client: persist.Client) -> None:
    with serving(client, (READS, WRITES)) as server:
        store = ServedBlob(server.url, token=READS)
        with pytest.raises(ReadOnlyStore, match="this token only allows reading"):
            store.create("x", b"1" * (8 << 20))
        store.close()


@pytest.mark.parametrize(("caller", "status"), [(None, 401), ("wrong", 401), (READS, 200), (WRITES, 200)])
def test_metrics_are_read_by_whoever_may_read(client: persist.Client, caller: str | None, status: int) -> None:
    headers = {} if caller is None else {"Authorization": f"Bearer {caller}"}
    with serve_metrics(client, "127.0.0.1:0", token=READS, write_token=WRITES, insecure=False) as url:
        assert status_of(urllib.request.Request(url, headers=headers)) == status


@pytest.mark.parametrize("sql", ["DELETE FROM orders", "DROP TABLE orders", "INSERT INTO orders VALUES (2, 'x')"])
def test_statements_change_nothing_by_the_page_or_flight_sql_with_any_token(client: persist.Client, sql: str) -> None:
    with pytest.raises(persist.InvalidUsage):
        Explorer(client).results.query(sql, None)
    query = encode_fields((1, sql.encode()))
    command = encode_fields((1, b"type.googleapis.com/arrow.flight.protocol.sql.CommandStatementQuery"), (2, query))
    with serving(client, (READS, WRITES)) as server, flight.FlightClient(server.url) as connection:
        for token in (READS, WRITES):
            options = flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {token}".encode())])
            with pytest.raises(pa.ArrowInvalid):
                connection.get_flight_info(flight.FlightDescriptor.for_command(command), options)
    assert [*client["orders"].snapshot().rows()] == [(1, "new")]


def status_of(request: urllib.request.Request) -> int:
    try:
        with urllib.request.urlopen(request) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.parametrize(
    "header", ["it-lets-write", "bearer it-lets-write", "Bearer it-lets-writ", "Bearer ", "Basic eA==", "é"]
)
def test_a_header_that_is_no_token_has_no_rights(header: str) -> None:
    tokens = Tokens(READS, WRITES)
    assert tokens.find_rights([("authorization", header)]) == set()
    right = ("Authorization", f"Bearer {WRITES}".encode())
    assert tokens.find_rights([right]) == ALL
    assert (
        tokens.find_rights([right, right]) == tokens.find_rights([("x", right[1])]) == tokens.find_rights([]) == set()
    )
    with pytest.raises(NotAllowed):
        tokens.check("DoExchange/put", [("authorization", f"Bearer {READS}")])


def test_a_write_token_needs_something_to_write_through_and_a_token_for_readers(client: persist.Client) -> None:
    postgres = {"write": True, "postgres": "127.0.0.1:0"}
    for options in ({"token": READS}, {"store": True}, {"commits": True}, postgres):
        with pytest.raises(persist.InvalidUsage, match="goes with store=True, commits=True or write=True, and a token"):
            client.serve(LOCAL, write_token=WRITES, **options)
