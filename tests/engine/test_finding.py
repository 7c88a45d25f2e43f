"""How users find collections: by name, in namespaces, in a table; and what `persist` offers to whoever looks."""

import shutil
import tomllib
from pathlib import Path

import pyarrow as pa
import pytest

import persist
from tests.support.paths import ROOT

KEY, VALUE = {"k": pa.int64()}, {"v": pa.string()}


def test_the_version_is_that_of_the_package() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert persist.__version__ == pyproject["project"]["version"]


def test_a_client_gives_a_collection_by_name_and_says_which_there_are() -> None:
    with persist.open(persist.MemoryBlob()) as client:
        made = client.create_or_load("orders", key=KEY, value=VALUE)
        assert client["orders"] == made
        assert "orders" in client
        assert "items" not in client
        assert 3 not in client
        with pytest.raises(persist.errors.CollectionNotFound, match="items"):
            client["items"]
        assert [*client] == ["orders"]


def test_two_handles_are_equal_if_they_are_on_the_same_collection() -> None:
    blob = persist.MemoryBlob()
    with persist.open(blob) as one, persist.open(blob) as other:
        orders = one.create_or_load("orders", key=KEY, value=VALUE)
        assert one.load("orders") == other.load("orders") == orders
        assert len({orders, other.load("orders")}) == 1
        one.drop("orders").result()
        again = one.create_or_load("orders", key=KEY, value=VALUE)
        assert again != orders
        assert orders != "orders"


def test_handles_are_equal_however_the_folder_is_spelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "shop")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    with persist.open(tmp_path / "shop") as client:
        orders = client.create_or_load("orders", key=KEY, value=VALUE)
        for spelled in ("shop", "./other/../shop/", f"file://{tmp_path}/shop", "link"):
            with persist.open(spelled, mode="read") as other:
                assert other["orders"] == orders
                assert len({other["orders"], orders}) == 1
    shutil.copytree(tmp_path / "shop", tmp_path / "copy")
    with persist.open("copy", mode="read") as copy:
        assert copy["orders"] != orders  # What is written to one is not in the other.


def test_names_with_dots_are_namespaces() -> None:
    with persist.open(persist.MemoryBlob()) as client:
        for name in ("sales.orders", "sales.items", "salesmen", "hr.people"):
            client.create_or_load(name, key=KEY)
        assert client.collections("sales.") == ["sales.items", "sales.orders"]
        assert client.collections() == ["hr.people", "sales.items", "sales.orders", "salesmen"]
        with pytest.raises(persist.InvalidUsage, match="not text"):
            client.collections(3)  # type: ignore[arg-type]


def test_the_table_of_collections_tells_rows_bytes_since_and_upper() -> None:
    with persist.open(persist.MemoryBlob()) as client:
        orders = client.create_or_load("sales.orders", key=KEY, value=VALUE)
        orders.write([((k, "a"), k, 1) for k in range(10)]).result()
        orders.write([((3, "a"), 11, -1)]).result()
        orders.seal(12).result()
        orders.allow_compaction(6).result()
        orders.compact()
        done = client.create_or_load("sales.done", key=KEY)
        done.seal(persist.Antichain()).result()
        table = client.collections("sales.").to_arrow()
        first, second = table.to_pylist()
        assert first == {"name": "sales.done", "rows": 0, "bytes": 0, "since": 0, "upper": None}
        assert second["bytes"] > 0
        assert {**second, "bytes": 0} == {"name": "sales.orders", "rows": 9, "bytes": 0, "since": 6, "upper": 12}
        client.drop("sales.done").result()
        assert client.collections("none.").to_arrow().schema == table.schema
