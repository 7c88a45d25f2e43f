"""Checks of the store before a client acknowledges a commit: does `create` refuse existing keys, and do earlier records
still exist?

`StoreProof`, rule 15. The commit log relies on `create` refusing an existing key. A store that breaks it (an old
server, or a proxy that loses the `If-None-Match` of a PUT) answers "stored" to every client, so that two writers
overwrite each other's records. Only an attempt shows this. So before a client acknowledges anything, it creates a
record that exists already, with the same content, and the store must refuse it:

- the newest record of the log, before the client creates its first one. So a client with a bad connection to the store
  does not harm the records of others. On a remote store, the check begins when the location is opened, with the record
  that was just read, so that the first commit need not wait for it;
- in an empty location, it uses the client's first record, before that is acknowledged.

The proof cannot show that two `create` at the same moment do not both succeed, nor that a store keeps its behaviour.
Rejected: a separate key for the proof, which costs three requests and a clean-up; and offering other content, which
would do damage exactly if the store is bad.

`LookBack` implements rule 9 when a backup is restored in place: `docs/inside/design.md` ("A write") explains why the
slot itself does not show that. The client looks for the records before its own, and acknowledges the commit only after
that:

- in a local store, after the create: an `open` and a read of some 20 µs;
- in a remote store, by a GET at the same time, so it adds no latency. If the create took longer than `VALID_S`, the
  result of the GET is too old, and the client looks again.

If one of these records has been truncated, the client's state is old. The client then restarts from the newest
checkpoint, and ignores its record if the slot has been truncated.

If one is missing otherwise, the client stops. Its own record stays beyond the end of the log, because deleting it could
harm another client; `fsck` sets it aside. A restore that removes the preceding record only after that look ran at the
same time as the commit, and is not detected.
"""

from collections.abc import Callable
from concurrent.futures import Executor, Future

from persist.blob.errors import Indeterminate, PersistError, StoreFull, StoreMisconfigured, Unavailable
from persist.blob.protocol import Blob, is_remote
from persist.blob.threads import Backoff, Clock
from persist.core.errors import LogReplaced
from persist.core.log.keys import make_record_key
from persist.core.log.records import COMMIT_DEADLINE_S, Record, encode_record
from persist.core.state_rules.state import State
from persist.engine.follow.follower import Follower
from persist.engine.follow.log_identity import determine_fate


