"""Types that DuckDB does not have, or does not give back as they were."""

from contextlib import closing
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import persist
from persist.compute.query.databases import QueryLimits
from persist.compute.query.transaction import Transaction


def made(client: persist.Client, kind: pa.DataType, values: pa.Array) -> None:
    client.create_or_load("t", key={"id": pa.int64()}, value={"v": kind})
    client.write("t", pa.table({"id": range(len(values)), "v": values}), mode="append").result()


@pytest.mark.thorough(except_every=2)
@pytest.mark.parametrize(
    "values",
    [
        pa.array([1], pa.duration("ns")),
        pa.array([0, 10**17], pa.duration("us")),
        pa.array([10**12], pa.duration("s")),
        pa.array([[-1]], pa.list_(pa.duration("ns"))),
    ],
)
def test_durations_that_sql_would_change_are_refused(client: persist.Client, values: pa.Array) -> None:
    made(client, values.type, values)
    client.create_or_load("n", key={"id": pa.int64()}, value={"v": pa.string()})
    with pytest.raises(persist.InvalidUsage, match="column 'v' has a value that SQL would change"):
        client.sql("SELECT v FROM t").to_arrow()
    with pytest.raises(persist.InvalidUsage, match="has a value that SQL would change"):
        client.sql("INSERT INTO n SELECT id, v::text FROM t")
    frame = pa.table({"v": values})
    with pytest.raises(persist.InvalidUsage, match="has a value that SQL would change"):
        client.sql("SELECT v FROM frame", files=True).to_arrow()
    assert client.sql("SELECT count(*) AS n FROM t").to_arrow()["n"].to_pylist() == [len(frame)]


def test_other_durations_are_what_they_were(client: persist.Client) -> None:
    values = [timedelta(microseconds=-1), timedelta(days=100_000), None]
    made(client, pa.duration("us"), pa.array(values, pa.duration("us")))
    found = client.sql("SELECT epoch_us(v) AS v FROM t ORDER BY id").to_arrow()["v"].to_pylist()
    assert found == [-1, 100_000 * 86_400 * 10**6, None]


@pytest.mark.parametrize(
    ("kind", "shown", "values"),
    [
        (pa.decimal256(76, 2), pa.decimal128(38, 2), [Decimal("0.50"), Decimal("9" * 36), None]),
        (pa.float16(), pa.float32(), [1.5, -0.25, None]),
        (pa.list_(pa.float16()), pa.list_(pa.float32()), [[1.5, None], [], None]),
        (
            pa.struct([("d", pa.decimal256(50, 0))]),
            pa.struct([("d", pa.decimal128(38, 0))]),
            [{"d": Decimal(7)}, {"d": None}, None],
        ),
        (pa.map_(pa.string(), pa.float16()), pa.map_(pa.string(), pa.float32()), [[("a", 0.5)], [], None]),
    ],
    ids=str,
)
def test_a_type_that_duckdb_does_not_have_is_read_as_another_one(
    client: persist.Client, kind: pa.DataType, shown: pa.DataType, values: list[Any]
) -> None:
    made(client, kind, pa.array(values, shown).cast(kind))
    found = client.sql("SELECT v FROM t ORDER BY id").to_arrow()["v"]
    assert (found.type, found.to_pylist()) == (shown, values)
    assert client.sql("SELECT id FROM t WHERE v = (SELECT v FROM t WHERE id = 0)").to_arrow()["id"].to_pylist() == [0]
    assert client.sql("SELECT id FROM t WHERE v IS NULL AND id > 0").to_arrow()["id"].to_pylist() == [2]
    assert client.sql("SELECT count(*) AS n FROM t").to_arrow()["n"].to_pylist() == [3]
    if not pa.types.is_nested(kind):
        assert client.sql("SELECT id FROM t WHERE v > 0.25 AND v <= 1.5").to_arrow()["id"].to_pylist() == [0]


def test_a_decimal_of_more_digits_than_sql_has_is_refused_where_it_is_read(client: persist.Client) -> None:
    made(client, pa.decimal256(50, 2), pa.array([Decimal("9" * 40)], pa.decimal256(50, 2)))
    assert client.sql("SELECT id FROM t").to_arrow()["id"].to_pylist() == [0]
    with pytest.raises(persist.InvalidUsage, match="column 'v' has a value that SQL would change"):
        client.sql("SELECT v FROM t").to_arrow()
    with pytest.raises(persist.InvalidUsage, match=r"column 'v' of type decimal256.*no statement can change 't'"):
        client.sql("DELETE FROM t WHERE id = 0")


def test_a_block_refuses_durations_that_sql_would_change(client: persist.Client) -> None:
    made(client, pa.duration("ns"), pa.array([1], pa.duration("ns")))
    client.create_or_load("n", key={"id": pa.int64()}, value={"v": pa.string()})
    with (
        closing(Transaction(client.engine, QueryLimits())) as block,
        pytest.raises(persist.InvalidUsage, match="SQL would change"),
    ):
        block.execute("INSERT INTO n SELECT id, v::text FROM t")


@pytest.mark.parametrize("value", ["INTERVAL 1 MONTH", "[INTERVAL 1 DAY]"])
def test_polars_has_no_intervals(client: persist.Client, value: str) -> None:
    pytest.importorskip("polars")
    with pytest.raises(persist.InvalidUsage, match=r"Polars has no month_day_nano_interval: .*epoch_us"):
        client.sql(f"SELECT {value} AS i").to_polars()
