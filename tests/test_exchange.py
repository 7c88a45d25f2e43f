"""Contents go out as Parquet, Delta and Iceberg, and come in from Parquet and Delta, whose versions become times."""

import json
import os
import sys
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog.sql import SqlCatalog

import persist
from persist.blob import MemoryBlob, UnreliableBlob, open_blob
from persist.read.results.export import export_to_store

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
    for export in (
        lambda: orders.snapshot().export_parquet(tmp_path / "out"),
        lambda: orders.snapshot().export_delta(str(tmp_path / "delta")),
        lambda: orders.snapshot().export_iceberg(catalog(tmp_path), "shop.orders"),
    ):
        with pytest.raises(persist.errors.NegativeMultiplicity):
            export()
    assert not (tmp_path / "out").exists()
    assert not [path for path in tmp_path.iterdir() if ".tmp-" in path.name]
    assert not (tmp_path / "delta").exists()
    assert not catalog(tmp_path).table_exists("shop.orders")


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


def test_a_delta_table_gets_a_version_for_each_export(orders: persist.Collection, tmp_path: Path) -> None:
    uri = str(tmp_path / "delta")
    assert orders.snapshot(5).export_delta(uri) == 0
    with pytest.raises(persist.InvalidUsage, match=r"the Delta table .* was not written: .*exists"):
        orders.snapshot(6).export_delta(uri)
    assert orders.snapshot(6, columns=["v"]).export_delta(uri, mode="overwrite") == 1
    assert orders.snapshot(5, columns=["v"]).export_delta(uri, mode="append") == 2
    first = DeltaTable(uri, version=0).to_pyarrow_table().to_pylist()
    assert sorted(first, key=str) == sorted(dicts(ROWS), key=str)
    assert DeltaTable(uri).to_pyarrow_table().num_rows == 9
    assert DeltaTable(uri).history(1)[0]["persist.as_of"] == "5"
    with pytest.raises(persist.InvalidUsage, match="mode='replace' is no way to export"):
        orders.snapshot().export_delta(uri, mode="replace")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "kind",
    [
        pa.timestamp("ns"), pa.timestamp("ns", "UTC"), pa.time32("s"), pa.time64("us"), pa.duration("us"), pa.uint8(),
        pa.uint64(), pa.float16(), pa.decimal256(50, 2), pa.list_(pa.timestamp("ns")), pa.struct({"a": pa.uint16()}),
    ],
    ids=str,
)  # fmt: skip
def test_what_delta_has_no_type_for_is_refused_and_leaves_nothing(
    client: persist.Client, tmp_path: Path, kind: pa.DataType
) -> None:
    odd = client.create_or_load("odd", key={"k": pa.int64()}, value={"v": kind})
    odd.write(pa.table({"k": [1], "v": pa.nulls(1, kind)}), time=0, seal=1).result()
    with pytest.raises(persist.InvalidUsage, match=r"Delta has no type for column 'v' of type .* leave it out with"):
        odd.snapshot(0).export_delta(str(tmp_path / "delta"))
    assert not (tmp_path / "delta").exists()
    assert odd.snapshot(0, columns=["k"]).export_delta(str(tmp_path / "delta")) == 0


def test_what_delta_has_types_for_comes_back_as_it_was(client: persist.Client, tmp_path: Path) -> None:
    values = pa.table({
        "k": [1],
        "s": pa.array([1], pa.timestamp("s")),
        "z": pa.array([1001], pa.timestamp("ms", "Europe/Berlin")),
        "d": pa.array([86_400_000], pa.date64()),
        "f": pa.array([b"abcd"], pa.binary(4)),
        "l": pa.array([[1, 2]], pa.list_(pa.int8(), 2)),
        "m": pa.array([[("a", 1.5)]], pa.map_(pa.string(), pa.float32())),
    })  # fmt: skip
    schema = {field.name: field.type for field in values.schema}
    wide = client.create_or_load("wide", key={"k": schema.pop("k")}, value=schema)
    wide.write(values, time=0, seal=1).result()
    wide.snapshot(0).export_delta(str(tmp_path / "delta"))
    assert DeltaTable(tmp_path / "delta").to_pyarrow_table().to_pylist() == values.to_pylist()


