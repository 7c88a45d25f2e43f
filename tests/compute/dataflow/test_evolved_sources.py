"""A dataflow over a collection whose schema changes notices what it reads, and nothing else."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import persist
from persist.dataflow import Program, col

QUIET = persist.Settings(background=False)


def test_a_program_does_not_notice_columns_that_it_does_not_read() -> None:
    with persist.open(persist.MemoryBlob(), settings=QUIET) as client:
        rows = client.create_or_load("rows", key={"k": pa.int64()}, value={"v": pa.int64(), "x": pa.string()})
        rows.write([((1, (10, "a")), 0, 1)], seal=1).result()
        program = Program("sums")
        seen = program.source("rows", schema={"k": pa.int64(), "v": pa.int64()}).map(v=col("v")).capture()
        with program.open(client) as running:
            running.run(until=0)
            rows.evolve(add={"y": pa.int8()}, drop=["x"])
            rows.write([((1, (10, None)), 1, -1), ((2, (20, 1)), 1, 1)], seal=2).result()
            running.run(until=1)
            assert sorted(zip(*(seen.updates()[n].to_pylist() for n in ("v", "_time", "_diff")), strict=True)) == [
                (10, 0, 1),
                (10, 1, -1),
                (20, 1, 1),
            ]
            rows.evolve(drop=["v"])
            rows.write([((3, None), 2, 1)], seal=3).result()
            with pytest.raises(persist.errors.SchemaMismatch, match="'v' of schema version 1 is gone"):
                running.run(until=2)
        with pytest.raises(persist.errors.SchemaMismatch, match="reads column 'v'"):
            program.open(client)


CHANGES: dict[str, tuple[Callable[[persist.Collection], object], tuple[object, ...], bool]] = {
    "a column is added": (lambda c: c.evolve(add={"y": pa.int8()}), ("a", 1, 0, None), True),
    "one that is not read is dropped": (lambda c: c.evolve(drop=["x"]), ("a", 1), True),
    "one that is read is renamed": (lambda c: c.evolve(rename={"n": "m"}), ("a", 1, 0), True),
    "one that is read is widened": (lambda c: c.evolve(widen={"n": pa.int64()}), ("a", 1, 0), True),
    "one that is read is dropped": (lambda c: c.evolve(drop=["n"]), (), False),
    "its name is that of another one": (lambda c: c.evolve(drop=["n"], add={"n": pa.int32()}), (), False),
}


@pytest.mark.thorough(except_every=2)
@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.parametrize("begins_again", [False, True])
def test_a_view_goes_on_and_what_it_reads_is_not_dropped(what: str, begins_again: bool) -> None:
    change, gone, goes_on = CHANGES[what]
    with persist.open(persist.MemoryBlob(), settings=QUIET) as client:
        fields = {"s": pa.string(), "n": pa.int32(), "x": pa.int64()}
        orders = client.create_or_load("orders", key={"k": pa.int64()}, value=fields)
        orders.write([((1, ("a", 1, 0)), 0, 1), ((2, ("a", 2, 0)), 0, 1)], seal=1).result()
        view = client.create_view("view", "SELECT s, sum(n) AS total FROM orders GROUP BY s")
        view.refresh()
        if goes_on:
            change(orders)
        else:
            gone = ("a", 1, 0)
            with pytest.raises(persist.errors.ColumnsNeeded, match="'n' is read by the view 'view'"):
                change(orders)
        orders.write([((1, gone), 1, -1)], seal=2).result()
        if begins_again:
            view.close()
            view = client.view("view")
        view.refresh()
        assert view.snapshot().to_arrow().to_pylist() == [{"s": "a", "total": 2}]
        with pytest.raises(persist.InvalidUsage, match="is a view"):
            view.evolve(add={"y": pa.int8()})


@pytest.mark.thorough(except_every=3)
@pytest.mark.parametrize("resolve", ["seal", "background"])
@pytest.mark.parametrize("has_tombstones", [False, True])
@pytest.mark.parametrize("begins_again", [False, True])
def test_a_view_of_a_keyed_collection_goes_on_without_a_column_that_it_does_not_read(
    resolve: Any, has_tombstones: bool, begins_again: bool
) -> None:
    ordered: dict[str, Any] = {"order_by": ["at"], "tombstone": "gone"} if has_tombstones else {}
    with persist.open(persist.MemoryBlob(), settings=QUIET) as client:
        fields = {"at": pa.int64(), "s": pa.string(), "gone": pa.bool_(), "x": pa.int64()}
        users = client.create_or_load(
            "users", key={"k": pa.int64()}, value=fields, keyed=persist.Keyed(resolve=resolve, **ordered)
        )
        users.upsert([(k, (0, "a", None, 0)) for k in range(3)], time=0, seal=1).result()
        view = client.create_view("view", "SELECT s, count(*) AS n FROM users GROUP BY s")
        view.refresh()
        users.upsert([(0, (1, "b", None, 0)), (1, (1, "c", True, 0))], time=1).result()
        users.evolve(drop=["x"])
        users.upsert([(2, (1, "b", None))], time=1, seal=2).result()
        users.compact()  # From here on, nothing that is stored has the column.
        if begins_again:
            view.close()
            view = client.view("view")
        view.refresh()
        left = {"b": 2} if has_tombstones else {"b": 2, "c": 1}
        assert dict(view.snapshot().rows()) == left
        read = users.snapshot(schema=1, columns=["k"], where=pc.field("s") == "b")
        assert sorted(read.to_arrow()["k"].to_pylist()) == [0, 2]


def test_a_program_with_outputs_stays_with_the_columns_that_it_began_with() -> None:
    def program(column: str) -> Program:
        found = Program("totals")
        rows = found.source("rows", schema={"k": pa.int64(), column: pa.int64()})
        rows.group_by("k").agg(total=col(column).sum()).persist("totals", key=["k"])
        return found

    with persist.open(persist.MemoryBlob(), settings=QUIET) as client:
        rows = client.create_or_load("rows", key={"k": pa.int64()}, value={"v": pa.int64(), "w": pa.int64()})
        rows.write([((1, (10, 3)), 0, 1)], seal=1).result()
        with program("v").open(client) as running:
            running.run(until=0)
        rows.evolve(rename={"v": "w", "w": "v"})
        rows.write([((1, (20, 4)), 1, 1)], seal=2).result()
        with program("v").open(client) as running:
            running.run(until=1)
        totals = client.load("totals")
        assert totals.snapshot().to_arrow()["total"].to_pylist() == [30]
        with program("v").open(client, replace=True) as running:  # From here on it means the other one.
            rows.seal(3).result()
            running.run(until=2)
        assert totals.snapshot().to_arrow()["total"].to_pylist() == [7]
        rows.write([((1, (0, 1)), 3, 1)], seal=4).result()
        with program("v").open(client) as running:
            running.run(until=3)
        assert totals.snapshot().to_arrow()["total"].to_pylist() == [8]


def test_an_output_may_get_columns_that_the_program_does_not_write() -> None:
    with persist.open(persist.MemoryBlob(), settings=QUIET) as client:
        rows = client.create_or_load("rows", key={"k": pa.int64()}, value={"v": pa.int64()})
        rows.write([((1, 10), 0, 1)], seal=1).result()
        program = Program("copy")
        program.source("rows", schema={"k": pa.int64(), "v": pa.int64()}).persist("copy", key=["k"])
        with program.open(client) as running:
            running.run(until=0)
            copy = client.load("copy")
            copy.evolve(add={"note": pa.string()})
            rows.write([((1, 10), 1, -1), ((2, 20), 1, 1)], seal=2).result()
            running.run(until=1)
            assert copy.snapshot().to_arrow().to_pylist() == [{"k": 2, "v": 20, "note": None}]
            copy.evolve(drop=["v"])
            rows.write([((2, 20), 2, -1)], seal=3).result()
            with pytest.raises(persist.errors.SchemaMismatch, match=r"'v' .int64. was dropped"):
                running.run(until=2)
