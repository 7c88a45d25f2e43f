"""Files of every released format stay readable, and read as they did."""

import json

import pytest

from persist.blob import FileBlob
from persist.envelope import FORMAT
from tests.golden.make import HERE, digest

FORMATS = sorted(path.name for path in HERE.glob("format-*"))


def test_there_are_golden_files_of_the_present_format() -> None:
    assert f"format-{FORMAT}" in FORMATS


@pytest.mark.parametrize("name", FORMATS)
def test_golden_files_read_as_they_did(name: str) -> None:
    folder = HERE / name
    for collection, expected in json.loads((folder / "expected.json").read_text()).items():
        assert digest(folder / "location", collection) == expected, collection


@pytest.mark.parametrize("name", FORMATS)
def test_golden_files_hold_every_kind_of_object(name: str) -> None:
    blob = FileBlob(HERE / name / "location")
    kinds = {entry.key.split("/")[0] for entry in blob.list("")}
    assert kinds == {"log", "checkpoint", "state", "part", "list"}
    log = b"".join(blob.get(entry.key) or b"" for entry in blob.list("log/"))
    for kind in ("create", "append", "seal", "allow_compaction", "destroy"):
        assert f'"kind":"{kind}"'.encode() in log
    assert b'"inline":' in log


def test_reading_golden_files_changes_nothing() -> None:
    blob = FileBlob(HERE / f"format-{FORMAT}" / "location")
    before = {entry.key: blob.get(entry.key) for entry in blob.list("")}
    digest(HERE / f"format-{FORMAT}" / "location", "large")
    assert {entry.key: blob.get(entry.key) for entry in blob.list("")} == before
