"""Writes by tasks: each task turns rows into updates and parts, and uploads them; one commit then names all parts.

Names are drawn anew for every upload, so a task that fails, is killed or runs twice leaves at most unused blobs. A task
that fails by itself deletes its own at once; others are garbage. Updates that come sorted by key become parts that do
not overlap (see `persist.codecs.part.stream`), and while one part is uploaded the next is encoded.

A write by many tasks is planned first: its target, its time, and the contents of its one commit. It always has a token,
the user's or a new one. So a commit that is repeated after an unknown outcome is recognised, and its parts are not
deleted.
"""

import logging
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pyarrow as pa

from persist.blob.threads import SystemClock
from persist.codecs.order.digest import DIGEST_MODULUS, compute_digest
from persist.codecs.part.part import Part
from persist.codecs.part.stream import RunStream
from persist.codecs.types.schema import CollectionSchema
from persist.core.antichain import END, Antichain, to_antichain
from persist.core.errors import FrontierRegression, InvalidUsage, PersistError, UpdateNotBeyondUpper, UpdatesBeyondUpper
from persist.core.log.fields import KeyedForm
from persist.core.settings import Settings, open_storage
from persist.core.state_rules.collection_rules import Condition
from persist.core.timeline import Moment, is_column_name
from persist.engine.collection.commit import Commit
from persist.engine.collection.plain_rows import expect_unchanged, find_refusal
from persist.engine.location.collection_handle import CollectionHandle
from persist.engine.location.engine import Engine
from persist.engine.location.opening import load_handle, open_engine, read_engine
from persist.engine.location.writer import OpenOptions
from persist.engine.write.part_writer import PartWriter
from persist.engine.write.retrying import commit_with_retry
from persist.engine.write.write_options import WriteOptions, compute_delete_digest, compute_overwrite_digest

logger = logging.getLogger(__name__)
BUFFER_BYTES_MAX = 64 << 20


@dataclass(frozen=True)
class Target:
    """The collection that a job writes to, by its id.

    `seqno`: the log's next seqno when the job was planned; it is a part of uploads' names.
    """

    location: str
    storage: Mapping[str, Any]
    id: str
    name: str
    schema: CollectionSchema
    keyed: KeyedForm | None
    seqno: int

    @classmethod
    def of(cls, handle: CollectionHandle, location: str, storage: Mapping[str, Any]) -> "Target":
        """Return a collection as the target of a job."""
        seqno = handle.engine.follower.find_next_seqno()
        return cls(location, storage, handle.id, handle.name, handle.schema, handle.keyed, seqno)

    def at(self, engine: Engine) -> CollectionHandle:
        """Return the collection as a handle of an engine."""
        return CollectionHandle(engine, self.id, self.name, self.schema, self.keyed)

    @contextmanager
    def open_writer(self) -> Iterator[PartWriter]:
        """Open the store for uploads, without reading anything."""
        storage = open_storage(self.location, self.storage)
        try:
            yield PartWriter(storage.blob, lambda: self.seqno)
        finally:
            storage.close()


def open_for_writing(location: str, storage: Mapping[str, Any]) -> Engine:
    """Open a location for commits: the engine does nothing in the background."""
    return open_engine(location, storage, OpenOptions(settings=Settings(background=False)))


def upload(target: Target, tables: Iterable[pa.Table]) -> tuple[Part, ...]:
    """Store the updates of one task; return the descriptors of their parts.

    Raises:
        DiffOverflow, InvalidUpdate: as `encode_parts`.
        Unavailable: the store did not accept a part.
    """
    with target.open_writer() as writer, Uploads(writer, target.id) as uploads:
        stream = RunStream(target.schema)
        for table in tables:
            assert {*table.column_names} <= {*target.schema.arrow.names}, "parts would lose a column"
            uploads.add(stream.add(table))
        uploads.add(stream.finish())
        return uploads.finish()


@dataclass
class DigestSum:
    """Sums the digests of tables over some columns; the sum is None without columns."""

    by: tuple[str, ...]
    total: int | None = None

    def __post_init__(self) -> None:
        self.total = 0 if self.by else None

    def add(self, table: pa.Table) -> pa.Table:
        """Add the digest of a table, and return the table."""
        if self.total is not None:
            self.total = (self.total + compute_digest(table, self.by)) % DIGEST_MODULUS
        return table


def add_digests(digests: Iterable[int | None]) -> int | None:
    """Add the digests of several tasks; None if one is None."""
    total = 0
    for digest in digests:
        if digest is None:
            return None
        total += digest
    return total % DIGEST_MODULUS


class Uploads:
    """Uploads parts, one at a time in the background; deletes them after an error."""

    def __init__(self, writer: PartWriter, collection: str) -> None:
        self._writer = writer
        self._collection = collection
        self._thread = ThreadPoolExecutor(1, "persist-upload")
        self._begun: list[Future[Part]] = []

    def add(self, encoded: Iterable[tuple[bytes, Part]]) -> None:
        """Begin to upload parts; wait until at most one is on its way, because each takes memory."""
        for data, part in encoded:
            if self._begun:
                self._begun[-1].result()
            self._begun.append(self._thread.submit(self._writer.put, self._collection, data, part))

    def finish(self) -> tuple[Part, ...]:
        """Wait for all uploads, and return the descriptors of the parts."""
        return tuple(upload.result() for upload in self._begun)

    def __enter__(self) -> "Uploads":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._thread.shutdown(wait=True)
        if kind is not None:
            self._writer.discard(upload.result() for upload in self._begun if upload.exception() is None)


