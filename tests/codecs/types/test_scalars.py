"""Flat scalars survive JSON exactly."""

import json
import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from persist.codecs.types.arrow_types import decode_scalar, encode_scalar, is_flat
from tests.codecs.strategies import arrays, flat_types, same


def _stored(value: pa.Scalar) -> Any:
    return value.value if pa.types.is_temporal(value.type) else value.as_py()


@given(st.data())
def test_every_flat_scalar_survives_json(data: st.DataObject) -> None:
    t = data.draw(flat_types())
    for value in data.draw(arrays(t)):
        again = decode_scalar(json.loads(json.dumps(encode_scalar(value), allow_nan=False)), t)
        assert again.type == t
        assert again.is_valid == value.is_valid
        assert same(_stored(again), _stored(value))


def test_negative_zero_keeps_its_sign() -> None:
    again = decode_scalar(encode_scalar(pa.scalar(-0.0)), pa.float64())
    assert math.copysign(1, again.as_py()) == -1


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (pa.scalar(2**63 - 1), 2**63 - 1),
        (pa.scalar(0.1), "0.1"),
        (pa.scalar(math.nan), "nan"),
        (pa.scalar(-math.inf), "-inf"),
        (pa.scalar(b"\xff"), "/w=="),
        (pa.scalar("é"), "é"),
        (pa.scalar(5, pa.timestamp("us", tz="UTC")), 5),
        (pa.scalar(None, pa.int8()), None),
        (pa.scalar(True), True),
    ],
)
def test_the_written_form_of_scalars_does_not_change(value: pa.Scalar, written: object) -> None:
    assert encode_scalar(value) == written


@pytest.mark.parametrize(
    ("written", "t"),
    [
        *((True, pa.int64()), ("1", pa.int64()), (1.0, pa.int64()), (2**63, pa.int64()), (-1, pa.uint8())),
        *((1.0, pa.float64()), ("x", pa.float64()), (1, pa.bool_()), (1, pa.string()), ("!", pa.binary())),
        *(("YWJj", pa.binary(2)), ("x", pa.decimal128(3, 1)), ("1000", pa.decimal128(3, 1)), ([1], pa.int64())),
        *((2**31, pa.date32()), (2**63, pa.timestamp("s")), ("2020-01-01", pa.date32()), ("\ud800", pa.string())),
    ],
    ids=str,
)
def test_garbage_is_no_scalar(written: Any, t: pa.DataType) -> None:
    with pytest.raises(ValueError, match="is not the written form"):
        decode_scalar(written, t)


def test_nested_types_have_no_scalar_form() -> None:
    t = pa.list_(pa.int8())
    assert not is_flat(t)
    assert is_flat(pa.decimal128(3, 1))
    with pytest.raises(ValueError, match="not a flat type"):
        encode_scalar(pa.scalar([1], t))
    with pytest.raises(ValueError, match="not a flat type"):
        decode_scalar([1], t)
