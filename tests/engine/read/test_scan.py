"""Plans cut into slices: they cover everything once, in order, and none is much larger than asked for."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import persist
from persist.blob.protocol import MemoryBlob
from persist.engine.read.merging import read_snapshot
from persist.engine.read.parts.reader import WHOLE_BYTES_MAX, PartReader
from persist.engine.read.planning.snapshot_plan import plan_changes_scan
from tests.support.keyframes import add_keyframe, snapshots
from tests.support.tiers import examples

LENGTHS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 40), st.integers(1, 30)), min_size=1, max_size=12)


@settings(max_examples=examples(20))
@given(spans=LENGTHS, lower=st.integers(0, 50), length=st.integers(1, 60), share=st.integers(1, 12))
def test_time_slices_cover_each_time_once_and_are_of_about_the_size_asked_for(
    spans: list[tuple[int, int, int]], lower: int, length: int, share: int
) -> None:
    with persist.open(MemoryBlob(), settings=persist.Settings(background=False)) as client:
        c = client.create_or_load("c", key={"k": pa.int64()})
        for first, over, rows in spans:
            c.write([((k, None), first + k * over // rows, 1) for k in range(rows)])
        c.seal(200).result()
        contents = client.engine.follower.load(c.id)
        assert contents is not None
        scan = plan_changes_scan(contents, c.schema, lower, lower + length, None)
        slices = scan.time_slices(max(1, scan.memory // share))
        times = [t for each in slices for t in range(each.time_lower, each.time_upper)]
        assert times == list(range(lower, lower + length))
        assert len(slices) <= 4 * share + 2
        whole = c.changes(lower, lower + length).to_arrow()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(PartReader, "slice_bytes", 64)  # So small that there are many.
            parts = pa.concat_tables(
                [pa.Table.from_batches([b]) for b in c.changes(lower, lower + length).to_batches()] or [whole]
            )
        assert parts.equals(whole)


def test_slices_of_a_part_that_is_read_in_pieces_hold_each_row_once() -> None:
    """Slices end within row groups, whose rest the next slice goes on from, and reads on from."""
    rows = 300_000
    values = np.random.default_rng(5).integers(-(2**62), 2**62, rows)
    columns = {"k": np.arange(rows), "v": values, "_time": np.zeros(rows, np.int64), "_diff": np.ones(rows, np.int64)}
    with persist.open(MemoryBlob(), settings=persist.Settings(background=False)) as client:
        c = client.create_or_load("c", key={"k": pa.int64()}, value={"v": pa.int64()})
        c.write(pa.table(columns), seal=1).result()
        (part,) = c.handle.contents().parts
        assert part.bytes > WHOLE_BYTES_MAX
        scan = c.snapshot(form="diff").scan
        assert len(PartReader(client.engine.blob).index(part, c.schema).groups) > 3
        for count in (2, 5, 16, 33):
            reader = PartReader(client.engine.blob)
            found = [table for each in scan.slices(count) for table in each.updates(reader, ["k", "v"])]
            assert len(found) > 1
            assert pa.concat_tables(found).equals(pa.table(columns).select(["k", "v"]))


def test_what_one_slice_touches_is_given_where_others_read_the_rest() -> None:
    with persist.open(MemoryBlob(), settings=persist.Settings(background=False)) as client:
        c = client.create_or_load("c", key={"k": pa.int64()}, value={"v": pa.int64()})
        c.write([((n, n), 0, 1) for n in range(10)]).result()
        c.write([((3, 3), 0, -1), ((3, 33), 0, 1)], seal=1).result()
        scan = c.snapshot().scan
        tables = read_snapshot(scan, "rows", PartReader(client.engine.blob), elsewhere=lambda part: True)
        held = {row["k"]: row["v"] for table in tables for row in table.to_pylist()}
        assert held[3] == 33
        tables = read_snapshot(scan, "rows", PartReader(client.engine.blob), elsewhere=lambda part: False)
        assert sorted(row["k"] for table in tables for row in table.to_pylist()) == [*range(10)]
        c.write([((n, n), 1, 1) for n in range(20, 30)], seal=2).result()
        scan = c.snapshot(where="v <> 20 AND v <> 3").scan
        scan = replace(scan, parts=scan.parts[::-1], filter=pc.field("v") < 20)
        tables = read_snapshot(scan, "rows", PartReader(client.engine.blob), elsewhere=lambda part: not part.negatives)
        assert not [*tables], "of what others read, the first part has no row, and the next one what is retracted"


def test_the_least_diff_can_be_read_backwards() -> None:
    """int64 has no negative of it."""
    with persist.open(MemoryBlob(), settings=persist.Settings(background=False)) as client:
        c = client.create_or_load("c", key={"k": pa.int64()}, value={"v": pa.string()})
        c.write([((1, "a"), 0, 1), ((2, "b"), 0, 2**62), ((3, "c"), 0, 7)])
        c.write([((1, "a"), 5, -(2**63)), ((2, "b"), 5, -(2**63)), ((3, "c"), 5, -3)])
        c.seal(6).result()
        add_keyframe(c, 5)
        plans = list(snapshots(c, 0, form="diff"))
        assert [snapshot.scan.sign for snapshot in plans] == [-1, 1]
        for snapshot in snapshots(c, 0, form="diff"):
            assert sorted(snapshot.rows()) == [((1, "a"), 1), ((2, "b"), 2**62), ((3, "c"), 7)]
