"""Files of a folder into a collection: each once, in order, whoever is killed and whatever changes meanwhile."""

import errno
import gzip
import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.local import LocalFileSystem

import persist
from persist.connect import Run, SourceMoved
from persist.connect.ingest.driver import load_source
from persist.connect.ingest.files import SourceFile, _warn_of_repetition
from persist.tools.cli.main import main
from tests.support.forks import forked_python

ROWS = [{"id": 1, "amount": 1.5}, {"id": 2, "amount": 2.5}]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "in"
    found.mkdir()
    (found / "a.csv").write_text("id,amount\n1,1.5\n2,2.5\n")
    return found


@pytest.fixture
def options(folder: Path) -> dict[str, Any]:
    return {"source": str(folder), "collection": "orders", "key": ["id"], "settle_s": 0.0}


def ingested(place: Path, options: dict[str, Any], **more: Any) -> Any:
    return persist.ingest(str(place / "location"), {**options, **more}, once=True)


def contents(place: Path, name: str = "orders") -> list[dict[str, Any]]:
    with persist.open(str(place / "location"), mode="read") as client:
        rows: list[dict[str, Any]] = client.load(name).snapshot().to_arrow().to_pylist()
    return sorted(rows, key=str)


def test_each_file_is_taken_in_once_and_new_ones_follow(tmp_path: Path, folder: Path, options: dict[str, Any]) -> None:
    assert (first := ingested(tmp_path, options)).rows == 2
    assert contents(tmp_path) == ROWS
    assert ingested(tmp_path, options).commits == 0
    (folder / "b.csv").write_text("id,amount\n3,3.5\n")
    second = ingested(tmp_path, options)
    assert (second.rows, second.commits) == (1, 1)
    assert len(contents(tmp_path)) == 3
    assert second.uppers["orders"] > first.uppers["orders"]
    assert [(mark["file"], mark["rows"]) for mark in contents(tmp_path, "orders.files")] == [("a.csv", 2), ("b.csv", 1)]


