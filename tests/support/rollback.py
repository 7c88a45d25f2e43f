"""A location that is rolled back under an open client, as by a backup that is restored in place."""

from collections.abc import Callable

import pyarrow as pa

import persist
from persist.blob.protocol import Blob, MemoryBlob
from persist.core.log.records import Record
from persist.core.settings import Tuning
from persist.core.state_rules.state import State
from persist.engine.follow.log_identity import PROVE_AFTER_S
from persist.engine.location.writer import Mode
from tests.support.checkpoints import wait_for_checkpoint
from tests.support.clocks import ImpatientClock

KEY = {"k": pa.int64()}
QUIET = persist.Settings(background=False, tuning=Tuning(hold_linger_s=0))
Copy = dict[str, bytes]


class _NoLook:
    """Looks for no record before a commit, as `LookBack` does."""

    def begin(self, before: State) -> Callable[[Record | None], bool]:
        return lambda record: True

    def now(self, before: State) -> bool:
        return True


def trusting(client: persist.Client) -> persist.Client:
    """Return a client that looks back from time to time only, as releases could, and so writes beyond a hole."""
    client.engine.writer("a test").committer.groups._look_back = _NoLook()  # type: ignore[assignment]
    return client


def copied(blob: MemoryBlob) -> Copy:
    return {entry.key: blob.get(entry.key) or b"" for entry in blob.list("")}


def restore(blob: MemoryBlob, copy: Copy) -> None:
    """Make the location what it was, as a tool does that deletes what the backup does not have."""
    for entry in list(blob.list("")):
        if entry.key not in copy:
            blob.delete(entry.key)
    for key, data in copy.items():
        blob.set(key, data)


def opened(
    blob: Blob, clock: ImpatientClock, mode: Mode = "shared", settings: persist.Settings = QUIET
) -> persist.Client:
    return persist.open(blob, mode=mode, clock=clock, settings=settings)


def made(client: persist.Client) -> persist.Collection:
    return client.create_or_load("c", key=KEY, value=None)


def write(collection: persist.Collection, times: range) -> None:
    """Write and seal each of these times, in a record of its own, without looking at the log first."""
    for time in times:
        collection.write([((time, None), time, 1)], seal=time + 1).result()


def rolled_back(
    commits: int = 30, pause_s: float = 2 * PROVE_AFTER_S
) -> tuple[MemoryBlob, ImpatientClock, persist.Client, persist.Collection]:
    """Return a location that was restored from a copy under an open client, which has written since the copy.

    Without a pause after the copy, it is younger than the last look of the client at its past.
    """
    blob, clock = MemoryBlob(), ImpatientClock()
    client = trusting(opened(blob, clock))
    collection = made(client)
    write(collection, range(6))
    copy = copied(blob)
    clock.sleep(pause_s)
    write(collection, range(6, 6 + commits))
    wait_for_checkpoint(client)  # One that is late looks at the log, and would be the first to notice.
    restore(blob, copy)
    return blob, clock, client, collection


def interrupted() -> tuple[MemoryBlob, ImpatientClock]:
    """Return a location with records beyond its end: the open client wrote before it could notice."""
    blob, clock, client, collection = rolled_back(3)
    with client:
        write(collection, range(9, 11))
    return blob, clock
