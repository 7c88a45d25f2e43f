"""Terms: equal as they are written, the same whoever wrote them, and as plans store them."""

import json
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from persist.compute.sql.algebra import Filter, Node, Scan
from persist.compute.sql.definition import decode_term, to_json
from persist.compute.sql.types import format_scalar, name_arrow_type, parse_constant, to_arrow
from persist.core.expression.evaluation import may_raise
from persist.core.expression.term import (
    Call,
    Col,
    Lit,
    Place,
    Term,
    col,
    list_columns,
    list_places,
    lit,
    make_sql_call,
    replace_columns,
)

VALUES = {
    "boolean": ["true", "false"],
    "int8": ["-128"],
    "uint64": ["18446744073709551615"],
    "hugeint": ["-99999999999999999999999999999999999999"],
    "decimal(12,2)": ["-1", "123456789012"],
    "decimal(38,0)": ["99999999999999999999999999999999999999"],
    "double": ["0.1", "-0.0", "1e+300", "nan", "-inf"],
    "float": ["0.5"],
    "text": ["", "it's", "ä"],
    "blob": ["", "\\x00\\xFFa"],
    "date": ["1995-01-01", "-1"],
    "time": ["45000000001"],
    "timestamp": ["2020-01-31 12:00:00", "-1"],
    "timestamp_s": ["1"],
    "timestamp_ms": ["2020-01-31 12:00:00.5"],
    "timestamp_ns": ["1234567890123456789"],
    "timestamptz": ["1580472000000000"],
    "interval": ["-1,2,3000000"],
}


def test_terms_that_are_written_alike_are_equal_wherever_they_stand_in_a_text() -> None:
    one, other = (Call("equal", (Col("a"), Lit(pa.scalar(1))), at=at) for at in (1, 2))
    assert one == other == (col("a") == 1).term
    assert len({one, other}) == 1
    assert one != Call("equal", (Col("a"), Lit(pa.scalar(1, pa.int8()))))


def test_a_constant_equals_itself_alone() -> None:
    assert Lit(pa.scalar(float("nan"))) == Lit(pa.scalar(float("nan")))
    assert Lit(pa.scalar(0.0)) != Lit(pa.scalar(-0.0)), "1 / x is not the same of both"
    assert Lit(pa.scalar(None, pa.int64())) != Lit(pa.scalar(None, pa.int32()))


def test_a_constant_that_python_has_no_object_for_is_shown_by_its_number() -> None:
    shown = [str(parse_constant(kind, text)) for kind, text in (("timestamp", str(2**63 - 1)), ("date", "99999999"))]
    assert shown == ["timestamp[us](9223372036854775807)", "date32[day](99999999)"]
    assert (str(parse_constant("int32", "7")), str(parse_constant("int32", None))) == ("7", "NULL")


def test_what_a_term_reads_is_known_and_can_be_put_elsewhere() -> None:
    term = make_sql_call("add", pa.int64(), Place(3), make_sql_call("abs", pa.int64(), Place(1)), Col("x"), at=7)
    assert (list_places(term), list_columns(term)) == ({1, 3}, {"x"})
    there = replace_columns(term, lambda index: Place(index + 10))
    assert list_places(there) == {11, 13}
    assert isinstance(there, Call)
    assert there.at == 7


@pytest.mark.parametrize(
    ("term", "raises"),
    [
        (col("n") > 1, False),
        (col("n") > col("x"), False),
        (col("n") + 1, True),
        (col("s").cast(pa.int64()), True),
        (col("s").lower() == "a", False),
        (col("n") == col("u"), True),
    ],
)
def test_what_is_not_known_to_be_total_may_raise(term: Any, raises: bool) -> None:
    kinds = {"n": pa.int64(), "x": pa.float64(), "s": pa.string(), "u": pa.uint64()}
    assert may_raise(term.term, kinds) == raises


@pytest.mark.parametrize(
    ("narrow", "wide", "fits"),
    [
        ("int32", "int64", True), ("int64", "int32", False), ("uint32", "int64", True), ("int8", "uint8", False),
        ("int64", "decimal(38,2)", True), ("int64", "decimal(18,0)", False), ("decimal(5,2)", "decimal(6,3)", True),
        ("decimal(5,2)", "decimal(6,1)", False), ("decimal(5,2)", "double", True), ("double", "float", False),
        ("boolean", "int8", True), ("boolean", "decimal(3,2)", True), ("boolean", "date", False),
        ("double", "text", True), ("timestamp_ns", "timestamp", True), ("date", "timestamptz", True),
        ("timestamp", "timestamp_ns", False), ("text", "date", False),
    ],
)  # fmt: skip
def test_a_cast_may_raise_unless_the_type_has_a_value_for_each(narrow: str, wide: str, fits: bool) -> None:
    cast = make_sql_call("cast", to_arrow(wide), Place(0))
    assert may_raise(cast, {0: to_arrow(narrow)}) != fits


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind, texts in VALUES.items() for text in [*texts, None]])
def test_a_constant_is_read_as_it_was_stored(kind: str, text: str | None) -> None:
    value = parse_constant(kind, text)
    again = parse_constant(name_arrow_type(value.value.type), format_scalar(value.value))
    assert again == value


def test_a_plan_is_read_as_it_was_stored() -> None:
    condition = make_sql_call("less", pa.bool_(), Place(0), parse_constant("int64", "5"), at=12)
    plan = Filter(Scan("t", ("a",), ("int64",)), condition)
    stored = json.loads(json.dumps(to_json(plan)))
    assert stored == {
        "kind": "filter",
        "input": {"kind": "scan", "collection": "t", "columns": ["a"], "types": ["int64"]},
        "condition": {
            "kind": "call",
            "function": "less",
            "type": "boolean",
            "arguments": [{"kind": "column", "index": 0}, {"kind": "constant", "type": "int64", "value": "5"}],
            "at": 12,
        },
    }
    assert msgspec.convert(stored, Node, dec_hook=decode_term) == plan


@pytest.mark.parametrize(
    "stored",
    [{}, {"kind": "column"}, {"kind": "column", "index": 1, "more": 2}, {"kind": "call", "type": "int64"}, 5,
     {"kind": "constant", "type": "int64", "worth": "1"}, {"kind": "column", "index": "1"}],
)  # fmt: skip
def test_what_is_no_term_is_refused(stored: Any) -> None:
    with pytest.raises(msgspec.ValidationError, match="not an expression of a plan"):
        msgspec.convert([stored], list[Term], dec_hook=decode_term)


def test_an_expression_is_no_truth_value_and_a_constant_is_one_of_arrow() -> None:
    with pytest.raises(ValueError, match="is not a truth value"):
        assert col("a") == 1
    assert str((1 - col("a")).max_with(lit(2))) == "greatest((1 - a), 2)"


def test_a_term_as_deep_as_a_query_may_be_is_moved_stored_and_read() -> None:
    term: Term = Place(0)
    for _ in range(600):
        term = make_sql_call("negate", pa.int64(), term)
    assert list_places(replace_columns(term, lambda index: Place(index + 1))) == {1}
    stored = to_json(term)
    assert decode_term(Term, stored) == term
