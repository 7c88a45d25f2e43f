"""Commits that go through a server: each gets the answer that it would have got alone, and happens once or never."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, get_args

import msgspec
import pyarrow as pa
import pyarrow.flight as flight
import pytest
import xxhash

import persist
from persist.api.client import Client
from persist.api.multi_write import MultiWrite
from persist.api.serving import Servers
from persist.blob import wire
from persist.blob.layers.unreliable import UnreliableBlob
from persist.blob.protocol import Blob, MemoryBlob
from persist.core.log import kinds
from persist.core.log.kinds import KINDS
from persist.core.log.records import Record, read_record
from persist.core.state_rules.collection_rules import ExpectDefinition
from persist.engine.collection.commit import Commit
from persist.engine.write.relay_messages import Sent
from persist.events import Sessions
from persist.services.serve import remote_location as asking
from tests.services.serve.line import line_to
from tests.services.serve.test_serve import made_certificate
from tests.support.clocks import ImpatientClock
from tests.support.stepped import Gate, Stepped, wait_until

LOCAL = "grpc://127.0.0.1:0"
QUIET = persist.Settings(background=False)
LOG = "log/"


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a line that is cut ends a wait for a server, however busy this machine is."""
    monkeypatch.setattr(asking, "COMMIT_S", 600.0)


@pytest.fixture
def store(blob: MemoryBlob) -> Stepped:
    """The store as the server reaches it."""
    return Stepped(blob)


@pytest.fixture
def hub(store: Stepped) -> Iterator[Client]:
    with persist.open(store, settings=QUIET) as client:
        client.create_or_load("orders", key={"k": int}, value={"v": str}).seal(1).result()
        yield client


@pytest.fixture
def served(hub: Client) -> Iterator[Servers]:
    with hub.serve(LOCAL, commits=True) as served:
        yield served


def through(blob: Blob | Path, url: str) -> Client:
    return persist.open(blob, settings=QUIET, commit_through=url)


def row(key: int, time: int = 1) -> list[Any]:
    return [((key, "x"), time, 1)]


def keys(blob: Blob, as_of: int = 1) -> list[int]:
    """Return the keys of all rows there are, by a client that knows no server; sealed as far as that takes."""
    with persist.open(blob, settings=QUIET) as client:
        orders = client["orders"]
        if orders.upper.has_beyond(as_of):
            orders.seal(as_of + 1).result()
        return sorted(orders.snapshot(as_of).to_arrow()["k"].to_pylist())


def commits(client: Client) -> dict[str, Any]:
    return dict(client.metrics().groups["commits"])


def records(blob: Blob) -> list[Record]:
    found, seqno = [], 0
    while (record := read_record(blob, seqno)) is not None:
        found.append(record)
        seqno += 1
    return found


def marks(record: Record) -> list[tuple[int, int]]:
    """Return the operations, first and last, that a record says it holds for others."""
    return [] if record.submitted is msgspec.UNSET else [(each.first, each.last) for each in record.submitted]


def test_a_commit_goes_through_the_server_and_says_whose_it_is(blob: MemoryBlob, served: Servers) -> None:
    with through(blob, served.url) as client:
        seqno = client["orders"].write(row(1), seal=2).result()
        assert (commits(client)["records"], commits(client)["relayed"], commits(client)["in_doubt"]) == (0, 1, 0)
        assert client.metrics().groups["commit_through"] == {"requests": 1, "failures": 0}
        assert served.counts()["operations"] == 1
        assert client["orders"].snapshot().count() == 1
    record = read_record(blob, seqno)
    assert record is not None
    assert marks(record) == [(1, 1)]


def test_a_server_that_has_not_looked_for_long_knows_what_its_clients_know(blob: MemoryBlob, hub: Client) -> None:
    never = persist.Settings(background=False, poll_s=3600)
    with (
        persist.open(blob, settings=never) as idle,
        idle.serve(LOCAL, commits=True) as served,
        through(blob, served.url) as client,
    ):
        hub["orders"].evolve(add={"note": pa.string()})
        client["orders"].write([((1, ("x", "y")), 1, 1)]).result()
        hub.create_or_load("new", key={"k": int})
        client["new"].write([((1, None), 1, 1)]).result()
        assert (commits(client)["relayed"], commits(client)["in_doubt"]) == (2, 0)
    assert keys(blob) == [1]