def catalog(tmp_path: Path) -> SqlCatalog:
    made = SqlCatalog("test", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    made.create_namespace_if_not_exists("shop")
    return made


def test_an_iceberg_table_gets_a_snapshot_for_each_export(orders: persist.Collection, tmp_path: Path) -> None:
    shop = catalog(tmp_path)
    first = orders.snapshot(5).export_iceberg(shop, "shop.orders")
    table = shop.load_table("shop.orders")
    assert table.current_snapshot().snapshot_id == first
    assert sorted(table.scan().to_arrow().to_pylist(), key=str) == sorted(dicts(ROWS), key=str)
    assert table.current_snapshot().summary["persist.as_of"] == "5"
    with pytest.raises(persist.InvalidUsage, match=r"the Iceberg table shop.orders was not written: .*exists"):
        orders.snapshot(6).export_iceberg(shop, "shop.orders")
    orders.snapshot(6).export_iceberg(shop, "shop.orders", mode="append")
    assert shop.load_table("shop.orders").scan().count() == 9
    orders.snapshot(6).export_iceberg(shop, "shop.orders", mode="overwrite")
    assert shop.load_table("shop.orders").scan().count() == 5
    assert table.scan(snapshot_id=first).to_arrow().num_rows == 4
    with pytest.raises(persist.InvalidUsage, match="'rest' is no catalog: give one of pyiceberg"):
        orders.snapshot().export_iceberg("rest", "shop.orders")


@pytest.mark.parametrize(
    ("package", "call"),
    [
        ("deltalake", lambda orders: orders.snapshot().export_delta("x")),
        ("deltalake", lambda orders: orders.import_delta("x")),
        ("pyiceberg", lambda orders: orders.snapshot().export_iceberg(None, "x")),
    ],
)
def test_without_its_library_an_error_tells_what_to_install(
    orders: persist.Collection, monkeypatch: pytest.MonkeyPatch, package: str, call: Any
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(persist.InvalidUsage, match=rf"package {package}, .* pip install '{package}(\[pyarrow\])?>="):
        call(orders)


def folder(tmp_path: Path) -> Path:
    for day in ("2026-11-20", "2026-11-21"):
        path = tmp_path / "in" / f"day={day}"
        path.mkdir(parents=True)
        pq.write_table(pa.table({"k": [1, 2], "v": [day, "x"]}), path / "a.parquet")
    return tmp_path / "in"


def test_a_folder_of_parquet_comes_in_at_one_time_and_goes_on_where_it_ended(tmp_path: Path) -> None:
    store = UnreliableBlob(MemoryBlob())
    source = folder(tmp_path)
    with persist.open(store, settings=QUIET) as client:
        events = client.create_or_load("events", key={"day": pa.string(), "k": pa.int64()}, value={"v": pa.string()})
        bad = source / "day=2026-11-22"
        bad.mkdir()
        pq.write_table(pa.table({"k": [1], "w": [1]}), bad / "a.parquet")
        with pytest.raises(persist.errors.SchemaMismatch):
            events.import_parquet(source, time=3, seal=4, token="load")
        assert events.upper == persist.Antichain(0)
        pq.write_table(pa.table({"k": [7], "v": ["y"]}), bad / "a.parquet")
        assert events.import_parquet(source, time=3, seal=4, token="load").files == 1
        assert events.import_parquet(source, time=3, seal=4, token="load") == persist.ImportedFiles(0, 0)
        assert sorted(events.snapshot(3).rows()) == [
            (("2026-11-20", 1), "2026-11-20"), (("2026-11-20", 2), "x"), (("2026-11-21", 1), "2026-11-21"),
            (("2026-11-21", 2), "x"), (("2026-11-22", 7), "y"),
        ]  # fmt: skip
        assert {time for _, time, _ in events.changes(0).updates()} == {3}
        with pytest.raises(persist.InvalidUsage, match="is neither files of Parquet nor a folder of them"):
            events.import_parquet(tmp_path / "nowhere", time=5)


@pytest.fixture
def plain(client: persist.Client) -> persist.Collection:
    return client.create_or_load("plain", key={"k": pa.int64()})


def parquet(path: Path, *keys: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"k": list(keys)}), path)
    return path


def test_single_files_under_one_token_are_told_apart_by_name(plain: persist.Collection, tmp_path: Path) -> None:
    files = [parquet(tmp_path / name, at) for at, name in enumerate(("a.parquet", "b.parquet", "d=1/a.parquet"))]
    assert [plain.import_parquet(file, time=0, token="t").files for file in [*files, *files]] == [1, 1, 1, 0, 0, 0]
    plain.seal(1).result()
    assert sorted(plain.snapshot(0).to_arrow()["k"].to_pylist()) == [0, 1, 2]


