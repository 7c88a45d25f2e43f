"""The public API end to end: what goes in comes out, in every form, from every thread and process, as a plain
computation in Python says."""

import asyncio
import gc
import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import monotonic, sleep
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import persist
from persist.blob.layers.metered import MeteredBlob
from persist.blob.layers.unreliable import UnreliableBlob
from persist.blob.protocol import MemoryBlob
from tests.support.clocks import ImpatientClock
from tests.support.stepped import WAIT_S

KEY = {"k": pa.int64()}
VALUE = {"v": pa.string()}


def table(*rows: tuple[int, str, int, int]) -> pa.Table:
    columns = zip(*rows, strict=True)
    return pa.table(dict(zip(("k", "v", "_time", "_diff"), map(list, columns), strict=True)))


# create_or_load.


def test_create_or_load_is_idempotent(client: persist.Client, blob: MemoryBlob) -> None:
    first = client.create_or_load("orders", key=KEY, value=VALUE)
    blobs = [entry.key for entry in blob.list("")]
    again = client.create_or_load("orders", key=pa.schema(KEY), value=pa.schema(VALUE))
    assert (again.id, again.schema) == (first.id, first.schema)
    with persist.open(blob) as other:
        assert other.create_or_load("orders", key=KEY, value=VALUE).id == first.id
        assert other.load("orders").schema == first.schema
    assert [entry.key for entry in blob.list("")] == blobs


@pytest.mark.parametrize(
    ("key", "value", "difference"),
    [
        ({"k": pa.int32()}, VALUE, "key field 'k' is stored as int64, given as int32"),
        (KEY, {"v": pa.string(), "w": pa.int64()}, "value field 'w' (int64) is unexpected"),
        (KEY, {"w": pa.string()}, "value field 'v' (string) is missing"),
        (KEY, None, "the value is stored as fields {v: string}, given as unit (no column)"),
        (KEY, persist.Json(), "the value is stored as fields {v: string}, given as codec 'json' version 1"),
    ],
)
def test_another_schema_is_refused_and_the_difference_shown(
    client: persist.Client, orders: persist.Collection, key: Any, value: Any, difference: str
) -> None:
    with pytest.raises(persist.errors.SchemaMismatch) as caught:
        client.create_or_load("orders", key=key, value=value)
    for text in ("'orders'", difference, "Give the stored schema, or use another collection name"):
        assert text in str(caught.value)


def test_another_order_of_fields_is_refused_and_shown(client: persist.Client) -> None:
    client.create_or_load("pairs", key={"a": pa.int64(), "b": pa.int64()})
    with pytest.raises(persist.errors.SchemaMismatch, match=r"stored in the order \['a', 'b'\].*\['b', 'a'\]"):
        client.create_or_load("pairs", key={"b": pa.int64(), "a": pa.int64()})


def test_another_codec_is_refused_and_shown(client: persist.Client) -> None:
    client.create_or_load("texts", key=persist.Utf8(), value=persist.Json())
    with pytest.raises(persist.errors.CodecMismatch, match=r"key of collection 'texts'.*'utf8' version 1.*'binary'"):
        client.create_or_load("texts", key=persist.Binary(), value=persist.Json())


def test_many_clients_that_create_at_once_get_the_same_collection(blob: MemoryBlob) -> None:
    together = threading.Barrier(8)

    def create() -> str:
        with persist.open(blob) as client:
            together.wait(WAIT_S)
            return client.create_or_load("orders", key=KEY, value=VALUE).id

    with ThreadPoolExecutor(8) as pool:
        assert len({future.result() for future in [pool.submit(create) for _ in range(8)]}) == 1


# Codecs.


class Celsius(persist.Codec[float]):
    name = "celsius"
    version = 1
    arrow_type = pa.int64()

    def encode(self, value: float) -> int:
        return round(value * 10)

    def decode(self, stored: int) -> float:
        return stored / 10


class NewerCelsius(Celsius):
    version = 2


@pytest.mark.parametrize(
    ("codec", "values"),
    [
        (persist.Utf8(), ["", "a", "ü漢🎈", None]),
        (persist.Binary(), [b"", b"\0\xff", None]),
        (persist.Int64(), [-(2**63), 0, 2**63 - 1, None]),
        (persist.Json(), [None, True, 1, 1.5, "x", [1, [2]], {"a": None, "b": {"c": []}}]),
        (Celsius(), [-273.1, 0.0, 21.5]),
    ],
    ids=lambda value: value.name if isinstance(value, persist.Codec) else "",
)
def test_what_goes_through_a_codec_comes_back(blob: MemoryBlob, codec: Any, values: list[Any]) -> None:
    with persist.open(blob) as client:
        keyed = client.create_or_load("keyed", key=codec)
        keyed.write([((v, None), 0, 1) for v in values], seal=1)
        valued = client.create_or_load("valued", key=KEY, value=codec)
        valued.write([((i, v), 0, 1) for i, v in enumerate(values)], seal=1).result()
    with persist.open(blob, mode="read") as reader:
        keys = [k for k, _ in reader.create_or_load("keyed", key=codec).snapshot(0).rows()]
        assert sorted(map(repr, keys)) == sorted(map(repr, values))
        found = reader.create_or_load("valued", key=KEY, value=codec).snapshot(0)
        assert sorted(found.rows(), key=lambda row: int(row[0])) == list(enumerate(values))


