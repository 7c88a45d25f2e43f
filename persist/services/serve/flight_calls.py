"""A server of Arrow Flight's calls that keeps its limits before a message is in memory.

gRPC delivers the headers of a call first, so a caller without a token is refused before its body is read. gRPC accepts
at most `MESSAGE_BYTES_MAX` of a body, and buffers no more of a connection than its window. The Flight server of pyarrow
cannot be used: it takes messages of any size, whole, before it looks at a token. A memory limit for the process of that
server does not help: three requests of strangers end it (measured: SIGABRT at 1.5 GiB).

    connections        CONNECTIONS_MAX, and half of the files that the process may open
    a connection       headers of HEADER_BYTES_MAX, CALLS_A_CONNECTION_MAX calls;
                       HANDSHAKE_S to begin, and IDLE_S without a call
    calls              calls_max; a message of MESSAGE_BYTES_MAX, which must come within RECEIVE_S,
                       and calls of several messages, at RECEIVE_BYTES_A_SECOND

An error reaches the client as its class and message, never with a traceback, or the folder of the location.

`BlobCalls` is the server's side of a location for clients without rights on its store; see `persist.blob.served`.
"""

import contextlib
import resource
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import islice
from typing import Any

import msgspec
import pyarrow as pa

from persist.blob.errors import NotDeleted
from persist.blob.protocol import LIST_PAGE_ENTRIES, Blob, BlobEntry, delete_all, get_at_most
from persist.blob.served import (
    SERVED_DELETE_KEYS,
    STORE_ERRORS,
    BlobDelete,
    BlobGet,
    BlobHead,
    BlobListPage,
    BlobPage,
    BlobPut,
)
from persist.blob.threads import DaemonThreads
from persist.blob.written_errors import WrittenError
from persist.core.errors import InvalidUsage, PersistError, Unavailable
from persist.core.written_errors import ERRORS
from persist.services.serve.error_codes import encode_error, hide_location
from persist.services.serve.messages import Address, decode_message, encode_fields, join_host_port
from persist.services.serve.rights import RIGHTS, Tokens

try:
    import grpc
except ImportError as missing:
    raise InvalidUsage(
        f"serving needs the package {missing.name}, which is not installed: pip install 'grpcio>=1.76'"
    ) from missing

CONNECTIONS_MAX = 640
CALLS_A_CONNECTION_MAX = 32
MESSAGE_BYTES_MAX = 256 << 10
HEADER_BYTES_MAX = 8 << 10
RECEIVE_BYTES_A_SECOND = 128 << 10
HANDSHAKE_S, IDLE_S, RECEIVE_S = 10.0, 60.0, 10.0
ERROR_CHARS_MAX = 2000  # Errors travel in headers, which clients limit as well.
DATA_HEADER, METADATA, DATA_BODY = 2, 3, 1000  # Fields of FlightData.
_SERVICE = "/arrow.flight.protocol.FlightService/"

Method = Callable[[Iterator[bytes], "grpc.ServicerContext"], Iterable[bytes]]


class FlightCalls:
    """Answers calls by functions, each in a thread of its own, until it is shut down. `port`: where it listens."""

    def __init__(
        self,
        methods: Mapping[str, Method],
        address: Address,
        tokens: Tokens,
        certificate: tuple[str | bytes, str | bytes] | None,
        *,
        calls_max: int,
        hidden: str,
    ) -> None:
        """Begin to serve.

        Args:
            methods: by the name of a Flight call, a function from its messages to its answers.
            hidden: the URL of the location, which no error shows.
        """
        self._tokens = tokens
        self._methods = {_SERVICE + name: method for name, method in methods.items()}
        self._hidden = hidden
        self._receiving: dict[int, tuple[grpc.ServicerContext, float]] = {}
        self._lock = threading.Lock()
        self._threads = _Threads(calls_max)
        self._server = grpc.server(
            self._threads, [_Handler(self._make_handler)], options=_list_limits(), maximum_concurrent_rpcs=calls_max
        )
        self.port = _listen(self._server, address, certificate)
        self._server.start()

    def drop_slow(self) -> None:
        """End the calls whose messages did not come in time."""
        limit_s = time.monotonic() - RECEIVE_S
        with self._lock:
            late = [context for context, since_s in self._receiving.values() if since_s < limit_s]
        for context in late:
            end_call(context)

    def shutdown(self, grace_s: float) -> bool:
        """Stop serving; wait `grace_s` for running calls, and return whether all have ended."""
        self._server.stop(grace_s).wait()
        return self._threads.close(1.0)

    def _make_handler(self, details: "grpc.HandlerCallDetails") -> "grpc.RpcMethodHandler | None":
        """Return the handler of a call after a check of its token."""
        rights = self._tokens.find_rights(details.invocation_metadata)
        if not rights:
            return grpc.stream_stream_rpc_method_handler(_refuse)
        method = self._methods.get(details.method)
        if method is None or RIGHTS[details.method.removeprefix(_SERVICE)] not in rights:
            return None

        def answer(requests: Iterator[bytes], context: "grpc.ServicerContext") -> Iterator[bytes]:
            try:
                yield from method(self._receive_in_time(requests, context), context)
            except grpc.RpcError:
                return  # The client has gone, or was too slow.
            except Exception as error:
                code, text = _map_error(error, self._hidden)
                context.abort(code, text)

        return grpc.stream_stream_rpc_method_handler(answer)

    def _receive_in_time(self, requests: Iterator[bytes], context: "grpc.ServicerContext") -> Iterator[bytes]:
        """Yield messages, which must all arrive within `RECEIVE_S` after the first request for one."""
        since_s, number = time.monotonic(), id(context)  # Steady streams may take long.
        while True:
            with self._lock:
                self._receiving[number] = context, since_s
            try:
                message = next(requests, None)
            finally:
                with self._lock:
                    self._receiving.pop(number, None)
            if message is None:
                raise ValueError("the call ended before all of its message had come")
            yield message
            since_s = min(time.monotonic(), since_s + len(message) / RECEIVE_BYTES_A_SECOND)


