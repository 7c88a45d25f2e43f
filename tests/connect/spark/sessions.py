"""What tests of Spark share: names and types, options of a session for a while, what a collection holds."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import persist
import persist.spark
from persist.connect.spark.jar import JAR
from persist.connect.spark.types import quote_column

NAMES = ["a.b", "na`me", "with space", "é", "a.b.c`d e"]

# How contents are read: by Spark's own scan if it can, by the data source, and as a table of a catalog.
WAYS = ["native", "source", *(["catalog"] if JAR.exists() else [])]

# A value of each type of Spark that a collection keeps.
KEPT = {
    "BOOLEAN": "true",
    "TINYINT": "-128",
    "SMALLINT": "-32768",
    "INT": "-2147483648",
    "BIGINT": "-9223372036854775808",
    "FLOAT": "'NaN'",
    "DOUBLE": "1e-300D",
    "DECIMAL(10,2)": "1.25",
    "DECIMAL(38,38)": "0.1",
    "STRING": "'é'",
    "BINARY": "X'00FF'",
    "DATE": "DATE'0001-01-01'",
    "TIMESTAMP": "TIMESTAMP'9999-12-31 23:59:59.999999'",
    "TIMESTAMP_NTZ": "TIMESTAMP_NTZ'1582-10-05 00:00:00.000001'",
    "TIME(6)": "TIME'23:59:59.999999'",
    "INTERVAL DAY TO SECOND": "INTERVAL '-1 02:03:04.000005' DAY TO SECOND",
    "ARRAY<DATE>": "array(DATE'2026-01-01', NULL)",
    "MAP<STRING,BIGINT>": "map('a', 1L)",
    "STRUCT<`a.b`:INT,`c``d`:ARRAY<STRUCT<e:TIMESTAMP>>>": "named_struct('a.b', 1, 'c`d', array(NULL))",
}


@contextmanager
def conf(spark: SparkSession, **given: str) -> Iterator[None]:
    """Set options of a session, by the part of their names after `spark.sql.`, with `_` for `.`."""
    names = {name: f"spark.sql.{name.replace('_', '.')}" for name in given}
    before = {name: spark.conf.get(names[name]) for name in given}
    try:
        for name, value in given.items():
            spark.conf.set(names[name], value)
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(names[name], value)


def records(location: str, name: str) -> list[Any]:
    with persist.open(location, mode="read") as client:
        return sorted(client.load(name).snapshot().rows(), key=repr)


def name_catalog(spark: SparkSession, location: str) -> str:
    """Return the name of the catalog of a location in a session."""
    name = "at_" + hashlib.sha256(location.encode()).hexdigest()[:12]
    persist.spark.catalog(spark, location, name=name)
    return name


def read(spark: SparkSession, location: str, name: str, way: str, as_of: int | str | None = None) -> DataFrame:
    """Return contents, read one of the ways."""
    if way == "catalog":
        version = "" if as_of is None else f" VERSION AS OF {as_of!r}"
        return spark.sql(f"SELECT * FROM {name_catalog(spark, location)}.{quote_column(name)}{version}")
    native = None if way == "native" else False
    return persist.spark.snapshot(spark, location, name, as_of=as_of, native=native)
