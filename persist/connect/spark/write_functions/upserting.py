"""`persist.spark.upsert`: the driver upserts a small DataFrame of events, and tasks resolve a large one.

A batch that fits on the driver is upserted there: a shuffle and a Python worker per task cost more than the look-ups.
Spark shuffles a large batch once, by ranges of keys with about equally many events. Each task then has all events of
its keys, and reads the parts of the collection that may hold these keys.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, get_args

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from persist.blob.threads import SystemClock
from persist.codecs.updates.updates import Stamp
from persist.compute.tasks.batch_times import check_choice
from persist.compute.tasks.keyed_work import (
    KeyedWork,
    Stored,
    commit_events,
    commit_pending_events,
    commit_resolution,
    seal_committed,
)
from persist.compute.tasks.planned_write import open_for_writing
from persist.connect.spark.data_source.source import register
from persist.connect.spark.frames import ignores_case, map_in_tasks, spell_columns, spell_name
from persist.connect.spark.options import WriteOptions, write_options
from persist.connect.spark.uploads import (
    RESERVED,
    Replanning,
    is_ranged_by_key,
    make_sort_order,
    pack_rows,
    plan_events,
    unpack_rows,
)
from persist.connect.spark.workers import surface_errors
from persist.core.antichain import Antichain
from persist.core.errors import (
    FrontierRegression,
    InvalidUsage,
    LateEvents,
    PersistError,
    SchemaMismatch,
    UpdateNotBeyondUpper,
)
from persist.core.keyed.machine import SEQ, Machine
from persist.core.timeline import Moment
from persist.engine.collection.commit import Commit, commit_one
from persist.engine.location.engine import Engine
from persist.engine.location.opening import load_handle
from persist.engine.location.resolver import Late
from persist.engine.write.operations import AtCommit, choose_common_times
from persist.engine.write.retrying import commit_with_retry
from persist.engine.write.write_options import WriteOptions as CommitOptions

PARTITIONS_MAX = 100_000
ON_DRIVER_BYTES_MAX = 64 << 20  # Bytes of events; a task that has more sends only their size.
Where = Literal["auto", "driver", "tasks"]


def upsert(
    df: DataFrame,
    location: str,
    collection: str,
    *,
    time: int | Moment | None = None,
    seal: int | Moment | Antichain | None = None,
    token: str | None = None,
    where: Where = "auto",
    partitions: int | None = None,
    machine: Machine | None = None,
    late: Late = "raise",
    allow_future: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> pa.Table | None:
    """Add the events of a DataFrame to a keyed collection, and seal it if `seal` is given; see `Collection.upsert`.

    If two events of a key are equal in time and in `order_by`, the collection's `ties` decides which of them counts.
    With "last" that is the later row of df, as `collect` shows it. After a shuffle Spark promises no order of rows:
    then create the collection with ties="greatest", which needs none, or with `order_by`.

    With a seal, it is one commit. If another writer adds events or seals meanwhile, or if events are waiting already,
    the seal that resolves them is a second commit. To choose by size, and to choose the ranges, Spark
    may compute df up to three times, so cache it if that is expensive.

    Args:
        df: has the columns of the key and of the value or, if the collection has a machine, of its events. `_time` and
            `_deleted` are optional. Events without a time get the time of the commit, which seals them.
        time: of all events; text that does not begin with a day is the name of the column with the time of each. If the
            collection has a timeline, times may be moments, and timestamps in columns; they must be exact.
        seal: the upper to seal to; `Antichain()` is complete for ever. None means not to seal.
        token: names this batch, so that a repetition does nothing.
        where: "driver" looks keys up on the driver, in memory in proportion to df; "tasks" in tasks; "auto" chooses by
            size.
        partitions: how many tasks there are; None lets Spark choose.
        machine: of the collection, unless it is a built-in machine.
        late: what to do with events at sealed times or below the late bound: "raise" refuses the whole batch, "collect"
        leaves them out and returns them. If another writer makes more events late meanwhile, tasks begin again.

    Returns:
        late events that were collected, as an Arrow table with `_reason`; None if there are none.

    Raises:
        CollectionNotFound, NotKeyed, SchemaMismatch, InvalidUsage: it does not fit; nothing was written.
        UpdateNotBeyondUpper, FrontierRegression, LateEvents: an event or the seal is late; nothing was written.
        Errors in tasks, such as a NULL key, are raised as Spark's, with ours in the message.
    """
    check_choice("where", where, get_args(Where))
    check_choice("late", late, get_args(Late))
    df = spell_columns(df, RESERVED)
    options = write_options(
        location, collection, spell_name(time, df), seal, token, partitions, storage_options, allow_future=allow_future
    )
    collects = late == "collect"
    register(df.sparkSession)
    folds = ignores_case(df.sparkSession)
    work = plan_events(options, df.schema, machine, collects=collects, folds=folds)
    with open_for_writing(options.location, options.storage) as engine:
        if work.is_done:
            seal_committed(engine, work)
            return None
        rows = None if where == "tasks" else gather_rows(df, None if where == "driver" else ON_DRIVER_BYTES_MAX)
        if rows is not None:
            return commit_events(engine, work, rows)
        frame = partition_events(df, work, partitions)
        at_commit = time is None and "_time" not in df.columns

        def plan_again(error: PersistError) -> None:
            """Plan on the new contents, unless the error is the caller's."""
            nonlocal work
            is_late = at_commit and not isinstance(error, LateEvents)
            if not (collects or is_late):
                raise error
            work = plan_events(options, df.schema, machine, collects=collects, folds=folds)

        return commit_with_retry(
            lambda: _store_by_tasks(engine, _assign_times(work) if at_commit else work, frame),
            action="upsert",
            clock=engine.clock,
            conflicts=(UpdateNotBeyondUpper, FrontierRegression, LateEvents),
            prepare=plan_again,
        )


