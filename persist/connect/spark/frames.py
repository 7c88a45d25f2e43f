"""Fits the columns of DataFrames to a collection: matches names as Spark does, and casts exactly.

PySpark's `mapInArrow` looks columns up by their unquoted names, so a dot or a backtick in a name fails. So Spark sees
columns under simple names, and the functions of tasks see the original ones.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from persist.codecs.types.casts import cast_column
from persist.connect.spark.types import (
    convert_from_spark,
    convert_to_spark,
    quote_column,
    spark_schema,
    to_stored_schema,
)
from persist.connect.spark.workers import surface_errors

TaskFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def ignores_case(spark: SparkSession) -> bool:
    """Return whether a session ignores the case of column names."""
    return str(spark.conf.get("spark.sql.caseSensitive")).lower() != "true"


@contextmanager
def set_temporarily(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    """Set an option of a session within a `with`, for example while a query is planned."""
    old_value = spark.conf.get(name)
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.set(name, str(old_value))


def match_names(names: Sequence[str], known: Iterable[str], *, folds: bool = True) -> list[str]:
    """Return names in the spelling of the `known` names that they match.

    `folds`: ignore case. An exact match is preferred. A name with several matches stays as it is.
    """
    if not folds:
        return [*names]
    free: dict[str, list[str]] = {}
    for name in dict.fromkeys(known):
        if name not in names:
            free.setdefault(name.lower(), []).append(name)
    exact, folded = {*known}, [name.lower() for name in names]
    return [
        free[low][0] if name not in exact and len(free.get(low, ())) == 1 and folded.count(low) == 1 else name
        for name, low in zip(names, folded, strict=True)
    ]


def spell_columns(df: DataFrame, known: Iterable[str]) -> DataFrame:
    """Return df with its columns renamed to the spelling of `known` names."""
    names = match_names(df.columns, known, folds=ignores_case(df.sparkSession))
    return df if names == df.columns else df.toDF(*names)


def spell_name(value: Any, df: DataFrame) -> Any:
    """Return a name in the spelling of df's column; any other value unchanged."""
    if not isinstance(value, str):
        return value
    return match_names([value], df.columns, folds=ignores_case(df.sparkSession))[0]


def map_in_tasks(df: DataFrame, function: TaskFunction, schema: StructType | str) -> DataFrame:
    """Apply a function in tasks, as `DataFrame.mapInArrow`; columns may have any names."""
    plain = df.toDF(*(f"c{at}" for at in range(len(df.columns))))
    return plain.mapInArrow(_Renaming(function, tuple(df.columns)).__call__, schema)


@dataclass(frozen=True)
class _Renaming:
    """Calls a task function with batches under their original column names."""

    function: TaskFunction
    names: tuple[str, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self.function(pa.RecordBatch.from_arrays(batch.columns, self.names) for batch in batches)


def cast_exactly(df: DataFrame, fields: pa.Schema) -> DataFrame:
    """Return df's columns in `fields`, cast to their types without rounding.

    Tasks cast, because casts of Spark may round.
    """
    cast = _Cast(fields)
    cast.cast(to_stored_schema(df.schema).empty_table())
    target = spark_schema(fields)
    df = df.select(*map(quote_column, fields.names))
    if _list_types(df.schema) == _list_types(target):
        return df
    return map_in_tasks(df, cast.__call__, target)


def _list_types(schema: StructType) -> list[str]:
    return [field.dataType.simpleString() for field in schema]


@dataclass(frozen=True)
class _Cast:
    """Casts rows in a task to the types of a collection, and then to Spark's types for these."""

    fields: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema = spark_schema(self.fields)
        with surface_errors():
            for batch in batches:
                yield from convert_to_spark(self.cast(pa.Table.from_batches([batch])), schema).to_batches()

    def cast(self, rows: pa.Table) -> pa.Table:
        """Return rows in the types of the collection."""
        rows = convert_from_spark(rows.select(self.fields.names), self.fields)
        columns = [cast_column(rows.column(field.name), field.type, field.name) for field in self.fields]
        return pa.Table.from_arrays(columns, schema=self.fields)
