"""Upserts in CPU time, side by side in turns: for machines that others use, too. `python -m benchmarks.upserts_cpu`.

    [NAME …] [--scale S] [--rounds N]      of merge, iceberg, empty, row, memory, sizes, stream, paced, policies; or all

CPU time is of all threads of the process, ours and the peer's. What is told is the least of the rounds of each side and
the ratio of these. `--scale 1` is 1M rows of 6 columns.
"""

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count as count_from
from itertools import islice
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

import persist
from benchmarks.harness import Job, megabytes, peak_memory
from benchmarks.ours import QUIET
from benchmarks.targets import iceberg_table
from benchmarks.upserts import KEY, KEYS, VALUE, _batches, _made, _merged, _rows, ten_in_a_row
from tests.support.resolving import resolve_events

BATCHES = 50


def cpu_s(do: Callable[[], object]) -> float:
    began = time.process_time()
    do()
    return time.process_time() - began


def in_turns(rounds: int, *sides: Callable[[], object]) -> list[float]:
    """Return the least CPU seconds of each side."""
    taken = [[cpu_s(side) for side in sides] for _ in range(rounds)]
    return [min(each) for each in zip(*taken, strict=True)]


def tell(what: str, ours: float, theirs: float, peer: str, reach: str) -> None:
    print(
        f"{what:<58} {ours * 1e3:>9.1f} ms  {theirs * 1e3:>9.1f} ms {peer:<22} {theirs / ours:>6.2f}x  {reach}",
        flush=True,
    )


@contextmanager
def folder() -> Iterator[Path]:
    found = Path(tempfile.mkdtemp(prefix="persist-upserts-"))
    try:
        yield found
    finally:
        shutil.rmtree(found)


class Ours:
    """An open client's collection of so many rows, and how it takes a batch."""

    def __init__(self, client: persist.Client, count: int, policy: persist.Keyed | None = None) -> None:
        self.rows = _made(client, count, policy or persist.Keyed())
        self.upper = 1

    def upsert(self, batch: pa.Table) -> None:
        self.rows.upsert(batch, time=self.upper, seal=self.upper + 1).result()
        self.upper += 1


def merge(scale: float, rounds: int) -> None:
    for size, reach in ((1_000, ">= 25"), (10_000, ">= 20"), (100_000, ">= 5")):
        _merge(round(KEYS * scale), round(size * scale), rounds, reach)


def _merge(count: int, size: int, rounds: int, reach: str) -> None:
    with folder() as place, persist.open(str(place / "ours"), settings=QUIET) as client:
        ours, batches = Ours(client, count), _batches(count, size)
        write_deltalake(place / "delta", _rows(np.arange(count) * 2, np.random.default_rng(1)))
        # Each first upsert of a client, and each first merge, finds the same rows, and nothing else.
        fresh, theirs_fresh = _copies(place / "ours", 2 * rounds + 1), _copies(place / "delta", rounds)
        table = DeltaTable(place / "delta")
        ours.upsert(next(batches))

        def first(settings: persist.Settings) -> None:
            at = place / "first"  # One place for all, because by it the cache folder is told whose rows it has.
            if at.exists():
                at.rename(next(used))
            next(fresh).rename(at)
            with persist.open(str(at), settings=settings) as other:
                other.load("rows").upsert(next(batches), time=1, seal=2).result()

        used = (place / f"used-{n}" for n in count_from(0))
        caching = persist.Settings(background=False, cache_folder=place / "cache")
        first(caching)
        sides = (
            lambda: ours.upsert(next(batches)),
            lambda: _merged(table, next(batches)),
            lambda: first(QUIET),
            lambda: first(caching),
            lambda: _merged(DeltaTable(next(theirs_fresh)), next(batches)),
        )
        mine, theirs, alone, cached, theirs_alone = in_turns(rounds, *sides)
    tell(f"upsert of {size:,} into {count:,}", mine, theirs, "deltalake merge", reach)
    for what, took in (("", alone), (", another one has filled cache_folder", cached)):
        tell(f"   as a client's first{what}", took, theirs_alone, "deltalake, opened", ">= 5 (10k), >= 3 (100k)")


def _copies(folder: Path, count: int) -> Iterator[Path]:
    return iter([Path(shutil.copytree(folder, folder.with_name(f"{folder.name}-{n}"))) for n in range(count)])


