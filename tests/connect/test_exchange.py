"""Contents go out as Parquet, as a whole or not at all, and come back as a dataset."""

import json
import os
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

import persist
from persist.blob.protocol import MemoryBlob
from persist.blob.url import open_blob
from persist.engine.read.results.export import export_to_store

QUIET = persist.Settings(background=False)
ROWS = [(1, "a"), (2, "b"), (2, "b"), (3, None)]


@pytest.fixture
def orders(client: persist.Client) -> persist.Collection:
    orders = client.create_or_load("orders", key={"k": pa.int64()}, value={"v": pa.string()})
    orders.write(ROWS, time=5, seal=6).result()
    orders.write([(9, "later")], time=6, seal=7).result()
    return orders


def dicts(rows: list[tuple[int, str | None]]) -> list[dict[str, Any]]:
    return [{"k": k, "v": v} for k, v in rows]


def test_a_folder_of_parquet_holds_the_rows_of_one_time(orders: persist.Collection, tmp_path: Path) -> None:
    files = orders.snapshot(5).export_parquet(tmp_path / "out", rows_per_file=3)
    assert [Path(file).name for file in files] == ["part-0.parquet", "part-1.parquet"]
    assert ds.dataset(tmp_path / "out").to_table().to_pylist() == dicts(ROWS)
    assert pq.read_schema(files[0]).metadata[b"persist.as_of"] == b"5"
    assert os.listdir(tmp_path) == ["out"]


def test_an_empty_snapshot_is_a_folder_that_knows_its_columns(orders: persist.Collection, tmp_path: Path) -> None:
    [file] = orders.snapshot(0).export_parquet(tmp_path / "out")
    assert pq.read_table(file).schema.names == ["k", "v"]