def test_a_source_is_the_same_however_its_path_is_written(
    plain: persist.Collection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = parquet(tmp_path / "in" / "sub" / "a.parquet", 1)
    monkeypatch.chdir(tmp_path)
    whole = tmp_path / "in"
    for at, source in enumerate(("in", "./in", "in/", whole, f"{whole}/", whole.as_uri(), Path("in"), "sub/../in")):
        (tmp_path / "sub").mkdir(exist_ok=True)
        assert plain.import_parquet(source, time=0, token="folder").files == (at == 0), source
    for at, one in enumerate(("in/sub/a.parquet", "./in/sub/a.parquet", file, file.as_uri())):
        assert plain.import_parquet(one, time=0, token="file").files == (at == 0), one
    for at, listed in enumerate((["in/sub/a.parquet"], [file], ("./in/sub/a.parquet",))):
        assert plain.import_parquet(listed, time=0, token="list").files == (at == 0), listed
    for at, folder in enumerate(("in", "./in", str(whole))):
        assert plain.import_parquet(ds.dataset(folder), time=0, token="dataset").files == (at == 0), folder


def test_what_has_no_files_of_parquet_is_refused_and_nothing_is_sealed(
    plain: persist.Collection, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "_hidden.parquet").touch()
    nothing: list[Any] = [tmp_path / "in", [], ds.dataset(tmp_path / "in", format="parquet")]
    for source in nothing:
        with pytest.raises(persist.InvalidUsage, match="holds no files of Parquet: nothing was imported or sealed"):
            plain.import_parquet(source, time=0, seal=1)
    for source in (f"{tmp_path}/*.parquet", None, 5, ds.dataset(pa.table({"k": [1]}))):
        with pytest.raises(persist.InvalidUsage, match="is neither files of Parquet nor a folder of them"):
            plain.import_parquet(source, time=0, seal=1)
    assert plain.upper == persist.Antichain(0)


def test_half_an_export_does_not_come_in(plain: persist.Collection, tmp_path: Path) -> None:
    file = parquet(tmp_path / "in" / "part-0.parquet", 1)
    (tmp_path / "in" / "_INCOMPLETE").touch()
    for source in (tmp_path / "in", tmp_path, file, [file], ds.dataset(tmp_path / "in", format="parquet")):
        with pytest.raises(persist.InvalidUsage, match=r"_INCOMPLETE: an export is under way there, or one was killed"):
            plain.import_parquet(source, time=0, seal=1)
    file.unlink()
    with pytest.raises(persist.InvalidUsage, match=r"_INCOMPLETE: an export is under way"):
        plain.import_parquet(tmp_path / "in", time=0, seal=1)
    assert plain.upper == persist.Antichain(0)


@pytest.mark.parametrize("damage", ["no Parquet", "a page"])
def test_a_damaged_file_is_named_and_nothing_is_visible(plain: persist.Collection, tmp_path: Path, damage: str) -> None:
    parquet(tmp_path / "in" / "a.parquet", 1)
    bad = parquet(tmp_path / "in" / "b.parquet", *range(1000))
    data = bad.read_bytes()
    bad.write_bytes(b"text" if damage == "no Parquet" else data[:4] + b"\xff" * 200 + data[204:])
    with pytest.raises(persist.InvalidUsage, match=r"b.parquet cannot be read as Parquet"):
        plain.import_parquet(tmp_path / "in", time=0, seal=1)
    assert plain.upper == persist.Antichain(0)


def test_files_are_taken_without_the_folders_that_the_collection_does_not_know(
    client: persist.Client, plain: persist.Collection, tmp_path: Path
) -> None:
    file = parquet(tmp_path / "day=5" / "x.parquet", 1)
    for at, source in enumerate((file, [file], file.parent)):
        assert plain.import_parquet(source, time=at, seal=at + 1).files == 1
    assert plain.snapshot(2).to_arrow()["k"].to_pylist() == [1, 1, 1]
    with pytest.raises(persist.errors.SchemaMismatch, match="'day' is unexpected"):
        plain.import_parquet(tmp_path, time=3)
    daily = client.create_or_load("daily", key={"k": pa.int64()}, value={"day": pa.int32()})
    for at, source in enumerate((file, [file], tmp_path)):
        assert daily.import_parquet(source, time=at, seal=at + 1).files == 1
    assert list(daily.snapshot(2).rows()) == [(1, 5)] * 3


def test_what_is_no_path_is_refused(plain: persist.Collection) -> None:
    plain.seal(1).result()
    for none in (None, 5):
        with pytest.raises(persist.InvalidUsage, match=f"uri={none} is neither the path nor the URL"):
            plain.import_delta(none)  # type: ignore[arg-type]
        with pytest.raises(persist.InvalidUsage, match=f"folder={none} is neither a path nor a URL"):
            plain.snapshot(0).export_parquet(none)  # type: ignore[arg-type]
        with pytest.raises(persist.InvalidUsage, match=f"uri={none} is neither the path nor the URL"):
            plain.snapshot(0).export_delta(none)  # type: ignore[arg-type]


@pytest.fixture
def delta(tmp_path: Path) -> str:
    """A table of four versions: made, appended to, one row taken out of a file of many, and rewritten by compaction."""
    uri = str(tmp_path / "delta")
    keys = np.arange(1000)
    write_deltalake(uri, pa.table({"k": keys, "v": [f"v{k % 7}" for k in keys]}))
    write_deltalake(uri, pa.table({"k": [5000, 5000], "v": ["new", "new"]}), mode="append")
    DeltaTable(uri).delete("k = 3")
    DeltaTable(uri).optimize.compact()
    return uri


def version_rows(uri: str, version: int) -> list[tuple[int, str]]:
    table = DeltaTable(uri, version=version).to_pyarrow_table()
    return sorted(zip(table["k"].to_pylist(), table["v"].to_pylist(), strict=True))


def test_versions_of_a_delta_table_become_times_with_exact_differences(client: persist.Client, delta: str) -> None:
    copy = client.create_or_load("copy", key={"k": pa.int64()}, value={"v": pa.string()})
    imported = copy.import_delta(delta)
    assert [(each.version, each.time) for each in imported] == [(0, 0), (1, 1), (2, 2), (3, 3)]
    for version in range(4):
        assert sorted(copy.snapshot(version).rows()) == version_rows(delta, version)
    assert list(copy.changes(1).updates()) == [((5000, "new"), 1, 2), ((3, "v3"), 2, -1)]
    assert copy.import_delta(delta) == []
    write_deltalake(delta, pa.table({"k": [1], "v": ["again"]}), mode="overwrite")
    assert [each.version for each in copy.import_delta(delta)] == [4]
    assert list(copy.snapshot(4).rows()) == [(1, "again")]


def vacuumed(table: DeltaTable) -> None:
    assert table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)


