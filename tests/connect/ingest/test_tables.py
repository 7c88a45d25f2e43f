"""Tables of Delta and Iceberg into collections: each version is a time, and the contents at it are its own."""

import contextlib
import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import persist
from persist.blob.protocol import MemoryBlob
from tests.core.keyed.test_crash import SETTINGS, Died, MortalBlob

deltalake = pytest.importorskip("deltalake")
Rows = list[dict[str, Any]]


def ingested(place: Path, source: str, **more: Any) -> Any:
    options = {"source": source, "collection": "orders", "key": ["id"]}
    return persist.ingest(str(place / "location"), {**options, **more}, once=True)


def times(place: Path) -> list[tuple[int, int]]:
    """Return the time and the version of each version that was taken in."""
    with persist.open(str(place / "location"), mode="read") as client:
        rows = client.load("orders.versions").snapshot().to_arrow().to_pylist()
    return sorted((row["time"], row["version"]) for row in rows)


def contents(place: Path, as_of: int | None = None) -> Rows:
    with persist.open(str(place / "location"), mode="read") as client:
        rows: Rows = client.load("orders").snapshot(as_of).to_arrow().to_pylist()
    return sorted(rows, key=str)


def delta(place: Path, rows: Rows, **options: Any) -> str:
    deltalake.write_deltalake(str(place / "table"), pa.Table.from_pylist(rows), **options)
    return f"delta:{place / 'table'}"


@pytest.mark.parametrize("feed", ["true", "false"])
def test_each_version_of_a_delta_table_is_a_time(tmp_path: Path, feed: str) -> None:
    source = delta(tmp_path, [{"id": 1, "n": 1}, {"id": 2, "n": 2}], configuration={"delta.enableChangeDataFeed": feed})
    table = deltalake.DeltaTable(str(tmp_path / "table"))
    table.update(updates={"n": "n + 10"}, predicate="id = 1")
    first = ingested(tmp_path, source)
    assert first.commits == 2
    table.delete("id = 2")
    delta(tmp_path, [{"id": 3, "n": 3}, {"id": 3, "n": 3}], mode="append")
    deltalake.DeltaTable(str(tmp_path / "table")).optimize.compact()
    second = ingested(tmp_path, source)
    assert (second.commits, ingested(tmp_path, source).commits) == (2 if feed == "true" else 3, 0)
    found = times(tmp_path)
    assert [version for _, version in found] == [0, 1, 2, 3, 4]
    history = deltalake.DeltaTable(str(tmp_path / "table")).history()
    assert {version: at for at, version in found} == {each["version"]: each["timestamp"] for each in history}
    for time, version in found:
        there = deltalake.DeltaTable(str(tmp_path / "table"), version=version).to_pyarrow_table().to_pylist()
        assert contents(tmp_path, time) == sorted(there, key=str)


def test_a_version_of_a_writer_whose_clock_is_ahead_is_taken_in_now(tmp_path: Path) -> None:
    source = delta(tmp_path, [{"id": 1}])
    (entry,) = (tmp_path / "table" / "_delta_log").glob("*.json")
    said = [json.loads(line) for line in entry.read_text().splitlines()]
    for action in said:
        if "commitInfo" in action:
            action["commitInfo"]["timestamp"] = ahead_ms = int(datetime(2199, 1, 1, tzinfo=UTC).timestamp()) * 1000
    entry.write_text("\n".join(map(json.dumps, said)))
    (version,) = deltalake.DeltaTable(str(tmp_path / "table")).history()
    assert version["timestamp"] == ahead_ms
    ingested(tmp_path, source)
    ((time, _),) = times(tmp_path)
    assert time <= datetime.now(UTC).timestamp() * 1000
    delta(tmp_path, [{"id": 2}], mode="append")
    ingested(tmp_path, source)
    assert contents(tmp_path) == [{"id": 1}, {"id": 2}]


def test_the_columns_that_only_paths_tell_come_in_too(tmp_path: Path) -> None:
    source = delta(tmp_path, [{"id": 1, "p": "a"}, {"id": 2, "p": "b"}, {"id": 3, "p": None}], partition_by=["p"])
    deltalake.DeltaTable(str(tmp_path / "table")).delete("p = 'a'")
    ingested(tmp_path, source)
    assert contents(tmp_path, times(tmp_path)[0][0]) == [
        {"id": 1, "p": "a"}, {"id": 2, "p": "b"}, {"id": 3, "p": None},
    ]  # fmt: skip
    assert contents(tmp_path) == [{"id": 2, "p": "b"}, {"id": 3, "p": None}]


