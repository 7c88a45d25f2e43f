"""Whether the log is still the one that a client has read.

A location may be rolled back under an open client: a backup is restored in place. The client would go on where it
was, beyond a hole, and be acknowledged for what nobody will ever read. Three things prevent that:

- Each record names the commit before it, so no record that was made after the roll-back is taken for the next one.
- Whoever makes a checkpoint first makes sure that all records that it adds up are there
  (`persist.replica.checkpoint.write_checkpoint`), so that memory bridges no hole.
- From time to time a client asks whether records that it knows are still there: a writer before it creates a record,
  or says that something was done before, if it has not asked for `PROVE_AFTER_S`; a reader after it has read on, if it
  has not for `PROVE_READS_AFTER_S`. In between it costs nothing.

Which records? After a pause, the newest one that is known: that is one GET. A client that never pauses asks for the
newest one of the time when it last asked, and for the one after that; the newest one now may be beyond a hole already.
A roll-back loses the last records, so it lost one of these two, unless the backup was made since the client last
asked. docs/operations.md says what window stays open.
"""

from persist.blob import Blob
from persist.errors import LogReplaced
from persist.log.commits import read_commit_id
from persist.replica.checkpoint import read_newest_control
from persist.state.state import State

PROVE_AFTER_S = 10.0
PROVE_READS_AFTER_S = 60.0

Moment = tuple[float, float]  # Of the monotonic and of the wall clock, in seconds.


class Past:
    """What one client knows of the log, and when it last asked. Used under the lock of its `Follower`."""

    def __init__(self, blob: Blob, state: State, now: Moment) -> None:
        self._blob = blob
        self._asked = self._learned = now
        # The newest record when that was last asked, and the one after it.
        self._marks: list[tuple[int, str]] = []
        self._lost: tuple[int, str, str | None] | None = None
        self._mark(state)

    def learned(self, state: State, now: Moment) -> None:
        """Note that the last record of state became known at that moment."""
        self._learned = now
        if len(self._marks) < 2:
            self._mark(state)

    def check(self, state: State, now: Moment, after_s: float) -> None:
        """Ask whether the log still holds what is known, if that was not asked for after_s.

        Raises:
            LogReplaced: it does not, or did not before.
        """
        self.check_stopped()
        if not _passed(self._asked, now, after_s):
            return
        if _passed(self._learned, now, after_s):
            self._marks.clear()
            self._mark(state)
        self._ask(state, self._marks)
        self._asked = now
        self._marks.clear()
        self._mark(state)

    def check_now(self, state: State) -> None:
        """Like `check`, and ask at once, but for one record only. What is asked for at the next time stays the same."""
        self.check_stopped()
        self._ask(state, self._marks[-1:])

    def _mark(self, state: State) -> None:
        if state.commit is not None:
            self._marks.append((state.seqno, state.commit))

    def _ask(self, state: State, marks: list[tuple[int, str]]) -> None:
        for seqno, commit in marks:
            if seqno >= state.control.log_floor:
                self.verify(seqno, commit)

    def verify(self, seqno: int, commit: str) -> None:
        """Raise LogReplaced, now and from now on, unless the record at seqno is that commit or has been truncated."""
        found = read_commit_id(self._blob, seqno)
        if found == commit or (found is None and read_newest_control(self._blob).log_floor > seqno):
            return
        raise self.stop(seqno, commit, found)

    def stop(self, seqno: int, known: str, found: str | None) -> LogReplaced:
        """Stop for good, and return the error that says why."""
        self._lost = self._lost or (seqno, known, found)
        return LogReplaced(self._blob.url, *self._lost)

    def check_stopped(self) -> None:
        """Raise LogReplaced if it was found out before that the log is another one."""
        if self._lost is not None:
            raise LogReplaced(self._blob.url, *self._lost)


def _passed(then: Moment, now: Moment, after_s: float) -> bool:
    return any(later - before >= after_s for before, later in zip(then, now, strict=True))
