"""A destination of dlt: what any of its sources loads becomes collections, each file of a load exactly once.

A file of a load package is one commit, whose token is the load id and the name of the file. So a load that dlt repeats
after it was killed writes nothing twice:

    pipeline = dlt.pipeline("shop", destination=collections(location="s3://bucket/shop"))
    pipeline.run(source)

Tables that are merged become keyed collections with their primary key; a column with the hint `hard_delete` deletes.
Tables that are appended to become plain ones. New columns are added. Needs `pip install dlt`.
"""

from pathlib import Path
from typing import Any

import dlt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import persist


@dlt.destination(  # type: ignore[untyped-decorator]  # dlt's types are not followed.
    name="persist", batch_size=0, loader_file_format="parquet", loader_parallelism_strategy="sequential"
)
def collections(items: str, table: dict[str, Any], location: str = dlt.config.value) -> None:
    """Write a file of rows into the collection of its table.

    Args:
        items: the path of the file, which is LOAD_ID/started_jobs/TABLE.FILE_ID.RETRY.parquet.
        table: what dlt knows of the table.
        location: as of `persist.open`.
    """
    path = Path(items)
    rows = pq.read_table(path)
    rows = rows.select([name for name in rows.column_names if not name.startswith("_dlt_")])
    hints = table["columns"]
    key = [name for name in rows.column_names if hints.get(name, {}).get("primary_key")]
    disposition = table.get("write_disposition", "append")
    if disposition not in ("append", "merge") or (disposition == "merge" and not key):
        raise persist.InvalidUsage(
            f"the table {table['name']} has the write disposition {disposition!r}: a collection takes "
            "append, and merge with a primary key"
        )
    gone = next((name for name in rows.column_names if hints.get(name, {}).get("hard_delete")), None)
    if disposition == "merge" and gone is not None:
        deleted = pc.fill_null(rows[gone], False) if pa.types.is_boolean(rows[gone].type) else rows[gone].is_valid()
        rows = rows.drop_columns([gone]).append_column("_deleted", deleted)
    with persist.open(location) as client:
        collection = _collection(client, table["name"], rows, key, is_keyed=disposition == "merge")
        token = f"dlt {path.parent.parent.name} {path.name.split('.')[1]}"
        write = collection.upsert if disposition == "merge" else collection.write
        write(rows, token=token).result()


def _collection(
    client: persist.Client, name: str, rows: pa.Table, key: list[str], *, is_keyed: bool
) -> persist.Collection:
    """Return the collection of a table, with all columns of some rows."""
    types = {field.name: field.type for field in rows.schema if field.name != "_deleted"}
    if name not in client:
        keyed = persist.Keyed() if is_keyed else None
        values = {column: kind for column, kind in types.items() if column not in key}
        keys = {column: types[column] for column in key}
        return client.create_or_load(name, key=keys or None, value=values or None, timeline="ms", keyed=keyed)
    collection = client.load(name)
    added = {column: kind for column, kind in types.items() if column not in collection.columns}
    if added:
        collection.evolve(add=added)
    return client.load(name)
