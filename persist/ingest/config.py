"""What describes a source: a URL with options, a TOML file, or what such a file would hold."""

import os
import tomllib
from collections.abc import Mapping
from typing import Any, TypeVar, get_type_hints

import msgspec

from persist.codecs import did_you_mean
from persist.errors import InvalidUsage
from persist.ingest.source import Source

CONFIG_BYTES_MAX = 1 << 20
T = TypeVar("T", bound=msgspec.Struct)


def source_of(given: "str | os.PathLike[str] | Mapping[str, Any] | Source", options: Mapping[str, Any]) -> "Source":
    """Return the source that is described.

    Raises:
        InvalidUsage: there is no such file, it is no TOML, or an option is unknown, missing or of another type.
    """
    if not isinstance(given, (str, os.PathLike, Mapping)):
        check_no_options("Source", options)
        return given
    url, config, where = described("source", given, options, "s3://bucket/orders/*.csv")
    if url.startswith(("postgres://", "postgresql://")):
        from persist.ingest.pg_database import PostgresConfig
        from persist.ingest.postgres import Postgres

        return Postgres(checked(PostgresConfig, config, where))
    if url.startswith("kafka://"):
        from persist.ingest.kafka import Kafka
        from persist.ingest.kafka_config import KafkaConfig

        return Kafka(checked(KafkaConfig, config, where))
    if url.startswith(("mysql://", "mariadb://")):
        from persist.ingest.my_server import MysqlConfig
        from persist.ingest.mysql import Mysql

        return Mysql(checked(MysqlConfig, config, where))
    if url.startswith(("delta:", "iceberg:")):
        from persist.ingest.tables import Tables, TablesConfig

        return Tables(checked(TablesConfig, config, where))
    from persist.ingest.files import Files, FilesConfig

    return Files(checked(FilesConfig, config, where))


def check_no_options(kind: str, options: Mapping[str, Any]) -> None:
    """Raise InvalidUsage if options are given with an object that has its own."""
    if options:
        raise InvalidUsage(f"the options {', '.join(options)} go with a URL or a file, and not with a {kind}")


def described(
    end: str, given: "str | os.PathLike[str] | Mapping[str, Any]", options: Mapping[str, Any], example: str
) -> tuple[str, dict[str, Any], str]:
    """Return the URL of a source or a sink, all that is said of it, and where that is said.

    Args:
        end: "source" or "sink", the name of the option that has the URL.
        given: a URL, a file or what is in one.
        options: that go before it.
        example: a URL.
    """
    config: dict[str, Any] = {**given} if isinstance(given, Mapping) else {end: os.fspath(given)}
    where = "the options"
    if not isinstance(given, Mapping) and config[end].endswith(".toml"):
        where = f"the file {config[end]}"
        config = _read(config[end])
    config |= options
    url = config.get(end)
    if not isinstance(url, str) or not url:
        raise InvalidUsage(f'{where} must name the {end}: {end} = "{example}", or another URL')
    return url, config, where


def checked(kind: type[T], config: Mapping[str, Any], where: str, end: str = "source") -> T:
    """Return what is configured as a struct of its kind."""
    names = get_type_hints(kind)
    for name in config:
        if name not in names:
            hint = did_you_mean(name, names)
            raise InvalidUsage(
                f"{where}: there is no option {name!r} of this {end}{hint or ''}. Options are {', '.join(names)}"
            )
    try:
        return msgspec.convert(dict(config), kind)
    except msgspec.ValidationError as error:
        raise InvalidUsage(f"{where}: {_worded(str(error))}") from None


def _worded(message: str) -> str:
    """Return a message of msgspec with the option that it is about in front."""
    text, _, path = message.partition(" - at `$.")
    return f"{path.rstrip('`')}: {text}" if path else text.replace("Object missing required field", "it must say")


def _read(path: str) -> dict[str, Any]:
    try:
        if os.path.getsize(path) > CONFIG_BYTES_MAX:
            raise InvalidUsage(f"{path} is longer than {CONFIG_BYTES_MAX:,} bytes: it describes no source")
        with open(path, "rb") as file:
            return tomllib.load(file)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InvalidUsage(f"the file {path} cannot be read: {reason}") from None
    except tomllib.TOMLDecodeError as error:
        raise InvalidUsage(f"{path} is no TOML: {error}") from None
