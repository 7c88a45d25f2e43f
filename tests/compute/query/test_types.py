"""Types that DuckDB does not have, or does not give back as they were."""

from datetime import timedelta
from decimal import Decimal

import pyarrow as pa
import pytest

import persist


def made(client: persist.Client, kind: pa.DataType, values: pa.Array) -> None:
    client.create_or_load("t", key={"id": pa.int64()}, value={"v": kind})
    client.write("t", pa.table({"id": range(len(values)), "v": values}), mode="append").result()


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
    with pytest.raises(persist.InvalidUsage, match="column 'v' has a duration that SQL would change"):
        client.sql("SELECT v FROM t").to_arrow()
    with pytest.raises(persist.InvalidUsage, match="has a duration that SQL would change"):
        client.sql("INSERT INTO n SELECT id, v::text FROM t")
    frame = pa.table({"v": values})
    with pytest.raises(persist.InvalidUsage, match="has a duration that SQL would change"):
        client.sql("SELECT v FROM frame", files=True).to_arrow()
    assert client.sql("SELECT count(*) AS n FROM t").to_arrow()["n"].to_pylist() == [len(frame)]


def test_other_durations_are_what_they_were(client: persist.Client) -> None:
    values = [timedelta(microseconds=-1), timedelta(days=100_000), None]
    made(client, pa.duration("us"), pa.array(values, pa.duration("us")))
    found = client.sql("SELECT epoch_us(v) AS v FROM t ORDER BY id").to_arrow()["v"].to_pylist()
    assert found == [-1, 100_000 * 86_400 * 10**6, None]


@pytest.mark.parametrize(
    "values", [pa.array([Decimal("0.5")], pa.decimal256(76, 2)), pa.array([1.5], pa.float16())], ids=str
)
def test_a_type_that_duckdb_does_not_have_is_refused(client: persist.Client, values: pa.Array) -> None:
    made(client, values.type, values)
    with pytest.raises(persist.InvalidUsage, match=rf"SQL cannot read 't'.*v {values.type.__str__().split('(')[0]}"):
        client.sql("SELECT id FROM t")
