"""Calls of a server without a line: the store's, messages of data, errors as clients see them, and waiting."""

import time
from collections.abc import Iterator
from typing import Any

import grpc
import msgspec
import pyarrow as pa
import pytest

from persist.blob.errors import Unavailable
from persist.blob.layers.unreliable import Fault, UnreliableBlob
from persist.blob.protocol import LIST_PAGE_ENTRIES, MemoryBlob
from persist.blob.served import SERVED_DELETE_KEYS, BlobDelete, BlobGet, BlobHead, BlobListPage, BlobPage, BlobPut
from persist.errors import CollectionNotFound, Conflict, InvalidUsage, PersistError
from persist.services.serve import flight_calls, server
from persist.services.serve.error_codes import hide_location
from persist.services.serve.flight_calls import (
    DATA_BODY,
    DATA_HEADER,
    ERROR_CHARS_MAX,
    METADATA,
    PIECE_BYTES,
    BlobCalls,
    encode_batch,
    make_schema_message,
)
from persist.services.serve.messages import encode_fields, group_fields


@pytest.fixture
def calls(blob: MemoryBlob) -> BlobCalls:
    return BlobCalls(blob)


def got(calls: BlobCalls, *wanted: Any) -> tuple[BlobHead, bytes]:
    answers = calls.run_action("blob.get", msgspec.json.encode(BlobGet(*wanted)))
    assert answers is not None
    head, *pieces = answers
    assert all(len(piece) <= PIECE_BYTES for piece in pieces)
    return msgspec.json.decode(head, type=BlobHead), b"".join(pieces)


def test_values_come_in_pieces_after_a_head_that_says_how_long_they_are(blob: MemoryBlob, calls: BlobCalls) -> None:
    for size in (0, 1, PIECE_BYTES, PIECE_BYTES + 1, 2 * PIECE_BYTES):
        value = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
        blob.set("k", value)
        assert got(calls, "k") == (BlobHead(found=True, bytes=size), value)
    blob.set("k", b"0123456789")
    assert got(calls, "k", (2, 5))[1] == blob.get("k", range=(2, 5))
    assert got(calls, "k", None, 10)[1] == b"0123456789"
    assert got(calls, "k", None, 9)[0].failure is not None
    assert got(calls, "gone") == (BlobHead(), b"")
    assert calls.run_action("wait", b"") is None


def test_only_so_many_values_are_in_memory_at_a_time(blob: MemoryBlob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight_calls, "GETS_MAX", 1)
    monkeypatch.setattr(flight_calls, "GET_S", 0.01)
    calls = BlobCalls(blob)
    blob.set("k", b"value")
    for _ in range(2):
        reading = calls.run_action("blob.get", msgspec.json.encode(BlobGet("k")))
        assert reading is not None
        next(reading)
        with pytest.raises(Unavailable, match="1 values are being read"):
            got(calls, "k")
        reading.close()  # type: ignore[attr-defined]
    assert got(calls, "k")[1] == b"value"


def test_a_listing_comes_in_pages(blob: MemoryBlob, calls: BlobCalls, monkeypatch: pytest.MonkeyPatch) -> None:
    assert LIST_PAGE_ENTRIES > 2
    monkeypatch.setattr(flight_calls, "LIST_PAGE_ENTRIES", 2)
    for name in ("a/1", "a/2", "a/3", "b/1"):
        blob.set(name, name.encode())

    def page(prefix: str, start_after: str | None = None) -> list[str]:
        answers = calls.run_action("blob.list", msgspec.json.encode(BlobListPage(prefix, start_after)))
        assert answers is not None
        [answer] = answers
        made = msgspec.json.decode(answer, type=BlobPage)
        assert all(size == 3 for _, size, _ in made.entries)
        return [key for key, _, _ in made.entries]

    assert page("a/") == ["a/1", "a/2"]
    assert page("a/", "a/2") == ["a/3"]
    assert page("") == ["a/1", "a/2"]


