"""A fixed view of one point of the log, for consistent reads of several collections.

The state after a record is that of the newest checkpoint at or before it, and the records since. Checkpoints and
records are kept for a while (`Settings.log_retention_s`, see `persist.engine.upkeep.garbage`); an older point is
refused.
"""

from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

from persist.blob.errors import CorruptBlob, InvalidUsage, MissingBlob
from persist.blob.protocol import Blob
from persist.blob.threads import Clock
from persist.core.log.keys import list_checkpoints, make_record_key
from persist.core.log.records import read_record
from persist.core.state_rules.contents import CollectionState
from persist.core.state_rules.state import DoesNotFollow, State, apply_record
from persist.engine.follow.checkpoint import load_state, read_checkpoint
from persist.engine.follow.follower import Follower

T = TypeVar("T")


class PinnedFollower(Follower):
    """The state after the record at a seqno.

    Cost: a page of LIST, a GET of a checkpoint, and a GET for each record between it and the seqno.

    Raises:
        InvalidUsage: the record does not exist yet, or needed records were truncated.
        Corruption: a stored object is damaged.
    """

    def __init__(self, blob: Blob, clock: Clock, seqno: int, *, pool: Executor) -> None:
        self._pinned: int | None = None  # First it looks at the whole log, like any other.
        super().__init__(blob, clock, pool=pool)
        if seqno > self._state.seqno:
            raise InvalidUsage(
                f"seqno={seqno} is not in the log of {blob.url} yet, whose last is {self._state.seqno}: pin that one, "
                "or leave the option out to read the newest"
            )
        self._state = _load_state(blob, seqno)
        self._pinned = seqno

    def refresh(self) -> State:
        """Return the state, which stays the same. Cost: nothing."""
        return super().refresh() if self._pinned is None else self._state

    def restart(self) -> State:
        """Raise InvalidUsage: a pinned client cannot continue from another state."""
        raise _explain_missing_state(self._blob, self._state.seqno)

    def load(self, id_: str) -> CollectionState | None:
        with self._lock:
            try:
                return self._load_contents(id_)
            except MissingBlob as error:
                raise _explain_missing_state(self._blob, self._state.seqno) from error

    def wait_for(self, look: Callable[[], T | None], timeout_s: float | None) -> T | None:
        """Return the result of look at once: waiting would not change it."""
        self.check_open()
        return look()


def _load_state(blob: Blob, seqno: int) -> State:
    """Return the state at a seqno, from a checkpoint and the log."""
    state = State()
    for at, entry in list_checkpoints(blob):
        if at <= seqno and (checkpoint := read_checkpoint(blob, entry.key)) is not None:
            try:
                state = load_state(blob, checkpoint)
            except MissingBlob:
                if blob.get(entry.key) is not None:
                    raise
                raise _explain_missing_state(
                    blob, seqno
                ) from None  # It was collected meanwhile, and its directory after it.
            break
    while state.seqno < seqno:
        record = read_record(blob, state.seqno + 1)
        if record is None:
            raise _explain_missing_state(blob, seqno)
        try:
            state = apply_record(state, record)
        except DoesNotFollow as error:
            raise CorruptBlob(make_record_key(record.seqno), f"it breaks a rule of the log: {error}") from error
    return state


def _explain_missing_state(blob: Blob, seqno: int) -> InvalidUsage:
    return InvalidUsage(
        f"the state of {blob.url} as of seqno={seqno} cannot be read any more: that part of the log has been truncated "
        "(Settings.log_retention_s says how long it is kept). Pin a later seqno, or read by as_of."
    )
