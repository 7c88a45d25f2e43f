"""Data sets as collections and as the peers' tables, each made once per run and shared by the measures.

With a folder of your own the peers' tables stay there and are used again by the next run, because deltalake takes
minutes for a long history. Our collections are always made anew: they are what changes between runs.
"""

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import persist
from benchmarks import targets
from benchmarks.datasets import DataSet, data_set
from benchmarks.harness import Job, megabytes, peak_memory, tree_cpu_s
from benchmarks.histories import Batch
from benchmarks.ours import COLLECTION, FRUGAL, QUIET, write_collection


class Workspace:
    """A folder for a run, at a scale.

    Attributes:
        scale: how many times the size of the standard sets.
        rounds: how often to measure.
        explained: what `explain()` says of each read that was measured, by measure.
        bytes_written: what was sent to the store while a set was written and maintained, by the name of the set.
        clock: what times are taken by: the wall, or the CPU time of this process and all its threads.
        tree_clock: the same for sides that use other processes, and count these.
    """

    def __init__(
        self, folder: Path, kept: Path, scale: float, rounds: int, memory: bool = True, *, cpu: bool = False
    ) -> None:
        """folder is for this run only; what is in kept can be used again. Without memory, that is not measured."""
        self._memory = memory
        self.clock: Callable[[], float] = time.process_time if cpu else time.perf_counter
        self.tree_clock: Callable[[], float] = tree_cpu_s if cpu else time.perf_counter
        self.folder, self._kept = folder, kept / f"peers-{scale:g}"
        self.scale, self.rounds = scale, rounds
        self._sets: dict[str, DataSet] = {}
        self.explained: dict[str, str] = {}
        self.bytes_written: dict[str, int] = {}
        self._kept.mkdir(parents=True, exist_ok=True)

    def data(self, name: str) -> DataSet:
        """Return a standard set, scaled."""
        if name not in self._sets:
            self._sets[name] = data_set(name, self.scale)
        return self._sets[name]

    def memory_of(self, job: Job) -> str:
        """Return the peak memory of a job, as text."""
        return megabytes(peak_memory(job)) if self._memory else "-"

    def explain(self, measure: str, read: Any) -> None:
        """Keep what a snapshot says that it will read."""
        if hasattr(read, "explain"):  # Not every result is a snapshot.
            self.explained[measure] = str(read.explain())

    def once(self, name: str, make: Callable[[Path], None]) -> Path:
        """Return the folder of that name in this run; make makes it if need be."""
        return self._once(self.folder, name, make)

    def delta(self, name: str) -> Path:
        """Return a standard set as a deltalake table with a change feed, one version for each seal."""
        data = self.data(name)
        return self._once(self._kept, f"delta-{name}", lambda f: targets.write_delta(data, f, change_feed=True))

    def raw(self, name: str) -> str:
        """Return a standard set as a collection on which nothing was compacted. Do not write to it."""
        data = self.data(name)
        return str(self.once(f"raw-{name}", lambda f: write_collection(data, str(f))))

    def raw_files(self, name: str) -> list[str]:
        """Return Parquet files that together are the updates of `raw`: its parts, unless some are so small that they
        are in the log."""
        location = self.raw(name)
        files = part_files(location)
        with persist.open(location, mode="read") as client:
            updates = client.load(COLLECTION).changes(0, self.data(name).uppers[-1]).to_arrow()
        if sum(pq.read_metadata(file).num_rows for file in files) == len(updates):
            return files
        return [one_file(updates, self.folder / f"updates-{name}.parquet")]

    def result_files(self, name: str) -> list[str]:
        """Return Parquet files that together are the contents of `compacted`: its parts, or a file if it has none."""
        location = self.compacted(name)
        files = part_files(location)
        if files:
            return files
        with persist.open(location, mode="read") as client:
            contents = client.load(COLLECTION).snapshot().to_arrow()
        return [one_file(contents.sort_by("id"), self.folder / f"contents-{name}.parquet")]

    def compacted(self, name: str) -> str:
        """Return a standard set as a collection that holds its latest contents and no history. Do not write to it."""

        def make(folder: Path) -> None:
            copy_location(Path(self.raw(name)), folder)
            compact_fully(str(folder), self.data(name).uppers[-1])

        return str(self.once(f"compacted-{name}", make))

    def with_tail(self, name: str, share: float = 0.05) -> str:
        """Return a standard set with a keyframe, and with the last share of its updates not compacted."""
        return str(self.once(f"tail-{name}", lambda folder: self._write_tail(name, share, folder)))

    def _write_tail(self, name: str, share: float, folder: Path) -> None:
        data = self.data(name)
        with persist.open(str(folder), settings=QUIET) as client:
            rows: Any = client.create_or_load(COLLECTION, key=data.key, value=data.value)
            before, after = parted(data, share)
            for batch in before:
                rows.write(batch.updates, seal=batch.upper).result()
            rows.compact()
            for batch in after:
                rows.write(batch.updates, seal=batch.upper).result()

    @staticmethod
    def _once(parent: Path, name: str, make: Callable[[Path], None]) -> Path:
        folder = parent / name
        if not folder.exists():
            # Under another name until it is whole: a run may be stopped.
            unfinished = parent / f"unfinished-{name}"
            shutil.rmtree(unfinished, ignore_errors=True)
            make(unfinished)
            unfinished.rename(folder)
        return folder


def parted(data: DataSet, share: float) -> tuple[list[Batch], list[Batch]]:
    """Return the batches before and in the last share of the updates; a time parts the batch in which that begins.

    Nothing may be late in data. Memory: all of it.
    """
    batches = list(data.batches())
    left = round((1 - share) * sum(len(batch.updates) for batch in batches))
    for number, batch in enumerate(batches):
        if left < len(batch.updates):
            times = np.asarray(batch.updates["_time"])
            cut = int(np.searchsorted(times, times[left]))
            early = Batch(batch.updates.slice(0, cut), int(times[cut]))
            late = Batch(batch.updates.slice(cut), batch.upper)
            return [*batches[:number], early], [late, *batches[number + 1 :]]
        left -= len(batch.updates)
    return batches, []


def copy_location(source: Path, target: Path) -> None:
    """Copy a location to which nobody writes meanwhile."""
    shutil.copytree(source, target)  # No links: a store takes a second link for a create that was cut short.


def compact_fully(location: str, upper: int) -> Any:
    """Let nothing but the latest contents remain; return the report of the compaction."""
    with persist.open(location, settings=FRUGAL) as client:
        rows: Any = client.load(COLLECTION)
        rows.allow_compaction(upper - 1).result()
        done = rows.compact()
        client.gc()
        return done


def part_files(location: str) -> list[str]:
    """Return the Parquet files of a location. Small collections may have none: their updates are in the log."""
    return sorted(map(str, Path(location, "part").glob("*/*.parquet")))


def bytes_of(folder: Path, *, besides: str = "") -> int:
    """Return the size of all files under a folder, but those in folders of one name."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return sum(path.stat().st_size for path in files if not besides or besides not in path.parts)


def one_file(table: pa.Table, path: Path) -> str:
    """Write a table to one Parquet file with pyarrow's defaults; return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)
    return str(path)
