"""Where else than to a collection a data set can be written: plain Parquet, deltalake, pyiceberg; and comparing rows.

A store that knows versions and no times gets one version per seal, whose rows are the contents as of the last time
before it: deltalake by a merge, pyiceberg by deleting the touched keys and appending their rows in one transaction.
Plain Parquet gets the updates as they come, one file for each batch.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake

from benchmarks.datasets import DataSet
from benchmarks.histories import Step


def write_parquet(data: DataSet, folder: Path) -> None:
    """Write the updates as they come, a file for each batch."""
    folder.mkdir(parents=True)
    for number, batch in enumerate(data.batches()):
        pq.write_table(batch.updates, folder / f"{number:06}.parquet")


def write_delta(data: DataSet, folder: Path, *, change_feed: bool = False) -> None:
    """Write one version per seal: version i holds the contents as of the time before `uppers[i]`."""
    key = next(iter(data.key))
    configuration = {"delta.enableChangeDataFeed": "true"} if change_feed else None
    for number, step in enumerate(data.steps()):
        if number == 0:
            write_deltalake(folder, step.upserts, configuration=configuration)
        else:
            _merge(DeltaTable(folder), step, key, number)


def _merge(table: DeltaTable, step: Step, key: str, version: int) -> None:
    source = _marked(step)
    if not len(source):
        # A merge of nothing makes no version, and the version of a seal is found by its number.
        write_deltalake(table, step.upserts.schema.empty_table(), mode="append")
    else:
        (
            table.merge(source, f"t.{key} = s.{key}", source_alias="s", target_alias="t")
            .when_matched_delete("s._deleted")
            .when_matched_update({name: f"s.{name}" for name in step.upserts.column_names})
            .when_not_matched_insert({name: f"s.{name}" for name in step.upserts.column_names}, "NOT s._deleted")
            .execute()
        )
    assert table.version() == version, f"deltalake made version {table.version()}, not {version}"


def _marked(step: Step) -> pa.Table:
    """Return upserts and deletes as one table that says which is which."""
    kept = step.upserts.append_column("_deleted", pa.repeat(pa.scalar(False), len(step.upserts)))
    gone = step.deletes.append_column("_deleted", pa.repeat(pa.scalar(True), len(step.deletes)))
    return pa.concat_tables([kept, gone], promote_options="default")


def write_iceberg(data: DataSet, folder: Path) -> None:
    """Write one snapshot per seal. Slow, as pyiceberg is at this: seconds for each 10,000 touched keys."""
    from pyiceberg.expressions import In

    key = next(iter(data.key))
    table = iceberg_table(folder, pa.schema({**data.key, **data.value}))
    for number, step in enumerate(data.steps()):
        touched = {*step.upserts[key].to_pylist(), *step.deletes[key].to_pylist()}
        with table.transaction() as transaction:
            if number and touched:
                transaction.delete(In(key, touched))
            transaction.append(step.upserts)


def iceberg_table(folder: Path, schema: pa.Schema) -> Any:
    """Return a new pyiceberg table in a catalog of its own, in SQLite."""
    return _catalog(folder).create_table("bench.rows", schema=schema)


def read_iceberg(folder: Path) -> pa.Table:
    """Return the newest contents of what `write_iceberg` wrote."""
    return _catalog(folder).load_table("bench.rows").scan().to_arrow()


def _catalog(folder: Path) -> Any:
    from pyiceberg.catalog.sql import SqlCatalog  # Takes seconds to import, and few measures need it.

    folder.mkdir(parents=True, exist_ok=True)
    catalog = SqlCatalog("bench", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")
    catalog.create_namespace_if_not_exists("bench")
    return catalog


def net(updates: pa.Table) -> pa.Table:
    """Return updates with the diffs of those that are equal else summed, without those that cancel."""
    names = [name for name in updates.column_names if name != "_diff"]
    summed = updates.group_by(names).aggregate([("_diff", "sum")]).rename_columns([*names, "_diff"])
    return summed.filter(pc.not_equal(summed["_diff"], 0))


def same_rows(found: pa.Table, expected: pa.Table, by: Iterable[str]) -> bool:
    """Tell whether two tables hold the same rows, whatever their order and the flavour of their types.

    Rows are compared after sorting by these columns, which must tell all of them apart.
    """
    if len(found) != len(expected):
        return False
    order = [(name, "ascending") for name in by]
    aligned = found.select(expected.column_names).cast(expected.schema)
    return bool(aligned.sort_by(order).combine_chunks().equals(expected.sort_by(order).combine_chunks()))
