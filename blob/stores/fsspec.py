"""A store in any file system that fsspec knows: Google Cloud Storage, Azure, S3 by s3fs, HTTP, and so on.

Only s3fs, gcsfs and adlfs offer an atomic create (`pipe_file(mode="create")`, of adlfs `overwrite=False`: a conditional
PUT by the server), and only they can be written to. fsspec's other file systems test for existence and then write, so
two writers could both succeed. So those open read-only, and a write raises ReadOnlyStore.

s3fs, gcsfs and adlfs retry by themselves. A `create` that landed may therefore return False after a lost answer (the
protocol allows it: False only means that the key exists), and a failed write leaves its outcome open. A listing fetches
all keys of the folder that the prefix names, whatever `start_after` is.
"""

import importlib
import inspect
import io
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any
from urllib.parse import quote, unquote

from persist.blob.errors import (
    Indeterminate,
    InvalidUsage,
    PersistError,
    ReadOnlyStore,
    StoreFull,
    StoreMisconfigured,
    Unavailable,
    find_exceeded_limit,
    redact,
)
from persist.blob.protocol import BlobEntry, check_key, check_range, is_key

AZURE_SCHEMES = ("abfs", "abfss", "az")
# By package: the protocols, and the argument of `pipe_file` that lets the server decide whether a key exists.
ATOMIC: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "s3fs": (("s3", "s3a"), {"mode": "create"}),
    "gcsfs": (("gs", "gcs"), {"mode": "create"}),
    "adlfs": (AZURE_SCHEMES, {"overwrite": False}),
}
# The schemes that `persist.blob.url` opens without fsspec, unless the URL begins with fsspec+s3:// and so on.
_OURS = {"file", "local", "memory", "s3", "s3a"}
S3_PUT_BYTES_MAX = 5 << 30
_SOUNDS_SECRET = re.compile(r"key|secret|token|pass|credential|connection|sas|auth", re.IGNORECASE)
# Options that another process may see. All others may hold credentials, also in a dictionary.
PLAIN_OPTIONS = {
    *("account_host", "account_name", "anon", "block_size", "cache_timeout", "consistency", "default_location"),
    *("endpoint_url", "location_mode", "max_concurrency", "project", "region_name", "requester_pays", "timeout"),
}
_CONTAINER_BEFORE_AT = ("abfs", "abfss")


def list_protocols() -> set[str]:
    """Return the schemes that always go to fsspec."""
    from fsspec.registry import available_protocols

    return set(available_protocols()) - _OURS


