"""A blob store in an object store, by obstore; `persist.blob.stores.s3` connects to S3.

Google Cloud Storage and Azure are reached through fsspec: `docs/run/stores.md` has the reason.

`create` is a PUT that the server makes only if the key is absent. obstore never retries here: it would repeat a PUT
whose answer was lost, and would then report the refusal that its own first attempt caused as another client's win.
Retries of all requests, and what to do when a store throttles, are in one place: `persist.blob.layers.retry`.
`persist.blob.stores.object_errors` maps errors to the caller's classes.

obstore's paths are segments joined by slashes, so three cases need care:

- obstore lists a folder. So a listing here begins just before the prefix, and ends after it.
- An object whose name ends in a slash, as some tools make for folders, is listed without the slash. So for an empty
  entry, one more request checks that its key exists.
- An object with an empty segment in its name ends a listing; the error names it.

The time for an answer begins when a request is sent, and a large value takes long to send. So there is one obstore
client for each size of values, in powers of eight; each has connections of its own.

A read fails unless the value has the length that the server announced. Layers above verify checksums. S3 verifies the
SHA-256 of each upload.

Use one object from any number of threads, but not across `fork`: obstore's threads do not exist in the child process,
so a child of a process that used it gets an error. Start such processes by `spawn` or `forkserver`.
"""

import os
import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, ClassVar

from persist.blob.errors import Indeterminate, InvalidUsage, PersistError, StoreMisconfigured
from persist.blob.protocol import KEY_BYTES_MAX, LIST_PAGE_ENTRIES, BlobEntry, check_key, check_range, is_key
from persist.blob.stores.object_errors import ForkedProcess, ObjectErrorMap

UPLOAD_BYTES_AT_ONCE = 1 << 20  # An upload of this size takes negligible time.
SLOWER = 8  # Eight times the bytes have eight times the time.
CONNECT_TIMEOUT_S = 3.0
READ_TIMEOUT_S = 20.0
ATTEMPT_S = 60.0
NAME_BYTES_MAX = 1024
NO_KEY = "log/" + "0" * 20  # Anyone who may list a location may also read this key; it need not exist.


