"""Whoever has written may use the memory again: what is stored is what it held at the time of the call."""

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import persist
from persist.blob.protocol import MemoryBlob
from persist.blob.threads import SystemClock
from persist.codecs.types.schema import CollectionSchema, Side
from persist.codecs.updates.updates import Stamp
from persist.engine.write.part_writer import PartWriter
from persist.engine.write.write_steps import WriteSteps

Numbers = np.ndarray[Any, Any]
Form = Callable[[Numbers, Numbers], Any]
ROWS = 10_000  # More than what is encoded together with other writes.
KEY, VALUE = {"id": pa.int64()}, {"v": pa.float64()}
SCHEMA = CollectionSchema(Side((pa.field("id", pa.int64()),)), Side((pa.field("v", pa.float64()),)))


class Later(Executor):
    """Does what it is asked for when it is told to."""

    def __init__(self) -> None:
        self._asked: list[Callable[[], object]] = []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        future: Future[Any] = Future()
        self._asked.append(lambda: future.set_result(fn(*args, **kwargs)))
        return future

    def go(self) -> None:
        for each in self._asked:
            each()


def wrapped(array: Numbers, kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, len(array), [None, pa.py_buffer(array)])


FORMS: dict[str, Form] = {
    "dict": lambda ids, v: {"id": ids, "v": v},
    "table": lambda ids, v: pa.table({"id": pa.array(ids), "v": pa.array(v)}),
    "buffers": lambda ids, v: pa.table({"id": wrapped(ids, pa.int64()), "v": wrapped(v, pa.float64())}),
    "reader": lambda ids, v: pa.table({"id": pa.array(ids), "v": pa.array(v)}).to_reader(),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_large_write_that_is_encoded_later_is_what_the_caller_had_when_it_returned(form: str) -> None:
    blob, pool = MemoryBlob(), Later()
    steps = WriteSteps(PartWriter(blob, lambda: 0), pool, SystemClock())
    ids, v = np.arange(ROWS), np.ones(ROWS)
    write = steps.of("c", SCHEMA, FORMS[form](ids, v), Stamp(0, 1))
    ids[:] = ids[::-1].copy()
    v[:] = 7.0
    pool.go()
    assert write is not None
    assert isinstance(write.data, Future)
    (part,) = write.data.result()
    stored = blob.get(part.blob)
    assert stored is not None
    table = pq.read_table(pa.BufferReader(stored))
    assert table["id"].to_pylist() == [*range(ROWS)]
    assert table["v"].to_pylist() == [1.0] * ROWS


def test_what_is_larger_than_what_is_sorted_at_once_is_stored_when_write_returns(blob: MemoryBlob) -> None:
    with persist.open(blob, settings=persist.Settings(memory_budget=16 << 20)) as client:
        collection = client.create_or_load("c", key=KEY, value=VALUE)
        ids, v = np.arange(200_000), np.ones(200_000)
        future = collection.write({"id": ids, "v": v}, time=0, seal=1)
        ids[:] = ids[::-1].copy()
        v[:] = 7.0
        future.result()
        assert collection.snapshot().to_arrow()["v"].to_pylist() == [1.0] * 200_000


def refilled(batches: int = 3, rows: int = 10) -> Iterator[pa.Table]:
    """Yield tables that all have the same memory, which holds other values each time."""
    ids, v = np.zeros(rows, np.int64), np.zeros(rows)
    for batch in range(batches):
        ids[:] = np.arange(batch * rows, (batch + 1) * rows)
        v[:] = batch
        yield pa.table({"id": wrapped(ids, pa.int64()), "v": wrapped(v, pa.float64())})


@pytest.mark.parametrize("method", ["write", "overwrite", "upsert"])
def test_a_generator_may_fill_the_same_buffer_for_each_of_its_batches(blob: MemoryBlob, method: str) -> None:
    keyed: dict[str, Any] = {"keyed": persist.Keyed()} if method == "upsert" else {}
    with persist.open(blob) as client:
        collection = client.create_or_load("c", key=KEY, value=VALUE, **keyed)
        store = getattr(collection, method)
        store = store if method == "overwrite" else partial(store, seal=1)
        store(refilled(), time=0).result()
        assert sorted(collection.snapshot().rows()) == [(at, float(at // 10)) for at in range(30)]


def test_a_token_is_for_what_was_stored(blob: MemoryBlob) -> None:
    with persist.open(blob) as client:
        collection = client.create_or_load("c", key=KEY, value=VALUE)
        collection.write(refilled(), time=0, seal=1, token="t").result()
        rows = [(at, float(at // 10)) for at in range(30)]
        collection.write(rows, time=0, seal=1, token="t").result()
        assert collection.snapshot().count() == 30
