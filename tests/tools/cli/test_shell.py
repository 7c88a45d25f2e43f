"""The shell of SQL: what ends a statement, what is offered, and how it goes on after a mistake."""

import os
import pty
import signal
import subprocess
from pathlib import Path

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import persist
from persist.tools.cli.place import Place
from persist.tools.cli.shell import Shell, StatementReader, split_statements
from tests.support.forks import forked_python
from tests.support.stepped import WAIT_S
from tests.support.tiers import examples

Printed = pytest.CaptureFixture[str]
VALUES = ("1", "';'", "'it''s; so'", "$$a;b$$", "$t$ ';' $t$", '1 AS ";"', '1 AS "a""; b"')
BETWEEN = (" ", "\n", " -- one; two\n", " /* a; b */ ", " -- it's\n")


@given(st.lists(st.tuples(st.sampled_from(BETWEEN), st.sampled_from(VALUES), st.sampled_from(BETWEEN)), max_size=6))
@settings(max_examples=examples(200))
def test_statements_end_where_duckdb_ends_them(pieces: list[tuple[str, str, str]]) -> None:
    text = "".join(f"{before}SELECT {value}{after};" for before, value, after in pieces)
    statements, rest = split_statements(text)
    connection = duckdb.connect()
    assert rest == ""
    assert len(statements) == len(connection.extract_statements(text)) == len(pieces)
    for statement, (_, value, _) in zip(statements, pieces, strict=True):
        assert connection.sql(statement).fetchall() == connection.sql(f"SELECT {value}").fetchall()


@pytest.mark.parametrize("begun", ["SELECT 'a;", 'FROM "a;', "SELECT 1 /* a;", "SELECT $$ a;", "SELECT 1 -- a;"])
def test_what_is_quoted_or_in_a_comment_does_not_end_a_statement(begun: str) -> None:
    assert split_statements(begun) == ([], begun)


def test_a_command_of_the_shell_is_one_only_where_a_statement_may_begin() -> None:
    lines = StatementReader()
    assert lines.feed_line(".help") == [".help"]
    assert lines.feed_line("FROM a -- why") == []
    assert lines.feed_line(".5") == []
    assert lines.feed_line("; -- done") == ["FROM a -- why\n.5"]
    assert lines.feed_line(".exit") == [".exit"]


def test_columns_of_the_collections_that_a_statement_names_are_offered(client: persist.Client) -> None:
    for name, column in (("orders", "amount"), ("items", "price")):
        client.create_or_load(name, key={"id": int}, value={column: int})
    offered = Shell(Place(client.url), client, "table").words("SELECT a FROM orders WHERE ")
    assert ("amount" in offered, "price" in offered) == (True, False)


@pytest.fixture
def place(tmp_path: Path) -> str:
    with persist.open(tmp_path / "shop", settings=persist.Settings(background=False)) as client:
        orders = client.create_or_load("order-lines", key={"id": int}, value={"status": str})
        orders.write([(1, "new"), (2, "paid")], time=1, seal=2).result()
    return str(tmp_path / "shop")


def test_a_person_completes_names_goes_on_after_mistakes_and_finds_lines_again(place: str, tmp_path: Path) -> None:
    here, there = pty.openpty()
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), "TERM": "dumb"}
    command = [*forked_python(), "-m", "persist", "sql", place, "--format", "csv"]
    with subprocess.Popen(command, stdin=there, stdout=there, stderr=there, env=environment) as shell:
        os.close(there)
        seen = ""

        def until(text: str) -> str:
            nonlocal seen
            while text not in seen:
                seen += os.read(here, 4096).decode()
            before, _, seen = seen.partition(text)
            return before

        until("persist> ")
        os.write(here, b'SELECT st FROM "order-l\t;\n')
        assert "persist: DuckDB refuses" in until("persist> ")
        os.write(here, b"SELECT id FROM \"order-l\t WHERE sta\t = 'paid';\n")
        assert '"id"\r\n2\r\n' in until("persist> ")
        history = tmp_path / "state" / "persist" / "sql_history"  # It is there before the end, which may be sudden.
        assert history.stat().st_mode & 0o077 == 0
        assert "SELECT id FROM \"order-lines\" WHERE status = 'paid';" in history.read_text().splitlines()
        os.write(here, b"exit\n")
        shell.wait()
    os.close(here)


@pytest.mark.thorough(except_every=2)
@pytest.mark.parametrize(("sent", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_query_without_end_is_ended_by_a_signal(place: str, sent: signal.Signals, status: int) -> None:
    code = f"""if True:
        import os, threading
        from persist.compute.query import result
        wait = result.QueryResult._wait_interruptibly
        def waited(self, reading):
            threading.Timer(0.2, os.kill, [os.getpid(), {int(sent)}]).start()
            return wait(self, reading)
        result.QueryResult._wait_interruptibly = waited
        from persist.tools.cli import entry
        entry()
    """
    endless = "SELECT * FROM range(100000000000) t(i), range(100000) u(j) WHERE i + j < 0"
    asked = [*forked_python(), "-c", code, "sql", place, endless]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
