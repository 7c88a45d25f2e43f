"""The state of one collection: its frontiers, and the parts with its updates.

    history     runs of updates, each update in exactly one of them
    keyframes   consolidated runs, each the whole contents as of one time

Every part has a number, assigned in the order of arrival and never reused; runs and keyframes list numbers, so
keyframes share parts, and a merge names few numbers. The number of its first part identifies a history run.

Invariants:
- the parts of a run do not overlap in key and are in key order;
- a part belongs to one history run, or to keyframes only; each part belongs to something;
- all updates at times `>= history_from` are in the history, and none at earlier times;
- if `history_from > 0`, there is a keyframe as of `history_from - 1`, and since is not before that time: so for every
  readable time there is a keyframe, or the complete history, at or before it;
- keyframes are of sealed times, ascending, none before `history_from - 1`; the times of a keyframe's rows, at or before
  its own, have no meaning: they only record when a part was made.

The contents at a time are then a keyframe plus the history after it, or minus the history between the time and it.

Parts that only a published table names (`persist.core.state_rules.publications`) are *kept*: they are in no run, and
reads do not use them. So no blob of a part or of a published table counts as unused.

A keyed collection also has *pending* parts with events: they are in no run, and no sum or statistic counts them.
`persist.core.state_rules.keyed_rules` has their invariants. Up to `resolved`, which is not beyond upper, all events
have become updates; the invariants of sealed times above hold for these times.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any

import msgspec

from persist.codecs.evolution import link_versions
from persist.codecs.part.part import Part
from persist.codecs.types.schema import CollectionSchema
from persist.core.antichain import END, decode_frontier, to_antichain
from persist.core.errors import (
    AsOfCompacted,
    BeforeViewBegan,
    KeyedCollection,
    Superseded,
    UpdateNotBeyondUpper,
    attach_timeline,
)
from persist.core.log import kinds
from persist.core.log.fields import PIN_PREFIX, Deletes, Frontier, KeyedForm, Keyframe, Numbers
from persist.core.state_rules.annotations import About, Archives, LastBatch, Remembered
from persist.core.state_rules.frozen_map import extend_map, get_values
from persist.core.timeline import Timeline


class Held(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A hold: since stays at or before its time. It ends with its lease, or is permanent without one."""

    time: int
    lease: str | None = None
    schema: int | None = None
    columns: tuple[int, ...] = ()


