"""What clients tell a location of their requests, and what it costs by that."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies

import persist
from persist.core.rendering import moment_text
from persist.engine.location.request_ledger import REQUEST_KINDS, requests_told
from persist.tools.reports.costs import Prices, costs_of
from persist.tools.reports.health import health_of
from tests.support.clocks import DatedBlob, ImpatientClock
from tests.support.tiers import examples
from tests.support.tuned import tuned

OPERATIONS = {"PUT": ("create", "set"), "GET": ("get",), "LIST": ("list",), "DELETE": ("delete",)}
UNTOLD_MAX = 100 + 20  # And what closing asks for after it has told.


class FarStore(DatedBlob):
    is_remote = True


def opened(store: DatedBlob, mode: Any = "shared") -> persist.Client:
    settings = tuned(background=False, look_back=False, hold_linger_s=0)
    return persist.open(store, mode=mode, clock=store.clock, settings=settings)


def made(client: persist.Client) -> dict[str, tuple[int, int]]:
    """Return what a client says that it asked for, by kind."""
    counts = client.metrics().store
    return {
        kind: (sum(counts[name].requests for name in names), sum(counts[name].bytes for name in names))
        for kind, names in OPERATIONS.items()
    }


def told(client: persist.Client) -> dict[str, tuple[int, int]]:
    hours = requests_told(client.engine.follower.refresh().control.about).values()
    return {
        kind: (sum(each[kind][0] for each in hours), sum(each[kind][1] for each in hours)) for kind in REQUEST_KINDS
    }


def write(client: persist.Client, times: int) -> None:
    for number in range(times):
        client.write("orders", pa.table({"id": [number]}), key=["id"]).result()


@settings(max_examples=examples(30), deadline=None)
@given(strategies.lists(strategies.tuples(strategies.integers(0, 2), strategies.integers(0, 90)), max_size=6))
def test_all_requests_of_clients_are_told_but_for_a_hundred_of_each(steps: Sequence[tuple[int, int]]) -> None:
    store = FarStore(ImpatientClock())
    clients = [opened(store) for _ in range(3)]
    for who, times in steps:
        write(clients[who], times)
        store.clock.sleep(500)
        clients[who].engine.writer("test").upkeep.tick_leases()
    for client in clients:
        client.close()
    with opened(store, "read") as reader:
        is_empty = reader.seqno < 0
        for kind, (requests, size) in told(reader).items():
            everything = [made(client)[kind] for client in clients]
            assert sum(n for n, _ in everything) - 3 * UNTOLD_MAX <= requests <= sum(n for n, _ in everything)
            assert size <= sum(n for _, n in everything)
        assert is_empty == (sum(times for _, times in steps) == 0), "nothing is made for the sake of telling"


def test_telling_adds_one_request_to_a_hundred_at_most() -> None:
    store = FarStore(ImpatientClock())
    with opened(store) as client:
        for _ in range(300):
            write(client, 1)
            store.clock.sleep(10)
            client.engine.writer("test").upkeep.tick_leases()
        records = client.seqno + 1
        assert 301 < records <= 301 + made(client)["PUT"][0] // 100
    with opened(store, "read") as reader:
        for kind, (requests, size) in told(reader).items():
            assert made(client)[kind][0] - UNTOLD_MAX <= requests <= made(client)[kind][0]
            assert size <= made(client)[kind][1]


@pytest.mark.costly("a client for each hour of a day and some more, of which each makes enough requests to be told")
def test_the_hours_of_a_day_are_kept_and_cost() -> None:
    store = FarStore(ImpatientClock())
    for _ in range(28):
        with opened(store) as client:
            write(client, 30)
        store.clock.sleep(3600)
    with opened(store, "read") as client:
        assert 24 <= len(requests_told(client.engine.follower.refresh().control.about)) <= 25
        prices = Prices(puts_1000=1.0, gets_1000=0.0, lists_1000=0.0, stored_gib_month=0.0, read_gib=2.0**30)
        costs = costs_of(client, prices, hours=12)
        kinds = {each.kind: each for each in costs.kinds}
        puts = kinds["PUT"].requests
        assert 12 * 31 <= puts <= 13 * 40
        assert 0 <= sum(kinds[kind].requests for kind in REQUEST_KINDS) - costs.told <= 13 * 2, "PUTs of the end"
        hours = (store.clock.wall_ms() / 1000 - costs.since_s) / 3600
        assert 12 <= hours <= 13
        read = kinds["GET"].request_bytes
        assert kinds["all"].dollars == pytest.approx((puts / 1000 + read) * 30 * 24 / hours, rel=1e-3)
        assert kinds["all"].requests == sum(kinds[kind].requests for kind in REQUEST_KINDS)


def test_releases_are_told_with_the_sum_of_their_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    store = FarStore(ImpatientClock())
    for release in ("0.0.9", "0.1.0", "0.0.9"):
        monkeypatch.setattr("persist.engine.location.request_ledger.__version__", release)
        with opened(store) as client:
            write(client, 30)
        store.clock.sleep(3600)
    with opened(store, "read") as client:
        ledger = requests_told(client.engine.follower.refresh().control.about)
        assert [[name for name in told if name not in REQUEST_KINDS] for _, told in sorted(ledger.items())] == [
            ["persist 0.0.9"], ["persist 0.1.0"], ["persist 0.0.9"]
        ]  # fmt: skip
        for told_of in ledger.values():
            [of_release] = [count for name, count in told_of.items() if name not in REQUEST_KINDS]
            of_kinds = [told_of[kind] for kind in REQUEST_KINDS]
            assert of_release == (sum(n for n, _ in of_kinds), sum(n for _, n in of_kinds))
        first = min(ledger) * 3600
        seen = {each.release: each.hour for each in health_of(client).releases}
        assert seen == {"0.0.9": moment_text(first + 2 * 3600), "0.1.0": moment_text(first + 3600)}


def test_objects_that_are_there_are_puts_though_nobody_told() -> None:
    store = DatedBlob(ImpatientClock())
    with opened(store) as client:
        write(client, 150)
    with opened(store, "read") as client:
        costs = costs_of(client)
        assert (costs.told, costs.kinds[0].kind) == (0, "PUT")
        assert costs.kinds[0].requests == costs.made == len(list(store.list("")))


def test_a_property_of_a_user_that_has_the_name_is_no_count() -> None:
    store = FarStore(ImpatientClock())
    with opened(store) as client:
        client.describe(properties={"requests.hours": "mine"}).result()
        assert requests_told(client.engine.follower.state.control.about) == {}
        write(client, 120)
    with opened(store, "read") as client:
        assert told(client)["PUT"][0] > 100