def forgotten(table: DeltaTable) -> None:
    """Vacuum, and leave no log of old versions either."""
    vacuumed(table)
    table.create_checkpoint()
    for path in Path(table.table_uri.removeprefix("file://"), "_delta_log").glob("*.json"):
        if int(path.stem) < table.version():
            path.unlink()


@pytest.mark.parametrize("lose", [vacuumed, forgotten])
def test_a_version_after_one_that_was_vacuumed_is_compared_with_what_is_there(
    client: persist.Client, delta: str, lose: Callable[[DeltaTable], None], caplog: pytest.LogCaptureFixture
) -> None:
    copy = client.create_or_load("copy", key={"k": int}, value={"v": str})
    assert [each.is_compared for each in copy.import_delta(delta)] == [True, False, False, False]
    write_deltalake(delta, pa.table({"k": [1, 2], "v": ["again", "twice"]}), mode="overwrite")
    write_deltalake(delta, pa.table({"k": [3], "v": ["more"]}), mode="append")
    before = sorted(copy.snapshot().rows())
    lose(DeltaTable(delta))
    found = copy.import_delta(delta, first=5)
    assert [each.is_compared for each in found] == [True, *[False] * len(found[1:])]  # Vacuuming makes versions, too.
    assert f"version {found[0].version} is compared with all that 'copy' holds" in caplog.text
    newest = found[-1].version
    assert sorted(copy.snapshot().rows()) == version_rows(delta, newest) == [(1, "again"), (2, "twice"), (3, "more")]
    assert sorted(copy.snapshot(3).rows()) == before
    write_deltalake(delta, pa.table({"k": [4], "v": ["last"]}), mode="append")
    assert [(each.version, each.is_compared) for each in copy.import_delta(delta)] == [(newest + 1, False)]
    assert copy.changes(newest + 1).to_pylist() == [{"k": 4, "v": "last", "_time": newest + 1, "_diff": 1}]
    assert not client.fsck().problems


def test_an_import_that_was_killed_goes_on_after_the_last_version(client: persist.Client, delta: str) -> None:
    copy = client.create_or_load("copy", key={"k": pa.int64()}, value={"v": pa.string()})
    assert len(copy.import_delta(delta, last=1)) == 2
    assert [each.version for each in copy.import_delta(delta)] == [2, 3]
    assert sorted(copy.snapshot(3).rows()) == version_rows(delta, 3)


def test_what_others_have_written_in_between_is_replaced_by_the_next_version(
    client: persist.Client, delta: str
) -> None:
    copy = client.create_or_load("copy", key={"k": pa.int64()}, value={"v": pa.string()})
    copy.import_delta(delta, last=0)
    copy.write([(7777, "other")], time=1, seal=2).result()
    assert [(each.version, each.time) for each in copy.import_delta(delta)] == [(1, 2), (2, 3), (3, 4)]
    assert sorted(copy.snapshot(4).rows()) == version_rows(delta, 3)


