"""Descriptions, tags, retention and holds of a collection."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from persist.codecs.errors import SchemaMismatch
from persist.codecs.nested import describe_changes
from persist.codecs.types.schema import CollectionSchema
from persist.core.antichain import Antichain, encode_frontier, to_antichain
from persist.core.errors import HoldMoved, HoldNotFound, InvalidUsage, Superseded, TagNotFound
from persist.core.log import kinds
from persist.core.log.fields import Words
from persist.core.names import check_hold_name, check_tag_name, is_storable_text
from persist.core.rendering import Shown
from persist.core.state_rules.annotations import About as StoredAbout
from persist.core.state_rules.contents import CollectionState, check_readable
from persist.core.state_rules.keyed_rules import compute_since_max
from persist.core.timeline import (
    Moment,
    Retention,
    Timeline,
    format_retention,
    format_time,
    is_moment,
    to_retention_times,
)
from persist.engine.hold import Hold, HoldInfo, LeasedHold, NamedHold
from persist.engine.location.collection_handle import CollectionHandle
from persist.engine.write.commit_future import CommitFuture
from persist.engine.write.retrying import commit_with_retry


def take_hold(
    handle: CollectionHandle, time: int | Moment | Antichain | None, name: str | None, schema: int | None = None
) -> Hold:
    """Keep since at or before a time, durably; see `Collection.hold` for arguments, cost and errors.

    `schema`: the version of the schema with which the owner of a new named hold reads.
    """
    leases = handle.engine.writer("hold").leases
    if isinstance(time, Antichain) and time.time is not None:
        time = time.time  # The time of since, for example: times from there on stay readable.
    time = None if time is None else handle.as_time("hold time", time)
    if name is not None:
        return _make_named_hold(handle, check_hold_name(name), time, schema)
    if time is None:
        raise InvalidUsage(
            "hold() needs the time that since must not pass: hold(time); or the name of a hold that exists: "
            "hold(name=…)"
        )
    check_readable(handle.contents(), time)
    claim = leases.claim(handle.id, handle.name, time, reads=False)
    return LeasedHold(leases, handle.id, claim, time, handle.as_time, handle.format_time)


def allow_compaction(handle: CollectionHandle, since: int | Moment | Antichain) -> CommitFuture:
    """Let since advance as far as holds allow; see `Collection.allow_compaction`."""
    # A moment stays readable: the last time that is not after it does.
    reach = handle.as_time("since", since) if is_moment(since) else since
    step = kinds.AllowCompaction(handle.id, encode_frontier(handle.frontier("since", reach)))
    return handle.engine.writer("allow_compaction").allow_compaction(step, handle.name)


def list_holds(handle: CollectionHandle) -> list[HoldInfo]:
    """Return the holds of all clients on a collection, least time first. Cost: one GET."""
    contents = handle.contents()
    leases = handle.engine.follower.state.control.leases
    holds = [HoldInfo(name, time, is_tag=True) for name, time in contents.tags.items()]
    for name, hold_state in contents.holds.items():
        lease = leases.get(hold_state.lease or "")
        if lease is None:
            holds.append(HoldInfo(name, hold_state.time))
        else:
            holds.append(HoldInfo(None, hold_state.time, lease.holder, lease.expires_ms))
    return sorted(holds, key=lambda hold: hold.time)


def set_hold_schema(handle: CollectionHandle, name: str, schema: int) -> None:
    """Set the schema version with which the owner of a named hold reads, if the hold exists."""
    hold = handle.contents().holds.get(name)
    if hold is not None and hold.schema != schema:
        handle.submit("hold", [kinds.SetHold(handle.id, name, hold.time, None, hold.time, schema)]).result()


def _make_named_hold(handle: CollectionHandle, name: str, time: int | None, schema: int | None) -> NamedHold:
    """Return the handle of a named hold, created or moved as requested."""

    def move(expected: int | None, to: int) -> None:
        step = kinds.SetHold(handle.id, name, to, None, expected, schema if expected is None else None)
        handle.submit("hold", [step]).result()

    def give_up(expected: int) -> None:
        handle.submit("release", [kinds.ReleaseHold(handle.id, name, expected)]).result()

    def plan() -> NamedHold:
        """Set or move the hold, as the newest state requires."""
        holds = handle.contents().holds
        hold_now = holds.get(name)
        if hold_now is None and time is None:
            raise HoldNotFound(name, tuple(n for n, hold_now in holds.items() if hold_now.lease is None))
        if hold_now is None or hold_now.lease is not None:
            assert time is not None
            move(None, time)
            hold_now = handle.contents().holds.get(name)
        if hold_now is None:
            raise Superseded(f"the hold {name!r} was released as soon as it was made")
        return NamedHold(name, hold_now.time, handle.as_time, move, give_up, handle.format_time)

    # Another client made it in between: return that one.
    return commit_with_retry(plan, action="hold", clock=handle.engine.clock, conflicts=(HoldMoved, Superseded))


@dataclass(frozen=True, slots=True)
class About:
    """The description of a location, a collection or a column; `describe` takes it as `expected`.

    Attributes:
        comment: a text for people.
        properties: texts by name.
        columns: the descriptions of columns that have one, by their present names.
        version: how often the description was changed; 0 for a column.
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
        since, upper: the present frontiers.
        waits_for: the holds and tags that keep more history than the retention.
        unresolved_from: the first time with pending events, which also keep since; None without any.
        timeline: converts times to moments; None if times are only numbers.
    """

    times: int
    since: Antichain
    upper: Antichain
    waits_for: tuple[HoldInfo, ...] = ()
    timeline: Timeline | None = None
    unresolved_from: int | None = None

    def __str__(self) -> str:
        text = f"{format_retention(self.times, self.timeline)} before upper"
        waits = [f"{_describe_holder(hold)} at {format_time(hold.time, self.timeline)}" for hold in self.waits_for]
        if self.unresolved_from is not None:
            first = format_time(self.unresolved_from, self.timeline)
            waits.append(
                f"events at {first} and later that are not resolved yet, which maintenance or a compaction does"
            )
        if not waits:
            return text
        since = "the end" if self.since.time is None else format_time(self.since.time, self.timeline)
        return f"{text}; since waits at {since} for {', '.join(waits)}"


def get_location_description(stored: StoredAbout) -> About:
    """Return the description of a location."""
    return About(stored.comment, dict(stored.properties), {}, stored.version)


def get_collection_description(contents: CollectionState) -> About:
    """Return the descriptions of a collection and of its present columns."""
    stored, schema = contents.about, contents.schema
    named = {str(id_): name for id_, name in zip(schema.ids, schema.names, strict=True)}
    columns = {
        named[id_]: About(column_about.comment, dict(column_about.properties))
        for id_, column_about in stored.columns.items()
        if id_ in named
    }
    return About(stored.comment, dict(stored.properties), columns, stored.version)


def check_words(comment: str | None, properties: Mapping[str, str | None] | None) -> Words:
    """Check a comment and properties; return them as a change of a description."""
    if comment is not None and not is_storable_text(comment):
        raise InvalidUsage(f"comment={comment!r:.100} is not text: give a str, '' for no comment")
    changed_properties = {} if properties is None else properties
    if not isinstance(changed_properties, Mapping) or not all(
        is_storable_text(name) and (value is None or is_storable_text(value))
        for name, value in changed_properties.items()
    ):
        raise InvalidUsage(
            f"properties={properties!r:.200} is not a dict of texts: give {{'owner': 'data team'}}, and None "
            "to remove a text"
        )
    return Words(comment, dict(changed_properties))


def read_version(expected: About | None) -> int | None:
    """Return the version of an expected description; None if any version is accepted."""
    if expected is not None and not isinstance(expected, About):
        raise InvalidUsage(f"expected={expected!r:.100} is not a value of the property `about`")
    return None if expected is None else expected.version


def make_describe_step(
    handle: CollectionHandle,
    comment: str | None,
    properties: Mapping[str, str | None] | None,
    columns: Mapping[str, Any] | None,
    expected: About | None,
) -> kinds.Describe:
    """Return the step that changes the description of a collection; arguments as of `Collection.describe`."""
    if not isinstance(columns or {}, Mapping):
        raise InvalidUsage(f"columns={columns!r:.200} must be a dict of descriptions by column name")
    schema = handle.contents().schema if columns else handle.schema
    names = schema.check_distinct("columns", list(columns or {}))
    ids = get_newest_ids(handle, schema, names)
    column_words = {str(ids[name]): _check_column_words(name, (columns or {})[name]) for name in names}
    return kinds.Describe(handle.id, check_words(comment, properties), column_words, read_version(expected))


def get_newest_ids(handle: CollectionHandle, newest: CollectionSchema, names: Sequence[str]) -> dict[str, int]:
    """Return the ids of columns of the newest schema by name."""
    ids = dict(zip(newest.names, newest.ids, strict=True))
    ids_by_name = dict(zip(handle.schema.names, handle.schema.ids, strict=True))
    if renumbered := [name for name in names if ids_by_name.get(name, ids[name]) != ids[name]]:
        raise SchemaMismatch(
            f"column {renumbered[0]!r} of collection {handle.name!r} was replaced by another column after this "
            f"handle was loaded: {'; '.join(describe_changes(handle.schema, newest))}. Load it again, and "
            "describe the column that you mean."
        )
    return ids


def _check_column_words(name: str, value: Any) -> Words:
    """Check a user's description of a column; return it as a change."""
    if isinstance(value, str):
        return check_words(value, None)
    if isinstance(value, Mapping) and {*value} <= {"comment", "properties"}:
        return check_words(value.get("comment"), value.get("properties"))
    raise InvalidUsage(
        f"the description of column {name!r} is {value!r:.100}: give a comment, or {{'comment': …, 'properties': …}}"
    )


