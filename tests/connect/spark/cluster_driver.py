"""What the driver of a test cluster can be asked to do; run as a program, away from the checkout.

Reads `[function, arguments]` as a line of JSON each, and answers `["returned", result]` or `["raised", what]`.

Tasks are stopped "in the middle" without any guessing: the first that comes to a certain place leaves a file `stalled`
with its process id in a folder, and goes no further until there is a file `go`. Others pass by.
"""

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import StructType

import persist
import persist.spark
from persist.connect.spark.data_source.source import PersistDataSource
from persist.dataflow import Program, col

Storage = dict[str, str]
UPDATES = "k long, v string, _time long, _diff long"
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.25",
    "spark.speculation.minTaskRuntime": "200ms",
}
PATIENCE_S = 300.0


class Sessions:
    """One session at a time, begun anew only where another configuration is wanted."""

    def __init__(self, master: str, java_options: str) -> None:
        self._master = master
        self._java_options = java_options
        self._spark: SparkSession | None = None
        self._changed: dict[str, str] = {}

    def get(self, **changed: str) -> SparkSession:
        """Return the session with this configuration."""
        if self._spark is not None and changed == self._changed:
            return self._spark
        self.close()
        if self._master.startswith("sc://"):
            assert not changed, "it is the server that is configured"
            self._spark = SparkSession.builder.remote(self._master).getOrCreate()
            return self._spark
        builder = SparkSession.builder.master(self._master).appName("driver of tests of persist")
        configuration = {
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.extraJavaOptions": self._java_options,
            "spark.executor.extraJavaOptions": self._java_options,
            "spark.executor.cores": "1",
            "spark.executor.memory": "512m",
            "spark.cores.max": "2",
            "spark.sql.session.timeZone": "UTC",
            # Both workers, or what is killed is all there is.
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            **changed,
        }
        for name, value in configuration.items():
            builder = builder.config(name, value)
        self._spark, self._changed = builder.getOrCreate(), changed
        return self._spark

    def close(self) -> None:
        """End the session, if there is one."""
        if self._spark is not None:
            self._spark.stop()
            self._spark = None


def stall(folder: str) -> None:
    """Be the one that stalls, or pass by."""
    try:
        open(os.path.join(folder, "claimed"), "x").close()
    except FileExistsError:
        return
    with open(os.path.join(folder, "unfinished"), "w") as file:
        file.write(str(os.getpid()))
    os.rename(file.name, os.path.join(folder, "stalled"))
    wait_for(os.path.join(folder, "go"))


def wait_for(path: str) -> None:
    """Wait until there is a file."""
    ends_s = time.monotonic() + PATIENCE_S
    while not os.path.exists(path):
        if time.monotonic() > ends_s:
            raise TimeoutError(f"nobody made {path}, and nobody killed this task")
        time.sleep(0.02)


def stalling_source(folder: str) -> type[PersistDataSource]:
    """Return the data source `stalling`: in one task of a write, all has been uploaded when it stalls."""

    class StallingWriter(DataSourceArrowWriter):
        def __init__(self, inner: Any) -> None:
            self._inner = inner

        def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
            context = TaskContext.get()
            assert context is not None
            message: WriterCommitMessage = self._inner.write(iterator)
            if context.partitionId() == 1:
                if context.attemptNumber() == 0:
                    stall(folder)
                else:
                    # All is uploaded twice now, so the first attempt may end, too, if it is still there.
                    wait_for(os.path.join(folder, "stalled"))
                    open(os.path.join(folder, "go"), "x").close()
            return message

        def commit(self, messages: list[WriterCommitMessage | None]) -> None:
            self._inner.commit(messages)

        def abort(self, messages: list[WriterCommitMessage | None]) -> None:
            self._inner.abort(messages)

    class Stalling(PersistDataSource):
        @classmethod
        def name(cls) -> str:
            return "stalling"

        def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
            return StallingWriter(super().writer(schema, overwrite))

    return Stalling


