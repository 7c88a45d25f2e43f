"""Tables: what is cut, what is left out, and what stays whole, at each width of a terminal."""

import json
import re
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import persist
from persist.core.rendering import measure_text_width
from persist.tools.cli.main import main
from persist.tools.cli.text import print_table, print_text, wrap_line
from tests.support.forks import forked_python
from tests.support.tiers import examples

Printed = pytest.CaptureFixture[str]
NAMES = ("name", "rows", "text", "extra", "more")
CELLS = st.tuples(
    st.text("ab-", min_size=1, max_size=30),
    st.integers(0, 10**12),
    st.text("xyz é漢\u0301", max_size=60),
    st.text("pq", max_size=20),
    st.text("rs", max_size=20),
)


def read_stream(path: str) -> pa.Table:
    with pa.OSFile(path) as file, pa.ipc.open_stream(file) as stream:
        return stream.read_all()


def printed(rows: list[tuple[object, ...]], width: int) -> tuple[list[str], str]:
    """Return what a terminal of a width gets: lines without the bold head, and what is beside it."""
    with pytest.MonkeyPatch.context() as patched:
        import io

        out, err = io.StringIO(), io.StringIO()
        patched.setattr(out, "isatty", lambda: True)
        patched.setattr(sys, "stdout", out)
        patched.setattr(sys, "stderr", err)
        patched.setenv("COLUMNS", str(width))
        print_table(NAMES, rows, right=[1], texts=[2], spare=("more", "extra"))
    return re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue()).splitlines(), err.getvalue()


@given(st.lists(CELLS, min_size=1, max_size=5), st.integers(10, 160))
@example([("a" * 20, 10**6, "xyz" * 20, "pq", "rs")], 60)
@settings(max_examples=examples(200))
def test_a_table_fits_and_cuts_nothing_but_texts(rows: list[tuple[object, ...]], width: int) -> None:
    lines, beside = printed(rows, width)
    if lines[0] == "row 1":
        assert len(lines) == len(rows) * (1 + len(NAMES))
        least = [max(measure_text_width(str(row[i])) for row in rows) for i in (0, 1)]
        text = max(measure_text_width(str(row[2])) for row in rows)
        first = max(4, min(16, least[0]))
        assert first + max(4, least[1]) + max(4, min(16, text)) + 4 > width, "it would have fitted"
        return
    shown = lines[0].split()
    assert shown == [name for name in NAMES if name not in beside.replace(",", " ").replace(":", " ").split()]
    assert all(measure_text_width(line) <= width for line in lines if line not in {row[0] for row in rows})
    left = iter(lines[1:])
    for row in rows:
        line = next(left)
        assert line.startswith(str(row[0]))
        if line == row[0]:  # It is above the rest of its row, under which nothing else stands.
            line = next(left)
            assert line.startswith(" ")
        assert str(row[1]) in line
        for i, name in enumerate(NAMES[3:], 3):
            assert name not in shown or str(row[i]) in line
        whole = str(row[2])
        assert whole.strip() in line or ("…" in line and whole[:14].strip()[:10] in line)
    assert next(left, None) is None


def test_one_long_name_costs_the_others_no_column() -> None:
    rows: list[tuple[object, ...]] = [("short", 1, "text", "p", "r"), ("long-" * 12, 2, "text", "q", "s")]
    lines, beside = printed(rows, 50)
    assert lines == [
        "name   rows  text  extra  more",
        "short     1  text  p      r",
        "long-" * 12,
        "          2  text  q      s",
    ]
    assert not beside


@pytest.fixture
def place(tmp_path: Path) -> str:
    with persist.open(tmp_path / "shop", settings=persist.Settings(background=False)) as client:
        orders = client.create_or_load("orders", key={"k": int}, timeline="ms")
        orders.write([(1, None)], time="2026-01-01", seal="2026-01-02").result()
        orders.tag("first", "2026-01-01")
    return str(tmp_path / "shop")


def test_lists_come_in_each_format(place: str, tmp_path: Path, capsys: Printed) -> None:
    for command, known in (
        (["ls", place], {"name": "orders", "rows": 1, "upper_moment": "2026-01-02T00:00:00Z"}),
        (["holds", place], {"collection": "orders", "hold": "first", "time_moment": "2026-01-01T00:00:00Z"}),
        (["tags", place, "orders"], {"tag": "first", "time": 1767225600000}),
    ):
        assert main([*command, "--json"]) == 0
        row = json.loads(capsys.readouterr().out)
        assert known.items() <= row.items()
        files = [str(tmp_path / f"{command[0]}.{suffix}") for suffix in ("csv", "parquet", "json")]
        for file in files:
            assert main([*command, "--output", file]) == 0
        [of_csv], [of_parquet] = csv.read_csv(files[0]).to_pylist(), pq.read_table(files[1]).to_pylist()
        assert of_parquet == row == json.loads(Path(files[2]).read_text())
        assert of_csv.keys() == row.keys()
    assert main(["log", place, "--format", "parquet", "--output", str(tmp_path / "log")]) == 0
    assert pq.read_table(tmp_path / "log").column_names == ["seqno", "at", "writer", "did"]
    assert main(["log", place, "-n", "1", "--format", "csv"]) == 0
    assert "as 'first'" in capsys.readouterr().out
    with persist.open(place, settings=persist.Settings(background=False)) as client:
        lines = client.create_or_load("lines", key={"k": int}, value={"shop": str, "till": str})
        lines.write([(1, ("north", "a"))], time=0, seal=1).result()
        lines.index("shop", "till")
    assert main(["index", place, "lines", "--json"]) == 0
    index = json.loads(capsys.readouterr().out)
    assert (index["columns"], index["as_of"], index["rows"]) == (["shop", "till"], 0, 1)
    assert main(["index", place, "lines", "--format", "csv"]) == 0
    assert '"shop; till",0,,1,' in capsys.readouterr().out
    assert main(["index", place, "lines", "shop", "--format", "csv"]) == 2


