"""Compaction: how fast it is, how much it writes, how much room is taken after it."""

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import persist
from benchmarks.harness import Job, Measure, Row, Side, megabytes
from benchmarks.ours import COLLECTION, compact, write_collection, write_maintained
from benchmarks.targets import same_rows
from benchmarks.travel import anytime, bytes_written, maintained
from benchmarks.workspace import Workspace, bytes_of, copy_location, one_file
from persist.blob.layers.metered import MeteredBlob
from persist.blob.stores.file import FileBlob

SET, LONG, NEWEST = "cdc-5m", "history-50m", "newest-8m"
ORDER = [(name, "ascending") for name in ("id", "name", "amount", "at", "_time")]


def throughput(work: Workspace) -> list[Row]:
    """Compact raw history by hand, against reading, sorting and writing the same rows with pyarrow."""
    source, copy = Path(work.raw(SET)), work.folder / "compacting"
    files = work.raw_files(SET)

    def copied() -> None:
        shutil.rmtree(copy, ignore_errors=True)
        copy_location(source, copy)

    def theirs() -> None:
        table = pa.concat_tables([pq.read_table(file, partitioning=None) for file in files])
        pq.write_table(table.sort_by(ORDER), work.folder / "sorted.parquet")

    copied()
    done: Any = compact(str(copy))
    [expected] = work.data(SET).contents([work.data(SET).uppers[-1] - 1])
    with persist.open(str(copy), mode="read") as client:
        found = client.load(COLLECTION).snapshot().to_arrow()
    assert same_rows(found, expected, ["id"]), "compaction changed the contents"
    copied()
    memory = work.memory_of(Job(compact, [str(copy)]))
    row = Measure(
        f"compact() of {SET} raw, {done.rows_read:,} rows read, {done.rows_written:,} written",
        f"pyarrow: read, sort, write {sum(pq.read_metadata(file).num_rows for file in files):,} rows",
        ">= 0.7x",
        Side(lambda: compact(str(copy)), before=copied),
        [Side(theirs, "pyarrow")],
    ).run(work.rounds, work.memory_of, work.clock)
    return [Row(row.measure, row.against, row.reach, row.ours, row.theirs, row.ratio, memory)]


def newest(work: Workspace) -> list[Row]:
    """The same where only a small range of keys changes; and snapshots at random times."""
    return [*anytime(work, NEWEST), *amplification(work, NEWEST)]


def amplification(work: Workspace, name: str = LONG) -> list[Row]:
    """What is written for each byte that comes in while a set is written and maintained; and the space."""
    data = work.data(name)
    taken = bytes_of(Path(maintained(work, name)))
    written = work.bytes_written[name]
    raw = MeteredBlob(FileBlob(work.folder / "unmaintained"))
    write_collection(data, raw)
    came_in = bytes_written(raw)
    [contents] = data.contents([data.uppers[-1] - 1])
    result = Path(one_file(contents, work.folder / "result.parquet")).stat().st_size
    shutil.rmtree(work.folder / "unmaintained")
    job = Job(write_maintained, [name, work.scale, str(work.folder / "maintained-memory")])
    memory = work.memory_of(job)
    return [
        Row(
            f"write amplification, {name}, maintained while written",
            "bytes of the same without maintenance",
            "< 6",
            megabytes(written),
            megabytes(came_in),
            f"{written / came_in:.2f}",
            memory,
        ),
        Row(
            f"space, {name}, whole history kept",
            "one Parquet file of the result, and the history as it came in",
            "<= 1.5",
            megabytes(taken),
            megabytes(result + came_in),
            f"{taken / (result + came_in):.2f}",
        ),
    ]
