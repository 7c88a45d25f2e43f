"""How many requests operations on a remote store take: numbers that hardly depend on the machine."""

import pytest

from benchmarks.requests import operations

# What they take now; the figure that is to be reached stands beside each in the benchmark.
MOST = {
    "open 1,000 collections": 10,
    "catch up 40 commits": 60,  # With slots that are free yet.
    "first write of a client": 2,
    "first get, tail of 450 small parts": 8,
    "snapshot of the same": 500,  # With slots of the log that are free yet, as above.
    "compaction of 450 small parts": 500,
    "snapshots of 100 collections": 10,
    "the same, one after the other": 480,  # With the checkpoints that are made meanwhile.
    "create_view and first refresh": 7,  # With the proof of the store, if that comes late.
    "refresh by an open handle, 10 rows changed": 2,
    "the same, nothing changed": 1,
    "open, refresh a view, end: 10 rows changed": 14,
    "open, refresh a view, end: nothing changed": 12,
}


@pytest.mark.costly("a thousand collections and a thousand commits are made for them")
def test_operations_on_a_remote_store_take_no_more_requests_than_they_did() -> None:
    taken = {done.name: done.requests.total for done in operations()}
    assert taken.keys() == MOST.keys()
    assert {name: count for name, count in taken.items() if count > MOST[name]} == {}
