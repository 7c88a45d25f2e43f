"""Messages of the Postgres protocol, version 3: their frames, and all kinds without values of rows.

A message is a byte for its kind, a length of four bytes that counts itself, and a body. A first message has no kind.

Source: PostgreSQL 15's documentation, chapter 55, "Frontend/Backend Protocol".
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

STARTUP_BYTES_MAX = 10_000
MESSAGE_BYTES_MAX = 16 << 20
PROTOCOL = 3 << 16
CANCEL_CODE, TLS_CODE, GSS_CODE = 80877102, 80877103, 80877104

AUTH_OK, AUTH_SASL, AUTH_SASL_CONTINUE, AUTH_SASL_FINAL = 0, 10, 11, 12


class ProtocolViolation(Exception):
    """A message does not follow the protocol, so later messages cannot be read."""


class Failure(Exception):
    """An error for the client: its SQLSTATE, a message with the remedy, and a hint.

    `position`: the character of the statement that it is about, counted from 1.
    """

    def __init__(self, code: str, text: str, hint: str = "", position: int | None = None) -> None:
        super().__init__(text)
        self.code, self.text, self.hint, self.position = code, text, hint, position


@dataclass(frozen=True, slots=True)
class Column:
    """A column of an answer, with the oid of its type.

    `size` is the bytes of each value, -1 where they vary; `modifier` the precision and scale of a numeric, or -1.
    """

    name: str
    oid: int
    size: int = -1
    modifier: int = -1


def encode_message(kind: bytes, body: bytes = b"") -> bytes:
    """Return a message with its frame."""
    return kind + struct.pack("!i", len(body) + 4) + body


def encode_text(value: str) -> bytes:
    """Return a text as messages contain it: in UTF-8, ended by a zero."""
    return value.replace("\0", "\ufffd").encode("utf-8", "replace") + b"\0"


def encode_authentication(code: int, body: bytes = b"") -> bytes:
    """Return a step of the authentication."""
    return encode_message(b"R", struct.pack("!i", code) + body)


def encode_parameter_status(name: str, value: str) -> bytes:
    """Return the message with a setting."""
    return encode_message(b"S", encode_text(name) + encode_text(value))


def encode_ready(status: bytes) -> bytes:
    """Return ReadyForQuery; status: I outside of a block, T inside, E in a failed one."""
    return encode_message(b"Z", status)


def encode_command_complete(tag: str) -> bytes:
    """Return CommandComplete, the message that a statement has ended."""
    return encode_message(b"C", encode_text(tag))


def make_error_message(failure: Failure, severity: str = "ERROR") -> bytes:
    """Return the message of an error; severity FATAL ends the connection."""
    fields = [(b"H", failure.hint)] if failure.hint else []
    if failure.position is not None:
        fields.append((b"P", str(failure.position)))
    return _report(b"E", severity, failure.code, failure.text, fields)


def notice(code: str, value: str) -> bytes:
    """Return the message of a warning."""
    return _report(b"N", "WARNING", code, value)


def _report(kind: bytes, severity: str, code: str, value: str, more: Sequence[tuple[bytes, str]] = ()) -> bytes:
    """Return the message of an error or a warning."""
    fields = [(b"S", severity), (b"V", severity), (b"C", code), (b"M", value), *more]
    return encode_message(kind, b"".join(name + encode_text(value) for name, value in fields) + b"\0")


def make_row_description(columns: Sequence[Column], formats: Sequence[int]) -> bytes:
    """Return the message with the columns of an answer, each in format 0 (text) or 1 (binary)."""
    fields = [
        encode_text(column.name) + struct.pack("!ihihih", 0, 0, column.oid, column.size, column.modifier, form)
        for column, form in zip(columns, formats, strict=True)
    ]
    return encode_message(b"T", struct.pack("!h", len(fields)) + b"".join(fields))


def encode_parameter_description(oids: Sequence[int]) -> bytes:
    """Return the message with the types of parameters."""
    return encode_message(b"t", struct.pack(f"!h{len(oids)}i", len(oids), *oids))


def copy_out(columns: int, form: int) -> bytes:
    """Return CopyOutResponse, the message before the data of a COPY."""
    return encode_message(b"H", struct.pack(f"!bh{columns}h", form, columns, *[form] * columns))


def encode_negotiation(unknown: Sequence[str]) -> bytes:
    """Return the message that only protocol 3.0 is served, without these options."""
    return encode_message(b"v", struct.pack("!ii", PROTOCOL, len(unknown)) + b"".join(map(encode_text, unknown)))


class Reader:
    """Reads the values of a message's body, from its start to its end."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._at = 0

    @property
    def is_at_end(self) -> bool:
        """Whether everything is read."""
        return self._at == len(self._body)

    def read_bytes(self, count: int) -> bytes:
        """Return the next `count` bytes."""
        end = self._at + count
        if count < 0 or end > len(self._body):
            raise ProtocolViolation("a message is shorter than it says")
        piece, self._at = self._body[self._at : end], end
        return piece

    def read_text(self) -> str:
        """Return a text that ends with a zero byte. Raises ProtocolViolation without one."""
        end = self._body.find(b"\0", self._at)
        if end < 0:
            raise ProtocolViolation("a text of a message has no end")
        piece, self._at = self._body[self._at : end], end + 1
        try:
            return piece.decode()
        except UnicodeDecodeError as bad:
            raise Failure("22021", f"a text is not UTF-8: {bad}") from bad

    def read_int16(self) -> int:
        """Return a whole number of two bytes."""
        return int.from_bytes(self.read_bytes(2), "big", signed=True)

    def read_int32(self) -> int:
        """Return a whole number of four bytes."""
        return int.from_bytes(self.read_bytes(4), "big", signed=True)

    def read_int16_list(self) -> list[int]:
        """Return a list of whole numbers of two bytes, which begins with its length."""
        return [self.read_int16() for _ in range(self.read_count())]

    def read_int32_list(self) -> list[int]:
        """Return a list of whole numbers of four bytes, which begins with its length."""
        return [self.read_int32() for _ in range(self.read_count())]

    def read_count(self) -> int:
        """Return the length of a list."""
        count = int.from_bytes(self.read_bytes(2), "big")
        if count > len(self._body):
            raise ProtocolViolation("a list of a message is longer than the message")
        return count

    def read_value(self) -> bytes | None:
        """Return a value with its length before it, None for NULL."""
        length = self.read_int32()
        return None if length == -1 else self.read_bytes(length)


def read_startup(body: bytes) -> Mapping[str, str]:
    """Return the options of a first message, by name. Raises ProtocolViolation if they are malformed."""
    reader, options = Reader(body), dict[str, str]()
    while name := reader.read_text():
        options[name] = reader.read_text()
    return options
