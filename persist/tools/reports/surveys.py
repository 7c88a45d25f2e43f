"""Collects facts about collections without reading their data: for lists, and for the portrait of one collection.

Facts come from the states of collections alone. Each state is an object of its own. States are read in parallel, so a
thousand of them in a far store take seconds instead of a minute.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import persist
from persist.blob.errors import MissingBlob
from persist.core.antichain import END, to_time
from persist.core.names import find_owner, find_reader
from persist.core.state_rules.contents import (
    CollectionState,
    Unsealed,
    get_definition_number,
    get_last_sealed,
    summarize_unsealed,
)
from persist.core.state_rules.state import CollectionEntry, State
from persist.core.timeline import Timeline
from persist.engine.follow.checkpoint import load_contents
from persist.engine.read.planning.snapshot_plan import count_records

THREADS = 16
AT_ONCE = 256  # States that are kept in memory together.


@dataclass(frozen=True)
class Facts:
    """Facts about one collection, from its state alone."""

    contents: CollectionState

    @property
    def name(self) -> str:
        return self.contents.name

    @cached_property
    def timeline(self) -> Timeline | None:
        """The unit of the collection's times; None if they are plain numbers."""
        return None if self.contents.timeline is None else Timeline(self.contents.timeline)

    @cached_property
    def rows(self) -> int | None:
        """The sum of all diffs, sealed or not; None if unknown.

        It is None if only a read can count them; see `count_records`.
        """
        return count_records(self.contents)

    @property
    def rows_about(self) -> int:
        """The number of records if known, or else of stored rows."""
        return sum(part.rows for part in self.contents.stored_parts) if self.rows is None else self.rows

    @property
    def bytes(self) -> int:
        """How many bytes the collection's stored parts take."""
        return sum(part.bytes for part in self.contents.stored_parts)

    @property
    def parts(self) -> int:
        """How many stored parts the collection has."""
        return len(self.contents.stored_parts)

    @property
    def since(self) -> int | None:
        return to_time(self.contents.since)

    @property
    def upper(self) -> int | None:
        """The upper; None if complete for ever."""
        return to_time(self.contents.upper)

    @property
    def latest(self) -> int | None:
        """The latest readable time, or None."""
        contents = self.contents
        if contents.upper == 0 or contents.since == END:
            return None
        if contents.upper == END:  # Complete: nothing happens after its last update.
            last = max((part.time_max for part in contents.history_parts), default=0)
            return max(last, contents.since, *(keyframe.as_of for keyframe in contents.keyframes))
        latest = get_last_sealed(contents)
        return latest if latest >= contents.since else None

    @property
    def unsealed(self) -> Unsealed | None:
        """A summary of the updates at or after upper; None if there are none."""
        return summarize_unsealed(self.contents)

    def moment(self, time: int | None) -> str | None:
        """Return the moment of a time, or None without a timeline."""
        return None if time is None or self.timeline is None else self.timeline.to_text(time)

    def brief(self, time: int | None) -> str:
        """Return a time as a table cell: its moment, or the number."""
        return "-" if time is None else (self.moment(time) if time else None) or str(time)

    def lag_s(self, now_s: float) -> float | None:
        """Return the seconds from upper to `now_s`; None without moments, or before the first seal."""
        if self.timeline is None or not self.upper:
            return None
        return now_s - self.timeline.to_datetime(self.upper).timestamp()

    def as_json(self) -> dict[str, Any]:
        """Return the facts that a list of collections shows, by name."""
        hidden = self.unsealed
        return {
            "name": self.name,
            "rows": self.rows,
            "bytes": self.bytes,
            "parts": self.parts,
            "since": self.since,
            "upper": self.upper,
            "since_moment": self.moment(self.since),
            "upper_moment": self.moment(self.upper),
            "holds": len(self.contents.holds),
            "unsealed": 0 if hidden is None else hidden.updates,
        }


def load_facts(client: "persist.Client", names: Sequence[str]) -> Iterator[Facts]:
    """Yield the facts of existing collections, in the order of `names`."""
    follower, blob = client.engine.follower, client.engine.blob
    state, entries_by_name = follower.apply_to_state(partial(_select_entries, names))
    entries = [*entries_by_name.values()]

    def load(entry: CollectionEntry) -> CollectionEntry:
        assert state.location is not None, "a location without a record has no entries"
        return load_contents(blob, state.location, entry)

    def load_entries(some: list[CollectionEntry]) -> Iterator[CollectionEntry]:
        """Give entries with their contents. Only those whose contents must be read go to threads."""
        far = threads.map(load, [entry for entry in some if _needs_request(entry)])
        return (next(far) if _needs_request(entry) else load(entry) for entry in some)

    with ThreadPoolExecutor(THREADS, "persist-survey") as threads:
        for first in range(0, len(entries), AT_ONCE):
            some = entries[first : first + AT_ONCE]
            try:
                all_contents = [entry.contents for entry in load_entries(some)]
            except MissingBlob:
                # A state object that newer checkpoints do not refer to has been collected: ask the follower.
                all_contents = [follower.load(entry.id) for entry in some]
            yield from (Facts(contents) for contents in all_contents if contents is not None)


class RecordOrigin(NamedTuple):
    """The writer, moment and format of a record."""

    writer: str
    written_ms: int
    format: int
    writes: bool


