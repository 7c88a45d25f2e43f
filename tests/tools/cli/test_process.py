"""What surrounds a command: signals and streams of its process, errors and statuses, questions, and the screen."""

import ctypes
import errno
import gc
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import typer

import persist
from persist.blob.errors import MissingBlob
from persist.tools.cli import command as commands
from persist.tools.cli import dispatch, doctor, logs, row_output, shell, upkeep_commands
from persist.tools.cli import main as process
from persist.tools.cli.listing import make_column, make_time_column, watch_screen
from persist.tools.cli.place import Place
from persist.tools.cli.status import _format_age, _format_bytes, _format_time
from persist.tools.cli.text import _CommandLine, escape_text, format_cell, format_error, print_table

Printed = pytest.CaptureFixture[str]
SIGNALS = (signal.SIGINT, signal.SIGTERM)


def throw(error: BaseException) -> Any:
    raise error


@pytest.fixture
def _own_signals() -> Iterator[None]:
    """Give the handlers back that the test runner had."""
    before = [(each, signal.getsignal(each)) for each in SIGNALS]
    yield
    for each, handler in before:
        signal.signal(each, handler)


@pytest.mark.usefixtures("_own_signals")
@pytest.mark.parametrize(
    ("run", "status"),
    [
        (lambda: 3, 3),
        (lambda: throw(BrokenPipeError()), 0),
        (lambda: throw(KeyboardInterrupt()), 130),
        (lambda: throw(commands.Terminated()), 143),
    ],
)
@pytest.mark.parametrize("heeds", [True, False])
def test_the_entry_sets_signals_and_ends_with_the_status(
    run: Callable[[], int], status: int, heeds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs: Any = lambda *_: None  # noqa: E731 A handler that somebody else has set.
    signal.signal(signal.SIGINT, signal.default_int_handler if heeds else theirs)
    signal.signal(signal.SIGTERM, signal.SIG_DFL if heeds else theirs)
    seen: list[Any] = []

    def noted() -> int:
        seen.append([signal.getsignal(each) for each in SIGNALS])
        return run()

    monkeypatch.setattr(dispatch, "run", noted)
    monkeypatch.setattr(gc, "set_threshold", lambda *limits: seen.append(limits))
    monkeypatch.setattr(commands, "close_output", lambda: seen.append("closed"))
    monkeypatch.setattr(process, "_choose_allocator", lambda: None)
    monkeypatch.setattr(process, "_open_streams", lambda: seen.append(signal.getsignal(signal.SIGINT)))
    with pytest.raises(SystemExit) as ended:
        process.entry()
    assert ended.value.code == status
    during = [signal.default_int_handler, commands.terminate] if heeds else [theirs, theirs]
    loading = signal.SIG_DFL if heeds else theirs
    assert seen == [(100_000, 20, 20), loading, during, *["closed"] * (status == 0)]
    assert [signal.getsignal(each) for each in SIGNALS] == [signal.SIG_DFL if heeds else theirs] * 2


@pytest.mark.parametrize(
    ("platform", "libc", "given", "pool", "calls"),
    [
        ("linux", "glibc 2", {}, "jemalloc", [(-8, 2)]),
        ("linux", "glibc 2", {"MALLOC_ARENA_MAX": "5", "ARROW_DEFAULT_MEMORY_POOL": "system"}, "system", []),
        ("linux", "", {}, None, []),
        ("darwin", "glibc 2", {}, None, []),
    ],
)
def test_allocators_are_limited_where_they_are_known(
    platform: str, libc: str, given: dict[str, str], pool: str | None, calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(os, "confstr", lambda name: libc)
    monkeypatch.setattr(os, "confstr_names", {"CS_GNU_LIBC_VERSION": 2})
    monkeypatch.setattr(os, "environ", dict(given))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(mallopt=lambda *limit: seen.append(limit)))
    process._choose_allocator()
    assert (os.environ.get("ARROW_DEFAULT_MEMORY_POOL"), seen) == (pool, calls)


def test_closed_streams_lead_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    own = io.StringIO()
    monkeypatch.setattr(sys, "stdin", None)
    monkeypatch.setattr(sys, "stdout", own)
    monkeypatch.setattr(sys, "stderr", None)
    process._open_streams()
    with sys.stdin, sys.stderr:
        found = (sys.stdin.read(), sys.stdout is own, sys.stderr.write("x"), sys.stdin.mode, sys.stderr.mode)
    assert found == ("", True, 1, "r", "w")


LOST = persist.errors.CollectionNotFound("orders", "shop", ("a",))


@pytest.mark.parametrize(
    ("error", "status", "name", "message"),
    [
        (LOST, 2, "CollectionNotFound", "no collection 'orders' at shop: it has 'a'. Check the name, or"),
        (MissingBlob("part/1", "gone"), 1, "MissingBlob", "blob 'part/1' is corrupt: gone. Restore it from a copy; "),
        (persist.Conflict("first"), 3, "Conflict", "first"),
        (persist.Unavailable("away"), 4, "Unavailable", "away"),
        (persist.Indeterminate("perhaps"), 4, "Indeterminate", "perhaps"),
        (ExceptionGroup("many", [persist.Conflict("one"), LOST]), 3, "Conflict", "one"),
        (FileNotFoundError(2, "No such file", "a.csv"), 2, "InvalidUsage", "a.csv: No such file"),
        (PermissionError(13, "Permission denied", "a.csv"), 2, "InvalidUsage", "a.csv: Permission denied"),
        (IsADirectoryError(21, "Is a directory", "a"), 2, "InvalidUsage", "a: Is a directory"),
        (NotADirectoryError(20, "Not a directory", "a"), 2, "InvalidUsage", "a: Not a directory"),
        (OSError(28, "No space left on device", "a.csv"), 4, "Unavailable", "a.csv: No space left on device"),
        (OSError(28, "No space left on device"), 4, "Unavailable", "No space left on device"),
        (OSError("odd"), 4, "Unavailable", "odd"),
        (typer.Abort(), 130, "KeyboardInterrupt", "interrupted"),
        (KeyboardInterrupt(), 130, "KeyboardInterrupt", "interrupted"),
        (typer.BadParameter("wrong"), 2, "InvalidUsage", "Invalid value: wrong"),
        (persist.InvalidUsage("DuckDB:  SELECT x\n   ^\n"), 2, "InvalidUsage", "DuckDB: SELECT x"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("words", [["ls", "--json", "--", "x"], ["ls", "--", "--json"]])
def test_an_error_is_one_line_or_an_object_with_its_status(
    error: BaseException, status: int, name: str, message: str, words: list[str],
    monkeypatch: pytest.MonkeyPatch, capsys: Printed,
) -> None:  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["persist", *words])
    given: list[Any] = []

    def fail(**arguments: Any) -> Any:
        given.append(arguments)
        raise error

    monkeypatch.setattr(dispatch, "_build_program", lambda: SimpleNamespace(main=fail))
    assert (dispatch.run(), dispatch.run(words)) == (status, status)
    assert [each["args"] for each in given] == [None, words]
    out, err = capsys.readouterr()
    one, other = err.splitlines()
    assert (out, one) == ("", other)
    if words[1] == "--json":
        found = json.loads(one)
        assert found.pop("message").startswith(message)
        assert found == {"error": name, "status": status}
    else:
        assert one.startswith(f"persist: {message}")


def test_a_result_that_is_no_number_is_success_and_other_errors_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    for result, status in ((None, 0), (1, 1), ("text", 0)):
        monkeypatch.setattr(dispatch, "_build_program", lambda result=result: SimpleNamespace(main=lambda **_: result))
        assert process.main([]) == status
    for error in (TypeError("ours"), ExceptionGroup("many", [TypeError("ours")])):
        failing = SimpleNamespace(main=lambda error=error, **_: throw(error))
        monkeypatch.setattr(dispatch, "_build_program", lambda failing=failing: failing)
        with pytest.raises((TypeError, ExceptionGroup)):
            process.main([])


def test_an_error_of_several_lines_keeps_them_and_notes_come_last(capsys: Printed) -> None:
    error = persist.InvalidUsage("one\x07\n  ^\ntwo")
    error.add_note("and more")
    assert dispatch._report_failure(error, 2, False) == 2
    error.has_lines = True  # type: ignore[attr-defined]
    assert dispatch._report_failure(error, 2, False) == 2
    assert capsys.readouterr().err == "persist: one\\x07 ^ two and more\npersist: one\\x07\n  ^\ntwo and more\n"


@pytest.mark.parametrize(
    ("text", "is_span"),
    [("-1d", True), ("-12 hours", True), ("- 1d", True), ("1d", False), ("-d", False), ("--1", False), ("-1", False),
     ("-n", False), ("-", False)],
)  # fmt: skip
def test_a_span_is_not_an_option(text: str, is_span: bool) -> None:
    assert (commands._is_span(text), commands._has_blank(f" {text}"), commands._has_blank(text)) == (
        *(is_span, is_span, False),
    )
    assert not commands._has_blank([f" {text}"])


def test_a_question_is_asked_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch, capsys: Printed) -> None:
    for answers, is_terminal, said in ((True, True, ""), (False, True, ""), (True, False, "persist: Sure? Nobody")):
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda is_terminal=is_terminal: is_terminal))
        monkeypatch.setattr(typer, "confirm", lambda question, answers=answers: answers and question == "Sure?")
        if answers and is_terminal:
            commands.confirm("Sure?", "no")
        else:
            with pytest.raises(commands.Declined, match="no"):
                commands.confirm("Sure?", "no")
        assert capsys.readouterr().err.startswith(said)


