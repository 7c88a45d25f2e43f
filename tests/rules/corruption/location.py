"""A location that holds every kind of blob, what is true of it, and what a reader makes of a damaged one."""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

import persist
from persist.blob.errors import Corruption
from persist.blob.protocol import MemoryBlob
from persist.engine.follow import directory
from persist.engine.follow.checkpoint import write_checkpoint
from tests.rules.golden.kinds import SETTINGS, write_compacted, write_every_kind
from tests.support.resolving import resolve_events

Contents = dict[tuple[str, int], list[tuple[Any, ...]]]  # Rows as of a time, in order; and all changes after since.
Blobs = dict[str, bytes]

SEALS = 37
CHECKPOINTS = (0, 8, 34, 35)
LARGE_WRITES = (1, 35)
READ_AT = (0, 3, 20, SEALS - 1)
READ_COMPACTED_AT = (5, 15, 17)
CHANGES = -1  # In the place of a time.
KEYED = persist.Keyed(order_by=["at"], tombstone="gone", resolve="background")
KEYED_VALUE = {"at": pa.int64(), "v": pa.string(), "gone": pa.bool_()}
FOLDERS = ("log", "checkpoint", "directory", "state", "part", "list")


class WatchedBlob(MemoryBlob):
    """Remembers what was read of it."""

    def __init__(self, blobs: Mapping[str, bytes]) -> None:
        super().__init__()
        for key, value in blobs.items():
            self.set(key, value)
        self.read: set[str] = set()

    def get(self, key: str, range: tuple[int, int] | None = None) -> bytes | None:
        self.read.add(key)
        return super().get(key, range)


@dataclass(frozen=True)
class Outcome:
    """What came of reading a location.

    Attributes:
        contents: what was returned, before an error if there was one.
        error: the error.
        read: the keys of the blobs that were read.
        beyond_end: how many seqnos the client said lie beyond the end of the log.
    """

    contents: Contents
    error: Corruption | None
    read: frozenset[str]
    beyond_end: int = 0


def blobs_of(seed: int) -> Blobs:
    """Return the blobs of a location with rows drawn from a seed; records at the same seqno are alike for all seeds."""
    blob = MemoryBlob()
    rng = random.Random(seed)
    write_every_kind(blob)
    with pytest.MonkeyPatch.context() as patch, persist.open(blob, settings=SETTINGS) as client:
        # Or else it would depend on the pace of threads which ones there are.
        patch.setattr("persist.engine.write.group_commit.is_checkpoint_due", lambda *_: False)
        write_compacted(client, f"{rng.random()}")
        many = client.create_or_load("many", key={"k": pa.int64()}, value={"v": pa.string()})
        few = client.create_or_load("few", key={"k": pa.int64()}, value={"v": pa.string()})
        keyed = client.create_or_load("keyed", key={"k": pa.int64()}, value=KEYED_VALUE, keyed=KEYED)
        for time in range(SEALS):
            with client.multi_write() as multi:
                multi.write(few, [((rng.randrange(9), f"v{rng.randrange(3)}"), time, 1)])
                multi.seal(few, time + 1)
                multi.seal(many, time + 1)
            client.engine.follower.refresh_and_require(few.id, few.name)
            if time in LARGE_WRITES:  # As a part in a blob, named by a list of one.
                keys = list(range(time * 1000, time * 1000 + 1000))
                text = [f"{rng.getrandbits(400):x}" for _ in keys]
                times = [max(LARGE_WRITES) + 1] * 1000
                patch.setattr("persist.core.log.records.PARTS_INLINE_MAX", 0)
                many.write(pa.table({"k": keys, "v": text, "_time": times, "_diff": [1] * 1000})).result()
                is_first = time == min(LARGE_WRITES)
                events = large_events(rng, range(4) if is_first else range(4, SEALS))
                keyed.upsert(events, seal=4 if is_first else SEALS).result()
                if is_first:
                    resolve_events(keyed)  # What comes after that stays pending: readers work it out.
                patch.setattr("persist.core.log.records.PARTS_INLINE_MAX", 256)
            if time in CHECKPOINTS:
                # All but the last one are in directory objects; that one holds some pending rows itself.
                patch.setattr(directory, "INLINE_BYTES_MAX", 2000 if time < max(CHECKPOINTS) else 1 << 20)
                assert write_checkpoint(blob, *client.engine.follower.get_recent_records())
    return {entry.key: blob.get(entry.key) or b"" for entry in blob.list("")}


def large_events(rng: random.Random, times: range) -> pa.Table:
    """Return events that are more than a record holds; some delete, and some are below what stands."""
    rows = [
        (rng.randrange(4000), rng.randrange(100), f"{rng.getrandbits(400):x}", rng.random() < 0.2) for _ in range(2500)
    ]
    columns = dict(zip(("k", *KEYED_VALUE), map(list, zip(*rows, strict=True)), strict=True))
    return pa.table({**columns, "_time": sorted(rng.choice(times) for _ in rows)})


def read_all(blobs: Mapping[str, bytes]) -> Outcome:
    """Read everything there is, up to the first error. Anything but Corruption escapes."""
    blob = WatchedBlob(blobs)
    contents: Contents = {}
    error = None
    beyond_end = 0
    try:
        with persist.open(blob, mode="read") as client:
            beyond_end = int(client.metrics().groups["log"]["beyond_end"])
            for name in client.collections():
                collection = client.load(name)
                for time in READ_COMPACTED_AT if name == "compacted" else READ_AT:
                    try:
                        found = collection.snapshot(time, form="diff", timeout_s=0)
                    except (persist.errors.AsOfNotSealed, persist.errors.AsOfCompacted):
                        continue
                    contents[name, time] = sorted(found.rows(), key=repr)
                if name == "compacted":
                    since, upper = collection.since.time, collection.upper.time
                    assert since is not None
                    assert upper is not None
                    changes = collection.changes(since + 1, upper, timeout_s=0)
                    contents[name, CHANGES] = sorted(changes.updates(), key=repr)
    except Corruption as caught:
        error = caught
    return Outcome(contents, error, frozenset(blob.read), beyond_end)


def of_folder(blobs: Mapping[str, bytes], folder: str) -> Iterator[str]:
    """Yield the keys in a folder, in order."""
    return (key for key in sorted(blobs) if key.startswith(f"{folder}/"))