def test_many_clients_share_records(blob: MemoryBlob, store: Stepped, served: Servers) -> None:
    gate = Gate()
    store.before("create", LOG, gate)
    before = len(records(blob))
    with ThreadPoolExecutor(9) as pool:
        clients = [through(blob, served.url) for _ in range(9)]
        futures = [clients[0]["orders"].write(row(0))]
        gate.wait_until_reached()
        futures += [client["orders"].write(row(n)) for n, client in enumerate(clients[1:], 1)]
        wait_until(lambda: served.counts()["operations"] == 9)
        gate.open()
        assert len({*pool.map(lambda future: future.result(), futures)}) <= 3
        for client in clients:
            client.close()
    assert len(records(blob)) - before <= 3
    assert keys(blob) == [*range(9)]


def everything(client: Client, tell: Callable[[str, Any], None]) -> None:
    """Do what succeeds and what is refused, in all ways in which that may be."""

    def told(what: str, do: Callable[[], Any]) -> None:
        try:
            tell(what, do())
        except persist.PersistError as error:
            tell(what, (type(error), str(error)))

    key, value = {"k": pa.int64()}, {"v": pa.string()}
    orders = client.create_or_load("orders", key=key, value=value)
    told("write", lambda: orders.write(row(1), seal=2).result())
    told("late", lambda: orders.write(row(1)).result())
    told("back", lambda: orders.seal(1).result())
    told("nothing new", lambda: orders.seal(2).result())
    told("unexpected", lambda: orders.write(row(2, 5), expected_upper=7).result())
    told("expected", lambda: orders.write(row(2, 5), expected_upper=2).result())
    told("token", lambda: orders.write(row(3, 6), token="t").result())
    told("token again", lambda: orders.write(row(3, 6), token="t").result())
    told("token for other data", lambda: orders.write(row(4, 6), token="t").result())
    told("overwrite beside others", lambda: orders.overwrite([(1, "z")], time=9).result())
    told("large", lambda: orders.write(pa.table({"k": range(9000), "v": ["v" * 50] * 9000}), time=7, seal=8).result())
    told("overwrite", lambda: orders.overwrite([(1, "z")], time=9).result())
    told("delete", lambda: orders.delete([1], time=10).result())
    told("evolve", lambda: orders.evolve(add={"note": pa.string()}))
    told("by an old handle", lambda: orders.write(row(5, 11)).result())
    told("tag", lambda: client["orders"].tag("t", 9))
    told("tag elsewhere", lambda: client["orders"].tag("t", 8))
    told("hold", lambda: client["orders"].hold(9, name="h").time)
    told("allow", lambda: client["orders"].allow_compaction(9).result())
    told("describe", lambda: client["orders"].describe("words").result())
    with client["orders"].hold(9), client["orders"].follow("a consumer"):
        told("compact", lambda: bool(client["orders"].compact()))
    users = client.create_or_load("users", key=key, value=value, keyed=persist.Keyed(order_by=["v"]))
    told("events", lambda: users.upsert([(1, "a", 5), (2, "b", 5), (1, "c", 5)]).result())
    told("resolved", lambda: users.upsert([(2, None, 6)], seal=7).result())
    told("plain", lambda: users.write(row(1, 9)).result())
    told("evolve keyed", lambda: users.evolve(add={"note": pa.string()}))
    users = client["users"]
    told("events of a later version", lambda: users.upsert([(3, ("d", "note"), 8)], seal=9).result())
    spans = dict.fromkeys(("start", "end", "events"), pa.int64())
    visits = client.create_or_load("visits", key=key, value=spans, keyed=persist.Keyed(machine=Sessions(5)))
    told("events of a machine", lambda: visits.transition([(1, 10, 0), (1, 12, 0)], seal=1).result())
    docs = client.create_or_load("docs", key=persist.Utf8, value=persist.Json)
    told("codecs", lambda: docs.write([(("a", {"b": [1]}), 0, 1)], seal=1).result())
    unit = client.create_or_load("unit", key=None)
    told("no columns", lambda: unit.write([(((), ()), 0, 3)], seal=1).result())
    with client.multi_write(token="m", message="both") as multi:
        multi.write(docs, [(("b", {}), 1, 1)])
        multi.seal(unit, 2)
    told("renamed to a taken name", lambda: docs.rename("unit").result())
    told("rename", lambda: docs.rename("texts").result())
    unit.drop().result()
    told("destroyed", lambda: unit.seal(9).result())
    for name in client.collections():
        tell(f"contents of {name}", sorted(map(repr, client[name].snapshot(form="diff").to_arrow().to_pylist())))
        tell(f"about {name}", (client[name].upper, client[name].since, client[name].tags(), client[name].comment))


