"""Makes checkpoints in the pool of a writing client, one at a time."""

import logging
import threading
from concurrent.futures import Executor
from contextlib import suppress

from persist.blob.protocol import Blob
from persist.core.errors import CorruptBlob, PersistError
from persist.core.log.keys import parse_record_seqno
from persist.engine.follow.checkpoint import write_checkpoint
from persist.engine.follow.follower import Follower

logger = logging.getLogger(__name__)


class Checkpointing:
    """Makes checkpoints in the pool; every method may be called from any thread."""

    def __init__(self, blob: Blob, follower: Follower, pool: Executor) -> None:
        self.made = 0
        self.least_seqno: int | None = None  # The seqno of the checkpoint in progress; None without one.
        self._blob = blob
        self._follower = follower
        self._pool = pool
        self._is_making = threading.Lock()

    def begin(self, seqno: int) -> None:
        """Start to make a checkpoint at a seqno or later, unless one is in progress."""
        if self._is_making.acquire(blocking=False):
            self.least_seqno = seqno
            try:
                self._pool.submit(self._make_checkpoint)
            except RuntimeError:  # The client was closed by a callback: the next one makes it.
                self._end_making()

    def wait(self) -> None:
        """Wait until no checkpoint is being made."""
        with self._is_making:
            pass

    def _make_checkpoint(self) -> None:
        """Make a checkpoint. A failure reaches no caller: the next checkpoint replaces it."""
        state, recent, levels = self._follower.get_recent_records()
        try:
            self._follower.past.prove_now(state)
            self.made += write_checkpoint(self._blob, state, recent, levels)
        except PersistError as error:
            logger.warning("the checkpoint at seqno %d was not made: %s", state.seqno, error)
            seqno = parse_record_seqno(error.key) if isinstance(error, CorruptBlob) else None
            if seqno is not None and seqno in recent:
                with suppress(PersistError):  # The next caller gets the error.
                    self._follower.past.verify(seqno, recent[seqno].commit)
        finally:
            self._end_making()

    def _end_making(self) -> None:
        self.least_seqno = None
        self._is_making.release()
