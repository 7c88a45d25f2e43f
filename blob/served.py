"""The store of a location behind a server that has the credentials: the messages of both sides, and the client's side.

The client sends calls of `Blob` and does all other work itself, as on any store: it reads the log, verifies checksums,
plans, decodes and commits. So the server needs no second implementation, and a malicious server can do no more than a
malicious store: hide or invent records. The server is `persist.services.serve.flight_calls`.

    action "blob.get"     BlobGet     → a BlobHead, then the value in pieces
    action "blob.list"    BlobListPage → a BlobPage of at most `LIST_PAGE_ENTRIES` entries
    action "blob.delete"  BlobDelete  → a BlobHead
    exchange              BlobPut, then the value in pieces → a BlobHead

A BlobHead has an error of the store as data (`persist.blob.written_errors`), so certain and uncertain errors stay
distinct. When a call fails on the way, a read is `Unavailable`, and a write `Indeterminate`: it may have been done, or
may yet be.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from persist.blob.errors import (
    CorruptBlob,
    Indeterminate,
    InvalidUsage,
    MissingBlob,
    PersistError,
    ReadOnlyStore,
    StoreFull,
    StoreMisconfigured,
    Throttled,
    Unavailable,
)
from persist.blob.protocol import LIST_PAGE_ENTRIES, BlobEntry, check_key, check_range
from persist.blob.written_errors import WrittenError, WrittenErrors

if TYPE_CHECKING:
    import pyarrow.flight as flight

SERVED_PUT_BYTES_MAX = 256 << 20
SERVED_DELETE_KEYS = 200  # In one message, which may have up to 256 KiB.


class BlobGet(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request for a value, a range, or at most `most` bytes."""

    key: str
    range: tuple[int, int] | None = None
    most: int | None = None


class BlobListPage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request for a page of entries."""

    prefix: str
    start_after: str | None = None


class BlobDelete(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request to remove values."""

    keys: list[str]