def test_unit_on_both_sides_holds_one_record(client: persist.Client) -> None:
    things = client.create_or_load("things", key=persist.Unit(), value=persist.Unit())
    things.write([((None, None), 0, 1)] * 3, seal=1).result()
    assert list(things.snapshot(0, form="diff").rows()) == [((None, None), 3)]


def test_changes_end_at_the_latest_time_if_they_say_so(orders: persist.Collection) -> None:
    orders.write([((1, "a"), 0, 1), ((2, "a"), 3, 1), ((3, "a"), 9, 1)], seal=5).result()
    found = orders.changes(0, "latest").to_arrow()
    assert found == orders.changes(0).to_arrow()
    assert found["_time"].to_pylist() == [0, 3]
    assert orders.changes("latest", "latest").to_arrow().num_rows == 0


def test_codecs_on_both_sides_come_back_in_changes(blob: MemoryBlob) -> None:
    with persist.open(blob) as client:
        both = client.create_or_load("both", key=persist.Utf8(), value=Celsius())
        both.write([(("here", 21.5), 3, 1)], seal=4).result()
        assert list(both.changes(0, 4).updates()) == [(("here", 21.5), 3, 1)]


def test_a_users_codec_of_another_version_is_refused_on_reopening(blob: MemoryBlob) -> None:
    with persist.open(blob) as client:
        here = client.create_or_load("here", key=KEY, value=Celsius())
        here.write([((1, 21.5), 0, 1)], seal=1).result()
    with persist.open(blob) as client:
        with pytest.raises(persist.errors.CodecMismatch, match=r"'celsius' version 1, and codec 'celsius' version 2"):
            client.create_or_load("here", key=KEY, value=NewerCelsius())
        unknown = client.load("here")
        assert unknown.snapshot(0).to_arrow().to_pydict() == {"k": [1], "value": [215]}
        with pytest.raises(persist.errors.CodecMismatch, match="pass that codec to create_or_load"):
            list(unknown.snapshot(0).rows())
        with pytest.raises(persist.errors.CodecMismatch, match="pass that codec to create_or_load"):
            unknown.write([((1, 21.5), 1, 1)])


# Inputs and outputs.

ROWS = [(1, "a", 0, 1), (2, "ü", 0, 2), (3, "c", 1, 1)]
TUPLES = [((k, v), t, d) for k, v, t, d in ROWS]


def test_every_kind_of_output_holds_the_same(orders: persist.Collection) -> None:
    orders.write(TUPLES, seal=2).result()
    expected = [(1, "a"), (2, "ü"), (2, "ü"), (3, "c")]
    found = orders.snapshot(1)
    assert found.schema == pa.schema({**KEY, **VALUE})

    def pairs(result: pa.Table) -> list[tuple[Any, ...]]:
        return sorted(zip(*result.to_pydict().values(), strict=True))

    assert pairs(found.to_arrow()) == expected
    assert pairs(pa.Table.from_batches(found.to_batches(), schema=found.schema)) == expected
    assert sorted(found.to_pandas().itertuples(index=False, name=None)) == expected
    assert sorted(found.to_polars().rows()) == expected
    assert sorted(pl.DataFrame(found).rows()) == expected
    assert pairs(pa.table(found)) == expected
    assert pairs(pa.RecordBatchReader.from_stream(found).read_all()) == expected
    assert sorted(found.rows()) == expected
    assert found.count() == 4
    changes = orders.changes(0, 2)
    assert sorted(changes.to_polars().rows()) == sorted(ROWS)
    assert sorted(changes.to_pandas().itertuples(index=False, name=None)) == sorted(ROWS)
    assert pairs(pa.table(changes)) == sorted(ROWS)


# Reads against a plain computation.

# Futures.


