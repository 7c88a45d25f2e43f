"""Snapshots and changes as plans of Spark's own operators; no Python runs in tasks.

    snapshot  =  the standing rows, without the keys that the tail retracts      an anti join
              +  the rows that the tail adds                                     its sums by record
    changes   =  the rows of all parts                     if no two of them can have the same update

The parts of a snapshot are split in two. The *tail* has the parts that change rows of other parts. The *standing* parts
are read alone: no other part adds to their rows. If each key has one row at most (`Part.is_single`), a record that the
tail retracts is the only row of its key. So the plan drops the standing rows of that key, and compares keys only. In
all other cases it reads the standing rows of retracted keys once more, and sums them up with the tail. Spark prunes
columns, filters and parts of both. The updates of one part are consolidated, so an update can only occur twice if it is
in two parts whose times and keys overlap.

A session with the extension of the catalog filters by sorted keys in place of the anti join (`jvm/KeyFilter.java`).

A `Route` changes the speed only, never the rows. The data source reads everything, slice by slice, if Spark's scan
cannot, or if most keys are touched. `Route.reason` explains the choice.

Spark verifies the checksum of each page it reads, but not the checksum of the whole blob.
"""

import json
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise
from operator import and_
from typing import Any, Literal

import pyarrow as pa
import pyarrow.types as pt
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from persist.codecs.part.key_range import load_comparable_keys
from persist.codecs.part.part import Part
from persist.codecs.types.arrow_types import contains_map, decode_scalar
from persist.codecs.types.schema import DIFF, TIME
from persist.compute.tasks.stream_source import CollectionAddress
from persist.connect.spark.data_source.source import read_by_source
from persist.connect.spark.read_functions.store import (
    Tombstoned,
    explain_misread,
    explain_unreadable,
    find_unused_name,
    make_local_frame,
    scan_parts,
)
from persist.connect.spark.types import quote_column, spark_schema
from persist.core.errors import InvalidUsage, NegativeMultiplicity
from persist.core.timeline import format_time, read_timeline
from persist.engine.read.following.changes import Changes, read_changes, show_moments
from persist.engine.read.merging import TOUCH_FRACTION, Form, Split
from persist.engine.read.parts.reader import PartReader
from persist.engine.read.planning.scan import Scan
from persist.engine.read.results.snapshot import Snapshot

logger = logging.getLogger(__name__)
BROADCAST_ROWS_MAX = 4_000_000  # Updates whose keys are joined by a broadcast: each executor holds all of them.
SORTED_ROWS_MAX = 2_000_000  # Updates whose keys are sorted: each task holds three copies of them.
SORTED_BYTES_MAX = 1 << 27  # Stored bytes of these, if keys vary in length: one array of Spark holds less than 2 GiB.
GONE = "_persist_gone_"  # Names of columns by which `jvm/KeyFilter.java` knows the join.
BLOCK = 1 << 20  # Spark repeats a row through an array of at most so many.

Kind = Literal["count", "scan", "tail", "source"]
_WAYS = {
    "count": "the descriptors of all parts, which say how many rows there are",
    "scan": "Spark's own scan of all parts",
    "tail": "Spark's own scan of what stands, and its sums of the tail",
    "source": "the data source",
}


@dataclass(frozen=True)
class Route:
    """How a snapshot or changes are read, and why.

    Attributes:
        kind: "count" (from descriptors of parts), "scan" (by Spark, all parts alike), "tail" (by Spark, the tail
            merged with the standing rows), "source" (by the data source).
        reason: why it was chosen, in words.
    """

    kind: Kind
    reason: str

    def __str__(self) -> str:
        return f"  by        {_WAYS[self.kind]}: {self.reason}"


