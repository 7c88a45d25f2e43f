"""Immutable maps: a changed copy shares what is unchanged with the original.

    keys  ->  256 shards by crc32  ->  a dict each
    below them, for maps that are too large for memory: a map that is read on demand

A copy with k changes copies the table of shards, and the shards of the changed keys: of ten thousand keys, 40 for each
change. Rejected: a trie, whose nodes cost more in Python than a copied dict of a few dozen keys. Rejected: a layer of
changes over a base. Then either reads or an occasional change cost as much as the whole map.

Invariants:
- neither a map nor the map below it ever changes;
- a shard has None for a deleted key only if the map below may still have the key.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, ValuesView
from itertools import chain
from typing import Protocol, TypeVar
from zlib import crc32

V = TypeVar("V")
V_co = TypeVar("V_co", covariant=True)

SHARDS = 256
GROWN_MAX = 1024


class Below(Protocol[V_co]):
    """The protocol of a stored map, over which a `FrozenMap` has changes. Errors of reads change nothing."""

    def get(self, key: str) -> V_co | None:
        """Return the value of key, or None."""

    def iterate_prefix(self, prefix: str) -> Iterator[tuple[str, V_co]]:
        """Yield the keys that start with prefix, ascending, with their values."""

    def list_marked(self, mark: str) -> Iterable[str]:
        """Return all keys whose values have a mark, and perhaps other keys."""


class FrozenMap(Mapping[str, V]):
    """An immutable map: items in memory, over an optional stored map. Equal constructions iterate in equal order."""

    __slots__ = ("_below", "_last", "_shards")

    def __init__(self, values: Mapping[str, V] | None = None, below: Below[V] | None = None) -> None:
        self._below = below
        self._shards: dict[int, dict[str, V | None]] = {}
        for key, value in (values or {}).items():
            self._shards.setdefault(_compute_shard(key), {})[key] = value
        # The last look-up: each of many tiny writes looks several times for one collection. A tuple, so that threads
        # replace it as a whole.
        self._last: tuple[str | None, V | None] = (None, None)

    @property
    def is_all_in_memory(self) -> bool:
        """Whether no stored map lies below, so that no access reads."""
        return self._below is None

    @property
    def below(self) -> Below[V] | None:
        """The stored map below the items in memory, or None."""
        return self._below

    def shares_base_with(self, other: "FrozenMap[V]") -> bool:
        """Return whether both maps have one stored map, and differ in memory."""
        return self._below is other._below

    def with_changes(self, changes: Mapping[str, V | None]) -> "FrozenMap[V]":
        """Return a copy with changed values; None removes a key."""
        if not changes:
            return self
        by_shard: defaultdict[int, list[str]] = defaultdict(list)
        for key in changes:
            by_shard[_compute_shard(key)].append(key)
        after: FrozenMap[V] = FrozenMap(below=self._below)
        after._shards = dict(self._shards)
        for number, keys in by_shard.items():
            shard = dict(self._shards.get(number, {}))
            for key in keys:
                value = changes[key]
                if value is None and self._below is None:
                    shard.pop(key, None)
                else:
                    shard[key] = value
            after._shards[number] = shard
        return after

    def changes_since(self, before: "FrozenMap[V]") -> dict[str, V | None]:
        """Return the changes that turn another map into this one.

        A value counts as changed unless it is the same object.

        Cost: O(changes) shards if both have the same map below; otherwise all items of both are read.
        """
        changes: dict[str, V | None] = {}
        if self._below is not before._below:
            changes.update((key, value) for key, value in self.iterate_all() if before.get(key) is not value)
            changes.update((key, None) for key, _ in before.iterate_all() if self.get(key) is None)
            return changes
        for number in self._shards.keys() | before._shards.keys():
            now, then = self._shards.get(number, {}), before._shards.get(number, {})
            if now is not then:
                changes.update((key, self.get(key)) for key in then if key not in now)
                changes.update((key, value) for key, value in now.items() if key not in then or then[key] is not value)
        return changes

    def __getitem__(self, key: str) -> V:
        value = self.get(key)
        if value is None:
            raise KeyError(key)
        return value

    def get(self, key: str, default: V | None = None) -> V | None:  # type: ignore[override]
        """Return the value of a key, or default; faster than `Mapping.get`, which catches a KeyError."""
        last = self._last
        if last[0] is key:
            return last[1]
        shard = self._shards.get(crc32(key.encode(errors="surrogatepass")) % SHARDS)  # Without a call, for speed.
        if shard is not None and key in shard:
            value = shard[key]
        elif self._below is not None:
            value = self._below.get(key)
        else:
            return default
        if value is None:
            return default
        self._last = key, value
        return value

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self.get(key) is not None

    def __iter__(self) -> Iterator[str]:
        return (
            chain.from_iterable(self._shards.values())
            if self._below is None
            else (key for key, _ in self.iterate_all())
        )

    def iterate_all(self) -> Iterator[tuple[str, V]]:
        """Yield all keys with values, faster than `items`."""
        return self.iterate_in_memory() if self._below is None else self.iterate_prefix("")

    def iterate_in_memory(self) -> Iterator[tuple[str, V]]:
        """Yield the keys and values in memory, without the stored map's."""
        items = chain.from_iterable(shard.items() for shard in self._shards.values())
        return ((key, value) for key, value in items if value is not None)

    def iterate_prefix(self, prefix: str) -> Iterator[tuple[str, V]]:
        """Yield the keys that start with prefix, ascending, with their values. Cost: O(items in memory)."""
        items = chain.from_iterable(shard.items() for shard in self._shards.values())
        ours = sorted((item for item in items if item[0].startswith(prefix)), key=_get_key)
        below = iter(()) if self._below is None else self._below.iterate_prefix(prefix)
        return ((key, value) for key, value in merge_sorted(iter(ours), below) if value is not None)

    def iterate_marked(self, mark: str) -> Iterator[tuple[str, V]]:
        """Yield the items in memory, and at least the marked ones below."""
        yield from self.iterate_in_memory()
        for key in self._below.list_marked(mark) if self._below is not None else ():
            if key not in self._shards.get(_compute_shard(key), ()) and (value := self.get(key)) is not None:
                yield key, value

    def __len__(self) -> int:
        """Return the number of keys. Cost: a map below is read as a whole."""
        return sum(map(len, self._shards.values())) if self._below is None else sum(1 for _ in self.iterate_all())

    def __repr__(self) -> str:
        return f"FrozenMap({dict(self)!r})"


