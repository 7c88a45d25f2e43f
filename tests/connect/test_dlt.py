"""The example for dlt: loads become collections, and a load that is repeated writes nothing twice."""

from pathlib import Path
from typing import Any

import pytest

import persist

dlt = pytest.importorskip("dlt", reason="dlt is not installed: pip install dlt")
pytestmark = [
    pytest.mark.outside,
    pytest.mark.costly("dlt itself loads for seconds"),
    pytest.mark.filterwarnings("ignore"),
]
Rows = list[dict[str, Any]]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RUNTIME__DLTHUB_TELEMETRY", "false")
    monkeypatch.setenv("DLT_DATA_DIR", str(tmp_path / "dlt"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(place: Path, rows: Rows, **hints: Any) -> Any:
    from examples.dlt_destination import collections

    pipeline = dlt.pipeline(
        "shop", destination=collections(location=str(place / "location")), pipelines_dir=str(place / "pipelines")
    )
    return pipeline.run(dlt.resource(rows, name="orders", **hints))


def contents(place: Path) -> Rows:
    with persist.open(str(place / "location"), mode="read") as client:
        rows: Rows = client.load("orders").snapshot().to_arrow().to_pylist()
    return sorted(rows, key=str)


def test_what_is_appended_and_new_columns_are_added(place: Path) -> None:
    run(place, [{"id": 1, "status": "new"}, {"id": 1, "status": "new"}], write_disposition="append")
    run(place, [{"id": 2, "status": "paid", "amount": 9.5}], write_disposition="append")
    assert contents(place) == [
        {"id": 1, "status": "new", "amount": None},
        {"id": 1, "status": "new", "amount": None},
        {"id": 2, "status": "paid", "amount": 9.5},
    ]


def test_what_is_merged_replaces_its_key_or_deletes_it(place: Path) -> None:
    hints: dict[str, Any] = {
        "write_disposition": "merge",
        "primary_key": "id",
        "columns": {"gone": {"hard_delete": True, "data_type": "bool"}},
    }
    run(place, [{"id": 1, "status": "new", "gone": False}, {"id": 2, "status": "new", "gone": False}], **hints)
    run(place, [{"id": 1, "status": "paid", "gone": False}, {"id": 2, "status": None, "gone": True}], **hints)
    assert contents(place) == [{"id": 1, "status": "paid"}]


def test_a_load_that_is_repeated_writes_nothing_twice(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = persist.Collection.write
    deaths = iter([True, False])

    def dying(self: persist.Collection, *arguments: Any, **options: Any) -> Any:
        future = write(self, *arguments, **options)
        future.result()
        if next(deaths):
            raise ConnectionError("the answer was lost")
        return future

    monkeypatch.setattr(persist.Collection, "write", dying)
    run(place, [{"id": 1}, {"id": 2}], write_disposition="append")
    assert next(deaths, None) is None
    assert contents(place) == [{"id": 1}, {"id": 2}]


def test_a_table_that_is_replaced_is_refused(place: Path) -> None:
    with pytest.raises(Exception, match="a collection takes append, and merge"):
        run(place, [{"id": 1}], write_disposition="replace")
