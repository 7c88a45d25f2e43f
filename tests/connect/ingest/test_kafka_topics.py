"""How topics are read, without brokers: what is asked of the client library, and what its answers do."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import persist
from persist.connect.ingest.kafka.config import KafkaConfig, Route, load_brokers
from persist.connect.ingest.kafka.drift import find_drift
from persist.connect.ingest.kafka.source import Positions
from persist.connect.ingest.kafka.topics import MESSAGE, Poll, Topics

confluent_kafka = pytest.importorskip("confluent_kafka")
Error, Failure = confluent_kafka.KafkaError, confluent_kafka.KafkaException
EOF, RESET, DENIED, DOWN = (
    Error._PARTITION_EOF, Error._AUTO_OFFSET_RESET, Error.TOPIC_AUTHORIZATION_FAILED, Error._ALL_BROKERS_DOWN,
)  # fmt: skip


def test_options_of_the_library_and_routes_follow_from_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("of file\n")
    file = str(tmp_path / "password")
    cases: list[Any] = [
        ("kafka://localhost,[::1]:9/t", {},
         {"bootstrap.servers": "localhost:9092,[::1]:9", "security.protocol": "plaintext"}),
        ("kafka://localhost,b/t", {}, {"bootstrap.servers": "localhost:9092,b:9092", "security.protocol": "ssl"}),
        ("kafka://m%40e:p%20w@b/t", {}, {
            "bootstrap.servers": "b:9092", "security.protocol": "sasl_ssl", "sasl.username": "m@e",
            "sasl.password": "p w", "sasl.mechanism": "SCRAM-SHA-512",
        }),
        ("kafka://me@127.0.0.1/t", {"password_file": file, "client": {"sasl.mechanisms": "PLAIN"}}, {
            "bootstrap.servers": "127.0.0.1:9092", "security.protocol": "sasl_plaintext", "sasl.username": "me",
            "sasl.password": "of file", "sasl.mechanisms": "PLAIN", "sasl.mechanism": "PLAIN",
        }),
    ]  # fmt: skip
    for url, more, options in cases:
        brokers = load_brokers(KafkaConfig(source=url, **more))
        assert brokers.options == options
        assert brokers.name == f"kafka://{options['bootstrap.servers']}/t"
        assert [(route.topic, route.collection) for route in brokers.routes] == [("t", "t")]
    brokers = load_brokers(
        KafkaConfig(source="kafka://me:hush@b/t", client={"ssl.key.password": "shyness", "x": "open"})
    )
    assert brokers.redact("a\n hush,  shyness and open") == "a ***, *** and open"


@pytest.mark.parametrize(
    ("next_", "topics", "properties"),
    [
        ({}, ["t"], {"ingest.next t": "[]"}),
        ({("t", 2): 7, ("u", 0): 1, ("t", 0): 5}, ["t"], {"ingest.next t": "[5,null,7]"}),
        ({("t", 1): 7, ("u", 0): 1}, ["t", "u"], {"ingest.next t": "[null,7]", "ingest.next u": "[1]"}),
    ],
)
def test_positions_are_properties(next_: Any, topics: list[str], properties: dict[str, str]) -> None:
    positions = Positions(next_, 9)
    assert positions.to_properties(topics) == properties | {"ingest.newest_ms": "9"}
    kept = {place: at for place, at in next_.items() if place[0] in topics}
    assert Positions.from_properties(positions.to_properties(topics) | {"other": "x"}) == Positions(kept, 9)
    assert Positions.from_properties({}) == Positions({}, -1)
    after = positions.advance(Poll({}, {("t", 0): 8}, 3))
    assert after == Positions({**next_, ("t", 0): 8}, 9)
    assert positions.advance(Poll({}, {}, 30)).newest_ms == 30


class Message:
    def __init__(
        self, place: tuple[str, int], offset: int, value: bytes = b"v", at_ms: int = 5, error: Any = None
    ) -> None:
        self._place, self._offset, self._value, self._at_ms, self._error = place, offset, value, at_ms, error

    def __len__(self) -> int:
        return len(self._value)

    def error(self) -> Any:
        return None if self._error is None else Error(self._error)

    def topic(self) -> str:
        return self._place[0]

    def partition(self) -> int:
        return self._place[1]

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes | None:
        return None

    def value(self) -> bytes:
        return self._value

    def timestamp(self) -> tuple[int, int]:
        return 1, self._at_ms


class Consumer:
    """The library's consumer, with scripted answers; `asked` has what was asked of it."""

    def __init__(self, marks: dict[tuple[str, int], tuple[int, int]], *answers: Any) -> None:
        self.marks, self.answers, self.asked = marks, [*answers], list[Any]()

    def list_topics(self, topic: str, timeout: float) -> Any:
        partitions = {at: None for name, at in self.marks if name == topic}
        found = {topic: SimpleNamespace(partitions=partitions, error=None)} if partitions else {}
        return SimpleNamespace(topics=found)

    def get_watermark_offsets(self, partition: Any, timeout: float) -> tuple[int, int]:
        return self.marks[partition.topic, partition.partition]

    def incremental_assign(self, partitions: list[Any]) -> None:
        self.asked.append([(p.topic, p.partition, p.offset) for p in partitions])

    def seek(self, partition: Any) -> None:
        self.asked.append((partition.topic, partition.partition, partition.offset))

    def consume(self, count: int, timeout: float) -> list[Message]:
        self.asked.append((count, timeout))
        answer = self.answers.pop(0) if self.answers else []
        if isinstance(answer, Exception):
            raise answer
        return list(answer)


