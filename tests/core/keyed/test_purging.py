"""Tombstones below the late bound go, those that an event to come may need stay, and nobody sees a difference."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import example, given, settings

import persist
from persist.engine.read.keyed import resolution
from tests.support.resolving import resolve_events
from tests.support.tiers import examples

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


def test_a_tombstone_without_an_order_stays_while_such_an_event_is_pending(client: persist.Client) -> None:
    form = persist.Keyed(order_by=["a", "b"], tombstone="gone", late_bound=persist.Behind(1))
    users = client.create_or_load("users", key=KEY, value={"a": int, "b": int, "gone": bool}, keyed=form)
    users.upsert([(1, (None, 5, True), 0)], seal=1).result()
    users.upsert([(1, (None, 3, False), 5), (2, (100, 1, False), 1)]).result()
    users.seal(2).result()
    assert stored(users) == 2
    users.seal(6).result()
    assert users.snapshot().to_arrow()["k"].to_pylist() == [2], "what was deleted is back"


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


KEYS, MARKS = st.integers(0, 1), st.integers(0, 12)
GONE = [(0, (5, None, True), 0), (1, (7, None, True), 0), (2, (5, "a", False), 0)]
OTHER = [(2, (13, "b", False), 0)]
WHOLE = st.tuples(KEYS, st.tuples(MARKS, st.sampled_from("abc"), st.booleans()), st.integers(0, 4))
PARTIAL = st.fixed_dictionaries(
    {"k": KEYS}, optional={"mark": MARKS, "v": st.sampled_from("xyz"), "gone": st.booleans()}
)
STEPS = st.lists(
    st.tuples(st.just("events"), st.lists(WHOLE, max_size=3), st.integers(0, 3))
    | st.tuples(
        st.just("update"), st.lists(PARTIAL, min_size=1, max_size=2), st.sampled_from(["insert", "ignore", "error"])
    )
    | st.tuples(st.just("bound"), st.integers(5, 13), st.none())
    | st.just(("events", OTHER, 1)),
    max_size=10,
)


def outcomes(steps: Any, share: Any, resolve: Any) -> list[Any]:
    """Return what steps did, and what each time holds; share decides at each step when tombstones are searched."""
    done = list[Any]()
    form = persist.Keyed(order_by=["mark"], tombstone="gone", late_bound=0, resolve=resolve)
    with persist.open(persist.MemoryBlob(), settings=persist.Settings(background=False)) as client:
        users = client.create_or_load("users", key=KEY, value=VALUE, keyed=form)
        upper = 0
        for kind, what, more in [("events", GONE, 1), *steps, ("events", [], 9)]:
            with patch.object(resolution, "SHARE", next(share)):
                if kind == "bound":
                    users.advance_late_bound(what).result()
                elif kind == "events":
                    for key, value, later in what:
                        users.upsert([(key, value, upper + later)], late="collect").result()
                    upper += more
                    users.seal(upper).result()
                    if next(share):
                        resolve_events(users)
                else:
                    try:
                        users.update(what, time=upper, missing=more).result()
                        done.append("updated")
                    except persist.InvalidUsage:
                        done.append("refused")
                        users.seal(upper + 1).result()
                    upper += 1
        done += [sorted(users.snapshot(time).rows()) for time in range(upper)]
        assert client.fsck().is_clean
    return done


BOUND = [("bound", 10, None), ("events", OTHER, 1)]


@example([*BOUND, ("update", [{"k": 0, "v": "x"}], "insert")], "seal", [0])
@example([*BOUND, ("update", [{"k": 0, "gone": True}], "error")], "seal", [0])
@given(STEPS, st.sampled_from(["seal", "background"]), st.lists(st.sampled_from([0, 10**9]), min_size=1, max_size=7))
@settings(max_examples=examples(30, quick=1), deadline=None)
def test_partial_events_amount_to_the_same_whoever_purged_when(steps: Any, resolve: Any, shares: list[int]) -> None:
    expected = outcomes(steps, itertools.repeat(0), "seal")  # Tombstones are never searched.
    assert outcomes(steps, itertools.cycle(shares), resolve) == expected
    assert outcomes(steps, itertools.repeat(10**9), resolve) == expected
