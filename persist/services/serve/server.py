"""An Arrow Flight server of one location: it announces new records, and answers queries.

It is a reader like any other, in a process of its own or of a client that writes: nothing depends on it. Clients that
wait for a record repeat their request ("wait"), so the server never writes to a client that does not read, and buffers
nothing for slow ones. A stream of data may stall because its client does not read. A stream that stalls for `slow_s` is
dropped: its hold on history is released, and its client gets Unavailable.

If it is allowed to, it speaks Flight SQL (`flight_sql`), commits for others (`commits`), and serves its store.

Limits: `STREAMS_MAX` streams and `WAITS_MAX` waits at a time; more are refused, and try again.
"""

import contextlib
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.flight as flight

from persist.blob.served import SERVED_PUT_BYTES_MAX, BlobPut
from persist.compute.query import Queries
from persist.core.closing import Closes
from persist.core.errors import ClientClosed, InvalidUsage, PersistError, Unavailable
from persist.engine.follow.follower import Follower
from persist.engine.write.committer import Committer
from persist.services.serve.commits import CommitsForOthers, Room
from persist.services.serve.flight_calls import (
    METADATA,
    STORE_CALLS,
    BlobCalls,
    FlightCalls,
    Method,
    encode_batch,
    end_call,
    make_schema_message,
)
from persist.services.serve.flight_sql import SQL_ACTIONS, FlightSql
from persist.services.serve.messages import (
    Address,
    CommitRequest,
    Commits,
    Committed,
    Leave,
    Newest,
    Nothing,
    Wait,
    check_certificate,
    check_strangers,
    check_token,
    decode_message,
    encode_fields,
    group_fields,
    parse_address,
)
from persist.services.serve.rights import NotAllowed, Tokens

STREAMS_MAX, WAITS_MAX = 64, 512
CALLS_MAX = STREAMS_MAX + WAITS_MAX + 64
BATCH_ROWS, BATCH_BYTES = 64 << 10, 16 << 20
ACTION_RESULT, DESCRIPTOR = 1, 1  # Fields of Flight's messages.
LOOK_S = 1.0  # The longest wait for news between two checks whether the client still waits.
CLOSE_S = 5.0
COMMITS = "commit for others: it needs serve(commits=True)"
T = TypeVar("T")

logger = logging.getLogger(__name__)


@dataclass
class _Stream:
    """An open stream of data. `waits_since_s`: when the message that its client has not read yet was sent."""

    close: Callable[[], object]
    cut: Callable[[], object]
    waits_since_s: float | None = None
    is_dropped: bool = False


@dataclass
class _Hub:
    """The state that all calls share: the newest seqno, and the waiting calls."""

    changed: threading.Condition = field(default_factory=threading.Condition)
    seqno: int = -1
    waiters: set[str] = field(default_factory=set)
    left: set[str] = field(default_factory=set)
    streams: list[_Stream] = field(default_factory=list)
    is_closed: bool = False


