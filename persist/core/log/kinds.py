"""All kinds of mutations; a record of the log applies its mutations as a whole.

    mutation = the tag of a kind as "kind", and the fields of its class below

`docs/inside/format.md` has the members and the effect of each kind ("record", "Erasures", "Clones", "Published tables",
"Keyed collections"). A long list of parts is stored outside the record (`parts_in`), and `persist.core.log.records`
fills it in on reading.
"""

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import msgspec

from persist.codecs.part.part import Part
from persist.core.log.fields import (
    PIN_PREFIX,
    Archiving,
    CollectionMutation,
    Frontier,
    KeyedForm,
    Keyframe,
    Kind,
    LocationMutation,
    Numbers,
    Policy,
    Seqno,
    TableFile,
    TableName,
    TimeText,
    TokenMark,
    Watermarks,
    Words,
    format_frontier,
    format_rows,
)
from persist.core.log.framing import BlobRef
from persist.core.rendering import format_count

Mutation = CollectionMutation | LocationMutation


class Create(CollectionMutation, frozen=True, tag="create"):
    """Create a collection, with since and upper at 0; a view has a definition (`persist.compute.sql.definition`)."""

    name: str
    schema: dict[str, Any]
    keyed: KeyedForm | None = None
    view: dict[str, Any] | None = None

    def describe(self, name: str, time: TimeText) -> str:
        what = "" if self.view is None else "the index " if "index" in self.view else "the view "
        return f"created {what}{self.name!r}"


class Clone(CollectionMutation, frozen=True, tag="clone"):
    """Create a collection with the contents of another one, its source, as of a sealed time; since is that time.

    The clone shares parts with its source: their blobs stay in the folder of the source, or of the source's source.
    """

    is_alone: ClassVar[bool] = True
    is_sent: ClassVar[bool] = False
    name: str
    source: str
    as_of: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 2)]
    schema: dict[str, Any]
    earlier: tuple[dict[str, Any], ...] = ()
    keyed: KeyedForm | None = None
    late_bound: int | None = None
    parts: tuple[Part, ...] = ()
    parts_in: BlobRef | None = None
    runs: tuple[Numbers, ...] = ()
    keyframe: Keyframe | None = None

    def describe(self, name: str, time: TimeText) -> str:
        return f"created {self.name!r} as a clone of a collection as of {time(self.as_of)}"


class Append(CollectionMutation, frozen=True, tag="append"):
    """Add the updates of some parts, all at times beyond upper."""

    is_sent: ClassVar[bool] = False
    parts: tuple[Part, ...] = ()
    parts_in: BlobRef | None = None

    def describe(self, name: str, time: TimeText) -> str:
        size = sum(part.bytes for part in self.parts)
        first, last = min(part.time_min for part in self.parts), max(part.time_max for part in self.parts)
        at = f"time {time(first)}" if first == last else f"times {time(first)} to {time(last)}"
        inline = ", in the record itself" if all(part.inline for part in self.parts) else ""
        return f"wrote {format_rows(self.parts, 'update')} to {name} at {at} ({size:,} bytes{inline})"


class Replace(CollectionMutation, frozen=True, tag="replace"):
    """Replace runs of history and keyframes by merged ones.

    Parts are named by their numbers in the collection. New parts are -1, -2, … in the order of `parts`. The removed
    ones must still exist: if two records replace the same, the second is refused.
    """

    is_guarded: ClassVar[bool] = False
    parts: tuple[Part, ...] = ()
    parts_in: BlobRef | None = None
    removed_runs: Numbers = ()
    runs: tuple[Numbers, ...] = ()
    removed_keyframes: Numbers = ()
    keyframes: tuple[Keyframe, ...] = ()
    history_from: int | None = None
    unused: tuple[str, ...] = ()

    def describe(self, name: str, time: TimeText) -> str:
        done = []
        if self.keyframes:
            done.append(f"made a keyframe as of {', '.join(time(keyframe.as_of) for keyframe in self.keyframes)}")
        if self.removed_runs:
            done.append(f"merged {format_count(len(self.removed_runs), 'run')} into {len(self.runs)}")
        if self.removed_keyframes:
            done.append(f"dropped {format_count(len(self.removed_keyframes), 'keyframe')}")
        if self.history_from is not None:
            done.append(f"forgot the history before {time(self.history_from)}")
        return f"compacted {name}: {'; '.join(done) or 'rearranged its parts'}"


