"""How the refresh of an open view grows with what it is made of: one changed row of 10⁴, and of 10⁶ facts.

    python -m benchmarks views-growth

CPU milliseconds of this process, all threads, the median of some refreshes, each with its commit. Facts belong to ten
groups, and to as many accounts as there are hundreds of facts. A change takes one row away and puts another one there,
anywhere; for functions over a window it is the last row of its partition, because what stands behind a changed
row has another answer. Each group has been changed before, because that is when a large one is put in order.
"""

import statistics
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

import persist
from benchmarks.harness import Row
from benchmarks.workspace import Workspace
from persist.blob.stores.file import FileBlob

FACTS = (10_000, 1_000_000)
GROUPS = 10
REFRESHES = 15
REACH = "<= 2 times"
OVER = "OVER (PARTITION BY g ORDER BY x DESC, id)"
ANYWHERE = {
    "sum by group": "SELECT g, count(*) AS n, sum(x) AS total FROM facts GROUP BY g",
    "join and sum": "SELECT name, sum(x) AS total FROM facts JOIN accounts USING (a) GROUP BY name",
    "min and max by group": "SELECT g, min(x) AS low, max(x) AS high FROM facts GROUP BY g",
    "top 10": "SELECT id, x FROM facts ORDER BY x DESC, id LIMIT 10",
    "HAVING against a global share": (
        "SELECT a, sum(x) AS total FROM facts GROUP BY a HAVING sum(x) > (SELECT sum(x) * 0.0001 FROM facts)"
    ),
    "top 3 by group": f"SELECT * FROM (SELECT *, row_number() {OVER} AS r FROM facts) WHERE r <= 3",
    "all of rank 1 by group": "SELECT * FROM facts QUALIFY rank() OVER (PARTITION BY g ORDER BY x DESC) = 1",
}
AT_THE_END = {
    "row_number": f"SELECT id, row_number() {OVER} AS r FROM facts",
    "rank": "SELECT id, rank() OVER (PARTITION BY g ORDER BY x DESC) AS r FROM facts",
    "lag": f"SELECT id, x - lag(x) {OVER} AS d FROM facts",
    "running sum": f"SELECT id, sum(x) {OVER} AS total FROM facts",
    "running maximum": f"SELECT id, max(x) {OVER} AS most FROM facts",
}


def growth(work: Workspace) -> list[Row]:
    """What one changed row costs each view, of few facts and of many."""
    sizes = [max(1000, round(count * work.scale)) for count in FACTS]
    taken: dict[str, list[float]] = {}
    for facts in sizes:
        with persist.open(FileBlob(Path(work.folder) / f"growth-{facts}"), settings=_QUIET) as client:
            changing = _Facts(client, facts)
            for name, query in (ANYWHERE | AT_THE_END).items():
                taken.setdefault(name, []).append(_refreshes(client, changing, query, name in AT_THE_END))
                print(f"{name}, {facts:,} facts: {taken[name][-1]:.2f} ms", file=sys.stderr, flush=True)
    few, many = (f"{count:,} facts" for count in sizes)
    return [
        Row(f"one row changes: {name}", few, REACH, f"{large:.1f} ms", f"{small:.1f} ms", f"{large / small:.2f} times")
        for name, (small, large) in taken.items()
    ] + [Row("one row changes: sizes", few, "-", many, few, "-")]


_QUIET = persist.Settings(background=False)


class _Facts:
    """The facts of one location, and changes of one row."""

    def __init__(self, client: persist.Client, count: int) -> None:
        self._chance = np.random.default_rng(2)
        self._time = 1
        self._next = count
        numbers = np.arange(count)
        accounts = max(10, count // 100)
        self._accounts = accounts
        self._x = self._chance.integers(1000, 1_000_000, count)
        self._a = self._chance.integers(0, accounts, count)
        table = pa.table({"id": numbers, "g": numbers % GROUPS, "a": self._a, "x": self._x})
        client.write("facts", table, key=["id"], timeline=None, time=0, seal=1).result()
        names = [f"name {at % 1000}" for at in range(accounts)]
        rows = pa.table({"a": np.arange(accounts), "name": names})
        client.write("accounts", rows, key=["a"], timeline=None, time=0, seal=1).result()
        self._facts, self._dims = client.load("facts"), client.load("accounts")
        self._client = client
        self._last: dict[int, tuple[int, tuple[int, int, int]]] = {}

    def change(self, *, at_the_end: bool) -> None:
        """Replace one row of a group by another one; at_the_end, of those that stand last in it."""
        group = self._time % GROUPS
        new = (group, int(self._chance.integers(0, self._accounts)), int(self._chance.integers(1000, 1_000_000)))
        if at_the_end:
            new = (*new[:2], 999 - (self._time // GROUPS) % 900)
        updates = []
        if group in self._last and at_the_end == (self._last[group][1][2] < 1000):
            updates.append((self._last[group], self._time, -1))
        elif not at_the_end:
            id_ = group + GROUPS * int(self._chance.integers(0, len(self._x) // GROUPS))
            if self._x[id_]:
                updates.append(((id_, (group, int(self._a[id_]), int(self._x[id_]))), self._time, -1))
                self._x[id_] = 0
        self._last[group] = (self._next, new)
        updates.append(((self._next, new), self._time, 1))
        self._next += 1
        with self._client.multi_write() as multi:
            multi.write(self._facts, updates)
            for each in (self._facts, self._dims):
                multi.seal(each, self._time + 1)
        self._time += 1


def _refreshes(client: persist.Client, changing: _Facts, query: str, at_the_end: bool) -> float:
    name = f"v{time.monotonic_ns()}"
    taken = []
    view = client.create_view(name, query)
    view.open_state()
    for number in range(2 * GROUPS + REFRESHES):
        changing.change(at_the_end=at_the_end)
        began = time.process_time()
        view.refresh()
        if number >= 2 * GROUPS:
            taken.append((time.process_time() - began) * 1000)
    view.drop().result()
    return statistics.median(taken)
