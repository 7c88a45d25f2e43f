"""Updates come in every form the same, and bad input is named and refused."""

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from persist.blob.errors import InvalidUsage
from persist.codecs.errors import InvalidUpdate, SchemaMismatch
from persist.codecs.order.ordering import make_canonical
from persist.codecs.types.python_types import get_stored_type
from persist.codecs.types.schema import TIME_MAX, CollectionSchema
from persist.codecs.updates.tuples import iterate_rows, iterate_tuples
from persist.codecs.updates.updates import to_updates
from tests.codecs.strategies import arrays, arrow_types, python_values, same, schemas, updates

ORDERS = CollectionSchema.of({"id": pa.int64()}, {"status": pa.string(), "amount": pa.float64()})
UPDATES = [((1, ("new", 9.5)), 10, 1), ((2, (None, None)), 11, -1), ((None, ("", 0.0)), TIME_MAX, 2**63 - 1)]


def _one(t: pa.DataType) -> CollectionSchema:
    return CollectionSchema.of({"x": t}, None)


def _table(t: pa.DataType, values: Any) -> pa.Table:
    column = values if isinstance(values, (pa.Array, pa.ChunkedArray)) else pa.array(values, t)
    return pa.table({"x": column, "_time": [0] * len(column), "_diff": [1] * len(column)})


@given(st.data())
def test_python_values_come_back_as_they_were_for_every_type(data: st.DataObject) -> None:
    schema = data.draw(schemas())
    given_updates = data.draw(updates(schema))
    table = to_updates(given_updates, schema)
    assert table.schema.equals(schema.arrow, check_metadata=True)
    table.validate(full=True)
    assert make_canonical(table) is table
    assert same(list(iterate_tuples(table, schema)), given_updates)
    assert same(list(iterate_rows(table, schema)), [update[0] for update in given_updates])


@given(st.data())
def test_many_updates_are_stored_like_a_few(data: st.DataObject) -> None:
    t = data.draw(arrow_types())
    values = data.draw(st.lists(python_values(t), min_size=1, max_size=4))
    many = [((value, None), 0, 1) for value in values] * 33
    few = to_updates(many[: len(values)], _one(t))
    assert same(to_updates(many, _one(t)).to_pylist(), few.to_pylist() * 33)


@given(st.data())
def test_a_table_that_fits_passes_through_as_it_is(data: st.DataObject) -> None:
    t = data.draw(arrow_types())
    column = data.draw(arrays(t))
    table = to_updates(_table(t, column), _one(t))
    assert table.schema.equals(_one(t).arrow, check_metadata=True)
    assert table.column("x").null_count == column.null_count
    again = to_updates(table, _one(t))
    buffers = [b.address for c in table.columns for chunk in c.chunks for b in chunk.buffers() if b]
    assert buffers == [b.address for c in again.columns for chunk in c.chunks for b in chunk.buffers() if b]


def test_pandas_frames_come_with_their_index_if_it_is_a_column() -> None:
    frame = pd.DataFrame({"id": [1, 2], "status": ["a", None], "amount": [1.5, None], "_time": 3, "_diff": 1})
    expected = [((1, ("a", 1.5)), 3, 1), ((2, (None, None)), 3, 1)]
    odd_index = frame.set_index(pd.Index([7, 3]))
    by_two = frame.set_index(["id", "status"])
    for form in (frame, frame.set_index("id"), by_two, odd_index, frame[frame.id > 0]):
        assert list(iterate_tuples(to_updates(form, ORDERS), ORDERS)) == expected


def test_no_updates_are_an_empty_table() -> None:
    nothing: Any
    for nothing in ([], (), iter([]), ORDERS.arrow.empty_table(), pl.from_arrow(ORDERS.arrow.empty_table())):
        table = to_updates(nothing, ORDERS)
        assert table.num_rows == 0
        assert table.schema.equals(ORDERS.arrow)


def test_zero_diffs_are_dropped() -> None:
    some = [((1, ("a", 1.0)), 1, 0), ((2, ("a", 1.0)), 1, 1), ((3, ("a", 1.0)), 1, 0)]
    from_tuples = to_updates(some, ORDERS)
    assert list(iterate_tuples(from_tuples, ORDERS)) == some[1:2]
    zeros = from_tuples.set_column(4, "_diff", pa.array([0]))
    assert to_updates(zeros, ORDERS).num_rows == 0


