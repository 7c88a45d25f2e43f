"""Timelines: moments become times and back, and are taken wherever a collection is read as of a time."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import persist
from persist import Timeline
from persist.blob.protocol import MemoryBlob

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
NOON_S = 1795262400
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


@pytest.mark.parametrize("unit", PER_SECOND)
def test_a_moment_is_so_many_units_since_1970(unit: str) -> None:
    line, time = Timeline(unit), NOON_S * PER_SECOND[unit]
    east = NOON.astimezone(timezone(timedelta(hours=5, minutes=30)))
    texts = ["2026-11-21T12:00:00Z", "2026-11-21 12:00:00", "2026-11-21T17:30:00+05:30", "2026-11-21 12:00"]
    moments: list[datetime | str] = [NOON, east, *texts]
    for moment in moments:
        assert line.to_time(moment) == line.to_bound(moment) == time
    assert line.to_time("2026-11-21") == time - 12 * 3600 * PER_SECOND[unit]
    assert line.to_datetime(time) == NOON
    assert line.to_datetime(time).utcoffset() == timedelta(0)


@pytest.mark.parametrize(
    ("unit", "last", "first"), [("s", 0, 1), ("ms", 123, 124), ("us", 123456, 123457), ("ns", 123456789, 123456789)]
)
def test_a_moment_between_two_times_lies_after_the_one_and_before_the_other(unit: str, last: int, first: int) -> None:
    line, noon = Timeline(unit), NOON_S * PER_SECOND[unit]
    for text in ("2026-11-21T12:00:00.123456789Z", "2026-11-21 13:00:00,123456789+01:00"):
        assert (line.to_time(text) - noon, line.to_bound(text) - noon) == (last, first)


@given(st.datetimes(datetime(1970, 1, 1), datetime(2262, 4, 11)), st.sampled_from(["us", "ns"]))
def test_a_datetime_survives_the_way_there_and_back(moment: datetime, unit: str) -> None:
    moment = moment.replace(tzinfo=UTC)
    assert Timeline(unit).to_datetime(Timeline(unit).to_time(moment)) == moment
    assert Timeline(unit).to_time(moment) == Timeline(unit).to_time(moment.isoformat())


@pytest.mark.parametrize(
    ("unit", "moment", "text"),
    [
        ("us", datetime(2026, 11, 21, 12), "has no time zone"),
        ("us", "noon", "write it as 2026-11-21T12:00:00Z"),
        ("us", "2026-13-01", "write it as 2026-11-21T12:00:00Z"),
        ("us", "12:00:00", "write it as 2026-11-21T12:00:00Z"),
        ("us", "1969-12-31T23:59:59.999Z", "these go from 1970-01-01T00:00:00Z"),
        ("ns", "2263-01-01", "to the year 2262"),
        ("us", 7, "give a datetime with a time zone"),
    ],
)
def test_what_is_no_moment_is_refused(unit: str, moment: Any, text: str) -> None:
    with pytest.raises(persist.InvalidUsage, match=text):
        Timeline(unit).to_time(moment)


def test_a_time_that_is_no_moment_is_refused() -> None:
    for unit, time in (("s", 2**62), ("us", -1), ("ns", 2**63)):
        with pytest.raises(persist.InvalidUsage, match=f"time {time} in {unit} is not a moment"):
            Timeline(unit).to_datetime(time)
    with pytest.raises(persist.InvalidUsage, match="'min' is not a unit"):
        Timeline("min")


@pytest.fixture
def clicks(client: persist.Client) -> persist.Collection:
    """One update at each of the seconds 0, 1, 2 after noon, in milliseconds."""
    clicks = client.create_or_load("clicks", key={"k": pa.int64()}, timeline="ms")
    clicks.write([((k, None), NOON_S * 1000 + 1000 * k, 1) for k in range(3)])
    clicks.seal(NOON_S * 1000 + 3000).result()
    return clicks


def after_noon(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def test_a_collection_is_read_as_of_a_moment(clicks: persist.Collection) -> None:
    def keys(table: pa.Table) -> list[int]:
        found: list[int] = table["k"].to_pylist()
        return sorted(found)

    assert keys(clicks.snapshot(after_noon(1.0005)).to_arrow()) == [0, 1]
    assert clicks.snapshot(after_noon(1.0005)).as_of == NOON_S * 1000 + 1000
    assert keys(clicks.snapshot(after_noon(0.9999)).to_arrow()) == [0]
    # An interval's bounds are the next times: what was at a bound belongs to what follows it.
    assert keys(clicks.changes(after_noon(0.0005), after_noon(2)).to_arrow()) == [1]
    assert keys(clicks.changes(after_noon(1), after_noon(2.0001)).to_arrow()) == [1, 2]
    assert keys(clicks.subscribe(after_noon(1)).__next__().updates) == [0, 1]
    assert keys(clicks.listen(after_noon(1)).__next__().updates) == [2]
    assert clicks.hold(after_noon(1.0005)).time == NOON_S * 1000 + 1000
    assert clicks.hold(after_noon(1), name="mine").time == NOON_S * 1000 + 1000
    with pytest.raises(persist.errors.AsOfNotSealed):
        clicks.snapshot(after_noon(3), timeout_s=0)


def test_the_timeline_is_stored_and_checked(blob: MemoryBlob, clicks: persist.Collection) -> None:
    with persist.open(blob) as client:
        assert client.load("clicks").timeline == Timeline("ms")
        assert client.create_or_load("clicks", key={"k": pa.int64()}, timeline="ms").timeline == Timeline("ms")
        for given in ("us", None):
            with pytest.raises(persist.errors.SchemaMismatch, match=f"is stored as 'ms', given as {given!r}"):
                client.create_or_load("clicks", key={"k": pa.int64()}, timeline=given)
        client.create_or_load("plain", key={"k": pa.int64()})
        with pytest.raises(persist.errors.SchemaMismatch, match="is stored as None, given as 's'"):
            client.create_or_load("plain", key={"k": pa.int64()}, timeline="s")
        with pytest.raises(
            persist.errors.SchemaMismatch, match="timeline='min' is not a unit of time: give one of 's', 'ms'"
        ):
            client.create_or_load("other", key={"k": pa.int64()}, timeline="min")
