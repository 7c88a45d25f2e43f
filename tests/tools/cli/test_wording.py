"""What a command refuses, it says in the words of the command line: commands and options, not calls and arguments."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import persist
from persist.tools.cli.main import main
from persist.tools.cli.text import format_error

# A call, an argument, or a class of the library; but "such as x" and as_of: words of the command line's own.
PYTHON = re.compile(r"\w\(|\b\w+=[\"'\[TFN]|\b\w+=(?=[\s.,;]|$)|persist\.[A-Z]|Antichain|create_or_load|\bpa\.")

Provoked = Callable[..., str]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wording")
    (folder / "rows.csv").write_text("k,v\n1,9\n")
    (folder / "gone.csv").write_text("k,v,_deleted\n1,9,false\n2,,true\n")
    location = folder / "shop"
    settings = persist.Settings(background=False)
    with persist.open(location, settings=settings, storage_options={"fsync": False}) as client:
        for name in ("orders", "other"):
            plain = client.create_or_load(name, key={"k": pa.int64()}, value={"v": pa.int64()})
            plain.write([(1, 5), (1, 5)], time=3, seal=5).result()
        client.load("orders").tag("first", 3)
        client.load("orders").hold(4, name="held")
        client.load("orders").write([(2, 5)], time=7).result()
        client.load("other").write([((7, 7), 6, -1)], seal=7).result()
        client.load("other").allow_compaction(6).result()
        client.create_or_load("whole", key={"k": pa.int64()}).seal(persist.Antichain()).result()
        client.create_or_load("keyed", key={"k": int}, value={"v": int}, keyed=persist.Keyed(order_by=["v"]))
        client.create_view("view", "SELECT v, count(*) AS n FROM orders GROUP BY v").refresh()
    return folder


@pytest.fixture
def provoke(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Provoked:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)

    def provoked(*arguments: str, status: int = 2) -> str:
        assert main(arguments) == status
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("persist: ")
        assert err.count("\n") == 1
        return err

    return provoked


CASES: list[tuple[str, str, int]] = [
    ("read shop orders --as-of 9", "seal to 10 or later, or wait for it with --timeout.", 2),
    ("read shop orders --as-of 7 --timeout 0.01", "1 update at time 7: sealing to 8 makes", 2),
    (
        "read shop other --as-of 2",
        "--as-of 2 is before since=6: history before since has been compacted. Read at as_of >= 6",
        2,
    ),
    ("changes shop other 2 5", "Ask for changes from 7 or later", 2),
    ("changes shop orders 4 2", "start=4 and until=2 are backwards", 2),
    ("read shop other", "persist read with --form diff shows", 2),
    ("export shop other out", "persist read with --form diff shows", 2),
    ("read shop orders --form columns", '--form \'columns\' is not a form of a snapshot: use "rows" or "diff"', 2),
    ("read shop orders --schema 9", "--schema 9 is not a version", 2),
    ("read shop orders --as-of 2026-01-01", "create one with --timeline us", 2),
    ("read shop orders --as-of frist", "it has 'first'. persist tag makes one.", 2),
    ("read shop ordres", "Check the name. This client only reads", 2),
    ("compact shop ordres", "Check the name, or make it with persist create", 2),
    ("write shop orders rows.csv --mode append --time 4", "times before 5 are sealed. Write at times >= 5", 2),
    ("write shop orders rows.csv --time 6 --diff 0", "--diff 0 is not a change", 2),
    ("write shop whole rows.csv --mode append --time 4 --ignore v", "complete for ever", 2),
    ("overwrite shop orders rows.csv --time 6", "finish and seal to 8, or", 3),
    ("seal shop orders 3", "upper cannot go back from 5 to 3. Ask for 5 or later", 2),
    ("seal shop whole 3", "upper cannot go back to 3: it is complete for ever", 2),
    (
        "tag shop orders first 4",
        "was expected to be not there, and is at 3; it was left as it is. To move a tag that exists, give --move",
        3,
    ),
    ("hold shop orders held 3", "from 4 to 3", 2),
    ("release shop orders holding --yes", ". persist hold makes one", 2),
    ("rename shop orders other", "exists already. Load it, or choose another name", 3),
    ("view shop orders", "written by its users. Use persist read", 2),
    (
        "write shop keyed rows.csv --mode append --time 4",
        "Use persist upsert, persist overwrite or persist delete, and persist seal",
        2,
    ),
    ("upsert shop keyed gone.csv --time 9", "Create one with --tombstone.", 2),
    ("upsert shop keyed rows.csv --time 9 --late never", "--late 'never' is not a way", 2),
    ("evolve shop other --keyed", "let since pass them, and compact", 2),
    ("create shop new --key k:int46", "such as int64, float64", 2),
    ("create shop new --key k:int64 --keyed --resolve never", "--resolve 'never' is not allowed: give 'seal'", 2),
    ("fsck shop --dry-run", "--dry-run goes with --repair", 2),
    ("fsck shop --set-aside", "--set-aside goes with --repair", 2),
    ("serve shop --flight grpc://0.0.0.0:0", "PERSIST_SERVE_TOKEN), or --insecure", 2),
    ("compact shop --memory-budget 1", "--memory-budget 1 is not allowed: give an integer >= 16777216", 2),
]


@pytest.mark.parametrize(("command", "says", "status"), CASES, ids=[case[0] for case in CASES])
def test_an_error_names_commands_and_options(command: str, says: str, status: int, provoke: Provoked) -> None:
    said = provoke(*command.split(), status=status)
    assert says in said
    assert not PYTHON.search(said)


def test_a_locked_location_says_that_only_python_can_take_it_over(provoke: Provoked) -> None:
    with persist.open("shop", mode="exclusive", reentrance_id="loader"):
        said = provoke("seal", "shop", "orders", "9", status=3)
    assert "take it over from Python: persist.open(" in said


@pytest.mark.parametrize(
    "command", ["write shop view rows.csv --time 9", "seal shop view 9", "overwrite shop view rows.csv --time 9"]
)
def test_a_view_is_written_by_its_query_alone(command: str, provoke: Provoked) -> None:
    assert "'view' is a view: its query determines its contents" in provoke(*command.split())
    with persist.open("shop", mode="read") as client:
        assert client.load("view").upper == persist.Antichain(5)


def test_a_query_that_cannot_read_a_collection_says_why_without_a_traceback(provoke: Provoked) -> None:
    said = provoke("sql", "shop", "SELECT * FROM other")
    assert said.startswith("persist: the record ")
    assert "persist read with --form diff shows" in said


def test_a_query_that_is_refused_is_shown_without_a_caret_that_points_at_nothing(provoke: Provoked) -> None:
    assert not provoke("view", "shop", "bad", "SELECT nothing FROM orders").rstrip().endswith("^")
    said = provoke("sql", "shop", "SELECT * FROM nobody")
    assert "nobody does not exist. The collections are ['" in said


def test_following_between_times_with_none_between_them_is_refused(provoke: Provoked) -> None:
    assert "no time is after 3 and before 4" in provoke("tail", "shop", "orders", "--as-of", "3", "--until", "4")


def test_types_like_those_of_a_file_that_is_not_there_are_refused(provoke: Provoked) -> None:
    assert "there is no file 'none.csv'" in provoke("create", "shop", "new", "--like", "none.csv")


@pytest.mark.parametrize("command", ["create {} new --key k:int64", "bench {}"])
def test_a_folder_of_other_files_gets_no_location_between_them(command: str, provoke: Provoked, tmp_path: Path) -> None:
    folder = tmp_path / "reports"
    folder.mkdir()
    (folder / "june.xlsx").write_text("")
    said = provoke(*command.format(folder).split())
    assert "holds something else, such as 'june.xlsx'" in said
    assert f"such as {folder}/data" in said
    assert [each.name for each in folder.iterdir()] == ["june.xlsx"]


def test_what_a_first_client_left_behind_is_no_other_file(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    assert main(["create", str(tmp_path), "new", "--key", "k:int64"]) == 0


def test_what_a_user_has_written_is_not_put_into_other_words() -> None:
    said = "the condition \"key='a' and late='b'\" and {compact:call} compares 'a' with a column of type int64"
    assert format_error(persist.InvalidUsage(said)) == said