def test_floats_are_canonical_in_every_form() -> None:
    odd_nan = np.array([0xFFF8000000000001], np.uint64).view(np.float64)
    for values in ([-0.0, math.nan], [-0.0, float(odd_nan[0])]):
        table = to_updates([((v, None), 0, 1) for v in values], _one(pa.float64()))
        assert make_canonical(table) is table
        assert math.copysign(1, table.column("x")[0].as_py()) == 1
        assert to_updates(_table(pa.float64(), values), _one(pa.float64())).column("x").to_pylist()[0] == 0
    narrow = to_updates([((-1e-300, None), 0, 1)], _one(pa.float32()))
    assert math.copysign(1, narrow.column("x")[0].as_py()) == 1


def test_nan_from_python_and_arrow_is_a_number_and_none_is_null() -> None:
    for data in ([((math.nan, None), 0, 1), ((None, None), 0, 1)], _table(pa.float64(), [math.nan, None])):
        column = to_updates(data, _one(pa.float64())).column("x")
        assert column.null_count == 1
        assert math.isnan(column[0].as_py())


def test_tuples_without_a_time_are_key_value_and_diff() -> None:
    table = to_updates(UPDATES, ORDERS).drop_columns(["_time"])
    assert list(iterate_tuples(table, ORDERS)) == [(pair, diff) for pair, _, diff in UPDATES]


def test_python_values_need_all_columns() -> None:
    table = to_updates(UPDATES, ORDERS)
    with pytest.raises(SchemaMismatch, match="column 'status' is missing: read with all columns"):
        iterate_rows(table.drop_columns(["status"]), ORDERS)
    with pytest.raises(SchemaMismatch, match="column '_diff' is missing"):
        iterate_tuples(table.drop_columns(["_diff"]), ORDERS)


@pytest.mark.parametrize(
    ("t", "storage"), [(pa.timestamp("us"), 2**62), (pa.time64("ns"), 1), (pa.date32(), -(2**31))], ids=str
)
def test_what_python_cannot_hold_is_not_cut_off(t: pa.DataType, storage: int) -> None:
    column = pa.array([storage], pa.int32() if t.bit_width == 32 else pa.int64()).view(t)
    table = to_updates(_table(t, column), _one(t))
    with pytest.raises(InvalidUsage, match=r"column 'x' of type .* Read it as Arrow instead"):
        list(iterate_rows(table, _one(t)))


# Columns


@pytest.mark.parametrize(
    ("change", "problems"),
    [
        (lambda t: t.drop_columns(["amount"]), ["'amount' (double) is missing"]),
        (lambda t: t.append_column("color", t["status"]), ["'color' is unexpected"]),
        (lambda t: t.rename_columns(["ID", *t.column_names[1:]]), ["'id' (int64) is missing", "'ID' is unexpected"]),
        (lambda t: t.append_column("id", t["id"]), ["'id' is there 2 times"]),
        (lambda t: t.drop_columns(["_time"]), ["'_time' (int64) is missing"]),
        (lambda t: t.drop_columns(["_diff"]), ["'_diff' (int64) is missing"]),
    ],
)
def test_a_wrong_or_missing_column_is_named_with_the_right_ones(change: Any, problems: list[str]) -> None:
    with pytest.raises(SchemaMismatch) as caught:
        to_updates(change(to_updates(UPDATES, ORDERS)), ORDERS)
    for part in (*problems, "id: int64, status: string, amount: double"):
        assert part in str(caught.value)


def test_a_time_and_a_diff_for_all_updates_stand_in_for_missing_columns() -> None:
    table = to_updates(UPDATES, ORDERS)
    timeless = table.drop_columns(["_time", "_diff"])
    stamped = to_updates(timeless, ORDERS, default_time=7, default_diff=-1)
    assert stamped.schema.equals(ORDERS.arrow)
    assert stamped.column("_time").to_pylist() == [7, 7, 7]
    assert stamped.column("_diff").to_pylist() == [-1, -1, -1]
    assert to_updates(table, ORDERS, default_time=7, default_diff=-1).equals(table)
    with pytest.raises(SchemaMismatch, match=r"'_diff' \(int64\) is missing"):
        to_updates(timeless, ORDERS, default_time=7)


