"""Plain rows: written at one time or at that of a column, put in the place of what is there, and deleted."""

from datetime import UTC, datetime
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import persist

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
NOON_MS = 1795262400_000

FORMS: dict[str, Any] = {
    "tuples": [(1, "a"), (2, "b")],
    "an iterator": lambda: iter([(1, "a"), (2, "b")]),
    "arrow": pa.table({"k": [1, 2], "v": ["a", "b"]}),
    "pandas": pd.DataFrame({"k": [1, 2], "v": ["a", "b"]}),
    "dicts": [{"k": 1, "v": "a"}, {"k": 2, "v": "b"}],
    "columns": {"k": [1, 2], "v": ["a", "b"]},
    "a stream": lambda: iter([pa.table({"k": [k], "v": [v]}) for k, v in ((1, "a"), (2, "b"))]),
}


@pytest.mark.parametrize("rows", FORMS.values(), ids=FORMS)
def test_plain_rows_are_written_at_one_time(orders: persist.Collection, rows: Any) -> None:
    rows = rows if not callable(rows) else rows()
    orders.write(rows, time=12, seal=13).result()
    assert list(orders.changes(0).updates()) == [((1, "a"), 12, 1), ((2, "b"), 12, 1)]


def test_plain_rows_are_retracted_with_a_diff(orders: persist.Collection) -> None:
    orders.write([(1, "a"), (2, "b")], time=12)
    orders.write([(1, "a")], time=13, diff=-1, seal=14).result()
    assert list(orders.snapshot().rows()) == [(2, "b")]
    with pytest.raises(persist.InvalidUpdate, match="diff=0 is no change"):
        orders.write([(1, "a")], time=14, diff=0)
    with pytest.raises(persist.InvalidUsage, match="diff=1 needs time="):
        orders.write([((1, "a"), 14, 1)], diff=1)


def test_the_time_of_each_row_comes_from_a_column_that_is_dropped(orders: persist.Collection) -> None:
    orders.write(pd.DataFrame({"k": [1, 2], "v": ["a", "b"], "at": [5, 7]}), time="at")
    orders.write([{"k": 3, "v": "c", "at": 6}], time="at", seal=10).result()
    assert list(orders.changes(0).updates()) == [((1, "a"), 5, 1), ((3, "c"), 6, 1), ((2, "b"), 7, 1)]


def test_the_time_of_each_row_comes_from_a_column_that_is_kept(client: persist.Client) -> None:
    kept = client.create_or_load("kept", key={"k": pa.int64()}, value={"at": pa.timestamp("us", "UTC")}, timeline="ms")
    kept.write([{"k": 1, "at": NOON}], time="at")
    kept.write(pa.table({"k": [2], "at": pa.array([NOON])}), time="at", seal="2026-11-22").result()
    assert list(kept.changes(0).updates()) == [((1, NOON), NOON_MS, 1), ((2, NOON), NOON_MS, 1)]


def test_moments_of_a_dropped_column_are_held_to_the_same_rules(client: persist.Client) -> None:
    clicks = client.create_or_load("clicks", key={"k": pa.int64()}, timeline="ms")
    clicks.write([{"k": 1, "at": NOON}], time="at")
    clicks.write([{"k": 2, "at": "2026-11-21T12:00:00Z"}], time="at")
    clicks.write([{"k": 3}], time="2026-11-21T12:00:00Z")
    clicks.write([{"k": 4}], time=NOON, seal="2026-11-22").result()
    assert [time for _, time, _ in clicks.changes(0).updates()] == [NOON_MS] * 4
    with pytest.raises(persist.InvalidUpdate, match="it has no time zone"):
        clicks.write([{"k": 1, "at": NOON}, {"k": 1, "at": NOON.replace(tzinfo=None)}], time="at")
    with pytest.raises(persist.InvalidUsage, match="lies between two times"):
        clicks.write([{"k": 1}], time=NOON.replace(microsecond=1))


def test_plain_rows_that_do_not_fit_are_told_how_they_would(orders: persist.Collection) -> None:
    rows = pa.table({"k": [1], "v": ["a"], "sold_at": [5]})
    with pytest.raises(
        persist.SchemaMismatch, match=r"time='sold_on' is no column of the rows, did you mean 'sold_at'"
    ):
        orders.write(rows, time="sold_on")
    with pytest.raises(persist.SchemaMismatch, match="the rows have a column '_time', and time= is given, too"):
        orders.write(rows.rename_columns(["k", "v", "_time"]), time=5)
    with pytest.raises(persist.SchemaMismatch, match="names a column, and these rows are no table"):
        orders.write([(1, "a")], time="at")
    with pytest.raises(persist.SchemaMismatch, match="'sold_at' is unexpected"):
        orders.write(rows, time=5)
    with pytest.raises(persist.InvalidUsage, match="time -1 is not an integer in"):
        orders.write([(1, "a")], time=-1)
    with pytest.raises(persist.InvalidUpdate, match=r"the rows are 7 \(int\): give \(key, value\) tuples"):
        orders.write(7, time=5)
    assert orders.unsealed is None


def test_plain_rows_are_part_of_a_multi_write(client: persist.Client, orders: persist.Collection) -> None:
    with client.multi_write() as multi:
        multi.write(orders, [(1, "a")], time=3)
        multi.write(orders, [(1, "a")], time=4, diff=-1)
        multi.seal(orders, 5)
    assert [diff for _, _, diff in orders.changes(0).updates()] == [1, -1]
