"""A server tells of new records and serves reads; whatever becomes of it, answers are those of the store."""

import itertools
import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

import persist
from persist.api.client import Client
from persist.blob.protocol import MemoryBlob
from persist.engine.follow.waiting import HINT_S, POLL_FIRST_S, TOLD_FIRST_S
from persist.services.serve import server
from persist.services.serve.messages import encode_fields
from tests.support.clocks import ImpatientClock
from tests.support.stepped import wait_until

LOCAL = "grpc://127.0.0.1:0"
NEVER = persist.Settings(background=False, poll_s=3600)  # Who is not told looks once an hour.
QUIET = persist.Settings(background=False)


@pytest.fixture
def serving(blob: MemoryBlob) -> Iterator[Client]:
    with persist.open(blob, settings=QUIET) as client:
        orders = client.create_or_load("orders", key={"k": int}, value={"v": str})
        orders.write([((1, "a"), 0, 1), ((2, "b"), 0, 1), ((2, "b"), 1, -1)], seal=2).result()
        yield client


def ours() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("persist-")}


def asked(client: flight.FlightClient, what: str, token: str | None = None, **message: Any) -> dict[str, Any]:
    headers = [(b"authorization", f"Bearer {token}".encode())] if token else []
    action = flight.Action(what, json.dumps(message).encode())
    answer: dict[str, Any] = json.loads(
        next(iter(client.do_action(action, flight.FlightCallOptions(headers=headers)))).body.to_pybytes()
    )
    return answer


def statement(sql: str) -> flight.FlightDescriptor:
    kind = b"type.googleapis.com/arrow.flight.protocol.sql.CommandStatementQuery"
    return flight.FlightDescriptor.for_command(encode_fields((1, kind), (2, encode_fields((1, sql.encode())))))


def queried(client: flight.FlightClient, sql: str) -> flight.FlightStreamReader:
    return client.do_get(client.get_flight_info(statement(sql)).endpoints[0].ticket)


def test_who_follows_is_told_and_needs_not_poll(serving: Client, blob: MemoryBlob) -> None:
    with (
        serving.serve(LOCAL, token="secret") as served,
        persist.open(blob, mode="read", settings=NEVER, notify=persist.Notify(served.url, "secret")) as reader,
    ):
        listen = reader["orders"].listen()
        assert len(next(listen).updates) == 3
        wait_until(lambda: reader.metrics().groups["notify"]["connected"] == 1)
        pushes = reader.metrics().groups["notify"]["pushes"]
        for time in range(2, 6):
            # Written while the reader waits; it would not look again before the hour is over.
            rows = [((time, "x"), time, 1)]
            writing = threading.Timer(0, lambda rows=rows, time=time: serving["orders"].write(rows, seal=time + 1))
            writing.start()
            progress = listen.poll(timeout_s=600)
            writing.join()
            assert progress is not None
            assert progress.updates["k"].to_pylist() == [time]
        # A busy machine may write before the reader looks, and the push then comes later.
        wait_until(lambda: reader.metrics().groups["notify"]["pushes"] > pushes)


def test_who_commits_tells_the_server_which_tells_others(blob: MemoryBlob, serving: Client) -> None:
    with (
        persist.open(blob, mode="read", settings=NEVER) as hub,
        hub.serve(LOCAL) as served,
        persist.open(blob, mode="read", settings=NEVER, notify=served.url) as reader,
        persist.open(blob, settings=NEVER, notify=served.url) as writer,
    ):
        listen = reader["orders"].listen()
        next(listen)
        for each in (reader, writer):  # From here on they are heard.
            while not each.metrics().groups["notify"]["connected"]:
                assert not threading.Event().wait(0.01)
        writer["orders"].write([((9, "z"), 2, 1)], seal=3).result()
        assert len(next(listen).updates) == 1


