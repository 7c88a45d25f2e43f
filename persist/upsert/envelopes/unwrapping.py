"""Messages with and without Connect's "schema" part, told apart, and their payloads.

The JSON converter writes the schema before the payload, the same bytes in each message of one table until that table
is altered. So of all messages with the first one's beginning the payload is cut out, and nobody reads the schema twice.
"""

from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from persist.codecs import boolean_array, boolean_values
from persist.upsert.envelopes.connect import Described
from persist.upsert.envelopes.errors import Unreadable
from persist.upsert.envelopes.json_rows import Bad

SCHEMA_FIRST = r'^\s*\{\s*"schema"\s*:\s*(\{|null)'
PAYLOAD_FIRST = r'^\s*\{\s*"payload"\s*:\s*(\{|null)'


class _Outer(msgspec.Struct):
    payload: msgspec.Raw
    schema: msgspec.Raw = msgspec.Raw(b"null")


@dataclass(frozen=True, slots=True)
class Group:
    """Messages of one description.

    Attributes:
        rows: their numbers, int64[n].
        texts: their payloads, large_binary[n].
        described: what their schema says; None if they have none.
    """

    rows: np.ndarray
    texts: pa.Array
    described: Described | None


@dataclass(frozen=True, slots=True)
class Unwrapped:
    """Messages by their descriptions; those whose payload is null; and those that cannot be taken apart."""

    groups: list[Group]
    empty: np.ndarray
    bad: list[Bad]


def unwrapped(texts: pa.Array, rows: np.ndarray) -> Unwrapped:
    """Take messages apart.

    Args:
        texts: large_binary without NULL.
        rows: the numbers of the messages.
    """
    schema_first = boolean_values(pc.match_substring_regex(texts, SCHEMA_FIRST))
    payload_first = boolean_values(pc.match_substring_regex(texts, PAYLOAD_FIRST))
    plain = ~(schema_first | payload_first)
    groups, bad = [], list[Bad]()
    if plain.any():
        groups.append(Group(rows[plain], _where(texts, plain), None))
    _by_beginning(_where(texts, schema_first), rows[schema_first], groups, bad)
    _one_by_one(_where(texts, payload_first), rows[payload_first], groups, bad)
    return _without_empty(groups, bad)


def _by_beginning(texts: pa.Array, rows: np.ndarray, groups: list[Group], bad: list[Bad]) -> None:
    while len(texts):
        first = texts[0].as_py()
        try:
            outer = msgspec.json.decode(first, type=_Outer)
            described = _described(outer)
            schema, payload = bytes(outer.schema), bytes(outer.payload)
            start = first.find(payload, first.find(schema) + len(schema))
            end = first[start + len(payload) :]
        except (msgspec.MsgspecError, Unreadable, UnicodeDecodeError) as error:
            bad.append(Bad(int(rows[0]), _reason(error)))
            texts, rows = texts.slice(1), rows[1:]
            continue
        same = boolean_values(pc.and_(pc.starts_with(texts, first[:start]), pc.ends_with(texts, end)))
        payloads = pc.binary_slice(_where(texts, same), start, -len(end))
        groups.append(Group(rows[same], payloads, described))
        texts, rows = _where(texts, ~same), rows[~same]


def _one_by_one(texts: pa.Array, rows: np.ndarray, groups: list[Group], bad: list[Bad]) -> None:
    """Take apart what the JSON converter does not write: somebody has sorted the members since."""
    found: dict[bytes, tuple[Described | None, list[int], list[bytes]]] = {}
    for row, text in zip(rows.tolist(), texts.to_pylist(), strict=True):
        try:
            outer = msgspec.json.decode(text, type=_Outer)
            schema = bytes(outer.schema)
            if schema not in found:
                found[schema] = (_described(outer), [], [])
        except (msgspec.MsgspecError, Unreadable, UnicodeDecodeError) as error:
            bad.append(Bad(row, _reason(error)))
            continue
        found[schema][1].append(row)
        found[schema][2].append(bytes(outer.payload))
    for described, numbers, payloads in found.values():
        groups.append(Group(np.array(numbers, np.int64), pa.array(payloads, pa.large_binary()), described))


def _described(outer: _Outer) -> Described | None:
    schema = msgspec.json.decode(outer.schema)
    return None if schema is None else Described.of(schema)


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, Unreadable) else f"it is not JSON: {error}"


def _without_empty(groups: list[Group], bad: list[Bad]) -> Unwrapped:
    kept, empty = [], [np.empty(0, np.int64)]
    for group in groups:
        null = boolean_values(pc.equal(group.texts, b"null"))
        empty.append(group.rows[null])
        if not null.all():
            kept.append(Group(group.rows[~null], _where(group.texts, ~null), group.described))
    return Unwrapped(kept, np.concatenate(empty), bad)


def _where(array: pa.Array, mask: npt.NDArray[np.bool_]) -> pa.Array:
    return array if mask.all() else array.filter(boolean_array(mask))
