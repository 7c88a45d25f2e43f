"""A client dies before and after each change to the store that upserting makes; the next finds all or nothing of it."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest

import persist
from persist.blob.protocol import Blob, BlobEntry, MemoryBlob
from tests.core.keyed.model import Event, resolved
from tests.support.resolving import resolve_events
from tests.support.tuned import tuned

KEY, VALUE = {"k": pa.int64()}, {"mark": pa.int64(), "v": pa.string(), "gone": pa.bool_()}
# What happens by itself would be at no step in particular.
SETTINGS = tuned(background=False, grace_s=0, orphan_grace_s=0)
EACH = 9  # Of the steps, each case takes every ninth one.
LARGE = 1500  # Rows enough for a part in a blob of its own.


class Died(BaseException):
    """The process is gone: nothing that it does from now on reaches the store."""


class MortalBlob:
    """Passes calls on until the n-th change of the store, before or after which its client dies."""

    def __init__(self, inner: Blob, dies_at: int, *, is_after: bool) -> None:
        self._inner = inner
        self._dies_at = dies_at
        self._is_after = is_after
        self.changes: list[str] = []
        self.is_dead = False

    @property
    def url(self) -> str:
        return self._inner.url

    def get(self, key: str, range: tuple[int, int] | None = None) -> bytes | None:
        self._check()
        return self._inner.get(key, range)

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[BlobEntry]:
        self._check()
        return self._inner.list(prefix, start_after)

    def set(self, key: str, value: bytes) -> None:
        self._change(key, lambda: self._inner.set(key, value))

    def create(self, key: str, value: bytes) -> bool:
        return bool(self._change(key, lambda: self._inner.create(key, value)))

    def delete(self, key: str) -> None:
        self._change(key, lambda: self._inner.delete(key))

    def close(self) -> None:
        """Do nothing: the store goes on."""

    def _check(self) -> None:
        if self.is_dead:
            raise Died

    def _change(self, key: str, do: Callable[[], Any]) -> Any:
        self._check()
        is_last = len(self.changes) == self._dies_at
        self.changes.append(key.partition("/")[0])
        if is_last and not self._is_after:
            self.is_dead = True
            raise Died
        done = do()
        if is_last:
            self.is_dead = True
            raise Died
        return done


def events() -> list[list[Event]]:
    """Return batches of events: large and small ones, on both sides of the seals of `story`."""
    many = [Event(k, f"{k:030}", k % 3, k) for k in range(LARGE)]
    few = [Event(k, "few", 2, 10**6 + k) for k in range(0, 50, 5)]
    gone = [Event(k, None, 3, 10**7) for k in range(10)]
    late = [Event(k, "late", 4, 5) for k in range(20)]
    return [many, few, gone, late]


def rows(batch: list[Event]) -> list[Any]:
    return [(e.key, (e.mark, e.value, e.value is None), e.time) for e in batch]


def story(client: persist.Client, policy: Any, told: list[str]) -> None:
    """Upsert and seal in every way there is; may be told again, by another client, from its beginning."""
    declared = persist.Keyed(order_by=["mark"], tombstone="gone", resolve=policy)
    users = client.create_or_load("users", key=KEY, value=VALUE, keyed=declared)
    many, few, gone, late = events()
    users.upsert(rows(many), token="many").result()
    told.append("many")
    users.upsert(rows(few), token="few").result()
    told.append("few")
    users.seal_to(2).result()
    told.append("seal 2")
    users.upsert(rows(gone), token="gone", seal=4).result()
    told.append("gone")
    client.maintain()
    resolve_events(users)
    users.upsert(rows(late), token="late").result()
    told.append("late")
    users.compact()
    users.seal_to(5).result()
    told.append("seal 5")


def expected() -> list[Any]:
    """Return the updates of the whole story, without tombstones."""
    every = [event for batch in events() for event in batch]
    found = resolved(every, ordered=True, tombstones=True)
    return sorted((k, mark, v, time, diff) for k, (mark, v), time, diff in found if v is not None)


def check_found(client: persist.Client, told: list[str]) -> None:
    """What was acknowledged is there."""
    if "users" not in client.collections():
        assert told == []
        return
    contents = client.load("users").handle.contents()
    assert {*contents.tokens} >= {*told} & {"many", "few", "gone", "late"}
    upper = contents.upper
    assert upper >= (5 if "seal 5" in told else 4 if "gone" in told else 2 if "seal 2" in told else 0)
    assert client.fsck().is_clean


@pytest.mark.thorough(except_every=36)
@pytest.mark.parametrize("policy", ["seal", "background"])
@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("first", range(EACH))
def test_a_client_that_dies_at_any_step_leaves_all_or_nothing(policy: Any, is_after: bool, first: int) -> None:
    for step in itertools.count(first, EACH):
        store = MemoryBlob(f"crash-{policy}-{is_after}-{step}")
        mortal = MortalBlob(store, step, is_after=is_after)
        told: list[str] = []
        dying = None
        with suppress(Died):
            dying = persist.open(mortal, settings=SETTINGS)
            story(dying, policy, told)
        if not mortal.is_dead:
            break
        with persist.open(store, settings=SETTINGS) as client:
            check_found(client, told)
            story(client, policy, [])
            users = client.load("users")
            found = users.changes(0, 5).to_arrow().to_pylist()
            assert sorted((r["k"], r["mark"], r["v"], r["_time"], r["_diff"]) for r in found) == expected(), step
            client.gc()
            named = {part.blob for part in users.handle.contents().stored_parts if part.blob}
            assert {entry.key for entry in store.list("part/")} == named, f"garbage is left over from step {step}"
            assert client.fsck().is_clean
        with suppress(BaseException):
            if dying is not None:
                dying.close()
    assert step >= 10, "the story changes the store more often than that"