def make_topics(
    marks: dict[tuple[str, int], tuple[int, int]], *answers: Any, **options: Any
) -> tuple[Topics, Consumer]:
    into: Any = [{"topic": name, "collection": name} for name in dict.fromkeys(name for name, _ in marks)]
    config = KafkaConfig(source="kafka://127.0.0.1:1", **options)
    config.into = [Route(**route) for route in into]
    topics, consumer = Topics(load_brokers(config), config), Consumer(marks, *answers)
    topics.close()
    topics._consumer = consumer
    return topics, consumer


A, B, C = ("t", 0), ("t", 1), ("u", 0)


def test_partitions_are_read_from_their_positions_and_new_ones_from_the_beginning(caplog: Any) -> None:
    topics, consumer = make_topics({B: (2, 9), A: (0, 4), C: (0, 0)})
    topics.assign({B: 5, A: 4}, wait=False)
    assert (consumer.asked, topics.is_read_to_end()) == ([[("t", 0, 4), ("t", 1, 5), ("u", 0, 0)]], False)
    consumer.marks["t", 2] = (1, 1)
    for _ in range(2):
        topics.assign({}, wait=True)
    assert consumer.asked[1:] == [[("t", 2, 1)]]
    text = "kafka://127.0.0.1:1/t: partition 0 of 't' was read up to offset {}, and has offsets from 2 to 5 by now"
    for at, more in ((1, ""), (6, ", so it was made anew")):
        topics, consumer = make_topics({A: (2, 5)})
        with pytest.raises(persist.InvalidUsage) as caught:
            topics.assign({A: at}, wait=False)
        assert str(caught.value) == (
            f"{text.format(at)}{more}: what was between is lost. To copy again and keep the history: persist rename "
            "LOCATION t t-before; persist rename LOCATION t.rejected t.rejected-before; persist rename LOCATION "
            "t.transactions t.transactions-before; and give the same command again. To go on without what was lost, "
            'say lost = "skip"'
        )
        topics, consumer = make_topics({A: (2, 5)}, lost="skip")
        topics.assign({A: at}, wait=False)
        assert (consumer.asked, caplog.messages.pop()) == (
            [[("t", 0, 2)]], f"{text.format(at)}{more}: reading goes on at 2, as lost says",
        )  # fmt: skip
    for at in (2, 5):
        topics, consumer = make_topics({A: (2, 5)})
        topics.assign({A: at}, wait=False)
        assert consumer.asked == [[("t", 0, at)]]


