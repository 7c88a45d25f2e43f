"""Files into collections: every format, what does not fit, and going on after a crash."""

import gzip
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import persist
from persist.tools.cli.main import main
from tests.support.console import Run

Printed = pytest.CaptureFixture[str]
COLUMNS = ["--key", "id:int64", "--value", "name:string", "--value", "amount:decimal128(10,2)", "--value"]
ROWS = pa.table(
    {
        "id": [1, 2, 3],
        "name": ["plain", 'with "quotes"\nand a line', None],
        "amount": pa.array(["1.50", "-2.25", None]).cast(pa.decimal128(10, 2)),
        "at": pa.array([0, 1_500_000, None], pa.timestamp("us", tz="UTC")),
    }
)


@pytest.fixture
def place(tmp_path: Path) -> str:
    location = str(tmp_path / "location")
    assert main(["create", location, "orders", *COLUMNS, "at:timestamp[us,tz=UTC]"]) == 0
    return location


def contents(place: str, as_of: int | None = None) -> list[dict[str, Any]]:
    with persist.open(place, mode="read") as client:
        found = client.load("orders").snapshot(as_of).to_arrow()
    rows: list[dict[str, Any]] = found.sort_by("id").to_pylist()
    return rows


def as_csv(table: pa.Table) -> bytes:
    import pyarrow.csv as csv

    out = io.BytesIO()
    csv.write_csv(table, out)
    return out.getvalue()


def as_json(table: pa.Table) -> bytes:
    lines = [json.dumps(row, default=str) for row in table.to_pylist()]
    return "\n\n".join(lines).encode()


def as_parquet(table: pa.Table) -> bytes:
    out = io.BytesIO()
    pq.write_table(table, out)
    return out.getvalue()


def as_stream(table: pa.Table) -> bytes:
    out = io.BytesIO()
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    return out.getvalue()


def as_file(table: pa.Table) -> bytes:
    out = io.BytesIO()
    with pa.ipc.new_file(out, table.schema) as writer:
        writer.write_table(table)
    return out.getvalue()


FORMATS: dict[str, Callable[[pa.Table], bytes]] = {
    "rows.csv": as_csv,
    "rows.csv.gz": lambda table: gzip.compress(as_csv(table)),
    "rows.jsonl": as_json,
    "rows.parquet": as_parquet,
    "rows.arrows": as_stream,
    "rows.arrow": as_file,
}


