"""A pushed filter leaves out parts that cannot match, and never one that holds a matching row."""

import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import reduce
from operator import and_, or_
from typing import Any

import hypothesis.strategies as st
import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings

from persist.codecs.part import filters
from persist.codecs.part.decoding import decode_part
from persist.codecs.part.filters import (
    add_both_zeros,
    list_referenced_columns,
    may_compare_with_nan,
    select_matching_parts,
    select_matching_ranges,
)
from persist.codecs.part.part import Part
from persist.codecs.part.printing import print_filter
from persist.codecs.part.stream import encode_parts
from persist.codecs.types.schema import CollectionSchema
from persist.codecs.updates.updates import to_updates
from tests.support.tiers import examples

SCHEMA = CollectionSchema.of(
    {"i": pa.int64()},
    {
        "f": pa.float64(),
        "s": pa.string(),
        "b": pa.bool_(),
        "t": pa.timestamp("us"),
        "h": pa.float16(),
        "d": pa.decimal128(10, 2),
        "x": pa.binary(2),
    },
)
Encoded = list[tuple[bytes, Part]]

SMALL_INTS = st.integers(-3, 3)
FLOATS = st.sampled_from([-math.inf, -1.5, -0.0, 0.0, 1.0, 2.5, math.inf, math.nan])
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "i": SMALL_INTS,
    "f": FLOATS,
    "s": st.sampled_from(["", "a", "b", "é", "\U0010ffff", "z" * 70]),
    "b": st.booleans(),
    "t": SMALL_INTS,
    "h": FLOATS,
    "d": SMALL_INTS.map(Decimal),
    "x": st.sampled_from([b"\0\0", b"aa", b"zz"]),
}
COMPARED = ["i", "f", "s", "b", "t", "d"]  # What Arrow can compare; the others allow only is_null.
COMPARISONS: list[Callable[[Any, Any], pc.Expression]] = [
    lambda a, b: a == b,
    lambda a, b: a != b,
    lambda a, b: a < b,
    lambda a, b: a <= b,
    lambda a, b: a > b,
    lambda a, b: a >= b,
]


def stored(name: str, values: list[Any]) -> pa.Array:
    """Return values as a column; times are given as their integers."""
    kind = SCHEMA.arrow.field(name).type
    if name == "t":
        return pa.array(values, pa.int64()).cast(kind)
    return pa.array(values, kind, from_pandas=False)


@st.composite
def batches(draw: st.DrawFn) -> Encoded:
    encoded: Encoded = []
    for _ in range(draw(st.integers(1, 3))):
        rows = draw(st.integers(1, 4))
        columns = {}
        for name, values in VALUES.items():
            narrow = st.lists(st.one_of(st.none(), values), min_size=1, max_size=2)
            pool = draw(narrow)
            columns[name] = stored(name, [pool[i % len(pool)] for i in range(rows)])
        table = pa.table({**columns, "_time": range(rows), "_diff": [1] * rows})
        encoded += encode_parts(to_updates(table, SCHEMA), SCHEMA)
    return encoded


@st.composite
def leaves(draw: st.DrawFn) -> pc.Expression:
    kind = draw(st.sampled_from(["compare", "compare", "compare", "is_null", "is_valid", "is_nan", "isin"]))
    name = draw(st.sampled_from(COMPARED if kind in ("compare", "isin") else list(VALUES)))
    column = pc.field(name)
    if kind == "is_null":
        return column.is_null(nan_is_null=draw(st.booleans()) and name == "f")
    if kind == "is_valid":
        return column.is_valid()
    if kind == "is_nan":
        return pc.field("f").is_nan()
    if kind == "isin":
        values = draw(st.lists(st.one_of(st.none(), VALUES[name]), max_size=3))
        return column.isin(stored(name, values))
    (scalar,) = stored(name, [draw(VALUES[name])])
    compare = draw(st.sampled_from(COMPARISONS))
    return compare(column, scalar) if draw(st.booleans()) else compare(pc.scalar(scalar), column)


