"""Changes of parts that share no time are put in order without being consolidated, and are the same."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import persist
import persist.read.following.changes
from persist.blob import MemoryBlob
from persist.codecs import consolidate
from persist.engine import begun_listen
from persist.read import PartReader
from tests.tiers import examples

VALUES = st.tuples(st.sampled_from(["", "a", "ab", None]), st.sampled_from([0.0, -0.0, float("nan"), 1.5, None]))
UPDATES = st.lists(
    st.tuples(st.tuples(st.integers(-3, 3), VALUES), st.sampled_from([0, 1, 2, 70_000]), st.sampled_from([-1, 1, 2])),
    max_size=30,
)
QUIET = persist.Settings(background=False)


def consolidated(c: persist.Collection, lower: int, upper: int) -> pa.Table:
    """Return changes as sums over whatever the collection holds give them."""
    names = ["k", "s", "x"]
    every = [form.select([*names, "_time", "_diff"]) for form in c.changes(lower, upper).to_batches()]
    table = pa.Table.from_batches(every, c.changes(lower, upper).schema)
    return consolidate(table, ["_time", *names]).select([*names, "_time", "_diff"])


@settings(max_examples=examples(40))
@given(
    batches=st.lists(UPDATES, min_size=1, max_size=4), spread=st.booleans(), bounds=st.tuples(*[st.integers(0, 9)] * 2)
)
def test_parts_apart_in_time_give_what_consolidation_gives(
    batches: list[list[Any]], spread: bool, bounds: tuple[int, int]
) -> None:
    """Whether batches share times or not, and whether what is asked for cuts through them or not."""
    step = 70_001 if spread else 0
    last = len(batches) * 70_001
    lower, upper = sorted(bound * last // 9 for bound in bounds)
    with persist.open(MemoryBlob(), settings=QUIET) as client:
        c = client.create_or_load("c", key={"k": pa.int64()}, value={"s": pa.string(), "x": pa.float64()})
        for number, batch in enumerate(batches):
            c.write([(record, number * step + time, diff) for record, time, diff in batch])
        c.seal(last).result()
        found = c.changes(lower, upper).to_arrow()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(persist.read.following.changes, "_apart_in_time", lambda scan: None)
            expected = c.changes(lower, upper).to_arrow()
        assert found.equals(expected) or str(found.to_pylist()) == str(expected.to_pylist())
        assert str(consolidated(c, lower, upper).to_pylist()) == str(expected.to_pylist())


def test_a_part_that_is_read_in_pieces_comes_in_the_order_of_time() -> None:
    """Its pieces are in the order of keys, and each of them holds all times."""
    rows = 400_000
    chance = np.random.default_rng(7)
    columns = {"k": np.arange(rows), "v": chance.integers(0, 2**62, rows), "_time": chance.integers(0, 5, rows)}
    with persist.open(MemoryBlob(), settings=QUIET) as client:
        c = client.create_or_load("c", key={"k": pa.int64()}, value={"v": pa.int64()})
        c.write(pa.table(columns | {"_diff": np.ones(rows, np.int64)}), seal=5).result()
    small = persist.Settings(background=False, memory_budget=64 << 20)
    with persist.open(client.engine.blob, settings=small) as client:
        found = client.load("c").changes(0, 5).to_arrow()
    order = np.lexsort((columns["k"], columns["_time"]))
    for name, values in columns.items():
        assert (found[name].to_numpy() == values[order]).all()


def test_what_an_older_schema_wrote_is_consolidated_as_it_is_read(client_of_two: persist.Collection) -> None:
    found = client_of_two.changes(0, 2).to_arrow()
    assert found.to_pylist() == [{"k": 1, "b": 5, "_time": 0, "_diff": 2}, {"k": 1, "b": 5, "_time": 1, "_diff": 1}]


@pytest.fixture
def client_of_two() -> Any:
    """Return a collection of which a column was dropped that told two updates apart."""
    with persist.open(MemoryBlob(), settings=QUIET) as client:
        c = client.create_or_load("c", key={"k": pa.int64()}, value={"a": pa.string(), "b": pa.int64()})
        c.write([((1, ("x", 5)), 0, 1), ((1, ("y", 5)), 0, 1), ((1, ("x", 5)), 1, 1)], seal=2).result()
        c.evolve(drop=["a"])
        yield c


def test_parts_that_share_a_time_are_summed() -> None:
    with persist.open(MemoryBlob(), settings=QUIET) as client:
        c = client.create_or_load("c", key={"k": pa.int64()})
        c.write([((2, None), 0, 1), ((1, None), 1, 1)]).result()
        c.write([((1, None), 1, 1), ((1, None), 2, 1)], seal=3).result()
        found = c.changes(0, 3).to_arrow().to_pylist()
    assert [tuple(row.values()) for row in found] == [(2, 0, 1), (1, 1, 2), (1, 2, 1)]


@settings(max_examples=examples(30))
@given(batches=st.lists(UPDATES, min_size=1, max_size=4), columns=st.sampled_from([None, ["k", "s"], ["s"]]))
@example(batches=[[((k, ("a", 1.5)), time, 1) for k in range(30)] for time in (0, 1, 70_000)], columns=None)
def test_what_a_listen_reads_in_pieces_is_what_it_reads_at_once(
    batches: list[list[Any]], columns: list[str] | None
) -> None:
    with persist.open(MemoryBlob(), settings=QUIET) as client:
        c = client.create_or_load("c", key={"k": pa.int64()}, value={"s": pa.string(), "x": pa.float64()})
        for batch in batches:
            c.write(batch)
        c.seal(80_000).result()
        found = []
        for slice_bytes in (1 << 20, 64):  # So small that there are many pieces.
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(PartReader, "slice_bytes", slice_bytes)
                with begun_listen(c.handle, None, None, columns=columns) as listen:
                    progress = next(listen)
            found.append((progress.upper, str(progress.updates.to_pylist())))
        assert found[0] == found[1]