@dataclass(frozen=True)
class Tail:
    """The parts of a snapshot, split into standing parts and the tail that changes their rows.

    Attributes:
        standing: the parts whose rows no other part changes.
        added: the parts of the tail, whose rows are merged.
        is_single: whether each key has one row at most among the standing parts, and in the contents.
    """

    standing: tuple[Part, ...]
    added: tuple[Part, ...]
    is_single: bool

    @classmethod
    def of(cls, scan: Scan, form: Form) -> "Tail":
        """Split the parts of a scan into standing parts and the tail."""
        split = Split.of(scan, form)
        if not split.is_merged or scan.sign < 0 or not all(part.is_single for part in scan.all_parts):
            return cls((*split.base, *split.history), (*split.base_tail, *split.tail), is_single=False)
        # Until something is taken back, contents are what was added, and these have one row for a key.
        begins = min((part.time_min for part in scan.parts if part.negatives), default=scan.time_upper)
        adds = [part.negatives == 0 and part.time_max < begins for part in scan.parts]
        history = [part for part, is_standing in zip(scan.parts, adds, strict=True) if is_standing]
        added = [part for part, is_standing in zip(scan.parts, adds, strict=True) if not is_standing]
        return cls((*scan.base, *history), tuple(added), is_single=True)


@dataclass(frozen=True)
class PlannedSnapshot:
    """The plan of a snapshot for Spark; print it to see what will be read, and how."""

    snapshot: Snapshot
    route: Route
    address: CollectionAddress
    tombstoned: Tombstoned

    def __str__(self) -> str:
        return f"{self.snapshot.explain()}\n{self.route}"

    def frame(self, spark: SparkSession) -> DataFrame:
        """Return the snapshot as a DataFrame; nothing is read before an action."""
        if logger.isEnabledFor(logging.INFO):
            explanation = self.snapshot.explain()
            pruned = ", ".join(f"{count} by {reason}" for reason, count in explanation.pruned.items() if count)
            text = "reads %r as of %d by %s: %d parts, %d rows, %d bytes; parts pruned: %s"
            way = _WAYS[self.route.kind]
            counts = explanation.parts, explanation.rows, explanation.bytes
            logger.info(text, self.address.collection, explanation.as_of, way, *counts, pruned or "none")
        if self.route.kind == "count":
            return spark.range(count_rows(self.snapshot.scan)).select()
        if self.route.kind == "source":
            scan = self.snapshot.scan
            return _read_by_source(spark, scan, self.address, as_of=scan.as_of, form=self.snapshot.form)
        return _NativeFrame(spark, self).frame()


def plan(
    spark: SparkSession,
    snapshot: Snapshot,
    address: CollectionAddress,
    tombstoned: Tombstoned,
    native: bool | None = None,
) -> PlannedSnapshot:
    """Return the plan of a snapshot, by the fastest route.

    Args:
        tombstoned: recognises the rows that the snapshot leaves out.
        native: True to insist on Spark's own scan, False on the data source; None for whatever is faster.
    """
    scan, form = snapshot.scan, snapshot.form
    tail = Tail.of(scan, form)

    def by(route: Route) -> PlannedSnapshot:
        return PlannedSnapshot(snapshot, route, address, tombstoned)

    if not scan.columns and native is not False and can_count_by_descriptors(snapshot):
        return by(Route("count", "no columns are asked for"))
    source = _choose_source_route(
        native, lambda: _why_not(spark, scan, form, tail, address, tombstoned), lambda: _why_slow(scan, tail)
    )
    if source is not None:
        return by(source)
    if not tail.added:
        return by(Route("scan", "no key is touched by later history"))
    rows = sum(part.rows for part in tail.added)
    keys = "each key has one row at most" if tail.is_single else "a key may have several rows"
    return by(Route("tail", f"{rows:,} updates may cancel what stands, and {keys}"))


def can_count_by_descriptors(snapshot: Snapshot) -> bool:
    """Return whether a snapshot has as many rows as the sum of its parts' diffs."""
    scan, tail = snapshot.scan, Tail.of(snapshot.scan, snapshot.form)
    is_whole = scan.filter is None and scan.sign > 0 and all(map(scan.is_inside, scan.parts))
    return snapshot.form == "rows" and is_whole and (tail.is_single or not tail.added)


def count_rows(scan: Scan) -> int:
    """Return the sum of the diffs of all parts."""
    return sum(part.diff_sum for part in scan.all_parts)


