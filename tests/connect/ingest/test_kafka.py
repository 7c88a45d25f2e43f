"""Topics into collections: each message once, its offset in the same commit, whoever is killed and whatever comes."""

import itertools
import json
import threading
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

import persist
from persist.blob.protocol import MemoryBlob
from persist.connect.ingest.driver import load_source
from persist.engine.follow.follower import Follower
from persist.errors import UpperMismatch
from tests.connect.ingest.brokers import PARTITIONS, Cluster, FragileCluster
from tests.core.keyed.test_crash import SETTINGS, Died, MortalBlob
from tests.support.stepped import WAIT_S

_topics = (f"t{number}" for number in itertools.count())
NOON_MS = int(datetime(2026, 11, 23, 12, tzinfo=UTC).timestamp() * 1000)


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def topic() -> str:
    return next(_topics)


def taken(client: persist.Client, cluster: Cluster, topic: str, **options: Any) -> Any:
    config = {"source": f"kafka://{cluster.address}/{topic}", "collection": "rows", **options}
    return persist.ingest(client, config, once=True)


def held(client: persist.Client, name: str = "rows", as_of: Any = None) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = client.load(name).snapshot(as_of).to_arrow().to_pylist()
    return sorted(rows, key=str)


def positions(client: persist.Client, topic: str) -> dict[int, int]:
    """Return the next offset of each partition, as the properties of a source say."""
    said = client.load("rows.transactions").about.properties[f"ingest.next {topic}"]
    return {partition: at for partition, at in enumerate(json.loads(said)) if at is not None}


def reasons(client: persist.Client, name: str = "rows") -> list[tuple[int, str]]:
    if f"{name}.rejected" not in client.collections():  # It is made by the first bad message.
        return []
    return sorted((row["offset"], row["reason"]) for row in held(client, f"{name}.rejected"))


