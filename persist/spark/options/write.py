"""The options for writing to a collection: `DataFrame.write.format("persist")`."""

from collections.abc import Mapping
from dataclasses import dataclass

from persist.antichain import Antichain
from persist.codecs import TIME_MAX
from persist.errors import InvalidUsage
from persist.names import check_text
from persist.sink import SinkOptions, check_late, check_one_of
from persist.spark.options.parsing import split_options, time_or_moment
from persist.timeline import is_tag

WRITE = {
    "collection": "name of the collection",
    "mode": '"append" (default), or "upsert": rows are events for a keyed collection',
    "time": "time (or timestamp) of every row, if the DataFrame has no column _time; overwriting, of the difference",
    "timeColumn": "name of a column with the time (or timestamp) of each row, instead of time",
    "seal": 'upper to seal to in the same commit: a time (or timestamp) beyond all that is written, or "end" for ever',
    "where": "with mode(\"overwrite\"): replace only records for which this is true, such as status = 'new' and id > 5",
    "token": "names this write, so that doing it again does nothing",
    "late": 'with mode "upsert", what becomes of late events: "error" (default), "drop" or "collect"',
    "lateCollection": 'with late "collect": the collection that late events are added to, with their reasons',
}


@dataclass(frozen=True, kw_only=True)
class WriteOptions(SinkOptions):
    """What to write; time is None when the DataFrame has a column `_time`, or for overwriting at upper.

    Attributes:
        upserts: rows are events for a keyed collection.
        late, late_collection: what becomes of late events, and where they go.
        where: the condition on the records that an overwrite replaces, as `persist.expression.filters` reads it.
    """

    upserts: bool = False
    where: str | None = None
    late: str | None = None
    late_collection: str | None = None

    @classmethod
    def of(cls, given: Mapping[str, str]) -> "WriteOptions":
        """Check what Spark was given; raises as `ReadOptions.of`."""
        location, storage, options = split_options(given, WRITE, "writing")
        check_one_of("mode", options.get("mode"), ("append", "upsert"))
        upserts = options.get("mode") == "upsert"
        if "late" in options and not upserts:
            raise InvalidUsage(f'option late={options["late"]!r} goes with the option mode="upsert"')
        check_late(options.get("late"), options.get("latecollection"), is_keyed=True)
        return cls(
            upserts=upserts,
            late=options.get("late"),
            late_collection=options.get("latecollection"),
            where=options.get("where"),
            location=location,
            collection=options["collection"],
            time=_moment("time", options["time"], TIME_MAX) if "time" in options else None,
            column=options.get("timecolumn"),
            seal=_frontier(options.get("seal")),
            token=check_text("token", options["token"]) if "token" in options else None,
            storage=storage,
        )


def _frontier(seal: str | None) -> int | str | Antichain | None:
    if seal is None:
        return None
    return Antichain() if seal == "end" else _moment("seal", seal, TIME_MAX + 1)


def _moment(name: str, text: str, most: int) -> int | str:
    """Return a time, or the text of a moment, of which the collection has the time."""
    found = time_or_moment(name, text, most)
    if is_tag(found):
        raise InvalidUsage(f"option {name}={text!r} is neither a number nor a timestamp such as 2026-11-21T12:00:00Z")
    return found
