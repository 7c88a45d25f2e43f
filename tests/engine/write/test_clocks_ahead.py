"""A clock that is more than a day ahead of the store's dates nothing, and so seals no timeline for ever."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

import persist
from persist.blob.protocol import MemoryBlob
from persist.blob.threads import SystemClock
from persist.core.settings import Tuning
from persist.errors import ClockAhead

SETTINGS = persist.Settings(background=False, tuning=Tuning(hold_linger_s=0))
KEY, VALUE = {"k": pa.int64()}, {"v": pa.string()}
YEARS_S = 10 * 365 * 86_400


class ShiftedClock(SystemClock):
    """A clock that is wrong by some seconds."""

    def __init__(self, shift_s: float) -> None:
        self._shift_ms = int(shift_s * 1000)

    def wall_ms(self) -> int:
        return super().wall_ms() + self._shift_ms


def opened(blob: MemoryBlob, shift_s: float = 0) -> persist.Client:
    return persist.open(blob, clock=ShiftedClock(shift_s), settings=SETTINGS)


def multi(client: persist.Client, c: persist.Collection, **options: Any) -> None:
    with client.multi_write(**options) as block:
        (block.write if c.handle.keyed is None else block.upsert)(c, [(2, "b")])


Way = Callable[..., Any]
WAYS: dict[str, Way] = {
    "write": lambda client, c, **o: c.write([(2, "b")], **o).result(),
    "write now": lambda client, c, **o: c.write([(2, "b")], time="now", **o).result(),
    "upsert": lambda client, c, **o: c.upsert([(2, "b")], **o).result(),
    "overwrite": lambda client, c, **o: c.overwrite([(2, "b")], **o).result(),
    "overwrite where": lambda client, c, **o: c.overwrite([(2, "b")], where="k = 2", **o).result(),
    "delete": lambda client, c, **o: c.delete([1], **o).result(),
    "delete where": lambda client, c, **o: c.delete(where="k = 1", **o).result(),
    "restore": lambda client, c, **o: c.restore("latest", **o).result(),
    "seal": lambda client, c, **o: c.seal("now", **o).result(),
    "multi_write": multi,
}
STATEMENTS: dict[str, Way] = {
    "insert": lambda client, c: client.sql("INSERT INTO c VALUES (2, 'b')"),
    "update": lambda client, c: client.sql("UPDATE c SET v = 'c' WHERE k = 1"),
    "delete": lambda client, c: client.sql("DELETE FROM c WHERE k = 1"),
    "client.write": lambda client, c: client.write("c", pa.table({"k": [2], "v": ["b"]}), mode="append").result(),
}


# A keyed collection takes events, and no writes.
both_kinds = pytest.mark.parametrize(
    ("way", "keyed"),
    [(way, keyed) for way in WAYS for keyed in (None, persist.Keyed()) if not (keyed and way.startswith("write"))],
)


def is_refused(keyed: persist.Keyed | None, way: Way) -> None:
    """Check that a client with a clock ahead is refused, and that others date as before."""
    blob = MemoryBlob()
    with opened(blob) as right:
        c = right.create_or_load("c", key=KEY, value=VALUE, keyed=keyed, timeline="ms")
        (c.write if keyed is None else c.upsert)([(1, "a")]).result()
        upper = c.upper
        with opened(blob, YEARS_S) as wrong:
            for _ in range(2):
                with pytest.raises(ClockAhead, match=r"the clock of this machine says 20.*allow_future=True"):
                    way(wrong, wrong["c"])
        assert right["c"].upper == upper
        future = (c.write if keyed is None else c.upsert)([(3, "right")])
        future.result()
        assert future.time is not None
        assert abs(datetime.fromtimestamp(future.time / 1000, UTC) - datetime.now(UTC)) < timedelta(days=1)


@both_kinds
def test_a_client_with_a_clock_years_ahead_writes_nothing_that_it_dates(way: str, keyed: persist.Keyed | None) -> None:
    is_refused(keyed, WAYS[way])


@pytest.mark.parametrize("way", STATEMENTS)
def test_nor_does_a_statement_or_a_write_by_name(way: str) -> None:
    is_refused(None, STATEMENTS[way])


@both_kinds
def test_allow_future_takes_it(way: str, keyed: persist.Keyed | None) -> None:
    blob = MemoryBlob()
    with opened(blob, YEARS_S) as wrong:
        c = wrong.create_or_load("c", key=KEY, value=VALUE, keyed=keyed, timeline="ms")
        (c.write if keyed is None else c.upsert)([(1, "a")], allow_future=True).result()
        before = c.upper
        WAYS[way](wrong, c, allow_future=True)
        assert before <= c.upper


def test_a_wrong_clock_is_noticed_although_its_own_records_are_the_newest() -> None:
    blob = MemoryBlob()
    for name in ("one", "two"):
        with opened(blob, YEARS_S) as wrong:
            c = wrong.create_or_load(name, key=KEY, value=VALUE, timeline="ms")
            counted = wrong.create_or_load(f"{name} counted", key=KEY, value=VALUE)
            counted.write([(1, "times that only count need no clock")]).result()
            c.write([(1, "a")], time="2026-01-01", seal="2026-01-02").result()
            with pytest.raises(ClockAhead):
                c.write([(1, "a")]).result()
            with pytest.raises(ClockAhead):
                c.write([(1, "a")], time=datetime.now(UTC) + timedelta(seconds=YEARS_S)).result()


def test_a_refused_write_fails_none_that_was_asked_for_with_it() -> None:
    with opened(MemoryBlob(), YEARS_S) as wrong:
        c = wrong.create_or_load("c", key=KEY, value=VALUE, timeline="ms")
        counted = wrong.create_or_load("counted", key=KEY, value=VALUE)
        futures = [counted.write([(1, "a")]), c.write([(1, "a")]), counted.write([(2, "b")])]
        assert isinstance(futures[1].exception(), ClockAhead)
        futures[0].result()
        futures[2].result()
        assert counted.snapshot().count() == 2


@pytest.mark.parametrize("shift_s", [-YEARS_S, -3600, 3600])
def test_a_clock_that_is_behind_or_a_little_ahead_writes_just_beyond_the_upper(shift_s: float) -> None:
    blob = MemoryBlob()
    with opened(blob) as right, opened(blob, shift_s) as wrong:
        c = right.create_or_load("c", key=KEY, value=VALUE, timeline="ms")
        first = c.write([(1, "a")])
        first.result()
        second = wrong["c"].write([(2, "b")])
        second.result()
        third = c.write([(3, "c")])
        third.result()
        times = [future.time or 0 for future in (first, second, third)]
        assert times == sorted(set(times))
        assert times[1] == times[0] + 1 or shift_s > 0
        if shift_s < 0:
            with pytest.raises(persist.errors.FrontierRegression):
                wrong["c"].seal("now").result()
            with pytest.raises(persist.errors.UpdateNotBeyondUpper):
                wrong["c"].write([(4, "d")], time="now").result()


def test_a_right_clock_goes_on_where_a_wrong_one_was_allowed_to_seal() -> None:
    blob = MemoryBlob()
    with opened(blob, YEARS_S) as wrong, opened(blob) as right:
        c = wrong.create_or_load("c", key=KEY, value=VALUE, timeline="ms")
        far = c.write([(1, "a")], allow_future=True)
        far.result()
        near = right["c"].write([(2, "b")])
        near.result()
        assert near.time == (far.time or 0) + 1


def test_a_clock_is_compared_once_and_again_when_it_jumps() -> None:
    class Counting(MemoryBlob):
        looks = 0

        def set(self, key: str, value: bytes) -> None:
            self.looks += key == "gc/clock"
            super().set(key, value)

    blob, clock = Counting(), ShiftedClock(0)
    with persist.open(blob, clock=clock, settings=SETTINGS) as client:
        c = client.create_or_load("c", key=KEY, value=VALUE, timeline="ms")
        for n in range(5):
            c.write([(n, "a")]).result()
        assert blob.looks == 0, "the record that created it has a date of the store"
        clock._shift_ms = YEARS_S * 1000
        with pytest.raises(ClockAhead):
            c.write([(9, "z")]).result()
        assert blob.looks > 0


def test_a_date_that_is_deleted_before_it_is_read_fails_no_write() -> None:
    class Repaired(MemoryBlob):
        def set(self, key: str, value: bytes) -> None:
            if key != "gc/clock":
                super().set(key, value)

    with opened(Repaired(), YEARS_S) as client:
        c = client.create_or_load("c", key=KEY, value=VALUE, timeline="ms")
        c.write([(1, "a")]).result()
        assert c.snapshot().count() == 1
