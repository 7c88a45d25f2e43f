"""Backups, restores and moves by the command line: exit statuses and what is printed."""

import json
from pathlib import Path

import pyarrow as pa
import pytest

import persist
from persist.tools.cli.main import main


@pytest.fixture(autouse=True)
def _shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with persist.open("shop") as client:
        client.write("orders", pa.table({"id": [1, 2], "amount": [5, 7]}), key=["id"])
        client.load("orders").compact()


def told(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> str:
    assert main(arguments) == status
    printed = capsys.readouterr()
    return printed.out + printed.err


def test_what_is_wrong_with_a_backup_is_the_exit_status(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with persist.open("shop") as client:
        client.write("large", pa.table({"id": range(50_000)}), key=["id"])
    told(capsys, "backup", "shop", "kept")
    part = next(path for path in (tmp_path / "kept" / "part").rglob("*.parquet"))
    part.write_bytes(part.read_bytes()[:-1])
    report = json.loads(told(capsys, "verify", "kept", "--json", status=1))
    assert [problem["blob"] for problem in report["problems"]] == [f"part/{part.parent.name}/{part.name}"]
    assert not report["is_whole"]
    assert "nothing" in told(capsys, "verify", "nowhere", status=2)
    assert "itself" in told(capsys, "backup", "shop", "../" + tmp_path.name + "/shop", status=2)
    for target in ("shop/inside", "."):
        assert "lie one inside of the other" in told(capsys, "backup", "shop", target, status=2)
    assert not (tmp_path / "shop" / "inside").exists()
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"cat")
    assert "cat.jpg" in told(capsys, "copy", "kept", "photos", status=2)
    assert [path.name for path in (tmp_path / "photos").iterdir()] == ["cat.jpg"]


def test_a_copy_that_cannot_be_leaves_nothing_and_one_that_was_interrupted_is_told(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert "nothing to copy" in told(capsys, "backup", "nowhere", "kept", status=2)
    assert not (tmp_path / "kept").exists()
    (tmp_path / "kept" / "part" / "0").mkdir(parents=True)
    (tmp_path / "kept" / "part" / "0" / "1.parquet").touch()
    assert "give that command again, and it goes on" in told(capsys, "verify", "kept", status=2)


def test_options_of_the_environment_are_for_stores_and_not_for_the_folder_beside_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERSIST_STORAGE_OPTIONS", '{"endpoint_url": "http://127.0.0.1:9", "fsync": false}')
    assert told(capsys, "backup", "shop", "kept").startswith("kept has 1 collection as of record ")
    assert "whole" in told(capsys, "verify", "kept", "--against", "shop")
    assert "1 collection" in told(capsys, "copy", "kept", "again")
    for command in (["copy", "kept", "memory://far"], ["copy", "memory://far", "there"]):
        assert "'endpoint_url' is not an option of memory://" in told(capsys, *command, status=2)
    assert "is not an option of a folder" in told(capsys, "ls", "kept", "--storage-option", "region=x", status=2)
