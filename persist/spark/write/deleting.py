"""`persist.spark.delete`: retractions of what is there, found and uploaded by tasks."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from persist.codecs import DIGEST_MODULUS, CollectionSchema, canonical, digest_of, int64_array
from persist.errors import InvalidUsage, SchemaMismatch
from persist.sink import PlannedWrite
from persist.spark.surfaced_errors import surfaced_errors
from persist.spark.types import as_collection_expects, quoted
from persist.spark.workers import check_workers
from persist.spark.write.present import Condition, retracted
from persist.spark.write.ranged import UploadTask, is_ranged_by_key, ranged, upload_by_tasks
from persist.spark.write.updates import Rows
from persist.spark.write.upserting import upsert
from persist.spark.write.writing import write_options
from persist.timeline import Moment, begins_with_a_day


def delete(
    spark: SparkSession,
    location: str,
    collection: str,
    what: str | Column | DataFrame,
    *,
    time: int | Moment | None = None,
    token: str | None = None,
    partitions: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> None:
    """Retract what is there, at a time, which is sealed with it; what is not there is no error.

    It is one commit, and history stays; see `Collection.delete`. Of a keyed collection, events that delete keys are
    added, and nothing is sealed.

    Args:
        what: a condition on the records, as SQL text (`"amount > 5"`) or a column; or a DataFrame of keys, with the key
            columns and no others: all records with one of them. Of a keyed collection, a DataFrame of keys, with the
            columns of order_by where events are ordered.
        time: of the retractions; None means upper. Of a keyed collection, it must be given.
        token: names this deletion, so that doing it again does nothing.
        partitions: how many tasks write; None lets Spark choose.
        storage_options: as for `persist.open`.

    Raises:
        CollectionNotFound, SchemaMismatch, InvalidUsage: it does not fit; nothing was written.
        UpdateNotBeyondUpper: the time is sealed.
        UpperMismatch, UpdatesBeyondUpper: somebody else has sealed or added updates meanwhile.
    """
    if isinstance(time, str) and not begins_with_a_day(time):
        raise InvalidUsage(f"time={time!r} is no moment, and a deletion has one time: give a number or a moment")
    options = write_options(location, collection, "overwrite", time, None, token, partitions, storage_options)
    keys = what if isinstance(what, DataFrame) else None
    condition = None if isinstance(what, DataFrame) else Condition.of(what)
    check_workers(spark)
    planned = PlannedWrite.overwrite(options, None if condition is None else condition.text)
    if planned.target.keyed is not None:
        _delete_keyed(planned, keys, time, token, storage_options)
        return
    planned.check()
    schema = planned.target.schema
    digest = 0
    if keys is not None:
        keys = _checked(keys, schema)
        digest = _digest(keys, schema) if planned.is_compared else 0
    present = None if planned.is_done else retracted(spark, planned, options, condition)
    if present is None:
        planned.commit_deletion([], digest)
        return
    if keys is not None:
        present = _with_keys(present, keys, schema)
    rows = present.withColumn("_time", F.lit(planned.time).cast("long"))
    rows = ranged(rows, schema, partitions) if is_ranged_by_key(schema) else rows
    planned.commit_deletion(upload_by_tasks(rows, UploadTask(planned.target, Rows(schema))).parts, digest)


def _delete_keyed(
    planned: PlannedWrite,
    keys: DataFrame | None,
    time: int | Moment | None,
    token: str | None,
    storage_options: Mapping[str, Any] | None,
) -> None:
    target = planned.target
    if keys is None:
        raise InvalidUsage(
            f"what a condition finds in the keyed collection {target.name!r} depends on events that are not resolved "
            "yet. Give a DataFrame of keys."
        )
    if time is None:
        raise InvalidUsage(f"a deletion of keys of the keyed collection {target.name!r} is an event: give time=")
    events = keys.withColumn("_deleted", F.lit(True))
    upsert(events, target.location, target.name, time=time, token=token, storage_options=storage_options)


def _checked(keys: DataFrame, schema: CollectionSchema) -> DataFrame:
    wanted = [*schema.key_names]
    if not wanted:
        raise InvalidUsage("the collection has no key columns: delete by a condition")
    if sorted(keys.columns) != sorted(wanted):
        raise SchemaMismatch(f"the DataFrame of keys has the columns {keys.columns}, and the key is {wanted}")
    return keys.select(*map(_named, wanted)).distinct()


def _with_keys(present: DataFrame, keys: DataFrame, schema: CollectionSchema) -> DataFrame:
    """Return the present records with one of the keys, NULL and NaN among them."""
    # Under other names, because Spark confuses columns of frames that come from the same one.
    renamed = keys.toDF(*(f"_key_{at}" for at in range(len(schema.key_names))))
    equal = [F.col(quoted(name)).eqNullSafe(F.col(f"_key_{at}")) for at, name in enumerate(schema.key_names)]
    return present.join(renamed, reduce(and_, equal), "left_semi")


def _digest(keys: DataFrame, schema: CollectionSchema) -> int:
    rows = keys.mapInArrow(_KeysDigest(schema).__call__, "digest decimal(20,0)").collect()
    return sum(int(row.digest) for row in rows) % DIGEST_MODULUS


@dataclass(frozen=True)
class _KeysDigest:
    """Sums up the digest of distinct keys, each with a diff of 1, in tasks."""

    schema: CollectionSchema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        total = 0
        names = [*self.schema.key_names]
        wanted = pa.schema([self.schema.arrow.field(name) for name in names])
        with surfaced_errors():
            for batch in batches:
                keys = canonical(as_collection_expects(pa.Table.from_batches([batch]), wanted).cast(wanted))
                ones = int64_array(np.ones(len(keys), np.int64))
                total += digest_of(keys.append_column("_diff", ones), names)
        yield pa.record_batch({"digest": pa.array([total % DIGEST_MODULUS], pa.decimal128(20, 0))})


def _named(name: str) -> Column:
    return F.col(quoted(name))
