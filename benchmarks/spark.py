"""Spark, in one session on local[2]: snapshots by the native plan and the data source, a large write, and streams.

Each side builds its DataFrame and runs it, so planning is in the time, and all results go to `noop`, Spark's sink that
takes all rows and keeps none.
"""

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import persist
import persist.spark
from benchmarks.harness import Measure, Row, Side
from benchmarks.latest import COLUMNS, SET
from benchmarks.ours import COLLECTION, QUIET, read_latest
from benchmarks.workspace import Workspace, one_file

STREAM_BATCHES, STREAM_ROWS = 100, 1000
WRITE_ROWS = 5_000_000


@contextmanager
def session(master: str = "local[2]", catalog: str | None = None) -> Iterator[SparkSession]:
    """A session as a user of a laptop has it, perhaps with the catalog of a location."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.memory", "4g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.log.level", "ERROR")
        .config("spark.python.unix.domain.socket.enabled", "true")
    )
    spark = builder.getOrCreate() if catalog is None else persist.spark.catalog(builder, catalog)
    try:
        yield spark
    finally:
        spark.stop()


def to_noop(frame: DataFrame) -> None:
    """Run a DataFrame to its end."""
    frame.write.format("noop").mode("overwrite").save()


def grouped(frame: DataFrame) -> DataFrame:
    """An aggregate on top: 1,000 groups."""
    return frame.groupBy((F.col("id") % 1000).alias("g")).agg(F.sum("amount").alias("s"), F.count("*").alias("n"))


def snapshots(work: Workspace) -> list[Row]:
    """The latest contents: compacted, with a tail, raw; to noop, and grouped."""
    with session() as spark:
        return [*_compacted(work, spark), *_tail(work, spark), *_raw(work, spark)]


def _compacted(work: Workspace, spark: SparkSession) -> list[Row]:
    location, files = work.compacted(SET), work.result_files(SET)

    def own() -> DataFrame:
        return spark.read.parquet(*files).select(*COLUMNS)

    def native() -> DataFrame:
        return persist.spark.snapshot(spark, location, COLLECTION, native=True)

    def source() -> DataFrame:
        return spark.read.format("persist").option("collection", COLLECTION).load(location)

    _same(own(), native(), source())
    work.explained[f"Spark: {SET} compacted"] = persist.spark.explain(spark, location, COLLECTION)
    what, scan = f"Spark: latest snapshot, {SET} consolidated", "Spark's scan of the same Parquet"
    return [
        _compare(work, f"{what}, native plan", scan, ">= 0.9x", native, {"scan": own}),
        _compare(work, f"{what}, native plan, grouped", scan, ">= 0.85x", native, {"scan": own}, grouped),
        _compare(work, f'{what}, format("persist")', scan, ">= 0.5x", source, {"scan": own}),
    ]


def _tail(work: Workspace, spark: SparkSession) -> list[Row]:
    location = work.with_tail(SET)
    result = one_file(read_latest(location).sort_by("id"), work.folder / "spark-tail.parquet")
    raw = _raw_updates(work, spark)

    def native() -> DataFrame:
        return persist.spark.snapshot(spark, location, COLLECTION, native=True)

    def own() -> DataFrame:
        return spark.read.parquet(result)

    _same(own(), native(), raw())
    work.explained[f"Spark: {SET}, keyframe plus a 5% tail"] = persist.spark.explain(spark, location, COLLECTION)
    what = f"Spark: {SET}, keyframe plus a 5% tail, native plan"
    return [
        _compare(work, f"{what}, grouped", "scan of the result", ">= 0.4x", native, {"scan": own}, grouped),
        _compare(work, f"{what}, grouped", "groupBy over the raw files", ">= 5x", native, {"groupBy": raw}, grouped),
        _compare(work, what, "scan of the result", "-", native, {"scan": own}),
    ]


def _raw(work: Workspace, spark: SparkSession) -> list[Row]:
    location, raw = work.raw(SET), _raw_updates(work, spark)

    def ours() -> DataFrame:
        return persist.spark.snapshot(spark, location, COLLECTION)

    _same(raw(), ours())
    work.explained[f"Spark: {SET} raw"] = persist.spark.explain(spark, location, COLLECTION)
    what, against = f"Spark: latest snapshot, {SET} raw history", "groupBy over the raw files"
    return [
        _compare(work, what, against, ">= 2x", ours, {"groupBy": raw}),
        _compare(work, f"{what}, grouped", against, ">= 2x", ours, {"groupBy": raw}, grouped),
    ]


def _raw_updates(work: Workspace, spark: SparkSession) -> Callable[[], DataFrame]:
    files = work.raw_files(SET)

    def by_group() -> DataFrame:
        summed = spark.read.parquet(*files).groupBy(*COLUMNS).agg(F.sum("_diff").alias("_n"))
        return summed.where("_n <> 0").select(*COLUMNS)

    return by_group


def _compare(
    work: Workspace,
    measure: str,
    against: str,
    reach: str,
    ours: Callable[[], DataFrame],
    theirs: dict[str, Callable[[], DataFrame]],
    on_top: Callable[[DataFrame], DataFrame] = lambda frame: frame,
) -> Row:
    sides = [Side(lambda make=make: to_noop(on_top(make())), name) for name, make in theirs.items()]  # type: ignore[misc]
    return Measure(measure, against, reach, Side(lambda: to_noop(on_top(ours()))), sides).run(
        work.rounds, work.memory_of, work.tree_clock
    )


def _same(*frames: DataFrame) -> None:
    """Make sure that all hold the same rows, as far as sums tell."""
    sums = [
        frame.agg(F.count("*"), F.sum("id"), F.sum(F.xxhash64(*COLUMNS).cast("decimal(38, 0)"))).collect()
        for frame in frames
    ]
    assert all(each == sums[0] for each in sums), f"they hold different rows: {sums}"


def write(work: Workspace) -> list[Row]:
    """Append updates, ranged by key and sorted, against Spark's own Parquet writer doing the same."""
    updates = pa.concat_tables([batch.updates for batch in work.data(SET).batches()])
    updates = updates.slice(0, round(WRITE_ROWS * min(1.0, work.scale)))
    files = one_file(updates, work.folder / "spark-updates.parquet")
    target, folder = work.folder / "spark-parquet", work.folder / "spark-written"
    order = [*COLUMNS, "_time"]
    upper = work.data(SET).uppers[-1]

    def fresh() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        with persist.open(str(folder), settings=QUIET) as client:
            client.create_or_load(COLLECTION, key=work.data(SET).key, value=work.data(SET).value)

    with session() as spark:
        rows = spark.read.parquet(files)

        def ours() -> None:
            persist.spark.write(rows, str(folder), COLLECTION, mode="append", seal=upper)

        def theirs() -> None:
            ranged = rows.repartitionByRange(2, "id").sortWithinPartitions(*order)
            ranged.write.mode("overwrite").parquet(str(target))

        measure = f"Spark: write of {len(updates):,} updates, ranged and sorted"
        against = "repartitionByRange, sortWithinPartitions, write.parquet"
        mine, parquet = Side(ours, before=fresh), Side(theirs, "parquet")
        return [Measure(measure, against, ">= 0.6x", mine, [parquet]).run(work.rounds, work.memory_of, work.tree_clock)]


