"""Moments instead of numbers, wherever a time is given, and back: exact, or an error."""

import pickle
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import persist
from persist import Antichain
from persist.core.timeline import Timeline
from persist.dataflow import Program

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
NOON_MS = 1795262400_000
NAIVE = NOON.replace(tzinfo=None)


@pytest.fixture
def clicks(client: persist.Client) -> persist.Collection:
    return client.create_or_load("clicks", key={"k": pa.int64()}, timeline="ms")


def times(clicks: persist.Collection) -> list[int]:
    found: list[int] = clicks.changes(0, times="int").to_arrow()["_time"].to_pylist()
    return found


MOMENTS: list[Any] = [
    NOON,
    "2026-11-21T13:00:00+01:00",
    "2026-11-21 12:00",
    pd.Timestamp("2026-11-21 12:00", tz="UTC"),
    pd.Timestamp("2026-11-21 07:00", tz="America/New_York").as_unit("s"),
    *(pa.scalar(NOON, pa.timestamp(unit, "Asia/Kolkata")) for unit in ("s", "ms", "us", "ns")),
]


@pytest.mark.parametrize("moment", MOMENTS, ids=repr)
def test_updates_of_a_moment_are_written_at_its_time(clicks: persist.Collection, moment: Any) -> None:
    clicks.write([((1, None), moment, 1)]).result()
    clicks.write([((k, None), moment, 1) for k in range(40)], seal=NOON + timedelta(seconds=1)).result()
    assert set(times(clicks)) == {NOON_MS}
    assert clicks.upper == NOON_MS + 1000


def with_time(column: Any) -> pa.Table:
    return pa.table({"k": range(len(column)), "_time": column, "_diff": [1] * len(column)})


COLUMNS: dict[str, Callable[[], Any]] = {
    "seconds": lambda: with_time(pa.array([NOON, NOON], pa.timestamp("s", "Europe/Berlin"))),
    "milliseconds": lambda: with_time(pa.array([NOON, NOON], pa.timestamp("ms", "UTC"))),
    "nanoseconds": lambda: with_time(pa.array([NOON, NOON], pa.timestamp("ns", "+05:30"))),
    "pandas": lambda: pd.DataFrame({"k": [0, 1], "_time": pd.to_datetime([NOON, NOON], utc=True), "_diff": 1}),
    "polars": lambda: pl.DataFrame({"k": [0, 1], "_time": [NOON, NOON], "_diff": [1, 1]}),
    "text": lambda: with_time(["2026-11-21T12:00:00Z", "2026-11-21T13:00:00+01:00"]),
    "plain text": lambda: with_time(["2026-11-21 12:00:00", "2026-11-21T12:00:00"]),
    "long text": lambda: with_time(["2026-11-21T12:00:00.000000000000Z", "2026-11-21T12:00"]),
    "dictionary": lambda: with_time(pa.array([NOON, NOON], pa.timestamp("us", "UTC")).dictionary_encode()),
    "dicts": lambda: [{"k": 0, "_time": NOON, "_diff": 1}, {"k": 1, "_time": pd.Timestamp(NOON), "_diff": 1}],
    "columns": lambda: {"k": [0, 1], "_time": ["2026-11-21T12:00Z"] * 2, "_diff": [1, 1]},
    "a stream": lambda: (with_time(pa.array([NOON, NOON])).slice(at, 1) for at in range(2)),
    "numbers": lambda: with_time([NOON_MS, NOON_MS]),
}


@pytest.mark.parametrize("columns", COLUMNS.values(), ids=COLUMNS)
def test_a_frame_has_moments_in_its_time_column(clicks: persist.Collection, columns: Callable[[], Any]) -> None:
    clicks.write(columns(), seal=NOON_MS + 1).result()
    assert times(clicks) == [NOON_MS, NOON_MS]


def test_a_column_of_dates_is_midnight(clicks: persist.Collection) -> None:
    clicks.write(with_time(pa.array([date(2026, 11, 21)])), seal=NOON).result()
    assert times(clicks) == [NOON_MS - 12 * 3600_000]