def test_a_web_server_is_no_folder(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(persist.InvalidUsage, match=r"http://me:\*\*\*@host/a.csv: a web server lists no files"):
        ingested(tmp_path, options, source="http://me:secret@host/a.csv")


def test_a_time_is_the_moment_at_which_a_file_was_taken_in(tmp_path: Path, options: dict[str, Any]) -> None:
    ingested(tmp_path, options)
    [time] = {mark["time"] for mark in contents(tmp_path, "orders.files")}
    with persist.open(str(tmp_path / "location"), mode="read") as client:
        orders = client.load("orders")
        assert orders.schema.timeline == "ms"
        assert orders.changes(0, times="int").to_arrow()["_time"].to_pylist() == [time, time]


@pytest.mark.parametrize("form", ["json", "jsonl", "parquet", "csv.gz", "arrow"])
def test_every_format_gives_the_same_rows(tmp_path: Path, folder: Path, options: dict[str, Any], form: str) -> None:
    (folder / "a.csv").unlink()
    path = folder / f"a.{form}"
    if form == "parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), path)
    elif form == "arrow":
        table = pa.Table.from_pylist(ROWS)
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
    elif form == "csv.gz":
        path.write_bytes(gzip.compress(b"id,amount\n1,1.5\n2,2.5\n"))
    else:
        path.write_text("\n".join(map(json.dumps, ROWS)))
    ingested(tmp_path, options)
    assert contents(tmp_path) == ROWS


def test_a_pattern_takes_only_the_files_that_it_names(tmp_path: Path, folder: Path, options: dict[str, Any]) -> None:
    (folder / "notes.txt").write_text("no rows")
    (folder / "_SUCCESS").write_text("")
    with pytest.raises(persist.InvalidUsage, match=r"notes\.txt' does not determine a format"):
        ingested(tmp_path, options)
    ingested(tmp_path, options, source=f"{folder}/*.csv")
    assert contents(tmp_path) == ROWS


def test_rows_of_a_keyed_collection_replace_those_of_their_key(
    tmp_path: Path, folder: Path, options: dict[str, Any]
) -> None:
    ingested(tmp_path, options, keyed=True)
    (folder / "b.csv").write_text("id,amount,_deleted\n1,9.5,\n2,,true\n")
    ingested(tmp_path, options, keyed=True)
    assert contents(tmp_path) == [{"id": 1, "amount": 9.5}]


def test_a_file_that_has_changed_is_refused_or_read_again_or_ignored(
    tmp_path: Path, folder: Path, options: dict[str, Any]
) -> None:
    ingested(tmp_path, options, keyed=True)
    (folder / "a.csv").write_text("id,amount\n1,100.5\n2,2.5\n")
    with pytest.raises(
        persist.InvalidUsage, match=r"a\.csv has changed since it was read: it had 22 bytes, and has 24"
    ):
        ingested(tmp_path, options)
    assert ingested(tmp_path, options, changed="ignore").commits == 0
    assert ingested(tmp_path, options, changed="again").rows == 2
    assert contents(tmp_path)[0] == {"id": 1, "amount": 100.5}


@pytest.mark.parametrize("keyed", [True, False])
def test_a_file_that_is_read_again_is_logged_with_its_effect(
    tmp_path: Path, folder: Path, options: dict[str, Any], caplog: Any, keyed: bool
) -> None:
    (folder / "b.csv").write_text("id,amount\n1,77.5\n")
    ingested(tmp_path, options, keyed=keyed, changed="again")
    assert "read again" not in caplog.text
    (folder / "a.csv").write_text("id,amount\n1,100.5\n2,2.5\n")
    ingested(tmp_path, options, changed="again")
    effect = "all of its rows are added once more"
    if keyed:
        effect = "its rows replace the rows of their keys, also where one of 1 later files brought them"
    assert f"a.csv has changed and is read again: {effect}" in caplog.text
    assert len(contents(tmp_path)) == (2 if keyed else 5)


def test_the_effect_of_a_repetition_depends_on_keys_their_order_and_later_files(caplog: Any) -> None:
    replaced = "its rows replace the rows of their keys"
    for form, effect in [
        (None, "all of its rows are added once more"),
        (persist.Keyed(), f"{replaced}, also where one of 2 later files brought them"),
        (persist.Keyed(order_by=["v"]), replaced),
    ]:
        for names in ("abcd", "ab"):
            collection: Any = SimpleNamespace(handle=SimpleNamespace(keyed=form))
            file = SourceFile("in/b", "b", 1, "", None)
            _warn_of_repetition(collection, file, dict.fromkeys(names, (1, "")))
            later = effect if names == "abcd" else effect.partition(",")[0]
            assert caplog.messages.pop() == f"in/b has changed and is read again: {later}"


def test_a_new_column_is_refused_added_or_left_out(tmp_path: Path, folder: Path, options: dict[str, Any]) -> None:
    ingested(tmp_path, options)
    (folder / "b.csv").write_text("id,amount,note\n3,3.5,new\n")
    with pytest.raises(persist.InvalidUsage, match=r"b\.csv has the column 'note', which the collection has"):
        ingested(tmp_path, options)
    assert len(contents(tmp_path)) == 2
    ingested(tmp_path, options, drift="add")
    assert {row["id"]: row["note"] for row in contents(tmp_path)} == {1: None, 2: None, 3: "new"}
    (folder / "c.csv").write_text("id,amount,more\n4,4.5,x\n")
    ingested(tmp_path, options, drift="ignore")
    assert contents(tmp_path)[3] == {"id": 4, "amount": 4.5, "note": None}


def test_a_value_that_does_not_fit_stops_before_its_file(tmp_path: Path, folder: Path, options: dict[str, Any]) -> None:
    ingested(tmp_path, options)
    (folder / "b.csv").write_text("id,amount\n3,3.5\n4,much\n")
    with pytest.raises(persist.InvalidUsage, match=r"(?s)^1 of the 2 rows of .*b\.csv.*mend .*'much'"):
        ingested(tmp_path, options)
    assert contents(tmp_path) == ROWS
    (folder / "b.csv").write_text("id,amount\n3,3.5\n")
    assert ingested(tmp_path, options).rows == 1


def test_a_file_that_changes_while_it_is_read_is_read_anew(
    tmp_path: Path, folder: Path, options: dict[str, Any]
) -> None:
    source = load_source(options, {})
    with persist.open(str(tmp_path / "location")) as client:
        for target in source.targets(client):
            client.create_or_load(
                target.name,
                key=dict(target.key),
                value=dict(target.value),
                timeline=target.timeline,
                keyed=persist.Keyed() if target.keyed else None,
            )
        collections = {name: client.load(name) for name in ("orders", "orders.files")}
        [batch] = source.batches(Run(client, collections, True, threading.Event()))
        changes = iter(batch.changes)
        assert sum(map(len, next(changes).rows)) == 2
        (folder / "a.csv").write_text("id,amount\n1,1.5\n2,2.5\n3,3.5\n")
        with pytest.raises(SourceMoved, match="changed while it was read"):
            next(changes)
    assert ingested(tmp_path, options).rows == 3


def test_following_ends_when_it_is_stopped(tmp_path: Path, folder: Path, options: dict[str, Any]) -> None:
    done = ingested(tmp_path, options)
    (folder / "b.csv").write_text("id,amount\n3,3.5\n")
    stop = threading.Event()
    with (
        persist.open(str(tmp_path / "location")) as client,
        client.load("orders").listen(done.uppers["orders"] - 1) as listen,
    ):
        follow = threading.Thread(
            target=persist.ingest, args=(client, {**options, "poll_s": 0.01}), kwargs={"stop": stop}
        )
        follow.start()
        try:
            assert next(listen).updates["id"].to_pylist() == [3]
            (folder / "c.csv").write_text("id,amount\n4,3.5\n")
            assert next(listen).updates["id"].to_pylist() == [4]
        finally:
            stop.set()
            follow.join()
    assert len(contents(tmp_path)) == 4


def test_of_two_that_read_one_source_one_is_told(tmp_path: Path, folder: Path, options: dict[str, Any]) -> None:
    ingested(tmp_path, options)
    (folder / "b.csv").write_text("id,amount\n3,3.5\n")
    source = load_source(options, {})
    with persist.open(str(tmp_path / "location")) as client:
        names = ("orders", "orders.files")
        run = Run(client, {name: client.load(name) for name in names}, True, threading.Event())
        [batch] = source.batches(run)
        ingested(tmp_path, options)  # The other one.
        with pytest.raises(persist.errors.UpperMismatch), client.multi_write() as multi:
            for name in names:
                multi.expect_upper(run.collections[name], run.uppers[name])
            for change in batch.changes:
                target = run.collections[change.collection]
                (multi.write if target.handle.keyed is None else multi.upsert)(target, change.rows, time=change.time)
    assert len(contents(tmp_path)) == 3


def test_the_command_takes_in_what_is_new_and_says_so(
    tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "orders.toml"
    config.write_text(f'source = "{folder}"\ncollection = "orders"\nkey = ["id"]\nsettle_s = 0.0\n')
    assert main(["ingest", str(tmp_path / "location"), str(config), "--once"]) == 0
    assert capsys.readouterr().out == f"took in 2 rows from {folder} in 1 commit\n"
    assert main(["ingest", str(tmp_path / "location"), str(config), "--once", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 0
    assert main(["ingest", str(tmp_path / "location"), str(tmp_path / "none.toml"), "--once"]) == 2
    assert "none.toml cannot be read: No such file or directory" in capsys.readouterr().err


@pytest.mark.costly("it starts a process of the command line")
def test_a_terminated_command_ends_well(tmp_path: Path, folder: Path, options: dict[str, Any]) -> None:
    done = ingested(tmp_path, options)
    (folder / "b.csv").write_text("id,amount\n3,3.5\n")
    command = [
        *forked_python(),
        "-m",
        "persist",
        "ingest",
        str(tmp_path / "location"),
        str(folder),
        "--collection",
        "orders",
    ]
    with (
        persist.open(str(tmp_path / "location"), mode="read") as client,
        client.load("orders").listen(done.uppers["orders"] - 1) as listen,
    ):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert next(listen).updates["id"].to_pylist() == [3]
        process.terminate()
        out, _ = process.communicate()
    assert (process.returncode, out) == (0, f"took in 1 row from {folder} in 1 commit\n")


class Faulty(LocalFileSystem):  # type: ignore[misc]
    """A folder whose store answers only now and then."""

    protocol = "faulty"
    cachable = False
    answers: Iterator[bool] = iter(())

    def _asked(self) -> None:
        if not next(Faulty.answers, True):
            raise OSError(errno.EIO, "no answer")

    def find(self, path: str, *args: Any, **options: Any) -> Any:
        self._asked()
        return super().find(path, *args, **options)

    def open(self, path: str, *args: Any, **options: Any) -> Any:
        self._asked()
        return super().open(path, *args, **options)


def test_a_store_that_does_not_answer_is_asked_again(
    tmp_path: Path, folder: Path, options: dict[str, Any], caplog: Any
) -> None:
    fsspec.register_implementation("faulty", Faulty, clobber=True)
    ingested(tmp_path, options)
    (folder / "b.csv").write_text("id,amount\n3,3.5\n")
    options |= {"source": f"faulty://{folder}", "poll_s": 0.01}
    Faulty.answers = iter([False])
    with pytest.raises(persist.Unavailable, match=r"faulty://.* does not answer: .*no answer"):
        ingested(tmp_path, options)
    Faulty.answers = iter([False, True, False, False, True, False])
    stop = threading.Event()
    with persist.open(str(tmp_path / "location")) as client:
        follower = threading.Thread(target=persist.ingest, args=(client, options), kwargs={"stop": stop})
        follower.start()
        orders = client.load("orders")
        with orders.listen((orders.upper.time or 0) - 1) as listen:
            assert next(listen).updates["id"].to_pylist() == [3]
        stop.set()
        follower.join()
    assert caplog.text.count("does not answer") >= 3


def test_a_compressed_file_that_is_damaged_is_told(tmp_path: Path, folder: Path, options: dict[str, Any]) -> None:
    ingested(tmp_path, options)
    (folder / "b.csv.gz").write_bytes(gzip.compress(b"id,amount\n3,3.5\n" * 9)[:-20] + b"x" * 20)
    with pytest.raises(persist.InvalidUsage, match=r"b\.csv\.gz cannot be read as csv"):
        ingested(tmp_path, options)
    assert len(contents(tmp_path)) == 2
