"""Checks options from users by their declared types, which may have constraints of msgspec."""

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from persist.blob.errors import InvalidUsage


def check_fields(options: Any, *, but: tuple[str, ...] = ()) -> None:
    """Check a dataclass's fields by their types, such as `Annotated[float, msgspec.Meta(ge=0)]`.

    A boolean is not accepted as a number, nor a fraction as a count; values must be finite.
    """
    kinds = get_type_hints(type(options), include_extras=True)
    for field in fields(options):
        if field.name not in but:
            value = getattr(options, field.name)
            option = f"{field.name}={value!r}" if field.repr else field.name
            _convert_options(value, kinds[field.name], f"{option} is not allowed", strict=True)


def check_values(values: Mapping[str, Any], kinds: Mapping[str, Any]) -> None:
    """Check values by their names as `check_fields` checks fields by their types."""
    for name, value in values.items():
        if name not in kinds:
            raise InvalidUsage(f"{name}={value!r} is not known: give one of {', '.join(kinds)}")
        _convert_options(value, kinds[name], f"{name}={value!r} is not allowed", strict=True)


def read_options(options: Mapping[str, Any] | None, kinds: Mapping[str, Any], store: str) -> dict[str, Any]:
    """Return options with values in the types of `kinds`; texts are parsed, because Spark passes only texts.

    Options that are None are ignored.
    """
    values = options or {}
    if unknown := [name for name in values if name not in kinds]:
        allowed = ", ".join(sorted(kinds)) or "none"
        raise InvalidUsage(f"storage option {unknown[0]!r} is not an option of {store}; it takes: {allowed}")
    problem = "storage option {!r} of {} has a value that does not fit"
    return {
        name: _convert_options(value, kinds[name], problem.format(name, store), strict=False)
        for name, value in values.items()
        if value is not None
    }


def _convert_options(value: Any, kind: Any, problem: str, *, strict: bool) -> Any:
    """Convert a value to an option's type; raise InvalidUsage, beginning with `problem`."""
    try:
        if isinstance(value, float) and not math.isfinite(value):
            raise msgspec.ValidationError("Expected a finite number")
        converted = msgspec.convert(value, kind, strict=strict)
        if is_dataclass(converted) and not isinstance(value, type(converted)):  # Such as a dict.
            raise msgspec.ValidationError("Expected `object`")
    except msgspec.ValidationError as error:
        raise InvalidUsage(f"{problem}: give {_parse_allowed_values(kind, str(error))}") from error
    return converted


def _parse_allowed_values(kind: Any, problem: str) -> str:
    """Return the allowed values, from a message of msgspec: "Expected `int` >= 16", "Expected `float`, got `str`"."""
    for one in (kind, *get_args(kind)):
        if isinstance(one, type) and is_dataclass(one):
            return f"a {one.__name__}"
        if get_origin(one) is Literal:
            is_number = float in {part for other in get_args(kind) for part in get_args(other)}
            return "a number or " * is_number + " or ".join(map(repr, get_args(one)))
    if not problem.startswith("Expected "):
        return "a number that 64 bits can hold"
    words = {"int": "an integer", "float": "a number", "bool": "True or False", "str": "text", " | null": " or None"}
    allowed, comma, got = problem.removeprefix("Expected ").replace("`", "").partition(", got ")
    for word, meaning in words.items():
        allowed = allowed.replace(word, meaning)
    return allowed + (f", not {got.replace('null', 'None')}" if comma else "")
