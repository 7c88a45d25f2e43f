"""Debezium's placeholders for unchanged large values, which a message lacks.

A placeholder contains the text `__debezium_unavailable_value`, in a form that fits the column:

    text, json, numbers as text   the text
    bytea                         the bytes of the text, as base64 or hexadecimal digits
    hstore                        {text: text}, as an object or as JSON in a text
    uuid[]                        [the UUID of that name]
    arrays of texts and bytes     [the text], [the bytes]
    other arrays                  each byte of the text as an element: a number, a decimal, or true

Only messages that hold such bytes are looked at closer. Source: `UnchangedToastedPlaceholder` of
debezium-connector-postgres; Oracle's connector marks LOBs in the same way.
"""

import base64
import json
import uuid
from contextlib import suppress
from decimal import Decimal
from hashlib import md5
from typing import Any

import numpy as np
import pyarrow.compute as pc

from persist.codecs.order.arrays import boolean_array, boolean_values, int64_array
from persist.connect.envelopes.assembly import Wanted
from persist.connect.envelopes.json_rows import Bad
from persist.connect.envelopes.kafka_connect import Group

UNAVAILABLE = "__debezium_unavailable_value"
_BYTES = UNAVAILABLE.encode()
_MARKS = (UNAVAILABLE, base64.b64encode(_BYTES).decode(), _BYTES.hex())
_UUID = str(uuid.UUID(bytes=md5(_BYTES, usedforsecurity=False).digest(), version=3))
_HSTORE = json.dumps({UNAVAILABLE: UNAVAILABLE}, separators=(",", ":"))
_95 = r"9\.?5[\dE.-]*"  # Also as 0.95 or 9.5E-7: of a decimal with a scale.
_ARRAY = rf'{_UUID}|"Xw=="|{_95}\s*,\s*[0.]*{_95}\s*,\s*[0.]*1\.?0|true\s*(,\s*true\s*){{27}}\]'


def refuse_unavailable(groups: list[Group], place: str | None, request: Wanted) -> tuple[list[Group], list[Bad]]:
    """Take out the messages that have a placeholder where a large value did not change.

    Args:
        place: where a message has its row; None if it is the row.
    """
    remaining_groups, bad = list[Group](), list[Bad]()
    for group in groups:
        is_marked = [boolean_values(pc.match_substring_regex(group.texts, mark.rstrip("="))) for mark in _MARKS]
        arrays = np.flatnonzero(boolean_values(pc.match_substring_regex(group.texts, r"\[")))
        if len(arrays):
            is_like = boolean_values(pc.match_substring_regex(group.texts.take(int64_array(arrays)), _ARRAY))
            is_marked.append(np.isin(np.arange(len(group.texts)), arrays[is_like]))
        good = np.ones(len(group.texts), bool)
        for at in np.flatnonzero(np.logical_or.reduce(is_marked)):
            name = _unavailable_column(group.texts[at].as_py(), place, request)
            if name is not None:
                good[at] = False
                reason = (
                    f"the column {name!r} holds a large value that did not change and is not in the message: set "
                    "REPLICA IDENTITY FULL for its table, or read the value from the database"
                )
                bad.append(Bad(int(group.rows[at]), reason))
        if good.any():
            remaining_groups.append(Group(group.rows[good], group.texts.filter(boolean_array(good)), group.described))
    return remaining_groups, bad


def _unavailable_column(text: bytes, place: str | None, request: Wanted) -> str | None:
    """Return the first column with a placeholder in a message; None without one."""
    with suppress(ValueError, RecursionError):  # The reader reports the error.
        row = json.loads(text, parse_float=Decimal, parse_int=Decimal)
        row = row.get(place) if place is not None and isinstance(row, dict) else row
        for name, value in row.items() if isinstance(row, dict) else ():
            may_be_flags = place is not None  # A row of another producer may well have 28 flags.
            if (request.types is None or name in request.types) and (
                _is_unavailable(value) or (may_be_flags and _are_flags(value))
            ):
                return name
    return None


def _is_unavailable(value: Any) -> bool:
    if isinstance(value, str):
        return value in _MARKS or (len(value) < 2 * len(_HSTORE) and value.replace(" ", "") == _HSTORE)
    if isinstance(value, dict):
        return value == {UNAVAILABLE: UNAVAILABLE}
    if not isinstance(value, list):
        return False
    if len(value) == 1:
        return isinstance(value[0], str) and value[0] in (*_MARKS, _UUID)
    numbers = [_number(element) for element in value] if len(value) == len(_BYTES) else [None]
    if numbers[0] is None or numbers[0].normalize().as_tuple().digits != (9, 5):
        return False
    exponent = int(numbers[0].normalize().as_tuple().exponent)  # A decimal has the byte as its unscaled value.
    return numbers == [Decimal(byte).scaleb(exponent) for byte in _BYTES]


def _are_flags(value: Any) -> bool:
    return isinstance(value, list) and len(value) == len(_BYTES) and all(element is True for element in value)


def _number(element: Any) -> Decimal | None:
    """Return the number that an element of an array holds; None if it is not one."""
    if isinstance(element, dict):  # A decimal with a scale of its own.
        element = element.get("value")
    if isinstance(element, str):
        with suppress(ValueError):
            return Decimal(int.from_bytes(base64.b64decode(element, validate=True), "big", signed=True))
        return None
    return element if isinstance(element, Decimal) else None
