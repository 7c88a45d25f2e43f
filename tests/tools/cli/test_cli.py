"""The command line: what it prints, and with which exit status."""

import socket
import time
from pathlib import Path

import pyarrow as pa
import pytest

import persist
from persist.blob.url import open_blob
from persist.tools.cli.main import main
from tests.support.console import Run
from tests.support.stepped import WAIT_S


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    location = tmp_path / "location"
    with persist.open(location, settings=persist.Settings(background=False)) as client:
        c = client.create_or_load("orders", key={"k": pa.int64()}, value=None)
        c.write(pa.table({"k": range(20_000), "_time": [3] * 20_000, "_diff": [1] * 20_000}), seal=5).result()
        c.hold(3, name="consumer")
        c.allow_compaction(4).result()
        client.create_or_load("done", key={"k": pa.int64()}, value=None).seal(persist.Antichain()).result()
    return location


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def part_of(folder: Path) -> Path:
    [part] = folder.glob("part/*/*")
    return part


def test_fsck_of_a_damaged_location_exits_with_1_and_names_the_blob(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    part = part_of(folder)
    data = bytearray(part.read_bytes())
    data[100] ^= 1
    part.write_bytes(bytes(data))
    assert main(["fsck", str(folder)]) == 1
    assert str(part.relative_to(folder)) in capsys.readouterr().out
    assert main(["fsck", "--shallow", str(folder)]) == 0
    part.unlink()
    assert main(["fsck", "--shallow", str(folder)]) == 1


def test_fsck_repairs_what_its_dry_run_shows(folder: Path, capsys: pytest.CaptureFixture[str], run: Run) -> None:
    with persist.open(folder, settings=persist.Settings(background=False)) as client:
        for time in range(6, 24):
            client.load("orders").seal(time).result()
    newest = min(folder.glob("checkpoint/*"))
    newest.write_bytes(newest.read_bytes()[:-40])
    before = contents(folder)
    assert main(["fsck", str(folder), "--repair", "--dry-run"]) == 1
    planned = capsys.readouterr().out.split("repairs planned\n")[1]
    assert contents(folder) == before
    assert run("fsck", str(folder), "--repair").split("repairs done\n")[1] == f"{planned}\nno problem is left\n"
    assert contents(folder) != before
    assert main(["fsck", str(folder)]) == 0


def test_fsck_advises_commands(folder: Path, run: Run) -> None:
    stray = folder / "part" / ("a" * 32) / f"{'0' * 20}-{'b' * 32}.parquet"
    stray.parent.mkdir(parents=True)
    stray.write_bytes(b"PAR1")
    for arguments in (["fsck", str(folder)], ["fsck", str(folder), "--json"]):
        said = run(*arguments)
        assert "repair, or gc, deletes it" in said
        assert "client.gc()" not in said


@pytest.mark.parametrize(
    "arguments",
    [[], ["frobnicate"], ["fsck"], ["fsck", "x", "--frob"], ["log", "x", "--last", "many"], ["log", "x", "-n", "0"]],
)
def test_wrong_arguments_exit_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert "Usage: persist" in "".join(capsys.readouterr())


def test_storage_options_reach_the_store(folder: Path) -> None:
    assert main(["ls", str(folder), "--storage-option", "fsync=false"]) == 0


def test_holds_are_listed_with_who_has_them(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with persist.open(folder) as reader:
        held = reader.load("orders").hold(4)
        assert main(["holds", str(folder)]) == 0
        held.release()
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["collection", "hold", "time", "holder", "until"]
    cells = [line.split() for line in lines]
    assert ["orders", "consumer", "3", "-", "released"] in cells
    assert any(cell[:3] == ["orders", "-", "4"] and cell[3].count(":") == 3 and "T" in cell[4] for cell in cells)


def test_options_of_the_store_come_from_a_file_and_the_environment_without_being_shown(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "options.json"
    file.write_text('{"fsync": "sEcReT"}')
    file.chmod(0o644)
    command = ["gc", str(folder), "--storage-options-file", str(file)]
    assert f"chmod 600 {file}" in run(*command, status=2)
    file.chmod(0o600)
    assert "storage option 'fsync' of a folder" in run(*command, status=2)
    assert main([*command, "--storage-option", "fsync=true"]) == 0
    file.write_text("sEcReT")
    assert main(command) == 2
    monkeypatch.setenv("PERSIST_STORAGE_OPTIONS", '{"file_mode": "0640"}')
    file.write_text('{"fsync": false}')
    assert main(command) == 0
    monkeypatch.setenv("PERSIST_STORAGE_OPTIONS", '["sEcReT"]')
    assert main(["ls", str(folder)]) == 2
    assert main([*command[:3], str(tmp_path / "none.json")]) == 2
    output = capsys.readouterr()
    assert "the environment variable PERSIST_STORAGE_OPTIONS does not hold a JSON object" in output.err
    assert "sEcReT" not in output.out + output.err


def test_storage_options_nested_too_deeply_are_one_line_and_are_not_shown(
    folder: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "options.json"
    file.write_text("[" * 100_000)
    file.chmod(0o600)
    assert main(["gc", str(folder), "--storage-options-file", str(file)]) == 2
    monkeypatch.setenv("PERSIST_STORAGE_OPTIONS", '{"a":' * 100_000)
    lines = run("gc", str(folder), status=2).splitlines()
    assert len(lines) == 2
    for line in lines:
        assert "does not hold a JSON object" in line
        assert "[[" not in line
        assert '"a"' not in line


def test_a_store_that_takes_a_request_and_never_answers_is_given_up_after_the_timeout(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "y")
    monkeypatch.setattr("persist.blob.url.READ_TIMEOUT_S", 2 * WAIT_S)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"endpoint_url=http://127.0.0.1:{silent.getsockname()[1]}"
        open_blob("s3://b/p", {"endpoint_url": endpoint.partition("=")[2], "region": "x"}).close()  # It loads boto3.
        began = time.monotonic()
        status = main(
            ["ls", "s3://b/p", "--store-timeout", "0.2", "--storage-option", endpoint, "--storage-option", "region=x"]
        )
    assert status == 4
    assert time.monotonic() - began < WAIT_S  # An attempt alone would take longer.
    assert "Check that the store is up and reachable" in capsys.readouterr().err
