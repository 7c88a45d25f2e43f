"""A client's view of the log: the newest known state, kept up to date by reading the next seqno.

One `Follower` per client, used from many threads. The state is replaced as a whole and only ever moves forward.
`refresh` is linearizable: it returns a state that includes every record created before the call.

Old records are truncated, and their slots are free again. If a client has not seen the end of the log for
`STALE_AFTER_S` (far less than any retention), its next slot may have been truncated. Before the client trusts a record
that it finds or creates in that slot, it must read the newest checkpoint: `refresh` does so by itself, and a writer
calls `was_truncated` after its create, which also detects that another thread has refreshed meanwhile. The longer time
of the monotonic and the wall clock counts, so that a suspended machine notices.
"""

import logging
import math
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from typing import Literal

from persist.blob.errors import Conflict, CorruptBlob, InvalidUsage, MissingBlob
from persist.blob.lru import Cache
from persist.blob.protocol import Blob, is_remote
from persist.blob.threads import Clock, Pool
from persist.core.errors import ClientClosed, LogInterrupted, LogReplaced, PersistError
from persist.core.log.fields import Policy
from persist.core.log.keys import CHECKPOINTS, make_record_key
from persist.core.log.records import LogPage, Record, RecordReader, matches_commit, read_commit_id, read_record
from persist.core.state_rules.state import PENDING_MAX, DoesNotFollow, State, apply_record
from persist.engine.follow.checkpoint import read_newest_checkpoint, read_newest_control
from persist.engine.follow.clock_check import ClockCheck
from persist.engine.follow.directory import KnownLevels
from persist.engine.follow.known_collections import KnownCollections
from persist.engine.follow.log_identity import (
    PROVE_READS_AFTER_S,
    Past,
    check_not_beyond,
    is_past,
    load_record,
    make_contradiction_error,
)
from persist.engine.follow.log_queries import Submissions
from persist.engine.follow.waiting import POLL_FIRST_S, POLL_MAX_S

logger = logging.getLogger(__name__)

STALE_AFTER_S, FRESH_S = 120.0, 60.0
RECENT_MAX = 256  # Records kept for the next checkpoint.
FAR = 100  # Records that are not read one by one where a checkpoint will do.
THREADS_MAX, CACHE_BYTES = 16, 32 << 20  # For a follower without the pool and the cache of a client.