@pytest.mark.usefixtures("_own_signals")
def test_sigterm_is_noted_until_the_block_ends_and_raised_once() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with commands.catch_sigterm() as stop:
        assert not stop.is_set()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.wait(9)
    assert signal.getsignal(signal.SIGTERM) is before
    signal.signal(signal.SIGTERM, commands.terminate)
    with pytest.raises(commands.Terminated):
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (BrokenPipeError(), 0, ""),
        (commands.Declined("as it was"), 2, "persist: as it was\n"),
        (commands.Terminated(), 143, "persist: ended by SIGTERM\n"),
    ],
)
def test_how_a_command_ends_is_its_status(
    error: BaseException, status: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: Printed
) -> None:
    monkeypatch.setattr(commands, "close_output", lambda: None)
    monkeypatch.setattr(Place, "open_reader", lambda place: throw(error))
    assert process.main(["ls", "shop"]) == status
    assert capsys.readouterr() == ("", said)


def test_cells_and_tables_on_and_off_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: Printed) -> None:
    long = "x" * 121
    assert [format_cell(each) for each in (None, 1.5, "x" * 120, long)] == ["NULL", "1.5", "x" * 120, "x" * 119 + "…"]
    assert format_cell(long, whole=True) == long
    assert escape_text("a\nb\tc\u202e", lines=True) == "a\nb\\tc\\u202e"
    assert escape_text("a\nb") == "a\\nb"
    print_table(("name", "n"), [("a", 1), (long, 22)], right=[1], texts=[0])
    assert capsys.readouterr().out == f"{'name':120}   n\n{'a':120}   1\n{'x' * 119}…  22\n"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    rows = [("first", 1), ("second text", 22)]
    for width, shown in (
        (12, "text       n\nfirst      1\nsecond    22\ntext        \n"),
        (11, "row 1\n  text  first\n  n     1\nrow 2\n  text  second text\n  n     22\n"),
    ):
        monkeypatch.setenv("COLUMNS", str(width))
        print_table(("text", "n"), rows, right=[1], texts=[0])
        lines = capsys.readouterr().out.replace("\x1b[1m", "").replace("\x1b[0m", "").splitlines()
        assert [line.rstrip() for line in lines] == [line.rstrip() for line in shown.splitlines()]
    print_table(("a" * 9, "b" * 9), [], right=[], texts=[])
    assert capsys.readouterr().out == f"no rows of {'a' * 9}, {'b' * 9}\n"