@pytest.mark.parametrize(
    ("time", "says"),
    [
        (NAIVE, r"update 0: .*has no time zone.*moment.replace\(tzinfo=timezone.utc\)"),
        (pd.Timestamp(NAIVE), "has no time zone"),
        (np.datetime64("2026-11-21T12:00"), r"has no time zone.*pandas.Timestamp\(moment, tz=\"UTC\"\)"),
        (pa.scalar(NAIVE), r"has no time zone.*assume_timezone"),
        (pd.NaT, "NaT is not a moment"),
        (NOON + timedelta(microseconds=1), "lies between two times of a timeline in ms"),
        (pd.Timestamp(NOON) + pd.Timedelta(1, "ns"), "lies between two times"),
        ("1969-12-31", "these go from 1970-01-01"),
        ("noon", "write it as 2026-11-21T12:00:00Z"),
        (1.5, r"has 1.5 \(float\) for _time of type int64: float is not what it takes. Give an int that fits int64\.$"),
    ],
)
def test_a_time_of_an_update_that_is_no_moment_is_refused(clicks: persist.Collection, time: Any, says: str) -> None:
    with pytest.raises(persist.errors.InvalidUpdate, match=says):
        clicks.write([((1, None), time, 1)])


def uses(clicks: persist.Collection, hold: persist.Hold, time: Any) -> list[Callable[[], Any]]:
    """Return whatever takes a time."""
    return [
        lambda: clicks.seal(time),
        lambda: clicks.write([], seal=time),
        lambda: clicks.seal(NOON, expected_upper=time),
        lambda: clicks.allow_compaction(time),
        lambda: clicks.hold(time),
        lambda: hold.advance(time),
        lambda: clicks.snapshot(time),
        lambda: clicks.changes(time),
        lambda: clicks.changes(0, time),
        lambda: clicks.listen(time),
        lambda: clicks.subscribe(time),
    ]


def test_naive_moments_are_refused_wherever_a_time_is_given(clicks: persist.Collection) -> None:
    clicks.seal(NOON).result()
    hold = clicks.hold(NOON)
    for naive in (NAIVE, pd.Timestamp(NAIVE), np.datetime64("2026-11-21T12:00"), pa.scalar(NAIVE)):
        for use in uses(clicks, hold, naive):
            with pytest.raises(persist.InvalidUsage, match="has no time zone, so it may be any of many moments"):
                use()


@pytest.mark.parametrize("unit", ["s", "ns"])
def test_a_column_of_naive_moments_is_refused_with_what_to_write(clicks: persist.Collection, unit: str) -> None:
    with pytest.raises(persist.errors.SchemaMismatch, match=r"without a time zone.*tz_localize.*replace_time_zone"):
        clicks.write(with_time(pa.array([NAIVE], pa.timestamp(unit))))


def test_a_column_that_the_unit_cannot_hold_names_the_row(client: persist.Client, clicks: persist.Collection) -> None:
    fine = pa.array([NOON, NOON + timedelta(microseconds=7)], pa.timestamp("us", "UTC"))
    with pytest.raises(persist.errors.InvalidUpdate, match=r"update 1 has the time 2026-11-21 12:00:00.000007.*to ms"):
        clicks.write(with_time(fine))
    with pytest.raises(persist.errors.InvalidUpdate, match=r"the time of update 1: .*lies between two times"):
        clicks.write(with_time(["2026-11-21", "2026-11-21T12:00:00.0001Z"]))
    nanos = client.create_or_load("nanos", key={"k": pa.int64()}, timeline="ns")
    with pytest.raises(persist.errors.InvalidUpdate, match="update 1 has the time"):
        nanos.write(with_time(pa.array([NOON, datetime(2400, 1, 1, tzinfo=UTC)], pa.timestamp("us", "UTC"))))


def test_moments_without_a_timeline_are_told_to_make_one(orders: persist.Collection) -> None:
    with pytest.raises(
        persist.errors.SchemaMismatch, match=r'has no timeline by which a moment would be .*timeline="us"'
    ):
        orders.write(with_time(pa.array([NOON])).append_column("v", [["x"]]))
    with pytest.raises(persist.errors.InvalidUpdate, match=r'with a timeline, such as timeline="us"'):
        orders.write([((1, "x"), NOON, 1)])
    with pytest.raises(persist.InvalidUsage, match=r"has no timeline .*timeline=\"us\""):
        orders.seal(NOON)  # type: ignore[arg-type, unused-ignore]


