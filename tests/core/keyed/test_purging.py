"""Tombstones below the late bound go, those that an event to come may need stay, and nobody sees a difference."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import persist
from tests.support.resolving import resolve_events

KEY, VALUE = {"k": pa.int64()}, {"mark": pa.int64(), "v": pa.string(), "gone": pa.bool_()}


@pytest.fixture
def client(tmp_path: Path) -> Iterator[persist.Client]:
    with persist.open(tmp_path, settings=persist.Settings(background=False)) as client:
        yield client


def keyed(client: persist.Client, resolve: Any) -> persist.Collection:
    form = persist.Keyed(order_by=["mark"], tombstone="gone", late_bound=persist.Behind(10), resolve=resolve)
    return client.create_or_load("users", key=KEY, value=VALUE, keyed=form)


def stored(users: persist.Collection) -> int:
    """Return how many rows there are, tombstones among them."""
    resolve_events(users)
    return sum(part.diff_sum for part in users.handle.contents().history_parts)


@pytest.mark.parametrize("resolve", ["seal", "background"])
def test_tombstones_below_the_late_bound_go_when_others_are_resolved(client: persist.Client, resolve: Any) -> None:
    users = keyed(client, resolve)
    users.upsert([(k, (k, "a", False)) for k in range(20)], time=0, seal=1, late="collect").result()
    users.upsert([(k, (20, None, True)) for k in range(15)], time=1, seal=2).result()
    assert stored(users) == 20
    users.upsert([(100, (29, "b", False))], time=2, seal=3).result()
    assert stored(users) == 21, "the bound is 19, and tombstones of 20 may be needed"
    many = [(k, (40, "c", False)) for k in range(200, 220)]
    users.upsert([*many, (5, (40, "back", False)), (6, (41, None, True))], time=3, seal=4).result()
    resolve_events(users)
    users.upsert([(98, (41, "d", False)), (7, (35, None, True))], time=4, seal=5).result()
    assert stored(users) == 5 + 1 + 20 + 1 + 1 + 2, "those that are live, and the tombstones of events above the bound"
    assert users.snapshot().count() == 28
    assert users.snapshot(1).count() == users.snapshot(2).count() - 1 == 5
    assert [*users.upserts(4, 5)] == [(7, None, 4), (98, (41, "d", False), 4)], "tombstones that go are not events"
    users.compact()
    assert client.fsck().is_clean


@pytest.mark.parametrize("resolve", ["seal", "background"])
def test_a_tombstone_stays_while_an_older_event_is_pending(client: persist.Client, resolve: Any) -> None:
    users = keyed(client, resolve)
    users.upsert([(1, (3, "old, and early", False), 50)]).result()
    users.upsert([(1, (5, None, True), 0)], seal=1).result()
    for time in range(1, 10):
        users.upsert([(2, (40 + time, "b", False))], time=time, seal=time + 1).result()
        resolve_events(users)
    assert stored(users) == 2
    users.seal(51).result()
    assert users.snapshot().to_arrow()["k"].to_pylist() == [2], "what was deleted is back"
    for time in range(51, 55):
        users.upsert([(2, (60 + time, "c", False))], time=time, seal=time + 1).result()
        resolve_events(users)
    assert stored(users) == 1


def test_what_is_pending_beyond_the_seal_and_came_after_the_bound_keeps_no_tombstone(client: persist.Client) -> None:
    users = keyed(client, "seal")
    users.upsert([(k, (5, None, True), 0) for k in range(3)], seal=1).result()
    for time in range(1, 20):
        # There is always one that waits.
        users.upsert([(9, (40 + time, "b", False))], time=time + 1).result()
        users.seal(time + 1).result()
    assert stored(users) == 1


def told_rows(client: persist.Client) -> Any:
    return client.collections().to_arrow()["rows"].to_pylist()


def test_no_number_of_rows_is_told_that_counts_tombstones_or_lacks_events(client: persist.Client) -> None:
    users = keyed(client, "background")
    users.upsert([(k, (1, "a", False)) for k in range(9000)], time=0, seal=1).result()
    assert told_rows(client) == [None], "it is not resolved"
    resolve_events(users)
    assert told_rows(client) == [9000]
    users.upsert([(1, (1, None, True))], time=1, seal=2).result()
    resolve_events(users)
    assert told_rows(client) == [None], "there is a tombstone"
    assert users.snapshot().count() == 8999