def iceberg(scale: float, rounds: int) -> None:
    count, size = round(KEYS * scale), round(10_000 * scale)
    with folder() as place, persist.open(str(place / "ours"), settings=QUIET) as client:
        ours, batches = Ours(client, count), _batches(count, size)
        table = iceberg_table(place / "iceberg", pa.schema({**KEY, **VALUE}))
        table.append(_rows(np.arange(count) * 2, np.random.default_rng(1)))
        batch = next(batches)
        mine, theirs = in_turns(
            min(rounds, 2), lambda: ours.upsert(next(batches)), lambda: table.upsert(batch, join_cols=["id"])
        )
        tell(f"upsert of {size:,} into {count:,}", mine, theirs, "pyiceberg upsert", ">= 20")


def empty(scale: float, rounds: int) -> None:
    """Many batches into an empty collection, against DuckDB computing the final rows with a window function."""
    size, chance = round(5 * KEYS * scale / BATCHES), np.random.default_rng(3)
    batches = [_rows(chance.choice(round(KEYS * scale), size, replace=False), chance) for _ in range(BATCHES)]
    every_event = pa.concat_tables([b.append_column("t", pa.repeat(n, size)) for n, b in enumerate(batches)])
    query = "SELECT * FROM every_event QUALIFY row_number() OVER (PARTITION BY id ORDER BY t DESC) = 1"

    def theirs() -> None:
        with folder() as place, duckdb.connect() as connection:
            connection.register("every_event", every_event)
            connection.sql(query).write_parquet(str(place / "rows.parquet"))

    def mine(seals: bool) -> None:
        with folder() as place, persist.open(str(place), settings=QUIET) as client:
            rows = client.create_or_load("rows", key=KEY, value=VALUE, keyed=persist.Keyed())
            for time_, batch in enumerate(batches):
                rows.upsert(batch, time=time_, seal=time_ + 1 if seals else None)
            rows.seal(BATCHES).result()
            assert rows.snapshot().count() == len(np.unique(every_event["id"].to_numpy()))

    assert every_event.num_rows == size * BATCHES
    each, once, peer = in_turns(min(rounds, 2), lambda: mine(True), lambda: mine(False), theirs)
    tell(f"{size * BATCHES:,} events in {BATCHES} batches, each sealed", each, peer, "duckdb, window", ">= 0.3")
    tell("   sealed at the end", once, peer, "duckdb, window", ">= 0.3")


def row(scale: float, rounds: int) -> None:
    """Many small ones in a row: against merges of the same rows, and the last against the first.

    Merges compact nothing; ours do so in the background, or not either.
    """
    count, times, merges = round(KEYS * scale), 200, 30
    with folder() as place:
        write_deltalake(place, _rows(np.arange(count) * 2, np.random.default_rng(1)))
        table, batches = DeltaTable(place), islice(_batches(count, 1000), merges)
        theirs = sum(cpu_s(partial(_merged, table, rows)) for rows in batches) / merges
    for how, settings in (("compacting", persist.Settings()), ("nothing compacted", QUIET)):
        with folder() as place, persist.open(str(place), settings=settings) as client:
            ours, batches = Ours(client, count), islice(_batches(count, 1000), times)
            each = [cpu_s(partial(ours.upsert, rows)) for rows in batches]
        tell(f"{times} of 1,000 in a row, {how}, each", sum(each) / times, theirs, "deltalake merge", ">= 25")
        tell("   the last 20 against the first 20", sum(each[-20:]) / 20, sum(each[:20]) / 20, "the first", ">= 0.67")


def sizes(scale: float, rounds: int) -> None:
    """What 1,000 events cost by the size of the collection, with and without a folder for a cache."""
    for count in (10**5, 10**6, 10**7):
        for cached in (False, True):
            took = _of_size(round(count * scale), rounds, cached=cached)
            print(
                f"1,000 into {round(count * scale):>10,}, cache folder {cached!s:<5} {took * 1e3:>9.1f} ms", flush=True
            )


def _of_size(count: int, rounds: int, *, cached: bool) -> float:
    with folder() as place:
        settings = persist.Settings(background=False, cache_folder=place / "cache" if cached else None)
        with persist.open(str(place / "ours"), settings=settings) as client:
            ours, batches = Ours(client, count), _batches(count, 1000)
            ours.upsert(next(batches))
            (took,) = in_turns(rounds, lambda: ours.upsert(next(batches)))
    return took


