"""Overwrites, upserts and deletes of several collections in one commit, also if others come first."""

from typing import Any

import pytest

import persist
from persist import errors
from persist.blob.protocol import MemoryBlob
from tests.support.stepped import Stepped

KEYED: dict[str, persist.Keyed | None] = {
    "plain": None,
    "keyed": persist.Keyed(),
    "background": persist.Keyed(resolve="background"),
}


def made(client: persist.Client) -> dict[str, persist.Collection]:
    return {
        name: client.create_or_load(name, key={"id": int}, value={"amount": int}, keyed=keyed)
        for name, keyed in KEYED.items()
    }


def held(collection: persist.Collection, as_of: int | None = None) -> list[Any]:
    return sorted(collection.snapshot(as_of).rows())


def test_collections_of_all_kinds_change_in_one_record(client: persist.Client) -> None:
    plain, keyed, background = made(client).values()
    keyed.upsert([(1, 1, 5), (2, 2, 5), (9, 9, 50)]).result()
    before = client.seqno
    with client.multi_write() as multi:
        multi.upsert(plain, [(1, 1), (2, 2)], time=7)
        multi.upsert(plain, [(2, 3), (1, None)], time=7)
        multi.overwrite(keyed, [(2, 2), (3, 3)], time=7)
        multi.seal(keyed, 10)
        multi.upsert(background, [(4, 4)], time=7)
        multi.seal(background, 10)
    assert (client.seqno, multi.seqno) == (before + 1, before + 1)
    assert [held(collection, 7) for collection in (plain, keyed, background)] == [[(2, 3)], [(2, 2), (3, 3)], [(4, 4)]]
    assert held(keyed, 5) == [(1, 1), (2, 2)], "what waited was resolved first"
    assert [collection.upper for collection in (plain, keyed, background)] == [8, 10, 10]
    with client.multi_write() as multi:
        multi.delete(plain, [2])
        multi.delete(keyed, where="amount = 3")
        multi.overwrite(background, [(5, 5)])
    time = multi.time_of(plain)
    assert time is not None
    assert time == multi.time_of(keyed) == multi.time_of(background)
    assert [held(collection, time) for collection in (plain, keyed, background)] == [[], [(2, 2)], [(5, 5)]]
    keyed.seal(51).result()
    assert held(keyed) == [(2, 2), (9, 9)], "an event after the overwrite counts when its time is sealed"


def test_nothing_happens_if_one_part_is_refused(client: persist.Client) -> None:
    plain, keyed, _ = made(client).values()
    keyed.upsert([(1, 1)], time=0, seal=5).result()
    with pytest.raises(persist.errors.UpdateNotBeyondUpper), client.multi_write() as multi:
        multi.upsert(plain, [(1, 1)])
        multi.overwrite(keyed, [(2, 2)], time=3)
    with pytest.raises(errors.DuplicateKeys), client.multi_write() as multi:
        multi.delete(plain, [1])
        multi.overwrite(keyed, [(2, 2), (2, 3)])
    with pytest.raises(RuntimeError), client.multi_write() as multi:
        multi.overwrite(plain, [(1, 1)])
        multi.overwrite(keyed, [(2, 2)])
        raise RuntimeError
    assert (held(keyed), plain.upper) == ([(1, 1)], persist.Antichain(0))


def test_what_does_not_go_together_in_one_block_says_so(client: persist.Client) -> None:
    plain, keyed, _ = made(client).values()
    with client.multi_write() as multi:
        multi.upsert(plain, [(1, 1)], time=5)
        with pytest.raises(persist.InvalidUsage, match="give a time to all of them or to none"):
            multi.upsert(plain, [(1, 1)])
        multi.write(plain, [(1, 2)], time=6)
        for refused in (multi.upsert, multi.overwrite):
            with pytest.raises(persist.InvalidUsage, match="must be the block's first step on 'plain'"):
                refused(plain, [(1, 1)], time=5)
        multi.overwrite(keyed, [(1, 1)], time=5)
        with pytest.raises(persist.InvalidUsage, match="this block overwrites 'keyed'"):
            multi.upsert(keyed, [(1, 2)], time=6)
        with pytest.raises(persist.InvalidUsage, match="put it first"):
            multi.delete(keyed, where="id = 1", time=6)
        with pytest.raises(persist.InvalidUsage, match="put it first"):
            multi.expect_upper(keyed, 0)
        multi.seal(plain, 7)
    assert (held(plain), held(keyed)) == ([(1, 1), (1, 2)], [(1, 1)])


