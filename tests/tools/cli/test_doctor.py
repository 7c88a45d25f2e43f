"""The doctor: what it finds wrong, what it advises, and that it leaves nothing behind."""

import json
import sys
from pathlib import Path

import pytest

import persist
from persist.blob.errors import Unavailable
from persist.blob.protocol import MemoryBlob
from persist.tools.cli.doctor import Finding, check_store
from persist.tools.cli.main import main
from tests.engine.write.test_lying_stores import Overwriting
from tests.support.clocks import DatedBlob, ImpatientClock

Printed = pytest.CaptureFixture[str]


def results(findings: list[Finding]) -> dict[str, str]:
    return {finding.check: finding.result for finding in findings}


def examined(blob: MemoryBlob) -> list[Finding]:
    settings = persist.Settings(background=False, retry_s=0.01)
    with persist.open(blob, mode="read", settings=settings) as client:
        return [*check_store(client)]


class ReadOnly(MemoryBlob):
    def set(self, key: str, value: bytes) -> None:
        raise Unavailable("no right to write. Ask for one")


def test_a_sound_store_is_found_so_and_nothing_is_left_in_an_empty_one() -> None:
    blob = MemoryBlob()
    assert set(results(examined(blob)).values()) == {"ok"}
    assert [*blob.list("")] == []


def test_a_store_that_overwrites_is_wrong_and_one_that_refuses_writes_is_a_warning() -> None:
    [conditional] = [f for f in examined(Overwriting()) if f.check == "conditional writes"]
    assert (conditional.result, "If-None-Match" in (conditional.advice or "")) == ("wrong", True)
    [writes] = examined(ReadOnly())
    assert (writes.check, writes.result) == ("writes", "warning")
    assert "no right to write" in writes.found + (writes.advice or "")


@pytest.mark.parametrize(("ahead_s", "result"), [(0, "ok"), (10, "ok"), (25, "warning"), (-400, "wrong")])
def test_a_clock_that_is_off_is_told(ahead_s: float, result: str) -> None:
    import time

    blob = DatedBlob(ImpatientClock(time.time() + ahead_s))
    [clock] = [f for f in examined(blob) if f.check == "clock"]
    assert clock.result == result
    assert (clock.advice is None) == (result == "ok")
    assert ("ahead of" in clock.found) == (ahead_s < -30)


def test_the_environment_is_examined_and_wrong_workers_are_told(
    tmp_path: Path, capsys: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    with persist.open(tmp_path / "shop", settings=persist.Settings(background=False)) as client:
        client.create_or_load("orders", key={"k": int})
    place, before = str(tmp_path / "shop"), sorted(path for path in tmp_path.rglob("*") if path.is_file())
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nothing"))
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    assert main(["doctor", place, "--no-write", "--json"]) == 0
    told = {line["check"]: line for line in map(json.loads, capsys.readouterr().out.splitlines())}
    assert told["Python"]["found"].startswith(".".join(map(str, sys.version_info[:3])))
    assert "1 collection at record" in told["store"]["found"]
    assert told["writes"]["result"] == "left out"
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == before
    pytest.importorskip("pyspark")
    assert told["Java"]["result"] == "warning"
    assert "JAVA_HOME" in told["Java"]["advice"]
    monkeypatch.setenv("PYSPARK_PYTHON", str(tmp_path / "no-python"))
    assert main(["doctor", place]) == 1
    out = capsys.readouterr().out
    assert "wrong     Spark's workers: Spark's workers run" in out
    assert "ok        conditional writes" in out


def test_a_store_that_cannot_be_read_is_wrong_and_a_folder_that_is_not_there_is_not(
    tmp_path: Path, capsys: Printed
) -> None:
    (tmp_path / "log").write_text("no folder")
    assert main(["doctor", str(tmp_path / "log")]) == 1
    assert "wrong     store:" in capsys.readouterr().out
    assert main(["doctor", str(tmp_path / "none")]) == 0
    assert "the first write makes it" in " ".join(capsys.readouterr().out.split())
    assert not (tmp_path / "none").exists()


def test_a_folder_of_somebody_else_is_not_written_to(tmp_path: Path, capsys: Printed) -> None:
    (tmp_path / "a.txt").touch()
    assert main(["doctor", str(tmp_path)]) == 1
    assert "such as 'a.txt': nothing was" in " ".join(capsys.readouterr().out.split())
    assert [each.name for each in tmp_path.iterdir()] == ["a.txt"]