def streams(work: Workspace) -> list[Row]:
    """A stream read and written in many small batches, against Spark's file source and sink."""
    count = max(5, round(STREAM_BATCHES * min(1.0, work.scale)))
    source, files = _stream_sources(work, count)
    numbers = iter(range(10**6))

    def fresh() -> Path:
        return work.folder / f"spark-stream-{next(numbers)}"

    with session() as spark:

        def ours() -> None:
            folder = fresh()
            with persist.open(str(folder / "copy"), settings=QUIET) as client:
                client.create_or_load(COLLECTION, key={"id": pa.int64()}, value={"v": pa.int64()})
            reader = spark.readStream.format("persist").options(
                collection=COLLECTION, form="changes", start=0, max_times_per_trigger=1
            )
            writer = reader.load(source).writeStream.format("persist").option("collection", COLLECTION)
            _run(writer.option("checkpointLocation", str(folder / "checkpoint")), str(folder / "copy"), count)

        def theirs() -> None:
            folder = fresh()
            reader = spark.readStream.schema("id long, v long, _time long, _diff long").option("maxFilesPerTrigger", 1)
            writer = reader.parquet(str(files)).writeStream.format("parquet")
            _run(writer.option("checkpointLocation", str(folder / "checkpoint")), str(folder / "copy"), count)

        measure = f"Spark: stream of {count} micro-batches of {STREAM_ROWS:,} updates, read and written"
        sides = [Side(theirs, "files")]
        row = Measure(measure, "file source and sink, Parquet", ">= 1x", Side(ours), sides)
        return [row.run(min(work.rounds, 3), work.memory_of)]


def _stream_sources(work: Workspace, count: int) -> tuple[str, Path]:
    """Return a collection with a sealed time for each batch, and a folder with a file for each."""
    location, files = work.folder / "spark-stream-source", work.folder / "spark-stream-files"
    files.mkdir(parents=True)
    with persist.open(str(location), settings=QUIET) as client:
        rows = client.create_or_load(COLLECTION, key={"id": pa.int64()}, value={"v": pa.int64()})
        for time in range(count):
            ids = pa.array(range(time * STREAM_ROWS, (time + 1) * STREAM_ROWS), pa.int64())
            times, ones = (
                pa.repeat(pa.scalar(time, pa.int64()), len(ids)),
                pa.repeat(pa.scalar(1, pa.int64()), len(ids)),
            )
            updates = pa.table({"id": ids, "v": ids, "_time": times, "_diff": ones})
            rows.write(updates, seal=time + 1).result()
            pq.write_table(updates, files / f"{time:06}.parquet")
    return str(location), files


def _run(writer: Any, target: str, count: int) -> None:
    query = writer.trigger(availableNow=True).start(target)
    try:
        query.awaitTermination()
        batches = [each for each in query.recentProgress if each["numInputRows"]]
        assert len(batches) == min(count, len(query.recentProgress)), f"{len(batches)} batches with rows"
    finally:
        query.stop()
