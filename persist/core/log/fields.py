"""The base of all kinds of mutations, and the types of their fields."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from persist.codecs.part.part import Part
from persist.core.log.framing import FORMAT_MIN, BlobRef
from persist.core.rendering import format_count

Frontier = Annotated[tuple[Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)], ...], msgspec.Meta(max_length=1)]
# The digest of the data of a write (`persist.codecs.order.digest`), 16 hex digits.
Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$")]
Seqno = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
TimeText = Callable[[int], str]  # How a time of a collection reads.

Numbers = tuple[int, ...]
Watermarks = tuple[int, int]  # The least and the greatest of some events, where a NULL counts as -2**63.


def format_frontier(times: Frontier, time: TimeText) -> str:
    """Return a frontier of a collection as text."""
    return time(times[0]) if times else "for ever"


def format_rows(parts: Sequence[Part], noun: str) -> str:
    """Return the number of rows in parts, with a noun."""
    return format_count(sum(part.rows for part in parts), noun)


def _has_documents(schema: dict[str, Any]) -> bool:
    """Return whether a schema in written form has columns of JSON."""
    side = schema.get("value") or {}
    return any(kind == "json" for _, kind, *_ in side.get("fields", ()))


class Kind(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="kind"):
    """The base of all kinds of mutations; `tag` is the name of a kind on storage.

    Attributes:
        is_guarded: whether only an exclusive writer, if there is one, may commit it. Readers' claims, compaction and
            garbage collection change no contents, so any client may commit them.
        is_alone: whether it gets a record of its own, because its place among other operations matters.
        is_sent: whether one client may send it to another to commit.
        in_words: a description for people, formatted with the mutation and the name of its collection.
        came_with: the number of the format that introduced it, at least `FORMAT_MIN`.
    """

    is_guarded: ClassVar[bool] = True
    is_alone: ClassVar[bool] = False
    is_sent: ClassVar[bool] = True
    in_words: ClassVar[str]
    came_with: ClassVar[int] = FORMAT_MIN

    @property
    def format_needed(self) -> int:
        """The least format number of a location that may store this mutation."""
        schema, events = getattr(self, "schema", None), getattr(getattr(self, "keyed", None), "fields", None)
        if getattr(getattr(self, "keyed", None), "groups", ()):
            return 14
        if isinstance(schema, dict) and _has_documents(schema):
            return 13
        if events and any(kind == "json" for _, kind in events):
            return 13
        return 12 if isinstance(schema, dict) and "inner" in schema else self.came_with

    def describe(self, name: str, time: TimeText) -> str:
        """Return the mutation as a sentence; `time` formats times of the collection."""
        return self.in_words.format(self, name=name)


class CollectionMutation(Kind, frozen=True):
    """A mutation of one collection."""

    collection: str


class LocationMutation(Kind, frozen=True):
    """A mutation of the location as a whole."""

    collection: ClassVar[str] = ""


class MachineForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The machine (`persist.core.keyed.machine`) of a keyed collection, and its options."""

    name: str
    version: int
    options: dict[str, Any] = {}


class GroupForm(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Value columns of a keyed collection with their own order."""

    order_by: tuple[str, ...]
    columns: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """All columns of the group."""
        return (*self.order_by, *self.columns)


class KeyedForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How a collection resolves events; see `persist.core.keyed.form.Keyed`."""

    machine: MachineForm
    fields: tuple[tuple[str, Any], ...] | None = None
    order_by: tuple[str, ...] = ()
    tombstone: str | None = None
    tombstone_value: str | None = None
    late_by: int | None = None
    late_bound: int | None = None
    resolve: Literal["seal", "background"] = "seal"
    ties: Literal["last", "greatest"] = "last"
    groups: tuple[GroupForm, ...] = ()

    @property
    def is_ordered(self) -> bool:
        """Whether a late event may be older than a deletion, which must then be kept."""
        return bool(self.order_by or self.groups)


class Keyframe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole consolidated contents as of one time: part numbers in key order."""

    as_of: int
    parts: Numbers


class TokenMark(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A token of a write, with the write's least time and `Digest`."""

    token: str
    time_min: int
    digest: Digest | None = None


class TokenArchive(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An archive of older tokens (`persist.core.log.token_archives`), and their number."""

    stored: BlobRef
    count: Annotated[int, msgspec.Meta(ge=1)]


class Archiving(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Move a collection's oldest tokens into an archive, with its newest archives."""

    came_with: ClassVar[int] = 10  # The number of a location's format from which on no token is forgotten unnoticed.
    archive: TokenArchive
    moved: Annotated[int, msgspec.Meta(ge=1)]
    merged: Seqno = 0
    dropped: Seqno = 0


class Deletes(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A deletion vector: the rows of a part that a table omits."""

    blob: str
    start: Annotated[int, msgspec.Meta(ge=0)]
    bytes: Annotated[int, msgspec.Meta(ge=0)]
    rows: Annotated[int, msgspec.Meta(ge=1)]


class TableFile(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A part of a published table, by number, and its deletion vector."""

    number: int
    deletes: Deletes | None = None


Table = Literal["delta", "iceberg"]
# The name of a published table: its format, or a pinned time of the Iceberg table, such as "iceberg@17".
TableName = Annotated[str, msgspec.Meta(pattern="^(delta|iceberg(@(0|[1-9][0-9]{0,18}))?)$")]
PIN_PREFIX = "iceberg@"


class Words(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Changes of a description: None keeps the comment, and removes a property."""

    comment: str | None = None
    properties: dict[str, str | None] = {}


_Seconds = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The times and limits that all clients of a location share; durations in whole seconds.

    The log stores all members, so a release with other defaults reads the same policy. A location without a policy in
    its log uses these defaults, which therefore never change.

    Attributes:
        lease_s: how long a reader that vanished without `close` keeps history.
        clock_skew_s: the greatest difference of two clients' clocks: clients end a lease this long after its expiry.
        grace_s: how long unused blobs are kept for readers without a lease.
        orphan_grace_s: how long an upload may take from its first part to its commit.
        log_retention_s: log records are kept this long.
        log_retention_records: at least so many log records are kept, however old they are.
        log_records_max, log_bytes_max: in a longer log, records older than `grace_s` plus four minutes are deleted, in
            spite of log_retention_s, by writing clients, without waiting for a garbage collection.
    """

    lease_s: Annotated[int, msgspec.Meta(ge=1, le=2**53)] = 600
    clock_skew_s: _Seconds = 30
    grace_s: _Seconds = 3600
    orphan_grace_s: _Seconds = 24 * 3600
    # The log must keep what a client may take for its end: see `persist.engine.follow.follower.STALE_AFTER_S`.
    log_retention_s: Annotated[int, msgspec.Meta(ge=240, le=2**53)] = 7 * 24 * 3600
    # Not below 16: as above.
    log_retention_records: Annotated[int, msgspec.Meta(ge=16, le=2**53)] = 1000
    log_records_max: Annotated[int, msgspec.Meta(ge=16, le=2**53)] = 10_000
    log_bytes_max: Annotated[int, msgspec.Meta(ge=1, le=2**53)] = 256 << 20
