"""The options of `format("persist")`, in one table for parsing, checks, errors and docs/reference/spark-options.md.

Spark passes every option as a string and ignores the case of names. Options of the store have the prefix `storage.`,
such as `storage.endpoint_url`. Every option is checked. An option is refused if it is unknown or belongs to another
use.

Spark requests the columns of a data source before it shows whether it reads a batch or a stream. Without the option
`form`, these are the columns of rows. A batch then reads rows, and a stream raises an error, because it seldom wants rows.
"""

# ruff: noqa: E501  # One line an option makes the table readable.

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any, Literal, cast

from persist.codecs.types.schema import TIME_MAX
from persist.compute.tasks.batch_times import BatchTimes, check_late
from persist.compute.tasks.planned_write import SinkOptions
from persist.compute.tasks.stream_hold import NO_HOLD
from persist.compute.tasks.stream_source import NO_LIMITS, BatchLimits, SourceOptions
from persist.core.antichain import Antichain, to_antichain, to_frontier
from persist.core.errors import InvalidUsage
from persist.core.names import check_hold_name, check_printable_text, is_time_word
from persist.core.timeline import Moment, Times, is_moment, is_tag, parse_time
from persist.engine.collection.reads import READ_TIMEOUT_S

STORAGE = "storage."
COUNT_MAX = 2**62
PARTITIONS_MAX = 100_000
OF_TIMES = ("changes", "transitions", "upserts")
SPARKS_OWN = ("checkpointlocation", "queryname")  # Spark passes them on to what a stream is written by.


Form = Literal["rows", "diff", "changes", "transitions", "upserts"]
Use = Literal["read", "stream", "write", "streaming write"]
Parse = Callable[[str, str], Any]  # The name of an option and its text to its value, or InvalidUsage.


@dataclass(frozen=True)
class Kind:
    """A kind of option values: a description in words, and the function that parses a value."""

    words: str
    parse: Parse


@dataclass(frozen=True)
class Option:
    """One option of the data source; `default` is None if it has none."""

    name: str
    uses: tuple[Use, ...]
    kind: Kind
    default: str | None
    meaning: str


def parse_number(name: str, text: str, kind: type[int] | type[float], least: int, most: float) -> Any:
    """Return a number; raise InvalidUsage if it is out of range."""
    try:
        value = kind(text)
    except ValueError:
        value = kind(-1)
    if not least <= value <= most:
        raise InvalidUsage(f"option {name}={text!r} is not a number from {least} to {most}")
    return value


def parse_time_option(name: str, text: str, most: int = TIME_MAX) -> int | str:
    """Return a number as a time; a moment, a time word or a tag as text."""
    value = parse_time(text)
    return value if isinstance(value, str) else int(parse_number(name, str(value), int, 0, most))


def _parse_moment(name: str, text: str, most: int = TIME_MAX) -> int | str:
    """Return a number or a moment; raise InvalidUsage for a tag."""
    value = parse_time_option(name, text, most)
    if is_tag(value) and not is_time_word(str(value)):
        raise InvalidUsage(f"option {name}={text!r} is neither a number nor a timestamp such as 2026-11-21T12:00:00Z")
    return value


def _parse_frontier(name: str, text: str) -> int | str | Antichain:
    """Return a number, a moment or, for "end", the empty frontier."""
    return Antichain() if text == "end" else _parse_moment(name, text, TIME_MAX + 1)


def _parse_time_or_column(name: str, text: str) -> int | str:
    """Return a time or moment, or the name of a column."""
    value = parse_time(text)
    return value if isinstance(value, str) else parse_time_option(name, text)


def _parse_names(name: str, text: str) -> tuple[str, ...]:
    """Return the names in a JSON list, or in text with commas."""
    if not text.lstrip().startswith("["):
        return tuple(column.strip() for column in text.split(","))
    try:
        columns = json.loads(text)
    except ValueError as error:
        raise InvalidUsage(f"option {name}={text!r} is not a JSON list: {error}") from error
    if not all(isinstance(column, str) for column in columns):
        raise InvalidUsage(f"option {name}={text!r} is not a list of names")
    return tuple(columns)


def _make_choice(*allowed: str) -> Kind:
    """Return the kind of options that have one of some values."""

    def parse(name: str, text: str) -> str:
        if text not in allowed:
            raise InvalidUsage(f"option {name}={text!r} is not one of {', '.join(map(repr, allowed))}")
        return text

    return Kind(", ".join(f'"{value}"' for value in allowed), parse)


