"""What lies under the key of a part by accident is refused: another file, other rows, more than was described."""

import io
import random
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from persist.blob.errors import CorruptBlob
from persist.codecs.part.decoding import decode_part
from persist.codecs.part.describing import describe_footer
from persist.codecs.part.file_reader import measure_level_bytes
from persist.codecs.part.part import GROUPS_MAX, Part, compute_checksum
from persist.codecs.part.stream import encode_parts
from persist.codecs.types.schema import CollectionSchema
from persist.codecs.updates.updates import to_updates
from tests.codecs.part.made import BAD_ROWS, SCHEMAS, file_of, part_of_bad_rows, rows_of

TEXT = CollectionSchema.of({"k": pa.int64()}, {"v": pa.string()})


def part_of(values: list[Any], schema: CollectionSchema = TEXT, **options: Any) -> tuple[bytes, Part, pa.Table]:
    """Return a part of one row for each value."""
    rows = len(values)
    columns = {"k": range(rows), "v": pa.array(values, schema.arrow.field("v").type)}
    table = to_updates(pa.table({**columns, "_time": [0] * rows, "_diff": [1] * rows}), schema)
    ((data, part),) = encode_parts(table, schema, **options)
    return data, part, table


def refused(data: bytes, part: Part, reason: str, schema: CollectionSchema = TEXT) -> None:
    """Assert that a part is refused for a reason, with a filter too."""
    believed = msgspec.structs.replace(
        part, bytes=len(data), checksum=compute_checksum(data), footer=describe_footer(data)
    )
    for filter in (None, pc.field("k") >= 0):
        with pytest.raises(CorruptBlob, match=reason):
            decode_part(data, believed, schema, filter=filter)


def test_a_part_of_other_columns_is_refused() -> None:
    _, part, table = part_of(["a", "b"])
    for other in (
        table.append_column("extra", pa.nulls(2, pa.int8())),
        table.drop_columns(["_diff"]),
        table.set_column(0, "k", pa.array([1.5, 2.5])),
        table.rename_columns([name.upper() for name in table.column_names]),
    ):
        refused(file_of(other), part, "columns")


def test_a_part_of_another_number_of_rows_is_refused() -> None:
    data, part, _ = part_of(["a", "b"])
    refused(data, msgspec.structs.replace(part, rows=3), "it holds 2 rows, and its descriptor says 3")


def test_a_file_that_unpacks_to_much_more_than_its_descriptor_says_is_refused() -> None:
    _, part, _ = part_of(["a"])
    data, *_ = part_of(["x" * 10_000_000])
    assert len(data) < 100_000
    refused(data, part, "its pages unpack to")


def test_there_are_never_more_row_groups_than_readers_accept() -> None:
    data, part, table = part_of([str(n) for n in range(1000)], row_group_rows=1)
    assert 1 < pq.ParquetFile(io.BytesIO(data)).metadata.num_row_groups <= GROUPS_MAX
    assert decode_part(data, part, TEXT).equals(table)
    refused(file_of(table, row_group_size=1), part, "1000 row groups, and 1000 rows have 64 at most")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"rows": 300}, "it holds 200 rows"),
        ({"rows": 3}, "it holds 200 rows"),
        ({"memory": 10}, "its pages unpack to"),
        ({"row groups": 200}, "200 row groups"),
    ],
    ids=["more rows", "fewer rows", "bytes once decoded", "row groups"],
)
def test_a_part_that_does_not_fit_its_descriptor_is_refused_before_anything_is_decoded(
    change: dict[str, int], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, part, table = part_of(["x" * 100_000] * 200)
    if "row groups" in change:
        data = file_of(table, row_group_size=1)
    else:
        part = msgspec.structs.replace(part, **change)

    def decoded(*arguments: Any, **options: Any) -> None:
        pytest.fail("rows were decoded")

    for name in ("read", "read_row_group", "read_row_groups", "iter_batches"):
        monkeypatch.setattr(pq.ParquetFile, name, decoded)
    refused(data, part, reason)
    monkeypatch.undo()


def test_what_is_no_parquet_file_is_refused() -> None:
    data, part, _ = part_of(["a"])
    for other in (b"PAR1", b"PAR1" + bytes(4) + b"PAR1", data[:-8] + b"\xff\xff\xff\x7fPAR1", data[4:], bytes(100)):
        refused(other, part, "not a Parquet file|it is not a part")


@pytest.mark.parametrize("bad", BAD_ROWS, ids=repr)
def test_rows_that_contradict_the_descriptor_are_refused(bad: dict[str, Any]) -> None:
    data, part, schema = part_of_bad_rows(bad)
    refused(data, part, "it holds|NULL|sum to|not a part", schema)


def test_a_dictionary_of_few_long_values_is_read() -> None:
    values = ["x" * 200_000, *(f"short {n % 50}" for n in range(20_000))]
    data, part, table = part_of(values)
    assert pq.ParquetFile(io.BytesIO(data)).metadata.row_group(0).column(1).has_dictionary_page
    assert decode_part(data, part, TEXT).combine_chunks().equals(table.combine_chunks())
    found = decode_part(data, part, TEXT, columns=["v", "k"], filter=pc.field("k") < 3)
    assert found.combine_chunks().equals(table.select(["v", "k"]).slice(0, 3).combine_chunks())


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: "-".join(schema.names) or "unit")
def test_nested_columns_take_memory_for_each_of_their_levels(schema: CollectionSchema) -> None:
    ((data, part),) = encode_parts(rows_of(random.Random(3), schema, 200), schema)
    metadata = pq.read_metadata(io.BytesIO(data))
    assert 0 <= measure_level_bytes(data, schema.arrow) <= part.memory
    nested = [at for at in range(metadata.num_columns) if "." in metadata.schema.column(at).path]
    widths = {"BYTE_ARRAY": 0, "INT32": 4, "INT64": 8, "DOUBLE": 8, "FLOAT": 4, "BOOLEAN": 1}
    levels = [metadata.row_group(0).column(at).num_values for at in nested]
    kinds = [metadata.schema.column(at).physical_type for at in nested]
    expected = sum(count * (4 + widths[kind]) for count, kind in zip(levels, kinds, strict=True))
    assert measure_level_bytes(data, schema.arrow) == expected


@pytest.mark.parametrize("text", ["plain ascii", "ümläut", "\U0001f600" * 10])
def test_text_that_is_utf8_passes(text: str) -> None:
    data, part, table = part_of([text, None, ""])
    assert decode_part(data, part, TEXT).equals(table)