def test_each_call_gets_the_answer_that_it_would_have_got_alone() -> None:
    told: list[dict[str, Any]] = []
    for is_through in (False, True):
        blob = MemoryBlob()
        told.append({})
        with persist.open(blob, settings=QUIET) as hub:
            hub.create_or_load("first", key={"k": int}).drop().result()
            with hub.serve(LOCAL, commits=True) as served:
                client = through(blob, served.url) if is_through else persist.open(blob, settings=QUIET)
                with client:
                    everything(client, told[-1].__setitem__)
                    assert not is_through or commits(client)["records"] == commits(client)["in_doubt"] == 0
    assert len(told[0]) > 30
    for what, alone in told[0].items():
        assert _without_ids(told[1][what]) == _without_ids(alone), what


def _without_ids(answer: Any) -> Any:
    """Return an answer without seqnos, which depend on how records are shared, and names of clients."""
    if isinstance(answer, int) and not isinstance(answer, bool):
        return "a number"
    if isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], str):
        return answer[0], answer[1].split("memory://")[0]
    return answer


def test_a_view_that_is_refreshed_through_a_server_says_how_far(blob: MemoryBlob, served: Servers) -> None:
    with through(blob, served.url) as client:
        texts = client.create_or_load("texts", key={"k": int}, value={"v": str})
        view = client.create_view("long texts", "SELECT k, v FROM texts WHERE v <> 'x'")
        texts.write(row(1, 0), seal=1).result()
        assert texts.upper == persist.Antichain(1)
        assert view.refresh() == persist.Antichain(1)


def test_a_lease_that_a_server_has_granted_is_not_over_because_the_store_does_not_answer(
    blob: MemoryBlob, served: Servers
) -> None:
    mine = UnreliableBlob(blob)
    with persist.open(mine, settings=QUIET, clock=ImpatientClock(), commit_through=served.url) as client:
        orders = client["orders"]
        orders.write(row(1), seal=2).result()
        with client.engine.follower.looks.share_look():
            assert orders.upper == persist.Antichain(2)
            mine.go_down()
            snapshot = orders.snapshot(1)
            assert client.metrics().groups["leases"]["granted"] == 1
            assert snapshot.count() == 1
        mine.clear_faults()
        assert snapshot.count() == 1


def test_a_commit_whose_answer_is_lost_is_found_in_the_log(blob: MemoryBlob, store: Stepped, served: Servers) -> None:
    with line_to(served.url) as line, through(blob, line.url) as client:
        orders = client["orders"]
        store.after("create", LOG, line.cut)
        seqno = orders.write(row(1)).result()
        assert store.is_done
        assert (commits(client)["records"], commits(client)["in_doubt"], commits(client)["operations"]) == (0, 1, 1)
        assert seqno == len(records(blob)) - 1
        assert orders.write(row(2)).result() == seqno + 1  # By itself: the server is out of reach.
        assert commits(client)["records"] == 1
    assert keys(blob) == [1, 2]