class Follower(KnownCollections):
    """Follows the log and returns its newest state."""

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
            poll_s: the longest pause of threads that wait for a record; see `Settings.poll_s`.
            pool: makes several requests at once. Its threads must not wait for the follower's lock, which callers hold.
            cache: keeps state objects and tokens.
            policy: the policy if the log has none; see `Tuning.policy`.

        Cost: two pages of LIST, and a GET for the checkpoint, for each of its directory objects, and for each later
        record, or else its own record. At a remote store, they take as long as three or four requests.
        """
        by_store_s = POLL_MAX_S if is_remote(blob) else POLL_FIRST_S
        pause_s = by_store_s if poll_s == "by store" else poll_s
        pool, cache = pool or Pool(THREADS_MAX, "persist-log"), cache or Cache(CACHE_BYTES, clock=clock)
        super().__init__(blob, clock, pause_s, policy or Policy(), pool, cache)
        self.on_advance: Callable[[int], object] = lambda seqno: None  # Told of each record; must return at once.
        self._pid = os.getpid()
        self._recent: OrderedDict[int, Record] = OrderedDict()
        self.clock_check = ClockCheck(blob, clock)
        self._records = RecordReader(blob, pool)
        self._seen_end = self.read_clocks()
        self.past = Past(blob, self._lock)
        self._is_opening = True
        while not self._begin():
            pass
        self.past.begin(self._state, self._seen_end)
        self._is_opening = False

    def _begin(self) -> bool:
        """Read the newest checkpoint and the records after it; return False if it was deleted meanwhile.

        A remote store lists the log while the checkpoint is read. The listing has all records created before it.
        """
        pages: list[LogPage] = []

        def load_page(seqno: int) -> LogPage:
            pages.append(self._records.list_page(seqno))
            return pages[-1]

        self._seen_end = self.read_clocks()
        self._state = newest = read_newest_checkpoint(self._blob, self._levels, load_page)
        self.submissions = Submissions(newest.seqno)
        self.past.begin(newest, self._seen_end)
        page = first_page = pages[-1]
        with suppress(LogInterrupted):  # `_find_later_records` finds what it is about.
            while True:
                for record in page.read_records():
                    if record is None:
                        break
                    self.advance(record)
                if not (page.is_full and page.seqnos[-1] == self._state.seqno):
                    break
                page = self._records.list_page(self._state.seqno)
        if not self._verify_checkpoint(newest):
            return False
        if newest.location is not None and newest.seqno not in first_page.seqnos:
            check_not_beyond(self._blob, newest)
        self._find_later_records(page.seqnos)
        return True

    def _verify_checkpoint(self, newest: State) -> bool:
        """Return False if a checkpoint was deleted meanwhile.

        Raises CorruptBlob if neither its own record nor a later one exists. The checkpoint may then belong to another
        location, whose rows must not be mixed with this one's, or the log alone was rolled back.
        """
        if self._state.seqno != newest.seqno or newest.location is None:
            return True
        if (record := load_record(self._blob, newest)) is not None:
            self._recent[record.seqno] = record
            return True
        if self._load_newest_checkpoint().seqno == newest.seqno:
            raise make_contradiction_error(None, newest)
        return False

    def _find_later_records(self, listed: Sequence[int]) -> None:
        """Find records beyond the end of the log, so that no write overlaps them.

        An open client may have written them after a backup was restored in place, or the log may have lost a record.
        Only the last listed page is examined. Such a client may also have written the newest checkpoint and later
        records: then the record of the checkpoint is missing.
        """
        if not self._is_stale() and (not listed or listed[-1] <= self._state.seqno):
            return
        end = self.refresh().seqno  # Most often they have been created since the log was read.
        beyond = [seqno for seqno in listed if seqno > end]
        if beyond:
            self.past.hole = LogInterrupted(self._blob.url, end, beyond[0], beyond[-1])
            logger.warning("%s", self.past.hole)

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
        """The newest known state, without a request."""
        return self._state

    def refresh(self) -> State:
        """Return the state after all present records; `looks` decides which calls may skip the read.

        Cost: a GET for each record, and one that finds none; up to 32 after many records of a remote store.
        """
        if self.looks.is_enough:
            return self._state
        ticket = self.looks.take_ticket()
        with self._lock:
            if (serves := self.looks.serve(ticket)) is not None:
                began = self.read_clocks()
                self.past.check_stopped()
                if is_past(self._seen_end, began, STALE_AFTER_S) and self.is_truncated(self._state.seqno + 1):
                    self._replay()
                self._read_forward()
                if not self._is_opening:
                    self.past.check(self._state, began, PROVE_READS_AFTER_S)
                self.looks.finish_look(serves)
                self._seen_end = began
            state = self._state
        self.looks.note()
        return state

    def _read_forward(self, last: float = math.inf) -> None:
        """Apply the records after the known state, up to a seqno."""
        state_before = self._state
        try:
            for record in self._records.read_after(lambda: self._state.seqno, last):
                if self._state is state_before:
                    self.past.note_continuation(state_before)
                self.advance(record)
        except LogInterrupted:
            # Readers that opened the location in this state go on reading.
            if not self._is_opening and self.past.hole is None:
                raise

    def restart(self) -> State:
        """Continue from the newest checkpoint, because state objects of older ones may be deleted.

        Cost: a page of LIST, a GET, and reading the contents of collections again.
        """
        with self._lock:
            newest = self._load_newest_checkpoint()
            if newest.location is not None:
                self._restart(newest)
            else:  # There has been no checkpoint yet, or it went with the past.
                self._verify_newest()
            return self._state

    @property
    def knows_end(self) -> bool:
        """Whether this client has seen the end of the log lately, `FRESH_S` ago at most."""
        return self._clock.monotonic_s() - self._seen_end[0] < FRESH_S

    def find_next_seqno(self) -> int:
        """Return the next seqno of the log, as of `FRESH_S` ago at most. Cost: mostly nothing, or a GET."""
        return (self._state if self.knows_end else self.refresh()).seqno + 1

    def was_truncated(self, record: Record, *, past_is_there: bool) -> bool:
        """Return whether the slot of a record that was just created has been truncated, before or after that.

        past_is_there: whether the preceding record was seen to exist. Cost: nothing, unless this client has not seen
        the end of the log for `STALE_AFTER_S`, or another thread has moved the state past the slot without reading its
        record: then a LIST and a GET.
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

    def get_newest_record(self) -> Record | None:
        """Return the record of the newest known state; None if it was truncated. Mostly, the record is in memory."""
        with self._lock:
            if self._is_stale():
                self.refresh()
            return self._recent.get(self._state.seqno) or read_record(self._blob, self._state.seqno)

    def read_clocks(self) -> tuple[float, float]:
        """Return the seconds of the monotonic and of the wall clock, for `is_long_ago`."""
        return self._clock.monotonic_s(), self._clock.wall_ms() / 1000

    def is_long_ago(self, then: tuple[float, float]) -> bool:
        """Return whether a record created at that moment may have been truncated since."""
        return is_past(then, self.read_clocks(), STALE_AFTER_S)

    def _is_stale(self) -> bool:
        """Return whether the log's end was last seen more than `STALE_AFTER_S` ago."""
        return self.is_long_ago(self._seen_end)

    def _load_newest_checkpoint(self) -> State:
        return read_newest_checkpoint(self._blob, self._levels)

    def _replay(self) -> None:
        """Continue from the newest checkpoint, or without one from the first record."""
        self._restart(self._load_newest_checkpoint())

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
                self.past.check_tops(self._state)  # If it went with the past, one of these is gone, too: LogReplaced.
                raise MissingBlob(make_record_key(newest.seqno + 1), "it is missing, and later ones have been read")
            try:
                newest = apply_record(newest, record)
            except DoesNotFollow as error:
                raise self.past.stop(newest.seqno, record.previous or "", newest.commit) from error
        if newest.seqno == self._state.seqno and newest.commit != self._state.commit:
            assert self._state.commit is not None
            raise self.past.stop(newest.seqno, self._state.commit, newest.commit)
        if newest.seqno > self._state.seqno:
            self.submissions.skip_records(newest.seqno)
        self._state = newest

    def _verify_newest(self) -> None:
        """Stop, with LogReplaced, if the newest known record is missing or differs."""
        if self._state.commit is not None:
            self.past.verify(self._state.seqno, self._state.commit)

    def apply_winner(self, winner: Record) -> None:
        """Apply a record that another client created in this client's slot, unless it was applied already."""
        with self._lock:
            if winner.seqno == self._state.seqno + 1:
                self.past.note_continuation(self._state)
            self.advance(winner)

    def advance(self, record: Record, applied: tuple[State, State] | None = None) -> None:
        """Apply a record of the log, unless it has been applied already.

        `applied`: a state, and the result of `apply` on it with this record, if known.
        """
        with self._lock:
            if record.seqno <= self._state.seqno:
                recent = self._recent.get(record.seqno)
                is_kept = record.seqno >= self._state.control.log_floor
                if is_kept and recent is not None and recent.commit != record.commit:
                    raise self.past.stop(record.seqno, recent.commit, record.commit)
                return
            if self._state.location not in (None, record.location):
                raise make_contradiction_error(record, self._state)
            try:
                is_known = applied is not None and applied[0] is self._state
                after = applied[1] if applied is not None and is_known else apply_record(self._state, record)
            except MissingBlob:
                # Pages of a directory that newer checkpoints do not refer to are collected after a while.
                state_before = self._state
                self._replay()
                if self._state.entries.shares_base_with(state_before.entries):
                    raise
                self.advance(record)
                return
            except DoesNotFollow as error:
                raise self._does_not_follow(record) from error
            except (ValueError, Conflict) as error:
                raise CorruptBlob(make_record_key(record.seqno), f"it breaks a rule of the log: {error}") from error
            self.submissions.note(record)  # Before the state, so that its readers find the records before it.
            self._state = after
            self.past.note_state(self._state, self.read_clocks())
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

    def load_submissions(self, after: int) -> Submissions:
        """Refresh, and return the submissions in all records of the log after a seqno.

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
        """Return the error for a next record that names another predecessor than the last known."""
        seqno, commit = self._state.seqno, self._state.commit
        if commit is None:
            return CorruptBlob(
                make_record_key(record.seqno), f"it breaks a rule of the log: it follows {record.previous}"
            )
        present = commit if self._is_opening else read_commit_id(self._blob, seqno)
        if present == commit:
            return LogInterrupted(self._blob.url, seqno, record.seqno, record.seqno)
        return self.past.stop(seqno, commit, present)

    def get_recent_records(self) -> tuple[State, Mapping[int, Record], KnownLevels]:
        """Return the arguments of `write_checkpoint`: newest state, records before it, known levels."""
        with self._lock:
            return self._state, dict(self._recent), self._levels

    def _read_hinted(self) -> None:
        """Read up to the record of a hint; the next refresh finds the records after it."""
        with self._lock:
            self.past.check_stopped()
            if not self._is_stale():
                self._read_forward(self._hinted)
