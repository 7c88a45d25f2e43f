"""The options for reading a collection: `spark.read.format("persist")`."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from persist.codecs import TIME_MAX
from persist.engine import READ_TIMEOUT_S
from persist.errors import InvalidUsage
from persist.spark.options.parsing import checked_times, names, number, split_options, time_or_moment
from persist.timeline import Times

Form = Literal["rows", "diff", "changes", "upserts"]
OF_TIMES = ("changes", "upserts")
READ = {
    "collection": "name of the collection",
    "form": '"rows" (default), "diff", "changes", or of a keyed collection "upserts"',
    "as_of": 'for rows and diff: a time, or "latest" (default); if the collection has a timeline, also a timestamp',
    "from": "for changes and upserts: the first time (or timestamp), inclusive",
    "until": "for changes and upserts: the last time (or timestamp), exclusive",
    "times": 'for changes: "int" (default), or "timestamp" for _time as timestamps of the collection\'s timeline',
    "columns": "names of the columns wanted, separated by commas, or a JSON list",
    "seqno": 'the point of the log at which "latest" is taken, so that reads of several collections belong together',
    "schema": "version of the schema to read with; else the newest when the DataFrame is made",
    "slices": "number of tasks to read with, at most",
    "wait": "seconds to wait for the time to be sealed",
}


@dataclass(frozen=True)
class ReadOptions:
    """What to read. until is one past the last time of changes. Times given as timestamps are left as they are."""

    location: str
    collection: str
    form: Form = "rows"
    as_of: int | str | None = None
    lower: int | str = 0
    until: int | str = 0
    times: Times = "int"
    columns: tuple[str, ...] | None = None
    seqno: int | None = None
    schema: int | None = None
    slices: int | None = None
    wait_s: float = READ_TIMEOUT_S
    storage: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, given: Mapping[str, str]) -> "ReadOptions":
        """Check what Spark was given.

        Raises:
            InvalidUsage: an option is missing, unknown, of the wrong form, or does not go with the form of reading.
        """
        location, storage, options = split_options(given, READ, "reading")
        form = options.get("form", "rows")
        if form not in get_args(Form):
            raise InvalidUsage(f'option form={form!r} is none of "rows", "diff", "changes" and "upserts"')
        unfit = {"rows": {"from", "until", "times"}, "changes": {"as_of"}, "upserts": {"as_of", "columns", "times"}}
        unfit["diff"] = unfit["rows"]
        if wrong := sorted(unfit[form] & options.keys()):
            raise InvalidUsage(f"option {', '.join(wrong)} does not go with form={form!r}")
        if form in OF_TIMES and not {"from", "until"} <= options.keys():
            raise InvalidUsage(f'form="{form}" needs the options from and until: the updates with from <= time < until')
        as_of = options.get("as_of", "latest")
        return cls(
            location=location,
            collection=options["collection"],
            form=form,  # type: ignore[arg-type]
            as_of=None if as_of == "latest" else time_or_moment("as_of", as_of),
            lower=time_or_moment("from", options.get("from", "0")),
            until=time_or_moment("until", options.get("until", "0"), TIME_MAX + 1),
            times=checked_times(options.get("times")),
            columns=names(options.get("columns")),
            seqno=number("seqno", options["seqno"], int, 0, TIME_MAX) if "seqno" in options else None,
            schema=number("schema", options["schema"], int, 1, 2**31) if "schema" in options else None,
            slices=number("slices", options["slices"], int, 1, 100_000) if "slices" in options else None,
            wait_s=number("wait", options.get("wait", str(READ_TIMEOUT_S)), float, 0, 1e9),
            storage=storage,
        )

    def with_latest(self, as_of: int | None, schema: int | None = None) -> "ReadOptions":
        """Return these options with as_of in place of "latest", and a version where none is given."""
        known = schema if self.schema is None else self.schema
        return replace(self, as_of=as_of if self.as_of is None else self.as_of, schema=known)
