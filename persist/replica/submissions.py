"""Which operations that clients had committed by others are in the log, as far as one reader of it knows.

A client that lets a server commit for it gives each operation its own id and a number (`persist.write.relay`), and a
record that was made for others says whose operations it holds (`persist.log.kinds.Submitted`). Both sides read that,
and nothing else, to tell what became of an operation:

- a client that lost the answer finds its number in the log; or it commits by itself, and says in that record, besides,
  that none of its operations up to a number will come any more;
- a server commits an operation only as long as no record since the client asked for it says that.

Both need the slot of the log that follows what they have read, so of the two only one can get it, and the other reads
what was decided. This needs no state in checkpoints, because only what followed a seqno is ever asked for: `knows`
tells whether all of that was read here.
"""

from msgspec import UNSET

from persist.log import Record

SUBMITTERS_MAX = 4096
RANGES_MAX = 4096  # Of one submitter; all operations that it asks for at once have fewer numbers.


class Submissions:
    """What records since a seqno say; one thread adds to it at a time, and others may look meanwhile.

    A look that comes between two records misses none that the looker's state holds: records are noted first.
    """

    def __init__(self, seqno: int) -> None:
        self._since = seqno
        self._found: dict[str, tuple[tuple[int, int, int], ...]] = {}  # (first, last, seqno), the newest last.

    def note(self, record: Record) -> None:
        """Take in a record, which follows the one before."""
        if record.submitted is UNSET:
            return
        for each in record.submitted:
            known = self._found.pop(each.submitter, ())
            self._found[each.submitter] = (*known, (each.first, each.last, record.seqno))[-RANGES_MAX:]
        while len(self._found) > SUBMITTERS_MAX:
            oldest = next(iter(self._found))
            self._since = max(self._since, self._found.pop(oldest)[-1][2])

    def skip_to(self, seqno: int) -> None:
        """Say that records up to seqno were not read, because a checkpoint stands for them."""
        self._since = max(self._since, seqno)

    def knows(self, after: int) -> bool:
        """Whether all records after this one have been taken in."""
        return self._since <= after

    def seqno_of(self, submitter: str, number: int) -> int | None:
        """Return the record that holds an operation; None if none does that was taken in."""
        ranges = self._found.get(submitter, ())
        return next((seqno for first, last, seqno in ranges if first <= number <= last), None)

    def is_past(self, submitter: str, number: int) -> bool:
        """Whether an operation that no record holds yet is in none that follows, either."""
        return any(last >= number for _, last, _ in self._found.get(submitter, ()))