def put(calls: BlobCalls, wanted: BlobPut, value: bytes) -> BlobHead:
    return msgspec.json.decode(calls.put(wanted, value), type=BlobHead)


def test_a_value_is_stored_or_created_as_is_asked(blob: MemoryBlob, calls: BlobCalls) -> None:
    assert put(calls, BlobPut("k", 3, True), b"new") == BlobHead(found=True)
    assert put(calls, BlobPut("k", 3, True), b"two") == BlobHead(found=False)
    assert put(calls, BlobPut("k", 3, False), b"set") == BlobHead(found=True)
    assert blob.get("k") == b"set"


def test_keys_are_deleted_and_what_stays_is_named(blob: MemoryBlob) -> None:
    store = UnreliableBlob(blob)
    calls = BlobCalls(store)

    def deleted(*keys: str) -> BlobHead:
        answers = calls.run_action("blob.delete", msgspec.json.encode(BlobDelete([*keys])))
        assert answers is not None
        [answer] = answers
        return msgspec.json.decode(answer, type=BlobHead)

    for name in "abc":
        blob.set(name, b"x")
    assert deleted("a") == BlobHead(found=True)
    assert blob.get("a") is None
    store.script_faults("delete", Fault.UNAVAILABLE)
    assert [*deleted("b", "c").failed] == ["b"]
    assert (blob.get("b"), blob.get("c")) == (b"x", None)
    assert deleted(*("k" * 3 for _ in range(SERVED_DELETE_KEYS))) == BlobHead(found=True)
    with pytest.raises(ValueError, match="keys are too many"):
        deleted(*("k" * 3 for _ in range(SERVED_DELETE_KEYS + 1)))


def test_errors_of_the_store_are_told_without_where_it_is(blob: MemoryBlob) -> None:
    store = UnreliableBlob(blob)
    store.script_faults("get", Fault.UNAVAILABLE)
    head, _ = got(BlobCalls(store), "k")
    assert head.failure is not None
    assert head.failure["kind"] == "Unavailable"
    assert store.url not in head.failure["text"]
    assert hide_location("see file:///a/b and /a/b", "file:///a/b") == "see the location and the location"


def test_what_a_client_is_told_of_an_error(caplog: pytest.LogCaptureFixture) -> None:
    code = grpc.StatusCode
    for error, expected, text in [
        (
            CollectionNotFound("c", "memory://x", ()),
            code.NOT_FOUND,
            "CollectionNotFound: no collection 'c' at the location",
        ),
        (InvalidUsage("wrong"), code.INVALID_ARGUMENT, "InvalidUsage: wrong"),
        (ValueError("odd"), code.INVALID_ARGUMENT, "odd"),
        (Unavailable("down"), code.UNAVAILABLE, "Unavailable: down"),
        (Conflict("first"), code.UNAVAILABLE, "Conflict: first"),
    ]:
        told = flight_calls._map_error(error, "memory://x")
        assert told[0] is expected
        assert told[1].startswith(text)
    assert not caplog.records
    assert flight_calls._map_error(KeyError("secret"), "x") == (
        code.INTERNAL,
        "the server failed (KeyError); its log says how",
    )
    assert caplog.records
    assert len(flight_calls._map_error(PersistError("x" * 9000), "y")[1]) == ERROR_CHARS_MAX


def test_messages_of_data_hold_a_batch_its_dictionaries_and_metadata() -> None:
    words = pa.array(["a", "b", "a"]).dictionary_encode()
    for batch, count in ((pa.record_batch({"n": [1, 2]}), 1), (pa.record_batch({"w": words}), 2)):
        messages = [group_fields(each) for each in encode_batch(batch, b"end")]
        assert len(messages) == count
        assert [each.get(METADATA) for each in messages] == [None] * (count - 1) + [b"end"]
        assert all(DATA_HEADER in each and DATA_BODY in each for each in messages)
        assert [METADATA in group_fields(each) for each in encode_batch(batch)] == [False] * count
    assert [*group_fields(make_schema_message(pa.schema([("n", pa.int64())])))] == [DATA_HEADER]


# What answers wait for.


