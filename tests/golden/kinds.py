"""Writes a record of every kind to a location, with each optional member somewhere.

`tests/test_golden.py` fails when there is a kind or a member that this does not write: add it here, then see
`docs/golden.md`.
"""

from pathlib import Path

import pyarrow as pa

import persist
from persist.blob import Blob
from persist.client import Client
from persist.compaction_policy import CompactionPolicy
from persist.log.records import Collected, EndLease, GrantLease, LocationMutation, TruncateLog, VoidUploads

POLICY = CompactionPolicy(keyframe_rows_min=3, keyframe_fraction=0.1, merge_runs=3, inline_runs=4, inline_bytes=4000)
object.__setattr__(POLICY, "part_bytes", 1)  # Smaller than makes sense: each key is a part of its own.
SETTINGS = persist.Settings(background=False, hold_linger_s=0, compaction=POLICY)
LEASE = "f" * 32


def write_every_kind(location: Path | Blob) -> None:
    """Make a collection `kinds` with a permanent hold and a leased one, and commit each kind of mutation."""
    with persist.open(location, settings=SETTINGS) as first:
        first.create_or_load("destroyed", key=persist.Utf8, value=None).destroy().result()
    with (
        persist.open(location, mode="exclusive", settings=SETTINGS),
        persist.open(location, mode="exclusive", force=True, settings=SETTINGS) as client,
    ):
        kinds = client.create_or_load("kinds", key={"k": pa.int64()}, value=None)
        with client.multi_write(token="a token") as multi:
            multi.write(kinds, [((1, None), 0, 1)])
            multi.mark_batch(kinds, "a query", 7, "a run")
        with client.multi_write(token="another token") as multi:
            multi.write(kinds, [((1, None), 3, -1), ((2, None), 3, 2)])
            multi.seal(kinds, 4)
            multi.mark_batch(kinds, "a query", 7, "another run", again=True)
        kinds.hold(1, name="a consumer").advance(2)
        kinds.hold(2, name="released").release()
        with kinds.hold(3):
            kinds.allow_compaction(3).result()
        commit(client, GrantLease(LEASE, "somebody", 10**13))
        commit(client, GrantLease(LEASE, "somebody", 10**13 + 1, renews=True, reads_from=5))
        commit(client, EndLease(LEASE, expires_ms=10**13 + 1))
        dropped = client.engine.follower.refresh().control.dropped
        commit(client, Collected(tuple((d.collection, d.seqno) for d in dropped)), TruncateLog(0), VoidUploads(1))


def write_compacted(client: Client, word: str = "at") -> None:
    """Make a collection `compacted` that has keyframes, merged runs and forgotten history, by each kind of replace.

    Args:
        word: is in all values.
    """
    compacted = client.create_or_load("compacted", key={"k": pa.int64()}, value={"v": pa.string()})

    def change(times: range, keys: range) -> None:
        for time in times:
            rows = [((k, f"{k} {word} {time}"), time, 1) for k in keys]
            rows += [((k, f"{k} {word} {time - 1}"), time, -1) for k in keys if time > times.start]
            with client.multi_write(token=f"change {time}") as multi:
                multi.write(compacted, rows)
                multi.seal(compacted, time + 1)
                multi.mark_batch(compacted, "a query", time, "a run")

    change(range(4), range(4))
    compacted.compact()  # The first keyframe, as of 3, and one run of what lived in the log.
    change(range(4, 8), range(4, 6))
    compacted.compact()  # Another one, which shares parts.
    with compacted.hold(5):
        compacted.allow_compaction(5).result()
        compacted.compact()  # One as of 5, before that; history up to it is forgotten.
    change(range(8, 12), range(6, 7))
    compacted.compact()
    change(range(12, 16), range(7, 8))
    compacted.compact(only_due=True)
    change(range(16, 18), range(2))  # Stays in the log.


def commit(client: Client, *mutations: LocationMutation) -> None:
    """Commit what else only leases and the collection of garbage commit, when time has passed."""
    client.engine.writer("a test").committer.submit(mutations, {}).result()