def test_who_is_told_asks_the_store_less_and_as_before_when_the_server_is_gone(
    serving: Client, blob: MemoryBlob
) -> None:
    served = serving.serve(LOCAL)
    settings = persist.Settings(background=False, poll_s=1.0)
    with persist.open(blob, mode="read", settings=settings, notify=served.url) as reader:
        follower = reader.engine.follower
        wait_until(lambda: follower.first_pause_s == TOLD_FIRST_S)
        served.close()
        wait_until(lambda: follower.first_pause_s == POLL_FIRST_S)
    with persist.open(blob, mode="read", settings=persist.Settings(poll_s=0.005), notify=served.url) as reader:
        reader.engine.follower.is_told = True
        assert reader.engine.follower.first_pause_s == 0.005, "never longer than what was asked for"


def test_without_a_server_or_when_it_dies_readers_poll(serving: Client, blob: MemoryBlob) -> None:
    served = serving.serve(LOCAL)
    with persist.open(blob, mode="read", settings=QUIET, notify=served.url) as reader:
        listen = reader["orders"].listen()
        next(listen)
        served.close()
        serving["orders"].write([((9, "z"), 2, 1)], seal=3).result()
        assert len(next(listen).updates) == 1
    with persist.open(blob, mode="read", settings=QUIET, notify="grpc://127.0.0.1:1") as reader:
        assert reader["orders"].snapshot(0).count() == 2


def test_a_wrong_token_is_refused_and_costs_a_reader_only_the_hint(
    serving: Client, blob: MemoryBlob, caplog: pytest.LogCaptureFixture
) -> None:
    with serving.serve(LOCAL, token="secret") as served:
        for token in (None, "wrong", "secre"):
            with flight.FlightClient(served.url) as client, pytest.raises(flight.FlightUnauthenticatedError):
                asked(client, "wait", token, after=-1, waiter="w", timeout_s=0)
        with persist.open(blob, mode="read", settings=QUIET, notify=persist.Notify(served.url, "wrong")) as reader:
            while not reader.metrics().groups["notify"]["failures"]:
                assert not threading.Event().wait(0.01)
            assert reader["orders"].snapshot(1).count() == 1
    assert "token" in caplog.text
    assert "secret" not in caplog.text


def test_what_a_server_may_not_be_started_with(serving: Client) -> None:
    for url in ("http://x:1", "grpc://x", "grpc://", "grpc://u:p@x:1", "grpc://x:1/path", "grpc://x:99999", 7):
        with pytest.raises(persist.InvalidUsage, match="address of a server"):
            serving.serve(url)  # type: ignore[arg-type]
    for url in ("grpc://0.0.0.0:0", "grpc://[::]:0", "grpc://host.invalid:0"):
        with pytest.raises(persist.InvalidUsage, match="other machines"):
            serving.serve(url)
    for token in ("", "a b", "ü", 7):
        with pytest.raises(persist.InvalidUsage, match="visible ASCII"):
            serving.serve(LOCAL, token=token)  # type: ignore[arg-type]
    with pytest.raises(persist.InvalidUsage, match="certificate"):
        serving.serve("grpc+tls://127.0.0.1:0")
    with pytest.raises(persist.InvalidUsage, match="certificate"):
        serving.serve(LOCAL, certificate=("chain", "key"))
    for certificate in (b"xy", ("chain",), ("chain", 7), 7):
        with pytest.raises(persist.InvalidUsage, match="pair"):
            serving.serve("grpc+tls://127.0.0.1:0", certificate=certificate)  # type: ignore[arg-type]
    with pytest.raises(persist.InvalidUsage, match="insecure"):
        serving.serve("grpc://0.0.0.0:0", insecure="no")  # type: ignore[arg-type]
    with pytest.raises(persist.InvalidUsage, match="commits"):
        serving.serve(LOCAL, commits="no")  # type: ignore[arg-type]
    with pytest.raises(persist.InvalidUsage, match="slow_s"):
        serving.serve(LOCAL, slow_s=0)
    with serving.serve(LOCAL) as served, pytest.raises(persist.InvalidUsage, match="port"):
        serving.serve(served.url)
    for notify in ("grpc://127.0.0.1:0", "x", 7):
        with pytest.raises(persist.InvalidUsage):
            persist.open(MemoryBlob(), notify=notify)  # type: ignore[arg-type]


def test_a_server_on_a_public_address_may_be_meant(serving: Client) -> None:
    serving.serve("grpc://0.0.0.0:0", token="secret").close()
    serving.serve("grpc://0.0.0.0:0", insecure=True).close()


