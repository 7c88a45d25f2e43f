"""Compaction where something comes in between, or where numbers are at their limits."""

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

import persist
from persist.blob import MemoryBlob
from persist.codecs import Part, to_updates
from persist.part_writer import PartWriter
from persist.records import Replace
from tests.clocks import ImpatientClock

KEY, VALUE = {"k": pa.int64()}, {"v": pa.string()}
Update = tuple[tuple[Any, Any], int, int]


def policy(**changed: Any) -> persist.CompactionPolicy:
    small = {"keyframe_rows_min": 4, "keyframe_fraction": 0.3, "merge_runs": 2, "inline_runs": 3, "inline_bytes": 2000}
    return persist.CompactionPolicy(**{**small, **changed})


def every_key_a_part() -> persist.CompactionPolicy:
    """Return a policy whose parts are smaller than makes sense, so that runs have many."""
    found = policy()
    object.__setattr__(found, "part_bytes", 1)
    return found


def opened(blob: MemoryBlob, how: persist.CompactionPolicy | None = None, **changed: Any) -> persist.Client:
    settings = persist.Settings(
        **{"background": False, "hold_linger_s": 0, "grace_s": 0, "compaction": how or policy(), **changed}
    )
    return persist.open(blob, clock=ImpatientClock(), settings=settings)


def as_of(updates: list[Update], time: int) -> dict[Any, int]:
    sums: Counter[Any] = Counter()
    for record, at, diff in updates:
        if at <= time:
            sums[record] += diff
    return {record: n for record, n in sums.items() if n}


def check(collection: persist.Collection, updates: list[Update]) -> None:
    """Assert that a collection holds these at every time that can be read."""
    since, upper = collection.since.time, collection.upper.time
    last = max(time for _, time, _ in updates) if upper is None else upper - 1
    for time in range(last if since is None else since, last + 1):
        assert dict(collection.snapshot(time, form="diff").rows()) == as_of(updates, time), time


def fill(collection: persist.Collection, times: range, *, keys: int = 4) -> list[Update]:
    """Write and seal one change after the other."""
    written: list[Update] = []
    for time in times:
        here: list[Update] = [((time % keys, f"v{time}"), time, 1)]
        here += [((time % keys, f"v{time - keys}"), time, -1)] if time - keys >= times.start else []
        collection.write(here, seal=time + 1).result()
        written += here
    return written


@pytest.mark.parametrize("how", [policy, every_key_a_part])
def test_a_keyframe_before_another_one_is_made_of_what_can_be_told_apart(how: Any) -> None:
    with opened(MemoryBlob(), how()) as client:
        c = client.create_or_load("c", key=KEY, value=VALUE)
        written = fill(c, range(6))
        c.seal(20).result()
        assert c.compact().keyframes == (19,)
        c.allow_compaction(15).result()
        # No history lies between the two times, so the later one would do as it is, but for what its rows say.
        report = c.compact()
        assert report.forgotten == 15
        check(c, written)
        assert client.fsck().is_clean


def uploaded(client: persist.Client, c: persist.Collection, updates: list[Update]) -> tuple[Part, ...]:
    return PartWriter(client._blob, client._follower.next_seqno).upload(c.id, c.schema, to_updates(updates, c.schema))


def test_a_part_that_was_committed_twice_stays_as_long_as_either_is_in_use() -> None:
    updates: list[Update] = [((k, "x"), 0, 1) for k in range(10)]
    with opened(MemoryBlob(), policy(merge_runs=100, inline_runs=100)) as client:
        c = client.create_or_load("c", key=KEY, value=VALUE)
        parts = uploaded(client, c, updates)
        for _ in range(2):
            c.commit_parts(parts).result()
        c.seal(1).result()
        (one,), (other,) = c._contents().history
        brought = uploaded(client, c, updates)
        merge = Replace(c.id, brought, removed_runs=(one,), runs=((-1,),))
        client._submit("compact", [merge], {c.id: c.name}).result()
        client.gc()
        check(c, updates * 2)
        assert [other] in [[*run] for run in c._contents().history]


def test_a_part_that_compaction_has_replaced_cannot_be_committed_again() -> None:
    updates: list[Update] = [((k, "x"), 0, 1) for k in range(10)]
    with opened(MemoryBlob(), grace_s=3600) as client:
        c = client.create_or_load("c", key=KEY, value=VALUE)
        parts = uploaded(client, c, updates)
        c.commit_parts(parts).result()
        c.commit_parts(uploaded(client, c, updates)).result()
        assert c.compact().runs_merged == 2
        with pytest.raises(persist.PersistError, match="uploaded too long ago"):
            c.commit_parts(parts).result()
        c.seal(1).result()
        check(c, updates * 2)
