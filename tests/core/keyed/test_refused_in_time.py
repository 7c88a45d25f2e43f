"""What could not be resolved, or not be stored, is refused when it is given: afterwards nobody could seal or read."""

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import persist
from persist.events import AppendDistinct, Checked, Event, History, InsertIfAbsent, PerKey, Sessions

KEY = {"k": pa.int64()}
SPANS = {"start": pa.int64(), "end": pa.int64(), "events": pa.int64()}
TEXT = pa.schema([pa.field("v", pa.string(), nullable=False)])


@pytest.fixture
def client(tmp_path: Path) -> Iterator[persist.Client]:
    with persist.open(tmp_path) as client:
        yield client


def keyed(client: persist.Client, value: Any, **declared: Any) -> persist.Collection:
    return client.create_or_load("users", key=KEY, value=value, keyed=persist.Keyed(**declared))


def contents(collection: persist.Collection) -> list[Any]:
    return [*collection.snapshot().to_arrow().to_pylist()]


@pytest.mark.parametrize("resolve", ["seal", "background"])
def test_an_event_without_a_moment_is_refused_when_it_comes(client: persist.Client, resolve: Any) -> None:
    spans = keyed(client, SPANS, machine=Sessions(5), resolve=resolve)
    with pytest.raises(persist.errors.InvalidUpdate, match="event 1 has NULL in 'at'"):
        spans.transition([{"k": 1, "at": 2, "_time": 0}, {"k": 1, "at": None, "_time": 0}])
    spans.transition([{"k": 1, "at": 2, "_time": 0}, {"k": 2, "_deleted": True, "_time": 0}]).result()
    spans.seal(1).result()
    assert contents(spans) == [{"k": 1, "start": 2, "end": 2, "events": 1}]


@pytest.mark.parametrize(
    ("machine", "value"), [(Checked("fail"), {"v": pa.string()}), (Sessions(5), {**SPANS, "n": pa.int64()})]
)
def test_a_machine_that_may_refuse_what_is_sealed_does_not_go_with_the_background(
    client: persist.Client, machine: Any, value: Any
) -> None:
    with pytest.raises(persist.errors.SchemaMismatch, match='Give resolve="seal"'):
        keyed(client, value, machine=machine, resolve="background")
    assert client.collections() == []


def test_a_sum_that_does_not_fit_is_sealed_after_its_key_is_deleted(client: persist.Client) -> None:
    spans = keyed(client, {**SPANS, "n": pa.int64()}, machine=Sessions(5))
    spans.transition([{"k": k, "at": 1, "n": n, "_time": 0} for k, n in ((1, 2**62), (1, 2**62), (2, 1))]).result()
    with pytest.raises(persist.errors.InvalidUpdate, match="An event that deletes the key at the same time"):
        spans.seal(1).result()
    spans.delete([1], time=0).result()
    spans.seal(1).result()
    assert [row["k"] for row in contents(spans)] == [2]


@pytest.mark.parametrize("machine", [None, AppendDistinct(), InsertIfAbsent(), Checked("trust")])
def test_a_deletion_may_be_null_where_no_row_may_be(client: persist.Client, machine: Any) -> None:
    users = keyed(client, TEXT, machine=machine)
    before = {} if machine is None or machine.name != "checked" else {"_before": pa.nulls(1, pa.struct(TEXT))}
    null = {"k": [1], "v": pa.nulls(1, pa.string()), **before}
    with pytest.raises(persist.errors.InvalidUpdate, match="event 0 has NULL in 'v'"):
        users.transition(pa.table({**null, "_time": [0]}))
    assert users.unsealed is None
    deletions: list[Any] = [
        lambda time: users.transition(pa.table({**null, "_deleted": [True], "_time": [time]})),
        lambda time: users.transition(pa.table({"k": [1], "_deleted": [True], "_time": [time]})),
        lambda time: users.transition([(1, None, time)]),
        lambda time: users.delete([1], time=time),
    ]
    for time, delete in enumerate(deletions):
        row = {"v": "a"} if not before else {"v": "a", "_before": None}
        users.transition([{"k": k, **row, "_time": 2 * time} for k in (1, 2)], seal=2 * time + 1).result()
        delete(2 * time + 1).result()
        users.seal(2 * time + 2).result()
        assert {row["k"] for row in contents(users)} == {2}
    assert client.fsck().is_clean


def test_a_tombstone_has_a_value_where_no_row_may_be_null(client: persist.Client) -> None:
    users = keyed(client, pa.schema([*TEXT, pa.field("gone", pa.bool_())]), tombstone="gone")
    users.upsert([(1, ("a", None), 0), (2, ("b", None), 0)], seal=1).result()
    for refused in ([(1, None, 1)], [{"k": 1, "v": None, "gone": True, "_time": 1}]):
        with pytest.raises(persist.errors.InvalidUpdate, match="stored as the row of its key"):
            users.upsert(refused)
    users.upsert([(1, ("", True), 1)], seal=2).result()
    users.compact()
    assert [row["k"] for row in contents(users)] == [2]
    assert client.fsck().is_clean