def test_a_future_can_be_waited_for_awaited_and_polled(orders: persist.Collection) -> None:
    async def several() -> list[int]:
        futures = [orders.write([((i, "a"), 0, 1)]) for i in range(20)]
        return [await futures[0], *await asyncio.gather(*(asyncio.wrap_future(f) for f in futures[1:]))]

    seqnos = asyncio.run(several())
    assert seqnos == sorted(seqnos)
    future = orders.seal(1)
    assert future.result(WAIT_S) >= seqnos[-1]
    assert (future.done(), future.exception(), future.cancel()) == (True, None, False)
    assert orders.snapshot(0).count() == 20


def test_many_threads_write_through_one_client(orders: persist.Collection) -> None:
    def write(thread: int) -> None:
        futures = [orders.write([((thread * 100 + i, "a"), 0, 1)]) for i in range(100)]
        for future in futures:
            future.result(WAIT_S)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    orders.seal(1).result()
    assert sorted(k for k, _ in orders.snapshot(0).rows()) == list(range(800))


# Closing.


def test_everything_after_close_is_refused(blob: MemoryBlob) -> None:
    client = persist.open(blob)
    orders = client.create_or_load("orders", key=KEY, value=VALUE)
    orders.write([((1, "a"), 0, 1)], seal=1).result()
    held = orders.snapshot(0)
    client.close()
    client.close()
    calls: list[Callable[[], object]] = [
        lambda: orders.write([((1, "a"), 5, 1)]),
        lambda: orders.seal(5),
        lambda: orders.allow_compaction(1),
        orders.drop,
        lambda: orders.snapshot(0),
        lambda: orders.changes(0, 1),
        lambda: orders.listen(0),
        lambda: orders.subscribe(0),
        lambda: orders.upper,
        lambda: orders.since,
        held.to_arrow,
        lambda: client.load("orders"),
        lambda: client.create_or_load("orders", key=KEY, value=VALUE),
        client.collections,
        client.multi_write,
    ]
    for call in calls:
        with pytest.raises(persist.errors.ClientClosed, match=r"came after close.*nothing was done.*persist\.open"):
            call()


def test_close_finishes_what_was_asked_for(blob: MemoryBlob) -> None:
    client = persist.open(blob)
    orders = client.create_or_load("orders", key=KEY, value=VALUE)
    big = pa.table({"k": range(50_000), "v": ["x"] * 50_000, "_time": [0] * 50_000, "_diff": [1] * 50_000})
    futures = [orders.write([((i, "a"), 0, 1)]) for i in range(500)] + [orders.write(big), orders.seal(1)]
    client.close()
    assert all(future.done() for future in futures)
    with persist.open(blob, mode="read") as reader:
        assert reader.load("orders").snapshot(0).count() == 50_500


# Group commit and small parts.


def test_a_thousand_tiny_writes_take_far_fewer_puts() -> None:
    metered = MeteredBlob(MemoryBlob())
    with persist.open(metered) as client:
        orders = client.create_or_load("orders", key=KEY, value=VALUE)
        before = metered.get_counts()
        futures = [orders.write([((i, "a"), 0, 1)]) for i in range(1000)]
        for future in futures:
            future.result()
        after = metered.get_counts()
        puts = sum(after[name].requests - before[name].requests for name in ("create", "set"))
        assert puts <= 150
        orders.seal(1).result()
        assert orders.snapshot(0).count() == 1000


# Listening.


def test_a_listen_in_another_thread_follows_another_client_to_the_end(blob: MemoryBlob) -> None:
    seen: queue.Queue[persist.Progress | None] = queue.Queue()
    with persist.open(blob) as writer, persist.open(blob, mode="read") as reader:
        orders = writer.create_or_load("orders", key=KEY, value=VALUE)
        orders.write([((0, "before"), 0, 1)], seal=1).result()

        def follow() -> None:
            with reader.load("orders").subscribe(0) as progresses:
                for progress in progresses:
                    seen.put(progress)
                assert progresses.is_finished
            seen.put(None)

        thread = threading.Thread(target=follow)
        thread.start()
        first = seen.get(timeout=WAIT_S)
        assert first is not None
        assert (first.updates.to_pylist(), first.upper) == (
            [{"k": 0, "v": "before", "_time": 0, "_diff": 1}],
            persist.Antichain(1),
        )
        for time in range(1, 6):
            orders.write([((time, "a"), time, 1), ((time - 1, "a"), time, -1)], seal=time + 1)
        orders.write([((99, "last"), 2**63 - 2, 1)])
        orders.seal(persist.Antichain()).result()
        found: list[dict[str, Any]] = []
        upper = first.upper
        while (progress := seen.get(timeout=WAIT_S)) is not None:
            times = progress.updates["_time"].to_pylist()
            assert upper < progress.upper
            assert all(upper.has_beyond(t) and not progress.upper.has_beyond(t) for t in times)
            upper = progress.upper
            found += progress.updates.to_pylist()
        thread.join(WAIT_S)
        assert upper == persist.Antichain()
        whole = orders.changes(1, 2**63 - 1).to_arrow().to_pylist()
        assert sorted(found, key=repr) == sorted(whole, key=repr)


