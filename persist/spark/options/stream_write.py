"""The options for streaming writes: `DataFrame.writeStream.format("persist")`.

Times of updates come in one of three ways:

    plain rows                      option time = "batch", the default: all rows of a micro-batch are inserted at one
                                    time, the upper of the moment, which is then sealed
    a column _time (and _diff)      the rows are updates, such as those of `readStream.format("persist")`
    a column named by timeColumn    the times of events: integers, or timestamps as a number of timeUnit since 1970

In the second and third way, what is sealed after a micro-batch is one of

    seal = "max", the default       its largest time: later ones must come with later times. A micro-batch of our own
                                    stream source ends at a sealed time, so progress passes through: what is sealed here
                                    is complete, up to the last time that changed anything
    watermark = delay               times before the largest one ever seen minus delay: what has been sealed already is
                                    the collection's own upper, so it lasts across restarts
    seal = "none"                   nothing; somebody else seals

An update at a time that was sealed already is late. It ends the query (late = "error", the default), or is counted,
logged and dropped (late = "drop"). Events of a keyed collection are late below its late bound, too; of them, late =
"collect" adds those that are late to the collection that lateCollection names, by the same commit, with their reasons.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from persist.codecs import TIME_MAX
from persist.errors import InvalidUsage
from persist.sink import BatchTimes, check_one_of
from persist.spark.options.parsing import number, split_options
from persist.spark.write.updates import UNITS

STREAM_WRITE = {
    "collection": "name of the collection",
    "mode": '"append" (default), or "upsert": rows are events for a keyed collection',
    "time": '"batch" (default for rows without times): one time for each micro-batch',
    "timeColumn": "name of a column with the times of events",
    "timeUnit": '"s", "ms", "us" or "ns": what timestamps in timeColumn become; the unit of the timeline, or "us"',
    "watermark": "how much later than the latest time an update may come, in units of times; says what is sealed",
    "late": 'what becomes of an update at a sealed time: "error" (default), "drop", or with mode "upsert" "collect"',
    "lateCollection": 'with late "collect": the collection that late events are added to, with their reasons',
    "seal": '"max" (default): to beyond the largest time of the micro-batch; or "none"',
    "firstBatch": "number of the batch at which a query that wrote elsewhere before goes on here",
    "checkpointLocation": "where Spark keeps the progress of the query",
    "queryName": "what Spark calls the query",
}


@dataclass(frozen=True)
class StreamWriteOptions:
    """What to write, and when; the rest of it depends on the columns: see `times`."""

    location: str
    collection: str
    time: str | None = None
    column: str | None = None
    unit: str | None = None
    watermark: int | None = None
    late: str | None = None
    late_collection: str | None = None
    seal: str | None = None
    first_batch: int = 0
    upserts: bool = False
    storage: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, given: Mapping[str, str]) -> "StreamWriteOptions":
        """Check what Spark was given; raises as `ReadOptions.of`."""
        location, storage, options = split_options(given, STREAM_WRITE, "streaming to")
        check_one_of("time", options.get("time"), ("batch",))
        check_one_of("mode", options.get("mode"), ("append", "upsert"))
        check_one_of("timeUnit", options.get("timeunit"), tuple(UNITS))
        delay = options.get("watermark")
        return cls(
            location=location,
            collection=options["collection"],
            time=options.get("time"),
            column=options.get("timecolumn"),
            unit=options.get("timeunit"),
            watermark=None if delay is None else number("watermark", delay, int, 0, TIME_MAX),
            late=options.get("late"),
            late_collection=options.get("latecollection"),
            seal=options.get("seal"),
            first_batch=number("firstBatch", options.get("firstbatch", "0"), int, 0, 2**63 - 1),
            upserts=options.get("mode") == "upsert",
            storage=storage,
        )

    def times(self, columns: list[str]) -> BatchTimes:
        """Return what the times of a DataFrame of those columns are.

        Raises:
            InvalidUsage: columns and options contradict each other.
        """
        has_times = "_time" in columns or self.column is not None
        if has_times and self.time is not None:
            raise InvalidUsage(
                f'time="batch" gives all rows of a batch one time, and {self.column or "_time"!r} says theirs, too. '
                "Drop the column, or the option."
            )
        if self.unit is not None and self.column is None:
            raise InvalidUsage(f"timeUnit={self.unit!r} says what the timestamps in timeColumn become: name that, too")
        return BatchTimes.of(
            not has_times, self.seal, self.watermark, self.late, self.late_collection, is_keyed=self.upserts
        )
