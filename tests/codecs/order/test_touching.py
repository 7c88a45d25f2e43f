"""Every row whose key another table has is found touched, whatever the keys are; integers exactly."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from persist.codecs import Touching, consolidate

KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "int64": (pa.int64(), st.integers(-3, 3)),
    "uint64": (pa.uint64(), st.sampled_from([0, 1, 2**63, 2**64 - 1])),
    "string": (pa.string(), st.sampled_from(["", "a", "a long prefix, then 1", "a long prefix, then 2", "z"])),
    "float64": (pa.float64(), st.sampled_from([0.0, 1.5, -2.0, float("nan")])),
    "timestamp": (pa.timestamp("us"), st.integers(-2, 2)),
}


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_all_rows_of_keys_in_common_are_found(kind: str, data: st.DataObject) -> None:
    type_, values = KINDS[kind]
    keys = st.lists(st.none() | values, max_size=12)
    ours, theirs = data.draw(keys), data.draw(keys.filter(bool))
    diffs = pa.array([1] * len(ours), pa.int64())
    table = consolidate(pa.table({"k": pa.array(ours, type_), "n": range(len(ours)), "_diff": diffs}), ["k", "n"])
    touching = Touching(pa.table({"k": pa.array(theirs, type_)}), ["k"])
    wanted = {repr(value) for value in pa.array(theirs, type_).to_pylist()}
    expected = [repr(value) in wanted for value in table["k"].to_pylist()]
    found = touching.mask(table).tolist()
    assert all(touched for touched, is_wanted in zip(found, expected, strict=True) if is_wanted)
    if kind == "int64" and None not in ours and None not in theirs:
        assert found == expected
    assert touching.exact(table).tolist() == expected
    inside, outside = touching.split(table)
    assert len(inside) == sum(found)
    assert sorted([*inside["n"].to_pylist(), *outside["n"].to_pylist()]) == sorted(table["n"].to_pylist())
