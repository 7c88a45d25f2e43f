"""Differences between the members of messages and the columns of a collection, found in all messages.

Only names are parsed; values stay bytes, so a message costs about a microsecond for each object.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.types as pat

from persist.codecs.nested import quote_name
from persist.connect.ingest.kafka.config import Route
from persist.connect.ingest.row_files import find_unknown_fields

Members = Mapping[str, msgspec.Raw]
_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ITEMS = msgspec.json.Decoder(list[msgspec.Raw])
_ENVELOPE = {"schema", "payload"}


def find_drift(route: Route, texts: pa.ChunkedArray, schema: pa.Schema) -> tuple[set[str], set[str]]:
    """Return paths in messages that no column takes, and columns that some rows lack."""
    row_type, shapes = pa.struct(list(schema)), set[tuple[str, ...]]()
    nested = [field for field in schema if pat.is_nested(field.type)]
    more = set[str]()
    for text in texts.to_pylist():
        for members in _parse_rows(route, text):
            shapes.add(tuple(members))
            for field in nested:
                if field.name in members:
                    value = _decode(members[field.name], object)
                    more.update(find_unknown_fields(value, field.type, f"{quote_name(field.name)}."))
    names = set[str]().union(*shapes)
    more.update(quote_name(name) for name in names - {*row_type.names})
    return more, {name for name in schema.names if any(name not in s for s in shapes)}


def _parse_rows(route: Route, text: bytes | None) -> Iterator[Members]:
    """Yield the members of each row in a message; none if it is unreadable or of another table."""
    message = _parse_members(text)
    if message.keys() == _ENVELOPE:
        message = _parse_members(message["payload"])
    if route.format == "json":
        yield from [message] if message else ()
        return
    if route.format in ("maxwell", "canal") and route.table is not None:
        names = [_decode(message[name], str) for name in ("database", "table") if name in message]
        if ".".join(map(str, names)) != route.table:
            return
    rows = message.get("after" if route.format == "debezium" else "data")
    for row in () if rows is None else _parse_items(rows) or [rows]:
        if members := _parse_members(row):
            yield members


def _parse_members(text: bytes | msgspec.Raw | None) -> Members:
    """Return an object's members as raw JSON; {} if it is unreadable."""
    try:
        return {} if text is None else _MEMBERS.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}


def _parse_items(text: msgspec.Raw) -> list[msgspec.Raw]:
    """Return an array's elements as raw JSON; [] if it is unreadable."""
    try:
        return _ITEMS.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return []


def _decode(text: msgspec.Raw, kind: type) -> Any:
    """Return a JSON value of a type; None if it is unreadable."""
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
