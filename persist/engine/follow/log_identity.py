"""Check whether the log still is the one that a client has read.

A location may be rolled back under an open client: a backup is restored in place, without the last records. The client
would continue beyond this *hole*, and its writes would be acknowledged and never read. Four things prevent that:

- Each record names the commit before it, so a record made after the roll-back cannot pass for the next one.
- A checkpoint's maker first checks that all its records exist (`persist.engine.follow.checkpoint.write_checkpoint`), so
  no checkpoint bridges a hole.
- No commit is acknowledged before the client has checked, after its request, that the preceding records still exist:
  `determine_fate` looks for the record before it, and for the records that were newest when records of others were
  read. If there is a hole, one of these is its last missing record. See `persist.engine.write.store_checks`.
- From time to time a client checks this without a commit, so that no client writes beyond a hole and readers notice
  one. A writer checks before it creates a record, at most every `PROVE_AFTER_S`; a reader after it has read on, at most
  every `PROVE_READS_AFTER_S`.

Which records are checked from time to time? After a pause: the newest known record, with one GET. A client without
pauses checks the record that was newest at its last check, and the one after that; the newest one now may be beyond a
hole already. A roll-back loses the last records, so it lost one of these two, unless the backup was taken after the
last check. docs/run/restore.md describes the remaining window.
"""

import threading
from typing import Literal

from persist.blob.errors import CorruptBlob, Indeterminate, MissingBlob
from persist.blob.protocol import Blob
from persist.core.errors import LogInterrupted, LogReplaced
from persist.core.log.keys import list_records, make_checkpoint_key, make_record_key
from persist.core.log.records import Record, matches_commit, read_commit_id, read_record
from persist.core.state_rules.state import State
from persist.engine.follow.checkpoint import list_checkpoints_beyond_log, read_newest_control

PROVE_AFTER_S = 10.0
PROVE_READS_AFTER_S = 60.0
TOPS_MAX = 16  # One look checks so many records; if there are more, it leaves out the oldest.

Moment = tuple[float, float]  # Of the monotonic and the wall clock, in seconds.
Mark = tuple[int, str]  # A seqno, and the commit id of the record there.
Gone = tuple[int, str, str | None]  # A mark, and the commit id that is there now.
Fate = Gone | Literal["there", "truncated"]


class Past:
    """What one client has read of the log, to detect a log that was rolled back.

    `note_state`, `note_continuation` and `check` are called with the lock of its `Follower`. `begin`, `verify`, `stop`
    and `check_stopped` need no lock. All other methods acquire the lock.
    """

    def __init__(self, blob: Blob, lock: "threading.RLock") -> None:
        self.hole: LogInterrupted | None = None  # The records that were found beyond the end of the log at opening.
        self._blob = blob
        self._lock = lock

    def begin(self, state: State, now: Moment) -> None:
        """Begin with a state that is known to be in the log at that moment."""
        self._asked = self._learned = now
        # The newest record at the last check, and the one after it.
        self._marks: list[Mark] = []
        self._tops: list[Mark] = []  # The newest records when others were read after them, since the last look.
        self._lost: tuple[int, str, str | None] | None = None
        self._add_mark(state)

    def note_state(self, state: State, now: Moment) -> None:
        """Note that the last record of state became known at that moment."""
        self._learned = now
        if len(self._marks) < 2:
            self._add_mark(state)

    def note_continuation(self, state: State) -> None:
        """Note that records of others were read after a state, perhaps beyond missing ones."""
        if state.commit is not None:
            self._tops = [*self._tops[1 - TOPS_MAX :], (state.seqno, state.commit)]

    def list_tops(self, before: State) -> list[Mark]:
        """Return the records to look for before a commit after this state is acknowledged."""
        with self._lock:
            self.check_stopped()
            return [*self._tops, *([] if before.commit is None else [(before.seqno, before.commit)])]

    def check_fates(self, looks: list[tuple[Mark, Fate]]) -> bool:
        """Note the fates of the records of `list_tops`; return whether all are in the log.

        Raises LogReplaced: a record is missing or differs; the client stops.
        """
        are_there = True
        with self._lock:
            for _, fate in looks:
                if isinstance(fate, tuple):
                    raise self.stop(*fate)
                are_there &= fate == "there"
            if self._tops:
                checked_tops = [top for top, _ in looks]
                self._tops = [top for top in self._tops if top not in checked_tops]
        return are_there

    def check_tops(self, before: State) -> bool:
        """Return whether the records of `list_tops` are in the log. Cost: a GET of a few bytes for each."""
        return self.check_fates([(top, determine_fate(self._blob, top)) for top in self.list_tops(before)])

    def prove(self, state: State, now: Moment) -> None:
        """Check that other clients will read the next commit. Cost: nothing, or a GET now and then.

        Raises:
            LogInterrupted: records lay beyond the end of the log when it was opened.
            LogReplaced: the log is not the one that this client has read.
        """
        with self._lock:
            self.check(state, now, PROVE_AFTER_S)
            self._check_whole()

    def prove_now(self, state: State) -> None:
        """Like `prove`, but check at once. Cost: one GET."""
        with self._lock:
            self.check_stopped()
            self._verify_marks(state, self._marks[-1:])
            self._check_whole()

    def prove_known(self, state: State) -> None:
        """Check that the log is the one that this client knows, before it deletes blobs by its state.

        Cost: a GET of a few bytes for each checked record, mostly two.

        Raises:
            LogReplaced, LogInterrupted: as `prove`.
            Indeterminate: the state may belong to an older log: call `Follower.restart` first.
        """
        self.prove_now(state)
        if not self.check_tops(state):
            raise Indeterminate(f"the log of {self._blob.url} was truncated beyond seqno {state.seqno}")

    def _check_whole(self) -> None:
        """Raise LogInterrupted if records lay beyond the end of the log."""
        if (hole := self.hole) is not None:
            # Another error each time: this one would keep alive the frames of its last traceback.
            raise LogInterrupted(hole.url, hole.end, hole.first, hole.last)

    def check(self, state: State, now: Moment, after_s: float) -> None:
        """Check that the log still has the known records, if the last check is after_s old.

        Raises LogReplaced: it lost one of them, now or earlier.
        """
        self.check_stopped()
        if not is_past(self._asked, now, after_s):
            return
        if is_past(self._learned, now, after_s):
            self._marks.clear()
            self._add_mark(state)
        self._verify_marks(state, self._marks)
        self._asked = now
        self._marks.clear()
        self._add_mark(state)

    def _add_mark(self, state: State) -> None:
        """Add the newest record of a state to the records that later checks look for."""
        if state.commit is not None:
            self._marks.append((state.seqno, state.commit))

    def _verify_marks(self, state: State, marks: list[Mark]) -> None:
        """Verify the marked records that the log must still have."""
        for seqno, commit in marks:
            if seqno >= state.control.log_floor:
                self.verify(seqno, commit)

    def verify(self, seqno: int, commit: str) -> None:
        """Raise LogReplaced, now and in later checks, unless the record at seqno is that commit or was truncated."""
        fate = determine_fate(self._blob, (seqno, commit))
        if isinstance(fate, tuple):
            raise self.stop(*fate)

    def stop(self, seqno: int, known: str, present: str | None) -> LogReplaced:
        """Stop for good, and return the error with the reason."""
        self._lost = self._lost or (seqno, known, present)
        return LogReplaced(self._blob.url, *self._lost)

    def check_stopped(self) -> None:
        """Raise LogReplaced if an earlier check found another log."""
        if self._lost is not None:
            raise LogReplaced(self._blob.url, *self._lost)