def test_a_run_looks_at_the_log_once_before_it_reads_and_once_after(
    client: Any, cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.send(topic, {"id": 1})
    taken(client, cluster, topic, key=["id"])
    looks: list[str] = []
    read_forward = Follower._read_forward

    def counted(follower: Follower) -> None:
        looks.append(threading.current_thread().name)
        read_forward(follower)

    monkeypatch.setattr(Follower, "_read_forward", counted)
    assert taken(client, cluster, topic).commits == 0
    assert looks.count(threading.current_thread().name) <= 4


def test_topics_become_collections_in_one_commit(client: Any, cluster: Cluster) -> None:
    orders, users = next(_topics), next(_topics)
    cluster.send(orders, {"id": 1, "user": "a"})
    cluster.send(users, {"name": "a"}, {"name": "b"})
    into = [
        {"topic": orders, "collection": "orders", "columns": {"id": "int64", "user": "string"}, "key": ["id"]},
        {"topic": users, "collection": "users", "columns": {"name": "string"}, "key": ["name"], "keyed": True},
    ]
    config = {"source": f"kafka://{cluster.address}", "into": into, "name": "shop"}
    first = persist.ingest(client, config, once=True)
    assert len(set(first.uppers.values())) == 1
    assert set(first.uppers) == {"orders", "users", "shop.transactions"}
    cluster.send(users, {"name": "a"}, {"name": "c"})
    cluster.send(orders, {"id": 1, "user": "c"})
    second = persist.ingest(client, config, once=True)
    assert len(set(second.uppers.values())) == 1
    assert held(client, "users") == [{"name": "a"}, {"name": "b"}, {"name": "c"}]
    assert len(held(client, "orders")) == 2


def test_rows_of_a_keyed_collection_replace_each_other_and_tombstones_delete(
    client: Any, cluster: Cluster, topic: str
) -> None:
    options = {"key": ["id"], "keyed": True, "columns": {"id": "string", "n": "int64"}}
    cluster.send(topic, (b"a", {"id": "a", "n": 1}), (b"b", {"id": "b", "n": 1}), (b"a", {"id": "a", "n": 2}))
    taken(client, cluster, topic, **options)
    assert held(client) == [{"id": "a", "n": 2}, {"id": "b", "n": 1}]
    cluster.send(topic, (b"b", None), (b'"c"', {"id": "c", "n": 1}), (b'{"id":"c"}', None), (None, None))
    taken(client, cluster, topic, **options)
    assert held(client) == [{"id": "a", "n": 2}]
    assert reasons(client) == [(6, "it has neither a value nor a key")]


def test_bad_messages_go_to_a_collection_of_their_own(client: Any, cluster: Cluster, topic: str) -> None:
    messages: list[Any] = [
        {"id": 1},
        b"no json",
        {"id": "x"},
        b"\xff",
        b"",
        {"id": 2},
        [1],
        (b"k", None),
        b"\x00\x00\x00\x00\x01a",
    ]
    cluster.send(topic, *messages)
    taken(client, cluster, topic, key=["id"], columns={"id": "int64"})
    assert held(client) == [{"id": 1}, {"id": 2}]
    assert [at for at, _ in reasons(client)] == [1, 2, 3, 4, 6, 7, 8]
    assert dict(reasons(client))[1] == "it is not a JSON object: 'no json'"
    [kept] = [row for row in held(client, "rows.rejected") if row["offset"] == 7]
    assert (kept["topic"], kept["partition"], kept["key"], kept["value"]) == (topic, 0, b"k", None)
    cluster.send(topic, {"id": 3}, {"id": 4})
    taken(client, cluster, topic)
    assert (len(held(client)), len(reasons(client))) == (4, 7)


def test_documents_of_any_shape_are_taken_and_others_are_set_aside(client: Any, cluster: Cluster, topic: str) -> None:
    columns = {"id": "int64", "doc": "json"}
    good = [
        {"id": 1, "doc": {"a": 1}},
        {"id": 2, "doc": [1, 2]},
        {"id": 3, "doc": '{"b": null}'},
        {"id": 4, "doc": None},
    ]
    cluster.send(topic, *good, {"id": 5, "doc": "hello"}, {"id": 6, "doc": 7})
    assert taken(client, cluster, topic, key=["id"], columns=columns).rows == 6
    stored = {row["id"]: row["doc"] and json.loads(row["doc"]) for row in held(client)}
    assert stored == {1: {"a": 1}, 2: [1, 2], 3: {"b": None}, 4: None, 6: 7}
    [(offset, reason)] = reasons(client)
    assert offset == 4
    assert "'hello'" in reason
    assert "no JSON document" in reason
    cluster.send(topic, {"id": 7, "doc": "{"})
    assert taken(client, cluster, topic).rows == 1
    assert [at for at, _ in reasons(client)] == [4, 6]


def test_late_messages_are_rejected_if_that_is_wanted(client: Any, cluster: Cluster, topic: str) -> None:
    options = {"key": ["id"], "columns": {"id": "int64"}, "late_s": 60.0, "batch_rows": 1}
    for id_, at_s in enumerate((0, 100, 30, 50)):
        cluster.send(topic, {"id": id_}, at_ms=NOON_MS + at_s * 1000)
    taken(client, cluster, topic, **options)
    assert held(client) == [{"id": 0}, {"id": 1}, {"id": 3}]
    for id_, at_ms in ((4, 39_960), (5, 40_000)):
        cluster.send(topic, {"id": id_}, at_ms=NOON_MS + at_ms)
    taken(client, cluster, topic, **options)
    assert reasons(client) == [(2, LATE.format("70.0")), (4, LATE.format("60.0"))]


def test_a_clock_that_is_ahead_makes_no_message_late(client: Any, cluster: Cluster, topic: str) -> None:
    options = {"key": ["id"], "columns": {"id": "int64"}, "late_s": 3600.0, "batch_rows": 1}
    for id_, at_ms in enumerate((NOON_MS * 2, int(datetime.now(UTC).timestamp() * 1000))):
        cluster.send(topic, {"id": id_}, at_ms=at_ms)
    taken(client, cluster, topic, **options)
    assert held(client) == [{"id": 0}, {"id": 1}]


LATE = "it came too late: its timestamp is {} s behind the newest one"


def test_timestamps_of_messages_are_moments(client: Any, cluster: Cluster, topic: str) -> None:
    for id_ in range(3):
        cluster.send(topic, {"id": id_}, at_ms=NOON_MS + id_ * 60_000)
    cluster.send(topic, {"id": 3}, at_ms=NOON_MS)  # Time goes on where a clock runs back.
    cluster.send(topic, {"id": 4}, at_ms=NOON_MS * 2)  # Nothing is of a moment that is yet to come.
    before = datetime.now(UTC)
    taken(client, cluster, topic, key=["id"], batch_rows=1)
    seen = {id_: f"2026-11-23T12:0{minute}:00Z" for id_, minute in ((0, 0), (1, 1), (2, 2))}
    for id_, moment in seen.items():
        assert [row["id"] for row in held(client, as_of=moment)] == [*range(id_ + 1)]
    assert len(held(client, as_of=before)) == 4
    assert len(held(client)) == 5
    with pytest.raises(persist.InvalidUsage, match="first moment"):
        held(client, as_of="2026-11-23T11:59:00Z")


def test_each_poll_is_bounded_by_rows_and_bytes(client: Any, cluster: Cluster, topic: str) -> None:
    cluster.send(topic, *({"id": id_, "pad": "x" * 1000} for id_ in range(40)))
    assert taken(client, cluster, topic, key=["id"], batch_rows=15).commits >= 3
    cluster.send(topic, *({"id": id_, "pad": "x" * 1000} for id_ in range(40, 80)))
    assert taken(client, cluster, topic, batch_bytes=10_000).commits >= 3
    assert len(held(client)) == 80


def test_a_topic_and_partitions_that_appear_are_taken_in(client: Any, cluster: Cluster, topic: str) -> None:
    config = {"source": f"kafka://{cluster.address}/{topic}", "collection": "rows", "key": ["id"], "poll_s": 0.1}
    with pytest.raises(persist.InvalidUsage, match=f"there is no topic '{topic}'"):
        persist.ingest(client, {**config, "columns": {"id": "int64"}}, once=True)
    stop = threading.Event()
    follow = threading.Thread(
        target=persist.ingest, args=(client, {**config, "columns": {"id": "int64"}}), kwargs={"stop": stop}
    )
    with client.load("rows").listen() as listen:
        follow.start()
        try:
            for partition in range(PARTITIONS):
                cluster.send(topic, {"id": partition}, partition=partition)
                while (progress := next(listen)) and not len(progress.updates):
                    pass
                assert progress.updates["id"].to_pylist() == [partition]
        finally:
            stop.set()
            follow.join()


def test_a_broker_that_goes_away_is_waited_for(client: Any, caplog: Any) -> None:
    fragile, topic, stop = FragileCluster(), next(_topics), threading.Event()
    fragile.send(topic, {"id": 0})
    config = {"source": f"kafka://{fragile.address}/{topic}", "collection": "rows", "key": ["id"]}
    taken(client, fragile, topic, key=["id"])
    follow = threading.Thread(target=persist.ingest, args=(client, config), kwargs={"stop": stop})
    try:
        with client.load("rows").listen(0) as listen:
            follow.start()
            for id_ in (1, 2):
                fragile.send(topic, {"id": id_})
                while (progress := next(listen)) and not len(progress.updates):
                    pass
                assert progress.updates["id"].to_pylist() == [id_]
                if id_ == 1:
                    caplog.clear()
                    fragile.set_down()
                    while "does not answer" not in caplog.text:
                        assert follow.is_alive()
                    fragile.set_up()
    finally:
        stop.set()
        follow.join()
        fragile.close()
    assert len(held(client)) == 3


def test_a_topic_that_lost_messages_is_told_with_what_to_do(client: Any, cluster: Cluster, topic: str) -> None:
    cluster.send(topic, *({"id": id_} for id_ in range(10)))
    taken(client, cluster, topic, key=["id"])
    fresh = Cluster()
    fresh.send(topic, {"id": 100}, {"id": 101})
    lost = r"read up to offset 10, and has offsets from 0 to 2 by now, so it was made anew.*rename LOCATION rows rows-b"
    with pytest.raises(persist.InvalidUsage, match=lost):
        taken(client, fresh, topic)
    assert len(held(client)) == 10
    taken(client, fresh, topic, lost="skip")
    assert [row["id"] for row in held(client)][-2:] == [100, 101] or len(held(client)) == 12
    for name in ("rows", "rows.transactions"):
        client.rename(name, f"{name}-before").result()
    taken(client, fresh, topic, key=["id"])
    assert [row["id"] for row in held(client)] == [100, 101]


def test_messages_that_were_deleted_before_they_were_read_are_told(client: Any, cluster: Cluster, topic: str) -> None:
    cluster.send(topic, {"id": 0})
    taken(client, cluster, topic, key=["id"], columns={"id": "int64"})
    for id_ in range(1, 9):  # The mock cluster keeps 5 MiB of a partition.
        cluster.send(topic, {"id": id_, "pad": "x" * 900_000})
    with pytest.raises(persist.InvalidUsage, match=r"read up to offset 1, and has offsets from \d to 9 by now"):
        taken(client, cluster, topic)
    taken(client, cluster, topic, lost="skip")
    assert {0, 8} <= {row["id"] for row in held(client)}


def test_of_two_that_read_one_topic_one_is_told(blob: MemoryBlob, cluster: Cluster, topic: str) -> None:
    cluster.send(topic, {"id": 1})
    config = {"source": f"kafka://{cluster.address}/{topic}", "collection": "rows", "key": ["id"]}
    one = load_source({**config, "columns": {"id": "int64"}}, {})

    class Slower:
        """Reads the same, and another one is faster each time."""

        name, moments = one.name, one.moments
        targets, close = one.targets, one.close

        def batches(self, run: Any) -> Any:
            for batch in one.batches(run):
                with persist.open(blob) as other:
                    taken(other, cluster, topic)
                yield batch

    with persist.open(blob) as client:
        with pytest.raises(UpperMismatch):
            persist.ingest(client, Slower(), once=True)
        assert held(client) == [{"id": 1}]


def test_a_consumer_that_joins_the_group_takes_no_message_away(client: Any, cluster: Cluster, topic: str) -> None:
    from confluent_kafka import Consumer

    member = {"bootstrap.servers": cluster.address, "group.id": "persist", "auto.offset.reset": "earliest"}
    consumer, wanted = Consumer({**member, "log_level": 0}), sent(cluster, topic)
    config = {"source": f"kafka://{cluster.address}/{topic}", "collection": "rows", **OPTIONS}
    one = load_source(config, {})

    class Joined:
        """Reads the same, and another consumer of the group reads and commits after the first batch."""

        name, moments = one.name, one.moments
        targets, close = one.targets, one.close

        def batches(self, run: Any) -> Any:
            for number, batch in enumerate(one.batches(run)):
                yield batch
                if number == 0:
                    consumer.subscribe([topic])
                    assert len(consumer.consume(30, WAIT_S)) == 30
                    consumer.commit(asynchronous=False)

    persist.ingest(client, Joined(), once=True)
    assert held(client) == wanted
    cluster.send(topic, {"id": 60, "partition": 0})
    assert taken(client, cluster, topic, **OPTIONS).rows == 1
    consumer.close()


def sent(cluster: Cluster, topic: str) -> list[dict[str, Any]]:
    rows = [{"id": id_, "partition": id_ % 3} for id_ in range(60)]
    for partition in range(3):
        cluster.send(topic, *(row for row in rows if row["partition"] == partition), partition=partition)
    return sorted(rows, key=str)


OPTIONS = {"key": ["id"], "columns": {"id": "int64", "partition": "int64"}, "batch_rows": 25}


@pytest.mark.parametrize("is_after", [False, True])
@pytest.mark.parametrize(
    "dies_at", [1, 4, *(pytest.param(n, marks=pytest.mark.thorough) for n in (0, 2, 3, *range(5, 9)))]
)
def test_whoever_dies_at_a_change_of_the_store_takes_nothing_twice(
    cluster: Cluster, topic: str, dies_at: int, is_after: bool
) -> None:
    wanted = sent(cluster, topic)
    store = MemoryBlob()
    mortal = MortalBlob(store, dies_at, is_after=is_after)
    try:
        client = persist.open(mortal, settings=SETTINGS)
        taken(client, cluster, topic, **OPTIONS)
    except (Died, persist.PersistError):
        pass
    assert mortal.is_dead
    with persist.open(store, settings=SETTINGS) as client:
        taken(client, cluster, topic, **OPTIONS)
        assert held(client) == wanted
        assert {at: next_ for at, next_ in positions(client, topic).items() if next_} == {0: 20, 1: 20, 2: 20}


def test_no_secret_is_in_a_message_the_history_or_what_is_stored(client: Any, cluster: Cluster, topic: str) -> None:
    cluster.send(topic, {"id": 1})
    url = f"kafka://me:hunter2@{cluster.address}/{topic}"
    options = {
        "collection": "rows",
        "key": ["id"],
        "client": {"security.protocol": "plaintext", "sasl.mechanism": "PLAIN"},
    }
    done = persist.ingest(client, {"source": url, **options}, once=True)
    told = [done.source, client.history().to_pylist(), client.load("rows.transactions").about]
    with pytest.raises(persist.InvalidUsage) as error:
        persist.ingest(client, {"source": url, **options, "client": {"sasl.password": "hunter2", "odd": "hunter2"}})
    assert "hunter2" not in str([*told, error.value])
    assert "odd" in str(error.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"source": "kafka://broker", "into": [{"topic": topic, "collection": "rows"} for topic in ("a", "b")]},
            "'rows' is named for two topics",
        ),
        ({"source": "kafka://broker"}, r"name one topic in the URL, as kafka://host/topic, or several by tables"),
        ({"source": "kafka://a b/t"}, "is not an address of brokers"),
        ({"source": "kafka://b/t", "format": "debezium"}, "name the columns by which rows are told apart"),
        ({"source": "kafka://b/t", "table": "x"}, "table goes with the formats maxwell and canal"),
        ({"source": "kafka://b/t", "batch_rows": 0}, "batch_rows=0 must be above 0"),
        ({"source": "kafka://b/t", "client": {"auto.offset.reset": "latest"}}, "persist sets the option"),
        ({"source": "kafka://b/t", "password_file": "/nowhere"}, "password_file='/nowhere' cannot be read"),
        ({"source": "kafka://b/t", "registry": "ftp://x"}, "is not an address of a schema registry"),
        ({"source": "kafka://b", "into": [{"topic": "t"}]}, "collection"),
        (
            {"source": "kafka://b", "into": [{"topic": "t", "collection": "c"}], "format": "maxwell"},
            r"format belongs to one topic: move it into the tables \[\[into\]\]",
        ),
        ({"source": "kafka://b/t", "formt": "json"}, "did you mean"),
    ],
)
def test_a_config_says_what_is_wrong_with_it(client: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(persist.InvalidUsage, match=message):
        persist.ingest(client, options, once=True)


def test_a_cluster_that_does_not_answer_is_unavailable(client: Any) -> None:
    config = {"source": "kafka://127.0.0.1:1/t", "collection": "rows", "columns": {"id": "int64"}}
    with pytest.raises(persist.Unavailable, match=r"kafka://127\.0\.0\.1:1/t does not answer"):
        persist.ingest(client, config, once=True)


def test_an_unchanged_large_value_stays_and_an_unknown_row_is_rejected(
    client: persist.Client, cluster: Cluster, topic: str
) -> None:
    mark = "__debezium_unavailable_value"
    rows = [
        ("c", 1, "long", 1),
        ("u", 1, mark, 2),
        ("u", 7, mark, 3),
        ("d", 1, None, 0),
        ("u", 1, mark, 4),
        ("c", 2, "b", 5),
    ]
    more = [("u", 2, mark, 6), ("u", 7, mark, 7)]
    options = {"format": "debezium", "key": ["id"], "columns": {"id": "int64", "text": "string", "n": "int64"}}
    for batch in (rows, more):
        for op, id_, text, n in batch:
            after = {"id": id_, "text": text, "n": n}
            cluster.send(topic, {"op": op, "before": {"id": id_}, "after": None if op == "d" else after})
        taken(client, cluster, topic, **options)
    assert held(client) == [{"id": 2, "text": "b", "n": 6}]
    with client["rows"].snapshot(0) as first:
        assert first.to_pylist() == [{"id": 2, "text": "b", "n": 5}]
    assert [offset for offset, reason in reasons(client) if "does not have their row" in reason] == [2, 4, 7]


def test_late_messages_decide_by_their_order_whether_a_row_is_there(
    client: persist.Client, cluster: Cluster, topic: str
) -> None:
    keyed = persist.Keyed(order_by=["n"], tombstone="gone")
    value = {"text": pa.string(), "n": pa.int64(), "gone": pa.bool_()}
    client.create_or_load("rows", key={"id": pa.int64()}, value=value, keyed=keyed)
    mark = "__debezium_unavailable_value"
    deleted = [("c", 1, "old", 1, None), ("u", 1, "old", 5, True), ("c", 1, "late", 3, None), ("u", 1, mark, 6, None)]
    kept = [("c", 2, "new", 7, None), ("u", 2, "late", 4, True), ("u", 2, mark, 8, None), ("u", 3, mark, 1, None)]
    for batch in (deleted, kept, [("u", 1, mark, 9, None), ("c", 1, "again", 10, None), ("u", 1, mark, 11, None)]):
        for op, id_, text, n, gone in batch:
            cluster.send(topic, {"op": op, "after": {"id": id_, "text": text, "n": n, "gone": gone}})
        taken(client, cluster, topic, format="debezium", key=["id"])
    assert held(client) == [
        {"id": 1, "text": "again", "n": 11, "gone": None},
        {"id": 2, "text": "new", "n": 8, "gone": None},
    ]
    assert [offset for offset, reason in reasons(client) if "does not have their row" in reason] == [3, 7, 8]
