"""`persist.spark.write`: batch writes whose rows Spark ranges and sorts by key beforehand."""

from collections.abc import Mapping
from functools import reduce
from typing import Any, Literal, cast, get_args

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from persist.antichain import Antichain
from persist.codecs import TIME_MAX, CollectionSchema
from persist.errors import InvalidUsage
from persist.names import check_text
from persist.sink import PlannedWrite, writing
from persist.spark.options.parsing import seen_by_all
from persist.spark.options.write import WriteOptions
from persist.spark.workers import check_workers
from persist.spark.write.dataframe_write import DataFrameWrite
from persist.spark.write.overwrite import difference
from persist.spark.write.present import Condition, retracted
from persist.spark.write.ranged import UploadTask, is_ranged_by_key, ranged, upload_by_tasks
from persist.spark.write.updates import Rows
from persist.timeline import Moment, begins_with_a_day, is_moment

Mode = Literal["append", "overwrite"]


def write(
    df: DataFrame,
    location: str,
    collection: str,
    *,
    mode: Mode = "append",
    where: str | Column | None = None,
    time: int | Moment | None = None,
    seal: int | Moment | Antichain | None = None,
    token: str | None = None,
    partitions: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> None:
    """Write a DataFrame to a collection as one commit, its rows ranged and sorted by key on the way.

    `df.write.format("persist")` does the same with rows as they come: Spark cannot be asked there for an order, so that
    is left to the caller. Parts that do not overlap in key need not be merged before they are read. It takes a shuffle
    and a sort; to choose the ranges, Spark computes df twice, so cache it if that is dear. Where all keys are one, or
    Spark does not order them as parts do (values within values), rows are not ranged, and parts may overlap.

    Args:
        df: updates, with columns `_time` and `_diff`; or plain rows, see time. The other columns are those of the
            collection, in any order.
        mode: "append" adds the rows. "overwrite" makes the contents those of df: the difference from what was sealed
            last is written as updates at one time, and history stays. A row that df has twice has multiplicity 2.
        where: to overwrite only the records for which this condition is true, as it must be for all rows of df: SQL
            text, such as "day = '2026-11-21'", or a column.
        time: of every row; needed to append plain rows. Text that does not begin with a day is the name of the column
            with the time of each row. To overwrite, of the difference; None means upper. If the collection has a
            timeline, times may be moments, and timestamps in columns, `_time` too; they must be exact.
        seal: the upper to seal to in the same commit, beyond all that is written; `Antichain()` is complete for ever.
            None means not to seal; to overwrite, it means time + 1.
        token: names this write, so that doing it again does nothing; see `Collection.write`. When it was done before,
            df is computed all the same, to see that it is the same: nothing is uploaded.
        partitions: how many tasks write. None lets Spark choose by the size of the data, up to
            `spark.sql.shuffle.partitions`.
        storage_options: as for `persist.open`.

    Raises:
        CollectionNotFound, SchemaMismatch, InvalidUsage: it does not fit; nothing was written.
        UpdateNotBeyondUpper, FrontierRegression: a time or the seal is behind upper; nothing was written.
        UpperMismatch, UpdatesBeyondUpper: overwriting, and another writer has sealed or added updates meanwhile.
        Errors that tasks find, such as `_diff` 0 or NULL in `_time`, come as Spark's, with ours in its message.
    """
    options = write_options(location, collection, mode, time, seal, token, partitions, storage_options)
    condition = None if where is None else Condition.of(where)
    if condition is not None and mode != "overwrite":
        raise InvalidUsage(f'where={condition.text!r} goes with mode="overwrite": to append, filter the DataFrame')
    check_workers(df.sparkSession)
    if mode == "append":
        write = DataFrameWrite.append(options, df.schema)
        planned, task = write.planned, _task(write)
        frame = df if planned.is_done else ranged(df, planned.target.schema, partitions)
        uploaded = upload_by_tasks(frame, task)
        planned.commit(uploaded.parts, uploaded.digest)
    else:
        text = None if condition is None else condition.text
        _overwrite(df, DataFrameWrite.overwrite(options, df.schema, text), options, partitions, condition)


def _task(write: DataFrameWrite) -> UploadTask:
    """Return what tasks do with the rows of a write; of one that was done before, they tell whether it is the same."""
    planned = write.planned
    return UploadTask(planned.target, write.rows, digest_by=planned.digest_by, only_digest=planned.is_done)


def write_options(
    location: str,
    collection: str,
    mode: str,
    time: int | Moment | None,
    seal: int | Moment | Antichain | None,
    token: str | None,
    partitions: int | None,
    storage_options: Mapping[str, Any] | None,
) -> WriteOptions:
    """Check what was given to a function that writes, and return it as options."""
    if mode not in get_args(Mode):
        raise InvalidUsage(f'mode={mode!r} is not a mode of writing: use "append" or "overwrite"')
    column = time if isinstance(time, str) and not begins_with_a_day(time) else None
    at = None if column is not None or is_moment(time) else time
    for name, value, least, most in (("time", at, 0, TIME_MAX), ("partitions", partitions, 1, 100_000)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most):
            raise InvalidUsage(f"{name}={value!r} is not a whole number from {least} to {most}")
    return WriteOptions(
        location=seen_by_all(location),
        collection=collection,
        time=None if column is not None else time,
        column=column,
        seal=seal if seal is None or is_moment(seal) else Antichain.at(cast(int | Antichain, seal)),
        token=None if token is None else check_text("token", token),
        storage=dict(storage_options or {}),
    )


def _overwrite(
    df: DataFrame,
    write: DataFrameWrite,
    options: WriteOptions,
    partitions: int | None,
    condition: Condition | None,
) -> None:
    planned = write.planned
    if planned.is_done:
        planned.commit([], upload_by_tasks(df, _task(write)).digest)
        return
    schema, time = planned.target.schema, planned.time
    if is_ranged_by_key(schema):
        # New rows count +1, present ones -1: tasks, which sum equal rows, are left with the difference.
        marker = _new_name(schema) if planned.digest_by else None
        task = UploadTask(planned.target, Rows(schema), digest_by=planned.digest_by, marker=marker)
        both = _with_present(df, planned, options, marker, condition).withColumn("_time", F.lit(time).cast("long"))
        uploaded = upload_by_tasks(ranged(both, schema, partitions), task)
        planned.commit(uploaded.parts, uploaded.digest)
        return
    if condition is not None:
        raise InvalidUsage(
            f"where={condition.text!r} cannot be used here: Spark has no ranges of keys of this collection, whose "
            "first key field is nested or whose columns differ by case only. Use Collection.overwrite(rows, where=…)."
        )
    new = upload_by_tasks(df, _task(write))
    with writing(planned.target.location, planned.target.storage) as engine, planned.target.writer() as writer:
        try:
            planned.commit(difference(engine, planned, [*new.parts]), new.digest)
        finally:
            writer.discard(new.parts)  # No record ever names these.


def _new_name(schema: CollectionSchema) -> str:
    """Return the name of a column that says which rows are new, and that is none of the collection."""
    name = "_is_new"
    while name in {each.lower() for each in schema.arrow.names}:
        name += "_"
    return name


def _with_present(
    df: DataFrame, planned: PlannedWrite, options: WriteOptions, marker: str | None, condition: Condition | None
) -> DataFrame:
    """Return new rows counted 1 and present ones counted -1; marker names a column that tells them apart."""
    one = F.lit(1).cast("long")
    new = df.withColumn(
        "_diff", one if condition is None else F.when(condition.column, one).otherwise(condition.raised(df))
    )
    new = new if marker is None else new.withColumn(marker, F.lit(True))
    present = retracted(df.sparkSession, planned, options, condition)
    if present is None:
        return new
    present = present if marker is None else present.withColumn(marker, F.lit(False))
    return reduce(DataFrame.unionByName, [new, present])
