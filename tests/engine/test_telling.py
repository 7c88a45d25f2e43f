"""What a collection tells about itself: comments, properties, history, tags, retention, digests, other names."""

import datetime
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import persist
from persist.core.settings import Tuning
from tests.support.resolving import resolve_events

KEY, VALUE = {"k": pa.int64()}, {"v": pa.string()}
QUIET = persist.Settings(background=False, tuning=Tuning(hold_linger_s=0))


@pytest.fixture
def client() -> Iterator[persist.Client]:
    with persist.open(persist.MemoryBlob(), settings=QUIET) as client:
        yield client


@pytest.fixture
def orders(client: persist.Client) -> persist.Collection:
    orders = client.create_or_load("orders", key=KEY, value=VALUE)
    orders.write([((k, str(k)), k, 1) for k in range(10)], seal=10).result()
    return orders


def reopened(client: persist.Client) -> persist.Client:
    """Return a client that knows only what is stored."""
    return persist.open(client.engine.storage.blob, settings=QUIET)


# Comments and properties.


def test_what_is_this_collection_and_who_owns_it(client: persist.Client, orders: persist.Collection) -> None:
    assert (orders.comment, orders.properties) == ("", {})
    orders.describe("All orders", properties={"owner": "ann", "pii": "no"}).result()
    orders.describe(properties={"pii": None}).result()
    assert (orders.comment, orders.properties) == ("All orders", {"owner": "ann"})
    client.describe("Sales", properties={"team": "data"}).result()
    assert (client.comment, client.properties) == ("Sales", {"team": "data"})


def test_what_does_this_column_mean(orders: persist.Collection) -> None:
    orders.describe(columns={"v": {"comment": "in euros", "properties": {"unit": "EUR"}}, "k": "the order"}).result()
    assert orders.about.columns["v"] == persist.About("in euros", {"unit": "EUR"})
    orders.describe(columns={"k": ""}).result()
    assert set(orders.about.columns) == {"v"}
    with pytest.raises(persist.errors.SchemaMismatch, match="not a column"):
        orders.describe(columns={"w": "?"})


def test_two_who_describe_at_once_notice_each_other(client: persist.Client, orders: persist.Collection) -> None:
    seen, seen_there = orders.about, client.about
    orders.describe("first", expected=seen).result()
    client.describe("first", expected=seen_there).result()
    with pytest.raises(persist.errors.DescriptionMoved, match="in version 0, and are in version 1 now"):
        orders.describe("second", expected=seen).result()
    with pytest.raises(persist.errors.DescriptionMoved):
        client.describe("second", expected=seen_there).result()
    assert (orders.comment, client.comment) == ("first", "first")


@pytest.mark.parametrize(
    "bad",
    [
        {"comment": 3},
        {"properties": {"a": 1}},
        {"properties": {1: "a"}},
        {"properties": ["a"]},
        {"columns": {"v": 3}},
        {"columns": {"v": {"komment": ""}}},
        {"expected": 3},
    ],
)
def test_a_description_that_is_no_text_is_refused(orders: persist.Collection, bad: dict[str, Any]) -> None:
    with pytest.raises(persist.InvalidUsage):
        orders.describe(**bad)
    assert orders.about.version == 0


def test_properties_over_64_kib_are_refused_and_nothing_changes(
    client: persist.Client, orders: persist.Collection
) -> None:
    for what in (orders, client):
        with pytest.raises(persist.InvalidUsage, match="65536"):
            what.describe(properties={"a": "x" * 70_000}).result()
        with pytest.raises(persist.InvalidUsage, match="give it a name"):
            what.describe(properties={"": "x"}).result()
        assert what.about == persist.About()


# History.


