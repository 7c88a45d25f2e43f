"""Windows of time as table functions, and `EMIT FINAL`, against a model in Python that shares nothing with them."""

import datetime
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import persist
from persist.events import InsertIfAbsent
from tests.compute.sql.oracle import comparable
from tests.support.tiers import examples

Row = tuple[int, datetime.datetime | None, str | None]
Window = tuple[datetime.datetime, datetime.datetime]
ORIGIN = datetime.datetime(2000, 1, 3)
MINUTE = datetime.timedelta(minutes=1)
CALLS = {
    "tumble(bids, ts, INTERVAL '10 minutes')": ("hop", 10, 10, 0),
    "tumble('bids', ts, INTERVAL '7' MINUTE, INTERVAL '2 minutes')": ("hop", 7, 7, 2),
    "hop(bids, ts, INTERVAL 5 MINUTE, INTERVAL 15 MINUTE)": ("hop", 5, 15, 0),
    "hop(bids, ts, INTERVAL 10 MINUTE, INTERVAL 4 MINUTE, shift := INTERVAL 1 MINUTE)": ("hop", 10, 4, 1),
    "session(bids, ts, INTERVAL 4 MINUTE)": ("session", 4, False),
    "session(bids, ts, INTERVAL 4 MINUTE, person)": ("session", 4, True),
    "session(bids, ts, INTERVAL 4 MINUTE, partition_by := (person, person IS NULL))": ("session", 4, True),
}
KEYED = persist.Keyed(
    order_by=["ts"], late_bound=persist.Behind(datetime.timedelta(minutes=6)), machine=InsertIfAbsent()
)


def moment(minutes: int) -> datetime.datetime:
    return datetime.datetime(2026, 1, 1) + minutes * MINUTE


def windows(rows: Sequence[Row], about: tuple[Any, ...]) -> list[tuple[Row, Window]]:
    """Return each row with each of its windows."""
    kept = [(row, row[1]) for row in rows if row[1] is not None]
    if about[0] == "hop":
        slide, size, shift = (each * MINUTE for each in about[1:])
        origin = ORIGIN + shift
        found = []
        for row, at in kept:
            start = origin + (at - origin) // slide * slide
            while start + size > at:
                found.append((row, (start, start + size)))
                start -= slide
        return found
    gap, by_person = about[1] * MINUTE, about[2]
    found = []
    for person in {row[2] if by_person else None for row, _ in kept}:
        of_person = sorted((pair for pair in kept if not by_person or pair[0][2] == person), key=lambda pair: pair[1])
        sessions: list[list[tuple[Row, datetime.datetime]]] = []
        for pair in of_person:
            if not sessions or pair[1] >= sessions[-1][-1][1] + gap:
                sessions.append([])
            sessions[-1].append(pair)
        found += [(row, (one[0][1], one[-1][1] + gap)) for one in sessions for row, _ in one]
    return found


@pytest.mark.thorough(except_every=9)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("seed", range(examples(10)))
def test_a_row_is_in_the_windows_that_hold_its_time(client: persist.Client, call: str, seed: int) -> None:
    chance, rows = random.Random(seed), list[Row]()
    bids = client.create_or_load("bids", key={"id": int, "ts": pa.timestamp("us"), "person": str}, value=None)
    view = client.create_view("v", f"SELECT * FROM {call}")
    for time in range(4):
        updates = []
        for number in range(8):
            at = None if chance.random() < 0.1 else moment(chance.randrange(60))
            rows.append((10 * time + number, at, chance.choice(["a", "b", None])))
            updates.append(((rows[-1], None), time, 1))
            if chance.random() < 0.3:
                updates.append(((rows.pop(chance.randrange(len(rows))), None), time, -1))
        bids.write(updates, seal=time + 1).result()
        view.refresh()
        shown = view.snapshot(time).to_arrow().select(["id", "ts", "person", "window_start", "window_end"])
        got = Counter(tuple(row.values()) for row in shown.to_pylist())
        assert got == Counter((*row, *bounds) for row, bounds in windows(rows, CALLS[call])), time
        asked = client.sql(f"SELECT id, ts, person, window_start, window_end FROM {call}").to_arrow()
        assert Counter(tuple(row.values()) for row in asked.to_pylist()) == got