class PublishedFile(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A part of a published table. `version`: the first with these deletions."""

    version: int
    deletes: Deletes | None = None


class Publication(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A published table; see `persist.core.state_rules.publications`, and for its members `docs/inside/format.md`."""

    id: str
    version: int
    as_of: int
    schema: int
    files: dict[int, PublishedFile] = {}
    before: dict[int, PublishedFile] = {}
    metadata: tuple[str, ...] = ()
    metadata_before: tuple[str, ...] = ()
    options: dict[str, str] = {}
    digest: str | None = None
    is_renewed: bool = True

    @property
    def numbers(self) -> set[int]:
        """The numbers of the parts of this version and the previous one."""
        return {*self.files, *self.before}

    @property
    def blobs(self) -> Iterator[str]:
        """The keys of the blobs besides parts that both versions need."""
        for file in chain(self.files.values(), self.before.values()):
            if file.deletes is not None:
                yield file.deletes.blob
        yield from self.metadata
        yield from self.metadata_before


class Erasure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One erasure; see `persist.core.state_rules.erasures`. They are numbered from 1."""

    number: int
    at_ms: int
    by: str
    updates: int
    reason: str


class CollectionState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The state of one collection, as `persist.engine.follow.checkpoint` stores it; see the module's docstring."""

    id: str
    name: str
    schema_json: dict[str, Any] = msgspec.field(name="schema")
    earlier: tuple[dict[str, Any], ...] = ()  # The versions of the schema before this one.
    since_times: Frontier = msgspec.field(name="since", default=(0,))
    upper_times: Frontier = msgspec.field(name="upper", default=(0,))
    allowed_times: Frontier = msgspec.field(name="allowed", default=(0,))
    holds: dict[str, Held] = {}
    tags: dict[str, int] = {}  # Named times; since also stays at or before each of them.
    retention: int | None = None  # How many times before upper stay readable; None for all that is not given up.
    about: About = About()
    tokens: dict[str, Remembered] = {}  # In the order in which they came.
    queries: dict[str, LastBatch] = {}  # By the query's id; the last one to commit is last.
    numbered: Mapping[int, Part] = msgspec.field(name="parts", default_factory=dict)
    next_number: int = 0
    history: tuple[Numbers, ...] = ()
    keyframes: tuple[Keyframe, ...] = ()
    history_from: int = 0
    view: dict[str, Any] | None = None  # The definition of a view; see `persist.core.log.kinds.Create`.
    inline_bytes: int = 0  # The bytes of parts inside the log; cached because writers need it at every commit.
    keyed: KeyedForm | None = None
    pending: dict[int, Part] = {}  # In the order of arrival.
    resolved_times: Frontier | None = msgspec.field(name="resolved", default=None)  # None: as far as upper.
    late_bound: int | None = None
    published: dict[str, Publication] = {}  # By the format of the table.
    kept: dict[int, Part] = {}
    erasures: tuple[Erasure, ...] = ()  # The newest; see `persist.core.state_rules.erasures`.
    archived: Archives | msgspec.UnsetType = (
        msgspec.UNSET
    )  # Older tokens; never set in a location of a format before 10.

    @property
    def archives(self) -> Archives | None:
        """The archives of older tokens; None if there never was one."""
        return None if isinstance(self.archived, msgspec.UnsetType) else self.archived

    @property
    def since(self) -> int:
        return self.since_times[0] if self.since_times else END

    @property
    def upper(self) -> int:
        return self.upper_times[0] if self.upper_times else END

    @property
    def allowed(self) -> int:
        """The time up to which compaction is allowed, before holds are considered."""
        return decode_frontier(self.allowed_times)

    @property
    def resolved(self) -> int:
        """The time before which all events are resolved; upper, if not keyed."""
        return self.upper if self.resolved_times is None else decode_frontier(self.resolved_times)

    @property
    def timeline(self) -> str | None:
        """The unit of its timeline; None without one."""
        return self.schema_json.get("timeline")

    @property
    def schema(self) -> CollectionSchema:
        """The newest version of the schema, with the earlier ones; see `persist.core.state_rules.schemas`."""
        if not self.earlier:
            return CollectionSchema.from_json(self.schema_json)
        return _load_versions(msgspec.json.encode([*self.earlier, self.schema_json]))

    @property
    def parts(self) -> tuple[Part, ...]:
        """All parts with updates, of history and keyframes, in the order of arrival."""
        return tuple(self.numbered.values())

    @property
    def stored_parts(self) -> tuple[Part, ...]:
        """All parts that it refers to: with updates, with pending events, and of published tables."""
        return (*self.numbered.values(), *self.pending.values(), *self.kept.values())

    @property
    def tables(self) -> dict[str, Publication]:
        """The published tables of users: all but the pinned times of the Iceberg table."""
        return {name: table for name, table in self.published.items() if not name.startswith(PIN_PREFIX)}

    @property
    def pins(self) -> dict[int, Publication]:
        """The pinned times of the Iceberg table, in order of time."""
        pinned = (table for name, table in self.published.items() if name.startswith(PIN_PREFIX))
        return {table.as_of: table for table in sorted(pinned, key=lambda table: table.as_of)}

    @property
    def named_blobs(self) -> set[str]:
        """The keys of all blobs that it refers to, including published tables and archives."""
        named = {part.blob for part in self.stored_parts if part.blob}
        for publication in self.published.values():
            named.update(publication.blobs)
        if self.archives is not None:
            named.update(archive.stored.blob for archive in self.archives.stored)
        return named

    @property
    def history_parts(self) -> tuple[Part, ...]:
        """The parts of all runs of the history."""
        return self.list_parts(chain.from_iterable(self.history))

    def get_part(self, number: int) -> Part:
        """Return a part by number; also one that only published tables need."""
        return self.numbered[number] if number in self.numbered else self.kept[number]

    def list_parts(self, numbers: Iterable[int]) -> tuple[Part, ...]:
        """Return the parts with these numbers."""
        return get_values(self.numbered, numbers)


@lru_cache(maxsize=64)
def _load_versions(schema_json: bytes) -> CollectionSchema:
    """Return a schema with all its versions, from their written forms."""
    return link_versions([bytes(version) for version in msgspec.json.decode(schema_json, type=list[msgspec.Raw])])


def get_definition_number(contents: CollectionState) -> int:
    """Return how often a view was defined; 0 if not a view."""
    return 0 if contents.view is None else int(contents.view.get("number", 1))


def get_last_sealed(contents: CollectionState) -> int:
    """Return the last sealed time; there must be one."""
    return contents.upper - 1


def get_first_time(contents: CollectionState) -> int:
    """Return the first readable time; 0 if there is none."""
    return 0 if contents.since == END else contents.since


def get_view_start(contents: CollectionState) -> int:
    """Return the time at which a view begins; 0 if it is not a view."""
    return 0 if contents.view is None else int(contents.view.get("start", 0))


def check_readable(contents: CollectionState, as_of: int) -> None:
    """Raise AsOfCompacted if `as_of` is before since, or BeforeViewBegan if it is before a view's start."""
    if as_of < contents.since:
        raise _build_unreadable_error(contents, as_of, None)


def _build_unreadable_error(contents: CollectionState, as_of: int, lower: int | None) -> AsOfCompacted:
    """Return the error for a read before since or a view's start."""
    start, since = get_view_start(contents), to_antichain(contents.since)
    error = AsOfCompacted(as_of, since, lower)
    if as_of < start and start > 0:  # There is no time before 0.
        error = BeforeViewBegan(as_of, since, lower, start, contents.name)
    return attach_timeline(error, contents.timeline)


def check_changes_readable(contents: CollectionState, lower: int) -> None:
    """Raise AsOfCompacted unless updates from `lower` on still have distinct times.

    Times are distinct if since is at most `lower - 1`, or if lower is 0 and nothing was compacted: no update is
    earlier.
    """
    if lower == 0 and contents.since == 0:
        return
    if lower - 1 < contents.since:
        raise _build_unreadable_error(contents, lower - 1, lower)


def append_parts(contents: CollectionState, parts: tuple[Part, ...]) -> CollectionState:
    """Return contents with more parts in the history, each its own run."""
    # One commit may hold batches that overlap in key, so nothing is known of its parts but each by itself.
    numbered = dict(enumerate(parts, contents.next_number))
    return msgspec.structs.replace(
        contents,
        numbered=extend_map(contents.numbered, numbered),
        next_number=contents.next_number + len(parts),
        history=(*contents.history, *((number,) for number in numbered)),
        inline_bytes=contents.inline_bytes + sum(len(part.inline) for part in parts),
    )


def apply_replacement(contents: CollectionState, step: kinds.Replace) -> CollectionState:
    """Apply a compaction, and check its list of unused blobs.

    Raises:
        Superseded: a run or keyframe that the step replaces or reads does not exist any more, or it names the wrong
        unused blobs.
        ValueError: it breaks an invariant, which no compaction of these contents does.
    """
    after, unused = compute_replacement(contents, step)
    if set(unused) != set(step.unused):
        raise Superseded("other blobs become unused than this compaction expected: another compaction came first")
    return after


def compute_replacement(contents: CollectionState, step: kinds.Replace) -> tuple[CollectionState, tuple[str, ...]]:
    """Return contents after a compaction, and the blobs that become unused.

    Raises:
        Superseded: a run or keyframe that the step replaces or reads does not exist any more.
        ValueError: it breaks an invariant, which no compaction of these contents does.
    """
    numbered = {**contents.numbered, **dict(enumerate(step.parts, contents.next_number))}

    def resolve(numbers: Numbers) -> Numbers:
        final_numbers = resolve_numbers(numbers, contents.next_number)
        if not final_numbers or not all(number in numbered for number in final_numbers):
            raise Superseded("a part that this compaction reads does not exist any more: another compaction came first")
        return final_numbers

    history, keyframes = list(contents.history), {keyframe.as_of: keyframe for keyframe in contents.keyframes}
    first_numbers = {run[0] for run in history}
    if not first_numbers.issuperset(step.removed_runs) or not keyframes.keys() >= set(step.removed_keyframes):
        raise Superseded("a run that this compaction replaces does not exist any more: another compaction came first")
    removed_runs = [run for run in history if run[0] in step.removed_runs]
    runs = tuple(map(resolve, step.runs))
    history = [run for run in history if run[0] not in step.removed_runs]
    for as_of in step.removed_keyframes:
        del keyframes[as_of]
    for keyframe in step.keyframes:
        if keyframe.as_of in keyframes:
            raise Superseded(f"there is a keyframe as of {keyframe.as_of} already")
        keyframes[keyframe.as_of] = Keyframe(keyframe.as_of, resolve(keyframe.parts) if keyframe.parts else ())
    history_from = contents.history_from if step.history_from is None else step.history_from
    # Other compactors may have forgotten more, or dropped that keyframe, since this was planned.
    if history_from < contents.history_from or (history_from and min(keyframes, default=None) != history_from - 1):
        raise Superseded("the history begins at another keyframe than this compaction expected")
    if history_from == contents.history_from:
        merged, result = (sum(numbered[n].diff_sum for run in some for n in run) for some in (removed_runs, runs))
        if merged != result:
            raise ValueError(f"the diffs of what it merges sum to {merged}, and those of the result to {result}")
    in_use = {*chain.from_iterable(history), *chain.from_iterable(runs)}
    in_use.update(chain.from_iterable(keyframe.parts for keyframe in keyframes.values()))
    published = {number for publication in contents.published.values() for number in publication.numbers}
    published_parts = {number: part for number, part in contents.numbered.items() if number in published - in_use}
    after = msgspec.structs.replace(
        contents,
        numbered={number: part for number, part in numbered.items() if number in in_use},
        kept={**contents.kept, **published_parts},
        next_number=contents.next_number + len(step.parts),
        history=(*history, *runs),
        keyframes=tuple(keyframes[as_of] for as_of in sorted(keyframes)),
        history_from=history_from,
        inline_bytes=sum(len(part.inline) for part in (*(numbered[n] for n in in_use), *contents.pending.values())),
    )
    if not after.numbered.keys() >= set(range(contents.next_number, after.next_number)):
        raise ValueError("it brings parts that it does not use")
    # Parts that were committed twice are two numbers with one blob.
    blobs = {part.blob for part in (*after.numbered.values(), *after.kept.values())}
    unused = dict.fromkeys(part.blob for part in numbered.values() if part.blob and part.blob not in blobs)
    check_runs(after)
    return after, tuple(unused)


def resolve_numbers(numbers: Numbers, next_number: int) -> Numbers:
    """Replace the negative numbers of parts: -1, -2 … count from `next_number`."""
    return tuple(number if number >= 0 else next_number - 1 - number for number in numbers)


def check_runs(contents: CollectionState) -> None:
    """Raise ValueError if runs, keyframes and numbers of parts contradict each other."""
    listed = [*chain.from_iterable(contents.history)]
    in_keyframes = {*chain.from_iterable(keyframe.parts for keyframe in contents.keyframes)}
    if len(set(listed)) != len(listed) or not in_keyframes.isdisjoint(listed) or not all(contents.history):
        raise ValueError("a part is in two runs of the history, or a run is empty")
    if contents.numbered.keys() != in_keyframes.union(listed):
        raise ValueError("a part is in no run, or a run lists a part that is not there")
    if any(not 0 <= number < contents.next_number for number in (*contents.numbered, *contents.pending)):
        raise ValueError(f"a part has a number that was not assigned yet; the next is {contents.next_number}")
    if any(contents.numbered[number].time_min < contents.history_from for number in listed):
        raise ValueError(f"a part of the history has times before {contents.history_from}")
    times = [keyframe.as_of for keyframe in contents.keyframes]
    if any(not 0 <= as_of < contents.resolved for as_of in times) or sorted(set(times)) != times:
        raise ValueError(f"the keyframes as of {times} are not of ascending sealed times, upper is {contents.upper}")
    for keyframe in contents.keyframes:
        if any(contents.numbered[number].time_max > keyframe.as_of for number in keyframe.parts):
            raise ValueError(f"a part of the keyframe as of {keyframe.as_of} has later times")
    if contents.history_from:
        base = contents.history_from - 1
        if not times or times[0] != base:
            raise ValueError(f"the history begins at {contents.history_from}, and no keyframe is as of {base}")
        if contents.since == 0 or contents.since < base:
            raise ValueError(f"the history begins at {contents.history_from}, and since is {contents.since}")


def check_plain(contents: CollectionState) -> None:
    """Raise KeyedCollection if plain updates may not be written."""
    if contents.keyed is not None:
        raise KeyedCollection(contents.name, "write")


def check_beyond_upper(contents: CollectionState, time: int) -> None:
    """Raise UpdateNotBeyondUpper unless time is beyond upper."""
    if time < contents.upper:
        raise UpdateNotBeyondUpper(time, to_antichain(contents.upper))


@dataclass(frozen=True, slots=True)
class Unsealed:
    """The updates at times beyond upper, not readable yet, counted from parts' descriptors.

    Attributes:
        updates: their number if is_exact; otherwise an upper bound, because some parts also have sealed updates. In a
            keyed collection, events are counted.
        first, last: the least and the greatest of their times; first is a bound, too, unless is_exact.
        timeline: of the collection, to show the times as moments.
    """

    updates: int
    first: int
    last: int
    is_exact: bool
    timeline: Timeline | None = None

    @property
    def advice(self) -> str:
        """How many updates are unsealed, and which seal makes them readable."""
        return f"{self}: sealing to {self.last + 1} makes all of that readable"

    def __str__(self) -> str:
        many = f"{self.updates:,} update{'' if self.updates == 1 else 's'}"
        first, last = (str(t) if self.timeline is None else self.timeline.to_text(t) for t in (self.first, self.last))
        at = f"time {first}" if first == last else f"times {first} to {last}"
        return f"{'' if self.is_exact else 'at most '}{many} at {at}"


def summarize_unsealed(contents: CollectionState) -> Unsealed | None:
    """Return the number and times of unsealed updates; None if none."""
    upper = contents.upper
    candidates = contents.history_parts if contents.keyed is None else contents.pending.values()
    parts = [part for part in candidates if part.time_max >= upper]
    if not parts:
        return None
    first, last = min(part.time_min for part in parts), max(part.time_max for part in parts)
    return Unsealed(
        sum(part.rows for part in parts),
        max(first, upper),
        last,
        first >= upper,
        Timeline(contents.timeline) if contents.timeline else None,
    )
