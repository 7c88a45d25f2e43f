"""Schemas of any width that is allowed hold data that can be read; wider ones are refused before anything is stored."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import persist
from persist.blob.protocol import MemoryBlob
from persist.codecs.errors import InvalidUpdate
from persist.codecs.part import describing, file_reader
from persist.codecs.part.stream import PartStream, encode_parts
from persist.codecs.types.schema import LEAVES_MAX, CollectionSchema
from persist.codecs.updates.updates import to_updates


def fields(width: int) -> dict[str, pa.DataType]:
    """Return fields of several types, of that many leaves together."""
    kinds = [pa.int64(), pa.string(), pa.float32(), pa.bool_(), pa.decimal128(9, 2), pa.timestamp("us")]
    return {f"f{n}": kinds[n % len(kinds)] for n in range(width)}


def flat(width: int) -> dict[str, pa.DataType]:
    return fields(width)


def struct(width: int) -> dict[str, pa.DataType]:
    return {"s": pa.struct(fields(width))}


def deep(width: int) -> dict[str, pa.DataType]:
    """Return lists of structs with structs in them."""
    half = width // 2
    inner = {"a": pa.struct(fields(half))} if half else {}
    return {"s": pa.list_(pa.struct({**inner, **{f"g{n}": pa.int16() for n in range(width - half)}}))}


def updates(value: dict[str, pa.DataType], times: list[int], diffs: list[int]) -> pa.Table:
    """Return an update of key 7 at each time: all values NULL, in a struct that is not."""
    columns: dict[str, Any] = {"k": pa.array([7] * len(times), pa.int64())}
    for name, kind in value.items():
        null: Any = None
        if pa.types.is_struct(kind):
            null = {}
        elif pa.types.is_list(kind):
            null = [{}, None]
        columns[name] = pa.array([null] * len(times), kind)
    return pa.table({**columns, "_time": times, "_diff": diffs})


@pytest.mark.thorough(except_every=12)  # A wide one takes 3 s. The first tier has a narrow one, and a wide key below.
@pytest.mark.parametrize("shape", [deep, struct, flat])
@pytest.mark.parametrize("width", [1, 1_000, 1_022, 1_030])
def test_everything_works_at_any_width(width: int, shape: Any, tmp_path: Path) -> None:
    value = shape(width)
    with persist.open(str(tmp_path)) as client:
        wide = client.create_or_load("wide", key={"k": pa.int64()}, value=value)
        wide.write(updates(value, [0, 1], [1, 1])).result()
        wide.write(updates(value, [2], [-1])).result()
        wide.seal(3).result()
    with persist.open(str(tmp_path)) as client:
        wide = client.create_or_load("wide", key={"k": pa.int64()}, value=value)
        changes = wide.changes(0, 3).to_arrow()
        assert sorted(zip(changes["_time"].to_pylist(), changes["_diff"].to_pylist(), strict=True)) == [
            (0, 1),
            (1, 1),
            (2, -1),
        ]
        assert wide.snapshot(as_of=1, columns=["k"]).to_arrow()["k"].to_pylist() == [7, 7]
        found = wide.snapshot(as_of=2).to_arrow()
        assert found.equals(updates(value, [0], [1]).select(found.column_names))
        wide.compact()
        assert wide.snapshot(as_of=2).to_arrow().equals(found)
        assert client.fsck().is_clean


@pytest.mark.thorough  # The test above has a wide one, and these take seconds.
@pytest.mark.parametrize("shape", [flat, struct])
@pytest.mark.parametrize("width", [5_000, LEAVES_MAX - 1])  # The key is a leaf, too.
def test_what_was_acknowledged_can_be_read_at_any_width_that_is_allowed(width: int, shape: Any, tmp_path: Path) -> None:
    value = shape(width)
    with persist.open(str(tmp_path)) as client:
        wide = client.create_or_load("wide", key={"k": pa.int64()}, value=value)
        wide.write(updates(value, [0], [1])).result()
        wide.seal(1).result()
        found = wide.snapshot().to_arrow()
        assert found.equals(updates(value, [0], [1]).select(found.column_names))


@pytest.mark.thorough(except_every=3)
@pytest.mark.parametrize("shape", [flat, struct, deep])
def test_a_schema_that_is_too_wide_is_refused_and_the_limit_is_named(shape: Any) -> None:
    with persist.open(MemoryBlob()) as client:
        with pytest.raises(
            persist.errors.SchemaMismatch, match="have 20001 leaf columns, and a collection can have 20000"
        ):
            client.create_or_load("wide", key={"k": pa.int64()}, value=shape(LEAVES_MAX))
        assert not client.collections()


def test_a_table_that_does_not_fit_a_wide_schema_is_refused_in_few_words() -> None:
    schema = CollectionSchema.of({"k": pa.int64()}, flat(5_000))
    with pytest.raises(persist.errors.SchemaMismatch, match=r"'f49' .* is missing; and 4952 more") as caught:
        to_updates(pa.table({"k": [1]}), schema)
    assert len(str(caught.value)) < 5_000


def test_a_key_may_be_wide() -> None:
    key = {f"k{n}": pa.int64() for n in range(1_100)}
    with persist.open(MemoryBlob()) as client:
        wide = client.create_or_load("wide", key=key, value=None)
        wide.write([((tuple(range(n, n + 1_100)), None), 0, 1) for n in range(3)])
        wide.seal(1).result()
        assert wide.snapshot(as_of=0, columns=["k9"]).to_arrow()["k9"].to_pylist() == [9, 10, 11]


def test_row_groups_of_very_many_columns_are_not_tiny(tmp_path: Path) -> None:
    """Else their metadata would be many times what is in them, with a small budget above all."""
    value = {f"f{n}": pa.int64() for n in range(1_000)}
    rows = 400
    table = pa.table(
        {"k": range(rows), **dict.fromkeys(value, pa.array(range(rows))), "_time": [0] * rows, "_diff": [1] * rows}
    )
    with persist.open(str(tmp_path), settings=persist.Settings(memory_budget=16 << 20)) as client:
        wide = client.create_or_load("wide", key={"k": pa.int64()}, value=value)
        wide.write(table).result()
        wide.seal(1).result()
        assert sum(part.stat().st_size for part in tmp_path.rglob("*.parquet")) < 2 * table.nbytes
        assert wide.snapshot(as_of=0).count() == rows


def test_rule_16_a_part_that_readers_would_refuse_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check of the reader's that the writer does not know of, here of the number of row groups."""
    schema = CollectionSchema.of({"k": pa.int64()}, {"v": pa.int64()})
    table = to_updates(pa.table({"k": [1], "v": [2], "_time": [0], "_diff": [1]}), schema)
    stream = PartStream(schema)
    stream.add(table)
    with persist.open(MemoryBlob()) as client:
        narrow = client.create_or_load("narrow", key={"k": pa.int64()}, value={"v": pa.int64()})
        monkeypatch.setattr(file_reader, "compute_max_groups", lambda rows: 0)
        for encode in (stream.finish, lambda: encode_parts(table, schema)):
            with pytest.raises(InvalidUpdate, match=r"no reader would accept: .* row groups"):
                encode()
        monkeypatch.setattr(describing, "measure_body", len)  # What little is written is not a file.
        with pytest.raises(persist.PersistError, match="no reader would accept"):
            narrow.write(table).result()
        monkeypatch.undo()
        narrow.write(table).result()
        narrow.seal(1).result()
        assert narrow.snapshot(as_of=0).count() == 1