def options(storage: Storage, **given: Any) -> dict[str, Any]:
    return {"collection": "c"} | given | {f"storage.{name}": value for name, value in storage.items()}


def updates(spark: SparkSession, start: int, end: int, at: int, tasks: int) -> DataFrame:
    columns = ["id AS k", "sha2(cast(id AS string), 256) AS v", f"{at}L AS _time", "1L AS _diff"]
    return spark.range(start, end, 1, tasks).selectExpr(*columns)


def where(spark: SparkSession) -> list[str]:
    """Return where tasks and driver have the library from."""

    def found(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"file": [persist.__file__]})

    rows = spark.range(0, 4, 1, 4).mapInArrow(found, "file string").collect()
    return sorted({persist.__file__, *(row["file"] for row in rows)})


def write(
    spark: SparkSession, location: str, storage: Storage, *, start: int, end: int, at: int, token: str | None = None
) -> None:
    """Write records at a time, ranged by key, and seal it."""
    frame = updates(spark, start, end, at, 4)
    persist.spark.write(frame, location, "c", seal=at + 1, token=token, storage_options=storage)


def overwrite(
    spark: SparkSession, location: str, storage: Storage, *, start: int, end: int, at: int, token: str
) -> None:
    """Make the contents equal to some records."""
    frame = updates(spark, start, end, at, 4).drop("_time", "_diff")
    persist.spark.write(frame, location, "c", mode="overwrite", time=at, token=token, storage_options=storage)


def delete(spark: SparkSession, location: str, storage: Storage, *, condition: str, at: int, token: str) -> None:
    """Delete the records that fulfil a condition."""
    persist.spark.delete(spark, location, "c", condition, time=at, token=token, storage_options=storage)


def write_stalling(spark: SparkSession, location: str, storage: Storage, *, folder: str, at: int) -> None:
    """Do that by a write of which one task stalls."""
    spark.dataSource.register(stalling_source(folder))
    frame = updates(spark, 10_000, 14_000, at, 4)
    frame.write.format("stalling").options(**options(storage, seal=at + 1)).mode("append").save(location)


def read(spark: SparkSession, location: str, storage: Storage, **asked: Any) -> list[list[Any]]:
    """Return what a read gives, in any order."""
    frame = spark.read.format("persist").options(**options(storage, **asked)).load(location)
    return [list(row) for row in frame.collect()]


def snapshot(spark: SparkSession, location: str, storage: Storage, form: Any) -> list[list[Any]]:
    """Return the latest snapshot, read by whatever way is the fastest."""
    with persist.spark.location(spark, location, storage_options=storage) as here:
        return [list(row) for row in here.snapshot("c", form=form).collect()]


def route(spark: SparkSession, location: str, storage: Storage) -> str:
    """Return which way that is."""
    return persist.spark.explain(spark, location, "c", storage_options=storage)


def query(spark: SparkSession, location: str, storage: Storage, sql: str) -> list[list[Any]]:
    """Return what a query of the contents of the collection gives."""
    contents = persist.spark.snapshot(spark, location, "c", storage_options=storage)
    return [list(row) for row in spark.sql(sql, c=contents).collect()]


def read_stalling(spark: SparkSession, location: str, storage: Storage, *, folder: str) -> list[list[Any]]:
    """Return a snapshot, in the reading of which one task stalls after its first rows."""

    def passed_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.slice(0, 1)
            stall(folder)
            yield batch.slice(1)

    frame = spark.read.format("persist").options(**options(storage, partitions=4)).load(location)
    return [list(row) for row in frame.mapInArrow(passed_on, "k long, v string").collect()]


def compact(spark: SparkSession, location: str, storage: Storage) -> dict[str, Any]:
    """Compact the collection, in three tasks for each piece of work."""
    report = persist.spark.compact(spark, location, "c", partitions=3, storage_options=storage)
    return {"keyframes": report.keyframes, "parts_written": report.parts_written}


