"""What our side does, as functions of what a fresh process can be told: a location, times, keys.

Nothing of the peers is imported here, so that the memory of a job is that of `persist` alone.
"""

from typing import Any

import pyarrow as pa

import persist
from benchmarks.datasets import DataSet, data_set
from benchmarks.histories import Batch
from tests.support.tuned import tuned

COLLECTION = "rows"
# Nothing but what is measured shall run.
QUIET = tuned(background=False, runs_max=10**9)
# What nobody reads goes at once, so that what is on disk is what is in use.
FRUGAL = tuned(background=False, grace_s=0.0, orphan_grace_s=0.0, hold_linger_s=0.0)


def write_collection(
    data: DataSet, location: str | persist.Blob, *, settings: persist.Settings = QUIET, maintained: bool = False
) -> None:
    """Write to a new collection, batch by batch, without waiting except for the end.

    Args:
        maintained: do what is due of maintenance after each seal, as the background would.
    """
    with persist.open(location, settings=settings) as client:
        rows = client.create_or_load(COLLECTION, key=data.key, value=data.value)
        waiting: list[persist.CommitFuture] = []
        for batch in data.batches():
            waiting.append(rows.write(batch.updates, seal=batch.upper))
            # What is on its way is in memory: let it not be much.
            while len(waiting) > (0 if maintained else 4):
                waiting.pop(0).result()
            if maintained:
                client.maintain()
        for future in waiting:
            future.result()


def write_maintained(name: str, scale: float, location: str) -> None:
    """Write a standard set and maintain it, in a fresh process."""
    write_collection(data_set(name, scale), location, settings=FRUGAL, maintained=True)


def write_stream(data: DataSet, location: str, batches: list[Batch]) -> None:
    """Write and seal each batch without waiting; return when all are durable."""
    with persist.open(location) as client:
        rows = client.create_or_load(COLLECTION, key=data.key, value=data.value)
        futures = [rows.write(batch.updates, seal=batch.upper) for batch in batches]
        for future in futures:
            future.result()


def write_micro(location: str, scale: float) -> None:
    """Make the stream and write it, in a fresh process."""
    data = data_set("micro", scale)
    write_stream(data, location, list(data.batches()))


def read_latest(location: str) -> pa.Table:
    """Read the latest snapshot."""
    with persist.open(location, mode="read") as client:
        return client.load(COLLECTION).snapshot().to_arrow()


def read_at(location: str, as_of: list[int]) -> None:
    """Read the contents as of some times, one after the other."""
    with persist.open(location, mode="read") as client:
        rows = client.load(COLLECTION)
        for time in as_of:
            rows.snapshot(time).to_arrow()


def read_changes(location: str, lower: int, upper: int) -> None:
    """Read changes, in a fresh process."""
    with persist.open(location, mode="read") as client:
        client.load(COLLECTION).changes(lower, upper).to_arrow()


def count(location: str) -> None:
    """Count, in a fresh process."""
    with persist.open(location, mode="read") as client:
        client.load(COLLECTION).snapshot().count()


def grouped(location: str) -> None:
    """Sum by group, in a fresh process."""
    with persist.open(location, mode="read") as client:
        rows: Any = client.load(COLLECTION)
        rows.snapshot().aggregate(["name"], {"amount": ("amount", "sum"), "n": ("id", "count")})


def read_points(location: str, keys: list[int]) -> None:
    """Read keys one by one, in a fresh process."""
    with persist.open(location, mode="read") as client:
        rows: Any = client.load(COLLECTION)
        snapshot = rows.snapshot()
        for key in keys:
            snapshot.get([key])


def compact(location: str) -> Any:
    """Compact by hand; return the report."""
    with persist.open(location, settings=QUIET) as client:
        rows: Any = client.load(COLLECTION)
        return rows.compact()
