"""Plain rows: written at one time or at that of a column, put in the place of what is there, and deleted."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import persist
from persist.blob.layers.metered import MeteredBlob
from persist.blob.protocol import MemoryBlob

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
    with pytest.raises(persist.errors.InvalidUpdate, match="diff=0 is not a change"):
        orders.write([(1, "a")], time=14, diff=0)
    with pytest.raises(persist.InvalidUsage, match="diff=1 is for plain rows"):
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
    with pytest.raises(persist.errors.InvalidUpdate, match="it has no time zone"):
        clicks.write([{"k": 1, "at": NOON}, {"k": 1, "at": NOON.replace(tzinfo=None)}], time="at")
    with pytest.raises(persist.InvalidUsage, match="lies between two times"):
        clicks.write([{"k": 1}], time=NOON.replace(microsecond=1))


def test_plain_rows_that_do_not_fit_are_told_how_they_would(orders: persist.Collection) -> None:
    rows = pa.table({"k": [1], "v": ["a"], "sold_at": [5]})
    with pytest.raises(
        persist.errors.SchemaMismatch, match=r"time='sold_on' is not a column of the rows, did you mean 'sold_at'"
    ):
        orders.write(rows, time="sold_on")
    with pytest.raises(persist.errors.SchemaMismatch, match="a column '_time', and time=5 is given for all of them"):
        orders.write(rows.rename_columns(["k", "v", "_time"]), time=5)
    with pytest.raises(persist.errors.SchemaMismatch, match="names a column, and these rows are not a table"):
        orders.write([(1, "a")], time="at")
    with pytest.raises(persist.errors.SchemaMismatch, match="'sold_at' is unexpected"):
        orders.write(rows, time=5)
    with pytest.raises(persist.InvalidUsage, match="time -1 is not an integer in"):
        orders.write([(1, "a")], time=-1)
    with pytest.raises(persist.errors.InvalidUpdate, match=r"the rows are 7 \(int\): give \(key, value\) tuples"):
        orders.write(7, time=5)
    assert orders.unsealed is None


def test_plain_rows_are_part_of_a_multi_write(client: persist.Client, orders: persist.Collection) -> None:
    with client.multi_write() as multi:
        multi.write(orders, [(1, "a")], time=3)
        multi.write(orders, [(1, "a")], time=4, diff=-1)
        multi.seal(orders, 5)
    assert [diff for _, _, diff in orders.changes(0).updates()] == [1, -1]


def rows_of(orders: persist.Collection) -> list[Any]:
    return sorted(orders.snapshot().rows())


@pytest.fixture
def sealed(orders: persist.Collection) -> persist.Collection:
    """The contents are 1 a, 2 b twice, 3 c as of 1."""
    orders.write([(1, "a"), (2, "b"), (2, "b"), (3, "c")], time=1, seal=2).result()
    return orders


def changed(orders: persist.Collection, time: int) -> list[Any]:
    return [(row, diff) for row, _, diff in orders.changes(time, time + 1).updates()]


@pytest.mark.parametrize("rows", FORMS.values(), ids=FORMS)
def test_overwriting_writes_the_difference_and_seals_it(sealed: persist.Collection, rows: Any) -> None:
    sealed.overwrite(rows if not callable(rows) else rows(), time=5).result()
    assert sealed.upper == 6
    assert rows_of(sealed) == [(1, "a"), (2, "b")]
    assert changed(sealed, 5) == [((2, "b"), -1), ((3, "c"), -1)]


def test_overwriting_with_the_same_changes_nothing_but_upper(sealed: persist.Collection) -> None:
    sealed.overwrite(sealed.snapshot(), time=5, multiset=True).result()
    assert sealed.upper == 6
    assert changed(sealed, 5) == []
    sealed.overwrite([], time=6).result()
    assert rows_of(sealed) == []


def test_an_overwrite_of_rows_with_diffs_is_not_advised_to_leave_out_what_it_has_not(
    orders: persist.Collection,
) -> None:
    with pytest.raises(
        persist.errors.SchemaMismatch, match=r"'_diff', and diff=1 is given for all of them, too: drop the"
    ):
        orders.overwrite(pa.table({"k": [1], "v": ["a"], "_diff": [5]}), time=5)


def test_overwriting_where_a_filter_is_true_leaves_the_rest_alone(sealed: persist.Collection) -> None:
    sealed.overwrite([(2, "x"), (4, "d")], time=5, where=pc.field("k") >= 2).result()
    assert rows_of(sealed) == [(1, "a"), (2, "x"), (4, "d")]
    with pytest.raises(persist.InvalidUsage, match=r"is not true for 1 of the 2 rows.*widen the filter"):
        sealed.overwrite([(1, "y"), (9, "z")], time=6, where=pc.field("k") >= 2)
    with pytest.raises(persist.InvalidUsage, match="did you mean 'v'"):
        sealed.overwrite([], time=6, where=pc.field("V") == "a")
    assert rows_of(sealed) == [(1, "a"), (2, "x"), (4, "d")]


WHAT: dict[str, dict[str, Any]] = {
    "keys": {"keys": [2, 3, 77]},
    "arrow": {"keys": pa.table({"k": [2, 3]})},
    "a condition": {"where": pc.field("k") > 1},
}


@pytest.mark.parametrize("what", WHAT.values(), ids=WHAT)
def test_deleting_retracts_what_is_there(sealed: persist.Collection, what: dict[str, Any]) -> None:
    sealed.delete(**what, time=5).result()
    assert rows_of(sealed) == [(1, "a")]
    assert changed(sealed, 5) == [((2, "b"), -2), ((3, "c"), -1)]
    sealed.delete(**what, time=6).result()
    assert changed(sealed, 6) == []


def test_deleting_by_a_filter_on_an_unknown_column_is_told_the_name(sealed: persist.Collection) -> None:
    with pytest.raises(persist.InvalidUsage, match="did you mean 'v'"):
        sealed.delete(where=pc.field("V") == "a", time=5)
    with pytest.raises(persist.InvalidUsage, match="key"):
        sealed.delete(["x"], time=5)
    assert sealed.upper == 2


def test_overwriting_beside_updates_that_are_not_sealed_is_refused(sealed: persist.Collection) -> None:
    sealed.write([(9, "z")], time=7).result()
    said = r"^1 update at time 7 beyond upper=2 is not sealed, "
    with pytest.raises(persist.errors.UpdatesBeyondUpper, match=said):
        sealed.overwrite([], time=8)
    with pytest.raises(persist.errors.UpdatesBeyondUpper, match=said):
        sealed.delete([1], time=8)
    sealed.seal(8).result()
    with pytest.raises(persist.errors.UpdateNotBeyondUpper, match="time 7 is not beyond"):
        sealed.overwrite([], time=7)


def test_an_overwrite_that_loses_a_race_says_whose_the_updates_are(
    blob: MemoryBlob, sealed: persist.Collection
) -> None:
    with persist.open(blob) as other:
        theirs = other.load("orders")

        def rows() -> Any:
            yield pa.table({"k": [1], "v": ["x"]})
            theirs.write([(9, "z")], time=7, token="racer").result()

        with pytest.raises(persist.errors.UpdatesBeyondUpper, match="1 update at time 7 "):
            sealed.overwrite(rows(), time=8).result()


def test_a_difference_larger_than_the_memory_budget_is_made_in_slices(blob: MemoryBlob) -> None:
    count, changed_rows = 25_000, 1_000
    settings = persist.Settings(memory_budget=16 << 20)
    with persist.open(blob, settings=settings) as client:
        wide = client.create_or_load("wide", key={"k": pa.int64()}, value={"v": pa.string()})
        keys = pa.array(range(count))
        before = pa.table({"k": keys, "v": pc.binary_join_element_wise(keys.cast(pa.string()), "x" * 420, "-")})
        wide.overwrite(before, time=1).result()
        touched = pc.less(keys, changed_rows)
        after = before.set_column(1, "v", pc.if_else(touched, pa.scalar("new"), before["v"]))
        wide.overwrite((batch for batch in after.to_batches(max_chunksize=10_000)), time=2).result()
        assert wide.changes(2, 3).to_arrow().num_rows == 2 * changed_rows
        assert wide.snapshot().to_arrow().sort_by("k").equals(after)
        wide.delete(where=pc.field("k") >= 10, time=3).result()
        assert sorted(wide.snapshot().to_arrow()["k"].to_pylist()) == list(range(10))
    report = persist.fsck(blob)
    assert (report.problems, report.unreferenced) == ((), ())


@pytest.mark.thorough(except_every=2)
@pytest.mark.parametrize("is_sorted", [True, False])
def test_rows_that_fit_in_memory_are_not_stored_to_be_compared(is_sorted: bool) -> None:
    blob = MeteredBlob(MemoryBlob())
    count = 100_000
    keys = [None if n == count // 2 else f"key {n:08}" for n in range(count)]
    rows = pa.table({"k": keys, "v": pa.array(range(count), pa.float64())})
    order = range(count) if is_sorted else np.random.default_rng(1).permutation(count)
    changed_at = [5, count // 2, count - 1]
    values = rows["v"].to_numpy().copy()
    values[changed_at] = float("nan")
    after = pa.table({"k": rows["k"], "v": values}).take(pa.array(order))
    with persist.open(blob, settings=persist.Settings(background=False, memory_budget=16 << 20)) as client:
        c = client.create_or_load("c", key={"k": str}, value={"v": float})
        c.overwrite(rows, time=0).result()
        assert c.snapshot().scan.memory + rows.nbytes > (16 << 20) // 4, "one slice would do"
        before = blob.get_counts()["set"].requests
        c.overwrite(after, time=1).result()
        assert blob.get_counts()["set"].requests - before <= 1, "more was stored than the difference"
        found = c.changes(1).to_arrow()
        assert sorted(found["_diff"].to_pylist()) == [-1] * 3 + [1] * 3
        assert {*found["k"].to_pylist()} == {keys[at] for at in changed_at}
        with pytest.raises(persist.errors.DuplicateKeys, match="first of all 'key 00000005': these keys"):
            c.overwrite(rows.slice(0, 60_000), time=2, where=pc.field("v") >= 0)  # NaN is not.
        c.overwrite(rows.slice(0, 50_000), time=2, where=pc.field("v") >= 0, multiset=True).result()
        where = pc.field("k") == "none of these"
        with pytest.raises(persist.InvalidUsage, match="is not true for 50,000 of the 50,000 rows"):
            c.overwrite(after.slice(0, 50_000), time=3, where=where)


def test_overwrites_and_deletes_of_several_collections_are_one_commit(
    client: persist.Client, sealed: persist.Collection
) -> None:
    items = client.create_or_load("items", key={"k": pa.int64()})
    with client.multi_write() as multi:
        multi.overwrite(sealed, [(1, "z")], time=5)
        multi.delete(items, [1], time=9)
    assert (sealed.upper, items.upper) == (persist.Antichain(6), persist.Antichain(10))
    with pytest.raises(persist.InvalidUsage, match="put it first"), client.multi_write() as multi:
        multi.write(sealed, [(1, "q")], time=6)
        multi.delete(sealed, [1], time=6)
    assert rows_of(sealed) == [(1, "z")]


def test_an_overwrite_or_delete_comes_after_what_was_asked_for_before_it(orders: persist.Collection) -> None:
    orders.write([(1, "a"), (2, "b")], time=1, seal=2)
    orders.overwrite([(1, "A"), (2, "b"), (3, "c")], time=2)
    orders.write([(4, "d")], time=3, seal=4)
    orders.delete([3], time=4).result()
    assert sorted(orders.snapshot().rows()) == [(1, "A"), (2, "b"), (4, "d")]


@pytest.mark.parametrize("kind", ["reader", "generator of tables", "generator of rows"])
def test_what_was_read_before_is_not_taken_for_an_empty_table(orders: persist.Collection, kind: str) -> None:
    table = pa.table({"k": [1], "v": ["a"]})
    rows: Any = {
        "reader": table.to_reader(),
        "generator of tables": (each for each in [table]),
        "generator of rows": (row for row in [(1, "a")]),
    }[kind]
    orders.overwrite(rows, time=0).result()
    with pytest.raises(persist.InvalidUsage, match="before"):
        orders.overwrite(rows, time=1)
    assert [*orders.snapshot().rows()] == [(1, "a")]
    orders.overwrite(table.slice(0, 0).to_reader(), time=1).result()  # One that is empty is another matter.
    assert orders.snapshot().count() == 0


@pytest.mark.parametrize("timeline", [None, "ms"])
def test_nothing_changes_a_complete_collection_and_nothing_says_that_it_did(
    client: persist.Client, timeline: Any
) -> None:
    done = client.create_or_load("done", key={"k": int}, value={"v": str}, timeline=timeline)
    done.write([(1, "a")], time=NOON_MS, seal=persist.Antichain()).result()
    no_rows = pa.table({"k": pa.array([], pa.int64()), "v": pa.array([], pa.string())})
    changes: list[Callable[[], Any]] = [
        lambda: done.delete([1]),
        lambda: done.delete(where="v = 'a'"),
        lambda: done.delete([2], time=NOON_MS + 1),
        lambda: done.overwrite(no_rows),
        lambda: done.overwrite([(1, "a")]),
        lambda: done.upsert([(1, "b")]),
    ]
    for change in changes:
        with pytest.raises(persist.errors.UpdateNotBeyondUpper, match="complete for ever"):
            change().result()
    assert list(done.snapshot("latest").rows()) == [(1, "a")]
