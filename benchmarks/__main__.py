"""Speed as ratios: each measure and what it is compared with run in alternation, in one process, on this machine.

    python -m benchmarks [--rounds N] [--rows N] [--folder FOLDER]

A ratio is the median over rounds of (time of the peer / time of ours) in the same round, so 2.0 means twice as
fast. Writes go to a folder and are durable; reads come from the page cache, for both sides.
"""

import argparse
import gc
import os
import platform
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import persist
from persist.blob import FileBlob, MeteredBlob

KEY = {"id": pa.int64()}
VALUE = {"name": pa.string(), "amount": pa.float64(), "at": pa.timestamp("us")}
BATCHES = 10
ORDER = [(name, "ascending") for name in ("id", "name", "amount", "at", "_time")]


@dataclass(frozen=True)
class Row:
    """One line of the report: what was measured, what it should reach, and what it was."""

    measure: str
    against: str
    reach: str
    ours: str
    theirs: str
    ratio: str


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


def alternate(ours: Callable[[], object], theirs: Callable[[], object], rounds: int) -> tuple[list[float], list[float]]:
    """Return the seconds of each round of both, run one after the other; the first round warms up and is dropped."""
    taken: tuple[list[float], list[float]] = ([], [])
    for round_ in range(rounds + 1):
        # Who goes first changes, so that neither side profits from what the other left behind.
        for side, call in [(0, ours), (1, theirs)] if round_ % 2 else [(1, theirs), (0, ours)]:
            gc.collect()
            began = time.perf_counter()
            call()
            if round_:
                taken[side].append(time.perf_counter() - began)
    return taken


def compared(
    measure: str,
    against: str,
    reach: str,
    ours: Callable[[], object],
    theirs: Callable[[], object],
    rounds: int,
) -> Row:
    """Run both and return the line of the report."""
    mine, peer = alternate(ours, theirs, rounds)
    ratios = sorted(p / m for m, p in zip(mine, peer, strict=True))
    spread = f"{statistics.median(ratios):.2f}x ({ratios[0]:.2f} to {ratios[-1]:.2f})"
    return Row(
        measure,
        against,
        reach,
        f"{statistics.median(mine):.3f} s",
        f"{statistics.median(peer):.3f} s",
        spread,
    )


def write_rows(folder: Path, tables: list[pa.Table], rounds: int) -> Row:
    """Writing all batches durably, against sorting each and writing it with pyarrow."""

    def ours() -> None:
        shutil.rmtree(folder / "ours", ignore_errors=True)
        write_collection(str(folder / "ours"), tables)

    def theirs() -> None:
        shutil.rmtree(folder / "theirs", ignore_errors=True)
        (folder / "theirs").mkdir()
        for i, table in enumerate(tables):
            pq.write_table(table.sort_by(ORDER), folder / "theirs" / f"{i}.parquet")

    count = sum(map(len, tables))
    return compared(
        f"write {count:,} updates in {len(tables)} batches, durable",
        "pyarrow: sort_by, write_table",
        ">= 0.5x",
        ours,
        theirs,
        rounds,
    )


def write_collection(location: str, tables: list[pa.Table]) -> None:
    """Write the batches to a new collection and seal them."""
    with persist.open(location) as client:
        rows = client.create_or_load("rows", key=KEY, value=VALUE)
        for table in tables:
            rows.write(table)
        rows.seal(len(tables)).result()


def read_rows(folder: Path, tables: list[pa.Table], rounds: int) -> Row:
    """The latest snapshot as Arrow, against DuckDB summing diffs over the same files."""
    location = str(folder / "read")
    write_collection(location, tables)
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
        return compared(
            f"snapshot().to_arrow(), {cancelled:.0%} of the updates cancel",
            "DuckDB GROUP BY … HAVING",
            ">= 1.0x",
            ours,
            theirs,
            rounds,
        )


def tiny_writes(folder: Path, writes: int, rounds: int) -> list[Row]:
    """Single-update writes issued without waiting, from one thread, all acknowledged at the end."""
    rates, puts = [], []
    for round_ in range(rounds):
        metered = MeteredBlob(FileBlob(folder / f"tiny-{round_}"))
        with persist.open(metered) as client:
            rows = client.create_or_load("rows", key=KEY, value=VALUE)
            counts = metered.counts()
            before = counts["create"].requests + counts["set"].requests
            at = np.datetime64("2026-01-01T00:00:00", "us").item()
            began = time.perf_counter()
            futures = [rows.write([((i, (f"name-{i:015}", i / 7, at)), 0, 1)]) for i in range(writes)]
            for future in futures:
                future.result()
            rates.append(writes / (time.perf_counter() - began))
            counts = metered.counts()
            puts.append(counts["create"].requests + counts["set"].requests - before)
    rates.sort()
    puts.sort()
    rate = f"{statistics.median(rates):,.0f}/s ({rates[0]:,.0f} to {rates[-1]:,.0f})"
    per_1000 = f"{statistics.median(puts) * 1000 / writes:g} ({puts[0]} to {puts[-1]})"
    return [
        Row(f"{writes:,} tiny writes, acknowledged updates", "-", ">= 5,000/s", rate, "-", "-"),
        Row("PUTs for each 1,000 of them", "-", "-", per_1000, "-", "-"),
    ]


def report(rows: list[Row]) -> str:
    """Return the rows as a Markdown table."""
    lines = [
        "| measure | against | reach | ours | theirs | ratio, median (spread) |",
        "|---|---|---|---|---|---|",
    ]
    lines += [f"| {r.measure} | {r.against} | {r.reach} | {r.ours} | {r.theirs} | {r.ratio} |" for r in rows]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, help="where to write; a temporary folder by default")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder, prefix="persist-bench-") as name:
        folder, tables = Path(name), updates(arguments.rows)
        rows = [
            write_rows(folder, tables, arguments.rounds),
            read_rows(folder, tables, arguments.rounds),
            *tiny_writes(folder, 1000, arguments.rounds),
        ]
    versions = f"pyarrow {pa.__version__}, DuckDB {duckdb.__version__}, Python {platform.python_version()}"
    print(f"{os.cpu_count()} cores, {platform.machine()}, {versions}, {time.strftime('%Y-%m-%d')}\n")
    print(report(rows))


if __name__ == "__main__":
    main()
