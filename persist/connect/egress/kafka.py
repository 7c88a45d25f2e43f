"""Kafka as a sink: the messages and positions of a step are one transaction.

The positions are in a separate topic, `persist-positions`, which must be compacted. A message for each step
has a key that names the location, the sink and the collection. A sink begins by taking over the transactional id
of its name. So earlier processes with the name can commit nothing more, and their open transactions are aborted. Then
the sink reads the topic to its end.

Each message has the key of its row, so Kafka keeps the changes of a row in their order. The header `time` is the time
of a change.

The client library accepts one message at a time, so there is a loop over rows.
"""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Literal

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from persist.connect.egress.files import Nan, encode_json_lines
from persist.connect.egress.sink import Leaving, Piece, Reached, Standing, build_sink_name
from persist.connect.ingest.kafka.config import parse_brokers
from persist.connect.ingest.source import PositiveInt
from persist.core.errors import InvalidUsage, SinkMoved, TargetUnavailable
from persist.engine.read.results.result import require_package

logger = logging.getLogger(__name__)
ASK_S = 30.0
CLOSE_S = 1.0
_FENCED = ("_FENCED", "INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED")
_REFUSED = (
    "MSG_SIZE_TOO_LARGE", "INVALID_RECORD", "_INVALID_ARG", "TOPIC_AUTHORIZATION_FAILED", "GROUP_AUTHORIZATION_FAILED",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED",
)  # fmt: skip
_OPS = {"insert": b"c", "update": b"u", "delete": b"d"}


class KafkaSinkConfig(msgspec.Struct, kw_only=True):
    """The options of topics as a target; `docs/use/egress.md` explains them."""

    sink: str
    collections: list[str]
    topics: dict[str, str] = {}
    prefix: str = ""
    format: Literal["json", "debezium"] = "json"
    positions: str = "persist-positions"
    name: str | None = None
    batch_rows: PositiveInt = 100_000
    nan: Nan = "refuse"
    password_file: str | None = None
    client: dict[str, str | int | float | bool] = {}


