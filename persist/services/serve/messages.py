"""The messages between clients and a server: JSON in Flight's actions and exchanges.

    action "wait"       {"after": seqno, "waiter": text, "timeout_s": n}   answers {"location", "seqno"} once there is a
                        newer record than after, or when the time is over
    action "leave"      {"waiter": text}        ends its wait
    action "committed"  {"seqno": n}            a hint that there is such a record
    action "commits"    {}                      answers {"location"} if the server commits for others

    exchange            its descriptor has the command {"commit": bytes}. The metadata of its messages are the pieces of
                        a request of so many bytes (`persist.engine.write.relay_messages`); one message has its answers

Below them are messages of protobuf as far as Arrow Flight and Flight SQL have them: whole numbers, and bytes.

An address names a server and how a client reaches it; this library listens on sockets.
"""

import ipaddress
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, TypeVar
from urllib.parse import urlsplit

import msgspec

from persist.blob.errors import InvalidUsage
from persist.engine.write.relay_messages import REQUEST_BYTES_MAX

MESSAGE_BYTES_MAX = 64 << 10
WAIT_S_MAX = 30.0

Seqno = Annotated[int, msgspec.Meta(ge=-1, le=2**63 - 1)]
Text = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class Wait(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request for the newest seqno, answered once it is greater than `after`."""

    after: Seqno
    waiter: Text
    timeout_s: Annotated[float, msgspec.Meta(ge=0, le=WAIT_S_MAX)]


class Leave(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request to end a wait."""

    waiter: Text


class Committed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message that a record exists."""

    seqno: Seqno


class Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request without members."""


class CommitRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first message of a request for commits: its length in bytes."""

    commit: Annotated[int, msgspec.Meta(ge=1, le=REQUEST_BYTES_MAX)]


class Newest(msgspec.Struct, frozen=True):
    """The location's id and newest seqno: the answer to a request to wait."""

    location: str | None
    seqno: Seqno


class Commits(msgspec.Struct, frozen=True):
    """The answer of a server that commits for others: to which location."""

    location: str | None


T = TypeVar("T", bound=msgspec.Struct)


def decode_message(data: bytes, kind: type[T]) -> T:
    """Return a message of that kind."""
    if len(data) > MESSAGE_BYTES_MAX:
        raise ValueError(f"a message has {len(data)} bytes, and at most {MESSAGE_BYTES_MAX} are read")
    try:
        message: T = msgspec.json.Decoder(kind).decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"it is not understood: {error}") from error
    return message


def encode_fields(*fields: tuple[int, bytes | memoryview | int]) -> bytes:
    """Return a message of fields by number."""
    pieces: list[bytes | memoryview] = []
    for number, value in fields:
        if isinstance(value, int):
            pieces += _encode_varint(number << 3), _encode_varint(value)
        else:
            pieces += _encode_varint(number << 3 | 2), _encode_varint(len(value)), value
    return b"".join(pieces)


def read_fields(message: bytes) -> Iterator[tuple[int, bytes | int]]:
    """Yield the fields of a message by number. Raises ValueError for fields of other types."""
    at = 0
    while at < len(message):
        tag, at = _decode_varint(message, at)
        value, at = _decode_varint(message, at)
        if tag & 7 == 0:
            yield tag >> 3, value
            continue
        if tag & 7 != 2 or value > len(message) - at:
            raise ValueError("the message is not one of Flight")
        yield tag >> 3, message[at : at + value]
        at += value


def group_fields(message: bytes) -> dict[int, bytes]:
    """Return the last of each field of a message that is bytes. Raises ValueError as `read_fields` does."""
    return {number: value for number, value in read_fields(message) if isinstance(value, bytes)}


def read_numbers(message: bytes, number: int) -> list[int]:
    """Return the whole numbers of a repeated field, packed or not. Raises ValueError as `read_fields` does."""
    numbers: list[int] = []
    for field, value in read_fields(message):
        if field != number:
            continue
        if isinstance(value, int):
            numbers.append(value)
            continue
        at = 0
        while at < len(value):
            decoded, at = _decode_varint(value, at)
            numbers.append(decoded)
    return numbers


def _encode_varint(number: int) -> bytes:
    """Return a whole number in the variable-length form of protobuf."""
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _decode_varint(message: bytes, at: int) -> tuple[int, int]:
    """Return a varint, and the position after it."""
    number = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            break
        number |= (message[at] & 127) << shift
        at += 1
        if message[at - 1] < 128:
            return number, at
    raise ValueError("the message is not one of Flight")


