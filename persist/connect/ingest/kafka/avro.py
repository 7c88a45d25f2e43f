"""Converts Avro in Confluent's framing to the JSON with a schema part that Kafka Connect would write.

    message = 0, int32 number of a schema (big-endian), the value as Avro
    schema  = GET {registry}/schemas/ids/{number} = {"schema": text of JSON, …}

So envelopes read Avro like JSON, with the types of its schema. NaN and infinities, for which JSON has no numbers,
become texts. A union of several types also becomes text.
"""

import base64
import io
import json
import math
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

import msgspec

from persist.core.errors import InvalidUsage, Unavailable
from persist.core.rendering import hide_passwords
from persist.engine.read.results.result import require_package

HEAD_BYTES = 5
TIMEOUT_S = 10.0
SCHEMA_BYTES_MAX = 4 << 20
_PRIMITIVES = {"boolean": "boolean", "int": "int32", "long": "int64", "float": "float", "double": "double"}
_PRIMITIVES |= {"bytes": "bytes", "string": "string", "enum": "string", "fixed": "bytes"}
_CONNECT, _DEBEZIUM = "org.apache.kafka.connect.data", "io.debezium.time"
_LOGICAL = {
    "date": f"{_CONNECT}.Date",
    "time-millis": f"{_CONNECT}.Time",
    "time-micros": f"{_DEBEZIUM}.MicroTime",
    "decimal": f"{_CONNECT}.Decimal",
    **{f"{kind}-millis": f"{_CONNECT}.Timestamp" for kind in ("timestamp", "local-timestamp")},
    **{f"{kind}-micros": f"{_DEBEZIUM}.MicroTimestamp" for kind in ("timestamp", "local-timestamp")},
    **{f"{kind}-nanos": f"{_DEBEZIUM}.NanoTimestamp" for kind in ("timestamp", "local-timestamp")},
}
Convert = Callable[[Any], Any] | None  # None leaves values as they are.


class UnreadableAvro(ValueError):
    """A message or a schema cannot be read; the text is the reason."""


@dataclass(frozen=True, slots=True)
class _Schema:
    """An Avro schema: parsed, a converter of its values to JSON, and the start of JSON messages."""

    parsed: Any
    convert: Convert
    start: bytes