@pytest.mark.parametrize(
    ("lacking", "listed"),
    [(["amount"], ""), (["_diff"], ", _diff: int64"), (["_time", "_diff"], ", _time: int64, _diff: int64")],
)
def test_a_misfit_lists_the_columns_and_what_of_time_and_diff_is_missing(lacking: list[str], listed: str) -> None:
    with pytest.raises(SchemaMismatch) as caught:
        to_updates(to_updates(UPDATES, ORDERS).drop_columns(lacking), ORDERS)
    assert f"Its columns are id: int64, status: string, amount: double{listed}, in any order." in str(caught.value)
    assert ("give time=…" in str(caught.value)) == (len(lacking) == 2)


@pytest.mark.parametrize("time", [-1, 2**63 - 1, True, "7", 1.0])
def test_a_time_for_all_updates_is_checked(time: Any) -> None:
    with pytest.raises(InvalidUpdate, match="for _time of every update is not allowed: give an int from 0 to"):
        to_updates(ORDERS.arrow.empty_table(), ORDERS, default_time=time)


CONVERTED = [
    (pa.int8(), [1, None], pa.int64(), [1, None]),
    (pa.uint64(), [2**63 - 1], pa.int64(), [2**63 - 1]),
    (pa.int64(), [255], pa.uint8(), [255]),
    (pa.int64(), [2**53], pa.float64(), [2.0**53]),
    (pa.float32(), [0.5, math.inf, math.nan], pa.float64(), [0.5, math.inf, math.nan]),
    (pa.float64(), [0.5, None, math.inf, math.nan], pa.float16(), [0.5, None, math.inf, math.nan]),
    (pa.string(), ["a"], pa.large_string(), ["a"]),
    (pa.string_view(), ["a"], pa.string(), ["a"]),
    (pa.large_binary(), [b"ab"], pa.binary(2), [b"ab"]),
    (pa.binary(2), [b"ab"], pa.binary(), [b"ab"]),
    (pa.dictionary(pa.int8(), pa.string()), ["a", None], pa.large_string(), ["a", None]),
    (pa.timestamp("s"), [dt.datetime(2020, 1, 1)], pa.timestamp("ns"), [dt.datetime(2020, 1, 1)]),
    (
        pa.timestamp("us", tz="Europe/Berlin"),
        [dt.datetime(2020, 1, 1, tzinfo=dt.UTC)],
        pa.timestamp("ms", tz="UTC"),
        [dt.datetime(2020, 1, 1, tzinfo=dt.UTC)],
    ),
    (pa.date32(), [dt.date(2020, 1, 1)], pa.date64(), [dt.date(2020, 1, 1)]),
    (pa.time32("s"), [dt.time(1, 2)], pa.time64("us"), [dt.time(1, 2)]),
    (pa.duration("us"), [dt.timedelta(1)], pa.duration("s"), [dt.timedelta(1)]),
    (pa.decimal128(5, 1), [Decimal("1.5")], pa.decimal256(50, 3), [Decimal("1.500")]),
    (pa.int64(), [5, None], pa.decimal128(10, 2), [Decimal("5.00"), None]),
    (pa.list_(pa.int8()), [[1], None], pa.large_list(pa.int64()), [[1], None]),
    (pa.large_list(pa.int8()), [[1, 2]], pa.list_(pa.int8(), 2), [[1, 2]]),
    (
        pa.struct([("a", pa.int8()), ("b", pa.string())]),
        [{"a": 1, "b": "x"}],
        pa.struct([("b", pa.large_string()), ("a", pa.int64())]),
        [{"b": "x", "a": 1}],
    ),
    (pa.map_(pa.string(), pa.int8()), [[("a", 1)]], pa.map_(pa.string(), pa.int64()), [[("a", 1)]]),
    (pa.null(), [None], pa.list_(pa.int8(), 2), [None]),
    (pa.null(), [None], pa.decimal128(3, 1), [None]),
]


