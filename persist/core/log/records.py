"""The commit log on storage: immutable records under consecutive keys, made with put-if-absent.

    log/<seqno, 20 digits>             frame "record"

`create` of the next key is the only coordination: the client that creates it has committed. A record is never changed
or replaced. The answer of a `create` may be lost or strange. So every record has a commit id of its own, and after an
unclear answer the client reads the slot. A record there is identified by its id; if the slot is free, the same bytes
are offered again.

`docs/inside/format.md` ("record") has the members of a record. `written_ms` is for people and for retention, never for
correctness.

In memory a mutation that brings parts always has its `parts`. On storage, a long list is replaced by `parts_in`, a
pointer with a checksum of an object of its own (frame "parts"). The object is written before the record that points to
it. Its name begins with a seqno, like an upload (see `persist.core.state_rules.location.check_uploaded`), and continues
with its checksum. So writing it twice is harmless.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future
from functools import partial
from itertools import count, islice
from typing import Annotated, TypeVar

import msgspec

from persist.blob.errors import (
    CorruptBlob,
    Indeterminate,
    InvalidUsage,
    MissingBlob,
    PersistError,
    StoreFull,
    StoreMisconfigured,
    Unavailable,
)
from persist.blob.protocol import Blob, get_at_most, is_remote
from persist.blob.threads import Backoff, Clock
from persist.codecs.part.part import Part
from persist.core.log.fields import Seqno
from persist.core.log.framing import Framed, decode_framed, encode_framed, get_framed, store_framed
from persist.core.log.keys import check_keys, list_records, make_list_prefix, make_record_key
from persist.core.log.kinds import AnyMutation, BringsParts, Mutation

COMMIT_DEADLINE_S = 30.0  # How long a commit retries a store without a clear answer, before it ends in doubt.
HEAD_BYTES = 256  # The first bytes of a record hold its commit id, after its kind, format, location and seqno.
PARTS_INLINE_MAX = 256  # A longer list is stored outside its record.
RECORD_BYTES_MAX = 256 << 20  # A group of commits is far smaller (`persist.engine.write.committer.GROUP_BYTES_MAX`).
ONE_BY_ONE, AHEAD_FIRST, AHEAD_MAX = 3, 8, 32  # Records that are read in a row, and then at once.
LISTED_MAX = 1000  # A page of LIST.

M = TypeVar("M", bound=Mutation)
A = TypeVar("A", bound=BringsParts)


class Submitted(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The numbers of operations that a record's writer committed for another client.

    The client numbers its operations. The record has the numbers from `first` to `last`, none if first is beyond last.
    No later record has operations up to `last`.
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
    mutations: tuple[AnyMutation, ...]
    submitted: tuple[Submitted, ...] | msgspec.UnsetType = msgspec.UNSET


def read_record(blob: Blob, seqno: int) -> Record | None:
    """Return the record at seqno with its part lists, or None if there is none.

    Cost: one GET, and one for each separate part list.

    Raises:
        CorruptBlob, IncompatibleVersion: the record is damaged, or of a newer format.
        Unavailable: the store did not answer.
    """
    key = make_record_key(seqno)
    data = get_at_most(blob, key, RECORD_BYTES_MAX)
    if data is None:
        return None
    record = decode_framed(data, Record, key)
    if record.seqno != seqno:
        raise CorruptBlob(key, f"it holds the record of seqno {record.seqno}, so blobs were exchanged")
    for mutation in record.mutations:
        if isinstance(mutation, BringsParts):
            try:
                check_keys(mutation)  # Before any of them is read.
            except ValueError as error:
                raise CorruptBlob(key, f"it breaks a rule of the log: {error}") from error
    try:
        mutations = tuple(load_part_list(blob, record.location, mutation) for mutation in record.mutations)
    except MissingBlob:
        if blob.get(key, range=(0, 0)) is None:
            return None  # The record was truncated in between, and the list after it.
        raise
    return msgspec.structs.replace(record, mutations=mutations)


class RecordReader:
    """Reads the next records of the log, in parallel from a remote store. Not for several threads.

    A remote store takes tens of milliseconds for a record, so a client that is far behind a busy log would never catch
    up record by record. After `ONE_BY_ONE` records in a row, this reads `AHEAD_FIRST` slots at once, and twice as many
    each time that all of them have records. The first free slot is the end of the log. Rejected: to list the log first.
    A listing takes a round trip, in which a busy log grows, and costs as much as a dozen GETs. Memory: `AHEAD_MAX`
    records.
    """

    def __init__(self, blob: Blob, pool: Executor) -> None:
        self._blob = blob
        self._pool = pool

    def read_after(self, applied: Callable[[], int], last: float) -> Iterator[Record]:
        """Yield records up to `last`; the caller applies each before the next.

        `applied`: returns the seqno of the last applied record; another thread may apply some.
        """
        yielded, slots = 0, AHEAD_FIRST
        while applied() < last:
            first = applied() + 1
            if yielded >= ONE_BY_ONE and is_remote(self._blob):
                seqnos: Sequence[int] = range(first, int(min(first + slots - 1, last)) + 1)
                records = self._pool.map(partial(read_record, self._blob), seqnos)
                slots = min(2 * slots, AHEAD_MAX)
            else:
                seqnos, records = (first,), iter([read_record(self._blob, first)])
            for seqno, record in zip(seqnos, records, strict=True):
                if record is None:
                    return
                if seqno != applied() + 1:
                    break  # Another thread has applied it.
                yield record
                yielded += 1

    def list_page(self, after: int) -> "LogPage":
        """Return a page of the log's listing. Requests to remote stores start at once."""
        return LogPage(self._blob, after, self._pool if is_remote(self._blob) else None)


