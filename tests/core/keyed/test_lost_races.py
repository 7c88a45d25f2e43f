"""What somebody else commits between looking and committing: who seals looks again, and is not refused for it."""

from typing import Any

import pyarrow as pa
import pytest

import persist
from persist.blob.protocol import MemoryBlob
from tests.support.stepped import Stepped

KEY, VALUE = {"k": pa.int64()}, {"v": pa.string()}


@pytest.fixture
def store() -> Stepped:
    return Stepped(MemoryBlob())


def opened(store: Stepped) -> persist.Client:
    return persist.open(store, settings=persist.Settings(background=False))


def keyed(client: persist.Client, **declared: Any) -> persist.Collection:
    return client.create_or_load("users", key=KEY, value=VALUE, keyed=persist.Keyed(**declared))


@pytest.mark.parametrize("seals", ["seal", "upsert", "seal_to"])
def test_a_seal_that_found_nothing_pending_resolves_what_came_meanwhile(store: Stepped, seals: str) -> None:
    with opened(store) as client, opened(store) as other:
        ours, theirs = keyed(client), keyed(other)
        store.before("create", "log/", lambda: theirs.upsert([(1, "theirs", 1)]).result())
        if seals == "upsert":
            ours.upsert([(2, "ours", 5)], seal=2).result()
        else:
            getattr(ours, seals)(2).result()
        assert store.is_done
        assert [*ours.upserts(0, 2)] == [(1, "theirs", 1)]


@pytest.mark.parametrize("resolve", ["seal", "background"])
def test_seal_to_is_done_when_somebody_has_sealed_farther_meanwhile(store: Stepped, resolve: Any) -> None:
    with opened(store) as client, opened(store) as other:
        ours, theirs = keyed(client, resolve=resolve), keyed(other, resolve=resolve)
        store.before("create", "log/", lambda: theirs.seal(9).result())
        ours.seal_to(2).result()
        assert store.is_done
        assert ours.upper.time == 9
        with pytest.raises(persist.errors.FrontierRegression):
            ours.seal(2).result()


@pytest.mark.parametrize("resolve", ["seal", "background"])
def test_seal_to_comes_after_what_the_same_client_has_asked_for(store: Stepped, resolve: Any) -> None:
    with opened(store) as client:
        users = keyed(client, resolve=resolve)
        first = users.upsert([(1, "a", 4)], seal=5)
        second = users.seal_to(3)
        third = users.seal_to(-2)
        assert [each.exception() for each in (first, second, third)] == [None] * 3
        assert users.upper.time == 5


@pytest.mark.parametrize("resolve", ["seal", "background"])
def test_who_expected_another_upper_hears_of_that_even_where_the_seal_would_go_back(
    store: Stepped, resolve: Any
) -> None:
    with opened(store) as client, opened(store) as other:
        ours, theirs = keyed(client, resolve=resolve), keyed(other, resolve=resolve)
        theirs.seal(9).result()
        assert ours.upper.time == 9  # So that it is known when the seal is made.
        for end in (2, 9, 12):
            with pytest.raises(persist.errors.UpperMismatch, match=r"expected upper=0, and it is 9"):
                ours.seal(end, expected_upper=0).result()
        with pytest.raises(persist.errors.FrontierRegression, match=r"back from 9 to 2"):
            ours.upsert([(1, "a", 9)], seal=2).result()
        assert ours.unsealed is None


def test_who_loses_a_seal_deletes_what_it_has_stored_and_looks_again(store: Stepped) -> None:
    rows = pa.table({"k": range(50_000), "v": [f"{n * 7919 % 100_003:x}" for n in range(50_000)]})
    with opened(store) as client, opened(store) as other:
        ours, theirs = keyed(client), keyed(other)
        ours.upsert(rows, time=0).result()
        store.before("create", "log/", lambda: theirs.upsert([(-1, "theirs", 0)], seal=1).result())
        ours.seal(2).result()
        assert store.is_done
        assert ours.upper.time == 2
        assert ours.snapshot().count() == 50_001
        named = {part.blob for part in ours.handle.contents().stored_parts if part.blob}
        dropped = {blob for blob in (each.key for each in store.list("part/")) if blob not in named}
        assert named, "what is resolved is too large for the log"
        assert len(dropped) == 1, "that of the events waits to be collected, and the loser's own is gone"


@pytest.mark.parametrize("is_block", [False, True])
def test_who_is_late_is_told_the_newest_upper_and_not_the_one_it_knew(store: Stepped, is_block: bool) -> None:
    with opened(store) as client, opened(store) as other:
        ours, theirs = keyed(client), keyed(other)
        ours.seal(4).result()
        theirs.seal(9).result()
        with pytest.raises(persist.errors.UpdateNotBeyondUpper) as refused:
            if is_block:
                with client.multi_write() as multi:
                    multi.upsert(ours, [(1, "late", 3)])
                    multi.seal(ours, 10)
            else:
                ours.upsert([(1, "late", 3)], seal=10).result()
        assert refused.value.upper == persist.Antichain(9)