def test_an_export_that_fails_leaves_nothing(orders: persist.Collection, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(persist.InvalidUsage, match="is there already, and is not an empty folder"):
        orders.snapshot().export_parquet(tmp_path / "full")
    orders.write([((4, "never"), 7, -1)], seal=8).result()
    with pytest.raises(persist.errors.NegativeMultiplicity):
        orders.snapshot().export_parquet(tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert not [path for path in tmp_path.iterdir() if ".tmp-" in path.name]


def stored(url: str) -> list[str]:
    return [entry.key for entry in open_blob(url).list("")]


def test_parquet_goes_to_any_store_as_a_whole(orders: persist.Collection) -> None:
    url = f"memory://{uuid.uuid4().hex}"
    files = orders.snapshot(5).export_parquet(url, rows_per_file=3)
    assert files == [f"{url}/part-0.parquet", f"{url}/part-1.parquet"]
    assert stored(url) == ["_SUCCESS", "part-0.parquet", "part-1.parquet"]
    store = open_blob(url)
    tables = [pq.read_table(pa.BufferReader(store.get(f"part-{at}.parquet") or b"")) for at in range(2)]
    assert pa.concat_tables(tables).to_pylist() == dicts(ROWS)
    assert tables[0].schema.metadata[b"persist.as_of"] == b"5"
    assert json.loads(store.get("_SUCCESS") or b"") == {
        "as_of": 5,
        "rows": 4,
        "files": ["part-0.parquet", "part-1.parquet"],
    }
    with pytest.raises(persist.InvalidUsage, match=r"is not empty: '_SUCCESS' is there already"):
        orders.snapshot().export_parquet(url)
    empty = f"memory://{uuid.uuid4().hex}"
    assert orders.snapshot(0).export_parquet(empty) == [f"{empty}/part-0.parquet"]
    assert pq.read_table(pa.BufferReader(open_blob(empty).get("part-0.parquet") or b"")).schema.names == ["k", "v"]


def test_an_export_to_a_store_that_fails_leaves_nothing(orders: persist.Collection, tmp_path: Path) -> None:
    orders.write([((4, "never"), 7, -1)], seal=8).result()
    url = f"memory://{uuid.uuid4().hex}"
    with pytest.raises(persist.errors.NegativeMultiplicity):
        orders.snapshot().export_parquet(url, rows_per_file=1)
    assert stored(url) == []
    for folder, options, message in (
        ("nonsense://bucket/out", None, "unknown scheme"),
        (tmp_path / "out", {"region": "x"}, "region"),
        (f"fsspec+memory://{uuid.uuid4().hex}", None, "no atomic create"),
    ):
        with pytest.raises(persist.PersistError, match=message):
            orders.snapshot(5).export_parquet(folder, storage_options=options)
    with pytest.raises(persist.InvalidUsage, match="rows_per_file=0"):
        orders.snapshot(5).export_parquet(url, rows_per_file=0)


def test_half_an_export_to_a_store_is_marked_as_such(orders: persist.Collection) -> None:
    """At every call of the store an export is killed, or fails for good: what is there never looks whole."""
    for at in range(1, 100):
        killed = Killed(MemoryBlob(), at)
        snapshot = orders.snapshot(5)
        schema = snapshot.schema.with_metadata({"persist.as_of": "5"})
        try:
            export_to_store(snapshot.to_batches(), schema, killed, 1)
        except Dead:
            keys = [entry.key for entry in killed.inner.list("")]
            parts = [key for key in keys if key.startswith("part-")]
            assert "_INCOMPLETE" in keys or not parts or "_SUCCESS" in keys
            assert "_SUCCESS" not in keys or len(parts) == len(ROWS)
            if "_INCOMPLETE" in keys:
                with pytest.raises(persist.InvalidUsage, match=r"another export is under way there, or one was killed"):
                    export_to_store(snapshot.to_batches(), schema, killed.inner, 1)
        else:
            assert at > len(ROWS) + 4
            return
    raise AssertionError("it never came to an end")


class Dead(BaseException):
    """The process is no more: nothing is cleaned up."""


class Killed:
    """A store of which the nth call and all after it do not happen."""

    def __init__(self, inner: MemoryBlob, at: int) -> None:
        self.inner = inner
        self._left = at

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if name not in ("list", "create", "set", "delete", "get", "delete_page"):
            return found

        def call(*given: Any, **named: Any) -> Any:
            self._left -= 1
            if self._left <= 0:
                raise Dead
            return found(*given, **named)

        return call


def test_parquet_goes_to_s3(orders: persist.Collection, s3_location: tuple[str, dict[str, Any]]) -> None:
    url, options = s3_location
    files = orders.snapshot(5).export_parquet(url, storage_options=options)
    assert files == [f"{url}/part-0.parquet"]
    data = open_blob(url, options).get("part-0.parquet")
    assert pq.read_table(pa.BufferReader(data or b"")).to_pylist() == dicts(ROWS)


def test_other_formats_take_a_snapshot_as_a_stream(orders: persist.Collection, tmp_path: Path) -> None:
    uri = str(tmp_path / "delta")
    write_deltalake(uri, orders.snapshot(5))
    assert sorted(DeltaTable(uri).to_pyarrow_table().to_pylist(), key=str) == sorted(dicts(ROWS), key=str)


def test_what_is_no_path_is_refused(orders: persist.Collection) -> None:
    for none in (None, 5):
        with pytest.raises(persist.InvalidUsage, match=f"folder={none} is neither a path nor a URL"):
            orders.snapshot(0).export_parquet(none)  # type: ignore[arg-type]


def test_a_folder_of_parquet_comes_in_as_a_dataset(orders: persist.Collection, tmp_path: Path) -> None:
    orders.snapshot(5).export_parquet(tmp_path / "out", rows_per_file=3)
    orders.overwrite(ds.dataset(tmp_path / "out"), time=7, multiset=True).result()
    assert orders.snapshot(7).to_arrow().to_pylist() == dicts(ROWS)


@pytest.mark.thorough
def test_more_than_the_memory_budget_goes_out_and_comes_in(tmp_path: Path) -> None:
    rows = 600_000
    budget = persist.Settings(background=False, memory_budget=16 << 20)
    text = np.char.add("a rather long text ", np.arange(rows).astype(str)).astype(object)
    with persist.open(MemoryBlob(), settings=budget) as client:
        large = client.create_or_load("large", key={"k": pa.int64()}, value={"v": pa.string()})
        large.write(pa.table({"k": np.arange(rows), "v": text}), time=0, seal=1).result()
        large.snapshot().export_parquet(tmp_path / "out")
        copy = client.create_or_load("copy", key={"k": pa.int64()}, value={"v": pa.string()})
        copy.write(ds.dataset(tmp_path / "out"), time=0, seal=1).result()
        assert copy.snapshot(0).count() == rows
