"""The loop that moves a source into collections: read a batch, commit it, continue from `upper`.

A source yields batches. When the loop requests the next batch, the previous one is durable. A source may then
acknowledge and forget it. A commit expects the uppers from which the batch was read. So if two processes read one
source, one commits and the other ends with `UpperMismatch`.

A URL with options, a TOML file, or a mapping with the contents of such a file describes a source.
"""

import json
import logging
import os
import re
import threading
import tomllib
from collections.abc import Generator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from persist.api.client import Client, open
from persist.api.collection import Collection
from persist.codecs.errors import did_you_mean
from persist.connect.ingest.source import BEHIND, SOURCE, Batch, Run, Source, SourceMoved, SourceUnavailable, Target
from persist.connect.ingest.transactions import Moments, make_moments_target
from persist.core.antichain import Antichain
from persist.core.errors import InvalidUsage, Unavailable, UpdateNotBeyondUpper, UpperMismatch
from persist.core.keyed.form import Keyed
from persist.core.progress import report_work
from persist.core.settings import Location
from persist.engine.collection.failures import record_failures
from persist.engine.location.moments import MOMENTS

logger = logging.getLogger(__name__)
FILLED = "ingest.collections"  # A property of the collection of moments: which others the source fills.


@dataclass(frozen=True, slots=True)
class Ingested:
    """The ingested rows, the commits with rows, and the upper of each collection."""

    source: str
    rows: int
    commits: int
    uppers: Mapping[str, int | None]


