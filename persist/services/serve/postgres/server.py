"""A server of the Postgres protocol: its port, its clients, and what each of them may cost.

A client has a thread. It logs in within `GREETING_S`, and sends each message within `MESSAGE_S` of its first byte. The
server disconnects a client that reads nothing of its answer for `slow_s`, and a client that leaves a block open for
`BLOCK_S`, because a block may hold a database. More than `CONNECTIONS_MAX` connections are refused. Statements of
all servers share the turns and the limits of `persist.compute.query.Queries`.
"""

import contextlib
import os
import secrets
import ssl
import struct
import tempfile
import threading

from persist.core.closing import Closes
from persist.core.errors import InvalidUsage, PersistError
from persist.services.serve.messages import check_strangers, join_host_port, open_listening_socket
from persist.services.serve.postgres import wire
from persist.services.serve.postgres.backend import Backend
from persist.services.serve.postgres.connection import MESSAGE_S, Connection
from persist.services.serve.postgres.failures import to_failure
from persist.services.serve.postgres.scram import MECHANISM, Scram
from persist.services.serve.postgres.session import SessionOfClient
from persist.services.serve.postgres.settings import Settings
from persist.services.serve.postgres.wire import Failure, ProtocolViolation

CONNECTIONS_MAX = 100
GREETING_S = 10.0
BLOCK_S = 300.0


