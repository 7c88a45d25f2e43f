"""Arrays that are made without what would import pandas are those that pyarrow makes."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from persist.codecs.order.arrays import make_plain_array

INTS = st.lists(st.integers(-(2**63), 2**63 - 1) | st.none(), max_size=20)
TEXTS = st.lists(st.text(st.characters(max_codepoint=127), max_size=5) | st.none(), max_size=20)


@given(st.one_of(st.tuples(INTS, st.just(pa.int64())), st.tuples(TEXTS, st.just(pa.string()))))
def test_plain_arrays_are_those_of_pyarrow(case: tuple[list[Any], pa.DataType]) -> None:
    values, kind = case
    for each in (values, [value for value in values if value is not None]):
        made = make_plain_array(each, kind)
        made.validate(full=True)
        assert made.equals(pa.array(each, kind))


@pytest.mark.parametrize("values", [[1.5, None], [True, False], [b"x"]])
def test_other_types_are_left_to_pyarrow(values: list[Any]) -> None:
    assert make_plain_array(values, pa.array(values).type).equals(pa.array(values))