def test_who_wrote_it_when_and_why(client: persist.Client, orders: persist.Collection) -> None:
    other = client.create_or_load("other", key=KEY)
    orders.write([((1, "x"), 11, 1)], seal=12, message="nightly load", metadata={"run": "7"}).result()
    with client.multi_write(message="both", metadata={"a": "b"}) as multi:
        multi.write(orders, [((2, "x"), 12, 1), ((3, "x"), 12, 1)])
        multi.write(other, [((2, None), 12, 1)])
    history = orders.history().to_pylist()
    assert [row["seqno"] for row in history] == sorted({row["seqno"] for row in history})
    nightly, both = history[-2:]
    assert (nightly["operations"], nightly["updates"]) == (["append", "seal"], 1)
    assert (nightly["message"], nightly["metadata"]) == ("nightly load", [("run", "7")])
    assert nightly["bytes"] > 0
    assert nightly["moment"].tzinfo is not None
    assert (both["message"], both["updates"], both["collections"]) == ("both", 2, ["orders"])
    everything = client.history().to_pylist()
    assert everything[-1]["collections"] == ["orders", "other"]
    assert (everything[-1]["updates"], everything[-1]["message"], everything[-1]["metadata"]) == (
        3,
        "both",
        [("a", "b")],
    )
    assert client.history(1).num_rows == 1
    assert client.history(None).num_rows == client.seqno + 1
    assert everything[0]["operations"] == ["create"]


def test_overwrites_and_deletes_carry_a_message_too(orders: persist.Collection) -> None:
    orders.delete([1], time=20, message="asked to forget").result()
    orders.overwrite([(1, "a")], time=21, message="monthly", metadata={"m": "1"}).result()
    assert orders.history(2)["message"].to_pylist() == ["asked to forget", "monthly"]


@pytest.mark.parametrize(
    ("message", "metadata"), [(3, None), ("", {"a": 1}), ("", ["a"]), ("x" * 70_000, None), ("", {"a": "x" * 70_000})]
)
def test_a_message_that_is_no_text_or_too_large_is_refused(
    orders: persist.Collection, message: Any, metadata: Any
) -> None:
    seqno = orders.handle.engine.follower.refresh().seqno
    with pytest.raises(persist.InvalidUsage):
        orders.write([((1, "x"), 11, 1)], message=message, metadata=metadata)
    assert orders.handle.engine.follower.refresh().seqno == seqno
    with pytest.raises(persist.InvalidUsage, match="last="):
        orders.history(0)


# Tags.


def test_a_tag_is_accepted_wherever_a_time_is(orders: persist.Collection) -> None:
    assert orders.tag("quarter-end", 4) == 4
    assert orders.snapshot("quarter-end").count() == 5
    assert orders.changes("quarter-end", 6).to_arrow()["k"].to_pylist() == [4, 5]
    assert orders.changes(2, "quarter-end").to_arrow()["k"].to_pylist() == [2, 3]
    assert next(iter(orders.subscribe("quarter-end"))).updates.num_rows == 5
    with orders.hold("quarter-end") as hold:
        assert hold.time == 4
    with persist.open(orders.handle.engine.storage.blob, mode="read") as reader:
        assert reader["orders"].snapshot("quarter-end").count() == 5
    with pytest.raises(persist.errors.TagNotFound, match="it has 'quarter-end'"):
        orders.snapshot("year-end")


def test_a_tag_keeps_its_time_readable_until_it_is_dropped(client: persist.Client, orders: persist.Collection) -> None:
    orders.tag("quarter-end", 4)
    orders.allow_compaction(8).result()
    orders.compact()
    assert orders.since == persist.Antichain(4)
    assert [(hold.name, hold.time, hold.is_tag) for hold in orders.holds()] == [("quarter-end", 4, True)]
    with reopened(client) as other:
        assert other["orders"].tags() == {"quarter-end": 4}
        assert other["orders"].snapshot("quarter-end").count() == 5
        other["orders"].untag("quarter-end").result()
    assert (orders.tags(), orders.since) == ({}, persist.Antichain(8))
    with pytest.raises(persist.errors.TagNotFound):
        orders.untag("quarter-end")