def test_frontiers_and_holds_are_moved_to_moments(client: persist.Client, clicks: persist.Collection) -> None:
    late = NOON + timedelta(microseconds=1500)
    clicks.seal(late, expected_upper=0).result()
    assert clicks.upper == NOON_MS + 2  # All times before it are sealed, and no other.
    hold = clicks.hold(NOON, name="mine")
    hold.advance(late)
    assert hold.time == NOON_MS + 1
    clicks.allow_compaction(late).result()
    assert clicks.since == NOON_MS + 1
    assert clicks.snapshot(late).as_of == NOON_MS + 1
    with client.multi_write() as multi:
        multi.expect_upper(clicks, late)
        multi.write(clicks, [((1, None), NOON + timedelta(seconds=1), 1)])
        multi.seal(clicks, "2026-11-21T12:00:02Z")
    assert clicks.upper == NOON_MS + 2000


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_times_come_back_as_timestamps(client: persist.Client, unit: str) -> None:
    line = client.create_or_load("line", key={"k": pa.int64()}, timeline=unit)
    line.write([((1, None), NOON, 1)], seal=date(2026, 11, 22)).result()
    kind = pa.timestamp(unit, "UTC")
    changes = line.changes(0)
    assert changes.schema.field("_time").type == kind
    assert changes.to_arrow().schema == changes.schema
    assert changes.to_arrow()["_time"].to_pylist() == [NOON]
    assert line.changes(0, times="int").schema.field("_time").type == pa.int64()
    for times, expected in ((None, kind), ("timestamp", kind), ("int", pa.int64())):
        forms: Any = {"times": times}
        begun = (line.listen(**forms), line.subscribe(**forms), line.follow(f"by {times}", **forms))
        with client.follow({line: None}, **forms) as together:
            tables = [next(together)[line].updates, *(next(following).updates for following in begun)]
        assert [table.schema.field("_time").type for table in tables] == [expected] * 4
        for following in begun:
            following.close()
    # What came out goes in again.
    line.drop().result()
    again = client.create_or_load("again", key={"k": pa.int64()}, timeline=unit)
    again.write(with_time(pa.array([NOON], kind)), seal=date(2026, 11, 22)).result()
    assert again.changes(0, times="timestamp").to_pandas()["_time"].tolist() == [pd.Timestamp(NOON)]


def test_timestamps_need_a_timeline(orders: persist.Collection) -> None:
    with pytest.raises(persist.InvalidUsage, match="the collection 'orders' has none"):
        orders.changes(0, times="timestamp")
    with pytest.raises(persist.InvalidUsage, match="times='moment' is not a form of a time"):
        orders.listen(times="moment")  # type: ignore[arg-type]


def test_messages_and_reprs_show_moments(
    client: persist.Client, clicks: persist.Collection, capsys: pytest.CaptureFixture[str]
) -> None:
    clicks.write([((1, None), NOON + timedelta(milliseconds=5), 1)]).result()
    clicks.seal(NOON).result()
    clicks.allow_compaction(NOON - timedelta(seconds=1)).result()
    assert repr(clicks).endswith(
        "sealed before 2026-11-21T12:00:00Z, 1 update at time 2026-11-21T12:00:00.005Z not sealed>"
    )
    shown = f"{NOON_MS} (2026-11-21T12:00:00Z)"
    failing: list[tuple[type[persist.PersistError], Callable[[], Any]]] = [
        (persist.errors.AsOfNotSealed, lambda: clicks.snapshot(NOON, timeout_s=0)),
        (persist.errors.AsOfNotSealed, lambda: clicks.changes(NOON, NOON + timedelta(seconds=1), timeout_s=0)),
        (persist.errors.UpdateNotBeyondUpper, lambda: clicks.write([((1, None), 7, 1)]).result()),
        (persist.errors.FrontierRegression, lambda: clicks.seal(persist.Antichain(7)).result()),
        (persist.errors.UpperMismatch, lambda: clicks.seal(NOON, expected_upper=7).result()),
    ]
    for kind, call in failing:
        with pytest.raises(kind) as caught:
            call()
        assert shown in str(caught.value)
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    with pytest.raises(persist.errors.AsOfCompacted, match=r"as_of=7 \(1970-01-01T00:00:00.007Z\) is before since="):
        clicks.snapshot(7)
    assert "(2026-11-21T11:59:59.999Z)" in repr(clicks.snapshot())
    assert "as of 1795262399999 (2026-11-21T11:59:59.999Z)" in str(clicks.snapshot().explain())
    assert "(2026-11-21T12:00:00Z)" in repr(clicks.changes(NOON))
    assert Antichain(NOON_MS) == clicks.upper


