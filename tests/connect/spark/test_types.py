"""What Spark holds in a wider type is taken back, and nothing else is cast: neither values nor names get lost."""

from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import datasource as ds

from persist import InvalidUsage
from persist.codecs.types.schema import CollectionSchema
from persist.connect.spark.data_source.reader import make_pruning_filter
from persist.connect.spark.types import convert_to_spark, spark_schema
from persist.connect.spark.uploads import Rows
from persist.connect.spark.write_functions.foreach_batch import foreach_batch_writer
from persist.errors import InvalidUpdate, SchemaMismatch


def stored(kind: pa.DataType, given: pa.Array) -> Any:
    """Return what is written of one value that a DataFrame has in a column of another type."""
    rows = Rows(CollectionSchema.of({"k": pa.int64()}, {"v": kind}), time=0)
    table = pa.table({"k": pa.array([1], pa.int64()), "v": given})
    return rows.to_updates(table)["v"].to_pylist()[0]


@pytest.mark.parametrize(
    ("kind", "given", "value"),
    [
        (pa.uint64(), pa.array([Decimal(2**64 - 1)], pa.decimal128(20, 0)), 2**64 - 1),
        (pa.uint64(), pa.array([7], pa.int64()), 7),
        (pa.large_list(pa.int16()), pa.array([[1, None]], pa.list_(pa.int16())), [1, None]),
        (pa.list_(pa.int16()), pa.array([[1, 2]], pa.list_(pa.int64())), [1, 2]),
        (pa.struct({"x": pa.uint16()}), pa.array([{"x": 65535}], pa.struct({"x": pa.int32()})), {"x": 65535}),
        (
            pa.list_(pa.timestamp("ms", "Europe/Berlin")),
            pa.array([[datetime(2026, 1, 1, tzinfo=UTC)]], pa.list_(pa.timestamp("us", "UTC"))),
            [datetime(2026, 1, 1, tzinfo=UTC)],
        ),
    ],
)
def test_what_spark_holds_in_a_wider_type_is_taken_back(kind: pa.DataType, given: pa.Array, value: Any) -> None:
    assert stored(kind, given) == value


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (pa.struct({"a": pa.int64()}), pa.array([{"x": 1}], pa.struct({"x": pa.int64()}))),
        (pa.struct({"a": pa.int64()}), pa.array([{"A": 1}], pa.struct({"A": pa.int64()}))),
        (pa.struct({"a": pa.int64()}), pa.array([{"a": 1, "b": 2}], pa.struct({"a": pa.int64(), "b": pa.int64()}))),
        (pa.struct({"a": pa.int64(), "b": pa.int64()}), pa.array([{"a": 1}], pa.struct({"a": pa.int64()}))),
        (pa.list_(pa.float32()), pa.array([[0.1]], pa.list_(pa.float64()))),
        (pa.list_(pa.decimal128(5, 2)), pa.array([[1.239]], pa.list_(pa.float64()))),
        (pa.list_(pa.int64()), pa.array([["1"]], pa.list_(pa.string()))),
        (pa.list_(pa.int16()), pa.array([[70_000]], pa.list_(pa.int64()))),
        (pa.uint64(), pa.array(["1"], pa.string())),
        (pa.uint64(), pa.array([1.5], pa.float64())),
        (pa.uint64(), pa.array([-1], pa.int64())),
    ],
)
def test_what_is_something_else_is_refused(kind: pa.DataType, given: pa.Array) -> None:
    with pytest.raises((SchemaMismatch, InvalidUpdate)):
        stored(kind, given)


def test_event_times_without_a_timeline_count_microseconds_and_must_not_be_before_1970() -> None:
    schema = CollectionSchema.of({"k": pa.int64()}, None)
    table = pa.table({"k": [1, 2], "at": pa.array([1_500_000, 999_999], pa.timestamp("us", "UTC"))})
    assert Rows(schema, time="at").to_updates(table)["_time"].to_pylist() == [1_500_000, 999_999]
    early = table.set_column(1, "at", pa.array([-500_000, 0], pa.timestamp("us", "UTC")))
    with pytest.raises(InvalidUpdate, match="-500000"):
        Rows(schema, time="at").to_updates(early)


def test_days_that_spark_hands_over_as_others_are_not_pushed() -> None:
    schema = pa.schema({"d": pa.date32()})
    for day, is_pushed in [(date(1582, 10, 4), True), (date(1582, 10, 14), False), (date(1582, 10, 25), True)]:
        assert (make_pruning_filter([ds.GreaterThan(("d",), day)], schema) is not None) == is_pushed
        assert (make_pruning_filter([ds.In(("d",), (day, day))], schema) is not None) == is_pushed


@pytest.mark.parametrize("wrong", [{"watermark": -100}, {"watermark": "x"}, {"first_batch": -1}, {"first_batch": "a"}])
def test_arguments_of_a_writer_of_batches_are_checked_at_once(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="is not a whole number from 0"):
        foreach_batch_writer("folder", {"c": lambda df: df}, **wrong)


@pytest.mark.parametrize("wrapped", ["list", "struct", "map"])
@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
def test_a_timestamp_is_given_to_spark_with_a_zone_exactly_if_it_has_one(zone: str | None, wrapped: str) -> None:
    def inside(kind: pa.DataType) -> pa.DataType:
        return {"list": pa.list_(kind), "struct": pa.struct([("t", kind)]), "map": pa.map_(pa.string(), kind)}[wrapped]

    kind, given = pa.timestamp("ms", zone), pa.timestamp("us", "UTC" if zone else None)
    ours = pa.schema({"t": kind, "n": inside(kind)})
    found = convert_to_spark(ours.empty_table(), spark_schema(ours)).schema
    assert found.field("t").type == given
    nested = found.field("n").type
    assert (nested.item_type if wrapped == "map" else nested.field(0).type) == given
    other = pa.timestamp("us", None if zone else "UTC")
    for schema in (pa.schema({"t": other, "n": inside(kind)}), pa.schema({"t": kind, "n": inside(other)})):
        with pytest.raises(InvalidUsage, match="that needs a time zone, and there is none here"):
            convert_to_spark(ours.empty_table(), spark_schema(schema))


VALUES = [None, 4, 5, 6]
FILTERS: list[tuple[Any, Callable[[Any], bool | None]]] = [
    (ds.EqualTo(("c",), 5), lambda c: None if c is None else c == 5),
    (ds.EqualNullSafe(("c",), 5), lambda c: c == 5),
    (ds.In(("c",), (5, 6)), lambda c: None if c is None else c in (5, 6)),
    (ds.LessThan(("c",), 5), lambda c: None if c is None else c < 5),
    (ds.GreaterThanOrEqual(("c",), 5), lambda c: None if c is None else c >= 5),
    (ds.IsNull(("c",)), lambda c: c is None),
    (ds.IsNotNull(("c",)), lambda c: c is not None),
]


@pytest.mark.parametrize(("given", "means"), FILTERS)
def test_what_passes_a_filter_in_spark_passes_what_is_made_of_it(
    given: Any, means: Callable[[Any], bool | None]
) -> None:
    """Also negated: `NOT (c <=> 5)` is true of NULL."""
    table = pa.table({"c": pa.array(VALUES, pa.int64())})
    for each, is_wanted in ((given, True), (ds.Not(given), False)):
        made = make_pruning_filter([each], table.schema)
        kept = (table if made is None else table.filter(made))["c"].to_pylist()
        assert {c for c in VALUES if means(c) is is_wanted} <= {*kept}
