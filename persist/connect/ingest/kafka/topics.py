"""Reads partitions of topics from positions that the collections store. Consumer groups are not used.

A partition without a position begins at its first available message. Memory is bounded: the client
library fetches `FETCHED_KIB` ahead, and a batch ends when it has enough rows or bytes.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from persist.connect.ingest.kafka.config import Brokers, KafkaConfig
from persist.connect.ingest.source import advise_copy
from persist.core.errors import InvalidUsage, Unavailable
from persist.engine.read.results.result import require_package

logger = logging.getLogger(__name__)
FETCHED_KIB = 16 << 10
CHUNK = 1_000
POLL_S = 0.25
ASK_S = 15.0
CONNECT_S = 0.5
Place = tuple[str, int]
MESSAGE = pa.schema(
    [("key", pa.large_binary()), ("value", pa.large_binary()), ("topic", pa.string()), ("partition", pa.int32()),
     ("offset", pa.int64()), ("timestamp", pa.timestamp("ms", "UTC"))]
)  # fmt: skip


@dataclass
class Poll:
    """The messages that one poll returned.

    Attributes:
        tables: by topic, the messages in order, with the schema `MESSAGE`.
        next: the next offsets of the partitions with messages.
        newest_ms: the newest timestamp of the messages, or -1.
    """

    tables: dict[str, pa.Table] = field(default_factory=dict)
    next: dict[Place, int] = field(default_factory=dict)
    newest_ms: int = -1

    @property
    def rows(self) -> int:
        return sum(map(len, self.tables.values()))


class Topics:
    """Reads the partitions of topics, from stored offsets on."""

    def __init__(self, brokers: Brokers, config: KafkaConfig) -> None:
        self._library = require_package("confluent-kafka>=2.6", "confluent_kafka")
        self._brokers = brokers
        self._config = config
        self._topics = list(dict.fromkeys(route.topic for route in brokers.routes))
        self._next: dict[Place, int] = {}
        self._ends: dict[Place, int] = {}
        self._problem: Any = None
        self._mean_bytes = 1_000.0
        options = {
            "group.id": "persist",  # The library wants one. Nothing is ever committed to it.
            "queued.max.messages.kbytes": FETCHED_KIB,
            "fetch.wait.max.ms": 100,
            **brokers.options,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "error_cb": self._keep_problem,
            "logger": logging.getLogger(f"{__name__}.library"),
        }
        try:
            self._consumer = self._library.Consumer(options)
        except (self._library.KafkaException, TypeError, ValueError) as error:
            raise InvalidUsage(f"{brokers.name} cannot be read: {brokers.redact(_format_error(error))}") from None

    def close(self) -> None:
        """End the threads of the library."""
        self._consumer.close()

    def assign(self, positions: Mapping[Place, int], *, wait: bool) -> None:
        """Read all partitions from their positions, or the beginning. A repeated call adds new ones.

        With `wait`, a missing topic may appear later. Raises InvalidUsage if messages are lost.
        """
        self._connect()
        added = []
        for topic in self._topics:
            for partition in self._list_partitions(topic, wait):
                place = topic, partition
                if place in self._next:
                    continue
                first, end = self._call(self._consumer.get_watermark_offsets, self._make_topic_partition(place), ASK_S)
                position = positions.get(place)
                if position is None:
                    position = first
                elif not first <= position <= end:
                    position = self._handle_lost(place, position, first, end)
                self._next[place] = position
                self._ends[place] = end
                added.append(self._make_topic_partition(place, self._next[place]))
        if added:
            self._call(self._consumer.incremental_assign, added)

    def _connect(self) -> None:
        """Wait until a broker answers; raise an error if none does."""
        for _ in range(int(ASK_S / CONNECT_S)):
            try:
                self._consumer.list_topics(self._topics[0], CONNECT_S)
                self._problem = None
                return
            except self._library.KafkaException as error:
                problem = error.args[0]
            self._consumer.poll(0)  # The library calls its callbacks here.
            if self._problem is not None:
                problem, self._problem = self._problem, None
                break
        raise self._make_error(problem)

    def _handle_lost(self, place: Place, position: int, first: int, end: int) -> int:
        """Return the first offset if `lost` allows a gap; otherwise raise InvalidUsage."""
        what = (
            f"{self._brokers.name}: partition {place[1]} of {place[0]!r} was read up to offset {position}, and has "
            f"offsets from {first} to {end} by now"
        )
        if position > end:
            what += ", so it was made anew"
        if self._config.lost == "skip":
            logger.warning("%s: reading goes on at %d, as lost says", what, first)
            return first
        names = [route.collection for route in self._brokers.routes]
        names += [f"{self.side_name}.{beside}" for beside in ("rejected", "transactions")]
        raise InvalidUsage(
            f'{what}: what was between is lost. {advise_copy(names)}. To go on without what was lost, say lost = "skip"'
        )

    @property
    def side_name(self) -> str:
        """The name before the dot in `NAME.transactions` and `NAME.rejected`."""
        routes = self._brokers.routes
        return self._config.name or (routes[0].collection if len(routes) == 1 else "kafka")

    def poll(self) -> Poll:
        """Return the arrived messages; wait up to a quarter of a second for the first one.

        Raises:
            InvalidUsage: the topic has lost unread messages, or this user may not read it.
            Unavailable: brokers do not answer.
        """
        chunks: list[list[Any]] = []
        rows = size = 0
        limit_rows, limit_bytes = self._config.batch_rows, self._config.batch_bytes
        ends: dict[Place, int] = {}
        while rows < limit_rows and size < limit_bytes:
            by_bytes = int((limit_bytes - size) / self._mean_bytes) + 1
            count = min(CHUNK, limit_rows - rows, by_bytes)
            got = self._call(self._consumer.consume, count, 0.0 if chunks else POLL_S)
            messages = [message for message in got if message.error() is None]
            for message in got:
                if message.error() is not None:
                    self._handle_notice(message, ends)
            if messages:
                chunks.append(messages)
                bytes_ = sum([len(message) for message in messages])
                self._mean_bytes = max(1.0, bytes_ / len(messages))
                rows, size = rows + len(messages), size + bytes_
            if not got:
                break
        if not chunks and self._problem is not None:
            problem, self._problem = self._problem, None
            raise self._make_error(problem)
        self._problem = None
        return self._make_poll([message for chunk in chunks for message in chunk], ends)

    def is_read_to_end(self) -> bool:
        """Return whether all messages that existed at `assign` were returned."""
        return all(self._next[place] >= end for place, end in self._ends.items())

    def _make_poll(self, messages: list[Any], ends: Mapping[Place, int]) -> Poll:
        """Return messages as tables by topic, with the next offsets."""
        poll = Poll()
        if messages:
            topics = [message.topic() for message in messages]
            # Offsets grow within a partition, so that its last message has the greatest.
            poll.next = {(m.topic(), m.partition()): m.offset() + 1 for m in messages}
            columns = [
                pa.array([message.key() for message in messages], pa.large_binary()),
                pa.array([message.value() for message in messages], pa.large_binary()),
                pa.array(topics, pa.string()),
                pa.array([message.partition() for message in messages], pa.int32()),
                pa.array([message.offset() for message in messages], pa.int64()),
            ]
            stamps = np.array([message.timestamp()[1] for message in messages], np.int64)
            poll.newest_ms = max(-1, int(stamps.max()))
            columns.append(pa.array(stamps, mask=stamps < 0).cast(MESSAGE.field("timestamp").type))
            table = pa.table(columns, schema=MESSAGE)
            for topic in dict.fromkeys(topics):
                topic_rows = table if len(set(topics)) == 1 else table.filter(pc.equal(table["topic"], topic))
                poll.tables[topic] = topic_rows
        for place, end in ends.items():  # Marks of transactions are offsets without messages.
            if end > poll.next.get(place, self._next[place]):
                poll.next[place] = end
        self._next.update(poll.next)
        return poll

    def _handle_notice(self, message: Any, ends: dict[Place, int]) -> None:
        """React to a message that reports an event or an error of the library."""
        error, place = message.error(), (message.topic(), message.partition())
        if error.name() == "_PARTITION_EOF":
            ends[place] = message.offset()
        elif error.name() in ("_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"):
            first, end = self._call(self._consumer.get_watermark_offsets, self._make_topic_partition(place), ASK_S)
            position = self._handle_lost(place, self._next[place], first, end)
            self._next[place] = position
            self._call(self._consumer.seek, self._make_topic_partition(place, position))
        elif error.name() in ("TOPIC_AUTHORIZATION_FAILED", "GROUP_AUTHORIZATION_FAILED"):
            raise InvalidUsage(f"{self._brokers.name}: this user may not read the topic {place[0]!r}")
        else:
            self._problem = error

    def _list_partitions(self, topic: str, wait: bool) -> list[int]:
        """Return the numbers of a topic's partitions. A missing topic has none if `wait`, and otherwise raises."""
        metadata = self._call(self._consumer.list_topics, topic, ASK_S).topics.get(topic)
        if metadata is None or (metadata.error is not None and metadata.error.name() == "UNKNOWN_TOPIC_OR_PART"):
            if wait:
                logger.warning("%s: there is no topic %r yet", self._brokers.name, topic)
                return []
            raise InvalidUsage(f"{self._brokers.name}: there is no topic {topic!r}")
        if metadata.error is not None:
            raise self._make_error(metadata.error)
        return sorted(metadata.partitions)

    def _make_topic_partition(self, place: Place, offset: int | None = None) -> Any:
        """Return the library's object for a partition, with an offset if there is one."""
        if offset is None:
            return self._library.TopicPartition(*place)
        return self._library.TopicPartition(*place, offset)

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of the library; raise our errors in place of its own."""
        try:
            return function(*arguments)
        except self._library.KafkaException as error:
            raise self._make_error(error.args[0]) from None

    def _keep_problem(self, error: Any) -> None:
        """Store an error for the next poll, unless the library retries by itself."""
        lasting = ("_ALL_BROKERS_DOWN", "_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED", "_SSL")
        if error.fatal() or error.name() in lasting:
            self._problem = error

    def _make_error(self, error: Any) -> InvalidUsage | Unavailable:
        """Return the exception for an error of the library."""
        text = self._brokers.redact(_format_error(error))
        if error.name() in ("_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED"):
            return InvalidUsage(f"{self._brokers.name} does not let this user in: {text}")
        if error.name() in ("TOPIC_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED"):
            return InvalidUsage(f"{self._brokers.name}: this user may not read: {text}")
        return Unavailable(f"{self._brokers.name} does not answer: {text}")


def _format_error(error: Any) -> str:
    problem = error.args[0] if isinstance(error, Exception) and error.args else error
    return str(problem.str()) if hasattr(problem, "str") else str(problem)
