"""Publishing 5M rows as a Delta table, against a copy of them by deltalake: nothing touched, 1% of keys, and again.

CPU time of this process, each time by a client that has read nothing yet, but for the versions that follow: those are
made by the client that writes, as its own upkeep does. Of every table, the number of rows and sums are compared with
the snapshot's.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from deltalake import write_deltalake

import persist
from benchmarks.harness import Row, duration
from benchmarks.workspace import Workspace

ROWS = 5_000_000
QUIET = persist.Settings(background=False)
AGAIN = 10


def publishing(work: Workspace) -> list[Row]:
    """Publish, change 1% of the keys, publish anew, then follow small commits."""
    count = max(1000, round(ROWS * work.scale))
    chance = np.random.default_rng(3)
    place = str(work.folder / "published")
    with persist.open(place, settings=QUIET) as client:
        c = client.create_or_load("c", key={"id": int}, value={"a": int, "b": float, "name": str})
        rows = _rows(count)
        c.write(rows, time=0, seal=1).result()
        c.compact()
        lines = [_against_a_copy(work, client, "nothing touched", ">= 50")]
        _change(c, rows, chance.choice(count, count // 100, replace=False), 1)
        lines.append(_against_a_copy(work, client, "1% of keys touched", ">= 5"))
        c.publish("delta")
        taken, requests = [], []
        for turn in range(AGAIN):
            _change(c, rows, chance.choice(count, 100, replace=False), 2 + turn)
            before = _requests(client)
            taken.append(_cpu_s(lambda: c.publish("delta")))
            requests.append(_requests(client) - before)
            _check(c)
        shown = f"{duration(float(np.median(taken)))} of CPU, {int(np.median(requests))} requests"
        lines.append(Row("publish again after 100 rows, anywhere", "-", "<= 30 ms, <= 6", shown))
        lines.append(_scanned(work, c))
    return [*lines, _keyed(work, rows, chance)]


def _keyed(work: Workspace, rows: pa.Table, chance: np.random.Generator) -> Row:
    """Publish a keyed collection of which 1% of the keys were touched, by clients that have read nothing."""
    with persist.open(str(work.folder / "keyed"), settings=QUIET) as client:
        c = client.create_or_load(
            "c", key={"id": int}, value={"a": int, "b": float, "name": str}, keyed=persist.Keyed()
        )
        c.upsert(rows, time=0, seal=1).result()
        c.compact()
        at = np.sort(chance.choice(len(rows), len(rows) // 100, replace=False))
        changed = rows.take(pa.array(at))
        c.upsert(changed.set_column(1, "a", pa.array(np.full(len(changed), -1))), time=1, seal=2).result()
        line = _against_a_copy(work, client, "keyed, 1% of keys touched", ">= 5")
    return line


def _scanned(work: Workspace, c: persist.Collection) -> Row:
    """Let Polars read all rows of the table, and of one Parquet file of the same."""
    import polars

    [made] = c.published()
    plain = work.folder / "plain.parquet"
    c.snapshot().to_polars().write_parquet(plain)
    ours, theirs = [], []
    for _ in range(max(work.rounds, 5)):
        ours.append(_cpu_s(lambda: polars.scan_delta(made.url).collect()))
        theirs.append(_cpu_s(lambda: polars.scan_parquet(plain).collect()))
    ratio = np.median([them / us for them, us in zip(theirs, ours, strict=True)])
    shown = f"{duration(float(np.median(ours)))} of CPU, {ratio:.2f} times as fast"
    return Row("Polars' scan, 1% left out", f"one file, {duration(float(np.median(theirs)))}", ">= 0.7", shown)


def _against_a_copy(work: Workspace, client: persist.Client, what: str, reach: str) -> Row:
    ours, theirs = [], []
    for turn in range(max(work.rounds, 2)):
        client["c"].unpublish("delta")
        with persist.open(client.url, settings=QUIET) as fresh:
            c = fresh["c"]
            ours.append(_cpu_s(lambda c=c: c.publish("delta")))  # type: ignore[misc]
            _check(c)
            target = str(work.folder / f"copy {what} {turn}")
            theirs.append(_cpu_s(lambda c=c, target=target: write_deltalake(target, c.snapshot())))  # type: ignore[misc]
    ratio = np.median([them / us for them, us in zip(theirs, ours, strict=True)])
    shown = f"{duration(float(np.median(ours)))} of CPU, {ratio:.1f} times as fast"
    return Row(f"publish, {what}", f"a copy, {duration(float(np.median(theirs)))}", reach, shown)


def _check(c: persist.Collection) -> None:
    """Make sure that the table has the rows of the snapshot."""
    import deltalake

    [made] = c.published()
    query = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(made.url))
    read = query.execute("SELECT count(*) AS n, sum(id) AS ids, sum(a) AS a FROM t").read_all()
    wanted = c.snapshot().aggregate((), {"n": (None, "count"), "ids": ("id", "sum"), "a": ("a", "sum")})
    assert pa.table(read).to_pylist() == wanted.to_pylist(), "the table has other rows"


def _change(c: persist.Collection, rows: pa.Table, at: Any, turn: int) -> None:
    """Give some keys, of those that hold what rows say, another value at a time."""
    keys = rows["id"].take(pa.array(np.sort(at)))
    held = c.snapshot().get(pa.table({"id": keys}))
    new = held.set_column(1, "a", pa.array(np.full(len(held), turn)))
    diffs = pa.array([-1] * len(held) + [1] * len(new))
    times = pa.array(np.full(2 * len(held), turn))
    updates = pa.concat_tables([held, new]).append_column("_time", times).append_column("_diff", diffs)
    c.write(updates, seal=turn + 1).result()


def _requests(client: persist.Client) -> int:
    return sum(counts.requests for counts in client.metrics().store.values())


def _cpu_s(call: Callable[[], object]) -> float:
    began = time.process_time()
    call()
    return time.process_time() - began


def _rows(count: int) -> pa.Table:
    numbers = np.arange(count)
    names = pa.array([f"customer-{number % 5000:05d}" for number in range(count)])
    return pa.table({"id": numbers, "a": numbers * 7, "b": numbers / 3, "name": names})
