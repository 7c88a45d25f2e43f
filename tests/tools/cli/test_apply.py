"""A folder of definitions and a location that is made to follow it."""

import json
from pathlib import Path
from typing import Any

import pytest

import persist
from persist.tools.cli.main import main

Printed = pytest.CaptureFixture[str]
PAID = "SELECT id, amount FROM orders WHERE status = 'paid'"


@pytest.fixture
def place(tmp_path: Path) -> str:
    location = str(tmp_path / "location")
    with persist.open(location, settings=persist.Settings(background=False)) as client:
        orders = client.create_or_load("orders", key={"id": "int64"}, value={"status": "string", "amount": "float64"})
        orders.write([((n, ("paid" if n % 2 else "new", float(n))), 1, 1) for n in range(6)], seal=2).result()
    return location


@pytest.fixture
def views(tmp_path: Path) -> Path:
    folder = tmp_path / "views"
    (folder / "sums").mkdir(parents=True)
    (folder / "paid.sql").write_text(f"-- key: id\n{PAID};\n")
    # It is read before what it reads: names say nothing of the order.
    (folder / "sums" / "all.sql").write_text('SELECT sum(amount) AS total FROM "paid"')
    (folder / "another.sql").write_text('SELECT total + 1 AS more FROM "sums.all"')
    return folder


def applied(place: str, views: Path, capsys: Printed, *options: str) -> tuple[int, Any]:
    capsys.readouterr()
    status = main(["apply", place, str(views), "--json", *options])
    printed = capsys.readouterr()
    return status, json.loads(printed.out) if status == 0 else printed.err


def actions(told: Any) -> dict[str, str]:
    return {each["view"]: each["action"] for each in told["changes"]}


def contents(place: str, view: str) -> list[Any]:
    with persist.open(place, mode="read") as client:
        rows: list[Any] = client.load(view).snapshot().to_arrow().to_pylist()
        return rows


def seqno(place: str) -> int:
    with persist.open(place, mode="read") as client:
        return client.seqno


def test_views_that_read_each_other_are_made_by_one_commit(place: str, views: Path, capsys: Printed) -> None:
    before = seqno(place)
    status, told = applied(place, views, capsys, "--dry-run")
    assert (status, told["seqno"], seqno(place)) == (0, None, before)
    assert actions(told) == {"paid": "create", "sums.all": "create", "another": "create"}
    status, told = applied(place, views, capsys)
    assert (status, told["seqno"]) == (0, before + 1)
    status, told = applied(place, views, capsys)
    assert (status, told["seqno"]) == (0, None)
    assert set(actions(told).values()) == {"keep"}
    assert contents(place, "another") == [{"more": 10.0}]
    assert [each["id"] for each in contents(place, "paid")] == [1, 3, 5]
    with persist.open(place, mode="read") as client:
        assert client.load("paid").schema.key_names == ("id",)


def test_a_changed_view_is_made_anew_with_those_that_read_it(place: str, views: Path, capsys: Printed) -> None:
    assert applied(place, views, capsys)[0] == 0
    (views / "paid.sql").write_text(f"{PAID} AND id > 1")
    status, told = applied(place, views, capsys)
    assert status == 2
    assert "Nobody can be asked here: say --yes" in told
    assert contents(place, "another") == [{"more": 10.0}]
    before = seqno(place)
    status, told = applied(place, views, capsys, "--yes")
    assert (status, told["seqno"]) == (0, before + 1)
    assert actions(told) == {"paid": "replace", "sums.all": "replace", "another": "replace"}
    status, told = applied(place, views, capsys)
    assert contents(place, "another") == [{"more": 9.0}]
    with persist.open(place) as client:
        assert client.fsck().problems == ()


def test_a_file_says_where_its_view_begins(place: str, views: Path, capsys: Printed) -> None:
    (views / "paid.sql").write_text(f"-- start: 1\n-- key: id\n{PAID}")
    assert applied(place, views, capsys)[0] == 0
    with persist.open(place, mode="read") as client:
        assert client.view("another").definition.start == 1
        assert client.load("paid").schema.key_names == ("id",)
    assert main(["view", place, "late", PAID, "--start", "now", "--json"]) == 0
    assert main(["view", place, "early", PAID, "--start", "0", "--json"]) == 0
    assert main(["view", place, "late", "--start", "0"]) == 2
    with persist.open(place, mode="read") as client:
        assert [client.view(name).definition.start for name in ("late", "early")] == [1, 0]


def test_what_has_no_file_stays_unless_it_is_pruned(place: str, views: Path, capsys: Printed) -> None:
    assert applied(place, views, capsys)[0] == 0
    (views / "another.sql").unlink()
    (views / "paid.sql").write_text(f"{PAID} AND id > 1")
    status, told = applied(place, views, capsys, "--yes")
    assert status == 2
    assert "the view 'another' depends on 'paid'" in told
    status, told = applied(place, views, capsys, "--yes", "--prune")
    assert (status, actions(told)) == (0, {"another": "drop", "paid": "replace", "sums.all": "replace"})
    with persist.open(place, mode="read") as client:
        assert [*client.collections()] == ["orders", "paid", "sums.all"]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("paid.sql", "SELECT nope FROM orders", "view 'paid': "),
        ("paid.sql", "SELECT * FROM another", "circle: "),
        ("orders.sql", "SELECT 1 AS one", "not a view"),
        ("paid.sql", "", "it holds no query"),
        ("paid.sql", "-- key:\nSELECT 1 AS one", "names no column"),
        ("paid.sql", "-- key: one\n-- start:\nSELECT 1 AS one", "names no time"),
        ("paid.sql", "SELECT * FROM nowhere", "no collection of that name"),
    ],
)
def test_a_wrong_definition_is_named_and_nothing_is_done(
    place: str, views: Path, capsys: Printed, name: str, text: str, said: str
) -> None:
    (views / name).write_text(text)
    before = seqno(place)
    status, told = applied(place, views, capsys, "--yes")
    assert (status, seqno(place)) == (2, before)
    assert said in told
