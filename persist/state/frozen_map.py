"""A map that is never changed: a changed copy shares what stayed the same, so that it costs little in a large one.

    keys  ->  256 shards by crc32  ->  a dict each

A copy with k changes copies the table of shards and the shards that the changes fall into: of ten thousand keys 40 for
each change, and never all of them. Rejected: a trie, whose nodes cost more in Python than a copied dict of a few dozen
keys; and a layer of changes over a base, which makes either reads or an occasional change cost as much as all of it.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import TypeVar
from zlib import crc32

V = TypeVar("V")

SHARDS = 256


class FrozenMap(Mapping[str, V]):
    """Holds what it was made of, for ever. Its order is arbitrary, and the same whenever it was made the same way."""

    __slots__ = ("_count", "_last", "_shards")

    def __init__(self, values: Mapping[str, V] | None = None) -> None:
        self._shards: dict[int, dict[str, V]] = {}
        for key, value in (values or {}).items():
            self._shards.setdefault(_shard(key), {})[key] = value
        self._count = len(values or ())
        # What was found last: of many tiny writes, each asks several times for one collection. A tuple, so that it is
        # whole whichever thread has put it there.
        self._last: tuple[str | None, V | None] = (None, None)

    def with_changes(self, changes: Mapping[str, V | None]) -> "FrozenMap[V]":
        """Return a copy with some values set, or taken out where the change is None."""
        if not changes:
            return self
        by_shard: defaultdict[int, list[str]] = defaultdict(list)
        for key in changes:
            by_shard[_shard(key)].append(key)
        after: FrozenMap[V] = FrozenMap()
        after._shards, after._count = dict(self._shards), self._count
        for number, keys in by_shard.items():
            before = self._shards.get(number, {})
            shard = dict(before)
            for key in keys:
                value = changes[key]
                if value is None:
                    shard.pop(key, None)
                else:
                    shard[key] = value
            after._shards[number] = shard
            after._count += len(shard) - len(before)
        return after

    def changes_since(self, before: "FrozenMap[V]") -> dict[str, V | None]:
        """Return what makes this map of another one. A value counts as changed unless it is the same object.

        Cost: O(changes) shards, if this one was made of the other.
        """
        changes: dict[str, V | None] = {}
        for number in self._shards.keys() | before._shards.keys():
            now, then = self._shards.get(number, {}), before._shards.get(number, {})
            if now is not then:
                changes.update((key, None) for key in then if key not in now)
                changes.update((key, value) for key, value in now.items() if then.get(key) is not value)
        return changes

    def __getitem__(self, key: str) -> V:
        return self._shards[_shard(key)][key]

    def get(self, key: str, default: V | None = None) -> V | None:  # type: ignore[override]
        """Return the value of key, or default. As in any Mapping, without the cost of raising where it is absent."""
        last = self._last
        if last[0] is key:
            return last[1]
        shard = self._shards.get(_shard(key))
        if shard is None or key not in shard:
            return default
        found = shard[key]
        self._last = key, found
        return found

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and key in self._shards.get(_shard(key), ())

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(self._shards.values())

    def each(self) -> Iterator[tuple[str, V]]:
        """Yield all keys with their values, in the order of `iter`, in a fraction of the time of `items`."""
        return chain.from_iterable(shard.items() for shard in self._shards.values())

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"FrozenMap({dict(self)!r})"


class MapChanges(dict[str, V | None]):
    """What changes in a map that stays as it is: a value for a key, or None for a key that goes."""

    __slots__ = ("below",)

    def __init__(self, below: "FrozenMap[V] | MapChanges[V]") -> None:
        super().__init__()
        self.below = below

    def now(self, key: str) -> V | None:
        """Return the value of key with the changes, None if there is none."""
        if key in self:
            return self[key]
        return self.below.now(key) if isinstance(self.below, MapChanges) else self.below.get(key)

    def each(self) -> Iterator[tuple[str, V]]:
        """Yield each key that has a value with the changes, and that value."""
        yield from (found for found in self.below.each() if found[0] not in self)
        yield from ((key, value) for key, value in self.items() if value is not None)


def _shard(key: str) -> int:
    return crc32(key.encode(errors="surrogatepass")) % SHARDS