class FactsCache:
    """Keeps facts of collections; a later call reads only the states that changed.

    `made`: the origins of the newest records, by seqno, for `persist.tools.reports.health`.
    """

    def __init__(self, client: "persist.Client") -> None:
        self.made: dict[int, RecordOrigin] = {}
        self._client = client
        self._known: dict[str, tuple[CollectionEntry, Facts]] = {}

    def of(self, names: Iterable[str]) -> list[Facts]:
        """Return the facts of existing collections, in the order of `names`."""
        _, entries = self._client.engine.follower.apply_to_state(partial(_select_entries, [*names]))
        stale = [n for n, entry in entries.items() if n not in self._known or self._known[n][0] is not entry]
        fresh = {facts.name: facts for facts in load_facts(self._client, stale)}
        self._known = {
            name: (entry, fresh[name]) if name in fresh else self._known[name]
            for name, entry in entries.items()
            if name in fresh or name in self._known
        }
        return [facts for _, facts in self._known.values()]


def get_names_by_id(client: "persist.Client") -> dict[str, str]:
    """Return collection names by id."""
    return client.engine.follower.apply_to_state(lambda state: {id_: name for name, id_ in state.ids.iterate_all()})


def _select_entries(names: Sequence[str], state: State) -> tuple[State, dict[str, CollectionEntry]]:
    """Return the state, and its entries of existing collections by name."""
    ids = ((name, state.ids.get(name)) for name in names)
    return state, {name: state.entries[id_] for name, id_ in ids if id_ is not None}


def format_hold(hold: str | None, names: Mapping[str, str]) -> str:
    """Return a hold's name, with the ids of collections in it replaced by their names."""
    if hold is None:
        return "a lease"
    reader = find_reader(hold)
    if reader is None:
        return hold
    name = names.get(reader, "that is gone")
    return hold.removesuffix(reader) + names.get(find_owner(name) or "", name)


def _needs_request(entry: CollectionEntry) -> bool:
    """Return whether loading an entry's contents takes a request."""
    return entry.contents is None and (
        bool(entry.stored) or any(getattr(mutation, "parts_in", None) is not None for mutation in entry.pending)
    )


@dataclass(frozen=True)
class Portrait:
    """All that `persist show` prints about a collection. `names`: names of all collections, by id."""

    url: str
    schema: Any
    facts: Facts
    holds: "list[persist.HoldInfo]"
    plan: "persist.Explanation | None"
    names: Mapping[str, str]

    @property
    def keyed(self) -> dict[str, Any] | None:
        """The declaration of a keyed collection, or None."""
        form = self.facts.contents.keyed
        if form is None:
            return None
        return {
            "machine": form.machine.name,
            "resolve": form.resolve,
            "order_by": list(form.order_by),
            "ties": form.ties,
            "tombstone": form.tombstone,
            "tombstone_value": form.tombstone_value,
            "groups": {", ".join(group.order_by): list(group.columns) for group in form.groups},
        }

    @property
    def view(self) -> dict[str, Any] | None:
        """The query and inputs of a view, or None."""
        view = self.facts.contents.view
        if view is None:
            return None
        inputs = [self.names.get(id_, "a collection that is gone") for id_ in view["inputs"]]
        query = view.get("sql") or f"an index by {', '.join(self.schema.key_names)}"
        return {"sql": query, "inputs": inputs, "definition": get_definition_number(self.facts.contents)}

    @property
    def columns(self) -> list[tuple[str, str, str]]:
        """(key or value, name, type) of each column."""
        sides = (("key", self.schema.key), ("value", self.schema.value))
        return [
            (side, field.name, str(field.type) + (f" through {fields.codec_name}" if fields.codec_name else ""))
            for side, fields in sides
            for field in fields.fields
        ]

    @property
    def history(self) -> list[dict[str, Any]]:
        """The runs of history, oldest first."""
        contents = self.facts.contents
        return [self._run(contents.list_parts(run)) for run in contents.history]

    @property
    def keyframes(self) -> list[dict[str, Any]]:
        """The keyframes, each with its time and sizes."""
        contents = self.facts.contents
        return [{"as_of": k.as_of, **self._run(contents.list_parts(k.parts))} for k in contents.keyframes]

    @staticmethod
    def _run(parts: Any) -> dict[str, Any]:
        """Return the times, rows, bytes and number of parts."""
        times = {
            "first": min((p.time_min for p in parts), default=0),
            "last": max((p.time_max for p in parts), default=0),
        }
        return {
            **times,
            "rows": sum(p.rows for p in parts),
            "bytes": sum(p.bytes for p in parts),
            "parts": len(parts),
            "inline": sum(bool(p.inline) for p in parts),
        }

    def as_json(self) -> dict[str, Any]:
        facts, plan = self.facts, self.plan
        hidden = facts.unsealed
        return {
            **facts.as_json(),
            "id": facts.contents.id,
            "location": self.url,
            "timeline": facts.contents.timeline,
            "keyed": self.keyed,
            "view": self.view,
            "columns": [dict(zip(("side", "name", "type"), column, strict=True)) for column in self.columns],
            "not_sealed": None if hidden is None else str(hidden),
            "holds": [
                {"name": h.name, "time": h.kept, "holder": h.holder, "expires_ms": h.expires_ms} for h in self.holds
            ],
            "tags": dict(facts.contents.tags),
            "history": self.history,
            "keyframes": self.keyframes,
            "read": None if plan is None else {"as_of": plan.as_of, "parts": plan.parts, "bytes": plan.bytes},
        }


def load_portrait(client: "persist.Client", collection: "persist.Collection") -> Portrait:
    """Return all that `persist show` prints. Cost: a GET or two."""
    facts = Facts(collection.handle.contents())
    plan = None
    if facts.latest is not None:
        with collection.snapshot(facts.latest) as snapshot:
            plan = snapshot.explain()
    return Portrait(client.url, collection.schema, facts, collection.holds(), plan, get_names_by_id(client))