@pytest.mark.parametrize("unit", ["s", "ms", "ns"])
def test_with_a_timeline_versions_are_at_the_moments_of_their_commits(
    client: persist.Client, delta: str, unit: str
) -> None:
    copy = client.create_or_load("copy", key={"k": pa.int64()}, value={"v": pa.string()}, timeline=unit)
    imported = copy.import_delta(delta)
    [first, *_] = sorted(each["timestamp"] for each in DeltaTable(delta).history())
    assert copy.timeline is not None
    assert copy.timeline.datetime_of(imported[0].time) == datetime.fromtimestamp(
        first // 1000 if unit == "s" else first / 1000, UTC
    )
    assert len({each.time for each in imported}) == 4
    assert sorted(copy.snapshot(imported[-1].time).rows()) == version_rows(delta, 3)


def test_a_column_that_came_later_is_null_before(client: persist.Client, tmp_path: Path) -> None:
    uri = str(tmp_path / "delta")
    write_deltalake(uri, pa.table({"k": [1]}))
    write_deltalake(uri, pa.table({"k": [2], "v": ["b"]}), mode="append", schema_mode="merge")
    copy = client.create_or_load("copy", key={"k": pa.int64()}, value={"v": pa.string()})
    copy.import_delta(uri)
    assert list(copy.snapshot(0).rows()) == [(1, None)]
    assert sorted(copy.snapshot(1).rows()) == [(1, None), (2, "b")]


def test_a_table_that_does_not_fit_is_told(client: persist.Client, delta: str, tmp_path: Path) -> None:
    narrow = client.create_or_load("narrow", key={"k": pa.int64()})
    with pytest.raises(persist.errors.SchemaMismatch, match="'v' is unexpected"):
        narrow.import_delta(delta)
    with pytest.raises(persist.InvalidUsage, match=r"the Delta table .*nowhere cannot be opened"):
        narrow.import_delta(tmp_path / "nowhere")


def test_a_version_of_which_files_are_gone_is_told_and_left_out_with_first(
    client: persist.Client, tmp_path: Path
) -> None:
    uri = str(tmp_path / "delta")
    write_deltalake(uri, pa.table({"k": [1]}))
    write_deltalake(uri, pa.table({"k": [2]}), mode="overwrite")
    DeltaTable(uri).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    copy = client.create_or_load("copy", key={"k": pa.int64()})
    with pytest.raises(persist.InvalidUsage, match=r"(?s)cannot be read at version 0: .* are left out with first="):
        copy.import_delta(uri)
    assert copy.upper == persist.Antichain(0)
    assert [each.version for each in copy.import_delta(uri, first=1)] == [1, 2, 3]  # Vacuum makes two.
    assert copy.snapshot(1).to_arrow()["k"].to_pylist() == [2]


def test_a_partitioned_table_comes_in_with_its_partition_columns(client: persist.Client, tmp_path: Path) -> None:
    uri = str(tmp_path / "delta")
    write_deltalake(uri, pa.table({"k": [1, 2, 3], "p": ["a", "b", None]}), partition_by=["p"])
    DeltaTable(uri).delete("p = 'a'")
    copy = client.create_or_load("copy", key={"k": pa.int64()}, value={"p": pa.string()})
    copy.import_delta(uri)
    assert sorted(copy.snapshot(0).rows()) == [(1, "a"), (2, "b"), (3, None)]
    assert list(copy.changes(1).updates()) == [((1, "a"), 1, -1)]


@pytest.mark.thorough
def test_more_than_the_memory_budget_goes_out_and_comes_in(tmp_path: Path) -> None:
    rows = 600_000
    budget = persist.Settings(background=False, memory_budget=16 << 20)
    text = np.char.add("a rather long text ", np.arange(rows).astype(str)).astype(object)
    with persist.open(MemoryBlob(), settings=budget) as client:
        large = client.create_or_load("large", key={"k": pa.int64()}, value={"v": pa.string()})
        large.write(pa.table({"k": np.arange(rows), "v": text}), time=0, seal=1).result()
        uri = str(tmp_path / "delta")
        large.snapshot().export_delta(uri)
        DeltaTable(uri).delete("k < 10")
        copy = client.create_or_load("copy", key={"k": pa.int64()}, value={"v": pa.string()})
        copy.import_delta(uri)
        assert copy.snapshot(0).count() == rows
        assert copy.changes(1).to_arrow()["_diff"].to_pylist() == [-1] * 10