def _make_whole_number(least: int, most: int) -> Kind:
    """Return the kind of options that are whole numbers in a range."""
    return Kind("whole number", lambda name, text: parse_number(name, text, int, least, most))


def _make_time(most: int) -> Kind:
    """Return the kind of options that are times up to a limit."""
    words = 'time, timestamp or "latest"' if most == TIME_MAX else "time or timestamp"
    return Kind(words, lambda name, text: parse_time_option(name, text, most))


_TEXT = Kind("text", lambda name, text: text)
_YES = Kind('"true" or "false"', lambda name, text: _make_choice("true", "false").parse(name, text.lower()) == "true")
_TOKEN = Kind("text", check_printable_text)
_HOLD = Kind('name or "none"', lambda name, text: text if text == NO_HOLD else check_hold_name(text))
_COLUMNS = Kind("a,b or a JSON list", _parse_names)
_SECONDS = Kind("seconds", lambda name, text: parse_number(name, text, float, 0, 1e9))
_TIME_OR_COLUMN = Kind("time, timestamp or column", _parse_time_or_column)
_FRONTIER = Kind('time, timestamp or "end"', _parse_frontier)
# The names that other programs use for options of ours.
_MEANT = {
    "from": "start",
    "to": "until",
    "end": "until",
    "slices": "partitions",
    "wait": "timeout_s",
    "timestampasof": "as_of",
}
_READS: tuple[Use, ...] = ("read", "stream")
_WRITES: tuple[Use, ...] = ("write", "streaming write")

OPTIONS = (
    Option("collection", (*_READS, *_WRITES), _TEXT, None, "the name of the collection; needed"),
    Option("form", ("read",), _make_choice("rows", "diff", "changes", "transitions", "upserts"), "rows", "`rows`: records. `diff`: each record once, with its multiplicity `_diff`. `changes`: updates, with `_time` and `_diff`. `transitions`: the change of a key at `_time`, with `_change` and old values as `_old_…`. `upserts`: the value of a key of a keyed collection from `_time` on, or none if `_deleted` is true"),
    Option("form", ("stream",), _make_choice("rows", "changes", "transitions", "upserts"), None, "the same; needed. `rows` needs a collection that only grows: a negative diff fails the query"),
    Option("as_of", ("read",), _make_time(TIME_MAX), "latest", "for `rows` and `diff`: the time of the contents"),
    Option("as_of", ("stream",), _make_time(TIME_MAX), "latest", "begin with the contents as of this time, as one micro-batch, and continue with later changes"),
    Option("start", ("read",), _make_time(TIME_MAX), None, "for `changes`, `transitions` and `upserts`: the first time, inclusive"),
    Option("start", ("stream",), _make_time(TIME_MAX), None, "begin without contents, with the updates from this time on; `latest`: with updates that are sealed after the query first starts"),
    Option("until", ("read",), _make_time(TIME_MAX + 1), None, "for `changes`, `transitions` and `upserts`: the last time, exclusive"),
    Option("times", _READS, _make_choice("int", "timestamp"), "int", "how `changes` and `transitions` show `_time`; `timestamp` needs a timeline"),
    Option("columns", _READS, _COLUMNS, None, "the columns to read; not for `upserts`"),
    Option("seqno", ("read",), _make_whole_number(0, TIME_MAX), None, "read as at this point of the log: `latest` is the last time sealed there, so reads of several collections belong together"),
    Option("schema", ("read",), _make_whole_number(1, 2**31), None, "the version of the schema to read with; by default the newest one when the DataFrame is made"),
    Option("partitions", _READS, _make_whole_number(1, PARTITIONS_MAX), None, "the greatest number of tasks that read the DataFrame or a micro-batch; by default by size"),
    Option("timeout_s", ("read",), _SECONDS, str(READ_TIMEOUT_S), "how long to wait for the time to be sealed, if it is not"),
    Option("timeout_s", ("stream",), _SECONDS, None, "how long to wait until `as_of` is sealed; by default for ever, and not at all with `Trigger.AvailableNow`"),
    Option("max_updates_per_trigger", ("stream",), _make_whole_number(1, COUNT_MAX), None, "the greatest number of stored updates in a micro-batch; one time alone may exceed it"),
    Option("max_times_per_trigger", ("stream",), _make_whole_number(1, COUNT_MAX), None, "the greatest number of different times in a micro-batch"),
    Option("hold", ("stream",), _HOLD, None, "the name of the permanent hold that keeps history for the query, also while it is stopped; by default random. The hold stays until the collection is complete for ever or `collection.hold(name=…).release()`. `none`: no hold, and nothing is written to the location"),
    Option("mode", _WRITES, _make_choice("append", "upsert"), "append", "`upsert`: rows are events for a keyed collection"),
    Option("time", ("write",), _TIME_OR_COLUMN, None, "the time of all rows, or the name of the column that has the time of each, if the DataFrame has no column `_time`; of an overwrite, the time of the difference. By default the time of the commit, which seals it"),
    Option("time", ("streaming write",), _TEXT, None, "the name of the column that has the times, integers or timestamps. Without it and without a column `_time`, each micro-batch gets one time, which is sealed"),
    Option("seal", ("write",), _FRONTIER, None, "seal up to this time in the same commit; `end`: the collection is complete for ever"),
    Option("seal", ("streaming write",), _make_choice("max", "none"), None, "if rows have times: seal up to and including the largest time of the micro-batch (the default), or nothing"),
    Option("watermark", ("streaming write",), _make_whole_number(0, TIME_MAX), None, "instead of `seal`: seal up to the largest time minus this number"),
    Option("key", ("write",), _COLUMNS, None, "create the collection with this key, if there is none; `[]` for no key"),
    Option("where", ("write",), _TEXT, None, "with `mode(\"overwrite\")`: replace only records for which this is true, such as `status = 'new' and id > 5`"),
    Option("multiset", ("write",), _make_choice("true", "false"), "false", "with `mode(\"overwrite\")`: allow several rows of a key, which are an error otherwise"),
    Option("token", ("write",), _TOKEN, None, "a name for the write, so that a repetition does nothing"),
    Option("allow_future", _WRITES, _YES, "false", "on a timeline, take times that are more than a day ahead of the clock"),
    Option("late", _WRITES, _make_choice("error", "drop", "collect"), None, "late updates are an error (the default), are left out and logged, or (events only) are added to `late_collection`. For `write` only with mode `upsert`"),
    Option("late_collection", _WRITES, _TEXT, None, "the collection that late events are added to by the same commit, with their reasons"),
    Option("first_batch", ("streaming write",), _make_whole_number(0, 2**63 - 1), "0", "the number of the first batch, if the query wrote elsewhere before"),
)  # fmt: skip


