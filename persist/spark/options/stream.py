"""The options for following a collection: `spark.readStream.format("persist")`.

    form                   what a row of the stream is; has to be given:
                           "changes": an update: the columns of key and value, _time, _diff;
                           "rows": a record, as often as it was inserted. It has no way to take one back: an update
                           with a negative diff fails the query. For collections that only grow;
                           "upserts": what a key of a keyed collection holds from `_time` on, for sinks that know keys
                           alone: the columns of key and value, _time, _deleted. Where that is true, the key is gone.
    as_of                  begin with the contents as of a time, then follow what changes after it. "latest" (default)
                           is the last time sealed when the query first starts. These contents are one micro-batch,
                           whatever the limits; in the other forms than "rows", at `_time` = as_of.
    from                   begin without contents, with the updates at this time and later; "latest": with what is
                           sealed after the query first starts. Not together with as_of.
    times                  "timestamp" gives _time as timestamps, if the collection has a timeline; "int" as numbers.
    columns                names of the columns wanted, separated by commas, or a JSON list. Like times, it does not
                           go with "upserts".
    maxUpdatesPerTrigger   at most so many updates in a micro-batch, counted as they are stored: consolidation may leave
                           fewer. A micro-batch holds all updates of its times, so one time alone may exceed it.
    maxTimesPerTrigger     at most so many different times of updates in a micro-batch.
    hold                   name of the permanent hold that keeps history for the query, also while it is stopped. By
                           default one is drawn when the query first starts. It stays until the collection is complete
                           for ever, or until it is released: collection.hold(name=…).release(), for a query that will
                           not come back. "none": nothing is kept, and nothing is written to the location; a query that
                           stops for long may then find its history compacted.
    wait                   how long the query may run without as_of being sealed, in seconds. By default there is no
                           limit; and a query with Trigger.AvailableNow does not wait at all.
    slices                 number of tasks to read a micro-batch with, at most.
    collection, storage.…  as for reading.

A time is a number or, if the collection has a timeline, a timestamp. Where a query is, is in its checkpoint: as_of and
from mean something only when it first starts.

Spark asks a data source for its columns without saying whether it is going to read a batch or a stream. Without a form
these are the columns of rows, which is what a batch means, and rarely a stream: hence a stream has no default.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from persist.codecs import TIME_MAX
from persist.errors import InvalidUsage
from persist.names import check_hold_name
from persist.source import NO_HOLD, NO_LIMITS, BatchLimits, SourceOptions
from persist.spark.options.parsing import checked_times, names, number, split_options, time_or_moment
from persist.spark.options.read import OF_TIMES
from persist.timeline import Times

StreamForm = Literal["rows", "changes", "upserts"]
COUNT_MAX = 2**62
STREAM = {
    "collection": "name of the collection",
    "form": '"changes" (updates, with _time and _diff), "upserts" (rows by key, with _time and _deleted, of a keyed '
    'collection) or "rows" (records, of a collection that only grows)',
    "as_of": 'begin with the contents as of a time or timestamp, or "latest" (default)',
    "from": 'begin without contents, with the updates from a time or timestamp on, or "latest"',
    "times": '"timestamp" for _time as timestamps of the collection\'s timeline; "int" (default) as numbers',
    "columns": "names of the columns wanted, separated by commas, or a JSON list",
    "maxUpdatesPerTrigger": "updates in a micro-batch, at most",
    "maxTimesPerTrigger": "different times in a micro-batch, at most",
    "hold": 'name of the permanent hold that keeps history for the query, or "none"',
    "slices": "number of tasks to read a micro-batch with, at most",
    "wait": "seconds to wait for as_of to be sealed",
}
_ONLY_FOR_STREAMS = ("maxupdatespertrigger", "maxtimespertrigger", "hold")


@dataclass(frozen=True, kw_only=True)
class StreamOptions(SourceOptions):
    """What to follow, what a row of the stream is, and how much a micro-batch may hold."""

    form: StreamForm
    limits: BatchLimits = NO_LIMITS
    times: Times = "int"

    @classmethod
    def of(cls, given: Mapping[str, str]) -> "StreamOptions":
        """Check what Spark was given.

        Raises:
            InvalidUsage: an option is missing, unknown, of the wrong form, or does not go with another one.
        """
        location, storage, options = split_options(given, STREAM, "a stream from")
        form = options.get("form")
        if form not in get_args(StreamForm):
            what = "a stream has no form by default" if form is None else f"option form={form!r} is no form of a stream"
            raise InvalidUsage(
                f'{what}: use .option("form", "changes") for updates, with _time and _diff, "upserts" for rows by key '
                'of a keyed collection, or "rows" for the records of a collection that only grows'
            )
        if form == "upserts" and (wrong := sorted({"columns", "times"} & options.keys())):
            raise InvalidUsage(f'option {", ".join(wrong)} does not go with form="upserts"')
        if {"as_of", "from"} <= options.keys():
            raise InvalidUsage(
                "as_of and from were given, and a stream begins in one way: with the contents as of a time (as_of), or "
                "with the changes from a time on (from). Leave one of them out."
            )
        lower = _time("from", options["from"]) if "from" in options else None
        hold = options.get("hold")
        return cls(
            location=location,
            collection=options["collection"],
            form=form,  # type: ignore[arg-type]
            as_of=_time("as_of", options.get("as_of", "latest")) if lower is None else None,
            lower=lower,
            times=checked_times(options.get("times")),
            columns=names(options.get("columns")),
            upserts=form == "upserts",
            limits=BatchLimits(_count("maxUpdatesPerTrigger", options), _count("maxTimesPerTrigger", options)),
            hold=hold if hold in (None, NO_HOLD) else check_hold_name(hold),
            slices=number("slices", options["slices"], int, 1, 100_000) if "slices" in options else None,
            wait_s=number("wait", options["wait"], float, 0, 1e9) if "wait" in options else None,
            storage=storage,
        )


def is_only_for_streams(given: Mapping[str, str]) -> bool:
    """Tell whether options make sense for a stream and in no way for a batch, which always has an end."""
    options = {name.lower() for name in given}
    is_endless = "until" not in options and ("from" in options or given.get("form") in OF_TIMES)
    return is_endless or not options.isdisjoint(_ONLY_FOR_STREAMS)


def _time(name: str, text: str) -> int | str:
    return text if text == "latest" else time_or_moment(name, text, TIME_MAX)


def _count(name: str, options: Mapping[str, str]) -> int | None:
    text = options.get(name.lower())
    return None if text is None else number(name, text, int, 1, COUNT_MAX)