class LogPage:
    """A page of the log's listing after a seqno, and its records up to the first gap.

    With a pool, it requests the listing and the first records at once; without, on use.
    """

    def __init__(self, blob: Blob, after: int, pool: Executor | None) -> None:
        self._blob = blob
        self._after = after
        self._pool = pool
        self._asked: deque[Future[Record | None]] = deque()
        self._seqnos: list[int] | None = None
        self._listing = None if pool is None else pool.submit(self._list_and_request, pool)

    @property
    def seqnos(self) -> list[int]:
        """The seqnos of all records in the page, ascending."""
        if self._seqnos is None:  # No `cached_property`: up to Python 3.11, all pages of a process share its lock.
            self._seqnos = self._list_seqnos() if self._listing is None else self._listing.result()
        return self._seqnos

    @property
    def is_full(self) -> bool:
        """Whether the log may have records after this page."""
        return len(self.seqnos) == LISTED_MAX

    @property
    def consecutive_seqnos(self) -> list[int]:
        """The seqnos of the page up to the first gap."""
        return _take_consecutive(self._after, self.seqnos)

    def read_records(self) -> Iterator[Record | None]:
        """Yield the records up to the first gap, once; None if deleted."""
        run = self.consecutive_seqnos
        for at, seqno in enumerate(run):
            if self._pool is None:
                yield read_record(self._blob, seqno)
                continue
            if at + AHEAD_MAX < len(run):
                self._asked.append(self._pool.submit(read_record, self._blob, run[at + AHEAD_MAX]))
            yield self._asked.popleft().result()

    def _list_seqnos(self) -> list[int]:
        """List the seqnos of the page, without their records."""
        return [seqno for seqno, _ in islice(list_records(self._blob, self._after - 1), LISTED_MAX)]

    def _list_and_request(self, pool: Executor) -> list[int]:
        """List the page; request its first records before the list is used."""
        seqnos = self._list_seqnos()
        self._asked.extend(
            pool.submit(read_record, self._blob, seqno) for seqno in _take_consecutive(self._after, seqnos)[:AHEAD_MAX]
        )
        return seqnos


def _take_consecutive(after: int, seqnos: Iterable[int]) -> list[int]:
    """Return the seqnos that follow `after` without a gap."""
    later = (seqno for seqno in seqnos if seqno > after)
    return [n for n, seqno in zip(count(after + 1), later, strict=False) if n == seqno]


def read_commit_id(blob: Blob, seqno: int) -> str | None:
    """Return the commit id of the record at seqno; None without a record. Cost: one GET."""
    key = make_record_key(seqno)
    data = get_at_most(blob, key, RECORD_BYTES_MAX)
    return None if data is None else decode_framed(data, Record, key).commit


def matches_commit(blob: Blob, seqno: int, commit: str) -> bool:
    """Return whether the record at seqno begins with a commit id. Cost: a small GET.

    False does not prove that the commit differs: call `read_commit_id` to be sure.
    """
    head = blob.get(make_record_key(seqno), (0, HEAD_BYTES))
    return head is not None and f'"commit":"{commit}"'.encode() in head


def encode_record(record: Record) -> bytes:
    """Return the stored bytes of a record. Equal records have equal bytes."""
    return encode_framed(msgspec.structs.replace(record, mutations=tuple(map(strip_part_list, record.mutations))))


