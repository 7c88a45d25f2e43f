"""The latest contents: of `cdc-5m` compacted, with a tail of history on a keyframe, raw; and its aggregates.

Also of raw history that is real (`flights`), and of such that only inserts (`log-20m`).
"""

from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

import persist
from benchmarks.harness import Job, Measure, Row, Side
from benchmarks.ours import COLLECTION, count, grouped, read_latest
from benchmarks.targets import same_rows
from benchmarks.workspace import Workspace, one_file

SET, TEXTS, LOG = "cdc-5m", "cdc-5m-texts", "log-20m"
COLUMNS = ["id", "name", "amount", "at"]


def compacted(work: Workspace) -> list[Row]:
    """All columns of the latest snapshot to Arrow, against reading the same parts."""
    measure, what = f"latest snapshot, {SET} compacted", "pyarrow read_table of the same parts"
    return [_against_files(work, SET, work.compacted(SET), measure, what, ">= 0.85x", work.result_files(SET))]


def tail(work: Workspace) -> list[Row]:
    """The latest snapshot of a keyframe and 5% of history after it, against one file of the result."""
    location = work.with_tail(SET)
    file = one_file(read_latest(location).sort_by("id"), work.folder / "tail.parquet")
    measure = f"latest snapshot, {SET}, keyframe plus a 5% tail"
    what = "pyarrow read_table of one file of the result"
    return [_against_files(work, SET, location, measure, what, ">= 0.6x", [file])]


def log(work: Workspace) -> list[Row]:
    """The latest snapshot of an insert-only collection, against reading the same parts."""
    measure, what = f"latest snapshot, {LOG}, insert-only", "pyarrow read_table of the same parts"
    return [_against_files(work, LOG, work.raw(LOG), measure, what, "-", work.raw_files(LOG))]


def _against_files(
    work: Workspace, name: str, location: str, measure: str, what: str, reach: str, files: list[str]
) -> Row:
    data = work.data(name)
    columns = [*data.key, *data.value]
    [expected] = data.contents([data.uppers[-1] - 1])
    with persist.open(location, mode="read") as client:
        rows = client.load(COLLECTION)

        def ours() -> pa.Table:
            return rows.snapshot().to_arrow()

        def theirs() -> pa.Table:
            return pq.read_table(files, columns=columns, partitioning=None)

        assert same_rows(ours(), expected, data.key), "our contents are wrong"
        assert same_rows(theirs(), expected, data.key), "the files hold other contents"
        del expected
        work.explain(measure, rows.snapshot())
        job = Job(read_latest, [location])
        return Measure(measure, what, reach, Side(ours), [Side(theirs, "pyarrow")], job).run(
            work.rounds, work.memory_of, work.clock
        )


def raw(work: Workspace) -> list[Row]:
    """The latest snapshot of raw history, against DuckDB and Polars summing diffs over the same files."""
    return [_consolidating(work, SET, ">= 1.2x of the better")]


def flights(work: Workspace) -> list[Row]:
    """The same of real data: where every aircraft was last sent."""
    return [_consolidating(work, "flights", "-")]


def _consolidating(work: Workspace, name: str, reach: str) -> Row:
    data, location, files = work.data(name), work.raw(name), work.raw_files(name)
    columns = [*data.key, *data.value]
    [expected] = data.contents([data.uppers[-1] - 1])
    query = f"SELECT {_quoted(columns)} FROM read_parquet({files}) GROUP BY ALL HAVING sum(_diff) <> 0"

    def by_polars() -> pa.Table:
        summed = pl.scan_parquet(files).group_by(columns).agg(pl.col("_diff").sum()).filter(pl.col("_diff") != 0)
        return summed.select(columns).collect().to_arrow()

    with persist.open(location, mode="read") as client, duckdb.connect() as connection:
        rows = client.load(COLLECTION)

        def ours() -> pa.Table:
            return rows.snapshot().to_arrow()

        def by_duckdb() -> pa.Table:
            return connection.sql(query).to_arrow_table()

        for found in (ours(), by_duckdb(), by_polars()):
            assert same_rows(found, expected, data.key), "one of them finds other contents"
        measure = f"latest snapshot, {name}, raw history"
        work.explain(measure, rows.snapshot())
        job = Job(read_latest, [location])
        what = "DuckDB, Polars: group-by and filter over the same files"
        sides = [Side(by_duckdb, "DuckDB"), Side(by_polars, "Polars")]
        compared = Measure(measure, what, reach, Side(ours), sides, job)
        return compared.run(work.rounds, work.memory_of, work.clock)


def aggregates(work: Workspace) -> list[Row]:
    """How many rows there are, and a sum for each of 1,000 groups, against DuckDB, which has to consolidate first."""
    return [_count(work), _grouped_sum(work)]


def _count(work: Workspace) -> Row:
    location = work.raw(SET)
    query = f"SELECT sum(n) FROM ({_consolidated(work.raw_files(SET), 'sum(_diff) AS n')})"
    with persist.open(location, mode="read") as client, duckdb.connect() as connection:
        rows = client.load(COLLECTION)
        [[theirs]] = connection.sql(query).fetchall()
        assert rows.snapshot().count() == theirs, "the peer counts otherwise"
        measure = f"count(), {SET} raw"
        work.explain(measure, rows.snapshot())
        sides = [Side(lambda: connection.sql(query).fetchall(), "DuckDB")]
        job = Job(count, [location])
        ours = Side(lambda: rows.snapshot().count())
        return Measure(measure, "DuckDB, consolidating first", ">= 3x", ours, sides, job).run(
            work.rounds, work.memory_of, work.clock
        )


def _grouped_sum(work: Workspace) -> Row:
    location = work.raw(TEXTS)
    rows_of = _consolidated(work.raw_files(TEXTS), "name, amount * sum(_diff) AS amount, sum(_diff) AS n")
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
        return Measure(measure, "DuckDB, consolidating first", ">= 3x", Side(ours), sides, job).run(
            work.rounds, work.memory_of, work.clock
        )


def _consolidated(files: list[str], select: str) -> str:
    return f"SELECT {select} FROM read_parquet({files}) GROUP BY {_quoted(COLUMNS)} HAVING sum(_diff) <> 0"


def _quoted(names: list[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)