def ingest(
    location: Location | Client,
    source: "str | os.PathLike[str] | Mapping[str, Any] | Source",
    *,
    once: bool = False,
    stop: threading.Event | None = None,
    storage_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> Ingested:
    """Ingest a source exactly once, and continue with new rows; see `docs/use/ingest.md`.

    Args:
        location: a folder or URL, as for `persist.open`, or a client.
        source: the URL of a source, the path of a TOML file that describes one, or a mapping with its contents.
        once: return when all present rows are ingested; otherwise continue until stopped.
        stop: when set, ends the loop after the current commit.
        storage_options: options for the store of the location.
        options: options of the source, such as `collection="orders"`; they override the file.

    Raises:
        InvalidUsage: the source or an option is unknown, or rows of the source do not fit.
        UpperMismatch: another process ingests the same source.
    """
    with ExitStack() as stack:
        reading = load_source(source, options)
        stack.callback(reading.close)
        client = location if isinstance(location, Client) else open(location, storage_options=storage_options)
        if client is not location:
            stack.enter_context(client)
        with client.engine.follower.looks.share_look():
            run = Run(client, _open_collections(client, reading), once, stop or threading.Event())
            moments = None if reading.moments is None else Moments(run.collections[reading.moments])
        return _commit_batches(reading, run, moments)


def _open_collections(client: Client, source: Source) -> dict[str, Collection]:
    """Return the collections of a source; create those that are missing."""
    targets, moments, source_properties = source.targets(client), source.moments, {SOURCE: source.name}
    if moments is None:
        return {target.name: _open_collection(client, target, source_properties) for target in targets}
    if moments in {target.name for target in targets}:
        raise InvalidUsage(
            f"{source.name}: moments are stored in the collection {moments!r}, and a table gets that name, too: choose "
            "another prefix"
        )
    moments_collection = _open_collection(client, make_moments_target(moments, source.name), source_properties)
    moments_properties = {**source_properties, MOMENTS: moments_collection.handle.id}
    collections = {target.name: _open_collection(client, target, moments_properties) for target in targets}
    names = sorted(collections)
    earlier_names: list[str] = msgspec.json.decode(moments_collection.about.properties.get(FILLED, "[]"))
    if earlier_names != names:
        if dropped_names := {*earlier_names} - {*names}:
            logger.warning(
                "%s: these collections are not filled any more, because their tables are gone or not wanted: %s. They "
                "stay as they are. If their tables come back, drop them first, and they are copied again",
                source.name, ", ".join(sorted(dropped_names)),
            )  # fmt: skip
        moments_collection.describe(properties={FILLED: msgspec.json.encode(names).decode()}).result()
    return {**collections, moments: moments_collection}


def _open_collection(client: Client, target: Target, properties: Mapping[str, str]) -> Collection:
    """Return the collection of a target; create it if it is missing."""
    if target.name not in client:
        client.create_or_load(
            target.name,
            key=dict(target.key) or None,
            value=dict(target.value) or None,
            timeline=target.timeline,
            keyed=Keyed() if target.keyed else None,
        )
    collection = client.load(target.name)
    new_properties, about = {**target.properties, **properties}, collection.about
    if collection.upper.time == 0 or SOURCE not in about.properties:
        has_comment = target.comment in (None, about.comment)
        if not (has_comment and new_properties.items() <= about.properties.items()):
            collection.describe(target.comment, properties=new_properties).result()
    is_keyed = collection.handle.keyed is not None
    if is_keyed != target.keyed:
        raise InvalidUsage(
            f"the collection {target.name!r} is {'keyed' if is_keyed else 'not keyed'}, and the source gives "
            f"{'events by key' if target.keyed else 'updates'}: choose another collection"
        )
    return collection


def _commit_batches(source: Source, run: Run, moments: Moments | None) -> Ingested:
    """Commit batches until the source ends or the run stops; return what was ingested."""
    rows = commits = 0
    run.client.engine.count_also("ingest", lambda: {"rows": rows, "commits": commits})
    with (
        record_failures([run.first_handle]),
        report_work("ingest", source.name, streams=True) as done,
        closing(_read_batches(source, run)) as batches,
    ):
        for batch in batches:
            try:
                _commit_batch(source, run, batch, moments)
            except SourceMoved as moved:
                if run.once:
                    raise
                logger.warning("%s", moved)
            except SourceUnavailable as problem:
                run.outage.wait(problem)
            else:
                batch.is_durable = True
                rows, commits = rows + batch.rows, commits + bool(batch.rows)
                done(batch.rows)
                run.outage.end()
            if run.stop.is_set():
                break
    with run.client.engine.follower.looks.share_look():
        uppers = {name: collection.upper.time for name, collection in run.collections.items()}
    return Ingested(source.name, rows, commits, uppers)


def _read_batches(source: Source, run: Run) -> Generator[Batch]:
    """Yield batches; store an outage in a collection, wait and retry while the source does not answer."""
    while True:
        try:
            yield from source.batches(run)
            return
        except Unavailable as problem:
            run.outage.wait(problem)
        if run.stop.is_set():
            return


def _commit_batch(source: Source, run: Run, batch: Batch, moments: Moments | None) -> None:
    """Commit the rows, moments and seals of a batch, or nothing."""
    for target in batch.targets:
        if target.name not in run.collections:
            source_properties = {SOURCE: source.name}
            if source.moments is not None:
                source_properties[MOMENTS] = run.collections[source.moments].handle.id
            run.collections[target.name] = _open_collection(run.client, target, source_properties)
            run.uppers[target.name] = 0
    changes = batch.changes
    if moments is not None and batch.upper is not None and batch.upper > run.uppers[source.moments or ""]:
        assert batch.moments[-1][0] == batch.upper - 1, "the last moment is that of the last sealed time"
        changes = chain(changes, [moments.change(batch.moments)])
    try:
        with run.client.multi_write(metadata={"ingest": source.name}) as multi:
            for name, collection in run.collections.items():
                multi.expect_upper(collection, run.uppers[name])
            for change in changes:
                collection = run.collections[change.collection]
                if collection.handle.keyed is None:
                    multi.write(collection, change.rows, time=change.time)
                else:
                    multi.upsert(collection, change.rows, time=change.time)
            for name, properties in batch.properties.items():
                multi.describe(run.collections[name], properties=properties)
            if batch.behind is not None and batch.behind != run.behind:
                multi.describe(
                    run.collections[source.moments or min(run.collections)], properties={BEHIND: str(batch.behind)}
                )
                run.behind = batch.behind
            if batch.upper is not None:
                for collection in run.collections.values():
                    multi.seal(collection, batch.upper)
            for name, since in batch.since.items():
                multi.allow_compaction(run.collections[name], since)
    except UpdateNotBeyondUpper as error:
        raise UpperMismatch(Antichain(min(run.uppers.values())), error.upper) from error
    if batch.upper is not None:
        run.uppers.update(dict.fromkeys(run.collections, batch.upper))


CONFIG_BYTES_MAX = 1 << 20
T = TypeVar("T", bound=msgspec.Struct)


def load_source(source: "str | os.PathLike[str] | Mapping[str, Any] | Source", options: Mapping[str, Any]) -> "Source":
    """Return the source that a URL, a file or options describe."""
    if not isinstance(source, (str, os.PathLike, Mapping)):
        check_no_options("Source", options)
        return source
    url, config, where = parse_description("source", source, options, "s3://bucket/orders/*.csv")
    if url.startswith(("postgres://", "postgresql://")):
        from persist.connect.ingest.postgres.database import PostgresConfig
        from persist.connect.ingest.postgres.source import Postgres

        return Postgres(parse_config(PostgresConfig, config, where))
    if url.startswith("kafka://"):
        from persist.connect.ingest.kafka.config import KafkaConfig
        from persist.connect.ingest.kafka.source import Kafka

        return Kafka(parse_config(KafkaConfig, config, where))
    if url.startswith(("mysql://", "mariadb://")):
        from persist.connect.ingest.mysql.server import MysqlConfig
        from persist.connect.ingest.mysql.source import Mysql

        return Mysql(parse_config(MysqlConfig, config, where))
    if url.startswith(("delta:", "iceberg:")):
        from persist.connect.ingest.tables import Tables, TablesConfig

        return Tables(parse_config(TablesConfig, config, where))
    from persist.connect.ingest.files import Files, FilesConfig

    return Files(parse_config(FilesConfig, config, where))


def check_no_options(kind: str, options: Mapping[str, Any]) -> None:
    """Raise InvalidUsage if options come with a source or sink object, which is already configured."""
    if options:
        raise InvalidUsage(f"the options {', '.join(options)} go with a URL or a file, and not with a {kind}")


def parse_description(
    end: str, description: "str | os.PathLike[str] | Mapping[str, Any]", options: Mapping[str, Any], example: str
) -> tuple[str, dict[str, Any], str]:
    """Return the URL of a source or sink, its options, and "the file …" or "the options" for errors.

    Args:
        end: "source" or "sink", the name of the option that has the URL.
        options: options that override the file's.
    """
    config: dict[str, Any] = {**description} if isinstance(description, Mapping) else {end: os.fspath(description)}
    where = "the options"
    if not isinstance(description, Mapping) and config[end].endswith(".toml"):
        where = f"the file {config[end]}"
        config = _load_toml(config[end])
    config |= options
    url = config.get(end)
    if not isinstance(url, str) or not url:
        raise InvalidUsage(f'{where} must name the {end}: {end} = "{example}", or another URL')
    return url, config, where


def parse_config(kind: type[T], config: Mapping[str, Any], where: str, end: str = "source") -> T:
    """Return options as a struct of class `kind`; raise InvalidUsage for wrong ones."""
    names = kind.__struct_fields__
    for name in config:
        if name not in names:
            hint = did_you_mean(name, names)
            raise InvalidUsage(
                f"{where}: there is no option {name!r} of this {end}{hint or '.'} Options are {', '.join(names)}"
            )
    try:
        return msgspec.convert(dict(config), kind)
    except msgspec.ValidationError as error:
        raise InvalidUsage(f"{where}: {_explain_config_error(str(error), kind, config)}") from None


def _explain_config_error(message: str, kind: type[msgspec.Struct], config: Mapping[str, Any]) -> str:
    """Return msgspec's error with the name of the wrong option and its allowed values."""
    text, _, path = message.partition(" - at `$.")
    if not path:
        return text.replace("Object missing required field", "they must say")
    name = path.rstrip("`")
    if re.match("Expected `(int|float)` >", text):
        return f"{name}={config[name]} must be {'at least 0' if text.endswith('>= 0.0') else 'above 0'}"
    hint = get_type_hints(kind).get(name)
    choices = (word for part in (hint, *get_args(hint)) if get_origin(part) is Literal for word in get_args(part))
    words = ", ".join(map(json.dumps, choices))
    text = text.replace("Invalid enum value", "there is no value").replace("`array`", "a list")
    return f"{name}: {text}" + (f"; it is one of {words}" if words else "")


def _load_toml(path: str) -> dict[str, Any]:
    """Return the contents of a TOML file of at most `CONFIG_BYTES_MAX` bytes."""
    try:
        if os.path.getsize(path) > CONFIG_BYTES_MAX:
            raise InvalidUsage(f"{path} is longer than {CONFIG_BYTES_MAX:,} bytes: it describes no source")
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InvalidUsage(f"the file {path} cannot be read: {reason}") from None
    except tomllib.TOMLDecodeError as error:
        raise InvalidUsage(f"{path} is not TOML: {error}") from None
