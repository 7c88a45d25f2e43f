"""Sockets that are listened at, and who reaches them: shared by all that this library serves."""

import ipaddress
import socket
from urllib.parse import urlsplit

from persist.blob import InvalidUsage

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
