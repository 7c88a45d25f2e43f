"""Values of dataclasses that users fill in are checked by the types of their fields, which may carry constraints."""

import math
from dataclasses import fields, is_dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from persist.blob.errors import InvalidUsage


def check_fields(options: Any, *, but: tuple[str, ...] = ()) -> None:
    """Check the fields of a dataclass by their types, which msgspec must know: `Annotated[float, msgspec.Meta(ge=0)]`.

    A boolean is no number, a fraction is no count, and what is not finite is refused.

    Raises:
        InvalidUsage: a value is not allowed; the message names the class, the field, the value and what is allowed.
    """
    kinds = get_type_hints(type(options), include_extras=True)
    for field in fields(options):
        if field.name in but:
            continue
        value, kind = getattr(options, field.name), kinds[field.name]
        try:
            if isinstance(value, float) and not math.isfinite(value):
                raise msgspec.ValidationError("Expected a finite number")
            converted = msgspec.convert(value, kind, strict=True)
            if is_dataclass(converted) and not isinstance(value, type(converted)):  # Such as a dict.
                raise msgspec.ValidationError("Expected `object`")
        except msgspec.ValidationError as error:
            allowed = _allowed(kind, str(error))
            raise InvalidUsage(
                f"{type(options).__name__}({field.name}={value!r}) is not allowed: give {allowed}"
            ) from error


def _allowed(kind: Any, problem: str) -> str:
    """Return what to give instead, out of what msgspec says: "Expected `int` >= 16", "Expected `float`, got `str`"."""
    for one in (kind, *get_args(kind)):
        if isinstance(one, type) and is_dataclass(one):
            return f"a {one.__name__}"
    if get_origin(kind) is Literal:
        return " or ".join(map(repr, get_args(kind)))
    if not problem.startswith("Expected "):
        return "a number that 64 bits can hold"
    words = {"int": "an integer", "float": "a number", "bool": "True or False", "str": "text", " | null": " or None"}
    wanted, comma, got = problem.removeprefix("Expected ").replace("`", "").partition(", got ")
    for word, meaning in words.items():
        wanted = wanted.replace(word, meaning)
    return wanted + (f", not {got.replace('null', 'None')}" if comma else "")
