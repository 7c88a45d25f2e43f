"""Small steps: what one row costs to write, to seal and to read, and how soon a follower sees it.

    python -m benchmarks steps
    python -m benchmarks.steps LOCATION NOTIFY OPTIONS    what the measure starts as the other process

There is no peer: CPU time of the library alone, and wall time from a resolved seal to what follows it in this
process, in another one, and in one that is told by a server and never polls.
"""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

import persist
from benchmarks.harness import Row, duration
from benchmarks.workspace import Workspace
from persist.blob.url import open_blob
from persist.codecs.part.decoding import decode_part
from persist.codecs.part.stream import encode_parts
from persist.codecs.types.schema import CollectionSchema
from persist.codecs.updates.updates import to_updates
from persist.core.log.keys import make_record_key
from tests.support.servers.fixtures import make_bucket, options_of, running_moto

KEY, VALUE = {"k": pa.int64()}, {"a": pa.int64(), "b": pa.string()}
BLOCK = 100
STEPS = 60
QUIET = persist.Settings(background=False)


def steps(work: Workspace) -> list[Row]:
    """Measure one step after the other, each on a location of its own."""
    return [*_parts(), *_commits(work), *_polls(work), *_seen(work)]


def _parts() -> Iterator[Row]:
    schema = CollectionSchema.of(KEY, VALUE)
    table = to_updates([((1, (2, "some text")), 3, 1)], schema)
    ((data, part),) = encode_parts(table, schema, batch_bytes_max=1 << 14)
    encoding = _cpu(lambda: encode_parts(table, schema, batch_bytes_max=1 << 14))
    decoding = _cpu(lambda: decode_part(data, part, schema))
    yield Row("encode a batch of one row, with the check that readers accept it", "-", "<= 0.5 ms", duration(encoding))
    yield Row("verify and decode it", "-", "<= 0.3 ms", duration(decoding))


def _commits(work: Workspace) -> Iterator[Row]:
    """Write and seal one row, with what a client does in the background, ever later in the history."""
    blocks = max(3, round(50 * work.scale))
    with persist.open(str(work.folder / "steps-commits")) as client:
        target = client.create_or_load("c", key=KEY, value=VALUE)
        for block in range(blocks):
            began = time.process_time()
            for step in range(BLOCK):
                _write(client, target, block * BLOCK + step)
            if block in (1, blocks // 2, blocks - 1):
                taken = f"{duration((time.process_time() - began) / BLOCK)} of CPU"
                yield Row(f"write and seal one row after {block * BLOCK:,} commits", "-", "<= 3 ms", taken)


def _polls(work: Workspace) -> Iterator[Row]:
    """Follow in the same process, without compaction."""
    blocks = max(3, round(15 * work.scale))
    with persist.open(str(work.folder / "steps-polls"), settings=QUIET) as client:
        source = client.create_or_load("c", key=KEY, value=VALUE)
        listen, seen = source.listen(), []
        for block in range(blocks):
            cpu = 0.0
            for step in range(BLOCK):
                _write(client, source, block * BLOCK + step)
                wall, began = time.perf_counter(), time.process_time()
                assert len(next(listen).updates) == 1
                cpu += time.process_time() - began
                seen.append(time.perf_counter() - wall)
            if block in (0, blocks - 1):
                taken = f"{duration(cpu / BLOCK)} of CPU"
                yield Row(f"poll one row after {(block + 1) * BLOCK:,} runs", "-", "flat", taken)
    yield Row("sealed to seen, same process", "-", "<= 2 ms", _spread(seen))


def _seen(work: Workspace) -> Iterator[Row]:
    """Follow in another process: one that polls a folder, and those that are told, on a folder and on S3."""
    folder = str(work.folder / "steps")
    yield Row("sealed to seen, other process polling a folder", "-", "<= 10 ms, 30 ms", _spread(_delays(folder, False)))
    told = "sealed to seen, other process told by a server, never polling"
    yield Row(f"{told}, on a folder", "-", "<= 15 ms", _spread(_delays(f"{folder}-told", True)))
    with running_moto() as endpoint:
        options = options_of(endpoint)
        location = f"s3://{make_bucket(options)}/told"
        yield Row(f"{told}, on S3 (moto)", "-", "<= 15 ms", _spread(_delays(location, True, options)))
        yield Row("of that, one GET, as moto answers in the same run", "-", "-", _spread(_gets(location, options)))


def _delays(location: str, is_told: bool, options: dict[str, Any] | None = None) -> list[float]:
    """Return the seconds from each resolved seal to when another process had what was sealed."""
    taken = []
    with persist.open(location, settings=QUIET, storage_options=options) as client:
        source = client.create_or_load("c", key=KEY, value=VALUE)
        _write(client, source, 0)
        url = client.serve("grpc://127.0.0.1:0").url if is_told else ""
        command = [sys.executable, "-m", "benchmarks.steps", location, url, json.dumps(options)]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        with child:
            child.stdout.readline()
            for step in range(1, STEPS):
                time.sleep(0.05)
                _write(client, source, step)
                sealed = time.time()
                taken.append(float(child.stdout.readline()) - sealed)
            source.seal(persist.Antichain()).result()
    return taken


def _gets(location: str, options: dict[str, Any]) -> list[float]:
    """Return the seconds of GETs of a record, one at a time."""
    taken, store = [], open_blob(location, options)
    for _ in range(STEPS):
        time.sleep(0.05)
        began = time.perf_counter()
        assert store.get(make_record_key(1)) is not None
        taken.append(time.perf_counter() - began)
    return taken


def follow(location: str, notify: str, options: str) -> None:
    """Print when each step was seen."""
    settings = persist.Settings(background=False, poll_s=3600 if notify else "by store")
    with persist.open(
        location, mode="read", settings=settings, notify=notify or None, storage_options=json.loads(options)
    ) as client:
        for progress in client["c"].listen():
            if progress.upper.time is not None:
                print(time.time(), flush=True)


def _write(client: persist.Client, target: persist.Collection, time: int) -> None:
    with client.multi_write() as multi:
        multi.write(target, [((time % 1000, (time, f"value {time}")), time, 1)])
        multi.seal(target, time + 1)


def _cpu(call: Callable[[], object], repeats: int = 1000) -> float:
    """The CPU seconds of a call, the least of some tries."""
    tries = []
    for _ in range(5):
        began = time.process_time()
        for _ in range(repeats // 5):
            call()
        tries.append((time.process_time() - began) / (repeats // 5))
    return min(tries)


def _spread(taken: list[float]) -> str:
    ordered = sorted(taken)
    p99 = ordered[min(len(ordered) - 1, round(len(ordered) * 0.99))]
    return f"{duration(statistics.median(ordered))}, p99 {duration(p99)}"


if __name__ == "__main__":
    follow(*sys.argv[1:4])
