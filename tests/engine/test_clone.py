"""Clones: what they hold, cost and are refused; and shared blobs, which live as long as somebody needs them."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import persist
from persist.blob.layers.unreliable import Fault, UnreliableBlob
from persist.blob.protocol import MemoryBlob
from persist.core.errors import Superseded
from persist.core.keyed.form import Behind
from persist.engine.collection import clones as cloning
from persist.errors import AsOfCompacted, AsOfNotSealed, CollectionExists, CollectionNotFound, InvalidUsage, ReadOnly
from persist.services.fsck import FsckReport
from persist.tools.reports.health import list_waiting_blobs
from tests.services.publish.readers import by_deltalake, same_rows
from tests.support.clocks import DatedBlob, ImpatientClock
from tests.support.tuned import tuned

KEY = {"k": pa.int64()}
DAY = 86400.0


class Asked(DatedBlob):
    """Remembers which keys were asked for, and which were written."""

    def __init__(self) -> None:
        super().__init__(ImpatientClock())
        self.requests: list[tuple[str, str]] = []

    def get(self, key: str, range: tuple[int, int] | None = None) -> bytes | None:
        self.requests.append(("get", key))
        return super().get(key, range)

    def set(self, key: str, value: bytes) -> None:
        self.requests.append(("set", key))
        super().set(key, value)

    def create(self, key: str, value: bytes) -> bool:
        self.requests.append(("create", key))
        return super().create(key, value)


@pytest.fixture
def dated() -> Asked:
    return Asked()


@pytest.fixture
def client(dated: DatedBlob) -> Iterator[persist.Client]:
    with opened(dated) as client:
        yield client


def opened(blob: DatedBlob, **changed: Any) -> persist.Client:
    settings = tuned(**{"background": False, "hold_linger_s": 0, **changed})
    return persist.open(blob, clock=blob.clock, settings=settings)


def rows(time: int, first: int = 0, number: int = 20_000, diff: int = 1) -> pa.Table:
    return pa.table({"k": range(first, first + number), "_time": [time] * number, "_diff": [diff] * number})


def filled(client: persist.Client, name: str = "orders") -> persist.Collection:
    """Return a collection with a part for each of the times 0, 1 and 2, of which the last retracts something."""
    orders = client.create_or_load(name, key=KEY)
    for time in range(3):
        orders.write(rows(time, 20_000 * time), seal=time + 1).result()
    orders.write(rows(3, number=5, diff=-1), seal=4).result()
    return orders


def parts(blob: MemoryBlob, collection: persist.Collection | None = None) -> set[str]:
    return {entry.key for entry in blob.list("part/" if collection is None else f"part/{collection.id}/")}


def collected(blob: DatedBlob) -> None:
    """Let time pass and garbage be collected, until nothing more can go."""
    with opened(blob) as collector:
        for _ in range(3):
            blob.clock.sleep(2 * DAY)
            collector.gc()


def checked(client: persist.Client) -> FsckReport:
    report = client.fsck()
    assert not report.problems, report
    return report


def test_a_clone_holds_what_its_source_held_and_is_one_record(dated: Asked, client: persist.Client) -> None:
    orders = filled(client)
    stored = parts(dated)
    dated.requests.clear()
    clone = client.clone("orders", "orders-test", as_of=1)
    assert {key.split("/")[0] for _, key in dated.requests} == {"log"}, "it neither reads nor writes blobs of parts"
    assert [what for what, _ in dated.requests if what != "get"] == ["create"]
    assert clone.snapshot().to_arrow().equals(orders.snapshot(1).to_arrow())
    assert (clone.name, clone.since.time, clone.upper.time) == ("orders-test", 1, 2)
    assert parts(dated) == stored


def test_rule_10_what_one_has_compacted_away_stays_as_long_as_the_other_names_it(dated: DatedBlob) -> None:
    with opened(dated) as client:
        orders = filled(client)
        shared = parts(dated)
        clone = client.clone("orders", "orders-test", as_of=2)
        wanted = clone.snapshot().to_arrow()
        orders.allow_compaction(3).result()
        orders.compact()
        assert shared.isdisjoint(part.blob for part in orders.handle.contents().parts)
    collected(dated)
    with opened(dated) as client:
        clone = client.load("orders-test")
        assert clone.snapshot().to_arrow().equals(wanted)
        clone.overwrite(pa.table({"k": [1]}), time=3).result()
        clone.allow_compaction(3).result()
        clone.compact()
        assert clone.snapshot().count() == 1
    collected(dated)
    with opened(dated) as client:
        assert not shared & parts(dated)
        assert client.load("orders").snapshot().count() == 59_995
        assert not checked(client).unreferenced


@pytest.mark.parametrize("read", ["orders", "orders-test"])
def test_a_reader_keeps_what_both_have_merged_away(dated: DatedBlob, read: str) -> None:
    with opened(dated, lease_s=100 * DAY) as reader:
        with opened(dated, merge_runs=2) as client:
            orders = filled(client)
            clone = client.clone("orders", "orders-test")
            snapshot = reader.load(read).snapshot()
            shared = {part.blob for part in clone.handle.contents().parts if part.blob}
            for each in (orders, clone):
                each.compact(only_due=True)
                assert not shared & {part.blob for part in each.handle.contents().parts}
            if read != "orders":
                orders.drop().result()
        with snapshot:
            collected(dated)
            assert shared <= parts(dated)
            assert snapshot.to_arrow().num_rows == 59_995
    collected(dated)
    assert not shared & parts(dated)


def test_what_waits_for_the_collector_is_not_what_a_clone_names(client: persist.Client) -> None:
    orders = filled(client)
    clone = client.clone("orders", "orders-test")
    orders.drop().result()
    assert [(each.why, each.blobs) for each in list_waiting_blobs(client, 0.0)] == [("dropped", 0)]
    clone.compact()
    clone.allow_compaction(3).result()
    clone.compact()
    assert [(each.why, each.blobs) for each in list_waiting_blobs(client, 0.0)] == [("dropped", 3), ("replaced", 3)]


def test_a_clone_of_a_keyed_collection_resolves_events_by_itself(client: persist.Client) -> None:
    for policy in ("seal", "background"):
        keyed = persist.Keyed(order_by=["v"], tombstone="gone", resolve=policy, late_bound=Behind(10))
        users = client.create_or_load(policy, key={"id": int}, value={"v": int, "gone": bool}, keyed=keyed)
        users.upsert([(1, (20, False), 0), (2, (20, True), 0), (3, (20, False), 5)]).result()
        users.seal(3).result()
        clone = client.clone(policy, f"{policy}-test")
        assert [*clone.snapshot().rows()] == [(1, (20, False))]
        assert clone.late_bound == users.late_bound == 10
        clone.upsert([(4, (30, False), 3), (1, (15, False), 3)]).result()
        clone.seal(4).result()
        users.seal(6).result()
        assert sorted(clone.snapshot().rows()) == [(1, (20, False)), (4, (30, False))]
        assert sorted(users.snapshot().rows()) == [(1, (20, False)), (3, (20, False))]
        checked(client)


def test_a_clone_of_a_view_is_a_collection_that_its_user_writes(client: persist.Client) -> None:
    pytest.importorskip("duckdb")
    filled(client)
    view = client.create_view("many", "SELECT k % 2 AS parity, count(*) AS n FROM orders GROUP BY ALL")
    view.refresh()
    clone = client.clone("many", "many-test")
    assert clone.snapshot().to_arrow().equals(client.load("many").snapshot().to_arrow())
    clone.write(pa.table({"parity": [9], "n": [1], "_time": [9], "_diff": [1]}), seal=10).result()
    assert clone.snapshot().count() == 3
    client.drop("many").result()
    client.drop("orders").result()
    assert clone.snapshot().count() == 3


def test_a_clone_has_descriptions_and_retention_but_neither_tags_nor_holds(client: persist.Client) -> None:
    orders = client.create_or_load("orders", key={"id": int}, value={"v": int}, retention=2)
    orders.describe("all orders", columns={"v": "what it costs"}).result()
    orders.write([((1, 2), 0, 1)], token="once", seal=1).result()
    orders.tag("first", 0)
    orders.hold(0, name="somebody")
    clone = client.clone("orders", "orders-test", as_of="first")
    assert clone.about.comment == "all orders"
    assert clone.about.columns["v"].comment == "what it costs"
    assert (clone.handle.contents().retention, clone.tags(), clone.holds()) == (2, {}, [])
    clone.write([((1, 2), 9, 1)], token="once", seal=10).result()
    assert clone.since.time == 8


def test_a_published_table_stays_with_the_source_and_a_clone_is_published_by_itself(tmp_path: Path) -> None:
    settings = tuned(background=False, hold_linger_s=0, grace_s=0, orphan_grace_s=0)
    with persist.open(tmp_path / "shop", settings=settings) as client:
        orders = filled(client)
        orders.compact()
        table = orders.publish("delta")
        clone = client.clone("orders", "orders-test")
        assert clone.published() == []
        other = clone.publish("delta")
        assert (table.rows, other.rows) == (59_995, 59_995)
        orders.unpublish("delta")
        orders.drop().result()
    with persist.open(tmp_path / "shop", settings=settings) as client:
        client.gc()
        assert same_rows(by_deltalake(other.url), client.load("orders-test")) == 59_995
        checked(client)
        client.drop("orders-test").result()
    with persist.open(tmp_path / "shop", settings=settings) as client:
        client.gc()
        assert not [*(tmp_path / "shop" / "part").rglob("*.parquet")]


def test_a_clone_of_what_is_complete_for_ever_can_be_written(client: persist.Client) -> None:
    orders = filled(client)
    orders.seal(persist.Antichain()).result()
    clone = client.clone("orders", "orders-test")
    assert (clone.since.time, clone.upper.time) == (3, 4)
    clone.write(rows(4, 100_000, 1), seal=5).result()
    assert clone.snapshot().count() == 59_996


def test_a_clone_of_what_is_complete_for_ever_has_events_that_were_not_resolved(client: persist.Client) -> None:
    users = client.create_or_load("users", key=KEY, value={"v": int}, keyed=persist.Keyed(resolve="background"))
    users.upsert([(1, 5, 3)]).result()
    users.seal(persist.Antichain()).result()
    clone = client.clone("users", "users-test")
    assert [*clone.snapshot().rows()] == [(1, 5)]
    assert client.clone("users", "other", as_of=2**63 - 2).upper == persist.Antichain()


def test_a_clone_as_of_0_has_its_changes_from_0_on(client: persist.Client) -> None:
    orders = filled(client)
    orders.compact()
    clone = client.clone("orders", "orders-test", as_of=0)
    assert clone.changes(0, 1).to_arrow().num_rows == 20_000
    assert orders.changes(0, 1).to_arrow().num_rows == 20_000


def test_a_clone_that_cannot_be_made_leaves_nothing(dated: DatedBlob, client: persist.Client) -> None:
    orders = filled(client)
    orders.write(rows(9, 100_000)).result()
    stored, seqno = parts(dated), client.seqno
    with pytest.raises(CollectionNotFound):
        client.clone("nothing", "orders-test")
    with pytest.raises(CollectionExists):
        client.clone("orders", "orders")
    with pytest.raises(AsOfNotSealed):
        client.clone("orders", "orders-test", as_of=4)
    with pytest.raises(InvalidUsage):
        client.clone("orders", ".hidden")
    assert (parts(dated), client.seqno) == (stored, seqno)
    orders.allow_compaction(2).result()
    with pytest.raises(AsOfCompacted):
        client.clone("orders", "orders-test", as_of=1)
    with pytest.raises(ReadOnly), persist.open(dated, mode="read", clock=dated.clock) as reader:
        reader.clone("orders", "orders-test")
    assert client.collections() == ["orders"]


def test_a_clone_is_planned_again_when_a_compaction_comes_first(
    dated: DatedBlob, client: persist.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = filled(client)
    orders.write(pa.concat_tables([rows(4, 100_000), rows(5, 200_000)]), seal=6).result()
    with opened(dated) as other:
        rewritten = cloning._rewrite_straddling_parts
        tries: list[Any] = []

        def meanwhile(*args: Any) -> Any:
            made = rewritten(*args)
            if not tries:
                other.load("orders").allow_compaction(4).result()
                other.load("orders").compact()
            tries.append(made)
            return made

        monkeypatch.setattr(cloning, "_rewrite_straddling_parts", meanwhile)
        clone = client.clone("orders", "orders-test", as_of=4)
    assert len(tries) == 2
    assert clone.snapshot().to_arrow().equals(orders.snapshot(4).to_arrow())
    assert not {part.blob for part in tries[0]} & parts(dated), "what the first try has made is deleted"
    checked(client)


def test_rule_10_who_names_what_its_source_does_not_name_any_more_is_refused(
    dated: DatedBlob, client: persist.Client
) -> None:
    orders = filled(client)
    contents = orders.handle.contents()
    steps = cloning._make_steps(contents, "f" * 32, "orders-test", cloning._choose_cheapest(contents, 2), ())
    orders.allow_compaction(3).result()
    orders.compact()
    names = {"f" * 32: "orders-test", orders.id: "orders"}
    with pytest.raises(Superseded):
        client.engine.submit("a test", steps, names).result()
    orders.drop().result()
    with pytest.raises(CollectionNotFound):
        client.engine.submit("a test", steps, names).result()


def test_many_parts_are_shared_through_a_list_and_survive_checkpoints(
    dated: DatedBlob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("persist.core.log.records.PARTS_INLINE_MAX", 16)
    with opened(dated, part_bytes=1) as client:
        orders = client.create_or_load("orders", key=KEY, value={"v": pa.binary()})
        blobs = [random.Random(k).randbytes(200) for k in range(40)]
        for time in range(2):
            orders.write([((k, blobs[k]), time, 1) for k in range(time, 40, 2)], seal=time + 1).result()
        orders.compact()
        assert len(orders.handle.contents().parts) >= 30
        clone = client.clone("orders", "orders-test")
        client.drop("orders").result()
        clone.seal(3).result()
    for _ in range(2):
        collected(dated)
        with opened(dated) as client:
            assert client.load("orders-test").snapshot().count() == 40
            assert not checked(client).unreferenced


def test_a_clone_whose_answer_is_lost_is_there_once() -> None:
    blob = MemoryBlob()
    with persist.open(blob) as client:
        filled(client)
    store = UnreliableBlob(blob)
    with persist.open(store) as client:
        client.load("orders")
        store.script_faults("create", Fault.HAPPENED_BUT_FAILED)
        clone = client.clone("orders", "orders-test")
        assert clone.snapshot().count() == 59_995
        assert client.collections() == ["orders", "orders-test"]
