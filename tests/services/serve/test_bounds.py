"""What strangers and friends may make a server hold, and what its errors give away."""

import contextlib
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.flight as flight
import pytest

import persist
from persist.api.client import Client
from persist.blob import wire
from persist.blob.protocol import MemoryBlob
from persist.compute.query import Queries, QueryLimits
from persist.services.serve import commits, flight_calls, server
from persist.services.serve.messages import parse_address
from tests.services.serve.test_serve import LOCAL, QUIET, asked, queried
from tests.support.stepped import WAIT_S, wait_until

TOKEN = "right"
MIB = 1 << 20
SERVING = """
import persist, sys
with persist.open(sys.argv[1], settings=persist.Settings(background=False)) as client:
    with client.serve("grpc://127.0.0.1:0", token=sys.argv[2], commits=True) as server:
        print(server.url, flush=True)
        sys.stdin.read()
"""


@pytest.fixture
def serving() -> Iterator[Client]:
    with persist.open(MemoryBlob(), settings=QUIET) as client:
        client.create_or_load("orders", key={"k": int}, value={"v": str}).write([((1, "a"), 0, 1)], seal=1).result()
        yield client


@contextmanager
def process_serving(folder: Path) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """Serve a location in a process of its own, so that its memory can be looked at."""
    with persist.open(folder, settings=QUIET) as client:
        client.create_or_load("orders", key={"k": int}, value={"v": str}).seal(1).result()
    command = [sys.executable, "-W", "ignore", "-c", SERVING, str(folder), TOKEN]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip(), process
        finally:
            process.stdin.close()


