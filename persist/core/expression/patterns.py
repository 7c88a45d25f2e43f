"""LIKE as DuckDB has it: a backslash in a pattern is one of its characters, and nothing escapes."""

import re
from typing import Any

import pyarrow.compute as pc


def match_like_pattern(text: Any, pattern: str) -> Any:
    """Return whether texts, or the texts of an expression, match a pattern.

    Arrow's LIKE takes a backslash as an escape, except in patterns such as `a%`, which it does not search by regex.
    """
    if "\\" not in pattern:
        return pc.match_like(text, pattern)
    regex = "".join({"%": ".*", "_": "."}.get(char, re.escape(char)) for char in pattern)
    return pc.match_substring_regex(text, f"(?s)^{regex}$")
