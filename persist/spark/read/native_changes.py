"""Changes as a plan of Spark's own: where no two parts can hold the same update, a scan of the parts is the feed.

The updates of one part are consolidated. Two parts can only hold equal updates if both their times and their keys
overlap; where some do, the data source merges them, slice by slice.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from persist.codecs import Part, ordered_keys
from persist.errors import InvalidUsage
from persist.read import Changes, Scan
from persist.source import CollectionAddress
from persist.spark.data_source import source_reader
from persist.spark.read.native import Route, united
from persist.spark.read.native_store import narrowed, part_frame, why_not_narrowed, why_not_stored, why_not_typed
from persist.spark.read.task_reader import TaskReader
from persist.spark.read.tombstoned import Tombstoned
from persist.spark.types import quoted, spark_schema
from persist.timeline import shown_time, timeline_of

_MOMENTS = {"s": F.timestamp_seconds, "ms": F.timestamp_millis, "us": F.timestamp_micros}


@dataclass(frozen=True)
class PlannedChanges:
    """Changes planned for Spark; print it to see how they are read."""

    changes: Changes
    route: Route
    address: CollectionAddress
    tombstoned: Tombstoned

    def __str__(self) -> str:
        scan = self.changes.scan
        size = sum(part.bytes for part in scan.parts)
        lower, upper = (shown_time(time, timeline_of(scan.schema)) for time in (scan.time_lower, scan.time_upper))
        return (
            f"changes in [{lower}, {upper}), columns {list(scan.columns)}\n"
            f"  history   {len(scan.parts):,} parts, {size / 2**20:,.1f} MiB\n{self.route}"
        )

    def frame(self, spark: SparkSession) -> DataFrame:
        """Return the updates, as a DataFrame; nothing is read before an action."""
        scan = self.changes.scan
        if self.route.kind == "source":
            return _by_source(spark, self.changes, self.address)
        schema = spark_schema(self.changes.schema)
        frames = []
        stored = [part for part in scan.parts if part.blob]
        if stored:
            names = [*scan.columns, "_time", "_diff"]
            time = F.col("_time")
            rows = self.tombstoned.live(part_frame(spark, self.address.url, scan.schema, names, stored))
            if not all(map(scan.is_inside, stored)):
                rows = rows.where((time >= scan.time_lower) & (time < scan.time_upper))
            if self.changes.moments is not None:
                rows = rows.withColumn("_time", _MOMENTS[self.changes.moments.unit](time))
            frames.append(narrowed(rows.select(*map(quoted, schema.names)), scan))
        inline = tuple(part for part in scan.parts if part.inline)
        if inline:
            frames.append(
                TaskReader(self.address, (replace(scan, parts=inline),), "diff", "changes", schema).frame(spark)
            )
        return united(frames) if frames else spark.createDataFrame([], schema)


def plan_changes(
    spark: SparkSession,
    changes: Changes,
    address: CollectionAddress,
    tombstoned: Tombstoned,
    native: bool | None = None,
) -> PlannedChanges:
    """Decide how changes are read; tombstoned, native and errors as of `persist.spark.read.native.plan`."""

    def by(route: Route) -> PlannedChanges:
        return PlannedChanges(changes, route, address, tombstoned)

    if native is False:
        return by(Route("source", "native=False was asked for"))
    reason = _why_not(spark, changes.scan, address, tombstoned)
    if changes.moments is not None and changes.moments.unit not in _MOMENTS:
        reason = "Spark's timestamps have no nanoseconds, so each is looked at"
    if reason is not None and native:
        raise InvalidUsage(f"native=True is not possible here: {reason}. Leave it out to read by the data source.")
    if reason is not None:
        return by(Route("source", reason))
    return by(Route("scan", "no two parts can hold the same update"))


def _why_not(spark: SparkSession, scan: Scan, address: CollectionAddress, tombstoned: Tombstoned) -> str | None:
    if not tombstoned.is_all_of(scan):
        return "rows that a filter does not pass are left out"
    if set(scan.columns) != set(scan.schema.names):
        return "changes of some columns are sums over updates that differ in others"
    if len({name.lower() for name in scan.schema.arrow.names}) < len(scan.schema.arrow.names):
        return "names of columns differ by case only"
    if not all(map(scan.tells_apart, scan.parts)):
        return "updates that only a dropped column told apart must be merged"
    if (reason := why_not_typed(scan.schema, scan.columns, scan.parts)) is not None:
        return reason
    if (reason := why_not_narrowed(scan, scan.columns, is_merged=False)) is not None:
        return reason
    if may_share_updates(scan):
        return "parts overlap in time and in key, so their updates must be merged"
    return why_not_stored(spark, address.url, scan.parts)


def may_share_updates(scan: Scan) -> bool:
    """Tell whether two parts of a scan may hold updates of the same key and time, as far as descriptors tell."""
    clusters: list[list[Part]] = []
    latest = -1
    for part in sorted(scan.parts, key=lambda part: part.time_min):
        if part.time_min > latest:
            clusters.append([])
        clusters[-1].append(part)
        latest = max(latest, part.time_max)
    return any(len(parts) > 1 and _overlap(scan, parts) for parts in clusters)


def _overlap(scan: Scan, parts: Sequence[Part]) -> bool:
    bounds = []
    for part in parts:
        keys = ordered_keys(part, scan.schema)
        if keys is None:
            return True
        bounds.append((keys[0], keys[-1]))
    bounds.sort()
    return any(one[1] >= other[0] for one, other in pairwise(bounds))


def _by_source(spark: SparkSession, changes: Changes, address: CollectionAddress) -> DataFrame:
    scan = changes.scan
    options: dict[str, Any] = {f"storage.{name}": value for name, value in address.storage.items()}
    options |= {"collection": address.collection, "form": "changes", "from": scan.time_lower, "until": scan.time_upper}
    options["schema"] = scan.schema.version
    if changes.moments is not None:
        options["times"] = "timestamp"
    if scan.columns != scan.schema.names:
        options["columns"] = json.dumps(list(scan.columns))
    return source_reader(spark).options(**options).load(address.url)