class Erase(CollectionMutation, frozen=True, tag="erase"):
    """Remove some records from all times, by parts that lack them.

    This is the only mutation that changes a sealed time (`persist.core.state_rules.erasures`). It does not name the
    erased records, and the reason must not name a person.
    """

    is_alone: ClassVar[bool] = True
    is_sent: ClassVar[bool] = False
    updates: int
    by: str
    at_ms: int
    reason: str
    parts: tuple[Part, ...] = ()
    parts_in: BlobRef | None = None
    events: Seqno = 0
    replaced: tuple[tuple[int, Numbers], ...] = ()
    unused: tuple[str, ...] = ()

    def describe(self, name: str, time: TimeText) -> str:
        return f"erased {format_count(self.updates, 'update')} of {name} from all times: {self.reason}"


class Tokens(CollectionMutation, frozen=True, tag="tokens"):
    """Store the tokens of writes, so that no write is repeated. `archiving` moves older tokens to archives."""

    tokens: tuple[TokenMark, ...]
    archiving: Archiving | None = None
    unused: tuple[str, ...] = ()

    @property
    def format_needed(self) -> int:
        return self.came_with if self.archiving is None else self.archiving.came_with

    def describe(self, name: str, time: TimeText) -> str:
        return f"remembered {', '.join(repr(mark.token) for mark in self.tokens)} as written to {name}"


class Batch(CollectionMutation, frozen=True, tag="batch"):
    """Store a streaming query's last batch and run; `again`: only the run."""

    query: str
    batch: Seqno
    run: str
    again: bool = False
    in_words: ClassVar[str] = "was batch {0.batch} of the streaming query {0.query!r} into {name}"


class Seal(CollectionMutation, frozen=True, tag="seal"):
    """Advance upper."""

    upper: Frontier

    def describe(self, name: str, time: TimeText) -> str:
        return f"sealed {name} {'to ' if self.upper else ''}{format_frontier(self.upper, time)}"


class AllowCompaction(CollectionMutation, frozen=True, tag="allow_compaction"):
    """Let since advance to this frontier, as far as holds allow."""

    since: Frontier

    def describe(self, name: str, time: TimeText) -> str:
        return f"allowed compaction of {name} up to {format_frontier(self.since, time)}"


class Destroy(CollectionMutation, frozen=True, tag="destroy"):
    """Remove the collection; its name becomes free, and garbage collection deletes its blobs."""

    in_words: ClassVar[str] = "destroyed {name}"


class SetHold(CollectionMutation, frozen=True, tag="hold"):
    """Keep since at or before a time, from now on."""

    is_guarded: ClassVar[bool] = False
    hold: str
    time: int
    lease: str | None = None
    expected: int | None = None
    schema: int | None = None
    columns: tuple[int, ...] | None = None

    def describe(self, name: str, time: TimeText) -> str:
        if self.lease is not None:
            return f"a reader holds {name} at {time(self.time)} by a lease"
        if self.expected is None:
            return f"the hold {self.hold!r} of {name} was set at {time(self.time)}"
        return f"the hold {self.hold!r} of {name} was moved from {time(self.expected)} to {time(self.time)}"


class ReleaseHold(CollectionMutation, frozen=True, tag="release"):
    """Release a hold, if it exists; it must be at its expected time."""

    is_guarded: ClassVar[bool] = False
    hold: str
    expected: int | None = None
    in_words: ClassVar[str] = "a hold of {name} was released"


class Pend(CollectionMutation, frozen=True, tag="pend"):
    """Add events to a keyed collection, all at times beyond upper, which wait to be resolved."""

    is_sent: ClassVar[bool] = False
    parts: tuple[Part, ...] = ()
    parts_in: BlobRef | None = None
    watermarks: Watermarks | None = None

    def describe(self, name: str, time: TimeText) -> str:
        return f"wrote {format_rows(self.parts, 'event')} to {name}, which become updates when their times are sealed"


class Resolve(CollectionMutation, frozen=True, tag="resolve"):
    """Replace the events at `start <= time < end` by the updates that result from them.

    The mutation is valid only if `start` is the present `resolved`, and `pending` has the numbers of all pending parts
    with a time before end. So if two records resolve the same, or events came meanwhile, the second is refused.
    `watermarks` are of events that came with this record and were not pending before.
    """

    start: Frontier
    end: Frontier
    pending: Numbers = ()
    parts: tuple[Part, ...] = ()
    parts_in: BlobRef | None = None
    watermarks: Watermarks | None = None
    unused: tuple[str, ...] = ()

    def describe(self, name: str, time: TimeText) -> str:
        updates = format_rows(self.parts, "update")
        return f"turned the events of {name} before {format_frontier(self.end, time)} into {updates}"


