"""Readers of published tables that nobody here wrote, each of them as rows that can be compared with a snapshot's."""

import atexit
import os
import subprocess
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import persist


def by_deltalake(url: str) -> pa.Table:
    """Read a Delta table with delta-rs, by its query engine: its other readers know no deletion vectors."""
    deltalake = pytest.importorskip("deltalake")
    query = deltalake.QueryBuilder().register("published", deltalake.DeltaTable(url))
    return pa.table(query.execute("SELECT * FROM published").read_all())


def by_polars(url: str) -> pa.Table:
    """Read a Delta table with Polars."""
    polars = pytest.importorskip("polars")
    pytest.importorskip("deltalake")
    return polars.scan_delta(url).collect().to_arrow()


def by_duckdb(url: str) -> pa.Table:
    """Read a Delta table with DuckDB's extension."""
    return _by_duckdb("delta", "delta_scan", url)


CONNECTED_DUCKDB = """import duckdb, glob, io, json, os, pyarrow, sys
connection = duckdb.connect()
for path in sorted(glob.glob(os.environ["PYTHONPATH"] + "/duckdb_extension_*/extensions/*/*.duckdb_extension")):
    connection.execute(f"LOAD '{path}'")
"""
OTHER_DUCKDB = (
    CONNECTED_DUCKDB
    + """
for line in sys.stdin:
    extension, function, url = line.strip().split("\\t")
    connection.execute(f"LOAD {extension}")
    table = connection.execute(f"SELECT * FROM {function}(?)", [url]).to_arrow_table()
    sink = io.BytesIO()
    with pyarrow.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    sys.stdout.buffer.write(b"%d\\n" % len(sink.getvalue()) + sink.getvalue())
    sys.stdout.buffer.flush()
"""
)


@cache
def _other_duckdb(python: str) -> "subprocess.Popen[bytes]":
    """Return an interpreter that is given names of tables, and gives their rows."""
    running = subprocess.Popen([python, "-c", OTHER_DUCKDB], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    atexit.register(running.communicate)  # It ends when nobody asks any more.
    return running


def marks_of(reader: str, extension: str) -> "list[pytest.MarkDecorator]":
    """Return the marks of a reader: DuckDB's is skipped where it has no such extension, before anything is made."""
    if reader != "duckdb":
        return []
    if "PERSIST_DUCKDB_PYTHON" in os.environ:
        return [pytest.mark.outside]
    with duckdb.connect(config={"autoinstall_known_extensions": "false"}) as connection:  # Or it asks the network.
        try:
            connection.execute(f"LOAD {extension}")
        except duckdb.Error:
            return [pytest.mark.outside, pytest.mark.skip(reason=f"DuckDB's extension {extension} is not installed")]
    return [pytest.mark.outside]


def _by_duckdb(extension: str, function: str, url: str) -> pa.Table:
    """Read a table with an extension of DuckDB, if there is one for it here.

    Extensions for the DuckDB that queries are parsed with may be had later than it. `PERSIST_DUCKDB_PYTHON` names an
    interpreter that has an older one with its extensions from `duckdb-extension-delta` and `duckdb-extension-iceberg`.
    """
    other = os.environ.get("PERSIST_DUCKDB_PYTHON")
    if other is not None:
        running = _other_duckdb(other)
        asked, answers = running.stdin, running.stdout
        assert asked is not None
        assert answers is not None
        asked.write(f"{extension}\t{function}\t{url}\n".encode())
        asked.flush()
        size = int(answers.readline())
        return pa.ipc.open_stream(answers.read(size)).read_all()
    with duckdb.connect() as connection:
        connection.execute(f"LOAD {extension}")
        return connection.execute(f"SELECT * FROM {function}(?)", [url]).to_arrow_table()


DELTA: dict[str, Callable[[str], pa.Table]] = {"deltalake": by_deltalake, "polars": by_polars, "duckdb": by_duckdb}
delta_reader = pytest.mark.parametrize(
    "read", [pytest.param(read, marks=marks_of(name, "delta")) for name, read in DELTA.items()], ids=DELTA
)


def same_rows(table: pa.Table, collection: persist.Collection, as_of: int | None = None) -> int:
    """Check that a table that was read holds what a snapshot does; return how many rows that is."""
    snapshot = collection.snapshot(as_of)
    wanted = snapshot.to_arrow()
    assert set(table.column_names) == set(wanted.column_names)
    read = table.select(wanted.column_names).cast(wanted.schema)
    assert sorted(map(repr, _plain(read))) == sorted(map(repr, _plain(wanted)))
    return len(wanted)


def _plain(table: pa.Table) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def by_pyiceberg(url: str) -> pa.Table:
    """Read an Iceberg table from its metadata."""
    tables = pytest.importorskip("pyiceberg.table")
    return tables.StaticTable.from_metadata(url).scan().to_arrow()


def by_polars_iceberg(url: str) -> pa.Table:
    """Read an Iceberg table with Polars, by its own reader."""
    polars = pytest.importorskip("polars")
    tables = pytest.importorskip("pyiceberg.table")
    table = tables.StaticTable.from_metadata(url)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", polars.exceptions.PerformanceWarning)  # It plans with pyiceberg.
        return polars.scan_iceberg(table, reader_override="native").collect().to_arrow()


def by_duckdb_iceberg(url: str) -> pa.Table:
    """Read an Iceberg table with DuckDB's extension."""
    return _by_duckdb("iceberg", "iceberg_scan", url)


ICEBERG: dict[str, Callable[[str], pa.Table]] = {
    "pyiceberg": by_pyiceberg,
    "polars": by_polars_iceberg,
    "duckdb": by_duckdb_iceberg,
}
iceberg_reader = pytest.mark.parametrize(
    "read", [pytest.param(read, marks=marks_of(name, "iceberg")) for name, read in ICEBERG.items()], ids=ICEBERG
)
format_reader = pytest.mark.parametrize(
    ("form", "read"),
    [
        pytest.param(form, read, marks=marks_of(name, form), id=f"{form}-{name}")
        for form, readers in (("delta", DELTA), ("iceberg", ICEBERG))
        for name, read in readers.items()
    ],
)