FINAL = [
    ("tumble(bids, ts, INTERVAL '10 minutes')", "person"),
    ("hop(bids, ts, INTERVAL 5 MINUTE, INTERVAL 15 MINUTE)", "NULL::VARCHAR"),
    ("session(bids, ts, INTERVAL 4 MINUTE, person)", "person"),
    ("session(bids, ts, INTERVAL 4 MINUTE)", "NULL::VARCHAR"),
]


@pytest.mark.thorough(except_every=2)
@pytest.mark.parametrize(("call", "person"), FINAL)
@pytest.mark.parametrize("seed", range(examples(10)))
def test_a_final_window_comes_once_and_stays(client: persist.Client, call: str, person: str, seed: int) -> None:
    chance, rows, number, head = random.Random(seed), dict[int, Row](), 0, 0
    value = {"ts": pa.timestamp("us"), "person": str}
    bids = client.create_or_load("bids", key={"id": int}, value=value, keyed=KEYED)
    view = client.create_view(
        "v",
        f"SELECT {person} AS who, window_start AS begun, window_end, count(*) AS n FROM {call}"
        " GROUP BY who, 2, window_end EMIT FINAL",
    )
    before: Counter[Any] = Counter()
    for time in range(8):
        head += chance.randrange(10)
        events = []
        for _ in range(6):
            number += 1
            identifier = number if chance.random() < 0.8 else max(1, number - 5)  # Some come again, and change nothing.
            events.append((identifier, (moment(head - chance.randrange(12)), chance.choice(["a", "b"])), time))
        future = bids.transition(events, seal=time + 1, late="collect")
        future.result()
        for identifier, at, who in bids.snapshot(time).to_arrow().select(["id", "ts", "person"]).to_pandas().values:
            rows.setdefault(int(identifier), (int(identifier), at.to_pydatetime(), who))
        watermark = max(at for _, at, _ in rows.values() if at is not None) - 6 * MINUTE
        made = windows([*rows.values()], CALLS.get(call) or ("hop", 10, 10, 0))
        groups = Counter((row[2] if person == "person" else None, *bounds) for row, bounds in made)
        want = Counter((*group, n) for group, n in groups.items() if group[2] <= watermark)
        view.refresh()
        shown = view.snapshot(time).to_arrow().select(["who", "begun", "window_end", "n"])
        have = Counter(tuple(row.values()) for row in shown.to_pylist())
        assert have == want, time
        assert not before - have, "a window that was final has changed"
        before = have


GOOD = "SELECT window_end, count(*) AS n FROM tumble(bids, ts, INTERVAL '10 minutes') GROUP BY window_end"


@pytest.mark.thorough(except_every=2)
@pytest.mark.parametrize(
    "sql",
    [
        f"{GOOD} emit /* at last */ FINAL -- once\n;",
        "SELECT window_start AS w, count(*) AS n FROM tumble(bids, ts, INTERVAL 5 MINUTE) GROUP BY ALL EMIT FINAL",
        f"{GOOD}, person QUALIFY rank() OVER (PARTITION BY window_end ORDER BY count(*) DESC) = 1 EMIT FINAL",
        "SELECT count(*) AS n FROM hop(Bids, TS, INTERVAL 1 DAY, INTERVAL 2 DAY) b GROUP BY b.window_start EMIT FINAL",
    ],
)
def test_what_each_window_says_alone_is_accepted(client: persist.Client, sql: str) -> None:
    bids = client.create_or_load("bids", key={"id": int}, value={"ts": pa.timestamp("us"), "person": str}, keyed=KEYED)
    view = client.create_view("v", sql)
    bids.transition([(1, (moment(1), "a"), 0), (2, (moment(9000), "a"), 0)], seal=1).result()
    view.refresh()
    assert view.snapshot(0).to_arrow()["n"].to_pylist()[:1] == [1]


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT count(*) AS n FROM tumble(bids, ts, INTERVAL 5 MINUTE)", "GROUP BY window_end"),
        (
            "SELECT person, count(*) AS n FROM tumble(bids, ts, INTERVAL 5 MINUTE) GROUP BY person",
            "GROUP BY window_end",
        ),
        (
            "SELECT window_end AS person, count(*) AS n FROM tumble(bids, ts, INTERVAL 5 MINUTE) GROUP BY person, 2",
            "GROUP BY window_end",
        ),
        (GOOD.replace("BY window_end", "BY ROLLUP (window_end)"), "no ROLLUP"),
        (f"{GOOD} LIMIT 3", "LIMIT"),
        (f"{GOOD} HAVING window_end < _now()", r"(?s)_now\(\).*\^"),
        (f"{GOOD} HAVING count(*) > (SELECT count(*) FROM bids)", "without subqueries"),
        (GOOD.replace("count(*)", "rank() OVER (ORDER BY window_end)"), r"(?s)PARTITION BY window_end.*\^"),
        (GOOD.replace("window_end", "DISTINCT ON (n) window_end", 1), "DISTINCT ON"),
        (GOOD.replace("ts,", "ts + INTERVAL 1 DAY,"), "no late bound"),
        (GOOD.replace("ts,", "seen,"), "no late bound that follows 'seen'"),
        (GOOD.replace("bids", "plain"), "no late bound"),
        (GOOD.replace("bids", "latest"), "may replace or delete"),
        (f"WITH bids AS (FROM bids) {GOOD}", "nothing else"),
        (f"{GOOD} UNION ALL {GOOD}", "nothing else"),
        (f"{GOOD.replace(' GROUP', ', plain GROUP')}", "nothing else"),
        ("SELECT id FROM bids", "nothing else"),
    ],
)
def test_what_could_change_after_it_was_final_is_refused(client: persist.Client, sql: str, message: str) -> None:
    value = {"ts": pa.timestamp("us"), "seen": pa.timestamp("us"), "person": str}
    client.create_or_load("bids", key={"id": int}, value=value, keyed=KEYED)
    client.create_or_load("plain", key={"id": int}, value=value)
    late = persist.Behind(datetime.timedelta(minutes=1))
    client.create_or_load("latest", key={"id": int}, value=value, keyed=persist.Keyed(order_by=["ts"], late_bound=late))
    with pytest.raises(persist.InvalidUsage, match=message):
        client.create_view("v", f"{sql} EMIT FINAL")
    assert "v" not in client.collections()