class _Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
    """gRPC's handler of all calls: a function chooses the method that answers, by the headers."""

    def __init__(self, choose: Callable[[Any], Any]) -> None:
        self._choose = choose

    def service(self, details: Any) -> Any:
        return self._choose(details)


class _Threads:
    """A pool of threads for gRPC, for which the process does not wait at its end."""

    def __init__(self, threads_max: int) -> None:
        self._crew = DaemonThreads(threads_max, "persist-server-call")

    def submit(self, call: Callable[..., object], *arguments: object) -> "Future[object]":
        """Run a call in a thread; return its future."""
        future: Future[object] = Future()

        def job() -> Callable[[], object]:
            try:
                result = call(*arguments)
            except BaseException as error:  # It is the caller's to see.
                return partial(future.set_exception, error)
            return partial(future.set_result, result)

        if not self._crew.submit(job):
            raise RuntimeError("the server has ended")
        return future

    def close(self, timeout_s: float) -> bool:
        """End the threads; return whether all have ended in time."""
        self._crew.close(timeout_s)
        return not self._crew.are_alive


def end_call(context: "grpc.ServicerContext") -> None:
    """End a call at once, even if it waits for a client that does not read. The client gets UNAVAILABLE.

    `context.cancel()` would end it as cancelled, and pyarrow takes that for a signal: its client would raise
    KeyboardInterrupt. Only a private name of gRPC can end it otherwise.
    """
    call = getattr(getattr(context, "_rpc_event", None), "call", None)
    if call is None:
        context.cancel()
    else:
        call.cancel(grpc.StatusCode.UNAVAILABLE.value[0], "it was too slow")


def make_schema_message(schema: pa.Schema) -> bytes:
    """Return the message that begins a stream of data."""
    return encode_fields((DATA_HEADER, memoryview(pa.ipc.read_message(schema.serialize()).metadata)))


