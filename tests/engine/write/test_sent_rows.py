"""Rows on their way to who commits them take no more memory than they have bytes."""

import random
import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import persist
from persist.codecs.types.schema import CollectionSchema
from persist.engine.write.sent_rows import check_sent_rows, decode_rows, encode_rows


def schema_of(**value: Any) -> CollectionSchema:
    with persist.open("memory://sent-rows") as client:
        collection = client.create_or_load("x" + "".join(value), key={"k": int}, value=value)
        return collection.schema


def batch_of(schema: CollectionSchema, rows: int) -> pa.RecordBatch:
    columns = {"k": np.arange(rows), "v": ["a" * 100] * rows, "_time": np.full(rows, 5), "_diff": np.ones(rows, int)}
    return pa.record_batch([pa.array(columns[name]) for name in schema.arrow.names], schema=schema.arrow)


def test_rows_come_out_as_they_were_sent() -> None:
    schema = schema_of(v=str)
    for rows in (1, 7, 10_000):
        table = pa.Table.from_batches([batch_of(schema, rows)])
        assert decode_rows(encode_rows(table), schema) == table


def test_a_text_that_is_no_utf8_is_refused_wherever_it_comes_from() -> None:
    schema = schema_of(v=str)
    [whole] = pa.Table.from_batches([batch_of(schema, 2)]).to_batches()
    offsets, texts = pa.py_buffer(np.array([0, 1, 3], np.int32)), pa.py_buffer(b"a\xff\xfe")
    broken = pa.Array.from_buffers(pa.string(), 2, [None, offsets, texts])
    columns = [broken if name == "v" else whole.column(name) for name in schema.arrow.names]
    data = encode_rows(pa.Table.from_arrays(columns, schema=schema.arrow))
    with pytest.raises(ValueError, match=r"not a batch of the collection's schema.*UTF8"):
        decode_rows(data, schema)


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_compressed_rows_are_refused_before_they_are_unpacked(codec: str) -> None:
    batch = batch_of(schema_of(v=str), 100_000)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_batch(batch)
    _, message = pa.ipc.MessageReader.open_stream(pa.BufferReader(sink.getvalue()))
    data = message.serialize().to_pybytes()
    before = pa.total_allocated_bytes()
    with pytest.raises(ValueError, match="compressed: send a record batch without compression"):
        decode_rows(data, schema_of(v=str))
    assert pa.total_allocated_bytes() < before + 1_000_000  # Unpacked it has 12 MB; other threads have a little.


def test_rows_that_are_said_to_be_more_than_their_bytes_can_hold_are_refused() -> None:
    schema = schema_of(v=str)
    data = encode_rows(pa.Table.from_batches([batch_of(schema, 1000)]))
    for rows in (2**40, -1, 10**6):
        forged = data.replace(struct.pack("<q", 1000), struct.pack("<q", rows))
        with pytest.raises(ValueError, match="cannot hold"):
            check_sent_rows(forged)
    (head_bytes,) = struct.unpack_from("<i", data, 4)
    last = data.rindex(struct.pack("<qq", 1000, 0), 0, 8 + head_bytes)
    for values in (2**50, 8 * len(data) + 1, -1):
        forged = data[:last] + struct.pack("<q", values) + data[last + 8 :]
        with pytest.raises(ValueError, match="more values"):
            check_sent_rows(forged)


def test_a_batch_of_no_rows_and_no_columns_passes() -> None:
    schema = schema_of(v=str)
    check_sent_rows(batch_of(schema, 0).serialize().to_pybytes())
    check_sent_rows(pa.record_batch({}).serialize().to_pybytes())


def test_columns_that_share_their_bytes_are_refused() -> None:
    numbers = pa.array(np.zeros(10_000, int))
    batch = pa.record_batch([numbers] * 3, ["a", "b", "c"])
    data = batch.serialize().to_pybytes()
    check_sent_rows(data)
    (head_bytes,) = struct.unpack_from("<i", data, 4)
    shared = data[: 8 + head_bytes] + data[8 + head_bytes :][:170_000]
    with pytest.raises(ValueError, match="share bytes"):
        check_sent_rows(shared)


def test_a_damaged_head_is_an_error_of_value_and_never_another() -> None:
    chance = random.Random(7)
    schema = schema_of(v=str)
    data = encode_rows(pa.Table.from_batches([batch_of(schema, 3)]))
    (head_bytes,) = struct.unpack_from("<i", data, 4)
    too_long = data[:4] + struct.pack("<i", len(data)) + data[8:]
    for damaged in (b"", data[:7], data[:40], b"\0" * 400, data[8:], b"\0" + data[1:], too_long):
        with pytest.raises(ValueError, match="not an Arrow record batch"):
            check_sent_rows(damaged)
    refused = 0
    for _ in range(3000):
        damaged_head = bytearray(data)
        for _ in range(chance.randint(1, 4)):
            damaged_head[chance.randrange(8 + head_bytes)] = chance.randrange(256)
        try:
            decode_rows(bytes(damaged_head), schema)
        except (ValueError, persist.InvalidUsage):
            refused += 1
    assert refused > 1000
