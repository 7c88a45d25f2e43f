"""The cost of Spark's driver for 10¹⁰ rows in 10⁵ parts: `python -m benchmarks.scale --spark`.

The parts are descriptors without blobs, committed like those of real tasks. The driver's work needs no JVM: the data
source plans in a Python process. Then many uploads, as of as many executors, become one commit.
"""

import hashlib
import os
import pickle
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import pyarrow as pa

import persist
from persist.codecs.part.part import Part
from persist.compute.tasks.planned_write import PlannedWrite, SinkOptions, upload
from persist.connect.spark.data_source.source import PersistDataSource

ROWS = 100_000  # Of each part.
PARTS = 100_000
COMMITTED = 10_000  # Parts of a commit.
EXECUTORS = 1000
CPU_S_MAX, MEMORY_MAX, TASK_BYTES_MAX = 20.0, 1 << 30, 10_000


def main() -> int:
    """Print the figures; return 1 if one is beyond its bound."""
    with tempfile.TemporaryDirectory(prefix="persist-scale-") as folder:
        record = made_up(folder, PARTS)
        print(f"one commit of {COMMITTED:,} parts: {record:,} bytes in the store")
        # In a process of its own, because what was made up is no part of the driver.
        command = [sys.executable, "-m", "benchmarks.spark_scale", folder]
        cpu_s, memory, tasks, largest = map(float, subprocess.check_output(command, text=True).split())
        print(
            f"plan of {PARTS * ROWS:,} rows in {PARTS:,} parts: {cpu_s:.1f} s of CPU, {memory / 2**20:,.0f} MiB, "
            f"{tasks:,.0f} tasks of at most {largest:,.0f} bytes"
        )
        uploads_s, commit_s, size = committed(folder, EXECUTORS)
        print(
            f"{EXECUTORS:,} uploads: {uploads_s / EXECUTORS * 1000:.1f} ms of CPU each; "
            f"their one commit: {commit_s:.2f} s of CPU, {size:,} bytes"
        )
    is_within = cpu_s <= CPU_S_MAX and memory <= MEMORY_MAX and largest <= TASK_BYTES_MAX
    print("within the bounds" if is_within else "beyond a bound")
    return 0 if is_within else 1


def made_up(folder: str, count: int) -> int:
    """Make a collection of so many parts without blobs; return the bytes that one commit of parts takes."""
    with persist.open(folder, settings=persist.Settings(background=False)) as client:
        rows = client.create_or_load("rows", key={"k": pa.int64()}, value={"v": pa.int64()})
        rows.write(pa.table({"k": range(ROWS), "v": range(ROWS)}), time=0).result()
        (like,) = rows.handle.contents().parts
        sizes = []
        for start in range(1, count, COMMITTED):
            before = stored_bytes(folder)
            parts = tuple(part_like(like, number) for number in range(start, min(start + COMMITTED, count)))
            PlannedWrite.append(SinkOptions(location=folder, collection="rows")).commit(parts)
            sizes.append(stored_bytes(folder) - before)
        rows.seal(1).result()
    return max(sizes)


def part_like(like: Part, number: int) -> Part:
    """Return a descriptor of the next keys after those of other parts."""
    low = number * ROWS
    names = [hashlib.md5(f"{number} {at}".encode(), usedforsecurity=False).hexdigest() for at in range(3)]
    keys = [[low + at * (ROWS - 1) // 32] for at in range(33)]
    stats = {**like.stats, "k": (low, low + ROWS - 1, 0)}
    return msgspec.structs.replace(
        like,
        blob=f"{like.blob.rpartition('/')[0]}/{number:020}-{names[0]}.parquet",
        checksum=names[1],
        footer=like.footer and msgspec.structs.replace(like.footer, checksum=names[2]),
        keys_json=msgspec.Raw(msgspec.json.encode(keys)),
        stats_json=msgspec.Raw(msgspec.json.encode(stats)),
    )


def stored_bytes(folder: str) -> int:
    """Return the bytes of the log and of what it points to, without parts."""
    files = (path for path in Path(folder).rglob("*") if path.is_file() and path.suffix != ".parquet")
    return sum(path.stat().st_size for path in files)


def plan(folder: str) -> None:
    """Plan a read as the driver does; print CPU seconds, peak memory, tasks and the bytes of the largest."""
    before = time.process_time()
    source = PersistDataSource({"path": folder, "collection": "rows"})
    partitions = source.reader(source.schema()).partitions()  # type: ignore[attr-defined, unused-ignore]
    largest = max(len(pickle.dumps(partition)) for partition in partitions)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(time.process_time() - before, memory, len(partitions), largest)


def committed(folder: str, executors: int) -> tuple[float, float, int]:
    """Upload by so many tasks, and commit once; return the CPU seconds of both, and the bytes of the commit."""
    planned = PlannedWrite.append(SinkOptions(location=os.path.abspath(folder), collection="rows", time=1, seal=2))
    schema, began = planned.target.schema.arrow, time.process_time()
    parts: list[Part] = []
    for number in range(executors):
        rows = {"k": [number], "v": [number], "_time": [1], "_diff": [1]}
        parts += upload(planned.target, [pa.table(rows).cast(schema)])
    uploaded, before = time.process_time(), stored_bytes(folder)
    planned.commit(parts)
    return uploaded - began, time.process_time() - uploaded, stored_bytes(folder) - before


if __name__ == "__main__":
    plan(sys.argv[1])
