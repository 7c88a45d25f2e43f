"""What each path takes of the memory that a client may have: `python -m benchmarks.budgets`.

    python -m benchmarks.budgets [PATH …] [--budget MIB] [--rows N] [--folder FOLDER]

A location holds four collections of N rows each, about 80 bytes decoded: several times the budget. `orders` was written
at one time, `events` in 16 times with retractions, `users` is keyed, and `waiting` is keyed and has as many events
again that are not resolved yet. Each path runs in a process of its own, on a copy of the location. It first does the
same with a tiny location, so that everything is imported and threads have their stacks. Then it opens the large one,
lets Linux forget the peak so far, and runs. The table has the peak above what was resident when it began, as MiB and as
a multiple of the budget. Every few milliseconds, a thread measures which of that is not a mapped file.
Arrow reports the most that it had in use.
"""

import argparse
import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import persist
import persist.services.backup as backups
from benchmarks.harness import ROOT, peak_rss
from tests.support.tuned import tuned

BUDGET = 64 << 20
ROWS = 3_000_000
SMALL_ROWS = 3_000
TIMES = 16  # Of `events`.
BLOCK_ROWS = 20_000
CUSTOMERS = 50


@dataclass
class Place:
    """What a path works on: a client, its folder, a folder that is empty, and the rows of each collection."""

    client: persist.Client
    location: Path
    scratch: Path
    rows: int

    def __getitem__(self, name: str) -> persist.Collection:
        return self.client.load(name)

    @property
    def settings(self) -> persist.Settings:
        """Those of the client, for others."""
        return self.client.engine.settings


@dataclass
class Peak:
    """Bytes at most: what was resident, what of it was no mapped file, what Arrow had in use; and CPU seconds."""

    resident: int
    private: int
    arrow: int
    cpu_s: float = 0.0


PATHS: dict[str, Callable[[Place], object]] = {}


def path(call: Callable[[Place], object]) -> Callable[[Place], object]:
    """Name a function as a path."""
    PATHS[call.__name__.replace("_", " ")] = call
    return call