class MapChanges(dict[str, V | None]):
    """Changes over an unchanged map: a value for a key, or None for a deleted key."""

    __slots__ = ("below",)

    def __init__(self, below: "FrozenMap[V] | MapChanges[V]") -> None:
        super().__init__()
        self.below = below

    def look_up(self, key: str) -> V | None:
        """Return the value of key after the changes, or None."""
        if key in self:
            return self[key]
        return self.below.look_up(key) if isinstance(self.below, MapChanges) else self.below.get(key)

    def iterate_in_memory(self) -> Iterator[tuple[str, V]]:
        """Yield the items of `FrozenMap.iterate_in_memory`, after the changes."""
        return self._merge_changes(self.below.iterate_in_memory())

    def iterate_marked(self, mark: str) -> Iterator[tuple[str, V]]:
        """Yield the items of `FrozenMap.iterate_marked`, after the changes."""
        return self._merge_changes(self.below.iterate_marked(mark))

    def _merge_changes(self, below: Iterator[tuple[str, V]]) -> Iterator[tuple[str, V]]:
        """Yield the items below that are unchanged, then the changed ones."""
        yield from (item for item in below if item[0] not in self)
        yield from ((key, value) for key, value in self.items() if value is not None)


class _GrowingValues(ValuesView[V_co]):
    """The values of a `GrowingMap`, iterated without look-ups."""

    def __init__(self, values: "GrowingMap[V_co]") -> None:
        super().__init__(values)
        self._iterables = values._shared.values(), values._last.values()

    def __iter__(self) -> Iterator[V_co]:
        return chain.from_iterable(self._iterables)


class GrowingMap(Mapping[int, V]):
    """An immutable map by number; extending it shares most items.

    Invariant: the shared keys are less than the others, of which there is at least one.
    """

    __slots__ = ("_last", "_shared")

    def __init__(self, shared: Mapping[int, V], last: dict[int, V]) -> None:
        self._shared = shared
        self._last = last

    def __getitem__(self, number: int) -> V:
        return self._last[number] if number in self._last else self._shared[number]

    def __iter__(self) -> Iterator[int]:
        return chain(self._shared, self._last)

    def __len__(self) -> int:
        return len(self._shared) + len(self._last)

    def values(self) -> ValuesView[V]:
        """Return a view of the values, in order."""
        return _GrowingValues(self)


def get_values(values: Mapping[int, V], numbers: Iterable[int]) -> tuple[V, ...]:
    """Return the values of some keys, in their order."""
    if type(values) is not GrowingMap:
        return tuple(map(values.__getitem__, numbers))
    shared, last = values._shared, values._last
    first = next(iter(last))
    return tuple([shared[number] if number < first else last[number] for number in numbers])


def extend_map(values: Mapping[int, V], new: dict[int, V]) -> Mapping[int, V]:
    """Return a map with more keys, which are greater than the present keys.

    Cost: at most `GROWN_MAX` copied items, and a copy of all items once in so many calls.
    """
    if len(values) < GROWN_MAX or not new:
        return {**values, **new}
    shared, last = (values._shared, values._last) if isinstance(values, GrowingMap) else (values, {})
    if len(last) < GROWN_MAX:
        return GrowingMap(shared, {**last, **new})
    return GrowingMap({**shared, **last}, new)


def merge_sorted(newer: Iterator[tuple[str, V]], older: Iterator[tuple[str, V]]) -> Iterator[tuple[str, V]]:
    """Merge items that are sorted by key; newer items replace older ones."""
    new, old = next(newer, None), next(older, None)
    while new is not None or old is not None:
        if old is None or (new is not None and new[0] <= old[0]):
            assert new is not None
            if old is not None and old[0] == new[0]:
                old = next(older, None)
            yield new
            new = next(newer, None)
        else:
            yield old
            old = next(older, None)


def _get_key(item: tuple[str, object]) -> str:
    """Return the key of an item."""
    return item[0]


def _compute_shard(key: str) -> int:
    """Return the number of the shard that has a key."""
    return crc32(key.encode(errors="surrogatepass")) % SHARDS