def test_text_of_a_time_is_exact() -> None:
    assert Timeline("ns").to_text(1) == "1970-01-01T00:00:00.000000001Z"
    assert Timeline("us").to_text(1_500_000) == "1970-01-01T00:00:01.500000Z"
    assert Timeline("s").to_text(2**62) == str(2**62)


def test_holds_show_moments(client: persist.Client, clicks: persist.Collection) -> None:
    clicks.write([(1, None)], time=NOON, seal="2026-11-22").result()
    with clicks.hold(NOON) as hold:
        assert repr(hold) == f"<Hold at {NOON_MS} (2026-11-21T12:00:00Z)>"
    named = clicks.hold(NOON, name="report")
    assert repr(named) == f"<Hold 'report' at {NOON_MS} (2026-11-21T12:00:00Z)>"
    named.release()
    following = clicks.follow("mailer")
    assert repr(following).endswith("acknowledged up to None>")
    assert following.poll() is not None
    following.ack()
    assert "acknowledged up to 1795305599999 (2026-11-21T23:59:59.999Z)" in repr(following)


def test_a_program_reads_its_source_as_of_a_moment(client: persist.Client, clicks: persist.Collection) -> None:
    clicks.write([(1, None)], time=NOON)
    clicks.write([(2, None)], time=NOON + timedelta(hours=1), seal="2026-11-22").result()
    for as_of in (NOON, "2026-11-21T12:59", NOON_MS):
        program = Program("counting").using(client)
        seen = program.source("clicks", as_of=as_of).capture()
        with program.open(client) as running:
            running.step()
        at = NOON_MS if as_of != "2026-11-21T12:59" else NOON_MS + 59 * 60_000
        found = seen.updates().to_pylist()
        assert found == [{"k": 1, "_time": at, "_diff": 1}, {"k": 2, "_time": NOON_MS + 3600_000, "_diff": 1}]


def test_a_program_cannot_begin_at_a_moment_without_a_timeline(
    client: persist.Client, orders: persist.Collection
) -> None:
    orders.write([((1, "a"), 0, 1)], seal=1).result()
    program = Program("counting").using(client)
    program.source("orders", as_of=NOON).capture()
    with pytest.raises(persist.InvalidUsage, match="the collection 'orders' has no timeline"), program.open(client):
        pass


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-16T12.5",
        "2026-11-16T12:30.5",
        "2026.5-11-16",
        "2026-11-16T12:30:15+01:00.5",
        "2026-11-16.5",
        "2026-11-16T12:30:15+01:00:00.5",
        "2026-11-16T12:30:15.5.5",
        "2026-11-16T1230.5",
        "2026-11-16T12:30:15.5+01:00:00.5",
    ],
)
def test_a_fraction_stands_after_seconds_only(text: str) -> None:
    with pytest.raises(persist.InvalidUsage, match="is not a moment: write it as"):
        persist.Timeline("ns").to_time(text)


@pytest.mark.parametrize("text", ["2026-11-16T12:30:15.5Z", "20261116 123015,5", " 2026-11-16 13:30:15.50+01:00 "])
def test_a_fraction_of_seconds_is_exact(text: str) -> None:
    assert persist.Timeline("ms").to_time(text) == 1794832215500


@pytest.mark.parametrize(
    ("time", "says"),
    [(1.5, "type double"), (True, "type bool"), (np.datetime64("2026-11-16", "s"), "without a time zone")],
    ids=str,
)
def test_a_column_of_what_is_no_time_says_what_it_is(clicks: persist.Collection, time: Any, says: str) -> None:
    with pytest.raises(persist.errors.SchemaMismatch, match=says):
        clicks.write([{"k": 1, "at": time}], time="at")
