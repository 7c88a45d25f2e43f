"""How small steps grow: a look-up, a followed step and a commit, against keys and against runs of history.

    python -m benchmarks.step_growth [--keys N …] [--runs N …] [--folder FOLDER] [--plot FILE]

Against keys, all keys are one run. Against runs, each run is a commit of one row, on 1,000 keys, without background: so
they are merged only when a writer has to wait for that, beyond a thousand. CPU milliseconds of this process, all
threads, the median of some tries. Prints a table and draws the curves.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import matplotlib
import numpy as np
import pyarrow as pa

import persist

KEYS, RUNS = (100_000, 1_000_000, 10_000_000), (10, 100, 1000, 10_000)
TRIES = 25
QUIET = persist.Settings(background=False, memory_budget=2 << 30)
LOOKED_UP = 1000
Costs = dict[str, float]


def of_keys(folder: Path, count: int) -> Costs:
    """Return what steps cost on that many keys of one run."""
    with persist.open(folder / f"keys-{count}", settings=QUIET) as client:
        made = _made(client)
        numbers = np.arange(count)
        updates = {"k": numbers, "a": numbers, "b": pa.array(numbers % 300).cast(pa.string())}
        made.write(pa.table(updates | {"_time": numbers * 0, "_diff": numbers * 0 + 1}), seal=1).result()
        return _costs(client, made, count, 1)


def of_runs(folder: Path, count: int) -> Costs:
    """Return what steps cost after that many commits of one row each."""
    with persist.open(folder / f"runs-{count}", settings=QUIET) as client:
        made = _made(client)
        for step in range(count):
            _step(client, made, step)
        return _costs(client, made, 1000, count)


def _made(client: persist.Client) -> persist.Collection:
    return client.create_or_load("c", key={"k": pa.int64()}, value={"a": pa.int64(), "b": pa.string()})


def _step(client: persist.Client, made: persist.Collection, time: int) -> None:
    with client.multi_write() as multi:
        multi.write(made, [((time % 1000, (time, f"value {time}")), time, 1)])
        multi.seal(made, time + 1)


def _costs(client: persist.Client, made: persist.Collection, keys: int, upper: int) -> Costs:
    chance = np.random.default_rng(1)
    snapshot = made.snapshot()
    wanted = [pa.table({"k": chance.choice(keys, min(LOOKED_UP, keys), replace=False)}) for _ in range(4)]
    for each in wanted * 2:
        snapshot.get(each)
    looked = [_cpu(lambda each=each: snapshot.get(each)) for each in wanted * (TRIES // 4)]  # type: ignore[misc]
    commits, follows = [], []
    with made.listen(upper - 1) as listen:
        for time in range(upper, upper + TRIES):
            commits.append(_cpu(lambda time=time: _step(client, made, time)))  # type: ignore[misc]
            follows.append(_cpu(lambda: next(listen)))
    return {
        f"look-up of {LOOKED_UP:,} keys": statistics.median(looked),
        "follow one row": statistics.median(follows),
        "write and seal one row": statistics.median(commits),
    }


def _cpu(call: Callable[[], object]) -> float:
    began = time.process_time()
    call()
    return (time.process_time() - began) * 1000


def draw(found: dict[str, dict[int, Costs]], path: Path) -> None:
    """Draw the curves side by side, all axes logarithmic."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, grid = pyplot.subplots(1, len(found), figsize=(9, 4), layout="constrained", sharey=True, squeeze=False)
    sides = grid[0]
    for axes, (what, costs) in zip(sides, found.items(), strict=True):
        for name in next(iter(costs.values())):
            axes.plot(list(costs), [row[name] for row in costs.values()], marker="o", label=name)
        axes.set(xscale="log", yscale="log", xlabel=what)
        axes.grid(True, which="major", alpha=0.3)
    sides[0].set_ylabel("milliseconds of CPU")
    figure.legend(*sides[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)


def table(found: dict[str, dict[int, Costs]]) -> str:
    """Return what was found as a Markdown table."""
    names = list(next(iter(next(iter(found.values())).values())))
    lines = ["| of | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for what, costs in found.items():
        for count, row in costs.items():
            lines.append(f"| {count:,} {what} | " + " | ".join(f"{row[name]:.2f} ms" for name in names) + " |")
    return "\n".join(lines)


def main(command_line: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.step_growth",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--keys", type=int, nargs="*", default=list(KEYS))
    parser.add_argument("--runs", type=int, nargs="*", default=list(RUNS))
    parser.add_argument("--folder", type=Path, help="where to write; a temporary folder by default")
    parser.add_argument("--plot", type=Path, default=Path("docs/inside/performance-steps.svg"))
    arguments = parser.parse_args(command_line)
    with tempfile.TemporaryDirectory(dir=arguments.folder, prefix="persist-steps-") as name:
        found = {
            "keys in one run": {count: of_keys(Path(name), count) for count in arguments.keys},
            "runs without background": {count: of_runs(Path(name), count) for count in arguments.runs},
        }
    print(table(found))
    draw(found, arguments.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