def test_values_of_lists_and_of_the_status_are_cells() -> None:
    rows = (
        {"n": None, "n_moment": None},
        {"n": 1234, "n_moment": None},
        {"n": 0, "n_moment": "1970"},
        {"n": 5, "n_moment": "x"},
    )
    assert [make_column("n")(row) for row in rows] == ["-", "1,234", "0", "5"]
    assert make_column("n")({"n": "text"}) == "text"
    assert [make_time_column("n")(row) for row in rows] == ["-", 1234, 0, "x"]
    assert [_format_time(*each) for each in ((None, None), (1234, None), (0, "1970"), (5, "x"))] == [
        *("for ever", "1,234", "0", "x"),
    ]
    assert [_format_bytes(each) for each in (None, 0, 1234)] == ["-", "0", "1,234"]
    assert [_format_age(each) for each in (None, 0.0, -1.0, 60.0)] == ["-", "ahead", "ahead", "1 min"]


def test_errors_name_commands_and_options_of_their_own() -> None:
    names = _CommandLine()
    assert [names.name_call(each) for each in ("load", "compact", "transition", "redefine")] == [
        *("persist read", "persist compact", "transition in Python", "persist view --redefine"),
    ]
    assert [names.name_option(*each) for each in (("timeout_s", ""), ("dry_run", "True"), ("as_of", "7"))] == [
        *("--timeout", "--dry-run", "--as-of 7"),
    ]
    for text, said in (("as_of=7 is", "--as-of 7 is"), ("lease_s=0 is", "lease_s=0 is"), ("as_of 7", "as_of 7")):
        assert format_error(persist.InvalidUsage(text)) == said