def test_a_wait_ends_with_a_record_a_leave_or_its_time(serving: Client) -> None:
    with serving.serve(LOCAL) as served, flight.FlightClient(served.url) as client:
        newest = asked(client, "wait", after=-1, waiter="w", timeout_s=30)
        assert newest == {"location": serving.engine.follower.state.location, "seqno": serving.seqno}
        assert asked(client, "wait", after=newest["seqno"], waiter="w", timeout_s=0.01) == newest
        found: list[dict[str, Any]] = []

        def wait() -> None:
            with flight.FlightClient(served.url) as other:
                found.append(asked(other, "wait", after=newest["seqno"], waiter="w", timeout_s=30))

        for end in (lambda: asked(client, "leave", waiter="w"), lambda: serving["orders"].seal(3).result()):
            waiting = threading.Thread(target=wait)
            waiting.start()
            while not served.counts()["waits"]:
                assert not threading.Event().wait(0.001)
            end()
            waiting.join()
        assert [each["seqno"] - newest["seqno"] for each in found] == [0, 1]


def test_a_liar_costs_a_look_a_second_and_changes_no_answer(blob: MemoryBlob, serving: Client) -> None:
    clock = ImpatientClock()
    with persist.open(blob, mode="read", clock=clock, settings=QUIET) as reader:
        follower = reader.engine.follower
        before = follower.refresh()
        for lie in range(100):
            follower.hint(before.seqno + 1 + lie)
        assert follower.wait_for(lambda: None, 0.0) is None
        assert follower._hints == 1
        clock.sleep(HINT_S)
        follower.hint(2**63 - 1)
        assert follower._hints == 2
        follower.hint(0)  # An old push, played again.
        assert follower._hints == 2
        assert follower.refresh() is before
        serving["orders"].seal(5).result()
        follower.hint(1)
        assert follower.refresh().seqno == before.seqno + 1


def test_a_server_of_another_location_is_not_believed(
    serving: Client, blob: MemoryBlob, caplog: pytest.LogCaptureFixture
) -> None:
    with persist.open(MemoryBlob(), settings=QUIET) as other:
        other.create_or_load("orders", key={"k": int}, value=None)
        with other.serve(LOCAL) as served, persist.open(blob, mode="read", settings=QUIET, notify=served.url) as reader:
            while not reader.metrics().groups["notify"]["failures"]:
                assert not threading.Event().wait(0.01)
            assert reader.metrics().groups["notify"]["pushes"] == 0
    assert "another one" in caplog.text


def test_who_does_not_read_is_dropped_and_keeps_no_history(serving: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "LOOK_S", 0.01)
    rows = pa.table({"k": range(100_000), "v": ["v" * 100] * 100_000})
    serving["orders"].write(rows, time=2).result()
    serving["orders"].seal(3).result()
    with serving.serve(LOCAL, slow_s=2.0, sql=True) as served:
        # It takes little in before it is asked for it, so that the server comes to stand soon.
        narrow = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1 << 16)]
        client = flight.FlightClient(served.url, generic_options=narrow)
        reader = queried(client, "FROM orders")
        reader.read_chunk()
        while serving.metrics().groups["leases"]["reads"]:
            assert not threading.Event().wait(0.01)
        wait_until(lambda: served.counts()["streams"] == 0)  # Nor does it keep the place of another.
        with pytest.raises(flight.FlightUnavailableError):
            reader.read_all()
        client.close()


def test_more_streams_than_there_may_be_are_refused(serving: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "STREAMS_MAX", 0)
    monkeypatch.setattr(server, "WAITS_MAX", 0)
    with serving.serve(LOCAL, sql=True) as served, flight.FlightClient(served.url) as client:
        with pytest.raises(flight.FlightUnavailableError, match="try again"):
            queried(client, "FROM orders").read_all()
        with pytest.raises(flight.FlightUnavailableError, match="try again"):
            asked(client, "wait", after=-1, waiter="w", timeout_s=0)
    assert serving.metrics().groups["leases"]["reads"] == 0


