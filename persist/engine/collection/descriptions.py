"""What a collection says of itself, and what its history is kept for: descriptions, tags, retention and holds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from persist.codecs.errors import SchemaMismatch
from persist.codecs.evolution import changes_between
from persist.codecs.types.schema import CollectionSchema
from persist.core.antichain import Antichain, to_antichain, to_stored
from persist.core.errors import HoldMoved, HoldNotFound, InvalidUsage, Superseded, TagNotFound
from persist.core.log import kinds
from persist.core.log.fields import Words
from persist.core.names import check_hold_name, check_tag_name, is_text
from persist.core.rendering import Shown
from persist.core.state_rules.annotations import About as StoredAbout
from persist.core.state_rules.contents import CollectionState, check_readable
from persist.core.state_rules.keyed_rules import since_max
from persist.core.timeline import Moment, Retention, Timeline, format_time, is_moment, retention_text, retention_times
from persist.engine.hold import Hold, HoldInfo, LeasedHold, NamedHold
from persist.engine.location.collection_handle import CollectionHandle
from persist.engine.write.commit_future import CommitFuture
from persist.engine.write.retrying import commit_with_retry


def take_hold(
    handle: CollectionHandle, time: int | Moment | Antichain | None, name: str | None, schema: int | None = None
) -> Hold:
    """Keep since at or before a time, durably; arguments, cost and errors are those of `Collection.hold`.

    Args:
        schema: the version of the schema that the owner of a new named hold stays with.
    """
    leases = handle.engine.writer("hold").leases
    if isinstance(time, Antichain) and time.time is not None:
        time = time.time  # That of since, say: what is readable from there on stays so.
    time = None if time is None else handle.as_time("hold time", time)
    if name is not None:
        return _named_hold(handle, check_hold_name(name), time, schema)
    if time is None:
        raise InvalidUsage("hold() needs the time that since must not pass: hold(time), or hold(name=…)")
    check_readable(handle.contents(), time)
    claim = leases.claim(handle.id, handle.name, time, reads=False)
    return LeasedHold(leases, handle.id, claim, time, handle.as_time, handle.format_time)


def allow_compaction(handle: CollectionHandle, since: int | Moment | Antichain) -> CommitFuture:
    """Let since advance as far as no hold needs what is before; see `Collection.allow_compaction`."""
    # A moment stays readable: the last time that is not after it does.
    reach = handle.as_time("since", since) if is_moment(since) else since
    step = kinds.AllowCompaction(handle.id, to_stored(handle.frontier("since", reach)))
    return handle.engine.writer("allow_compaction").allow_compaction(step, handle.name)


def list_holds(handle: CollectionHandle) -> list[HoldInfo]:
    """Return all holds on a collection, of whatever client, least time first. Cost: one GET."""
    contents = handle.contents()
    leases = handle.engine.follower.state.control.leases
    holds = [HoldInfo(name, time, is_tag=True) for name, time in contents.tags.items()]
    for name, held in contents.holds.items():
        lease = leases.get(held.lease or "")
        if lease is None:
            holds.append(HoldInfo(name, held.time))
        else:
            holds.append(HoldInfo(None, held.time, lease.holder, lease.expires_ms))
    return sorted(holds, key=lambda hold: hold.time)


def hold_with_schema(handle: CollectionHandle, name: str, schema: int) -> None:
    """Let the owner of a named hold, if there is one, stay with another version of the schema."""
    held = handle.contents().holds.get(name)
    if held is not None and held.schema != schema:
        handle.submit("hold", [kinds.SetHold(handle.id, name, held.time, None, held.time, schema)]).result()


def _named_hold(handle: CollectionHandle, name: str, time: int | None, schema: int | None) -> NamedHold:
    def move(expected: int | None, to: int) -> None:
        step = kinds.SetHold(handle.id, name, to, None, expected, schema if expected is None else None)
        handle.submit("hold", [step]).result()

    def give_up(expected: int) -> None:
        handle.submit("release", [kinds.ReleaseHold(handle.id, name, expected)]).result()

    def plan() -> NamedHold:
        holds = handle.contents().holds
        held = holds.get(name)
        if held is None and time is None:
            raise HoldNotFound(name, tuple(n for n, held in holds.items() if held.lease is None))
        if held is None or held.lease is not None:
            assert time is not None
            move(None, time)
            held = handle.contents().holds.get(name)
        if held is None:
            raise Superseded(f"the hold {name!r} was released as soon as it was made")
        return NamedHold(name, held.time, handle.as_time, move, give_up, handle.format_time)

    # Another client made it in between: return that one.
    return commit_with_retry(plan, action="hold", clock=handle.engine.clock, conflicts=(HoldMoved, Superseded))


@dataclass(frozen=True, slots=True)
class About:
    """What a location, a collection or a column says of itself; give it back as `expected` to change it.

    Attributes:
        comment: a text for people.
        properties: texts by name.
        columns: the same of each column that says something, by its present name.
        version: how often it was changed; of a column it is 0.
    """

    comment: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)
    columns: Mapping[str, "About"] = field(default_factory=dict)
    version: int = 0


@dataclass(frozen=True, slots=True)
class Retained(Shown):
    """How much history a collection keeps readable; print it.

    Attributes:
        times: how many times before upper stay readable.
        since, upper: the frontiers at the moment.
        waits_for: the holds and tags that keep since from where the retention would have it.
        unresolved_from: the first time whose events do, because they are not resolved yet; None if there are none.
        timeline: of the collection.
    """

    times: int
    since: Antichain
    upper: Antichain
    waits_for: tuple[HoldInfo, ...] = ()
    timeline: Timeline | None = None
    unresolved_from: int | None = None

    def __str__(self) -> str:
        text = f"{retention_text(self.times, self.timeline)} before upper"
        waits = [f"{_holder(hold)} at {format_time(hold.time, self.timeline)}" for hold in self.waits_for]
        if self.unresolved_from is not None:
            first = format_time(self.unresolved_from, self.timeline)
            waits.append(
                f"events at {first} and later that are not resolved yet, which maintenance or a compaction does"
            )
        if not waits:
            return text
        since = "the end" if self.since.time is None else format_time(self.since.time, self.timeline)
        return f"{text}; since waits at {since} for {', '.join(waits)}"


def about_location(stored: StoredAbout) -> About:
    """Return what a location says of itself."""
    return About(stored.comment, dict(stored.properties), {}, stored.version)


def about_collection(contents: CollectionState) -> About:
    """Return what a collection and its columns say of themselves; a column that is gone says nothing."""
    stored, schema = contents.about, contents.schema
    named = {str(id_): name for id_, name in zip(schema.ids, schema.names, strict=True)}
    columns = {
        named[id_]: About(own.comment, dict(own.properties)) for id_, own in stored.columns.items() if id_ in named
    }
    return About(stored.comment, dict(stored.properties), columns, stored.version)


def words(comment: str | None, properties: Mapping[str, str | None] | None) -> Words:
    """Return what callers give to be said, checked.

    Raises:
        InvalidUsage: it is not text.
    """
    if comment is not None and not is_text(comment):
        raise InvalidUsage(f"comment={comment!r:.100} is no text: give a str, '' for no comment")
    said = {} if properties is None else properties
    if not isinstance(said, Mapping) or not all(
        is_text(name) and (value is None or is_text(value)) for name, value in said.items()
    ):
        raise InvalidUsage(
            f"properties={properties!r:.200} is no dict of texts: give {{'owner': 'data team'}}, and None for one that "
            "is to go"
        )
    return Words(comment, dict(said))


def version_of(expected: About | None) -> int | None:
    """Return the version that a caller expects, None for any."""
    if expected is not None and not isinstance(expected, About):
        raise InvalidUsage(f"expected={expected!r:.100} is not what `about` gave")
    return None if expected is None else expected.version


def describe_step(
    handle: CollectionHandle,
    comment: str | None,
    properties: Mapping[str, str | None] | None,
    columns: Mapping[str, Any] | None,
    expected: About | None,
) -> kinds.Describe:
    """Return the step that changes the description of a collection; arguments as of `Collection.describe`."""
    if not isinstance(columns or {}, Mapping):
        raise InvalidUsage(f"columns={columns!r:.200} is no dict of what is to be said, by name of column")
    schema = handle.contents().schema if columns else handle.schema
    names = schema.distinct("columns", list(columns or {}))
    ids = ids_as_seen(handle, schema, names)
    said = {str(ids[name]): _column_words(name, (columns or {})[name]) for name in names}
    return kinds.Describe(handle.id, words(comment, properties), said, version_of(expected))


def ids_as_seen(handle: CollectionHandle, newest: CollectionSchema, names: Sequence[str]) -> dict[str, int]:
    """Return the ids of columns of the newest schema by name.

    Raises:
        SchemaMismatch: one of some names was another column's when the handle was loaded.
    """
    ids = dict(zip(newest.names, newest.ids, strict=True))
    seen = dict(zip(handle.schema.names, handle.schema.ids, strict=True))
    if other := [name for name in names if seen.get(name, ids[name]) != ids[name]]:
        raise SchemaMismatch(
            f"column {other[0]!r} of collection {handle.name!r} is another one by now than when this handle "
            f"was loaded: {'; '.join(changes_between(handle.schema, newest))}. Load it again, and say what is meant."
        )
    return ids


def _column_words(name: str, given: Any) -> Words:
    if isinstance(given, str):
        return words(given, None)
    if isinstance(given, Mapping) and {*given} <= {"comment", "properties"}:
        return words(given.get("comment"), given.get("properties"))
    raise InvalidUsage(
        f"what is to be said of column {name!r} is {given!r:.100}: give a comment, or {{'comment': …, 'properties': …}}"
    )


def set_tag(handle: CollectionHandle, name: str, time: int | Moment | None, *, move: bool) -> int:
    """Make or move a tag, durably; return its time. Arguments and errors as of `Collection.tag`."""
    handle.engine.writer("tag")
    check_tag_name(name)
    contents, at = handle.sealed(time, 0.0)
    present = contents.tags.get(name)
    if present != at:
        expected = present if move else None
        handle.submit("tag", [kinds.SetTag(handle.id, name, at, expected)]).result()
    return at


def untag(handle: CollectionHandle, name: str) -> CommitFuture:
    """Give up a tag; errors as of `Collection.untag`."""
    handle.engine.writer("untag")
    if not isinstance(name, str):
        check_tag_name(name)
    contents = handle.contents()
    if name not in contents.tags:
        raise TagNotFound(name, tuple(contents.tags))
    return handle.submit("untag", [kinds.DropTag(handle.id, name, contents.tags[name])])


def retained(handle: CollectionHandle, holds: list[HoldInfo]) -> Retained | None:
    """Return how much history the collection keeps readable, None if there is no retention."""
    contents = handle.contents()
    if contents.retention is None:
        return None
    late = tuple(hold for hold in holds if hold.time < contents.allowed)
    waits = since_max(contents) < contents.allowed
    first = min((part.time_min for part in contents.pending.values()), default=None) if waits else None
    since, upper = to_antichain(contents.since), to_antichain(contents.upper)
    return Retained(contents.retention, since, upper, late, handle.timeline, first)


def retention_step(handle: CollectionHandle, given: Retention | None) -> kinds.SetRetention:
    """Return the step that makes a collection keep so much history; None for all that is not given up."""
    return kinds.SetRetention(handle.id, None if given is None else retention_times(given, handle.timeline))


def _holder(hold: HoldInfo) -> str:
    if hold.is_tag:
        return f"tag {hold.name!r}"
    return f"hold {hold.name!r}" if hold.name is not None else f"a reader in {hold.holder}"
