"""What one entry of the commit log says: the mutations of one or more collections, all of them or none.

    record   = frame "record" { location, seqno, commit, previous, writer, epoch, written_ms, mutations, submitted? }
    mutation = create | append | replace | tokens | batch | seal | allow_compaction | destroy | hold | release
             | pend | resolve | late_bound
             | evolve | redefine | rename | describe | tag | drop_tag | retention | note            of one collection
             | lease | end_lease | open_writer | close_writer | truncate | void_uploads | take_over | collected
             | describe_location                                                                    of the location

Fields:
    location    32 hex digits, drawn by the writer of seqno 0; every object of a location repeats it
    commit      32 hex digits, drawn anew for every commit: how a client that lost the answer knows its own record
    previous    the commit of the record before this one, null at seqno 0: so a log is one chain, and whoever follows it
                notices that a record was lost or exchanged, or that all were rolled back
    writer      free text naming the client, for people
    epoch       the seqno at which the writer opened the location exclusively, null if it did not
    written_ms  the writer's clock, milliseconds since 1970; for people and for retention, never for correctness
    submitted   whose operations these are that were committed for others (`persist.replica.submissions`)

Mutations of a collection name it by its id, which is never used again. A frontier is a list of at most one time.
A long list of parts is stored outside the record (`parts_in`); `persist.log.part_lists` fills it in before anybody sees
the record.
"""

from typing import Annotated, Any, ClassVar, Literal

import msgspec

from persist.codecs import Part
from persist.log.envelope import BlobRef, Framed

Frontier = Annotated[tuple[Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)], ...], msgspec.Meta(max_length=1)]
# Of the data of a write (`persist.codecs.order.digest`), 16 hex digits; null where nobody can use the token again.
Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$")]
Seqno = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class _Mutation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="kind"):
    collection: str


class MachineForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Which machine (`persist.upsert.machine`) a keyed collection has, and what it was made with."""

    name: str
    version: int
    options: dict[str, Any] = {}


class KeyedForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How a collection resolves events; see `persist.upsert.keyed.Keyed`.

    Attributes:
        fields: of an event besides its key, (name, type) each; None if they are the value fields of the collection.
        late_by: how far an event's watermark may lie behind the greatest that was seen; None if that is not declared.
        late_bound: what the late bound is at first.
        ties: which of several events of a key counts that are equal in time and in order_by.
    """

    machine: MachineForm
    fields: tuple[tuple[str, Any], ...] | None = None
    order_by: tuple[str, ...] = ()
    tombstone: str | None = None
    tombstone_value: str | None = None
    late_by: int | None = None
    late_bound: int | None = None
    resolve: Literal["seal", "background"] = "seal"
    ties: Literal["last", "greatest"] = "last"


class Create(_Mutation, frozen=True, tag="create"):
    """Make a collection, with since and upper at 0.

    Attributes:
        view: the definition by which it is derived from others (`persist.sql.definition`); None if users write it.
    """

    name: str
    schema: dict[str, Any]
    keyed: KeyedForm | None = None
    view: dict[str, Any] | None = None


class Append(_Mutation, frozen=True, tag="append"):
    """Add the updates of some parts, all at times beyond upper."""

    parts: tuple[Part, ...] = ()
    parts_in: BlobRef | None = None


Numbers = tuple[int, ...]