def test_plain_rows_may_follow_an_upsert_of_the_same_block(client: persist.Client) -> None:
    plain = made(client)["plain"]
    with client.multi_write(token="once") as multi:
        multi.upsert(plain, [(1, 1)])
        multi.write(plain, [(2, 2)])
    with client.multi_write(token="once") as multi:
        multi.upsert(plain, [(1, 1)])
        multi.write(plain, [(2, 2)])
    assert held(plain) == [(1, 1), (2, 2)]
    with pytest.raises(errors.TokenReused), client.multi_write(token="once") as multi:
        multi.upsert(plain, [(1, 1)])
        multi.write(plain, [(2, 3)])


def fill(multi: persist.MultiWrite, collections: dict[str, persist.Collection], action: str) -> None:
    for collection in collections.values():
        if action == "overwrite":
            multi.overwrite(collection, [(1, 1), (2, 2)])
        elif action == "delete where":
            multi.delete(collection, where="amount > 5")
        else:
            multi.upsert(collection, [(1, 1), (3, None)])


@pytest.mark.thorough(except_every=3)
@pytest.mark.parametrize("action", ["overwrite", "delete where", "upsert"])
@pytest.mark.parametrize("first", KEYED)
def test_a_block_without_times_is_made_again_if_somebody_comes_first(action: str, first: str) -> None:
    store = Stepped(MemoryBlob())
    with persist.open(store) as one, persist.open(store) as other:
        mine, theirs = made(one), made(other)
        for name in KEYED:
            mine[name].upsert([(1, 7), (3, 3), (4, 9)]).result()
        before = {name: collection.upper for name, collection in mine.items()}
        with one.multi_write() as multi:
            fill(multi, mine, action)
            store.before("create", "log/", lambda: theirs[first].upsert([(3, 8), (5, 6)]).result())
        assert store.is_done
        time = multi.time_of(mine[first])
        assert time is not None
        assert before[first] <= persist.Antichain(time - 1), "the other commit came first"
        expected: dict[str, list[Any]] = {
            "overwrite": [[(1, 1), (2, 2)]] * 2,
            "delete where": [[(3, 3)], []],
            "upsert": [[(1, 1), (4, 9)], [(1, 1), (4, 9), (5, 6)]],
        }
        for name, collection in mine.items():
            assert held(collection, time) == expected[action][name == first]


def test_a_plain_overwrite_at_a_time_of_its_own_is_refused_if_somebody_comes_first() -> None:
    store = Stepped(MemoryBlob())
    with persist.open(store) as one, persist.open(store) as other:
        mine, theirs = made(one), made(other)
        with pytest.raises(persist.errors.UpperMismatch), one.multi_write() as multi:
            multi.upsert(mine["keyed"], [(1, 1)])
            multi.overwrite(mine["plain"], [(1, 1)], time=9)
            theirs["plain"].upsert([(2, 2)]).result()
        assert (held(mine["plain"]), mine["keyed"].upper) == ([(2, 2)], persist.Antichain(0))


def test_a_condition_of_the_block_that_fails_is_an_error_and_not_tried_for_ever() -> None:
    store = Stepped(MemoryBlob())
    with persist.open(store) as one, persist.open(store) as other:
        mine, theirs = made(one), made(other)
        with pytest.raises(persist.errors.UpperMismatch), one.multi_write() as multi:
            multi.expect_upper(mine["keyed"], 0)
            multi.overwrite(mine["plain"], [(1, 1)])
            theirs["keyed"].upsert([(2, 2)]).result()
            theirs["plain"].upsert([(2, 2)]).result()
        assert held(mine["plain"]) == [(2, 2)]
