"""The servers of a location, over one client: Arrow Flight, the Postgres protocol, and an Iceberg REST catalog."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

from persist.api.definitions import Definer, define_for_postgres
from persist.compute.query import QUERY_LIMITS, Queries, QueryLimits, ServedSql
from persist.core.closing import Closes
from persist.core.errors import InvalidUsage
from persist.services.serve.messages import check_certificate, check_token, parse_host_port

if TYPE_CHECKING:
    from persist.services.serve.server import Server


class Location(Definer, Protocol):
    """The parts of a client that servers need."""

    @property
    def url(self) -> str:
        """The URL of the location."""
        ...

    @property
    def mode(self) -> str:
        """How the client was opened."""
        ...

    def collections(self) -> list[str]:
        """Return the names of all collections."""
        ...


@dataclass(frozen=True)
class ServeOptions:
    """The options that all servers of a call share; see `Client.serve`."""

    token: str | None
    write_token: str | None
    certificate: tuple[str | bytes, str | bytes] | None
    insecure: bool
    sql: bool | QueryLimits
    slow_s: float

    @property
    def limits(self) -> QueryLimits:
        """The limits of each query."""
        return self.sql if isinstance(self.sql, QueryLimits) else QUERY_LIMITS


class Servers(Closes):
    """The servers that `Client.serve` has begun; use it in a `with`.

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
        """End what is on a stack when these servers end."""
        self._stack = stack

    def counts(self) -> dict[str, int]:
        """Return what the Flight server has counted, by name."""
        return {} if self.flight is None else self.flight.counts()

    def close(self) -> None:
        """Disconnect all clients, and end the servers; idempotent."""
        self._stack.close()

    def __repr__(self) -> str:
        return f"<Servers at {', '.join(filter(None, (self.url, self.postgres_url, self.iceberg_url)))}>"


def serve(
    client: Location,
    flight: str | None,
    postgres: str | None,
    iceberg: str | None,
    options: ServeOptions,
    iceberg_properties: Mapping[str, str] | None,
    flags: Mapping[str, bool],
) -> Servers:
    """Begin the servers that have an address; see `Client.serve`, also for the errors."""
    engine, token = client.engine, options.token
    engine.check_open("serve")
    _check(flight, postgres, iceberg, options, flags)
    if flags["commits"] and client.mode != "shared":
        engine.writer("serve with commits")
        raise InvalidUsage(f'serve(commits=True) is for mode="shared", and this is mode={client.mode!r}')
    servers = Servers()
    with ExitStack() as stack:
        if flight is not None:
            servers.flight = stack.enter_context(_flight_server(client, flight, options, flags))
            servers.url = servers.flight.url
            engine.count_also("server", servers.flight.counts)
        if postgres is not None:
            # Here, as below: a client that serves nothing does not load what servers need.
            from persist.services.serve.postgres import PostgresServer

            if flags["write"]:
                engine.writer("serve with write")
            host, port = parse_host_port("postgres", postgres)
            served = PostgresServer(
                client.load,
                ServedSql(engine, options.limits, partial(define_for_postgres, client, options.limits)),
                host,
                port,
                token=token,
                write_token=options.write_token,
                may_write=flags["write"],
                certificate=options.certificate,
                insecure=options.insecure,
                slow_s=options.slow_s,
            )
            servers.postgres_url = stack.enter_context(served).url
        if iceberg is not None:
            from persist.services.serve.iceberg import serve_catalog

            engine.writer("serve with iceberg")
            servers.iceberg_url = stack.enter_context(
                serve_catalog(
                    client,
                    iceberg,
                    token=token,
                    write_token=options.write_token,
                    insecure=options.insecure,
                    properties=iceberg_properties,
                )
            )
        servers.keep(stack.pop_all())
    return servers


def _check(
    flight: str | None,
    postgres: str | None,
    iceberg: str | None,
    options: ServeOptions,
    flags: Mapping[str, bool],
) -> None:
    """Raise InvalidUsage if the options of the servers do not fit together."""
    for option, flag in flags.items():
        if not isinstance(flag, bool):
            raise InvalidUsage(f"serve({option}={flag!r}) is not True or False")
    if not isinstance(options.sql, bool | QueryLimits):
        raise InvalidUsage(f"serve(sql={options.sql!r}) is not True, False or QueryLimits")
    if flight is None and postgres is None and iceberg is None:
        raise InvalidUsage('serve() needs an address: serve("grpc://127.0.0.1:0"), serve(postgres="127.0.0.1:5432")')
    for option, flag in (("commits", flags["commits"]), ("store", flags["store"]), ("sql", options.sql is True)):
        if flag and flight is None:
            raise InvalidUsage(f'serve({option}=True) is for a Flight server: give its address, "grpc://host:port"')
    if flags["write"] and postgres is None:
        raise InvalidUsage('serve(write=True) is for Postgres clients: give postgres="host:port", too')
    writes = flags["store"] or flags["commits"] or flags["write"]
    if options.write_token is not None and (not writes or options.token is None):
        raise InvalidUsage(
            "write_token= goes with store=True, commits=True or write=True, and a token= for those who only read"
        )
    if options.write_token is not None and options.write_token == options.token:
        raise InvalidUsage("write_token= is the same as token=, so that all who may read could write: give another")
    check_certificate(options.certificate)
    check_token(options.token)
    check_token(options.write_token)
    slow_s = options.slow_s
    if isinstance(slow_s, bool) or not isinstance(slow_s, (int, float)) or not 0 < slow_s < float("inf"):
        raise InvalidUsage(f"slow_s={slow_s!r} is not a number of seconds above 0")


def _flight_server(client: Location, url: str, options: ServeOptions, flags: Mapping[str, bool]) -> "Server":
    from persist.services.serve.flight_calls import BlobCalls
    from persist.services.serve.server import Server

    engine = client.engine
    return Server(
        client,
        engine.follower,
        url,
        token=options.token,
        write_token=options.write_token,
        certificate=options.certificate,
        insecure=options.insecure,
        slow_s=options.slow_s,
        committer=engine.writer("serve with commits").committer if flags["commits"] else None,
        queries=Queries(engine, options.limits) if options.sql else None,
        store=BlobCalls(engine.storage.blob) if flags["store"] else None,
    )