def set_tag(handle: CollectionHandle, name: str, time: int | Moment | None, *, move: bool) -> int:
    """Make or move a tag, durably; return its time. Arguments and errors as of `Collection.tag`."""
    handle.engine.writer("tag")
    check_tag_name(name)
    contents, at = handle.wait_sealed(time, 0.0)
    present = contents.tags.get(name)
    if present != at:
        expected = present if move else None
        handle.submit("tag", [kinds.SetTag(handle.id, name, at, expected)]).result()
    return at


def untag(handle: CollectionHandle, name: str) -> CommitFuture:
    """Remove a tag; errors as of `Collection.untag`."""
    handle.engine.writer("untag")
    if not isinstance(name, str):
        check_tag_name(name)
    contents = handle.contents()
    if name not in contents.tags:
        raise TagNotFound(name, tuple(contents.tags))
    return handle.submit("untag", [kinds.DropTag(handle.id, name, contents.tags[name])])


def describe_retention(handle: CollectionHandle, holds: list[HoldInfo]) -> Retained | None:
    """Return how much history the collection keeps readable; None without a retention."""
    contents = handle.contents()
    if contents.retention is None:
        return None
    late = tuple(hold for hold in holds if hold.time < contents.allowed)
    waits = compute_since_max(contents) < contents.allowed
    first = min((part.time_min for part in contents.pending.values()), default=None) if waits else None
    since, upper = to_antichain(contents.since), to_antichain(contents.upper)
    return Retained(contents.retention, since, upper, late, handle.timeline, first)


def make_retention_step(handle: CollectionHandle, retention: Retention | None) -> kinds.SetRetention:
    """Return the step that sets a collection's retention; None keeps all history."""
    return kinds.SetRetention(handle.id, None if retention is None else to_retention_times(retention, handle.timeline))


def _describe_holder(hold: HoldInfo) -> str:
    """Return text that names the owner of a hold, for people."""
    if hold.is_tag:
        return f"tag {hold.name!r}"
    return f"hold {hold.name!r}" if hold.name is not None else f"a reader in {hold.holder}"
