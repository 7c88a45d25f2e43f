"""The options of `format("persist")`, for reading and for writing. What is not known is refused.

Spark gives every option as a string and ignores the case of names. Options of the store are written with the prefix
`storage.`, such as `storage.endpoint_url`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

from persist.antichain import Antichain
from persist.codecs import TIME_MAX
from persist.collection import READ_TIMEOUT_S
from persist.errors import InvalidUsage

Form = Literal["rows", "diff", "changes"]
STORAGE = "storage."
READ = {
    "collection": "name of the collection",
    "form": '"rows" (default), "diff" or "changes"',
    "as_of": 'for rows and diff: a time, or "latest" (default)',
    "from": "for changes: the first time, inclusive",
    "until": "for changes: the last time, exclusive",
    "columns": "names of the columns wanted, separated by commas, or a JSON list",
    "slices": "number of tasks to read with, at most",
    "wait": "seconds to wait for the time to be sealed",
}
WRITE = {
    "collection": "name of the collection",
    "time": "time of every row, if the DataFrame has no column _time",
    "seal": 'upper to seal to in the same commit: a time, or "end" for complete for ever',
}

N = TypeVar("N", int, float)


@dataclass(frozen=True)
class ReadOptions:
    """What to read. until is one past the last time of changes."""

    location: str
    collection: str
    form: Form = "rows"
    as_of: int | None = None
    lower: int = 0
    until: int = 0
    columns: tuple[str, ...] | None = None
    slices: int | None = None
    wait_s: float = READ_TIMEOUT_S
    storage: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, given: Mapping[str, str]) -> "ReadOptions":
        """Check what Spark was given.

        Raises:
            InvalidUsage: an option is missing, unknown, of the wrong form, or does not go with the form of reading.
        """
        location, storage, options = _common(given, READ, "reading")
        form = options.get("form", "rows")
        if form not in ("rows", "diff", "changes"):
            raise InvalidUsage(f'option form={form!r} is none of "rows", "diff" and "changes"')
        unfit = {"from", "until"} if form != "changes" else {"as_of"}
        if wrong := sorted(unfit & options.keys()):
            raise InvalidUsage(f"option {', '.join(wrong)} does not go with form={form!r}")
        if form == "changes" and not {"from", "until"} <= options.keys():
            raise InvalidUsage('form="changes" needs the options from and until: the updates with from <= time < until')
        as_of = options.get("as_of", "latest")
        return cls(
            location=location,
            collection=options["collection"],
            form=form,  # type: ignore[arg-type]
            as_of=None if as_of == "latest" else _number("as_of", as_of, int, 0, TIME_MAX),
            lower=_number("from", options.get("from", "0"), int, 0, TIME_MAX),
            until=_number("until", options.get("until", "0"), int, 0, TIME_MAX + 1),
            columns=_names(options.get("columns")),
            slices=_number("slices", options["slices"], int, 1, 100_000) if "slices" in options else None,
            wait_s=_number("wait", options.get("wait", str(READ_TIMEOUT_S)), float, 0, 1e9),
            storage=storage,
        )

    def with_latest(self, as_of: int | None) -> "ReadOptions":
        """Return these options with as_of in place of "latest"."""
        return replace(self, as_of=as_of) if self.as_of is None else self


@dataclass(frozen=True)
class WriteOptions:
    """What to write; time is None when the DataFrame has a column `_time`."""

    location: str
    collection: str
    time: int | None = None
    seal: Antichain | None = None
    storage: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, given: Mapping[str, str]) -> "WriteOptions":
        """Check what Spark was given; raises as `ReadOptions.of`."""
        location, storage, options = _common(given, WRITE, "writing")
        seal = options.get("seal")
        upper = Antichain() if seal == "end" else None
        if seal is not None and upper is None:
            upper = Antichain(_number("seal", seal, int, 0, TIME_MAX + 1))
        return cls(
            location=location,
            collection=options["collection"],
            time=_number("time", options["time"], int, 0, TIME_MAX) if "time" in options else None,
            seal=upper,
            storage=storage,
        )


def _common(
    given: Mapping[str, str], known: Mapping[str, str], doing: str
) -> tuple[str, dict[str, str], dict[str, str]]:
    """Split options into the location, those of the store, and ours, whose names are checked."""
    lower = {name.lower(): value for name, value in given.items()}
    location = lower.pop("path", None)
    storage = {name.removeprefix(STORAGE): value for name, value in lower.items() if name.startswith(STORAGE)}
    options = {name: value for name, value in lower.items() if not name.startswith(STORAGE)}
    if unknown := sorted(options.keys() - known.keys()):
        right = "; ".join(f"{name}: {meaning}" for name, meaning in known.items())
        raise InvalidUsage(
            f'option {", ".join(map(repr, unknown))} is not an option for {doing} format("persist"). There are: '
            f"{right}; and {STORAGE}… for the store."
        )
    if not location:
        raise InvalidUsage('no location was given: use .load("s3://bucket/prefix") or .save("/folder")')
    if not options.get("collection"):
        raise InvalidUsage('no collection was given: use .option("collection", "name")')
    return location, storage, options


def _number(name: str, text: str, kind: type[N], least: N, most: N) -> N:
    try:
        number = kind(text)
    except ValueError:
        number = kind(-1)
    if not least <= number <= most:
        raise InvalidUsage(f"option {name}={text!r} is not a number from {least} to {most}")
    return number


def _names(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    if not text.lstrip().startswith("["):
        return tuple(name.strip() for name in text.split(","))
    try:
        names = json.loads(text)
    except ValueError as error:
        raise InvalidUsage(f"option columns={text!r} is not a JSON list: {error}") from error
    if not all(isinstance(name, str) for name in names):
        raise InvalidUsage(f"option columns={text!r} is not a list of names")
    return tuple(names)
