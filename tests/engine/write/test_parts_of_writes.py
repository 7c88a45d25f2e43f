"""From updates to parts: what is uploaded at once, what travels in the record, and what is encoded together."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from persist.blob.errors import PersistError, Unavailable
from persist.blob.layers.unreliable import Fault, UnreliableBlob
from persist.blob.protocol import MemoryBlob
from persist.blob.threads import SystemClock
from persist.codecs.evolution import evolve_schema
from persist.codecs.order.digest import DIGEST_MODULUS
from persist.codecs.part.part import Part
from persist.codecs.part.stream import ROW_GROUP_BYTES_MAX
from persist.codecs.types.schema import CollectionSchema
from persist.codecs.updates.small import convert_small_updates
from persist.codecs.updates.updates import Stamp
from persist.core.keyed.events import make_event_schema
from persist.core.log import kinds
from persist.core.state_rules.keyed_rules import PlannedPend
from persist.engine.write import part_writer
from persist.engine.write.operations import Write
from persist.engine.write.part_writer import INLINE_PART_MAX, INLINE_TOTAL_MAX, PartWriter, group_bytes_max
from persist.engine.write.write_steps import SMALL_WRITE_BYTES_MAX, WriteSteps, gather_pieces
from tests.core.state_rules.test_refusals import SCHEMA, part
from tests.engine.write.test_operations import A, uploading, write

NEWER = evolve_schema(SCHEMA, add={"v": pa.int64()}, defaults={}, drop=[], rename={}, widen={}, reorder=None)


@pytest.fixture
def parts(blob: MemoryBlob) -> PartWriter:
    return PartWriter(blob, lambda: 7, memory_budget=8 << 20)


@pytest.fixture
def steps(parts: PartWriter) -> Iterator[WriteSteps]:
    with ThreadPoolExecutor(1) as pool:
        yield WriteSteps(parts, pool, SystemClock())


def table(rows: int, time: int = 5, diff: int = 1) -> pa.Table:
    keys = np.random.default_rng(rows).integers(0, 2**62, rows)
    return pa.table({"k": keys, "_time": np.full(rows, time), "_diff": np.full(rows, diff)})


def newer(rows: int) -> pa.Table:
    columns = {**{name: table(rows)[name] for name in ("k", "_time", "_diff")}, "v": pa.array([0] * rows)}
    return pa.table({field.name: columns[field.name] for field in NEWER.arrow})


def stored(blob: MemoryBlob) -> list[str]:
    return [entry.key for entry in blob.list("part/")]


def test_an_upload_is_named_by_the_seqno_that_was_known_and_cut_into_pieces_that_fit(
    blob: MemoryBlob, parts: PartWriter
) -> None:
    made = parts.upload(A, SCHEMA, table(100_000))  # 2.4 MB, in pieces of 1 MiB at most.
    assert [each.rows for each in made] == [33_334, 33_334, 33_332]
    assert sorted(stored(blob)) == sorted(each.blob for each in made)
    assert all(each.blob.startswith(f"part/{A}/{7:020d}-") for each in made)
    assert parts.upload(A, SCHEMA, table(0)) == ()
    parts.discard([*made[:2], msgspec.structs.replace(made[2], blob="", inline=b"x")])
    assert stored(blob) == [made[2].blob]


def test_a_part_that_cannot_be_deleted_keeps_no_other_one(blob: MemoryBlob) -> None:
    store = UnreliableBlob(blob)
    writer = PartWriter(store, lambda: 7)
    made = writer.upload(A, SCHEMA, table(100_000))
    store.script_faults("delete", Fault.UNAVAILABLE, Fault.NONE)
    writer.discard(made[:2])
    assert sorted(stored(blob)) == sorted(each.blob for each in (made[0], *made[2:]))


def test_of_an_upload_that_fails_nothing_stays_and_nothing_is_in_doubt(blob: MemoryBlob) -> None:
    for fault in (Fault.UNAVAILABLE, Fault.HAPPENED_BUT_FAILED):
        store = UnreliableBlob(blob)
        writer = PartWriter(store, lambda: 7, memory_budget=8 << 20)
        store.script_faults("set", Fault.NONE, fault)
        with pytest.raises(Unavailable):
            writer.upload(A, SCHEMA, table(100_000))
        assert len(stored(blob)) == (fault is Fault.HAPPENED_BUT_FAILED)  # No record will name it.
        for key in stored(blob):
            blob.delete(key)
        store.script_faults("delete", Fault.UNAVAILABLE)
        store.script_faults("set", Fault.NONE, Fault.UNAVAILABLE)
        with pytest.raises(PersistError):
            writer.upload(A, SCHEMA, table(100_000))
        assert len(stored(blob)) == 1, "what cannot be deleted is left"
        for key in stored(blob):
            blob.delete(key)


def test_few_bytes_travel_in_the_record_as_long_as_the_collection_has_room(blob: MemoryBlob, parts: PartWriter) -> None:
    bare = msgspec.structs.replace(part(1, 0), blob="")
    for size, held, is_inline in [
        (INLINE_PART_MAX, 0, True),
        (INLINE_PART_MAX + 1, 0, False),
        (1000, INLINE_TOTAL_MAX - 1000, True),
        (1000, INLINE_TOTAL_MAX - 999, False),
    ]:
        made = parts.store(A, b"x" * size, bare, held)
        assert bool(made.inline) is is_inline
        assert bool(made.blob) is not is_inline
        assert blob.get(made.blob) == b"x" * size if made.blob else made.inline == b"x" * size


def test_small_writes_become_one_part_and_those_at_the_time_of_the_commit_another(parts: PartWriter) -> None:
    uploaded, _ = uploading(A, part(1, 4))
    at_commit = Write(A, SCHEMA, 0, 0, uploaded.data, at_commit=True)
    assert parts.append(A, [], 0) is None
    made = parts.append(A, [write(time=3), uploaded, write(time=9), write(at_commit=True, time=0), at_commit], 0)
    assert made is not None
    assert [(each.rows, each.stamped, each.time_min, each.time_max) for each in made.parts] == [
        (1, False, 4, 4),
        (1, True, 0, 0),
        (2, False, 3, 9),
        (1, True, 0, 0),
    ]
    assert [bool(each.inline) for each in made.parts] == [False, False, True, True]
    full = parts.append(A, [write(time=3)], INLINE_TOTAL_MAX)
    assert full is not None
    assert full.parts[0].blob
    # The first one takes what room there is, and the next is stored.
    size = len(made.parts[2].inline)
    tight = parts.append(A, [write(time=3), write(time=9), write(at_commit=True, time=0)], INLINE_TOTAL_MAX - 2 * size)
    assert tight is not None
    assert [bool(each.blob) for each in tight.parts].count(True) >= 1


def test_diffs_that_overflow_only_together_are_encoded_each_alone(parts: PartWriter) -> None:
    def large() -> Write:
        small = convert_small_updates([((1, None), 5, 2**63 - 1)], SCHEMA)
        assert small is not None
        return Write(A, SCHEMA, 5, 10, small)

    made = parts.append(A, [large(), large()], 0)
    assert made is not None
    assert [each.rows for each in made.parts] == [1, 1]


def test_writes_of_an_older_schema_are_a_part_of_their_own(parts: PartWriter) -> None:
    made = parts.append(A, [write(), Write(A, NEWER, 5, 10, newer(1)), write(time=6)], 0)
    assert made is not None
    assert [(each.schema, each.rows) for each in made.parts] == [(1, 2), (2, 1)]


def test_row_groups_fit_into_the_budget_and_are_larger_for_very_many_columns() -> None:
    assert group_bytes_max(64 << 20, SCHEMA) == 2 << 20
    assert group_bytes_max(1 << 20, SCHEMA) == 256 << 10
    assert group_bytes_max(1 << 40, SCHEMA) == ROW_GROUP_BYTES_MAX
    wide = CollectionSchema.of({f"k{n}": pa.int64() for n in range(1000)}, None)
    assert group_bytes_max(1 << 20, wide) == 512 * 1002, "with time and diff"


def test_pieces_of_a_table_are_of_about_equal_length() -> None:
    whole = table(10)  # 240 bytes.
    assert [len(each) for each in part_writer._pieces(whole, 240)] == [10]
    assert [len(each) for each in part_writer._pieces(whole, 239)] == [5, 5]
    assert [len(each) for each in part_writer._pieces(whole, 1)] == [1] * 10
    assert [*part_writer._pieces(table(0), 100)] == []


def test_events_keep_the_order_of_their_writes_and_small_ones_that_follow_each_other_are_one_part(
    parts: PartWriter,
) -> None:
    schema = make_event_schema(SCHEMA, ())

    def events(
        *times: int, marks: tuple[int, int] | None = None, at_commit: bool = False, uploaded: Part | None = None
    ) -> Write:
        columns = {name: [1] * len(times) for name in schema.arrow.names} | {"_time": times}
        arrays = [pa.array(columns[f.name], pa.int64()).cast(f.type) for f in schema.arrow]
        data: Any = pa.table(arrays, schema=schema.arrow)
        if uploaded is not None:
            data = uploading(A, uploaded)[0].data
        return Write(A, schema, 0, 10, data, events=PlannedPend(A, 0, 0, marks), at_commit=at_commit)

    stored = events(uploaded=part(7, 4), marks=(2, 9))
    given = [events(5), events(6, 4, marks=(3, 5)), stored, events(8), events(0, 0, at_commit=True), write()]
    append, pend = parts.encode(A, given, 0)
    assert isinstance(append, kinds.Append)
    assert isinstance(pend, kinds.Pend)
    assert len(append.parts) == 1
    assert [(each.rows, each.stamped, each.time_min, each.time_max) for each in pend.parts] == [
        (3, False, 4, 6),
        (1, False, 4, 4),
        (1, False, 8, 8),
        (2, True, 0, 0),
    ]
    assert pend.watermarks == (2, 9)
    assert parts.encode(A, [], 0) == []
    [alone] = parts.encode(A, [stored, events(5)], 0)
    assert isinstance(alone, kinds.Pend)
    assert [bool(each.inline) for each in alone.parts] == [False, True]
    [near] = parts.encode(A, [events(5)], INLINE_TOTAL_MAX - 5_000)  # Where little is left, it is encoded otherwise.
    size = len(near.parts[0].inline)
    for room, are_inline in ((size // 2, 0), (size + size // 2, 1), (3 * size, 2)):
        [tight] = parts.encode(A, [events(5), stored, events(6)], INLINE_TOTAL_MAX - room)
        assert isinstance(tight, kinds.Pend)
        assert [bool(each.inline) for each in tight.parts] == [are_inline > 0, False, are_inline > 1]


def test_small_updates_wait_and_larger_ones_are_uploaded(steps: WriteSteps, blob: MemoryBlob) -> None:
    tiny = steps.of(A, SCHEMA, [((1, None), 4, 1), ((2, None), 3, -1)], None)
    assert tiny is not None
    assert (tiny.time_min, tiny.digest, tiny.at_commit, isinstance(tiny.data, Future)) == (3, None, False, False)
    assert steps.of(A, SCHEMA, [], None) is None
    assert steps.of(A, SCHEMA, table(0), None) is None
    rows = SMALL_WRITE_BYTES_MAX // 24
    small, large = steps.of(A, SCHEMA, table(rows), None), steps.of(A, SCHEMA, table(rows + 1), None)
    assert small is not None
    assert large is not None
    assert (isinstance(small.data, pa.Table), isinstance(large.data, Future)) == (True, True)
    assert (small.bytes, small.time_min) == (rows * 24, 5)
    assert large.data.result()[0].rows == rows + 1  # type: ignore[union-attr]
    few_of_many = steps.of(A, SCHEMA, table(100 * rows).slice(0, 3), None)
    assert few_of_many is not None
    assert isinstance(few_of_many.data, pa.Table)
    assert few_of_many.bytes < 100
    overflowing = steps.of(A, SCHEMA, table(3, diff=2**62), None)
    assert overflowing is not None
    assert isinstance(overflowing.data, Future), "by itself, so that it overflows alone"
    for diffs in ([2**62, -(2**62)], [2**62, 2**62 - 1]):
        both = [((1, None), 4, diff) for diff in diffs]
        made = steps.of(A, SCHEMA, both, None)
        assert made is not None
        assert isinstance(made.data, Future) is (sum(map(abs, diffs)) >= 2**63)


def test_plain_rows_get_their_stamp_or_the_time_of_the_commit(steps: WriteSteps) -> None:
    for rows in ([(1, None)], pa.table({"k": [1, 2]}), iter([pa.record_batch({"k": [1]})])):
        made = steps.of(A, SCHEMA, rows, Stamp(None))
        assert made is not None
        assert (made.at_commit, made.time_min) == (True, 0)
    for rows in ([(1, None)], pa.table({"k": [1, 2]})):
        made = steps.of(A, SCHEMA, rows, Stamp(8))
        assert made is not None
        assert (made.at_commit, made.time_min) == (False, 8)


def test_the_digest_is_that_of_the_updates_however_they_come(steps: WriteSteps) -> None:
    by = ["k", "_time"]
    whole = table(90_000)
    ways: list[Any] = [whole, whole.to_batches(max_chunksize=50_000), iter(whole.to_batches(max_chunksize=50_000))]
    made = [steps.of(A, SCHEMA, way, None, by=by) for way in (ways[0], ways[2])]
    held = [steps.hold_or_store_updates(A, SCHEMA, way, None, by=by)[1] for way in (whole, iter(ways[1]))]
    digests = [each.digest or 0 for each in made if each is not None] + held
    assert len({digest % DIGEST_MODULUS for digest in digests}) == 1
    few = [((1, None), 4, 1), ((2, None), 3, 1)]
    as_table = pa.table({"k": [1, 2], "_time": [4, 3], "_diff": [1, 1]})
    digests = [each.digest or 0 for way in (few, as_table) if (each := steps.of(A, SCHEMA, way, None, by=by))]
    assert len({*digests}) == 1
    assert digests[0] > 0
    assert steps.hold_or_store_updates(A, SCHEMA, as_table, None)[1] == 0


def test_what_is_held_or_stored_is_held_while_there_is_room(steps: WriteSteps, blob: MemoryBlob) -> None:
    half = (8 << 20) // 2
    rows = half // 24
    held, _ = steps.hold_or_store_updates(A, SCHEMA, table(rows), None)
    assert isinstance(held, pa.Table)
    assert stored(blob) == []
    parts, _ = steps.hold_or_store_updates(A, SCHEMA, table(rows + 1), None)
    assert isinstance(parts, tuple)
    assert sum(each.rows for each in parts) == rows + 1
    piece, _ = steps.hold_or_store_updates(A, SCHEMA, iter(table(1000).to_batches()), None)
    assert isinstance(piece, pa.Table)
    assert len(piece) == 1000
    streamed, _ = steps.hold_or_store_updates(A, SCHEMA, iter(table(100_000).to_batches(max_chunksize=50_000)), None)
    assert isinstance(streamed, tuple)
    assert sum(each.rows for each in streamed) == 100_000


def test_pieces_are_gathered_until_they_are_large_enough() -> None:
    tables = [table(n) for n in (1, 0, 2, 3, 10, 1)]
    assert [len(each) for each in gather_pieces(tables, 72)] == [3, 3, 10, 1]
    assert [len(each) for each in gather_pieces(tables, 10_000)] == [17]
    assert [*gather_pieces([table(0)], 1)] == []
    assert [len(each) for each in gather_pieces([table(1)] * 8, 73)] == [4, 4], "three rows have 72 bytes"


def test_uploads_that_are_joined_have_all_parts_or_the_first_error(steps: WriteSteps, blob: MemoryBlob) -> None:
    def upload(number: int, error: Exception | None = None) -> Any:
        made = msgspec.structs.replace(part(number, 0), blob=f"part/{number}")
        blob.set(made.blob, b"x")
        write_, future = uploading(A) if error is not None else uploading(A, made)
        if error is not None:
            future.set_exception(error)
        return write_.data

    whole = steps._join_uploads([upload(1), upload(2)])
    assert [each.blob for each in whole.result()] == stored(blob) == ["part/1", "part/2"]
    first, second = Unavailable("first"), Unavailable("second")
    failed = steps._join_uploads([upload(1), upload(3, first), upload(2), upload(4, second)])
    assert failed.exception() is first
    assert stored(blob) == ["part/3", "part/4"], "what failed is nobody's to delete"


def test_of_a_stream_that_breaks_off_what_was_uploaded_is_deleted(steps: WriteSteps, blob: MemoryBlob) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        for _ in range(2):
            yield from table(50_000).to_batches()
        raise OSError("the line was cut")

    with pytest.raises(OSError, match="the line was cut"):
        steps.of(A, SCHEMA, broken(), None)
    assert stored(blob) == []
    read: list[int] = []

    def endless() -> Iterator[pa.RecordBatch]:
        for n in range(9):
            read.append(n)
            yield from table(50_000).to_batches()

    store = UnreliableBlob(blob)
    store.script_faults("set", *[Fault.NONE, Fault.UNAVAILABLE] * 20)
    with ThreadPoolExecutor(1) as pool:
        made = WriteSteps(PartWriter(store, lambda: 7, memory_budget=8 << 20), pool, SystemClock()).of(
            A, SCHEMA, endless(), None
        )
        assert made is not None
        assert isinstance(made.upload_error(), Unavailable)
        assert stored(blob) == []
        assert len(read) < 9, "there is no need to read on"