def test_what_is_watched_is_shown_again_when_it_changes_and_ends_well(place: str, capsys: Printed) -> None:
    assert main(["ls", place, "--watch", "--json"]) == 2
    assert "--watch shows a table" in capsys.readouterr().err
    command = [*forked_python(), "-m", "persist", "ls", place, "--watch"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        assert watching.stdout.readline().startswith("name")
        assert "2026-01-02T00:00:00Z" in watching.stdout.readline()
        with persist.open(place, settings=persist.Settings(background=False)) as client:
            client.load("orders").seal("2026-01-03").result()
        while "2026-01-03T00:00:00Z" not in watching.stdout.readline():
            pass
        watching.send_signal(signal.SIGINT)
        watching.stdout.read()
    assert watching.returncode == 0


@pytest.mark.parametrize(
    ("command", "columns", "first"),
    [
        (["status"], ["collection", "upper", "upper_moment", "behind_s", "unsealed"], ["orders", ..., ..., ..., 0]),
        (["show", "orders"], ["side", "name", "type"], ["key", "id", "int64"]),
        (["fsck"], ["kind", "blob", "collection", "what", "advice"], None),
        (["verify"], ["of", "as_of", "digest", "wrong"], ["orders", ..., ..., None]),
        (["bench", "--rows", "10", "--commits", "1"], ["what", "count", "seconds", "a_second"], ["write and seal", 10]),
    ],
    ids=lambda each: each[0] if isinstance(each, list) else "",
)
def test_what_is_more_than_a_list_has_every_format(
    command: list[str], columns: list[str], first: list[object] | None, tmp_path: Path, capsys: Printed
) -> None:
    place = str(tmp_path / "shop")
    with persist.open(place) as client:
        client.write("orders", [{"id": 1}], key=["id"]).result()
    call = [command[0], place, *command[1:]]
    for suffix, read in (("parquet", pq.read_table), ("csv", csv.read_csv), ("arrow", read_stream)):
        file = str(tmp_path / f"rows.{suffix}")
        assert main([*call, "--output", file]) == 0
        table = read(file)
        assert table.column_names == columns
        rows = [[*row.values()] for row in table.to_pylist()]
        if first is None:
            assert rows == []
        else:
            assert all(
                a is ... or a == (b or None if a is None else b) for a, b in zip(first, rows[0], strict=False)
            ), rows
    capsys.readouterr()
    assert main([*call, "--format", "csv"]) == 0
    assert capsys.readouterr().out.splitlines()[0].replace('"', "") == ",".join(columns)
    assert main([*call, "--format", "json", "--output", str(tmp_path / "all.json")]) == 0
    document = json.loads((tmp_path / "all.json").read_text())
    assert main([*call, "--json"]) == 0
    assert json.loads(capsys.readouterr().out).keys() == document.keys()
    assert main([*call, "--format", "yaml"]) == 2
    assert "--format 'yaml' is not a format: use one of table, csv, json" in capsys.readouterr().err


def test_a_damaged_location_gives_rows_of_what_is_wrong(tmp_path: Path, capsys: Printed) -> None:
    place = tmp_path / "shop"
    with persist.open(place, settings=persist.Settings(background=False)) as client:
        client.write("orders", pa.table({"id": range(50_000)}), key=["id"]).result()
    [part] = place.glob("part/*/*.parquet")
    part.write_bytes(part.read_bytes()[:-1] + b"!")
    for command in ("fsck", "verify"):
        assert main([command, str(place), "--format", "csv"]) == 1
        assert part.name in capsys.readouterr().out


@given(
    st.lists(st.text("ab漢é", min_size=1, max_size=12), max_size=12),
    st.integers(0, 8),
    st.integers(1, 40),
    st.integers(0, 10),
)
@settings(max_examples=examples(300))
def test_a_line_is_broken_between_words_alone(words: list[str], indent: int, width: int, hanging: int) -> None:
    line = " " * indent + " ".join(words)
    parts = wrap_line(line, width, hanging)
    assert " ".join(parts).split() == line.split()
    for part in parts:
        assert measure_text_width(part) <= width or len(part.split()) == 1
    for part, after in pairwise(parts):
        assert measure_text_width(f"{part} {after.split()[0]}") > width, "it would have fitted"
    if measure_text_width(line.rstrip()) <= width:
        assert parts == [line.rstrip()]


def test_lines_are_broken_on_a_terminal_and_nowhere_else(capsys: Printed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    print_text("one two three four five six")
    assert capsys.readouterr().out == "one two three four five six\n"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    print_text("one two three four five six\n\n  seven")
    assert capsys.readouterr().out == "one two three four\n  five six\n\n  seven\n"


def test_a_name_of_any_length_stays_whole(tmp_path: Path, capsys: Printed, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "n" * 255
    with persist.open(tmp_path) as client:
        client.write(name, [{"id": 1, "text": "t" * 300}], key=["id"]).result()
    for terminal in (False, True):
        monkeypatch.setattr("sys.stdout.isatty", lambda terminal=terminal: terminal)
        for command in ("ls", "status"):
            assert main([command, str(tmp_path)]) == 0
            assert name in capsys.readouterr().out
        assert main(["read", str(tmp_path), name]) == 0
        assert "t" * 120 not in capsys.readouterr().out