def test_what_is_valid_now_has_no_end_so_its_column_may_be_null(client: persist.Client) -> None:
    value = pa.schema([*TEXT, ("valid_from", pa.int64()), pa.field("valid_to", pa.int64(), nullable=False)])
    with pytest.raises(persist.errors.SchemaMismatch, match="'valid_to' is NULL in what is valid now"):
        keyed(client, value, machine=History())


@pytest.mark.parametrize("resolve", ["seal", "background"])
def test_tombstones_without_a_watermark_find_their_way_back(client: persist.Client, resolve: Any) -> None:
    value = {"at": pa.int64(), "gone": pa.bool_()}
    declared = persist.Keyed(order_by=["at"], tombstone="gone", resolve=resolve)
    users, copy = (client.create_or_load(name, key=KEY, value=value, keyed=declared) for name in ("users", "copy"))
    users.upsert([(1, (None, True), 0), (2, (None, False), 0), (1, (None, False), 1)], seal=2).result()
    copy.upsert(users.upserts(0, 2).to_arrow(), seal=2).result()
    assert [*copy.changes(0).updates()] == [*users.changes(0).updates()]
    with pytest.raises(persist.errors.InvalidUpdate, match="event 1 deletes its key and has no value in"):
        users.upsert(
            [{"k": 1, "gone": True, "at": None, "_time": 3}, {"k": 1, "at": None, "_time": 3, "_deleted": True}]
        )


@pytest.mark.parametrize(
    ("kind", "least", "most"),
    [
        (pa.uint64(), 3, 2**64 - 1),
        (pa.int8(), -120, 127),
        (pa.int64(), -(2**63) + 3, 2**63 - 1),
        (pa.date32(), datetime.date(1, 1, 2), datetime.date(9999, 1, 1)),
    ],
)
def test_a_late_bound_may_be_below_and_above_what_watermarks_are(
    client: persist.Client, kind: pa.DataType, least: Any, most: Any
) -> None:
    users = keyed(client, {"at": kind}, order_by=["at"], late_bound=persist.Behind(10))
    users.upsert([(1, least, 0)], seal=1).result()
    assert users.late_bound in (None, -(2**63))
    first = users.upsert([(1, least, 1), (2, most, 1)], seal=2, late="collect")
    first.result()
    assert first.late is None
    assert users.late_bound is not None
    second = users.upsert([(1, least, 2), (2, most, 2)], seal=3, late="collect")
    second.result()
    assert second.late is not None
    assert second.late["k"].to_pylist() == [1]


@pytest.mark.parametrize(
    ("declared", "says"),
    [
        ({"order_by": 5}, "order_by=5 is not a list"),
        ({"machine": InsertIfAbsent}, "give an instance"),
        ({"order_by": ["at"], "late_bound": 1.5}, "late_bound=1.5 is not a value of the first"),
    ],
)
def test_a_declaration_that_is_nearly_right_is_refused(
    client: persist.Client, declared: dict[str, Any], says: str
) -> None:
    with pytest.raises(persist.InvalidUsage, match=says):
        keyed(client, {"at": pa.int64()}, **declared)


def test_dates_of_milliseconds_are_late_by_days(client: persist.Client) -> None:
    users = keyed(client, {"at": pa.date64()}, order_by=["at"], late_bound=persist.Behind(datetime.timedelta(days=2)))
    users.upsert([(1, datetime.date(2026, 1, 5), 0)]).result()
    assert users.late_bound == datetime.date(2026, 1, 3)


def test_how_late_events_are_is_told_by_the_first_of_the_columns_that_order_them(client: persist.Client) -> None:
    columns = {"at": pa.int64(), "n": pa.int64()}
    users = keyed(client, columns, order_by=["at", "n"], late_bound=persist.Behind(10))
    users.upsert([(1, (100, 3), 0)]).result()
    users.upsert([(2, (95, 500), 0)]).result()
    assert users.late_bound == 90


def test_a_function_that_fails_on_a_later_event_keeps_nobody_from_what_was_sealed_before(
    client: persist.Client,
) -> None:
    def last(key: int, held: list[Any], event: Event) -> list[Any]:
        if event.value == "boom":
            raise ValueError("boom")
        return [event.value]

    machine = PerKey(last, name="last", version=1, has_one_value=True)
    users = keyed(client, {"v": pa.string()}, machine=machine, resolve="background")
    users.transition([(1, "a", 0), (1, "b", 1), (1, "boom", 2)]).result()
    users.seal(3).result()
    with pytest.raises(ValueError, match="boom"):
        users.snapshot(2)
    with pytest.raises(ValueError, match="boom"):
        users.changes(1, 3)
    assert users.snapshot(0).to_arrow().to_pylist() == [{"k": 1, "v": "a"}]
    assert users.snapshot(1).to_arrow().to_pylist() == [{"k": 1, "v": "b"}]
    assert users.changes(1, 2).to_arrow().num_rows == 2