def test_a_tag_moves_only_when_it_is_told_to(orders: persist.Collection) -> None:
    orders.tag("released", 4)
    assert orders.tag("released", 4) == 4
    with pytest.raises(persist.errors.TagMoved, match="move=True"):
        orders.tag("released", 6)
    orders.tag("released", 6, move=True)
    orders.tag("released", 5, move=True)
    assert orders.tags() == {"released": 5}
    assert orders.tag("newest") == 9


@pytest.mark.parametrize(
    "name",
    ["7", "-7", "2026", "2026-11-21", "20261121", "2026-11", "1.5", "1e9", "latest", "Now", "12:00", "inf", "", "a/b"],
)
def test_a_tag_with_a_name_that_looks_like_a_time_is_refused(orders: persist.Collection, name: str) -> None:
    with pytest.raises(persist.InvalidUsage, match="tag name"):
        orders.tag(name, 4)
    assert orders.tags() == {}


def test_a_tag_on_a_time_that_is_compacted_or_not_sealed_is_refused(orders: persist.Collection) -> None:
    with pytest.raises(persist.errors.AsOfNotSealed):
        orders.tag("future", 10)
    orders.allow_compaction(5).result()
    with pytest.raises(persist.errors.AsOfCompacted):
        orders.tag("past", 4)
    assert orders.tags() == {}


# Retention.


def test_since_follows_upper_by_itself(client: persist.Client, orders: persist.Collection) -> None:
    assert orders.retention is None
    orders.retain(3).result()
    assert orders.since == persist.Antichain(7)
    with reopened(client) as other:
        other["orders"].seal(20).result()
        assert str(other["orders"].retention) == "3 times before upper"
        assert other["orders"].since == persist.Antichain(17)
    orders.retain(None).result()
    orders.seal(30).result()
    assert orders.since == persist.Antichain(17)


def test_retention_is_a_span_where_times_are_moments(client: persist.Client) -> None:
    events = client.create_or_load("events", key=KEY, timeline="s", retention="7 days")
    events.seal("2026-11-21").result()
    assert str(events.retention) == "1 week before upper"
    assert events.since == persist.Antichain(events.handle.as_time("t", "2026-11-14"))
    events.retain(datetime.timedelta(hours=36)).result()
    assert str(events.retention) == "36 hours before upper"
    assert client.create_or_load("events", key=KEY, timeline="s", retention="36 h") == events
    with pytest.raises(persist.InvalidUsage, match="retain"):
        client.create_or_load("events", key=KEY, timeline="s", retention="7 days")


def test_a_retention_that_holds_would_break_waits_and_says_for_whom(orders: persist.Collection) -> None:
    orders.tag("quarter-end", 2)
    orders.hold(3, name="mailer")
    orders.retain(2).result()
    assert orders.since == persist.Antichain(2)
    assert str(orders.retention) == (
        "2 times before upper; since waits at 2 for tag 'quarter-end' at 2, hold 'mailer' at 3"
    )
    orders.untag("quarter-end").result()
    orders.hold(name="mailer").release()
    assert orders.since == persist.Antichain(8)
    assert orders.retention is not None
    assert orders.retention.waits_for == ()


def test_a_retention_that_unresolved_events_hold_back_says_so(client: persist.Client) -> None:
    users = client.create_or_load("users", key=KEY, value=VALUE, keyed=persist.Keyed(resolve="background"), retention=2)
    users.upsert([(1, "a")], time=4, seal=10).result()
    users.tag("start", 3)
    assert users.since == persist.Antichain(0)
    assert str(users.retention) == (
        "2 times before upper; since waits at 0 for tag 'start' at 3, events at 4 and later that are not resolved yet, "
        "which maintenance or a compaction does"
    )
    resolve_events(users)
    users.untag("start").result()
    assert users.since == persist.Antichain(8)
    assert str(users.retention) == "2 times before upper"


@pytest.mark.parametrize("bad", [0, -1, True, 1.5, "7 days", "seven", "7", 2**63])
def test_a_retention_that_cannot_be_kept_is_refused(orders: persist.Collection, bad: Any) -> None:
    with pytest.raises(persist.InvalidUsage, match="retention="):
        orders.retain(bad)
    assert orders.retention is None