FILTERS = st.recursive(
    leaves(),
    lambda inner: st.one_of(
        st.builds(and_, inner, inner), st.builds(or_, inner, inner), inner.map(lambda expression: ~expression)
    ),
    max_leaves=4,
)


@settings(max_examples=examples(120, quick=6))
@given(batches(), FILTERS, st.integers(1, 2))
def test_no_part_with_a_matching_row_is_left_out(encoded: Encoded, filter: pc.Expression, group_max: int) -> None:
    parts = [part for _, part in encoded]
    kept = select_matching_parts(parts, filter, SCHEMA)
    matching = [part for data, part in encoded if len(decode_part(data, part, SCHEMA).filter(filter))]
    assert [part for part in parts if any(part is k for k in kept)] == kept, "the order changed"
    lost = [part.stats for part in matching if not any(part is k for k in kept)]
    assert not lost, f"{filter} lost a part"
    with pytest.MonkeyPatch.context() as patch:  # In groups, which are otherwise of many parts.
        patch.setattr(filters, "GROUP_MAX", group_max)
        assert select_matching_parts(parts, filter, SCHEMA) == kept
        assert select_matching_parts(parts, filter, SCHEMA) == kept, "by what is known of the groups"


def part_of(**columns: list[Any]) -> Part:
    rows = len(next(iter(columns.values())))
    full = {name: stored(name, columns.get(name, [None] * rows)) for name in VALUES}
    table = pa.table({**full, "_time": range(rows), "_diff": [1] * rows})
    ((_, part),) = encode_parts(to_updates(table, SCHEMA), SCHEMA)
    return part


def kept(part: Part, filter: pc.Expression) -> bool:
    return bool(select_matching_parts([part], filter, SCHEMA))


INT, FLOAT, TEXT = pc.field("i"), pc.field("f"), pc.field("s")


@pytest.mark.parametrize(
    ("filter", "expected"),
    [
        (INT == 25, False),
        (INT == 15, True),
        (INT < 10, False),
        (INT <= 10, True),
        (INT > 20, False),
        (INT >= 20, True),
        ((INT > 5) & (TEXT == "zebra"), False),
        ((INT > 50) | (TEXT == "bear"), True),
        ((INT > 50) | (TEXT == "zebra"), False),
        (~(INT >= 5), False),
        (INT.isin([1, 2, 3]), False),
        (INT.isin([1, 12]), True),
        (INT.is_null(), False),
        (INT.is_valid(), True),
        (TEXT > "cz", False),
        (FLOAT < 0.0, False),
        (FLOAT > 1.0, True),
        (FLOAT.is_null(), True),
        (pc.field("b").is_valid(), False),
        (pc.field("b") == True, False),  # noqa: E712
    ],
    ids=str,
)
def test_a_part_is_left_out_in_the_clear_cases(filter: pc.Expression, expected: bool) -> None:
    part = part_of(i=[10, 15, 20], s=["ape", "bear", "cow"], f=[0.5, None, 1.5])
    assert kept(part, filter) is expected


def test_a_part_with_nan_is_kept_where_nan_may_match() -> None:
    part = part_of(i=[1, 2], f=[1.0, math.nan])
    assert kept(part, FLOAT.is_nan())
    assert kept(part, ~(FLOAT < 100.0))
    assert kept(part, FLOAT != 1.0)


def test_reductions_of_many_filters_keep_the_one_part_that_matches() -> None:
    parts = [part_of(i=[at * 10, at * 10 + 9]) for at in range(20)]
    wanted = reduce(or_, [INT == 35, INT == 120])
    assert select_matching_parts(parts, wanted, SCHEMA) == [parts[3], parts[12]]
    assert select_matching_parts(parts, INT < 0, SCHEMA) == []


