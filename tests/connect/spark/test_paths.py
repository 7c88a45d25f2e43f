"""Folders are named relative to where the driver runs, whatever folders its workers run in."""

import os
from pathlib import Path

import pytest

from persist import InvalidUsage
from persist.connect.spark.options import resolve_for_tasks, split_options


def test_relative_folders_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for given, wanted in {
        "orders": str(tmp_path / "orders"),
        "~/orders": os.path.expanduser("~/orders"),
        "/a/b": "/a/b",
        "file:/a b": "file:///a b",
        "s3://bucket/prefix": "s3://bucket/prefix",
    }.items():
        location, _, _ = split_options({"path": given, "collection": "c"}, "read")
        assert location == wanted
    assert resolve_for_tasks(Path("orders")) == str(tmp_path / "orders")


def test_what_only_one_process_has_is_refused() -> None:
    with pytest.raises(InvalidUsage, match="is not one that other processes can open"):
        split_options({"path": "memory://x", "collection": "c"}, "read")
