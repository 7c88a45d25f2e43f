"""Collections as assets of Dagster: an IO manager that writes and reads them, and a data version that is their upper.

An asset's result is what the collection of its name holds from then on, as one version of it; who depends on the asset
reads the collection. The data version of an asset is the upper of its collection, so Dagster knows from `persist`,
and not from its own runs, whether something is newer:

    defs = Definitions(assets=[orders, per_customer], resources={"persist": PersistIOManager("shop")})

Needs `pip install dagster`.
"""

from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc

import persist


class PersistIOManager(dg.IOManager):  # type: ignore[misc]  # Dagster's types are not followed.
    """Keeps assets as collections of one location; `metadata={"key": ["id"]}` of an asset gives its collection a key.

    An asset returns an Arrow table, or what `Collection.overwrite` takes. It is read as an Arrow table, at the time
    that the run finds sealed. An asset that writes its collection itself returns nothing.

    A partition of an asset replaces only its own rows: those whose column `metadata={"partition_by": "day"}` is the
    partition's key. If that is not said, it is the only column of the key. Rows of other partitions are refused.
    """

    def __init__(self, location: str, **options: Any) -> None:
        self.client = persist.open(location, **options)

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        """Make a collection hold what an asset has returned, in one commit, and tell Dagster its upper."""
        name = ".".join(context.asset_key.path)
        if obj is not None:
            key = (context.definition_metadata or {}).get("key")
            collection = self.client.create_or_load(name, like=obj, key=key)
            if context.has_asset_partitions:
                partition = context.asset_partition_key
                where = _is_of_partition(context, collection, partition)
                collection.overwrite(obj, where=where, token=f"{context.run_id} {partition}").result()
            else:
                collection.overwrite(obj, token=context.run_id).result()
        context.add_output_metadata({"upper": str(self.client.load(name).upper), "collection": name})

    def load_input(self, context: dg.InputContext) -> pa.Table:
        """Return what the collection of an asset holds."""
        return self.client.load(".".join(context.asset_key.path)).snapshot().to_arrow()


def _is_of_partition(context: dg.OutputContext, collection: persist.Collection, partition: str) -> pc.Expression:
    """Return the condition that is true for the rows of a partition."""
    metadata, key = context.definition_metadata or {}, collection.schema.key_names
    column = metadata.get("partition_by") or (key[0] if len(key) == 1 else None)
    if column not in collection.columns:
        raise persist.InvalidUsage(
            f"the asset {collection.name!r} has partitions, and no column says which rows are of {partition!r}: say "
            f'metadata={{"partition_by": "day"}}, with one of {", ".join(collection.columns)}'
        )
    kind = collection.schema.arrow.field(column).type
    try:
        return pc.field(column) == pa.scalar(partition).cast(kind)
    except pa.ArrowException as error:
        raise persist.InvalidUsage(
            f"the partition {partition!r} of {collection.name!r} is not a value of its column {column!r} "
            f"({kind}): {error}"
        ) from None


def observed(name: str, location: str, **options: Any) -> Any:
    """Return a source asset whose data version is the upper of a collection that others write."""

    @dg.observable_source_asset(name=name, io_manager_key="persist")  # type: ignore[untyped-decorator]
    def observe() -> dg.DataVersion:
        with persist.open(location, mode="read", **options) as client:
            return dg.DataVersion(str(client.load(name).upper))

    return observe