def gather_tables(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield tables of about BUFFER_BYTES_MAX bytes; none for no rows."""
    buffered: list[pa.RecordBatch] = []
    held_bytes = 0
    for batch in batches:
        if batch.num_rows:
            buffered.append(batch)
            held_bytes += batch.nbytes
        if held_bytes >= BUFFER_BYTES_MAX:
            yield pa.Table.from_batches(buffered)
            buffered, held_bytes = [], 0
    if buffered:
        yield pa.Table.from_batches(buffered)


@dataclass(frozen=True, kw_only=True)
class SinkOptions:
    """The target of a write, and its options.

    Attributes:
        time: the time of all rows, a number or a moment. A text that does not begin with a date names the column with
            each row's time. None: rows have a column `_time`, or get the time of the commit.
        seal: the upper to seal to in the same commit. None does not seal; an overwrite then seals beyond `time`.
        token: names the write; None for a random one.
    """

    location: str
    collection: str
    time: int | Moment | None = None
    seal: int | Moment | Antichain | None = None
    token: str | None = None
    allow_future: bool = False
    storage: Mapping[str, Any] = field(default_factory=dict)

    @property
    def column(self) -> str | None:
        """The column that has the time of each row."""
        is_name = is_column_name(self.time)
        return cast(str, self.time) if is_name else None


@dataclass(frozen=True)
class PlannedWrite:
    """A write to one collection, planned before tasks start.

    Attributes:
        options: the user's options.
        time: the time of all rows; None if they have times of their own.
        at_commit: all rows get the time of the commit, which seals after it; until then it is 0.
        upper: the upper of the collection when this was planned.
        unchanged: for a replacement, the precondition on the contents at the commit.
        is_done: an earlier write has the token, so nothing more is uploaded.
        is_compared: another write may have the token, so the digest of the rows is needed.
        overwrites_at: for the digest of an overwrite, the requested time; None for the time of the commit.
        where: the text of the condition on the replaced records; None for all records.
        replaces: the updates are the difference to the last sealed contents, which must not change before the commit.
        refused: the error if another client has added unsealed updates, so that nothing can be replaced.
    """

    options: SinkOptions
    target: Target
    time: int | None
    seal: int | None
    token: str
    upper: int
    is_done: bool
    is_compared: bool
    replaces: bool
    refused: UpdatesBeyondUpper | None
    overwrites_at: int | None
    where: str | None
    at_commit: bool
    unchanged: tuple[Condition, ...] = ()

    @classmethod
    def append(cls, options: SinkOptions, *, has_times: bool = True) -> "PlannedWrite":
        """Plan to add updates; call `check` before tasks start.

        `has_times`: the rows have a column `_time`.

        Raises:
            CollectionNotFound; InvalidUsage: to seal rows that have no time.
        """
        return cls._make_plan(options, None, at_commit=options.time is None and not has_times)

    @classmethod
    def overwrite(cls, options: SinkOptions, where: str | None = None) -> "PlannedWrite":
        """Plan an overwrite with the new contents: by default at the time of the commit, sealed.

        Raises:
            CollectionNotFound; UpdateNotBeyondUpper: the collection is complete for ever.
        """
        return cls._make_plan(options, where, replaces=True, at_commit=options.time is None)

    @classmethod
    def _make_plan(
        cls, options: SinkOptions, where: str | None, *, at_commit: bool, replaces: bool = False
    ) -> "PlannedWrite":
        """Return the plan of a write with these options."""
        if at_commit and options.seal is not None:
            raise InvalidUsage(
                f"seal={options.seal!r} goes with times, and these rows have none: the commit gives them one, and "
                "seals just after it. Leave seal out, or give a time."
            )
        with read_engine(options.location, options.storage) as engine:
            handle = load_handle(engine, options.collection)
            for what, named in (("time", options.time), ("seal", options.seal)):
                handle.check_plausible(what, named, allow_future=options.allow_future)
            has_own = options.time is None or options.column is not None
            requested_time = None if has_own else handle.to_exact_time("time", cast(Moment, options.time))
            seal = None if options.seal is None else handle.frontier("seal", options.seal)
            contents = handle.contents()
            is_done = handle.remembers_token(contents, options.token)
            refused = find_refusal(contents) if replaces and not is_done else None
            target = Target.of(handle, options.location, options.storage)
        if at_commit and contents.upper == END and not is_done:
            raise UpdateNotBeyondUpper(0, Antichain())
        if replaces and requested_time is not None and seal is None:
            seal = requested_time + 1
        return cls(
            options=options,
            target=target,
            time=0 if at_commit else requested_time,
            seal=seal,
            token=options.token or uuid.uuid4().hex,
            upper=contents.upper,
            is_done=is_done,
            is_compared=options.token is not None,
            replaces=replaces,
            refused=refused,
            overwrites_at=requested_time if replaces else None,
            where=where,
            at_commit=at_commit,
            unchanged=expect_unchanged(contents) if replaces else (),
        )

    @property
    def digest_columns(self) -> tuple[str, ...]:
        """The columns by which tasks digest their rows (`persist.codecs.order.digest`); none if unneeded."""
        names = self.target.schema.names
        return () if not self.is_compared else names if self.replaces else (*names, "_time")

    def check(self) -> None:
        """Check time and seal, and that no other client appends, before tasks start.

        Raises:
            UpdatesBeyondUpper: for an overwrite, another client appends to the collection. UpdateNotBeyondUpper,
            FrontierRegression, InvalidUsage.
        """
        if self.is_done:
            return
        if self.refused is not None:
            raise self.refused
        if self.time is not None and not self.at_commit and self.time < self.upper:
            raise UpdateNotBeyondUpper(self.time, to_antichain(self.upper))
        if self.seal is not None:
            if self.seal < self.upper:
                raise FrontierRegression("upper", to_antichain(self.seal), to_antichain(self.upper))
            if self.time is not None:
                self._check_seal(self.time)

    def commit_with_retries(self, attempt: Callable[["PlannedWrite"], None]) -> None:
        """Compute and commit a difference; repeat this after conflicts, unless the time is fixed.

        `attempt`: computes and commits the difference for a planned write.

        Raises:
            UpperMismatch, UpdatesBeyondUpper: the time is fixed, and another client committed first; and the errors of
                `check`.
        """
        planned = self

        def plan_again(error: PersistError) -> None:
            nonlocal planned
            if not planned.at_commit:
                raise error
            planned = planned._plan_again()

        commit_with_retry(lambda: attempt(planned), action="write", clock=SystemClock(), prepare=plan_again)

    def _plan_again(self) -> "PlannedWrite":
        """Return the same write, planned against the newest contents."""
        with read_engine(self.target.location, self.target.storage) as engine:
            handle = self.target.at(engine)
            contents = handle.contents()
            is_done = handle.remembers_token(contents, self.token)
            refused = None if is_done else find_refusal(contents)
        if contents.upper == END and not is_done:
            raise UpdateNotBeyondUpper(0, Antichain())
        unchanged = expect_unchanged(contents)
        planned = replace(self, upper=contents.upper, is_done=is_done, refused=refused, unchanged=unchanged)
        planned.check()
        return planned

    def commit(self, parts: Sequence[Part], digest: int | None = None) -> None:
        """Commit parts and the seal; delete the parts if that is rejected.

        `digest`: the sum of the digests of all tasks' rows, by `digest_columns`; None if unknown.
        """
        if not self.is_compared:
            digest = None
        if digest is not None and self.replaces:
            digest = compute_overwrite_digest(digest, self.overwrites_at, self.where)
        self._commit(parts, digest)

    def commit_deletion(self, parts: Sequence[Part], digest: int) -> None:
        """Commit retractions by keys or by a condition; otherwise as `commit`.

        `digest`: the digest of the distinct keys; 0 for a condition.
        """
        self._commit(parts, compute_delete_digest(digest, self.overwrites_at, self.where))

    def _commit(self, parts: Sequence[Part], digest: int | None) -> None:
        """Commit parts and the seal, without deleting parts after an error."""
        with open_for_writing(self.target.location, self.target.storage) as engine:
            handle = self.target.at(engine).with_future_times(allow_future=self.options.allow_future)
            with Commit(engine, WriteOptions(token=self.token)) as commit:
                commit.add(handle, self.unchanged)
                commit.add_parts(handle, parts, digest=digest, at_commit=self.at_commit)
                if not self.at_commit:
                    check_times(handle, parts, allow_future=self.options.allow_future)
                if self.seal is not None:
                    self._check_seal(max((part.time_max for part in parts), default=-1))
                    commit.add(handle, [handle.seal_step(self.seal)])
        log_write(self.target, parts)

    def _check_seal(self, latest: int) -> None:
        """Raise InvalidUsage unless the seal is after all written times."""
        assert self.seal is not None
        if latest >= self.seal:
            raise InvalidUsage(
                f"seal={self.seal} is not beyond the data, whose latest time is {latest}: what is sealed to is "
                f"complete, and this would be left out. Seal to {latest + 1} or later, or write without a seal."
            )


def log_write(target: Target, parts: Sequence[Part]) -> None:
    """Log the size of a write that has been committed."""
    rows, gone, size = (sum(getattr(part, name) for part in parts) for name in ("rows", "negatives", "bytes"))
    logger.info("wrote %r: %d parts, %d updates (%d retract), %d bytes", target.name, len(parts), rows, gone, size)


def check_times(handle: CollectionHandle, parts: Sequence[Part], *, allow_future: bool) -> None:
    """Refuse parts with an implausible first or last time; see `CollectionHandle.check_times`."""
    if parts:
        ends = min(part.time_min for part in parts), max(part.time_max for part in parts)
        handle.check_times(ends, allow_future=allow_future)
