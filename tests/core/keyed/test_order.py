"""Which event stands: watermarks of every type and of several columns, and which row of which column is a tombstone."""

import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import persist
from tests.support.reads import rows_with
from tests.support.resolving import resolve_events

KEY = {"k": pa.int64()}
POLICIES = ["seal", "background"]
NAN, INF = float("nan"), float("inf")
MOMENT = datetime.datetime(2026, 1, 1)
ZONED = MOMENT.replace(tzinfo=datetime.UTC)
# Watermarks of each type, in order; NULL is below the first.
WATERMARKS: list[tuple[pa.DataType, list[Any]]] = [
    (pa.bool_(), [False, True]),
    (pa.int8(), [-128, -1, 0, 127]),
    (pa.int64(), [-(2**63), -1, 2**63 - 1]),
    (pa.uint64(), [0, 2**63, 2**64 - 1]),
    (pa.float16(), [-INF, -1.0, 0.0, 2.0, INF, NAN]),
    (pa.float32(), [-INF, -1.0, 0.0, 2.0, INF, NAN]),
    (pa.float64(), [-INF, -1.0, 0.0, 5e-324, INF, NAN]),
    (pa.decimal128(9, 2), [Decimal("-9.99"), Decimal("0.10"), Decimal("10.00")]),
    (pa.date32(), [datetime.date(1, 1, 1), datetime.date(2026, 1, 1)]),
    (pa.time64("us"), [datetime.time(0, 0, 1), datetime.time(23, 59)]),
    (pa.timestamp("us"), [datetime.datetime(1969, 1, 1), MOMENT]),
    (pa.timestamp("ns", "UTC"), [ZONED, ZONED + datetime.timedelta(microseconds=1)]),
    (pa.duration("s"), [datetime.timedelta(-1), datetime.timedelta(1)]),
    (pa.string(), ["", "A", "a", "aa", "ä", "\U0001f600"]),
    (pa.binary(), [b"", b"\x00", b"\x00\x01", b"\xff"]),
]


def held(users: persist.Collection) -> dict[int, Any]:
    return {row["k"]: row["v"] for row in users.snapshot().to_arrow().to_pylist()}


@pytest.mark.thorough(except_every=4)
@pytest.mark.parametrize("at", range(len(WATERMARKS)), ids=[str(kind) for kind, _ in WATERMARKS])
def test_the_greater_watermark_stands_whatever_its_type(client: persist.Client, at: int) -> None:
    kind, marks = WATERMARKS[at]
    resolve: Any = POLICIES[at % len(POLICIES)]
    value, form = {"at": kind, "v": pa.int64()}, persist.Keyed(order_by=["at"], resolve=resolve)
    users = client.create_or_load("users", key=KEY, value=value, keyed=form)
    ranks = [None, *marks]
    pairs = [(low, high) for low in range(len(ranks)) for high in range(low + 1, len(ranks))]
    made = pa.array(ranks, kind)

    def events(of: list[int], time: int) -> pa.Table:
        columns = {"k": [*range(len(of))], "at": made.take(pa.array(of, pa.int64())), "v": of}
        return pa.table({**columns, "_time": [time] * len(of)})

    greater, lesser = [high for _, high in pairs], [low for low, _ in pairs]
    users.upsert(events(greater, 0)).result()
    users.upsert(events(lesser, 0), seal=1).result()
    assert held(users) == dict(enumerate(greater)), "of one time, though the lesser arrived later"
    users.upsert(events(lesser, 1), seal=2).result()
    assert users.changes(1, 2).to_arrow().num_rows == 0, "at a later time it changes nothing"
    users.upsert(events([len(ranks) - 1] * len(pairs), 2), seal=3).result()
    assert {*held(users).values()} == {len(ranks) - 1}


@pytest.mark.parametrize("resolve", POLICIES)
@pytest.mark.parametrize("time", [0, 1])
def test_of_equal_watermarks_the_last_to_arrive_stands_and_zeros_are_equal(
    client: persist.Client, time: int, resolve: Any
) -> None:
    value, form = {"at": pa.float64(), "v": pa.string()}, persist.Keyed(order_by=["at"], resolve=resolve)
    users = client.create_or_load("users", key=KEY, value=value, keyed=form)
    users.upsert([(1, (0.0, "first"), 0), (2, (None, "first"), 0), (3, (NAN, "first"), 0)], seal=time).result()
    users.upsert([(1, (-0.0, "last"), time), (2, (None, "last"), time), (3, (NAN, "last"), time)]).result()
    users.seal(2).result()
    assert held(users) == {1: "last", 2: "last", 3: "last"}