def test_only_so_many_wait_each_of_whom_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "WAITS_MAX", 2)
    hub = server._Hub()
    for waiter in ("a", "b", "a"):
        server._enter_wait(hub, waiter)
    with pytest.raises(Unavailable, match="2 calls wait already"):
        server._enter_wait(hub, "c")
    assert hub.waiters == {"a", "b"}


def stream_waits(stream: server._Stream) -> float | None:
    return stream.waits_since_s


def test_a_stream_that_ends_in_any_way_is_closed_and_makes_room() -> None:
    hub, closed = server._Hub(), list[str]()

    def stream() -> server._Stream:
        made = server._Stream(lambda: closed.append("closed"), lambda: None)
        hub.streams.append(made)
        return made

    whole = stream()
    messages = server._guard(iter([b"1", b"2"]), whole, hub)
    before_s = time.monotonic()
    assert next(messages) == b"1"
    assert whole.waits_since_s is not None
    assert whole.waits_since_s >= before_s
    assert [*messages] == [b"2"]
    assert (hub.streams, closed) == ([], ["closed"])
    assert stream_waits(whole) is None
    dropped = stream()
    messages = server._guard(iter([b"1", b"2"]), dropped, hub)
    next(messages)
    dropped.is_dropped = True
    with pytest.raises(Unavailable, match="the server has dropped this stream"):
        next(messages)
    assert (hub.streams, len(closed)) == ([], 2)
    hub.is_closed = True
    with pytest.raises(Unavailable, match="the server shut down while it sent this answer"):
        [*server._guard(iter([]), stream(), hub)]
    assert (hub.streams, len(closed)) == ([], 3)


def test_batches_are_cut_by_rows_and_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    def rows_of(batch: pa.RecordBatch) -> list[int]:
        pieces = [group_fields(each) for each in server._slice(iter([batch]))]
        schema = group_fields(make_schema_message(batch.schema))[DATA_HEADER]
        continued = b"\xff\xff\xff\xff"

        def framed(header: bytes, body: bytes) -> bytes:
            padded = header + bytes(-len(header) % 8)
            return continued + len(padded).to_bytes(4, "little") + padded + body + bytes(-len(body) % 8)

        stream = framed(schema, b"") + b"".join(framed(each[DATA_HEADER], each.get(DATA_BODY, b"")) for each in pieces)
        return [len(each) for each in pa.ipc.open_stream(stream)]

    monkeypatch.setattr(server, "BATCH_ROWS", 4)
    assert rows_of(pa.record_batch({"n": range(10)})) == [4, 4, 2]
    monkeypatch.setattr(server, "BATCH_BYTES", 24)
    assert rows_of(pa.record_batch({"n": range(7)})) == [3, 3, 1]
    monkeypatch.setattr(server, "BATCH_BYTES", 1)
    assert rows_of(pa.record_batch({"n": range(2)})) == [1, 1]
    assert rows_of(pa.record_batch({"n": pa.array([], pa.int64())})) == [0]


def test_bytes_that_were_announced_must_come_all_and_no_more() -> None:
    def pieces(*sent: bytes) -> Iterator[bytes]:
        yield from (encode_fields((METADATA, each)) for each in sent)
        raise ValueError("the call ended before all of its message had come")

    assert server._receive_bytes(3, {METADATA: b"abc"}, pieces()) == b"abc"
    assert server._receive_bytes(5, {METADATA: b"ab"}, pieces(b"c", b"", b"de", b"more")) == b"abcde"
    assert server._receive_bytes(2, {}, pieces(b"ab")) == b"ab"
    for length, sent in ((4, (b"c",)), (9, ())):
        with pytest.raises(ValueError, match="the call ended before"):
            server._receive_bytes(length, {METADATA: b"ab"}, pieces(*sent))
    with pytest.raises(ValueError, match="5 bytes have come, and 4 were announced"):
        server._receive_bytes(4, {METADATA: b"ab"}, pieces(b"cde"))
    left = pieces(b"a", b"b")
    server._drain(left)
    assert [*left] == []
