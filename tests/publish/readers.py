"""Readers of published tables that nobody here wrote, each of them as rows that can be compared with a snapshot's."""

import warnings
from collections.abc import Callable
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
    """Read a Delta table with DuckDB's extension, which comes over the network or is there."""
    with duckdb.connect() as connection:
        try:
            connection.execute("LOAD delta")
        except duckdb.Error:
            pytest.skip("DuckDB's extension for Delta is not installed")
        return connection.execute("SELECT * FROM delta_scan(?)", [url]).to_arrow_table()


DELTA: dict[str, Callable[[str], pa.Table]] = {"deltalake": by_deltalake, "polars": by_polars, "duckdb": by_duckdb}
delta_reader = pytest.mark.parametrize("read", DELTA.values(), ids=DELTA)


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
    """Read an Iceberg table with DuckDB's extension, which comes over the network or is there."""
    with duckdb.connect() as connection:
        try:
            connection.execute("LOAD iceberg")
        except duckdb.Error:
            pytest.skip("DuckDB's extension for Iceberg is not installed")
        return connection.execute("SELECT * FROM iceberg_scan(?)", [url]).to_arrow_table()


ICEBERG: dict[str, Callable[[str], pa.Table]] = {
    "pyiceberg": by_pyiceberg,
    "polars": by_polars_iceberg,
    "duckdb": by_duckdb_iceberg,
}
iceberg_reader = pytest.mark.parametrize("read", ICEBERG.values(), ids=ICEBERG)
