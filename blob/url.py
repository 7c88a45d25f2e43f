"""Opens the store for a URL: the only module that knows all kinds of stores."""

import os
import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any
from urllib.parse import unquote, urlsplit

from persist.blob.errors import InvalidUsage
from persist.blob.options import read_options
from persist.blob.protocol import Blob, MemoryBlob
from persist.blob.served import ServedBlob
from persist.blob.stores.file import FileBlob
from persist.blob.stores.fsspec import PLAIN_OPTIONS, FsspecBlob, list_protocols
from persist.blob.stores.objects import ATTEMPT_S, CONNECT_TIMEOUT_S, READ_TIMEOUT_S
from persist.blob.stores.s3 import S3Blob, S3Options

_FOLDER_OPTIONS = {"fsync": bool, "file_mode": int | str, "folder_mode": int | str}
_SERVED_OPTIONS = {"token": str, "certificate": str | bytes, "timeout_s": float}
TOKEN_VARIABLE = "PERSIST_TOKEN"  # The token for a server of a location, unless an option has one.
_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+._-]*)://")
_ONE_SLASH = re.compile(r"^([A-Za-z][A-Za-z0-9+._-]*):/(?!/)")


def open_blob(
    url: str | os.PathLike[str], options: Mapping[str, Any] | None = None, *, attempt_s: float = ATTEMPT_S
) -> Blob:
    """Return the store for a URL; this sends no request and creates nothing.

    Args:
        url: a path (`~` is expanded), `file:///path`, `s3://bucket/prefix` (or s3a://), `memory://name`,
            `grpc://host:port` of a server of a location, any other scheme that fsspec knows, or `fsspec+<scheme>://…`
            to use fsspec for any of these.
        options: for the store, which refuses unknown names.
        attempt_s: how long one request to S3 may take; it waits at most 3 s for a connection, and 20 s for the next
            bytes.
    """
    text = os.fspath(url)
    if not isinstance(text, str) or not text or "\0" in text:
        raise InvalidUsage(f"{text!r} is not a location: give a folder or a URL such as s3://bucket/prefix")
    _check_slashes(text)
    match = _SCHEME.match(text)
    scheme = match.group(1).lower() if match else ""
    if scheme and "?" in text:
        # It is not shown: people put secrets there.
        raise InvalidUsage(
            f"the {scheme} URL has a query (a '?'), such as a signed URL has. A location has none: keys are added to "
            "it. Give options, credentials above all, as storage options, where no log shows them."
        )
    if scheme in ("", "file"):
        path = _parse_file_url(text) if match else text
        return FileBlob(path, **read_options(options, _FOLDER_OPTIONS, "a folder"))
    if scheme == "memory":
        read_options(options, {}, "memory://")
        return MemoryBlob.get_named(_parse_memory_url(text))
    if scheme in ("s3", "s3a"):
        bucket, prefix = _parse_object_url(text)
        connect_s, read_s = min(CONNECT_TIMEOUT_S, attempt_s), min(READ_TIMEOUT_S, attempt_s)
        return S3Blob(bucket, prefix, options, connect_timeout_s=connect_s, read_timeout_s=read_s, attempt_s=attempt_s)
    if scheme in ("grpc", "grpc+tls"):
        return _open_served(text, options)
    if scheme.startswith("fsspec+"):
        return FsspecBlob(text[len("fsspec+") :], options)
    if scheme in list_protocols():
        return FsspecBlob(text, options)
    # The URL itself is not shown: what is unknown may hold a password.
    raise InvalidUsage(
        f"the location has the unknown scheme {scheme!r}. Known are: a path, file://, s3://, memory://, grpc://, and "
        f"what fsspec has: {', '.join(sorted(list_protocols()))}."
    )


def drop_secret_options(url: str, options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return those storage options that are certainly not secret, and may be passed to other processes."""
    match = _SCHEME.match(url)
    scheme = match.group(1).lower() if match else "file"
    if scheme in ("s3", "s3a"):
        plain = {field.name for field in fields(S3Options) if field.repr}
    elif scheme in ("grpc", "grpc+tls"):
        plain = {*_SERVED_OPTIONS} - {"token"}
    else:
        plain = {*_FOLDER_OPTIONS} if scheme == "file" else PLAIN_OPTIONS
    return {
        name: value
        for name, value in (options or {}).items()
        if name in plain and isinstance(value, str | bytes | int | float) and "@" not in str(value)
    }


def _check_slashes(text: str) -> None:
    """Raise InvalidUsage for a URL such as s3:/bucket, with one slash."""
    match = _ONE_SLASH.match(text)
    scheme = match.group(1).lower() if match else ""
    schemes = {"file", "memory", "s3", "s3a", "grpc", "grpc+tls"} | list_protocols() if match else set()
    if scheme in schemes or scheme.startswith("fsspec+"):
        # The rest is not shown: people put secrets there.
        raise InvalidUsage(
            f"the location begins with '{scheme}:/', with one slash. Write {scheme}://… for a URL (as text: a Path "
            f"keeps one slash only), or ./{scheme}:/… for a folder of that name."
        )


def _parse_file_url(url: str) -> str:
    """Return the path in a file URL."""
    path = unquote(url[len("file://") :]).removeprefix("localhost")
    if not path.startswith("/"):
        host = path.partition("/")[0]
        raise InvalidUsage(f"{url!r} is not of the form file:///absolute/path: it has {host!r} for a host")
    return path


def _open_served(url: str, options: Mapping[str, Any] | None) -> ServedBlob:
    """Return the store behind a server's URL."""
    parts = urlsplit(url)
    if parts.path.strip("/") or parts.username is not None or parts.port is None or not parts.hostname:
        raise InvalidUsage(
            "a location behind a server is grpc://host:port, or grpc+tls://host:port: the server knows which location "
            "it is. A token goes into storage_options, where no log shows it"
        )
    values = read_options(options, _SERVED_OPTIONS, "a server")
    values.setdefault("token", os.environ.get(TOKEN_VARIABLE))
    return ServedBlob(url.rstrip("/"), **values)


def _parse_memory_url(url: str) -> str:
    """Return the name in a memory URL."""
    name = url[len("memory://") :].strip("/")
    if not name:
        raise InvalidUsage(f"{url!r} has no name: write memory://name, for a store that this process shares")
    return name


def _parse_object_url(url: str) -> tuple[str, str]:
    """Return the bucket and the prefix in a URL."""
    bucket, _, prefix = url.partition("://")[2].partition("/")
    if "@" in bucket:
        raise InvalidUsage(
            "the S3 URL has a user or password before its bucket. Credentials go into storage_options as "
            "access_key_id and secret_access_key, where no log shows them."
        )
    if not bucket:
        raise InvalidUsage(f"{url!r} names no bucket: write s3://bucket/prefix")
    return bucket, prefix.rstrip("/")