class Server(Closes):
    """A server of a location, made by `Client.serve`. It runs until it or its client is closed.

    `url`: where it is, with the port that it has.
    """

    def __init__(
        self,
        follower: Follower,
        url: str,
        *,
        token: str | None,
        write_token: str | None = None,
        certificate: tuple[str | bytes, str | bytes] | None,
        insecure: bool,
        slow_s: float,
        committer: Committer | None = None,
        queries: Queries | None = None,
        store: BlobCalls | None = None,
        hidden: str,
    ) -> None:
        """Begin to serve; see `Client.serve`. With a committer, it commits for clients; with queries, it answers Flight
        SQL; with a store, clients open the location through it. No error shows the URL of the location, `hidden`.
        """
        address = _check_addresses(url, token, certificate, insecure)
        self._commits = None if committer is None else CommitsForOthers(committer, follower)
        self._follower = follower
        self._hub = _Hub(seqno=follower.state.seqno)
        self._slow_s = slow_s
        self._sql = None if queries is None else FlightSql(queries)
        self._store = store
        self._putting = Room(2 * SERVED_PUT_BYTES_MAX)
        self._tokens = tokens = Tokens(token, write_token)
        methods: dict[str, Method] = {
            "GetFlightInfo": self._get_flight_info,
            "GetSchema": self._get_schema,
            "DoGet": self._handle_get,
            "DoAction": self._handle_action,
            "DoExchange": self._handle_exchange,
            "DoPut": self._do_put,
            "ListActions": self._list_actions,
        }
        try:
            self._calls = FlightCalls(methods, address, tokens, certificate, calls_max=CALLS_MAX, hidden=hidden)
        except OSError as error:
            raise InvalidUsage(
                f"{url!r} cannot be served: {error}. Is the port taken, or the certificate invalid? "
                "Port 0 takes a free one."
            ) from error
        self.url = Address(address.host, self._calls.port, address.is_tls).url
        self._thread = threading.Thread(target=self._run_loop, name="persist-server", daemon=True)
        self._thread.start()

    def counts(self) -> dict[str, int]:
        """Return the numbers of open streams, waiting calls, and requests for commits."""
        with self._hub.changed:
            counts = {"streams": len(self._hub.streams), "waits": len(self._hub.waiters)}
        return counts if self._commits is None else counts | self._commits.counts()

    def close(self) -> None:
        """Stop serving; idempotent. Open streams get an error, and waiting calls an answer."""
        with self._hub.changed:
            if self._hub.is_closed:
                return
            self._hub.is_closed = True
            streams = [*self._hub.streams]
            self._hub.changed.notify_all()
        for stream in streams:
            stream.close()
        self._thread.join()
        if not self._calls.shutdown(CLOSE_S):
            logger.warning("the server at %s has ended, and a call of it still waits for the store", self.url)
        if self._sql is not None:
            self._sql.drop_old(0.0)

    def __repr__(self) -> str:
        return f"<Server at {self.url}>"

    def _run_loop(self) -> None:
        """Follow the log, and drop slow readers."""
        hub = self._hub
        while not hub.is_closed:
            try:
                seqno = self._follower.wait_for(self._find_newer_seqno, LOOK_S)
            except ClientClosed:
                return
            except PersistError as error:
                logger.warning("the server at %s cannot read the log: %s", self.url, error)
                with hub.changed:
                    hub.changed.wait_for(lambda: hub.is_closed, LOOK_S)
                seqno = None
            if seqno is not None:
                with hub.changed:
                    hub.seqno = seqno
                    hub.changed.notify_all()
            self._end_slow_streams()

    def _find_newer_seqno(self) -> int | None:
        """Return the newest seqno if waiting calls do not know it; else None."""
        seqno = self._follower.state.seqno
        return seqno if seqno > self._hub.seqno or self._hub.is_closed else None

    def _end_slow_streams(self) -> None:
        """End the streams whose readers take too long."""
        limit_s = time.monotonic() - self._slow_s
        with self._hub.changed:
            slow = [s for s in self._hub.streams if s.waits_since_s is not None and s.waits_since_s < limit_s]
        for stream in slow:
            stream.is_dropped = True
            stream.close()
            stream.cut()
        self._calls.drop_slow()
        if self._sql is not None:
            self._sql.drop_old()

    # Calls of Flight, each in a thread of its own.

    def _get_flight_info(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        """Answer `GetFlightInfo`: the columns of a query, and a ticket."""
        yield self._describe(requests).serialize()

    def _get_schema(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        """Answer `GetSchema`: the columns of a query."""
        yield encode_fields((1, self._describe(requests).schema.serialize()))

    def _handle_get(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        """Answer `DoGet`: yield the columns and rows of a ticket."""
        ticket = _parse_message(flight.Ticket, next(requests)).ticket
        schema, close, rows = self._get_flight_sql().open_ticket(ticket, context)
        try:
            stream = self._register_stream(close, partial(end_call, context))
        except BaseException:
            close()
            raise
        yield from _guard(itertools.chain([make_schema_message(schema)], _slice(rows)), stream, self._hub)

    def _handle_action(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        """Answer `DoAction`: yield the results of an action."""
        action = _parse_message(flight.Action, next(requests))
        self._tokens.check(f"DoAction/{action.type}", context.invocation_metadata())
        body = action.body.to_pybytes()
        results = None if self._store is None else self._store.run_action(action.type, body)
        if results is not None:
            # Values are large, so they are streams: there are not too many of them, and none waits for long.
            stream = self._register_stream(lambda: None, partial(end_call, context))
            yield from _guard((encode_fields((ACTION_RESULT, value)) for value in results), stream, self._hub)
            return
        result = None if self._sql is None else self._sql.run_action(action.type, body)
        yield encode_fields((ACTION_RESULT, self._run_action(action.type, body, context) if result is None else result))

    def _handle_exchange(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        """Answer `DoExchange`: commit a client's operations, or store its value, from pieces in metadata."""
        message = group_fields(next(requests))
        descriptor = _parse_message(flight.FlightDescriptor, message.get(DESCRIPTOR, b""))
        command = descriptor.command or b""
        kind = "put" if command.startswith(b'{"put"') else "commit"
        if kind == "put" and self._store is None:
            raise ValueError("this server does not serve its store: it needs serve(store=True)")
        try:
            self._tokens.check(f"DoExchange/{kind}", context.invocation_metadata())
        except NotAllowed:
            _drain(requests)
            raise
        if kind == "put":
            yield encode_fields((METADATA, self._receive_value(decode_message(command, BlobPut), message, requests)))
            return
        length = decode_message(command, CommitRequest).commit
        commits = self._require_part(self._commits, COMMITS)
        with commits.room.reserve(length):
            yield encode_fields((METADATA, commits.answer_request(_receive_bytes(length, message, requests))))

    def _do_put(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        """Answer `DoPut`: store the parameters of a prepared statement."""
        yield self._get_flight_sql().put(requests)

    def _list_actions(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        """Answer `ListActions`: the names and uses of all actions."""
        kinds = [
            ("wait", "answers with the newest seqno, once it is beyond another"),
            ("leave", "ends a wait"),
            ("committed", "a hint that there is a record"),
            *([] if self._commits is None else [("commits", "tells where it commits for others")]),
            *([] if self._store is None else [(f"blob.{name}", "a call of the store") for name in STORE_CALLS]),
            *([] if self._sql is None else [(name, "of Flight SQL") for name in SQL_ACTIONS]),
        ]
        for name, about in kinds:
            yield encode_fields((1, name.encode()), (2, about.encode()))

    def _run_action(self, what: str, body: bytes, context: Any) -> bytes:
        """Run an action of the location; return its result."""
        if what == "wait":
            return self._wait(decode_message(body, Wait), context)
        if what == "commits":
            decode_message(body, Nothing)
            return msgspec.json.encode(Commits(self._require_part(self._commits, COMMITS).location()))
        if what == "leave":
            waiter = decode_message(body, Leave).waiter
            with self._hub.changed:
                if waiter in self._hub.waiters:
                    self._hub.left.add(waiter)
                self._hub.changed.notify_all()
        elif what == "committed":
            self._follower.hint(decode_message(body, Committed).seqno)
        else:
            raise ValueError(f"there is no action {what[:200]!r}: use wait, leave, committed or commits")
        return b"{}"

    def _receive_value(self, put: BlobPut, first: dict[int, bytes], requests: Iterator[bytes]) -> bytes:
        """Receive a value, and store it; return the encoded outcome."""
        assert self._store is not None
        if not 0 <= put.bytes <= SERVED_PUT_BYTES_MAX:
            raise ValueError(f"a value of {put.bytes:,} bytes is not taken: at most {SERVED_PUT_BYTES_MAX:,} are")
        with self._putting.reserve(put.bytes):
            value = _receive_bytes(put.bytes, first, requests)
            _drain(requests)
            return self._store.put(put, value)

    def _get_flight_sql(self) -> FlightSql:
        """Return the part that answers Flight SQL. Raises ValueError if SQL is not served."""
        return self._require_part(self._sql, "speak SQL: it needs serve(sql=True)")

    def _require_part(self, part: T | None, lacks: str) -> T:
        """Return an optional part of the server. Raises ValueError if it is None, Unavailable at shutdown."""
        if part is None:
            raise ValueError(f"this server does not {lacks}")
        if self._hub.is_closed:
            raise Unavailable("the server is shutting down: try again later")
        return part

    def _describe(self, requests: Iterator[bytes]) -> flight.FlightInfo:
        """Return the columns and the ticket of a request's command."""
        descriptor = _parse_message(flight.FlightDescriptor, next(requests))
        return self._get_flight_sql().info(descriptor.command or b"")

    def _register_stream(self, close: Callable[[], object], end: Callable[[], object]) -> _Stream:
        """Add an open stream. Raises Unavailable if there are `STREAMS_MAX`."""
        stream = _Stream(close, end)
        with self._hub.changed:
            if len(self._hub.streams) >= STREAMS_MAX or self._hub.is_closed:
                raise Unavailable(f"{STREAMS_MAX} streams are open already: try again later")
            self._hub.streams.append(stream)
        return stream

    def _wait(self, wait: Wait, context: Any) -> bytes:
        """Wait for a record after a seqno; return the newest."""
        hub, ends_s = self._hub, time.monotonic() + wait.timeout_s
        with hub.changed:
            _enter_wait(hub, wait.waiter)
            try:
                while hub.seqno <= wait.after and wait.waiter not in hub.left and not hub.is_closed:
                    left_s = ends_s - time.monotonic()
                    if left_s <= 0 or not context.is_active():
                        break
                    hub.changed.wait(min(left_s, LOOK_S))
            finally:
                hub.waiters.discard(wait.waiter)
                hub.left.discard(wait.waiter)
            return msgspec.json.encode(Newest(self._follower.state.location, hub.seqno))


def _receive_bytes(length: int, first: dict[int, bytes], requests: Iterator[bytes]) -> bytes:
    """Return the joined metadata of an upload's messages; `first`: the fields of its first message."""
    data = bytearray(first.get(METADATA, b""))
    while len(data) < length:
        data += group_fields(next(requests)).get(METADATA, b"")
    if len(data) != length:
        raise ValueError(f"{len(data):,} bytes have come, and {length:,} were announced")
    return bytes(data)


def _drain(requests: Iterator[bytes]) -> None:
    """Read the remaining messages of a call: a client that still writes may not see an answer."""
    remaining = SERVED_PUT_BYTES_MAX
    with contextlib.suppress(ValueError):  # There are no more messages.
        while remaining > 0:
            remaining -= len(next(requests))


def _parse_message(kind: Any, message: bytes) -> Any:
    """Return a decoded message of Flight. Raises ValueError if it is malformed."""
    try:
        return kind.deserialize(message)
    except pa.ArrowException as error:
        raise ValueError("the message is not one of Flight") from error


def _enter_wait(hub: _Hub, waiter: str) -> None:
    """Add a waiting call. Raises Unavailable if there are `WAITS_MAX`."""
    if len(hub.waiters) >= WAITS_MAX and waiter not in hub.waiters:
        raise Unavailable(f"{WAITS_MAX} calls wait already: try again later")
    hub.waiters.add(waiter)


def _slice(batches: Iterator[pa.RecordBatch]) -> Iterator[bytes]:
    """Yield the messages of batches, cut to `BATCH_ROWS` rows and about `BATCH_BYTES`."""
    for batch in batches:
        rows = max(1, min(BATCH_ROWS, BATCH_BYTES * len(batch) // max(batch.nbytes, 1)))
        for start in range(0, max(len(batch), 1), rows):
            yield from encode_batch(batch.slice(start, rows))


def _guard(messages: Iterator[bytes], stream: _Stream, hub: _Hub) -> Iterator[bytes]:
    """Yield the messages of a stream; note when each was sent, and raise Unavailable if it was dropped."""
    try:
        for message in messages:
            stream.waits_since_s = time.monotonic()
            yield message
            stream.waits_since_s = None
            if stream.is_dropped or hub.is_closed:
                raise Unavailable("the server has dropped this stream: it was not read, or the server is shutting down")
        if hub.is_closed:
            raise Unavailable("the server shut down while it sent this answer, which may be incomplete: ask again")
    finally:
        with hub.changed:
            if stream in hub.streams:
                hub.streams.remove(stream)
        stream.close()


def _check_addresses(
    url: str, token: str | None, certificate: tuple[str | bytes, str | bytes] | None, insecure: bool
) -> Address:
    """Return the address to serve at. Raises InvalidUsage if it, the token and the certificate do not fit."""
    address = parse_address(url)
    check_token(token)
    check_certificate(certificate)
    if (certificate is not None) != address.is_tls:
        raise InvalidUsage("grpc+tls:// goes with certificate=(chain, key), both as PEM, and grpc:// with none")
    check_strangers(url, address.host, is_safe=token is not None or insecure)
    return address