def update(df: DataFrame, options: WriteOptions, key: str | Sequence[str] | None) -> None:
    """Change those columns that df has, in the rows of its keys; see `Collection.update`. Memory: df.

    Raises:
        CollectionNotFound, SchemaMismatch, InvalidUsage: it does not fit, or a key is missing; nothing was written.
    """
    if options.seal is not None:
        raise InvalidUsage('seal= goes with other modes: mode="update" seals just after its time')
    with open_for_writing(options.location, options.storage) as engine:
        handle = load_handle(engine, options.collection)
        names = [*handle.schema.key_names]
        if key is not None and names != ([key] if isinstance(key, str) else [*key]):
            raise SchemaMismatch(f"key={key!r:.200} is not the key of the collection {handle.name!r}, which is {names}")
        rows = gather_rows(spell_columns(df, handle.schema.names), None)
        changes = CommitOptions(time=options.time, token=options.token, allow_future=options.allow_future)
        add = partial(Commit.update, handle=handle, rows=rows, time=options.time)
        commit_one(handle, "update", changes, add).result()


def _assign_times(work: KeyedWork) -> KeyedWork:
    """Return the work with the current time for all events, which tasks need to resolve them."""
    id_ = work.target.id
    asks = {id_: AtCommit(id_, work.target.schema.timeline)}
    time = choose_common_times(asks, {id_: work.contents.upper}, SystemClock().wall_ms())[id_]
    timed = Replanning(work)(Stamp(time), time + 1, work.contents)
    return replace(timed, allow_future=True)  # The plan has compared the clock.


def _store_by_tasks(engine: Engine, work: KeyedWork, frame: DataFrame) -> pa.Table | None:
    """Store events by tasks, resolved if possible, and commit them; return late events."""
    if work.can_resolve:
        stored = run_event_job(frame, work, resolves=True)
        if commit_resolution(engine, work, stored):
            return stored.late_events
    stored = run_event_job(frame, work, resolves=False)
    commit_pending_events(engine, work, stored)
    return stored.late_events


def partition_events(df: DataFrame, work: KeyedWork, partitions: int | None) -> DataFrame:
    """Return df in ranges of keys, with about equally many rows in each.

    All rows of a key are in one partition, unsorted; tasks sort them. If the order of df decides between events, a
    column `_seq` has it.
    """
    schema = work.target.schema
    if work.needs_order:
        df = df.withColumn(SEQ, F.monotonically_increasing_id())
    if not is_ranged_by_key(schema):
        return df.repartition(1)
    keys = make_sort_order(schema, schema.key_names)
    return df.repartitionByRange(*keys) if partitions is None else df.repartitionByRange(partitions, *keys)


@dataclass(frozen=True)
class _Task:
    """The work of a task with the events of its keys. Memory: several times their size."""

    work: KeyedWork
    resolves: bool

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with surface_errors():
            nonempty = [batch for batch in batches if batch.num_rows]
            if nonempty:
                stored = self.work.store_result(pa.Table.from_batches(nonempty), resolves=self.resolves)
                yield pa.record_batch({"stored": pa.array([msgspec.json.encode(stored)], pa.binary())})


def run_event_job(df: DataFrame, work: KeyedWork, *, resolves: bool) -> Stored:
    """Run the job that stores events or, with `resolves`, the updates that they cause."""
    rows = map_in_tasks(df, _Task(work, resolves).__call__, "stored binary").collect()
    answers = [msgspec.json.decode(row.stored, type=Stored) for row in rows]
    return Stored.combine(answers)


def gather_rows(df: DataFrame, bytes_max: int | None) -> pa.Table | None:
    """Return all rows on the driver; None if they have more than `bytes_max` bytes."""
    sent = map_in_tasks(df, _RowGathering(bytes_max).__call__, "rows binary, size long").collect()
    if any(row.rows is None for row in sent) or (bytes_max is not None and sum(row.size for row in sent) > bytes_max):
        return None
    return unpack_rows(df.schema, [row.rows for row in sent])


@dataclass(frozen=True)
class _RowGathering:
    """Sends the rows of a task to the driver, or NULL if they are too many."""

    bytes_max: int | None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows, size = pack_rows(batches, self.bytes_max)
        if size:
            yield pa.record_batch({"rows": pa.array([rows], pa.binary()), "size": pa.array([size], pa.int64())})
