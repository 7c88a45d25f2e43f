"""Temporary views of the data source, columns, and reads at one seqno."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import persist
import persist.spark


@pytest.mark.thorough
def test_a_temporary_view_takes_options(spark: SparkSession, location: str) -> None:
    options = f"path '{location}', collection 'orders', as_of '9'"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW then USING persist OPTIONS ({options})")
    assert spark.sql("SELECT count(*) FROM then WHERE status = 'new'").collect()[0][0] == 2000


def test_reads_at_one_seqno_belong_together(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path)
    with persist.open(path) as client:
        a, b = (client.create_or_load(name, key={"id": pa.int64()}) for name in "ab")
        for time in range(3):
            with client.multi_write() as multi:
                for each in (a, b):
                    multi.write(each, [((time, None), time, 1)])
                    multi.seal(each, time + 1)
            if time == 1:
                seqno = multi.seqno

        def read(name: str, **options: Any) -> DataFrame:
            reader = spark.read.format("persist").options(collection=name, **options)
            return reader.load(path)

        assert read("a", seqno=seqno).count() == read("b", seqno=seqno).count() == 2
        assert read("a", seqno=seqno, form="changes", start=1, until=2).collect() == [(1, 1, 1)]
        refused: list[tuple[dict[str, Any], str]] = [
            ({"seqno": seqno, "as_of": 2}, "AsOfNotSealed"),
            ({"seqno": seqno, "form": "changes", "start": 0, "until": 3}, "AsOfNotSealed"),
            ({"seqno": 999}, "is not in the log"),
            ({"seqno": "x"}, "option seqno='x' is not a number"),
        ]
        for options, message in refused:
            with pytest.raises(PySparkException, match=message):
                read("a", **options).collect()
        b.drop().result()
        client.create_or_load("b", key={"id": pa.int64()})
        with pytest.raises(PySparkException, match="CollectionNotFound"):
            read("b", seqno=seqno)


def test_the_option_columns_takes_a_json_list(spark: SparkSession, location: str) -> None:
    reader = spark.read.format("persist").option("collection", "orders").option("columns", json.dumps(["amount", "id"]))
    assert reader.load(location).columns == ["amount", "id"]