def read_extremes(scan: Scan, columns: Sequence[str]) -> pa.Table | None:
    """Return rows with each column's least and greatest value; None unless descriptors have them."""
    kinds = {name: scan.schema.arrow.field(name).type for name in columns}
    parts = scan.all_parts
    is_whole = scan.filter is None and scan.narrow is None and all(map(scan.is_inside, scan.parts))
    # The extremes of text may be missing, Arrow orders NaN otherwise than Spark, and those of diffs are a mark.
    is_simple = all(pt.is_integer(kind) or pt.is_date(kind) or pt.is_timestamp(kind) for kind in kinds.values())
    if not (is_whole and is_simple) or DIFF in kinds or scan.sign < 0 or scan.schema.is_widened:
        return None
    if any(
        part.negatives or part.schema != scan.schema.version or not kinds.keys() <= part.stats.keys() for part in parts
    ):
        return None
    ends = {
        name: pa.array([decode_scalar(end, kind) for part in parts for end in part.stats[name][:2]], kind)
        for name, kind in kinds.items()
    }
    return pa.table(ends)


def _choose_source_route(
    native: bool | None, why_not: Callable[[], str | None], why_slow: Callable[[], str | None] = lambda: None
) -> Route | None:
    """Return the route by the data source, or None if Spark's own scan can read and is faster."""
    if native not in (None, True, False):
        raise InvalidUsage(f"native={native!r} is not True, False or None")
    if native is False:
        return Route("source", "native=False was asked for")
    reason = why_not()
    if reason is not None and native:
        raise InvalidUsage(f"native=True is not possible here: {reason}. Leave it out to read by the data source.")
    if reason is None and native is None:
        reason = why_slow()
    return None if reason is None else Route("source", reason)


def _why_not(
    spark: SparkSession, scan: Scan, form: Form, tail: Tail, address: CollectionAddress, tombstoned: Tombstoned
) -> str | None:
    """Return why Spark's own scan cannot read a snapshot; None if it can."""
    schema, is_merged = scan.schema, bool(tail.added)
    if not scan.columns:
        return "no columns are asked for"
    if is_merged and not schema.key_names:
        return "without key columns, all rows are merged with each other"
    if form == "diff" and set(scan.columns) != set(schema.names):
        return 'form="diff" of some columns sums over records that differ in others'
    read = list(dict.fromkeys([*scan.columns, *(schema.key_names if is_merged else ())]))
    if is_merged and (maps := [name for name in read if contains_map(schema.arrow.field(name).type)]):
        return f"Spark cannot compare maps, which the column {maps[0]!r} holds"
    scanned = list(dict.fromkeys(tombstoned.add_column(read)))
    return _why_not_scanned(spark, scan, scanned, address, tombstoned)


def _why_not_scanned(
    spark: SparkSession, scan: Scan, names: Sequence[str], address: CollectionAddress, tombstoned: Tombstoned
) -> str | None:
    """Return why Spark's own scan cannot read these columns of all parts; None if it can."""
    if not tombstoned.is_only_filter_of(scan):
        return "rows that a filter does not pass are left out"
    if scan.narrow is not None:
        return f"columns have wider types by now than in version {scan.narrow.version} of the schema"
    if len({name.lower() for name in scan.schema.arrow.names}) < len(scan.schema.arrow.names):
        return "names of columns differ by case only"
    reason = explain_misread(scan.schema, names, scan.all_parts)
    return explain_unreadable(spark, address.url, scan.all_parts) if reason is None else reason


def _why_slow(scan: Scan, tail: Tail) -> str | None:
    """Return why the data source reads a snapshot faster than Spark's scan; None if it does not."""
    standing, added = (sum(map(scan.bound_row_count, parts)) for parts in (tail.standing, tail.added))
    if added > TOUCH_FRACTION * standing:
        return f"{added:,} updates may cancel {standing:,} rows, so most keys are touched"
    return None


def _read_by_source(spark: SparkSession, scan: Scan, address: CollectionAddress, **options: Any) -> DataFrame:
    """Return the DataFrame of the data source with the columns of a scan."""
    columns = json.dumps(list(scan.columns)) if scan.columns != scan.schema.names else None
    return read_by_source(spark, address, schema=scan.schema.version, columns=columns, **options)


