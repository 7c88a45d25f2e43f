"""The drills of the manual for restores: the numbered steps of `docs/run/restore.md`, done one after the other.

A step that the manual has and no drill, or the other way round, is a failure: text and drill change together.
"""

import re
import shlex
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

import persist
from persist.tools.cli.main import main
from tests.support.paths import ROOT

MANUAL = ROOT / "docs" / "run" / "restore.md"
SECTION = MANUAL.read_text(encoding="utf-8").partition("\n## Restoring a backup\n")[2].partition("\n## ")[0]
DAMAGED = MANUAL.read_text(encoding="utf-8").partition("**A backup that is damaged.**")[2].partition("\n## ")[0]
IN_PLACE, _, INTERRUPTED = SECTION.partition("**To get out of `LogInterrupted`**")
SETTINGS = persist.Settings(background=False)
Step = Callable[[], object]


def follow(text: str, steps: Mapping[str, Step]) -> None:
    """Do the numbered steps of a text, each of which begins as its key says."""
    said = [re.sub(r"\*\*", "", step) for step in re.findall(r"^\d+\. (.*)$", text, re.MULTILINE)]
    assert len(said) == len(steps), said
    for written, (begins, do) in zip(said, steps.items(), strict=True):
        assert written.startswith(begins), written
        do()


def write(place: Path, *keys: int) -> None:
    with persist.open(place, settings=SETTINGS) as client:
        orders = client.create_or_load("orders", key={"id": int})
        for key in keys:
            orders.write([(key, None)]).result()


def keys(place: Path) -> list[int]:
    with persist.open(place, mode="read") as client:
        return sorted(client.load("orders").snapshot().to_arrow()["id"].to_pylist())


def objects(place: Path) -> dict[str, bytes]:
    return {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}


def test_a_restore_in_place(tmp_path: Path) -> None:
    place, backup = tmp_path / "shop", tmp_path / "backup"
    write(place, 1, 2)
    shutil.copytree(place, backup)
    write(place, 3)
    client = persist.open(place, settings=SETTINGS)
    order = re.findall(r"`(\w+)/`", IN_PLACE.partition("in this order:")[2].partition(". Then")[0])

    def copy() -> None:
        kept = objects(backup)
        for name, value in kept.items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_bytes(value)
        for kind in order:
            for name in objects(place).keys() - kept.keys():
                if name.startswith(f"{kind}/"):
                    (place / name).unlink()
        assert objects(place).keys() - kept.keys() <= {"gc/clock"}

    follow(
        IN_PLACE,
        {
            "Close every client": client.close,
            "Copy the backup over the location": copy,
            "Run `persist fsck LOCATION`": lambda: _runs("fsck", place),
            "Open clients again": lambda: write(place, 4),
        },
    )
    assert keys(place) == [1, 2, 4]


def _runs(*arguments: object) -> None:
    assert main([str(each) for each in arguments]) == 0


def test_the_way_out_of_an_interrupted_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    place = tmp_path / "shop"
    write(place, 1, 2, 3)
    records = sorted((place / "log").iterdir())
    records[-2].unlink()  # What was committed while a restore deleted stays beyond the hole.
    for checkpoint in (place / "checkpoint").iterdir() if (place / "checkpoint").exists() else ():
        checkpoint.unlink()
    assert keys(place) == [1]
    with pytest.raises(persist.PersistError) as refused:
        write(place, 4)
    assert type(refused.value).__name__ == "LogInterrupted"
    [command] = re.findall(r"persist (fsck --repair --set-aside \S+)", str(refused.value))

    def run() -> None:
        _runs(*shlex.split(command.rstrip(".,;:`'")))
        assert [path.name for path in (place / "lost" / "log").iterdir()] == [records[-1].name]

    follow(
        INTERRUPTED.partition("\nDo *not*")[0],
        {
            "Close all clients": lambda: None,
            "Run the command that the error names": run,
            "Write the lost data again": lambda: write(place, 2, 3),
        },
    )
    assert keys(place) == [1, 2, 3]
    _runs("fsck", place)


def test_a_restored_location_proves_itself_before_it_takes_a_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place, backup, whole, broken = (tmp_path / name for name in ("shop", "backup", "whole", "broken"))
    write(place, *range(20))
    with persist.open(place, settings=SETTINGS) as client:
        client.load("orders").compact()
    _runs("backup", place, backup)
    _runs("copy", backup, whole)
    write(whole, 100)
    assert keys(whole) == [*range(20), 100]
    [part] = (backup / "part").rglob("*.parquet")
    damaged = bytearray(part.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    part.write_bytes(damaged)
    capsys.readouterr()
    assert main(["copy", str(backup), str(broken)]) != 0
    assert part.name in "".join(capsys.readouterr())
    with persist.open(broken, mode="read") as client:
        assert client.collections() == [], "nobody can take it for a location"
    assert main(["copy", "--leave-out-damaged", str(backup), str(broken)]) == 1
    assert part.name in "".join(capsys.readouterr())
    with persist.open(broken, mode="read") as client:
        assert client.collections() == ["orders"]


def test_a_damaged_backup_is_mended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place, backup = tmp_path / "shop", tmp_path / "backup"
    rows = [(f"{n:05d}" * 40, None) for n in range(2000)]
    with persist.open(place, settings=SETTINGS) as client:
        client.create_or_load("orders", key={"id": str}).write(rows).result()
    assert main(["backup", str(place), str(backup)]) == 0
    (part,) = backup.glob("part/*/*.parquet")
    part.write_bytes(part.read_bytes()[:-9] + b"x" * 9)
    named: list[str] = []

    def examine() -> None:
        capsys.readouterr()
        assert main(["verify", str(backup)]) == 1
        said = capsys.readouterr().out
        assert "delete from it the objects that are named here, and back up again" in said
        named.extend({*re.findall(r"^(part/\S+): ", said, re.MULTILINE)})

    def delete() -> None:
        assert named == [str(part.relative_to(backup))]
        part.unlink()

    steps: dict[str, Step] = {
        "Run `persist verify BACKUP`": examine,
        "Delete these objects": delete,
        "Run `persist backup LOCATION BACKUP`": lambda: main(["backup", str(place), str(backup)]),
        "Run `persist verify BACKUP` again": lambda: None,
    }
    follow(DAMAGED, steps)
    assert main(["verify", str(backup)]) == 0
