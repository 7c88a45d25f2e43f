"""The databases that queries borrow: used again when they are empty, and never when something remains in them."""

import gc
import os
import weakref
from typing import Any

import pytest

import persist
from persist.compute.query import databases
from persist.compute.query.databases import IDLE_MAX, QueryLimits, lend_database


@pytest.fixture
def client(client: persist.Client, monkeypatch: pytest.MonkeyPatch) -> persist.Client:
    """Return a client of a collection, in a process without idle databases."""
    databases._idle.clear()
    client.create_or_load("shop.t", key={"k": int}, value={"v": int}).write([((1, 10), 0, 1)], seal=1).result()
    client.create_or_load("t", key={"k": int}, value={"v": int}).write([((1, 20), 0, 1)], seal=1).result()
    return client


def idle() -> list[Any]:
    return [database for kept in databases._idle.values() for database in kept]


def test_a_dropped_answer_gives_its_database_and_its_snapshots_back(client: persist.Client) -> None:
    answer: Any = client.sql("SELECT v FROM t")
    assert answer.to_arrow()["v"].to_pylist() == [20]
    dropped = weakref.ref(answer)
    gc.disable()  # References alone must free it: nobody knows when Python collects.
    try:
        del answer
        assert dropped() is None
    finally:
        gc.enable()
    assert len(idle()) == 1


def test_queries_one_after_another_use_one_database_and_leave_nothing_there(client: persist.Client) -> None:
    client.sql("SELECT v FROM t").to_arrow()
    (first,) = idle()
    for _ in range(3):
        client.sql("SELECT k FROM t").to_arrow()
        assert [database is first for database in idle()] == [True]
    with lend_database() as lent:
        assert lent.connection.execute("SELECT count(*) FROM duckdb_views() WHERE NOT internal").fetchone() == (0,)


def test_answers_that_are_open_at_a_time_have_databases_of_their_own(client: persist.Client) -> None:
    answers = [client.sql(f"SELECT v + {n} AS v FROM t") for n in range(IDLE_MAX + 2)]
    assert [answer.to_arrow()["v"].to_pylist() for answer in answers] == [[20 + n] for n in range(IDLE_MAX + 2)]
    for answer in answers:
        answer.close()
        answer.close()
    assert len(idle()) == IDLE_MAX


@pytest.mark.parametrize(
    "query", ["SELECT v FROM shop.t", "SELECT v FROM latest.shop.t", "SELECT table_name FROM information_schema.tables"]
)
def test_a_database_in_which_something_remains_is_not_used_again(client: persist.Client, query: str) -> None:
    client.sql(query).to_arrow()
    assert idle() == []


def test_a_query_calls_the_function_that_is_registered_when_it_is_made(client: persist.Client) -> None:
    for version in (1, 2):
        client.create_function("pooled", lambda v, by=version: v * by, [int], int, version=version)
        assert client.sql("SELECT pooled(v) AS v FROM t").to_arrow()["v"].to_pylist() == [20 * version]
    assert idle() == []


def test_a_database_with_limits_is_lent_for_these_limits_alone(client: persist.Client) -> None:
    for mebibytes in (32, 64, 32):
        with lend_database(limits=QueryLimits(memory_bytes=mebibytes << 20)) as lent:
            memory = lent.connection.execute("SELECT current_setting('memory_limit')").fetchone()
            assert memory == (f"{mebibytes}.0 MiB",)
            lent.is_empty = True
    assert len(idle()) == 2


@pytest.mark.filterwarnings(
    "ignore:This process:DeprecationWarning"
)  # From Python 3.12 on, of any fork beside threads.
def test_a_forked_process_uses_no_database_of_its_parent(client: persist.Client) -> None:
    client.sql("SELECT v FROM t").to_arrow()
    taken = [database for (pid, _), kept in databases._idle.items() if pid == os.getpid() for database in kept]
    assert len(taken) == 1
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            with lend_database() as lent:
                os.write(writing, b"own" if lent._database not in taken else b"other")
        finally:
            os._exit(0)
    os.close(writing)
    assert os.read(reading, 10) == b"own"
    assert os.waitpid(pid, 0)[1] == 0
    os.close(reading)


def test_statements_one_after_another_use_one_database(client: persist.Client) -> None:
    keyed = client.create_or_load("keyed", key={"k": int}, value={"v": int}, keyed=persist.Keyed())
    keyed.upsert([(1, 1)]).result()
    for n in range(3):
        client.sql("UPDATE t SET v = v + 1 WHERE k = 1")
        client.sql(f"INSERT OR REPLACE INTO keyed VALUES (1, {n}), (2, {n})")
        client.sql("MERGE INTO t USING keyed s ON t.k = s.k WHEN MATCHED THEN UPDATE SET v = t.v + s.v")
        assert len(idle()) == 1
    assert client.sql("FROM t").to_arrow()["v"].to_pylist() == [20 + 3 + 0 + 1 + 2]
    with lend_database() as lent:
        remains = "SELECT count(*) FROM duckdb_tables() WHERE NOT internal"
        assert lent.connection.execute(remains).fetchone() == (0,)


def test_a_statement_that_fails_leaves_its_database_to_nobody(client: persist.Client) -> None:
    with pytest.raises(persist.InvalidUsage):
        client.sql("UPDATE t SET v = 'word' WHERE k = 1")
    assert idle() == []
    for several in ("UPDATE t SET v = 1; CREATE TABLE more (a INT)", "UPDATE t SET v = 1; UPDATE t SET v = 2"):
        with pytest.raises(persist.InvalidUsage):
            client.sql(several)
        assert idle() == []


def test_a_database_whose_settings_a_table_function_changes_is_not_used_again(client: persist.Client) -> None:
    client.sql("SELECT * FROM enable_logging(level='debug')", files=True).to_arrow()
    assert idle() == []
    logged = client.sql("SELECT count(*) AS n FROM duckdb_logs()", files=True).to_arrow()
    assert logged["n"].to_pylist() == [0]
    client.sql("SELECT sum(range) AS n FROM range(5)").to_arrow()
    assert len(idle()) == 1


def test_a_statement_reads_collections_of_any_name(client: persist.Client) -> None:
    for name in ("the new rows", "the contents"):
        client.create_or_load(name, key={"k": int}, value={"v": int}).write([((1, 5), 0, 1)], seal=1).result()
        client.sql(f'UPDATE t SET v = v + 1 WHERE k IN (SELECT k FROM "{name}")')
        client.sql(f'UPDATE "{name}" SET v = 6')
        assert client.sql(f'SELECT v FROM "{name}"').to_arrow()["v"].to_pylist() == [6]
    assert client.sql("SELECT v FROM t").to_arrow()["v"].to_pylist() == [22]


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("files", [False, True])
def test_a_query_is_in_utc_wherever_the_process_is(client: persist.Client, files: bool) -> None:
    query = "SELECT hour('2020-01-01 00:00:00+00'::TIMESTAMPTZ) AS hour, v FROM t"
    assert client.sql(query, files=files).to_arrow().to_pylist() == [{"hour": 0, "v": 20}]