@pytest.mark.parametrize("resolve", POLICIES)
def test_watermarks_of_several_columns_compare_the_first_that_differs(client: persist.Client, resolve: Any) -> None:
    value = {"a": pa.int64(), "b": pa.string(), "v": pa.string()}
    form = persist.Keyed(order_by=["b", "a"], resolve=resolve)
    users = client.create_or_load("users", key=KEY, value=value, keyed=form)
    users.upsert([(1, (9, "x", "old"), 0), (2, (1, "x", "old"), 0), (3, (None, "x", "old"), 0)], seal=1).result()
    users.upsert([(1, (0, "y", "new"), 1), (2, (0, "x", "new"), 1), (3, (0, "x", "new"), 1)], seal=2).result()
    users.upsert([(1, (99, None, "NULL is below"), 2), (3, (99, "w", "so is this"), 2)], seal=3).result()
    assert held(users) == {1: "new", 2: "old", 3: "new"}


TOMBSTONES: list[tuple[pa.DataType, str | None, list[Any], list[Any]]] = [
    (pa.bool_(), None, [False, None], [True]),
    (pa.string(), "gone", ["", "Gone", None], ["gone"]),
    (pa.string(), None, [None], ["", "gone"]),
    (pa.int64(), None, [None], [0, 1]),
    (pa.float64(), None, [None], [0.0, NAN]),
    (pa.timestamp("us"), None, [None], [MOMENT]),
    (pa.binary(), None, [None], [b""]),
]


@pytest.mark.thorough(except_every=3)
@pytest.mark.parametrize("resolve", POLICIES)
@pytest.mark.parametrize(("kind", "equal_to", "live", "dead"), TOMBSTONES, ids=[f"{k}-{v}" for k, v, *_ in TOMBSTONES])
def test_the_type_of_the_tombstone_column_says_which_rows_are_tombstones(
    client: persist.Client, kind: pa.DataType, equal_to: Any, live: list[Any], dead: list[Any], resolve: Any
) -> None:
    form = persist.Keyed(order_by=["at"], tombstone="t", tombstone_value=equal_to, resolve=resolve)
    users = client.create_or_load("users", key=KEY, value={"at": pa.int64(), "t": kind, "v": pa.string()}, keyed=form)
    # What the other columns of a tombstone hold says nothing.
    users.upsert([(k, (1, each, "x"), 0) for k, each in enumerate([*live, *dead])], seal=1).result()
    assert [*held(users)] == [*range(len(live))]
    users.upsert([(k, (2, each, None), 1) for k, each in enumerate([*dead, *live])], seal=2).result()
    assert [*held(users)] == [*range(len(dead), len(dead) + len(live))], "a later row brings its key back"


@pytest.mark.parametrize("resolve", POLICIES)
def test_no_read_shows_a_tombstone_or_what_is_not_sealed(client: persist.Client, resolve: Any) -> None:
    form = persist.Keyed(order_by=["at"], tombstone="gone", resolve=resolve)
    value = {"at": pa.int64(), "n": pa.int64(), "gone": pa.bool_()}
    users = client.create_or_load("users", key=KEY, value=value, keyed=form)
    users.upsert([(k, (1, k, False), 0) for k in range(10)], seal=1).result()
    users.upsert([(k, (2, 100 + k, True), 1) for k in range(4)], seal=2).result()
    users.upsert([(k, (3, 1000, False), 7) for k in range(50)]).result()  # Pending.
    for is_compacted in (False, True):
        if is_compacted:
            resolve_events(users)
            users.allow_compaction(1).result()
            users.compact()
        now = users.snapshot()
        assert now.to_arrow()["k"].to_pylist() == [*range(4, 10)]
        assert now.count() == len([*now.rows()]) == 6
        assert now.aggregate([], {"n": ("n", "sum")}).to_pylist() == [{"n": sum(range(4, 10))}]
        assert rows_with(now, [1, 5, 20]).num_rows == now.get(pa.table({"k": [1, 5, 20]})).num_rows == 1
        assert users.snapshot(where=pc.field("n") >= 100).count() == 0
        assert users.snapshot(columns=["k"]).to_arrow().num_rows == 6
        waiting = now.explain().unsealed
        assert waiting is not None
        assert waiting.updates == 50
        if not is_compacted:
            changes = users.changes(1, 2).to_arrow()
            assert (changes["n"].to_pylist(), changes["_diff"].to_pylist()) == ([*range(4)], [-1] * 4)
            assert users.snapshot(0).count() == 10
    assert client.fsck().is_clean


@pytest.mark.parametrize("resolve", POLICIES)
def test_a_hold_keeps_what_a_keyed_collection_was(client: persist.Client, resolve: Any) -> None:
    users = client.create_or_load("users", key=KEY, value={"v": pa.string()}, keyed=persist.Keyed(resolve=resolve))
    for time, v in enumerate("abc"):
        users.upsert([(1, v, time)], seal=time + 1).result()
    with users.hold(0):
        users.allow_compaction(2).result()
        resolve_events(users)
        users.compact()
        assert [*users.snapshot(0).rows()] == [(1, "a")]
        assert users.since.time == 0
    assert (users.since.time or 0) < (users.upper.time or 0)
