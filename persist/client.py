"""A client of one location: a fat client that talks to the object store itself. There is no server."""

import os
import socket
import threading
import uuid
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, get_args

from persist.blob import Indeterminate, InvalidUsage, ReadOnlyStore, StoreMisconfigured
from persist.blob.clock import Clock, SystemClock
from persist.blob.pool import Pool
from persist.codecs import CollectionSchema
from persist.collection import Collection
from persist.compact.compactor import Compactor
from persist.compact.report import CompactionReport
from persist.compact.rewriter import Workbench, Workshop
from persist.errors import ClientClosed, CollectionExists, CollectionNotFound, ReadOnly, WriterFenced
from persist.fsck.examine import examine
from persist.fsck.report import FsckReport
from persist.hold.leases import Claim, Leases, no_claim
from persist.log.records import AllowCompaction, CloseWriter, Create, OpenWriter
from persist.metrics import Metrics, register
from persist.multi_write import MultiWrite
from persist.names import check_name
from persist.read.part_reader import Decoded, Footers, PartReader
from persist.replica.follower import Follower
from persist.replica.pinned import PinnedFollower
from persist.settings import Settings
from persist.storage import Location, Storage, open_storage
from persist.upkeep.compacting import BackgroundCompaction
from persist.upkeep.garbage import Deleted, Garbage, GarbageReport
from persist.upkeep.maintenance import Maintenance
from persist.write.committer import Committer
from persist.write.future import CommitFuture
from persist.write.operations import Step, Write, token_steps
from persist.write.part_writer import PartWriter

Mode = Literal["shared", "exclusive", "read"]
IO_THREADS = 4


def _unless_forked(pid: int, stop: Callable[[], object]) -> None:
    """Call stop in the process pid only: elsewhere there is no thread to stop, and its locks may be held for ever."""
    if os.getpid() == pid:
        stop()


def open(
    location: Location,
    *,
    mode: Mode = "shared",
    storage_options: Mapping[str, Any] | None = None,
    reentrance_id: str | None = None,
    force: bool = False,
    seqno: int | None = None,
    settings: Settings | None = None,
    clock: Clock | None = None,
) -> "Client":
    """Open a location and return a client for it. Close it, or use it in a `with`.

    Args:
        location: a folder, `s3://bucket/prefix`, `memory://name`, any other URL that fsspec knows, or a `Blob`.
        mode: "shared" (any number of clients write), "exclusive" (this one and no other writes, until it is closed) or
            "read" (this client writes nothing at all).
        storage_options: for the store, such as `endpoint_url`, `region`, `profile`, `server_side_encryption`.
        reentrance_id: in mode "exclusive", names the one writer across its restarts: a client that gives the same one
            takes over at once. None means that nobody can, except by force.
        force: in mode "exclusive", take over from whoever has the location. That client is fenced off.
        seqno: in mode "read", see the location as it was after this record of the log, and nothing later, so that
            reads of several collections belong together. As far back as the log is kept.
        settings: times and sizes; see `Settings`.
        clock: replaces the machine's clocks, for tests.

    Cost: one page of LIST and a few GETs; nothing is created before the first write, except in mode "exclusive".

    Raises:
        InvalidUsage: the URL, an option or the mode is not known; or the bucket or credentials are missing.
        Locked: another client has the location exclusively, and this one wants it, too.
        Corruption: the newest checkpoint or a record after it cannot be believed.
    """
    if mode not in get_args(Mode):
        raise InvalidUsage(f'mode={mode!r} is not a mode of a client: use "shared", "exclusive" or "read"')
    if mode != "exclusive" and (reentrance_id is not None or force):
        raise InvalidUsage(f'reentrance_id and force are for mode="exclusive", and this is mode={mode!r}')
    if reentrance_id is not None and not (
        isinstance(reentrance_id, str) and 0 < len(reentrance_id) <= 200 and reentrance_id.isprintable()
    ):
        raise InvalidUsage(f"reentrance_id={reentrance_id!r} is not a text of 1 to 200 printable characters")
    if seqno is not None and (mode != "read" or isinstance(seqno, bool) or not isinstance(seqno, int) or seqno < 0):
        raise InvalidUsage(f'seqno={seqno!r} with mode={mode!r}: give a number of at least 0, and mode="read"')
    if settings is not None and not isinstance(settings, Settings):
        raise InvalidUsage(f"settings={settings!r} is not a Settings: use persist.Settings(lease_s=…)")
    settings, clock = settings or Settings(), clock or SystemClock()
    how = _How(mode, reentrance_id or uuid.uuid4().hex, force, seqno, settings, clock)
    storage = open_storage(location, storage_options, settings, clock)
    try:
        return Client(storage, how)
    except BaseException:
        storage.close()
        raise


