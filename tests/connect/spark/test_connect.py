"""Through Spark Connect: the client has no Java, and the server finds the data source by itself."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import persist
from tests.connect.spark.cluster import Driver, running_connect

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, wheel_python: Path) -> Iterator[Driver]:
    with running_connect(tmp_path_factory.mktemp("connect"), wheel_python) as client:
        yield client


@pytest.mark.thorough
def test_a_client_of_spark_connect_writes_reads_and_compacts(client: Driver, tmp_path: Path) -> None:
    location, storage = str(tmp_path), dict[str, str]()
    with persist.open(location) as other:
        c = other.create_or_load("c", key={"k": pa.int64()}, value={"v": pa.string()})
        client.call("write", location=location, storage=storage, start=0, end=6000, at=0)
        c.write([(record, 1, -1) for record in list(c.snapshot(0).rows())[::2]], seal=2).result()
        expected = sorted((k, v) for k, v in c.snapshot(1).rows())
        assert len(expected) == 3000
        for compacted in (False, True):
            if compacted:
                report = client.call("compact", location=location, storage=storage)
                assert report["keyframes"] == [1]
                assert report["parts_written"] >= 3, "as many tasks did it"
            found = client.call("read", location=location, storage=storage, partitions=3)
            assert sorted(map(tuple, found)) == expected
            native = client.call("snapshot", location=location, storage=storage, form="rows")
            assert sorted(map(tuple, native)) == expected
            assert "Spark's own scan" in client.call("route", location=location, storage=storage)
        [[count]] = client.call("query", location=location, storage=storage, sql="SELECT count(*) FROM {c}")
        assert count == len(expected)
        changes = client.call("read", location=location, storage=storage, form="changes", start=1, until=2)
        assert sorted(map(tuple, changes)) == sorted(
            tuple(row.values()) for row in c.changes(1, 2).to_arrow().to_pylist()
        )
        message = client.call("refused", location=location, storage=storage, collection="nobody")
        assert "CollectionNotFound" in message
        assert "nobody" in message


@pytest.mark.thorough
def test_a_client_of_spark_connect_steps_a_view(client: Driver, tmp_path: Path) -> None:
    location, storage = str(tmp_path), dict[str, str]()
    with persist.open(location) as other:
        c = other.create_or_load("c", key={"k": pa.int64()}, value={"v": pa.string()})
        c.write([((k, str(k)), 0, 1) for k in range(2000)], seal=1).result()
        view = other.create_view("v", "SELECT k % 10 AS ends, count(*) AS n FROM c GROUP BY ALL")
        assert client.call("step", location=location, storage=storage, where="tasks") == "tasks"
        c.write([((7, "7"), 1, -1)], seal=2).result()
        assert client.call("step", location=location, storage=storage, where="tasks") == "tasks"
        assert sorted(view.snapshot().rows()) == [(n, 200 - (n == 7)) for n in range(10)]


@pytest.mark.thorough
def test_a_client_of_spark_connect_calls_each_function(client: Driver, tmp_path: Path) -> None:
    location, storage = str(tmp_path), dict[str, str]()
    with persist.open(location) as other:
        key, value = {"k": pa.int64()}, {"v": pa.string()}
        other.create_or_load("events", key=key, value=value, keyed=persist.Keyed())
        other.create_or_load("batch", key=key, value=value)
    answers = client.call("call_all", location=location, storage=storage)
    assert "catalogs of a Spark Connect session are set on its server: start that with " in answers.pop("catalog")
    whole = [[1, "a"], [2, "b"], [3, "c"]]
    assert answers == {
        "all": [[1, "a"]],
        "changes": sorted([[1, 1], [2, 1], [3, 1], [2, -1], [3, -1]]),
        "events": whole,
        "batch": whole,
        "joined": [[1, "a"]],
    }