class ObjectBlob:
    """The keys below a prefix of a bucket or container. A value costs one request per call, a listing one per page.

    obstore sometimes does not notice that a proxy answered in place of the store. So one more request checks this after
    a delete, and after a listing that ends with a full page or has no entry.

    A value is one PUT, so at most 5 GB. A subclass connects to its server in `_connect`.

    Args:
        url: where it is, for messages.
        prefix: the beginning of all keys, without a slash at either end; may be empty.
        errors: maps the errors of this store.
        connect_timeout_s, read_timeout_s: how long to wait for a connection, and for the next bytes; then the request
            has failed.
        attempt_s: how long a request may take with its whole answer.

    Raises InvalidUsage: a prefix that is not allowed, or obstore is not installed.
    """

    is_remote = True
    _used_by: ClassVar[int] = 0  # The process that has obstore's threads.

    def __init__(
        self,
        url: str,
        prefix: str,
        errors: ObjectErrorMap,
        connect_timeout_s: float,
        read_timeout_s: float,
        attempt_s: float,
    ) -> None:
        _check_prefix(prefix)
        self._url, self._base, self._errors = url.rstrip("/"), f"{prefix}/" if prefix else "", errors
        self._timeouts_s = connect_timeout_s, read_timeout_s, attempt_s
        try:
            import obstore.exceptions
            import obstore.store
        except ImportError as error:
            raise make_missing_packages_error(url) from error
        self._obstore: Any = obstore
        self._clients: dict[tuple[int, bool], Any] = {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    @property
    def url(self) -> str:
        """The store's address, such as `s3://bucket/prefix`."""
        return self._url

    def get(self, key: str, range: tuple[int, int] | None = None) -> bytes | None:
        """Return the value at key or its bytes `[start, end)`; None when there is none."""
        check_key(key)
        if range is None:
            return self._get_object(key, None)
        start, end = check_range(range)
        # HTTP has no empty range, and whether the key exists must be found out all the same.
        value = self._get_object(key, {"range": (start, max(end, start + 1))})
        return None if value is None else value[: end - start]

    def set(self, key: str, value: bytes) -> None:
        """Store value at key, replacing what was there."""
        check_key(key)
        try:
            has_tag = self._upload(key, value, "overwrite")
        except Exception as error:
            raise self._errors.map_write_error("set", key, error) from self._errors.choose_cause(error)
        if not has_tag:
            self._confirm_write("set", key, value)

    def create(self, key: str, value: bytes) -> bool:
        """Store value at key if there is none; return whether this call stored it."""
        check_key(key)
        try:
            has_tag = self._upload(key, value, "create")
        except Exception as error:
            # obstore takes 304, 409 and 412 for this. A 409 may also mean that another upload is under way.
            is_there = isinstance(error, self._obstore.exceptions.AlreadyExistsError)
            if is_there and (self._errors.parse_answer(error).status in (304, 412) or self._exists(key)):
                return False
            raise self._errors.map_write_error("create", key, error) from self._errors.choose_cause(error)
        if not has_tag:
            self._confirm_write("create", key, value)
        return True

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[BlobEntry]:
        """Yield entries whose key starts with prefix, in key order, a page of 1,000 at a time."""
        first = self._base + prefix
        folder = first.rpartition("/")[0]
        if folder and not is_key(folder):
            return
        offset = _make_predecessor(first)
        if start_after is not None:
            offset = max(offset, self._base + start_after)
        try:
            client, size = self._choose_client(), LIST_PAGE_ENTRIES
            pages = self._obstore.list(client, folder or None, offset=offset or None, chunk_size=size)
            page = next(pages, None)
        except Exception as error:
            raise self._errors.map_read_error("list", prefix, error) from self._errors.choose_cause(error)
        count = 0
        while page is not None:
            count += len(page)
            for entry in page:
                name = entry["path"]
                key = name.removeprefix(self._base)
                if not name.startswith(first) or not is_key(key):
                    if name > first and not name.startswith(first):
                        return
                    continue
                if not entry["size"] and self.get(key) is None:
                    continue  # It represents a folder.
                if start_after is not None and key <= start_after:
                    raise _make_order_error(self.url, key, start_after)
                start_after = key
                yield BlobEntry(key, entry["size"], entry["last_modified"].timestamp())
            try:
                page = next(pages, None)
            except Exception as error:
                raise self._errors.map_read_error("list", prefix, error) from self._errors.choose_cause(error)
        if count % LIST_PAGE_ENTRIES == 0:
            self._get_object(NO_KEY, None)  # obstore takes a page of HTML for the end of a listing, and a get sees it.

    def delete(self, key: str) -> None:
        """Remove key; a missing key is not an error."""
        check_key(key)
        try:
            self._obstore.delete(self._choose_client(), self._base + key)
        except Exception as error:
            if not self._errors.is_absent(error):
                raise self._errors.map_write_error("delete", key, error) from self._errors.choose_cause(error)
        self._confirm_deletion(key)

    def close(self) -> None:
        """Close the connections."""
        self._clients.clear()

    def _connect(self, client_options: dict[str, Any], is_for_pages: bool) -> Any:
        """Return obstore's store with these HTTP options and no retries.

        `is_for_pages`: whether deletions of many objects are one request, not one for each object.
        """
        raise NotImplementedError

    def _get_object(self, key: str, options: dict[str, Any] | None) -> bytes | None:
        """Return an object or a range of it; None if absent."""
        try:
            result = self._obstore.get(self._choose_client(), self._base + key, options=options)
            value = bytes(result.bytes())
            kind = str(result.attributes.get("Content-Type", ""))
        except Exception as error:
            if self._errors.is_absent(error):
                return None
            if self._errors.parse_answer(error).status == 416:
                return b""  # The range begins at or beyond the end.
            if options is not None and "NotPartial" in str(error):
                self._get_object(key, None)  # An error page is not a range either, and raises here.
            raise self._errors.map_read_error("get", key, error) from self._errors.choose_cause(error)
        if kind.startswith("text/html"):
            raise StoreMisconfigured(
                f"the answer to get {key!r} at {self.url} is not an object but a page of type {kind}, which begins "
                f"{value[:80].decode(errors='replace')!r}: something else answers in place of the store, such as a "
                "proxy that wants you to sign in. Open such an address in a browser, or correct the endpoint and proxy."
            )
        return value

    def _confirm_write(self, action: str, key: str, value: bytes) -> None:
        """Read back a value whose PUT was answered without an ETag.

        Raises Indeterminate: another value is there, or the read fails.
        """
        why = "something else is there"
        try:
            if self._get_object(key, None) == value:
                return
        except PersistError as error:
            why = str(error)
        raise Indeterminate(f"{action} of {key!r} at {self.url} got an answer without an ETag, and {why}")

    def _confirm_deletion(self, key: str) -> None:
        """Read a deleted key, to detect that a proxy answered.

        Raises Indeterminate: something else has answered.
        """
        try:
            self._get_object(key, {"range": (0, 1)})
        except StoreMisconfigured as error:
            raise Indeterminate(f"delete of {key!r} at {self.url} got an answer, and {error}") from None
        except PersistError:
            pass  # This does not concern the deletion, which had its answer.

    def _upload(self, key: str, value: bytes, mode: str) -> bool:
        """Send a value; return whether the answer has an ETag, as a store's answer does."""
        client = self._choose_client(len(value))
        try:
            self._obstore.put(client, self._base + key, value, mode=mode, use_multipart=False)
        except Exception as error:
            if not self._errors.is_success(error):
                raise
            return False
        return True

    def _exists(self, key: str) -> bool:
        """Return whether the store has the value; False if it fails."""
        try:
            return self._get_object(key, {"range": (0, 1)}) is not None
        except PersistError:
            return False

    def _choose_client(self, sent_bytes: int = 0, *, is_for_pages: bool = False) -> Any:
        """Return obstore's store for requests of this size, or for deletions of many objects."""
        ObjectBlob._used_by = ObjectBlob._used_by or os.getpid()
        if ObjectBlob._used_by != os.getpid():
            raise ForkedProcess  # obstore would wait for its threads for ever.
        slower = 1
        while sent_bytes > UPLOAD_BYTES_AT_ONCE * slower:
            slower *= SLOWER
        client = self._clients.get((slower, is_for_pages))
        if client is None:
            connect_s, read_s, attempt_s = self._timeouts_s
            times = {
                "connect_timeout": timedelta(seconds=connect_s),
                "read_timeout": timedelta(seconds=read_s * slower),
            }
            # A body whose bytes drip never runs into the read timeout.
            whole = timedelta(seconds=attempt_s * slower)
            client = self._connect({**times, "timeout": whole, "allow_http": True}, is_for_pages)
            self._clients[slower, is_for_pages] = client
        return client


def _make_predecessor(name: str) -> str:
    """Return a name just before all names that begin with this one."""
    if not name or name.endswith("/"):
        return name  # No object has this name, as persist has it.
    last = ord(name[-1]) - 1
    last = 0xD7FF if last == 0xDFFF else last  # These code points are surrogates, not characters.
    return f"{name[:-1]}{chr(last)}{chr(sys.maxunicode)}" if last > 0x20 else name[:-1]


def make_missing_packages_error(url: str) -> InvalidUsage:
    """Return the error that names all packages that object stores need."""
    packages = "pip install 'obstore>=0.12,<0.13' 'boto3>=1.43.115'"
    return InvalidUsage(f"{url} needs obstore and boto3, which are not both installed: {packages}")


def _check_prefix(prefix: str) -> None:
    """Raise InvalidUsage for a prefix that cannot be part of keys."""
    if prefix and not is_key(prefix):
        raise InvalidUsage(
            f"prefix {prefix[:80]!r} is not allowed: give segments joined by '/', none of them empty, "
            "'.' or '..', or longer than 200 bytes, without control characters"
        )
    longest = NAME_BYTES_MAX - KEY_BYTES_MAX - 1
    if len(prefix.encode()) > longest:
        raise InvalidUsage(f"prefix {prefix[:40]!r}… is too long: at most {longest} bytes of UTF-8")


def _make_order_error(url: str, key: str, before: str) -> StoreMisconfigured:
    """Return the error for a store that lists keys out of order."""
    return StoreMisconfigured(
        f"{url} lists {key[:80]!r} after {before[:80]!r}, and keys must come in the order of their bytes. Use a store "
        "that lists so, such as a general purpose bucket of S3."
    )
