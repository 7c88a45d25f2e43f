"""What a location holds after each commit, for the validator: DESIGN.md section 7 in integers and dicts.

A version v is the state after the commits with seqno < v, so version 0 is the empty location. `Location` keeps for
every value the versions at which it changed; a `View` looks at one version and may be changed further, without effect
on the location, to follow a commit operation by operation. Shares no code with the library.
"""

from bisect import bisect_right
from collections import Counter
from typing import Any

from tests.nemesis.history import EMPTY

Update = list[Any]  # k, v, time, diff


class Timeline:
    """A value, by version. Versions are given in order."""

    def __init__(self, first: Any) -> None:
        self._versions = [0]
        self._values = [first]

    def at(self, version: int) -> Any:
        return self._values[bisect_right(self._versions, version) - 1]

    def put(self, version: int, value: Any) -> None:
        if self._versions[-1] == version:
            self._values[-1] = value
        elif value != self._values[-1]:
            self._versions.append(version)
            self._values.append(value)


class Contents:
    """One collection. Holds are kept by name: (time, lease or None)."""

    def __init__(self, id_: str, name: str, schema: Any) -> None:
        self.id = id_
        self.name = name
        self.schema = schema
        self.updates: list[Update] = []
        self.alive = Timeline(False)
        self.upper = Timeline(0)
        self.allowed = Timeline(0)
        self.since = Timeline(0)
        self.holds = Timeline({})
        self.tokens = Timeline(frozenset())

    def summed(self, lower: int, upper: int) -> dict[tuple[Any, Any, int], int]:
        """Return the updates with lower <= time < upper, consolidated."""
        sums: Counter[tuple[Any, Any, int]] = Counter()
        for k, v, time, diff in self.updates:
            if lower <= time < upper:
                sums[k, v, time] += diff
        return {update: n for update, n in sums.items() if n}

    def as_of(self, time: int) -> dict[tuple[Any, Any], int]:
        """Return the records with their multiplicities."""
        sums: Counter[tuple[Any, Any]] = Counter()
        for k, v, at, diff in self.updates:
            if at <= time:
                sums[k, v] += diff
        return {record: n for record, n in sums.items() if n}


class Location:
    """All collections that ever were, what names stand for, who may write, and the leases."""

    def __init__(self) -> None:
        self.collections: dict[str, Contents] = {}
        self.names = Timeline({})
        self.writer = Timeline(None)  # (client, reentrance id), or None.
        self.exclusive: set[str] = set()  # Clients that opened exclusively.
        self.leases: dict[str, tuple[str, int]] = {}  # Whose each is, and when it expires, in ms.


class View:
    """A version of a location, perhaps with some operations applied to it that the location does not know of."""

    def __init__(self, location: Location, version: int) -> None:
        self._location = location
        self._version = version
        self._changed: dict[tuple[str, str], Any] = {}
        self._created: dict[str, Contents] = {}
        self.appended: list[tuple[str, list[Update]]] = []

    def child(self) -> "View":
        """Return a view that can be changed without changing this one."""
        other = View(self._location, self._version)
        other._changed, other._created = dict(self._changed), dict(self._created)
        other.appended = list(self.appended)
        return other

    def _get(self, what: str, id_: str) -> Any:
        if (what, id_) in self._changed:
            return self._changed[what, id_]
        contents = self.contents(id_)
        return getattr(contents, what).at(self._version)

    def contents(self, id_: str) -> Contents:
        return self._created.get(id_) or self._location.collections[id_]

    def alive(self, id_: str) -> bool:
        known = id_ in self._created or id_ in self._location.collections
        return known and bool(self._get("alive", id_))

    def upper(self, id_: str) -> int:
        return int(self._get("upper", id_))

    def since(self, id_: str) -> int:
        return int(self._get("since", id_))

    def allowed(self, id_: str) -> int:
        return int(self._get("allowed", id_))

    def holds(self, id_: str) -> dict[str, Any]:
        return dict(self._get("holds", id_))

    def tokens(self, id_: str) -> frozenset[str]:
        return frozenset(self._get("tokens", id_))

    def names(self) -> dict[str, str]:
        return dict(self._changed.get(("names", ""), self._location.names.at(self._version)))

    def writer(self) -> Any:
        return self._changed.get(("writer", ""), self._location.writer.at(self._version))

    def is_fenced(self, client: str) -> bool:
        """Tell whether client opened exclusively and is not the writer."""
        writer = self.writer()
        return client in self._location.exclusive and (writer is None or writer[0] != client)

    def is_locked(self, client: str) -> bool:
        """Tell whether client shares the location and another one has it exclusively."""
        return client not in self._location.exclusive and self.writer() is not None

    def create(self, id_: str, name: str, schema: Any) -> None:
        self._created[id_] = Contents(id_, name, schema)
        self._changed["alive", id_] = True
        self._changed["names", ""] = {**self.names(), name: id_}

    def append(self, id_: str, updates: list[Update]) -> None:
        self.appended.append((id_, updates))

    def seal(self, id_: str, upper: int) -> None:
        self._changed["upper", id_] = upper

    def remember(self, id_: str, token: str) -> None:
        self._changed["tokens", id_] = self.tokens(id_) | {token}

    def allow(self, id_: str, since: int) -> None:
        self._changed["allowed", id_] = max(since, self.allowed(id_))
        self._move_since(id_)

    def hold(self, id_: str, name: str, time: int, lease: str | None) -> None:
        self._changed["holds", id_] = {**self.holds(id_), name: (time, lease)}
        self._move_since(id_)

    def release(self, id_: str, name: str) -> None:
        self._changed["holds", id_] = {n: h for n, h in self.holds(id_).items() if n != name}
        self._move_since(id_)

    def end_lease(self, lease: str) -> None:
        for id_ in {*self._location.collections, *self._created}:
            if self.alive(id_) and any(owner == lease for _, owner in self.holds(id_).values()):
                self._changed["holds", id_] = {n: h for n, h in self.holds(id_).items() if h[1] != lease}
                self._move_since(id_)

    def destroy(self, id_: str) -> None:
        self._changed["alive", id_] = False
        self._changed["names", ""] = {name: i for name, i in self.names().items() if i != id_}

    def open_writer(self, client: str, reentrance_id: str) -> None:
        self._changed["writer", ""] = (client, reentrance_id)

    def close_writer(self) -> None:
        self._changed["writer", ""] = None

    def _move_since(self, id_: str) -> None:
        """Rule 4: since is the least of what was asked for and every live hold, and never goes back."""
        reach = min([self.allowed(id_), *(time for time, _ in self.holds(id_).values())], default=EMPTY)
        self._changed["since", id_] = max(self.since(id_), reach)

    def store(self) -> None:
        """Make what was changed here the next version of the location."""
        location, version = self._location, self._version + 1
        location.collections.update(self._created)
        for (what, id_), value in self._changed.items():
            if not id_:
                getattr(location, what).put(version, value)
            else:
                getattr(location.collections[id_], what).put(version, value)
        for id_, updates in self.appended:
            location.collections[id_].updates += updates