class PostgresServer(Closes):
    """Serves a location to Postgres clients until it is closed.

    `url`: where it is, as `postgresql://host:port/latest`.
    """

    def __init__(
        self,
        backend: Backend,
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
        """Begin to listen. The server closes the backend at its end. Arguments are those of `Client.serve`."""
        check_strangers(join_host_port(host, port), host, is_safe=token is not None or insecure)
        self.backend = backend
        self.may_write = may_write
        self.slow_s = slow_s
        tokens = {token: write_token is None} if token is not None else {}
        if write_token is not None:
            tokens[write_token] = True
        self.scram = Scram(tokens) if tokens else None
        self.tls = None if certificate is None else _make_tls_context(certificate)
        self._lock = threading.Lock()
        self._clients: dict[int, _Client] = {}
        self._is_closed = False
        self._listener = open_listening_socket(host, port)
        self._listener.settimeout(1.0)
        self.url = f"postgresql://{join_host_port(host, self._listener.getsockname()[1])}/latest"
        self._thread = threading.Thread(target=self._accept, name="persist-postgres", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Disconnect all clients, and end; idempotent."""
        with self._lock:
            self._is_closed = True
            clients = [*self._clients.values()]
        for client in clients:
            client.disconnect()
        self._thread.join()
        self._listener.close()
        for client in clients:
            client.thread.join()
        self.backend.close()

    def _accept(self) -> None:
        """Begin a thread for each new connection, or refuse it, until closed."""
        while not self._is_closed:
            try:
                accepted, _ = self._listener.accept()
                connection = Connection(accepted, self.slow_s)
            except TimeoutError:
                continue
            except OSError:  # Such as too many open files: others may be closed meanwhile.
                if not self._is_closed:
                    threading.Event().wait(0.1)
                continue
            with self._lock:
                is_full = len(self._clients) >= CONNECTIONS_MAX or self._is_closed
                while (pid := secrets.randbelow(2**31 - 1) + 1) in self._clients:
                    pass
                client = _Client(self, connection, pid)
                if not is_full:
                    self._clients[client.pid] = client
            if is_full:
                _refuse(connection)
            else:
                client.thread.start()

    def forget(self, pid: int) -> None:
        """Remove a client that has gone."""
        with self._lock:
            self._clients.pop(pid, None)

    def cancel(self, pid: int, secret: int) -> None:
        """End the statement of a client, if the secret fits."""
        with self._lock:
            client = self._clients.get(pid)
        if client is not None and client.secret == secret and client.session is not None:
            client.session.cancel()


def _make_tls_context(certificate: tuple[str | bytes, str | bytes]) -> ssl.SSLContext:
    """Return a TLS context of a certificate chain and key. Raises InvalidUsage if they are invalid."""
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


def _refuse(connection: Connection) -> None:
    """Send the error of too many connections, and disconnect."""
    failure = Failure("53300", f"there are {CONNECTIONS_MAX} connections already: try again later")
    with contextlib.suppress(OSError), contextlib.closing(connection):
        connection.send(wire.make_error_message(failure, "FATAL"))
        connection.flush()
        connection.linger()


class _Client:
    """One client: its login, and the messages that it sends on a thread of its own."""

    def __init__(self, server: PostgresServer, connection: Connection, pid: int) -> None:
        self.pid, self.secret = pid, secrets.randbelow(2**31)
        self.session: SessionOfClient | None = None
        self.thread = threading.Thread(target=self._serve, name=f"persist-postgres-{pid}", daemon=True)
        self._server = server
        self._connection = connection

    def disconnect(self) -> None:
        """Disconnect, from any thread."""
        if self.session is not None:
            self.session.cancel()
        self._connection.end()

    def _serve(self) -> None:
        """Serve the connection until it ends, and clean up."""
        try:
            with contextlib.suppress(OSError, EOFError):  # The client is gone, or slow.
                self._guard()
        finally:
            if self.session is not None:
                self.session.close()
            self._server.forget(self.pid)
            self._connection.close()

    def _guard(self) -> None:
        """Serve the connection; report an error that ends it to the client."""
        try:
            self.session = self._log_in()
            if self.session is not None:
                self._loop(self.session)
        except ProtocolViolation as violation:
            self._send_last_error(Failure("08P01", f"protocol violation: {violation}"))
        except (Failure, PersistError, MemoryError, RecursionError) as error:
            self._send_last_error(to_failure(error, self._server.backend.url))

    def _send_last_error(self, failure: Failure) -> None:
        """Send an error, and read what the client still sends."""
        self._connection.send(wire.make_error_message(failure, "FATAL"))
        self._connection.flush()
        self._connection.linger()

    def _loop(self, session: SessionOfClient) -> None:
        """Pass each message to the session, until the client ends it."""
        while True:
            self._connection.wait_until(BLOCK_S if session.block.is_open else None)
            try:
                kind = self._connection.receive(1)
            except TimeoutError:
                raise Failure("25P03", f"a block was left open for more than {BLOCK_S:g} s") from None
            if kind == b"X":
                return
            self._connection.wait_until(MESSAGE_S)
            session.handle(kind, self._connection.receive_body(wire.MESSAGE_BYTES_MAX))

    # The login.

    def _log_in(self) -> SessionOfClient | None:
        """Log the client in; return its session, or None if it has only cancelled a statement."""
        options = self._read_options()
        if options is None:
            return None
        user = options.get("user", "")
        if not user:
            raise Failure("28000", "the client names no user")
        if options.get("replication", "false").lower() not in ("false", "off", "no", "0"):
            raise Failure("0A000", "there is no replication by this protocol: SUBSCRIBE TO a collection")
        may_write = self._authenticate() and self._server.may_write
        database = options.get("database") or user
        backend, connection = self._server.backend, self._connection
        backend.check_database(database, user)
        settings = Settings(user, database, self.pid, backend.check_time)
        started = SessionOfClient(backend, connection, settings, may_write=may_write)
        connection.send(wire.encode_authentication(wire.AUTH_OK))
        started.start(options)
        connection.send(wire.encode_message(b"K", struct.pack("!ii", self.pid, self.secret)), wire.encode_ready(b"I"))
        connection.flush()
        return started

    def _read_options(self) -> dict[str, str] | None:
        """Read the first messages; return the options of the client, None if it has only cancelled a statement."""
        connection = self._connection
        for _ in range(3):  # A request for TLS, one for GSS, and the first message.
            connection.wait_until(GREETING_S)
            body = connection.receive_body(wire.STARTUP_BYTES_MAX)
            (code,) = struct.unpack("!i", body[:4].rjust(4, b"\0"))
            if code == wire.CANCEL_CODE and len(body) == 12:
                self._server.cancel(*struct.unpack("!ii", body[4:]))
                return None
            if code >> 16 == 3:
                break
            if code not in (wire.TLS_CODE, wire.GSS_CODE) or connection.has_tls:
                raise ProtocolViolation(f"version {code >> 16}.{code & 0xFFFF} of the protocol is not spoken: 3.0 is")
            connection.begin_tls(self._server.tls if code == wire.TLS_CODE else None)
        else:
            raise ProtocolViolation("there are too many requests before the first message")
        if self._server.tls is not None and not connection.has_tls:
            raise Failure("28000", "this server only accepts TLS: connect with sslmode=require")
        options = wire.read_startup(body[4:])
        unknown = [name for name in options if name.startswith("_pq_.")]
        if code != wire.PROTOCOL or unknown:
            connection.send(wire.encode_negotiation(unknown))
        return {name: value for name, value in options.items() if name not in unknown}

    def _authenticate(self) -> bool:
        """Check the client's token; return whether it allows writing. Raises Failure for a wrong token."""
        scram, connection = self._server.scram, self._connection
        if scram is None:
            return True
        connection.send(wire.encode_authentication(wire.AUTH_SASL, wire.encode_text(MECHANISM) + b"\0"))
        first = wire.Reader(self._authenticate_by_scram())
        if first.read_text() != MECHANISM:
            raise Failure("28000", f"the password is checked by {MECHANISM} only")
        exchange = scram.begin((first.read_value() or b"").decode("utf-8", "replace"))
        connection.send(wire.encode_authentication(wire.AUTH_SASL_CONTINUE, exchange.challenge.encode()))
        proof, may_write = exchange.finish(self._authenticate_by_scram().decode("utf-8", "replace"))
        connection.send(wire.encode_authentication(wire.AUTH_SASL_FINAL, proof.encode()))
        return may_write

    def _authenticate_by_scram(self) -> bytes:
        """Return the next message of a client that logs in."""
        self._connection.flush()
        self._connection.wait_until(GREETING_S)
        if self._connection.receive(1) != b"p":
            raise ProtocolViolation("an answer to the authentication is missing")
        return self._connection.receive_body(wire.STARTUP_BYTES_MAX)