def test_a_screen_is_shown_again_when_there_is_news(monkeypatch: pytest.MonkeyPatch, capsys: Printed) -> None:
    state, facts = SimpleNamespace(seqno=7), iter("abc")
    asked: list[Any] = []

    def wait_for(has_news: Callable[[], bool | None], seconds: float) -> bool | None:
        asked.append((has_news(), seconds))
        state.seqno += len(asked) % 2
        if len(asked) == 4:
            raise KeyboardInterrupt
        return has_news()

    client: Any = SimpleNamespace(
        engine=SimpleNamespace(follower=SimpleNamespace(state=state, wait_for=wait_for)), seqno=7
    )
    watch_screen(client, lambda: next(facts), lambda each: print(each, end=" "))
    assert capsys.readouterr().out == "a b b c "
    assert asked == [(None, 2.0)] * 4
    asked.clear()
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    watch_screen(client, lambda: "a", lambda each: print(each, end=" "))
    assert capsys.readouterr().out == "\x1b[H\x1b[2J\x1b[3Ja " * 4


def test_log_records_become_remarks_lines_or_objects(monkeypatch: pytest.MonkeyPatch, capsys: Printed) -> None:
    import logging

    try:
        throw(ValueError("odd"))
    except ValueError:
        record = logging.LogRecord("persist.x", 30, "f", 1, "took %s", ("long\x07",), sys.exc_info())
    record.created, record.persist = 0.0, {"what": "read", "at": "wrong"}
    for form in ("remark", "line", "json"):
        logs._Handler(10, form).emit(record)
    record.exc_info = None
    logs._Handler(10, "json").emit(record)
    remark, line, *objects = capsys.readouterr().err.splitlines()
    assert (remark, line) == (
        "persist: took long\\x07",
        "1970-01-01T00:00:00.000Z warning persist.x: took long\\x07",
    )
    fields = {"what": "read", "at": "1970-01-01T00:00:00.000Z", "level": "warning", "logger": "persist.x"}
    fields["message"] = "took long\x07"
    assert [json.loads(each) for each in objects] == [{**fields, "error": "ValueError: odd"}, fields]
    logger = logging.getLogger("persist")
    for level, within in ((logging.WARNING, logging.INFO), (logging.DEBUG, logging.DEBUG)):
        logger.setLevel(level)
        with logs.log_to_stderr(verbose=True):
            assert (logger.level, len(logger.handlers)) == (within, 1)
        assert (logger.level, logger.handlers) == (level, [])
    logger.setLevel(logging.NOTSET)


