"""What a location holds after each commit, for the judge: the states of the model (`tests/support/model.py`), by
version.

A version v is the state after the commits with seqno < v, so version 0 is the empty location. A `View` looks at one
version and may be changed further, without effect on the location, to follow a commit operation by operation.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

from tests.support import model

OWN = "."  # Begins the names of collections that the library makes for itself.
TAG = "tag "  # Before the name of a tag, among holds: it keeps since like a hold that is named.
Update = list[Any]  # k, v, time, diff
Event = list[Any]  # k, v or None, time


class Contents:
    """One collection: what never changes of it, and all updates there ever were; those of events, if it is keyed."""

    def __init__(self, id_: str, name: str, schema: Any, machine: str | None = None) -> None:
        self.id = id_
        self.name = name
        self.schema = schema
        self.updates: list[Update] = []
        self.machine = machine
        self.events: list[Event] = []
        self._came: list[tuple[int, Any]] = []  # From which version on each update or event is there.
        self._eras: list[tuple[int, Contents]] = []  # Before which version something was erased, and what was there.

    def arrive(self, events: list[Event]) -> None:
        """Take events in; all updates follow anew, because times that are not sealed yet are told here, too."""
        assert self.machine is not None
        self.events += events
        self.updates = model.resolved(self.events, self.machine)

    def erase(self, keys: set[int], version: int, until: int) -> None:
        """Take the records of some keys out that came until some version; up to another version, they were there."""
        before = Contents(self.id, self.name, self.schema, self.machine)
        before.updates, before.events, before._came = self.updates, self.events, self._came
        self._eras.append((version, before))
        self._came = [(came, row) for came, row in self._came if row[0] not in keys or came > until]
        rows = [row for _, row in self._came]
        if self.machine is None:
            self.updates = rows
        else:
            self.events, self.updates = rows, model.resolved(rows, self.machine)

    def came(self, rows: list[Any], version: int) -> None:
        """Note that updates or events are there from a version on."""
        self._came += ((version, row) for row in rows)

    def without(self, keys: set[int], until: int) -> list[Update]:
        """Return the updates that are left if records of some keys are erased that came until a version."""
        left = [row for came, row in self._came if row[0] not in keys or came > until]
        return left if self.machine is None else list(model.resolved(left, self.machine))

    def known(self, until: int) -> list[Any]:
        """Return the updates, or of a keyed collection the events, that came until a version."""
        return [row for came, row in self._came if came <= until]

    def after(self, until: int) -> list[Any]:
        """Return the updates, or of a keyed collection the events, that came after a version."""
        return [row for came, row in self._came if came > until]

    def at(self, version: int) -> "Contents":
        """Return it as it was in a version: before what was erased after that."""
        return next((before for erased, before in self._eras if version <= erased), self)

    def summed(self, lower: int, upper: int) -> dict[tuple[Any, Any, int], int]:
        """Return the updates with lower <= time < upper, consolidated."""
        found: dict[Any, int] = model.changes(self._shown(), lower, upper)
        return {(*record, time): n for (record, time), n in found.items()}

    def as_of(self, time: int) -> dict[Any, int]:
        """Return the records with their multiplicities."""
        return model.contents(self._shown(), time)

    def _shown(self) -> list[Update]:
        """Return the updates that readers see: without tombstones."""
        if self.machine != model.ORDERED:
            return self.updates
        return [update for update in self.updates if update[1] != model.TOMBSTONE]


class Location:
    """All collections that ever were, the states, and who has which lease."""

    def __init__(self) -> None:
        self.collections: dict[str, Contents] = {}
        self.states = [model.Location()]
        self.exclusive: set[str] = set()  # Clients that opened exclusively.
        self.leases: dict[str, tuple[str, int]] = {}  # Whose each is, and when it expires, in ms.


class View:
    """A version of a location, perhaps with some operations applied to it that the location does not know of."""

    def __init__(self, location: Location, version: int) -> None:
        self._location = location
        self.version = version
        self.state = location.states[version]
        self._created: dict[str, Contents] = {}
        self.appended: list[tuple[str, list[Update]]] = []
        self.arrived: list[tuple[str, list[Event]]] = []
        self._erased: list[tuple[str, set[int], int]] = []

    def child(self) -> "View":
        """Return a view that can be changed without changing this one."""
        other = View(self._location, 0)
        other.version = self.version
        other.state, other._created = self.state, dict(self._created)
        other.appended, other.arrived = list(self.appended), list(self.arrived)
        return other

    def contents(self, id_: str) -> Contents:
        return self._created.get(id_) or self._location.collections[id_].at(self.version)

    def has(self, id_: str) -> bool:
        """Tell whether a collection ever was, this version included."""
        return id_ in self._created or id_ in self._location.collections

    def alive(self, id_: str) -> bool:
        return id_ in self.state.collections

    def upper(self, id_: str) -> int:
        return self.state.collections[id_].upper

    def since(self, id_: str) -> int:
        return self.state.collections[id_].since

    def allowed(self, id_: str) -> int:
        return self.state.collections[id_].allowed

    def holds(self, id_: str) -> dict[str, Any]:
        return dict(self.state.collections[id_].holds)

    def tags(self, id_: str) -> dict[str, int]:
        """Return the times that have names: holds of the model that are called so."""
        holds = self.state.collections[id_].holds
        return {name.removeprefix(TAG): time for name, (time, _) in holds.items() if name.startswith(TAG)}

    def tokens(self, id_: str) -> frozenset[str]:
        return self.state.collections[id_].tokens

    def columns(self, id_: str) -> frozenset[str]:
        return self.state.collections[id_].columns

    def keyed(self, id_: str) -> str | None:
        return self.state.collections[id_].keyed

    def resolved(self, id_: str) -> int:
        return self.state.collections[id_].resolved

    def names(self) -> dict[str, str]:
        named = {self.contents(id_).name: id_ for id_ in self.state.collections}
        return {name: id_ for name, id_ in named.items() if not name.startswith(OWN)}

    def writer(self) -> Any:
        return self.state.writer

    def refuses(self, client: str) -> model.Refused | None:
        """Return what a client that asks for a change is refused with because of another, if it is."""
        try:
            self.state.check_writer(client, is_exclusive=client in self._location.exclusive)
        except model.Refused as refused:
            return refused
        return None

    def create(self, id_: str, name: str, schema: Any, keyed: tuple[str, str] | None = None) -> None:
        """Make a collection; keyed is its machine and its policy."""
        machine, policy = keyed or (None, None)
        self._created[id_] = Contents(id_, name, schema, machine)
        self.state = self.state.having(id_, model.Collection(keyed=policy))

    def clone(self, id_: str, name: str, source: str, as_of: int) -> None:
        """Make a collection with what another one holds as of a time, at the times at which that came to hold it."""
        known = self.contents(source)
        self._created[id_] = made = Contents(id_, name, known.schema, known.machine)
        made.updates = [update for update in known.updates if update[2] <= as_of]
        made.events = [event for event in known.events if event[2] <= as_of]
        made.came(made.events if made.machine is not None else made.updates, self.version + 1)
        self.state = self.state.having(id_, self.state.collections[source].clone(as_of))

    def erase(self, id_: str, keys: set[int], until: int) -> None:
        self._erased.append((id_, keys, until))

    def of_keys(self, id_: str, keys: set[int], until: int) -> list[Any]:
        """Return what must be stored of some keys that came until a version: what compaction cannot have cancelled."""
        collection = self.state.collections[id_]
        rows = [row for row in self.contents(id_).known(until) if row[0] in keys]
        waiting: list[Any] = []
        if collection.keyed is not None:
            waiting = [row for row in rows if row[2] >= collection.resolved]
            rows = model.resolved(rows, self.contents(id_).machine or "")
            rows = [row for row in rows if row[2] < collection.resolved]
        left = [[k, v, max(t, collection.since), d] for k, v, t, d in rows]
        return [*waiting, *model.changes(left, 0, model.EMPTY)]

    def append(self, id_: str, updates: list[Update]) -> None:
        self.appended.append((id_, updates))

    def step(self, kind: str, id_: str, argument: Any) -> None:
        """Apply one step of a commit, as the model does; raises Refused where that does."""
        if kind == "restore":
            kind, argument = "write", self._restored(id_, *argument)
        self.state = self.state.after(kind, id_, argument)
        if kind == "write":
            self.append(id_, argument)
        if kind == "upsert":
            self.arrived.append((id_, argument))

    def _restored(self, id_: str, as_of: int, time: int | None) -> list[Update]:
        """Return the updates that make the contents of a plain collection what they were as of a sealed time."""
        if not self.alive(id_):
            raise model.Refused("CollectionNotFound")
        state, upper = self.state.collections[id_], self.upper(id_)
        state.check_snapshot(as_of)
        if upper == model.EMPTY:
            raise model.Refused("UpdateNotBeyondUpper", upper=upper)
        updates = [*self.contents(id_).updates, *(u for name, some in self.appended if name == id_ for u in some)]
        if model.changes(updates, upper, model.EMPTY):
            raise model.Refused("UpdatesBeyondUpper")
        sums: Counter[Any] = Counter(model.contents(updates, as_of))
        sums.subtract(model.contents(updates, upper))
        at = upper if time is None else time
        return [[k, v, at, n] for (k, v), n in sums.items() if n]

    def allow(self, id_: str, since: int) -> None:
        self._change(id_, lambda collection: collection.allowing(since))

    def hold(self, id_: str, name: str, time: int, lease: str | None) -> None:
        self._change(id_, lambda collection: collection.holding(name, time, lease))

    def release(self, id_: str, name: str) -> None:
        self._change(id_, lambda collection: collection.released(name))

    def end_lease(self, lease: str) -> None:
        for id_ in self.state.collections:
            self._change(id_, lambda collection: collection.without_lease(lease))

    def open_writer(self, client: str, reentrance_id: str) -> None:
        self.state = self.state.opened(client, reentrance_id, force=True)

    def close_writer(self) -> None:
        self.state = model.Location(self.state.collections)

    def store(self) -> None:
        """Make what was changed here the next version of the location."""
        self._location.collections.update(self._created)
        self._location.states.append(self.state)
        for id_, keys, until in self._erased:
            self._location.collections[id_].erase(keys, self.version, until)
        for id_, updates in self.appended:
            self._location.collections[id_].updates += updates
            self._location.collections[id_].came(updates, self.version + 1)
        for id_, events in self.arrived:
            self._location.collections[id_].arrive(events)
            self._location.collections[id_].came(events, self.version + 1)

    def _change(self, id_: str, change: Callable[[model.Collection], model.Collection]) -> None:
        self.state = self.state.having(id_, change(self.state.collections[id_]))
