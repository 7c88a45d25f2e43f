"""`persist.spark.write` and `persist.spark.delete`: batch writes whose rows Spark ranges and sorts by key beforehand.

To replace or delete records, Spark reads them before the commit. The tasks that upload new rows also upload
their retractions.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from persist.codecs.order.arrays import make_int64_array
from persist.codecs.order.digest import DIGEST_MODULUS, compute_digest
from persist.codecs.order.ordering import make_canonical
from persist.codecs.types.arrow_types import contains_map
from persist.codecs.types.schema import CollectionSchema
from persist.compute.tasks.planned_write import PlannedWrite, Target
from persist.connect.spark.data_source.source import register
from persist.connect.spark.data_source.writers import (
    DataFrameWrite,
    commit_difference,
    create_target,
    find_replaced_time,
)
from persist.connect.spark.frames import (
    cast_exactly,
    ignores_case,
    map_in_tasks,
    set_temporarily,
    spell_columns,
    spell_name,
)
from persist.connect.spark.options import write_options
from persist.connect.spark.read_functions.locations import snapshot
from persist.connect.spark.read_functions.store import find_unused_name
from persist.connect.spark.types import convert_from_spark, quote_column
from persist.connect.spark.uploads import (
    RESERVED,
    Rows,
    UploadTask,
    is_ranged_by_key,
    partition_by_key,
    upload_by_tasks,
)
from persist.connect.spark.workers import explain_missing_collection, surface_errors
from persist.connect.spark.write_functions.conditions import Condition
from persist.connect.spark.write_functions.upserting import update, upsert
from persist.core.antichain import Antichain
from persist.core.errors import DuplicateKeys, InvalidUsage, SchemaMismatch
from persist.core.expression.filters import parse_where
from persist.core.timeline import Moment
from persist.engine.location.opening import choose_write_mode, load_handle, read_engine
from persist.engine.read.keyed.key_replacement import make_kept_filter
from persist.engine.write.write_options import WriteMode, choose_mode

PUSHES = "spark.sql.python.filterPushdown.enabled"  # The data source reads what a condition needs.
SAME_KEYS = "its key is one of the rows"  # In place of the text of a condition, in the digest of an upsert.


def write(
    df: DataFrame,
    location: str,
    collection: str,
    *,
    mode: WriteMode | None = None,
    key: Sequence[str] | None = None,
    timeline: Any = ...,
    where: str | Column | None = None,
    multiset: bool = False,
    time: int | Moment | None = None,
    seal: int | Moment | Antichain | None = None,
    token: str | None = None,
    partitions: int | None = None,
    allow_future: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> None:
    """Write a DataFrame to a collection as one commit, ranged and sorted by key.

    `df.write.format("persist")` does the same with rows in the order that df has, because a data source cannot sort.
    Parts whose keys do not overlap need not be merged when they are read. Sorting takes a shuffle; to choose ranges of
    keys, Spark computes df twice, so cache it if that is expensive. Rows are not sorted, and parts may overlap, if all
    rows have one key, or if Spark orders keys otherwise than parts do (nested values).

    Args:
        df: updates, with columns `_time` and `_diff`; or plain rows, see time. It also has the columns of the
            collection, in any order.
        mode: "append" adds the rows. "overwrite" makes the contents equal to df: it writes the difference from the last
            sealed contents as updates at one time, and history stays. Rows may not repeat a key, but see multiset.
            "upsert" does the same for the keys of df only. "update" changes the columns that df has, of keys that exist
            (`Collection.update`), on the driver, in memory in proportion to df. "error" refuses a collection that
            exists. None means "append" for updates and without a key, and "upsert" with key=; without both, a
            collection with a key refuses plain rows.
        key: the key of the collection, [] for none. A missing collection is created with the columns of df, and so is
            a missing location. An existing collection must have this key.
        timeline: of a new collection, as in `Client.write`.
        where: to overwrite only the records for which this condition is true: SQL text, such as
            "day = '2026-11-21'", or a column. It must be true for all rows of df.
        multiset: with "overwrite", allow several rows of a key; a row that df has twice gets multiplicity 2.
        time: of every row, or of the difference if mode overwrites. None, for rows without `_time`, means the time of
            the commit, which seals after it. Text that does not begin with a day is the name of the column with the
            time of each row. On a timeline, times may be moments, and columns (also `_time`) may have timestamps; they
            must be exact.
        seal: the upper to seal to in the same commit, beyond all that is written; `Antichain()` is complete for ever.
            None means not to seal if times are named; to overwrite, it means time + 1.
        token: names this write, so that a repetition does nothing; see `Collection.write`. A repetition computes df, to
        check that it is the same, and uploads nothing.
        partitions: how many tasks write. None lets Spark choose by the size of the data, up to
            `spark.sql.shuffle.partitions`.

    Raises:
        CollectionNotFound, SchemaMismatch, InvalidUsage: it does not fit; nothing was written.
        UpdateNotBeyondUpper, FrontierRegression: a time or the seal is behind upper; nothing was written.
        UpperMismatch, UpdatesBeyondUpper: overwriting at a fixed time, and another writer has sealed or added updates
        meanwhile. Without a time, the difference is computed again then, and so is df.
        DuplicateKeys: overwriting, and rows of df repeat a key, or have the key of a row that stays.
        Errors in tasks, such as repeated keys, are raised as Spark's, with ours in the message.
    """
    df = spell_columns(df, RESERVED)
    has_diffs = "_diff" in df.columns
    chosen = choose_mode(mode, has_key=bool(key), has_diffs=has_diffs)
    if mode == "error" and key is None:
        raise InvalidUsage('mode="error" creates the collection: it goes with key=')
    options = write_options(
        location, collection, spell_name(time, df), seal, token, partitions, storage_options, allow_future=allow_future
    )
    condition = None if where is None else Condition.of(where)
    if condition is not None and chosen != "overwrite":
        raise InvalidUsage(f'where={condition.text!r} goes with mode="overwrite": to append, filter the DataFrame')
    if multiset and chosen != "overwrite":
        raise InvalidUsage('multiset=True goes with mode="overwrite": to append, keys may have several rows anyway')
    register(df.sparkSession)
    folds = ignores_case(df.sparkSession)
    if chosen == "update":
        update(df, options, key)
        return
    if key is not None:
        options = replace(options, key=(key,) if isinstance(key, str) else tuple(key))
        create_target(options, df.schema, timeline=timeline, is_new=mode == "error", folds=folds)
    elif timeline is not ...:
        raise InvalidUsage(f"timeline={timeline!r} applies only to a new collection: it goes with key=")
    if mode is None and key is None:
        with explain_missing_collection(collection), read_engine(options.location, options.storage) as engine:
            chosen = choose_write_mode(load_handle(engine, collection), None, names_key=False, has_diffs=has_diffs)
    if chosen == "append":
        write = DataFrameWrite.append(options, df.schema, folds=folds)
        planned = write.planned
        frame = df if planned.is_done else partition_by_key(df, planned.target.schema, partitions)
        uploaded = upload_by_tasks(frame, write.task)
        planned.commit(uploaded.parts, uploaded.digest)
    else:
        text = SAME_KEYS if chosen == "upsert" else None if condition is None else condition.text
        write = DataFrameWrite.overwrite(replace(options, multiset=multiset), df.schema, text, folds=folds)
        if is_ranged_by_key(write.planned.target.schema):
            df = cast_exactly(
                spell_columns(df, write.planned.target.schema.names), _list_fields(write.planned.target.schema)
            )
            if not (multiset or write.planned.is_done):
                _check_nested_keys(df, write.planned.target)
            with set_temporarily(df.sparkSession, PUSHES, "true"):
                write.planned.commit_with_retries(
                    lambda planned: _overwrite(df, replace(write, planned=planned), partitions, condition)
                )
        elif chosen == "upsert":
            raise InvalidUsage(
                f"Spark has no ranges of keys of {collection!r}, whose first key field is nested or whose columns "
                "differ by case only. Use Collection.upsert."
            )
        else:
            _overwrite_on_driver(df, write, condition)


def _check_nested_keys(df: DataFrame, target: Target) -> None:
    """Raise DuplicateKeys if rows repeat a key that has nested columns."""
    keys = [*target.schema.key_names]
    if any(pa.types.is_nested(target.schema.arrow.field(name).type) for name in keys):
        repeated = df.groupBy(*map(quote_column, keys)).count().where("count > 1").drop("count").limit(10).collect()
        if repeated:
            raise DuplicateKeys(target.name, [tuple(row) for row in repeated], "overwrite")


def _overwrite(df: DataFrame, write: DataFrameWrite, partitions: int | None, condition: Condition | None) -> None:
    """Commit the difference of new and present rows, which tasks compute in ranges of keys."""
    planned = write.planned
    if planned.is_done:
        planned.commit([], upload_by_tasks(df, write.task).digest)
        return
    schema, time = planned.target.schema, planned.time
    # New rows count +1, present ones -1: tasks, which sum equal rows, are left with the difference.
    is_flat = not any(pa.types.is_nested(schema.arrow.field(name).type) for name in schema.key_names)
    one_per_key = is_flat and not write.multiset
    if one_per_key and condition is not None:
        _check_kept_keys(df, planned, condition)
    marker = find_unused_name("_is_new", schema.arrow.names) if planned.digest_columns or one_per_key else None
    rows, by = Rows(schema), planned.digest_columns
    task = UploadTask(planned.target, rows, digest_by=by, marker=marker, one_per_key=one_per_key)
    updates = _union_with_present(df, planned, marker, condition).withColumn("_time", F.lit(time).cast("long"))
    uploaded = upload_by_tasks(partition_by_key(updates, schema, partitions), task)
    is_single = one_per_key and condition is None
    planned.commit([part.mark_single() if is_single else part for part in uploaded.parts], uploaded.digest)


def _overwrite_on_driver(df: DataFrame, write: DataFrameWrite, condition: Condition | None) -> None:
    """Commit the difference of new and present rows, which the driver computes."""
    planned = write.planned
    if condition is not None:
        raise InvalidUsage(
            f"where={condition.text!r} cannot be used here: Spark has no ranges of keys of this collection, whose "
            "first key field is nested or whose columns differ by case only. Use Collection.overwrite(rows, where=…)."
        )
    new = upload_by_tasks(df, write.task)
    try:
        commit_difference(planned, new, multiset=write.multiset)
    finally:
        with planned.target.open_writer() as writer:
            writer.discard(new.parts)  # No record ever names these.


def _union_with_present(
    df: DataFrame, planned: PlannedWrite, marker: str | None, condition: Condition | None
) -> DataFrame:
    """Return new rows with diff 1 and present rows with diff -1; `marker` is true for new rows."""
    once = F.lit(1).cast("long")
    new = df.withColumn(
        "_diff",
        once if condition is None else F.when(condition.column, once).otherwise(condition.make_failing_column(df)),
    )
    new = new if marker is None else new.withColumn(marker, F.lit(True))
    present = retract(df.sparkSession, planned, condition)
    if present is None:
        return new
    if planned.where == SAME_KEYS:
        present = _keep_keys(present, df, planned.target.schema.key_names)
    present = present if marker is None else present.withColumn(marker, F.lit(False))
    return reduce(DataFrame.unionByName, [new, present])


def _keep_keys(present: DataFrame, df: DataFrame, names: Sequence[str]) -> DataFrame:
    """Return the present rows whose key is in df."""
    aliases = [find_unused_name(f"_key{n}", present.columns) for n in range(len(names))]
    keys = df.select(*(F.col(quote_column(name)).alias(alias) for name, alias in zip(names, aliases, strict=True)))
    same = [F.col(quote_column(name)).eqNullSafe(F.col(alias)) for name, alias in zip(names, aliases, strict=True)]
    return present.join(keys, reduce(and_, same), "left_semi")


def _check_kept_keys(df: DataFrame, planned: PlannedWrite, condition: Condition) -> None:
    """Raise DuplicateKeys if a new row has the key of a row that the condition does not select."""
    schema = planned.target.schema
    with suppress(InvalidUsage):
        if make_kept_filter(parse_where(condition.text, schema), schema) is None:
            return
    present = retract(df.sparkSession, planned)
    if present is None:
        return
    kept = present.where(~F.coalesce(condition.column, F.lit(False)))
    names = [quote_column(name) for name in schema.key_names]
    found = _keep_keys(kept, df, schema.key_names).select(*names).distinct().limit(10).collect()
    if found:
        raise DuplicateKeys(planned.target.name, [tuple(row) for row in found], "kept")


def retract(spark: SparkSession, planned: PlannedWrite, condition: Condition | None = None) -> DataFrame | None:
    """Return the last sealed records that match a condition, with negated diffs.

    A record becomes two rows if its negated diff exceeds int64. Returns None if nothing was sealed yet.
    """
    as_of = find_replaced_time(planned)
    if as_of is None:
        return None
    target = planned.target
    reading: dict[str, Any] = {"schema": target.schema.version, "storage_options": target.storage}
    present = snapshot(spark, target.location, target.name, as_of=as_of, form="diff", **reading)
    if condition is not None:
        present = condition.filter(present)
    # The least diff has no opposite: as two halves.
    halves = F.when(F.col("_diff") == -(2**63), F.array(F.lit(2**62), F.lit(2**62))).otherwise(F.array(-F.col("_diff")))
    return present.withColumn("_diff", F.explode(halves))


def delete(
    spark: SparkSession,
    location: str,
    collection: str,
    what: str | Column | DataFrame,
    *,
    time: int | Moment | None = None,
    token: str | None = None,
    partitions: int | None = None,
    allow_future: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> None:
    """Retract records at one time, and seal it; a key without records is not an error.

    It is one commit, and history stays; see `Collection.delete`. A keyed collection instead gets events that delete
    keys, and nothing is sealed.

    Args:
        what: a condition on the records, as SQL text (`"amount > 5"`) or a column. Or a DataFrame with exactly the key
            columns: all records with one of these keys. A keyed collection needs a DataFrame of keys, which also has
            the columns of order_by if the events are ordered.
        time: of the retractions; None means the time of the commit.
        token: names this deletion, so that a repetition does nothing.
        partitions: how many tasks write; None lets Spark choose.

    Raises:
        CollectionNotFound, SchemaMismatch, InvalidUsage: it does not fit; nothing was written.
        UpdateNotBeyondUpper: the time is sealed.
        UpperMismatch, UpdatesBeyondUpper: another writer has sealed or added updates meanwhile, and `time` is not None.
            Without a time, the deletion begins again on the new contents.
    """
    options = write_options(
        location, collection, time, None, token, partitions, storage_options, allow_future=allow_future
    )
    if options.column is not None:
        raise InvalidUsage(f"time={time!r} is not a moment, and a deletion has one time: give a number or a moment")
    keys = what if isinstance(what, DataFrame) else None
    condition = None if isinstance(what, DataFrame) else Condition.of(what)
    register(spark)
    with explain_missing_collection(collection):
        planned = PlannedWrite.overwrite(options, None if condition is None else condition.text)
    if planned.target.keyed is not None:
        _delete_keyed(planned, keys)
        return
    planned.check()
    schema = planned.target.schema
    keys = None if keys is None else _to_distinct_keys(keys, schema)
    digest = _compute_digest(keys, schema) if keys is not None and planned.is_compared else 0

    def attempt(planned: PlannedWrite) -> None:
        """Upload and commit the retractions, as of the plan."""
        present = None if planned.is_done else retract(spark, planned, condition)
        if present is None:
            planned.commit_deletion([], digest)
            return
        if keys is not None:
            present = _select_by_keys(present, keys, schema)
        rows = present.withColumn("_time", F.lit(planned.time).cast("long"))
        rows = partition_by_key(rows, schema, partitions) if is_ranged_by_key(schema) else rows
        uploaded = upload_by_tasks(rows, UploadTask(planned.target, Rows(schema)))
        parts = [part if keys is None else part.mark_single() for part in uploaded.parts]
        planned.commit_deletion(parts, digest)

    with set_temporarily(spark, PUSHES, "true"):
        planned.commit_with_retries(attempt)


def _delete_keyed(planned: PlannedWrite, keys: DataFrame | None) -> None:
    """Write events that delete the keys of a keyed collection."""
    target, options = planned.target, planned.options
    if keys is None:
        raise InvalidUsage(
            f"what a condition finds in the keyed collection {target.name!r} depends on events that are not resolved "
            "yet. Give a DataFrame of keys."
        )
    events = keys.withColumn("_deleted", F.lit(True))
    more: dict[str, Any] = {"token": options.token, "allow_future": options.allow_future}
    upsert(events, target.location, target.name, time=options.time, storage_options=options.storage, **more)


def _list_fields(schema: CollectionSchema) -> pa.Schema:
    """Return the Arrow fields of all columns."""
    return pa.schema([schema.arrow.field(name) for name in schema.names])


def _to_distinct_keys(keys: DataFrame, schema: CollectionSchema) -> DataFrame:
    """Return the distinct keys of a DataFrame, under the names and types of the collection."""
    fields = pa.schema([schema.arrow.field(name) for name in schema.key_names])
    if not fields.names:
        raise InvalidUsage("the collection has no key columns: delete by a condition")
    renamed = spell_columns(keys, fields.names)
    if sorted(renamed.columns) != sorted(fields.names):
        raise SchemaMismatch(f"the DataFrame of keys has the columns {keys.columns}, and the key is {fields.names}")
    if any(contains_map(field.type) for field in fields):
        raise InvalidUsage(f"the key {fields.names} holds a map, which Spark cannot compare: delete by a condition")
    return cast_exactly(renamed, fields).distinct()


def _select_by_keys(present: DataFrame, keys: DataFrame, schema: CollectionSchema) -> DataFrame:
    """Return the present records with one of these keys; NULL and NaN equal themselves."""
    # Under other names, because Spark confuses columns of frames that come from the same one.
    aliases = [find_unused_name(f"_key_{at}", schema.arrow.names) for at in range(len(schema.key_names))]
    pairs = zip(schema.key_names, aliases, strict=True)
    equal = [F.col(quote_column(name)).eqNullSafe(F.col(alias)) for name, alias in pairs]
    return present.join(keys.toDF(*aliases), reduce(and_, equal), "left_semi")


def _compute_digest(keys: DataFrame, schema: CollectionSchema) -> int:
    """Return a digest of distinct keys, which does not depend on their order."""
    rows = map_in_tasks(keys, _KeysDigest(schema).__call__, "digest decimal(20,0)").collect()
    return sum(int(row.digest) for row in rows) % DIGEST_MODULUS


@dataclass(frozen=True)
class _KeysDigest:
    """Sums in a task the digests of distinct keys."""

    schema: CollectionSchema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        total = 0
        names = [*self.schema.key_names]
        fields = pa.schema([self.schema.arrow.field(name) for name in names])
        with surface_errors():
            for batch in batches:
                keys = make_canonical(convert_from_spark(pa.Table.from_batches([batch]), fields).cast(fields))
                diffs = make_int64_array(np.ones(len(keys), np.int64))
                total += compute_digest(keys.append_column("_diff", diffs), names)
        yield pa.record_batch({"digest": pa.array([total % DIGEST_MODULUS], pa.decimal128(20, 0))})
