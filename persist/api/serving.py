"""The servers of a location, over one client: Arrow Flight, the Postgres protocol, and an Iceberg REST catalog."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from persist.api.definitions import Definer, define_for_postgres
from persist.compute.query import QueryLimits, ServedSql
from persist.core.closing import Closes
from persist.core.errors import InvalidUsage
from persist.services.serve.messages import check_certificate, check_token, parse_host_port

if TYPE_CHECKING:
    from persist.services.serve.server import Server


class Location(Definer, Protocol):
    """The part of a client that servers need."""

    @property
    def url(self) -> str:
        """The URL of the location."""

    @property
    def mode(self) -> str:
        """How the client was opened."""

    def collections(self) -> list[str]:
        """Return the names of all collections."""


@dataclass(frozen=True)
class ServeOptions:
    """The options of `Client.serve`; see there."""

    flight: str | None
    postgres: str | None
    iceberg: str | None
    token: str | None
    write_token: str | None
    certificate: tuple[str | bytes, str | bytes] | None
    insecure: bool
    write: bool
    commits: bool
    store: bool
    sql: bool | QueryLimits
    iceberg_properties: Mapping[str, str] | None
    format_version: int
    slow_s: float

    def check(self) -> None:
        """Raise InvalidUsage if the options do not fit together."""
        for option in ("commits", "insecure", "store", "write"):
            if not isinstance(flag := getattr(self, option), bool):
                raise InvalidUsage(f"serve({option}={flag!r}) is not True or False")
        if not isinstance(self.sql, bool | QueryLimits):
            raise InvalidUsage(f"serve(sql={self.sql!r}) is not True, False or QueryLimits")
        if self.flight is None and self.postgres is None and self.iceberg is None:
            raise InvalidUsage(
                'serve() needs an address: serve("grpc://127.0.0.1:0"), serve(postgres="127.0.0.1:5432")'
            )
        for option in ("commits", "store", "sql"):
            if getattr(self, option) is True and self.flight is None:
                raise InvalidUsage(f'serve({option}=True) is for a Flight server: give its address, "grpc://host:port"')
        if self.write and self.postgres is None:
            raise InvalidUsage('serve(write=True) is for Postgres clients: give postgres="host:port", too')
        has_writers = (self.store or self.commits or self.write) and self.token is not None
        if self.write_token is not None and not has_writers:
            raise InvalidUsage(
                "write_token= goes with store=True, commits=True or write=True, and a token= for those who only read"
            )
        if self.write_token is not None and self.write_token == self.token:
            raise InvalidUsage("write_token= is the same as token=, so that all who may read could write: give another")
        if self.format_version not in (2, 3):
            raise InvalidUsage(f"format_version={self.format_version!r} is not 2 or 3")
        check_certificate(self.certificate)
        check_token(self.token)
        check_token(self.write_token)
        slow_s = self.slow_s
        if isinstance(slow_s, bool) or not isinstance(slow_s, (int, float)) or not 0 < slow_s < float("inf"):
            raise InvalidUsage(f"slow_s={slow_s!r} is not a number of seconds above 0")


class Servers(Closes):
    """The servers that `Client.serve` started; use it in a `with`.

    Attributes:
        url: where the Flight server is, as `grpc://host:port`; empty if there is none.
        flight: that server; None if there is none.
        postgres_url: where Postgres clients connect, as `postgresql://host:port/latest`; empty if there is none.
        iceberg_url: the address of the Iceberg catalog; empty if there is none.
    """

    def __init__(self) -> None:
        self.url = self.postgres_url = self.iceberg_url = ""
        self.flight: Server | None = None
        self._stack = ExitStack()

    def keep(self, stack: ExitStack) -> None:
        """Close a stack when these servers are closed."""
        self._stack = stack

    def counts(self) -> dict[str, int]:
        """Return the Flight server's counters by name."""
        return {} if self.flight is None else self.flight.counts()

    def close(self) -> None:
        """Disconnect all clients, and end the servers; idempotent."""
        self._stack.close()

    def __repr__(self) -> str:
        return f"<Servers at {', '.join(filter(None, (self.url, self.postgres_url, self.iceberg_url)))}>"


def serve(client: Location, options: ServeOptions) -> Servers:
    """Start the servers that have an address; see `Client.serve`."""
    engine = client.engine
    engine.check_open("serve")
    options.check()
    if options.commits and client.mode != "shared":
        engine.writer("serve with commits")
        raise InvalidUsage(f'serve(commits=True) is for mode="shared", and this is mode={client.mode!r}')
    limits = options.sql if isinstance(options.sql, QueryLimits) else QueryLimits()
    define = partial(define_for_postgres, client, limits)
    queries = ServedSql(engine, limits, define) if options.sql or options.postgres is not None else None
    servers = Servers()
    tokens: dict[str, Any] = {"token": options.token, "write_token": options.write_token, "insecure": options.insecure}
    with ExitStack() as stack:
        # A client that serves nothing does not load what servers need.
        if options.flight is not None:
            from persist.services.serve.flight_calls import BlobCalls
            from persist.services.serve.server import Server

            servers.flight = Server(
                engine.follower,
                options.flight,
                **tokens,
                certificate=options.certificate,
                slow_s=options.slow_s,
                committer=engine.writer("serve with commits").committer if options.commits else None,
                queries=queries if options.sql else None,
                store=BlobCalls(engine.storage.blob) if options.store else None,
                hidden=client.url,
            )
            servers.url = stack.enter_context(servers.flight).url
            engine.count_also("server", servers.flight.counts)
        if options.postgres is not None and queries is not None:
            from persist.services.serve.postgres import Backend, PostgresServer

            if options.write:
                engine.writer("serve with write")
            server = PostgresServer(
                Backend(client.url, client.load, queries),
                *parse_host_port("postgres", options.postgres),
                **tokens,
                may_write=options.write,
                certificate=options.certificate,
                slow_s=options.slow_s,
            )
            servers.postgres_url = stack.enter_context(server).url
        if options.iceberg is not None:
            from persist.services.serve.iceberg import serve_catalog

            engine.writer("serve with iceberg")
            catalog = serve_catalog(
                client,
                options.iceberg,
                **tokens,
                properties=options.iceberg_properties,
                format_version=options.format_version,
            )
            servers.iceberg_url = stack.enter_context(catalog)
        servers.keep(stack.pop_all())
    return servers