def test_a_window_without_a_length_or_a_table_is_refused(client: persist.Client) -> None:
    client.create_or_load("bids", key={"id": int}, value={"ts": pa.timestamp("us")})
    for sql, message in [
        ("FROM tumble(bids, ts, INTERVAL 0 MINUTE)", "no length"),
        ("FROM hop(bids, ts, INTERVAL 1 MINUTE, INTERVAL '-1' MINUTE)", "no length"),
        ("FROM session(bids, ts, INTERVAL '-1 day')", "no length"),
        ("FROM tumble(bid, ts, INTERVAL 1 MINUTE)", "did you mean 'bids'"),
        ("FROM tumble(bids, time, INTERVAL 1 MINUTE)", "time"),
        ("FROM tumble(bids, ts)", "tumble"),
    ]:
        with pytest.raises(persist.InvalidUsage, match=message):
            client.create_view("v", sql)


def test_windows_of_windows_replace_their_bounds(client: persist.Client) -> None:
    bids = client.create_or_load("bids", key={"id": int}, value={"ts": pa.timestamp("us")})
    bids.write([(1, moment(1)), (2, moment(21)), (3, moment(61))], time=0, seal=1).result()
    view = client.create_view(
        "v",
        "WITH small AS (SELECT window_end, count(*) AS n FROM tumble(bids, ts, INTERVAL 20 MINUTE) GROUP BY ALL)"
        " SELECT window_start, sum(n) AS n FROM hop(small, window_end, INTERVAL 1 HOUR, INTERVAL 1 HOUR) GROUP BY ALL",
    )
    view.refresh()
    rows = view.snapshot(0).to_arrow().select(["window_start", "n"]).to_pylist()
    assert sorted((row["window_start"], int(row["n"])) for row in rows) == [(moment(0), 2), (moment(60), 1)]


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


def second(seconds: float) -> datetime.datetime:
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
            at = second(time + away) if chance.random() < 0.9 else None
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
            now = f"TIMESTAMP '{second(time)}'" if start else f"{time}::BIGINT"
            connection.execute(f"CREATE MACRO _now() AS {now}")
            asked = connection.execute(sql)
            columns = [each[0] for each in asked.description]
            want = Counter(tuple(map(comparable, row)) for row in asked.fetchall())
        rows = view.snapshot(time).to_arrow().to_pylist()
        assert Counter(tuple(comparable(row[name]) for name in columns) for row in rows) == want, (sql, time)


@pytest.mark.thorough(except_every=12)
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


@pytest.mark.thorough(except_every=6)
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
        ("SELECT id FROM events WHERE 3 - _now() < n", "can be compared in WHERE only"),
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
