"""From a URL to a store: the one place that knows which is which."""

import os
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from persist.blob.errors import InvalidUsage
from persist.blob.file import FileBlob
from persist.blob.fsspec import FsspecBlob, known_protocols
from persist.blob.memory import MemoryBlob
from persist.blob.options import as_bool, check_options
from persist.blob.protocol import Blob
from persist.blob.s3 import S3Blob

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*)://")


def open_blob(url: str | os.PathLike[str], options: Mapping[str, Any] | None = None) -> Blob:
    """Return the store at url; nothing is asked of it yet, and nothing is created.

    Args:
        url: a path, `file:///path`, `s3://bucket/prefix`, `memory://name`, `fsspec+<scheme>://…` or any other scheme
            that fsspec knows.
        options: for the store; names it does not know are refused.

    Raises:
        InvalidUsage: the scheme, an option or a value is not known, or a package is missing.
    """
    text = os.fspath(url)
    if not isinstance(text, str) or not text or "\0" in text:
        raise InvalidUsage(f"{text!r} is not a location: give a folder or a URL such as s3://bucket/prefix")
    match = _SCHEME.match(text)
    scheme = match.group(1).lower() if match else ""
    if scheme in ("", "file"):
        path = text if not match else unquote(text[len("file://") :])
        return FileBlob(path, **check_options(options, {"fsync": as_bool}, "a folder"))
    if scheme == "memory":
        check_options(options, {}, "memory://")
        return MemoryBlob.named(text[len("memory://") :])
    if scheme == "s3":
        bucket, prefix = _bucket_and_prefix(text)
        return S3Blob(bucket, prefix, options or {})
    if scheme.startswith("fsspec+"):
        return FsspecBlob(text[len("fsspec+") :], options or {})
    if scheme in known_protocols():
        return FsspecBlob(text, options or {})
    raise InvalidUsage(
        f"{text!r} has the unknown scheme {scheme!r}. Known are: a path, file://, s3://, memory://, and what fsspec has: "
        f"{', '.join(sorted(known_protocols()))}."
    )


def _bucket_and_prefix(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    if parts.username is not None or parts.query or parts.fragment:
        raise InvalidUsage(
            "an s3 URL is s3://bucket/prefix, without user, query or fragment; credentials go into storage_options"
        )
    prefix = parts.path.strip("/")
    if not parts.netloc or any(segment in ("", ".", "..") for segment in prefix.split("/") if prefix):
        raise InvalidUsage(f"{url!r} is not of the form s3://bucket/prefix, with a prefix free of '.', '..' and '//'")
    return parts.netloc, prefix
