"""A view depends on its inputs alone: not on a clock, a random source, or the session that made it."""

import json
import os
import subprocess

import duckdb
import pyarrow as pa
import pytest

import persist
from tests.support.forks import forked_python

COLUMNS = {
    "z": pa.timestamp("us", "UTC"), "ts": pa.timestamp("us"), "d": pa.date32(), "user": pa.string(), "n": pa.int64()
}  # fmt: skip


@pytest.fixture
def client(client: persist.Client) -> persist.Client:
    client.create_or_load("events", key={"id": pa.int64()}, value=COLUMNS, timeline="ms")
    return client


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT id FROM events WHERE z > now() - INTERVAL 1 DAY",
        "SELECT id FROM events WHERE z > CURRENT_TIMESTAMP",
        "SELECT id FROM events WHERE d >= current_date - 1",
        "SELECT id FROM events WHERE date_diff('day', d, current_date) < 7",
        "SELECT id FROM events WHERE d = today() - INTERVAL 7 DAY",
        "SELECT id, localtime AS x FROM events",
        "SELECT id FROM events WHERE ts < localtimestamp",
        "SELECT id, age(ts) AS x FROM events",
        "SELECT id, ts.age() AS x FROM events",
        "SELECT id, ago(INTERVAL 1 DAY) AS x FROM events",
        'SELECT id, "Now" ( ) AS x FROM events',
        "WITH c AS (SELECT current_date AS x) SELECT id, x FROM events, c",
        "SELECT id, (SELECT max(today())) AS x FROM events",
        "SELECT id FROM events JOIN LATERAL (SELECT now() AS y) ON true",
        "SELECT count(*) AS n FROM events GROUP BY date_trunc('day', current_date)",
        "SELECT id, row_number() OVER (PARTITION BY current_date) AS x FROM events",
        "SELECT d, window_start FROM tumble(events, ts, INTERVAL 1 DAY, shift := now() - TIMESTAMPTZ '2020-01-01')",
    ],
)
def test_rule_26_a_query_that_reads_the_clock_in_any_form_is_refused_with_what_to_write(
    client: persist.Client, sql: str
) -> None:
    with pytest.raises(persist.InvalidUsage, match=r"gives something else each time.*WHERE ts > _now\(\) - INTERVAL"):
        client.create_view("view", sql)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT id FROM events ORDER BY random() LIMIT 1",
        "SELECT id FROM events LIMIT random()::INT",
        "SELECT id, [x + random() FOR x IN [1]] AS x FROM events",
        "SELECT id, TRY(random()) AS x FROM events",
        "SELECT id, gen_random_uuid() AS x FROM events",
        "SELECT id, nextval('s') AS x FROM events",
        "SELECT id, current_setting('TimeZone') AS x FROM events",
        "SELECT id, getvariable('x') AS x FROM events",
        "SELECT id, current_user AS x FROM events",
        "SELECT id, session_user AS x FROM events",
        "SELECT id, version() AS x FROM events",
    ],
)
def test_rule_26_a_query_that_reads_a_random_source_or_session_is_refused(client: persist.Client, sql: str) -> None:
    with pytest.raises(persist.InvalidUsage, match=r"(?s)gives something else each time.*keep the value.*\^"):
        client.create_view("view", sql)


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT id, system.main.now() AS x FROM events", r"write now\(\) for system.main.now\(\)"),
        ('SELECT id, "System".random() AS x FROM events', r"write random\(\) for"),
        ("SELECT id FROM events, system.main.query('SELECT system.now() AS x')", r"write query\(\) for"),
        ("SELECT id FROM events, query('SELECT system.now() AS x')", r"query\(\) hides what it reads"),
    ],
)
def test_a_whole_name_or_a_query_in_a_text_is_no_way_around(client: persist.Client, sql: str, message: str) -> None:
    with pytest.raises(persist.InvalidUsage, match=message):
        client.create_view("view", sql)


def test_every_function_that_duckdb_marks_as_changing_is_refused(client: persist.Client) -> None:
    marked = duckdb.sql(
        "SELECT lower(function_name), min(len(parameters)) FROM duckdb_functions() WHERE function_type = 'scalar'"
        " GROUP BY 1 HAVING bool_or(stability = 'VOLATILE') OR bool_and(stability = 'CONSISTENT_WITHIN_QUERY')"
    ).fetchall()
    assert len(marked) > 25
    for name, count in marked:
        if name != "error":
            with pytest.raises(persist.InvalidUsage, match=f"{name}\\(\\) gives something else each time"):
                client.create_view("view", f'SELECT id, "{name}"({", ".join(["NULL"] * count)}) AS x FROM events')


def test_a_column_with_the_name_of_a_clock_and_a_distance_of_two_moments_are_no_clock(client: persist.Client) -> None:
    sql = 'SELECT id, user, events.user AS "now", age(ts, d) AS age FROM events WHERE z > _now() - INTERVAL 1 DAY'
    assert client.create_view("allowed", sql).columns == ["id", "user", "now", "age"]


def test_a_view_is_the_same_in_every_time_zone() -> None:
    program = f"""
import json, persist, pyarrow as pa, datetime
client = persist.open("memory://x")
table = client.create_or_load("t", key={{"id": int}}, value={{"z": pa.timestamp("us", "UTC")}})
table.write([(1, datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc))]).result()
view = client.create_view("v", {VIEWED!r})
view.refresh()
print(json.dumps(view.snapshot().to_pylist(), default=str))
"""
    environment = {**os.environ, "TZ": "America/New_York"}
    command = [*forked_python(), "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    [row] = json.loads(done.stdout)
    assert (row["text"], row["hour"], row["as_text"]) == ("00", 0, "2020-01-01 00:00:00+00")
    assert row["folded"] == "2020-06-01 00:00:00+00:00"


VIEWED = (
    "SELECT id, strftime(z, '%H') AS text, hour(z) AS hour, z::VARCHAR AS as_text,"
    " TIMESTAMPTZ '2020-05-31 00:00:00' + INTERVAL 1 DAY AS folded FROM t"
)