def blocks(keys: np.ndarray, seed: int) -> Iterator[pa.Table]:
    """Yield rows of some keys."""
    for start in range(0, len(keys), BLOCK_ROWS):
        rng = np.random.default_rng([seed, start])
        some = keys[start : start + BLOCK_ROWS]
        noise = pa.array(rng.integers(10**17, 10**18, len(some))).cast(pa.string())
        yield pa.table(
            {
                "id": some,
                "customer": rng.integers(0, max(1, len(keys) // CUSTOMERS), len(some)),
                "amount": rng.random(len(some)),
                "note": noise,
            }
        )


def stream(tables: Iterable[pa.Table]) -> pa.RecordBatchReader:
    """Return tables as a stream."""
    tables = iter(tables)
    first = next(tables)
    batches = (batch for some in ([first], tables) for table in some for batch in table.to_batches())
    return pa.RecordBatchReader.from_batches(first.schema, batches)


def shuffled(rows: int, seed: int = 7) -> np.ndarray:
    """Return all keys in a random order."""
    return np.random.default_rng(seed).permutation(rows)


KEY = {"id": pa.int64()}
VALUE = {"customer": pa.int64(), "amount": pa.float64(), "note": pa.string()}


def fill(location: Path, rows: int, budget: int) -> None:
    """Write the collections."""
    with persist.open(location, settings=persist.Settings(background=False, memory_budget=budget)) as client:
        orders = client.create_or_load("orders", key=KEY, value=VALUE)
        orders.write(stream(blocks(shuffled(rows), 1)), time=0, seal=1).result()
        events = client.create_or_load("events", key=KEY, value=VALUE)
        each = rows // TIMES
        for at in range(TIMES):
            keys = np.random.default_rng(at).integers(0, rows // 2, each)
            events.write(stream(blocks(keys, 100 + at)), time=at).result()
            if at >= 3:
                keys = np.random.default_rng(at - 3).integers(0, rows // 2, each)
                gone = pa.concat_tables(blocks(keys, 100 + at - 3)).slice(0, each // 3)
                events.write(gone, time=at, diff=-1).result()
            events.seal(at + 1).result()
        keyed = persist.Keyed(order_by=["amount"], ties="greatest")
        for name in ("users", "waiting"):
            users = client.create_or_load(name, key=KEY, value=VALUE, keyed=keyed)
            users.upsert(stream(blocks(shuffled(rows), 2)), time=0, seal=1).result()
        users.upsert(stream(blocks(shuffled(rows, 8), 3)), time=1).result()
        customers = client.create_or_load("customers", key={"customer": pa.int64()}, value={"name": pa.string()})
        ids = np.arange(max(1, rows // CUSTOMERS))
        names = pa.array(ids).cast(pa.string())
        customers.write(pa.table({"customer": ids, "name": names}), time=0, seal=1).result()


def used(batches: Iterable[pa.RecordBatch]) -> int:
    """Go through batches, and keep none."""
    return sum(batch.num_rows for batch in batches)


@path
def snapshot_of_one_time(at: Place) -> int:
    return used(at["orders"].snapshot().to_batches())


@path
def snapshot_of_a_history(at: Place) -> int:
    return used(at["events"].snapshot().to_batches())


@path
def snapshot_where(at: Place) -> int:
    return used(at["events"].snapshot(where="amount > 0.5").to_batches())


@path
def snapshot_of_keyed(at: Place) -> int:
    return used(at["users"].snapshot().to_batches())


@path
def count_and_sums(at: Place) -> object:
    return at["events"].snapshot().aggregate(["customer"], {"total": ("amount", "sum")})


@path
def get_10000_keys(at: Place) -> object:
    return at["orders"].get(pa.table({"id": shuffled(at.rows)[:10_000]}))


@path
def get_where(at: Place) -> object:
    return at["orders"].get(where="customer = 7")


@path
def digest(at: Place) -> str:
    return at["events"].snapshot().digest()


@path
def diff_of_two_times(at: Place) -> object:
    return at["events"].diff(2, TIMES - 1, where="customer < 5").to_arrow()


@path
def changes_of_one_time(at: Place) -> int:
    return used(at["orders"].changes(0).to_batches())


@path
def changes_of_many_times(at: Place) -> int:
    return used(at["events"].changes(0).to_batches())


@path
def transitions(at: Place) -> int:
    return used(at["events"].changes(0, form="transitions").to_batches())


@path
def upserts(at: Place) -> int:
    return used(at["users"].upserts(0).to_batches())


def followed(listen: persist.Listen, until: int) -> int:
    """Go through a listen up to a time."""
    rows = 0
    with listen:
        for progress in listen:
            rows += len(progress.updates)
            if progress.upper >= persist.Antichain(until):
                return rows
            del progress
    raise AssertionError("it ended before")


@path
def listen_to_one_time(at: Place) -> int:
    return followed(at["orders"].listen(), 1)


@path
def listen_behind_a_long_tail(at: Place) -> int:
    return followed(at["events"].listen(), TIMES)


@path
def listen_to_keyed(at: Place) -> int:
    return followed(at["users"].listen(), 1)


@path
def subscribe(at: Place) -> int:
    return followed(at["events"].subscribe(TIMES - 1), TIMES)


@path
def consumer(at: Place) -> int:
    rows = 0
    with at["events"].follow("reader") as following:
        for progress in following:
            rows += len(progress.updates)
            following.ack()
            if progress.upper >= persist.Antichain(TIMES):
                return rows
            del progress
    raise AssertionError("it ended before")


@path
def follow_several(at: Place) -> int:
    rows, ends = 0, {"orders": 1, "events": TIMES}
    with at.client.follow({at[name]: None for name in ends}) as following:
        for progress in following:
            for collection in progress:
                rows += len(progress[collection].updates)
                if progress[collection].upper >= persist.Antichain(ends[collection.name]):
                    del ends[collection.name]
            if not ends:
                return rows
            del progress
    raise AssertionError("it ended before")


@path
def write_a_stream(at: Place) -> object:
    c = at.client.create_or_load("new", key=KEY, value=VALUE)
    return c.write(stream(blocks(shuffled(at.rows), 5)), time=0, seal=1).result()


@path
def write_a_dataset(at: Place) -> object:
    import pyarrow.dataset as ds

    c = at.client.create_or_load("new", key=KEY, value=VALUE)
    return c.write(ds.dataset(exported(at)), time=0, seal=1).result()


def exported(at: Place) -> Path:
    """Return a folder of Parquet beside the location, which the parent has made."""
    return at.location.parent / "files"


@path
def ingest_files(at: Place) -> object:
    source = {"source": f"{exported(at)}/*.parquet", "collection": "new", "key": ["id"], "settle_s": 0.0}
    return persist.ingest(at.client, source, once=True)


@path
def egress_files(at: Place) -> object:
    return persist.egress(at.client, {"sink": f"{at.scratch}/out", "collections": ["orders"]}, once=True)


@path
def upsert_50000(at: Place) -> object:
    return at["users"].upsert(stream(blocks(shuffled(at.rows, 9)[:50_000], 4)), time=1, seal=2).result()


@path
def upsert_everything(at: Place) -> object:
    return at["users"].upsert(stream(blocks(shuffled(at.rows, 9), 4)), time=1, seal=2).result()


@path
def seal_pending_events(at: Place) -> object:
    return at["waiting"].seal(2).result()


@path
def read_sealed_unresolved_events(at: Place) -> int:
    at["waiting"].seal(2).result()
    return used(at["waiting"].snapshot(1).to_batches())


@path
def overwrite(at: Place) -> object:
    return at["orders"].overwrite(stream(blocks(shuffled(at.rows), 6)), time=1).result()


@path
def delete_where(at: Place) -> object:
    return at["orders"].delete(where="amount < 0.5", time=1).result()


@path
def put_back(at: Place) -> object:
    return at["events"].restore(4).result()


@path
def clone(at: Place) -> object:
    return at.client.clone("events", "copy")


@path
def merge_runs(at: Place) -> object:
    return at["events"].compact(only_due=True)


@path
def keyframe(at: Place) -> object:
    return at["events"].compact()


@path
def drop_history(at: Place) -> object:
    at["events"].allow_compaction(TIMES - 2).result()
    return at["events"].compact()


@path
def maintain(at: Place) -> object:
    at.client.maintain()
    return at.client.seqno


@path
def collect_garbage(at: Place) -> object:
    return at.client.gc()


@path
def index(at: Place) -> object:
    return at["orders"].index("customer")


@path
def publish_delta(at: Place) -> object:
    return at["events"].publish("delta")


@path
def publish_iceberg(at: Place) -> object:
    return at["events"].publish("iceberg")


@path
def export_parquet(at: Place) -> object:
    return at["events"].snapshot().export_parquet(at.scratch / "export", rows_per_file=100_000)


@path
def erase(at: Place) -> object:
    return at["events"].erase(where="customer = 7", reason="a request")


@path
def fsck(at: Place) -> object:
    return at.client.fsck()


@path
def backup(at: Place) -> object:
    return backups.backup(at.location, at.scratch / "backup", settings=at.settings)


@path
def verify(at: Place) -> object:
    return backups.verify(at.location, at.location, settings=at.settings)


def view(at: Place, sql: str) -> persist.View:
    """Make a view within the budget, and refresh it for the first time."""
    made = at.client.create_view("v", sql, memory_budget=at.settings.memory_budget, spill_folder=at.scratch)
    made.refresh()
    return made


@path
def view_filter(at: Place) -> object:
    return view(at, "SELECT id, amount FROM orders WHERE amount < 0.5")


@path
def view_group(at: Place) -> object:
    return view(at, "SELECT customer, sum(amount) AS total, count(*) AS n FROM orders GROUP BY customer")


@path
def view_group_of_a_history(at: Place) -> object:
    return view(at, "SELECT customer, count(*) AS n, max(amount) AS most FROM events GROUP BY customer")


@path
def view_join(at: Place) -> object:
    return view(at, "SELECT o.id, o.amount, c.name FROM orders o JOIN customers c ON o.customer = c.customer")


@path
def view_window(at: Place) -> object:
    return view(at, "SELECT id, row_number() OVER (PARTITION BY customer ORDER BY amount, id) AS r FROM orders")


@path
def view_distinct(at: Place) -> object:
    return view(at, "SELECT DISTINCT customer, note FROM orders")


@path
def sql_sort(at: Place) -> int:
    with at.client.sql("SELECT * FROM orders ORDER BY amount") as answer:
        return used(answer.to_batches())


@path
def sql_group(at: Place) -> int:
    with at.client.sql("SELECT customer, sum(amount), max(note) FROM events GROUP BY customer") as answer:
        return used(answer.to_batches())


@path
def sql_all_rows(at: Place) -> int:
    with at.client.sql("SELECT * FROM orders WHERE amount < 0.9") as answer:
        return used(answer.to_batches())


@path
def sql_update(at: Place) -> object:
    with at.client.sql("UPDATE orders SET amount = 0 WHERE customer < 100") as answer:
        return answer.to_arrow()


@path
def as_of_join(at: Place) -> object:
    ids = shuffled(at.rows // 2)[:10_000]
    return at["events"].as_of_join(pa.table({"id": ids, "at": np.arange(len(ids)) % TIMES}))


@path
def tuples(at: Place) -> int:
    return sum(1 for _ in at["orders"].snapshot(where="amount < 0.2").rows())


def prepared(folder: Path, rows: int, budget: int) -> Path:
    """Return a folder with a location of so many rows, and files of the same rows; made unless it is there."""
    made = folder / f"{rows}-{budget}"
    if not made.exists():
        unfinished = folder / "unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        (unfinished / "files").mkdir(parents=True)
        fill(unfinished / "location", rows, budget)
        every = blocks(shuffled(rows), 1)
        first = next(every)
        with pq.ParquetWriter(unfinished / "files" / "rows.parquet", first.schema) as file:
            file.write_table(first)
            for table in every:
                file.write_table(table)
        unfinished.rename(made)
    return made


class Private:
    """The most private memory of this process, looked at every few milliseconds: files that are mapped do not count."""

    def __init__(self) -> None:
        self.most = self.before = private_bytes()
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> "Private":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ends.wait(0.005):
            self.most = max(self.most, private_bytes())


def private_bytes() -> int:
    """Return what is resident in this process and is not a file."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) << 10


def run(name: str, made: Path, rows: int, budget: int) -> Peak:
    """Run a path on a copy of a prepared location; return the peaks above what there was before."""
    with tempfile.TemporaryDirectory(dir=made.parent) as scratch:
        location = Path(scratch) / "copy" / "location"
        # Nothing that is stored is ever changed, so links are copies.
        shutil.copytree(made / "location", location, copy_function=os.link)
        (location.parent / "files").symlink_to(made / "files")
        out = Path(scratch) / "scratch"
        out.mkdir()
        settings = tuned(background=False, memory_budget=budget, grace_s=0)
        with persist.open(location, settings=settings) as client:
            gc.collect()
            pool = pa.default_memory_pool()
            pool.release_unused()
            Path("/proc/self/clear_refs").write_text("5")
            before, arrow_before = peak_rss(), pool.bytes_allocated()
            with Private() as private:
                PATHS[name](Place(client, location, out, rows))
            resident, arrow = peak_rss() - before, max(0, pool.max_memory() - arrow_before)
            return Peak(resident, private.most - private.before, arrow)


def child(name: str, small: Path, large: Path, rows: int, budget: int) -> None:
    run(name, small, SMALL_ROWS, budget)
    began = time.process_time()
    peak = run(name, large, rows, budget)
    print(json.dumps([peak.resident, peak.private, peak.arrow, time.process_time() - began]))


def measured(name: str, folder: Path, rows: int, budget: int) -> Peak:
    """Return the peaks of a path in a process of its own.

    Args:
        folder: where prepared locations are, and are made.
    """
    small, large = prepared(folder, SMALL_ROWS, budget), prepared(folder, rows, budget)
    paths = f"Path({str(small)!r}), Path({str(large)!r})"
    code = f"from benchmarks.budgets import *; child({name!r}, {paths}, {rows}, {budget})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{name} failed:\n{done.stderr[-3000:]}")
    return Peak(*json.loads(done.stdout.splitlines()[-1]))


def row(peak: Peak, budget: int) -> str:
    """Return the cells of a line."""
    resident, private, arrow = (round(size / 2**20) for size in (peak.resident, peak.private, peak.arrow))
    return f"{resident} | {peak.resident / budget:.1f} | {private} | {arrow} | {peak.cpu_s:.1f}"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.budgets", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", nargs="*", metavar="PATH", help=f"of: {', '.join(PATHS)}")
    parser.add_argument("--budget", type=int, default=BUDGET >> 20, metavar="MIB")
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--folder", type=Path, help="where prepared locations stay for the next run")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.paths if name not in PATHS]:
        parser.error(f"no such path: {', '.join(unknown)}; there are {', '.join(PATHS)}")
    budget, failed = arguments.budget << 20, False
    with tempfile.TemporaryDirectory(prefix="persist-budgets-") as name:
        folder = arguments.folder or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        print("| path | peak, MiB | of the budget | private, MiB | Arrow, MiB | CPU, s |\n|---|---|---|---|---|---|")
        for each in arguments.paths or PATHS:
            try:
                peak = measured(each, folder, arguments.rows, budget)
            except RuntimeError as error:
                print(error, file=sys.stderr)
                print(f"| {each} | failed | | | | |", flush=True)
                failed = True
                continue
            print(f"| {each} | {row(peak, budget)} |", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
