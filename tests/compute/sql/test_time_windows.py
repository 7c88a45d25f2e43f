"""Windows of time as table functions, and `EMIT FINAL`, against a model in Python that shares nothing with them."""

import datetime
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

import persist
from persist.events import InsertIfAbsent
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


@pytest.fixture
def client() -> Iterator[persist.Client]:
    with persist.open("memory://time-windows") as found:
        yield found
        for name in ["v", *found.collections()]:
            if name in found.collections():
                found.drop(name).result()


@pytest.mark.thorough(except_every=3)
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
