"""Times on a timeline that nobody is likely to mean are refused, with what is likely meant; "now" is one."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

import persist
from persist.blob.protocol import MemoryBlob
from persist.tools.cli.main import main
from tests.support.clocks import ImpatientClock

NOW_S = 1_700_000_000
NOW = datetime.fromtimestamp(NOW_S, UTC)
FAR = NOW + timedelta(days=3)
QUIET = persist.Settings(background=False)


@pytest.fixture
def client() -> Iterator[persist.Client]:
    with persist.open(MemoryBlob(), clock=ImpatientClock(), settings=QUIET) as client:
        yield client


@pytest.fixture
def c(client: persist.Client) -> persist.Collection:
    return client.create_or_load("c", key={"k": int}, value={"v": str}, timeline="ms")


def in_block(c: persist.Collection, **options: Any) -> None:
    client = persist.Client(c.handle.engine)
    with client.multi_write(allow_future=options.pop("allow_future", False)) as multi:
        multi.write(c, [(1, "a")], **options)


CALLS: dict[str, Callable[..., Any]] = {
    "write": lambda c, time, **more: c.write([(1, "a")], time=time, **more).result(),
    "updates": lambda c, time, **more: c.write([((1, "a"), time, 1)], **more).result(),
    "table": lambda c, time, **more: c.write(
        pa.table({"k": [1], "v": ["a"], "_time": pa.array([time], pa.timestamp("ms", "UTC")), "_diff": [1]}), **more
    ).result(),
    "overwrite": lambda c, time, **more: c.overwrite([(1, "a")], time=time, **more).result(),
    "delete": lambda c, time, **more: c.delete([1], time=time, **more).result(),
    "seal": lambda c, time, **more: c.seal(time, **more).result(),
    "block": lambda c, time, **more: in_block(c, time=time, **more),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_moment_more_than_a_day_ahead_is_refused_unless_it_is_allowed(c: persist.Collection, call: Any) -> None:
    with pytest.raises(persist.InvalidUsage, match=r"more than a day ahead of the clock.*allow_future=True"):
        call(c, FAR)
    assert (c.upper.time, c.handle.contents().history_parts) == (0, ())
    call(c, FAR, allow_future=True)


def test_events_with_times_of_their_own_ahead_of_the_clock_are_refused_unless_it_is_allowed(
    client: persist.Client, c: persist.Collection
) -> None:
    users = client.create_or_load("users", key={"k": int}, value={"v": str}, timeline="ms", keyed=persist.Keyed())

    def in_block(of: persist.Collection, events: Any, *, allow_future: bool = False, **more: Any) -> None:
        with client.multi_write(allow_future=allow_future) as multi:
            multi.upsert(of, events, **more)

    column = pa.table({"k": [1], "v": ["a"], "at": pa.array([FAR], pa.timestamp("ms", "UTC"))})
    for of in (c, users):
        for upsert in (of.upsert, partial(in_block, of)):
            forms: list[tuple[Any, dict[str, Any]]] = [([(1, "a", FAR)], {}), (column, {"time": "at"})]
            for events, more in forms:
                with pytest.raises(persist.InvalidUsage, match="more than a day ahead of the clock"):
                    upsert(events, **more)
    with pytest.raises(persist.InvalidUsage, match="more than a day ahead of the clock"):
        users.seal_to(FAR)
    assert users.handle.contents().upper == 0
    users.upsert([(1, "a", FAR)], allow_future=True).result()
    users.seal_to(FAR + timedelta(days=1), allow_future=True).result()
    c.upsert(column, time="at", allow_future=True).result()


@pytest.mark.parametrize(
    ("unit", "number", "says"),
    [
        ("ms", NOW_S, "1700000000 is 1970-01-20T16:13:20Z in a timeline in ms.* It looks like s: that would be 2023"),
        ("us", NOW_S * 1000, "It looks like ms: that would be 2023-11-14T22:13:20Z"),
        ("s", NOW_S * 1000, "It looks like ms: that would be 2023-11-14T22:13:20Z"),
        ("ms", 12, "12 is 1970-01-01T00:00:00.012Z in a timeline in ms, and times are taken from 1990 to 2199. Give"),
    ],
)
def test_a_number_of_another_unit_is_refused_and_the_unit_is_named(
    client: persist.Client, unit: str, number: int, says: str
) -> None:
    c = client.create_or_load("of a unit", key={"k": int}, value={"v": str}, timeline=unit)
    for call in (CALLS["write"], CALLS["seal"], *([CALLS["updates"]] if number > 12 else [])):
        with pytest.raises(persist.InvalidUsage, match=says):
            call(c, number, allow_future=True)


def test_moments_before_1990_are_taken_as_moments(c: persist.Collection) -> None:
    then = datetime(1985, 2, 3, tzinfo=UTC)
    c.write([((1, "a"), then, 1)]).result()
    c.write([(1, "a")], time=then, seal=then + timedelta(days=1)).result()
    assert c.snapshot().count() == 2


def test_now_is_a_time_to_write_at_and_to_seal_to(c: persist.Collection, client: persist.Client) -> None:
    c.write([(1, "a")], time="now").result()
    c.seal("now").result()
    (part,) = c.handle.contents().history_parts
    assert part.time_min // 1000 == (c.upper.time or 0) // 1000 == NOW_S
    counting = client.create_or_load("counting", key={"k": int}, value={"v": str})
    with pytest.raises(persist.InvalidUsage, match="no timeline"):
        counting.write([(1, "a")], time="now")


def test_the_command_line_takes_now_and_asks_for_times_far_ahead(
    tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    place, file = str(tmp_path / "data"), tmp_path / "rows.csv"
    file.write_text("k,v\n1,a\n")
    assert main(["create", place, "c", "--key", "k:int64", "--value", "v:string", "--timeline", "ms"]) == 0
    assert main(["write", place, "c", str(file), "--time", "now", "--mode", "append"]) == 0
    assert main(["seal", place, "c", "2199-01-01"]) == 2
    refused = capsys.readouterr().err
    assert "more than a day ahead" in refused
    assert "Give --allow-future if it is meant" in refused
    assert main(["seal", place, "c", "2199-01-01", "--allow-future"]) == 0