@pytest.mark.parametrize(("source", "values", "target", "expected"), CONVERTED, ids=str)
def test_a_column_of_the_same_family_is_converted(source: Any, values: Any, target: Any, expected: Any) -> None:
    table = to_updates(_table(source, values), _one(target))
    assert table.schema.equals(_one(target).arrow, check_metadata=True)
    assert same(table.column("x").to_pylist(), expected)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        *((pa.int64(), pa.string()), (pa.string(), pa.int64()), (pa.string(), pa.decimal128(9))),
        *((pa.bool_(), pa.int64()), (pa.int64(), pa.bool_()), (pa.string(), pa.binary()), (pa.binary(), pa.string())),
        *((pa.date32(), pa.timestamp("us")), (pa.timestamp("us"), pa.date32()), (pa.int64(), pa.timestamp("us"))),
        *((pa.timestamp("us"), pa.timestamp("us", tz="UTC")), (pa.timestamp("us", tz="UTC"), pa.timestamp("us"))),
        *(
            (pa.bool_(), pa.decimal128(18, 0)),
            (pa.float64(), pa.decimal128(20, 0)),
            (pa.string(), pa.list_(pa.string())),
        ),
        *((pa.list_(pa.float64()), pa.list_(pa.float32())), (pa.list_(pa.int8()), pa.list_(pa.string()))),
        *(
            (pa.struct([("a", pa.int8())]), pa.struct([("b", pa.int8())])),
            (pa.list_view(pa.int8()), pa.list_(pa.string())),
            (pa.run_end_encoded(pa.int32(), pa.int8()), pa.string()),
        ),
        *((pa.struct([("a", pa.int8()), ("b", pa.int8())]), pa.struct([("a", pa.int8())])),),
        *(
            (pa.struct([("item", pa.int8())]), pa.list_(pa.int8())),
            (pa.list_(pa.int8()), pa.struct([("item", pa.int8())])),
        ),
        *((pa.map_(pa.int8(), pa.int8()), pa.list_(pa.int8())), (pa.list_(pa.int8()), pa.map_(pa.int8(), pa.int8()))),
        (pa.map_(pa.int8(), pa.int8()), pa.map_(pa.string(), pa.int8())),
        (pa.map_(pa.int8(), pa.int8()), pa.map_(pa.int8(), pa.string())),
        *((pa.dictionary(pa.int8(), pa.string()), pa.int64()), (pa.dictionary(pa.int8(), pa.int8()), pa.bool_())),
    ],
    ids=str,
)
def test_a_column_of_another_family_is_a_schema_mismatch(source: pa.DataType, target: pa.DataType) -> None:
    with pytest.raises(SchemaMismatch) as caught:
        to_updates(_table(source, pa.nulls(0, source)), _one(target))
    for part in ("column 'x' has type", str(source), f"the collection stores {target}", f"Cast it to {target}"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("source", "values", "target", "shown"),
    [
        (pa.int64(), [1, 128], pa.int8(), "128"),
        (pa.int64(), [1, -1], pa.uint64(), "-1"),
        (pa.int64(), [1, 2**53 + 1], pa.float64(), str(2**53 + 1)),
        (pa.int64(), [1, 2**17 - 1], pa.float16(), str(2**17 - 1)),
        (pa.int64(), [1, 10**8], pa.decimal128(10, 2), str(10**8)),
        (pa.float64(), [0.5, 0.1, 0.1], pa.float32(), "0.1"),
        (pa.float64(), [math.nan, 1e300], pa.float32(), "1e+300"),
        (pa.timestamp("us"), [dt.datetime(2020, 1, 1), dt.datetime(2020, 1, 1, 0, 0, 0, 1)], pa.timestamp("s"), "1)"),
        (pa.binary(), [b"ab", b"abc"], pa.binary(2), "b'abc'"),
        (pa.decimal128(9, 3), [Decimal("1.5"), Decimal("1.555")], pa.decimal128(9, 2), "Decimal('1.555')"),
        (pa.list_(pa.int64()), [[1], [1, 300]], pa.list_(pa.int8()), "[1, 300]"),
        (pa.list_(pa.int64()), [[1, 2], [1]], pa.list_(pa.int64(), 2), "[1]"),
    ],
    ids=str,
)
def test_rule_25_a_value_that_would_change_names_its_row(source: Any, values: Any, target: Any, shown: str) -> None:
    with pytest.raises(InvalidUpdate) as caught:
        to_updates(_table(source, values), _one(target))
    for part in ("update 1 has", shown, "column 'x'", f"the collection stores {target}"):
        assert part in str(caught.value)