class Publish(CollectionMutation, frozen=True, tag="publish"):
    """Record the next version of a published table, before readers can see it."""

    is_guarded: ClassVar[bool] = False
    is_alone: ClassVar[bool] = True
    is_sent: ClassVar[bool] = False
    table: TableName
    id: str
    version: Seqno
    as_of: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 2)]
    parts: tuple[Part, ...] = ()
    parts_in: BlobRef | None = None
    files: tuple[TableFile, ...] = ()
    removed: Numbers = ()
    schema: int = 1
    metadata: tuple[str, ...] = ()
    blobs: tuple[str, ...] = ()
    options: dict[str, str] = msgspec.field(default_factory=dict)
    digest: str | None = None
    unused: tuple[str, ...] = ()

    @property
    def format_needed(self) -> int:
        return 11 if self.table.startswith(PIN_PREFIX) else self.came_with

    def describe(self, name: str, time: TimeText) -> str:
        return f"published {name} as of {time(self.as_of)} as version {self.version} of its {self.table} table"


class Unpublish(CollectionMutation, frozen=True, tag="unpublish"):
    """Remove a published table at its expected version; `unused` are the blobs that nothing names afterwards."""

    is_guarded: ClassVar[bool] = False
    is_alone: ClassVar[bool] = True
    is_sent: ClassVar[bool] = False
    table: TableName
    version: Seqno
    unused: tuple[str, ...] = ()
    in_words: ClassVar[str] = "gave up the {0.table} table of {name}"


class AdvanceLateBound(CollectionMutation, frozen=True, tag="late_bound"):
    """Set the late bound: events with a lower watermark are late from now on. It never goes back."""

    bound: int
    in_words: ClassVar[str] = "moved the late bound of {name}"


class Evolve(CollectionMutation, frozen=True, tag="evolve"):
    """Add the schema's next version; with `keyed`, the collection becomes keyed."""

    is_alone: ClassVar[bool] = True
    schema: dict[str, Any]
    keyed: KeyedForm | None = None

    def describe(self, name: str, time: TimeText) -> str:
        sides = (self.schema.get(side) or {} for side in ("key", "value"))
        columns = ", ".join(str(field[0]) for side in sides for field in side.get("fields", ()))
        keyed = "; it takes events from then on" * (self.keyed is not None)
        return f"gave {name} version {self.schema.get('version')} of its schema: {columns}{keyed}"


class Redefine(CollectionMutation, frozen=True, tag="redefine"):
    """Set the next definition of a view, which applies from start on.

    `start` must be the present upper. So if the view was redefined or refreshed meanwhile, the redefinition is refused.
    """

    is_alone: ClassVar[bool] = True
    view: dict[str, Any]
    start: Frontier
    schema: dict[str, Any] | None = None

    def describe(self, name: str, time: TimeText) -> str:
        return f"gave {name} its definition {self.view.get('number')}: {str(self.view.get('sql'))[:80]}"


class Rename(CollectionMutation, frozen=True, tag="rename"):
    """Give the collection another name, which must be free; the old name becomes free."""

    is_alone: ClassVar[bool] = True
    name: str
    in_words: ClassVar[str] = "gave {name} the name {0.name!r}"


class Describe(CollectionMutation, frozen=True, tag="describe"):
    """Change the descriptions of a collection and of its columns, by their ids."""

    is_alone: ClassVar[bool] = True
    words: Words = Words()
    columns: dict[str, Words] = msgspec.field(default_factory=dict)
    version: int | None = None
    in_words: ClassVar[str] = "described {name}"


class SetTag(CollectionMutation, frozen=True, tag="tag"):
    """Name a sealed time, and keep since at or before it. `expected`: the present time of the tag; None without one."""

    is_guarded: ClassVar[bool] = False
    is_alone: ClassVar[bool] = True
    tag: str
    time: int
    expected: int | None = None

    def describe(self, name: str, time: TimeText) -> str:
        return f"tagged {name} as of {time(self.time)} as {self.tag!r}"


class DropTag(CollectionMutation, frozen=True, tag="drop_tag"):
    """Remove a tag, which is at its expected time."""

    is_guarded: ClassVar[bool] = False
    is_alone: ClassVar[bool] = True
    tag: str
    expected: int
    in_words: ClassVar[str] = "dropped the tag {0.tag!r} of {name}"


class SetRetention(CollectionMutation, frozen=True, tag="retention"):
    """Allow compaction up to so many times before upper, now and with every seal; None ends this."""

    is_alone: ClassVar[bool] = True
    times: int | None = None
    in_words: ClassVar[str] = "set how long {name} keeps its history"


class Note(CollectionMutation, frozen=True, tag="note"):
    """A remark of the writer about the commit. It changes nothing."""

    message: str = ""
    metadata: dict[str, str] = msgspec.field(default_factory=dict)

    def describe(self, name: str, time: TimeText) -> str:
        return f"noted on {name}: {self.message}" if name else f"noted: {self.message}"