def split_options(texts: Mapping[str, str], *uses: Use) -> tuple[str, dict[str, str], dict[str, str]]:
    """Return the location, the options of the store, and the other options, with lower-case names."""
    lower = {name.lower(): text for name, text in texts.items()}
    if "provider" in lower:
        raise InvalidUsage(
            "Spark does not pass on the options of a table that was made by CREATE TABLE … USING persist: use a table "
            "of the catalog, as of persist.spark.catalog, or CREATE TEMPORARY VIEW … USING persist OPTIONS (…)"
        )
    location = lower.pop("path", None)
    if location is not None and re.match("file:/(?!/)", location):
        location = location.replace("file:", "file://", 1)  # Hadoop writes paths so.
    storage = {name.removeprefix(STORAGE): text for name, text in lower.items() if name.startswith(STORAGE)}
    ours = lower.keys() - (SPARKS_OWN if "streaming write" in uses else ())
    options = {name: text for name, text in lower.items() if name in ours and not name.startswith(STORAGE)}
    _check_known(options, uses)
    if not location:
        raise InvalidUsage('no location was given: use .load("s3://bucket/prefix") or .save("/folder")')
    if not options.get("collection"):
        raise InvalidUsage('no collection was given: use .option("collection", "name")')
    return resolve_for_tasks(location), storage, options


def _check_known(options: Mapping[str, str], uses: tuple[Use, ...]) -> None:
    """Raise InvalidUsage for an option that none of these uses has."""
    allowed = [option for option in OPTIONS if not {*uses}.isdisjoint(option.uses)]
    names = {option.name for option in allowed}
    unknown = sorted(options.keys() - names)
    if not unknown:
        return
    close = [match for name in unknown for match in _suggest_option(name, names)]
    hint = f"Did you mean {', '.join(map(repr, close))}? " if close else ""
    doing = {"read": "reading", "stream": "a stream from", "write": "writing", "streaming write": "streaming to"}
    meanings = "; ".join(f"{option.name}: {option.meaning}" for option in allowed)
    raise InvalidUsage(
        f'option {", ".join(map(repr, unknown))} is not an option for {doing[uses[0]]} format("persist"). {hint}'
        f"There are: {meanings}; and {STORAGE}… for the store."
    )


