"""What a client has just written is read from memory by the same client, and is what everybody else reads."""

from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings

import persist
from persist.blob import MemoryBlob, MeteredBlob
from persist.codecs import CollectionSchema, decode_part, encode_with_rows, to_updates
from persist.write import HandOver
from persist.write.hand_over import COLUMN_BYTES, PARTS_MAX
from tests.codecs.strategies import python_values
from tests.tiers import examples

QUIET = persist.Settings(background=False)
KEY, VALUE = {"k": pa.int64()}, {"v": pa.string()}
TYPES = [pa.int64(), pa.string(), pa.float32(), pa.decimal128(9, 2), pa.timestamp("us"), pa.list_(pa.float64())]
TYPES += [
    pa.struct([("a", pa.int8()), ("b", pa.string())]),
    pa.bool_(),
    pa.binary(3),
    pa.large_string(),
    pa.time32("s"),
]
ROWS = 20_000


def table(first: int = 0, time: int = 0, rows: int = ROWS) -> pa.Table:
    keys = np.arange(first, first + rows)
    columns = {"k": keys, "v": [f"value {key}" for key in keys.tolist()]}
    return pa.table(columns | {"_time": np.full(rows, time), "_diff": np.ones(rows, np.int64)})


@settings(max_examples=examples(60))
@given(st.data(), st.sampled_from(TYPES), st.sampled_from([0, 1 << 14]))
def test_rows_that_are_handed_over_are_what_the_part_decodes_to(data: Any, kind: pa.DataType, room: int) -> None:
    values = st.lists(st.tuples(st.integers(0, 3), python_values(kind), st.integers(0, 2), st.integers(-2, 2)))
    updates = [((k, v), time, diff) for k, v, time, diff in data.draw(values) if diff]
    schema = CollectionSchema.of({"k": pa.int64()}, {"v": kind})
    encoded, rows = encode_with_rows(to_updates(updates, schema), schema, 1 << 20, batch_bytes_max=room)
    assert (rows is None) == (not encoded)
    if rows is not None:
        ((stored, part),) = encoded
        read = decode_part(stored, part, schema)
        assert rows.schema.equals(read.schema, check_metadata=True)
        assert repr(rows.to_pylist()) == repr(read.to_pylist()), "NaN and negative zeros, too"


def test_a_follower_in_the_same_client_reads_nothing_from_the_store() -> None:
    store = MeteredBlob(MemoryBlob())
    with persist.open(store, settings=QUIET) as client:
        source = client.create_or_load("c", key=KEY, value=VALUE)
        source.seal(1).result()
        with source.listen(0) as listen:
            source.write(table(time=1), seal=2).result()
            parts = [key.key for key in store.list("part/")]
            assert len(parts) == 1, "it is too large to be inside the record"
            store.delete(parts[0])  # If it were asked for, it would be missed.
            progress = listen.poll()
            assert progress is not None
            assert progress.updates.select(["k", "v"]).equals(table().select(["k", "v"]))
            assert progress.updates.schema.equals(source.schema.arrow)


def test_another_client_reads_what_is_stored(tmp_path: Path) -> None:
    with persist.open(str(tmp_path), settings=QUIET) as client:
        client.create_or_load("c", key=KEY, value=VALUE).write(table(), seal=1).result()
        with persist.open(str(tmp_path), mode="read") as other:
            assert other.load("c").snapshot().to_arrow().sort_by("k").equals(table().select(["k", "v"]))


def test_projections_filters_and_slices_are_as_of_the_part() -> None:
    with persist.open(MemoryBlob(), settings=QUIET) as client:
        source = client.create_or_load("c", key=KEY, value=VALUE)
        source.write(table(), seal=1).result()
        snapshot = source.snapshot(columns=["v"], filter=pc.field("k") >= ROWS - 2)
        assert sorted(snapshot.to_arrow()["v"].to_pylist()) == [f"value {ROWS - 2}", f"value {ROWS - 1}"]
        changes = source.changes(0, 1, columns=["k"])
        reader = client.engine.reader()
        slices = [table for scan in changes.scan.slices(4) for table in scan.updates(reader, ["k"])]
        assert sorted(key for each in slices for key in each["k"].to_pylist()) == list(range(ROWS))
        with pytest.raises(persist.InvalidUsage, match="cannot be applied"):
            source.snapshot(filter=pc.divide(pc.scalar(1), pc.field("k")) > 0).to_arrow()


def test_a_caller_who_uses_the_buffers_again_changes_nothing() -> None:
    keys = np.arange(ROWS)
    updates = table().set_column(0, "k", pa.array(keys))  # Shares the memory of the array.
    with persist.open(MemoryBlob(), settings=QUIET) as client:
        source = client.create_or_load("c", key=KEY, value=VALUE)
        source.write(updates, seal=1).result()
        keys[:] = -1
        assert source.snapshot().to_arrow().sort_by("k")["k"].to_pylist() == list(range(ROWS))


