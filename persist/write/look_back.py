"""Looks for what a commit follows, beside the create of its record: rule 9, where somebody restores a backup in place.

A `create` asks for its own slot only. After a roll-back that slot is free, and so is the one before it: the record
would be acknowledged and never read (`persist.replica.past`). So the records that it must follow are looked for, too,
and before that was done nobody hears of the commit:

- in a store near by, after the create: an `open` and a read of some 20 µs;
- in one far away, by a GET that is under way at the same time, so it adds no latency. If the create took longer than
  `VALID_S`, what was seen before it is too old, and is looked for again.

If one of them has been truncated, the state is an old one. The client then restarts from the newest checkpoint, and its
record does not count if the slot has been truncated, too.

If one of them is gone, the client stops. Its record stays where it is, beyond the end of the log: to delete it could
take something away from another client, and `fsck` sets it aside. If a restore removes the record before after that
look, it was under way while the client committed. Rejected: a generation in every record, which a restore changes. A
record that is created cannot be conditional on another blob, so a client would have to read it as well.
"""

from collections.abc import Callable

from persist.blob import Blob, Clock, Indeterminate, PersistError, Pool, is_remote
from persist.errors import LogReplaced
from persist.log import Record
from persist.replica import Follower, fate_of
from persist.state import State

LOOKS_MAX = 4  # At the same time; most often there is one record to look for.
VALID_S = 1.0


class LookBack:
    """Looks back for one client; for one thread at a time.

    Args:
        is_wanted: see `Settings.look_back`; without it, nothing is looked for.
    """

    def __init__(self, blob: Blob, follower: Follower, clock: Clock, *, is_wanted: bool) -> None:
        self._blob = blob
        self._follower = follower
        self._clock = clock
        self._is_wanted = is_wanted
        self._pool = Pool(LOOKS_MAX, "persist-look") if is_remote(blob) else None

    def close(self) -> None:
        """End the threads, which may have a request under way; idempotent."""
        if self._pool is not None:
            self._pool.shutdown(wait=False)

    def begin(self, before: State) -> Callable[[Record | None], bool]:
        """Begin to look for what a record after a state follows; return what ends that, when the record was created.

        That takes the record that this client created, or None if another one was there first, and returns what `now`
        does. It raises LogReplaced if something is gone, and Indeterminate if that could not be found out.
        """
        if not self._is_wanted:
            return lambda record: True
        began_s = self._clock.monotonic_s()
        looks = None
        if self._pool is not None:
            tops = self._follower.tops(before)
            looks = [(top, self._pool.submit(fate_of, self._blob, top)) for top in tops]

        def end(record: Record | None) -> bool:
            try:
                if looks is not None and (record is None or self._clock.monotonic_s() - began_s <= VALID_S):
                    return self._follower.saw([(top, look.result()) for top, look in looks])
                return record is None or self.now(before)
            except LogReplaced:
                raise
            except PersistError as error:
                if record is not None:
                    raise _in_doubt(record, error) from error
                return True

        return end

    def now(self, before: State) -> bool:
        """Look for the newest record of a state, and for those that `begin` would look for, if that is wanted.

        Returns:
            Whether all of them are there. If not, the log has been truncated beyond some of them: the state is an old
            one, and the slot after it may be truncated, too.

        Raises:
            LogReplaced: one of them is gone.
            Unavailable, Corruption: that could not be found out.
        """
        return not self._is_wanted or self._follower.sees(before)


def _in_doubt(record: Record, error: PersistError) -> Indeterminate:
    return Indeterminate(
        f"a record was created at seqno {record.seqno}, and whether the one before it is still there could not be "
        f"found out: {error}. So this may or may not be in the log. Read back before writing it again."
    )
