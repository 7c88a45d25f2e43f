"""Collections whose times are positions of a source are read as of moments, wherever a time is given."""

import itertools
from collections.abc import Generator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import persist
from persist.connect import Batch, Change, Run, Target
from persist.errors import AsOfNotSealed
from persist.tools.reports.health import report_health
from tests.support.tiers import examples

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Steps = Sequence[Sequence[tuple[int, int]]]


class Positions:
    """A source that gives batches of times with their moments; the contents as of a time are that time."""

    name = "positions"
    moments: str | None = "p.transactions"

    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    def targets(self, client: persist.Client) -> Sequence[Target]:
        return [Target("t", {"id": pa.int64()}, {"time": pa.int64()}, True)]

    def batches(self, run: Run) -> Generator[Batch]:
        for step in self._steps:
            rows = pa.table({"id": [0] * len(step), "time": [t for t, _ in step], "_time": [t for t, _ in step]})
            yield Batch([Change("t", rows)], step[-1][0] + 1, len(step), step)

    def close(self) -> None:
        pass


def moment(us: int) -> datetime:
    return EPOCH + timedelta(microseconds=us)


@pytest.fixture
def client() -> Any:
    with persist.open(f"memory://moments-{next(_numbers)}") as opened:
        yield opened


_numbers = itertools.count()
NOON = int((datetime(2026, 11, 23, 12, tzinfo=UTC) - EPOCH).total_seconds() * 1e6)
STEPS = [[(10, NOON), (12, NOON + 5)], [(20, NOON + 3_600_000_000)], [(30, NOON + 7_200_000_000)]]


def held(collection: Any, as_of: Any) -> int:
    [row] = collection.snapshot(as_of).to_arrow().to_pylist()
    return int(row["time"])


@given(
    st.lists(
        st.lists(st.tuples(st.integers(1, 3), st.integers(0, 12)), min_size=1, max_size=4), min_size=1, max_size=5
    ),
    st.booleans(),
)
@settings(max_examples=examples(25), deadline=None)
def test_a_moment_is_the_last_time_not_after_it_whatever_the_clock_did(steps: Any, again: bool) -> None:
    times = itertools.accumulate(ahead for step in steps for ahead, _ in step)
    batches = [[(next(times), at) for _, at in step] for step in steps]
    kept, last = [], -1
    for batch in batches:  # The model: moments never go back, and those of a later commit are later.
        floor = last + 1
        for time, at in batch:
            last = max(at, last, floor)
            kept.append((time, last))
    with persist.open(f"memory://moments-{next(_numbers)}") as client:
        cut = len(batches) // 2 if again else 0
        for some in (batches[:cut], batches[cut:]):
            persist.ingest(client, Positions(some), once=True)
        collection = client.load("t")
        for at in range(last + 3):
            if at > last:
                with pytest.raises(AsOfNotSealed):
                    collection.snapshot(moment(at))
            elif at < kept[0][1]:
                with pytest.raises(persist.InvalidUsage, match="first moment"):
                    collection.snapshot(moment(at))
            else:
                assert held(collection, moment(at)) == max(time for time, when in kept if when <= at)
                first = next((time for time, when in kept if when >= at), None)
                changes = collection.changes(moment(at)).to_arrow()["_time"].to_pylist()
                assert [time for time in changes if first is None or time < first] == []
                assert first is None or first in changes


def test_python_sql_and_the_command_line_take_moments(tmp_path: Any, capsys: Any) -> None:
    location = str(tmp_path / "l")
    persist.ingest(location, Positions(STEPS), once=True)
    with persist.open(location, mode="read") as client:
        collection = client.load("t")
        assert held(collection, "2026-11-23T12:00Z") == 10
        assert held(collection, "2026-11-23T13:59Z") == 20
        assert held(collection, "2026-11-23T14:00Z") == 30
        asked = client.sql("SELECT time FROM t FOR SYSTEM_TIME AS OF '2026-11-23T13:30:00Z'")
        assert asked.to_arrow()["time"].to_pylist() == [20]
        later = collection.changes("2026-11-23T12:30Z", "2026-11-23T14:00Z").to_arrow()
        assert set(later["_time"].to_pylist()) == {20}
    from persist.tools.cli.main import main

    assert main(["read", location, "t", "--as-of", "2026-11-23T12:30Z"]) == 0
    assert "12" in capsys.readouterr().out


def test_a_view_is_read_as_of_moments_if_all_its_inputs_are(client: Any) -> None:
    persist.ingest(client, Positions(STEPS), once=True)
    client.create_view("twice", "SELECT id, time * 2 AS time FROM t").refresh()
    client.create_view("again", "SELECT id, time + 1 AS time FROM twice").refresh()
    assert held(client.view("twice"), "2026-11-23T13:00Z") == 40
    assert held(client.view("again"), "2026-11-23T12:59Z") == 25
    client.create_or_load("other", key={"id": int}, value=None)
    client.create_view("both", "SELECT time FROM t JOIN other USING (id)")
    with pytest.raises(persist.InvalidUsage, match="no timeline"):
        client.view("both").snapshot("2026-11-23T13:00Z")


def test_the_health_of_a_location_says_how_far_a_source_was_read(client: Any) -> None:
    persist.ingest(client, Positions(STEPS), once=True)
    [source] = report_health(client, now_s=NOON / 1e6 + 7200 + 90).sources
    assert source.behind_s == 90.0


def test_a_moment_before_the_first_or_after_the_last_is_an_error(client: Any) -> None:
    persist.ingest(client, Positions(STEPS[:1]), once=True)
    collection = client.load("t")
    with pytest.raises(persist.InvalidUsage, match=r"before 2026-11-23T12:00:00Z, the first moment of 't'"):
        collection.snapshot("2026-11-23T11:59:59Z")
    with pytest.raises(AsOfNotSealed, match=r"moments after 2026-11-23T12:00:00\.000005Z"):
        collection.snapshot("2026-11-23T12:01Z")
    with pytest.raises(AsOfNotSealed):
        collection.snapshot("2026-11-23T12:01Z", timeout_s=0.01)
    with pytest.raises(persist.InvalidUsage, match="is not a moment"):
        collection.snapshot("2026-13-23")
    client.drop("p.transactions").result()
    with pytest.raises(persist.InvalidUsage, match="with the moments of 't' was dropped"):
        collection.snapshot("2026-11-23T12:00Z")


def test_a_clock_that_runs_back_is_said(client: Any, caplog: Any) -> None:
    persist.ingest(client, Positions([[(10, NOON)], [(11, NOON - 60_000_000)]]), once=True)
    assert "the clock of the source ran back by 60.0 s: time 11 is of 2026-11-23T11:59:00Z" in caplog.text
    assert held(client.load("t"), "2026-11-23T12:00Z") == 10  # Which was its answer before time 11 came.
