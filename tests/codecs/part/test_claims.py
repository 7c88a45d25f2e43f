"""A file that asks for more than its descriptor says, or contradicts itself, is refused before it is decoded."""

import io
import random
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from persist.blob.errors import CorruptBlob
from persist.codecs import CollectionSchema, Part, decode_part, encode_parts, to_updates
from persist.codecs.part.claims import GROUPS_MAX, check_footer
from persist.codecs.part.file_reader import TRIED_BYTES_MAX, CheckedFooters, _layout, from_parquet
from persist.codecs.part.index import footer_range
from persist.codecs.part.layout import FileLayout
from persist.codecs.part.part import checksum_of
from persist.codecs.part.thrift import ThriftReader
from tests.fuzz.part_cases import BAD_ROWS, _mutated, genuine, part_of_bad_rows

TEXT = CollectionSchema.of({"k": pa.int64()}, {"v": pa.string()})
NESTED = CollectionSchema.of({"k": pa.int64()}, {"v": pa.list_(pa.string())})


def part_of(values: list[Any], schema: CollectionSchema = TEXT, **options: Any) -> tuple[bytes, Part, pa.Table]:
    """Return a part of one row for each value."""
    rows = len(values)
    columns = {"k": range(rows), "v": pa.array(values, schema.arrow.field("v").type)}
    table = to_updates(pa.table({**columns, "_time": [0] * rows, "_diff": [1] * rows}), schema)
    ((data, part),) = encode_parts(table, schema, **options)
    return data, part, table


def refused(data: bytes, part: Part, reason: str, schema: CollectionSchema = TEXT) -> None:
    """Assert that a part is refused for a reason, with a filter too."""
    believed = msgspec.structs.replace(part, bytes=len(data), checksum=checksum_of(data))
    for filter in (None, pc.field("k") >= 0):
        with pytest.raises(CorruptBlob, match=reason):
            decode_part(data, believed, schema, filter=filter)


def swapped(data: bytes, old: bytes, new: bytes, after: int = 0) -> bytes:
    at = data.index(old, after)
    return data[:at] + new + data[at + len(old) :]


def footer_at(data: bytes) -> int:
    return len(data) - 8 - int.from_bytes(data[-8:-4], "little")


def test_memory_is_what_the_columns_take() -> None:
    _, part, table = part_of(["a", None, "c"])
    assert part.memory == table.combine_chunks().nbytes


def test_levels_of_nested_columns_count() -> None:
    _, part, table = part_of([["a"] * 5, [], None], NESTED)
    assert part.memory == table.combine_chunks().nbytes + 4 * 7


