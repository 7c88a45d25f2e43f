"""What one micro-batch of events keeps of parts for the next: it is quicker with it, and the same."""

import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa

import persist
from persist.blob.lru import Cache
from persist.compute.tasks.planned_write import writing
from persist.connect.spark.write_functions.foreach_batch import foreach_batch_writer
from persist.core.settings import Settings
from persist.engine.read.parts.caches import PartCaches

ROWS, MEMORY = 200_000, Settings().memory_budget


def made(location: str) -> None:
    with persist.open(location, settings=Settings(background=False)) as client:
        rows = client.create_or_load("c", key={"k": pa.int64()}, value={"v": pa.int64()}, keyed=persist.Keyed())
        keys = np.arange(ROWS, dtype=np.int64)
        values = np.random.default_rng(1).permutation(keys)  # In order, they would be too few bytes for a part.
        rows.upsert(pa.table({"k": keys, "v": values}), time=0, seal=1).result()


def upsert(location: str, time: int, value: int, caches: PartCaches | None) -> float:
    """Upsert as a client of its own, as a micro-batch does; return how many bytes it read of the store."""
    with persist.Client(writing(location, {}, caches)) as client:
        rows = client.load("c")
        rows.handle.contents()
        before = client.metrics().store["get"].bytes
        keys = np.arange(0, ROWS, 1000, dtype=np.int64)
        rows.upsert(pa.table({"k": keys, "v": np.full(len(keys), value)}), time=time, seal=time + 1).result()
        return client.metrics().store["get"].bytes - before


def test_the_next_client_reads_nothing_again(tmp_path: Path) -> None:
    location, caches = str(tmp_path / "location"), PartCaches(Cache(MEMORY // 2))
    made(location)
    first = upsert(location, 1, 1, caches)
    assert first > ROWS, "the first finds nothing decoded"
    assert upsert(location, 2, 2, caches) < first / 10
    assert upsert(location, 3, 3, None) > ROWS, "what one client keeps is its own, unless it is handed on"


def test_kept_rows_are_never_stale(tmp_path: Path) -> None:
    location, caches = str(tmp_path / "location"), PartCaches(Cache(MEMORY // 2))
    made(location)
    for time, value in enumerate((7, 7, 8, 9), 1):
        upsert(location, time * 2 - 1, value, caches)
        with persist.open(location) as client:  # Another writer, which the caches know nothing of.
            rows = client.load("c")
            rows.upsert([(0, -value), (1000, None)], time=time * 2, seal=time * 2 + 1).result()
            rows.compact()
    with persist.open(location, mode="read") as client:
        rows = client.load("c")
        assert rows.snapshot().count() == ROWS - 1
        told = [(k, v, t, d) for (k, v), t, d in rows.changes(1, 9).updates() if k == 0]
    expected, stands = [], int(np.random.default_rng(1).permutation(ROWS)[0])
    for time, value in enumerate((7, 7, 8, 9), 1):
        for at, new in ((time * 2 - 1, value), (time * 2, -value)):
            expected += [(0, stands, at, -1), (0, new, at, 1)]
            stands = new
    assert sorted(told) == sorted(expected)


def test_a_function_that_is_sent_away_leaves_its_caches_here(tmp_path: Path) -> None:
    write = foreach_batch_writer(str(tmp_path), {"c": str})
    kept = write.__self__.kept()  # type: ignore[attr-defined]
    assert write.__self__.kept() is kept  # type: ignore[attr-defined]
    assert pickle.loads(pickle.dumps(write)).__self__.caches is None