def test_poll_gives_none_when_there_is_nothing_within_the_timeout(orders: persist.Collection) -> None:
    orders.seal(1).result()
    with orders.listen(0) as listen:
        assert listen.poll() is None
        assert listen.poll(timeout_s=0.02) is None
        orders.write([((1, "a"), 1, 1)])
        assert listen.poll() is None
        orders.seal(2).result()
        progress = listen.poll(timeout_s=WAIT_S)
        assert progress is not None
        assert (progress.upper, len(progress.updates)) == (persist.Antichain(2), 1)
        orders.seal(3).result()
        empty = listen.poll(timeout_s=WAIT_S)
        assert empty is not None
        assert (empty.upper, len(empty.updates)) == (persist.Antichain(3), 0)
        assert not listen.is_finished
    assert listen.is_finished
    with pytest.raises(persist.InvalidUsage, match="was closed"):
        listen.poll(timeout_s=None)
    assert list(listen) == []


def test_closing_a_listen_ends_a_wait_in_another_thread(orders: persist.Collection) -> None:
    listen = orders.listen(0)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: list(listen))
        listen.close()
        assert waiting.result(WAIT_S) == []


def test_a_listen_ends_with_an_error_when_the_collection_is_destroyed(orders: persist.Collection) -> None:
    orders.seal(1).result()
    listen = orders.listen(0)
    orders.drop().result()
    with pytest.raises(persist.errors.CollectionNotFound, match="'orders'"):
        next(listen)


# multi_write.


def test_multi_write_refuses_misuse(client: persist.Client, orders: persist.Collection, blob: MemoryBlob) -> None:
    before = [entry.key for entry in blob.list("")]
    with client.multi_write() as multi:
        pass
    with pytest.raises(persist.InvalidUsage, match="multi_write"):
        multi.write(orders, [((1, "a"), 0, 1)])
    with pytest.raises(persist.InvalidUsage, match="multi_write"):
        multi.seal(orders, 1)
    with persist.open(blob) as other:
        theirs = other.load("orders")
        with pytest.raises(persist.InvalidUsage, match="'orders' belongs to another client"), client.multi_write() as m:
            m.write(theirs, [((1, "a"), 0, 1)])
    with pytest.raises(persist.errors.InvalidUpdate), client.multi_write() as multi:
        multi.write(orders, [((1, "a"), 0, 1)])
        multi.write(orders, [((1, "a"), None, 1)])
    assert [entry.key for entry in blob.list("")] == before


# Locations and processes.


def test_metrics_tell_what_a_client_did(blob: MemoryBlob) -> None:
    with persist.open(blob) as client:
        orders = client.create_or_load("orders", key={"k": pa.int64()})
        orders.write([((1, None), 0, 1)], token="t", seal=1).result()
        orders.write([((1, None), 0, 1)], token="t", seal=1).result()
        assert orders.seal(0).exception() is not None
        with orders.snapshot(0) as snapshot:
            snapshot.to_arrow()
            found = client.metrics().as_dict()
        assert found["commits"] == {
            "records": 3,
            "operations": 4,
            "repeated": 1,
            "rejected": 1,
            "lost_races": 0,
            "checkpoints": 0,
            "relayed": 0,
            "in_doubt": 0,
        }
        assert found["leases"] == {"granted": 1, "holds": 1, "reads": 1}
        assert found["log"] == {"seqno": 2, "beyond_end": 0}
        assert found["store"]["create"]["requests"] == 4  # One of them to prove the store.
        assert found["store"]["create"]["p99_s"] > 0
        assert "create" in str(client.metrics())
    with persist.open(blob, mode="read") as reader:
        assert "commits" not in reader.metrics().as_dict()


def test_a_client_dropped_after_failed_writes_leaves_no_thread_behind() -> None:
    before = set(threading.enumerate())
    blob = UnreliableBlob(MemoryBlob())
    client = persist.open(blob, clock=ImpatientClock(), settings=persist.Settings(background=False))
    orders = client.create_or_load("orders", key={"k": pa.int64()}, value=None)
    blob.go_down()
    told = threading.Event()

    def tell(_: object, known: persist.Client = client) -> None:
        told.set()

    orders.write([((1, None), 0, 1)]).add_done_callback(tell)
    assert told.wait(WAIT_S)
    del client, orders, tell
    deadline_s = monotonic() + WAIT_S
    while left := set(threading.enumerate()) - before:
        assert monotonic() < deadline_s, left
        gc.collect()
        sleep(0.01)
