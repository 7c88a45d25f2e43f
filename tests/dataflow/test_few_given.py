"""A few updates take a shorter way into a program: it gives the same words, and leaves all else to the ordinary way."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from persist.codecs import CollectionSchema, Utf8, to_updates
from persist.dataflow import Program
from persist.dataflow.ports.inputs import FEW_GIVEN, FewGiven
from persist.dataflow.updates.times import Ints
from persist.dataflow.updates.words import Domain
from persist.errors import InputClosed

SCHEMA = CollectionSchema.of({"a": pa.int64(), "b": pa.string()}, {"c": pa.int8(), "d": pa.bool_()})
RECORDS = st.tuples(
    st.tuples(
        st.none() | st.integers(-(2**63) + 1, 2**63 - 1), st.none() | st.text(st.characters(exclude_categories=["Cs"]))
    ),
    st.tuples(st.none() | st.integers(-128, 127), st.none() | st.booleans()),
)
UPDATES = st.lists(
    st.tuples(RECORDS, st.integers(0, 2**63 - 2), st.integers(-(2**63), 2**63 - 1)), min_size=1, max_size=5
)


def ordinary(updates: Any, domain: Domain) -> Ints:
    """Return the words by way of Arrow."""
    table = to_updates(updates, SCHEMA)
    rows = [domain.encode(table[name]) for name in SCHEMA.names]
    return np.array([*rows, table["_time"].to_numpy(), table["_diff"].to_numpy()], np.int64)


@given(updates=UPDATES)
def test_few_updates_are_the_words_that_they_are_by_way_of_arrow(updates: Any) -> None:
    domain = Domain()
    wanted = ordinary(updates, domain)
    few = FewGiven(SCHEMA, domain)
    for given_ in (updates, pa.Table.from_pydict(columns_of(updates), schema=SCHEMA.arrow)):
        found = few.words(given_)
        assert found is not None
        assert found.tolist() == wanted.tolist()


def columns_of(updates: Any) -> dict[str, list[Any]]:
    rows = [(*key, *value, time, diff) for (key, value), time, diff in updates]
    return {name: list(column) for name, column in zip(SCHEMA.arrow.names, zip(*rows, strict=True), strict=True)}


GOOD = ((1, "x"), (2, True))


@pytest.mark.parametrize(
    "updates",
    [
        [],
        [(GOOD, 0, 1)] * (FEW_GIVEN + 1),
        [(GOOD, -1, 1)],
        [(GOOD, True, 1)],
        [(GOOD, 0, 2**63)],
        [(GOOD, 0, None)],
        [(GOOD, 0)],
        [((GOOD[0],), 0, 1)],
        [(((1,), GOOD[1]), 0, 1)],
        [(((1, "x", 3), (4,)), 0, 1)],
        [(((-(2**63), "x"), (2, True)), 0, 1)],
        [(((1, "\ud800"), (2, True)), 0, 1)],
        [(((1, b"x"), (2, True)), 0, 1)],
        [(((True, "x"), (2, True)), 0, 1)],
        [(((1, "x"), (128, True)), 0, 1)],
        [(((1, "x"), (2, 1)), 0, 1)],
        [(((1.0, "x"), (2, True)), 0, 1)],
        [({"a": 1, "b": "x"}, 0, 1)],
        iter([(GOOD, 0, 1)]),
        None,
        7,
    ],
    ids=repr,
)
def test_all_else_is_left_to_the_ordinary_way(updates: Any) -> None:
    assert FewGiven(SCHEMA, Domain()).words(updates) is None


def test_tables_with_other_columns_are_left_to_the_ordinary_way() -> None:
    table = pa.table(columns_of([(GOOD, 0, 1)]), schema=SCHEMA.arrow)
    few = FewGiven(SCHEMA, Domain())
    assert few.words(table) is not None
    wide = table.set_column(2, "c", table["c"].cast(pa.int64()))
    for other in (
        wide,
        table.select(["b", "a", "c", "d", "_time", "_diff"]),
        table.drop_columns(["d"]),
        table.slice(1),
    ):
        assert few.words(other) is None


def test_inputs_that_need_conversion_are_left_to_the_ordinary_way() -> None:
    for key in (Utf8(), {"k": pa.float64()}, {"k": pa.uint64()}, {"k": pa.list_(pa.int64())}):
        schema = CollectionSchema.of(key, None)
        assert FewGiven(schema, Domain()).words([(("x", None), 0, 1)]) is None


def test_what_is_required_is_not_left_out() -> None:
    schema = CollectionSchema.of({"a": pa.int64()}, pa.schema([pa.field("b", pa.string(), nullable=False)]))
    few = FewGiven(schema, Domain())
    assert few.words([((1, None), 0, 1)]) is None
    assert few.words([((None, "x"), 0, 1)]) is not None


def test_an_update_at_a_closed_time_is_refused_and_nothing_is_taken() -> None:
    program = Program("closed")
    seen = program.input("a", key={"k": pa.int64()}).capture()
    with program.open() as running:
        running["a"].advance_to(5)
        with pytest.raises(InputClosed, match="4"):
            running["a"].insert([((1, None), 5, 1), ((2, None), 4, 1)])
        running["a"].insert([((3, None), 5, 1), ((4, None), 7, 0)])
        running["a"].close()
        running.step()
        assert seen.rows() == [((3,), 5, 1)]
