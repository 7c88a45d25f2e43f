"""Topics of Kafka: one poll becomes one commit and one time, with its offsets.

Besides the collections of rows, a source has two of its own, which are sealed with them:

    NAME.transactions   moments of times: the newest timestamp of messages so far, or the clock where topics are idle.
    NAME.rejected       (topic, partition, offset) → reason, key, value: unreadable and late messages.
                        The first such message creates it

Each commit stores positions as properties of `NAME.transactions`. These are the next offsets of each topic that moved
(`ingest.next TOPIC`, JSON: by partition, null without one yet), and the newest timestamp of all, in ms since 1970
(`ingest.newest_ms`). So the state contains the positions, and no part is read for them.

A time is a plain number, without a timeline. Messages of one key stay in order: Kafka orders each partition, and a
collection orders events of one time by arrival.
"""

import logging
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from persist.api.client import Client
from persist.api.collection import Collection
from persist.codecs.nested import find_new_fields, quote_name
from persist.codecs.order.arrays import make_int64_array
from persist.codecs.types.arrow_types import JSON
from persist.codecs.types.documents import check_documents
from persist.codecs.types.python_types import to_arrow_type
from persist.connect.envelopes import Events, canal, debezium, encode_mixed_members, maxwell, plain
from persist.connect.ingest.kafka.avro import Registry
from persist.connect.ingest.kafka.config import KafkaConfig, Route, load_brokers
from persist.connect.ingest.kafka.drift import find_drift
from persist.connect.ingest.kafka.topics import MESSAGE, Place, Poll, Topics
from persist.connect.ingest.row_types import contains_null
from persist.connect.ingest.source import Batch, Change, Run, Source, Target
from persist.core.errors import InvalidUpdate, InvalidUsage, Unavailable
from persist.core.keyed.machine import NUMBER
from persist.core.rendering import format_count
from persist.core.state_rules.keyed_rules import UNCHANGED
from persist.engine.collection.keyed_events import convert_events, find_refused_events

logger = logging.getLogger(__name__)
PEEKED_ROWS = 1_000
PEEK_S = 5.0
DELETED = "_deleted"
_REJECTED_VALUE = {"reason": pa.string(), "key": pa.binary(), "value": pa.binary(), "timestamp": MESSAGE.field(5).type}
_REJECTED_KEY = {"topic": pa.string(), "partition": pa.int32(), "offset": pa.int64()}
NEXT = "ingest.next "
NEWEST = "ingest.newest_ms"


@dataclass(frozen=True, slots=True)
class Positions:
    """The next offset of each partition, and the newest timestamp of earlier messages, or -1."""

    next: Mapping[Place, int] = field(default_factory=dict)
    newest_ms: int = -1

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> "Positions":
        """Read the positions from the properties of a collection."""
        offsets_by_place: dict[Place, int] = {}
        for name, text in properties.items():
            if name.startswith(NEXT):
                topic, offsets = name.removeprefix(NEXT), msgspec.json.decode(text, type=list[int | None])
                offsets_by_place |= {(topic, at): offset for at, offset in enumerate(offsets) if offset is not None}
        return cls(offsets_by_place, int(properties.get(NEWEST, -1)))

    def advance(self, poll: Poll) -> "Positions":
        """Return the positions after the messages of a poll."""
        return Positions({**self.next, **poll.next}, max([self.newest_ms, poll.newest_ms]))

    def to_properties(self, topics: Iterable[str]) -> dict[str, str]:
        """Return the positions of some topics as properties of a collection."""
        offsets: dict[str, list[int | None]] = {topic: [] for topic in topics}
        for topic, partition in sorted(place for place in self.next if place[0] in offsets):
            of_topic = offsets[topic]
            of_topic += [None] * (partition - len(of_topic))
            of_topic.append(self.next[topic, partition])
        properties = {NEXT + topic: msgspec.json.encode(next_).decode() for topic, next_ in offsets.items()}
        return properties | {NEWEST: str(self.newest_ms)}