SCHEMES = ("grpc", "grpc+tls")
TOKEN_CHARS_MAX = 4096
_TOKEN = re.compile(rf"[!-~]{{1,{TOKEN_CHARS_MAX}}}")


@dataclass(frozen=True, slots=True)
class Address:
    """A host and a port, reached with TLS or without."""

    host: str
    port: int
    is_tls: bool

    @property
    def url(self) -> str:
        """The address as a URL."""
        return f"{SCHEMES[self.is_tls]}://{join_host_port(self.host, self.port)}"


@dataclass(frozen=True, slots=True, repr=False)
class Notify:
    """A server to notify of new records: see `persist.open(notify=)`.

    Attributes:
        url: `grpc://host:port`, or `grpc+tls://host:port`.
        token: what the server was started with.
        certificate: the authority of the server's certificate, as PEM; None for the machine's trusted ones.
    """

    url: str
    token: str | None = None
    certificate: str | bytes | None = None

    def __post_init__(self) -> None:
        address = parse_address(self.url)
        if not address.port:
            raise InvalidUsage(f"notify={self.url!r} has no port: give the one in the server's url")
        check_token(self.token)
        if self.certificate is not None and not address.is_tls:
            raise InvalidUsage(f"a certificate goes with grpc+tls://, and this is {self.url!r}")

    def __repr__(self) -> str:
        return f"Notify({self.url!r})"


def parse_address(url: str) -> Address:
    """Return the parts of a server's URL. Raises InvalidUsage for any other URL."""
    try:
        parts = urlsplit(url if isinstance(url, str) else "")
        port = parts.port
    except ValueError:
        port = None
    if port is None or parts.scheme not in SCHEMES or not parts.hostname:
        raise InvalidUsage(f"{url!r} is not the address of a server: give grpc://host:port, or grpc+tls://host:port")
    if parts.username is not None or parts.path or parts.query or parts.fragment:
        raise InvalidUsage("the address of a server is grpc://host:port and nothing else; a token is given as token=")
    return Address(parts.hostname, port, parts.scheme == SCHEMES[True])


def check_token(token: str | None) -> None:
    """Raise InvalidUsage for a malformed token, without showing the token."""
    if token is not None and not (isinstance(token, str) and _TOKEN.fullmatch(token)):
        raise InvalidUsage(f"the token is not a text of 1 to {TOKEN_CHARS_MAX} visible ASCII characters")


def check_certificate(certificate: object) -> None:
    """Raise InvalidUsage if the certificate of a server is not a pair, or None."""
    is_pair = isinstance(certificate, tuple | list) and len(certificate) == 2
    if certificate is not None and not (is_pair and all(isinstance(pem, str | bytes) for pem in certificate)):  # type: ignore[attr-defined]
        raise InvalidUsage("the certificate of a server is a pair: certificate=(chain, key), both as PEM")


PORT_MAX = 65_535


def parse_host_port(option: str, address: str) -> tuple[str, int]:
    """Return the host and the port of an address. Raises InvalidUsage, which names the option, for any other text."""
    parts = urlsplit(f"//{address}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or port is None or parts.path or parts.query or parts.username:
        raise InvalidUsage(f"{option} {address!r} is not HOST:PORT, such as 127.0.0.1:9464; port 0 takes a free one")
    return host, port


def join_host_port(host: str, port: int) -> str:
    """Return an address as URLs have it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def check_strangers(address: str, host: str, *, is_safe: bool) -> None:
    """Raise InvalidUsage if other machines reach an address, unless a token or the user makes it safe."""
    if not is_loopback(host) and not is_safe:
        raise InvalidUsage(
            f"{address!r} can be reached by other machines, and without a token everybody there could read everything."
        ).with_remedy(
            "Give a token (to a command, as PERSIST_SERVE_TOKEN), or {insecure:option:True} if that is meant."
        )


def is_loopback(host: str) -> bool:
    """Return whether only programs on this machine reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def parse_host(header: str) -> str:
    """Return the host that a Host header names, empty if it names none."""
    try:
        return (urlsplit(f"//{header}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def open_listening_socket(host: str, port: int) -> socket.socket:
    """Return a listening socket. `port`: 0 for any free one."""
    if not 0 <= port <= PORT_MAX:
        raise InvalidUsage(f"port {port} is not allowed: give 1 to {PORT_MAX}, or 0 for any that is free")
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InvalidUsage(
            f"nothing can listen at {host}, port {port}: {reason}. Choose another port, or 0 for any that is free"
        ) from error