@pytest.mark.parametrize("nested", [lambda t: t, pa.list_, lambda t: pa.struct([("a", pa.map_(t, t))])])
@pytest.mark.parametrize(
    ("t", "ticks"),
    [
        (pa.timestamp("s"), 2**60),
        (pa.timestamp("s", tz="UTC"), -(2**60)),
        (pa.date64(), 5),
        (pa.time32("s"), 86_400),
        (pa.time64("ns"), -1),
    ],
    ids=str,
)
def test_a_temporal_value_that_parquet_would_change_is_refused(t: Any, ticks: int, nested: Any) -> None:
    bad = pa.array([0, ticks], pa.int32() if t.bit_width == 32 else pa.int64()).view(t)
    target = nested(t)
    if pa.types.is_list(target):
        column = pa.ListArray.from_arrays([0, 1, 2], bad)
    elif pa.types.is_struct(target):
        column = pa.StructArray.from_arrays([pa.MapArray.from_arrays([0, 1, 2], bad, bad)], ["a"])
    else:
        column = bad
    with pytest.raises(InvalidUpdate, match=r"update 1 has .* in column 'x' of type .* which cannot be stored"):
        to_updates(_table(target, column), _one(target))
    assert to_updates(_table(target, column.slice(0, 1)), _one(target)).num_rows == 1


def test_values_outside_of_a_slice_do_not_count() -> None:
    target = _one(pa.list_(pa.int8()))
    whole = pa.array([[1], [300]], pa.list_(pa.int64()))
    assert to_updates(_table(whole.type, whole.slice(0, 1)), target).column("x").to_pylist() == [[1]]


# Times and diffs


@pytest.mark.parametrize("time", [-1, 2**63 - 1, -(2**63)])
def test_a_time_out_of_range_is_named_in_every_form(time: int) -> None:
    table = pa.table({"x": [1, 1], "_time": [0, time], "_diff": [1, 1]})
    for data in (table, [((1, None), 0, 1), ((1, None), time, 1)]):
        with pytest.raises(InvalidUpdate, match=rf"update 1 has the time {time}: .* from 0 to {TIME_MAX}"):
            to_updates(data, _one(pa.int64()))


@pytest.mark.parametrize("column", ["_time", "_diff"])
def test_a_null_time_or_diff_is_named_in_every_form(column: str) -> None:
    columns: dict[str, list[Any]] = {"x": [1, 1], "_time": [0, 0], "_diff": [1, 1]}
    columns[column][1] = None
    tuples = [((x, None), t, d) for x, t, d in zip(*columns.values(), strict=True)]
    for data in (pa.table(columns), tuples, tuples * 50):
        with pytest.raises(InvalidUpdate, match=rf"update 1 has (NULL|None) .*{column}.* needs a time and a diff"):
            to_updates(data, _one(pa.int64()))


@pytest.mark.parametrize("column", ["_time", "_diff"])
@pytest.mark.parametrize("value", [True, 1.0, "1", 2**63, dt.datetime(2020, 1, 1)], ids=repr)
def test_a_time_or_diff_that_is_no_int64_is_refused(column: str, value: Any) -> None:
    update = ((1, None), value, 1) if column == "_time" else ((1, None), 1, value)
    with pytest.raises(InvalidUpdate, match=rf"update 1 has .* for {column} of type int64"):
        to_updates([((1, None), 0, 1), update], _one(pa.int64()))
    if value != 2**63:
        table = pa.table({"x": [1], "_time": [0], "_diff": [1]})
        table = table.set_column(table.column_names.index(column), column, pa.array([value]))
        with pytest.raises(SchemaMismatch, match=rf"column '{column}' has type .* the collection stores int64"):
            to_updates(table, _one(pa.int64()))


# Tuples


