"""Changes of parts that share no time are put in order without being consolidated, and are the same."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import persist
import persist.engine.read.following.changes
from persist.blob.protocol import MemoryBlob
from persist.codecs.order.sums import consolidate
from persist.engine.collection.reads import begin_listen
from persist.engine.read.parts.reader import PartReader
from tests.support.tiers import examples

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


def place_of(update: dict[str, Any]) -> tuple[int, int, bool]:
    """Return by what updates are ordered: time, then key, and what goes first."""
    return update["_time"], update["k"], update["_diff"] > 0


@settings(max_examples=examples(40, quick=3))
@given(
    batches=st.lists(UPDATES, min_size=1, max_size=4), spread=st.booleans(), bounds=st.tuples(*[st.integers(0, 9)] * 2)
)
@example(
    batches=[[((1, (text, None)), 0, diff) for text, diff in zip(("", "a", "b"), (1, 1, -1), strict=False)]],
    spread=False,
    bounds=(0, 9),
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
            patch.setattr(persist.engine.read.following.changes, "_order_disjoint_parts", lambda scan: None)
            expected = c.changes(lower, upper).to_arrow()
        assert found.equals(expected) or str(found.to_pylist()) == str(expected.to_pylist())
        # Sorting is stable: of one time, key and sign the order is that of the values.
        by_value = consolidated(c, lower, upper).to_pylist()
        assert str(found.to_pylist()) == str(sorted(by_value, key=place_of))
        other = c.changes(lower, upper, columns=["x", "k", "s"]).to_arrow().to_pylist()
        assert [*map(place_of, other)] == [*map(place_of, found.to_pylist())]
        assert sorted(map(str, other)) == sorted(map(str, found.select(["x", "k", "s", "_time", "_diff"]).to_pylist()))


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
                with begin_listen(c.handle, None, None, columns=columns) as listen:
                    steps = steps_until(listen, 80_000)
            check_frontiers(steps, is_cut=columns != ["s"])
            found.append(str(pa.concat_tables([step.updates for step in steps]).to_pylist()))
        assert found[0] == found[1]


def steps_until(listen: persist.Listen, upper: int) -> list[persist.Progress]:
    """Return the steps of a listen until all before upper is complete."""
    steps = [next(listen)]
    while steps[-1].upper < persist.Antichain(upper):
        steps.append(next(listen))
    return steps


def check_frontiers(steps: list[persist.Progress], *, is_cut: bool) -> None:
    """Check that no step holds a time that was complete before, nor one beyond its upper but the one that it begins."""
    reached = 0
    for step in steps:
        upper = step.upper.time
        assert upper is not None
        times = {*step.updates["_time"].to_pylist()}
        assert upper >= reached
        assert min(times, default=reached) >= reached
        assert max(times, default=0) < upper or (is_cut and upper == reached and len(times) == 1)
        reached = upper


def one_large_time(client: persist.Client) -> persist.Collection:
    """Return a collection of which one of three times is larger than a slice of 64 bytes, in several parts."""
    c = client.create_or_load("c", key={"k": pa.int64()}, value={"v": pa.int64()})
    c.write([((1, 1), 0, 1)]).result()
    for start in (0, 50):
        c.write([((k, k), 1, 1) for k in range(start, start + 100)]).result()
    c.write([((7, 7), 2, -1)], seal=3).result()
    return c


def test_a_time_that_is_larger_than_the_budget_comes_in_parts_that_end_at_one_frontier(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(PartReader, "slice_bytes", 64)
    with persist.open(MemoryBlob(), settings=QUIET) as client:
        c = one_large_time(client)
        with c.listen() as listen:
            steps = steps_until(listen, 3)
        check_frontiers(steps, is_cut=True)
        parts = [step for step in steps if step.updates["_time"].to_pylist()[:1] == [1]]
        assert len(parts) > 2
        assert [step.upper.time for step in parts] == [1] * (len(parts) - 1) + [2]
        assert pa.concat_tables([step.updates for step in steps]).equals(c.changes(0, 3).to_arrow())
        with c.subscribe(1) as subscription:
            steps = steps_until(subscription, 3)
        assert [step.upper.time for step in steps[:-2]] == [1] * (len(steps) - 2)
        contents = pa.concat_tables([step.updates for step in steps[:-1]])
        assert len(steps) > 3
        assert {*contents["_time"].to_pylist()} == {1}
        assert contents.drop_columns("_time").equals(c.snapshot(1, form="diff").to_arrow().sort_by("k"))


def test_a_consumer_is_given_each_time_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PartReader, "slice_bytes", 64)
    with persist.open(MemoryBlob(), settings=QUIET) as client:
        c = one_large_time(client)
        with c.hold(0, name="mailer"), c.follow("mailer") as consumer:
            steps = [next(consumer), next(consumer)]
            assert [step.upper.time for step in steps] == [2, 3]
            assert len(steps[0].updates) == 150


def test_a_part_of_a_time_that_could_not_be_read_comes_with_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PartReader, "slice_bytes", 64)
    with persist.open(MemoryBlob(), settings=QUIET) as client:
        c = one_large_time(client)
        with c.listen() as listen:
            steps = [next(listen), next(listen), next(listen)]
            with monkeypatch.context() as patch:
                patch.setattr(PartReader, "tables", unavailable)
                with pytest.raises(persist.Unavailable):
                    next(listen)
            steps += steps_until(listen, 3)
        assert pa.concat_tables([step.updates for step in steps]).equals(c.changes(0, 3).to_arrow())


def unavailable(*_: object, **__: object) -> None:
    raise persist.Unavailable("the store did not answer")