def _suggest_option(name: str, names: set[str]) -> list[str]:
    """Return the option that an unknown name probably means."""
    our_name = _MEANT.get(name)
    return [our_name] if our_name in names else get_close_matches(name, names, 1, 0.6)


@dataclass(frozen=True)
class _Parsed:
    """Options for one use, such as reading: texts by lower-case name, and parsed values by field."""

    texts: dict[str, str]
    values: dict[str, Any]

    def refuse(self, names: set[str], why: str) -> None:
        """Raise InvalidUsage, with a reason, if one of these options is set."""
        if wrong := sorted(names & self.texts.keys()):
            raise InvalidUsage(f"option {', '.join(wrong)} does not go with {why}")


def _parse_options(options: Mapping[str, str], use: Use) -> _Parsed:
    """Parse the options for one use; a missing option gets its default."""
    location, storage, texts = split_options(options, use)
    values: dict[str, Any] = {"location": location, "storage": storage}
    for option in OPTIONS:
        text = texts.get(option.name, option.default)
        if use in option.uses and text is not None:
            values[option.name] = option.kind.parse(option.name, text)
    return _Parsed(texts, values)


def resolve_for_tasks(location: str | os.PathLike[str]) -> str:
    """Return the location as an absolute URL, since tasks have other working folders."""
    if not isinstance(location, (str, os.PathLike)) or os.fspath(location).startswith("memory:"):
        raise InvalidUsage(
            f"location {location!r} is not one that other processes can open: give a folder that all workers see, or a "
            "URL such as s3://bucket/prefix"
        )
    text = os.fspath(location)
    return text if "://" in text else os.path.abspath(os.path.expanduser(text))


@dataclass(frozen=True)
class ReadOptions:
    """The options of a batch read. `until` is exclusive. Moments and words stay text."""

    location: str
    collection: str
    form: Form = "rows"
    as_of: int | str | None = None
    start: int | str = 0
    until: int | str = 0
    times: Times = "int"
    columns: tuple[str, ...] | None = None
    seqno: int | None = None
    schema: int | None = None
    partitions: int | None = None
    timeout_s: float = READ_TIMEOUT_S
    storage: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, texts: Mapping[str, str]) -> "ReadOptions":
        """Parse and check the options that a user passed to Spark."""
        options = _parse_options(texts, "read")
        form = options.values["form"]
        of_contents = {"start", "until", "times"}
        unfit = {
            "rows": of_contents,
            "diff": of_contents,
            "changes": {"as_of"},
            "transitions": {"as_of"},
            "upserts": {"as_of", "columns", "times"},
        }
        options.refuse(unfit[form], f"form={form!r}")
        if form in OF_TIMES and not {"start", "until"} <= options.texts.keys():
            raise InvalidUsage(
                f'form="{form}" needs the options start and until: the updates with start <= time < until'
            )
        as_of = options.values["as_of"]
        return cls(**options.values | {"as_of": None if as_of == "latest" else as_of})

    def with_latest(self, as_of: int | None, schema: int | None = None) -> "ReadOptions":
        """Return the options with times in place of "latest", and a schema version."""
        version = schema if self.schema is None else self.schema
        return replace(self, as_of=as_of if self.as_of is None else self.as_of, schema=version)


@dataclass(frozen=True, kw_only=True)
class StreamOptions(SourceOptions):
    """The options of a streaming read: where it begins, the form of rows, limits of a micro-batch.

    `as_of` and `start` matter only when a query first starts; later its checkpoint has the position.
    """

    form: Form
    limits: BatchLimits = NO_LIMITS
    times: Times = "int"

    @classmethod
    def of(cls, texts: Mapping[str, str]) -> "StreamOptions":
        """Parse and check the options that a user passed to Spark."""
        options = _parse_options(texts, "stream")
        values, form = options.values, options.values.get("form")
        if form is None:
            raise InvalidUsage(
                'a stream has no form by default: use .option("form", "changes") for updates, with _time and _diff, '
                '"transitions" for old and new values by key, "upserts" for rows by key of a keyed collection, or "rows" for the records of a collection that only '
                "grows"
            )
        options.refuse({"columns", "times"} if form == "upserts" else set(), f'form="{form}"')
        if {"as_of", "start"} <= options.texts.keys():
            raise InvalidUsage(
                "as_of and start were given, and a stream begins in one way: with the contents as of a time (as_of), or "
                "with the changes from a time on (start). Leave one of them out."
            )
        if "start" in values:
            values["as_of"] = None
        limits = BatchLimits(values.pop("max_updates_per_trigger", None), values.pop("max_times_per_trigger", None))
        rows_by_key = form if form in ("transitions", "upserts") else None
        return cls(**values, rows_by_key=rows_by_key, limits=limits)