@pytest.mark.parametrize(
    ("update", "problem"),
    [
        (((1, ("a", 1.0)), 1), "not a tuple of three"),
        ((1, ("a", 1.0), 1, 1), "not a tuple of three"),
        ("abc", "not a tuple of three"),
        (None, "not a tuple of three"),
        (5, "not a tuple of three"),
        ((1, 1, 1), "1 is not a tuple of two, (key, value)"),
        (((1,), 1, 1), "(1,) is not a tuple of two"),
        (("ab", 1, 1), "'ab' is not a tuple of two"),
        (((1, "a", 1.0), 1, 1), "(1, 'a', 1.0) is not a tuple of two"),
        (((1, "a"), 1, 1), "the value 'a' is not a tuple of the 2 fields status, amount"),
        (((1, ("a",)), 1, 1), "the value ('a',) is not a tuple of the 2 fields status, amount"),
        (((1, None), 1, 1), "the value None is not a tuple of the 2 fields"),
        (((1, {"status": "a", "amuont": 1.0}), 1, 1), "'amuont' is not a field of the value, did you mean 'amount'?"),
        ((((1,), ("a", 1.0)), 1, 1), "the key (1,) is a tuple, and field 'id' takes the value itself"),
    ],
    ids=repr,
)
def test_a_malformed_tuple_is_shown_with_an_example_for_this_schema(update: Any, problem: str) -> None:
    for before in (UPDATES, UPDATES * 20):
        with pytest.raises(InvalidUpdate) as caught:
            to_updates([*before, update], ORDERS)
        assert f"update {len(before)} is " in str(caught.value)
        assert problem in str(caught.value)
        assert "like ((id, (status, amount)), time, diff)" in str(caught.value)


def test_a_value_for_a_side_without_fields_is_refused() -> None:
    with pytest.raises(InvalidUpdate, match=r"value 5 is not None.*like \(\(x, None\), time, diff\)"):
        to_updates([((1, 5), 0, 1)], _one(pa.int64()))


def test_a_long_update_is_cut_in_the_message() -> None:
    with pytest.raises(InvalidUpdate) as caught:
        to_updates([(("x" * 10_000, None), 0)], _one(pa.string()))
    assert len(str(caught.value)) < 300
    assert "…" in str(caught.value)


REFUSED: list[tuple[Any, list[Any]]] = [
    (pa.int64(), [True, 1.5, "1", Decimal("1.5"), math.nan, 2**63, np.bool_(True)]),
    (pa.uint8(), [-1, 256]),
    (pa.float64(), [True, "1.5", Decimal(1), 2**53 + 1]),
    (pa.float32(), [1e300, -1e300]),
    (pa.float16(), [1e6]),
    (pa.bool_(), [1, 0, "true"]),
    (pa.string(), [1, b"a", "\ud800", ["a"]]),
    (pa.binary(), ["a", 1, [1]]),
    (pa.binary(2), [b"", b"abc"]),
    (pa.decimal128(3, 1), [1.5, True, Decimal("1.55"), Decimal("NaN"), 1000, "1"]),
    (pa.date32(), [dt.datetime(2020, 1, 1), 5, "2020-01-01"]),
    (pa.timestamp("s"), [5, dt.date(2020, 1, 1), dt.datetime(2020, 1, 1, 0, 0, 0, 1), "2020-01-01"]),
    (pa.timestamp("us"), [dt.datetime(2020, 1, 1, tzinfo=dt.UTC), pd.Timestamp(1, unit="ns")]),
    (pa.timestamp("us", tz="UTC"), [dt.datetime(2020, 1, 1)]),
    (pa.timestamp("ns"), [dt.datetime(9999, 1, 1)]),
    (pa.time32("s"), [dt.time(1, 2, 3, 4), dt.time(1, tzinfo=dt.UTC), 5]),
    (pa.duration("ms"), [dt.timedelta(microseconds=1), 5, pd.Timedelta(1, unit="ns")]),
    (pa.list_(pa.int8()), ["ab", {1}, 1, [1.0], [True], [300], {"a": 1}]),
    (pa.list_(pa.string()), ["ab", [1]]),
    (pa.list_(pa.int8(), 2), [[1], [1, 2, 3]]),
    (pa.struct([("a", pa.int8())]), [{"b": 1}, {"a": 1, "b": 1}, {"a": 1.0}, [("a", 1)], (1,), 1]),
    (pa.map_(pa.string(), pa.int8()), [[("a",)], ["ab"], {"a": 1.0}, {1: 1}, {None: 1}, 1]),
    (pa.list_(pa.struct([("t", pa.timestamp("s"))])), [[{"t": dt.datetime(2020, 1, 1, 0, 0, 0, 1)}]]),
]


@pytest.mark.parametrize(("t", "value"), [(t, v) for t, vs in REFUSED for v in vs], ids=repr)
def test_a_value_of_another_type_is_refused_and_never_coerced(t: pa.DataType, value: Any) -> None:
    schema = CollectionSchema.of(None, {"x": t, "y": pa.int64()})
    for nulls in (1, 100):
        some = [((None, (None, 1)), 0, 1)] * nulls + [((None, (value, 1)), 0, 1)] * 2
        with pytest.raises(InvalidUpdate) as caught:
            to_updates(some, schema)
        for part in (f"update {nulls} has ", f"({type(value).__name__}) for value field 'x' of type {t}", "Give "):
            assert part in str(caught.value)


