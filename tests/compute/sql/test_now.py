"""Temporal filters: `_now()` is the time as of which a view is read."""

import datetime
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import persist
from tests.compute.sql.oracle import comparable
from tests.support.tiers import examples

START = 1_767_225_600  # 2026-01-01T00:00Z, in seconds.
MOMENTS = [
    "SELECT id, k FROM events WHERE ts <= _now() AND _now() < ts + INTERVAL 5 SECOND",
    "SELECT k, count(*) AS n FROM events WHERE _now() BETWEEN ts AND ts + INTERVAL '2500 milliseconds' GROUP BY k",
    "SELECT id FROM events WHERE ts > _now() - INTERVAL 3 SECOND AND k IS NOT NULL",
    "SELECT id FROM events WHERE _now() + to_seconds(2) >= ts",
    "SELECT e.id, o.id AS other FROM events e JOIN events o USING (k) WHERE e.ts >= _now() - to_seconds(4)",
    "SELECT id FROM events WHERE ts = _now()",
    "SELECT id FROM events WHERE d < _now()",
    "SELECT id FROM events WHERE ts::TIMESTAMPTZ > _now() - INTERVAL 3 SECOND",
    "SELECT id FROM events WHERE _now() + to_seconds(2) >= ts::TIMESTAMPTZ",
    "SELECT k, max(ts) AS last FROM events GROUP BY k HAVING max(ts) > _now() - to_seconds(3)",
    "SELECT id FROM events e WHERE NOT EXISTS (SELECT 1 FROM events o WHERE o.k = e.k AND o.ts > _now())",
    "SELECT count(*) AS n FROM (SELECT id, k FROM events WHERE ts < _now()) LEFT JOIN events o USING (id)",
]
NUMBERS = [
    "SELECT id, k FROM events WHERE n <= _now() AND _now() < n + 4",
    "SELECT k, count(*) AS c FROM events WHERE n BETWEEN _now() - 2 AND _now() GROUP BY k",
    "SELECT id FROM events WHERE 3 + _now() > n AND n <> 5",
    "SELECT id FROM events WHERE _now() > 4 AND n = _now()",
    "SELECT id FROM events WHERE _now() > NULL",
    "SELECT id FROM events WHERE _now() < n + NULL::BIGINT",
]


@pytest.fixture
def client() -> Iterator[persist.Client]:
    with persist.open("memory://now") as found:
        yield found
        for each in found.collections():
            if each != "events":
                found.drop(each).result()
        found.drop("events").result()


def moment(seconds: float) -> datetime.datetime:
    return datetime.datetime(1970, 1, 1) + datetime.timedelta(seconds=seconds)


def played(
    client: persist.Client, start: int, value: dict[str, Any], seed: int
) -> tuple[persist.Collection, list[str]]:
    """Return a collection of which rows came and went at ten times."""
    unit = "s" if start else None
    events = client.create_or_load("events", key={"id": pa.int64()}, value=value, timeline=unit)
    chance, known = random.Random(seed), list[Any]()
    for time in range(start, start + 10):
        updates: list[Any] = []
        for number in range(3):
            away = chance.uniform(-6, 6) if chance.random() < 0.8 else float(chance.randrange(-6, 6))
            at = moment(time + away) if chance.random() < 0.9 else None
            about: Any = (at, at and at.date()) if start else (None if at is None else int(time + away),)
            record = ((time - start) * 10 + number, (chance.choice(["a", "b", None]), *about))
            known.append(record)
            updates.append((record, time, 1))
        if chance.random() < 0.5:
            updates.append((known.pop(chance.randrange(len(known))), time, -1))
        events.write(updates)
    return events, []


def check(client: persist.Client, events: persist.Collection, view: persist.Collection, sql: str, start: int) -> None:
    for time in range(start, start + 14):
        with duckdb.connect(":memory:") as connection:
            connection.register("events", events.snapshot(time).to_arrow())
            now = f"TIMESTAMP '{moment(time)}'" if start else f"{time}::BIGINT"
            connection.execute(f"CREATE MACRO _now() AS {now}")
            asked = connection.execute(sql)
            columns = [each[0] for each in asked.description]
            want = Counter(tuple(map(comparable, row)) for row in asked.fetchall())
        rows = view.snapshot(time).to_arrow().to_pylist()
        assert Counter(tuple(comparable(row[name]) for name in columns) for row in rows) == want, (sql, time)