class Registry:
    """The schemas of a registry; each is fetched once."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidUsage(
                f"registry={hide_passwords(url)!r} is not an address of a schema registry: write https://host:port"
            )
        self._fastavro = require_package("fastavro>=1.9")
        place = parts.hostname if parts.port is None else f"{parts.hostname}:{parts.port}"
        self._url = urlunsplit((parts.scheme, place, parts.path.rstrip("/"), "", ""))
        self._headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        if parts.username is not None:
            secret = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
            self._headers["Authorization"] = f"Basic {base64.b64encode(secret).decode()}"
        self._known: dict[int, _Schema | UnreadableAvro] = {}

    def to_json(self, messages: Sequence[bytes | None]) -> tuple[list[bytes | None], dict[int, str]]:
        """Convert Avro messages to JSON; return them, and by position why some are bad.

        Messages that are not Avro stay as they are.

        Raises:
            Unavailable: the registry does not answer.
            InvalidUsage: the registry refuses this user.
        """
        texts, bad = list(messages), dict[int, str]()
        for at, message in enumerate(messages):
            if message and message[0] == 0:
                try:
                    texts[at] = self._decode(message)
                except UnreadableAvro as error:
                    bad[at] = str(error)
        return texts, bad

    def _decode(self, message: bytes) -> bytes:
        """Return an Avro message as JSON; raise UnreadableAvro with the reason."""
        if len(message) < HEAD_BYTES:
            raise UnreadableAvro("it begins like Avro, and is too short to name a schema")
        number = int.from_bytes(message[1:HEAD_BYTES], "big")
        schema = self._known.get(number)
        if schema is None:
            schema = self._known[number] = self._fetch(number)
        if isinstance(schema, UnreadableAvro):
            raise schema
        body = io.BytesIO(message)
        body.seek(HEAD_BYTES)
        try:
            value = self._fastavro.schemaless_reader(body, schema.parsed)
        except (EOFError, ValueError, IndexError, TypeError, OverflowError, MemoryError) as error:
            raise UnreadableAvro(f"it is not Avro of schema {number}: {error or type(error).__name__}") from None
        value = schema.convert(value) if schema.convert is not None else value
        return schema.start + msgspec.json.encode(value) + b"}"

    def _fetch(self, number: int) -> _Schema | UnreadableAvro:
        """Fetch and parse schema `number`; return UnreadableAvro if none is readable."""
        request = urllib.request.Request(f"{self._url}/schemas/ids/{number}", headers=self._headers)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                document = json.loads(answer.read(SCHEMA_BYTES_MAX))
            if document.get("schemaType", "AVRO") != "AVRO" or document.get("references"):
                return UnreadableAvro(
                    f"its schema {number} is of a kind that is not read: only Avro without references is"
                )
            return self._parse_schema(json.loads(document["schema"]))
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 404:
                return UnreadableAvro(f"the registry has no schema {number}")
            if error.code in (401, 403):
                raise InvalidUsage(f"the registry {self._url} does not let this user in: {error.code}") from None
            raise Unavailable(f"the registry {self._url} answers {error.code} {error.reason}") from None
        except (OSError, ValueError, KeyError, AttributeError) as error:
            raise Unavailable(f"the registry {self._url} does not answer: {error}") from None

    def _parse_schema(self, schema: Any) -> _Schema | UnreadableAvro:
        """Return a parsed schema, or UnreadableAvro with the reason."""
        try:
            described, convert = _convert_schema(schema, {})
            parsed = self._fastavro.parse_schema(_strip_logical_types(schema))
        except (UnreadableAvro, self._fastavro.schema.SchemaParseException) as error:
            return UnreadableAvro(f"its schema cannot be read: {error}")
        start = b'{"schema":' + msgspec.json.encode(described) + b',"payload":'
        return _Schema(parsed, convert, start)


def _strip_logical_types(schema: Any) -> Any:
    """Return a schema without logical types, so that stored values are read unchanged."""
    if isinstance(schema, list):
        return [_strip_logical_types(branch) for branch in schema]
    if isinstance(schema, dict):
        plain = {name: value for name, value in schema.items() if name not in ("logicalType", "default")}
        return {name: _strip_logical_types(value) for name, value in plain.items()}
    return schema


def _convert_schema(schema: Any, named: Mapping[str, tuple[Any, Convert]]) -> tuple[dict[str, Any], Convert]:
    """Return Connect's description of an Avro schema, and a converter of its values to JSON.

    The converter is None if values need no conversion. `named` has the named types so far.
    """
    names = named if isinstance(named, dict) else dict(named)
    if isinstance(schema, list):
        return _convert_union(schema, names)
    if isinstance(schema, str):
        if schema in names:
            converted: tuple[dict[str, Any], Convert] = names[schema]
            return converted
        schema = {"type": schema}
    kind = schema.get("type")
    if isinstance(kind, (dict, list)):
        return _convert_schema(kind, names)
    described, convert = _convert_type(kind, schema, names)
    name = schema.get("connect.name") or _LOGICAL.get(schema.get("logicalType", ""))
    if name is not None:
        described["name"] = name
    if schema.get("logicalType") == "decimal":
        described["parameters"] = {
            "scale": str(schema.get("scale", 0)),
            "connect.decimal.precision": str(schema.get("precision", 38)),
        }
    for full in _list_names(schema):
        names[full] = (described, convert)
    return described, convert


def _convert_type(kind: Any, schema: Mapping[str, Any], names: dict[str, Any]) -> tuple[dict[str, Any], Convert]:
    """Return an Avro type as Kafka Connect's schema, with its converter."""
    if kind in ("record", "error"):
        for full in _list_names(schema):
            names[full] = ({"type": "map"}, None)  # A type that has itself within it is not read.
        fields = {field["name"]: _convert_schema(field["type"], names) for field in schema["fields"]}
        described = [{"field": name, **inner} for name, (inner, _) in fields.items()]
        converts = {name: convert for name, (_, convert) in fields.items() if convert is not None}
        return {"type": "struct", "fields": described}, _make_record_converter(converts) if converts else None
    if kind == "array":
        inner, convert = _convert_schema(schema["items"], names)
        return {"type": "array", "items": inner}, None if convert is None else (
            lambda values: [convert(value) for value in values]
        )
    if kind == "map":
        return {"type": "map"}, None
    if kind not in _PRIMITIVES:
        raise UnreadableAvro(f"it has the type {kind!r}, which is not known")
    return {"type": _PRIMITIVES[kind]}, _encode_float if kind in ("float", "double") else None


def _convert_union(kinds: list[Any], names: dict[str, Any]) -> tuple[dict[str, Any], Convert]:
    """Return the schema and converter of a union: of its only type besides null, or else text."""
    some = [kind for kind in kinds if kind != "null"]
    if len(some) == 1:
        described, convert = _convert_schema(some[0], names)
        return described, None if convert is None else (lambda value: None if value is None else convert(value))
    for kind in some:
        _convert_schema(kind, names)  # For the names that it adds.
    return {"type": "string"}, _as_text


def _list_names(schema: Mapping[str, Any]) -> list[str]:
    """Return a named type's name, also with its namespace; [] without a name."""
    name, space = schema.get("name"), schema.get("namespace")
    return [] if name is None else [name] if space is None else [name, f"{space}.{name}"]


def _make_record_converter(converts: Mapping[str, Callable[[Any], Any]]) -> Callable[[Any], Any]:
    """Return a function that converts some fields of a record in place."""

    def convert(record: dict[str, Any]) -> dict[str, Any]:
        for name, convert_field in converts.items():
            record[name] = convert_field(record[name])
        return record

    return convert


def _encode_float(value: float) -> float | str:
    """Return a float; NaN and infinities as text, which JSON can hold."""
    return value if math.isfinite(value) else str(value)


def _as_text(value: Any) -> str | None:
    """Return a value of a union as text: JSON unless it is text already."""
    if value is None or isinstance(value, str):
        return value
    finite = _encode_floats(value)
    return finite if isinstance(finite, str) else msgspec.json.encode(finite).decode()


def _encode_floats(value: Any) -> Any:
    """Return a value in which NaN and infinities are text."""
    if isinstance(value, dict):
        return {name: _encode_floats(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_encode_floats(inner) for inner in value]
    return _encode_float(value) if isinstance(value, float) else value