class FsspecBlob:
    """The keys below a URL of an fsspec file system.

    Args:
        url: such as `gs://bucket/prefix`; without user name and password, which belong in the options.
        options: `storage_options` of the file system, passed on as they are.

    Raises InvalidUsage: the scheme is unknown, its package is not installed, or it does not take the options.
    """

    is_remote = True

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        scheme, _, path = url.partition("://")
        if "@" in path.partition("/")[0] and scheme not in _CONTAINER_BEFORE_AT:
            raise InvalidUsage(
                f"the {scheme} URL has a user name or password in it. Pass them as storage options, so that "
                "they are not logged with the URL."
            )
        if scheme in AZURE_SCHEMES and "\\" in url:
            raise InvalidUsage(
                f"the {scheme} URL has a backslash, which Azure takes for a slash: use another character"
            )
        if scheme in ("http", "https") and "?" in url:
            raise InvalidUsage(
                f"the {scheme} URL has a query, such as a signed URL has. A location has none: keys are added to it."
            )
        self._url = url.rstrip("/")
        self._is_http = scheme in ("http", "https")
        self._secrets = tuple(_iterate_secrets(options or {}))
        self._fs = _open_file_system(url, scheme, dict(options or {}), self._secrets)
        self._root = str(self._fs._strip_protocol(url)).rstrip("/")
        self._if_absent = _find_atomic_create(self._fs)
        package = type(self._fs).__module__.partition(".")[0]
        self._is_s3fs, self._is_adlfs = package == "s3fs", package == "adlfs"

    def __repr__(self) -> str:
        return f"FsspecBlob({self.url!r})"

    @property
    def url(self) -> str:
        """The URL with which the store was opened, with the prefix `fsspec+` if that is needed to open it again."""
        scheme = self._url.partition("://")[0]
        return f"fsspec+{self._url}" if scheme in _OURS else self._url

    def get(self, key: str, range: tuple[int, int] | None = None) -> bytes | None:
        """Return the value at key or its bytes `[start, end)`; None when there is none."""
        path = self._make_path(key)
        try:
            if range is not None:
                return self._get_range(path, *check_range(range))
            # Given a start, s3fs does not ask for the size first.
            return self._get_from_start(path) if self._is_s3fs else bytes(self._fs.cat_file(path))
        except InvalidUsage:
            raise
        except Exception as error:
            if _is_absent(error):
                return None
            raise self._map_read_error("get", key, error) from _choose_cause(error, self._secrets)

    def set(self, key: str, value: bytes) -> None:
        """Store value at key, replacing what was there."""
        path = self._make_path(key)
        self._check_writable()
        try:
            self._fs.pipe_file(path, value)
        except Exception as error:
            raise self._map_write_error("set", key, error) from _choose_cause(error, self._secrets)

    def create(self, key: str, value: bytes) -> bool:
        """Store value at key if there is none; return whether this call stored it."""
        path = self._make_path(key)
        self._check_writable()
        try:
            self._fs.pipe_file(path, value, **(self._if_absent or {}), **self._prevent_multipart(key, value))
        except FileExistsError:
            return False
        except InvalidUsage:
            raise
        except Exception as error:
            status = _get_http_status(error)
            if status in (304, 412) or (status == 409 and self._exists(key)):
                return False
            raise self._map_write_error("create", key, error) from _choose_cause(error, self._secrets)
        return True

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[BlobEntry]:
        """Yield entries whose key starts with prefix, in key order; all are fetched before the first."""
        base = prefix.rpartition("/")[0]
        if base and not is_key(base):
            return
        try:
            files = self._fs.find(self._make_path(base) if base else self._root, detail=True, withdirs=False)
        except Exception as error:
            if _is_absent(error):
                return
            raise self._map_read_error("list", prefix, error) from _choose_cause(error, self._secrets)
        entries = {self._parse_key(path): info for path, info in files.items() if info.get("type") != "directory"}
        for key in sorted(entries):
            if key.startswith(prefix) and (start_after is None or key > start_after) and is_key(key):
                yield BlobEntry(key, entries[key].get("size") or 0, _read_modified_s(entries[key]))

    def delete(self, key: str) -> None:
        """Remove key; a missing key is not an error."""
        path = self._make_path(key)
        self._check_writable()
        try:
            self._fs.rm_file(path)
        except Exception as error:
            if not _is_absent(error):
                raise self._map_write_error("delete", key, error) from _choose_cause(error, self._secrets)

    def close(self) -> None:
        """Do nothing: fsspec closes its connections when the file system is released."""

    def _get_from_start(self, path: str) -> bytes:
        """Return a whole value; b"" for an empty one."""
        try:
            return bytes(self._fs.cat_file(path, start=0))
        except OSError as error:
            if _get_error_code(error) in ("InvalidRange", "416"):
                return b""  # An empty value has no first byte.
            raise

    def _get_range(self, path: str, start: int, end: int) -> bytes:
        """Return bytes [start, end), cut at the end of the value."""
        try:
            return bytes(self._fs.cat_file(path, start=start, end=max(end, start + 1)))[: end - start]
        except Exception as error:
            if _is_absent(error):
                raise
            # Most servers refuse a range beyond the end, each with an error of its own.
            if start < self._fs.size(path):
                raise
            return b""

    def _prevent_multipart(self, key: str, value: bytes) -> dict[str, int]:
        """Return options that stop s3fs from multipart uploads, which ignore the condition."""
        if not self._is_s3fs:
            return {}
        if len(value) >= S3_PUT_BYTES_MAX:
            raise InvalidUsage(
                f"create of {key!r} at {self.url} with {len(value):,} bytes: a conditional create on S3 is one PUT of "
                f"less than {S3_PUT_BYTES_MAX:,} bytes. Nothing was written; store less under one key."
            )
        return {"chunksize": len(value) + 1}

    def _exists(self, key: str) -> bool:
        """Return whether the store has the value; False if it fails."""
        try:
            return self.get(key, (0, 1)) is not None
        except PersistError:
            return False

    def _make_path(self, key: str) -> str:
        """Return the path of a key; raises InvalidUsage for an invalid key."""
        check_key(key)
        if self._is_adlfs and "\\" in key:
            raise InvalidUsage(f"the key {key!r} has a backslash, which Azure takes for a slash: use another character")
        return f"{self._root}/{quote(key, safe='/~') if self._is_http else key}"

    def _parse_key(self, path: str) -> str:
        """Return the key of a path in a listing; '' if the path is outside the root."""
        if self._root and not path.startswith(f"{self._root}/"):
            return ""
        key = path.removeprefix(self._root).lstrip("/")
        return unquote(key) if self._is_http else key

    def _check_writable(self) -> None:
        """Raise ReadOnlyStore unless the file system has an atomic create."""
        if self._if_absent is None:
            raise ReadOnlyStore(
                f"{self.url} is open for reading only: {type(self._fs).__name__} has no atomic create, so "
                "two writers could overwrite each other. Write to a folder, s3://, gs:// or abfs:// instead."
            )

    def _map_read_error(self, action: str, key: str, error: Exception) -> PersistError:
        """Return the error to raise for a failed read."""
        what = f"cannot {action} {key!r} at {self.url}"
        if limit := find_exceeded_limit(error):
            return StoreFull(f"{what}: {limit}, then try again. ({_redact_error(error, self._secrets)})")
        return _find_misconfiguration(what, error, self._secrets) or Unavailable(
            f"{what}: {_redact_error(error, self._secrets)}. Check that the store is up and reachable, then try again."
        )

    def _map_write_error(self, action: str, key: str, error: Exception) -> PersistError:
        """Return the error to raise for a failed write."""
        what = f"cannot {action} {key!r} at {self.url}"
        if _get_http_status(error) == 501:
            return StoreMisconfigured(
                f"{what}: {_redact_error(error, self._secrets)}. The store must support conditional writes: use "
                "one that does."
            )
        # An earlier attempt may have landed before one met the limit, so the outcome stays open.
        limit = f"{limit}. " if (limit := find_exceeded_limit(error)) else ""
        return _find_misconfiguration(what, error, self._secrets) or Indeterminate(
            f"{action} of {key!r} at {self.url} got no clear answer: {_redact_error(error, self._secrets)}. "
            f"{limit}It may or may not have happened: read the key before trying again."
        )


