"""Views: the queries of TPC-H kept up to date, against DuckDB computing them again in memory.

A refresh changes 0.1% of the orders and their lines: half of it goes, half of it comes. Times are CPU seconds of this
process, DuckDB's of its two threads, because the machines that run this are shared.
"""

import math
import statistics
import time
from pathlib import Path

import duckdb
import pyarrow as pa

import persist
from benchmarks.harness import Row, duration
from benchmarks.workspace import Workspace
from persist.blob import FileBlob
from persist.sql import View, open_together
from tests.sql.tpch import QUERIES, Refreshes, generated

SCALE = 0.1
REFRESHES = 5
UNTOUCHED = ("q2", "q11", "q16")  # They read neither orders nor lines.


def tpch(work: Workspace) -> list[Row]:
    """Each query as a view with commits of its own, then all of them in one commit per step; and their first build."""
    scale = SCALE * work.scale
    tables = generated(Path(work.folder) / f"tpch-{scale}", scale)
    peer = {name: _recomputed(sql, tables) for name, sql in QUERIES.items()}
    with persist.open(FileBlob(Path(work.folder) / "views")) as client:
        for name, table in tables.items():
            client.create_or_load(name, key=table.schema).write(_updates(table, 0, 1), seal=1).result()
        changing, at = Refreshes(tables, 1), 1
        views = {name: client.create_view(name, sql) for name, sql in QUERIES.items()}
        built, alone = {}, {}
        for name, view in views.items():
            built[name] = _timed(view)
            taken = []
            for _ in range(REFRESHES):
                at = _changed(client, changing, at)
                taken.append(_timed(view))
            alone[name] = statistics.median(taken)
            view.close()
        touched = [name for name in QUERIES if name not in UNTOUCHED]
        rows = [_row(f"{name}: refresh, durable", alone[name], peer[name], "-") for name in touched]
        rows.append(_mean("19 queries that change: refresh", alone, peer, touched, ">= 1"))
        rows.append(_mean("first build, all 22", built, peer, list(QUERIES), ">= 0.1"))
        with open_together(list(views.values())) as together:
            together.refresh()
            taken = []
            for _ in range(REFRESHES):
                at = _changed(client, changing, at)
                began = time.process_time()
                together.refresh()
                taken.append(time.process_time() - began)
        every = sum(peer[name] for name in touched)
        rows.append(_row("all 22 as views, one commit per step", statistics.median(taken), every, ">= 4"))
    return rows


def _changed(client: persist.Client, changing: Refreshes, at: int) -> int:
    """Change 0.1% of the orders and their lines, at one time; return where all tables are sealed then."""
    found = changing.step(0.001)
    with client.multi_write() as multi:
        for name in changing.tables:
            collection = client.load(name)
            gone, come = found.get(name, (None, None)) if name in ("orders", "lineitem") else (None, None)
            for rows, diff in ((gone, -1), (come, 1)):
                if rows is not None and rows.num_rows:
                    multi.write(collection, _updates(rows, at, diff))
            multi.seal(collection, at + 1)
    return at + 1


def _updates(rows: pa.Table, time_: int, diff: int) -> pa.Table:
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
