"""A part that is read in pieces gives the same rows as the whole, and no byte of a piece is believed unverified."""

import io
import sys
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persist.blob.errors import CorruptBlob, IncompatibleVersion, InvalidUsage
from persist.codecs.part.decoding import Request, decode_part
from persist.codecs.part.describing import check_part, describe_footer
from persist.codecs.part.index import PartIndex, decode_groups, read_index
from persist.codecs.part.part import Footer, Part, compute_checksum
from persist.codecs.part.stream import encode_parts
from persist.codecs.types.schema import CollectionSchema
from tests.codecs.oracle import sort_keys
from tests.codecs.part.test_part import ORDERS, batches, only, orders
from tests.support.tiers import examples

Pieces = list[tuple[int, bytes]]


def index_of(data: bytes, part: Part, schema: CollectionSchema) -> PartIndex:
    start, end = part.footer_range
    return read_index(data[start:end], part, schema)


def pieces_of(data: bytes, index: PartIndex, numbers: Sequence[int]) -> Pieces:
    return [(number, data[index.groups[number].start : index.groups[number].end]) for number in numbers]


def in_pieces(data: bytes, part: Part, schema: CollectionSchema, **options: Any) -> pa.Table:
    """Read all of a part, one row group at a time."""
    index = index_of(data, part, schema)
    request = Request(schema, **{"columns": schema.arrow.names, **options})
    groups = range(len(index.groups))
    return pa.concat_tables(decode_groups(pieces_of(data, index, [number]), index, part, request) for number in groups)


@settings(max_examples=examples(100))
@given(batches(), st.data())
def test_pieces_are_those_rows_of_the_whole(batch: tuple[CollectionSchema, pa.Table], draw: Any) -> None:
    schema, table = batch
    for data, part in encode_parts(table, schema, row_group_rows=3):
        whole = decode_part(data, part, schema)
        index = index_of(data, part, schema)
        assert [group.first_row for group in index.groups] == list(range(0, part.rows, 3))
        numbers = sorted(draw.draw(st.sets(st.sampled_from(range(len(index.groups))))))
        columns = draw.draw(st.lists(st.sampled_from(schema.arrow.names), unique=True))
        found = decode_groups(pieces_of(data, index, numbers), index, part, Request(schema, columns))
        found.validate(full=True)
        rows = [row for n in numbers for row in range(n * 3, min(n * 3 + 3, part.rows))]
        assert found.num_rows == (len(rows) if numbers else 0)
        expected = whole.take(pa.array(rows, pa.int64())).select(columns)
        assert found.schema.equals(expected.schema, check_metadata=bool(columns))
        assert sort_keys(found, columns) == sort_keys(expected, columns)


def test_the_groups_of_an_interval_of_rows_are_those_that_hold_some() -> None:
    data, part = only(encode_parts(orders(100), ORDERS, row_group_rows=30))
    index = index_of(data, part, ORDERS)
    assert [group.rows for group in index.groups][:3] == [30] * 3
    last = len(index.groups) - 1
    assert index.list_groups_within(0, 1) == [0]
    assert index.list_groups_within(29, 31) == [0, 1]
    assert index.list_groups_within(30, 60) == [1]
    assert index.list_groups_within(0, part.rows) == list(range(last + 1))
    assert index.list_groups_within(30, 30) == []
    assert index.list_groups_within(part.rows, part.rows + 10) == []


def test_groups_lie_one_after_another_from_the_magic_on() -> None:
    data, part = only(encode_parts(orders(1000), ORDERS, row_group_rows=100))
    index = index_of(data, part, ORDERS)
    metadata = pq.ParquetFile(io.BytesIO(data)).metadata
    assert index.groups[0].start == 4
    for n, (group, after) in enumerate(zip(index.groups, [*index.groups[1:], None], strict=True)):
        columns = [metadata.row_group(n).column(at) for at in range(metadata.num_columns)]
        assert group.start == (columns[0].dictionary_page_offset or columns[0].data_page_offset)
        assert group.end - group.start == sum(column.total_compressed_size for column in columns)
        assert after is None or group.end == after.start
    assert part.footer is not None
    assert index.nbytes > part.footer.bytes


