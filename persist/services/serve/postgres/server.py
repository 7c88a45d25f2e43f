"""A server of the Postgres protocol: its port, its connections, and what each of them may cost.

A connection has a thread. The client logs in within `GREETING_S`, and sends each message within `MESSAGE_S` of its
first byte. The server disconnects a client that reads nothing of its answer for `slow_s`, and a client that leaves a
block open for `BLOCK_S`, because a block may hold a database. More than `CONNECTIONS_MAX` connections are refused. As
many statements run at a time as for Flight SQL (`QUERIES_MAX`), within the same limits.
"""

import contextlib
import os
import secrets
import select
import socket
import ssl
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import pyarrow as pa

from persist.core.closing import Closes
from persist.core.errors import CollectionNotFound, InvalidUsage, PersistError
from persist.services.serve.flight_sql import BIND_S, QUERIES_MAX
from persist.services.serve.messages import is_loopback, listening
from persist.services.serve.postgres import wire
from persist.services.serve.postgres.backend import Answered, Block
from persist.services.serve.postgres.catalog import Catalog, Session
from persist.services.serve.postgres.failures import to_failure
from persist.services.serve.postgres.scram import MECHANISM, Scram
from persist.services.serve.postgres.session import SessionOfClient
from persist.services.serve.postgres.statements import Subscribe
from persist.services.serve.postgres.values import describe_listed_column
from persist.services.serve.postgres.wire import Failure, ProtocolViolation

CONNECTIONS_MAX = 100
GREETING_S = 10.0
MESSAGE_S = 30.0
BLOCK_S = 300.0
SEND_BYTES = 64 << 10
DATABASES = ("latest", "persist", "postgres")


class Queries(Protocol):
    """Answers queries; see `persist.compute.query.Queries`."""

    def ask(self, sql: str, *, as_of: int | str | None = None) -> Answered:
        """Return the answer of a query."""
        ...

    def execute(self, sql: str, running: Callable[[Callable[[], object]], object]) -> int:
        """Run a statement that changes a collection, as one commit; return how many rows it touched."""
        ...

    @property
    def define(self) -> Callable[[str, Callable[[Callable[[], object]], object]], str]:
        """Runs a statement that defines a collection; returns its command tag."""
        ...

    def begin(self, as_of: int | str | None) -> Block:
        """Begin a block of statements."""
        ...

    def tables(self) -> Sequence[Any]:
        """Return all collections, by schema and table."""
        ...

    def catalogs(self) -> list[str]:
        """Return the times that have a name."""
        ...

    def empty_database(self) -> Any:
        """Return a connection to an empty DuckDB that reads no files."""
        ...


