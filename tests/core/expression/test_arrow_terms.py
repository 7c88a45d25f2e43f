"""Filters of Arrow become terms, whose text never changes."""

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from persist.core.expression.arrow_terms import format_term, parse_filter_term
from persist.core.expression.term import Call, Col, Lit


def text(filter: pc.Expression) -> str:
    return format_term(parse_filter_term(filter))


def test_a_filter_becomes_a_term() -> None:
    filter = (pc.field("k") > 5) & pc.field(("a", "b")).is_null()
    assert parse_filter_term(filter) == Call(
        "and_kleene",
        (Call("greater", (Col("k"), Lit(pa.scalar(5)))), Call("is_null", (Call("field", (Col("a"),), ("b",)),))),
    )


@pytest.mark.parametrize(
    ("filter", "expected"),
    [
        (pc.field("x"), '[["column","x"]]'),
        (pc.field("x") > 5, '[["column","x"],["literal","int64",5],["call","greater",2,[]]]'),
        (
            pc.field("x").isin(["a", None]),
            '[["column","x"],["call","is_in",1,[["value_set",{"list":"string"},["a",null]]]]]',
        ),
        (pc.field("x").cast(pa.int32()), '[["column","x"],["call","cast",1,[["to_type","int32",null]]]]'),
        (
            pc.match_substring(pc.field("x"), "é", ignore_case=True),
            '[["column","x"],["call","match_substring",1,[["ignore_case","bool",true],["pattern","string","é"]]]]',
        ),
        (
            pc.field("a", "b", "c") == pa.scalar({"s": [1.5, None]}),
            '[["column","a"],["call","field",1,["b","c"]],'
            '["literal",{"struct":[["s",{"list":"float64"}]]},[["s",["1.5",null]]]],["call","equal",2,[]]]',
        ),
        (pc.scalar(None), '[["literal","null",null]]'),
    ],
)
def test_the_text_of_a_term_is_the_same_in_all_releases(filter: pc.Expression, expected: str) -> None:
    assert text(filter) == expected


def test_filters_that_differ_have_other_texts() -> None:
    x = pc.field("x")
    filters = [
        x == 1,
        x == 1.0,
        x == "1",
        x != 1,
        x == pc.field("1"),
        x.is_null(),
        x.is_null(nan_is_null=True),
        x.isin([1, 2]),
        x.isin([2, 1]),
        x.isin([]),
        x.cast(pa.int32()),
        x.cast(pa.int64()),
        (x == 1) & ((x == 2) & (x == 3)),
        ((x == 1) & (x == 2)) & (x == 3),
        pc.field("a", "b"),
        pc.field("a.b"),
    ]
    assert len({text(filter) for filter in filters}) == len(filters)


def test_a_deep_filter_has_a_text() -> None:
    filter = pc.field("x") > 0
    for bound in range(2000):
        filter &= pc.field("x") > bound
    assert text(filter).count('"and_kleene"') == 2000
