"""`persist erase`: it asks, erases, and says what is left until nothing is."""

import json
import re
from pathlib import Path

import pytest

import persist
from persist.services.erase import receipt_digest
from persist.tools.cli.main import main
from tests.support.console import Run
from tests.support.tuned import tuned


@pytest.fixture
def location(tmp_path: Path) -> str:
    with persist.open(tmp_path / "shop") as client:
        users = client.create_or_load("users", key={"id": int}, value={"email": str})
        users.write([(1, "ada@example.com"), (2, "bob@example.com")], time=0, seal=1).result()
    return str(tmp_path / "shop")


def test_a_condition_that_is_none_is_refused_before_the_question(
    location: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(*_: object) -> str:
        raise AssertionError("it asked")

    monkeypatch.setattr("builtins.input", ask)
    assert main(["erase", location, "users", "--where", "mail = 1", "--reason", "request 17"]) == 2
    assert "'mail' is not a column" in capsys.readouterr().err


def test_verify_says_what_is_left_and_prints_a_receipt_when_nothing_is(
    location: str, capsys: pytest.CaptureFixture[str], run: Run
) -> None:
    assert main(["erase", location, "users", "--where", "id = 1", "--verify"]) == 1
    shown = capsys.readouterr().out
    assert "written after the erasure or never erased" in shown
    assert re.match(r"\d of \d+ objects, of [\d,]+ bytes in all, may hold what was erased:\n", shown)
    assert main(["erase", location, "users", "--where", "id = 1", "--verify", "--json"]) == 1
    assert {each["until"] for each in json.loads(capsys.readouterr().out)["left"]} == {None}
    run("erase", location, "users", "--where", "id = 1", "--reason", "request 17", "--yes")
    *_, waits = json.loads(run("status", location, "--json"))["waiting"]
    assert (waits["collection"], waits["why"], waits["waits_for"]) == ("users", "erased", "the grace period")
    assert waits["blobs"] == 2
    assert main(["erase", location, "users", "--where", "id = 1", "--text", "ada@", "--verify", "--json"]) == 1
    left = json.loads(capsys.readouterr().out)["left"]
    assert main(["erase", location, "users", "--where", "id = 1", "--verify"]) == 1
    assert "gc deletes it" in capsys.readouterr().out
    assert {each["key"].split("/")[0] for each in left} == {"log"}
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", each["until"]) for each in left)
    with persist.open(location, settings=tuned(background=False)) as client:
        client.load("users").write([(3, "eve@example.com")], time=1, seal=2).result()
    assert main(["erase", location, "users", "--where", "id = 99", "--verify"]) == 1


def test_a_receipt_is_json_with_its_own_digest(tmp_path: Path, run: Run) -> None:
    with persist.open(tmp_path / "shop") as client:
        client.create_or_load("users", key={"id": int}, value={"email": str}).write(
            [(2, "bob")], time=0, seal=1
        ).result()
    receipt = json.loads(run("erase", str(tmp_path / "shop"), "users", "--where", "id = 1", "--verify"))
    assert receipt["digest"] == receipt_digest(receipt)
    assert (receipt["collection"], receipt["erasures"]) == ("users", [])