def _open_file_system(url: str, scheme: str, options: dict[str, Any], secrets: tuple[str, ...]) -> Any:
    """Return the fsspec file system for a URL; errors hide secrets."""
    from fsspec.registry import get_filesystem_class

    try:
        kind = _choose_atomic_class(get_filesystem_class(scheme))
    except ImportError as error:
        raise InvalidUsage(f"{scheme}:// needs a package that is not installed: {error}") from error
    except ValueError as error:
        raise InvalidUsage(f"{scheme}:// is not known to fsspec: {error}") from error
    # Cached listings and shared instances would show a reader old states of the store.
    fresh = {"use_listings_cache": False, "skip_instance_cache": True}
    try:
        return kind(**{**kind._get_kwargs_from_urls(url), **options, **fresh})
    except ImportError as error:
        raise InvalidUsage(f"{scheme}:// needs a package that is not installed: {error}") from error
    except (TypeError, ValueError) as error:
        names = ", ".join(sorted(options)) or "none"
        raise InvalidUsage(
            f"fsspec cannot open a {scheme} file system with storage options {names}: "
            f"{type(error).__name__}. See {kind.__module__}.{kind.__name__} for the ones it takes."
        ) from error
    except Exception as error:  # Some log in at once: FTP, SFTP, SMB, each with errors of its own.
        raise Unavailable(
            f"{url} cannot be reached: {_redact_error(error, secrets)}. Check the address and the network, then "
            "try again"
        ) from _choose_cause(error, secrets)


