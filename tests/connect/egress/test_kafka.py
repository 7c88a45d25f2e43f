"""Collections into topics: whole times in one transaction with their position.

The mock cluster of the client library takes transactions, but it voids nothing: what was sent before an abort can be
read, and nobody is fenced. So these tests cut a sink off where nothing of a transaction is sent, or all of it.
"""

import json
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import pyarrow as pa
import pytest

import persist
from persist.connect import Piece
from persist.connect.egress.kafka import KafkaSink, KafkaSinkConfig
from persist.errors import TargetUnavailable
from persist.events import debezium
from tests.connect.ingest.brokers import PARTITIONS, Cluster

pytest.importorskip("confluent_kafka")
ORDERS: dict[str, Any] = {"key": {"id": pa.int64()}, "value": {"status": pa.string()}}
Messages = list[tuple[Any, Any, int | None]]


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def orders(client: persist.Client) -> persist.Collection:
    made = client.create_or_load("orders", **ORDERS, keyed=persist.Keyed())
    made.upsert([(1, "new"), (2, "")], time=0, seal=1).result()
    return made


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    return f"{request.node.name.replace('[', '-').replace(']', '')}."


def config(cluster: Cluster, prefix: str, *collections: str, **options: Any) -> dict[str, Any]:
    place = {"sink": f"kafka://{cluster.address}", "prefix": prefix, "positions": f"{prefix}positions"}
    return {**place, "collections": [*collections], "name": "topics", **options}


def messages(cluster: Cluster, topic: str, *, raw: bool = False) -> Messages:
    """Return key, value and time of all messages of a topic, by partition."""
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    options = {"bootstrap.servers": cluster.address, "group.id": "test", "enable.partition.eof": True, "log_level": 0}
    consumer = Consumer(options)
    found: Messages = []
    for partition in range(PARTITIONS):
        consumer.assign([TopicPartition(topic, partition, 0)])
        while (message := consumer.poll(10)) is not None and message.error() is None:
            key, value = message.key(), message.value()
            if not raw:
                key, value = (None if each is None else json.loads(each) for each in (key, value))
            time = dict(message.headers() or []).get("time")
            found.append((key, value, None if time is None else int(time)))
        assert message is not None
        assert message.error().code() == KafkaError._PARTITION_EOF
    consumer.close()
    return found


def test_rows_of_keys_are_messages_and_a_deletion_has_no_value(
    client: persist.Client, orders: persist.Collection, cluster: Cluster, prefix: str
) -> None:
    options = config(cluster, prefix, "orders")
    assert persist.egress(client, options, once=True).commits == 1
    orders.upsert([(1, "paid")], time=1, seal=2).result()
    orders.upsert([(2, None), (1, "sent")], time=2, seal=5).result()
    assert persist.egress(client, options, once=True).commits == 1
    orders.seal(9).result()
    assert persist.egress(client, options, once=True).uppers == {"orders": 5}
    found = messages(cluster, f"{prefix}orders")
    assert [message[1:] for message in found if message[0] == {"id": 1}] == [
        ({"id": 1, "status": "new"}, 0),
        ({"id": 1, "status": "paid"}, 1),
        ({"id": 1, "status": "sent"}, 2),
    ]
    assert [message[1:] for message in found if message[0] == {"id": 2}] == [({"id": 2, "status": ""}, 0), (None, 2)]
    positions = messages(cluster, f"{prefix}positions")
    assert [value["upper"] for _, value, _ in positions] == [1, 1, 1, 5]
    assert {json.dumps(key) for key, _, _ in positions} == {
        json.dumps([client.engine.follower.state.location, "topics", orders.handle.id])
    }