@pytest.mark.parametrize("name", FORMATS)
def test_rows_of_every_format_arrive_as_they_are(place: str, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(FORMATS[name](ROWS))
    assert main(["write", place, "orders", str(tmp_path / name), "--time", "1", "--seal", "2", "--mode", "append"]) == 0
    assert contents(place) == ROWS.to_pylist()


@pytest.mark.parametrize("name", ["rows.csv", "rows.jsonl", "rows.parquet"])
def test_updates_bring_their_own_times_and_diffs(place: str, tmp_path: Path, name: str) -> None:
    updates = ROWS.append_column("_time", pa.array([4, 5, 5])).append_column("_diff", pa.array([2, 1, 1]))
    (tmp_path / name).write_bytes(FORMATS[name](updates))
    assert main(["write", place, "orders", str(tmp_path / name), "--seal", "6", "--mode", "append"]) == 0
    assert len(contents(place, 4)) == 2
    assert len(contents(place, 5)) == 4


BAD_CSV = """id,name,amount,at
1,good,1,2026-01-01
two,bad,1,2026-01-01
3,"over
two lines",many,2026-01-01

4,short
5,bad,1,yesterday
6,good,2,2026-01-01T00:00:00+02:00
"""
BAD_JSON = """{"id": 1, "name": "good", "amount": "1", "at": null}
{"id": "two", "name": null, "amount": null, "at": null}
no json
[1, 2]

{"id": 5, "nmae": "x"}
{"id": 6, "name": null, "amount": null, "at": "2026-01-01T00:00:00Z"}
{"id": 7, "name": "x", "amount": null}
"""


@pytest.mark.parametrize(
    ("name", "text", "says", "fit"),
    [
        (
            "bad.csv",
            BAD_CSV,
            [
                "4 of the 6 rows of {file} do not fit. Nothing was written",
                "line 3: column 'id': 'two' is not of type int64",
                "line 4: column 'amount': 'many' is not of type decimal128(10, 2)",
                "line 7: it has 2 fields, and the head has 4",
                "line 8: column 'at': 'yesterday' is not of type timestamp[us, tz=UTC]",
            ],
            [1, 6],
        ),
        (
            "bad.jsonl",
            BAD_JSON,
            [
                "5 of the 7 rows of {file} do not fit",
                "line 2: column 'id': \"two\" is not of type int64",
                "line 3: it is not JSON",
                "line 4: it is not a JSON object",
                "line 6: it has the field 'nmae', which the collection has not",
                "line 8: it lacks the column 'at', which would be NULL: give 'at' as null if that is meant",
            ],
            [1, 6],
        ),
    ],
)
def test_rows_that_do_not_fit_are_named_by_line_and_nothing_is_written(
    place: str, tmp_path: Path, capsys: Printed, run: Run, name: str, text: str, says: list[str], fit: list[int]
) -> None:
    file = tmp_path / name
    file.write_text(text)
    command = ["write", place, "orders", str(file), "--time", "1", "--seal", "2", "--mode", "append"]
    err = run(*command, status=2)
    for each in says:
        assert each.format(file=file) in err
    with persist.open(place, mode="read") as client:
        assert client.load("orders").upper == persist.Antichain(0)
    assert main([*command, "--skip-bad"]) == 0
    assert f"Left out: {says[0].partition(' rows')[0].replace('the ', '')} rows" in capsys.readouterr().err
    assert [row["id"] for row in contents(place)] == fit


def test_a_compressed_file_that_is_cut_off_is_named(place: str, tmp_path: Path, run: Run) -> None:
    file = tmp_path / "cut.csv.gz"
    file.write_bytes(gzip.compress(b"id,name\n" + bytes(range(48, 58)) * 5000)[:40])
    err = run("write", place, "orders", str(file), "--time", "1", "--mode", "append", status=2)
    assert "cut.csv.gz" in err
    assert err.count("\n") == 1


def test_only_the_first_ten_reasons_are_shown(place: str, tmp_path: Path, run: Run) -> None:
    file = tmp_path / "bad.csv"
    file.write_text("id,name,amount,at\n" + "x,,,\n" * 1000)
    lines = run("write", place, "orders", str(file), "--time", "1", "--mode", "append", status=2).splitlines()
    assert lines[0].startswith("persist: 1,000 of the 1,000 rows")
    assert [line.split(":")[0] for line in lines[1:-1]] == [f"line {n}" for n in range(2, 12)]
    assert lines[-1] == "and 990 more"


def test_rows_of_parquet_that_do_not_fit_are_named_by_number(place: str, tmp_path: Path, run: Run) -> None:
    file = tmp_path / "bad.parquet"
    pq.write_table(ROWS.set_column(0, "id", pa.array([1, 2**63, 3], pa.uint64())), file)
    assert "row 2: column 'id'" in run("write", place, "orders", str(file), "--time", "1", "--mode", "append", status=2)


@pytest.mark.parametrize(
    ("head", "arguments", "says"),
    [
        ("id,name,amount", ["--time", "1"], "has no column 'at'"),
        ("id,name,amount,at,more", ["--time", "1"], "has the column 'more', which the collection has not"),
        ("id,name,amount,at,at", ["--time", "1"], "has the column 'at' more than once"),
        ("id,name,amount,at", ["--seal", "5"], "--seal 5 goes with times"),
        ("id,name,amount,at", ["--time-column", "when"], "has no column 'when'"),
        ("id,name,amount,at,_time", ["--time", "1"], "has the column '_time'"),
        ("id,name,amount,at", ["--time", "1", "--time-column", "at"], "exclude each other"),
        ("id,name,amount,at", ["--time", "1", "--format", "xml"], "'xml' is not a format of rows"),
        ("id,name,amount,at", ["--time", "1", "--format", "parquet"], "cannot be read as parquet"),
        ("id,name,amount,at", ["--time", "soon"], "'soon' is not a time"),
        ("", ["--time", "1"], "is empty"),
    ],
)
def test_a_file_with_other_columns_is_refused(
    place: str, tmp_path: Path, run: Run, head: str, arguments: list[str], says: str
) -> None:
    (tmp_path / "file.csv").write_text(head)
    assert says in run("write", place, "orders", str(tmp_path / "file.csv"), *arguments, "--mode", "append", status=2)


JSON_WITH_MORE = """{"id": 3, "name": null, "amount": null, "at": null, "when": 4, "more": {"a": [1]}}
{"id": 4, "name": null, "amount": null, "at": null, "when": 4}
"""


def test_a_column_can_be_left_out_and_another_one_give_the_times(place: str, tmp_path: Path) -> None:
    for name, text in (("a.csv", "id,name,amount,at,when,more\n1,a,,,3,x\n2,b,,,4,y\n"), ("b.jsonl", JSON_WITH_MORE)):
        (tmp_path / name).write_text(text)
        options = ["--time-column", "when", "--ignore", "more", "--mode", "append"]
        command = ["write", place, "orders", str(tmp_path / name), *options]
        assert main(command) == 0
    assert main(["seal", place, "orders", "9"]) == 0
    assert [row["id"] for row in contents(place, 3)] == [1]
    assert [row["id"] for row in contents(place, 4)] == [1, 2, 3, 4]


def test_a_row_at_a_sealed_time_does_not_fit(place: str, tmp_path: Path, run: Run) -> None:
    assert main(["seal", place, "orders", "5"]) == 0
    (tmp_path / "late.csv").write_text("id,name,amount,at,_time\n1,,,,5\n2,,,,4\n3,,,,\n")
    err = run("write", place, "orders", str(tmp_path / "late.csv"), "--mode", "append", status=2)
    assert "line 3: its time 4 is sealed: times from 5 on can be written" in err
    assert "line 4: column '_time' is empty" in err


def test_a_load_goes_on_where_it_was_and_happens_once(
    place: str, tmp_path: Path, capsys: Printed, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first commits are there, as after a crash; the same command writes the others, and a third time nothing."""
    rows = pa.table({"id": range(95), "name": ["x"] * 95, "amount": [None] * 95, "at": [None] * 95})
    pq.write_table(rows, tmp_path / "many.parquet")
    options = ["--time", "1", "--seal", "2", "--mode", "append"]
    command = ["write", place, "orders", str(tmp_path / "many.parquet"), *options]
    command += ["--json"]
    monkeypatch.setattr("persist.tools.cli.loading.PIECE_ROWS", 10)
    from persist.engine.write.commit_future import CommitFuture

    waits, result = 0, CommitFuture.result

    def crash(future: CommitFuture, timeout: float | None = None) -> int:
        nonlocal waits
        waits += 1
        if waits > 4:
            raise KeyboardInterrupt
        return result(future, timeout)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CommitFuture, "result", crash)
        assert main(command) == 130
    capsys.readouterr()
    told = json.loads(run(*command))
    assert told["rows"] == 95
    assert told["done_before"] >= 4
    assert told["commits"] + told["done_before"] == 10
    assert [row["id"] for row in contents(place)] == [*range(95)]
    assert json.loads(run(*command))["commits"] == 0
    assert len(contents(place)) == 95


def test_who_interrupts_a_load_is_told_how_it_goes_on(
    place: str, tmp_path: Path, capsys: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    file = tmp_path / "rows.csv"
    file.write_text("k,v\n1,a\n")
    monkeypatch.setattr("persist.tools.cli.loading.load", interrupted)
    assert main(["write", place, "orders", str(file), "--time", "9", "--mode", "append"]) == 130
    assert "The same command goes on" in capsys.readouterr().err


def test_columns_of_a_new_collection_come_from_a_file(tmp_path: Path, run: Run) -> None:
    place = str(tmp_path / "new")
    for name in ("rows.parquet", "rows.csv", "rows.jsonl", "rows.arrow"):
        (tmp_path / name).write_bytes(FORMATS[name](ROWS))
        command = ["create", place, name, "--like", str(tmp_path / name), "--key", "id"]
        assert main([*command, "--timeline", "ms"]) == 0
        assert "there is a collection" in run(*command, status=2)
    with persist.open(place, mode="read") as client:
        assert client.load("rows.parquet").schema.names == ("id", "name", "amount", "at")
        assert client.load("rows.csv").schema.key_names == ("id",)
    for arguments, says in (
        ([], "a collection needs columns"),
        (["--key", "id"], "'id' has no type"),
        (["--key", "id:itn64"], "no type is called that"),
        (["--key", "idd", "--like", str(tmp_path / "rows.csv")], "did you mean 'id'"),
        (["--key", "id:int64", "--like", str(tmp_path / "none.csv")], "there is no file"),
    ):
        assert says in run("create", place, "other", *arguments, status=2)


def test_an_overwrite_that_repeats_a_key_is_refused_unless_keys_may_have_several_rows(
    place: str, tmp_path: Path, run: Run
) -> None:
    (tmp_path / "a.csv").write_text("id,amount\n1,5.5\n2,7.0\n1,6.5\n")
    assert main(["create", place, "sales", "-k", "id:int64", "-v", "amount:float64"]) == 0
    command = ["overwrite", place, "sales", str(tmp_path / "a.csv"), "--time", "5"]
    assert "repeat keys, first of all 1, and nothing was written" in run(*command, status=2)
    assert main([*command, "--multiset"]) == 0
    with persist.open(place, mode="read") as client:
        assert sorted(client.load("sales").snapshot().rows()) == [(1, 5.5), (1, 6.5), (2, 7.0)]


def written(*arguments: str) -> int:
    return main(["write", *arguments])


def test_a_write_with_a_key_creates_location_and_collection(tmp_path: Path, capsys: Printed) -> None:
    location, file = str(tmp_path / "shop"), tmp_path / "orders.csv"
    file.write_text("id,at,amount,note\n1,2026-11-01,9.5,\n2,2026-11-02,3,\n")
    assert written(location, "orders", str(file), "--key", "id") == 0
    file.write_text("id,at,amount,note\n3,2026-11-03,7,x\n")
    assert written(location, "orders", str(file), "--key", "id") == 0  # The column note was text, as it is without any.
    assert written(location, "orders", str(file), "--key", "id") == 0  # Once more, which replaces what it has written.
    with persist.open(location, mode="read") as client:
        orders = client["orders"]
        assert [str(orders.schema.arrow.field(name).type) for name in orders.schema.names] == [
            *["int64", "date32[day]", "double", "string"]
        ]
        assert (orders.schema.key_names, orders.schema.timeline) == (("id",), "ms")
        assert orders.snapshot().to_arrow()["id"].to_pylist() == [1, 2, 3]


def test_the_mode_of_a_write_says_what_becomes_of_what_is_there(tmp_path: Path, capsys: Printed) -> None:
    location, file = str(tmp_path / "shop"), tmp_path / "orders.csv"
    file.write_text("id,amount\n1,9.5\n2,3\n")
    rows = []
    for mode in ([], [], ["--mode", "append"], ["--mode", "overwrite"]):
        assert written(location, "orders", str(file), "--key", "id", *mode) == 0
        with persist.open(location, mode="read") as client:
            rows.append(client["orders"].snapshot().count())
    assert rows == [2, 2, 4, 2]
    for _ in range(2):
        token = ["--mode", "error", "--token", "load 7"]
        assert written(location, "others", str(file), "--key", "id", *token) == 0
        assert written(location, "others", str(file), "--key", "id", "--mode", "error") != 0
    assert written(location, "orders", str(file), "--mode", "replace") == 2
    assert 'use "upsert", "append"' in capsys.readouterr().err
    assert written(location, "orders", str(file), "--key", "id", "--time", "2026-11-21", "--seal", "2026-11-22") == 2
    assert written(location, "days", str(file), "--key", "id", "--time", "2026-11-21", "--seal", "2026-11-22") == 0
    assert written(location, "days", str(file), "--key", "id", "--time", "2026-11-21", "--seal", "2026-11-22") == 0
    assert "was written before" in capsys.readouterr().out


@pytest.mark.parametrize("times", [[], ["--time", "3"], ["--time-column", "t"]])
def test_a_file_that_does_not_fit_creates_no_collection(tmp_path: Path, capsys: Printed, times: list[str]) -> None:
    location, file = str(tmp_path / "shop"), tmp_path / "orders.csv"
    file.write_text("id,t\n1,1\n2\n")
    assert written(location, "orders", str(file), "--key", "id", *times) == 2
    assert "line 3: it has 1 field" in capsys.readouterr().err
    assert main(["create", location, "other", "-k", "id:int64"]) == 0
    assert written(location, "orders", str(file), "--key", "id", *times) == 2
    with persist.open(location, mode="read") as client:
        assert client.collections() == ["other"]


@pytest.mark.parametrize("times", [[], ["--time", "3", "--seal", "5"]])
@pytest.mark.parametrize("form", ["csv", "json"])
def test_a_file_without_rows_creates_its_collection(tmp_path: Path, times: list[str], form: str) -> None:
    location, file = str(tmp_path / "shop"), tmp_path / "orders.csv"
    file.write_text("id,t\n")
    assert main(["create", location, "old", "-k", "id:string", "-v", "t:string"]) == 0
    assert written(location, "orders", str(file), "--key", "id", *times) == 0
    file.write_text("id,t\n" if form == "csv" else "")
    assert main(["overwrite", location, "old", str(file), "--format", form]) == 0
    assert written(location, "old", str(file), "--format", form, "--mode", "append") == 0
    with persist.open(location, mode="read") as client:
        assert [[*client[name].snapshot().rows()] for name in ("orders", "old")] == [[], []]


def test_a_file_in_pieces_creates_its_collection_with_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("persist.tools.cli.loading.PIECE_ROWS", 2)
    location, file = str(tmp_path / "shop"), tmp_path / "orders.csv"
    file.write_text("id,t\n1,1\n2,2\n3,3\n")
    assert written(location, "orders", str(file), "--no-key", "--time-column", "t") == 0
    assert written(location, "orders", str(file), "--no-key", "--time-column", "t") == 0
    with persist.open(location) as client:
        client["orders"].seal(4).result()
        assert sorted(client["orders"].snapshot().to_arrow()["id"].to_pylist()) == [1, 2, 3]


def test_standard_input_creates_a_collection_without_the_columns_that_are_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"id": 1, "x": 2, "y": 3}\n')))
    arguments = ["--key", "id", "--ignore", "y", "--format", "json", "--timeline", "none"]
    assert written(str(tmp_path / "shop"), "orders", "-", *arguments) == 0
    with persist.open(str(tmp_path / "shop"), mode="read") as client:
        assert (client["orders"].columns, client["orders"].schema.timeline) == (["id", "x"], None)


def test_write_and_ingest_reject_the_same_rows_for_the_same_reasons(
    place: str, tmp_path: Path, capsys: Printed, run: Run
) -> None:
    (tmp_path / "bad.csv").write_text(BAD_CSV)
    written = run("write", place, "orders", str(tmp_path / "bad.csv"), "--time", "1", "--mode", "append", status=2)
    (tmp_path / "orders.toml").write_text(f'source = "{tmp_path}/*.csv"\ncollection = "orders"\nsettle_s = 0.0\n')
    assert main(["ingest", place, str(tmp_path / "orders.toml"), "--once"]) == 2
    reasons = written.splitlines()[1:]
    assert len(reasons) == 4
    assert capsys.readouterr().err.splitlines()[1:] == reasons
