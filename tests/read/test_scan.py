"""Plans cut into slices: they cover everything once, in order, and none is much larger than asked for."""

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

import persist
from persist.blob import MemoryBlob
from persist.read.plan import changes_scan
from tests.sampling import examples

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
        scan = changes_scan(contents, c.schema, lower, lower + length, None)
        slices = scan.time_slices(max(1, scan.memory // share))
        times = [t for each in slices for t in range(each.time_lower, each.time_upper)]
        assert times == list(range(lower, lower + length))
        assert len(slices) <= 4 * share + 2
        whole = c.changes(lower, lower + length).to_arrow()
        c.handle.engine.settings.__dict__["memory_budget"] = 64  # So small that there are many.
        parts = pa.concat_tables(
            [pa.Table.from_batches([b]) for b in c.changes(lower, lower + length).to_batches()] or [whole]
        )
        assert parts.equals(whole)
