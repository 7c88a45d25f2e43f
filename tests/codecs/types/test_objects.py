"""Values as Python objects, and as text where Python has none that keeps them."""

import datetime
from typing import Any

import pyarrow as pa
import pytest

from persist.codecs.types.objects import find_unwritable, to_dicts, to_objects

LAST = 253402300799999999  # 9999-12-31T23:59:59.999999Z, in microseconds.
FAR = [
    (pa.array([LAST], pa.timestamp("us", "Europe/Zurich")), "9999-12-31T23:59:59.999999Z"),
    (pa.array([-62135596800000000], pa.timestamp("us", "America/New_York")), "0001-01-01T00:00:00.000000Z"),
    (pa.array([LAST + 1], pa.timestamp("us")), "10000-01-01T00:00:00.000000"),
    (pa.array([2**63 - 1], pa.timestamp("us")), "294247-01-10T04:00:54.775807"),
    (pa.array([-(10**17)], pa.timestamp("us")), "-1199-02-15T14:13:20.000000"),
    (pa.array([2932897], pa.int32()).cast(pa.date32()), "10000-01-01"),
    (pa.array([-1_000_000], pa.int32()).cast(pa.date32()), "-0768-02-04"),
    (pa.array([2**62], pa.duration("ms")), "PT4611686018427387.904S"),
    (pa.array([1], pa.timestamp("ns")), "1970-01-01T00:00:00.000000001"),
    (pa.array([1], pa.time64("ns")), "00:00:00.000000001"),
    (pa.array([-1], pa.duration("ns")), "-PT0.000000001S"),
]


@pytest.mark.parametrize(("array", "text"), FAR, ids=[text for _, text in FAR])
def test_a_value_that_python_has_not_is_text_wherever_it_stands(array: pa.Array, text: str) -> None:
    assert to_objects(pa.concat_arrays([array, pa.nulls(1, array.type)])) == [text, None]
    assert (
        to_objects(pa.chunked_array([array, array]), " ") == [text.replace("T", " ") if "PT" not in text else text] * 2
    )
    nested: list[tuple[pa.Array, Any]] = [
        (pa.ListArray.from_arrays([0, 1], array), [text]),
        (pa.StructArray.from_arrays([array], ["x"]), {"x": text}),
        (pa.MapArray.from_arrays([0, 1], ["k"], array), [("k", text)]),
        (pa.array([None], pa.list_(array.type)), None),
    ]
    for column, value in nested:
        assert to_objects(column) == [value]


def test_values_that_python_has_are_its_objects() -> None:
    moment = datetime.datetime(2026, 11, 28, 12, 0, 0, 5)
    for kind in (pa.timestamp("us"), pa.timestamp("ns")):
        assert to_objects(pa.array([moment, None], kind)) == [moment, None]
    assert to_objects(pa.array([datetime.time(12)], pa.time64("ns"))) == [datetime.time(12)]
    assert to_objects(pa.array(["a"]).dictionary_encode()) == ["a"]
    assert to_dicts(pa.table({"a": [1, 2], "b": [b"x", None]})) == [{"a": 1, "b": b"x"}, {"a": 2, "b": None}]


def test_a_date_that_arrow_does_not_write_is_found() -> None:
    names = [find_unwritable(pa.table({"v": array})) for array, _ in FAR]
    assert [text for name, (_, text) in zip(names, FAR, strict=True) if name] == ["294247-01-10T04:00:54.775807"]
