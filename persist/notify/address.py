"""Addresses: where a server is and what a client needs to reach it, and sockets that this library listens at."""

import ipaddress
import re
import socket
from dataclasses import dataclass
from urllib.parse import urlsplit

from persist.blob import InvalidUsage

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
        """As users write it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{SCHEMES[self.is_tls]}://{host}:{self.port}"

    @property
    def is_public(self) -> bool:
        """Whether others than processes of this machine may reach it."""
        return not is_loopback(self.host)


@dataclass(frozen=True, slots=True, repr=False)
class Notify:
    """A server to be told by of new records: see `persist.open(notify=)`.

    Attributes:
        url: `grpc://host:port`, or `grpc+tls://host:port`.
        token: what the server was started with.
        certificate: of who vouches for the server, as PEM; None for those that the machine trusts.
    """

    url: str
    token: str | None = None
    certificate: str | bytes | None = None

    def __post_init__(self) -> None:
        address = parsed_address(self.url)
        if not address.port:
            raise InvalidUsage(f"notify={self.url!r} has no port: give the one that the server told of itself")
        check_token(self.token)
        if self.certificate is not None and not address.is_tls:
            raise InvalidUsage(f"a certificate goes with grpc+tls://, and this is {self.url!r}")

    def __repr__(self) -> str:
        return f"Notify({self.url!r})"


def parsed_address(url: str) -> Address:
    """Return what a URL says. Raises InvalidUsage if it is not one of a server."""
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
    """Raise InvalidUsage, without showing it, if a token is not one."""
    if token is not None and not (isinstance(token, str) and _TOKEN.fullmatch(token)):
        raise InvalidUsage(f"the token is not a text of 1 to {TOKEN_CHARS_MAX} visible ASCII characters")


PORT_MAX = 65_535


def is_loopback(host: str) -> bool:
    """Return whether only programs on this machine reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def host_of(header: str) -> str:
    """Return the host that a Host header names, empty if it names none."""
    try:
        return (urlsplit(f"//{header}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that is listened at.

    Args:
        port: 0 for any that is free.

    Raises:
        InvalidUsage: the address cannot be listened at.
    """
    if not 0 <= port <= PORT_MAX:
        raise InvalidUsage(f"port {port} is none: give 1 to {PORT_MAX}, or 0 for any that is free")
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InvalidUsage(
            f"nothing can listen at {host}, port {port}: {reason}. Choose another port, or 0 for any that is free"
        ) from error
