"""A location that is opened through a server, by clients without any right on its store."""

import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pyarrow.flight as flight
import pytest

import persist
from persist.api.client import Client
from persist.blob.errors import Indeterminate, ReadOnlyStore, StoreMisconfigured, Unavailable
from persist.blob.protocol import MemoryBlob
from persist.blob.served import ServedBlob
from persist.errors import InvalidUsage
from persist.services.serve.flight_calls import CALLS_A_CONNECTION_MAX
from tests.services.serve.line import Line
from tests.support.stepped import WAIT_S, wait_until

LOCAL = "grpc://127.0.0.1:0"
READS, WRITES = "it-lets-read", "it-lets-write"
QUIET = persist.Settings(background=False)


@pytest.fixture
def url(blob: MemoryBlob) -> Iterator[str]:
    with persist.open(blob, settings=QUIET) as client:
        orders = client.create_or_load("orders", key={"id": int}, value={"status": str})
        orders.write([((n, "new"), 0, 1) for n in range(100)], seal=1).result()
        with client.serve(LOCAL, token=READS, store=True, write_token=WRITES) as server:
            yield server.url


def opened(url: str, token: str | None, **options: object) -> Client:
    return persist.open(url, storage_options={"token": token}, settings=QUIET, **options)  # type: ignore[arg-type]


def test_the_token_that_reads_does_not_write(url: str, blob: MemoryBlob) -> None:
    keys = [entry.key for entry in blob.list("")]
    with opened(url, READS, mode="read") as reader:
        assert len(reader["orders"].snapshot(0).to_arrow()) == 100
        assert reader["orders"].changes(0, 1).to_arrow().num_rows == 100
    served = ServedBlob(url, token=READS)
    for write in (
        lambda: served.set("x", b"1"),
        lambda: served.create("x", b"1"),
        lambda: served.delete(keys[0]),
        lambda: served.delete_page(keys),
    ):
        with pytest.raises(ReadOnlyStore, match=r'this token only allows reading: open the location with mode="read"'):
            write()
    served.close()
    assert [entry.key for entry in blob.list("")] == keys
    with opened(url, READS) as shared, pytest.raises(ReadOnlyStore):
        shared["orders"].write([((1, "x"), 1, 1)]).result()


@pytest.mark.parametrize("token", [None, "wrong"])
def test_without_a_token_nothing_is_read(url: str, token: str | None) -> None:
    with pytest.raises(StoreMisconfigured, match="the token is missing or wrong"):
        opened(url, token)