def is_only_for_streams(options: Mapping[str, str]) -> bool:
    """Return whether some options only make sense for a streaming read."""
    names = {name.lower() for name in options}
    is_endless = "until" not in names and ("start" in names or options.get("form") in OF_TIMES)
    return is_endless or not names.isdisjoint(("max_updates_per_trigger", "max_times_per_trigger", "hold"))


@dataclass(frozen=True, kw_only=True)
class WriteOptions(SinkOptions):
    """The options of a batch write.

    Attributes:
        upserts: rows are events for a keyed collection.
        key: of the collection, which is created if it is missing; None to write to an existing collection.
        where: the condition on the records that an overwrite replaces, as `persist.core.expression.filters` reads it.
        multiset: whether rows that overwrite may repeat a key.
    """

    upserts: bool = False
    key: tuple[str, ...] | None = None
    where: str | None = None
    multiset: bool = False
    late: str | None = None
    late_collection: str | None = None

    @classmethod
    def of(cls, texts: Mapping[str, str]) -> "WriteOptions":
        """Parse and check the options that a user passed to Spark."""
        options = _parse_options(texts, "write")
        values = options.values
        upserts, late = values.pop("mode") == "upsert", values.get("late")
        options.refuse({"key"} if upserts else set(), 'mode="upsert": create a keyed collection with Client.create')
        values["multiset"] = values["multiset"] == "true"
        if late is not None and not upserts:
            raise InvalidUsage(f'option late={late!r} goes with the option mode="upsert"')
        check_late(late, values.get("late_collection"), is_keyed=True)
        return cls(**values, upserts=upserts)


def write_options(
    location: str,
    collection: str,
    time: int | Moment | None,
    seal: int | Moment | Antichain | None,
    token: str | None,
    partitions: int | None,
    storage_options: Mapping[str, Any] | None,
    *,
    allow_future: bool = False,
) -> WriteOptions:
    """Return the arguments of a function that writes, checked, as options."""
    if not (isinstance(time, str) or is_moment(time)):
        check_whole("time", time, 0, TIME_MAX)
    check_whole("partitions", partitions, 1, PARTITIONS_MAX)
    return WriteOptions(
        location=resolve_for_tasks(location),
        collection=collection,
        time=time,
        seal=seal if seal is None or is_moment(seal) else to_antichain(to_frontier(cast(int | Antichain, seal))),
        token=None if token is None else check_printable_text("token", token),
        allow_future=allow_future,
        storage=dict(storage_options or {}),
    )


def check_whole(name: str, value: Any, least: int, most: int) -> None:
    """Raise InvalidUsage if an argument is neither None nor a whole number in a range."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most):
        raise InvalidUsage(f"{name}={value!r} is not a whole number from {least} to {most}")


@dataclass(frozen=True)
class StreamWriteOptions:
    """The options of a streaming write.

    `column`: the column with the times of events, if that is not `_time`.
    """

    location: str
    collection: str
    column: str | None = None
    watermark: int | None = None
    late: str | None = None
    late_collection: str | None = None
    seal: str | None = None
    first_batch: int = 0
    upserts: bool = False
    allow_future: bool = False
    storage: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, options: Mapping[str, str]) -> "StreamWriteOptions":
        """Parse and check the options that a user passed to Spark."""
        values = _parse_options(options, "streaming write").values
        return cls(column=values.pop("time", None), upserts=values.pop("mode") == "upsert", **values)

    def make_times(self, columns: list[str]) -> BatchTimes:
        """Return how a DataFrame with these columns gets its times and seals."""
        is_plain = "_time" not in columns and self.column is None
        return BatchTimes.of(
            is_plain,
            self.seal,
            self.watermark,
            self.late,
            self.late_collection,
            is_keyed=self.upserts,
            allow_future=self.allow_future,
        )
