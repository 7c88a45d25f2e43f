"""Fields inside of columns that files and tables get later are added, refused or left out with a warning."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import persist
from tests.connect.ingest.test_tables import catalog, contents, delta, ingested

__all__ = ["catalog"]  # The fixture.
A = pa.struct([("a", pa.int64())])
AB = pa.struct([("b", pa.string()), ("a", pa.int64())])
KINDS: dict[str, Callable[[Any], Any]] = {"struct": lambda kind: kind, "list": pa.list_}
VALUES: dict[str, Callable[[Any], Any]] = {"struct": lambda value: value, "list": lambda value: [value, None]}


def write_rows(path: Path, form: str, row: dict[str, Any], kind: pa.DataType) -> None:
    if form == "jsonl":
        path.write_text(json.dumps(row) + "\n")
    else:
        pq.write_table(pa.table({"id": [row["id"]], "v": pa.array([row["v"]], kind)}), path)


@pytest.mark.thorough(except_every=3)
@pytest.mark.parametrize("form", ["jsonl", "parquet"])
@pytest.mark.parametrize("shape", [*KINDS])
@pytest.mark.parametrize("drift", ["refuse", "add", "ignore"])
def test_a_new_field_in_a_file_is_never_lost_unnoticed(
    tmp_path: Path, form: str, shape: str, drift: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder, kind, value = tmp_path / "in", KINDS[shape], VALUES[shape]
    folder.mkdir()
    options = {"source": f"{folder}/*", "collection": "t", "key": ["id"], "settle_s": 0.0, "drift": drift}
    path = "v.b" if shape == "struct" else "v.element.b"

    def ingest() -> list[dict[str, Any]]:
        persist.ingest(str(tmp_path / "shop"), options, once=True)
        with persist.open(str(tmp_path / "shop")) as client:
            rows: list[dict[str, Any]] = client["t"].snapshot().to_pylist()
        return sorted(rows, key=lambda row: int(row["id"]))

    write_rows(folder / f"1.{form}", form, {"id": 1, "v": value({"a": 1})}, kind(A))
    assert ingest() == [{"id": 1, "v": value({"a": 1})}]
    write_rows(folder / f"2.{form}", form, {"id": 2, "v": value({"a": 2, "b": "precious"})}, kind(AB))
    write_rows(folder / f"3.{form}", form, {"id": 3, "v": value({"a": 3})}, kind(A))
    if drift == "refuse":
        with pytest.raises(persist.PersistError, match=r"b'"):
            ingest()
        return
    caplog.clear()
    added: list[dict[str, Any]] = [{"b": None}, {"b": "precious"}, {"b": None}]
    more = added if drift == "add" else [{}, {}, {}]
    assert ingest() == [{"id": n, "v": value({"a": n, **field})} for n, field in enumerate(more, 1)]
    assert path in caplog.text


def test_a_file_of_parquet_may_lack_fields_inside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    write_rows(folder / "1.parquet", "parquet", {"id": 1, "v": {"a": 1, "b": "x"}}, AB)
    write_rows(folder / "2.parquet", "parquet", {"id": 2, "v": {"a": 2}}, A)
    options = {"source": str(folder), "collection": "t", "key": ["id"], "settle_s": 0.0}
    persist.ingest(str(tmp_path / "shop"), options, once=True)
    with persist.open(str(tmp_path / "shop")) as client:
        assert client["t"].snapshot().to_pylist()[1] == {"id": 2, "v": {"b": None, "a": 2}}
    assert "does not have all columns, these are NULL: v.b" in caplog.text


def test_fields_inside_of_a_delta_table_are_followed(tmp_path: Path) -> None:
    source = delta(tmp_path, [{"id": 1, "s": {"a": 1}, "l": [{"a": 1}]}, {"id": 2, "s": None, "l": None}])
    ingested(tmp_path, source)
    delta(tmp_path, [{"id": 3, "s": {"a": 3, "b": "x"}, "l": [{"a": 3, "b": "y"}]}], mode="append", schema_mode="merge")
    ingested(tmp_path, source)
    assert contents(tmp_path) == [
        {"id": 1, "s": {"a": 1, "b": None}, "l": [{"a": 1, "b": None}]},
        {"id": 2, "s": None, "l": None},
        {"id": 3, "s": {"a": 3, "b": "x"}, "l": [{"a": 3, "b": "y"}]},
    ]


def test_fields_inside_of_an_iceberg_table_are_followed_by_their_ids(tmp_path: Path, catalog: Any) -> None:
    from pyiceberg.types import LongType, StringType

    kind = pa.struct([("a", pa.int32()), ("b", pa.string()), ("c", pa.string())])
    schema = pa.schema([("id", pa.int64()), ("s", kind), ("l", pa.list_(kind))])
    table = catalog.create_table("shop.orders", schema)
    inside = {"a": 1, "b": "x", "c": "old"}
    table.append(pa.Table.from_pylist([{"id": 1, "s": inside, "l": [inside, None]}], schema=schema))
    properties = {"name": "test", "type": "sql", **{k: v for k, v in catalog.properties.items() if k != "type"}}
    options: dict[str, Any] = {"source": "iceberg:shop.orders", "catalog": properties}
    ingested(tmp_path, **options)
    for path in (("s",), ("l", "element")):
        with table.update_schema() as update:
            update.rename_column((*path, "b"), "d")
            update.update_column((*path, "a"), LongType())
            update.delete_column((*path, "c"))
        with table.update_schema() as update:
            update.add_column((*path, "c"), StringType())
    now = pa.struct([("a", pa.int64()), ("d", pa.string()), ("c", pa.string())])
    schema = pa.schema([("id", pa.int64()), ("s", now), ("l", pa.list_(now))])
    later = {"a": 2**40, "d": "y", "c": "new"}
    table.append(pa.Table.from_pylist([{"id": 2, "s": later, "l": [later]}], schema=schema))
    ingested(tmp_path, **options)
    earlier = {"a": 1, "d": "x", "c": None}
    assert contents(tmp_path) == [{"id": 1, "s": earlier, "l": [earlier, None]}, {"id": 2, "s": later, "l": [later]}]