def create_record(blob: Blob, record: Record, clock: Clock, *, deadline_s: float = COMMIT_DEADLINE_S) -> Record | None:
    """Create a record at its seqno; return None, or the record that came first.

    Raises:
        InvalidUsage: the record is larger than readers accept.
        StoreFull: the store has no room for it; there is no retry.
        Unavailable: the record is certainly not in the log.
        Indeterminate: within deadline_s, no answer showed whether the record is in the log.
        StoreMisconfigured: the store refuses the request, or reports an existing record that it does not have.
    """
    key, data = make_record_key(record.seqno), encode_record(record)
    if len(data) > RECORD_BYTES_MAX:
        raise InvalidUsage(
            f"a commit takes {len(data):,} bytes of the log, and at most {RECORD_BYTES_MAX:,} are allowed; nothing was "
            "written. Split it."
        )
    backoff = Backoff(clock, deadline_s)
    doubtful = was_gone = False
    failure: Unavailable | Indeterminate
    while True:
        try:
            if blob.create(key, data):
                return None
            stored = read_record(blob, record.seqno)
            if stored is None and was_gone:
                raise _make_phantom_error(blob, key)
            if stored is None:
                was_gone = True  # Truncated in between: a client that creates it now finds that out.
                continue
            return None if stored.commit == record.commit else stored
        except StoreMisconfigured:
            if not _is_stored(blob, record):
                raise
            return None  # A proxy invented the answer.
        except Unavailable as error:
            if isinstance(error, StoreFull) and not doubtful:
                raise
            failure = error
        except Indeterminate as error:
            doubtful, failure = True, error
            stored = _try_read_record(blob, record.seqno)
            if stored is not None:
                return None if stored.commit == record.commit else stored
        if not backoff.wait():
            raise _make_timeout_error(blob, record, deadline_s, doubtful, failure) from failure


def _try_read_record(blob: Blob, seqno: int) -> Record | None:
    """Return a record; None without one, or if the store fails."""
    try:
        return read_record(blob, seqno)
    except (Unavailable, StoreMisconfigured):
        return None


def _is_stored(blob: Blob, record: Record) -> bool:
    """Return whether the log has this commit; False if the store fails."""
    try:
        stored = read_record(blob, record.seqno)
    except PersistError:
        return False  # The caller raises the first error of the store.
    return stored is not None and stored.commit == record.commit


def _make_phantom_error(blob: Blob, key: str) -> StoreMisconfigured:
    """Return the error for a store whose record exists without a value."""
    return StoreMisconfigured(
        f"the store at {blob.url} says again and again that {key!r} exists, and has no value for it. Look what stands "
        "there; or the server, or a proxy before it, misreads the If-None-Match: * of a PUT: use one that does not."
    )


def _make_timeout_error(blob: Blob, record: Record, deadline_s: float, doubtful: bool, failure: Exception) -> Exception:
    """Return the error for a commit that was not confirmed in time."""
    tried = f"the store at {blob.url} did not confirm the commit at seqno {record.seqno} within {deadline_s:g} s"
    if doubtful:
        return Indeterminate(
            f"{tried} ({failure}), so it may or may not be there. Read back before writing it again."
        ).with_remedy("{history:call} shows what was committed.")
    return Unavailable(f"{tried} ({failure}); nothing was written. Try again when the store answers.")


class PartList(Framed, frozen=True, kw_only=True, tag="parts"):
    """The stored parts of a mutation with too many for its record."""

    location: str
    collection: str
    parts: tuple[Part, ...]


def store_part_list(blob: Blob, location: str, mutation: A, seqno: int, *, format: int) -> A:
    """Store a mutation's long part list as an object. Cost: one PUT, or nothing.

    Args:
        seqno: the expected seqno of the record.
        format: the format number of the location.
    """
    if len(mutation.parts) <= PARTS_INLINE_MAX:
        return mutation
    content = PartList(format=format, location=location, collection=mutation.collection, parts=mutation.parts)
    return msgspec.structs.replace(
        mutation, parts_in=store_framed(blob, make_list_prefix(mutation.collection, seqno), content)
    )


def strip_part_list(mutation: M) -> M:
    """Return a mutation without its parts if they are stored separately."""
    if isinstance(mutation, BringsParts) and mutation.parts_in is not None:
        return msgspec.structs.replace(mutation, parts=())
    return mutation


def load_part_list(blob: Blob, location: str, mutation: M) -> M:
    """Return a mutation with its part list. Cost: one GET if the list is stored separately."""
    if not isinstance(mutation, BringsParts) or mutation.parts_in is None or mutation.parts:
        return mutation
    content = get_framed(blob, mutation.parts_in, PartList)
    if (content.location, content.collection) != (location, mutation.collection):
        raise CorruptBlob(mutation.parts_in.blob, "it belongs to another collection, so blobs were exchanged")
    return msgspec.structs.replace(mutation, parts=content.parts)