def test_a_version_of_which_files_are_gone_is_told_and_left_out_with_first(tmp_path: Path) -> None:
    delta(tmp_path, [{"id": 1}])
    source = delta(tmp_path, [{"id": 2}], mode="overwrite")
    table = deltalake.DeltaTable(str(tmp_path / "table"))
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    with pytest.raises(persist.InvalidUsage, match=r"(?s)cannot be read at version 0: .* are left out with first="):
        ingested(tmp_path, source)


def test_columns_of_a_delta_table_are_followed(tmp_path: Path) -> None:
    source = delta(tmp_path, [{"id": 1, "a": "x"}])
    ingested(tmp_path, source)
    delta(tmp_path, [{"id": 2, "a": "y", "b": 2}], mode="append", schema_mode="merge")
    ingested(tmp_path, source)
    assert contents(tmp_path) == [{"id": 1, "a": "x", "b": None}, {"id": 2, "a": "y", "b": 2}]
    delta(tmp_path, [{"id": 3, "b": 3}], mode="overwrite", schema_mode="overwrite")
    ingested(tmp_path, source)
    assert contents(tmp_path) == [{"id": 3, "b": 3}]
    delta(tmp_path, [{"id": "text", "b": 3}], mode="overwrite", schema_mode="overwrite")
    with pytest.raises(persist.InvalidUsage, match=r"version 3 of delta:.* has columns that 'orders' cannot follow"):
        ingested(tmp_path, source)


def test_a_value_of_a_delta_table_that_would_change_stops_before_its_version(tmp_path: Path) -> None:
    source = delta(tmp_path, [{"id": 1, "a": 0.1, "s": {"x": 1, "y": 2}}])
    text = pa.struct([("x", pa.string()), ("y", pa.int64())])
    for kind, column in (({"a": pa.float32()}, "a"), ({"s": text}, "s")):
        columns = {"id": pa.int64(), "a": pa.float64(), "s": pa.struct([("x", pa.int64()), ("y", pa.int64())]), **kind}
        with persist.open(str(tmp_path / "location")) as client:
            client.create_or_load("orders", key=None, value=columns, timeline="ms")
        with pytest.raises(persist.InvalidUsage, match=rf"version 0 of delta:.* does not fit: .*'{column}'"):
            ingested(tmp_path, source)
        with persist.open(str(tmp_path / "location")) as client:
            client.load("orders").drop()


def test_moments_of_int96_of_a_delta_table_come_in_right(tmp_path: Path) -> None:
    rows = [{"id": 1, "at": datetime(1000, 1, 1, tzinfo=UTC)}, {"id": 2, "at": datetime(9999, 12, 31, tzinfo=UTC)}]
    source = delta(tmp_path, rows)
    [file] = (tmp_path / "table").glob("*.parquet")
    before = file.stat().st_size
    pq.write_table(pq.read_table(file), file, use_deprecated_int96_timestamps=True, store_schema=False)
    [log] = (tmp_path / "table" / "_delta_log").glob("*.json")
    log.write_text(log.read_text().replace(f'"size":{before}', f'"size":{file.stat().st_size}'))
    ingested(tmp_path, source)
    assert [row["at"] for row in contents(tmp_path)] == [row["at"] for row in rows]


def test_a_collection_that_was_there_keeps_columns_of_its_own(tmp_path: Path) -> None:
    source = delta(tmp_path, [{"id": 1, "a": "x"}])
    with persist.open(str(tmp_path / "location")) as client:
        columns = {"id": pa.int64(), "a": pa.string(), "mine": pa.string()}
        orders = client.create_or_load("orders", key=None, value=columns, timeline="ms")
        orders.write([{"id": 0, "a": None, "mine": "y", "_time": 10**12, "_diff": 1}], seal=10**12 + 1).result()
    ingested(tmp_path, source)
    delta(tmp_path, [{"id": 2}], mode="overwrite", schema_mode="overwrite")
    ingested(tmp_path, source)
    assert contents(tmp_path) == [{"id": 0, "mine": "y"}, {"id": 2, "mine": None}]


def test_a_version_that_was_vacuumed_is_told(tmp_path: Path) -> None:
    source = delta(tmp_path, [{"id": 1}])
    delta(tmp_path, [{"id": 2}], mode="overwrite")
    table = deltalake.DeltaTable(str(tmp_path / "table"))
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    with pytest.raises(persist.InvalidUsage, match=r"cannot be read at version 0.*first"):
        ingested(tmp_path, source)
    assert ingested(tmp_path, source, first=1).rows == 1
    with pytest.raises(persist.InvalidUsage, match="has no version 9"):
        ingested(tmp_path, source, collection="other", first=9)
    shutil.rmtree(tmp_path / "table")
    delta(tmp_path, [{"id": 1}])
    with pytest.raises(persist.InvalidUsage, match="does not have its version 3 any more, which was read last"):
        ingested(tmp_path, source)


