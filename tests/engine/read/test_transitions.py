"""Changes as transitions: what goes and what comes of a key at a time is an update with the old and the new value."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import persist
from persist.blob.protocol import MemoryBlob
from tests.support.tiers import examples

QUIET = persist.Settings(background=False)
UPDATES = st.lists(
    st.tuples(
        st.tuples(st.integers(0, 2), st.tuples(st.sampled_from(["a", "b", None]), st.sampled_from([0.0, 1.5, None]))),
        st.integers(0, 3),
        st.sampled_from([-2, -1, 1, 3]),
    ),
    max_size=20,
)


@pytest.fixture
def client() -> Iterator[persist.Client]:
    with persist.open(MemoryBlob(), settings=QUIET) as client:
        yield client


def orders(client: persist.Client, **options: Any) -> persist.Collection:
    return client.create_or_load("orders", key={"id": int}, value={"status": str, "amount": float}, **options)


def test_what_became_of_a_key_is_an_insert_an_update_or_a_delete(client: persist.Client) -> None:
    users = orders(client, keyed=persist.Keyed())
    users.upsert([(1, ("new", 5.0), 0), (2, ("new", None), 0), (1, ("paid", 5.0), 1), (2, None, 1)], seal=2).result()
    transitions = users.changes(0, form="transitions")
    table = transitions.to_arrow()
    assert table.schema.names == ["id", "status", "amount", "_time", "_change", "_old_status", "_old_amount"]
    assert table.schema == transitions.schema
    assert [[*row.values()] for row in table.to_pylist()] == [
        [1, "new", 5.0, 0, "insert", None, None],
        [2, "new", None, 0, "insert", None, None],
        [1, "paid", 5.0, 1, "update", "new", 5.0],
        [2, None, None, 1, "delete", "new", None],
    ]
    assert [*transitions.updates()] == [*users.changes(0).updates()], "in either form"
    assert transitions.to_polars().filter(_change="update")["_old_status"].to_list() == ["new"]


def test_only_columns_that_are_asked_for_make_an_update(client: persist.Client) -> None:
    users = orders(client, keyed=persist.Keyed())
    users.upsert([(1, ("new", 5.0), 0), (1, ("paid", 5.0), 1)], seal=2).result()
    found = users.changes(1, columns=["id", "amount"], form="transitions")
    assert found.to_pylist() == []
    assert found.schema.names == ["id", "amount", "_time", "_change", "_old_amount"]
    with pytest.raises(persist.InvalidUsage, match="leaves out the key column 'id'"):
        users.changes(1, columns=["amount"], form="transitions")


def test_tombstones_delete_and_a_later_row_inserts(client: persist.Client) -> None:
    form = persist.Keyed(order_by=["amount"], tombstone="status", tombstone_value="gone")
    users = orders(client, keyed=form)
    users.upsert([(1, ("new", 1.0), 0), (1, ("gone", 2.0), 1), (1, ("again", 3.0), 2)], seal=3).result()
    rows = users.changes(0, form="transitions").to_pylist()
    assert [(row["_change"], row["_old_status"], row["status"]) for row in rows] == [
        ("insert", None, "new"),
        ("delete", "new", None),
        ("insert", None, "again"),
    ]


def test_without_a_key_nothing_is_paired(client: persist.Client) -> None:
    lines = client.create_or_load("lines", key=None, value={"v": str})
    lines.write([((None, "a"), 0, 2), ((None, "a"), 1, -1), ((None, "b"), 1, 1)], seal=2).result()
    rows = lines.changes(0, form="transitions").to_pylist()
    assert [(row["_time"], row["_change"], row["_old_v"], row["v"]) for row in rows] == [
        (0, "insert", None, "a"),
        (0, "insert", None, "a"),
        (1, "delete", "a", None),
        (1, "insert", None, "b"),
    ]


def test_times_may_be_moments(client: persist.Client) -> None:
    clicks = client.create_or_load("clicks", key={"id": int}, value={"v": str}, timeline="ms")
    clicks.write([((1, "a"), 1_700_000_000_000, 1)], seal=1_700_000_000_001).result()
    found = clicks.changes(0, form="transitions", times="timestamp").to_arrow()
    assert pa.types.is_timestamp(found.schema.field("_time").type)
    assert found["_time"][0].as_py().isoformat() == "2023-11-14T22:13:20+00:00"


def test_what_cannot_be_told_apart_is_refused(client: persist.Client) -> None:
    with pytest.raises(persist.InvalidUsage, match="form='rows' is not a form of changes: give \"updates\""):
        orders(client).changes(0, form="rows")  # type: ignore[arg-type]
    taken = client.create_or_load("taken", key={"id": int}, value={"v": str, "_old_v": str})
    taken.write([((1, ("a", "b")), 0, 2**40)], seal=1).result()
    with pytest.raises(persist.InvalidUsage, match="has a column '_old_v', which means something else"):
        taken.changes(0, form="transitions")
    with pytest.raises(persist.InvalidUsage, match="1099511627776 transitions are too many rows"):
        taken.changes(0, columns=["id", "v"], form="transitions").to_arrow()
    with pytest.raises(
        persist.InvalidUsage, match=r"about 1.1e\+12 rows, because a record has multiplicity 1099511627776"
    ):
        taken.as_of_join(pa.table({"id": [1], "at": [0]}), time="at")


def paired(updates: list[Any]) -> Counter[Any]:
    """Return (time, key, old, new) of transitions, with None for nothing; values in their order, NULL last."""
    found: Counter[Any] = Counter()
    sums: Counter[Any] = Counter()
    for (key, value), time, diff in updates:
        sums[time, key, value] += diff
    for time, key in {update[:2] for update in sums}:
        mine = [(v, n) for (t, k, v), n in sums.items() if (t, k) == (time, key)]
        mine.sort(key=lambda pair: [(part is None, part or 0) for part in pair[0]])
        goes = [value for value, n in mine for _ in range(-n)]
        comes = [value for value, n in mine for _ in range(n)]
        for at in range(max(len(goes), len(comes))):
            old, new = (values[at] if at < len(values) else None for values in (goes, comes))
            found[time, key, old, new] += 1
    return found


@settings(max_examples=examples(100), deadline=None)
@given(batches=st.lists(UPDATES, max_size=3))
def test_transitions_pair_what_updates_say_in_the_order_of_values(batches: list[list[Any]]) -> None:
    with persist.open(MemoryBlob(), settings=QUIET) as client:
        collection = orders(client)
        for batch in batches:
            collection.write(batch)
        collection.seal(4).result()
        rows = collection.changes(0, form="transitions").to_pylist()
        found: Counter[Any] = Counter()
        for row in rows:
            old, new = (row["_old_status"], row["_old_amount"]), (row["status"], row["amount"])
            change = row["_change"]
            found[
                row["_time"], row["id"], None if change == "insert" else old, None if change == "delete" else new
            ] += 1
        assert found == paired([update for batch in batches for update in batch])
        assert [row["_time"] for row in rows] == sorted(row["_time"] for row in rows)


def test_what_a_transition_says_is_never_null_and_an_old_value_may_be(client: persist.Client) -> None:
    users = orders(client, keyed=persist.Keyed())
    users.upsert([(1, ("new", 5.0), 0)], seal=1).result()
    for table in (
        users.changes(0, 1, form="transitions").to_arrow(),
        users.changes(0, 0, form="transitions").to_arrow(),
    ):
        nullable = {field.name: field.nullable for field in table.schema}
        assert nullable.pop("_change") is False
        assert nullable.pop("_time") is False
        assert all(null for name, null in nullable.items() if name.startswith("_old"))