class Kafka(Source):
    """A source of topics."""

    def __init__(self, config: KafkaConfig) -> None:
        self.config = config
        self._brokers = load_brokers(config)
        self.name = self._brokers.name
        self._topics = Topics(self._brokers, config)
        self._registry = None if config.registry is None else Registry(config.registry)
        name = self._topics.side_name
        self.moments: str = f"{name}.transactions"
        self._warned: set[tuple[str, str]] = set()
        comment = f"messages of {self.name} that could not be taken in"
        self._rejected = Target(f"{name}.rejected", _REJECTED_KEY, _REJECTED_VALUE, False, None, comment)

    def targets(self, client: Client) -> Sequence[Target]:
        """Return the collections of rows, and of rejected messages if any; messages may determine types."""
        missing = [route for route in self._brokers.routes if route.collection not in client]
        untold = [r for r in missing if not r.columns or any(name not in r.columns for name in r.key)]
        peeked = self._peek_messages() if untold else {}
        targets = []
        for route in self._brokers.routes:
            if route in missing:
                targets.append(self._make_target(route, peeked.get(route.topic)))
            else:
                keyed = client.load(route.collection).handle.keyed is not None
                if route.format != "json" and not keyed:
                    raise InvalidUsage(
                        f"the collection {route.collection!r} is not keyed, and {route.format} has changes by key: "
                        "choose another collection"
                    )
                targets.append(Target(route.collection, {}, {}, keyed))
        return [*targets, *([self._rejected] if self._rejected.name in client else [])]

    def batches(self, run: Run) -> Generator[Batch]:
        """Yield batches until the run stops, or with `once` to the offsets at the start."""
        if run.stop.is_set():
            return
        try:
            yield from self._poll_batches(
                run, Positions.from_properties(run.collections[self.moments].about.properties)
            )
        except Unavailable:
            self._topics.close()
            self._topics = Topics(self._brokers, self.config)
            raise

    def close(self) -> None:
        """End the threads of the client library."""
        self._topics.close()

    def _poll_batches(self, run: Run, positions: Positions) -> Generator[Batch]:
        """Yield a batch for each poll with messages, and from time to time one without."""
        clock = run.client.engine.clock
        self._topics.assign(positions.next, wait=not run.once)
        looked_s = moved_s = clock.monotonic_s()
        while True:
            poll = self._topics.poll()
            now_s = clock.monotonic_s()
            is_end = run.stop.is_set() or (run.once and self._topics.is_read_to_end())
            if poll.rows or (is_end and not run.stop.is_set()) or now_s - moved_s >= self.config.heartbeat_s:
                after = positions.advance(poll)
                yield self._make_batch(run, poll, positions, after)
                positions = after  # It is durable now.
                moved_s = now_s
            if is_end:
                return
            if now_s - looked_s >= self.config.poll_s:
                self._topics.assign(positions.next, wait=True)
                looked_s = now_s

    def _make_batch(self, run: Run, poll: Poll, positions: Positions, after: Positions) -> Batch:
        """Return the batch of a poll; committing it also stores the positions after it."""
        time, before_ms = run.uppers[self.moments], positions.newest_ms
        run.client.engine.check_clock()  # It bounds moments, which never go back.
        now_ms = run.client.engine.clock.wall_ms()
        # A producer whose clock is ahead must not take the moments of all others with it, or make them late.
        newest_ms = min(now_ms, after.newest_ms) if poll.rows else now_ms
        batch = Batch((), time + 1, 0, [(time, newest_ms * 1000)])
        rejected: list[pa.Table] = []
        changes = []
        for topic, messages in poll.tables.items():
            messages, late = _split_late(messages, min(now_ms, before_ms), self.config.late_s)
            messages, bad = self._split_readable(messages)
            rejected += [late, bad]
            for route in self._brokers.routes:
                if route.topic == topic:
                    rows, bad = self._parse_rows(route, messages, run.collections[route.collection], time)
                    rejected.append(bad)
                    if len(rows):
                        changes.append(Change(route.collection, rows, time))
        bad = _deduplicate(rejected)
        if len(bad):
            changes.append(Change(self._rejected.name, bad, time))
            batch.targets = [self._rejected]
            first = bad.slice(0, 1).to_pylist()[0]
            logger.warning(
                "%s: %d messages could not be taken in and are in %r; the first one: topic %s, partition %d, "
                "offset %d: %s", self.name, len(bad), self._rejected.name, first["topic"], first["partition"],
                first["offset"], first["reason"],
            )  # fmt: skip
        if poll.next:
            batch.properties = {self.moments: after.to_properties({topic for topic, _ in poll.next})}
        batch.changes, batch.rows = changes, poll.rows
        return batch

    def _split_readable(self, messages: pa.Table) -> tuple[pa.Table, pa.Table]:
        """Convert Avro to JSON; split messages into readable and unreadable ones."""
        if self._registry is None or not len(messages):
            return messages, _make_rejected_rows(messages.slice(0, 0), [])
        bad: dict[int, str] = {}
        for name in ("value", "key"):
            texts, unread = self._registry.to_json(messages[name].to_pylist())
            bad = unread | bad
            at = messages.schema.get_field_index(name)
            messages = messages.set_column(at, MESSAGE.field(name), pa.array(texts, pa.large_binary()))
        if not bad:
            return messages, _make_rejected_rows(messages.slice(0, 0), [])
        rejected = _make_rejected_rows(messages.take(pa.array([*bad], pa.int64())), [*bad.values()])
        good = pa.array([at not in bad for at in range(len(messages))], pa.bool_())
        return messages.filter(good), rejected

    def _parse_rows(
        self, route: Route, messages: pa.Table, collection: Collection, time: int
    ) -> tuple[pa.Table, pa.Table]:
        """Return the rows or events of messages for a collection, and the bad messages."""
        self._follow_drift(route, messages, collection)
        schema = {name: collection.schema.arrow.field(name).type for name in collection.schema.names}
        is_keyed = collection.handle.keyed is not None
        key = list(collection.schema.key_names) if is_keyed else None
        messages = _encode_documents(route, messages, collection.schema.json)
        try:
            events = _parse_events(route, messages, key, schema)
            bad = _find_bad_documents(route, messages, events, key, schema, collection.schema.json)
            rejected, messages = _split_bad(messages, bad)
            events = _parse_events(route, messages, key, schema) if bad else events
            if UNCHANGED in events.table.column_names:
                bad = _find_unknown(route, messages, schema, collection, time)
                unknown, messages = _split_bad(messages, bad)
                rejected, events = pa.concat_tables([rejected, unknown]), _parse_events(route, messages, key, schema)
        except InvalidUsage as error:
            first = messages.slice(0, 1).select(["partition", "offset"]).to_pylist()[0]
            raise InvalidUsage(
                f"{self.name}: {len(messages):,} messages of the topic {route.topic!r}, from offset {first['offset']} "
                f"of partition {first['partition']} on, cannot be read for {collection.name!r}: {error}"
            ) from None
        rows = events.table if is_keyed else events.table.drop_columns(DELETED)
        at = events.rejected["message"]
        unread = _make_rejected_rows(messages.take(at), events.rejected["reason"].to_pylist())
        return rows, pa.concat_tables([rejected, unread])

    def _follow_drift(self, route: Route, messages: pa.Table, collection: Collection) -> None:
        """Add columns for new members if allowed; warn of other differences, once."""
        used = {*route.metadata, *(path.partition(".")[0] for path in route.metadata.values())}
        is_changed = True
        while is_changed:
            schema = collection.schema
            fields = pa.schema([schema.arrow.field(name) for name in schema.names])
            more, less = find_drift(route, messages["value"], fields)
            more = {path for path in more if path.partition(".")[0] not in {*used, DELETED, UNCHANGED}}
            is_changed = self.config.drift == "add" and self._add_columns(route, messages, collection, more)
        less = {name for name in less if name in schema.value_names and name not in used}
        what = ("members that no column takes: they are left out", "rows without these columns, which are NULL there")
        for names, text in ((more, what[0]), (less, what[1])):
            if new := {(route.collection, name) for name in names} - self._warned:
                self._warned |= new
                logger.warning(
                    "%s: messages for %r have %s: %s", self.name, route.collection, text,
                    ", ".join(sorted(name for _, name in new)),
                )  # fmt: skip

    def _add_columns(self, route: Route, messages: pa.Table, collection: Collection, paths: set[str]) -> bool:
        """Add columns for the members at these paths; return whether a column was added."""
        version = collection.schema.version
        for path, kind in (_find_new_columns(route, messages, collection, paths) if paths else {}).items():
            with suppress(InvalidUsage):  # A collection cannot have such a name or type.
                collection.evolve(add={path: to_arrow_type(kind, path)})
                logger.warning("%s: %r has a new column from now on: %s", self.name, route.collection, path)
        return collection.schema.version != version

    def _make_target(self, route: Route, messages: pa.Table | None) -> Target:
        """Return the collection for a route, with inferred types if needed."""
        types = {name: to_arrow_type(kind, f"column {name!r}") for name, kind in route.columns.items()}
        metadata_types = {
            name: MESSAGE.field(path).type for name, path in route.metadata.items() if path in MESSAGE.names
        }
        types |= {name: kind for name, kind in metadata_types.items() if name not in types}
        if messages is not None:
            messages, _ = self._split_readable(messages)
            documents = [name for name, kind in types.items() if kind == pa.json_()]
            messages = _encode_documents(route, messages, documents)
            schema = (
                _parse_events(route, messages, route.key or None, None).table.schema if len(messages) else pa.schema([])
            )
            message_types = {
                field.name: field.type for field in schema if field.name not in (DELETED, UNCHANGED, *types)
            }
            for name, kind in message_types.items():
                if contains_null(kind):
                    first = f"the first {format_count(len(messages), 'message')} of {route.topic!r}"
                    raise InvalidUsage(
                        f"{self.name}: {first} have the column {name!r}, and no value in it tells its type, {kind}. "
                        f'Say the types of all columns, such as columns = {{ {name} = "string", … }}, or begin when a '
                        "message has one"
                    )
            types |= message_types
        missing = [name for name in route.key if name not in types]
        if missing or not types:
            what = f"the key column {missing[0]!r}" if missing else "any column"
            raise InvalidUsage(
                f"{self.name}: no message of {route.topic!r} shows {what} of the collection {route.collection!r}, "
                'which is not there yet. Say the types, such as columns = { id = "int64", amount = "float64" }'
            )
        value = {name: kind for name, kind in types.items() if name not in route.key}
        keyed = route.keyed or route.format != "json"
        return Target(route.collection, {name: types[name] for name in route.key}, value, keyed)

    def _peek_messages(self) -> dict[str, pa.Table]:
        """Return some messages of each topic, from which types are inferred. They are read again later."""
        config = KafkaConfig(source=self.config.source, batch_rows=PEEKED_ROWS)
        topics = Topics(self._brokers, config)
        messages: dict[str, list[pa.Table]] = {}
        try:
            topics.assign({}, wait=True)
            for _ in range(int(PEEK_S / 0.25)):
                poll = topics.poll()
                for topic, table in poll.tables.items():
                    messages.setdefault(topic, []).append(table)
                route_topics = {route.topic for route in self._brokers.routes}
                if topics.is_read_to_end() or all(
                    sum(map(len, messages.get(topic, []))) >= PEEKED_ROWS for topic in route_topics
                ):
                    break
        finally:
            topics.close()
        return {topic: pa.concat_tables(tables) for topic, tables in messages.items()}


