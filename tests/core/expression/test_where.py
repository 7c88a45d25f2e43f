"""Conditions on the command line mean what they say, and say what is wrong with them."""

import datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import persist
from persist.codecs.types.schema import CollectionSchema
from persist.core.expression.filters import parse_where

UTC = datetime.UTC
TYPES = {
    "n": pa.int64(), "x": pa.float64(), "s": pa.string(), "b": pa.bool_(), "d": pa.date32(), "m": pa.decimal128(10, 2),
    "t": pa.timestamp("us", tz="UTC"), "odd name": pa.int32(), "and_more": pa.int8(),
}  # fmt: skip
SCHEMA = CollectionSchema.of({"id": pa.int64()}, TYPES)
DAY = datetime.date(2026, 1, 1)
ROWS = pa.table(
    {
        "id": [0, 1, 2, 3],
        "n": [1, 2, 3, None],
        "x": [0.5, -1.5, 2.0, None],
        "s": ["a", "it's", "abc", None],
        "b": [True, False, True, None],
        "d": pa.array([DAY, DAY + datetime.timedelta(1), DAY, None]),
        "m": pa.array(["1.50", "2.25", "-3.00", None]).cast(pa.decimal128(10, 2)),
        "t": pa.array([datetime.datetime(2026, 1, 1, h, tzinfo=UTC) for h in (0, 6, 12)] + [None], TYPES["t"]),
        "odd name": pa.array([1, 2, 3, 4], pa.int32()),
        "and_more": pa.array([1, 2, 3, 4], pa.int8()),
    }
)


def chosen(condition: str) -> list[int]:
    found: list[int] = ROWS.filter(parse_where(condition, SCHEMA))["id"].to_pylist()
    return found


@pytest.mark.parametrize(
    ("condition", "ids"),
    [
        ("n = 2", [1]),
        ("2 < n", [2]),
        ("n >= 2 and x < 0", [1]),
        ("n = 1 or n = 2 and x > 0", [0]),
        ("(n = 1 or n = 2) and x > 0", [0]),
        ("not n = 1", [1, 2]),
        ("NOT (n = 1) AND b", [2]),
        ("((n) = 2 or (n) is null) and not ((s)) like 'a%'", [1]),
        ("(2) < (n) and ((n) not in ((2), 5))", [2]),
        ("n is null", [3]),
        ("s is not null and n <> 1", [1, 2]),
        ("n in (1, 3)", [0, 2]),
        ("n not in (1, 3)", [1]),
        ("not (n in (1, 3) or x > 5)", [1]),
        ("not (b and n in (1, 2))", [1, 2]),
        ("not not n in (1, 3)", [0, 2]),
        ("not not n not in (1, 3)", [1]),
        ("n in (1, null)", [0]),
        ("n not in (1, null)", []),
        ("n in (null)", []),
        ("s in ('a', 'it''s')", [0, 1]),
        ("s like 'a%'", [0, 2]),
        ("s not like 'a%'", [1]),
        ("x between -2 and 1", [0, 1]),
        ("x = -1.5e0", [1]),
        ("n > 1.5", [1, 2]),
        ("m = 2.25", [1]),
        ("m < '0'", [2]),
        ("d = '2026-01-01'", [0, 2]),
        ("t > '2026-01-01T05:00:00Z'", [1, 2]),
        ("t > '2026-01-01 07:00:00+01:00'", [2]),
        ("t <= '2026-01-01'", [0]),
        ("b = true", [0, 2]),
        ("b", [0, 2]),
        ('"odd name" = 4', [3]),
        ("and_more = 4 or ( n=1 )", [0, 3]),
        ("n = id", []),
        ("n > id", [0, 1, 2]),
    ],
)
def test_a_condition_chooses_the_rows_for_which_it_is_true(condition: str, ids: list[int]) -> None:
    assert chosen(condition) == ids


NUMBERS = {
    "n": pa.int64(), "u": pa.uint64(), "m": pa.decimal128(20, 4), "i": pa.int8(), "f": pa.float32(), "d": pa.float64(),
}  # fmt: skip
MANY_DIGITS = ["1234567890123456.7891", "1234567890123456.7890", "0.5", None]


