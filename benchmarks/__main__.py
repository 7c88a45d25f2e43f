"""Speed as ratios: each measure and what it is compared with run in alternation, in one process, on this machine.

    python -m benchmarks [NAME …] [--rounds N] [--scale S] [--folder FOLDER] [--cpu]

Without names, all measures. A ratio is the median over rounds of (time of the peer / time of ours) in the same round,
so 2.0 means twice as fast. Each measure first makes sure that both sides give the same answer. Writes go to a folder
and are durable; reads come from the page cache, for both sides. See docs/run/performance.md.
"""

import argparse
import gc
import os
import platform
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from benchmarks import (
    basics,
    compaction,
    dataflow_durable,
    dataflows,
    documents,
    doors,
    evolved,
    latest,
    lookups,
    loops,
    mapped,
    merges,
    overwrites,
    points,
    publishing,
    requests,
    spark,
    steps,
    streams,
    travel,
    upserts,
    views,
    views_cold,
    views_growth,
)
from benchmarks.harness import Row, report
from benchmarks.workspace import Workspace

MEASURES: dict[str, Callable[[Workspace], list[Row]]] = {
    "write": basics.write,
    "read": basics.read,
    "tiny": basics.tiny,
    "compacted": latest.compacted,
    "tail": latest.tail,
    "raw": latest.raw,
    "flights": latest.flights,
    "log": latest.log,
    "history": travel.anytime,
    "versions": travel.versions,
    "feed": travel.feed,
    "aggregates": latest.aggregates,
    "points": points.points,
    "lookups": lookups.lookups,
    "mapped": mapped.mapped,
    "overwrites": overwrites.overwrites,
    "publish": publishing.publishing,
    "doors": doors.doors,
    "requests": requests.requests,
    "documents": documents.documents,
    "merges": merges.merges,
    "evolved": evolved.evolved,
    "steps": steps.steps,
    "append": streams.append,
    "upserts": upserts.upserts,
    "micro": streams.micro,
    "compaction": compaction.throughput,
    "amplification": compaction.amplification,
    "newest": compaction.newest,
    "dataflow": dataflows.join_and_count,
    "dataflow-state": dataflows.state,
    "dataflow-graphs": loops.graphs,
    "dataflow-durable": dataflow_durable.durable,
    "views": views.tpch,
    "views-cold": views_cold.cold,
    "views-growth": views_growth.growth,
    "spark": spark.snapshots,
    "spark-write": spark.write,
    "spark-streams": spark.streams,
}
PACKAGES = ("pyarrow", "numpy", "duckdb", "polars", "deltalake", "pyiceberg", "pyspark")


def main(command_line: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of measures: {', '.join(MEASURES)}")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--scale", type=float, default=1.0, help="so many times the size of the standard sets")
    parser.add_argument(
        "--folder", type=Path, help="where to write; tables of peers stay there for the next run. Else a temporary one"
    )
    parser.add_argument(
        "--memory", action=argparse.BooleanOptionalAction, default=True, help="also measure peak memory"
    )
    parser.add_argument(
        "--cpu",
        action="store_true",
        help="take CPU time of all threads, of both sides, in place of wall time: for a machine that others use, too",
    )
    parser.add_argument("--cold", action="store_true", help="of views: each refresh in a new process")
    arguments = parser.parse_args(command_line)
    if arguments.cold:
        arguments.names = [f"{name}-cold" for name in arguments.names]
    if unknown := [name for name in arguments.names if name not in MEASURES]:
        parser.error(f"no such measure: {', '.join(unknown)}; there are {', '.join(MEASURES)}")
    with tempfile.TemporaryDirectory(dir=arguments.folder, prefix="persist-bench-") as name:
        work = Workspace(
            Path(name),
            arguments.folder or Path(name),
            arguments.scale,
            arguments.rounds,
            arguments.memory,
            cpu=arguments.cpu,
        )
        # What the imports made is not garbage; without it, the collections between rounds are quick.
        gc.freeze()
        rows, failed = run(arguments.names or list(MEASURES), work)
        gc.unfreeze()
    versions = ", ".join(f"{package} {version(package)}" for package in PACKAGES)
    print(f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, {versions}")
    how = ", CPU time" if arguments.cpu else ""
    print(f"{time.strftime('%Y-%m-%d')}, scale {arguments.scale:g}, {arguments.rounds} rounds{how}\n")
    print(report(rows))
    for measure, text in work.explained.items():
        print(f"\n{measure}:\n\n```\n{text}\n```")
    return 1 if failed else 0


def run(names: list[str], work: Workspace) -> tuple[list[Row], list[str]]:
    """Run measures; return their rows, and the names of those that failed."""
    rows: list[Row] = []
    failed = []
    for name in names:
        began = time.perf_counter()
        try:
            rows += MEASURES[name](work)
        except Exception:  # One that fails must not cost the hour that the others took.
            traceback.print_exc()
            failed.append(name)
            rows.append(Row(name, "-", "-", "failed"))
        print(f"{name}: {time.perf_counter() - began:.1f} s", file=sys.stderr, flush=True)
    return rows, failed


if __name__ == "__main__":
    sys.exit(main())
