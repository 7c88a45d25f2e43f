"""Errors as a server sends them by each protocol: a status of gRPC, a SQLSTATE or a status of HTTP.

No text that is sent has the URL of the location. An error that is no fault of the caller goes to the log, and its
client gets the name of its class.
"""

import logging
from dataclasses import dataclass, replace

import pyarrow as pa

from persist.core.errors import (
    CollectionNotFound,
    Conflict,
    DuplicateKeys,
    InvalidUsage,
    PersistError,
    ReadOnly,
    Unavailable,
)
from persist.services.serve.rights import NotAllowed

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ErrorCode:
    """The codes of an error, and its text for the client."""

    grpc: str
    sqlstate: str
    http: int
    text: str = ""


_CODES: list[tuple[type[Exception] | tuple[type[Exception], ...], ErrorCode]] = [
    (NotAllowed, ErrorCode("PERMISSION_DENIED", "42501", 403)),
    (CollectionNotFound, ErrorCode("NOT_FOUND", "42P01", 404)),
    (DuplicateKeys, ErrorCode("INVALID_ARGUMENT", "23505", 400)),
    (ReadOnly, ErrorCode("INVALID_ARGUMENT", "25006", 400)),
    ((InvalidUsage, ValueError), ErrorCode("INVALID_ARGUMENT", "22023", 400)),
    (Conflict, ErrorCode("UNAVAILABLE", "40001", 503)),
    (Unavailable, ErrorCode("UNAVAILABLE", "53300", 503)),
    ((PersistError, pa.ArrowException), ErrorCode("UNAVAILABLE", "XX000", 500)),
]


def encode_error(error: Exception, hidden: str) -> ErrorCode:
    """Return the codes and the text of an error for a client. `hidden`: the URL of the location."""
    for kinds, code in _CODES:
        if isinstance(error, kinds):
            return replace(code, text=hide_location(str(error), hidden))
    logger.exception("a call failed", exc_info=error)
    text = f"the server failed ({type(error).__name__}); its log says how"
    return ErrorCode("INTERNAL", "XX000", 500, text)


def hide_location(text: str, url: str) -> str:
    """Return a text that does not show where the location is."""
    for form in filter(None, (url, url.removeprefix("file://"))):
        text = text.replace(form, "the location")
    return text
