"""Views: the queries of TPC-H kept up to date, against DuckDB computing them again in memory.

A refresh changes 0.1% of the orders and their lines: half of these are taken away, and the others are new ones. Times
are CPU seconds of this process, DuckDB's of its two threads, because the machines that run this are shared. What
compacts the tables is done between the refreshes: it belongs to their writers. `--scale 10` is scale 1 of TPC-H.
"""

import math
import statistics
import time
from collections.abc import Mapping
from pathlib import Path

import duckdb
import pyarrow as pa

import persist
from benchmarks.harness import Row, duration
from benchmarks.workspace import Workspace
from persist import View
from persist.blob.stores.file import FileBlob
from persist.compute.sql.graph import ViewProgram, load_views
from persist.sql import open_together
from tests.compute.sql.tpch import QUERIES, Refreshes, generated

SCALE = 0.1
REFRESHES = 5
UNTOUCHED = ("q2", "q11", "q16")  # They read neither orders nor lines.


def tpch(work: Workspace) -> list[Row]:
    """Each query as a view with commits of its own, then all of them in one commit per step; and their first build."""
    scale = SCALE * work.scale
    tables = generated(Path(work.folder) / f"tpch-{scale}", scale)
    peer = {name: _recomputed(sql, tables) for name, sql in QUERIES.items()}
    with persist.open(FileBlob(Path(work.folder) / "views"), settings=persist.Settings(background=False)) as client:
        for name, table in tables.items():
            client.create_or_load(name, key=table.schema).write(updates(table, 0, 1), seal=1).result()
        changing, at, engine = Refreshes(tables, 1), 1, client.engine
        views = {name: client.create_view(name, sql) for name, sql in QUERIES.items()}
        touched = [name for name in QUERIES if name not in UNTOUCHED]
        built, alone, computed = {}, {}, {}
        for name, view in views.items():
            built[name] = _timed(view)
            view.open_state()  # A first build keeps none.
            change = changed if name in touched else _parts_changed
            computing = ViewProgram(engine, load_views(engine, {view.id: name}), is_rehearsal=True).open(engine)
            computing.run()
            taken, bare = [], []
            for _ in range(REFRESHES):
                at = change(client, changing, at)
                taken.append(_timed(view))
                began = time.process_time()
                computing.run()
                bare.append(time.process_time() - began)
            alone[name], computed[name] = statistics.median(taken), statistics.median(bare)
            computing.close()
            view.close()
        rows = [_row(f"{name}: refresh, durable", alone[name], peer[name], "-") for name in touched]
        rows.append(_mean("19 queries that change: refresh", alone, peer, touched, ">= 1"))
        rows.append(_mean("the same, computed without a commit", computed, peer, touched, ">= 4"))
        rows.append(
            _mean("Q2, Q11, Q16: parts, their suppliers: refresh", alone, peer, list(UNTOUCHED), ">= 3 (scale 1)")
        )
        rows.append(_mean("first build, all 22", built, peer, list(QUERIES), ">= 0.1"))
        with open_together(list(views.values())) as together:
            together.refresh()
            taken = []
            for _ in range(REFRESHES):
                at = changed(client, changing, at)
                began = time.process_time()
                together.refresh()
                taken.append(time.process_time() - began)
        every = sum(peer[name] for name in touched)
        rows.append(_row("all 22 as views, one commit per step", statistics.median(taken), every, ">= 4"))
        rows.append(_hundred(client, changing, at))
    return rows


def _hundred(client: persist.Client, changing: Refreshes, at: int) -> Row:
    """Return how long a step of 100 views of one changing collection takes, against that of one."""
    sql = "SELECT l_shipmode, count(*) AS n, sum(l_quantity) AS q FROM lineitem WHERE l_suppkey % 100 = {} GROUP BY 1"
    views = [client.create_view(f"part {n}", sql.format(n)) for n in range(100)]
    taken = {}
    for count in (1, 100):
        with open_together(views[:count]) as together:
            together.open_state()
            each = []
            for _ in range(REFRESHES):
                at = changed(client, changing, at)
                began = time.process_time()
                together.refresh()
                each.append(time.process_time() - began)
        taken[count] = statistics.median(each)
    times = f"{taken[100] / taken[1]:.1f} times"
    return Row("100 views of lines", "one of them", "<= 20 times", duration(taken[100]), duration(taken[1]), times)


def _parts_changed(client: persist.Client, changing: Refreshes, at: int) -> int:
    """Change 0.1% of parts, of suppliers and of who supplies what, at one time; return where all is sealed then."""
    return _written(
        client, changing, at, {name: changing.some(name, 0.001) for name in ("part", "supplier", "partsupp")}
    )


def changed(client: persist.Client, changing: Refreshes, at: int) -> int:
    """Change 0.1% of the orders and their lines, at one time; return where all tables are sealed then."""
    return _written(client, changing, at, changing.replaced(0.001))


def _written(
    client: persist.Client, changing: Refreshes, at: int, found: Mapping[str, tuple[pa.Table, pa.Table]]
) -> int:
    with client.multi_write() as multi:
        for name in changing.tables:
            collection = client.load(name)
            gone, come = found.get(name, (None, None))
            for rows, diff in ((gone, -1), (come, 1)):
                if rows is not None and rows.num_rows:
                    multi.write(collection, updates(rows, at, diff))
            multi.seal(collection, at + 1)
    client.maintain()
    return at + 1


def updates(rows: pa.Table, time_: int, diff: int) -> pa.Table:
    for name, value in (("_time", time_), ("_diff", diff)):
        rows = rows.append_column(name, pa.array([value] * rows.num_rows))
    return rows


def _timed(view: View) -> float:
    began = time.process_time()
    view.refresh()
    return time.process_time() - began


def _recomputed(sql: str, tables: dict[str, pa.Table]) -> float:
    with duckdb.connect(":memory:", config={"threads": 2}) as connection:
        for name, table in tables.items():
            connection.register("given", table)
            connection.execute(f"CREATE TABLE {name} AS SELECT * FROM given")
        taken = []
        for _ in range(5):
            began = time.process_time()
            connection.execute(sql).fetchall()
            taken.append(time.process_time() - began)
    return statistics.median(taken)


def _row(measure: str, ours: float, theirs: float, reach: str) -> Row:
    return Row(measure, "DuckDB", reach, duration(ours), duration(theirs), f"{theirs / ours:.2f}")


def _mean(measure: str, ours: dict[str, float], theirs: dict[str, float], names: list[str], reach: str) -> Row:
    ratios = [theirs[name] / ours[name] for name in names]
    mean = math.exp(statistics.fmean(map(math.log, ratios)))
    return Row(f"{measure}, geometric mean (least {min(ratios):.2f})", "DuckDB", reach, "-", "-", f"{mean:.2f}")
