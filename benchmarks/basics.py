"""Bulk writes, raw reads and tiny writes on a simple stream: 1M updates in 10 batches, of which 40% cancel."""

import shutil
import statistics
import time
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import persist
from benchmarks.harness import Job, Measure, Row, Side
from benchmarks.workspace import Workspace
from persist.blob.layers.metered import MeteredBlob
from persist.blob.stores.file import FileBlob

KEY = {"id": pa.int64()}
VALUE = {"name": pa.string(), "amount": pa.float64(), "at": pa.timestamp("us")}
ROWS = 1_000_000
ROWS_MIN = 50_000  # With fewer, batches have no files of their own that a peer could read.
BATCHES = 10
TINY_WRITES = 1000
ORDER = [(name, "ascending") for name in ("id", "name", "amount", "at", "_time")]


def updates(rows: int, seed: int = 7) -> list[pa.Table]:
    """Return BATCHES tables that are rows updates together; 40% of all updates cancel.

    Each batch after the first replaces records of earlier ones: a retraction and what it retracts cancel.
    """
    chance = np.random.default_rng(seed)
    retractions = rows * 2 // 10
    inserted = rows - retractions
    ids = chance.permutation(inserted)
    names = np.char.add("name-", np.char.zfill(chance.integers(0, 10**15, inserted).astype(str), 15))
    columns = pa.table(
        {
            "id": pa.array(ids),
            "name": pa.array(names),
            "amount": pa.array(chance.normal(100, 20, inserted)),
            "at": pa.array(chance.integers(0, 2**50, inserted), pa.timestamp("us")),
        }
    )
    per_batch = inserted // BATCHES
    retracted_per_batch = retractions // (BATCHES - 1)
    tables = []
    for batch in range(BATCHES):
        new = columns.slice(batch * per_batch, per_batch if batch < BATCHES - 1 else None)
        parts, diffs = [new], [np.ones(len(new), np.int64)]
        if batch:
            first = (batch - 1) * retracted_per_batch
            old = columns.slice(first, retracted_per_batch)
            parts.append(old)
            diffs.append(-np.ones(len(old), np.int64))
        table = pa.concat_tables(parts).combine_chunks()
        time_column = pa.array(np.full(len(table), batch))
        table = table.append_column("_time", time_column).append_column("_diff", pa.array(np.concatenate(diffs)))
        tables.append(table.take(pa.array(chance.permutation(len(table)))))
    return tables


def _rows(work: Workspace) -> int:
    return max(ROWS_MIN, round(ROWS * work.scale))


def write(work: Workspace) -> list[Row]:
    """Writing all batches durably, against sorting each and writing it with pyarrow."""
    tables = updates(_rows(work))
    ours, theirs = work.folder / "write-ours", work.folder / "write-theirs"

    def call() -> None:
        for i, table in enumerate(tables):
            pq.write_table(table.sort_by(ORDER), theirs / f"{i}.parquet")

    def empty() -> None:
        shutil.rmtree(theirs, ignore_errors=True)
        theirs.mkdir()

    count = sum(map(len, tables))
    measure = Measure(
        f"write {count:,} updates in {len(tables)} batches, durable",
        "pyarrow: sort_by, write_table",
        ">= 0.5x",
        Side(lambda: write_tables(str(ours), tables), before=lambda: shutil.rmtree(ours, ignore_errors=True)),
        [Side(call, "pyarrow", before=empty)],
        Job(write_anew, [str(work.folder / "write-memory"), _rows(work)]),
    )
    return [measure.run(work.rounds, work.memory_of, work.clock)]


def write_tables(location: str, tables: list[pa.Table]) -> None:
    """Write the batches to a new collection and seal them."""
    with persist.open(location) as client:
        rows = client.create_or_load("rows", key=KEY, value=VALUE)
        for table in tables:
            rows.write(table)
        rows.seal(len(tables)).result()


def write_anew(location: str, rows: int) -> None:
    """Make the batches and write them, in a fresh process."""
    write_tables(location, updates(rows))


def read(work: Workspace) -> list[Row]:
    """The latest snapshot as Arrow, against DuckDB summing diffs over the same files."""
    tables = updates(_rows(work))
    location = str(work.folder / "read")
    write_tables(location, tables)
    files = str(Path(location, "part", "*", "*.parquet"))
    query = f"""
        SELECT id, name, amount, "at" FROM '{files}'
        GROUP BY id, name, amount, "at" HAVING sum(_diff) <> 0
    """
    with persist.open(location, mode="read") as client, duckdb.connect() as connection:
        rows = client.load("rows")

        def ours() -> pa.Table:
            return rows.snapshot().to_arrow()

        def theirs() -> pa.Table:
            return connection.sql(query).to_arrow_table()

        a, b = ours().sort_by("id"), theirs().sort_by("id")
        assert a.equals(b.cast(a.schema)), "the peer finds other rows"
        cancelled = 1 - len(a) / sum(map(len, tables))
        measure = Measure(
            f"snapshot().to_arrow(), {cancelled:.0%} of the updates cancel",
            "DuckDB GROUP BY … HAVING",
            ">= 1.0x",
            Side(ours),
            [Side(theirs, "DuckDB")],
            Job(read_latest, [location]),
        )
        return [measure.run(work.rounds, work.memory_of, work.clock)]


def read_latest(location: str) -> None:
    """Read the latest snapshot, in a fresh process."""
    with persist.open(location, mode="read") as client:
        client.load("rows").snapshot().to_arrow()


def tiny(work: Workspace) -> list[Row]:
    """Single-update writes issued without waiting, from one thread, all acknowledged at the end."""
    rates, puts = [], []
    for round_ in range(work.rounds):
        metered = MeteredBlob(FileBlob(work.folder / f"tiny-{round_}"))
        with persist.open(metered) as client:
            rows = client.create_or_load("rows", key=KEY, value=VALUE)
            counts = metered.get_counts()
            before = counts["create"].requests + counts["set"].requests
            at = np.datetime64("2026-01-01T00:00:00", "us").item()
            began = time.perf_counter()
            futures = [rows.write([((i, (f"name-{i:015}", i / 7, at)), 0, 1)]) for i in range(TINY_WRITES)]
            for future in futures:
                future.result()
            rates.append(TINY_WRITES / (time.perf_counter() - began))
            counts = metered.get_counts()
            puts.append(counts["create"].requests + counts["set"].requests - before)
    rates.sort()
    puts.sort()
    rate = f"{statistics.median(rates):,.0f}/s ({rates[0]:,.0f} to {rates[-1]:,.0f})"
    per_1000 = f"{statistics.median(puts) * 1000 / TINY_WRITES:g} ({puts[0]} to {puts[-1]})"
    return [
        Row(f"{TINY_WRITES:,} tiny writes, acknowledged updates", "-", ">= 5,000/s", rate),
        Row("PUTs for each 1,000 of them", "-", "-", per_1000),
    ]