def _parse_events(
    route: Route,
    messages: pa.Table,
    key: Sequence[str] | None,
    schema: Mapping[str, pa.DataType] | None,
    metadata: Mapping[str, str] = {},
) -> Events:
    """Parse messages by the route's envelope."""
    more: dict[str, Any] = {"key": key, "schema": schema, "on_error": "collect"}
    more["metadata"] = {**route.metadata, **metadata}
    if route.format in ("maxwell", "canal"):
        return (maxwell if route.format == "maxwell" else canal)(messages, table=route.table, **more)
    return (debezium if route.format == "debezium" else plain)(messages, types=route.types, **more)


def _find_new_columns(
    route: Route, messages: pa.Table, collection: Collection, paths: set[str]
) -> dict[str, pa.DataType]:
    """Return by path the types of members that no column takes.

    If messages contradict each other, the type in the first one counts. Halves with a contradiction are read again, so
    one such message among n costs reading 2n messages.
    """
    schema, types = collection.schema, dict[str, pa.DataType]()
    try:
        rows = _parse_events(route, _encode_documents(route, messages, schema.json), schema.key_names or None, None)
    except InvalidUsage:
        if len(messages) > 1:
            middle = len(messages) // 2
            for half in (messages.slice(middle), messages.slice(0, middle)):
                types |= _find_new_columns(route, half, collection, paths)
        return types
    columns = {name: schema.arrow.field(name).type for name in schema.names}
    for name, kind in zip(rows.table.schema.names, rows.table.schema.types, strict=True):
        if name not in columns:
            types[quote_name(name)] = kind
        elif pat.is_nested(columns[name]):
            types |= find_new_fields(name, kind, columns[name])
    return {path: kind for path, kind in types.items() if path in paths and not contains_null(kind)}


