"""A schema that changed: a scan of 100 parts, half of them older than a column, against the same scan without it.

CPU time of the library alone, in alternation, who goes first by turns. All read all rows and the same columns: of a
collection that was always like that, of one that got a column half way, and of one where one was widened and renamed.
The ratio is of the least times, because what others do to the machine's caches only ever adds.
"""

import time

import numpy as np
import pyarrow as pa

import persist
from benchmarks.harness import Row, duration
from benchmarks.workspace import Workspace

PARTS, ROWS = 100, 20_000  # Of each part: enough for a blob of its own.


def evolved(work: Workspace) -> list[Row]:
    """Scan what evolved half way, and what did not."""
    rows = max(2000, round(ROWS * work.scale))
    sides: dict[str, list[float]] = {"plain": [], "added": [], "widened": []}
    with persist.open(str(work.folder / "evolved"), settings=persist.Settings(background=False)) as client:
        collections = {name: _filled(client, name, rows) for name in sides}
        for turn in range(max(work.rounds, 3) + 1):
            names = list(sides) if turn % 2 else list(reversed(sides))
            for name in names:
                began = time.process_time()
                assert collections[name].snapshot(columns=COLUMNS[name]).to_arrow().num_rows == PARTS * rows
                sides[name].append(time.process_time() - began)
    found = []
    for name in ("added", "widened"):
        ratio = min(sides["plain"]) / min(sides[name])
        against = f"one that was always like that, {duration(min(sides['plain']))} of CPU"
        shown = f"{duration(min(sides[name]))} of CPU, {ratio:.2f} times as fast"
        found.append(Row(f"scan of {PARTS} parts, half before a column was {name}", against, ">= 0.9", shown))
    return found


COLUMNS = {name: ["k", "a", "b", "s", "note"] for name in ("plain", "added")} | {
    "widened": ["k", "c", "b", "s", "note"]
}


def _filled(client: persist.Client, name: str, rows: int) -> persist.Collection:
    a = pa.int64() if name != "widened" else pa.int32()
    fields = {"a": a, "b": pa.float64(), "s": pa.string()} | ({} if name == "added" else {"note": pa.string()})
    found = client.create_or_load(name, key={"k": pa.int64()}, value=fields)
    for part in range(PARTS):
        if part == PARTS // 2 and name == "added":
            found.evolve(add={"note": pa.string()})
        if part == PARTS // 2 and name == "widened":
            found.evolve(rename={"a": "c"}, widen={"a": pa.int64()})
        numbers = np.arange(part * rows, (part + 1) * rows)
        table = {"k": numbers, "a": numbers * 7, "b": numbers / 3, "s": [f"{n % 500}" for n in range(rows)]}
        if "note" in found.schema.names:
            table["note"] = pa.nulls(rows, pa.string())
        if "c" in found.schema.names:
            table["c"] = table.pop("a")
        arrow = found.schema.arrow
        columns = {each: pa.array(values, arrow.field(each).type) for each, values in table.items()}
        found.write(pa.table(columns), time=part)
    found.seal(PARTS).result()
    return found
