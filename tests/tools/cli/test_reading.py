"""What the command line shows of what is stored, in every format."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest

import persist
from persist.tools.cli.main import main
from tests.support.console import Run
from tests.support.forks import forked_python
from tests.support.tuned import tuned

Printed = pytest.CaptureFixture[str]
NOBODY = [
    f"--storage-option={option}"
    for option in ("endpoint_url=http://127.0.0.1:9", "region=x", "access_key_id=a", "secret_access_key=b")
] + ["--store-timeout=0.1"]
NASTY = "\x1b[31m\x1b]0;title\x07<script>alert(1)</script>[bold]\u202e"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    location = tmp_path_factory.mktemp("reading") / "location"
    with persist.open(location, settings=persist.Settings(background=False)) as client:
        orders = client.create_or_load(
            "orders", key={"id": pa.int64()}, value={"status": pa.string(), "amount": pa.float64()}
        )
        orders.write([((1, ("new", 9.5)), 10, 1), ((2, (None, 3.0)), 10, 1)], seal=11).result()
        orders.write([((1, ("new", 9.5)), 12, -1), ((1, ("paid", 9.5)), 12, 1)], seal=13).result()
        orders.write([((3, ("new", 1.0)), 20, 1)], token="later").result()
        items = client.create_or_load("shop.items", key={"item": pa.int64()}, timeline="s")
        items.write([((7, None), "2026-01-01T00:00:00Z", 1)], seal="2026-01-02").result()
    return location


@pytest.fixture
def place(made: Path, tmp_path: Path) -> str:
    return str(shutil.copytree(made, tmp_path / "location"))


def lines(printed: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in printed.splitlines()]


def test_moments_that_python_has_not_are_shown_and_bytes_that_are_no_text_are_refused_as_csv(
    tmp_path: Path, capsys: Printed, run: Run
) -> None:
    place = str(tmp_path / "far")
    moments = pa.array([2**63 - 1, -(10**17)], pa.timestamp("us"))
    with persist.open(place) as client:
        client.write("t", pa.table({"at": moments, "b": [b"\xff", b"a"]}), key=["at"], time=0, seal=1).result()
        assert "294247-01-10 04:00:54.775807" in client["t"].snapshot()._repr_html_()
    for arguments in (["read", place, "t"], ["sql", place, "SELECT * FROM t"], ["changes", place, "t", "0"]):
        assert main(arguments) == 0
        assert {"294247-01-10 04:00:54.775807", "-1199-02-15 14:13:20.000000"} <= {
            word.strip()
            for line in capsys.readouterr().out.splitlines()
            for word in re.findall(r"-?\d{4,}-\d\d-\d\d [\d:.]+", line)
        }
    assert main(["read", place, "t", "-f", "json"]) == 0
    assert [json.loads(line)["at"][:5] for line in capsys.readouterr().out.splitlines()] == ["-1199", "29424"]
    for column, reason in (("at", "a date too far away"), ("b", "bytes that are not UTF-8")):
        error = run("read", place, "t", "-f", "csv", "--columns", column, status=2)
        assert f"the column '{column}' has {reason}" in error
        assert "Traceback" not in error


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.parquet", "a.arrow"])
def test_contents_go_to_files_of_every_format(place: str, tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    assert main(["read", place, "orders", "--output", str(file)]) == 0
    if name.endswith("csv"):
        found = csv.read_csv(file, convert_options=csv.ConvertOptions(strings_can_be_null=True)).to_pylist()
    elif name.endswith("jsonl"):
        found = [json.loads(line) for line in file.read_text().splitlines()]
    elif name.endswith("parquet"):
        found = pq.read_table(file).to_pylist()
    else:
        found = pa.ipc.open_stream(file.read_bytes()).read_all().to_pylist()
    found.sort(key=lambda row: row["id"])
    assert found == [{"id": 1, "status": "paid", "amount": 9.5}, {"id": 2, "status": None, "amount": 3.0}]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["location", name])


def test_a_file_that_is_not_finished_does_not_appear(place: str, tmp_path: Path, run: Run) -> None:
    with persist.open(place) as client:
        client.create_or_load("lists", key={"k": pa.list_(pa.int64())}).seal(1).result()
    assert "CSV cannot hold" in run("read", place, "lists", "--output", str(tmp_path / "a.csv"), status=2)
    assert [path.name for path in tmp_path.iterdir()] == ["location"]
    assert main(["read", place, "orders", "--output", str(tmp_path / "no" / "a.csv")]) == 2
    assert "add --format" in run("read", place, "orders", "--output", "a.xyz", status=2)


def test_what_is_written_to_a_pipe_leaves_the_pipe_where_it_is(place: str, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    command = [*forked_python(), "-m", "persist", "read", place, "orders", "--format", "csv", "--output", str(pipe)]
    with subprocess.Popen(command) as process:
        assert pipe.read_text().splitlines()[0] == '"id","status","amount"'
    assert process.returncode == 0
    assert pipe.is_fifo()
    assert main(["read", place, "orders", "--format", "csv", "--output", str(tmp_path)]) == 2


def test_who_waits_before_a_screen_is_told_how_far_it_is(
    place: str, capsys: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(["tail", place, "orders", "--until", "13"]) == 0
    assert "orders is sealed before 13: what comes now is shown" in capsys.readouterr().err
    assert main(["wait", place, "orders", "--until", "12"]) == 0
    assert "waiting for 12" in capsys.readouterr().err


def test_a_program_waits_until_a_time_is_sealed(place: str, run: Run) -> None:
    with persist.open(place, settings=persist.Settings(background=False)) as client:
        orders = client["orders"]
        sealing = threading.Timer(0.1, lambda: orders.seal(14).result())
        sealing.start()
        assert main(["wait", place, "orders", "--until", "13", "--timeout", "300"]) == 0
        sealing.join()
        orders.allow_compaction(13)
    assert main(["wait", place, "orders", "--until", "9"]) == 0
    assert main(["wait", place, "nothing", "--until", "9"]) == 2


@pytest.mark.thorough(except_every=2)
@pytest.mark.parametrize(
    "query", ["FROM read_csv('{file}')", "FROM '{file}'", "FROM read_text('{file}')", "FROM orders, glob('{folder}/*')"]
)
def test_a_query_reads_files_only_if_that_is_allowed(
    place: str, tmp_path: Path, capsys: Printed, run: Run, query: str
) -> None:
    file = tmp_path / "secret.csv"
    file.write_text("a\nhidden\n")
    asked = query.format(file=file, folder=tmp_path)
    assert main(["sql", place, asked]) == 2
    out, err = capsys.readouterr()
    assert "hidden" not in out + err
    assert "--files" in err
    assert ("hidden" if "glob" not in query else "secret.csv") in run("sql", place, asked, "--files")


def test_a_query_reads_no_variable_of_the_program(place: str, run: Run) -> None:
    for allowed in ([], ["--files"]):
        assert "names" in run("sql", place, "FROM names", *allowed, status=2)


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["read", "{place}", "orders", "--as-of", "9" * 5000], 2, "5,000 digits is not a time"),
        (["read", "{place}", "orders", "--where", "id > " + "9" * 5000], 2, "5,000 digits"),
        (["write", "{place}", "orders", "{tmp}/none.csv", "--time=--1"], 2, "'--1' is not a time"),
        (["read", "{tmp}/none", "orders"], 2, "nothing is stored"),
        (["write", "{tmp}/none", "orders", "{tmp}/none.csv", "--time", "1"], 2, "there is no file"),
        (["ls", "s3://nowhere/x", *NOBODY], 4, "127.0.0.1:9"),
        (["fsck", "{tmp}/none"], 2, "nothing is stored at"),
        (["holds", "{tmp}/none", "orders"], 2, "nothing is stored at"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_that_says_what_to_do(
    place: str, tmp_path: Path, capsys: Printed,
    arguments: list[str], status: int, says: str,
) -> None:  # fmt: skip
    assert main([each.format(place=place, tmp=tmp_path) for each in arguments]) == status
    out, err = capsys.readouterr()
    assert out == ""
    assert says in err
    assert err.startswith("persist: ")
    assert err.count("\n") == 1


def test_a_location_of_a_newer_format_and_a_damaged_one_are_one_line(place: str, run: Run) -> None:
    from persist.core.log.framing import encode_framed
    from persist.core.log.records import Record

    record = Record(
        format=99, location="0" * 32, seqno=0, commit="0" * 32, previous=None, writer="w", epoch=None, written_ms=0,
        mutations=(),
    )  # fmt: skip
    first = Path(place) / "log" / f"{0:020d}"
    first.write_bytes(encode_framed(record))
    assert "99" in run("ls", place, status=1)
    first.write_bytes(b"<html>")
    assert run("ls", place, status=1).count("\n") == 1


def test_what_is_stored_is_shown_and_never_interpreted(tmp_path: Path, capsys: Printed) -> None:
    place = str(tmp_path)
    name = "<b>[red]\u202ename"
    with persist.open(place) as client:
        made = client.create_or_load(name, key={"[i]k[/i]": pa.string()})
        made.write([((NASTY, None), 1, 1)], seal=2, token="[blink]").result()
    for command in (["ls", place], ["show", place, name], ["read", place, name], ["log", place], ["holds", place]):
        assert main(command) == 0
    assert main(["tail", place, name, "--as-of", "0", "--until", "2"]) == 0
    assert main(["read", place, name + NASTY]) == 2
    shown = "".join(capsys.readouterr())
    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert "\u202e" not in shown
    assert "<script>alert(1)</script>[bold]" in shown
    assert "<b>[red]\\u202ename" in shown


def test_a_terminal_of_80_columns_breaks_no_name_and_shows_a_time_once(
    place: str, monkeypatch: pytest.MonkeyPatch, capsys: Printed
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    with persist.open(place) as client:
        name = "[red]customers.of-the-north"
        client.create_or_load(name, key={"k": pa.int64()}, timeline="ms").seal("2026-01-02").result()
    assert main(["ls", place]) == 0
    shown, err = capsys.readouterr()
    assert name in shown
    assert "2026-01-02T00:00:00Z" in shown
    assert "1767312000000" not in shown
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert max(map(len, plain.splitlines())) <= 80
    head = plain.split()[: plain.split().index(name)]
    assert {"name", "rows", "upper", "unsealed"} <= set(head)
    assert not err


def test_an_output_that_nobody_reads_is_no_error(place: str) -> None:
    command = [*forked_python(), "-m", "persist", "read", place, "orders", "--format", "csv"]
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as closed:
        done = subprocess.run(command, stdout=closed, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.thorough(except_every=4)
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_stream_that_is_closed_is_like_one_that_leads_nowhere(place: str, closed: str) -> None:
    command = f'"$0" -m persist ls "$1" {closed}'
    done = subprocess.run(["sh", "-c", command, sys.executable, place], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert ("orders" in done.stdout) == (">&-" not in closed.replace("2>&-", ""))


@pytest.mark.thorough
def test_standard_input_that_is_closed_is_an_empty_file(place: str) -> None:
    command = '"$0" -m persist write "$1" orders - --format csv --time 90 --mode append <&-'
    done = subprocess.run(["sh", "-c", command, sys.executable, place], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("persist: ")


def test_what_would_be_deleted_is_told_without_deleting_it(tmp_path: Path, run: Run) -> None:
    place = tmp_path / "location"
    settings = tuned(background=False, grace_s=0, orphan_grace_s=0, log_retention_records=16)
    with persist.open(place, settings=settings) as client:
        made = client.create_or_load("gone", key={"k": pa.int64()})
        made.write(pa.table({"k": range(20_000)}), time=0, seal=1).result()
        made.drop().result()
        before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
        planned = client.gc(dry_run=True)
        assert {path: path.read_bytes() for path in place.rglob("*") if path.is_file()} == before
        assert (planned.parts, planned.collections) == (1, 1)
        done = client.gc()
        assert (done.parts, done.collections) == (planned.parts, planned.collections)
    told = json.loads(run("gc", str(place), "--dry-run", "--json"))
    assert told["dry_run"] is True
    assert told["parts"] == 0
