"""A client's view of the log: the newest state it knows, kept up to date by reading the next seqno.

One `Follower` per client, used from many threads. The state is replaced as a whole and only ever moves forward.
`refresh` is linearizable: it returns a state that includes every record created before the call.

Old records are truncated, and their slots are free again. If a client has not seen the end of the log for
`STALE_AFTER_S` (far less than any retention), its next slot may have been truncated. Before the client trusts what it
finds or creates in that slot, it must look at the newest checkpoint: `refresh` does so by itself, and a writer calls
`was_truncated` after its create, which also notices that another thread has refreshed meanwhile. The time is the longer
one of the monotonic and the wall clock's, so that a machine that was suspended notices.
"""

import logging
import math
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from typing import Literal, TypeVar

from persist.blob.errors import Conflict, CorruptBlob, Indeterminate, InvalidUsage, MissingBlob
from persist.blob.lru import Cache
from persist.blob.protocol import Blob, is_remote
from persist.blob.threads import Clock, Pool
from persist.core.errors import ClientClosed, CollectionNotFound, LogInterrupted, LogReplaced, PersistError
from persist.core.log.fields import Policy
from persist.core.log.keys import CHECKPOINTS, record_key
from persist.core.log.records import LogPage, Record, RecordReader, matches_commit, read_commit_id, read_record
from persist.core.state_rules.annotations import Remembered
from persist.core.state_rules.contents import CollectionState
from persist.core.state_rules.state import PENDING_MAX, CollectionEntry, DoesNotFollow, State, apply
from persist.engine.follow.archived_tokens import TokenMemory
from persist.engine.follow.checkpoint import load_contents, read_newest_checkpoint, read_newest_control
from persist.engine.follow.clock_check import ClockCheck
from persist.engine.follow.directory import KnownLevels
from persist.engine.follow.log_identity import (
    PROVE_AFTER_S,
    PROVE_READS_AFTER_S,
    Fate,
    Mark,
    Past,
    check_not_beyond,
    contradiction,
    determine_fate,
    is_past,
    load_record,
)
from persist.engine.follow.log_queries import Submissions
from persist.engine.follow.waiting import POLL_FIRST_S, POLL_MAX_S, AwaitedLog

T = TypeVar("T")

logger = logging.getLogger(__name__)

STALE_AFTER_S, FRESH_S = 120.0, 60.0
RECENT_MAX = 256  # Records kept for the next checkpoint.
FAR = 100  # Records that are not read one by one where a checkpoint will do.
OVER_ALL_MAX = 10
THREADS_MAX, CACHE_BYTES = 16, 32 << 20  # For a follower without the pool and the cache of a client.