@pytest.mark.thorough(except_every=6)
@pytest.mark.parametrize("sql", MOMENTS)
def test_a_view_of_what_is_current_follows_the_moments_of_a_timeline(client: persist.Client, sql: str) -> None:
    value = {"k": pa.string(), "ts": pa.timestamp("us"), "d": pa.date32()}
    events, _ = played(client, START, value, seed=len(sql))
    events.seal(START + 1).result()
    view = client.create_view("current", sql)
    # Some steps of one time, one of many, and a restart.
    for sealed in (START + 1, START + 2, START + 3, START + 9, START + 14):
        events.seal(sealed).result()
        view.refresh()
        if sealed == START + 3:
            view.close()
    check(client, events, view, sql, START)


@pytest.mark.thorough(except_every=3)
@pytest.mark.parametrize("sql", NUMBERS)
@pytest.mark.parametrize("seed", range(examples(4)))
def test_a_view_of_what_is_current_follows_times_that_only_count(client: persist.Client, sql: str, seed: int) -> None:
    events, _ = played(client, 0, {"k": pa.string(), "n": pa.int64()}, seed)
    view = client.create_view("current", sql)
    for sealed in (1, 4, 14):
        events.seal(sealed).result()
        view.refresh()
    check(client, events, view, sql, 0)


def test_what_is_over_is_forgotten_below_a_join(client: persist.Client) -> None:
    events, _ = played(client, 0, {"k": pa.string(), "n": pa.int64()}, 1)
    view = client.create_view("current", "SELECT e.id FROM events e JOIN events o USING (k) WHERE e.n > _now() - 2")
    shown = view.explain()
    assert "temporal_filter" in shown.split("join[", 1)[1].split("input 1:", 1)[0], shown
    events.seal(20).result()
    view.refresh()
    assert view.snapshot(19).count() == 0


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT id, _now() AS t FROM events", r"(?s)can be compared in WHERE only.*line 1.*\^"),
        ("SELECT id FROM events WHERE n < _now() OR k = 'a'", "can be compared in WHERE only"),
        ("SELECT id FROM events WHERE NOT (n < _now())", "can be compared in WHERE only"),
        ("SELECT id FROM events WHERE n + _now() > 3", "can be compared in WHERE only"),
        ("SELECT id FROM events WHERE _now() * 2 > n", "can be compared in WHERE only"),
        ("SELECT id FROM events WHERE _now() <> n", "can be compared in WHERE only"),
        ("SELECT e.id FROM events e LEFT JOIN events o ON e.n + o.n > _now()", "can be compared in WHERE only"),
        ("SELECT id FROM events ORDER BY _now() LIMIT 1", "can be compared in WHERE only"),
        ("SELECT sum(_now()) AS s FROM events", "can be compared in WHERE only"),
        ("SELECT count(*) FILTER (WHERE n > _now()) AS s FROM events", "can be compared in WHERE only"),
        ("SELECT id FROM events WHERE k < _now()", "Cannot compare|compared"),
        (
            "WITH RECURSIVE r(n) AS (SELECT 1 UNION SELECT n + 1 FROM r WHERE n < _now()) SELECT n FROM r",
            "step of WITH RECURSIVE",
        ),
    ],
)
def test_now_where_it_cannot_be_kept_up_to_date_is_refused(client: persist.Client, sql: str, message: str) -> None:
    client.create_or_load("events", key={"id": pa.int64()}, value={"k": pa.string(), "n": pa.int64()})
    with pytest.raises(persist.InvalidUsage, match=message):
        client.create_view("bad", sql)


def test_now_at_a_distance_of_months_is_refused(client: persist.Client) -> None:
    value = {"ts": pa.timestamp("us")}
    client.create_or_load("events", key={"id": pa.int64()}, value=value, timeline="s")
    with pytest.raises(persist.InvalidUsage, match="months and years are not of one length"):
        client.create_view("bad", "SELECT id FROM events WHERE ts > _now() - INTERVAL 1 MONTH")
