"""The rows whose key another table has are found, and no others, whatever the keys are."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from persist.codecs.order.search import SortedKeys
from persist.codecs.order.sums import consolidate

KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "int64": (pa.int64(), st.integers(-3, 3)),
    "uint64": (pa.uint64(), st.sampled_from([0, 1, 2**63, 2**64 - 1])),
    "string": (pa.string(), st.sampled_from(["", "a", "a long prefix, then 1", "a long prefix, then 2", "z"])),
    "float64": (pa.float64(), st.sampled_from([0.0, 1.5, -2.0, float("nan")])),
    "timestamp": (pa.timestamp("us"), st.integers(-2, 2)),
    "list": (pa.list_(pa.int8()), st.lists(st.integers(0, 1), max_size=2)),
}


@pytest.mark.thorough(except_every=3)
@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_all_rows_of_keys_in_common_are_found(kind: str, data: st.DataObject) -> None:
    type_, values = KINDS[kind]
    keys = st.lists(st.none() | values, max_size=12)
    ours, theirs = data.draw(keys), data.draw(keys.filter(bool))
    diffs = pa.array([1] * len(ours), pa.int64())
    table = consolidate(pa.table({"k": pa.array(ours, type_), "n": range(len(ours)), "_diff": diffs}), ["k", "n"])
    touching = SortedKeys.of(pa.table({"k": pa.array(theirs, type_)}), ["k"])
    wanted = {repr(value) for value in pa.array(theirs, type_).to_pylist()}
    is_wanted = [repr(value) in wanted for value in table["k"].to_pylist()]
    inside, outside = touching.split(table)
    rows = table["n"].to_pylist()
    assert inside["n"].to_pylist() == [row for row, touched in zip(rows, is_wanted, strict=True) if touched]
    assert outside["n"].to_pylist() == [row for row, touched in zip(rows, is_wanted, strict=True) if not touched]