def stream(scale: float, rounds: int) -> None:
    """Ten rows at a time, awaited: CPU and wall time of each; the machine's own noise is in the second."""
    with folder() as place, persist.open(str(place), settings=persist.Settings()) as client:
        ours, batches = Ours(client, round(KEYS * scale)), _batches(round(KEYS * scale), 10)
        given = [*islice(batches, 300)]
        ours.upsert(given[0])
        walls = []
        began = time.process_time()
        for batch in given:
            at = time.perf_counter()
            ours.upsert(batch)
            walls.append(time.perf_counter() - at)
        cpu = (time.process_time() - began) / len(given)
    median, p99 = np.quantile(walls, [0.5, 0.99]) * 1e3
    print(
        f"10 rows at a time: {cpu * 1e3:.1f} ms CPU each; wall median {median:.1f} ms (<= 10), p99 {p99:.1f} ms (<= 40)"
    )


def paced(scale: float, rounds: int) -> None:
    """Ten rows every 50 ms for a minute: wall time until each is durable and sealed, from when it was due."""
    count, every_s = round(KEYS * scale), 0.05
    with folder() as place, persist.open(str(place), settings=persist.Settings()) as client:
        ours, given = Ours(client, count), [*islice(_batches(count, 10), 1200)]
        ours.upsert(given[0])
        taken, cpu, start = [], time.process_time(), time.perf_counter()
        for number, batch in enumerate(given):
            due = start + number * every_s
            time.sleep(max(0.0, due - time.perf_counter()))
            ours.upsert(batch)
            taken.append((time.perf_counter() - due) * 1e3)
        cpu = (time.process_time() - cpu) / len(given) * 1e3
    median, p99 = np.quantile(taken, [0.5, 0.99])
    late = sum(each > every_s * 1e3 for each in taken)
    print(
        f"10 rows every 50 ms: median {median:.1f} ms (<= 10), p99 {p99:.1f} ms (<= 40), {late} of {len(given):,} not "
        f"done when the next was due (0); {cpu:.1f} ms CPU each, background included"
    )


def memory(scale: float, rounds: int) -> None:
    """Ten upserts in a row, as a client of its own in a process of its own: how far its memory rises."""
    with folder() as place:
        with persist.open(str(place), settings=QUIET) as client:
            Ours(client, round(KEYS * scale))
        peak = peak_memory(Job(ten_in_a_row, [str(place), scale]))
    print(f"ten of {round(100_000 * scale):,} in a row: {megabytes(peak)} (<= 300)")


def policies(scale: float, rounds: int) -> None:
    count, background = round(KEYS * scale), persist.Keyed(resolve="background")
    size, chance = count // 10, np.random.default_rng(9)
    with folder() as place, persist.open(str(place), settings=QUIET) as client:
        ours = Ours(client, count, background)
        plain = client.create_or_load("plain", key=KEY, value=VALUE)
        batch, upper = _rows(chance.choice(count, size, replace=False) * 2, chance), iter(range(1000))

        def write() -> None:
            time_ = next(upper)
            plain.write(batch, time=time_, seal=time_ + 1).result()

        mine, theirs = in_turns(rounds, lambda: ours.upsert(batch), write)
        tell(f"append and seal of {size:,}, in the background", mine, theirs, "plain write", ">= 0.9")
    with folder() as place, persist.open(str(place), settings=QUIET) as client:
        ours = Ours(client, count, background)
        resolve_events(ours.rows)
        found = []
        for _ in range(rounds):
            ours.upsert(batch)
            taken = [cpu_s(lambda: ours.rows.snapshot().to_arrow()) for _ in range(2)]
            resolve_events(ours.rows)
            ours.rows.snapshot().to_arrow()
            found.append((*taken, cpu_s(lambda: ours.rows.snapshot().to_arrow())))
        first, again, resolved = (min(each) for each in zip(*found, strict=True))
        tell(f"snapshot, {size:,} of {count:,} unresolved, first", first, resolved, "resolved", ">= 0.5")
        tell("   the next", again, resolved, "resolved", ">= 0.5")


MEASURES = {each.__name__: each for each in (merge, iceberg, empty, row, memory, sizes, stream, paced, policies)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(MEASURES)}")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=4)
    given = parser.parse_args()
    for name in given.names or MEASURES:
        MEASURES[name](given.scale, given.rounds)


if __name__ == "__main__":
    main()