@pytest.mark.parametrize("schema", [TEXT, NESTED])
def test_less_memory_than_a_part_takes_is_refused(schema: CollectionSchema) -> None:
    text = ["x" * 1000 + str(n) for n in range(500)]
    data, part, table = part_of(text if schema is TEXT else [[each] for each in text], schema)
    assert decode_part(data, part, schema).equals(table)
    refused(data, msgspec.structs.replace(part, memory=part.memory // 5), "pages unpack to over", schema)
    refused(data, msgspec.structs.replace(part, memory=500), "take .* bytes at least", schema)


def test_a_page_that_unpacks_to_more_than_its_header_says_is_refused() -> None:
    data, part, _ = part_of(["x" * 100_000])
    column = pq.ParquetFile(io.BytesIO(data)).metadata.row_group(0).column(1)
    at = column.data_page_offset
    assert data[at : at + 3] == b"\x15\x00\x15"
    length = 1 + next(n for n in range(9) if data[at + 3 + n] < 0x80)
    lie = bytes([0x80] * (length - 1)) + b"\x01"
    refused(data[: at + 3] + lie + data[at + 3 + length :], part, "their column claims")


@pytest.mark.parametrize(
    ("member", "new", "reason"),
    [
        (b"\x15\x0c\x16\x02", b"\x15\x4c\x16\x02", "compressed by method 38"),  # The compression.
        (b"\x15\x0c\x16\x02", b"\x15\x0c\x16\x04", "claims 2 values in 1 rows"),  # The number of values.
        (b"\x26\x08\x3c", b"\x26\x06\x3c", "a column claims the bytes"),  # The offset of the first page.
    ],
)
def test_a_footer_that_lies_is_refused(member: bytes, new: bytes, reason: str) -> None:
    data, part, _ = part_of(["a"])
    refused(swapped(data, member, new, footer_at(data)), part, reason)


def test_a_footer_that_is_longer_than_the_file_is_refused() -> None:
    data, part, _ = part_of(["a"])
    refused(data[:-8] + b"\xff\xff\xff\x7fPAR1", part, "its footer claims")
    refused(b"PAR1" + bytes(4) + b"PAR1", part, "it is not a part")
    refused(b"PAR1", part, "not a Parquet file")


def test_there_are_never_more_row_groups_than_readers_accept() -> None:
    data, part, table = part_of([str(n) for n in range(1000)], row_group_rows=1)
    assert 1 < pq.ParquetFile(io.BytesIO(data)).metadata.num_row_groups <= GROUPS_MAX
    assert decode_part(data, part, TEXT).equals(table)
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=1, compression="zstd")
    refused(sink.getvalue(), part, "1000 row groups, and there can be 64")


def test_a_dictionary_of_few_long_values_is_read_if_the_descriptor_says_so() -> None:
    """One value is long, so that it takes reading the dictionary's positions to know how long the column is."""
    values = ["x" * 200_000, *(f"short {n % 50}" for n in range(20_000))]
    data, part, table = part_of(values)
    assert pq.ParquetFile(io.BytesIO(data)).metadata.row_group(0).column(1).has_dictionary_page
    assert decode_part(data, part, TEXT).combine_chunks().equals(table.combine_chunks())
    found = decode_part(data, part, TEXT, columns=["v", "k"], filter=pc.field("k") < 3)
    assert found.combine_chunks().equals(table.select(["v", "k"]).slice(0, 3).combine_chunks())


def test_a_dictionary_that_is_repeated_more_than_the_descriptor_says_is_refused() -> None:
    long = pa.DictionaryArray.from_arrays(pa.array(np.zeros(20_000, np.int32)), ["x" * 100_000])
    _, part, table = part_of(["x"] * 20_000)
    sink = io.BytesIO()
    pq.write_table(table.set_column(1, "v", long), sink, compression="zstd", store_schema=False)
    assert len(sink.getvalue()) < 400_000
    refused(sink.getvalue(), part, "the dictionary of column 'v' makes it longer")


def test_a_little_too_much_of_a_dictionary_is_tried_and_then_refused() -> None:
    long = pa.DictionaryArray.from_arrays(pa.array(np.zeros(500, np.int32)), ["x" * 2000])
    _, part, table = part_of(["x"] * 500)
    sink = io.BytesIO()
    pq.write_table(table.set_column(1, "v", long), sink, compression="zstd", store_schema=False)
    assert TRIED_BYTES_MAX > 500 * 2000
    refused(sink.getvalue(), part, "the dictionary of column 'v' makes it longer")


def test_a_footer_that_is_kept_is_read_once_and_pages_are_checked_each_time() -> None:
    data, part, table = part_of([str(n) for n in range(100)])
    footers = CheckedFooters()
    for _ in range(2):
        assert decode_part(data, part, TEXT, footers=footers).equals(table)
    buffer = pa.py_buffer(data)
    kept = [footers.read(buffer, part.checksum, TEXT.arrow, part.rows, part.memory) for _ in range(2)]
    assert kept[0] is kept[1]
    # Whatever else has the same name, its pages do not pass for what the footer says.
    other = bytes(4) + data[4:8] + bytes(len(data) - 8)
    with pytest.raises((ValueError, LookupError)):
        from_parquet(
            pa.py_buffer(other),
            TEXT.arrow,
            columns=TEXT.arrow.names,
            rows=part.rows,
            memory=part.memory,
            use_threads=False,
            footer=kept[0],
        )


def test_strings_in_nested_columns_have_no_dictionary() -> None:
    data, part, table = part_of([["x" * 1000] * 10] * 1000, NESTED)
    assert not pq.ParquetFile(io.BytesIO(data)).metadata.row_group(0).column(1).has_dictionary_page
    assert decode_part(data, part, NESTED).equals(table)
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    refused(sink.getvalue(), msgspec.structs.replace(part, memory=100_000), "a dictionary that may take more", NESTED)


@pytest.mark.parametrize("text", ["plain ascii", "ümläut", "\U0001f600" * 10])
def test_text_that_is_utf8_passes(text: str) -> None:
    data, part, table = part_of([text, None, ""])
    assert decode_part(data, part, TEXT).equals(table)


@pytest.mark.parametrize("bad", BAD_ROWS, ids=repr)
def test_rows_that_contradict_the_descriptor_are_refused(bad: dict[str, Any]) -> None:
    data, part, schema, _ = part_of_bad_rows(bad)
    refused(data, part, "it holds|NULL|sum to|not a part", schema)


def outcome(tail: bytes, layout: FileLayout, part: Part) -> Any:
    try:
        return check_footer(memoryview(tail), part.bytes, layout, part.rows, part.memory)
    except (ValueError, LookupError):
        return None


def test_a_footer_as_arrow_writes_it_is_parsed_at_once_and_like_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is changed in it, the quick way finds the same or leaves it to the long one."""
    rng = random.Random(8)
    quickly = ThriftReader._plain_chunk
    taken = 0

    def counted(self: ThriftReader, at: int, depth: int) -> Any:
        nonlocal taken
        found = quickly(self, at, depth)
        taken += found is not None
        return found

    for n in range(600):
        data, part, schema = genuine(rng)
        tail = data[footer_range(part)[0] :]
        if n % 6:
            tail = _mutated(rng, tail[:-8], 0, len(tail) - 8)
            tail += len(tail).to_bytes(4, "little") + b"PAR1"
        layout, _ = _layout(schema.arrow)
        monkeypatch.setattr(ThriftReader, "_plain_chunk", counted)
        quick = outcome(tail, layout, part)
        monkeypatch.setattr(ThriftReader, "_plain_chunk", lambda *_: None)
        assert quick == outcome(tail, layout, part), n
    assert taken > 1000