def test_a_collection_that_is_complete_keeps_what_it_has(orders: persist.Collection) -> None:
    orders.retain(100).result()
    orders.seal(persist.Antichain()).result()
    assert orders.since == persist.Antichain(0)


# Other names.


def test_a_handle_has_the_name_that_it_has_by_now(client: persist.Client, orders: persist.Collection) -> None:
    with reopened(client) as other:
        theirs = other["orders"]
        orders.rename("sales.orders").result()
        assert orders.name == client["sales.orders"].name == "sales.orders"
        assert "'sales.orders'" in repr(orders)
        assert theirs.name == "orders"  # As far as that client knows.
        assert theirs.upper == persist.Antichain(10)
        assert theirs.name == "sales.orders"
        with pytest.raises(persist.InvalidUsage, match=r"the collection 'sales.orders' has no timeline"):
            theirs.snapshot("2026-11-21")
        theirs.drop().result()
        assert theirs.name == "orders"  # It has none any more: what it was loaded as.


def test_a_renamed_collection_is_found_by_its_new_name_only(client: persist.Client, orders: persist.Collection) -> None:
    for n in range(40):  # Across checkpoints, whose objects say the old name.
        orders.seal(20 + n).result()
    client.rename("orders", "sales.orders").result()
    assert client.collections() == ["sales.orders"]
    assert client["sales.orders"] == orders
    assert orders.snapshot().count() == 10
    with reopened(client) as other:
        assert other["sales.orders"].snapshot().count() == 10
        new = other.create_or_load("orders", key=KEY)
        with pytest.raises(persist.errors.CollectionExists):
            other.rename("orders", "sales.orders").result()
        with pytest.raises(persist.InvalidUsage, match="path separator"):
            new.rename("a/b")
        for n in range(40):
            orders.seal(70 + n).result()
        assert other.collections() == ["orders", "sales.orders"]
    assert not client.fsck().problems


def test_names_can_be_exchanged(client: persist.Client, orders: persist.Collection) -> None:
    other = client.create_or_load("other", key=KEY)
    for done in [orders.rename("aside"), other.rename("orders"), orders.rename("other")]:
        done.result()
    assert (client["orders"], client["other"]) == (other, orders)


# Digests.


def test_equal_contents_have_equal_digests_whatever_they_are_stored_as(client: persist.Client) -> None:
    value = {"s": pa.string(), "n": pa.int32(), "d": pa.decimal128(9, 2), "f": pa.float64(), "l": pa.list_(pa.int64())}
    rows = [(k, (str(k) * (k % 30), k, None, k / 3, [k] * (k % 4))) for k in range(500)]
    one = client.create_or_load("one", key=KEY, value=value)
    one.write(rows, time=0, seal=1).result()
    other = client.create_or_load("other", key=KEY, value={n: value[n] for n in ("l", "f", "d", "n", "s")})
    for at in range(0, 500, 100):
        other.write([(k, (li, f, d, n, s)) for k, (s, n, d, f, li) in reversed(rows[at : at + 100])], time=at).result()
    other.write([(1000, ([], 0.0, None, 1, "x"))], time=500).result()
    other.write([(1000, ([], -0.0, None, 1, "x"))], time=501, diff=-1).result()
    other.seal(502).result()
    digest = one.snapshot().digest()
    assert len(digest) == 32
    assert other.snapshot().digest() == digest
    assert other.snapshot(500).digest() != digest
    other.allow_compaction(501).result()
    other.compact()
    assert other.snapshot(form="diff").digest() == digest
    assert one.snapshot(where=pc.field("k") < 250).digest() != digest


def test_digests_go_backwards_from_a_keyframe_too(client: persist.Client, orders: persist.Collection) -> None:
    digests = [orders.snapshot(t).digest() for t in range(10)]
    orders.write([((3, "3"), 10, -1)], seal=11).result()
    orders.compact()
    assert [orders.snapshot(t).digest() for t in range(10)] == digests
    assert len(set(digests)) == 10
