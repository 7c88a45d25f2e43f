"""MERGE by SQL: what it costs beside an upsert of the same rows, and beside deltalake's merge.

A table of ten million rows of six columns, in the order of its key. Each round merges 1,000 rows, of which most exist:
their keys lie close together, as those of the newest orders do, or anywhere. Both sides end with the same rows.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

import persist
from benchmarks.harness import Job, Measure, Row, Side
from benchmarks.ours import QUIET
from benchmarks.workspace import Workspace

KEYS, ROWS = 10_000_000, 1_000
BUDGET = 64 << 20
STATEMENT = """MERGE INTO orders USING rows ON orders.id = rows.id
    WHEN MATCHED THEN UPDATE SET a = rows.a, b = rows.b, c = rows.c, d = rows.d, e = rows.e
    WHEN NOT MATCHED THEN INSERT (id, a, b, c, d, e) VALUES (rows.id, rows.a, rows.b, rows.c, rows.d, rows.e)"""


def merges(work: Workspace) -> list[Row]:
    """Merge rows whose keys are near each other, and rows anywhere."""
    keys = max(10_000, round(KEYS * work.scale))
    numbers = np.random.default_rng(1)
    ours, theirs = work.folder / "ours", work.folder / "delta"
    with persist.open(str(ours), settings=QUIET) as client:
        orders = client.create_or_load("orders", like=_rows(np.arange(2), numbers), key=["id"])
        for start in range(0, keys, 1_000_000):
            rows = _rows(np.arange(start, min(keys, start + 1_000_000)), numbers)
            orders.write(rows, time=0)
            write_deltalake(theirs, rows, mode="append")
        orders.seal(1).result()
        orders.compact()
        table = DeltaTable(theirs)
        return [_measure(work, client, table, ours, is_near=is_near) for is_near in (True, False)]


def _measure(work: Workspace, client: persist.Client, table: DeltaTable, location: Path, *, is_near: bool) -> Row:
    orders = client.load("orders")
    keys = orders.snapshot().count()
    source = _Source(keys, is_near)
    upsert = Side(lambda: orders.upsert(source.take()).result(), "upsert")
    merge = Side(lambda: _merge_delta(table, source.take()), "deltalake")
    row = Measure(
        f"MERGE of 1,000 rows into {keys:,}, keys {'close together' if is_near else 'anywhere'}",
        "an upsert of such rows; deltalake's merge",
        ">= 0.33; >= 10",
        Side(lambda: _merge(client, source.take())),
        [upsert, merge],
        Job(merge_once, [str(location), is_near]),
    ).run(work.rounds, work.memory_of, work.clock)
    print(_bytes_read(location, is_near))
    return row


class _Source:
    def __init__(self, keys: int, is_near: bool) -> None:
        self._keys, self._is_near, self._numbers = keys, is_near, np.random.default_rng(7)

    def take(self) -> pa.Table:
        """Return rows that a round merges; one in fifty is new."""
        numbers, keys = self._numbers, self._keys
        if self._is_near:
            start = numbers.integers(keys - 2 * ROWS)
            ids = start + numbers.choice(2 * ROWS, ROWS, replace=False)
        else:
            ids = numbers.choice(keys, ROWS, replace=False)
        ids[:20] = keys + numbers.choice(keys, 20, replace=False)
        return _rows(np.unique(ids), numbers)


def merge_once(location: str, is_near: bool) -> None:
    """Merge in a process that has read nothing before."""
    settings = persist.Settings(memory_budget=BUDGET)
    with persist.open(location, settings=settings) as client:
        source = _Source(client.load("orders").snapshot().count(), is_near)
        _merge(client, source.take())


def _bytes_read(location: Path, is_near: bool) -> str:
    """Return how many bytes a merge reads whose client has nothing in memory."""
    with persist.open(str(location), settings=QUIET) as client:
        source = _Source(client.load("orders").snapshot().count(), is_near)
        before = client.metrics().store["get"].bytes
        _merge(client, source.take())
        read = client.metrics().store["get"].bytes - before
    stored = sum(file.stat().st_size for file in location.rglob("*.parquet"))
    return f"{read:,} bytes read of {stored:,}: {read / stored:.2%}"


def _merge(client: persist.Client, rows: pa.Table) -> None:
    client.sql(STATEMENT, files=True)


def _merge_delta(table: DeltaTable, rows: pa.Table) -> None:
    merge = table.merge(rows, "t.id = s.id", source_alias="s", target_alias="t")
    merge.when_matched_update_all().when_not_matched_insert_all().execute()


def _rows(ids: np.ndarray, numbers: np.random.Generator) -> pa.Table:
    values = {name: numbers.integers(1 << 40, size=len(ids)) for name in ("a", "b", "c")}
    return pa.table({"id": ids, **values, "d": numbers.random(len(ids)), "e": numbers.random(len(ids)) < 0.5})
