"""Rows of topics taken in for each second of CPU time, against reading alone: `python -m benchmarks.kafka`.

A process of its own has the mock cluster of the client library, and keeps what it may (5 MiB for each of four
partitions). Both readings take turns in one run. CPU time is that of all threads of the reading process.

    read    the client library alone: consume all messages, and take value and offset of each
    json    rows of JSON into a collection that adds rows
    keyed   the same rows into a keyed collection
    changes Debezium's changes without the schema part into a keyed collection
"""

import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import persist

MESSAGES, PARTITIONS, ROUNDS = 100_000, 4, 3
COLUMNS = {"id": "int64", "name": "string", "price": "float64", "stock": "int32"}


def row(number: int) -> dict[str, Any]:
    return {"id": number, "name": f"Anne{number % 1000}", "price": number * 1.5, "stock": number % 7}


def serve(address: Any, done: Any) -> None:
    """Have a cluster with all messages until it is told to end."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": "", "test.mock.num.brokers": 1, "linger.ms": 50, "log_level": 0})
    broker = next(iter(producer.list_topics(timeout=60).brokers.values()))
    counts = {"rows": MESSAGES, "changes": MESSAGES // 2}
    for topic, count in counts.items():
        for number in range(count):
            after = row(number)
            message = after if topic == "rows" else {"before": None, "after": after, "op": "c", "ts_ms": 1}
            key = json.dumps({"id": number})
            while True:
                try:
                    producer.produce(topic, key=key, value=json.dumps(message), partition=number % PARTITIONS)
                    break
                except BufferError:
                    producer.poll(0.1)
        producer.flush(60)
    address.put((f"{broker.host}:{broker.port}", counts))
    done.wait()


def read(broker: str, topic: str) -> int:
    """Return how many messages a topic has, by reading them."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": broker, "group.id": "read", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    count = ended = 0
    while ended < PARTITIONS:
        for message in consumer.consume(1000, 0.25):
            if message.error() is None:
                count += len((message.value(), message.offset())) // 2
            else:
                ended += 1
    consumer.close()
    return count


def taken(broker: str, topic: str, **options: Any) -> int:
    with tempfile.TemporaryDirectory() as folder:
        source = {"source": f"kafka://{broker}/{topic}", "key": ["id"], "columns": COLUMNS, **options}
        return persist.ingest(folder, source, once=True).rows


def rates(broker: str) -> Iterator[tuple[str, Callable[[], int]]]:
    yield "read", lambda: read(broker, "rows")
    yield "json", lambda: taken(broker, "rows")
    yield "keyed", lambda: taken(broker, "rows", keyed=True)
    yield "changes", lambda: taken(broker, "changes", format="debezium")


def main() -> None:
    context = multiprocessing.get_context("spawn")
    address, done = context.Queue(), context.Event()
    server = context.Process(target=serve, args=(address, done))
    server.start()
    try:
        broker, _ = address.get()
        seen: dict[str, list[float]] = {}
        for _ in range(ROUNDS):
            for name, measure in rates(broker):
                began = time.process_time()
                count = measure()
                seen.setdefault(name, []).append(count / (time.process_time() - began))
        for name, found in seen.items():
            rate = statistics.median(found)
            print(
                f"{name:8} {rate:12,.0f} rows/s of CPU  {rate / statistics.median(seen['read']):6.2f} of reading alone"
            )
    finally:
        done.set()
        server.join()


if __name__ == "__main__":
    main()
