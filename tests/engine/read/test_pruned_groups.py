"""Filters and row groups: those that cannot match are not fetched, and the answer is the same."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import persist
from persist.blob.protocol import MemoryBlob
from persist.engine.read.parts.reader import WHOLE_BYTES_MAX
from tests.support.tiers import examples

ROWS = 300_000
CHANCE = np.random.default_rng(8)
NUMBERS = pa.array(CHANCE.integers(-(2**62), 2**62, ROWS), mask=CHANCE.random(ROWS) < 0.1)
WAVES = np.where(np.arange(ROWS) % 1000 == 0, np.nan, np.sin(np.arange(ROWS) / ROWS))
TABLE = pa.table({"k": np.arange(ROWS) * 2, "v": NUMBERS, "w": WAVES, "s": [f"{n // 50:06}" for n in range(ROWS)]})
VALUE = {"v": pa.int64(), "w": pa.float64(), "s": pa.string()}
BUDGETS = {"read in pieces": 16 << 20, "read whole": 256 << 20}


@pytest.fixture(scope="module", params=BUDGETS)
def collection(request: pytest.FixtureRequest) -> Iterator[persist.Collection]:
    """Yield a collection of one part of several row groups, which is read whole without a filter, or not."""
    blob = MemoryBlob()
    with persist.open(blob, settings=persist.Settings(background=False)) as client:
        c = client.create_or_load("c", key={"k": pa.int64()}, value=VALUE)
        c.write(TABLE, time=0, seal=1).result()
        (part,) = c.handle.contents().parts
        assert part.bytes > WHOLE_BYTES_MAX
    options = persist.Settings(background=False, memory_budget=BUDGETS[request.param])
    with persist.open(blob, settings=options) as client:  # Without what the writer has cached.
        yield client["c"]


def get_counts(collection: persist.Collection) -> tuple[int, int]:
    """Return how many requests were made to read, and how many bytes came."""
    count = collection.handle.engine.metrics().store["get"]
    return count.requests, count.bytes


keys = st.integers(-10, 2 * ROWS + 10)
conditions = st.one_of(
    keys.map(lambda k: pc.field("k") == k),
    st.lists(keys, max_size=4).map(lambda ks: pc.field("k").isin(pa.array(ks, pa.int64()))),
    st.tuples(keys, keys).map(lambda ends: (pc.field("k") >= min(ends)) & (pc.field("k") < max(ends))),
    st.tuples(keys, keys).map(lambda ends: (pc.field("k") < min(ends)) | (pc.field("k") > max(ends))),
    st.integers(-(2**62), 2**62).map(lambda v: pc.field("v") < v),
    st.floats(0, 1).map(lambda w: pc.field("w") > w),
    st.integers(0, ROWS // 50).map(lambda n: pc.field("s") == f"{n:06}"),
    st.just(pc.field("v").is_null()),
    st.just(pc.is_nan(pc.field("w"))),
)


@settings(max_examples=examples(25))
@given(one=conditions, other=conditions, joined=st.sampled_from(["one", "and", "or", "not"]))
def test_a_filtered_snapshot_has_the_rows_that_pass_the_filter(
    collection: persist.Collection, one: pc.Expression, other: pc.Expression, joined: str
) -> None:
    filter = {"one": one, "and": one & other, "or": one | other, "not": ~one & other}[joined]
    for columns in (["k", "v", "w", "s"], ["s"], ["k"]):
        found = collection.snapshot(where=filter, columns=columns).to_arrow()
        expected = TABLE.filter(filter).select(columns)
        assert found.num_rows == expected.num_rows
        # NaN equals nothing, so floats compare as their bits.
        for ours, theirs in zip(found.columns, expected.columns, strict=True):
            if pa.types.is_floating(ours.type):
                assert ours.to_numpy().tobytes() == theirs.to_numpy().tobytes()
            else:
                assert ours.to_pylist() == theirs.to_pylist()


@pytest.mark.parametrize("condition", ["k = 300000", "k BETWEEN 300000 AND 300100", "k IN (4, 8, 12)"])
def test_a_condition_on_the_key_fetches_few_of_the_row_groups(collection: persist.Collection, condition: str) -> None:
    (part,) = collection.handle.contents().parts
    _, before = get_counts(collection)
    assert collection.snapshot(where=condition).to_arrow().num_rows > 0
    assert get_counts(collection)[1] - before < part.bytes / 2


def test_a_condition_that_most_row_groups_may_meet_takes_no_request_more(collection: persist.Collection) -> None:
    collection.snapshot(where="v = 5").to_arrow()
    requests, _ = get_counts(collection)
    collection.snapshot(where="v = 6").to_arrow()
    repeated, _ = get_counts(collection)
    collection.snapshot(where="k > 10").to_arrow()
    assert get_counts(collection)[0] - repeated <= repeated - requests


def test_a_filter_that_fails_on_a_value_says_so(collection: persist.Collection) -> None:
    failing = pc.divide(pc.field("k"), pc.field("k") - pc.field("k")) == 1
    with pytest.raises(persist.InvalidUsage, match="cannot be applied"):
        collection.snapshot(where=failing).to_arrow()
