"""Types have one written form, and what cannot be stored is refused with the reason."""

import contextlib
import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from persist.codecs.errors import InvalidUpdate, SchemaMismatch
from persist.codecs.types.arrow_types import check_type, decode_type, encode_type
from persist.codecs.types.casts import cast_column
from persist.codecs.types.widening import is_written_alike
from tests.codecs.strategies import arrow_types


@given(arrow_types())
def test_every_supported_type_survives_json(t: pa.DataType) -> None:
    written = json.loads(json.dumps(encode_type(t)))
    assert decode_type(written).equals(t, check_metadata=True)
    check_type(t, "field 'x'")


@pytest.mark.parametrize(
    ("t", "written"),
    [
        (pa.int64(), "int64"),
        (pa.float32(), "float32"),
        (pa.timestamp("us"), "timestamp[us]"),
        (pa.timestamp("us", tz="UTC"), "timestamp[us, tz=UTC]"),
        (pa.decimal128(38, 10), "decimal128(38, 10)"),
        (pa.binary(16), "fixed_size_binary[16]"),
        (pa.time32("s"), "time32[s]"),
        (pa.list_(pa.int8()), {"list": "int8"}),
        (pa.large_list(pa.int8()), {"large_list": "int8"}),
        (pa.list_(pa.int8(), 3), {"fixed_size_list": "int8", "size": 3}),
        (pa.struct([("a", pa.int8()), ("b", pa.date32())]), {"struct": [["a", "int8"], ["b", "date32"]]}),
        (pa.map_(pa.string(), pa.bool_()), {"map": ["string", "bool"]}),
    ],
)
def test_the_written_form_of_types_does_not_change(t: pa.DataType, written: object) -> None:
    assert encode_type(t) == written
    assert decode_type(json.loads(json.dumps(written))) == t


def test_names_and_nullability_inside_lists_are_not_part_of_a_type() -> None:
    odd = pa.list_(pa.field("element", pa.int8(), nullable=False, metadata={"a": "b"}))
    assert encode_type(odd) == encode_type(pa.list_(pa.int8()))
    assert decode_type(encode_type(odd)).equals(pa.list_(pa.int8()), check_metadata=True)


UNSUPPORTED = [
    pa.null(),
    pa.dictionary(pa.int8(), pa.string()),
    pa.string_view(),
    pa.binary_view(),
    pa.list_view(pa.int8()),
    pa.large_list_view(pa.int8()),
    pa.month_day_nano_interval(),
    pa.uuid(),
    pa.list_(pa.json_()),
    pa.run_end_encoded(pa.int16(), pa.string()),
    pa.dense_union([pa.field("a", pa.int8())]),
    pa.decimal32(3, 1),
    pa.decimal64(3, 1),
    pa.decimal128(3, -1),
    pa.decimal128(3, 4),
    pa.binary(0),
    pa.struct([]),
    pa.struct([("a", pa.int8()), ("a", pa.int8())]),
    pa.list_(pa.int8(), 0),
    pa.timestamp("us", tz="Mars/Olympus"),
    pa.timestamp("us", tz="a]b"),
]


@pytest.mark.parametrize("t", [*UNSUPPORTED, *map(pa.list_, UNSUPPORTED)], ids=str)
def test_an_unsupported_type_is_refused_with_the_supported_ones(t: pa.DataType) -> None:
    with pytest.raises(SchemaMismatch, match=r"value field 'x' has type .*Supported are bool, int8 to int64"):
        check_type(t, "value field 'x'")


def test_what_is_no_type_at_all_is_refused() -> None:
    with pytest.raises(SchemaMismatch, match=r"key field 'x' has 'int64' for a type: give a pyarrow type"):
        check_type("int64", "key field 'x'")


@pytest.mark.parametrize(
    ("nest", "write"),
    [
        (pa.list_, lambda t: {"list": t}),
        (pa.large_list, lambda t: {"large_list": t}),
        (lambda t: pa.list_(t, 2), lambda t: {"fixed_size_list": t, "size": 2}),
        (lambda t: pa.map_(pa.string(), t), lambda t: {"map": ["string", t]}),
        (lambda t: pa.map_(t, pa.string()), lambda t: {"map": [t, "string"]}),
        (lambda t: pa.struct([("a", t)]), lambda t: {"struct": [["a", t]]}),
    ],
)
def test_types_nest_sixteen_deep_and_no_deeper(nest: Any, write: Any) -> None:
    t = pa.int8()
    for _ in range(16):
        t = nest(t)
    check_type(t, "field 'x'")
    assert decode_type(encode_type(t)) == t
    with pytest.raises(SchemaMismatch, match="nested more than 16 deep"):
        check_type(nest(t), "field 'x'")
    with pytest.raises(ValueError, match="nested more than 16 deep"):
        decode_type(write(encode_type(t)))


@pytest.mark.parametrize(
    "written",
    [
        *(None, 1, True, "", "int", "INT64", "int64 ", "float", "halffloat", [], ["int64"], {}),
        *("timestamp[us,tz=UTC]", "timestamp[us, tz=]", "time32[us]", "decimal128(39, 0)", "decimal128(3, 4)"),
        *("decimal128(03, 1)", "fixed_size_binary[0]", "fixed_size_binary[-1]", "date32[day]", "null"),
        *({"list": "x"}, {"list": "int8", "size": 1}, {"fixed_size_list": "int8"}, {"map": ["int8"]}),
        *({"fixed_size_list": "int8", "size": 0}, {"fixed_size_list": "int8", "size": True}, {"struct": []}),
        *({"struct": [["a"]]}, {"struct": {"a": "int8"}}, {"struct": [["a", "int8"], ["a", "int8"]]}),
        *({"union": ["int8"]}, {"map": ["int8", "int8"], "list": "int8"}, {"struct": [["", "int8"]]}),
    ],
    ids=str,
)
def test_reading_a_type_is_strict(written: object) -> None:
    with pytest.raises(ValueError, match=r"not supported|written form|size|struct"):
        decode_type(written)  # type: ignore[arg-type]


@given(st.text(max_size=20))
def test_any_other_text_is_no_type(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert encode_type(decode_type(text)) == text


@pytest.mark.parametrize("nested", [False, True])
def test_a_decimal_with_more_digits_than_its_type_is_refused_with_its_row(nested: bool) -> None:
    wide = pa.array([1, None, 10**38], pa.decimal256(39, 0))
    low = b"".join(wide.buffers()[1].to_pybytes()[at : at + 16] for at in range(0, 96, 32))
    fitting = pa.array([1, None, 10**38 - 1], pa.decimal128(38, 0))
    array = pa.Array.from_buffers(pa.decimal128(38, 0), 3, [wide.buffers()[0], pa.py_buffer(low)])
    for given_, is_right in ((fitting, True), (array, False)):
        column = pa.chunked_array([pa.StructArray.from_arrays([given_], ["d"]) if nested else given_])
        if is_right:
            assert cast_column(column, column.type, "x").equals(column)
        else:
            with pytest.raises(InvalidUpdate, match=r"update 2 has .* in column 'x'.*does not fit in precision"):
                cast_column(column, column.type, "x")


@pytest.mark.parametrize("kind", [pa.float64(), pa.date32(), pa.decimal128(4, 1), pa.string()])
def test_values_of_one_type_are_written_alike(kind: pa.DataType) -> None:
    assert is_written_alike(kind, kind)