def test_a_commit_that_the_server_has_not_made_is_made_once(blob: MemoryBlob, store: Stepped, served: Servers) -> None:
    gate = Gate()
    store.before("create", LOG, gate)
    with line_to(served.url) as line, through(blob, line.url) as client:
        future = client["orders"].write(row(1))
        gate.wait_until_reached()
        line.cut()
        seqno = future.result()
        assert commits(client)["records"] == 1
        gate.open()  # The server finds its slot taken, and what it was asked for in it.
    with through(blob, served.url) as other:  # Which comes after it in the server's queue.
        other["orders"].write(row(2)).result()
    assert keys(blob) == [1, 2]
    assert [marks(each) for each in records(blob)[seqno : seqno + 2]] == [[(1, 1)], [(1, 1)]]


def test_what_was_refused_in_doubt_is_not_committed_later(blob: MemoryBlob, store: Stepped, served: Servers) -> None:
    gate = Gate()
    store.before("create", LOG, gate)
    with through(blob, served.url) as other, line_to(served.url) as line, through(blob, line.url) as client:
        orders = client["orders"]
        held_up = other["orders"].write(row(1))
        gate.wait_until_reached()
        future = orders.seal(3, expected_upper=2)
        wait_until(lambda: served.counts()["operations"] == 2)
        line.cut()
        with pytest.raises(persist.errors.UpperMismatch):
            future.result()
        newest = records(blob)[-1]
        assert newest.mutations == ()
        assert marks(newest) == [(2, 1)]
        with persist.open(blob, settings=QUIET) as third:
            third["orders"].seal(2).result()  # Now what the server was asked for would be valid.
            gate.open()
            held_up_seqno = _outcome(held_up)
            assert held_up_seqno is persist.errors.UpdateNotBeyondUpper
            other["orders"].write(row(2, 2)).result()
            assert third["orders"].upper == persist.Antichain(2)


def _outcome(future: Any) -> Any:
    try:
        return future.result()
    except persist.PersistError as error:
        return type(error)


def test_each_of_several_calls_whose_answer_is_lost_together_learns_what_became_of_it(
    blob: MemoryBlob, store: Stepped, served: Servers
) -> None:
    gate = Gate()
    with line_to(served.url) as line, through(blob, line.url) as client:
        orders = client["orders"]
        store.before("create", LOG, gate)
        orders.write(row(0))
        gate.wait_until_reached()
        futures = [
            orders.write(row(1), token="t"),
            orders.write(row(1), token="t"),
            orders.write(row(9, 0)),
            orders.seal(1),
            orders.write(row(2)),
        ]
        store.before("create", LOG, lambda: store.after("create", LOG, line.cut))
        gate.open()
        found = [_outcome(future) for future in futures]
        assert found[2] is persist.errors.UpdateNotBeyondUpper
        assert {type(each) for at, each in enumerate(found) if at != 2} == {int}
        assert commits(client)["in_doubt"] == len(futures)
    assert keys(blob) == [0, 1, 2]