def test_rows_are_sorted_for_the_screen_unless_their_order_counts(capsys: Printed) -> None:
    table = pa.table({"b": [b"\xff", None, b"a"], "n": [1, 2, 3], "t": ["x" * 121, "y", None]})
    batches = table.to_batches()
    for in_order, limit, first in ((False, None, "NULL"), (True, None, "ff"), (False, 2, "ff")):
        count = row_output.write_rows(table.schema, batches, "table", None, limit, in_order=in_order)
        out, err = capsys.readouterr()
        assert (count, out.splitlines()[1].split()[0]) == (limit or 3, first)
        assert bool(err) is (limit is not None)
    row_output.write_rows(pa.schema([]), [pa.record_batch([pa.nulls(2)], ["x"]).select([])], "table", None, None)
    uneven = pa.table({"m": [[1, 2], [1, None]]})
    row_output.write_rows(uneven.schema, uneven.to_batches(), "table", None, 2)
    assert capsys.readouterr().out.splitlines()[-2:] == ["[1, 2]", "[1, None]"]


def test_a_disk_that_is_full_names_the_file_and_leaves_none(tmp_path: Any, capsys: Printed) -> None:
    full, odd = OSError(errno.ENOSPC, "No space left on device"), OSError("odd")
    for error, named in ((full, str(tmp_path / "a.csv")), (odd, None)):
        with pytest.raises(OSError, match=r"device|odd") as caught, row_output.open_output(str(tmp_path / "a.csv")):
            raise error
        assert (caught.value.filename, [*tmp_path.iterdir()]) == (named, [])
    with pytest.raises(BrokenPipeError) as broken, row_output.open_output(str(tmp_path / "a.csv")):
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")
    assert broken.value.filename is None


def test_a_bench_measures_all_it_tells(client: persist.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep_commands, "BENCH_ROWS", 1000)
    seconds = iter([2.0, *[0.5] * 19, 3.0, 4.0, 8.0])
    seen: list[Any] = []

    def measured(what: Callable[[], Any]) -> float:
        seen.append(what())
        return next(seconds)

    monkeypatch.setattr(upkeep_commands, "_measure_s", measured)
    assert upkeep_commands.measure(client) == {
        "location": client.url,
        "rows": 1000,
        "write_s": 2.0,
        "write_rows_per_s": 500.0,
        "read_s": 4.0,
        "read_rows_per_s": 250.0,
        "commits": 20,
        "commit_median_s": 0.5,
        "commit_max_s": 3.0,
        "lookup_100_keys_s": 8.0,
    }
    assert (seen[-2], len(seen[-1]), client.collections()) == (1000, 100, [])


JAVA = "    java.specification.version = "


