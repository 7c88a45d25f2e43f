"""LIKE with DuckDB's meaning: a backslash in a pattern is an ordinary character, and nothing escapes."""

import re
from typing import Any

import pyarrow.compute as pc


def match_like_pattern(text: Any, pattern: str) -> Any:
    """Return which texts of an array, or of an expression, match a pattern.

    Arrow's LIKE takes a backslash as an escape, except in patterns such as `a%`, which it does not search by regex.
    """
    if "\\" not in pattern:
        return pc.match_like(text, pattern)
    regex = "".join({"%": ".*", "_": "."}.get(char, re.escape(char)) for char in pattern)
    return pc.match_substring_regex(text, f"(?s)^{regex}$")