def test_a_filter_keeps_what_it_keeps_of_the_whole_and_its_columns_need_not_be_asked_for() -> None:
    data, part = only(encode_parts(orders(500), ORDERS, row_group_rows=50))
    keep = (pc.field("amount") > 0) & (pc.field("id") < 70)
    found = in_pieces(data, part, ORDERS, columns=["status"], filter=keep)
    expected = decode_part(data, part, ORDERS, columns=["status"], filter=keep)
    assert found.combine_chunks().equals(expected.combine_chunks())
    some = pc.field("status").isin([f"status-{n}" for n in range(500)])  # Too long to be printed whole.
    assert in_pieces(data, part, ORDERS, columns=["id"], filter=some & keep).num_rows == len(found)
    index = index_of(data, part, ORDERS)
    assert decode_groups(pieces_of(data, index, [0]), index, part, Request(ORDERS, [], keep)).num_rows > 0
    with pytest.raises(InvalidUsage, match="filter"):
        in_pieces(data, part, ORDERS, filter=pc.field("nope") > 1)
    with pytest.raises(InvalidUsage, match="divide by zero"):
        in_pieces(data, part, ORDERS, columns=["status"], filter=pc.divide(pc.field("id"), 0) > 1)
    with pytest.raises(InvalidUsage, match="'price' does not exist"):
        in_pieces(data, part, ORDERS, columns=["price"])


@pytest.mark.parametrize("numbers", [[1, 0], [0, 0], [-1], [99]])
def test_row_groups_are_named_in_order_and_once(numbers: list[int]) -> None:
    data, part = only(encode_parts(orders(100), ORDERS, row_group_rows=30))
    index = index_of(data, part, ORDERS)
    with pytest.raises(ValueError, match="in order and each once"):
        decode_groups([(number, b"") for number in numbers], index, part, Request(ORDERS, ["id"]))


def test_threads_do_not_mix_up_the_pieces_they_read() -> None:
    schema = CollectionSchema.of({"k": pa.int64()}, {f"v{n}": pa.int64() for n in range(8)})
    rows = np.arange(4000)
    table = pa.Table.from_arrays([pa.array(rows * n) for n in range(1, 10)] + [pa.array(rows)] * 2, schema.arrow.names)
    table = table.slice(1).cast(schema.arrow)
    data, part = only(encode_parts(table, schema, row_group_rows=500))
    index = index_of(data, part, schema)
    pieces, request = pieces_of(data, index, range(len(index.groups))), Request(schema, schema.arrow.names)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(20):
            assert decode_groups(pieces, index, part, request).combine_chunks().equals(table)
    finally:
        sys.setswitchinterval(interval)


def test_every_byte_flipped_and_every_truncation_is_noticed_in_pieces() -> None:
    data, part = only(encode_parts(orders(12), ORDERS, row_group_rows=5))
    part = msgspec.structs.replace(part, blob="parts/abc")
    index = index_of(data, part, ORDERS)
    assert len(index.groups) > 1
    assert part.footer is not None
    for i in range(part.footer.bytes):
        footer = data[part.footer_range[0] :]
        flipped = footer[:i] + bytes([footer[i] ^ (1 << (i % 8))]) + footer[i + 1 :]
        for bad in (flipped, footer[:i], footer[i + 1 :]):
            with pytest.raises(CorruptBlob, match="parts/abc"):
                read_index(bad, part, ORDERS)
    everything = Request(ORDERS, ORDERS.arrow.names)
    for number, piece in pieces_of(data, index, range(len(index.groups))):
        for i in range(len(piece)):
            flipped = piece[:i] + bytes([piece[i] ^ (1 << (i % 8))]) + piece[i + 1 :]
            for bad in (flipped, piece[:i], piece + b"\0"):
                with pytest.raises(CorruptBlob, match=f"parts/abc.* row group {number}"):
                    decode_groups([(number, bad)], index, part, everything)
    (first, second) = pieces_of(data, index, [0, 1])
    with pytest.raises(CorruptBlob):
        decode_groups([(0, second[1]), (1, first[1])], index, part, everything)


def believed(data: bytes, part: Part) -> Part:
    return msgspec.structs.replace(part, bytes=len(data), checksum=compute_checksum(data), footer=describe_footer(data))


def with_index(change: Callable[[Any], Any], *, raw: bool = False) -> tuple[bytes, Part]:
    """Return a part of three row groups whose index is another of the same length, under right checksums."""
    data, part = only(encode_parts(orders(12), ORDERS, row_group_rows=5))
    start = data.rindex(b'{"version":1')
    end = data.index(b"}", start) + 1
    old = data[start:end]
    new = change(old) if raw else msgspec.json.encode(change(msgspec.json.decode(old)))
    assert len(new) <= len(old)
    data = data[:start] + new + b" " * (len(old) - len(new)) + data[end:]
    return data, believed(data, part)


def lengths(*change: int) -> Callable[[Any], Any]:
    def of(index: Any) -> Any:
        for group, delta in zip(index["groups"], change, strict=False):
            group[0] += delta
        return index

    return of