def peak_mib(process: "subprocess.Popen[str]") -> int:
    """Return the most memory that a process has had."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) // 1024


def connection_to(url: str) -> socket.socket:
    address = parse_address(url)
    return socket.create_connection((address.host, address.port), timeout=WAIT_S)


def is_closed(connection: socket.socket) -> bool:
    """Return whether the other side closes a connection while it is waited for."""
    with contextlib.suppress(ConnectionError):
        while connection.recv(1 << 16):
            pass
    return True


@pytest.mark.thorough
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the memory of a process is read from /proc")
@pytest.mark.parametrize("token", ["wrong", TOKEN])
def test_no_size_of_message_raises_the_memory_of_a_server(tmp_path: Path, token: str) -> None:
    body = b"a" * (100 * MIB)
    options = flight.FlightCallOptions(timeout=WAIT_S, headers=[(b"authorization", f"Bearer {token}".encode())])
    with process_serving(tmp_path / "location") as (url, process):
        before = peak_mib(process)
        refused: list[str] = []

        def ask() -> None:
            with flight.FlightClient(url) as client:
                try:
                    list(client.do_action(flight.Action("wait", body), options))
                except pa.ArrowException as error:
                    refused.append(str(error))

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert peak_mib(process) - before < 32
    assert len(refused) == 3
    assert all(("token" if token == "wrong" else "larger than max") in error for error in refused)


def test_who_has_no_token_is_refused_before_its_message_has_come(serving: Client) -> None:
    with serving.serve(LOCAL, token=TOKEN) as served, flight.FlightClient(served.url) as client:
        # Nothing of the request is sent, and yet there is an answer: to the call itself, if it comes soon.
        command, options = flight.FlightDescriptor.for_command(b"{}"), flight.FlightCallOptions(timeout=WAIT_S)
        with pytest.raises(flight.FlightUnauthenticatedError, match="token"):
            client.do_exchange(command, options)[1].read_chunk()


def test_half_open_connections_are_closed_and_no_more_of_them_are_taken_than_there_may_be(
    serving: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flight_calls, "CONNECTIONS_MAX", 20)
    monkeypatch.setattr(flight_calls, "HANDSHAKE_S", 2.0)
    monkeypatch.setattr(flight_calls, "IDLE_S", 4.0)
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"
    half_header = preface + b"\0\1\0\1\0\0\0\0\1" + b"\0" * 9
    with serving.serve(LOCAL) as served, ExitStack() as stack:
        for sent in (b"", preface[:10], preface, half_header):
            opened = [stack.enter_context(connection_to(served.url)) for _ in range(60)]
            for connection in opened:
                with contextlib.suppress(ConnectionError):
                    connection.sendall(sent)
            assert all(map(is_closed, opened))
        with flight.FlightClient(served.url) as client:
            assert asked(client, "wait", after=-1, waiter="w", timeout_s=0)["seqno"] >= 0


def test_a_message_that_does_not_come_ends_its_call(serving: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight_calls, "RECEIVE_S", 0.05)
    monkeypatch.setattr(server, "LOOK_S", 0.01)
    command = msgspec.json.encode({"commit": 1000})
    with serving.serve(LOCAL, commits=True) as served, flight.FlightClient(served.url) as client:
        writer, reader = client.do_exchange(
            flight.FlightDescriptor.for_command(command), flight.FlightCallOptions(timeout=WAIT_S)
        )
        writer.write_metadata(b"a")
        with pytest.raises(flight.FlightUnavailableError):
            reader.read_chunk()
        assert served.flight is not None
        assert served.flight._commits is not None
        room = served.flight._commits.room
        wait_until(lambda: room.left == commits.ROOM_BYTES)


def test_requests_for_commits_have_room_for_so_many_bytes_together(
    serving: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits, "ROOM_BYTES", 1000)
    with serving.serve(LOCAL, commits=True) as served, flight.FlightClient(served.url) as client:
        for length, error, why in (
            (1001, flight.FlightUnavailableError, "try again later"),
            (2**40, pa.ArrowInvalid, "<= 67108864"),
            (-1, pa.ArrowInvalid, ">= 1"),
        ):
            with pytest.raises(error, match=why):
                wire.exchange_pieces(client, None, msgspec.json.encode({"commit": length}), b"a" * 1001, 60.0)
        for _ in range(3):  # What was refused gives its room back.
            with pytest.raises(pa.ArrowInvalid, match="checksum"):
                wire.exchange_pieces(client, None, msgspec.json.encode({"commit": 1000}), b"a" * 1000, 60.0)


def test_errors_are_those_of_a_local_call_without_traceback_or_path(tmp_path: Path) -> None:
    folder = tmp_path / "secret-folder"
    with persist.open(folder, settings=QUIET) as client:
        orders = client.create_or_load("orders", key={"k": int}, value={"v": str})
        orders.write(pa.table({"k": range(100_000), "v": ["a" * 50] * 100_000}), time=0, seal=1).result()
    wrong = ["FROM none", "SELECT x FROM orders", 'FROM "@99".main.orders']
    limits = QueryLimits()
    with persist.open(folder, settings=QUIET) as client:
        for part in folder.glob("part/**/*"):
            if part.is_file():
                part.write_bytes(b"damaged")
        with client.serve(LOCAL, sql=limits) as served, flight.FlightClient(served.url) as asking:
            told: list[tuple[str, BaseException]] = []
            for sql in wrong:
                with pytest.raises(persist.PersistError) as local:
                    Queries(client.engine, limits).run(sql)
                with pytest.raises((pa.ArrowException, OSError, KeyError)) as remote:
                    queried(asking, sql)
                told.append((str(remote.value), local.value))
            with pytest.raises(flight.FlightUnavailableError, match="CorruptBlob: ") as damaged:
                queried(asking, "FROM orders").read_all()
    for text, local_error in told:
        assert f"{type(local_error).__name__}: {local_error}".replace(str(folder), "the location") in text
    for text in (*(text for text, _ in told), str(damaged.value)):
        assert "Traceback" not in text
        assert ".py" not in text
        assert "secret-folder" not in text


def test_a_fault_of_the_server_is_told_without_what_it_was_about(
    serving: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(self: Queries, *arguments: object) -> None:
        raise OSError(2, "no such file", "/home/somebody/.secret")

    monkeypatch.setattr(Queries, "run", fail)
    failed = pytest.raises((pa.ArrowException, OSError), match=r"the server failed \(FileNotFoundError\)")
    with serving.serve(LOCAL, sql=True) as served, flight.FlightClient(served.url) as client, failed as told:
        queried(client, "FROM orders")
    assert "secret" not in str(told.value)
    assert ".secret" in caplog.text


@pytest.mark.parametrize(("files", "expected"), [(resource.RLIM_INFINITY, 1.0), (1 << 30, 1.0), (101, None)])
def test_a_server_takes_as_many_connections_as_half_the_files_that_it_may_open(
    files: int, expected: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda what: (files, files))
    limits = dict(flight_calls._list_limits())
    most = limits["grpc.max_allowed_incoming_connections"]
    assert most == (50 if expected is None else flight_calls.CONNECTIONS_MAX)
    assert limits["grpc.so_reuseport"] == 0, "two servers on one port would share its calls"
    assert limits["grpc.http2.bdp_probe"] == 0, "nothing is taken before somebody reads it"
    assert limits["grpc.max_send_message_length"] == -1, "answers have any length"
    for name, limit_s in (("server_handshake_timeout", 10), ("keepalive_timeout", 10), ("keepalive_time", 60)):
        assert limits[f"grpc.{name}_ms"] == limit_s * 1000
    assert limits["grpc.max_connection_idle_ms"] == limits["grpc.keepalive_time_ms"]


def test_headers_larger_than_any_are_refused(serving: Client) -> None:
    with serving.serve(LOCAL, token=TOKEN) as served, flight.FlightClient(served.url) as client:
        options = flight.FlightCallOptions(timeout=WAIT_S, headers=[(b"x", b"y" * 100_000)])
        with pytest.raises((pa.ArrowException, OSError)):
            list(client.list_actions(options))
        assert asked(client, "wait", TOKEN, after=-1, waiter="w", timeout_s=0)["seqno"] >= 0
