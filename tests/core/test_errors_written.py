"""An error that crosses from one process to another is the same error there."""

import inspect
import json
import pickle
from dataclasses import is_dataclass
from typing import Any

import pytest

import persist
from persist import errors
from persist.core.errors import Superseded, attach_timeline
from persist.core.written_errors import ERRORS
from persist.errors import PersistError

SEVEN = persist.Antichain(7)
VALUES: dict[str, Any] = {
    "upper": SEVEN, "since": SEVEN, "asked": SEVEN, "current": SEVEN, "names": ("a", "b"), "known": ("a", "b"),
    "mine": ("x",), "theirs": (), "keys": [(("k", 1), 5)], "are_null": False, "location": "memory://x",
    "timeout_s": 1.5, "frontier": "upper", "reasons": {}, "readers": {"c": ("a view",)},
    "is_empty": False, "failed": {"a key": "it is gone"},
}  # fmt: skip
KINDS = sorted(
    {each for name in errors.__all__ if isinstance(each := getattr(errors, name), type)}, key=lambda kind: kind.__name__
)


def made(kind: type[PersistError]) -> PersistError:
    """Return an error of a kind, with some value for each thing that it must be told."""
    if not is_dataclass(kind):
        return kind("what was wrong")
    if kind is errors.UpperMismatch:
        return errors.UpperMismatch(SEVEN, persist.Antichain())
    needed = [
        p for p in inspect.signature(kind).parameters.values() if p.default is p.empty and p.kind != p.KEYWORD_ONLY
    ]
    return kind(*(VALUES.get(p.name, 5 if "int" in str(p.annotation) else "text") for p in needed))


@pytest.mark.parametrize("kind", [*KINDS, Superseded], ids=lambda kind: str(kind.__name__))
def test_an_error_of_each_kind_comes_back_as_it_was(kind: type[PersistError]) -> None:
    error = made(kind)
    again = ERRORS.decode_error(json.loads(json.dumps(ERRORS.encode_error(error))))
    assert type(again) is kind
    assert str(again) == str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_attributes_that_were_set_later_come_along() -> None:
    error = attach_timeline(errors.UpdateNotBeyondUpper(3, SEVEN), "s")
    assert str(ERRORS.decode_error(ERRORS.encode_error(error))) == str(error)


def test_what_has_no_written_form_is_told_by_its_text() -> None:
    class Ours(errors.Conflict):
        """Of a kind that others do not know."""

    again = ERRORS.decode_error(ERRORS.encode_error(Ours("somebody was first")))
    assert (type(again), str(again)) == (errors.Conflict, "somebody was first")
    odd = errors.InvalidUsage(object())
    assert type(ERRORS.decode_error(ERRORS.encode_error(odd))) is errors.InvalidUsage


@pytest.mark.parametrize(
    "written",
    [
        {},
        {"kind": "SystemExit", "text": "x", "args": [], "more": {}},
        {"kind": "os", "text": "x"},
        {"kind": "Conflict", "text": "x", "args": [{"call": "x"}], "more": {}},
        {"kind": "UpperMismatch", "text": "x", "args": [1], "more": {}},
        {"kind": "UpperMismatch", "text": "x"},
        {"kind": "Conflict", "text": "x", "more": {}},
    ],
    ids=str,
)
def test_nothing_else_becomes_an_error(written: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="error"):
        ERRORS.decode_error(written)
