"""How the step of a dataflow grows with its state: one change of a join, and of groups of all records.

    python -m benchmarks.dataflow_growth [--records N …] [--plot FILE]

Milliseconds of CPU of this process, all threads: the median of some changes of one record each, at times of their own,
and the slowest of them. Groups are changed once before, because the first change of a large one ranks it. Prints a
table and draws the curves.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib
import numpy as np
import pyarrow as pa

from benchmarks.dataflows import counted, updates
from persist.dataflow import Grouped, Program, Running, Stream, col

RECORDS = (10_000, 100_000, 1_000_000, 10_000_000)
CHANGES = 100
Taken = list[float]
GROUPS: dict[str, Callable[[Grouped], Stream]] = {
    "min of one group": lambda group: group.agg(found=col("v").min()),
    "median of one group": lambda group: group.agg(found=col("v").median()),
    "top 10 of one group": lambda group: group.top_k(10, "v", descending=True),
}


def of_join(records: int) -> Taken:
    """Return what changes of a join and count took: nine of ten records are facts."""
    chance = np.random.default_rng(3)
    dimensions = records // 10
    program = Program("join")
    facts = program.input("facts", key={"id": pa.int64()}, value={"k": pa.int64()})
    others = program.input("dimensions", key={"k": pa.int64()}, value={"g": pa.int64()})
    counted(facts, others).probe()
    with program.open() as running:
        groups = chance.integers(0, dimensions // 10, dimensions)
        running["dimensions"].insert(updates({"k": np.arange(dimensions), "g": groups}, 0))
        running["dimensions"].close()
        many = records - dimensions
        keys = chance.integers(0, dimensions, many + CHANGES)
        running["facts"].insert(updates({"id": np.arange(many), "k": keys[:many]}, 0))
        _step(running, "facts", 1)
        found = []
        for at in range(1, CHANGES + 1):
            running["facts"].insert([((many + at, int(keys[many + at - 1])), at, 1)])
            found.append(_step(running, "facts", at + 1))
        return found


def of_group(make: Callable[[Grouped], Stream], records: int) -> Taken:
    """Return what changes of a group of so many records took: at its edges, and anywhere else."""
    chance = np.random.default_rng(5)
    program = Program("group")
    given = program.input("x", key={"g": pa.int64()}, value={"v": pa.int64()})
    make(given.group_by("g")).probe()
    with program.open() as running:
        values = chance.permutation(records) * 4
        running["x"].insert(updates({"g": np.zeros(records, np.int64), "v": values}, 0))
        _step(running, "x", 1)
        found = []
        low, high = 0, 4 * records - 4
        for at in range(1, CHANGES + 2):
            value, diff = int(chance.integers(0, records)) * 4 + 1, 1
            if at % 4 == 1:
                value, diff, low = low, -1, low + 4
            elif at % 4 == 3:
                value, diff, high = high, -1, high - 4
            running["x"].insert([((0, value), at, diff)])
            found.append(_step(running, "x", at + 1))
        return found[1:]


def _step(running: Running, name: str, upper: int) -> float:
    running[name].advance_to(upper)
    began = time.process_time()
    running.step()
    return (time.process_time() - began) * 1000


def draw(found: dict[str, dict[int, Taken]], path: Path) -> None:
    """Draw medians as lines, and the slowest changes as dots; both axes logarithmic."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    for name, taken in found.items():
        [line] = axes.plot(list(taken), [statistics.median(each) for each in taken.values()], marker="o", label=name)
        axes.plot(list(taken), [max(each) for each in taken.values()], ".", alpha=0.5, color=line.get_color())
    axes.set(xscale="log", yscale="log", xlabel="records of state", ylabel="milliseconds of CPU for one change")
    axes.set_ylim(0.05, 100)
    axes.grid(True, which="major", alpha=0.3)
    axes.legend(title="line: median; dot: slowest of 100", loc="upper left", fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)


def table(found: dict[str, dict[int, Taken]]) -> str:
    """Return medians, and the slowest changes, as a Markdown table."""
    sizes = list(next(iter(found.values())))
    lines = ["| one change, records of state | " + " | ".join(f"{size:,}" for size in sizes) + " |"]
    lines.append("|---" * (len(sizes) + 1) + "|")
    for name, taken in found.items():
        cells = [f"{statistics.median(each):.2f} ms (slowest {max(each):.1f})" for each in taken.values()]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(command_line: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.dataflow_growth",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--records", type=int, nargs="*", default=list(RECORDS))
    parser.add_argument("--plot", type=Path, default=Path("docs/inside/dataflow-growth.svg"))
    arguments = parser.parse_args(command_line)
    found = {"join and count": {count: of_join(count) for count in arguments.records}}
    for name, make in GROUPS.items():
        found[name] = {count: of_group(make, count) for count in arguments.records}
    print(table(found))
    draw(found, arguments.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