class _NativeFrame:
    """Builds the DataFrame of a snapshot from scans of its parts by Spark."""

    def __init__(self, spark: SparkSession, planned: PlannedSnapshot) -> None:
        snapshot = planned.snapshot
        self._spark = spark
        self._scan = snapshot.scan
        self._form = snapshot.form
        self._address = planned.address
        self._tombstoned = planned.tombstoned
        self._tail = Tail.of(snapshot.scan, snapshot.form)
        self._schema = spark_schema(snapshot.schema)
        self._keys = [*self._scan.schema.key_names]
        added = self._tail.added
        self._nullable = {name for name in self._keys if any(_may_be_null(part, self._scan, name) for part in added)}
        self._names = list(dict.fromkeys([*self._scan.columns, *(self._keys if self._tail.added else ())]))

    def frame(self) -> DataFrame:
        """Return the snapshot: standing rows without retracted keys, and the summed tail."""
        standing = self._list_standing_frames()
        frames = standing
        if self._tail.added:
            tail = self._read_rows([*self._names, DIFF], self._tail.added)
            for name in self._keys:
                if name not in self._nullable:  # The join asks for it, so both uses of the tail share one sum.
                    tail = tail.where(F.col(quote_column(name)).isNotNull())
            if self._tail.is_single and not self._is_summed():
                tail = self._sum_diffs(tail)
            is_gone = F.col(DIFF) < 0 if self._tail.is_single or self._form == "rows" else F.lit(True)
            gone_keys = tail.where(is_gone).select(*map(quote_column, self._keys))
            frames = [self._join_tail(rows, gone_keys, "left_anti") for rows in standing]
            if self._tail.is_single:
                frames.append(tail.where(F.col(DIFF) > 0))
            else:
                touched = [
                    _select_with_diff(self._join_tail(rows, gone_keys, "left_semi"), self._names) for rows in standing
                ]
                frames.append(self._check_diffs(self._sum_diffs(_union_all([*touched, tail]))))
        results = [self._repeat_rows(rows) for rows in frames]
        return _union_all(results) if results else self._spark.createDataFrame([], self._schema)

    def _is_summed(self) -> bool:
        """Return whether each record has one update in the tail, so that no sum is needed."""
        times = {time for part in self._tail.added for time in (part.time_min, part.time_max)}
        return len(times) == 1 and not may_share_updates(replace(self._scan, parts=self._tail.added))

    def _list_standing_frames(self) -> list[DataFrame]:
        """Return the standing rows, with `_diff` for parts in which it is not always 1."""
        kinds: dict[bool, list[Part]] = {}
        for part in self._tail.standing:
            kinds.setdefault(self._form == "diff" or not part.is_plain, []).append(part)
        return [
            self._read_rows([*self._names, DIFF] if has_diff else self._names, parts)
            for has_diff, parts in kinds.items()
        ]

    def _read_rows(self, names: Sequence[str], parts: Iterable[Part]) -> DataFrame:
        """Return rows of parts within the scan's times, without tombstones."""
        scan, base = self._scan, {*map(id, self._scan.base)}
        kinds: dict[tuple[bool, bool, bool], list[Part]] = {}
        for part in parts:
            is_base = id(part) in base
            kinds.setdefault((bool(part.blob), is_base, is_base or scan.is_inside(part)), []).append(part)
        frames = []
        for (is_stored, is_base, is_inside), some in kinds.items():
            if not is_stored:
                frames.append(self._read_inline(names, some, is_base=is_base))
                continue
            rows = self._scan_files(names, some, is_inside=is_inside)
            if scan.sign < 0 and not is_base and DIFF in names:
                rows = rows.withColumn(DIFF, _fail_at_overflow(F.try_subtract(F.lit(0).cast("long"), F.col(DIFF))))
            frames.append(rows)
        return _union_all(frames)

    def _scan_files(self, names: Sequence[str], parts: Sequence[Part], *, is_inside: bool) -> DataFrame:
        """Return rows of parts that are blobs, within the scan's times, by Spark's own scan."""
        needed = self._tombstoned.add_column([*names] if is_inside else [*names, TIME])
        rows = self._tombstoned.select_live(
            scan_parts(self._spark, self._address.url, self._scan.schema, needed, parts)
        )
        if not is_inside:
            rows = rows.where((F.col(TIME) >= self._scan.time_lower) & (F.col(TIME) < self._scan.time_upper))
        return rows if len(needed) == len(names) else rows.select(*map(quote_column, names))

    def _read_inline(self, names: Sequence[str], parts: list[Part], *, is_base: bool) -> DataFrame:
        """Return rows that the log contains itself; they become a part of the plan."""
        with self._address.open_store() as storage:
            read = self._scan.read_base_rows if is_base else self._scan.updates
            tables = [self._scan.empty(names), *read(PartReader(storage.blob), names, parts)]
        return make_local_frame(self._spark, pa.concat_tables(tables).select(names))

    def _sum_diffs(self, rows: DataFrame) -> DataFrame:
        """Return each record once, with the sum of its diffs, if that is not 0."""
        total = _fail_at_overflow(F.try_sum(DIFF)).alias(DIFF)
        return rows.groupBy(*map(quote_column, self._names)).agg(total).where(F.col(DIFF) != 0)

    def _check_diffs(self, rows: DataFrame) -> DataFrame:
        """Return rows; a task fails at a negative multiplicity, unless the form has diffs."""
        if self._form == "diff":
            return rows
        record = F.to_json(F.struct(*map(quote_column, self._names)))
        less = NegativeMultiplicity("{record}", -1, self._scan.as_of)
        start, end = f"persist.errors.NegativeMultiplicity: {less}".split("{record} has multiplicity -1")
        text = F.concat(F.lit(start), record, F.lit(" has multiplicity "), F.col(DIFF).cast("string"), F.lit(end))
        return rows.withColumn(DIFF, F.when(F.col(DIFF) > 0, F.col(DIFF)).otherwise(F.raise_error(text).cast("long")))

    def _join_tail(self, rows: DataFrame, gone: DataFrame, how: str) -> DataFrame:
        """Join rows with the keys in `gone`: `how` is a semi join, or an anti join."""
        count = sum(map(self._scan.bound_row_count, self._tail.added))
        prefix = GONE if count <= SORTED_ROWS_MAX and self._are_keys_small() else "_gone_"
        keys = gone.toDF(*(f"{prefix}{number}" for number in range(len(self._keys))))
        if count <= BROADCAST_ROWS_MAX:
            keys = F.broadcast(keys)
        conditions = []
        for name, alias in zip(self._keys, keys.columns, strict=True):
            ours, of_tail = rows[quote_column(name)], keys[alias]
            # A comparison without regard to NULL is several times as fast.
            conditions.append(ours.eqNullSafe(of_tail) if name in self._nullable else ours == of_tail)
        return rows.join(keys, reduce(and_, conditions), how)

    def _are_keys_small(self) -> bool:
        """Return whether the keys of the tail fit one array of the JVM."""
        is_fixed = all(pt.is_primitive(self._scan.schema.arrow.field(name).type) for name in self._keys)
        return is_fixed or sum(part.bytes for part in self._tail.added) <= SORTED_BYTES_MAX

    def _repeat_rows(self, rows: DataFrame) -> DataFrame:
        """Return the result's columns, each row repeated by its multiplicity."""
        if self._form == "rows" and DIFF in rows.columns and not self._tail.is_single:
            rows = repeat_rows(rows)
        return rows.select(*map(quote_column, self._schema.names))


