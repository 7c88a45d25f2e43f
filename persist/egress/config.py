"""What describes a sink: a URL with options, a TOML file, or what such a file would hold."""

import os
from collections.abc import Mapping
from typing import Any

from persist.egress.sink import Sink
from persist.ingest import check_no_options, checked, described


def sink_of(given: "str | os.PathLike[str] | Mapping[str, Any] | Sink", options: Mapping[str, Any]) -> "Sink":
    """Return the sink that is described.

    Raises:
        InvalidUsage: there is no such file, it is no TOML, or an option is unknown, missing or of another type.
    """
    if not isinstance(given, (str, os.PathLike, Mapping)):
        check_no_options("Sink", options)
        return given
    url, config, where = described("sink", given, options, "postgres://writer@db.example/shop")
    if url.startswith(("postgres://", "postgresql://")):
        from persist.egress.postgres import PostgresConfig, PostgresSink

        return PostgresSink(checked(PostgresConfig, config, where, "sink"))
    if url.startswith("kafka://"):
        from persist.egress.kafka import KafkaSink, KafkaSinkConfig

        return KafkaSink(checked(KafkaSinkConfig, config, where, "sink"))
    from persist.egress.files import FilesConfig, FilesSink

    return FilesSink(checked(FilesConfig, config, where, "sink"))
