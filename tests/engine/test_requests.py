"""How many requests operations on a remote store take: numbers that hardly depend on the machine."""

import pytest

from benchmarks.requests import AGAIN, LOOK, operations

# What they take now, and looks at slots of the log that are free yet; the figure to be reached is in the benchmark.
MOST: dict[str, tuple[int, int | None]] = {
    "open 1,000 collections": (10, 0),
    "catch up 40 commits": (42, None),  # A busy machine makes more looks: they are made ahead of what is read.
    "first write of a client": (3, 0),  # With the proof of the store, if that comes late.
    "first get, tail of 50 small parts": (6, 2),
    "snapshot of the same": (60, None),
    "compaction of 50 small parts": (60, None),
    "snapshots of 100 collections": (9, 2),
    "the same, one after the other": (250, 100),  # With the checkpoints that are made meanwhile.
    "create_view and first refresh": (6, 1),  # With the proof of the store, if that comes late.
    "refresh by an open handle, 10 rows changed": (2, 0),
    "the same, nothing changed": (0, 1),
    "open, refresh a view, end: 10 rows changed": (12, 2),
    "open, refresh a view, end: nothing changed": (10, 2),
}


@pytest.mark.thorough  # The benchmark's figures; other tests count requests of single calls.
def test_operations_on_a_remote_store_take_no_more_requests_than_they_did() -> None:
    taken = {done.name: done.requests for done in operations(parts=50)}
    assert taken.keys() == MOST.keys()
    for name, (steady, looks) in MOST.items():
        assert taken[name].steady <= steady, (name, taken[name].kinds)
        assert looks is None or taken[name].kinds[LOOK] <= looks, name
        assert taken[name].kinds[AGAIN] <= 10 + steady / 10, "a client repeats no more of its slow gets"