def test_the_environment_may_have_the_token(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERSIST_TOKEN", READS)
    with persist.open(url, mode="read", settings=QUIET) as reader:
        assert reader.collections() == ["orders"]


def test_a_server_serves_its_store_only_if_it_is_told_to(blob: MemoryBlob) -> None:
    with persist.open(blob, settings=QUIET) as client, client.serve(LOCAL) as server:
        served = ServedBlob(server.url)
        for call in (lambda: served.get("x"), lambda: [*served.list("")], lambda: served.create("x", b"")):
            with pytest.raises(StoreMisconfigured, match="does not serve a location to this client"):
                call()
        served.close()


def test_a_read_that_has_no_answer_is_unavailable_and_a_write_indeterminate(url: str, blob: MemoryBlob) -> None:
    line = Line(url)
    served = ServedBlob(line.url, token=WRITES, timeout_s=WAIT_S)
    assert served.create("one", b"1")
    line.cut()
    with pytest.raises(Unavailable):
        served.get("one")
    with pytest.raises(Unavailable):
        [*served.list("")]
    with pytest.raises(Indeterminate):
        served.create("two", b"2")
    with pytest.raises(Indeterminate):
        served.delete("one")
    served.close()
    line.close()
    assert blob.get("one") == b"1"


def test_errors_of_the_store_come_as_they_are(tmp_path: Path) -> None:
    folder = tmp_path / "secret"
    with persist.open(folder, settings=QUIET) as client:
        client.create_or_load("orders", key={"id": int})
        with client.serve(LOCAL, token=READS, store=True, write_token=WRITES) as server:
            served = ServedBlob(server.url, token=WRITES)
            served.create("big", b"x" * 3_000_000)
            with pytest.raises(persist.errors.CorruptBlob, match="at most 10 can belong there"):
                served.get_at_most("big", 10)
            assert served.get("big", (2_999_999, 3_000_005)) == b"x"
            with pytest.raises(InvalidUsage, match="segments"):
                served.get("../outside")
            (folder / "folder").mkdir()
            with pytest.raises(persist.errors.PersistError) as told:
                served.set("big/below", b"1")
            assert "secret" not in str(told.value)
            served.close()


def test_keys_are_checked_by_the_server_too(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    served = ServedBlob(url, token=WRITES)
    monkeypatch.setattr("persist.blob.served.check_key", lambda key: key)
    with pytest.raises(InvalidUsage, match="is not allowed"):
        served.get("../../etc/passwd")
    with pytest.raises(InvalidUsage, match="is not allowed"):
        served.set("../x", b"")
    served.close()


def test_values_are_bounded(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    served = ServedBlob(url, token=WRITES)
    value = bytes(range(256)) * 4096 * 5
    served.set("five", value)
    assert served.get("five") == value
    monkeypatch.setattr("persist.services.serve.server.SERVED_PUT_BYTES_MAX", 1000)
    with pytest.raises(StoreMisconfigured, match="at most 1,000 are"):
        served.set("more", b"x" * 1001)
    monkeypatch.setattr("persist.blob.served.SERVED_PUT_BYTES_MAX", 1000)
    with pytest.raises(InvalidUsage, match="a server takes 1,000 at most"):
        served.set("more", b"x" * 1001)
    served.close()


@pytest.mark.parametrize(
    "location", ["grpc://127.0.0.1", "grpc://127.0.0.1:1/orders", "grpc://me:secret@127.0.0.1:1", "grpc:/127.0.0.1:1"]
)
def test_an_address_that_is_none_is_refused_without_being_shown(location: str) -> None:
    with pytest.raises(InvalidUsage) as told:
        persist.open(location)
    assert "secret" not in str(told.value)
    assert "grpc://" in str(told.value)


def test_tokens_for_writing_need_one_for_reading(blob: MemoryBlob) -> None:
    with persist.open(blob, settings=QUIET) as client:
        same = {"token": READS, "write_token": READS, "store": True}
        for options in ({"write_token": WRITES}, {"write_token": WRITES, "store": True}, {"store": 1}, same):
            with pytest.raises(InvalidUsage):
                client.serve(LOCAL, **options)


def test_the_store_of_a_client_can_be_sent_to_another_process(url: str) -> None:
    served = pickle.loads(pickle.dumps(ServedBlob(url, token=READS)))
    assert [entry.key for entry in served.list("log/")]
    assert READS not in repr(served)
    served.close()


def test_an_answer_that_comes_while_a_client_still_writes_is_seen(url: str) -> None:
    reading, writing = ServedBlob(url, token=READS), ServedBlob(url, token=WRITES)
    for number in range(10):
        for value in (b"", b"x" * 300_000):
            writing.set(f"key-{number}", value)
            with pytest.raises(ReadOnlyStore):
                reading.set(f"key-{number}", value)
            assert writing.get(f"key-{number}") == value
    reading.close()
    writing.close()


@pytest.mark.thorough
def test_more_calls_than_a_connection_has_at_a_time_wait_and_none_is_refused(url: str) -> None:
    served = ServedBlob(url, token=WRITES)
    with ThreadPoolExecutor(2 * CALLS_A_CONNECTION_MAX) as pool:
        assert all(pool.map(lambda n: served.create(f"key-{n}", b"x"), range(300)))
    served.close()


def test_values_that_nobody_takes_are_dropped_and_make_room(blob: MemoryBlob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("persist.services.serve.flight_calls.GETS_MAX", 1)
    monkeypatch.setattr("persist.services.serve.flight_calls.GET_S", 0.05)
    monkeypatch.setattr("persist.services.serve.server.LOOK_S", 0.01)
    blob.set("large", b"x" * (32 << 20))
    blob.set("small", b"1")
    with (
        persist.open(blob, mode="read", settings=QUIET) as client,
        client.serve(LOCAL, store=True, slow_s=5.0) as server,  # Before that, others ask, also on a busy machine.
        flight.connect(server.url) as slow,
    ):
        results = iter(slow.do_action(flight.Action("blob.get", b'{"key":"large"}')))
        next(results)  # And no more.
        served = ServedBlob(server.url)
        with pytest.raises(Unavailable, match="1 values are being read"):
            served.get("small")

        def is_there() -> bool:
            with suppress(Unavailable):
                return served.get("small") == b"1"
            return False

        wait_until(is_there)
        with pytest.raises(flight.FlightError):
            list(results)
        served.close()
