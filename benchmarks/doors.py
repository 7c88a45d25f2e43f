"""Queries through a server of SQL against the same in this process, COPY against Postgres, and loads of the catalog.

A look-up reads one row of 1M by its key; the server adds its part to `client.sql`. COPY sends 1M rows of five columns
in the binary format to psycopg, from Postgres 15 on this machine in alternation, if that is installed. A load of the
catalog is one request over HTTP, of a collection of 5M rows. With `--cpu`, times are of the CPU, of servers and clients
together.
"""

import statistics
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa

import persist
from benchmarks.harness import Row, Side, alternate, duration, times
from benchmarks.workspace import Workspace
from persist.services.serve.iceberg import serve_catalog

ROWS, LISTED = 1_000_000, 5_000_000
LOOKUPS, LOADS = 200, 20
QUIET = persist.Settings(background=False)
COPY = "COPY {} TO STDOUT (FORMAT BINARY)"


def doors(work: Workspace) -> list[Row]:
    """Look rows up, copy all of them, and load a table of the catalog."""
    rows = _rows(max(1000, round(ROWS * work.scale)))
    with ExitStack() as stack:
        client = stack.enter_context(persist.open(str(work.folder / "doors"), settings=QUIET))
        client.write("t", rows, key=["id"])
        client["t"].compact()
        servers = stack.enter_context(client.serve("grpc://127.0.0.1:0", postgres="127.0.0.1:0", sql=True))
        lines = [*_lookups(work, client, servers, len(rows)), _copied(work, servers.postgres_url, rows)]
    return [*lines, *_loaded(work)]


def _rows(count: int) -> pa.Table:
    chance = np.random.default_rng(5)
    columns = {"a": chance.integers(0, 1000, count), "b": chance.random(count), "c": chance.integers(0, 2**40, count)}
    names = pa.array([f"name {n % 997}" for n in range(count)])
    return pa.table({"id": pa.array(np.arange(count)), **columns, "name": names})


def _lookups(work: Workspace, client: Any, servers: Any, count: int) -> list[Row]:
    import adbc_driver_flightsql.dbapi as flightsql

    keys = np.random.default_rng(7).integers(0, count, LOOKUPS).tolist()
    with (
        psycopg.connect(servers.postgres_url + "?user=me", autocommit=True) as postgres,
        flightsql.connect(servers.url, autocommit=True) as connection,
        connection.cursor() as cursor,
    ):

        def by_flight(key: int) -> None:
            cursor.execute(f"SELECT * FROM t WHERE id = {key}")
            cursor.fetchall()

        calls: dict[str, Callable[[int], object]] = {
            "client.sql": lambda key: client.sql(f"SELECT * FROM t WHERE id = {key}").to_arrow(),
            "psycopg": lambda key: postgres.execute("SELECT * FROM t WHERE id = %s", (key,)).fetchall(),
            "Flight SQL": by_flight,
        }
        taken: dict[str, list[float]] = {name: [] for name in calls}
        for key in keys:
            for name, call in calls.items():
                began = work.clock()
                call(key)
                taken[name].append(work.clock() - began)
    medians = {name: statistics.median(each[LOOKUPS // 10 :]) for name, each in taken.items()}
    here = medians.pop("client.sql")
    return [
        Row(f"SELECT by key, {name}", "client.sql", "<= 2 ms more", duration(median), duration(here))
        for name, median in medians.items()
    ]


def _copied(work: Workspace, url: str, rows: pa.Table) -> Row:
    with ExitStack() as stack:
        ours = stack.enter_context(psycopg.connect(url + "?user=me", autocommit=True))
        sides = [Side(lambda: _drain(ours))]
        if (server := stack.enter_context(_running())) is not None:
            theirs = stack.enter_context(psycopg.connect(server))
            theirs.execute("CREATE TABLE t (id bigint, a bigint, b double precision, c bigint, name text)")
            with theirs.cursor().copy("COPY t FROM STDIN") as copy:
                for row in zip(*(column.to_pylist() for column in rows.columns), strict=True):
                    copy.write_row(row)
            theirs.commit()
            sides.append(Side(lambda: _drain(theirs), "Postgres"))
        taken = alternate(sides, work.rounds, work.tree_clock)
    shown = duration(statistics.median(taken[0]))
    if len(taken) == 1:
        return Row("COPY of 1M rows, binary", "Postgres, not installed", ">= 0.3", shown)
    ratios = [them / us for us, them in zip(*taken, strict=True)]
    other = duration(statistics.median(taken[1]))
    return Row("COPY of 1M rows, binary", "Postgres", ">= 0.3", shown, other, times(ratios))


def _drain(connection: Any) -> None:
    with connection.cursor().copy(COPY.format("t")) as copy:
        for _ in copy:
            pass


def _loaded(work: Workspace) -> list[Row]:
    count = max(1000, round(LISTED * work.scale))
    with persist.open(str(work.folder / "listed"), settings=QUIET) as client:
        c = client.create_or_load("t", key={"id": int}, value={"a": int, "b": float, "c": int, "name": str})
        held = _rows(count)
        c.write(held, time=0, seal=1).result()
        c.compact()
        options: dict[str, Any] = {"token": None, "insecure": False, "publish_interval_s": 0.0}
        with serve_catalog(client, "127.0.0.1:0", **options) as url:
            table = f"{url}/v1/namespaces/main/tables/t"
            _fetch(work, table)
            unchanged = [_fetch(work, table) for _ in range(LOADS)]
            changed = []
            for turn in range(1, LOADS + 1):
                fresh = {"id": pa.array(count + turn * 100 + np.arange(100))}
                more = pa.table({**fresh, **{name: held[name][:100] for name in ("a", "b", "c", "name")}})
                c.write(more, time=turn, seal=turn + 1).result()
                changed.append(_fetch(work, table))
    return [
        Row("load of an unchanged table", "-", "<= 10 ms", duration(statistics.median(unchanged))),
        Row("load with 100 new rows in 5M", "-", "<= 100 ms", duration(statistics.median(changed))),
    ]


def _fetch(work: Workspace, url: str) -> float:
    began = work.clock()
    with urllib.request.urlopen(url) as answer:
        answer.read()
    return work.clock() - began


@contextmanager
def _running() -> Iterator[str | None]:
    """Run a server of Postgres; yield where it is, None if it is not installed."""
    from tests.connect.ingest.servers import Server, postgres_programs

    programs = postgres_programs()
    if programs is None:
        yield None
        return
    with TemporaryDirectory() as folder:
        server = Server(programs, Path(folder))
        server.make()
        server.start()
        try:
            yield server.url
        finally:
            server.stop()
