"""The latest contents of `cdc-5m`: compacted, with a tail of history on a keyframe, raw; and its aggregates."""

from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

import persist
from benchmarks.harness import Job, Measure, Row, Side
from benchmarks.targets import COLLECTION, same_rows
from benchmarks.workspace import Workspace, one_file, part_files

SET, TEXTS = "cdc-5m", "cdc-5m-texts"
COLUMNS = ["id", "name", "amount", "at"]


def compacted(work: Workspace) -> list[Row]:
    """All columns of the latest snapshot to Arrow, against reading the same parts."""
    location = work.compacted(SET)
    what = "pyarrow read_table of the same parts"
    files: Any = part_files(location)
    if not files:  # So small that it is all in the log.
        files, what = str(work.folder / "compacted.parquet"), "pyarrow read_table of one file"
        one_file(read_latest(location), work.folder / "compacted.parquet")
    measure = f"latest snapshot, {SET} compacted"
    return [_against_files(work, location, measure, what, ">= 0.85x", files)]


def tail(work: Workspace) -> list[Row]:
    """The latest snapshot of a keyframe and 5% of history after it, against one file of the result."""
    location = work.with_tail(SET)
    file = one_file(read_latest(location).sort_by("id"), work.folder / "tail.parquet")
    measure = f"latest snapshot, {SET}, keyframe plus a 5% tail"
    return [_against_files(work, location, measure, "pyarrow read_table of one file of the result", ">= 0.6x", file)]


def _against_files(work: Workspace, location: str, measure: str, what: str, reach: str, files: Any) -> Row:
    [expected] = work.data(SET).contents([work.data(SET).uppers[-1] - 1])
    with persist.open(location, mode="read") as client:
        rows = client.load(COLLECTION)

        def ours() -> pa.Table:
            return rows.snapshot().to_arrow()

        def theirs() -> pa.Table:
            return pq.read_table(files, columns=COLUMNS, partitioning=None)

        assert same_rows(ours(), expected, ["id"]), "our contents are wrong"
        assert same_rows(theirs(), expected, ["id"]), "the files hold other contents"
        work.explain(measure, rows.snapshot())
        job = Job(read_latest, [location])
        return Measure(measure, what, reach, Side(ours), [Side(theirs, "pyarrow")], job).run(work.rounds)


def raw(work: Workspace) -> list[Row]:
    """The latest snapshot of raw history, against DuckDB and Polars summing diffs over the same files."""
    location = work.raw(SET)
    files = part_files(location)
    [expected] = work.data(SET).contents([work.data(SET).uppers[-1] - 1])
    query = f"SELECT {_quoted(COLUMNS)} FROM read_parquet({files}) GROUP BY ALL HAVING sum(_diff) <> 0"
    with persist.open(location, mode="read") as client, duckdb.connect() as connection:
        rows = client.load(COLLECTION)
        sides = [
            Side(lambda: rows.snapshot().to_arrow()),
            Side(lambda: connection.sql(query).to_arrow_table(), "DuckDB"),
            Side(lambda: _by_polars(files), "Polars"),
        ]
        for side in sides:
            assert same_rows(side.call(), expected, ["id"]), f"{side.name} finds other contents"
        measure = f"latest snapshot, {SET}, raw history"
        work.explain(measure, rows.snapshot())
        job = Job(read_latest, [location])
        what = "DuckDB, Polars: group-by and filter over the same files"
        return [Measure(measure, what, ">= 1.2x of the better", sides[0], sides[1:], job).run(work.rounds)]


def _by_polars(files: list[str]) -> pa.Table:
    summed = pl.scan_parquet(files).group_by(COLUMNS).agg(pl.col("_diff").sum()).filter(pl.col("_diff") != 0)
    return summed.select(COLUMNS).collect().to_arrow()


def read_latest(location: str) -> pa.Table:
    """Read the latest snapshot."""
    with persist.open(location, mode="read") as client:
        return client.load(COLLECTION).snapshot().to_arrow()


def aggregates(work: Workspace) -> list[Row]:
    """How many rows there are, and a sum for each of 1,000 groups, against DuckDB, which has to consolidate first."""
    return [_count(work), _grouped_sum(work)]


def _count(work: Workspace) -> Row:
    location = work.raw(SET)
    query = f"SELECT sum(n) FROM ({_consolidated(part_files(location), 'sum(_diff) AS n')})"
    with persist.open(location, mode="read") as client, duckdb.connect() as connection:
        rows = client.load(COLLECTION)
        [[theirs]] = connection.sql(query).fetchall()
        assert rows.snapshot().count() == theirs, "the peer counts otherwise"
        measure = f"count(), {SET} raw"
        work.explain(measure, rows.snapshot())
        sides = [Side(lambda: connection.sql(query).fetchall(), "DuckDB")]
        job = Job(count, [location])
        ours = Side(lambda: rows.snapshot().count())
        return Measure(measure, "DuckDB, consolidating first", ">= 3x", ours, sides, job).run(work.rounds)


def _grouped_sum(work: Workspace) -> Row:
    location = work.raw(TEXTS)
    rows_of = _consolidated(part_files(location), "name, amount * sum(_diff) AS amount, sum(_diff) AS n")
    query = f"SELECT name, sum(amount) AS amount, sum(n)::BIGINT AS n FROM ({rows_of}) GROUP BY name"
    with persist.open(location, mode="read") as client, duckdb.connect() as connection:
        rows: Any = client.load(COLLECTION)

        def ours() -> pa.Table:
            return rows.snapshot().aggregate(["name"], {"amount": ("amount", "sum"), "n": ("id", "count")})

        def theirs() -> pa.Table:
            return connection.sql(query).to_arrow_table()

        assert same_rows(ours(), theirs(), ["name"]), "the peer sums otherwise"
        measure, job = f"sum and count by group, {SET} raw with {len(theirs()):,} groups", Job(grouped, [location])
        work.explain(measure, rows.snapshot())
        sides = [Side(theirs, "DuckDB")]
        return Measure(measure, "DuckDB, consolidating first", ">= 3x", Side(ours), sides, job).run(work.rounds)


def count(location: str) -> None:
    """Count, in a fresh process."""
    with persist.open(location, mode="read") as client:
        client.load(COLLECTION).snapshot().count()


def grouped(location: str) -> None:
    """Sum by group, in a fresh process."""
    with persist.open(location, mode="read") as client:
        rows: Any = client.load(COLLECTION)
        rows.snapshot().aggregate(["name"], {"amount": ("amount", "sum"), "n": ("id", "count")})


def _consolidated(files: list[str], select: str) -> str:
    return f"SELECT {select} FROM read_parquet({files}) GROUP BY {_quoted(COLUMNS)} HAVING sum(_diff) <> 0"


def _quoted(names: list[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)
