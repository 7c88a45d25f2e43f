"""A remedy is data: each face says calls and options in its own words."""

import pickle

import pytest

import persist
from persist.core import written_errors
from persist.errors import CollectionNotFound, NegativeMultiplicity, PersistError
from persist.tools.cli.text import format_error

ERRORS: list[tuple[PersistError, str, str]] = [
    (
        persist.InvalidUsage("it is far ahead.").with_remedy("Give {allow_future:option:True} if it is meant."),
        "it is far ahead. Give allow_future=True if it is meant.",
        "it is far ahead. Give --allow-future if it is meant.",
    ),
    (
        persist.InvalidUsage("it waits.").with_remedy(
            "Use {timeout_s:option}, {late:option:collect} or {history:call}."
        ),
        'it waits. Use timeout_s=, late="collect" or history().',
        "it waits. Use --timeout, --late collect or persist log.",
    ),
    (
        persist.InvalidUsage("late='never' is not a way").with_remedy("Use {transition:call}."),
        "late='never' is not a way Use transition().",
        "--late 'never' is not a way Use transition in Python.",
    ),
    (
        CollectionNotFound("{compact:call}", "a://b", ("c",)),
        "no collection '{compact:call}' at a://b: it has 'c'. Check the name, or make it with create_or_load().",
        "no collection '{compact:call}' at a://b: it has 'c'. Check the name, or make it with persist create.",
    ),
    (
        NegativeMultiplicity("{x}", -1, 3),
        'the record {x} has multiplicity -1 as of 3, and rows cannot show that. snapshot() with form="diff" shows '
        "multiplicities. Write the missing insertion if one is missing.",
        "the record {x} has multiplicity -1 as of 3, and rows cannot show that. persist read with --form diff shows "
        "multiplicities. Write the missing insertion if one is missing.",
    ),
]


@pytest.mark.parametrize(("error", "in_python", "on_the_command_line"), ERRORS)
def test_each_face_words_the_remedy_of_an_error(error: PersistError, in_python: str, on_the_command_line: str) -> None:
    for copy in (error, pickle.loads(pickle.dumps(error))):
        assert str(copy) == in_python
        assert format_error(copy) == on_the_command_line


def test_a_remedy_crosses_to_another_process() -> None:
    for error, _, on_the_command_line in ERRORS:
        assert (
            format_error(written_errors.ERRORS.decode_error(written_errors.ERRORS.encode_error(error)))
            == on_the_command_line
        )
