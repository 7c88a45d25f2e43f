"""The server's side of a location for clients without rights on its store; see `persist.blob.served`."""

import hmac
import threading
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, TypeVar

import msgspec

from persist.blob import (
    LIST_PAGE_ENTRIES,
    SERVED_DELETE_KEYS,
    SERVED_PUT_BYTES_MAX,
    Blob,
    BlobDelete,
    BlobEntry,
    BlobFailure,
    BlobGet,
    BlobHead,
    BlobListPage,
    BlobPage,
    BlobPut,
    NotDeleted,
    ReadOnlyStore,
    delete_all,
    failure_of,
    get_at_most,
)
from persist.errors import PersistError, Unavailable
from persist.notify.flight_calls import without_location
from persist.notify.messages import decode_message

PIECE_BYTES = 1 << 20
STORE_CALLS = ("get", "list", "delete")
GETS_MAX = 16  # Values that are in memory at a time.
GET_S = 10.0  # How long a call waits for its turn.
T = TypeVar("T")


class BlobCalls:
    """Answers the calls of `ServedBlob`.

    Args:
        write_token: whoever sends it may write and delete; None if nobody may.
    """

    def __init__(self, blob: Blob, write_token: str | None) -> None:
        self._blob = blob
        self._turns = threading.BoundedSemaphore(GETS_MAX)
        self._expected = None if write_token is None else f"Bearer {write_token}".encode()

    def done(self, what: str, body: bytes, context: Any) -> Iterator[bytes] | None:
        """Do an action and yield its results; None if it is none of a store."""
        if what == "blob.get":
            return self._got(decode_message(body, BlobGet))
        if what == "blob.list":
            return iter([msgspec.json.encode(self._page(decode_message(body, BlobListPage)))])
        if what == "blob.delete":
            return iter([msgspec.json.encode(self._deleted(decode_message(body, BlobDelete), context))])
        return None

    def refusal(self, put: BlobPut, context: Any) -> bytes | None:
        """Return the answer to who may not store a value; None if it may."""
        if put.bytes > SERVED_PUT_BYTES_MAX or put.bytes < 0:
            raise ValueError(f"a value of {put.bytes:,} bytes is not taken: at most {SERVED_PUT_BYTES_MAX:,} are")
        failure = self._not_allowed(context)
        return None if failure is None else msgspec.json.encode(BlobHead(failure=failure))

    def put(self, put: BlobPut, value: bytes) -> bytes:
        """Store a value, and return the answer."""

        def store() -> BlobHead:
            if put.is_new:
                return BlobHead(found=self._blob.create(put.put, value))
            self._blob.set(put.put, value)
            return BlobHead(found=True)

        return msgspec.json.encode(self._told(store, lambda failure: BlobHead(failure=failure)))

    def _got(self, wanted: BlobGet) -> Iterator[bytes]:
        def read() -> bytes | BlobFailure | None:
            if wanted.most is not None:
                return get_at_most(self._blob, wanted.key, wanted.most)
            return self._blob.get(wanted.key, wanted.range)

        if not self._turns.acquire(timeout=GET_S):
            raise Unavailable(f"{GETS_MAX} values are being read, for more than {GET_S:g} s: try again later")
        try:
            value = self._told(read, lambda failure: failure)
            if isinstance(value, bytes):
                yield msgspec.json.encode(BlobHead(found=True, bytes=len(value)))
                for start in range(0, len(value), PIECE_BYTES):
                    yield value[start : start + PIECE_BYTES]
            else:
                yield msgspec.json.encode(BlobHead(failure=value))
        finally:
            self._turns.release()

    def _page(self, wanted: BlobListPage) -> BlobPage:
        def read() -> BlobPage:
            entries: Iterator[BlobEntry] = islice(self._blob.list(wanted.prefix, wanted.start_after), LIST_PAGE_ENTRIES)
            return BlobPage([(entry.key, entry.bytes, entry.modified_s) for entry in entries])

        return self._told(read, lambda failure: BlobPage([], failure))

    def _deleted(self, wanted: BlobDelete, context: Any) -> BlobHead:
        if len(wanted.keys) > SERVED_DELETE_KEYS:
            raise ValueError(f"{len(wanted.keys)} keys are too many: at most {SERVED_DELETE_KEYS} are deleted at once")
        failure = self._not_allowed(context)
        if failure is not None:
            return BlobHead(failure=failure)

        def delete() -> BlobHead:
            try:
                delete_all(self._blob, wanted.keys)
            except NotDeleted as error:
                return BlobHead(failed={key: self._failure(each) for key, each in error.failed.items()})
            return BlobHead(found=True)

        return self._told(delete, lambda failure: BlobHead(failure=failure))

    def _not_allowed(self, context: Any) -> BlobFailure | None:
        """Return why a call may not write; None if it may."""
        given = [value for name, value in context.invocation_metadata() if name.lower() == "authorization"]
        first = given[0] if len(given) == 1 else b""
        first = first.encode() if isinstance(first, str) else first
        if self._expected is not None and hmac.compare_digest(first, self._expected):
            return None
        return failure_of(
            ReadOnlyStore(
                'this token lets read only: open the location with mode="read", or give the token that the server '
                "has for writing"
            )
        )

    def _told(self, do: Callable[[], T], told: Callable[[BlobFailure], T]) -> T:
        """Return what something returns, or what is told of its error."""
        try:
            return do()
        except PersistError as error:
            return told(self._failure(error))

    def _failure(self, error: PersistError) -> BlobFailure:
        failure = failure_of(error)
        return msgspec.structs.replace(failure, text=without_location(failure.text, self._blob.url))
