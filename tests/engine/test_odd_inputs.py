"""Inputs at the edges: streams without rows, and columns named like internal ones."""

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

import persist

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
ROWS = pa.table({"id": [1], "v": ["a"]}, SCHEMA)
NONE = SCHEMA.empty_table()


def reader(*tables: pa.Table) -> pa.RecordBatchReader:
    batches = [batch for table in tables for batch in table.to_batches() or [pa.RecordBatch.from_pylist([], SCHEMA)]]
    return pa.RecordBatchReader.from_batches(SCHEMA, batches)


@pytest.mark.parametrize("mode", ["append", "upsert", "overwrite"])
@pytest.mark.parametrize(
    ("made", "rows"),
    [
        (lambda: reader(), 0),
        (lambda: reader(NONE), 0),
        (lambda: reader(NONE, ROWS, NONE), 1),
        (lambda: iter([NONE]), 0),
        (lambda: iter([NONE, ROWS]), 1),
    ],
)
def test_a_new_collection_of_a_stream_is_readable_and_has_its_rows(
    made: Callable[[], pa.RecordBatchReader | Iterator[pa.Table]], rows: int, mode: Any
) -> None:
    with persist.open(persist.MemoryBlob()) as client:
        client.write("t", made(), key=["id"], mode=mode).result()
        assert client.load("t").snapshot().to_arrow().equals(ROWS.slice(0, rows))


def test_a_reader_that_was_written_is_not_read_again() -> None:
    with persist.open(persist.MemoryBlob()) as client:
        data = reader(ROWS)
        client.write("t", data, key=["id"]).result()
        with pytest.raises(persist.InvalidUsage, match="can be read once only"):
            client.write("t", data, key=["id"])


def test_a_column_may_be_named_like_the_group_of_an_upsert() -> None:
    with persist.open(persist.MemoryBlob()) as client:
        for keyed in (None, persist.Keyed()):
            collection = client.create_or_load(
                f"t{keyed is None}", key={"id": int}, value={"_group": int, "v": int}, keyed=keyed
            )
            collection.upsert([{"id": 1, "_group": 5, "v": 3}, {"id": 2, "_group": 5, "v": 3}]).result()
            collection.update([{"id": 1, "v": 4}]).result()
            expected = [{"id": 1, "_group": 5, "v": 4}, {"id": 2, "_group": 5, "v": 3}]
            assert sorted(collection.snapshot().to_pylist(), key=lambda row: row["id"]) == expected