class KafkaSink:
    """A sink of topics."""

    def __init__(self, config: KafkaSinkConfig) -> None:
        require_package("confluent-kafka>=2.6", "confluent_kafka")
        self.config = config
        self._brokers, topic = parse_brokers(config.sink, config.client, config.password_file)
        self.name = self._brokers.name
        self.hold = config.name or build_sink_name("kafka", self.name, config.prefix)
        self.collections = config.collections
        self.batch_rows = config.batch_rows
        if topic:
            raise InvalidUsage(f'{self.name}: name topics by topics = {{ "orders" = "{topic}" }}, and not in the URL')
        if unknown := {*config.topics} - {*config.collections}:
            raise InvalidUsage(f"topics: {min(unknown)!r} is not one of the collections {config.collections}")
        self._producer: Any = None
        self._is_begun = False
        self._location = ""
        self._problems: list[Any] = []

    def begin(self, location: str, leaving: Sequence[Leaving]) -> Mapping[str, Standing]:
        """Take over from earlier processes of this name, and return the stored positions."""
        from confluent_kafka import Producer

        if self.config.format == "debezium" and not all(collection.is_keyed for collection in leaving):
            raise InvalidUsage('format = "debezium" has changes by key, and a collection has no key: use "json"')
        self.close()
        self._location = location
        transactions = f"persist-{location}-{self.hold}"
        options = {"log_level": 0, "linger.ms": 5, "compression.type": "lz4", **self._brokers.options}
        with self._translate_errors():
            self._producer = Producer({**options, "transactional.id": transactions})
            self._producer.init_transactions(ASK_S)
            self._check_topics(leaving)
            positions = self._read_positions()
        where = f"{self.name} {self.config.positions}"
        return {
            collection.id: Standing(Reached.of(positions[key], where))
            for collection in leaving
            if positions.get(key := self._get_position_key(collection.id)) is not None
        }

    def take(self, step: Sequence[Piece]) -> Sequence[Piece]:
        """Send a step's messages and positions as one transaction."""
        with self._translate_errors():
            try:
                for piece in step:
                    for batch in piece.read():
                        self._send(piece, batch)
                if not any(piece.count or piece.is_turn for piece in step):
                    return []
                for piece in step:
                    key = self._get_position_key(piece.leaving.id)
                    self._produce(self.config.positions, key, piece.after.to_json().encode())
                self._commit()
            except BaseException:
                self._abort()
                raise
        return step

    def forget(self, location: str, leaving: Sequence[Leaving]) -> None:
        """Delete the positions by messages without a value."""
        self.begin(location, ())
        with self._translate_errors():
            for collection in leaving:
                self._produce(self.config.positions, self._get_position_key(collection.id), None)
            self._commit()

    def close(self) -> None:
        """Abort an open transaction, and end the client library's threads."""
        if self._producer is not None:
            self._abort()
            self._producer = None

    def _commit(self) -> None:
        self._producer.commit_transaction(ASK_S)
        self._is_begun = False

    def _abort(self) -> None:
        """Abort the open transaction, if there is one, without waiting for its messages."""
        if self._is_begun:
            with suppress(Exception):  # It is void anyway, once the next one begins.
                self._producer.purge()
                self._producer.abort_transaction(CLOSE_S)
            self._is_begun = False

    def _send(self, piece: Piece, batch: pa.RecordBatch) -> None:
        """Send rows, each as a message."""
        try:
            self._send_rows(piece, batch)
        except InvalidUsage as error:
            raise InvalidUsage(f"{self.name} cannot take the collection {piece.leaving.name!r}: {error}") from None

    def _send_rows(self, piece: Piece, batch: pa.RecordBatch) -> None:
        """Send a message for each row of a batch."""
        topic, schema = self._get_topic(piece.leaving), piece.schema
        rows = batch.select([*schema.names])
        keys: Sequence[bytes | None] = [None] * batch.num_rows
        if piece.leaving.is_keyed:
            keys = self._encode_rows(batch.select([*schema.key_names]))
        is_contents = "_time" not in batch.schema.names
        assert piece.before is not None
        times = [piece.before.as_of] * batch.num_rows if is_contents else batch.column("_time").to_pylist()
        if self.config.format == "debezium":
            values: Sequence[bytes | None] = self._encode_envelopes(piece, batch, times, is_contents)
        elif not piece.leaving.is_keyed:
            values = self._encode_rows(batch.select([*schema.names, "_diff"]))
        else:
            deleted = (
                [False] * batch.num_rows if is_contents else pc.equal(batch.column("_change"), "delete").to_pylist()
            )
            values = [None if is_gone else line for line, is_gone in zip(self._encode_rows(rows), deleted, strict=True)]
        for key, value, at in zip(keys, values, times, strict=True):
            self._produce(topic, key, value, at)

    def _encode_rows(self, rows: pa.RecordBatch) -> list[bytes]:
        return encode_json_lines(rows, nan=self.config.nan)

    def _encode_envelopes(
        self, piece: Piece, batch: pa.RecordBatch, times: Sequence[int | None], is_contents: bool
    ) -> list[bytes]:
        """Return rows as Debezium's envelopes, which have old and new rows."""
        names, keys = piece.schema.names, piece.schema.key_names
        after = self._encode_rows(batch.select([*names]))
        if is_contents:
            old_rows, ops = [b"null"] * len(after), [b"r"] * len(after)
        else:
            old = [batch.column(name if name in keys else f"_old_{name}") for name in names]
            changes = batch.column("_change").to_pylist()
            old_rows = self._encode_rows(pa.RecordBatch.from_arrays(old, [*names]))
            old_rows = [b"null" if change == "insert" else row for change, row in zip(changes, old_rows, strict=True)]
            after = [b"null" if change == "delete" else row for change, row in zip(changes, after, strict=True)]
            ops = [_OPS[change] for change in changes]
        name = msgspec.json.encode(piece.leaving.name)
        form = b'{"before":%b,"after":%b,"op":"%b","source":{"connector":"persist","table":%b,"time":%d}}'
        return [form % (b, a, op, name, at or 0) for b, a, op, at in zip(old_rows, after, ops, times, strict=True)]

    def _produce(self, topic: str, key: bytes | None, value: bytes | None, at: int | None = None) -> None:
        """Pass a message to the client library; wait while its queue is full."""
        if not self._is_begun:
            self._producer.begin_transaction()
            self._is_begun = True
        headers = {} if at is None else {"headers": {"time": str(at)}}
        while True:
            try:
                self._producer.produce(topic, key=key, value=value, on_delivery=self._note_delivery, **headers)
                break
            except BufferError:
                self._producer.poll(0.1)
        self._producer.poll(0)
        if self._problems:
            from confluent_kafka import KafkaException

            raise KafkaException(self._problems.pop())

    def _note_delivery(self, error: Any, message: Any) -> None:
        """Store the error of a message that was not delivered."""
        if error is not None:
            self._problems = [error]

    def _check_topics(self, leaving: Sequence[Leaving]) -> None:
        """Check that topics exist, or that brokers create them."""
        topics = self._producer.list_topics(timeout=ASK_S).topics
        for topic in [self.config.positions, *map(self._get_topic, leaving)]:
            if topic in topics:
                continue
            metadata = self._producer.list_topics(topic, timeout=ASK_S).topics[topic]
            if metadata.error is not None and not metadata.error.retriable():
                raise InvalidUsage(
                    f"{self.name} has no topic {topic!r}: {self._brokers.redact(metadata.error.str())}. Make it, with "
                    "cleanup.policy=compact if it is that of positions, or name another one"
                )
            if topic == self.config.positions:
                logger.warning(
                    "%s: the brokers have made the topic %r. Give it cleanup.policy=compact, or they will forget how "
                    "far the sink has come",
                    self.name,
                    topic,
                )

    def _read_positions(self) -> dict[bytes, bytes]:
        """Return the last value of each key in the positions topic. Cost: all of the topic."""
        from confluent_kafka import Consumer, KafkaException, TopicPartition

        options = {"group.id": f"persist-{self.hold}", "isolation.level": "read_committed", "log_level": 0}
        options |= {"enable.auto.commit": False, "enable.partition.eof": True}
        consumer = Consumer({**self._brokers.options, **options})
        positions: dict[bytes, bytes] = {}
        try:
            topic = self.config.positions
            unread = {*consumer.list_topics(topic, timeout=ASK_S).topics[topic].partitions}
            consumer.assign([TopicPartition(topic, partition, 0) for partition in unread])
            ends_s = time.monotonic() + ASK_S
            while unread:
                message = consumer.poll(1.0)
                if message is None:
                    if time.monotonic() > ends_s:
                        raise TargetUnavailable(f"{self.name} does not answer: the topic {topic} has no end")
                    continue
                if message.error() is None:
                    positions[message.key()] = message.value()
                    ends_s = time.monotonic() + ASK_S
                elif message.error().name() == "_PARTITION_EOF":
                    unread.discard(message.partition())
                else:
                    raise KafkaException(message.error())
        finally:
            consumer.close()
        return positions

    def _get_topic(self, leaving: Leaving) -> str:
        return self.config.topics.get(leaving.name, self.config.prefix + leaving.name)

    def _get_position_key(self, collection: str) -> bytes:
        """Return the key of a collection's messages in the topic of positions."""
        return msgspec.json.encode([self._location, self.hold, collection])

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Raise SinkMoved, TargetUnavailable or InvalidUsage in place of the library's errors."""
        from confluent_kafka import KafkaException

        try:
            yield
        except KafkaException as problem:
            error = problem.args[0]
            reason = self._brokers.redact(error.str())
            if error.name() in _FENCED:
                raise SinkMoved(
                    f"{self.name}: another process sends as {self.hold!r}, and has taken over. Let one of them run; if "
                    "the other one is to go elsewhere, give it a name of its own"
                ) from None
            if error.name() in _REFUSED:
                raise InvalidUsage(
                    f"{self.name} refuses what is sent: {reason}. Nothing of this step was sent"
                ) from None
            raise TargetUnavailable(f"{self.name} does not answer: {reason}") from None