class GrantLease(LocationMutation, frozen=True, tag="lease"):
    """Begin a lease, or prolong it. It lasts until `EndLease`, which others commit after its expiry."""

    is_guarded: ClassVar[bool] = False
    lease: str
    holder: str
    expires_ms: int
    renews: bool = False
    reads_from: int = 0
    consumer: str = ""

    def describe(self, name: str, time: TimeText) -> str:
        return f"{self.holder} {'renewed' if self.renews else 'took'} a lease"


class EndLease(LocationMutation, frozen=True, tag="end_lease"):
    """End a lease and release its holds. Clients other than its holder pass the expiry."""

    is_guarded: ClassVar[bool] = False
    lease: str
    expires_ms: int | None = None
    in_words: ClassVar[str] = "the lease {0.lease:.8} ended"


class OpenWriter(LocationMutation, frozen=True, tag="open_writer"):
    """Make this record's writer the exclusive one; the seqno is its epoch."""

    is_guarded: ClassVar[bool] = False
    is_sent: ClassVar[bool] = False
    reentrance_id: str
    holder: str
    force: bool = False

    def describe(self, name: str, time: TimeText) -> str:
        return f"{self.holder} opened the location exclusively{' by force' if self.force else ''}"


class CloseWriter(LocationMutation, frozen=True, tag="close_writer"):
    """Let other clients write again."""

    is_sent: ClassVar[bool] = False
    in_words: ClassVar[str] = "the exclusive writer closed"


class TruncateLog(LocationMutation, frozen=True, tag="truncate"):
    """Declare that no client needs records below floor; they may be deleted after a checkpoint has that floor."""

    is_guarded: ClassVar[bool] = False
    is_sent: ClassVar[bool] = False
    floor: int
    in_words: ClassVar[str] = "declared the log before {0.floor} as not needed"


class VoidUploads(LocationMutation, frozen=True, tag="void_uploads"):
    """Declare that unreferenced blobs with a seqno below floor stay unreferenced."""

    is_guarded: ClassVar[bool] = False
    is_sent: ClassVar[bool] = False
    floor: int
    in_words: ClassVar[str] = "declared uploads begun before {0.floor} void"


class TakeOver(LocationMutation, frozen=True, tag="take_over"):
    """Declare that later checkpoints build on this checkpoint or a newer one."""

    is_guarded: ClassVar[bool] = False
    is_sent: ClassVar[bool] = False
    checkpoint: BlobRef
    in_words: ClassVar[str] = "declared that checkpoints are made of {0.checkpoint.blob}"


class Collected(LocationMutation, frozen=True, tag="collected"):
    """Forget dropped blobs, as (collection, seqno): they have been deleted."""

    is_guarded: ClassVar[bool] = False
    is_sent: ClassVar[bool] = False
    dropped: tuple[tuple[str, int], ...]

    def describe(self, name: str, time: TimeText) -> str:
        return f"forgot {len(self.dropped)} things whose blobs were deleted"


class DescribeLocation(LocationMutation, frozen=True, tag="describe_location"):
    """Change the location's comment and properties, like `Describe`."""

    is_alone: ClassVar[bool] = True
    words: Words = Words()
    version: int | None = None
    in_words: ClassVar[str] = "described the location"


class Upgrade(LocationMutation, frozen=True, tag="upgrade"):
    """Raise the number of the location's format, if it is lower; clients that do not support it stop."""

    is_alone: ClassVar[bool] = True
    is_sent: ClassVar[bool] = False
    came_with: ClassVar[int] = 8
    format: Annotated[int, msgspec.Meta(ge=8)]
    in_words: ClassVar[str] = "raised the format of the location to {0.format}"

    @property
    def format_needed(self) -> int:
        return self.format


class SetPolicy(LocationMutation, frozen=True, tag="policy"):
    """Replace the policy of the location; with at_once, the times of the previous policy no longer count."""

    is_alone: ClassVar[bool] = True
    is_sent: ClassVar[bool] = False
    came_with: ClassVar[int] = 11
    policy: Policy
    at_once: bool = False
    in_words: ClassVar[str] = "set the policy of the location"


Makes = Create | Clone
BringsParts = Clone | Append | Replace | Erase | Pend | Resolve | Publish
LeavesUnused = Replace | Erase | Resolve | Publish | Unpublish | Tokens
# All kinds by their tags. `persist.core.state_rules` has the rule of each one.
KINDS: dict[str, type[Kind]] = {
    str(kind.__struct_config__.tag): kind
    for kind in (*CollectionMutation.__subclasses__(), *LocationMutation.__subclasses__())
}
if TYPE_CHECKING:
    AnyCollectionMutation = CollectionMutation
    AnyMutation = Mutation
else:  # The union that msgspec distinguishes by tags.
    AnyCollectionMutation = reduce(or_, CollectionMutation.__subclasses__())
    AnyMutation = reduce(or_, KINDS.values())
