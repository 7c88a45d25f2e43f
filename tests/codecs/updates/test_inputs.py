"""Rows are taken in every form that people have them in, all forms mean the same, and what is at fault is named."""

import datetime as dt
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset
import pytest

from persist.codecs.errors import InvalidUpdate, SchemaMismatch
from persist.codecs.types.schema import CollectionSchema
from persist.codecs.updates.inputs import TableStream, open_stream, select_columns_like
from persist.codecs.updates.updates import to_updates

ORDERS = CollectionSchema.of({"id": pa.int64()}, {"status": pa.string(), "amount": pa.float64()})
DICTS: list[dict[str, Any]] = [
    {"id": 1, "status": "new", "amount": 9.5, "_time": 10, "_diff": 1},
    {"id": 2, "status": None, "amount": None, "_time": 11, "_diff": -1},
]
TABLE = pa.table({f.name: [row[f.name] for row in DICTS] for f in ORDERS.arrow}, schema=ORDERS.arrow)


class OnlyStream:
    """Something that only exports an Arrow stream, as other libraries do."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return TABLE.__arrow_c_stream__(requested_schema)


class OnlyArray:
    """Something that only exports one batch."""

    def __arrow_c_array__(self, requested_schema: object | None = None) -> object:
        return TABLE.to_batches()[0].__arrow_c_array__(requested_schema)


def columns() -> dict[str, Any]:
    return {name: TABLE[name].to_pylist() for name in TABLE.column_names}


FORMS: dict[str, Callable[[], Any]] = {
    "tuples": lambda: [((1, ("new", 9.5)), 10, 1), ((2, (None, None)), 11, -1)],
    "tuples of dicts": lambda: [
        ((1, {"amount": 9.5, "status": "new"}), 10, 1),
        ((2, {"amount": None, "status": None}), 11, -1),
    ],
    "dicts of one field": lambda: [(({"id": 1}, ("new", 9.5)), 10, 1), (({"id": 2}, [None, None]), 11, -1)],
    "tuples with whole floats": lambda: [((1.0, ("new", 9.5)), 10, 1), ((Decimal("2.00"), (None, None)), 11, -1)],
    "list of dicts": lambda: DICTS,
    "generator of dicts": lambda: (row for row in DICTS),
    "dict of columns": columns,
    "dict of numpy": lambda: {**columns(), "id": np.array([1, 2]), "_time": np.array([10, 11])},
    "dict of Arrow": lambda: {**columns(), "id": TABLE["id"], "status": TABLE["status"].chunk(0)},
    "dict of series": lambda: {**columns(), "id": pl.Series([1, 2]), "amount": pd.Series([9.5, None])},
    "batch": lambda: TABLE.to_batches()[0],
    "only an array": OnlyArray,
    "only a stream": OnlyStream,
    "reader": TABLE.to_reader,
    "list of batches": lambda: TABLE.to_batches(max_chunksize=1),
    "generator of batches": lambda: iter(TABLE.to_batches(max_chunksize=1)),
    "generator of frames": lambda: (pl.from_arrow(TABLE.slice(row, 1)) for row in range(2)),
    "dataset": lambda: pyarrow.dataset.dataset(TABLE),
    "scanner": lambda: pyarrow.dataset.dataset(TABLE).scanner(),
    "pandas": TABLE.to_pandas,
    "pandas with floats for integers": lambda: TABLE.to_pandas().astype({"id": "float64"}),
    "pandas of objects": lambda: TABLE.to_pandas().astype({"id": "object", "amount": "object"}),
    "pandas of decimals": lambda: TABLE.to_pandas().assign(id=[Decimal("1"), Decimal("2.0")]),
    "pandas with categories": lambda: TABLE.to_pandas().astype({"status": "category"}),
    "polars": lambda: pl.from_arrow(TABLE),
    "polars lazily": lambda: pl.from_arrow(TABLE).lazy(),
    "polars with categories": lambda: pl.from_arrow(TABLE).with_columns(pl.col("status").cast(pl.Categorical)),
    "polars with an enum": lambda: pl.from_arrow(TABLE).with_columns(pl.col("status").cast(pl.Enum(["new"]))),
    "duckdb": lambda: duckdb.connect().from_arrow(TABLE),
    "views": lambda: TABLE.set_column(1, "status", TABLE["status"].cast(pa.string_view())),
    "dictionary": lambda: TABLE.set_column(1, "status", TABLE["status"].dictionary_encode()),
    "decimals": lambda: TABLE.set_column(0, "id", TABLE["id"].cast(pa.decimal128(30, 4))),
    "columns in another order": lambda: TABLE.select(list(reversed(TABLE.column_names))),
    "columns that may be null": lambda: TABLE.cast(pa.schema([f.with_nullable(True) for f in TABLE.schema])),
    "chunks": lambda: pa.concat_tables([TABLE.slice(0, 1), TABLE.slice(1)]),
    "structs": lambda: pa.chunked_array([TABLE.to_struct_array().chunk(0)]),
    "pandas of Arrow": lambda: TABLE.to_pandas(types_mapper=pd.ArrowDtype),
    "floats": lambda: TABLE.set_column(0, "id", TABLE["id"].cast(pa.float32())),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_the_same_updates_means_the_same(form: str) -> None:
    assert to_updates(FORMS[form](), ORDERS).equals(TABLE)


@pytest.mark.parametrize(
    "form", ["reader", "generator of batches", "dataset", "scanner", "polars lazily", "generator of dicts", "duckdb"]
)
def test_what_may_be_larger_than_memory_is_a_stream(form: str) -> None:
    assert isinstance(open_stream(FORMS[form]()), TableStream)


@pytest.mark.parametrize("form", ["pandas", "polars", "batch", "list of dicts", "dict of columns", "tuples"])
def test_what_is_in_memory_already_is_none(form: str) -> None:
    assert not isinstance(open_stream(FORMS[form]()), TableStream)


def test_nan_of_pandas_is_null_in_a_column_of_integers_and_nan_of_others_is_refused() -> None:
    rows = {"id": [1.0, float("nan")], "status": ["a", "b"], "amount": [0.5, 1.0], "_time": [1, 1], "_diff": [1, 1]}
    assert to_updates(pd.DataFrame(rows), ORDERS)["id"].to_pylist() == [1, None]
    with pytest.raises(InvalidUpdate, match=r"update 1 has nan in column 'id' of type double"):
        to_updates(pl.DataFrame(rows), ORDERS)


@pytest.mark.parametrize(
    ("source", "value", "target"),
    [
        (pa.float64(), 1.5, pa.int64()),
        (pa.float64(), 2.0**63, pa.int64()),
        (pa.float64(), -1.0, pa.uint64()),
        (pa.float32(), 128.0, pa.int8()),
        (pa.decimal128(5, 2), Decimal("1.50"), pa.int64()),
        (pa.decimal128(38, 0), Decimal(2**63), pa.int64()),
    ],
    ids=str,
)
def test_what_is_no_integer_is_refused_with_its_row(source: pa.DataType, value: Any, target: pa.DataType) -> None:
    table = pa.table({"x": pa.array([1, value], source), "_time": [0, 0], "_diff": [1, 1]})
    with pytest.raises(InvalidUpdate, match=r"update 1 has .* in column 'x'"):
        to_updates(table, CollectionSchema.of({"x": target}, None))


def test_uuids_are_stored_as_their_bytes_from_every_form() -> None:
    schema, one = CollectionSchema.of({"id": pa.uuid()}, None), uuid.uuid4()
    forms = [
        [((one, None), 0, 1)],
        [{"id": one, "_time": 0, "_diff": 1}],
        pa.table({"id": pa.array([one], pa.uuid()), "_time": [0], "_diff": [1]}),
        pd.DataFrame({"id": [one], "_time": [0], "_diff": [1]}),
    ]
    assert [to_updates(form, schema)["id"].to_pylist() for form in forms] == [[one.bytes]] * len(forms)


def test_one_bad_value_of_a_frame_is_named_with_its_column_and_row() -> None:
    frame = pd.DataFrame(
        {"id": [1, 2], "status": ["a", "b"], "amount": pd.Series([1.0, "much"], dtype=object), "_time": 0, "_diff": 1}
    )
    with pytest.raises(InvalidUpdate, match=r"update 1 has 'much' \(str\) for column 'amount' of type double"):
        to_updates(frame, ORDERS)


def test_one_bad_value_of_a_dict_is_named_with_its_column_and_row() -> None:
    with pytest.raises(InvalidUpdate, match=r"update 1 has 'x' \(str\) for column 'id' of type int64"):
        to_updates([DICTS[0], {**DICTS[1], "id": "x"}], ORDERS)
    with pytest.raises(InvalidUpdate, match=r"update 1 is 5 \(int\), and the updates before it are dicts"):
        to_updates([DICTS[0], 5], ORDERS)


def test_a_bad_value_late_in_a_stream_is_named_with_where_it_is() -> None:
    bad = TABLE.set_column(0, "id", pa.array(["1", "x"]))
    with pytest.raises(SchemaMismatch, match="column 'id' has type string"):
        to_updates(iter([TABLE, bad]), ORDERS)
    late = TABLE.set_column(0, "id", pa.array([1.0, 1.5]))
    with pytest.raises(InvalidUpdate, match=r"from row 2 of the stream on, update 1 has 1\.5 in column 'id'"):
        to_updates(iter([TABLE, late]), ORDERS)
    with pytest.raises(SchemaMismatch, match=r"a stream of tables holds 7 \(int\)"):
        to_updates(iter([TABLE, 7]), ORDERS)


def test_an_error_of_the_stream_itself_is_passed_on() -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield TABLE.to_batches()[0]
        raise ConnectionError("the source is gone")

    with pytest.raises(ConnectionError, match="the source is gone"):
        to_updates(failing(), ORDERS)


@pytest.mark.parametrize("name", ["_time", "_diff"])
@pytest.mark.parametrize("wrong", [[1.0, 1.0], ["1", "1"], [dt.datetime(2020, 1, 1), None]], ids=str)
def test_times_and_diffs_are_integers_and_nobody_is_told_of_null(name: str, wrong: list[Any]) -> None:
    for form in (TABLE.set_column(TABLE.column_names.index(name), name, pa.array(wrong)), {**columns(), name: wrong}):
        with pytest.raises((InvalidUpdate, SchemaMismatch), match=name) as caught:
            to_updates(form, ORDERS)
        assert "or None" not in str(caught.value)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"id": 1, "status": "a", "amount": 1.0, "_time": 0, "_diff": 1}, r"column 'id' is 1 \(int\).*a single row"),
        ({**columns(), "id": [1]}, r"not of one length: 'id' 1, 'status' 2"),
        ({5: [1, 2]}, "5 is not the name of a column"),
        (TABLE.rename_columns(["id", "status", "Amont", "_time", "_diff"]), "'Amont' is unexpected, did you mean 'am"),
    ],
    ids=["one row", "lengths", "name", "misspelt"],
)
def test_what_is_no_table_is_refused_with_what_to_do(data: Any, message: str) -> None:
    with pytest.raises(SchemaMismatch, match=message):
        to_updates(data, ORDERS)


@dataclass
class Point:
    """A row with a key alone."""

    id: int


ROW = {"id": 1, "status": "new", "amount": 9.5, "_time": 10, "_diff": 1}
LACKING = {"id": 2, "status": "new", "_time": 10, "_diff": 1}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([ROW, LACKING], "row 1 is .* lacks the column 'amount', which would be NULL: give 'amount' as None if"),
        (iter([LACKING, ROW]), "row 0 is .* lacks the column 'amount'"),
        ([ROW, Point(3)], "row 1 is .* lacks the columns 'status', 'amount', '_time', '_diff'"),
        ([((1, {"amount": 1.0}), 10, 1)], "update 0 is .* the value .* lacks the column 'status'"),
        ([((1, {"amount": 1.0, "status": ""}), 10, 1), ((2, {}), 10, 1)], "update 1 is .* lacks the columns"),
    ],
    ids=["dicts", "generator", "dataclass", "tuples", "empty value"],
)
def test_a_row_that_lacks_a_column_is_refused_and_not_null_there(data: Any, message: str) -> None:
    with pytest.raises(InvalidUpdate, match=message):
        to_updates(data, ORDERS)


def test_a_row_with_a_column_too_many_is_refused_by_that_name() -> None:
    with pytest.raises(SchemaMismatch, match="'more' is unexpected"):
        to_updates([ROW, {**ROW, "more": 1}], ORDERS)


@pytest.mark.parametrize(
    "data",
    [
        duckdb.sql("SELECT 1 AS id, TIMETZ '12:00:00+05' AS status"),
        duckdb.sql("SELECT 1 AS id, '101'::BIT AS status"),
        {"id": [1], "status": np.array([1], "M8[ps]")},
        {"id": [1], "status": np.array([1], "m8[h]")},
    ],
    ids=["time with zone", "bits", "picoseconds", "hours"],
)
def test_a_type_that_arrow_would_turn_into_another_value_is_refused(data: Any) -> None:
    for use in (select_columns_like, lambda given: to_updates(given, ORDERS)):
        with pytest.raises(SchemaMismatch, match=r"column 'status' is of (DuckDB|numpy)'s type .*: cast it"):
            use(data)
