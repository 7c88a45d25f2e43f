"""The oracle: what a location holds, what each call makes of it, and what it is refused with.

It knows the rules and nothing of the library, so that the two can be compared; `tests/proofs/test_model.py` keeps it
so. The simulator of faults, races and deaths (`tests/proofs/simulator`) judges by it.

States are values: a call returns the one after it, or raises `Refused`. They hold frontiers, holds and tokens. Updates
are kept beside them, in lists that only grow: what is read as of a sealed time does not depend on what came later. An
update is any sequence that ends with its time and its diff; `contents` and `changes` say which record it is of. Events
of keyed collections are `[key, value or None, time]`, in the order of arrival; `resolved` says what they amount to.

Times are integers. EMPTY, above all of them, is the empty frontier, which means complete for ever.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

EMPTY = 2**63
ORDERED, TOMBSTONE = "ordered", "z"  # Events of which the greatest value counts; the greatest of all deletes.
GREATEST: Literal["greatest"] = "greatest"  # Events of one time, of which the greatest value counts.

Update = Sequence[Any]


class Refused(Exception):
    """A call is refused: `error` is the name of the class that the library must raise, `fields` its attributes."""

    def __init__(self, error: str, **fields: Any) -> None:
        super().__init__(error)
        self.error = error
        self.fields = fields


@dataclass(frozen=True, slots=True)
class Collection:
    """One collection, without its updates.

    Attributes:
        allowed: the time up to which compaction was allowed.
        since: the time from which on it can be read; see `_moved`.
        holds: by name, the time that a reader needs and the lease that it has it for, or None.
        tokens: of the writes that had one.
        columns: that the collection has got since it was created, and still has.
        version: of its schema.
        keyed: its policy, "seal" or "background"; None of a collection that takes updates.
        resolved: up to which time events have been turned into updates, of a keyed one.
    """

    upper: int = 0
    allowed: int = 0
    since: int = 0
    holds: Mapping[Any, tuple[int, Any]] = field(default_factory=dict)
    tokens: frozenset[str] = field(default=frozenset(), repr=False)
    columns: frozenset[str] = frozenset()
    version: int = 1
    keyed: str | None = None
    resolved: int = 0

    def after(self, kind: str, argument: Any) -> "Collection":
        """Return the collection after one step of a commit.

        Steps are ("write", updates), ("seal", upper), ("allow_compaction", since), ("expect", upper), ("token", token);
        ("evolve", ("add" or "drop", column, the version that it is made from)), and ("columns", those that a writer
        knows of). Of keyed ones, ("upsert", events) takes the place of "write", and ("resolve", upper) is maintenance.
        """
        if kind == "upsert":
            self.check_write([*event, 1] for event in argument)
            return self
        if kind == "resolve":
            return replace(self, resolved=max(self.resolved, argument))._moved()
        if kind == "evolve":
            return self._evolved(*argument)
        if kind == "columns":
            if not self.columns.issuperset(argument):
                raise Refused("SchemaMismatch")
            return self
        if kind == "write":
            self.check_write(argument)
            return self
        if kind == "expect":
            if argument != self.upper:
                raise Refused("UpperMismatch", expected=argument, actual=self.upper)
            return self
        if kind == "token":
            return replace(self, tokens=self.tokens | {argument})
        if kind == "allow_compaction":
            if argument < self.since:
                raise Refused("FrontierRegression", frontier="since", asked=argument, current=self.since)
            return self.allowing(argument)
        assert kind == "seal", kind
        if argument < self.upper:
            raise Refused("FrontierRegression", frontier="upper", asked=argument, current=self.upper)
        resolved = argument if self.keyed == "seal" else self.resolved
        return replace(self, upper=argument, resolved=resolved)._moved()

    def clone(self, as_of: int) -> "Collection":
        """Return a new collection with the same contents as of a sealed time; raise Refused if it cannot be read."""
        self.check_snapshot(as_of)
        columns, version = self.columns, self.version
        return Collection(as_of + 1, as_of, as_of, {}, frozenset(), columns, version, self.keyed, as_of + 1)

    def _evolved(self, how: str, column: str, version: int) -> "Collection":
        if version != self.version:
            raise Refused("SchemaMoved", expected=version, actual=self.version)
        if (column in self.columns) == (how == "add"):
            raise Refused("SchemaMismatch")
        return replace(self, columns=self.columns ^ {column}, version=version + 1)

    def check_write(self, updates: Iterable[Update]) -> None:
        """Raise Refused if an update is at a sealed time; those whose diff is 0 are none."""
        late = [time for *_, time, diff in updates if diff and time < self.upper]
        if late:
            raise Refused("UpdateNotBeyondUpper", time=min(late), upper=self.upper)

    def allowing(self, since: int) -> "Collection":
        """Return the collection when compaction may go as far as since, or as it might before if that is farther."""
        return replace(self, allowed=max(self.allowed, since))._moved()

    def holding(self, name: Any, time: int, lease: Any = None) -> "Collection":
        """Return the collection with a hold, which is new or moves."""
        return replace(self, holds={**self.holds, name: (time, lease)})._moved()

    def holding_only(self, holds: Mapping[Any, tuple[int, Any]]) -> "Collection":
        """Return the collection with these holds and no others."""
        return replace(self, holds=holds)._moved()

    def released(self, name: Any) -> "Collection":
        """Return the collection without a hold."""
        return self.holding_only({n: hold for n, hold in self.holds.items() if n != name})

    def without_lease(self, lease: Any) -> "Collection":
        """Return the collection without the holds of a lease."""
        return self.holding_only({n: hold for n, hold in self.holds.items() if hold[1] != lease})

    def _moved(self) -> "Collection":
        """Rule 4: since is the least of what was allowed and every live hold, and never goes back.

        Nor does it pass the last time at which a keyed collection is resolved: what comes next begins with that.
        """
        most = [max(0, self.resolved - 1)] if self.keyed is not None else []
        reach = min([self.allowed, *most, *(time for time, _ in self.holds.values())])
        return replace(self, since=max(self.since, reach))

    def check_snapshot(self, as_of: int) -> None:
        """Raise Refused if the contents as of a time cannot be read now."""
        if as_of < self.since:
            raise Refused("AsOfCompacted", as_of=as_of, since=self.since)
        if as_of >= self.upper:
            raise Refused("AsOfNotSealed", upper=self.upper)


@dataclass(frozen=True, slots=True)
class Location:
    """All collections there are, by whatever identifies them, and the client that alone may write.

    Attributes:
        writer: that client and its reentrance id, or None if clients share the location.
    """

    collections: Mapping[str, Collection] = field(default_factory=dict)
    writer: tuple[str, Any] | None = None

    def opened(self, client: str, reentrance_id: Any, *, force: bool) -> "Location":
        """Return the location after a client opened it exclusively (rule 12)."""
        if self.writer is not None and self.writer[1] != reentrance_id and not force:
            raise Refused("Locked")
        return replace(self, writer=(client, reentrance_id))

    def closed(self, client: str) -> "Location":
        """Return the location after an exclusive client gave it back."""
        self.check_writer(client, is_exclusive=True)
        return replace(self, writer=None)

    def check_writer(self, client: str, *, is_exclusive: bool) -> None:
        """Raise Refused if a client may not write now."""
        if is_exclusive and (self.writer is None or self.writer[0] != client):
            raise Refused("WriterFenced")
        if not is_exclusive and self.writer is not None:
            raise Refused("Locked")

    def having(self, name: str, collection: Collection) -> "Location":
        """Return the location with a collection, which is new or another value of the one it has."""
        return replace(self, collections={**self.collections, name: collection})

    def without(self, name: str) -> "Location":
        """Return the location after a collection was destroyed."""
        if name not in self.collections:
            raise Refused("CollectionNotFound")
        return replace(self, collections={n: c for n, c in self.collections.items() if n != name})

    def after(self, kind: str, name: str, argument: Any) -> "Location":
        """Return the location after one step of a commit: one that `Collection.after` knows, or ("destroy", None)."""
        if kind == "destroy":
            return self.without(name)
        if name not in self.collections:
            raise Refused("CollectionNotFound")
        return self.having(name, self.collections[name].after(kind, argument))


def contents(updates: Iterable[Update], as_of: int) -> dict[Hashable, int]:
    """Return the records as of a time with their multiplicities, which are not 0."""
    sums: Counter[Hashable] = Counter()
    for *record, time, diff in updates:
        if time <= as_of:
            sums[_whole(record)] += diff
    return {record: n for record, n in sums.items() if n}


def changes(updates: Iterable[Update], lower: int, upper: int) -> dict[tuple[Hashable, int], int]:
    """Return (record, time) of the updates with lower <= time < upper, consolidated, with their diffs."""
    sums: Counter[tuple[Hashable, int]] = Counter()
    for *record, time, diff in updates:
        if lower <= time < upper:
            sums[_whole(record), time] += diff
    return {update: n for update, n in sums.items() if n}


def resolved(events: Iterable[Sequence[Any]], machine: str = "upsert") -> list[list[Any]]:
    """Return the updates [key, value, time, diff] that events amount to, by time, and of one time by arrival.

    The machine "upsert" replaces the value of a key; "insert-if-absent" leaves it, unless it is to be deleted; ORDERED
    replaces it by one that is not less, and a TOMBSTONE is such a value; GREATEST replaces it by the greatest value of
    a time, and deletes only if there is none.
    """
    present: dict[Any, Any] = {}
    sums: Counter[tuple[Any, Any, int]] = Counter()
    is_ordered = machine == ORDERED

    def order(event: Sequence[Any]) -> tuple[Any, ...]:
        return event[2], (event[1] is not None, event[1] or "") if machine in (ORDERED, GREATEST) else ()

    for key, value, time in sorted(events, key=order):
        if is_ordered and key in present and value < present[key]:
            continue
        old = present.pop(key, None)
        if machine == "insert-if-absent" and old is not None and value is not None:
            value = old
        if old is not None:
            sums[key, old, time] -= 1
        if value is not None:
            sums[key, value, time] += 1
            present[key] = value
    return [[*update, n] for update, n in sums.items() if n]


def _whole(record: list[Any]) -> Hashable:
    """Return a record of one member as that member, others as a tuple."""
    return record[0] if len(record) == 1 else tuple(record)
