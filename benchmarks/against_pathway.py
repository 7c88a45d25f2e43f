"""Dataflows against Pathway, which is built on differential dataflow: join and count, and reachability, in CPU time.

    python -m benchmarks.against_pathway [--rounds N] [--scale S] [--python FILE]

Makes an environment with Pathway in a temporary folder, by pip, or takes the Python of one that is there. The two
sides run in alternation, each in a process of its own with one thread. What is compared is the CPU time of that process
from when updates are given to when their result was seen: Pathway's from its Python connector to `subscribe`, ours from
an Arrow table to a capture. Conversion is in it on both sides, as far as each has any; making up the data is not. A
ratio is the median over rounds of (Pathway's / ours).

Of changes the mean is taken, as Linux counts the CPU time of a thread that still runs on another core only from tick to
tick: of Pathway's steps on a quiet machine, most seem to take 30 µs, and every tenth 2 ms.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import duration

VERSION = "0.33.0"
SIDE = Path(__file__).with_name("pathway_side.py")
BATCH = 100_000
Taken = dict[str, Any]


def counting(facts: int, changes: int, batches: int, *, texts: bool = False) -> Taken:
    """Count facts by what their dimension says."""
    from benchmarks.dataflows import Counting

    ours = Counting(facts, texts=texts)
    load = _cpu(ours.load)
    return {
        "load": load,
        "changes": [_inserted(ours, 1) for _ in range(changes)],
        "batches": [_inserted(ours, BATCH) for _ in range(batches)],
    }


def _inserted(ours: Any, count: int) -> float:
    table = ours.more(count)
    return _cpu(lambda: ours.insert(table))


def reachability(nodes: int, count: int, changes: int) -> Taken:
    """Keep the nodes that node 0 reaches."""
    import numpy as np

    from benchmarks.dataflows import updates
    from examples.dataflow import EDGES, reachable
    from persist.dataflow import Program

    chance = np.random.default_rng(5)
    edges = chance.integers(0, nodes, (count, 2))
    program = Program("reach")
    stream, roots = (
        program.input(name, key=key) for name, key in (("edges", EDGES), ("roots", {"node": EDGES["source"]}))
    )
    seen = reachable(stream, roots).capture()
    with program.open() as running:
        running["roots"].insert([((0, None), 0, 1)])
        running["roots"].close()

        def step(given: Any, at: int) -> None:
            running["edges"].insert(given)
            running["edges"].advance_to(at + 1)
            running.step()

        table = updates({"source": edges[:, 0], "target": edges[:, 1]}, 0)
        load, taken = _cpu(lambda: step(table, 0)), []
        for at in range(1, changes + 1):
            row, to = int(chance.integers(0, count)), chance.integers(0, nodes, 2).tolist()
            moved = [((tuple(edges[row].tolist()), None), at, -1), ((tuple(to), None), at, 1)]
            edges[row] = to
            taken.append(_cpu(lambda: step(moved, at)))  # noqa: B023
    return {"load": load, "changes": taken, "reached": sum(seen.updates()["_diff"].to_pylist())}


def _cpu(call: Callable[[], object]) -> float:
    began = time.process_time()
    call()
    return time.process_time() - began


OURS: dict[str, Callable[..., Taken]] = {
    "counting": counting,
    "texts": lambda *sizes: counting(*sizes, texts=True),
    "reachability": reachability,
}


def environment(folder: Path) -> str:
    """Make an environment with Pathway, and return its Python."""
    venv.create(folder, with_pip=True)
    python = str(folder / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "-q", f"pathway=={VERSION}"], check=True)
    return python


def compared(measure: str, sizes: Sequence[int], python: str, rounds: int) -> list[tuple[Taken, Taken]]:
    """Return what Pathway and we took, round by round."""
    arguments = [measure, *map(str, sizes)]
    sides = [
        [python, "-P", str(SIDE), *arguments],
        [sys.executable, "-m", "benchmarks.against_pathway", "--ours", *arguments],
    ]
    found = []
    for turn in range(rounds):
        order = (0, 1) if turn % 2 == 0 else (1, 0)
        taken = {at: _run(sides[at]) for at in order}
        found.append((taken[0], taken[1]))
    return found


def _run(command: Sequence[str]) -> Taken:
    one = dict.fromkeys(("PATHWAY_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OMP_THREAD_LIMIT"), "1")
    done = subprocess.run(command, env={**os.environ, **one}, stdout=subprocess.PIPE, text=True, check=True)
    found: Taken = json.loads(done.stdout.splitlines()[-1])
    return found


def lines(
    what: str, reach: str, found: Sequence[tuple[Taken, Taken]], of: Callable[[Taken], float], units: int
) -> list[str]:
    """Return the line of a measure: ratios, and times or rates."""
    theirs, ours = zip(*((of(peer), of(mine)) for peer, mine in found), strict=True)
    ratios = [peer / mine for peer, mine in zip(theirs, ours, strict=True)]

    def shown(taken: Sequence[float]) -> str:
        median = statistics.median(taken)
        return duration(median) if units == 1 else f"{duration(median)}, {units / median / 1e6:.2f}M/s"

    spread = f"{statistics.median(ratios):.2f}x ({min(ratios):.2f} to {max(ratios):.2f})"
    return [f"| {what} | {shown(ours)} | {shown(theirs)} | {spread} | {reach} |"]


def main(command_line: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.against_pathway",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--python", help="of an environment that has Pathway")
    arguments = parser.parse_args(command_line)
    with tempfile.TemporaryDirectory(prefix="persist-pathway-") as folder:
        report(arguments.python or environment(Path(folder)), arguments.rounds, arguments.scale)
    return 0


def report(python: str, rounds: int, scale: float) -> None:
    """Measure all, and print a table."""
    facts, nodes, edges = (int(count * scale) for count in (900_000, 10_000, 50_000))
    print(f"| CPU time | persist | Pathway {VERSION} | ratio | asked |\n|---|---|---|---|---|")
    for measure, kind in (("counting", ""), ("texts", ", texts as keys")):
        found = compared(measure, (facts, 200, 3), python, rounds)
        what = f"join and count of {facts:,} facts{kind}"
        reaches = ("10x", "1x", "10x") if measure == "counting" else ("5x", "0.5x", "5x")
        every = [
            *lines(f"{what}: load", reaches[0], found, lambda taken: taken["load"], facts),
            *lines("one new fact, mean", reaches[1], found, lambda taken: statistics.mean(taken["changes"]), 1),
            *lines(f"{BATCH:,} more", reaches[2], found, lambda taken: statistics.median(taken["batches"]), BATCH),
        ]
        print("\n".join(every), flush=True)
    found = compared("reachability", (nodes, edges, 100), python, rounds)
    what = f"reachability of {nodes:,} nodes, {edges:,} edges"
    every = [
        *lines(f"{what}: load", "-", found, lambda taken: taken["load"], 1),
        *lines("an edge moved, mean", "1x", found, lambda taken: statistics.mean(taken["changes"]), 1),
    ]
    print("\n".join(every), flush=True)


def ours(measure: str, *sizes: str) -> None:
    """Print what our side took, as JSON."""
    import pyarrow as pa

    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    print(json.dumps(OURS[measure](*map(int, sizes))))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--ours"]:
        ours(*sys.argv[2:])
    else:
        sys.exit(main())
