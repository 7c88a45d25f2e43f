"""The table of options: docs/reference/spark-options.md shows it as it is, and every check and error comes from it."""

import re

import pytest

from persist import InvalidUsage
from persist.connect.spark.options import (
    OPTIONS,
    ReadOptions,
    StreamOptions,
    StreamWriteOptions,
    WriteOptions,
    split_options,
)
from tests.support.paths import ROOT

PLACE = {"path": "/a", "collection": "c"}


def rows() -> list[str]:
    return [
        f"| `{option.name}` | {', '.join(option.uses)} | {option.kind.words} | "
        f"{'' if option.default is None else f'`{option.default}`'} | {option.meaning} |"
        for option in OPTIONS
    ]


def test_the_page_about_spark_has_the_table_of_options() -> None:
    page = (ROOT / "docs" / "reference" / "spark-options.md").read_text(encoding="utf-8")
    table = re.search(r"\| option \| for \| takes \| default \| .*\n\|[-| ]+\|\n((?:\|.*\n)+)", page)
    assert table is not None
    assert table[1].splitlines() == rows()


def test_no_option_is_declared_twice_for_one_use() -> None:
    declared = [(option.name.lower(), use) for option in OPTIONS for use in option.uses]
    assert len(declared) == len(set(declared))


def test_defaults_are_values_that_their_options_take() -> None:
    for option in OPTIONS:
        if option.default is not None:
            option.kind.parse(option.name, option.default)


def test_an_option_that_is_misspelt_is_answered_with_the_one_that_was_meant() -> None:
    with pytest.raises(InvalidUsage, match=r"option 'asof' is not an option for reading .* Did you mean 'as_of'\?"):
        split_options({**PLACE, "asof": "3"}, "read")
    with pytest.raises(InvalidUsage, match=r"Did you mean 'max_times_per_trigger'\?"):
        split_options({**PLACE, "max_time_per_trigger": "3"}, "stream")
    with pytest.raises(InvalidUsage, match=r"'quux' is not an option for writing format\(\"persist\"\)\. There are: "):
        split_options({**PLACE, "quux": "3"}, "write")


@pytest.mark.parametrize(
    ("given", "meant"),
    [("from", "start"), ("slices", "partitions"), ("wait", "timeout_s"), ("to", "until"), ("timestampAsOf", "as_of")],
)
def test_what_other_programs_call_an_option_is_refused_with_the_name_that_it_has_here(given: str, meant: str) -> None:
    with pytest.raises(InvalidUsage, match=rf"option '{given.lower()}' is not an .* Did you mean '{meant}'\?"):
        ReadOptions.of({**PLACE, "form": "changes", given: "3"})


def test_options_are_words_of_python_and_are_taken_in_any_case() -> None:
    assert all(option.name.isidentifier() and option.name == option.name.lower() for option in OPTIONS)
    assert ReadOptions.of({**PLACE, "AS_OF": "7", "Timeout_S": "2", "PARTITIONS": "3"}).partitions == 3


def test_options_of_spark_itself_are_taken_where_spark_gives_them() -> None:
    assert StreamWriteOptions.of({**PLACE, "checkpointLocation": "/c", "queryName": "q"}).location == "/a"
    with pytest.raises(InvalidUsage, match="'queryname' is not an option for reading"):
        ReadOptions.of({**PLACE, "queryName": "q"})


@pytest.mark.parametrize(
    ("options", "time", "column"),
    [
        ({"time": "12"}, 12, None),
        ({"time": "2026-11-21T12:00:00Z"}, "2026-11-21T12:00:00Z", None),
        ({"time": "1795264199999"}, 1795264199999, None),
        ({"time": "at"}, "at", "at"),
        ({}, None, None),
    ],
)
def test_time_is_a_number_a_moment_or_a_column(options: dict[str, str], time: object, column: str | None) -> None:
    write = WriteOptions.of({**PLACE, **options})
    assert (write.time, write.column) == (time, column)


def test_what_is_not_given_has_the_default_of_the_table() -> None:
    read = ReadOptions.of(PLACE)
    assert (read.form, read.as_of, read.times, read.timeout_s, read.storage) == ("rows", None, "int", 0.0, {})
    stream = StreamOptions.of({**PLACE, "form": "changes", "start": "3", "storage.endpoint_url": "x"})
    assert (stream.as_of, stream.start, stream.hold, stream.storage) == (None, 3, None, {"endpoint_url": "x"})


def test_a_value_that_is_none_of_those_allowed_is_named_with_them() -> None:
    with pytest.raises(
        InvalidUsage, match="option form='row' is not one of 'rows', 'diff', 'changes', 'transitions', 'upserts'"
    ):
        ReadOptions.of({**PLACE, "form": "row"})
    with pytest.raises(InvalidUsage, match="option late='ignore' is not one of 'error', 'drop', 'collect'"):
        StreamWriteOptions.of({**PLACE, "late": "ignore"})