def test_a_poll_ends_where_it_has_enough_and_marks_move_positions() -> None:
    some = [Message(A, at, b"x" * 100, at_ms=at) for at in range(3)]
    topics, consumer = make_topics(
        {A: (0, 9), C: (0, 2)}, some, [Message(C, 0, at_ms=-1)], batch_rows=9, batch_bytes=450
    )
    topics.assign({}, wait=False)
    poll = topics.poll()
    assert consumer.asked[1:] == [(1, 0.25), (2, 0.0), (5, 0.0)]
    assert (poll.rows, poll.next, poll.newest_ms) == (4, {A: 3, C: 1}, 2)
    assert {name: table.schema == MESSAGE for name, table in poll.tables.items()} == {"t": True, "u": True}
    assert poll.tables["t"]["offset"].to_pylist() == [0, 1, 2]
    assert poll.tables["u"].drop_columns(["timestamp"]).to_pylist() == [
        {"key": None, "value": b"v", "topic": "u", "partition": 0, "offset": 0}
    ]
    assert poll.tables["u"]["timestamp"].null_count == 1
    consumer.answers = [[Message(A, 9, error=EOF), Message(C, 1, error=EOF)]]
    poll = topics.poll()
    assert (poll.rows, poll.next, poll.newest_ms, topics.is_read_to_end()) == (0, {A: 9}, -1, False)
    consumer.answers, consumer.asked = [[Message(C, 1)], [Message(C, 5, error=EOF)]], []
    assert (topics.poll().next, topics.is_read_to_end()) == ({C: 5}, True)
    many = [[Message(A, 9 + at)] for at in range(9)]
    topics, consumer = make_topics({A: (0, 9)}, *many, batch_rows=2)
    topics.assign({}, wait=False)
    assert (topics.poll().rows, [count for count, _ in consumer.asked[1:]]) == (2, [2, 1])


def test_notices_and_errors_of_the_library_are_ours() -> None:
    topics, consumer = make_topics({A: (2, 5)}, [Message(A, 0, error=RESET)], lost="skip")
    topics.assign({A: 3}, wait=False)
    assert (topics.poll().rows, consumer.asked[2]) == (0, ("t", 0, 2))
    name = "kafka://127.0.0.1:1/t"
    for answer, kind, text in [
        ([Message(A, 0, error=DENIED)], persist.InvalidUsage, f"{name}: this user may not read the topic 't'"),
        ([Message(A, 0, error=DOWN)], persist.Unavailable, f"{name} does not answer: "),
        (Failure(Error(DOWN)), persist.Unavailable, f"{name} does not answer: "),
        (Failure(Error(DENIED)), persist.InvalidUsage, f"{name}: this user may not read: "),
        (Failure(Error(Error._AUTHENTICATION)), persist.InvalidUsage, f"{name} does not let this user in: "),
    ]:
        topics, _ = make_topics({A: (2, 5)}, answer, [], [Message(A, 2)])
        topics.assign({}, wait=False)
        with pytest.raises(kind) as caught:
            topics.poll()
        assert str(caught.value).startswith(text)
        assert topics.poll().rows + topics.poll().rows == 1
    for error, is_kept in [(DOWN, True), (Error._TRANSPORT, False), (Error._SSL, True)]:
        topics, _ = make_topics({A: (2, 5)}, [], [Message(A, 2)])
        topics.assign({}, wait=False)
        topics._keep_problem(Error(error))
        if is_kept:
            with pytest.raises(persist.Unavailable):
                topics.poll()
        assert topics.poll().rows == (1 if is_kept else 0)


def test_members_that_no_column_takes_and_columns_that_rows_lack_are_found() -> None:
    schema = pa.schema(
        [("id", pa.int64()), ("s", pa.struct([("a", pa.int64())])), ("l", pa.list_(pa.struct([("b", pa.int8())])))]
    )
    whole = '{"id": 1, "s": {"a": 1}, "l": null}'
    more, less = '{"id": 1, "x.y": 2, "s": {"a": 1, "c": 2}, "l": [{"b": 1}, {"d": 2}]}', '{"s": [], "id": null}'
    cases: list[Any] = [
        ("json", None, [whole, more, more, less, "[1]", "{", None], ({'"x.y"', "s.c", "l.element.d"}, {"l"})),
        ("json", None, [whole, '{"schema": {}, "payload": {"id": 1, "z": 2}}'], ({"z"}, {"s", "l"})),
        ("json", None, ["[1]"], (set(), set())),
        ("debezium", None, [f'{{"after": {more}}}', '{"after": null}', whole],
         ({'"x.y"', "s.c", "l.element.d"}, set())),
        ("maxwell", "d.t", [f'{{"database": "d", "table": "t", "data": {less}}}',
                            f'{{"database": "d", "table": "u", "data": {more}}}'], (set(), {"l"})),
        ("canal", None, [f'{{"data": [{less}, {more}]}}'], ({'"x.y"', "s.c", "l.element.d"}, {"l"})),
    ]  # fmt: skip
    for form, table, texts, found in cases:
        route = Route(topic="t", collection="c", format=form, table=table)
        messages = pa.chunked_array(
            [pa.array([None if text is None else text.encode() for text in texts], pa.binary())]
        )
        assert find_drift(route, messages, schema) == found, (form, texts)