def test_a_slow_server_is_not_waited_for_and_commits_nothing_twice(
    blob: MemoryBlob, store: Stepped, served: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    store.before("create", LOG, gate)
    with through(blob, served.url) as client:
        orders = client["orders"]
        monkeypatch.setattr(asking, "COMMIT_S", 0.05)
        futures = [orders.write(row(n)) for n in range(3)]
        for future in futures:
            future.result()
        assert commits(client)["in_doubt"] >= 1
        gate.open()
    assert keys(blob) == [0, 1, 2]


def test_where_the_store_fails_while_a_commit_is_in_doubt_it_stays_in_doubt(
    blob: MemoryBlob, store: Stepped, served: Servers
) -> None:
    gate, mine = Gate(), UnreliableBlob(blob)
    store.before("create", LOG, gate)
    with line_to(served.url) as line:
        client = persist.open(mine, settings=QUIET, clock=ImpatientClock(), commit_through=line.url)
        orders = client["orders"]
        future = orders.write(row(1))
        gate.wait_until_reached()
        mine.go_down()
        line.cut()
        with pytest.raises(persist.Indeterminate, match="Read back"):
            future.result()
        gate.open()
        mine.clear_faults()
        client.close()
    # Not by `keys`, which seals: then the server would be refused, if it came later.
    wait_until(lambda: any(b'"append"' in (blob.get(entry.key) or b"") for entry in blob.list(LOG)))
    assert keys(blob) == [1]


def test_two_servers_of_one_location_commit_what_each_is_asked_for(blob: MemoryBlob, served: Servers) -> None:
    with persist.open(blob, settings=QUIET) as second, second.serve(LOCAL, commits=True) as other:
        clients = [through(blob, url) for url in (served.url, other.url) for _ in range(3)]

        def work(n: int) -> None:
            orders = clients[n]["orders"]
            for each in range(10):
                orders.write(row(100 * n + each)).result()

        with ThreadPoolExecutor(len(clients)) as pool:
            list(pool.map(work, range(len(clients))))
        assert all(commits(client)["relayed"] == 10 for client in clients)
        for client in clients:
            client.close()
    assert keys(blob) == [100 * n + each for n in range(6) for each in range(10)]


def test_a_server_commits_by_itself_what_others_ask_it_for(blob: MemoryBlob, served: Servers) -> None:
    """Whoever asked looks for its own id in the log, and would not find it if another server had been asked in turn."""
    with (
        through(blob, served.url) as between,
        between.serve(LOCAL, commits=True) as other,
        through(blob, other.url) as client,
    ):
        first = client["orders"].write(row(1)).result()
        between["orders"].write(row(2)).result()
        assert (commits(between)["records"], commits(between)["relayed"]) == (1, 1)
    assert marks(records(blob)[first]) == [(1, 1)]
    assert keys(blob) == [1, 2]


def test_a_server_that_does_not_commit_for_this_client_is_refused_when_it_says_so(
    blob: MemoryBlob, hub: Client, served: Servers
) -> None:
    with hub.serve(LOCAL) as reads, pytest.raises(persist.InvalidUsage, match="does not commit for others"):
        through(blob, reads.url)
    with hub.serve(LOCAL, commits=True, token="right") as guarded:
        for token in (None, "wrong"):
            with pytest.raises(persist.InvalidUsage, match="token is missing or wrong"):
                persist.open(blob, commit_through=persist.Notify(guarded.url, token))
        with persist.open(blob, settings=QUIET, commit_through=persist.Notify(guarded.url, "right")) as client:
            client["orders"].write(row(1)).result()
            assert commits(client)["relayed"] == 1
    with persist.open(MemoryBlob(), settings=QUIET) as other:
        other.create_or_load("orders", key={"k": int}, value={"v": str})
        with (
            other.serve(LOCAL, commits=True) as elsewhere,
            pytest.raises(persist.InvalidUsage, match="serves the location"),
        ):
            through(blob, elsewhere.url)
    for mode in ("exclusive", "read"):
        with pytest.raises(persist.InvalidUsage, match='mode="shared"'):
            persist.open(blob, mode=mode, commit_through=served.url)
    with pytest.raises(persist.InvalidUsage, match="commit_through=7"):
        persist.open(blob, commit_through=7)  # type: ignore[arg-type]


def test_commits_go_by_tls_and_to_nobody_with_an_unknown_certificate(
    blob: MemoryBlob, hub: Client, caplog: pytest.LogCaptureFixture
) -> None:
    chain, key = made_certificate()
    with hub.serve("grpc+tls://localhost:0", commits=True, token="t", certificate=(chain, key)) as served:
        for n, certificate in enumerate((chain, made_certificate()[0])):
            server = persist.Notify(served.url, "t", certificate)
            with persist.open(blob, settings=QUIET, commit_through=server) as client:
                client["orders"].write(row(n)).result()
                assert commits(client)["relayed"] == 1 - n
    assert "so this client does so by itself" in caplog.text
    assert keys(blob) == [0, 1]


def test_who_may_not_commit_does_not_serve_commits(blob: MemoryBlob, hub: Client) -> None:
    with persist.open(blob, mode="read") as reader, pytest.raises(persist.errors.ReadOnly):
        reader.serve(LOCAL, commits=True)
    with persist.open(MemoryBlob(), mode="exclusive") as alone, pytest.raises(persist.InvalidUsage, match="exclusive"):
        alone.serve(LOCAL, commits=True)


@pytest.mark.parametrize("again", range(2))  # Sometimes the server has looked by itself.
def test_a_server_of_a_location_that_another_client_has_only_just_begun_commits_there(
    blob: MemoryBlob, again: int
) -> None:
    patient = persist.Settings(background=False, poll_s=3600.0)
    with persist.open(blob, settings=patient) as hub, hub.serve(LOCAL, commits=True) as served:
        with persist.open(blob, settings=QUIET) as client:
            client.create_or_load("orders", key={"k": int}, value={"v": str})
        with through(blob, served.url) as client:
            client["orders"].write(row(again)).result()
            assert commits(client)["relayed"] == 1
    assert keys(blob) == [again]


def test_a_server_that_turns_into_one_of_another_location_commits_nothing_there(
    blob: MemoryBlob, served: Servers
) -> None:
    elsewhere = MemoryBlob()
    with persist.open(elsewhere, settings=QUIET) as other:
        other.create_or_load("orders", key={"k": int}, value={"v": str})
        before = other.seqno
        with through(blob, served.url) as client:
            served.close()
            with other.serve(served.url, commits=True):
                client["orders"].write(row(1)).result()
                assert commits(client)["in_doubt"] == commits(client)["records"] == 1
        assert other.seqno == before
    assert keys(blob) == [1]


def test_without_the_server_a_client_commits_by_itself_and_goes_back_to_it_later(
    blob: MemoryBlob, hub: Client, served: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ImpatientClock()
    with persist.open(blob, settings=QUIET, clock=clock, commit_through=served.url) as client:
        orders = client["orders"]
        served.close()
        for n in range(3):
            orders.write(row(n)).result()
        assert commits(client)["records"] == 3
        with hub.serve(served.url, commits=True):
            clock.sleep(asking.RETRY_S_MAX)
            orders.write(row(3)).result()
        assert commits(client)["relayed"] == 1
    assert caplog.text.count("commits by itself") == 0
    assert caplog.text.count("so this client does so by itself") == 1
    with persist.open(blob, settings=QUIET, commit_through="grpc://127.0.0.1:1") as client:
        client["orders"].write(row(4)).result()
    assert keys(blob) == [*range(5)]


def test_every_mutation_that_callers_ask_for_can_be_sent() -> None:
    own = {"open_writer", "close_writer", "truncate", "void_uploads", "take_over", "collected"}
    # Who does these has rights on the store, and commits by itself.
    own |= {"clone", "erase", "policy", "publish", "unpublish", "upgrade"}
    made_of_others = {kinds.Append, kinds.Pend}
    assert {kind for tag, kind in KINDS.items() if tag not in own} - made_of_others <= {*get_args(Sent)}


def test_every_condition_that_callers_set_goes_through_the_server(blob: MemoryBlob, served: Servers) -> None:
    with through(blob, served.url) as client:
        client["orders"].write(row(1), seal=2).result()
        view = client.create_view("v", "SELECT k, v FROM orders WHERE v <> 'y'")
        view.refresh()  # Its commits expect the definition by which they were computed.
        commit = Commit(client.engine)
        with MultiWrite(commit) as multi:
            multi.expect_upper(client["orders"], 2)
            multi.expect_upper(client["orders"], 2, alone=True)
            commit.add(client["v"].handle, [ExpectDefinition(client["v"].id, 1)])
            multi.write(client["orders"], row(2, 2))
        commit = Commit(client.engine)
        with pytest.raises(persist.errors.ViewRedefined), MultiWrite(commit) as multi:
            commit.add(client["v"].handle, [ExpectDefinition(client["v"].id, 7)])
            multi.write(client["orders"], row(3, 2))
        assert client.metrics().groups["commit_through"]["failures"] == 0
        assert (commits(client)["records"], commits(client)["in_doubt"]) == (0, 0)
        assert view.snapshot(1).count() == 1


def test_an_empty_location_is_begun_by_whoever_writes_first(blob: MemoryBlob) -> None:
    with (
        persist.open(blob, settings=QUIET) as hub,
        hub.serve(LOCAL, commits=True) as served,
        through(blob, served.url) as client,
    ):
        orders = client.create_or_load("orders", key={"k": int}, value={"v": str})
        orders.write(row(1)).result()
        assert (commits(client)["records"], commits(client)["relayed"]) == (1, 1)
    assert keys(blob) == [1]


def test_a_location_that_somebody_has_alone_is_locked_for_others_through_a_server_too(
    blob: MemoryBlob, served: Servers
) -> None:
    with through(blob, served.url) as client:
        orders = client["orders"]
        with persist.open(blob, mode="exclusive", settings=QUIET), pytest.raises(persist.errors.Locked):
            orders.write(row(1)).result()
        orders.write(row(2)).result()
    assert keys(blob) == [2]


def asked(url: str, body: bytes) -> bytes:
    command = msgspec.json.encode({"commit": len(body)})
    with flight.FlightClient(url) as client:
        return wire.exchange_pieces(client, None, command, body, 60.0)


def request(blob: Blob, url: str, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """Return the bytes of a request that a client has just made for the row of key 1."""
    sent: list[bytes] = []
    ask = wire.exchange_pieces

    def kept(client: Any, server: Any, command: bytes, body: bytes, timeout_s: float) -> bytes:
        sent.append(body)
        return ask(client, server, command, body, timeout_s)

    with monkeypatch.context() as patched:
        patched.setattr(wire, "exchange_pieces", kept)
        with through(blob, url) as client:
            client["orders"].write(row(1)).result()
    return sent[-1]


def changed(body: bytes, change: Callable[[Any], object]) -> bytes:
    """Return a request that says something else, with the right checksum."""
    message = msgspec.json.decode(body[16:])
    change(message)
    again = msgspec.json.encode(message)
    return xxhash.xxh3_128_digest(again) + again


def test_a_request_that_is_played_again_commits_nothing(
    blob: MemoryBlob, served: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = request(blob, served.url, monkeypatch)
    with pytest.raises(pa.ArrowInvalid, match="requested before"):
        asked(served.url, body)
    with persist.open(blob, settings=QUIET) as second, second.serve(LOCAL, commits=True) as later:
        # This server has seen none of it, and does not know what came before it.
        assert msgspec.json.decode(asked(later.url, body)[16:])["answers"] in ([{}], [{"seqno": 2}])
    assert keys(blob) == [1]


def test_requests_that_no_client_makes_are_refused_and_harm_nobody(
    blob: MemoryBlob, served: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = request(blob, served.url, monkeypatch)

    def anew(change: Callable[[Any], object]) -> bytes:
        def both(message: Any) -> None:
            message["submitter"] = "ab" * 16
            change(message)

        return changed(body, both)

    def step(message: Any) -> Any:
        return message["operations"][0]["steps"][0]

    refused: list[tuple[bytes, str]] = [
        (b"", ">= 1"),
        (b"x", "checksum"),
        (body[:-1], "checksum"),
        (anew(lambda m: m.update(format=99)), "format 99"),
        (anew(lambda m: m.update(location="cd" * 16)), "location"),
        (anew(lambda m: m.update(operations=[])), "no operations"),
        (anew(lambda m: m["operations"].append(m["operations"][0])), "order"),
        (anew(lambda m: m.update(submitter="x")), "not understood"),
        (anew(lambda m: step(m).update(kind="truncate", floor=9)), "not understood"),
        (anew(lambda m: step(m).update(kind="open_writer")), "not understood"),
        (anew(lambda m: step(m).update(rows="AAAA")), "not an Arrow record batch"),
        (anew(lambda m: step(m).update(rows="")), "not an Arrow record batch"),
    ]
    for data, why in refused:
        with pytest.raises(pa.ArrowInvalid, match=why):
            asked(served.url, data)
    in_doubt: list[dict[str, Any]] = [
        {"time_min": 9},
        {"schema": {"key": None, "value": None}},
        {"schema": {}},
        {"collection": "ab" * 16},
    ]
    for number, wrong in enumerate(in_doubt, 2):

        def change(message: Any, number: int = number, wrong: dict[str, Any] = wrong) -> None:
            message["operations"][0]["number"] = number
            step(message).update(wrong)

        data = anew(change)
        (answer,) = msgspec.json.decode(asked(served.url, data)[16:])["answers"]
        assert "seqno" not in answer
    assert keys(blob) == [1]