def determine_fate(blob: Blob, mark: Mark) -> Fate:
    """Return whether a record exists or was truncated; otherwise the error to stop with.

    Cost: a GET of a few bytes, if it exists. Needs no lock.
    """
    seqno, commit = mark
    if matches_commit(blob, seqno, commit):
        return "there"
    present = read_commit_id(blob, seqno)
    if present == commit:
        return "there"
    return "truncated" if present is None and _is_log_truncated(blob, seqno) else (seqno, commit, present)


def _is_log_truncated(blob: Blob, seqno: int) -> bool:
    """Return whether the log floor is after a seqno."""
    try:
        return read_newest_control(blob).log_floor > seqno
    except MissingBlob:  # There is no checkpoint, and the log does not begin at 0: the location was emptied.
        return False


def is_past(then: Moment, now: Moment, after_s: float) -> bool:
    """Return whether after_s have passed by the monotonic or the wall clock."""
    return now[0] - then[0] >= after_s or now[1] - then[1] >= after_s


def load_record(blob: Blob, newest: State) -> Record | None:
    """Return the record after which the newest checkpoint was made, or None if it was truncated.

    Raises:
        CorruptBlob: it belongs to another location, or is another commit.
        LogInterrupted: as `check_not_beyond`.
    """
    record = read_record(blob, newest.seqno)
    if record is not None and record.location == newest.location and record.commit == newest.commit:
        return record
    if record is None or record.location == newest.location:
        check_not_beyond(blob, newest)
    if record is not None:
        raise make_contradiction_error(record, newest)
    return None


def check_not_beyond(blob: Blob, newest: State) -> None:
    """Raise LogInterrupted if the newest checkpoint lies beyond the end of the log."""
    if newest.seqno in list_checkpoints_beyond_log(blob):
        seqnos = [seqno for seqno, _ in list_records(blob)]
        end = max((seqno for seqno in seqnos if newest.seqno in seqnos or seqno < newest.seqno), default=-1)
        raise LogInterrupted(blob.url, end, newest.seqno, newest.seqno, is_checkpoint=True)


def make_contradiction_error(record: Record | None, state: State) -> CorruptBlob:
    """Return the error for a record that contradicts the state, or is missing (None)."""
    checkpoint = make_checkpoint_key(state.seqno)
    if record is None:
        return MissingBlob(make_record_key(state.seqno), f"it is missing, and {checkpoint} was made after it")
    if record.location != state.location:
        reason = (
            f"it belongs to location {record.location}, and what {make_record_key(state.seqno)} or {checkpoint} "
            f"says to location {state.location}"
        )
    else:
        reason = f"its commit is {record.commit}, and {checkpoint} was made after the commit {state.commit}"
    return CorruptBlob(make_record_key(record.seqno), f"{reason}: one of these blobs lies where it does not belong")
