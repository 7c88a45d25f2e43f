"""Each function of Spark with each type, under odd names, with ANSI on and off, and with and without regard to case."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import persist
import persist.spark
from persist.connect.spark.types import quote_column
from tests.connect.spark.sessions import KEPT, NAMES, WAYS, conf, read

NOT_KEYS = ("MAP<STRING,BIGINT>",)


def shown(df: DataFrame) -> list[str]:
    return sorted(map(repr, map(tuple, df.collect())))


@pytest.mark.thorough(except_every=len(KEPT))
@pytest.mark.costly("some sixty jobs for each type")
@pytest.mark.parametrize("number", range(len(KEPT)))
def test_each_function_takes_each_type_as_it_is(spark: SparkSession, tmp_path: Path, number: int) -> None:
    kind, path = [*KEPT][number], str(tmp_path)
    key, value = f"k{NAMES[number % len(NAMES)]}", NAMES[number % len(NAMES)]
    one = f"CAST({KEPT[kind]} AS {kind})"
    keys = "1L" if kind in NOT_KEYS else one
    is_ansi, minds_case = str(number % 2 == 0).lower(), str(number % 4 < 2).lower()
    with conf(spark, timeType_enabled="true", ansi_enabled=is_ansi, caseSensitive=minds_case):
        frame = spark.sql(
            f"SELECT {keys} AS {quote_column(key)}, {one} AS {quote_column(value)} UNION ALL SELECT NULL, NULL"
        )
        rows, only_keys = shown(frame), frame.select(quote_column(key))

        def check(name: str, wanted: list[str], what: str) -> None:
            for way in WAYS:
                found = read(spark, path, name, way)
                assert [f.dataType.simpleString() for f in found.schema] == [
                    f.dataType.simpleString() for f in frame.schema
                ]
                assert shown(found) == wanted, (kind, what, way)

        persist.spark.write(frame, path, "c", key=[key])
        check("c", rows, "write")
        persist.spark.delete(spark, path, "c", only_keys)
        check("c", [], "delete")
        writer: Any = frame.write.format("persist").option("collection", "c")
        writer.mode("append").save(path)
        # Spark has no ranges of nested keys, so it cannot replace a part of such a collection, and says so.
        refusal = pytest.raises(persist.InvalidUsage, match="first key field is nested")
        with refusal if keys == one and kind.startswith(("ARRAY", "STRUCT")) else nullcontext():
            persist.spark.write(frame, path, "c", mode="overwrite", where=f"{quote_column(key)} IS NULL OR true")
        check("c", rows, "overwrite")
        persist.spark.delete(spark, path, "c", f"{quote_column(key)} IS NOT NULL")
        persist.spark.foreach_batch_writer(
            path, {"c": lambda df: df.where(f"{quote_column(key)} IS NOT NULL")}, query_id="q"
        )(frame, 0)
        check("c", rows, "batch")
        alone = persist.spark.snapshot(spark, path, "c", columns=[value], native=False)
        assert shown(alone) == shown(frame.select(quote_column(value)))
        with persist.open(path) as client:
            schema = client.load("c").handle.schema
            kinds = {field.name: field.type for field in schema.arrow}
            client.create_or_load("u", key={key: kinds[key]}, value={value: kinds[value]}, keyed=persist.Keyed())
        for where in ("driver", "tasks"):
            persist.spark.upsert(frame.where(f"{quote_column(key)} IS NOT NULL"), path, "u", where=where)
        check("u", rows[:1] if "None" not in rows[0] else rows[1:], "upsert")
        persist.spark.delete(spark, path, "u", only_keys.where(f"{quote_column(key)} IS NOT NULL"))
        check("u", [], "delete of a keyed collection")
        with persist.open(path, mode="read") as client:
            upper = client.load("c").upper.time
            assert upper is not None
        at = only_keys.withColumn("at.", F.lit(upper - 1).cast("long"))
        joined = persist.spark.as_of_join(at, path, "c", time="at.").select(quote_column(key), quote_column(value))
        assert shown(joined) == rows
