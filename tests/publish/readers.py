"""Readers of published tables that nobody here wrote, each of them as rows that can be compared with a snapshot's."""

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