LYING: dict[str, Callable[[Any], Any]] = {
    "a longer first group": lengths(10, -10),
    "a shorter first group": lengths(-10, 10),
    "an empty group": lambda index: {**index, "groups": [[0, index["groups"][0][1]], *index["groups"][1:]]},
    "a negative length": lambda index: {**index, "groups": [[-9, index["groups"][0][1]], *index["groups"][1:]]},
    "a group beyond the file": lambda index: {**index, "groups": [*index["groups"][:-1], [2**40, ""]]},
    "a group far beyond the file": lambda index: {**index, "groups": [*index["groups"][:-1], [10**18, ""]]},
    "groups in another order": lambda index: {**index, "groups": index["groups"][::-1]},
    "a group less": lambda index: {**index, "groups": index["groups"][1:]},
    "no groups": lambda index: {**index, "groups": []},
    "no version": lambda index: {"groups": index["groups"]},
    "a number for a checksum": lambda index: {**index, "groups": [[group[0], 1] for group in index["groups"]]},
    "a list": lambda index: index["groups"],
    "null": lambda _: None,
}
GARBAGE = {
    "not JSON": lambda old: b"{" * len(old),
    "not UTF-8": lambda old: b"\xff" * len(old),
    "deep": lambda old: b"[" * len(old),
    "empty": lambda _: b"",
}


@pytest.mark.parametrize("lie", LYING)
def test_an_index_that_lies_is_noticed(lie: str) -> None:
    data, part = with_index(LYING[lie])
    with pytest.raises(CorruptBlob):
        in_pieces(data, part, ORDERS)
    findings, _ = check_part(data, part, ORDERS)
    assert [finding.kind for finding in findings] == ["descriptor"]
    assert decode_part(data, part, ORDERS).num_rows == part.rows  # Which does not look at it.


@pytest.mark.parametrize("garbage", GARBAGE)
def test_an_index_that_is_none_is_noticed(garbage: str) -> None:
    data, part = with_index(GARBAGE[garbage], raw=True)
    with pytest.raises(CorruptBlob, match=r"persist\.groups in its footer is malformed"):
        in_pieces(data, part, ORDERS)


def test_a_checksum_in_the_index_that_is_wrong_is_noticed() -> None:
    data, part = with_index(lambda index: {**index, "groups": [[n, "0" * 16] for n, _ in index["groups"]]})
    with pytest.raises(CorruptBlob, match=f"its index says {'0' * 16}"):
        in_pieces(data, part, ORDERS)
    assert len(check_part(data, part, ORDERS)[0]) == 1


def test_a_newer_index_is_refused() -> None:
    data, part = with_index(lambda index: {**index, "version": 2})
    with pytest.raises(IncompatibleVersion, match="format version 2"):
        in_pieces(data, part, ORDERS)
    assert "version 2" in check_part(data, part, ORDERS)[0][0].what


def test_a_part_without_an_index_is_refused_in_pieces() -> None:
    _, part = only(encode_parts(orders(12), ORDERS))
    sink = io.BytesIO()
    pq.write_table(decode_part(*only(encode_parts(orders(12), ORDERS)), ORDERS), sink, compression="zstd")
    part = believed(sink.getvalue(), part)
    with pytest.raises(CorruptBlob, match=r"no persist\.groups"):
        in_pieces(sink.getvalue(), part, ORDERS)


@pytest.mark.parametrize("size", [0, 7, 8, 12])
def test_a_descriptor_with_a_short_footer_is_noticed(size: int) -> None:
    data, part = only(encode_parts(orders(12), ORDERS))
    footer = data[len(data) - size :]
    part = msgspec.structs.replace(part, footer=Footer(size, compute_checksum(footer)))
    with pytest.raises(CorruptBlob):
        read_index(footer, part, ORDERS)


def test_a_footer_longer_than_its_part_is_noticed() -> None:
    data, part = only(encode_parts(orders(12), ORDERS))
    part = msgspec.structs.replace(part, footer=Footer(len(data) + 1, ""))
    with pytest.raises(CorruptBlob, match=f"{len(data) + 1} of its {len(data)} bytes"):
        _ = part.footer_range


def test_a_footer_of_other_columns_or_rows_is_noticed() -> None:
    data, part = only(encode_parts(orders(12), ORDERS))
    other = CollectionSchema.of({"id": pa.int64()}, {"status": pa.string(), "amount": pa.int64()})
    with pytest.raises(CorruptBlob, match="amount: int64"):
        index_of(data, part, other)
    with pytest.raises(CorruptBlob, match="rows"):
        index_of(data, msgspec.structs.replace(part, rows=part.rows + 1, negatives=0), ORDERS)


def test_pieces_are_held_to_what_the_descriptor_says() -> None:
    data, part = only(encode_parts(orders(20_000), ORDERS))
    for change in ({"time_min": 5, "time_max": 5}, {"negatives": 0}):
        with pytest.raises(CorruptBlob, match="its descriptor says"):
            in_pieces(data, msgspec.structs.replace(part, **change), ORDERS)
    with pytest.raises(CorruptBlob, match="memory"):
        index_of(data, msgspec.structs.replace(part, memory=10), ORDERS)