@dataclass(frozen=True)
class _How:
    """What `open` was asked for."""

    mode: Mode
    reentrance_id: str
    force: bool
    seqno: int | None
    settings: Settings
    clock: Clock


class Client:
    """Reads and writes the collections of one location; make it with `persist.open`. Safe to use from many threads."""

    def __init__(self, storage: Storage, how: _How) -> None:
        self._storage = storage
        self._blob = blob = storage.blob
        self._mode: Mode = how.mode
        self._closed = False
        self._settings = how.settings
        self._clock = how.clock
        self._pid = os.getpid()
        self._follower = Follower(blob, how.clock) if how.seqno is None else PinnedFollower(blob, how.clock, how.seqno)
        self._pool = Pool(IO_THREADS, "persist-io")
        self._footers = Footers()
        self._decoded = Decoded(how.settings.memory_budget // 2)
        self._committer: Committer | None = None
        self._leases: Leases | None = None
        self._maintenance: Maintenance | None = None
        if how.mode != "read":
            self._start_writing(how)
        self._unregister = register(self.metrics, {"location": storage.blob.url})

    def _start_writing(self, how: _How) -> None:
        name = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        budget = how.settings.memory_budget
        committer = Committer(self._blob, self._follower, self._pool, how.clock, name, budget)
        # A client dropped without close must not leave its threads behind.
        weakref.finalize(self, _unless_forked, self._pid, committer.request_stop)
        if how.mode == "exclusive":
            try:
                opening = committer.submit([OpenWriter(how.reentrance_id, name, how.force)], {})
                committer.epoch = opening.result()
            except BaseException as error:
                if isinstance(error, Indeterminate):
                    error.add_note(f"If it is, reentrance_id={how.reentrance_id!r} takes the location over at once.")
                committer.close()
                self._pool.shutdown(wait=True)
                raise
        self._committer = committer
        self._leases = Leases(self._follower, committer.submit, committer.check_may_wait, how.clock, how.settings, name)
        self._garbage = Garbage(self._blob, self._follower, committer, how.settings)
        stop = threading.Event()
        self._compactor = self._compactor_of(self._workbench(stop), stop)
        self._compaction = BackgroundCompaction(self._compactor, self._follower, how.clock, how.settings)
        committer.appended = self._compaction.committed
        weakref.finalize(self, _unless_forked, self._pid, self._compaction.request_stop)
        self._maintenance = Maintenance(self._leases, self._garbage.collect, how.clock, how.settings)
        weakref.finalize(self, _unless_forked, self._pid, self._maintenance.request_stop)

    @property
    def url(self) -> str:
        """Where the location is."""
        return self._blob.url

    @property
    def mode(self) -> Mode:
        """ "shared", "exclusive" or "read"."""
        return self._mode

    @property
    def seqno(self) -> int:
        """The seqno of the last record of the log that this client knows. Cost: one GET."""
        self._check_open("seqno")
        return self._follower.refresh().seqno

    def collections(self) -> list[str]:
        """Return the names of all collections, sorted. Cost: one GET."""
        self._check_open("collections")
        return list(self._follower.refresh().names())

    def load(self, name: str) -> Collection:
        """Return the collection of that name, with the schema it has.

        Raises:
            CollectionNotFound: there is none.
        """
        self._check_open("load")
        check_name(name)
        state = self._follower.refresh()
        if name not in state.ids:
            raise CollectionNotFound(name, self.url, state.names())
        contents = self._follower.known(state.ids[name], name)
        return Collection(self, contents.id, name, contents.schema)

    def create_or_load(self, name: str, *, key: Any, value: Any = None, timeline: str | None = None) -> Collection:
        """Return the collection of that name; create it, empty, if there is none. Idempotent.

        Args:
            name: 1 to 255 characters, no '/', '..' or control characters.
            key, value: a dict of names to Arrow types, a `pa.Schema`, a `Codec`, or None for no columns at all.
            timeline: what times are: "s", "ms", "us" or "ns" since 1970-01-01T00:00Z, so that a moment may be given
                wherever the collection is read as of a time; None if they are numbers of another meaning.

        Raises:
            SchemaMismatch, CodecMismatch: it exists with another schema; the message shows the difference.
            ReadOnly: it does not exist, and this client only reads.
        """
        self._check_open("create_or_load")
        check_name(name)
        schema = CollectionSchema.of(key, value, timeline)
        while True:
            state = self._follower.refresh()
            id_ = state.ids.get(name)
            contents = self._follower.load(id_) if id_ is not None else None
            if contents is not None:
                return Collection(self, contents.id, name, schema.reconcile(contents.schema, name))
            id_ = uuid.uuid4().hex
            try:
                self._submit("create_or_load", [Create(id_, name, schema.to_json())], {id_: name}).result()
            except CollectionExists:
                continue  # Another client created it in between: load that one.

    def multi_write(self, *, token: str | None = None) -> MultiWrite:
        """Return a `with` block whose writes and seals, to any collections of this client, are one commit.

        Args:
            token: names the commit, as in `Collection.write`; every collection it touches remembers it.
        """
        self._check_writable("multi_write")
        token_steps(token, [], [])  # Complain at once.
        return MultiWrite(self, token)

    def gc(self) -> GarbageReport:
        """Delete what nobody needs any more (`persist.upkeep.garbage`). Safe while others read, write and do the same.

        Raises:
            ReadOnly: this client only reads.
            Unavailable: the store did not answer; what was not deleted stays for the next time.
        """
        self._check_writable("gc")
        assert self._committer is not None
        self._committer.check_may_wait()
        self._claims().end_expired()
        return self._garbage.collect()

    def fsck(self, *, repair: bool = False, dry_run: bool = False, deep: bool = True) -> FsckReport:
        """Examine the whole location; see `persist.fsck.examine`, which also works when it is too damaged to be opened.

        Raises:
            ReadOnly: repair without dry_run, and this client only reads.
            Unavailable: the store did not answer, so the examination did not come to its end.
        """
        self._check_open("fsck")
        if repair and not dry_run:
            self._check_writable("fsck with repair")

        def collect(keys: Iterable[str]) -> Deleted:
            return self._garbage.delete_leaked(keys)

        # Around the cache, which may hold what the store has lost.
        return examine(
            self._storage.retried, self._settings, self._clock, collect, repair=repair, dry_run=dry_run, deep=deep
        )

    def metrics(self) -> Metrics:
        """Return what this client did so far: requests, bytes and latencies, retries, cache, commits and leases.

        Printed, it is a table. Where the package opentelemetry-api is installed it is also exported.
        """
        groups: dict[str, Mapping[str, float]] = {"log": {"seqno": self._follower.state.seqno}}
        if self._committer is not None and self._leases is not None:
            groups |= {"commits": self._committer.counts(), "leases": self._leases.counts()}
        storage = self._storage
        return Metrics(
            store=storage.metered.counts(),
            retries=storage.retried.counts(),
            requests_per_s_max=storage.retried.requests_per_s_max,
            cache=storage.cached.counts(),
            groups=groups,
        )

    def maintain(self) -> None:
        """Do what is due of what otherwise happens in the background: leases, compaction, collection of garbage."""
        self._check_writable("maintain")
        assert self._maintenance is not None
        self._maintenance.tick()
        self._compaction.tick()

    def close(self) -> None:
        """Finish what was asked for, free threads and sockets, and raise errors that nobody looked at; idempotent.

        In a process that was forked off, it does nothing: all of that is the other process's.
        """
        if self._closed:
            return
        self._closed = True
        if os.getpid() != self._pid:
            return
        self._unregister()
        unlocked: CommitFuture | None = None
        if self._committer is not None and self._leases is not None and self._maintenance is not None:
            self._compaction.close()
            self._maintenance.close()
            self._leases.close()
            if self._committer.epoch is not None:
                unlocked = self._committer.submit([CloseWriter()], {})
            self._committer.close()
        self._follower.close()
        self._pool.shutdown(wait=True)
        self._storage.close()
        # The future's own method would count as a look at its error, and raising that here would lose all others.
        if unlocked is not None and unlocked.done() and isinstance(Future.exception(unlocked), WriterFenced):
            unlocked.exception()  # Another client has taken over: there is nothing to give back.
        if self._committer is not None:
            self._committer.unobserved.raise_all()

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.close()
        except BaseException as unlooked:
            if error is None:
                raise
            # The block's own error is what its handlers wait for.
            error.add_note(f"Besides, writes failed and nobody looked at their errors: {unlooked!r}")

    def __repr__(self) -> str:
        return f"<Client of {self.url}, mode {self._mode!r}{', closed' if self._closed else ''}>"

    def _submit(self, action: str, steps: Sequence[Step], names: dict[str, str]) -> CommitFuture:
        try:
            self._check_writable(action)
            assert self._committer is not None
            return self._committer.submit(steps, names)
        except ClientClosed:
            self._abandon(steps)
            raise

    def _abandon(self, steps: Sequence[Step]) -> None:
        if self._committer is not None:  # A client that only reads has uploaded nothing.
            self._committer.abandon(steps)

    def _compact(self, id_: str, name: str, *, full: bool) -> CompactionReport:
        self._check_writable("compact")
        assert self._committer is not None
        self._committer.check_may_wait()
        return self._compactor.compact(id_, name, full=full, destroy=full)

    def _workbench(self, stop: threading.Event) -> Workbench:
        budget = self._settings.memory_budget
        reader = PartReader(self._blob, self._pool, self._footers, budget)
        writer = PartWriter(self._blob, self._follower.next_seqno, budget)
        return Workbench(reader, writer, self._pool, self._settings.compaction.part_bytes, stop)

    def _compactor_of(self, workshop: Workshop, stop: threading.Event) -> Compactor:
        assert self._committer is not None
        return Compactor(self._follower, self._committer.submit, self._settings.compaction, workshop, stop)

    def _write_step(self, id_: str, schema: CollectionSchema, updates: Any) -> Write | None:
        assert self._committer is not None
        if self._committer.may_wait():
            self._compaction.relieve(id_)
        return self._committer.write_step(id_, schema, updates)

    def _allow_compaction(self, step: AllowCompaction, name: str) -> CommitFuture:
        self._check_writable("allow_compaction")
        self._claims().settle_soon(step.collection)
        return self._submit("allow_compaction", [step], {step.collection: name})

    def _claims(self) -> Leases:
        assert self._leases is not None, "a client that writes has leases"
        return self._leases

    def _claim(self, collection: str, name: str, time: int) -> Claim:
        self._check_open("reading")
        if self._leases is None:
            return no_claim(collection)
        try:
            return self._leases.claim(collection, name, time)
        except (ReadOnlyStore, StoreMisconfigured):
            # Who may only read the store reads as a client of mode "read" does.
            return no_claim(collection)

    @property
    def _slice_bytes(self) -> int:
        return self._source().slice_bytes

    def _source(self) -> PartReader:
        self._check_open("reading")
        return PartReader(self._blob, self._pool, self._footers, self._settings.memory_budget, self._decoded)

    def _check_open(self, action: str) -> None:
        if self._closed:
            raise ClientClosed(action)
        if os.getpid() != self._pid:
            raise InvalidUsage(
                f"{action} came in process {os.getpid()}, and this client was opened in {self._pid}: its threads did "
                "not come along with the fork. Open a new client in each process."
            )

    def _check_writable(self, action: str) -> None:
        self._check_open(action)
        if self._committer is None:
            raise ReadOnly(action)
