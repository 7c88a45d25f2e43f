"""The ages of a location's records, by the clock of its store, and which of them may be deleted.

    checkpoint of seqno 40, dated 10:00   proves that all records up to 40 were created by 10:00
    record of seqno 55, dated 10:20       proves that all records up to 55 were created by 10:20

The store dates blobs, and the present is the date of a blob that was written just now. So ages are differences between
times of the store's clock. Mostly checkpoints are enough, and there are fewer of them. A full store accepts no new
checkpoint, so the dates of records are used then, too. A record without a proof counts as young.

Garbage collection also deletes checkpoints. So it may only wait for ages that some checkpoint always reaches:
`log_retention_s` and `Ages.erase_after_s`. The log floor passes a record, and the checkpoints before it are deleted,
only when the record is that old. A longer age, such as `orphan_grace_s`, is measured on the waiting blob itself.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from persist.blob.protocol import BlobEntry
from persist.core.log.fields import Policy
from persist.core.log.keys import parse_checkpoint_seqno
from persist.core.state_rules.policies import Policies
from persist.core.state_rules.state import State
from persist.engine.follow.follower import STALE_AFTER_S


@dataclass(frozen=True)
class Mark:
    """A checkpoint or a record, which proves that the records up to its seqno are at least as old as itself."""

    seqno: int
    modified_s: float


def list_checkpoint_marks(entries: Iterable[BlobEntry]) -> list[Mark]:
    """Return the checkpoints among some blobs, in the order of these."""
    seqnos = ((parse_checkpoint_seqno(entry.key), entry) for entry in entries)
    return [Mark(seqno, entry.modified_s) for seqno, entry in seqnos if seqno is not None]


@dataclass(frozen=True)
class Ages:
    """The ages of the records of a location.

    Attributes:
        state: the newest state; without policies in the log, the client's own policies apply.
        now_s: the present, by the clock of the store.
        checkpoints: all that exist.
        records: all that exist, or none if checkpoints are enough.
    """

    state: State
    policies: Policies
    now_s: float
    checkpoints: Sequence[Mark]
    records: Sequence[Mark] = ()

    @cached_property
    def policy(self) -> Policy:
        """The policy by which something may be deleted now; see `persist.core.state_rules.policies`."""
        return self.policies.get_policy_in_force(
            self.state.control.log_floor, lambda seqno, age_s: self.find_seqno_before(age_s) >= seqno
        )

    @property
    def erase_after_s(self) -> float:
        """How long records with destroyed data stay, so that no client takes a hole for the end of the log."""
        return max(self.policy.grace_s, 2 * STALE_AFTER_S)

    def find_seqno_before(self, age_s: float) -> int:
        """Return a seqno up to which all records are at least that old; -1 if none is known to be."""
        if age_s == 0:
            return self.state.seqno
        return _find_last_before(self.now_s - age_s, *self.checkpoints, *self.records)

    def estimate_old_at_s(self, seqno: int, age_s: float) -> float:
        """Estimate when the record at a seqno will have an age; from now if it has no date."""
        return min((mark.modified_s for mark in self.checkpoints if mark.seqno >= seqno), default=self.now_s) + age_s

    def is_old_upload(self, seqno: int, age_s: float) -> bool:
        """Return whether an unused part, by its age and the seqno in its name, has exceeded the time for an upload."""
        return age_s >= self.policies.get_orphan_grace_s(seqno)

    def find_upload_floor(self, uploads: Iterable[tuple[int, float]]) -> int:
        """Return the seqno before which uploads may be declared void; 0 if none may.

        All uploads before it have taken too long. A writer may have read the log before an old upload began, and store
        its first part only now; see `_find_first_pending`.

        `uploads`: the seqno in the name, and the age in seconds, of each unused part.
        """
        uploads = [*uploads]
        floor, young = 0, []
        for seqno, age_s in uploads:
            if self.is_old_upload(seqno, age_s):
                floor = max(floor, seqno + 1)
            else:
                young.append(seqno)
        return min(floor, self._find_first_pending(uploads), *young)

    def _find_first_pending(self, uploads: Sequence[tuple[int, float]]) -> int:
        """Return the first seqno of uploads that may still be in progress without a stored part.

        No writer plans an upload with a seqno once it knows the record at it. So a seqno is past if its record is older
        than an upload may become. An old upload proves this only for seqnos before its own: in a quiet log, a writer
        that begins today uses the same seqno. Missing records count as old.
        """
        newest_s = self.policies.newest.orphan_grace_s
        stale = self.find_seqno_before(min(newest_s, self.erase_after_s))
        for end in (*(replaced_at for replaced_at, _ in self.policies.before), None):
            grace_s = newest_s if end is None else self.policies.get_orphan_grace_s(end)
            if grace_s == 0:
                break
            proven = max((seqno - 1 for seqno, age_s in uploads if age_s >= grace_s), default=-1)
            passed = max(self.find_seqno_before(grace_s), min(stale, max(proven, self.state.control.log_floor - 1)))
            if end is None or passed < end:
                return passed + 1
        return self.state.seqno + 2  # A record that is made now is 0 s old.

    def find_log_floor(self, records: Iterable[tuple[int, BlobEntry]]) -> int | None:
        """Return the first record that the log still needs; None if declaring it is not worth a record.

        `records`: all records in the store, oldest first.
        """
        policy, control = self.policy, self.state.control
        least_old = self.find_seqno_before(self.erase_after_s)
        old = max(
            self.find_seqno_before(max(policy.log_retention_s, self.erase_after_s)) + 1,
            min(_find_size_floor(policy, records), least_old + 1),
        )
        # An old record may follow the newest checkpoint that a client has just read. Its slot must not become free. So
        # a checkpoint that has existed for a while must cover the deleted ones (`tests/proofs/models/truncating.py`).
        covered = _find_last_before(self.now_s - 2 * STALE_AFTER_S, *self.checkpoints)
        floor = min(old, self.state.seqno + 1 - policy.log_retention_records, covered + 1)
        least = max(1, policy.log_retention_records // 10)
        destroyed = control.find_last_destroyed(least_old)
        if destroyed > floor:
            floor, least = destroyed, 1
        return floor if floor - control.log_floor >= least else None


def _find_last_before(moment_s: float, *marks: Mark) -> int:
    """Return the greatest seqno of the marks that are at least as old as a moment; -1 without any."""
    return max((mark.seqno for mark in marks if mark.modified_s <= moment_s), default=-1)


def _find_size_floor(policy: Policy, records: Iterable[tuple[int, BlobEntry]]) -> int:
    """Return the first of the newest records that fit the limits of number and bytes."""
    bytes_left = policy.log_bytes_max
    for number, (seqno, entry) in enumerate(reversed([*records])):
        bytes_left -= entry.bytes
        if number == policy.log_records_max or bytes_left < 0:
            return seqno + 1
    return 0