def _encode_documents(route: Route, messages: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return messages whose values of JSON columns are text; only for messages without an envelope."""
    if route.format != "json" or not names or not len(messages):
        return messages
    texts = encode_mixed_members(messages["value"].combine_chunks(), dict.fromkeys(names, JSON))
    return messages.set_column(messages.schema.get_field_index("value"), MESSAGE.field("value"), texts)


def _split_bad(messages: pa.Table, bad: Mapping[int, str]) -> tuple[pa.Table, pa.Table]:
    """Return bad messages as rows of rejected messages, and the good messages."""
    good = pa.array([at not in bad for at in range(len(messages))], pa.bool_())
    return _make_rejected_rows(messages.take(pa.array([*bad], pa.int64())), [*bad.values()]), messages.filter(good)


def _find_unknown(
    route: Route, messages: pa.Table, schema: Mapping[str, pa.DataType], collection: Collection, time: int
) -> dict[int, str]:
    """Return by row number why messages with unchanged values cannot be applied.

    They lack large values that did not change, and the collection does not have the row either.
    """
    numbered = messages.append_column(NUMBER, make_int64_array(np.arange(len(messages))))
    rows = _parse_events(route, numbered, [*collection.schema.key_names], schema, {NUMBER: NUMBER}).table
    numbers = rows[NUMBER].to_pylist()
    events = convert_events(collection.handle, rows.drop_columns([NUMBER]), collection.handle.stamp(time, None))
    reason = "it lacks large values that did not change, and the collection does not have their row"
    return {numbers[at]: reason for at in find_refused_events(collection.handle, events)}


def _find_bad_documents(
    route: Route,
    messages: pa.Table,
    events: Events,
    key: Sequence[str] | None,
    schema: Mapping[str, pa.DataType],
    names: Sequence[str],
) -> dict[int, str]:
    """Return by row number why messages have invalid JSON in a JSON column.

    Halves with invalid JSON are read again, so one bad message among n costs reading 2n messages.
    """
    try:
        for name in names:
            check_documents(events.table[name], name)
    except InvalidUpdate as error:
        if len(messages) == 1:
            return {0: str(error)}
        middle, bad = len(messages) // 2, dict[int, str]()
        for start, half in ((0, messages.slice(0, middle)), (middle, messages.slice(middle))):
            reasons = _find_bad_documents(route, half, _parse_events(route, half, key, schema), key, schema, names)
            bad |= {start + at: reason for at, reason in reasons.items()}
        return bad
    return {}


def _split_late(messages: pa.Table, newest_ms: int, late_s: float | None) -> tuple[pa.Table, pa.Table]:
    """Return messages that are in time, and late ones as rejected rows."""
    none = _make_rejected_rows(messages.slice(0, 0), [])
    if late_s is None or newest_ms < 0 or not len(messages):
        return messages, none
    stamps = messages["timestamp"].cast(pa.int64())
    is_late = pc.less(stamps, newest_ms - int(late_s * 1000)).fill_null(False)
    late = messages.filter(is_late)
    if not len(late):
        return messages, none
    lags_ms = pc.subtract(newest_ms, stamps.filter(is_late)).to_pylist()
    reasons = [f"it came too late: its timestamp is {ms / 1000:.1f} s behind the newest one" for ms in lags_ms]
    return messages.filter(pc.invert(is_late)), _make_rejected_rows(late, reasons)


def _make_rejected_rows(messages: pa.Table, reasons: list[str]) -> pa.Table:
    """Return rejected messages as rows of the collection for them."""
    columns = {
        name: messages[name].cast(kind)
        for name, kind in {**_REJECTED_KEY, **_REJECTED_VALUE}.items()
        if name != "reason"
    }
    return pa.table({**columns, "reason": pa.array(reasons, pa.string())})


def _deduplicate(rejected: list[pa.Table]) -> pa.Table:
    """Return each rejected message once. Several tables of a topic may reject the same one."""
    if not rejected:
        return _make_rejected_rows(MESSAGE.empty_table(), [])
    table = pa.concat_tables(rejected)
    numbered = table.append_column("at", make_int64_array(np.arange(len(table))))
    first = numbered.group_by([*_REJECTED_KEY]).aggregate([("at", "min")])["at_min"]
    return table.take(first.sort())