def step(spark: SparkSession, location: str, storage: Storage, where: Any) -> str:
    """Refresh the view `v`; return where it was computed."""
    with persist.open(location, storage_options=storage) as client:
        return persist.spark.refresh(client.view("v"), spark, where=where, storage_options=storage).where


def step_stalling(spark: SparkSession, location: str, storage: Storage, *, folder: str) -> str:
    """Bring a program up to date, of which one task stalls before it has stored anything; return what it read."""

    def passes(_: Any) -> bool:
        if os.path.exists(os.path.join(folder, "may stall")) and TaskContext.get() is not None:
            stall(folder)
        return True

    with persist.open(location, storage_options=storage) as client:
        program = Program("by length").using(client)
        lengths = program.source("c").map(k=col("k"), half=col("k") % 7).filter(passes)
        lengths.group_by("half").agg(n=col("k").count(), most=col("k").max()).persist("halves", key=["half"])
        told = persist.spark.run_program(spark, client, program, where="tasks", partitions=2, storage_options=storage)
        return str(told.reads)


def call_all(spark: SparkSession, location: str, storage: Storage) -> dict[str, Any]:
    """Call the functions that nothing else here calls; return what they return."""
    named: dict[str, Any] = {"storage_options": storage}
    rows = spark.createDataFrame([(1, "a"), (2, "b"), (3, "c")], "k long, v string")
    persist.spark.register(spark)
    persist.spark.write(rows, location, "all", key=["k"], **named)
    persist.spark.write(rows.where("k = 3"), location, "all", mode="overwrite", where="k >= 3", **named)
    persist.spark.delete(spark, location, "all", "k = 2", **named)
    persist.spark.delete(spark, location, "all", rows.where("k = 3").select("k"), **named)
    persist.spark.upsert(rows.selectExpr("k", "v", "5L AS _time"), location, "events", seal=6, **named)
    persist.spark.upsert(rows.selectExpr("k", "v", "6L AS _time"), location, "events", where="tasks", seal=7, **named)
    persist.spark.foreach_batch_writer(location, {"batch": lambda df: df}, query_id="q", **named)(rows, 0)
    with persist.open(location, storage_options=storage) as client:
        upper = client.load("all").upper.time or 0
    at = spark.createDataFrame([(1, upper - 1)], "k long, at long")
    frames = {
        "all": persist.spark.snapshot(spark, location, "all", **named),
        "changes": persist.spark.changes(spark, location, "all", 0, upper, **named).select("k", "_diff"),
        "events": persist.spark.snapshot(spark, location, "events", **named),
        "batch": persist.spark.snapshot(spark, location, "batch", **named),
        "joined": persist.spark.as_of_join(at, location, "all", **named).select("k", "v"),
    }
    answers: dict[str, Any] = {name: sorted(map(list, frame.collect())) for name, frame in frames.items()}
    try:
        persist.spark.catalog(spark, location)
    except persist.InvalidUsage as error:
        answers["catalog"] = str(error)
    return answers


def refused(spark: SparkSession, location: str, storage: Storage, **asked: Any) -> str:
    """Return why a read is refused."""
    try:
        read(spark, location, storage, **asked)
    except PySparkException as error:
        return str(error)
    raise AssertionError("it was not refused")


FUNCTIONS: dict[str, Callable[..., Any]] = {
    each.__name__: each
    for each in (
        where,
        write,
        overwrite,
        delete,
        write_stalling,
        read,
        snapshot,
        route,
        query,
        read_stalling,
        compact,
        step,
        step_stalling,
        call_all,
        refused,
    )
}


def main() -> None:
    """Serve until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Whatever else is printed is not an answer.
    sessions = Sessions(*sys.argv[1:])
    for line in sys.stdin:
        name, arguments = json.loads(line)
        try:
            spark = sessions.get(**(SPECULATION if arguments.pop("speculates", False) else {}))
            answer = ["returned", FUNCTIONS[name](spark, **arguments)]
        except Exception:
            answer = ["raised", traceback.format_exc()]
        print(json.dumps(answer), file=answers, flush=True)
    sessions.close()


if __name__ == "__main__":
    main()
