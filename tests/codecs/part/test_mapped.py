"""Of a mapped file just the chunks that hold requested rows are read and verified."""

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from persist.codecs.part.mapped import CHUNK_BYTES, MappedRows, encode_mapped_file

ROWS = 6000
COLUMNS: list[tuple[pa.DataType, Any]] = [
    (pa.int64(), lambda n: n),
    (pa.int8(), lambda n: n % 100),
    (pa.timestamp("us"), lambda n: n),
    (pa.decimal128(9, 2), lambda n: Decimal(n)),
    (pa.binary(3), lambda n: b"abc"),
    (pa.string(), lambda n: "x" * (n % 40)),
    (pa.large_binary(), lambda n: b"x" * (n % 40)),
    (pa.bool_(), lambda n: n % 3 == 0),
    (pa.list_(pa.int8()), lambda n: [n % 100]),
    (pa.struct([("a", pa.int64())]), lambda n: {"a": n}),
]


def find_needed(mapped: MappedRows, column: pa.Array, rows: list[int]) -> set[int]:
    """Return the chunks with bytes of some rows, byte range by byte range."""
    kind, buffers, ranges = column.type, column.buffers(), list[tuple[pa.Buffer, int, int]]()
    is_text = pa.types.is_string(kind) or pa.types.is_large_binary(kind)
    if pa.types.is_nested(kind) or pa.types.is_boolean(kind):
        ranges += [(buffer, 0, buffer.size) for buffer in buffers if buffer is not None]
    else:
        width = 8 if pa.types.is_large_binary(kind) else 4 if is_text else kind.bit_width // 8
        for row in rows:
            if buffers[0] is not None:
                ranges.append((buffers[0], row // 8, row // 8 + 1))
            ranges.append((buffers[1], row * width, (row + 1 + is_text) * width))
            if is_text:
                ends = np.frombuffer(buffers[1], f"<i{width}")
                ranges.append((buffers[2], int(ends[row]), int(ends[row + 1])))
    at = [
        (buffer.address - mapped._address + start, buffer.address - mapped._address + end)
        for buffer, start, end in ranges
    ]
    return {byte // CHUNK_BYTES for start, end in at if end > start for byte in range(start, end)}


@pytest.mark.parametrize("has_null", [False, True])
@pytest.mark.parametrize(("kind", "make"), COLUMNS, ids=lambda value: str(value)[:20])
def test_chunks_of_requested_rows_are_verified_and_no_others(kind: pa.DataType, make: Any, has_null: bool) -> None:
    values = [None if has_null and n % 7 == 0 else make(n) for n in range(ROWS)]
    batch = pa.record_batch({"first": pa.array(range(ROWS)), "v": pa.array(values, kind)})
    file = b"".join(bytes(piece) for piece in encode_mapped_file(batch, b"name"))
    start = len(file) - len(bytes(encode_mapped_file(batch, b"name")[1]))
    for rows in ([0], [ROWS - 1], [3000], [7, 3000, 3001], [2048, 4096]):
        mapped = MappedRows(pa.py_buffer(file), b"name", batch.schema, ROWS)
        count = -(-mapped.message_bytes // CHUNK_BYTES)
        opened = {*range(count)} - {*mapped.list_unchecked()}
        needed = opened.union(*(find_needed(mapped, column, rows) for column in mapped.batch.columns))
        mapped.verify_rows(np.array(rows))
        assert {*range(count)} - {*mapped.list_unchecked()} == needed
        assert mapped.batch.take(pa.array(rows)).equals(batch.take(pa.array(rows)))
        for chunk in {0, 1, count // 2, count - 1, *sorted(needed)[-2:]}:
            at = start + min((chunk + 1) * CHUNK_BYTES, mapped.message_bytes) - 1
            damaged = pa.py_buffer(file[:at] + bytes([file[at] ^ 1]) + file[at + 1 :])
            if chunk in opened:
                with pytest.raises(ValueError, match="do not match their checksum"):
                    MappedRows(damaged, b"name", batch.schema, ROWS)
                continue
            other = MappedRows(damaged, b"name", batch.schema, ROWS)
            if chunk in needed:
                with pytest.raises(ValueError, match=f"its bytes from {chunk * CHUNK_BYTES} on"):
                    other.verify_rows(np.array(rows))
            else:
                other.verify_rows(np.array(rows))
            with pytest.raises(ValueError, match="its rows do not match"):
                other.verify_rows(None)
    mapped.verify_rows(np.zeros(0, np.int64))
    mapped.verify_rows(None)
    assert mapped.list_unchecked() == []
