"""Text as values of a type: exactly what it says, or an error."""

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from persist.codecs.types.texts import parse_column

UTC = pa.timestamp("us", tz="UTC")
NOON = dt.datetime(2024, 1, 1, 12, 0)


def parsed(texts: list[str | None], kind: pa.DataType) -> list[Any]:
    found: list[Any] = parse_column(pa.chunked_array([pa.array(texts, pa.string())]), kind).to_pylist()
    return found


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("9007199254740993", pa.int64(), 9007199254740993),
        ("12345678901234567890", pa.uint64(), 12345678901234567890),
        ("12345678901234567890.5", pa.decimal128(38, 1), Decimal("12345678901234567890.5")),
        ("1.10", pa.decimal128(10, 1), Decimal("1.1")),
        ("9007199254740992", pa.float64(), 2.0**53),
        (" 0.1", pa.float64(), 0.1),
        ("-inf", pa.float64(), float("-inf")),
        ("0e9", pa.float64(), 0.0),
        ("1e-3", pa.float16(), 0.0010004043579101562),
        ("12:30:00.5", pa.time32("ms"), dt.time(12, 30, 0, 500_000)),
        ("2024-01-01T14:00:00+02:00", UTC, NOON.replace(tzinfo=dt.UTC)),
        ("12:30:00.000", pa.time32("s"), dt.time(12, 30)),
        ("12:30:00.500000", pa.time32("ms"), dt.time(12, 30, 0, 500_000)),
        ("2024-01-01T12:00:00.000Z", pa.timestamp("s", "UTC"), NOON.replace(tzinfo=dt.UTC)),
        ("2024-01-01T14:00:00.000000000+0200", UTC, NOON.replace(tzinfo=dt.UTC)),
        ("2024-01-01 12:00:00.000000", pa.timestamp("s"), NOON),
        ("2024-01-01T12:00:00.100000", pa.timestamp("ms"), NOON.replace(microsecond=100_000)),
        ("2024-01-01 12:00", UTC, NOON.replace(tzinfo=dt.UTC)),
        ("2024-01-01", pa.date64(), NOON.date()),
        ("007", pa.string(), "007"),
        ("-5", pa.duration("ms"), dt.timedelta(milliseconds=-5)),
        ("P1DT2H3M4.5S", pa.duration("ms"), dt.timedelta(days=1, hours=2, minutes=3, seconds=4, milliseconds=500)),
        ("-PT0.000001S", pa.duration("us"), dt.timedelta(microseconds=-1)),
        ("P2D", pa.duration("s"), dt.timedelta(days=2)),
    ],
)
def test_text_is_read_as_the_value_that_it_says(text: str, kind: pa.DataType, value: Any) -> None:
    assert parsed([text, None], kind) == [value, None]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        *((text, pa.duration("ms")) for text in ("P", "PT", "-P", "P1DT", "P1.5D", "PT0.0005S", "P1Y", "1S", "+PT1S")),
        ("P99999999999D", pa.duration("ns")),
        ("12:30:00.010", pa.time32("s")),
        ("2024-01-01T12:00:00.000100Z", pa.timestamp("ms", "UTC")),
        ("2024-01-01T12:00:00.", pa.timestamp("s")),
        ("12.0", pa.time32("s")),
        ("2024-01-01.0", pa.timestamp("s")),
        ("9007199254740993", pa.float64()),
        ("16777217", pa.float32()),
        ("2049", pa.float16()),
        ("1e400", pa.float64()),
        ("9" * 5000, pa.float64()),
        ("1e39", pa.float32()),
        ("70000", pa.float16()),
        ("1e-400", pa.float64()),
        ("1e-9", pa.float16()),
        ("1.005", pa.decimal128(10, 2)),
        ("1e9", pa.decimal128(10, 2)),
        ("12345678901234567890", pa.int64()),
        ("0xFF", pa.int8()),
        ("0XFFFFFFFFFFFFFFFF", pa.int64()),
        ("0xFFFFFFFFFFFFFFFF", pa.duration("ms")),
        ("1.5", pa.int64()),
        ("7", pa.bool_()),
        ("2024-01-01T12:00", pa.date32()),
        ("12:00:00.5", pa.time32("s")),
        ("24:00", pa.time32("s")),
        ("2024-01-01T12:00:00.0000001", pa.timestamp("us")),
        ("2024-01-01T12:00:00+02:00", pa.timestamp("us")),
        ("1700000000", pa.timestamp("us")),
        ("9999-12-31", pa.timestamp("ns")),
    ],
)
def test_text_that_would_become_another_value_is_refused(text: str, kind: pa.DataType) -> None:
    with pytest.raises(pa.ArrowInvalid):
        parsed(["1" if kind == pa.bool_() else None, text], kind)


def test_instants_with_and_without_an_offset_stand_in_one_column() -> None:
    assert parsed(["2024-01-01T14:00:00+02:00", "2024-01-01T12:00:00", None], UTC) == [
        NOON.replace(tzinfo=dt.UTC),
        NOON.replace(tzinfo=dt.UTC),
        None,
    ]
