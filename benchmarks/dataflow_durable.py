"""Dataflows on a folder: from a source that is sealed to a view that is sealed, in one process and across two; and a
restart.

A step is what `Running.step` takes from after the seal's future has resolved to its return, when the view is sealed and
durable: wall time, and CPU time of all threads. What the machine takes to make a file of 1 kB durable, as each commit
must, is measured apart in the same minute. Across two processes, one seals the source and the other one runs the
program; a step is the time between the moments at which their calls returned, by the clock that both share.
"""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

import persist
from benchmarks.dataflows import FACTS, Counting, counted, updates
from benchmarks.harness import Measure, Row, Side, duration
from benchmarks.workspace import Workspace
from persist.blob.stores.file import FileBlob
from persist.dataflow import Program

SIZES = ((1, "<= 4 ms"), (100, "<= 5 ms"), (10_000, "<= 12 ms"), (100_000, "<= 50 ms"))
ACROSS = 100  # Seals across two processes.


def durable(work: Workspace) -> list[Row]:
    """Measure steps, and a restart."""
    folder = Path(work.folder) / "dataflow"
    with persist.open(FileBlob(folder)) as client:
        model = Counting(int(FACTS * work.scale))
        source = _filled(client, model)
        rows = [_synced(folder)]
        began = time.perf_counter()
        with _program().open(client) as running:
            running.step()
            first = duration(time.perf_counter() - began)
            rows.append(Row(f"{model.number:,} facts: first step, durable", "-", "-", first))
            for size, reach in SIZES:
                taken = []
                for _ in range(5 * work.rounds):
                    _sealed(source, model, size)
                    taken.append(_timed(running.step))
                what = f"source sealed to view sealed, {size:,} updates: wall; CPU"
                rows.append(Row(what, "-", reach, "; ".join(map(_shown, zip(*taken, strict=True)))))
        rows.append(_across(folder, source, model))
        rows.append(_restart(client, work))
    return rows


def _filled(client: persist.Client, model: Counting) -> persist.Collection:
    source = client.create_or_load("facts", key={"id": pa.int64()}, value={"k": pa.int64()})
    other = client.create_or_load("dimensions", key={"k": pa.int64()}, value={"g": pa.int64()})
    other.write(updates({"k": np.arange(model.dimensions), "g": model.groups}, 0), seal=persist.Antichain())
    source.write(model.facts, seal=1).result()
    return source


def _sealed(source: persist.Collection, model: Counting, size: int) -> None:
    model.time += 1
    source.write(model.more(size), seal=model.time + 1).result()


def _program() -> Program:
    program = Program("counting")
    facts = program.source("facts", schema={"id": pa.int64(), "k": pa.int64()})
    dimensions = program.source("dimensions", schema={"k": pa.int64(), "g": pa.int64()})
    counted(facts, dimensions).persist("counts", key=["g"])
    return program


def _timed(call: Callable[[], object]) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - wall, time.process_time() - cpu


def _shown(taken: tuple[float, ...]) -> str:
    return f"{duration(statistics.median(taken))} ({duration(min(taken))} to {duration(max(taken))})"


def _synced(folder: Path) -> Row:
    """Measure what a durable file takes by itself: written, synced, and its name in the folder synced."""
    taken = []
    for number in range(50):
        path, began = folder / f"sync-{number}", time.perf_counter()
        file = os.open(path, os.O_CREAT | os.O_WRONLY)
        os.write(file, bytes(1000))
        os.fsync(file)
        os.close(file)
        place = os.open(folder, os.O_RDONLY)
        os.fsync(place)
        os.close(place)
        taken.append(time.perf_counter() - began)
        path.unlink()
    return Row("a file of 1 kB, synced, and its folder", "-", "-", _shown(tuple(taken)))


def _across(folder: Path, source: persist.Collection, model: Counting) -> Row:
    """Seal one fact at a time, while another process runs the program."""
    first = model.time + 1
    command = [sys.executable, "-m", "benchmarks.dataflow_durable", str(folder), str(first), str(ACROSS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        other.stdout.readline()  # It runs.
        taken = []
        for _ in range(ACROSS):
            _sealed(source, model, 1)
            sealed = time.monotonic()
            taken.append(float(other.stdout.readline()) - sealed)
            time.sleep(0.05)
    what = "the same across two processes, 1 update: wall"
    return Row(what, "-", "<= 15 ms", f"{_shown(tuple(taken))}, 90% {duration(float(np.percentile(taken, 90)))}")


def run(folder: str, first: str, count: str) -> None:
    """Run the program in this process; print when each of so many times of the view was sealed."""
    with persist.open(FileBlob(Path(folder))) as client, _program().open(client) as running:
        running.step()
        print("runs", flush=True)
        for time_ in range(int(first), int(first) + int(count)):
            running.run(until=time_)
            print(time.monotonic(), flush=True)


def _restart(client: persist.Client, work: Workspace) -> Row:
    def ours() -> None:
        with _program().open(client) as running:
            running.step()

    def sorted_once() -> None:
        for name in ("facts", "dimensions"):
            table = client.load(name).snapshot(form="diff").to_arrow()
            np.argsort(table["k"].to_numpy())

    peer = Side(sorted_once, "reading and sorting")
    return Measure("restart", "reading the inputs and sorting them once", "<= 1.5x its time", Side(ours), [peer]).run(
        work.rounds, work.memory_of, work.clock
    )


if __name__ == "__main__":
    run(*sys.argv[1:])