class PostgresServer(Closes):
    """Serves a location to Postgres clients until it is closed.

    Attributes:
        url: where it is, as `postgresql://host:port/latest`.
    """

    def __init__(
        self,
        load: Callable[[str], Any],
        queries: Queries,
        host: str,
        port: int,
        *,
        token: str | None = None,
        write_token: str | None = None,
        may_write: bool = False,
        certificate: tuple[str | bytes, str | bytes] | None = None,
        insecure: bool = False,
        slow_s: float = 60.0,
    ) -> None:
        """Begin to listen.

        Args:
            load: returns the collection of a name, for SUBSCRIBE.
            port: 0 for any that is free.
            token: what clients send as their password, by SCRAM; None lets everybody in.
            write_token: lets its holders write; None lets all clients write.
            may_write: whether statements may change collections.
            certificate: the chain and the key as PEM: then a connection must use TLS.
            insecure: allow an address that other machines reach without a token.

        Raises:
            InvalidUsage: the address or the certificate does not fit.
        """
        if not is_loopback(host) and token is None and not insecure:
            raise InvalidUsage(
                f"{host}:{port} can be reached by other machines, and without a token everybody there could read "
                "everything."
            ).with_remedy("Give a token, or {insecure:option:True} if that is meant.")
        self._queries = queries
        self._load = load
        self._may_write = may_write
        self._slow_s = slow_s
        tokens = {token: write_token is None} if token is not None else {}
        if write_token is not None:
            tokens[write_token] = True
        self._scram = Scram(tokens) if tokens else None
        self._tls = None if certificate is None else _tls_context(certificate)
        self._catalog = Catalog(queries.empty_database())
        self._turns = threading.BoundedSemaphore(QUERIES_MAX)
        self._lock = threading.Lock()
        self._connections: dict[int, _Connection] = {}
        self._is_closed = False
        self._listener = listening(host, port)
        self._listener.settimeout(1.0)
        url_host = f"[{host}]" if ":" in host else host
        self.url = f"postgresql://{url_host}:{self._listener.getsockname()[1]}/latest"
        self._thread = threading.Thread(target=self._accept, name="persist-postgres", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Disconnect all clients, and end; idempotent."""
        with self._lock:
            self._is_closed = True
            connections = [*self._connections.values()]
        for connection in connections:
            connection.end()
        self._thread.join()
        self._listener.close()
        for connection in connections:
            connection.join()
        self._catalog.close()

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                client, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:  # Such as too many open files: others may be closed meanwhile.
                if self._is_closed:
                    return
                threading.Event().wait(0.1)
                continue
            with self._lock:
                is_full = len(self._connections) >= CONNECTIONS_MAX or self._is_closed
                connection = _Connection(self, client, self._new_pid())
                if not is_full:
                    self._connections[connection.pid] = connection
            if is_full:
                _refuse(client)
            else:
                connection.start()

    def _new_pid(self) -> int:
        while (pid := secrets.randbelow(2**31 - 1) + 1) in self._connections:
            pass
        return pid

    def forget(self, connection: "_Connection") -> None:
        """Count a connection no more."""
        with self._lock:
            self._connections.pop(connection.pid, None)

    def cancel(self, pid: int, secret: int) -> None:
        """End the statement of a connection, if the secret fits."""
        with self._lock:
            connection = self._connections.get(pid)
        if connection is not None and connection.secret == secret:
            connection.cancel()

    @property
    def tls(self) -> ssl.SSLContext | None:
        """The context that encrypts connections; None without TLS."""
        return self._tls

    @property
    def slow_s(self) -> float:
        """How long a client may take nothing of its answer."""
        return self._slow_s

    def may_write(self, may_token: bool) -> bool:
        """Return whether a session with such a token may change collections."""
        return self._may_write and may_token

    @property
    def scram(self) -> Scram | None:
        """The check of tokens; None if clients need no token."""
        return self._scram

    def check_database(self, database: str, user: str) -> None:
        """Raise Failure if a database is not a time of the location."""
        catalogs = self._queries.catalogs()
        if database in (*DATABASES, user) and database not in catalogs[1:]:
            return
        if len(database) > 1 and database.startswith("@"):
            return
        if database not in catalogs:
            examples = ", ".join(catalogs[:20])
            raise Failure(
                "3D000",
                f'there is no database "{database}": a database is a time, such as {examples}, or "@2026-11-23T12:00Z"',
            )

    # The interface of sessions; see `persist.services.serve.postgres.backend.Backend`.

    def ask(self, sql: str, as_of: int | str | None) -> Answered:
        """Return the answer of a query."""
        return self._queries.ask(sql, as_of=as_of)

    def execute(self, sql: str, running: Callable[[Callable[[], object]], object]) -> int:
        """Run a statement that changes a collection, as one commit; return how many rows it touched."""
        return self._queries.execute(sql, running)

    def define(self, sql: str, running: Callable[[Callable[[], object]], object]) -> str:
        """Run a statement that defines a collection; return its command tag."""
        return self._queries.define(sql, running)

    def begin(self, as_of: int | str | None) -> Block:
        """Begin a block of statements."""
        return self._queries.begin(as_of)

    def catalog(self, sql: str, session: Session, running: Callable[[Callable[[], None]], None]) -> pa.Table | None:
        """Return the answer of a query of Postgres's catalogs; None if it reads something else."""
        with self.turn():
            return self._catalog.answer(sql, self._queries.tables(), session, running)

    def columns(self, sql: str) -> dict[str, list[wire.Column]]:
        """Return the columns of the collections that a statement may name, by their names."""
        text = sql.lower()
        tables = [about for about in self._queries.tables() if about.table.lower() in text]
        return {about.name: [*map(describe_listed_column, about.columns)] for about in tables}

    def listen(self, subscribe: Subscribe) -> tuple[Any, int | None, pa.Schema]:
        """Return a listener of a collection, the requested end, and the columns.

        Raises:
            Failure: the collection does not exist.
        """
        name = subscribe.name.removeprefix("main.")
        try:
            collection = self._load(name)
        except CollectionNotFound as error:
            raise to_failure(error) from error
        handle = collection.handle
        as_of = None if subscribe.as_of is None else handle.as_time("as_of", _time(subscribe.as_of))
        end = None if subscribe.up_to is None else handle.as_time("until", _time(subscribe.up_to))
        schema = pa.schema([collection.schema.arrow.field(column) for column in collection.schema.columns])
        listen = collection.subscribe(as_of, timeout_s=0.0) if subscribe.snapshot else collection.listen(as_of)
        return listen, end, schema

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Wait for a turn to run a statement, so that there are not many at a time."""
        if not self._turns.acquire(timeout=BIND_S):
            raise Failure("53300", f"{QUERIES_MAX} statements run, for more than {BIND_S:g} s: try again later")
        try:
            yield
        finally:
            self._turns.release()


def _time(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


def _tls_context(certificate: tuple[str | bytes, str | bytes]) -> ssl.SSLContext:
    """Return a context for a chain and a key. Raises InvalidUsage if they are none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as folder:  # The library reads files only.
        paths = []
        for name, pem in zip(("chain.pem", "key.pem"), certificate, strict=True):
            path = os.path.join(folder, name)
            with open(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600), "wb") as file:
                file.write(pem.encode() if isinstance(pem, str) else pem)
            paths.append(path)
        try:
            context.load_cert_chain(*paths)
        except (ssl.SSLError, ValueError) as error:
            raise InvalidUsage(f"the certificate of the server is not a chain and a key as PEM: {error}") from error
    return context


