"""A query of which only some columns are read has the same answers."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession, Window
from pyspark.sql import functions as F

import persist
import persist.spark

ROWS = [(1, "new", 1.0), (2, "new", None), (3, "new", 3.0), (4, None, 3.0)]
QUERIES: dict[str, Any] = {
    "id,status,amount": [
        lambda rows: rows.dropna().groupBy("status").count(),
        lambda rows: rows.distinct().groupBy("status").count(),
        lambda rows: rows.exceptAll(rows.where("id = 1")).groupBy("status").count(),
        lambda rows: rows.intersect(rows.where("id < 3")).groupBy("status").count(),
        lambda rows: rows.select(F.to_json(F.struct("*")).alias("j")),
        lambda rows: rows.union(rows).limit(100).distinct().groupBy("status").count(),
        lambda rows: rows.persist().select("status"),
        lambda rows: rows.select("status").withColumn("n", F.lit(1)).unionByName(rows, allowMissingColumns=True),
    ],
    "status": [
        lambda rows: rows.dropDuplicates(["status"]).select("status"),
        lambda rows: rows.na.fill("none").groupBy("status").count(),
        lambda rows: rows.select("*").drop("id").groupBy("status").count(),
    ],
    "status,amount": [
        lambda rows: rows.drop("id").distinct(),
        lambda rows: rows.dropna(subset=["amount"]).groupBy("status").count(),
        lambda rows: rows.withColumn("n", F.sum("amount").over(Window.partitionBy("status"))).select("n"),
        lambda rows: rows.replace({1.0: 2.0}).groupBy("status").agg(F.max("amount")),
    ],
    "amount": [lambda rows: rows.select(F.udf(lambda v: str(v))("amount"))],
}


def test_a_query_of_which_columns_are_left_out_answers_the_same(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path)
    with persist.open(path) as client:
        c = client.create_or_load("c", key={"id": int}, value={"status": str, "amount": float})
        c.write([(id, (status, amount)) for id, status, amount in ROWS]).result()
    frame = spark.createDataFrame(ROWS, "id long, status string, amount double")
    for columns, queries in QUERIES.items():
        for number, query in enumerate(queries):
            assert ",".join(persist.spark.columns_used(frame, query)) == columns, (columns, number)
            found = persist.spark.pruned(spark, path, "c", query).collect()
            assert sorted(map(repr, found)) == sorted(map(repr, query(frame).collect())), (columns, number)
    with pytest.raises(persist.InvalidUsage, match="runs nothing"):
        persist.spark.columns_used(frame, lambda rows: rows.where(rows.amount > rows.count()))