def repeat_rows(rows: DataFrame) -> DataFrame:
    """Repeat each row as often as the absolute value of `_diff`."""
    block, number = (find_unused_name(name, rows.columns) for name in ("_block", "_number"))
    count = F.abs(F.col(DIFF))
    within = F.least(F.lit(BLOCK).cast("long"), count - F.col(block) * BLOCK)
    blocks = F.explode(F.sequence(F.lit(0).cast("long"), F.expr(f"(abs({DIFF}) - 1) div {BLOCK}")))
    rows = rows.select("*", blocks.alias(block))
    return rows.select("*", F.explode(F.sequence(F.lit(1).cast("long"), within)).alias(number))


def _fail_at_overflow(diff: Column) -> Column:
    """Return a diff; a task fails if it is NULL, which means an overflow."""
    text = "persist.errors.DiffOverflow: the diffs of one record sum to more than int64 holds"
    return F.coalesce(diff, F.raise_error(F.lit(text)).cast("long"))


def _select_with_diff(rows: DataFrame, names: Sequence[str]) -> DataFrame:
    """Return these columns and `_diff`, which is 1 where rows have none."""
    diff = F.col(DIFF) if DIFF in rows.columns else F.lit(1).cast("long").alias(DIFF)
    return rows.select(*map(quote_column, names), diff)


