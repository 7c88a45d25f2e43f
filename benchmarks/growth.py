"""How cost grows with history: snapshot, open, append and point read after 1, 10, 100 and 1000 times as many updates.

    python -m benchmarks.growth [--rounds N] [--scale S] [--folder FOLDER] [--plot FILE]

The number of keys stays the same, so the contents do; only what was is more. Each history is maintained while it is
written, as a client with a background would do it, and nothing of it is given up. Prints a table and draws the curves.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pyarrow as pa

import persist
from benchmarks.harness import duration, megabytes
from benchmarks.histories import History
from benchmarks.ours import COLLECTION, FRUGAL
from benchmarks.targets import same_rows
from benchmarks.workspace import bytes_of

FACTORS = (1, 10, 100, 1000)
BASE = History(name="growth", keys=10_000, rows=20_000, batch_count=20, loaded=10_000)
READS = 20
PENDING_MAX = 50  # Batches in flight before the maintenance; so many are one commit or a few.


def history(factor: int, scale: float) -> History:
    """Return the history that is so many times as long, with batches of the same size and the same keys."""
    keys = max(10, round(BASE.keys * scale))
    batches = BASE.batch_count * factor
    per_batch = max(10, round(BASE.rows * scale) // BASE.batch_count)
    return History(name="growth", keys=keys, loaded=keys, rows=per_batch * batches, batch_count=batches)


def grown(data: History, location: str) -> None:
    """Write a history and maintain it."""
    with persist.open(location, settings=FRUGAL) as client:
        rows = client.create_or_load(COLLECTION, key=data.key, value=data.value)
        waiting = []
        for number, batch in enumerate(data.batches()):
            waiting.append(rows.write(batch.updates, seal=batch.upper))
            if len(waiting) == PENDING_MAX or number == data.batch_count - 1:
                for future in waiting:
                    future.result()
                waiting = []
                client.maintain()
        client.gc()


def costs(data: History, location: str, rounds: int) -> dict[str, float]:
    """Return the median seconds of each operation on a location that is there already."""
    chance = np.random.default_rng(3)
    keys = [int(key) for key in chance.integers(0, data.keys, READS)]

    def opened() -> None:
        with persist.open(location, mode="read") as client:
            client.load(COLLECTION)

    with persist.open(location, settings=FRUGAL) as client:
        rows: Any = client.load(COLLECTION)
        [expected] = data.contents([data.end - 1])
        assert same_rows(rows.snapshot(data.end - 1).to_arrow(), expected, ["id"]), "the contents are wrong"
        [last] = [batch.updates for batch in History(keys=100, rows=100, batch_count=1, inserts=1.0).batches()]
        at = [data.end]

        def append() -> None:
            stamped = last.set_column(4, "_time", pa.repeat(pa.scalar(at[0], pa.int64()), len(last)))
            rows.write(stamped, seal=at[0] + 1).result()
            at[0] += 1

        snapshot = rows.snapshot(data.end - 1)
        return {
            "snapshot": _median(lambda: rows.snapshot(data.end - 1).to_arrow(), rounds),
            "open": _median(opened, rounds),
            "point read": _median(lambda: [snapshot.get([key]) for key in keys], rounds) / READS,
            "append and seal of 100 rows": _median(append, rounds * 3),
        }


def _median(call: Callable[[], object], rounds: int) -> float:
    taken = []
    for _ in range(rounds + 1):
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[1:])


def table(found: dict[int, dict[str, float]], updates: dict[int, int], space: dict[int, int]) -> str:
    """Return what was found as a Markdown table."""
    names = list(next(iter(found.values())))
    lines = ["| history | updates | on storage | " + " | ".join(names) + " |", "|---" * (len(names) + 3) + "|"]
    for factor, row in found.items():
        cells = [f"{factor:,}x", f"{updates[factor]:,}", megabytes(space[factor]), *map(duration, row.values())]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def draw(found: dict[int, dict[str, float]], path: Path) -> None:
    """Draw the curves, both axes logarithmic."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    for name in next(iter(found.values())):
        axes.plot(list(found), [row[name] * 1000 for row in found.values()], marker="o", label=name)
    axes.set(xscale="log", yscale="log", xlabel="length of history, times the first", ylabel="milliseconds")
    axes.set_title("Cost against length of history, same keys")
    axes.grid(True, which="major", alpha=0.3)
    figure.legend(loc="outside lower center", ncols=4)  # Not over the curves.
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)


def main(command_line: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.growth", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--scale", type=float, default=1.0, help="so many times as many keys and updates per batch")
    parser.add_argument("--factors", type=int, nargs="*", default=list(FACTORS), help="lengths of history")
    parser.add_argument("--folder", type=Path, help="where to write; a temporary folder by default")
    parser.add_argument("--plot", type=Path, default=Path("docs/inside/performance-growth.svg"))
    arguments = parser.parse_args(command_line)
    found: dict[int, dict[str, float]] = {}
    updates, space = {}, {}
    with tempfile.TemporaryDirectory(dir=arguments.folder, prefix="persist-growth-") as name:
        for factor in arguments.factors:
            data, location = history(factor, arguments.scale), Path(name, f"times-{factor}")
            began = time.perf_counter()
            grown(data, str(location))
            updates[factor], space[factor] = data.rows, bytes_of(location)
            found[factor] = costs(data, str(location), arguments.rounds)
            print(f"{factor:,}x: {time.perf_counter() - began:.1f} s", file=sys.stderr, flush=True)
    print(table(found, updates, space))
    draw(found, arguments.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
