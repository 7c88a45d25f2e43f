"""Tables of Iceberg under erasure: catalogs get the new ones, and receipts are given beside them."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import persist
from tests.services.erase.test_erase import ADA
from tests.services.publish.test_keeping import Failing, catalog
from tests.support.tuned import tuned

__all__ = ["catalog"]  # The fixture.
pytest.importorskip("pyiceberg")
SETTINGS = tuned(background=False, hold_linger_s=0, log_retention_s=240, log_retention_records=16)
BOTH = ("orders", "emails")


@pytest.fixture
def client(tmp_path: Path) -> Iterator[persist.Client]:
    with persist.open(tmp_path / "shop", settings=SETTINGS) as made:
        orders = made.create_or_load("orders", key={"id": int}, value={"email": str})
        for time in range(2):
            orders.write([((n, f"{ADA if n == 3 else n}"), time, 1) for n in range(5)], seal=time + 1).result()
        made.create_view("emails", "SELECT DISTINCT email FROM orders").refresh()
        yield made


def publish(client: persist.Client, catalog: Any) -> None:
    for name in BOTH:
        client.load(name).publish("iceberg", catalog=catalog, identifier=f"shop.{name}")


def in_catalog(catalog: Any, name: str) -> list[str]:
    return sorted(catalog.load_table(f"shop.{name}").scan().to_arrow()["email"].to_pylist())


def emails(client: persist.Client, name: str) -> list[str]:
    found = sorted(client.load(name).snapshot().to_arrow()["email"].to_pylist())
    assert ADA not in found
    return found


@pytest.fixture
def named(catalog: Failing, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let pyiceberg be configured with the catalog."""
    monkeypatch.setattr("pyiceberg.catalog.load_catalog", lambda name: {"box": catalog}[name])
    return "box"


def test_a_catalog_gets_the_tables_of_which_something_was_erased(
    client: persist.Client, catalog: Failing, named: str
) -> None:
    publish(client, named)
    assert ADA in in_catalog(catalog, "emails")
    client.load("orders").erase([3], reason="request 17")
    assert [in_catalog(catalog, name) for name in BOTH] == [emails(client, name) for name in BOTH]
    client.load("orders").write([((9, "nine"), 2, 1)], seal=3).result()
    client.view("emails").refresh()
    publish(client, named)
    client.load("orders").erase([9], reason="request 18")
    assert [in_catalog(catalog, name) for name in BOTH] == [emails(client, name) for name in BOTH]


def test_a_catalog_that_only_a_program_has_gets_them_when_it_publishes_again(
    client: persist.Client, catalog: Failing
) -> None:
    publish(client, catalog)
    for key in (3, 4):
        report = client.load("orders").erase([key], reason="request 17")
        assert sorted(report.untold) == sorted(f"shop.{name}" for name in BOTH)
        assert "names deleted files until that program publishes again" in str(report)
    publish(client, catalog)
    assert [in_catalog(catalog, name) for name in BOTH] == [emails(client, name) for name in BOTH]


def test_a_catalog_that_is_down_holds_nothing_else_up_and_hears_of_it_later(
    client: persist.Client, catalog: Failing, named: str
) -> None:
    publish(client, named)
    client.load("orders").publish("delta")
    catalog.down = {"load_table"}
    with pytest.raises(persist.Unavailable, match="the catalog is down") as error:
        client.load("orders").erase([3], reason="request 17")
    assert "erased 2 updates of 'orders'" in "\n".join(error.value.__notes__)
    assert len(emails(client, "emails")) == 4
    with pytest.raises(persist.Unavailable, match="the catalog is down") as error:
        client.load("orders").erase([3], reason="request 17")
    assert "nothing of 'orders' to erase. What failed comes after erasures" in "\n".join(error.value.__notes__)
    for name, tables in (("orders", ["delta", "iceberg"]), ("emails", ["iceberg"])):
        assert [each.table for each in client.load(name).published()] == tables
    catalog.down = set()
    assert client.load("orders").erase([3], reason="request 17").seqno is None
    assert [in_catalog(catalog, name) for name in BOTH] == [emails(client, name) for name in BOTH]


def test_a_receipt_is_given_beside_tables_of_others_in_whose_manifests_texts_are_found(
    client: persist.Client, tmp_path: Path
) -> None:
    for name in BOTH:
        client.load(name).publish("iceberg")
    others = client.create_or_load("others", key={"email": str})
    others.write([(f"other-{ADA}", None)]).result()
    others.publish("iceberg")
    orders = client.load("orders")
    orders.erase([3], reason="request 17")
    for _ in range(3):
        for path in (tmp_path / "shop").rglob("*"):
            if path.is_file():
                os.utime(path, (path.stat().st_mtime - 100_000,) * 2)
        client.maintain()  # Which gives leases back.
        client.gc()
    assert orders.traces([3]).is_gone
    found = [trace.key for trace in orders.traces([3], texts=["other-ada"]).found]
    assert {key.rpartition(".")[2] for key in found} >= {"parquet", "avro"}
    assert all(f"/{others.handle.id}/" in key for key in found if key.startswith("part/"))
