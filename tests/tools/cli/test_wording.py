"""What a command refuses, it says in the words of the command line: commands and options, not calls and arguments."""

import re
from pathlib import Path

import pytest

import persist
from persist.tools.cli.main import main
from persist.tools.cli.text import format_error

# A call, an argument, or a class of the library; but "such as x" and as_of: words of the command line's own.
PYTHON = re.compile(r"\w\(|\b\w+=[\"'\[TFN]|\b\w+=(?=[\s.,;]|$)|persist\.[A-Z]|Antichain|create_or_load|\bpa\.")


def test_a_locked_location_says_that_only_python_can_take_it_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with persist.open(tmp_path / "shop", mode="exclusive", reentrance_id="loader") as client:
        client.create_or_load("orders", key={"k": int})
        assert main(["seal", str(tmp_path / "shop"), "orders", "9", "--json"]) == 3
    out, err = capsys.readouterr()
    assert (out, err.count("\n"), '"error": "Locked"' in err) == ("", 1, True)
    assert "take it over from Python: persist.open(" in err


def test_what_a_first_client_left_behind_is_no_other_file(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    assert main(["create", str(tmp_path), "new", "--key", "k:int64"]) == 0


def test_what_a_user_has_written_is_not_put_into_other_words() -> None:
    said = "the condition \"key='a' and late='b'\" and {compact:call} compares 'a' with a column of type int64"
    assert format_error(persist.InvalidUsage(said)) == said