def test_neither_threads_nor_ports_are_left(tmp_path: Path) -> None:
    before = ours()
    with persist.open(tmp_path, settings=QUIET) as client:
        client.create_or_load("orders", key={"k": int}, value=None).seal(1).result()
        served = client.serve(LOCAL, token="secret")
        with persist.open(tmp_path, settings=QUIET, notify=persist.Notify(served.url, "secret")) as reader:
            assert {"persist-server", "persist-notified", "persist-notifying"} <= ours()
            assert reader["orders"].upper == persist.Antichain(1)
        url = served.url
    assert ours() == before
    with persist.open(tmp_path, settings=QUIET) as client:
        assert client.serve(url).url == url
    served.close()
    assert ours() == before


def test_tls_serves_who_knows_the_certificate_and_nobody_else(
    serving: Client, blob: MemoryBlob, caplog: pytest.LogCaptureFixture
) -> None:
    chain, key = made_certificate()
    with serving.serve("grpc+tls://localhost:0", token="secret", certificate=(chain, key)) as served:
        with persist.open(
            blob, mode="read", settings=QUIET, notify=persist.Notify(served.url, "secret", chain)
        ) as reader:
            while not reader.metrics().groups["notify"]["pushes"]:
                assert not threading.Event().wait(0.01)
        with persist.open(blob, mode="read", settings=QUIET, notify=persist.Notify(served.url, "secret")) as reader:
            while not reader.metrics().groups["notify"]["failures"]:
                assert not threading.Event().wait(0.01)
            assert reader["orders"].snapshot(0).count() == 2
    with pytest.raises(persist.InvalidUsage, match="certificate"):
        serving.serve("grpc+tls://localhost:0", certificate=("nonsense", "nonsense"))
    with pytest.raises(persist.InvalidUsage, match="grpc\\+tls"):
        persist.Notify("grpc://localhost:1", certificate=chain)


def made_certificate() -> tuple[str, str]:
    """Return a self-signed certificate for localhost and its key, as PEM."""
    import datetime

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificate.public_bytes(serialization.Encoding.PEM).decode(), private.decode()


class Liar(flight.FlightServerBase):  # type: ignore[misc]
    """Answers every wait at once, with whatever comes next, for ever."""

    def __init__(self, answers: Sequence[bytes | None]) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self._answers = itertools.cycle(answers)
        self.asked = 0

    def do_action(self, context: Any, action: flight.Action) -> list[bytes]:
        self.asked += 1
        answer = next(self._answers)
        return [] if answer is None else [answer]


@pytest.mark.parametrize(
    "answers",
    [
        [b'{"location":null,"seqno":%d}' % seqno for seqno in (5, 2**63 - 1, 0, -1, 7, 3)],
        [b"", b"{", b'{"seqno":"x"}', b"x" * 100_000, b'{"location":null,"seqno":-5}'],
        [b'{"location":"another","seqno":9}'],
    ],
    ids=["seqnos", "nonsense", "location"],
)
def test_rule_20_whatever_a_server_says_answers_are_those_of_the_store(
    answers: list[bytes], serving: Client, blob: MemoryBlob
) -> None:
    with (
        Liar(answers) as liar,
        persist.open(blob, mode="read", settings=QUIET, notify=f"grpc://127.0.0.1:{liar.port}") as reader,
    ):
        listen = reader["orders"].listen()
        next(listen)
        for time in range(2, 6):
            asked_before = liar.asked
            serving["orders"].write([((time, "x"), time, 1)], seal=time + 1).result()
            assert next(listen).updates["k"].to_pylist() == [time]
            assert reader["orders"].snapshot(time).count() == time
            while liar.asked == asked_before and time == 2:
                assert not threading.Event().wait(0.01)


def test_readers_find_a_server_again_that_was_killed_and_restarted(serving: Client, blob: MemoryBlob) -> None:
    served = serving.serve(LOCAL)
    with persist.open(blob, mode="read", settings=NEVER, notify=served.url) as reader:
        listen = reader["orders"].listen()
        next(listen)
        for time in range(2, 4):
            served.close()
            served = serving.serve(served.url)
            threading.Timer(
                0, lambda time=time: serving["orders"].write([((time, "x"), time, 1)], seal=time + 1)
            ).start()
            progress = listen.poll(timeout_s=600)
            assert progress is not None
            assert progress.updates["k"].to_pylist() == [time]