class Keyframe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole consolidated contents as of one time: a run, its parts named by their numbers, in key order."""

    as_of: int
    parts: Numbers


class Replace(_Mutation, frozen=True, tag="replace"):
    """Put merged history, or keyframes, in the place of what they were made of.

    Parts are named by their numbers in the collection (`persist.state.contents`); those that come with this record
    are -1, -2, … in the order of parts. What is removed must still be there: of two that replace the same, the second
    loses.

    Attributes:
        removed_runs: the first number of each run of history that goes.
        runs: the runs that come.
        removed_keyframes: the time of each keyframe that goes.
        keyframes: those that come.
        history_from: updates before this time are only in keyframes from now on; None leaves that as it is.
        unused: the blobs that nothing refers to from now on.
    """

    parts: tuple[Part, ...] = ()
    parts_in: BlobRef | None = None
    removed_runs: Numbers = ()
    runs: tuple[Numbers, ...] = ()
    removed_keyframes: Numbers = ()
    keyframes: tuple[Keyframe, ...] = ()
    history_from: int | None = None
    unused: tuple[str, ...] = ()


Watermarks = tuple[int, int]  # The least and the greatest of some events, where a NULL counts as -2**63.


class Pend(_Mutation, frozen=True, tag="pend"):
    """Add events to a keyed collection, all at times beyond upper, which wait to be resolved.

    Parts are numbered like those of an `Append`, and hold rows of `persist.upsert.events`. Events arrived in the order
    of (number of their part, `_seq`).
    """

    parts: tuple[Part, ...] = ()
    parts_in: BlobRef | None = None
    watermarks: Watermarks | None = None


class Resolve(_Mutation, frozen=True, tag="resolve"):
    """Put the updates that the events at `start <= time < end` amount to in the place of these events.

    It holds only if start is what is resolved now, and pending are the numbers of all pending parts with a time before
    end: of two that resolve the same, or where events came meanwhile, the second loses. Upper moves to end, if it is
    not beyond it. Parts of which all events are resolved then are pending no more; of the others, which lie on both
    sides of end, the rows before it do not count any more.

    Attributes:
        parts: updates, as of an `Append`, in `[start, end)`.
        watermarks: of events that came with this record and were not pending before.
        unused: the blobs that nothing refers to from now on.
    """

    start: Frontier
    end: Frontier
    pending: Numbers = ()
    parts: tuple[Part, ...] = ()
    parts_in: BlobRef | None = None
    watermarks: Watermarks | None = None
    unused: tuple[str, ...] = ()


class AdvanceLateBound(_Mutation, frozen=True, tag="late_bound"):
    """Let events with a watermark below bound be late from now on; it never goes back."""

    bound: int


class TokenMark(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A write that is remembered: its token, the least time of its updates, and what it was of (`Digest`)."""

    token: str
    time_min: int
    digest: Digest | None = None


class Tokens(_Mutation, frozen=True, tag="tokens"):
    """Remember writes, so that none of them is done again."""

    tokens: tuple[TokenMark, ...]


class Batch(_Mutation, frozen=True, tag="batch"):
    """Remember the last batch of a streaming query, and the run of it that this is (`persist.state.queries`).

    With again, it was committed before: only the run is new.
    """

    query: str
    batch: Seqno
    run: str
    again: bool = False


class Seal(_Mutation, frozen=True, tag="seal"):
    """Advance upper."""

    upper: Frontier


class AllowCompaction(_Mutation, frozen=True, tag="allow_compaction"):
    """Let since advance as far as this, once no hold keeps it back."""

    since: Frontier


class Destroy(_Mutation, frozen=True, tag="destroy"):
    """Remove the collection; its name becomes free, its blobs are left to be collected."""


class SetHold(_Mutation, frozen=True, tag="hold"):
    """Keep since at or before a time, from now on.

    hold is 32 hex digits for one that lives as long as a lease; it is a name for a permanent one, which is moved from
    its expected time (None: it does not exist yet) by compare-and-set.

    Attributes:
        schema: the version of the schema under which its owner reads, if it stays with that; None leaves what it is.
        columns: the ids of columns that may not be dropped as long as it is there; None leaves what it is.
    """

    hold: str
    time: int
    lease: str | None = None
    expected: int | None = None
    schema: int | None = None
    columns: tuple[int, ...] | None = None


class ReleaseHold(_Mutation, frozen=True, tag="release"):
    """Give up a hold, if it is at its expected time; one that is not there is no error."""

    hold: str
    expected: int | None = None


class Rename(_Mutation, frozen=True, tag="rename"):
    """Give the collection another name, which is not taken; the one that it had becomes free."""

    name: str


class Evolve(_Mutation, frozen=True, tag="evolve"):
    """Make the next version of the schema, from the one before it.

    Attributes:
        keyed: how the collection resolves events from now on, if it was not keyed before.
    """

    schema: dict[str, Any]
    keyed: KeyedForm | None = None


class Redefine(_Mutation, frozen=True, tag="redefine"):
    """Give a view its next definition, which holds from start on.

    Attributes:
        view: the definition, numbered one more than the one before.
        start: what upper is now: of two that come at once, or where the view moved on meanwhile, the second loses.
        schema: the next version of the schema, if its columns are others from now on.
    """

    view: dict[str, Any]
    start: Frontier
    schema: dict[str, Any] | None = None


