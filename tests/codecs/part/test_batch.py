"""A few updates as one Arrow batch: it reads as it was written, and what lies about itself is refused."""

import random
import struct

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from persist.blob.errors import CorruptBlob
from persist.codecs.errors import InvalidUpdate
from persist.codecs.part.decoding import decode_part
from persist.codecs.part.describing import check_part, describe_batch
from persist.codecs.part.index import check_readable
from persist.codecs.part.part import Part, compute_checksum, encode_batch
from persist.codecs.part.stream import encode_parts
from persist.codecs.types.schema import CollectionSchema
from persist.codecs.updates.updates import to_updates
from tests.codecs.part.made import SCHEMAS, rows_of

MAX = 16 << 10
TEXT = CollectionSchema.of({"k": pa.int64()}, {"v": pa.string()})
SECONDS = CollectionSchema.of({"k": pa.int64()}, {"t": pa.timestamp("s")})


def batch_of(rows: int = 3, schema: CollectionSchema = TEXT) -> tuple[bytes, Part]:
    ((data, part),) = encode_parts(rows_of(random.Random(rows), schema, rows), schema, batch_bytes_max=MAX)
    return data, part


def believed(data: bytes, part: Part) -> Part:
    return msgspec.structs.replace(part, bytes=len(data), checksum=compute_checksum(data), inline=data)


def refused(data: bytes, part: Part, reason: str, schema: CollectionSchema = TEXT) -> None:
    for filter in (None, pc.field("k") >= 0):
        with pytest.raises(CorruptBlob, match=reason):
            decode_part(data, believed(data, part), schema, filter=filter)


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: "-".join(schema.names) or "unit")
def test_a_batch_holds_what_a_file_would(schema: CollectionSchema) -> None:
    for seed in range(6):
        table = rows_of(random.Random(seed), schema, 1 + 3 * seed)
        as_files = [(part, decode_part(data, part, schema)) for data, part in encode_parts(table, schema)]
        as_batch = encode_parts(table, schema, batch_bytes_max=MAX)
        assert len(as_batch) == len(as_files)
        for (data, part), (file, rows) in zip(as_batch, as_files, strict=True):
            assert decode_part(data, part, schema).equals(rows.combine_chunks())
            assert check_part(data, part, schema)[0] == ()
            for member in ("rows", "time_min", "time_max", "negatives", "diff_sum"):
                assert getattr(part, member) == getattr(file, member)
            if part.keys is not None and file.keys is not None:
                assert (part.keys[0], part.keys[-1]) == (file.keys[0], file.keys[-1])


def test_columns_and_filters_are_those_of_a_file() -> None:
    data, part = batch_of(20)
    whole = decode_part(data, part, TEXT)
    assert decode_part(data, part, TEXT, columns=["_diff", "k"]).equals(whole.select(["_diff", "k"]))
    assert decode_part(data, part, TEXT, columns=[]).num_rows == part.rows
    kept = decode_part(data, part, TEXT, columns=["v"], filter=pc.field("k") > 50)
    assert kept.equals(whole.filter(pc.field("k") > 50).select(["v"]))


def test_what_takes_too_much_is_a_file() -> None:
    table = to_updates([((n, "x" * 100), 0, 1) for n in range(200)], TEXT)
    ((_, part),) = encode_parts(table, TEXT, batch_bytes_max=MAX)
    assert part.footer is not None
    ((data, part),) = encode_parts(table.slice(0, 100), TEXT, batch_bytes_max=MAX)
    assert part.footer is None
    assert len(data) <= MAX


def test_what_parquet_may_refuse_is_checked_by_writing_parquet() -> None:
    table = pa.table({"k": [1], "t": pa.array([2**62], pa.timestamp("s")), "_time": [0], "_diff": [1]})
    with pytest.raises(InvalidUpdate):
        encode_parts(to_updates(table, SECONDS), SECONDS, batch_bytes_max=MAX)


def test_a_batch_is_written_only_if_readers_take_it() -> None:
    data, part = batch_of()
    check_readable(data, part, TEXT)
    with pytest.raises(InvalidUpdate, match="rows"):
        check_readable(data, msgspec.structs.replace(part, rows=part.rows + 1), TEXT)


def test_a_batch_has_no_footer_and_is_no_blob() -> None:
    _, part = batch_of()
    with pytest.raises(CorruptBlob, match="no footer"):
        _ = part.footer_range
    with pytest.raises(ValueError, match="footer"):
        msgspec.structs.replace(part, blob="part/x")


def test_a_batch_of_other_columns_is_refused() -> None:
    data, part = batch_of()
    wider = CollectionSchema.of({"k": pa.int64()}, {"v": pa.string(), "w": pa.string()})
    with pytest.raises(CorruptBlob, match="not a part"):
        decode_part(data, part, wider)
    numbers = CollectionSchema.of({"k": pa.string()}, {"v": pa.string()})
    with pytest.raises(CorruptBlob):
        decode_part(data, part, numbers)


def test_other_messages_and_no_messages_are_refused() -> None:
    data, part = batch_of()
    refused(TEXT.arrow.serialize().to_pybytes(), part, "record batch")
    for other in (b"PAR1" * 20, data[8:], b"\xff" * 100, struct.pack("<Ii", 2**32 - 1, 2**31 - 1)):
        refused(other, part, "not a part")


def test_a_lie_about_rows_or_memory_is_refused() -> None:
    data, part = batch_of()
    for lie in ({"rows": part.rows + 1}, {"rows": 2**60, "diff_sum": 2**60}, {"memory": part.memory + 8}):
        refused(data, msgspec.structs.replace(part, **lie), "descriptor says")


def test_text_that_is_not_utf8_is_refused() -> None:
    columns = [pa.array([1]), pa.array([b"\xff"]).view(pa.string()), pa.array([0]), pa.array([1])]
    bad = pa.Table.from_arrays(columns, schema=TEXT.arrow)
    data = encode_batch(bad)
    refused(data, describe_batch(data, bad, TEXT), "UTF8|UTF-8")