class StoreProof:
    """Checks once whether the store refuses to create an existing record. Cost: one PUT for each client.

    For one thread at a time.

    Attributes:
        is_given: whether the store has passed.
        early: the record that was offered when the location was opened, and its pending answer.
    """

    def __init__(self, blob: Blob, clock: Clock, *, deadline_s: float = COMMIT_DEADLINE_S) -> None:
        self.is_given = False
        self.early: tuple[Record, Future[bool]] | None = None
        self._blob = blob
        self._clock = clock
        self._deadline_s = deadline_s
        self._refusal = ""

    def check(self) -> None:
        """Raise StoreMisconfigured if the store has failed the proof before."""
        if self._refusal:
            raise StoreMisconfigured(self._refusal)

    def begin(self, record: Record, threads: Executor) -> None:
        """Begin to create an existing record again, as a check; `find_early_offer` returns the result."""
        self.early = record, threads.submit(self._blob.create, make_record_key(record.seqno), encode_record(record))

    def find_early_offer(self) -> Record | None:
        """Return the record that `begin` offered, if the store wrongly accepted it; None otherwise."""
        early, self.early = self.early, None
        if early is None:
            return None
        record, answer = early
        try:
            self.is_given = not answer.result()
        except PersistError:
            return None  # It is offered again, and then its error counts.
        return None if self.is_given else record

    def offer(self, record: Record) -> bool:
        """Create an existing record again; return False if the store wrongly accepts that.

        Raises:
            Unavailable: the store gave no answer in time, or is full. Nothing was changed.
            StoreMisconfigured, ReadOnlyStore: the store forbids writes.
        """
        key, data = make_record_key(record.seqno), encode_record(record)
        backoff = Backoff(self._clock, self._deadline_s)
        while True:
            try:
                self.is_given = not self._blob.create(key, data)
                return self.is_given
            except StoreFull:
                raise
            except (Indeterminate, Unavailable) as error:
                if not backoff.wait():
                    raise Unavailable(
                        f"the store at {self._blob.url} did not confirm within {self._deadline_s:g} s that {key!r} "
                        f"exists ({error}). Nothing was written, because no commit is safe without that answer. Try "
                        "again when the store answers."
                    ) from error

    def offer_own(self, record: Record) -> None:
        """Check the store with the record that this client has just created in an empty location.

        Raises:
            StoreMisconfigured: the store overwrites, or forbids writes. The client stays refused.
            Indeterminate: the store did not answer in time. The record exists, and may have been overwritten.
        """
        try:
            is_refused = self.offer(record)
        except StoreMisconfigured:
            raise
        except PersistError as error:
            raise Indeterminate(
                f"a record was created at seqno {record.seqno} of {self._blob.url}, and may be there still, but the "
                f"store has not shown within {self._deadline_s:g} s that others cannot overwrite it "
                f"({error.__cause__ or error}). Read back before writing it again."
            ) from error
        if not is_refused:
            self.refuse(record.seqno, "What was asked for first may be found there, and must not be relied on.")

    def refuse(self, seqno: int, what_happened: str) -> None:
        """Raise StoreMisconfigured, now and later, because the store accepted an existing record."""
        self._refusal = (
            f"the store at {self._blob.url} overwrites: it answered 'stored' when {make_record_key(seqno)!r}, "
            "which exists, "
            "was offered to its create a second time. Two writers would lose each other's commits, so nothing that "
            f"this client asked for is acknowledged. {what_happened} Use a server, and proxies before it, that "
            "refuse a PUT with If-None-Match: * of a key that exists; until then the location can be read with "
            'mode="read".'
        )
        self.check()


VALID_S = 1.0


class LookBack:
    """Looks for the records before a new one; for one thread at a time. `pool`: for requests to a remote store."""

    def __init__(self, blob: Blob, follower: Follower, clock: Clock, pool: Executor) -> None:
        self._blob = blob
        self._follower = follower
        self._clock = clock
        self._pool = pool if is_remote(blob) else None

    def begin(self, before: State) -> Callable[[Record | None], bool]:
        """Begin to look for a new record's predecessors; return a function that ends the look.

        The function takes the record that this client created, or None if another record came first, and returns the
        result of `look`. It raises LogReplaced if a record is missing, and Indeterminate if the store did not answer.
        """
        began_s = self._clock.monotonic_s()
        looks = None
        if self._pool is not None:
            tops = self._follower.past.list_tops(before)
            looks = [(top, self._pool.submit(determine_fate, self._blob, top)) for top in tops]

        def end(record: Record | None) -> bool:
            try:
                if looks is not None and (record is None or self._clock.monotonic_s() - began_s <= VALID_S):
                    return self._follower.past.check_fates([(top, look.result()) for top, look in looks])
                return record is None or self.look(before)
            except LogReplaced:
                raise
            except PersistError as error:
                if record is None:
                    return True
                raise Indeterminate(
                    f"a record was created at seqno {record.seqno}, and whether the one before it is still there could "
                    f"not be found out: {error}. So this may or may not be in the log. Read back before writing it "
                    "again."
                ) from error

        return end

    def look(self, before: State) -> bool:
        """Look for the newest record of a state, and the others that `begin` looks for.

        Returns:
            Whether all of them exist. If not, the log was truncated beyond some of them: the state is old, and the slot
            after it may be truncated.

        Raises:
            LogReplaced: one of them is missing.
            Unavailable, Corruption: the records could not be read.
        """
        return self._follower.past.check_tops(before)