def _choose_atomic_class(kind: Any) -> Any:
    """Return a file system's class, or for gcsfs one that writes atomically.

    The usual class makes objects in zonal buckets by appending to them, so an interrupted create would leave a part of
    a value. Google refuses the uploads of the other class there.
    """
    if kind.__module__ == "gcsfs.extended_gcsfs":
        return importlib.import_module("gcsfs.core").GCSFileSystem
    return kind


def _find_atomic_create(fs: Any) -> dict[str, Any] | None:
    """Return the arguments that make `pipe_file` an atomic create, or None.

    An old release would swallow the argument and overwrite, so its signature must name it.
    """
    protocols = (fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol
    supported, argument = ATOMIC.get(type(fs).__module__.partition(".")[0], ((), {}))
    write = getattr(fs, "_pipe_file", None)
    if write is None or set(protocols).isdisjoint(supported):
        return None
    return argument if argument.keys() <= inspect.signature(write).parameters.keys() else None


def _get_error_code(error: BaseException) -> str:
    """Return the S3 error code behind error, '' when there is none."""
    response = getattr(error.__cause__ or error, "response", None)
    return str(response.get("Error", {}).get("Code", "")) if isinstance(response, dict) else ""


def _get_http_status(error: BaseException) -> int:
    """Return the HTTP status behind an error; 0 if there is none."""
    cause = error.__cause__ or error
    response = getattr(cause, "response", None)
    if isinstance(response, dict):
        return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    for name in ("status_code", "status", "code"):
        status = getattr(cause, name, None)
        if isinstance(status, int):
            return status
    return 0


def _is_absent(error: Exception) -> bool:
    """Return whether an error means that the object is missing."""
    return isinstance(error, FileNotFoundError) and _get_error_code(error) != "NoSuchBucket"


def _find_misconfiguration(what: str, error: Exception, secrets: tuple[str, ...]) -> StoreMisconfigured | None:
    """Return the error of a wrong URL or credentials; None if retryable."""
    if isinstance(error, FileNotFoundError):
        return StoreMisconfigured(f"{what}: {_redact_error(error, secrets)}. Create the bucket, or correct the URL.")
    if isinstance(error, (PermissionError, io.UnsupportedOperation)) or "Credentials" in type(error).__name__:
        return StoreMisconfigured(f"{what}: {_redact_error(error, secrets)}. Correct the credentials or their rights.")
    return None


def _redact_error(error: Exception, secrets: tuple[str, ...]) -> str:
    """Return an error's text without secrets."""
    return redact(f"{type(error).__name__}: {error}", secrets).rstrip(".")


def _choose_cause(error: Exception, secrets: tuple[str, ...]) -> Exception | None:
    """Return an error to use as the cause of our error; None if its text would show a secret."""
    return error if redact(text := str(error), secrets) == text else None


def _iterate_secrets(options: object, *, is_secret: bool = False) -> Iterator[str]:
    """Yield option values whose own or enclosing name sounds like a secret."""
    if isinstance(options, Mapping):
        for name, value in options.items():
            yield from _iterate_secrets(value, is_secret=is_secret or _SOUNDS_SECRET.search(str(name)) is not None)
    elif isinstance(options, str) and is_secret:
        yield options


def _read_modified_s(info: Mapping[str, Any]) -> float:
    """Return the time of the last change, whatever the file system calls it; 0 without one."""
    for name in ("LastModified", "mtime", "updated", "last_modified", "created"):
        when = info.get(name)
        if isinstance(when, datetime):
            return when.timestamp()
        if isinstance(when, (int, float)):
            return float(when)
        if isinstance(when, str):
            return datetime.fromisoformat(when).timestamp()
    return 0.0
