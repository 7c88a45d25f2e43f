"""How old what a location holds is, by the clock that dates its blobs, and what that lets go.

    checkpoint of seqno 40, dated 10:00   proves that all records up to 40 are from 10:00 or before
    record of seqno 55, dated 10:20       proves the same of those up to 55

Blobs are dated by their store, and the present is the date of a blob that was written just now. So ages are differences
between times of one clock, and that of no client counts. Mostly checkpoints are enough, because there are fewer of
them; a full store may take no new one, and then the records that are there are listed, too.

`Ages` is filled by whoever collects: `now_s` first, then the checkpoints. What it has not been told of counts as young.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from persist.blob.protocol import Blob
from persist.core.log.fields import Policy
from persist.core.log.keys import listed_checkpoints, listed_records
from persist.core.state_rules.state import State
from persist.engine.follow.follower import STALE_AFTER_S, Follower


@dataclass(frozen=True)
class Mark:
    """A checkpoint or a record, which proves that the records up to its seqno are at least as old as itself."""

    seqno: int
    modified_s: float


class Ages:
    """What is known of the ages of records, for one collection of garbage.

    Attributes:
        now_s: the present.
        checkpoints: those that there are, the newest first.
    """

    def __init__(self, blob: Blob, follower: Follower) -> None:
        self._blob = blob
        self._follower = follower
        self._records: list[Mark] = []
        self.now_s = 0.0
        self.checkpoints: list[Mark] = []

    def date_checkpoints(self) -> None:
        self.checkpoints = [Mark(seqno, entry.modified_s) for seqno, entry in listed_checkpoints(self._blob)]

    def date_records(self) -> None:
        """Ask when each record was created, which is not before those that precede it."""
        self._records = [Mark(seqno, entry.modified_s) for seqno, entry in listed_records(self._blob)]

    @property
    def policy(self) -> Policy:
        """The policy by which something may be deleted now; see `persist.core.state_rules.policies`."""
        state = self._follower.state
        return self._follower.policies.in_force(lambda seqno, age_s: self.seqno_before(state, age_s) >= seqno)

    @property
    def erase_after_s(self) -> float:
        """How long records stay that may hold destroyed data: no client may take their end for that of the log."""
        return max(self.policy.grace_s, 2 * STALE_AFTER_S)

    def seqno_before(self, state: State, age_s: float) -> int:
        """Return a seqno such that all records up to it are at least that old; -1 if that is known of none."""
        if age_s == 0:
            return state.seqno
        marks = (*self.checkpoints, *self._records)
        return max((m.seqno for m in marks if self.now_s - m.modified_s >= age_s), default=-1)

    def upload_floor(self, state: State) -> int:
        """Return the seqno before which uploads may be declared void."""
        dated = ((m.seqno, m.modified_s) for m in self.checkpoints)
        return void_floor(state, dated, self.now_s, self.policy.orphan_grace_s)

    def log_floor(self, state: State) -> int | None:
        """Return from where on the log is needed, if it is worth a record to say so. Cost: LISTs of the records."""
        policy = self.policy
        records = policy.log_retention_records
        old = max(
            self.seqno_before(state, policy.log_retention_s) + 1,
            min(self._floor_of_size(policy), self.seqno_before(state, self.erase_after_s) + 1),
        )
        # A record may be old, and yet follow the newest checkpoint that somebody has just read: then its slot is not to
        # be free. So a checkpoint that has been there for long stands for all that goes
        # (`tests/proofs/models/truncating.py`).
        seen_s = 2 * STALE_AFTER_S
        stood_for = max((m.seqno for m in self.checkpoints if self.now_s - m.modified_s >= seen_s), default=-1)
        floor = min(old, state.seqno + 1 - records, stood_for + 1)
        least = max(1, records // 10)
        destroyed = state.control.destroyed_before(self.seqno_before(state, self.erase_after_s))
        if destroyed > floor:
            floor, least = destroyed, 1
        return floor if floor - state.control.log_floor >= least else None

    def _floor_of_size(self, policy: Policy) -> int:
        """Return the first of the newest records that are not too many, by number or bytes."""
        left = policy.log_bytes_max
        for number, (seqno, entry) in enumerate(reversed([*listed_records(self._blob)])):
            left -= entry.bytes
            if number == policy.log_records_max or left < 0:
                return seqno + 1
        return 0


def void_floor(state: State, checkpoints: Iterable[tuple[int, float]], now_s: float, grace_s: float) -> int:
    """Return the seqno before which uploads may be declared void: they began at least grace_s ago.

    Args:
        checkpoints: the seqno and the time of change of each; 0 grace needs none.
    """
    if grace_s == 0:
        return state.seqno + 2
    return max((seqno for seqno, modified_s in checkpoints if now_s - modified_s >= grace_s), default=-1) + 1
