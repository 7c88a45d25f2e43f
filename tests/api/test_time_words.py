"""Words for time: "now", "yesterday", "-1d" and others mean the same wherever a time is taken."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

import persist
from persist.core.timeline import parse_time, parse_time_word
from persist.tools.cli.main import main
from tests.support.clocks import DatedBlob, ImpatientClock

NOON = datetime(2026, 11, 21, 12, 0, 0, 123456, tzinfo=UTC)
DAY = timedelta(days=1)


@pytest.fixture
def client() -> Iterator[persist.Client]:
    clock = ImpatientClock(NOON.timestamp())
    with persist.open(DatedBlob(clock), clock=clock, settings=persist.Settings(background=False)) as opened:
        yield opened


@pytest.fixture
def orders(client: persist.Client) -> persist.Collection:
    """One row from ten days ago on, a second one from ten hours ago on, a third one from an hour ago on."""
    made = client.create_or_load("orders", key={"id": int}, value={"status": str}, timeline="ms")
    for number, ago in enumerate((10 * DAY, timedelta(hours=10), timedelta(hours=1))):
        at = (NOON - ago).replace(microsecond=0)
        made.write([(number, "new")], time=at, seal=at + timedelta(milliseconds=1)).result()
    return made


WORDS = {
    "now": 3,
    " Now ": 3,
    "latest": 3,
    "today": 1,
    "yesterday": 1,
    "-1d": 1,
    "- 2 h": 2,
    "2 hours ago": 2,
    "30 min ago": 3,
    "2 weeks ago": 0,
    "2026-11-21": 1,
    "20261121": 1,
    "2026-11-21T02:00Z": 2,
    "2026-11-21 02:30:00.1234567": 2,
    "2026-11-21T03:30+01:00": 2,
}


@pytest.mark.parametrize(("word", "rows"), WORDS.items())
def test_a_word_reads_the_contents_of_its_moment(orders: persist.Collection, word: str, rows: int) -> None:
    assert orders.snapshot(word, timeout_s=0).count() == rows
    assert orders.diff(0, word).to_arrow().num_rows == rows
    assert orders.changes(0, word, timeout_s=0).to_arrow().num_rows in (rows, rows - 1)  # The bound is exclusive.


@pytest.mark.parametrize(("word", "rows"), [("today", 1), ("1 min ago", 3), ("tomorrow", 3), ("2026-11-21", 1)])
def test_a_query_reads_as_of_words(orders: persist.Collection, client: persist.Client, word: str, rows: int) -> None:
    answer: Any = client.sql(f"SELECT * FROM orders TIMESTAMP AS OF '{word}'")
    assert answer.to_arrow().num_rows == rows
    other: Any = client.sql("SELECT * FROM orders", as_of=word)
    assert other.to_arrow().num_rows == rows


def test_words_of_the_clock_are_the_last_sealed_time_and_a_day_is_not(orders: persist.Collection) -> None:
    assert orders.snapshot("now").as_of == orders.upper.time - 1  # type: ignore[operator]
    with pytest.raises(persist.errors.AsOfNotSealed):
        orders.snapshot("2026-11-22", timeout_s=0)
    assert orders.changes("now").to_arrow().num_rows == 0
    assert orders.snapshot(NOON - timedelta(hours=2)).count() == 2  # Finer than the timeline: rounded down.


def test_words_need_a_timeline_and_now_and_latest_do_not(client: persist.Client) -> None:
    counted = client.create_or_load("counted", key={"id": int})
    counted.write([(1, None)], time=4, seal=5).result()
    assert [counted.snapshot(word).as_of for word in ("now", "latest", "4")] == [4, 4, 4]
    for word in ("yesterday", "-1d", "2 hours ago"):
        with pytest.raises(persist.InvalidUsage, match="has no timeline"):
            counted.snapshot(word)
    with pytest.raises(persist.InvalidUsage, match="spans are in s, min, h, d or w"):
        counted.snapshot("2 months ago")
    with pytest.raises(persist.InvalidUsage, match="a number of 31 digits is not a time"):
        counted.snapshot("1" * 31)


def test_updates_are_written_now_and_at_words(orders: persist.Collection) -> None:
    orders.write([((7, "new"), "now", 1)], seal="tomorrow").result()
    orders.overwrite([(7, "old")], time="2026-11-22T00:00:00.001Z").result()
    assert orders.snapshot("2026-11-21T12:00:01Z").get([7]) == [(7, "new")]
    with pytest.raises(persist.InvalidUsage, match=r'lies between two times .*12:00:00.123Z and .*"now" for the time'):
        orders.write([(8, "new")], time=NOON)
    with pytest.raises(persist.errors.InvalidUpdate, match='"now" for the time'):
        orders.write([((8, "new"), NOON, 1)])
    with pytest.raises(persist.InvalidUsage, match="has no time zone") as refused:
        orders.write([(8, "new")], time=NOON.replace(tzinfo=None))
    assert "datetime.now(timezone.utc)" not in str(refused.value)  # It is finer than the timeline.


@pytest.mark.parametrize("call", ["snapshot", "changes", "write", "seal"])
def test_a_float_is_no_time_and_the_error_says_what_is(orders: persist.Collection, call: str) -> None:
    with pytest.raises(persist.InvalidUsage, match=r'is a float: give a whole number of ms since 1970.*"now"'):
        orders.write([(1, "x")], time=1.5) if call == "write" else getattr(orders, call)(1.5)  # type: ignore[arg-type]


def test_a_frontier_shows_its_moment_where_times_are_moments(
    orders: persist.Collection, client: persist.Client
) -> None:
    assert str(orders.upper) == "2026-11-21T11:00:00.001Z"
    assert (str(orders.since), orders.since, repr(orders.since)) == ("0", persist.Antichain(0), "Antichain(0)")
    assert orders.upper == persist.Antichain(orders.upper.time) == orders.upper.time  # type: ignore[arg-type]
    orders.seal(persist.Antichain()).result()
    assert str(orders.upper) == "for ever"
    assert str(client.create_or_load("counted", key={"id": int}).upper) == "Antichain(0)"


def test_a_view_begins_at_a_word(client: persist.Client, orders: persist.Collection) -> None:
    assert client.create_view("v", "SELECT * FROM orders", start="now").definition.start == orders.upper.time - 1  # type: ignore[operator]
    begin = client.create_view("w", "SELECT * FROM orders", start="20261121").definition.start
    assert begin == int(datetime(2026, 11, 21, tzinfo=UTC).timestamp() * 1000)
    with pytest.raises(persist.InvalidUsage, match="is not a time"):
        client.create_view("x", "SELECT * FROM orders", start="whenever")


def test_the_command_line_tells_what_changed_since_yesterday(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with persist.open(tmp_path / "shop") as client:
        client.write("orders", pa.table({"id": [1], "status": ["new"]}), key=["id"]).result()
    for start in ("yesterday", "-1d"):
        assert main(["diff", str(tmp_path / "shop"), "orders", start, "now"]) == 0
        assert "insert" in capsys.readouterr().out
    assert main(["diff", str(tmp_path / "shop"), "orders", "latest", "now"]) == 0
    assert "insert" not in capsys.readouterr().out
    assert main(["read", str(tmp_path / "shop"), "orders", "--as-of", "1 min ago"]) == 0


@pytest.mark.parametrize(("word", "at"), [("yesterday", "2026-11-20"), ("-1d", NOON - DAY), ("20261120", "2026-11-20")])
def test_rows_are_written_at_the_time_of_a_word(client: persist.Client, word: str, at: Any) -> None:
    frame = pa.table({"id": [1], "today": [5]})
    client.write("plain", frame, key=[], time=word).result()
    client.write("by key", frame, key=["id"], time=word).result()
    client.create_or_load("keyed", like=frame, key=["id"], timeline="ms", keyed=persist.Keyed())
    client["keyed"].upsert(frame, time=word).result()
    for name in ("plain", "by key", "keyed"):
        collection = client[name]
        assert collection.timeline is not None
        written = collection.unsealed.first if collection.unsealed else collection.upper.time - 1  # type: ignore[operator]
        assert written == collection.timeline.to_time(at)
    with pytest.raises(persist.InvalidUsage, match="the collection 'n' has no timeline"):
        client.write("n", frame, key=[], time="today", timeline=None)  # And not the times of that column.


def test_a_command_writes_at_the_time_of_a_word(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    shop, file = str(tmp_path / "shop"), tmp_path / "orders.csv"
    file.write_text("id,today\n1,5\n")
    assert main(["write", shop, "orders", str(file), "--key", "id", "--time", "yesterday"]) == 0
    with persist.open(shop, mode="read") as client:
        assert client["orders"].upper.time % 86_400_000 == 1  # type: ignore[operator]
    assert main(["write", shop, "orders", str(file), "--time-column", "today", "--mode", "append"]) == 2
    assert "rename the column" in capsys.readouterr().err
    assert main(["write", shop, "orders", str(file), "--time", "soon", "--mode", "append"]) == 2
    assert (
        """'soon' is not a time: give a number, or, where times are moments, "now", "yesterday","""
        in capsys.readouterr().err
    )


def test_words_are_read_in_any_case_and_other_text_is_none() -> None:
    wall_ms = int(NOON.timestamp() * 1000)
    assert parse_time_word("YESTERDAY", wall_ms) == datetime(2026, 11, 20, tzinfo=UTC)
    assert parse_time_word("tomorrow", wall_ms) == datetime(2026, 11, 22, tzinfo=UTC)
    assert parse_time_word("-90 s", wall_ms) == datetime.fromtimestamp(wall_ms / 1000 - 90, UTC)
    assert [parse_time_word(text, wall_ms) for text in ("quarter-end", "2026-11-21", "1d", 5, None)] == [None] * 5
    with pytest.raises(persist.InvalidUsage, match="before the year 1"):
        parse_time_word("-999999999 weeks", wall_ms)
    assert [parse_time(given) for given in (" 12 ", "-3", "20261121", "1.5", "now", 4)] == [
        *[12, -3, 20261121, "1.5", "now", 4]
    ]