@pytest.mark.parametrize(
    ("condition", "ids"),
    [
        ("n > 1.5", [1]),
        ("0.5 < n and n < 9007199254740993.5", [1]),
        ("n < 9007199254740992.5", [0, 2]),
        ("n = 9007199254740993.0", [1]),
        ("n <> 0.5", [0, 1, 2]),
        ("n < 1e300 and n > -1e999999999 and n <> 1e-999999999", [0, 1, 2]),
        ("n <= 99999999999999999999", [0, 1, 2]),
        ("n in (1.5, 9007199254740993, 99999999999999999999)", [1]),
        ("n not in (1.5, 9007199254740993)", [0, 2]),
        ("n in (1.5)", []),
        ("n not in (1.5)", [0, 1, 2]),
        ("u > -1", [0, 1, 2]),
        ("u > 0.5", [1, 2]),
        ("u >= 0", [0, 1, 2]),
        ("u = 18446744073709551615", [2]),
        ("u < 18446744073709551616", [0, 1, 2]),
        ("u in (-1, 0, 18446744073709551615)", [0, 2]),
        ("not (u in (-1, 0))", [1, 2]),
        ("u between -5 and 1", [0, 1]),
        ("m = 1234567890123456.7891", [0]),
        ("m > 1234567890123456.7890", [0]),
        ("m in (1234567890123456.7890)", [1]),
        ("m not in (1234567890123456.7891)", [1, 2]),
        ("m = 0.500000", [2]),
        ("m > 1234567890123456.78905", [0]),
        ("m <= 0.50001 and m > 0.49999", [2]),
        ("m < 1e300 and m > -1e999999999 and m <> 0.00000001", [0, 1, 2]),
        ("m in (1234567890123456.78905, 0.5, 1e30)", [2]),
        ("m not in (0.00001)", [0, 1, 2]),
        ("d >= 9007199254740993", [1]),
        ("d in (9007199254740992, 0.5, 1)", [1, 2]),
        ("d < 99999999999999999999999", [0, 1, 2]),
        ("n < u", [2]),
        ("u >= n", [0, 2]),
        ("n <> u", [1, 2]),
        ("i < u", [1, 2]),
        ("n = d", [1]),
        ("u > d", [0, 2]),
        ("i < 128 and i > -1.5", [0, 1, 2]),
        ("f = 0.1", [0]),
        ("f between 0.1 and 0.1", [0]),
        ("f > 0.1 and f < 1e300", [1]),
        ("f = 1e-1", []),
        ("f > 1e-1", [0, 1]),
        ("f in (1e-1, 5E-1)", [1]),
        ("f in (1e-1, 0.1)", [0]),
        ("f between 1E-1 and 0.1", [0]),
        ("m = 5e-1", [2]),
        ("n = 9.007199254740993e15", [1]),
    ],
)
def test_numbers_compare_exactly(condition: str, ids: list[int]) -> None:
    rows = pa.table(
        {
            "id": [0, 1, 2, 3],
            "n": [0, 2**53 + 1, -(2**63), None],
            "u": pa.array([0, 1, 2**64 - 1, None], pa.uint64()),
            "m": pa.array(MANY_DIGITS).cast(NUMBERS["m"]),
            "i": pa.array([1, -1, 127, None], pa.int8()),
            "f": pa.array([0.1, 0.5, -0.0, None], pa.float32()),
            "d": [-1.5, 2.0**53, 0.5, None],
        }
    )
    schema = CollectionSchema.of({"id": pa.int64()}, NUMBERS)
    assert rows.filter(parse_where(condition, schema))["id"].to_pylist() == ids


@pytest.mark.parametrize(
    ("condition", "says"),
    [
        ("", "wanted is a column or a value"),
        ("n =", "the end"),
        ("n = 1 n", "wanted is and, or, or the end"),
        ("m0 = 1", "'m0' is not a column of this collection"),
        ("s = paid", "Text is in single quotes"),
        ("n = 'one'", "compares 'one' with a column of type int64"),
        ("t > 'yesterday'", "moments are as '2026-11-21T12:00:00Z'"),
        ("s = 5", "with a column of type string"),
        ("n in ()", "a column or a value"),
        ("n in (id)", "where a value belongs"),
        ("n not 5", "in, between or like"),
        ("s < t", "compares what cannot be compared"),
        ("n", "a comparison, such as"),
        ("s like 5", "a pattern in single quotes"),
        ("n = 1; drop table", "nothing begins like '; drop table'"),
        ("n = 'unfinished", "nothing begins like"),
        ("(" * 500 + "n = 1" + ")" * 500, "nests deeper"),
        ("(" * 500 + "n" + ")" * 500 + " = 1", "nests deeper"),
        ("(n = 1) = 1", "there is '=', and wanted is ')'"),
        ("\x1b[31mn", "nothing begins like '\\x1b[31mn'"),
    ],
)
def test_what_is_no_condition_is_refused_with_what_is_wanted(condition: str, says: str) -> None:
    with pytest.raises(persist.InvalidUsage) as caught:
        parse_where(condition, SCHEMA)
    assert says in str(caught.value)


@given(st.text(alphabet="n xs='()<>!,15.and or not in is null like\"", max_size=40))
def test_no_text_does_more_than_be_refused(text: str) -> None:
    try:
        found = parse_where(text, SCHEMA)
    except persist.InvalidUsage:
        return
    ROWS.filter(found)