class Follower(AwaitedLog):
    """Reads the log and answers what the state is."""

    def __init__(
        self,
        blob: Blob,
        clock: Clock,
        poll_s: float | Literal["by store"] = "by store",
        *,
        pool: Executor | None = None,
        cache: Cache | None = None,
        policy: Policy | None = None,
    ) -> None:
        """Read the newest checkpoint and the records after it.

        Args:
            poll_s: the longest pause of who waits for a record; see `Settings.poll_s`.
            pool: makes several requests at once. Its waiters hold a lock, so it must compute what they wait for.
            cache: keeps state objects and tokens.
            policy: of a location whose log has none; see `Tuning.policy`.

        Cost: two pages of LIST, and a GET for the checkpoint, each of its directory objects, and each record after it,
        or its own record. At a remote store, they take as long as three or four requests.
        """
        by_store_s = POLL_MAX_S if is_remote(blob) else POLL_FIRST_S
        super().__init__(clock, by_store_s if poll_s == "by store" else poll_s, policy or Policy())
        self._blob = blob
        self.on_advance: Callable[[int], object] = lambda seqno: None  # Told of each record; must return at once.
        self._pid = os.getpid()
        self._recent: OrderedDict[int, Record] = OrderedDict()
        pool, cache = pool or Pool(THREADS_MAX, "persist-log"), cache or Cache(CACHE_BYTES, clock=clock)
        self._levels = KnownLevels(pool, cache)
        self.tokens = TokenMemory(blob, cache)
        self.clock_check = ClockCheck(blob, clock)
        self._records = RecordReader(blob, pool)
        self._seen_end = self.now()
        self._is_opening = True
        self._interrupted: LogInterrupted | None = None
        while not self._begin():
            pass
        self._past = Past(blob, self._state, self._seen_end)
        self._is_opening = False

    def _begin(self) -> bool:
        """Read the newest checkpoint and the records after it; return False if it was collected meanwhile.

        A remote store lists the log while the checkpoint is read. The listing has all records created before it.
        """
        pages: list[LogPage] = []

        def load_page(seqno: int) -> LogPage:
            pages.append(self._records.page(seqno))
            return pages[-1]

        self._seen_end = self.now()
        self._state = newest = read_newest_checkpoint(self._blob, self._levels, load_page)
        self.submissions = Submissions(newest.seqno)
        self._past = Past(self._blob, newest, self._seen_end)
        page = first_page = pages[-1]
        with suppress(LogInterrupted):  # `_look_beyond` finds what it is about.
            while True:
                for record in page.records():
                    if record is None:
                        break
                    self.advance(record)
                if not (page.is_full and page.seqnos[-1] == self._state.seqno):
                    break
                page = self._records.page(self._state.seqno)
        if not self._verify_checkpoint(newest):
            return False
        if newest.location is not None and newest.seqno not in first_page.seqnos:
            check_not_beyond(self._blob, newest)
        self._look_beyond(page.seqnos)
        return True

    def _verify_checkpoint(self, newest: State) -> bool:
        """Return False if a checkpoint was collected meanwhile.

        Raises CorruptBlob if neither its own record nor one that follows exists. The checkpoint may then belong to
        another location, whose rows must not be mixed with this one's, or the log alone was rolled back.
        """
        if self._state.seqno != newest.seqno or newest.location is None:
            return True
        if (record := load_record(self._blob, newest)) is not None:
            self._recent[record.seqno] = record
            return True
        if self._newest_checkpoint().seqno == newest.seqno:
            raise contradiction(None, newest)
        return False

    def _look_beyond(self, listed: Sequence[int]) -> None:
        """Find records beyond the end of the log, so that no write goes over them.

        An open client may have written them after a backup was restored in place, or the log may have lost a record.
        Only the last listed page is examined. Such a client may also have written the newest checkpoint, with records
        after it: then the record of the checkpoint itself is missing.
        """
        if not self._is_stale() and (not listed or listed[-1] <= self._state.seqno):
            return
        end = self.refresh().seqno  # Most often they have been created since the log was read.
        beyond = [seqno for seqno in listed if seqno > end]
        if beyond:
            self._interrupted = LogInterrupted(self._blob.url, end, beyond[0], beyond[-1])
            logger.warning("%s", self._interrupted)

    def close(self) -> None:
        """Wake all waiting threads, which then raise ClientClosed."""
        with self._lock:
            self._is_closed = True
            self._advanced.notify_all()

    def check_open(self) -> None:
        """Raise ClientClosed after `close`, and InvalidUsage in a process that was forked off."""
        if self._is_closed:
            raise ClientClosed("reading")
        if os.getpid() != self._pid:
            raise InvalidUsage("this read began in another process, before a fork: open a client in each process")

    @property
    def state(self) -> State:
        """The newest state this client knows, without asking the store."""
        return self._state

    def refresh(self) -> State:
        """Return the state after all present records; `looks` decides which calls may skip the look.

        Cost: a GET for each record, and one that finds none; up to 32 after many records of a remote store.
        """
        if self.looks.is_enough:
            return self._state
        state = self._refreshed()
        self.looks.noted()
        return state

    def _refreshed(self) -> State:
        ticket = self.looks.ticket()
        with self._lock:
            if (serves := self.looks.serve(ticket)) is not None:
                began = self.now()
                self._past.check_stopped()
                if self._is_stale():
                    self._skip_truncated()
                self._read_forward()
                if not self._is_opening:
                    self._past.check(self._state, began, PROVE_READS_AFTER_S)
                self.looks.served(serves)
                self._seen_end = began
            return self._state

    def _read_forward(self, last: float = math.inf) -> None:
        state_before = self._state
        try:
            for record in self._records.read_after(lambda: self._state.seqno, last):
                if self._state is state_before:
                    self._past.note_continuation(state_before)
                self.advance(record)
        except LogInterrupted:
            # Readers that opened the location in this state go on reading.
            if not self._is_opening and self._interrupted is None:
                raise

    def prove(self) -> None:
        """Make sure that what is committed next will be read by others. Cost: nothing, or a GET now and then.

        Raises:
            LogInterrupted: records lay beyond the end of the log when it was opened.
            LogReplaced: see `persist.engine.follow.log_identity`.
        """
        with self._lock:
            self._past.check(self._state, self.now(), PROVE_AFTER_S)
            self._check_uninterrupted()

    @property
    def interrupted(self) -> LogInterrupted | None:
        """The records found beyond the end of the log at opening; None if there were none."""
        hole = self._interrupted
        # Build a new error each time: a stored one would keep alive the frames of its last traceback.
        return None if hole is None else LogInterrupted(hole.url, hole.end, hole.first, hole.last)

    def _check_uninterrupted(self) -> None:
        if (interrupted := self.interrupted) is not None:
            raise interrupted

    def tops(self, before: State) -> list[Mark]:
        """Return the records that must still exist before a follower of this state acknowledges anything."""
        with self._lock:
            self._past.check_stopped()
            return self._past.tops(before)

    def saw(self, looks: list[tuple[Mark, Fate]]) -> bool:
        """Record the fates of `tops`; return whether all records still exist and are not truncated.

        Raises:
            LogReplaced: a record is missing or was replaced; the client stops.
        """
        with self._lock:
            for _, fate in looks:
                if isinstance(fate, tuple):
                    raise self._past.stop(*fate)
            self._past.saw([top for top, _ in looks])
        return all(fate == "there" for _, fate in looks)

    def sees(self, before: State) -> bool:
        """Look for the tops of a state, and do what `saw` does. Cost: a GET of a few bytes for each."""
        tops = self.tops(before)
        return self.saw([(top, determine_fate(self._blob, top)) for top in tops])

    def prove_known(self) -> None:
        """Make sure that the log still is the one that this client knows, before it deletes anything by that state.

        Cost: a GET of a few bytes for each record that is looked for, mostly two.

        Raises:
            LogReplaced, LogInterrupted: as `prove`.
            Indeterminate: the known state may belong to an older log: call `restart` first.
        """
        with self._lock:
            self.prove_now()
            if not self.sees(self._state):
                raise Indeterminate(f"the log of {self._blob.url} was truncated beyond seqno {self._state.seqno}")

    def prove_now(self) -> None:
        """Like `prove`, whenever that was done before. Cost: one GET."""
        with self._lock:
            self._past.check_now(self._state)
            self._check_uninterrupted()

    def doubt(self, seqno: int) -> None:
        """Stop, with LogReplaced, if the record at seqno, which this client has read, is gone or another one."""
        with self._lock:
            recent = self._recent.get(seqno)
            if recent is not None:
                self._past.verify(seqno, recent.commit)

    def restart(self) -> State:
        """Take over the newest checkpoint, because state objects that only older ones refer to may be gone.

        Cost: a page of LIST, a GET, and what it takes to read the contents of collections again.
        """
        with self._lock:
            newest = self._newest_checkpoint()
            if newest.location is not None:
                self._restart(newest)
            else:  # There has been no checkpoint yet, or it went with the past.
                self._verify_newest()
            return self._state

    @property
    def knows_end(self) -> bool:
        """Whether this client has seen the end of the log lately, `FRESH_S` ago at most."""
        return self._clock.monotonic_s() - self._seen_end[0] < FRESH_S

    def remembered(self, contents: CollectionState, token: str | None) -> Remembered | None:
        """Return what contents remember of a token; see `TokenMemory.find`."""
        return self.tokens.find(self._state.location, contents, token)

    def next_seqno(self) -> int:
        """Return the next seqno of the log, as of `FRESH_S` ago at most. Cost: mostly nothing, or a GET."""
        return (self._state if self.knows_end else self.refresh()).seqno + 1

    def was_truncated(self, record: Record, *, past_is_there: bool) -> bool:
        """Return whether the slot of a record that was just created has been truncated, before or after that.

        past_is_there: whether the record before it was seen. The records after a truncated one are always checked.
        Cost: nothing, unless this client has not seen the end of the log for `STALE_AFTER_S`, or another thread has
        moved the state past the slot without reading its record: then a LIST and a GET.
        """
        with self._lock:
            recent = self._recent.get(record.seqno)
            if recent is not None and recent.commit == record.commit:
                return False
            if past_is_there and self._state.seqno < record.seqno and not self._is_stale():
                return False
            return self.is_truncated(record.seqno)

    def is_truncated(self, seqno: int) -> bool:
        """Return whether the log has been truncated beyond seqno. Cost: a LIST and a GET."""
        return read_newest_control(self._blob).log_floor > seqno

    def newest_record(self) -> Record | None:
        """Return the newest record of the log, as far as this client has read it; None if it is not there any more.

        Cost: mostly nothing, because it was read to know the state.
        """
        with self._lock:
            if self._is_stale():
                self.refresh()
            return self._recent.get(self._state.seqno) or read_record(self._blob, self._state.seqno)

    def now(self) -> tuple[float, float]:
        """Return the seconds of the monotonic and of the wall clock, for `is_long_ago`."""
        return self._clock.monotonic_s(), self._clock.wall_ms() / 1000

    def is_long_ago(self, then: tuple[float, float]) -> bool:
        """Return whether a record created at that moment may have been truncated since."""
        return is_past(then, self.now(), STALE_AFTER_S)

    def _is_stale(self) -> bool:
        return self.is_long_ago(self._seen_end)

    def _skip_truncated(self) -> None:
        """Go on from the newest checkpoint if the log after the state may be gone."""
        if read_newest_control(self._blob).log_floor > self._state.seqno + 1:
            self._restart(self._newest_checkpoint())

    def _newest_checkpoint(self) -> State:
        return read_newest_checkpoint(self._blob, self._levels)

    def _restart(self, newest: State) -> None:
        """Continue from the state of a checkpoint and the records after it, unless the known state is newer.

        Without a checkpoint, newest is the empty state, and all records are read.
        """
        if newest.location is not None and self._state.location not in (None, newest.location):
            self._verify_newest()
            raise CorruptBlob(CHECKPOINTS, f"it belongs to location {newest.location}, not {self._state.location}")
        if newest.seqno > self._state.seqno:
            self._verify_newest()  # It is skipped, so nothing else would notice.
            if newest.commit is None or not matches_commit(self._blob, newest.seqno, newest.commit):
                check_not_beyond(self._blob, newest)
        while newest.seqno < self._state.seqno:
            record = self._recent.get(newest.seqno + 1) or read_record(self._blob, newest.seqno + 1)
            if record is None:
                self.sees(self._state)  # If it went with the past, one of these is gone, too: LogReplaced.
                raise MissingBlob(record_key(newest.seqno + 1), "it is missing, and later ones have been read")
            try:
                newest = apply(newest, record)
            except DoesNotFollow as error:
                raise self._past.stop(newest.seqno, record.previous or "", newest.commit) from error
        if newest.seqno == self._state.seqno and newest.commit != self._state.commit:
            assert self._state.commit is not None
            raise self._past.stop(newest.seqno, self._state.commit, newest.commit)
        if newest.seqno > self._state.seqno:
            self.submissions.skip_records(newest.seqno)
        self._state = newest

    def _verify_newest(self) -> None:
        """Stop, with LogReplaced, if the newest record that this client knows is gone or another one."""
        if self._state.commit is not None:
            self._past.verify(self._state.seqno, self._state.commit)

    def apply_winner(self, winner: Record) -> None:
        """Apply a record that was there where this client wanted to create its own, unless that was done already."""
        with self._lock:
            if winner.seqno == self._state.seqno + 1:
                self._past.note_continuation(self._state)
            self.advance(winner)

    def advance(self, record: Record, applied: tuple[State, State] | None = None) -> None:
        """Apply a record of the log, unless it has been applied already.

        Args:
            applied: a state, and the result of `apply` on it with this record, if known.
        """
        with self._lock:
            if record.seqno <= self._state.seqno:
                recent = self._recent.get(record.seqno)
                is_kept = record.seqno >= self._state.control.log_floor
                if is_kept and recent is not None and recent.commit != record.commit:
                    raise self._past.stop(record.seqno, recent.commit, record.commit)
                return
            if self._state.location not in (None, record.location):
                raise contradiction(record, self._state)
            try:
                is_known = applied is not None and applied[0] is self._state
                after = applied[1] if applied is not None and is_known else apply(self._state, record)
            except MissingBlob:
                # Pages of a directory that newer checkpoints do not refer to are collected after a while.
                state_before = self._state
                self._restart(self._newest_checkpoint())
                if self._state.entries.shares_base_with(state_before.entries):
                    raise
                self.advance(record)
                return
            except DoesNotFollow as error:
                raise self._does_not_follow(record) from error
            except (ValueError, Conflict) as error:
                raise CorruptBlob(record_key(record.seqno), f"it breaks a rule of the log: {error}") from error
            self.submissions.note(record)  # Before the state, so that its readers find the records before it.
            self._state = after
            self._past.learned(self._state, self.now())
            self._recent[record.seqno] = record
            if len(self._recent) > RECENT_MAX:
                self._recent.popitem(last=False)
            for mutation in record.mutations:
                entry = self._state.entries.get(mutation.collection)
                if entry is not None and entry.contents is None and len(entry.pending) > PENDING_MAX:
                    # Only to keep pending mutations few. If it fails, that is for readers of this collection to hear.
                    with suppress(PersistError):
                        self.load(entry.id)
            self._advanced.notify_all()
            self.on_advance(record.seqno)

    def catch_up(self, after: int) -> Submissions:
        """Refresh, and return the submissions in all records after a seqno, as far as the log still has them.

        Cost: a `refresh`. If seqno is far away, a LIST and a GET replace the older records; then a GET for each record
        between it and the checkpoint from which this client continued.
        """
        with self._lock:
            if after > self._state.seqno + FAR:
                self.restart()
            self.refresh()
            if not self.submissions.knows(after):
                whole = Submissions(after)
                for seqno in range(after + 1, self._state.seqno + 1):
                    record = self._recent.get(seqno) or read_record(self._blob, seqno)
                    if record is None:
                        break
                    whole.note(record)
                else:
                    self.submissions = whole
            return self.submissions

    def _does_not_follow(self, record: Record) -> LogReplaced | LogInterrupted | CorruptBlob:
        """Return the error for a next record that was made after another one than the last that is known."""
        seqno, commit = self._state.seqno, self._state.commit
        if commit is None:
            return CorruptBlob(record_key(record.seqno), f"it breaks a rule of the log: it follows {record.previous}")
        present = commit if self._is_opening else read_commit_id(self._blob, seqno)
        if present == commit:
            return LogInterrupted(self._blob.url, seqno, record.seqno, record.seqno)
        return self._past.stop(seqno, commit, present)

    def load(self, id_: str) -> CollectionState | None:
        """Return the contents of a collection in the newest known state; None if it does not exist."""
        with self._lock:
            try:
                return self._load(id_)
            except MissingBlob:
                # A state object that newer checkpoints do not refer to is collected after a while.
                self._restart(self._newest_checkpoint())
                return self._load(id_)

    def load_newest_id(self, name: str) -> str | None:
        """Refresh, and return what `find_id` does."""
        self.refresh()
        return self.find_id(name)

    def find_id(self, name: str) -> str | None:
        """Return the id of the collection of a name in the newest known state; None if there is none."""
        return self.over_all(lambda state: state.ids.get(name))

    def entry(self, id_: str) -> CollectionEntry | None:
        """Return the newest known entry of a collection; None if it is gone. Waits for no other thread."""
        return self.over_all(lambda state: state.entries.get(id_))

    def over_all(self, look: Callable[[State], T]) -> T:
        """Return the result of look on the newest known state; it may read all collections of that state.

        Cost: the reads of look; each page of a directory that is not all in memory. If pages were collected meanwhile,
        look is called again with a newer state.
        """
        state = self._state
        for _ in range(OVER_ALL_MAX):
            try:
                return look(state)
            except MissingBlob:
                state_before, state = state, self.restart()
                if state.entries.shares_base_with(state_before.entries):
                    raise
        return look(state)

    def _load(self, id_: str) -> CollectionState | None:
        entry = self._state.entries.get(id_)
        if entry is None or self._state.location is None:
            return None
        if entry.contents is None:
            entry = load_contents(self._blob, self._state.location, entry, self._levels)
            self._state = self._state.with_entry(entry)
        return entry.contents

    def refresh_and_load(self, ids: Iterable[str], threads: Executor) -> State:
        """Refresh; on a remote store, also load unknown contents of collections at the same time.

        `load` handles collections that are gone or unreadable. Cost: a GET for each state object, in parallel.
        """
        entries = [entry for entry in map(self._state.entries.get, ids) if entry is not None and entry.contents is None]
        location = self._state.location
        if not entries or location is None or not is_remote(self._blob):
            return self.refresh()
        reads = [threads.submit(load_contents, self._blob, location, entry, self._levels) for entry in entries]
        self.refresh()  # Without the lock afterwards, because what the threads do may wait for it.
        for entry, read in zip(entries, reads, strict=True):
            with suppress(PersistError):
                loaded = read.result()
                with self._lock:
                    if self._state.entries.get(entry.id) is entry:
                        self._state = self._state.with_entry(loaded)
        return self._state

    def recent(self) -> tuple[State, Mapping[int, Record], KnownLevels]:
        """Return what `write_checkpoint` needs: the newest known state, the last records before it, known levels."""
        with self._lock:
            return self._state, dict(self._recent), self._levels

    def current(self, id_: str, name: str) -> CollectionState:
        """Refresh, and return the contents of a collection.

        Raises:
            CollectionNotFound: it does not exist, or not any more.
        """
        self.refresh()
        return self.known(id_, name)

    def known(self, id_: str, name: str) -> CollectionState:
        """Like `current`, without a refresh."""
        contents = self.load(id_)
        if contents is None:
            raise CollectionNotFound(name, self._blob.url, self._state.names_in_memory())
        return contents

    def glanced(self, id_: str, name: str) -> CollectionState:
        """Like `known`, but keep nothing of it: for a look at each of very many collections."""
        entry = self.entry(id_)
        location = self._state.location
        if entry is None or location is None:
            raise CollectionNotFound(name, self._blob.url, self._state.names_in_memory())
        try:
            contents = load_contents(self._blob, location, entry, self._levels).contents
        except MissingBlob:
            return self.known(id_, name)
        assert contents is not None
        return contents

    def known_at_once(self, wanted: Sequence[tuple[str, str]]) -> tuple[int, list[CollectionState]]:
        """Return the states of collections by (id, name) as `known` does, all from one state, with its seqno."""
        with self._lock:
            return self._state.seqno, [self.known(id_, name) for id_, name in wanted]

    def _read_hinted(self) -> None:
        """Read up to the record of a hint; the next refresh finds the records after it."""
        with self._lock:
            self._past.check_stopped()
            if not self._is_stale():
                self._read_forward(self._hinted)
