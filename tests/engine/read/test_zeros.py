"""0.0 and -0.0 are one value, also in a filter's set of values, wherever filters go."""

from collections.abc import Iterator
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import persist
from persist.blob.protocol import MemoryBlob
from persist.core.expression.filters import parse_where
from tests.support.reads import rows_with

QUIET = persist.Settings(background=False)
SETS: list[list[Any]] = [[-0.0], [0.0], [0.0, -0.0], [-0.0, 7.5], [-0.0, None], [float("nan"), -0.0]]


@pytest.fixture
def client() -> Iterator[persist.Client]:
    with persist.open(MemoryBlob(), settings=QUIET) as client:
        yield client


def filled(client: persist.Client, kind: pa.DataType, rows: int) -> persist.Collection:
    """Return a collection of three parts: nothing but zeros of both signs, numbers around zero, and none of it."""
    c = client.create_or_load("c", key={"id": int}, value={"x": kind})
    signs = np.array([-0.0, 0.0])[np.arange(rows) % 2]
    for part, values in enumerate([signs, np.arange(rows) - 1.0, np.arange(rows) + 100.0]):
        table = pa.table({"id": np.arange(rows) + part * rows, "x": pa.array(values).cast(kind)})
        c.write(table, time=0).result()
    c.seal(1).result()
    return c


@pytest.mark.thorough(except_every=4)
@pytest.mark.parametrize("rows", [3, 40_000], ids=["inline", "Parquet"])
@pytest.mark.parametrize("kind", [pa.float64(), pa.float32()], ids=str)
@pytest.mark.parametrize("values", SETS, ids=str)
def test_a_set_with_one_zero_finds_both(
    client: persist.Client, values: list[Any], kind: pa.DataType, rows: int
) -> None:
    c = filled(client, kind, rows)
    filter = pc.field("x").isin(pa.array(values, kind))
    wanted = [*range(rows), rows + 1]
    for result in (c.snapshot(where=filter), c.changes(0, where=filter)):
        assert sorted(result.to_arrow()["id"].to_pylist()) == wanted
    assert c.snapshot(where=filter).count() == len(wanted)
    assert rows_with(c.snapshot(where=filter), [0, rows + 1, rows + 2])["id"].to_pylist() == [0, rows + 1]
    dataset = c.snapshot().dataset()
    assert sorted(dataset.to_table(filter=filter)["id"].to_pylist()) == wanted
    both = filter & (pc.field("_time") == 0)  # Filtered after it was read: times are not a column of a scan's filter.
    assert sorted(c.changes(0).dataset().to_table(filter=both)["id"].to_pylist()) == wanted
    assert c.snapshot(where=~filter).count() == 3 * rows - len(wanted)


@pytest.mark.parametrize("condition", ["x in (-0.0, 7000000)", "x in (0, 7000000)", "x = -0.0", "x <= -0.0 and x >= 0"])
def test_a_condition_in_text_knows_one_zero(client: persist.Client, condition: str) -> None:
    c = filled(client, pa.float64(), 4)
    assert c.snapshot(where=parse_where(condition, c.schema)).count() == 5


def test_an_overwrite_and_a_delete_know_one_zero(client: persist.Client) -> None:
    c = filled(client, pa.float64(), 4)
    filter = pc.field("x").isin([-0.0])
    c.overwrite([(0, 0.0)], time=1, where=filter).result()
    assert c.snapshot(where=filter).to_arrow()["id"].to_pylist() == [0]
    c.delete(where=filter, time=2).result()
    assert c.snapshot().count() == 7


def test_the_first_overwrite_holds_its_rows_against_both_zeros(client: persist.Client) -> None:
    c = client.create_or_load("c", key={"id": int}, value={"x": float})
    c.overwrite([(0, 0.0), (1, -0.0)], time=0, where=pc.field("x").isin([-0.0])).result()
    assert c.snapshot().count() == 2


def test_duckdb_finds_both_zeros(client: persist.Client) -> None:
    c = filled(client, pa.float64(), 4)
    with c.snapshot() as snapshot, duckdb.connect() as connection:
        snapshot.duckdb(connection, "c")
        found = connection.sql("SELECT id FROM c WHERE x IN (-0.0::DOUBLE, 1e9::DOUBLE, 1e10::DOUBLE) ORDER BY id")
        assert [row[0] for row in found.fetchall()] == [0, 1, 2, 3, 5]


def test_a_set_in_the_middle_of_a_filter_and_a_nested_one_find_both_zeros(client: persist.Client) -> None:
    c = client.create_or_load("c", key={"id": int}, value={"s": "struct<y: double>", "t": str})
    c.write([((1, ({"y": -0.0}, "is_in(")), 0, 1), ((2, ({"y": 1.0}, "b")), 0, 1)], seal=1).result()
    filter = (pc.field("s", "y").isin([-0.0]) | (pc.field("t") == "c")) & pc.field("t").isin(["is_in(", "b"])
    assert c.snapshot(where=filter).to_arrow()["id"].to_pylist() == [1]
