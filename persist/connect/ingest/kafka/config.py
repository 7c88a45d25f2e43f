"""The options of a source of topics: brokers, topics, their collections, and credentials.

    kafka://[user[:password]@]host[:port][,host[:port]…][/topic]

Passwords are in the URL, in a file, or among the options of the client library. No message or log contains them.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal
from urllib.parse import unquote

import msgspec

from persist.blob.errors import redact
from persist.connect.ingest.source import PositiveFloat, PositiveInt, load_password
from persist.core.errors import InvalidUsage
from persist.core.rendering import hide_passwords

PORT = 9092
_NEAR = ("localhost", "127.0.0.1", "[::1]")
_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[\w.-]+)(?::(\d{1,5}))?")
_SECRETS = re.compile(r"password|secret|key\.pem|oauthbearer\.config|token", re.IGNORECASE)
# Options that the source itself sets.
_OURS = ("bootstrap.servers", "metadata.broker.list", "enable.auto.commit", "auto.offset.reset", "enable.partition.eof")
Format = Literal["json", "debezium", "maxwell", "canal"]


class Messages(msgspec.Struct, kw_only=True):
    """The format of a topic's messages, and the collection that gets them; see `docs/use/ingest.md`."""

    format: Format = "json"
    table: str | None = None
    key: list[str] = []
    columns: dict[str, str] = {}
    keyed: bool = False
    types: dict[str, str] = {}
    metadata: dict[str, str] = {}


class Route(Messages, kw_only=True, forbid_unknown_fields=True):
    """A topic, or a table within one, and the collection that gets it."""

    topic: str
    collection: str


class KafkaConfig(Messages, kw_only=True):
    """The options of topics; `docs/use/ingest.md` explains them."""

    source: str
    collection: str | None = None
    into: list[Route] = []
    name: str | None = None
    registry: str | None = None
    drift: Literal["ignore", "add"] = "ignore"
    lost: Literal["refuse", "skip"] = "refuse"
    late_s: PositiveFloat | None = None
    batch_rows: PositiveInt = 20_000
    batch_bytes: PositiveInt = 64 << 20
    heartbeat_s: PositiveFloat = 10.0
    poll_s: PositiveFloat = 30.0
    password_file: str | None = None
    client: dict[str, str | int | float | bool] = {}


@dataclass(frozen=True, slots=True)
class Brokers:
    """The addresses of brokers, and `options` for the client library, whose secrets no message may show."""

    name: str
    options: dict[str, Any]
    secrets: tuple[str, ...]
    routes: tuple[Route, ...] = ()

    def redact(self, problem: object) -> str:
        """Return an error as one line of text without secrets."""
        return redact(hide_passwords(" ".join(str(problem).split())), self.secrets)


def parse_brokers(url: str, client: Mapping[str, Any], password_file: str | None) -> tuple[Brokers, str]:
    """Return the brokers that a URL names, and the topic in it, or ""."""
    address = url.partition("://")[2]
    user, _, place = address.rpartition("@")
    servers, _, topic = place.partition("/")
    hosts = [_HOST.fullmatch(server) for server in servers.split(",")]
    if not all(hosts):
        raise InvalidUsage(
            f"{hide_passwords(url)} is not an address of brokers: write kafka://host:9092,host:9092/topic"
        )
    addresses = ",".join(f"{host[1]}:{host[2] or PORT}" for host in hosts if host)
    options = _build_client_options(client, password_file, user, all(host[1] in _NEAR for host in hosts if host))
    secrets = tuple(str(value) for name, value in options.items() if _SECRETS.search(name) and value)
    return Brokers(f"kafka://{addresses}", {**options, "bootstrap.servers": addresses}, secrets), topic


def load_brokers(config: KafkaConfig) -> Brokers:
    """Check a configuration, and return its brokers."""
    brokers, topic = parse_brokers(config.source, config.client, config.password_file)
    routes = _parse_routes(config, topic)
    topics = ",".join(dict.fromkeys(route.topic for route in routes))
    return replace(brokers, name=f"{brokers.name}/{topics}", routes=routes)


def _parse_routes(config: KafkaConfig, topic: str) -> tuple[Route, ...]:
    """Return the checked routes from topics to collections."""
    where = hide_passwords(config.source)
    if bool(topic) == bool(config.into):
        raise InvalidUsage(
            f"{where}: name one topic in the URL, as kafka://host/topic, or several by tables [[into]] of the file, "
            'each with topic = "…" and collection = "…"'
        )
    if topic:
        shared = {name: getattr(config, name) for name in Messages.__struct_fields__}
        routes: tuple[Route, ...] = (Route(topic=topic, collection=config.collection or topic, **shared),)
    else:
        routes = tuple(config.into)
        unset = KafkaConfig(source=config.source)
        for name in ("collection", *Messages.__struct_fields__):
            if getattr(config, name) != getattr(unset, name):
                raise InvalidUsage(f"{where}: {name} belongs to one topic: move it into the tables [[into]]")
    for route in routes:
        if route.table is not None and route.format not in ("maxwell", "canal"):
            raise InvalidUsage(f"topic {route.topic}: table goes with the formats maxwell and canal")
        if (route.keyed or route.format != "json") and not route.key:
            raise InvalidUsage(
                f'topic {route.topic}: name the columns by which rows are told apart, such as key = ["id"]'
            )
    names = [route.collection for route in routes]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InvalidUsage(f"the collection {twice!r} is named for two topics: give each topic a collection of its own")
    return routes


def _build_client_options(
    client: Mapping[str, Any], password_file: str | None, user: str, is_near: bool
) -> dict[str, Any]:
    """Return the options of the client library: TLS by default, unless brokers are local."""
    options = dict[str, Any](client)
    for name in options:
        if name in _OURS:
            raise InvalidUsage(f"client: persist sets the option {name!r} itself: leave it out")
    if user:
        name, _, password = user.partition(":")
        options.setdefault("sasl.username", unquote(name))
        if password:
            options.setdefault("sasl.password", unquote(password))
    if password_file is not None:
        options["sasl.password"] = load_password(password_file)
    is_sasl = any(name.startswith("sasl.") for name in options)
    if is_sasl:
        options.setdefault("sasl.mechanism", options.get("sasl.mechanisms", "SCRAM-SHA-512"))
    kind = ("sasl_" if is_sasl else "") + ("plaintext" if is_near else "ssl")
    options.setdefault("security.protocol", kind)
    return options