class Words(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is to be said of something from now on: None leaves the comment, and removes a property."""

    comment: str | None = None
    properties: dict[str, str | None] = {}


class Describe(_Mutation, frozen=True, tag="describe"):
    """Say something of a collection and of its columns, by their ids.

    With a version, nothing may have been said since what is known has that version.
    """

    words: Words = Words()
    columns: dict[str, Words] = {}
    version: int | None = None


class SetTag(_Mutation, frozen=True, tag="tag"):
    """Give a sealed time a name, and keep since at or before it. expected is where the tag is (None: there is none)."""

    tag: str
    time: int
    expected: int | None = None


class DropTag(_Mutation, frozen=True, tag="drop_tag"):
    """Give up a tag, which is at its expected time."""

    tag: str
    expected: int


class SetRetention(_Mutation, frozen=True, tag="retention"):
    """Let compaction be allowed up to so many times before upper, now and with every seal; None ends that."""

    times: int | None = None


class Note(_Mutation, frozen=True, tag="note"):
    """What whoever commits wants to be remembered of the commit. It changes nothing."""

    message: str = ""
    metadata: dict[str, str] = {}


class _LocationMutation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="kind"):
    collection: ClassVar[str] = ""  # It is about none.


class GrantLease(_LocationMutation, frozen=True, tag="lease"):
    """Begin a lease, or prolong it if it renews one. It lasts until somebody ends it, others not before its expiry.

    Whatever its holder reads from now on is of the state at reads_from or later. With a consumer, it is the lease of
    that consumer alone, and whoever takes that name up next ends it.
    """

    lease: str
    holder: str
    expires_ms: int
    renews: bool = False
    reads_from: int = 0
    consumer: str = ""


class EndLease(_LocationMutation, frozen=True, tag="end_lease"):
    """End a lease and release its holds. By others than its holder with the expiry that they saw pass."""

    lease: str
    expires_ms: int | None = None


class OpenWriter(_LocationMutation, frozen=True, tag="open_writer"):
    """Make the writer of this record the only one; the record's seqno is its epoch."""

    reentrance_id: str
    holder: str
    force: bool = False


class CloseWriter(_LocationMutation, frozen=True, tag="close_writer"):
    """Let others write again."""


class TruncateLog(_LocationMutation, frozen=True, tag="truncate"):
    """Declare that records below floor are not needed any more; they may be deleted once a checkpoint says so too."""

    floor: int


class VoidUploads(_LocationMutation, frozen=True, tag="void_uploads"):
    """Declare that blobs whose names begin with a seqno below floor are never referred to if they are not yet."""

    floor: int


class TakeOver(_LocationMutation, frozen=True, tag="take_over"):
    """Declare of what checkpoints from this record on are made: of this one, or of one from this record on."""

    checkpoint: BlobRef


class Collected(_LocationMutation, frozen=True, tag="collected"):
    """Forget what was dropped, (collection, seqno) each, because its blobs have been deleted."""

    dropped: tuple[tuple[str, int], ...]


class DescribeLocation(_LocationMutation, frozen=True, tag="describe_location"):
    """Say something of the location; as `Describe`."""

    words: Words = Words()
    version: int | None = None


CollectionMutation = (
    Create
    | Append
    | Replace
    | Tokens
    | Batch
    | Seal
    | AllowCompaction
    | Destroy
    | SetHold
    | ReleaseHold
    | Pend
    | Resolve
    | AdvanceLateBound
    | Evolve
    | Redefine
    | Rename
    | Describe
    | SetTag
    | DropTag
    | SetRetention
    | Note
)
BringsParts = Append | Replace | Pend | Resolve
LocationMutation = (
    GrantLease
    | EndLease
    | OpenWriter
    | CloseWriter
    | TruncateLog
    | VoidUploads
    | TakeOver
    | Collected
    | DescribeLocation
)
Mutation = CollectionMutation | LocationMutation

# Readers' claims, compaction and the collection of garbage change no contents: an exclusive writer does not keep others
# from them.
Unguarded = (
    Replace
    | SetHold
    | ReleaseHold
    | SetTag
    | DropTag
    | GrantLease
    | EndLease
    | OpenWriter
    | TruncateLog
    | VoidUploads
    | TakeOver
    | Collected
)


class Submitted(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Says of one client that lets others commit for it: which of its operations a record holds, and what never comes.

    The client numbers its operations. Those from first to last are in this record, none if first is beyond last. Those
    up to last that neither this record nor one before it holds are in none that follows.
    """

    submitter: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
    first: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
    last: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 2)]


class Record(Framed, frozen=True, kw_only=True, tag="record"):
    """One entry of the commit log."""

    location: str
    seqno: Seqno
    commit: str
    previous: str | None
    writer: str
    epoch: int | None
    written_ms: int
    mutations: tuple[Mutation, ...]
    submitted: tuple[Submitted, ...] | msgspec.UnsetType = msgspec.UNSET