@pytest.fixture
def catalog(tmp_path: Path) -> Any:
    pytest.importorskip("sqlalchemy")
    sql = pytest.importorskip("pyiceberg.catalog.sql")
    made = sql.SqlCatalog("test", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    made.create_namespace("shop")
    return made


def read_iceberg(table: Any) -> Callable[[int], Rows]:
    return lambda snapshot: sorted(table.scan(snapshot_id=snapshot).to_arrow().to_pylist(), key=str)


def test_each_snapshot_of_an_iceberg_table_is_a_time(tmp_path: Path, catalog: Any) -> None:
    types = pytest.importorskip("pyiceberg.types")
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("a", pa.string())])
    table = catalog.create_table("shop.orders", schema)
    table.append(pa.Table.from_pylist([{"id": 1, "a": "x"}, {"id": 2, "a": "y"}], schema))
    properties = {
        "name": "test",
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"file://{tmp_path}/warehouse",
    }
    options: dict[str, Any] = {"source": "iceberg:shop.orders", "catalog": properties}
    assert ingested(tmp_path, **options).rows == 2
    table.delete("id = 1")
    table.append(pa.Table.from_pylist([{"id": 3, "a": "z"}], schema))
    ingested(tmp_path, **options)
    read = read_iceberg(catalog.load_table("shop.orders"))
    assert [contents(tmp_path, time) for time, _ in times(tmp_path)] == [read(number) for _, number in times(tmp_path)]
    with table.update_schema() as update:
        update.rename_column("a", "b")
        update.add_column("n", types.IntegerType())
    table.append(pa.table({"id": [4], "b": ["w"], "n": pa.array([7], pa.int32())}))
    ingested(tmp_path, **options)
    with table.update_schema() as update:
        update.update_column("n", types.LongType())
    table.append(pa.table({"id": [5], "b": ["v"], "n": [2**40]}))
    ingested(tmp_path, **options)
    assert contents(tmp_path) == [
        {"id": 2, "b": "y", "n": None},
        {"id": 3, "b": "z", "n": None},
        {"id": 4, "b": "w", "n": 7},
        {"id": 5, "b": "v", "n": 2**40},
    ]
    static = catalog.load_table("shop.orders").metadata_location
    assert ingested(tmp_path, f"iceberg:{static}").commits == 0


def test_a_table_that_is_not_there_is_told(tmp_path: Path) -> None:
    for kind in ("delta", "iceberg"):
        with pytest.raises(persist.InvalidUsage, match=r"table .*nowhere.* cannot be opened"):
            ingested(tmp_path, f"{kind}:{tmp_path}/nowhere")


def test_names_that_are_exchanged_are_followed_once_whoever_is_killed(tmp_path: Path, catalog: Any) -> None:
    types = pytest.importorskip("pyiceberg.types")
    schema = pytest.importorskip("pyiceberg.schema").Schema(
        *(types.NestedField(number, name, types.LongType()) for number, name in ((1, "id"), (2, "a"), (3, "b")))
    )
    table = catalog.create_table("shop.orders", schema)
    table.append(pa.table({"id": [1], "a": [10], "b": [20]}))
    properties = {"name": "test", "type": "sql", **{k: v for k, v in catalog.properties.items() if k != "type"}}
    options = {"source": "iceberg:shop.orders", "catalog": properties, "collection": "orders", "key": ["id"]}
    store, deaths = MemoryBlob(), 0
    with persist.open(store, settings=SETTINGS) as client:
        persist.ingest(client, options, once=True)
    for old, new in (("a", "x"), ("b", "a"), ("x", "b")):
        with table.update_schema() as update:
            update.rename_column(old, new)
    table.append(pa.table({"id": [2], "a": [21], "b": [11]}))
    before = {entry.key: store.get(entry.key) for entry in store.list("")}
    while True:
        store = MemoryBlob()
        for key, value in before.items():
            store.set(key, value or b"")
        mortal = MortalBlob(store, deaths + 1, is_after=True)
        for blob in (mortal, store):
            with contextlib.suppress(Died, persist.PersistError), persist.open(blob, settings=SETTINGS) as client:
                persist.ingest(client, options, once=True)
        with persist.open(store, mode="read") as client:
            rows = client.load("orders").snapshot().to_arrow().sort_by("id").select(["id", "a", "b"]).to_pylist()
        assert rows == [{"id": 1, "a": 20, "b": 10}, {"id": 2, "a": 21, "b": 11}]
        if not mortal.is_dead:
            break
        deaths += 1
    assert deaths > 2