def _refuse(client: socket.socket) -> None:
    failure = Failure("53300", f"there are {CONNECTIONS_MAX} connections already: try again later")
    with contextlib.suppress(OSError), client:
        client.settimeout(0.1)
        client.sendall(wire.error(failure, "FATAL"))
        _linger(client)


def _linger(client: socket.socket) -> None:
    """Read a little of what a client still sends: it may not see the error if the connection ends with unread bytes."""
    client.settimeout(0.1)
    with contextlib.suppress(OSError):
        client.shutdown(socket.SHUT_WR)
        for _ in range(16):
            if not client.recv(1 << 16):
                return


class _Connection:
    """One client: its socket, its thread, and the messages that wait to be sent."""

    def __init__(self, server: PostgresServer, client: socket.socket, pid: int) -> None:
        self.pid, self.secret = pid, secrets.randbelow(2**31)
        self._server = server
        self._socket = client
        self._waiting: list[bytes | memoryview] = []
        self._waiting_bytes = 0
        self._session: SessionOfClient | None = None
        self._deadline_s: float | None = None
        self._thread = threading.Thread(target=self._serve, name=f"persist-postgres-{pid}", daemon=True)

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    def join(self) -> None:
        """Wait until nothing is served any more."""
        if self._thread is not threading.current_thread():
            self._thread.join()

    def cancel(self) -> None:
        """End the statement that runs."""
        if self._session is not None:
            self._session.cancel()

    def end(self) -> None:
        """Disconnect, from any thread."""
        self.cancel()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    # The interface of sessions; see `persist.services.serve.postgres.backend.Channel`.

    def send(self, *pieces: bytes | memoryview) -> None:
        """Send messages, soon."""
        for piece in pieces:
            self._waiting.append(piece)
            self._waiting_bytes += len(piece)
        if self._waiting_bytes >= SEND_BYTES:
            self.flush()

    def flush(self) -> None:
        """Send all messages that wait."""
        pieces, self._waiting, self._waiting_bytes = self._waiting, [], 0
        self._socket.settimeout(self._server.slow_s)
        small: list[bytes | memoryview] = []
        for piece in pieces:
            if len(piece) < SEND_BYTES:
                small.append(piece)
                continue
            self._socket.sendall(b"".join(small))
            small = []
            self._socket.sendall(piece)
        if small:
            self._socket.sendall(b"".join(small))

    @property
    def is_gone(self) -> bool:
        """Whether the client has closed the connection."""
        try:
            poll = select.poll()
            poll.register(self._socket, select.POLLRDHUP | select.POLLHUP | select.POLLERR)
            return bool(poll.poll(0))
        except (OSError, ValueError):
            return True

    # The thread.

    def _serve(self) -> None:
        try:
            with contextlib.suppress(OSError, EOFError):  # The client is gone, or slow.
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                self._guarded()
        finally:
            if self._session is not None:
                self._session.close()
            self._server.forget(self)
            with contextlib.suppress(OSError):
                self._socket.close()

    def _guarded(self) -> None:
        try:
            if self._greet():
                self._loop()
        except ProtocolViolation as violation:
            self._farewell(Failure("08P01", f"protocol violation: {violation}"))
        except Failure as failure:
            self._farewell(failure)
        except (PersistError, MemoryError, RecursionError) as error:
            self._farewell(to_failure(error))

    def _farewell(self, failure: Failure) -> None:
        self.send(wire.error(failure, "FATAL"))
        self.flush()
        _linger(self._socket)

    def _loop(self) -> None:
        session = self._session
        assert session is not None
        while True:
            self._deadline_s = time.monotonic() + BLOCK_S if session.is_in_block else None
            try:
                kind = self._receive(1)
            except TimeoutError:
                raise Failure("25P03", f"a block was left open for more than {BLOCK_S:g} s") from None
            if kind == b"X":
                return
            session.handle(kind, self._body(wire.MESSAGE_BYTES_MAX))

    def _body(self, bytes_max: int, timeout_s: float | None = MESSAGE_S) -> bytes:
        if timeout_s is not None:
            self._deadline_s = time.monotonic() + timeout_s
        (length,) = struct.unpack("!i", self._receive(4))
        if not 4 <= length <= bytes_max:
            raise ProtocolViolation(f"a message has {length:,} bytes, and at most {bytes_max:,} are read")
        return self._receive(length - 4)

    def _receive(self, count: int) -> bytes:
        """Return so many bytes, before the deadline."""
        data = bytearray()
        while len(data) < count:
            left_s = None if self._deadline_s is None else max(self._deadline_s - time.monotonic(), 0.001)
            self._socket.settimeout(left_s)
            piece = self._socket.recv(min(count - len(data), 1 << 20))
            if not piece:
                raise EOFError
            data += piece
        return bytes(data)

    # The login.

    def _greet(self) -> bool:
        """Read who the client is; return whether it goes on."""
        for _ in range(3):  # A request for TLS, one for GSS, and the first message.
            self._deadline_s = time.monotonic() + GREETING_S
            body = self._body(wire.STARTUP_BYTES_MAX, None)
            (code,) = struct.unpack("!i", body[:4].rjust(4, b"\0"))
            if code == wire.CANCEL_CODE and len(body) == 12:
                self._server.cancel(*struct.unpack("!ii", body[4:]))
                return False
            if code == wire.TLS_CODE and not isinstance(self._socket, ssl.SSLSocket):
                self._begin_tls()
            elif code == wire.GSS_CODE:
                self._socket.sendall(b"N")
            elif code >> 16 == 3:
                break
            else:
                raise ProtocolViolation(f"version {code >> 16}.{code & 0xFFFF} of the protocol is not spoken: 3.0 is")
        else:
            raise ProtocolViolation("there are too many requests before the first message")
        if self._server.tls is not None and not isinstance(self._socket, ssl.SSLSocket):
            raise Failure("28000", "this server speaks with TLS only: connect with sslmode=require")
        options = dict(wire.read_startup(body[4:]))
        unknown = [name for name in options if name.startswith("_pq_.")]
        if code != wire.PROTOCOL or unknown:
            self.send(wire.negotiate(unknown))
        for name in unknown:
            del options[name]
        user = options.get("user", "")
        if not user:
            raise Failure("28000", "the client names no user")
        if options.get("replication", "false").lower() not in ("false", "off", "no", "0"):
            raise Failure("0A000", "there is no replication by this protocol: SUBSCRIBE TO a collection")
        may_write = self._authenticate()
        database = options.get("database") or user
        self._server.check_database(database, user)
        session = Session(user, database, self.pid)
        self._session = SessionOfClient(self._server, self, session, may_write=self._server.may_write(may_write))
        self.send(wire.authentication(wire.AUTH_OK))
        self._session.start(options)
        self.send(wire.message(b"K", struct.pack("!ii", self.pid, self.secret)), wire.ready(b"I"))
        self.flush()
        return True

    def _begin_tls(self) -> None:
        if self._server.tls is None:
            self._socket.sendall(b"N")
            return
        self._socket.sendall(b"S")
        # Bytes from before the handshake must not count as a part of the encrypted connection.
        if select.select([self._socket], [], [], 0)[0] and self._socket.recv(1, socket.MSG_PEEK) != b"\x16":
            raise ProtocolViolation("there are unencrypted bytes after the request for TLS")
        self._socket = self._server.tls.wrap_socket(self._socket, server_side=True)

    def _authenticate(self) -> bool:
        """Return whether the client's token allows writing. Raises Failure if it has none."""
        scram = self._server.scram
        if scram is None:
            return True
        self.send(wire.authentication(wire.AUTH_SASL, wire.text(MECHANISM) + b"\0"))
        self.flush()
        first = wire.Reader(self._answer())
        if first.text() != MECHANISM:
            raise Failure("28000", f"the password is checked by {MECHANISM} only")
        exchange = scram.begin((first.value() or b"").decode("utf-8", "replace"))
        self.send(wire.authentication(wire.AUTH_SASL_CONTINUE, exchange.challenge.encode()))
        self.flush()
        proof, may_write = exchange.finish(self._answer().decode("utf-8", "replace"))
        self.send(wire.authentication(wire.AUTH_SASL_FINAL, proof.encode()))
        return may_write

    def _answer(self) -> bytes:
        self._deadline_s = time.monotonic() + GREETING_S
        if self._receive(1) != b"p":
            raise ProtocolViolation("an answer to the authentication is missing")
        return self._body(wire.STARTUP_BYTES_MAX, None)