def test_groups_of_parts_hold_what_each_of_their_parts_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filters, "GROUP_MAX", 4)
    parts = [part_of(i=[at * 10, at * 10 + 9], s=[None, chr(97 + at)]) for at in range(20)]
    asked: list[Part] = []
    original = filters._make_guarantee

    def recorded(part: Part, schema: CollectionSchema, names: Sequence[str]) -> pc.Expression:
        asked.append(part)
        return original(part, schema, names)

    monkeypatch.setattr(filters, "_make_guarantee", recorded)
    for at, part in enumerate(parts):
        for filter in (at * 10 + 9 == INT, chr(97 + at) == TEXT):
            asked.clear()
            assert select_matching_parts(parts, filter, SCHEMA) == [part]
            assert len(asked) <= 4, "groups were left out"
    asked.clear()
    assert select_matching_parts(parts, FLOAT == 1.0, SCHEMA) == asked == [], "all values are NULL"


ZEROS = pa.table(
    {"x": [0.0, -0.0, 1.0, None], "h": pa.array([0.0, -0.0, 1.0, None], pa.float32()), "i": [0, 1, 2, None]}
)


@pytest.mark.parametrize(
    ("filter", "rows"),
    [
        (pc.field("x").isin(pa.array([0.0])), [0, 1]),
        (pc.field("x").isin(pa.array([-0.0, 1.0])), [0, 1, 2]),
        (pc.field("x").isin(pa.array([-0.0, 0.0])), [0, 1]),
        (pc.field("x").isin(pa.array([1.0, None])), [2, 3]),
        (~pc.field("x").isin(pa.array([0.0, None])), [2]),
        (pc.field("h").isin(pa.array([-0.0], pa.float32())), [0, 1]),
        (pc.field("i").isin(pa.array([0])) | pc.field("x").isin(pa.array([0.0])), [0, 1]),
        (pc.field("x") == 0.0, [0, 1]),
        (pc.field("i").isin(pa.array([0, 2])), [0, 2]),
        (
            pc.struct_field(pc.make_struct(pc.field("x"), options=pc.MakeStructOptions(["a"])), ["a"]).isin(
                pa.array([0.0])
            ),
            [0, 1],
        ),
    ],
    ids=str,
)
def test_both_zeros_are_in_a_set_with_either(filter: pc.Expression, rows: list[int]) -> None:
    extended = add_both_zeros(filter)
    numbered = ZEROS.append_column("n", pa.array(range(4)))
    assert numbered.filter(extended)["n"].to_pylist() == rows
    has_zero = "is_in" in str(filter) and "value_set=double:[\n    1" not in str(filter)
    assert (extended is filter) or has_zero


