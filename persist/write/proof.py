"""Whether a store has shown this client that its `create` refuses what exists: rule 15.

The commit log stands on that one promise. A store that does not keep it (an old server, or a proxy that loses the
`If-None-Match` of a PUT) answers "stored" to everybody, so that two writers overwrite each other's records. Nothing
but an attempt shows it. So before a client acknowledges anything, it offers the store a record that is there already,
once more and with the same content, and the store must answer that it exists:

- the newest record of the log, before the client creates its first one. A client whose way to the store is bad then
  does no harm to the records of others whose way is sound;
- in an empty location its own first record, as soon as that was created and before anybody hears of it.

Two things cannot be shown so: that two `create` at the same moment do not both succeed, and that a store does not
change its behaviour later. Rejected: a key made for the proof, which costs three requests and something to clean up;
and offering other content, which would do damage exactly where the store is bad.
"""

from persist.blob import Backoff, Blob, Clock, Indeterminate, PersistError, StoreFull, StoreMisconfigured, Unavailable
from persist.log import COMMIT_DEADLINE_S, Record, record_bytes, record_key


class StoreProof:
    """What the store of one client has shown so far; for one thread at a time. Cost: one PUT per client, all in all."""

    def __init__(self, blob: Blob, clock: Clock, *, deadline_s: float = COMMIT_DEADLINE_S) -> None:
        self.is_given = False
        self._blob = blob
        self._clock = clock
        self._deadline_s = deadline_s
        self._refusal = ""

    def check(self) -> None:
        """Raise StoreMisconfigured if the store has failed the proof before: a client stays refused."""
        if self._refusal:
            raise StoreMisconfigured(self._refusal)

    def offer(self, record: Record) -> bool:
        """Offer a record that exists already; return False if the store took it, as one does that overwrites.

        Raises:
            Unavailable: the store gave no answer in time, or is full. Nothing was changed.
            StoreMisconfigured, ReadOnlyStore: it cannot be written to.
        """
        key, data = record_key(record.seqno), record_bytes(record)
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
                        f"the store at {self._blob.url} did not say within {self._deadline_s:g} s that {key!r}, which "
                        f"exists, exists ({error}), and without that no commit is safe; nothing was written. Try again "
                        "when the store answers."
                    ) from error

    def offer_own(self, record: Record) -> None:
        """Offer the record that this client has just created in an empty location.

        Raises:
            StoreMisconfigured: the store overwrites, or says that it may not be written to. The client stays refused.
            Indeterminate: the store gave no answer in time. The record is there, and may have been overwritten.
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
        """Raise StoreMisconfigured, now and from now on, because the store took what exists at seqno."""
        self._refusal = (
            f"the store at {self._blob.url} overwrites: it answered 'stored' when {record_key(seqno)!r}, which exists, "
            "was offered to its create a second time. Two writers would lose each other's commits, so nothing that "
            f"this client asked for is acknowledged. {what_happened} Use a server, and proxies before it, that "
            "refuse a PUT with If-None-Match: * of a key that exists; until then the location can be read with "
            'mode="read".'
        )
        self.check()