@pytest.mark.parametrize(
    ("home", "found", "printed", "result", "says"),
    [
        (None, None, "", "warning", "there is no java on the PATH, and no JAVA_HOME, so Spark does not start"),
        ("/jdk", None, "", "warning", "JAVA_HOME=/jdk has no bin/java, so Spark does not start"),
        ("/jdk", "/jdk/bin/java", JAVA + "17\n", "ok", "version 17 at /jdk/bin/java"),
        (None, "/bin/java", JAVA + "16\n", "warning", "version 16 at /bin/java"),
        (None, "/bin/java", "odd", "warning", "version unknown at /bin/java"),
    ],
)
def test_java_is_looked_for_where_spark_looks(
    home: str | None, found: str | None, printed: str, result: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_has_spark", lambda: True)
    monkeypatch.setattr(os, "environ", {} if home is None else {"JAVA_HOME": home})
    asked: list[Any] = []

    def which(name: str) -> str | None:
        asked.append(name)
        return found

    monkeypatch.setattr(shutil, "which", which)

    def run(program: list[str], **_: Any) -> Any:
        return SimpleNamespace(stdout="", stderr=printed)

    monkeypatch.setattr(subprocess, "run", run)
    advice = None if result == "ok" else "Install Java 17 or newer, or let JAVA_HOME name one."
    assert [*doctor._check_java(Place("shop"))] == [doctor.Finding("Java", result, says, advice)]
    assert asked == ["java" if home is None else "/jdk/bin/java"]
    for error in (OSError(), subprocess.TimeoutExpired("java", 1)):
        monkeypatch.setattr(subprocess, "run", lambda *_, error=error, **more: throw(error))
        assert doctor._read_output(["java"]) == ""


def test_what_is_not_installed_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: throw(metadata.PackageNotFoundError(name)))
    left_out = doctor.Finding("Java", "left out", "PySpark is not installed, and nothing else needs Java")
    assert [*doctor._check_java(Place("shop")), *doctor._check_workers(Place("shop"))] == [left_out]
    assert doctor._split_remedy("One\n thing. Do this. Then that.") == ("One thing", "Do this. Then that.")
    assert doctor._split_remedy("One thing") == ("One thing", None)


@pytest.mark.parametrize(
    ("stored_s", "result", "says"),
    [
        (99.0, "ok", "this machine's and the store's agree"),
        (110.0, "ok", "this machine's and the store's agree"),
        (115.0, "ok", "this machine's and the store's agree to 5 s"),
        (125.1, "warning", "this machine's is 15 s behind the store's, and leases allow for 30 s"),
        (140.1, "wrong", "this machine's is 30 s behind the store's, and leases allow for 30 s"),
        (84.0, "ok", "this machine's and the store's agree to 15 s"),
        (69.0, "warning", "this machine's is 30 s ahead of the store's, and leases allow for 30 s"),
        (68.0, "wrong", "this machine's is 31 s ahead of the store's, and leases allow for 30 s"),
    ],
)
def test_clocks_are_compared_with_what_leases_allow(stored_s: float, result: str, says: str) -> None:
    finding = doctor._check_clock(stored_s, 100.0, 110.0, 30.0)
    assert (finding.check, finding.result, finding.found) == ("clock", result, says)
    assert (finding.advice is None) is (result == "ok")


def test_words_are_quoted_and_completed_where_they_must_be() -> None:
    assert [shell.quote_if_needed(each) for each in ("a_1", "1a", 'a"b', "a-b")] == ["a_1", '"1a"', '"a""b"', '"a-b"']
    words = ["Orders", '"a-b"', "SELECT"]
    for text, found in (
        ("", ["Orders", '"a-b"', "SELECT"]),
        ("S", ["SELECT"]),
        ("s", ["select"]),
        ("O", ["Orders"]),
        ("A", ['"a-b"']),
        ('"', ['"Orders"', '"a-b"']),
        ('"o', ['"Orders"']),
    ):
        assert shell.find_matching(words, text) == found
    lines = shell.StatementReader()
    assert [lines.feed_line(line) for line in ("  -- note", "exit;", " .help ", "SELECT 1", "exit;", "quit")] == [
        *([], [".exit"], [".help"], [], ["-- note\nSELECT 1\nexit"], [".quit"]),
    ]
    assert lines.is_empty