@pytest.mark.parametrize(
    ("t", "value", "stored"),
    [
        (pa.float64(), 3, 3.0),
        (pa.float32(), 0.1, float(np.float32(0.1))),
        (pa.int64(), np.int32(3), 3),
        (pa.float64(), np.float32(0.5), 0.5),
        (pa.bool_(), np.bool_(True), True),
        (pa.decimal128(5, 2), 3, Decimal("3.00")),
        (pa.binary(), bytearray(b"a"), b"a"),
        (pa.binary(), memoryview(b"a"), b"a"),
        (pa.list_(pa.int8()), (1, 2), [1, 2]),
        (pa.list_(pa.float64()), np.array([1.5, 2.5]), [1.5, 2.5]),
        (pa.map_(pa.string(), pa.int8()), {"a": 1}, [("a", 1)]),
        (pa.struct([("a", pa.int8()), ("b", pa.int8())]), {"b": 1}, {"a": None, "b": 1}),
        (pa.timestamp("ns"), pd.Timestamp(1, unit="ns"), pd.Timestamp(1, unit="ns")),
    ],
    ids=repr,
)
def test_a_value_that_means_the_same_is_taken(t: pa.DataType, value: Any, stored: Any) -> None:
    assert [key for key, _ in iterate_rows(to_updates([((value, None), 0, 1)], _one(t)), _one(t))] == [stored]


def test_lists_and_named_tuples_stand_for_tuples() -> None:
    assert to_updates([[[1, ["new", 9.5]], 10, 1]], ORDERS).equals(to_updates(UPDATES[:1], ORDERS))


@pytest.mark.parametrize("data", [None, 5, "abc", b"abc"], ids=repr)
def test_what_is_no_updates_at_all_is_refused(data: Any) -> None:
    expected = r"the updates are .*: give an iterable of \(\(key, value\), time, diff\)|a text. Read a file first"
    with pytest.raises(InvalidUpdate, match=expected):
        to_updates(data, ORDERS)


def test_a_single_column_is_no_table() -> None:
    with pytest.raises(SchemaMismatch, match=r"Series gives no Arrow record batches .*: give a table, a frame"):
        to_updates(pl.Series([1, 2]), ORDERS)


def _views() -> pa.Array:
    offsets, sizes = pa.array([3, 0, 1], pa.int32()), pa.array([2, 2, 1], pa.int32())
    return pa.ListViewArray.from_arrays(offsets, sizes, pa.array([1, 2, 3, 4, 5]))


@pytest.mark.parametrize(
    ("array", "plain", "values"),
    [
        (_views(), pa.list_(pa.int64()), [[4, 5], [1, 2], [2]]),
        (_views()[1:], pa.list_(pa.int64()), [[1, 2], [2]]),
        (
            pa.array([["a"], None, []], pa.large_list_view(pa.string_view())),
            pa.large_list(pa.string()),
            [["a"], None, []],
        ),
        (
            pa.RunEndEncodedArray.from_arrays(pa.array([2, 4], pa.int32()), pa.array(["a", None]))[1:],
            *(pa.string(), ["a", None, None]),
        ),
        (pa.array([Decimal("1.25"), None], pa.decimal32(5, 2)), pa.decimal128(5, 2), [Decimal("1.25"), None]),
        (pa.array([Decimal("1.25")], pa.decimal64(9, 2)), pa.decimal128(9, 2), [Decimal("1.25")]),
        (
            pa.StructArray.from_arrays([_views()], ["v"]),
            *(pa.struct([("v", pa.list_(pa.int64()))]), [{"v": [4, 5]}, {"v": [1, 2]}, {"v": [2]}]),
        ),
    ],
    ids=lambda case: str(getattr(case, "type", "")),
)
def test_an_encoded_column_is_stored_as_its_values(array: pa.Array, plain: pa.DataType, values: list[object]) -> None:
    assert get_stored_type(array.type) == plain
    assert to_updates(_table(array.type, array), _one(plain))["x"].to_pylist() == values
