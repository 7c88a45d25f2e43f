"""What all options of `format("persist")` have in common. What is not known is refused.

Spark gives every option as a string and ignores the case of names. Options of the store are written with the prefix
`storage.`, such as `storage.endpoint_url`.
"""

import json
import os
import re
from collections.abc import Mapping
from typing import TypeVar

from persist.codecs import TIME_MAX
from persist.errors import InvalidUsage
from persist.timeline import Times, is_tag

STORAGE = "storage."
TABLE_PROPERTIES = ("comment", "external", "is_managed_location", "location", "owner", "provider")

N = TypeVar("N", int, float)

_DAY = re.compile(r"\s*\d{4}-")


def split_options(
    given: Mapping[str, str], known: Mapping[str, str], doing: str
) -> tuple[str, dict[str, str], dict[str, str]]:
    """Split options into the location, those of the store, and ours, whose names are checked."""
    lower = _without_table({name.lower(): value for name, value in given.items()})
    location = lower.pop("path", None)
    if location is not None and re.match("file:/(?!/)", location):
        location = location.replace("file:", "file://", 1)  # How Hadoop writes the path of a table.
    if location:
        location = seen_by_all(location)
    storage = {name.removeprefix(STORAGE): value for name, value in lower.items() if name.startswith(STORAGE)}
    options = {name: value for name, value in lower.items() if not name.startswith(STORAGE)}
    if unknown := sorted(options.keys() - {name.lower() for name in known}):
        right = "; ".join(f"{name}: {meaning}" for name, meaning in known.items())
        raise InvalidUsage(
            f'option {", ".join(map(repr, unknown))} is not an option for {doing} format("persist"). There are: '
            f"{right}; and {STORAGE}… for the store."
        )
    if not location:
        raise InvalidUsage(
            'no location was given: use .load("s3://bucket/prefix") or .save("/folder"). Spark does not pass on the '
            "options of a table that was made by CREATE TABLE … USING persist: use CREATE TEMPORARY VIEW … USING "
            "persist OPTIONS (…), or SELECT … FROM t WITH (path = …, collection = …), or a source that has them: "
            'persist.spark.register(spark, "orders", location=…, collection="orders").'
        )
    if not options.get("collection"):
        raise InvalidUsage('no collection was given: use .option("collection", "name")')
    return location, storage, options


def seen_by_all(location: str | os.PathLike[str]) -> str:
    """Return the location as tasks must call it, whatever their working folders are."""
    if not isinstance(location, (str, os.PathLike)) or os.fspath(location).startswith("memory:"):
        raise InvalidUsage(
            f"location {location!r} is not one that other processes can open: give a folder that all workers see, or a "
            "URL such as s3://bucket/prefix"
        )
    text = os.fspath(location)
    return text if "://" in text else os.path.abspath(os.path.expanduser(text))


def _without_table(options: dict[str, str]) -> dict[str, str]:
    """Return options without what Spark says of the table that is being made: CREATE TABLE … USING persist."""
    if "provider" not in options:
        return options
    return {
        name: value
        for name, value in options.items()
        if name not in TABLE_PROPERTIES and not name.startswith("option.")
    }


def number(name: str, text: str, kind: type[N], least: N, most: N) -> N:
    try:
        found = kind(text)
    except ValueError:
        found = kind(-1)
    if not least <= found <= most:
        raise InvalidUsage(f"option {name}={text!r} is not a number from {least} to {most}")
    return found


def time_or_moment(name: str, text: str, most: int = TIME_MAX) -> int | str:
    """Return a time; or the text, if that is a moment or the name of a tag, for which the collection has the time."""
    if _DAY.match(text) or is_tag(text):
        return text
    try:
        return number(name, text, int, 0, most)
    except InvalidUsage as error:
        raise InvalidUsage(f"{error}, nor a timestamp such as 2026-11-21T12:00:00Z") from error


def checked_times(text: str | None) -> Times:
    """Return how `_time` is asked for."""
    if text in ("timestamp", "int", None):
        return "timestamp" if text == "timestamp" else "int"
    raise InvalidUsage(f'option times={text!r} is no form of a time: give "int" or "timestamp"')


def names(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    if not text.lstrip().startswith("["):
        return tuple(name.strip() for name in text.split(","))
    try:
        found = json.loads(text)
    except ValueError as error:
        raise InvalidUsage(f"option columns={text!r} is not a JSON list: {error}") from error
    if not all(isinstance(name, str) for name in found):
        raise InvalidUsage(f"option columns={text!r} is not a list of names")
    return tuple(found)