class BlobPut(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request to store a value. is_new: only if there is none."""

    put: str
    bytes: int
    is_new: bool


class BlobHead(msgspec.Struct, frozen=True):
    """The first message of a server's answer.

    Attributes:
        found: of a read, whether there is a value; of a write, whether this call stored the value.
        bytes: how many bytes of the value follow.
        failure: the error of the store; None for success.
        failed: by key that may still exist after a deletion, the error.
    """

    found: bool = False
    bytes: int = 0
    failure: WrittenError | None = None
    failed: dict[str, WrittenError] = {}


class BlobPage(msgspec.Struct, frozen=True):
    """Entries of a listing, as (key, bytes, modified_s); the next page starts after the last one."""

    entries: list[tuple[str, int, float]]
    failure: WrittenError | None = None


# The errors that a server may send; any other error becomes Unavailable with its text.
STORE_ERRORS = WrittenErrors(
    (
        InvalidUsage, StoreMisconfigured, ReadOnlyStore, StoreFull, Throttled, Indeterminate, CorruptBlob, MissingBlob
    ),
    otherwise=Unavailable,
)  # fmt: skip


def decode_error(failure: WrittenError) -> PersistError:
    """Return the error in a server's answer; unknown kinds become Unavailable."""
    try:
        return STORE_ERRORS.decode_error(failure)
    except ValueError:
        return Unavailable(str(failure.get("text", failure)))


class ServedBlob:
    """A store behind a server (`Client.serve(store=True)`), as clients use it.

    Args:
        url: `grpc://host:port`, or `grpc+tls://host:port`.
        token: one of the server's two tokens, for reading or for writing.
        certificate: the authority of the server's certificate, as PEM; None for those that the machine trusts.
        timeout_s: how long a call may take.
    """

    is_remote = True

    def __init__(
        self, url: str, *, token: str | None = None, certificate: str | bytes | None = None, timeout_s: float = 60.0
    ) -> None:
        self._url = url
        self._token = token
        self._certificate = certificate
        self._timeout_s = timeout_s
        self._client: flight.FlightClient | None = None

    @property
    def url(self) -> str:
        return self._url

    def get(self, key: str, range: tuple[int, int] | None = None) -> bytes | None:
        return self._request_value(BlobGet(check_key(key), None if range is None else check_range(range)))

    def get_at_most(self, key: str, bytes_max: int) -> bytes | None:
        return self._request_value(BlobGet(check_key(key), None, bytes_max))

    def set(self, key: str, value: bytes) -> None:
        self._upload(key, value, is_new=False)

    def create(self, key: str, value: bytes) -> bool:
        return self._upload(key, value, is_new=True)

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[BlobEntry]:
        while True:
            page = self._call_server("blob.list", BlobListPage(prefix, start_after), BlobPage)
            if page.failure is not None:
                raise decode_error(page.failure)
            for entry in page.entries:
                yield BlobEntry(*entry)
            if len(page.entries) < LIST_PAGE_ENTRIES:
                return
            start_after = page.entries[-1][0]

    def delete(self, key: str) -> None:
        for error in self.delete_page([check_key(key)]).values():
            raise error

    def delete_page(self, keys: Sequence[str]) -> Mapping[str, PersistError]:
        failed: dict[str, PersistError] = {}
        for start in range(0, len(keys), SERVED_DELETE_KEYS):
            head = self._call_server(
                "blob.delete", BlobDelete([*map(check_key, keys[start : start + SERVED_DELETE_KEYS])]), BlobHead
            )
            if head.failure is not None:
                raise decode_error(head.failure)
            failed |= {key: decode_error(failure) for key, failure in head.failed.items()}
        return failed

    def close(self) -> None:
        from persist.blob import wire

        client, self._client = self._client, None
        if client is not None:
            try:
                client.close()
            except wire.CALL_FAILED:
                return

    def __repr__(self) -> str:
        return f"ServedBlob({self._url!r})"

    def __reduce__(self) -> Any:
        kind = partial(ServedBlob, token=self._token, certificate=self._certificate, timeout_s=self._timeout_s)
        return kind, (self._url,)

    def _request_value(self, request: BlobGet) -> bytes | None:
        """Request a value or a range of it from the server."""
        from persist.blob import wire

        body = msgspec.json.encode(request)
        try:
            pieces = wire.call_action(self._connect(), self._token, "blob.get", body, self._timeout_s)
            head = msgspec.json.decode(next(pieces), type=BlobHead)
            value = b"".join(pieces)
        except (*wire.CALL_FAILED, StopIteration) as error:
            raise self._map_call_error(Unavailable, error) from error
        if head.failure is not None:
            raise decode_error(head.failure)
        if not head.found:
            return None
        if len(value) != head.bytes:
            raise Unavailable(f"{self._url} gave {len(value):,} bytes of {request.key!r}, and said {head.bytes:,}")
        return value

    def _upload(self, key: str, value: bytes, *, is_new: bool) -> bool:
        """Send a value to the server; return whether it was stored."""
        from persist.blob import wire

        if len(value) > SERVED_PUT_BYTES_MAX:
            raise InvalidUsage(f"{key!r} has {len(value):,} bytes, and a server takes {SERVED_PUT_BYTES_MAX:,} at most")
        command = msgspec.json.encode(BlobPut(check_key(key), len(value), is_new))
        try:
            answer = wire.exchange_pieces(self._connect(), self._token, command, value, self._timeout_s)
            head = msgspec.json.decode(answer, type=BlobHead)
        except wire.CALL_FAILED as error:
            raise self._map_call_error(Indeterminate, error) from error
        if head.failure is not None:
            raise decode_error(head.failure)
        return head.found

    def _call_server(self, what: str, message: msgspec.Struct, kind: type[Any]) -> Any:
        """Send a message to the server; return its decoded answer."""
        from persist.blob import wire

        is_read = what == "blob.list"
        try:
            answer = next(
                wire.call_action(self._connect(), self._token, what, msgspec.json.encode(message), self._timeout_s), b""
            )
            return msgspec.json.decode(answer, type=kind)
        except wire.CALL_FAILED as error:
            raise self._map_call_error(Unavailable if is_read else Indeterminate, error) from error

    def _connect(self) -> "flight.FlightClient":
        """Return the client, made at the first call."""
        from persist.blob import wire

        client = self._client
        if client is None:
            client = self._client = wire.connect(self._url, self._certificate)
        return client

    def _map_call_error(self, kind: type[PersistError], error: BaseException) -> PersistError:
        """Return the error for a failed call, with the server's reason."""
        import pyarrow as pa
        import pyarrow.flight as flight

        text = str(error).partition(". gRPC client debug context")[0].partition(" Detail: ")[0]
        if isinstance(error, flight.FlightUnauthenticatedError):
            return StoreMisconfigured(f"{self._url} refuses this client: {text}. Give storage_options={{'token': …}}")
        if isinstance(error, flight.FlightUnauthorizedError):
            return ReadOnlyStore(f"{self._url} refuses this client: {text}")
        if isinstance(error, pa.ArrowInvalid | msgspec.MsgspecError):
            return StoreMisconfigured(f"{self._url} does not serve a location to this client: {text}")
        failure = kind(f"{self._url} did not answer: {text or type(error).__name__}")
        if isinstance(failure, Unavailable | Indeterminate) and isinstance(error, flight.FlightTimedOutError):
            failure.timed_out = True
        return failure