@pytest.mark.parametrize("rows", [1, ROWS])
def test_no_reader_can_change_what_another_is_given(rows: int) -> None:
    schema = CollectionSchema.of(KEY, VALUE)
    _, given = encode_with_rows(table(rows=rows), schema, 1 << 30, batch_bytes_max=1 << 14)
    assert given is not None
    for column in given.combine_chunks().to_batches()[0].columns:
        assert not any(buffer.is_mutable for buffer in column.buffers() if buffer is not None)


def test_what_an_evolved_collection_hands_over_is_read_by_its_new_schema() -> None:
    with persist.open(MemoryBlob(), settings=QUIET) as client:
        source = client.create_or_load("c", key=KEY, value=VALUE)
        source.write(table(), seal=1).result()
        source.evolve(add={"note": pa.string()}, rename={"v": "w"})
        source = client.load("c")
        found = source.snapshot().to_arrow().sort_by("k")
        assert found.column_names == ["k", "w", "note"]
        assert found["note"].null_count == ROWS
        assert found["w"][5].as_py() == "value 5"


@pytest.mark.parametrize("rows", [1, ROWS])
def test_two_collections_with_equal_bytes_and_other_types_are_told_apart(rows: int) -> None:
    with persist.open(MemoryBlob(), settings=QUIET) as client:
        made = []
        for kind in (pa.int64(), pa.duration("us"), pa.timestamp("us")):
            made.append(client.create_or_load(str(kind), key={"k": kind}, value=None))
            keys = pa.array(np.arange(rows)).cast(kind)
            ones = {"_time": np.zeros(rows, np.int64), "_diff": np.ones(rows, np.int64)}
            made[-1].write(pa.table({"k": keys} | ones), seal=1).result()
        for each in made:
            assert each.snapshot().to_arrow().schema.field("k").type == each.schema.arrow.field("k").type


def test_what_is_handed_over_stays_within_its_share_of_the_budget() -> None:
    budget = 16 << 20
    with persist.open(MemoryBlob(), settings=persist.Settings(background=False, memory_budget=budget)) as client:
        source = client.create_or_load("c", key=KEY, value=VALUE)
        for step in range(12):
            source.write(table(step * ROWS, step, 5000)).result()
        source.write(table(10**6, 12, 100_000), seal=13).result()  # More than one part may take.
        assert 0 < client.engine.hand_over.bytes <= budget // 16
        assert source.snapshot().count() == 12 * 5000 + 100_000


def test_of_many_small_writes_only_the_last_thousand_are_kept() -> None:
    """A table of one row takes some kilobytes, of which its `nbytes` counts 32."""
    hand_over = HandOver(256 << 20)
    schema = CollectionSchema.of(KEY, VALUE)
    parts = []
    for step in range(PARTS_MAX + 200):
        encoded, rows = encode_with_rows(table(step, step, 1), schema, 1 << 30)
        assert rows is not None
        parts.append(encoded[0][1])
        hand_over.give(parts[-1], schema, rows)
    kept = [part for part in parts if hand_over.has(part, schema)]
    assert len(kept) <= PARTS_MAX
    assert kept == parts[-len(kept) :]
    assert hand_over.bytes >= len(kept) * COLUMN_BYTES * len(schema.arrow)


def test_a_part_that_takes_more_than_its_share_is_not_kept() -> None:
    hand_over = HandOver(16 << 20)
    schema = CollectionSchema.of(KEY, VALUE)
    encoded, rows = encode_with_rows(table(0, 0, 100_000), schema, 1 << 30)
    assert rows is not None
    assert hand_over.bytes_max < rows.nbytes
    hand_over.give(encoded[0][1], schema, rows)
    assert hand_over.take(encoded[0][1], schema) is None


def test_what_an_upsert_came_to_is_handed_over_to_the_next_one() -> None:
    with persist.open(MemoryBlob(), settings=QUIET) as client:
        users = client.create_or_load("users", key=KEY, value=VALUE, keyed=persist.Keyed())
        rows = table(0, 0, 60_000).drop_columns(["_time", "_diff"])
        users.upsert(rows, time=0, seal=1).result()
        hand_over = client.engine.hand_over
        assert hand_over.bytes > hand_over.part_bytes_max // 4
        users.upsert(rows, time=1, seal=2).result()
        assert hand_over.taken


def test_a_refused_write_is_seen_by_nobody() -> None:
    with persist.open(MemoryBlob(), settings=QUIET) as client:
        source = client.create_or_load("c", key=KEY, value=VALUE)
        source.seal(5).result()
        with pytest.raises(persist.UpdateNotBeyondUpper):
            source.write(table(time=1)).result()
        assert source.snapshot().count() == 0


def test_compaction_reads_what_is_stored_and_followers_go_on() -> None:
    with persist.open(MemoryBlob(), settings=QUIET) as client:
        source = client.create_or_load("c", key=KEY, value=VALUE)
        source.seal(1).result()
        with source.listen(0) as listen:
            for time in range(1, 6):
                source.write(table(time * ROWS, time), seal=time + 1).result()
            source.compact()
            seen = 0
            while (progress := listen.poll()) is not None:
                seen += len(progress.updates)
            assert seen == 5 * ROWS