@pytest.mark.parametrize(
    ("filter", "columns", "may_be_nan"),
    [
        (pc.field("x") > 1, ["x"], False),
        ((pc.field("x") > 1) & pc.field("i").is_null(), ["x", "i"], False),
        (pc.field("x") > math.nan, ["x"], True),
        (pc.sqrt(pc.field("x")) > 1, ["x"], True),
        (pc.field("x").isin(pa.array([1.0, math.nan])), ["x"], True),
        (pc.field("i").isin(pa.array(range(500))), ["i"], False),
        (pc.field("x").isin(pa.array([*map(float, range(500)), math.nan])), ["x"], True),
        (pc.field("s") == "nan", ["s"], True),
        (pc.field("s") == "nanny", ["s"], False),
        (pc.field("s").isin(pa.array(["x" * 300, "i"])), ["s"], False),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_filter_reads_its_columns_and_may_meet_nan(
    filter: pc.Expression, columns: list[str], may_be_nan: bool
) -> None:
    schema = pa.schema([("x", pa.float64()), ("i", pa.int64()), ("s", pa.string()), ("unused", pa.int64())])
    listed = list_referenced_columns(filter, schema)
    assert {*columns} <= {*listed} <= ({"x", "i", "s"} if "..." not in print_filter(filter) else {*schema.names})
    assert list_referenced_columns(filter, schema, besides=columns) == [name for name in listed if name not in columns]
    assert may_compare_with_nan(filter) == may_be_nan


KEYED = CollectionSchema.of({"i": pa.int64(), "s": pa.string()}, {"f": pa.float64()})


@pytest.mark.parametrize(
    ("least", "greatest", "filter", "may_match"),
    [
        ([1, "a"], [3, "b"], pc.field("i") == 2, True),
        ([1, "a"], [3, "b"], pc.field("i") == 0, False),
        ([1, "a"], [3, "b"], pc.field("i") == 4, False),
        ([1, "a"], [3, "b"], pc.field("i").is_null(), False),
        ([1, "a"], [3, "b"], pc.field("s") == "z", True),
        ([1, "a"], [1, "b"], pc.field("s") == "z", False),
        ([1, "a"], [1, "b"], pc.field("s") == "ab", True),
        ([1, "a"], [1, None], pc.field("s") == "z", True),
        ([1, "b"], [1, None], pc.field("s") == "a", False),
        ([1, "b"], [1, None], pc.field("s").is_null(), True),
        ([1, None], [1, None], pc.field("s") == "a", False),
        ([1, "a"], [None, None], pc.field("i") == 0, False),
        ([1, "a"], [None, None], pc.field("i").is_null(), True),
        ([None, "a"], [None, "b"], pc.field("i") == 1, False),
        ([None, "a"], [None, "b"], pc.field("s") == "z", False),
        ([1, "a"], None, pc.field("i") == 0, False),
        ([1, "a"], None, pc.field("i") == 9, True),
        ([1, "a"], None, pc.field("i").is_null(), True),
        (None, [3, "b"], pc.field("i") == 4, False),
        (None, [3, "b"], pc.field("i") == -9, True),
        (None, [3, "b"], pc.field("i").is_null(), False),
        (None, [None, "b"], pc.field("i") == 4, True),
        (None, None, pc.field("i") == 4, True),
    ],
)
def test_a_range_of_keys_may_match_by_its_bounds(
    least: Any, greatest: Any, filter: pc.Expression, may_match: bool
) -> None:
    ranges = [(None, None), (least, greatest)]
    assert select_matching_ranges(ranges, filter, KEYED, ["i", "s"]) == ([0, 1] if may_match else [0])
    nan = pc.field("f") > math.nan
    assert select_matching_ranges(ranges, nan, KEYED, ["i", "s"]) == [0, 1]


@pytest.mark.parametrize(
    ("low", "high", "at", "may_match"),
    [("1.0", "2.0", 3.0, False), ("1.0", "2.0", 1.5, True), ("1.0", "nan", 0.0, True), ("1.0", None, 0.0, True)],
)
def test_ranges_of_floats_are_bounded_by_numbers_only(low: str, high: str | None, at: float, may_match: bool) -> None:
    schema = CollectionSchema.of({"f": pa.float64()}, None)
    bound = None if high is None else [high]
    assert select_matching_ranges([([low], bound)], pc.field("f") == at, schema, ["f"]) == [0] * may_match


@pytest.mark.parametrize("stats", [[None, 20, 0], [10, None, 0], [None, None, 1], [None, None, 0]])
def test_half_of_the_bounds_and_some_nulls_exclude_nothing(stats: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    part = msgspec.structs.replace(part_of(i=[10, 15, 20]), stats_json=msgspec.Raw(msgspec.json.encode({"i": stats})))
    other = part_of(i=[1])
    for group_max in (1, 2, 128):
        monkeypatch.setattr(filters, "GROUP_MAX", group_max)
        for filter in (INT == 15, INT == 99, INT.is_null()):
            assert select_matching_parts([other, part], filter, SCHEMA) == [part]
    nothing = msgspec.structs.replace(part, stats_json=msgspec.Raw(b'{"i":[null,null,3]}'))
    assert [kept(nothing, filter) for filter in (INT == 15, INT.is_null())] == [False, True]
