"""Options of a store: known names only, values converted, because Spark passes every option as a string."""

from collections.abc import Callable, Mapping
from typing import Any

from persist.blob.errors import InvalidUsage


def check_options(
    options: Mapping[str, Any] | None, known: Mapping[str, Callable[[Any], Any]], store: str
) -> dict[str, Any]:
    """Return options with their values converted; None values count as not given.

    Raises:
        InvalidUsage: a name is not known, or a value cannot be converted.
    """
    converted = {}
    for name, value in (options or {}).items():
        if name not in known:
            right = ", ".join(sorted(known)) or "none"
            raise InvalidUsage(f"storage option {name!r} is not an option of {store}; it takes: {right}")
        if value is None:
            continue
        try:
            converted[name] = known[name](value)
        except (TypeError, ValueError) as error:
            raise InvalidUsage(f"storage option {name!r} of {store} has a value that does not fit: {error}") from error
    return converted


def as_bool(value: Any) -> bool:
    """Convert True, False, "true" and "false"."""
    texts = {"true": True, "false": False}
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in texts:
        return texts[value.lower()]
    raise ValueError("it takes true or false")


def as_mode(value: Any) -> int:
    """Convert the rights of a file: a number, or its octal digits as text, such as "0640"."""
    if isinstance(value, str):
        return int(value, 8)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError('it takes octal digits, such as "0640"')
    return value


def as_int(value: Any) -> int:
    """Convert a positive whole number."""
    number = int(value)
    if number <= 0 or isinstance(value, (bool, float)):
        raise ValueError("it takes a positive whole number")
    return number


def as_float(value: Any) -> float:
    """Convert a positive number."""
    number = float(value)
    if not 0 < number < float("inf"):
        raise ValueError("it takes a positive number")
    return number


def as_text(value: Any) -> str:
    """Take a text that is not empty."""
    if not isinstance(value, str) or not value:
        raise ValueError("it takes a text")
    return value
