"""Debezium's placeholders for unchanged large values, which a message lacks.

A placeholder contains the text `__debezium_unavailable_value`, in a form that fits the column:

    text, json, numbers as text   the text
    bytea                         the bytes of the text, as base64 or hexadecimal digits
    hstore                        {text: text}, as an object or as JSON in a text
    uuid[]                        [the UUID of that name]
    arrays of texts and bytes     [the text], [the bytes]
    other arrays                  each byte of the text as an element: a number, a decimal, or true

Only messages with such bytes are parsed. Source: `UnchangedToastedPlaceholder` of
debezium-connector-postgres; Oracle's connector marks LOBs in the same way.
"""

import base64
import json
import uuid
from collections.abc import Mapping
from contextlib import suppress
from decimal import Decimal
from hashlib import md5
from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from persist.codecs.order.arrays import get_boolean_values, make_boolean_array, make_int64_array
from persist.connect.envelopes.assembly import Mask, Problem, ReadOptions
from persist.connect.envelopes.kafka_connect import Group
from persist.core.state_rules.keyed_rules import UNCHANGED

Unchanged: TypeAlias = Literal["keep", "refuse"]
UNAVAILABLE = "__debezium_unavailable_value"
_BYTES = UNAVAILABLE.encode()
_MARKS = (UNAVAILABLE, base64.b64encode(_BYTES).decode(), _BYTES.hex())
_UUID = str(uuid.UUID(bytes=md5(_BYTES, usedforsecurity=False).digest(), version=3))
_HSTORE = json.dumps({UNAVAILABLE: UNAVAILABLE}, separators=(",", ":"))
_95 = r"9\.?5[\dE.-]*"  # Also as 0.95 or 9.5E-7: of a decimal with a scale.
_ARRAY = rf'{_UUID}|"Xw=="|{_95}\s*,\s*[0.]*{_95}\s*,\s*[0.]*1\.?0|true\s*(,\s*true\s*){{27}}\]'


def take_out_unavailable(
    groups: list[Group], place: str | None, request: ReadOptions
) -> tuple[list[Group], dict[int, list[str]]]:
    """Replace placeholders by null; return the messages, and by number the columns that had them.

    `place`: the member of a message that has its row; None if the message is the row.
    """
    cleaned_groups, unchanged = list[Group](), dict[int, list[str]]()
    for group in groups:
        is_marked = [get_boolean_values(pc.match_substring_regex(group.texts, mark.rstrip("="))) for mark in _MARKS]
        arrays = np.flatnonzero(get_boolean_values(pc.match_substring_regex(group.texts, r"\[")))
        if len(arrays):
            is_like = get_boolean_values(pc.match_substring_regex(group.texts.take(make_int64_array(arrays)), _ARRAY))
            is_marked.append(np.isin(np.arange(len(group.texts)), arrays[is_like]))
        texts = dict[int, bytes]()
        for at in np.flatnonzero(np.logical_or.reduce(is_marked)):
            text = group.texts[at].as_py()
            if names := _unavailable_columns(text, place, request):
                unchanged[int(group.rows[at])] = names
                texts[int(at)] = _replace_with_nulls(text, place, names)
        if texts:
            is_new = np.isin(np.arange(len(group.texts)), [*texts])
            new_texts = pc.replace_with_mask(
                group.texts, make_boolean_array(is_new), pa.array([*texts.values()], group.texts.type)
            )
            group = Group(group.rows, new_texts, group.described)
        cleaned_groups.append(group)
    return cleaned_groups, unchanged


def refuse_unchanged(rows: np.ndarray, unchanged: Mapping[int, list[str]], where: Mask) -> Problem:
    """Return the problem of changes in `where` whose columns have placeholders."""
    has_one = np.isin(rows, [*unchanged])
    return (
        has_one & where,
        lambda place: (
            f"the column {unchanged[int(rows[place])][0]!r} holds a large value that did not change and is not in the "
            "message: set REPLICA IDENTITY FULL for its table, or read the value from the database"
        ),
    )


def make_unchanged_column(rows: np.ndarray, unchanged: Mapping[int, list[str]]) -> dict[str, pa.Array]:
    """Return the `_unchanged` column of events; {} if no message has a placeholder."""
    if not unchanged:
        return {}
    numbers = np.array([*unchanged], np.int64)
    lists = pa.array([*unchanged.values(), None], pa.list_(pa.string()))
    order = numbers.argsort()
    places = numbers[order].searchsorted(rows).clip(max=len(numbers) - 1)
    at = np.where(numbers[order][places] == rows, order[places], len(numbers))
    return {UNCHANGED: lists.take(make_int64_array(at))}


def _unavailable_columns(text: bytes, place: str | None, request: ReadOptions) -> list[str]:
    """Return the columns of a message's row that have a placeholder."""
    with suppress(ValueError, RecursionError):  # The reader reports the error.
        row = json.loads(text, parse_float=Decimal, parse_int=Decimal)
        row = row.get(place) if place is not None and isinstance(row, dict) else row
        may_be_flags = place is not None  # A row of another producer may well have 28 flags.
        return [
            name
            for name, value in (row.items() if isinstance(row, dict) else ())
            if (request.types is None or name in request.types)
            and (_is_unavailable(value) or (may_be_flags and _are_flags(value)))
        ]
    return []


def _replace_with_nulls(text: bytes, place: str | None, names: list[str]) -> bytes:
    """Return a message in which some columns of its row are null."""
    with suppress(msgspec.DecodeError):  # The columns are left as they are in any case.
        message = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        row = message if place is None else msgspec.json.decode(message[place], type=dict[str, msgspec.Raw])
        row |= dict.fromkeys(names, msgspec.Raw(b"null"))
        if place is not None:
            message[place] = msgspec.Raw(msgspec.json.encode(row))
        return msgspec.json.encode(message)
    return text


def _is_unavailable(value: Any) -> bool:
    """Return whether a value is a placeholder."""
    if isinstance(value, str):
        return value in _MARKS or (len(value) < 2 * len(_HSTORE) and value.replace(" ", "") == _HSTORE)
    if isinstance(value, dict):
        return value == {UNAVAILABLE: UNAVAILABLE}
    if not isinstance(value, list):
        return False
    if len(value) == 1:
        return isinstance(value[0], str) and value[0] in (*_MARKS, _UUID)
    numbers = [_parse_number(element) for element in value] if len(value) == len(_BYTES) else [None]
    if numbers[0] is None or numbers[0].normalize().as_tuple().digits != (9, 5):
        return False
    exponent = int(numbers[0].normalize().as_tuple().exponent)  # A decimal has the byte as its unscaled value.
    return numbers == [Decimal(byte).scaleb(exponent) for byte in _BYTES]


def _are_flags(value: Any) -> bool:
    """Return whether a value is the placeholder of a boolean array."""
    return isinstance(value, list) and len(value) == len(_BYTES) and all(element is True for element in value)


def _parse_number(element: Any) -> Decimal | None:
    """Return an array element as Decimal; None if it is not a number."""
    if isinstance(element, dict):  # A decimal with a scale of its own.
        element = element.get("value")
    if isinstance(element, str):
        with suppress(ValueError):
            return Decimal(int.from_bytes(base64.b64decode(element, validate=True), "big", signed=True))
        return None
    return element if isinstance(element, Decimal) else None