def _may_be_null(part: Part, scan: Scan, name: str) -> bool:
    """Return whether a column of a part may have NULL, by its statistics."""
    lifted = part.make_lift(scan.schema)
    stats = part.stats.get(name if lifted is None else lifted.find_source(name) or "")
    return stats is None or stats[2] > 0


def _union_all(frames: Iterable[DataFrame]) -> DataFrame:
    """Return the rows of all frames, whose columns have one order."""
    return reduce(lambda one, other: one.union(other), frames)


_MOMENTS = {"s": F.timestamp_seconds, "ms": F.timestamp_millis, "us": F.timestamp_micros}


@dataclass(frozen=True)
class PlannedChanges:
    """The plan of changes for Spark; print it to see how they are read."""

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
        """Return the changes as a DataFrame; nothing is read before an action."""
        scan = self.changes.scan
        if self.route.kind == "source":
            times = None if self.changes.moments is None else "timestamp"
            form = "changes" if self.changes.transitions is None else "transitions"
            interval = {"start": scan.time_lower, "until": scan.time_upper}
            return _read_by_source(spark, scan, self.address, form=form, times=times, **interval)
        schema = spark_schema(self.changes.schema)
        frames = []
        stored = [part for part in scan.parts if part.blob]
        if stored:
            names = [*scan.columns, "_time", "_diff"]
            time = F.col("_time")
            rows = self.tombstoned.select_live(scan_parts(spark, self.address.url, scan.schema, names, stored))
            if not all(map(scan.is_inside, stored)):
                rows = rows.where((time >= scan.time_lower) & (time < scan.time_upper))
            if self.changes.moments is not None:
                rows = rows.withColumn("_time", _MOMENTS[self.changes.moments.unit](time))
            frames.append(rows.select(*map(quote_column, schema.names)))
        inline = tuple(part for part in scan.parts if part.inline)
        if inline:
            with self.address.open_store() as storage:
                updates = read_changes(replace(scan, parts=inline), PartReader(storage.blob))
            frames.append(make_local_frame(spark, show_moments(updates, self.changes.moments).select(schema.names)))
        return _union_all(frames) if frames else spark.createDataFrame([], schema)


def plan_changes(
    spark: SparkSession,
    changes: Changes,
    address: CollectionAddress,
    tombstoned: Tombstoned,
    native: bool | None = None,
) -> PlannedChanges:
    """Return the plan of changes, by the fastest route; other arguments and errors as of `plan`."""

    def why_not() -> str | None:
        if changes.transitions is not None:
            return "transitions are paired by key in Python tasks"
        if changes.moments is not None and changes.moments.unit not in _MOMENTS:
            return "Spark's timestamps have no nanoseconds, so each is looked at"
        return _explain_missing_feed(spark, changes.scan, address, tombstoned)

    route = _choose_source_route(native, why_not) or Route("scan", "no two parts can hold the same update")
    return PlannedChanges(changes, route, address, tombstoned)


def _explain_missing_feed(
    spark: SparkSession, scan: Scan, address: CollectionAddress, tombstoned: Tombstoned
) -> str | None:
    """Return why Spark's own scan cannot read the changes; None if it can."""
    if set(scan.columns) != set(scan.schema.names):
        return "changes of some columns are sums over updates that differ in others"
    if not all(map(scan.keeps_distinct, scan.parts)):
        return "updates that only a dropped column told apart must be merged"
    if may_share_updates(scan):
        return "parts overlap in time and in key, so their updates must be merged"
    return _why_not_scanned(spark, scan, scan.columns, address, tombstoned)


def may_share_updates(scan: Scan) -> bool:
    """Return whether two parts may have updates of one key and time."""
    clusters: list[list[Part]] = []
    latest = -1
    for part in sorted(scan.parts, key=lambda part: part.time_min):
        if part.time_min > latest:
            clusters.append([])
        clusters[-1].append(part)
        latest = max(latest, part.time_max)
    return any(len(parts) > 1 and _do_keys_overlap(scan, parts) for parts in clusters)


def _do_keys_overlap(scan: Scan, parts: Sequence[Part]) -> bool:
    """Return whether the ranges of keys of two parts may overlap."""
    bounds = []
    for part in parts:
        keys = load_comparable_keys(part, scan.schema)
        if keys is None:
            return True
        bounds.append((keys[0], keys[-1]))
    bounds.sort()
    return any(first[1] >= second[0] for first, second in pairwise(bounds))