def test_envelopes_of_debezium_come_in_again_as_the_same_changes(
    client: persist.Client, orders: persist.Collection, cluster: Cluster, prefix: str
) -> None:
    options = config(cluster, prefix, "orders", format="debezium")
    persist.egress(client, options, once=True)
    orders.upsert([(1, "paid"), (2, None), (3, "x")], time=1, seal=2).result()
    persist.egress(client, options, once=True)
    found = messages(cluster, f"{prefix}orders")
    assert sorted(((v["op"], v["before"], v["after"]) for _, v, _ in found), key=str) == sorted(
        [
            ("r", None, {"id": 1, "status": "new"}),
            ("r", None, {"id": 2, "status": ""}),
            ("u", {"id": 1, "status": "new"}, {"id": 1, "status": "paid"}),
            ("d", {"id": 2, "status": ""}, None),
            ("c", None, {"id": 3, "status": "x"}),
        ],
        key=str,
    )
    times = {op: {value["source"]["time"] for _, value, _ in found if value["op"] == op} for op in "rudc"}
    assert times == {"r": {0}, "u": {1}, "d": {1}, "c": {1}}
    assert {(*value["source"].items(),)[:2] for _, value, _ in found} == {
        (("connector", "persist"), ("table", "orders"))
    }
    raw = messages(cluster, f"{prefix}orders", raw=True)
    table = pa.table({"key": [key for key, _, _ in raw], "value": [value for _, value, _ in raw]})
    back = client.create_or_load("back", **ORDERS, keyed=persist.Keyed())
    back.upsert(debezium(table, key="id", schema=back.handle.schema.arrow.remove(3).remove(2)), time=0, seal=1).result()
    assert back.snapshot().digest() == orders.snapshot().digest()


def test_a_collection_without_a_key_is_sent_as_updates(client: persist.Client, cluster: Cluster, prefix: str) -> None:
    lines = client.create_or_load("lines", key=None, value={"line": pa.string()})
    lines.write([((None, "x"), 0, 2)], seal=1).result()
    persist.egress(client, config(cluster, prefix, "lines"), once=True)
    lines.write([((None, "x"), 1, -1)], seal=2).result()
    persist.egress(client, config(cluster, prefix, "lines"), once=True)
    found = sorted(messages(cluster, f"{prefix}lines"), key=lambda message: message[2] or 0)
    assert found == [(None, {"line": "x", "_diff": 2}, 0), (None, {"line": "x", "_diff": -1}, 1)]
    with pytest.raises(persist.InvalidUsage, match="changes by key, and a collection has no key"):
        persist.egress(client, config(cluster, prefix, "lines", format="debezium"), once=True)


class Cut(KafkaSink):
    """A sink that is lost before or after each commit."""

    is_after = False

    def take(self, step: Sequence[Piece]) -> Sequence[Piece]:
        if self.is_after:
            super().take(step)
        raise TargetUnavailable("it was cut off")


@pytest.mark.parametrize("is_after", [False, True])
def test_it_goes_on_where_the_topic_of_positions_says(
    client: persist.Client, orders: persist.Collection, cluster: Cluster, prefix: str, is_after: bool
) -> None:
    for time in range(1, 5):
        orders.upsert([(1, str(time))], time=time, seal=time + 1).result()
        sink = Cut(KafkaSinkConfig(**config(cluster, prefix, "orders")))
        sink.is_after = is_after
        with pytest.raises(TargetUnavailable):
            persist.egress(client, sink, once=True)
    persist.egress(client, config(cluster, prefix, "orders"), once=True)
    found = [value["status"] for key, value, _ in messages(cluster, f"{prefix}orders") if key == {"id": 1}]
    assert found == (["1", "2", "3", "4"] if is_after else ["4"])


def test_a_sink_that_was_dropped_begins_anew(
    client: persist.Client, orders: persist.Collection, cluster: Cluster, prefix: str
) -> None:
    options = config(cluster, prefix, "orders")
    persist.egress(client, options, once=True)
    assert persist.egress(client, options, drop=True).dropped == ("orders",)
    assert persist.egress(client, options, once=True).rows == 2


def test_what_does_not_fit_is_refused_and_no_password_is_told(
    client: persist.Client, orders: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = {"sink": "kafka://me:hunter2@127.0.0.1:1", "collections": ["orders"]}
    with pytest.raises(persist.InvalidUsage, match="name topics by topics"):
        persist.egress(client, {**place, "sink": "kafka://127.0.0.1:1/orders"}, once=True)
    with pytest.raises(persist.InvalidUsage, match="'other' is not one of the collections"):
        persist.egress(client, {**place, "topics": {"other": "x"}}, once=True)
    monkeypatch.setattr(import_module("persist.connect.egress.kafka"), "ASK_S", 0.5)
    with pytest.raises(persist.Unavailable, match="does not answer") as error:
        persist.egress(client, {**place, "client": {"security.protocol": "plaintext"}}, once=True)
    assert "hunter2" not in str(error.value)