def encode_batch(batch: pa.RecordBatch, metadata: bytes = b"") -> Iterator[bytes]:
    """Yield the messages of a batch: its dictionaries, then itself, with metadata if there is any."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    _schema, *messages = pa.ipc.MessageReader.open_stream(pa.BufferReader(sink.getvalue()))
    for message in messages:
        extra = [(METADATA, metadata)] if metadata and message is messages[-1] else []
        body = b"" if message.body is None else memoryview(message.body)
        yield encode_fields((DATA_HEADER, memoryview(message.metadata)), *extra, (DATA_BODY, body))


def _refuse(requests: object, context: "grpc.ServicerContext") -> Iterator[bytes]:
    """Answer a call without a valid token by an error."""
    context.abort(grpc.StatusCode.UNAUTHENTICATED, "the token is missing or wrong: send 'authorization: Bearer TOKEN'")
    yield b""


def _map_error(error: Exception, hidden: str) -> tuple["grpc.StatusCode", str]:
    """Return the status and the message of an error for a client."""
    code = encode_error(error, hidden)
    text = code.text
    if isinstance(error, PersistError):
        # All clients show this to people: kind and text of the written form are enough.
        written = ERRORS.encode_error(error, partial(hide_location, url=hidden))
        text = f"{written['kind']}: {written['text']}"
    return grpc.StatusCode[code.grpc], text[:ERROR_CHARS_MAX]


def _list_limits() -> list[tuple[str, int]]:
    """Return gRPC's limits for messages and connections."""
    files_max, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    connections = CONNECTIONS_MAX if files_max < 0 else min(CONNECTIONS_MAX, files_max // 2)
    return [
        ("grpc.so_reuseport", 0),
        ("grpc.max_allowed_incoming_connections", connections),
        ("grpc.server_handshake_timeout_ms", int(HANDSHAKE_S * 1000)),
        ("grpc.max_connection_idle_ms", int(IDLE_S * 1000)),
        ("grpc.max_concurrent_streams", CALLS_A_CONNECTION_MAX),
        # gRPC would count calls that have ended until it has cleaned up behind them. A client that knows the limit
        # respects it, counts only running calls, and would find calls refused. A connection that begins and resets
        # calls as fast as it can costs no more memory without it: 10 MiB for millions of calls, measured both ways.
        ("grpc.http.overload_protection", 0),
        ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_metadata_size", HEADER_BYTES_MAX),
        ("grpc.absolute_max_metadata_size", HEADER_BYTES_MAX),
        # Otherwise gRPC would buffer more and more data of a fast client before it is read.
        ("grpc.http2.bdp_probe", 0),
        # Detects clients whose machine has vanished.
        ("grpc.keepalive_time_ms", int(IDLE_S * 1000)),
        ("grpc.keepalive_timeout_ms", int(HANDSHAKE_S * 1000)),
    ]


def _listen(server: "grpc.Server", address: Address, certificate: tuple[str | bytes, str | bytes] | None) -> int:
    """Make a server listen at an address; return the port."""
    at = join_host_port(address.host, address.port)
    with _as_os_error():
        if certificate is None:
            return int(server.add_insecure_port(at))
        chain, key = (pem.encode() if isinstance(pem, str) else pem for pem in certificate)
        return int(server.add_secure_port(at, grpc.ssl_server_credentials([(key, chain)])))


@contextlib.contextmanager
def _as_os_error() -> Iterator[None]:
    """Make a context that raises gRPC's errors as OSError."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        raise OSError(str(error)) from error


PIECE_BYTES = 1 << 20
STORE_CALLS = ("get", "list", "delete")
GETS_MAX = 16  # Values that are in memory at a time.
GET_S = 10.0  # How long a call waits for its turn.


class BlobCalls:
    """Answers the calls of `ServedBlob`; `persist.services.serve.rights` checks the caller."""

    def __init__(self, blob: Blob) -> None:
        self._blob = blob
        self._turns = threading.BoundedSemaphore(GETS_MAX)

    def run_action(self, what: str, body: bytes) -> Iterator[bytes] | None:
        """Run an action of the store; return its results, or None for other actions."""
        if what == "blob.get":
            return self._send_value(decode_message(body, BlobGet))
        if what == "blob.list":
            page = decode_message(body, BlobListPage)
            return iter([self._answer(lambda: self._list_page(page), lambda failure: BlobPage([], failure))])
        if what == "blob.delete":
            keys = decode_message(body, BlobDelete).keys
            if len(keys) > SERVED_DELETE_KEYS:
                raise ValueError(f"{len(keys)} keys are too many: at most {SERVED_DELETE_KEYS} are deleted at once")
            return iter([self._answer(lambda: self._delete(keys))])
        return None

    def put(self, put: BlobPut, value: bytes) -> bytes:
        """Store a value; return the encoded outcome."""
        return self._answer(lambda: BlobHead(found=self._store_value(put, value)))

    def _send_value(self, wanted: BlobGet) -> Iterator[bytes]:
        """Yield the head and the pieces of a value."""
        value: bytes | None = None

        def read() -> BlobHead:
            nonlocal value
            if wanted.most is not None:
                value = get_at_most(self._blob, wanted.key, wanted.most)
            else:
                value = self._blob.get(wanted.key, wanted.range)
            return BlobHead() if value is None else BlobHead(found=True, bytes=len(value))

        if not self._turns.acquire(timeout=GET_S):
            raise Unavailable(f"{GETS_MAX} values are being read, for more than {GET_S:g} s: try again later")
        try:
            yield self._answer(read)
            for start in range(0, len(value or b""), PIECE_BYTES):
                yield (value or b"")[start : start + PIECE_BYTES]
        finally:
            self._turns.release()

    def _list_page(self, wanted: BlobListPage) -> BlobPage:
        """Return a page of the keys of the store."""
        entries: Iterator[BlobEntry] = islice(self._blob.list(wanted.prefix, wanted.start_after), LIST_PAGE_ENTRIES)
        return BlobPage([(entry.key, entry.bytes, entry.modified_s) for entry in entries])

    def _store_value(self, put: BlobPut, value: bytes) -> bool:
        """Store a value in the location's store; return whether it was stored."""
        if put.is_new:
            return self._blob.create(put.put, value)
        self._blob.set(put.put, value)
        return True

    def _delete(self, keys: Sequence[str]) -> BlobHead:
        """Delete blobs of the store; return the errors of keys that failed."""
        try:
            delete_all(self._blob, keys)
        except NotDeleted as error:
            return BlobHead(failed={key: self._make_failure(cause) for key, cause in error.failed.items()})
        return BlobHead(found=True)

    def _answer(
        self,
        do: Callable[[], BlobHead | BlobPage],
        failed: Callable[[WrittenError], BlobHead | BlobPage] = lambda failure: BlobHead(failure=failure),
    ) -> bytes:
        """Return the result of a function, or its error, as a message."""
        try:
            return msgspec.json.encode(do())
        except PersistError as error:
            return msgspec.json.encode(failed(self._make_failure(error)))

    def _make_failure(self, error: PersistError) -> WrittenError:
        """Return an error of the store as a message, without its URL."""
        return STORE_ERRORS.encode_error(error, partial(hide_location, url=self._blob.url))
