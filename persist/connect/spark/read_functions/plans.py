"""Snapshots and changes as plans of Spark's own: its Parquet scan reads what stands, and Python merges the rest.

    snapshot  =  rows that stand, less those of touched keys    Spark's scan of parts; a broadcast of the keys
              +  what the touched keys hold                     tasks of ours, merged
    (`persist.connect.spark.task_reader`) changes   =  the rows of all parts                          if no two of them
    can hold the same update

What stands, and what may cancel it, is as `persist.engine.read.merging.Split` has it: parts of a keyframe,
and of the history those without a negative diff; the rest are the updates whose keys are touched. Columns, filters and
aggregates are pruned by Spark in all that stands. Where nothing is touched this is a plain scan. The updates of one
part are consolidated, so two parts can only hold equal updates if both their times and their keys overlap.

It is a matter of speed only: each `Route` gives the same rows. The data source reads all of it, slice by slice, where
Spark's scan cannot, or where most keys are touched. `Route.reason` says which was taken and why.

Spark verifies the checksum of each page it reads, not that of the whole blob.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise
from typing import Any, Literal

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from persist.codecs.part.key_range import comparable_keys
from persist.codecs.part.part import Part
from persist.compute.tasks.stream_source import CollectionAddress
from persist.connect.spark.data_source.source import read_by_source
from persist.connect.spark.read_functions.store import (
    Tombstoned,
    holds_map,
    narrowed,
    part_frame,
    unused,
    why_not_narrowed,
    why_not_stored,
    why_not_typed,
)
from persist.connect.spark.task_reader import TaskReader
from persist.connect.spark.types import quoted, spark_schema
from persist.connect.spark.workers import slices_for, task_count
from persist.core.errors import InvalidUsage
from persist.core.timeline import format_time, read_timeline
from persist.engine.read.following.changes import Changes
from persist.engine.read.merging import TOUCH_FRACTION, Form, Split
from persist.engine.read.planning.scan import Scan
from persist.engine.read.planning.snapshot_plan import Explanation
from persist.engine.read.results.snapshot import Snapshot

BROADCAST_ROWS_MAX = 4_000_000  # Of keys that are taken out: each executor holds all of them.
REPEATED_MAX = 1 << 20  # Spark repeats a row through an array of its multiplicity.

Kind = Literal["scan", "touched", "source"]


@dataclass(frozen=True)
class Route:
    """How a snapshot is read.

    Attributes:
        kind: "scan" (by Spark's scan alone), "touched" (touched keys merged apart), "source" (all by the data source).
        reason: why not otherwise, in words.
        tasks: of ours, that read in Python; 0 if that is not known before it runs.
    """

    kind: Kind
    reason: str
    tasks: int = 0

    def __str__(self) -> str:
        how = {
            "scan": "Spark's own scan of all parts",
            "touched": f"Spark's own scan of what stands, and {self.tasks} tasks that merge touched keys",
            "source": "the data source",
        }
        return f"  by        {how[self.kind]}: {self.reason}"


@dataclass(frozen=True)
class PlannedSnapshot:
    """A snapshot planned for Spark; print it to see what will be read, and how.

    Attributes:
        explanation: of `Snapshot.explain`.
    """

    snapshot: Snapshot
    route: Route
    address: CollectionAddress
    tombstoned: Tombstoned

    @property
    def explanation(self) -> Explanation:
        return self.snapshot.explain()

    def __str__(self) -> str:
        return f"{self.explanation}\n{self.route}"

    def frame(self, spark: SparkSession) -> DataFrame:
        """Return the rows, as a DataFrame; nothing is read before an action."""
        if self.route.kind == "source":
            scan = self.snapshot.scan
            return _by_source(spark, scan, self.address, as_of=scan.as_of, form=self.snapshot.form)
        return _NativeFrame(spark, self).frame()


def plan(
    spark: SparkSession,
    snapshot: Snapshot,
    address: CollectionAddress,
    tombstoned: Tombstoned,
    native: bool | None = None,
) -> PlannedSnapshot:
    """Decide how a snapshot is read.

    Args:
        tombstoned: which rows the snapshot leaves out.
        native: True to insist on Spark's own scan, False on the data source; None for whatever is faster.

    Raises:
        InvalidUsage: native is True and not possible; the message says why.
    """
    scan, form = snapshot.scan, snapshot.form
    parts = Split.of(scan, form)

    def by(route: Route) -> PlannedSnapshot:
        return PlannedSnapshot(snapshot, route, address, tombstoned)

    source = _source_route(
        native,
        lambda: _why_not(spark, scan, form, parts, address, tombstoned),
        lambda: _why_slow(scan, parts),
    )
    if source is not None:
        return by(source)
    if not parts.is_merged:
        return by(Route("scan", "no key is touched by later history"))
    rows = sum(part.rows for part in (*parts.base_rest, *parts.rest))
    return by(Route("touched", f"{rows:,} updates may cancel what stands", task_count(spark, scan)))


def _source_route(
    native: bool | None, why_not: Callable[[], str | None], why_slow: Callable[[], str | None] = lambda: None
) -> Route | None:
    """Return the route by the data source if it is asked for, needed or faster; None for Spark's own scan."""
    if native not in (None, True, False):
        raise InvalidUsage(f"native={native!r} is none of True, False and None")
    if native is False:
        return Route("source", "native=False was asked for")
    reason = why_not()
    if reason is not None and native:
        raise InvalidUsage(f"native=True is not possible here: {reason}. Leave it out to read by the data source.")
    if reason is None and native is None:
        reason = why_slow()
    return None if reason is None else Route("source", reason)


def _why_not(
    spark: SparkSession, scan: Scan, form: Form, parts: Split, address: CollectionAddress, tombstoned: Tombstoned
) -> str | None:
    """Say why Spark's own scan cannot be part of reading this, None if it can."""
    schema = scan.schema
    if not tombstoned.is_all_of(scan):
        return "rows that a filter does not pass are left out"
    if not scan.columns:
        return "no columns are asked for"
    if parts.is_merged and not schema.key_names:
        return "without key columns, all rows are merged with each other"
    if parts.is_merged and any(holds_map(schema.arrow.field(name).type) for name in schema.key_names):
        return "Spark cannot compare keys that hold maps"
    if form == "diff" and set(scan.columns) != set(schema.names):
        return 'form="diff" of some columns sums over records that differ in others'
    if (names := [name.lower() for name in schema.arrow.names]) and len(set(names)) < len(names):
        return "names of columns differ by case only"
    wanted = tombstoned.names([*scan.columns, *(schema.key_names if parts.is_merged else ())])
    if (reason := why_not_typed(schema, list(dict.fromkeys(wanted)), scan.all_parts)) is not None:
        return reason
    if (reason := why_not_narrowed(scan, list(dict.fromkeys(wanted)), is_merged=parts.is_merged)) is not None:
        return reason
    if form == "rows" and any(part.diff_sum - part.rows > REPEATED_MAX for part in (*parts.base, *parts.history)):
        return f"some multiplicity may be over {REPEATED_MAX:,}"
    return why_not_stored(spark, address.url, scan.all_parts)


def _why_slow(scan: Scan, parts: Split) -> str | None:
    """Say why reading all of it in Python is faster."""
    standing = sum(scan.rows_within(part) for part in (*parts.base, *parts.history))
    rest = sum(scan.rows_within(part) for part in (*parts.base_rest, *parts.rest))
    if parts.is_merged and rest > TOUCH_FRACTION * standing:
        return f"{rest:,} updates may cancel {standing:,} rows, so most keys are touched"
    if rest > BROADCAST_ROWS_MAX:
        return f"the keys of {rest:,} updates are too many to be sent to each executor"
    return None


def _by_source(spark: SparkSession, scan: Scan, address: CollectionAddress, **options: Any) -> DataFrame:
    columns = json.dumps(list(scan.columns)) if scan.columns != scan.schema.names else None
    return read_by_source(spark, address, schema=scan.schema.version, columns=columns, **options)


class _NativeFrame:
    """The plan of one snapshot, of frames of parts."""

    def __init__(self, spark: SparkSession, planned: PlannedSnapshot) -> None:
        snapshot = planned.snapshot
        self._spark = spark
        self._scan = snapshot.scan
        self._form = snapshot.form
        self._address = planned.address
        self._tombstoned = planned.tombstoned
        self._split = Split.of(snapshot.scan, snapshot.form)
        self._schema = spark_schema(snapshot.schema)
        self._names = [*self._scan.columns]
        self._keys = [*self._scan.schema.key_names]

    def frame(self) -> DataFrame:
        is_merged = self._split.is_merged
        names = list(dict.fromkeys([*self._names, *(self._keys if is_merged else ())]))
        if self._form == "diff":
            names.append("_diff")
        standing = [*self._stored_standing(names), *self._inline_standing(names)]
        frames = []
        if standing:
            rows = united(standing)
            rows = (self._less_touched(rows) if is_merged else rows).select(*map(quoted, self._schema.names))
            frames.append(narrowed(rows, self._scan))
        if is_merged:
            slices = [part for part in slices_for(self._spark, self._scan) if Split.of(part, self._form).is_merged]
            frames.append(self._read(slices, "touched"))
        return united(frames) if frames else self._spark.createDataFrame([], self._schema)

    def _stored_standing(self, names: Sequence[str]) -> list[DataFrame]:
        """Return frames of what stands in blobs: one for each kind of parts, by what must be done with their rows."""
        kinds: dict[tuple[bool, bool], list[Part]] = {}
        for part, is_inside in self._standing():
            is_repeated = self._form == "rows" and not part.is_plain
            if part.blob:
                kinds.setdefault((is_inside, is_repeated), []).append(part)
        frames = []
        for (is_inside, is_repeated), parts in kinds.items():
            extra = [name for name in ("_diff",) if is_repeated and name not in names]
            rows = self._within([*names, *extra], parts, is_inside=is_inside)
            if is_repeated:
                times = F.explode(F.sequence(F.lit(1), F.col("_diff"))).alias(unused("_n", names))
                rows = rows.select(*map(quoted, names), times)
            frames.append(rows.select(*map(quoted, names)))
        return frames

    def _standing(self) -> list[tuple[Part, bool]]:
        history = ((part, self._scan.is_inside(part)) for part in self._split.history)
        return [*((part, True) for part in self._split.base), *history]

    def _within(self, names: Sequence[str], parts: Sequence[Part], *, is_inside: bool) -> DataFrame:
        """Return the rows of parts whose times are wanted, and no tombstones, by Spark's own scan."""
        needed = self._tombstoned.names([*names] if is_inside else [*names, "_time"])
        rows = self._tombstoned.live(part_frame(self._spark, self._address.url, self._scan.schema, needed, parts))
        if not is_inside:
            time = F.col("_time")
            rows = rows.where((time >= self._scan.time_lower) & (time < self._scan.time_upper))
        return rows if len(needed) == len(names) else rows.select(*map(quoted, names))

    def _inline_standing(self, names: Sequence[str]) -> list[DataFrame]:
        parts = tuple(part for part in self._split.history if part.inline)
        if not parts:
            return []
        columns = tuple(name for name in names if name != "_diff")
        scan = replace(self._scan, parts=parts, base=(), columns=columns, narrow=None)  # As what is read from blobs.
        return [self._read([scan], "all", names)]

    def _less_touched(self, rows: DataFrame) -> DataFrame:
        """Return the rows whose keys no update has that may cancel them."""
        scan, parts = self._scan, [*self._split.base_rest, *self._split.rest]
        stored: dict[bool, list[Part]] = {}
        inside = [
            *((part, True) for part in self._split.base_rest),
            *((p, scan.is_inside(p)) for p in self._split.rest),
        ]
        for part, is_inside in inside:
            if part.blob:
                stored.setdefault(is_inside, []).append(part)
        touched = [self._within(self._keys, some, is_inside=inside_times) for inside_times, some in stored.items()]
        if inline := tuple(part for part in parts if part.inline):
            only_keys = replace(scan, parts=inline, base=(), columns=tuple(self._keys))
            touched.append(self._read([only_keys], "keys", self._keys))
        aliases = [f"_touched_{number}" for number in range(len(self._keys))]
        keys = united(touched).toDF(*aliases)
        nullable = {name for name in self._keys if any(_may_be_null(part, scan, name) for part in parts)}
        conditions = []
        for name, alias in zip(self._keys, aliases, strict=True):
            ours, theirs = rows[quoted(name)], keys[alias]
            # What is never NULL is compared without regard to it, which is several times as fast.
            conditions.append(ours.eqNullSafe(theirs) if name in nullable else ours == theirs)
        return rows.join(F.broadcast(keys), reduce(lambda a, b: a & b, conditions), "left_anti")

    def _read(self, slices: Sequence[Scan], what: Any, names: Sequence[str] | None = None) -> DataFrame:
        schema = self._schema
        if names is not None:
            schema = spark_schema(pa.schema([self._scan.schema.arrow.field(name) for name in names]))
        return TaskReader(self._address, tuple(slices), self._form, what, schema).frame(self._spark)


def _may_be_null(part: Part, scan: Scan, name: str) -> bool:
    lifted = part.lift(scan.schema)
    known = part.stats.get(name if lifted is None else lifted.source(name) or "")
    return known is None or known[2] > 0


def united(frames: Iterable[DataFrame]) -> DataFrame:
    """Return the rows of all frames, of which there is one at least, with their columns in the same order."""
    return reduce(lambda one, other: one.union(other), frames)


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
        lower, upper = (format_time(time, read_timeline(scan.schema)) for time in (scan.time_lower, scan.time_upper))
        return (
            f"changes in [{lower}, {upper}), columns {list(scan.columns)}\n"
            f"  history   {len(scan.parts):,} parts, {size / 2**20:,.1f} MiB\n{self.route}"
        )

    def frame(self, spark: SparkSession) -> DataFrame:
        """Return the updates, or transitions, as a DataFrame; nothing is read before an action."""
        scan = self.changes.scan
        if self.route.kind == "source":
            times = None if self.changes.moments is None else "timestamp"
            form = "changes" if self.changes.transitions is None else "transitions"
            interval = {"start": scan.time_lower, "until": scan.time_upper}
            return _by_source(spark, scan, self.address, form=form, times=times, **interval)
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
    """Decide how changes are read; tombstoned, native and errors as of
    `persist.connect.spark.read_functions.plans.plan`."""

    def why_not() -> str | None:
        if changes.transitions is not None:
            return "transitions are paired by key in Python tasks"
        if changes.moments is not None and changes.moments.unit not in _MOMENTS:
            return "Spark's timestamps have no nanoseconds, so each is looked at"
        return _why_no_feed(spark, changes.scan, address, tombstoned)

    route = _source_route(native, why_not) or Route("scan", "no two parts can hold the same update")
    return PlannedChanges(changes, route, address, tombstoned)


def _why_no_feed(spark: SparkSession, scan: Scan, address: CollectionAddress, tombstoned: Tombstoned) -> str | None:
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
        keys = comparable_keys(part, scan.schema)
        if keys is None:
            return True
        bounds.append((keys[0], keys[-1]))
    bounds.sort()
    return any(one[1] >= other[0] for one, other in pairwise(bounds))
