"""Making collections known to a session by a name of their own: `USING orders` in SQL, `format("orders")` in Python.

Spark 4.3 forgets the options of `CREATE TABLE … USING persist OPTIONS (…)` when a Python data source reads the table. A
name that has its location and collection in it needs none.
"""

import re
from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import CaseInsensitiveDict

from persist.errors import InvalidUsage
from persist.spark.data_source import PersistDataSource
from persist.spark.options.parsing import STORAGE
from persist.spark.workers import check_workers

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def register(
    spark: SparkSession,
    name: str | None = None,
    *,
    location: str | None = None,
    collection: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> None:
    """Make `format("persist")` known to a session; or, with a name, a source of that name for one collection.

    With a name, `CREATE TABLE t USING <name>` reads and writes the collection, and so does `format("<name>")`. What is
    given where it is used (`SELECT … FROM t WITH (as_of = 10)`, `.option("as_of", 10)`) comes before what is given
    here.

    Args:
        name: letters, digits and underscores.
        location, collection: needed with a name, and of no use without one.
        options: any others of `format("persist")`, for reading and writing alike.

    Raises:
        InvalidUsage: the name cannot be one, or is "persist"; or what goes with it is missing.
    """
    check_workers(spark)
    if name is None:
        if location is not None or collection is not None or options or storage_options:
            raise InvalidUsage(
                'register(spark, …) with a location or options needs a name: register(spark, "orders", …)'
            )
        spark.dataSource.register(PersistDataSource)
        return
    if not _NAME.fullmatch(name) or name.lower() == "persist":
        raise InvalidUsage(f"{name!r} cannot be the name of a source: use letters, digits and _, and not 'persist'")
    if location is None or collection is None:
        raise InvalidUsage(f"the source {name!r} needs location= and collection=")
    given = {"path": location, "collection": collection, **{key: str(value) for key, value in options.items()}}
    given |= {f"{STORAGE}{key}": str(value) for key, value in (storage_options or {}).items()}
    spark.dataSource.register(_named(name, given))


def _named(its_name: str, given: dict[str, str]) -> type[PersistDataSource]:
    class NamedSource(PersistDataSource):
        """One collection."""

        def __init__(self, options: Mapping[str, str]) -> None:
            merged = CaseInsensitiveDict(given)
            merged.update(options)
            super().__init__(merged)

        @classmethod
        def name(cls) -> str:
            return its_name

    return NamedSource
