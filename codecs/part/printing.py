"""Converts filters to text, for display and for finding names."""

import re

import pyarrow.compute as pc


def print_filter(filter: pc.Expression) -> str:
    """Return a filter as Arrow prints it; if Arrow fails, "..." and its sorted words.

    Arrow cuts long sets of values when it prints them, perhaps inside of a character, and then fails.
    """
    try:
        return str(filter)
    except UnicodeDecodeError:
        words = re.findall(rb"\w+", bytes(filter.__reduce__()[1][0]))
        return " ".join(["...", *(f"{word.decode()}(" for word in sorted({*words}))])
