"""Conditions on words keep the same records as Arrow does."""

from datetime import date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persist.dataflow import Filter
from persist.dataflow.operators.conditions import on_words
from persist.dataflow.operators.linear import Frame, compiled
from persist.dataflow.updates.times import Ints
from persist.dataflow.updates.words import Domain
from persist.expression import Call, Col, Lit, Term, as_array, conjuncts, evaluate
from tests.tiers import examples

KINDS = {
    "a": pa.int64(),
    "b": pa.int64(),
    "small": pa.int16(),
    "text": pa.string(),
    "other": pa.string(),
    "day": pa.date32(),
    "money": pa.decimal128(9, 2),
    "flag": pa.bool_(),
    "ratio": pa.float64(),
}
DAYS = [date(1969, 12, 31), date(1970, 1, 1), date(1998, 9, 2)]
VALUES: dict[str, list[Any]] = {
    "a": [-1, 0, 1, 2**62],
    "b": [-1, 0, 1],
    "small": [-3, 0, 3],
    "text": ["", "a", "b"],
    "other": ["", "b"],
    "day": DAYS,
    "money": [Decimal("-0.01"), Decimal("0.00"), Decimal("2.50")],
    "flag": [True, False],
    "ratio": [0.0, 1.5, float("nan")],
}
COMPARISONS = ["equal", "not_equal", "less", "less_equal", "greater", "greater_equal"]
BOOL = (pa.bool_(),)


def compared(draw: st.DrawFn) -> Term:
    name = draw(st.sampled_from([*VALUES]))
    kind: pa.DataType = KINDS[name]
    one: Term = Col(name)
    if name == "small" and draw(st.booleans()):
        one, kind = Call("sql.cast", (one,), (pa.int64(),)), pa.int64()
    constants = VALUES[name]
    if name == "day" and draw(st.booleans()):
        one, kind = Call("sql.cast", (one,), (pa.timestamp("us"),)), pa.timestamp("us")
        constants = [datetime(each.year, each.month, each.day, draw(st.sampled_from([0, 12]))) for each in DAYS]
    if name == "money" and draw(st.booleans()):
        one, kind = Call("sql.cast", (one,), (pa.decimal128(12, 4),)), pa.decimal128(12, 4)
        constants = [Decimal("-0.0050"), Decimal("0.0000"), Decimal("2.5000"), Decimal("2.4999")]
    alike = {"a": "b", "text": "other"}
    others = [Lit(pa.scalar(each, kind)) for each in draw(st.lists(st.sampled_from([*constants, None]), min_size=1))]
    if draw(st.booleans()):
        return Call(draw(st.sampled_from(["sql.in", "sql.not_in"])), (one, *others), BOOL)
    other = Col(alike[name]) if name in alike and draw(st.booleans()) else others[0]
    pair = (one, other) if draw(st.booleans()) else (other, one)
    return Call(f"sql.{draw(st.sampled_from(COMPARISONS))}", pair, BOOL)


@st.composite
def conditions(draw: st.DrawFn, depth: int = 2) -> Term:
    kind = draw(st.sampled_from(["compared", "compared", "null", "not", "and", "or"] if depth else ["compared"]))
    if kind == "compared":
        return compared(draw)
    if kind == "null":
        name = draw(st.sampled_from(["sql.is_null", "sql.is_not_null"]))
        return Call(name, (Col(draw(st.sampled_from([*KINDS]))),), BOOL)
    if kind == "not":
        return Call("sql.not", (draw(conditions(depth - 1)),), BOOL)
    parts = draw(st.lists(conditions(depth - 1), min_size=2, max_size=3))
    return Call(f"sql.{kind}", tuple(parts), BOOL)


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    rows = draw(st.integers(0, 12))
    columns = {
        name: pa.array(draw(st.lists(st.sampled_from([*VALUES[name], None]), min_size=rows, max_size=rows)), kind)
        for name, kind in KINDS.items()
    }
    return pa.table(columns)


@settings(max_examples=examples(1000))
@given(tables(), conditions())
def test_a_filter_keeps_what_arrow_says_is_true(table: pa.Table, condition: Term) -> None:
    _check(table, condition)


@pytest.mark.parametrize("is_turned", [False, True])
@pytest.mark.parametrize("is_negated", [False, True])
@pytest.mark.parametrize("name", COMPARISONS)
def test_each_comparison_at_and_between_the_values_of_a_column(name: str, is_negated: bool, is_turned: bool) -> None:
    table = pa.table({each: pa.array([*VALUES[each], None], KINDS[each]) for each in ("day", "money")})
    fine = pa.decimal128(12, 4)
    bounds: list[tuple[str, pa.DataType, Any]] = [
        ("day", pa.timestamp("us"), datetime(1970, 1, 1, hour)) for hour in (0, 12)
    ]
    bounds += [("money", fine, Decimal(each)) for each in ("-0.0100", "-0.0050", "0.0000", "2.4999", "2.5001")]
    for column, kind, bound in bounds:
        pair = (Call("sql.cast", (Col(column),), (kind,)), Lit(pa.scalar(bound, kind)))
        condition = Call(f"sql.{name}", pair[::-1] if is_turned else pair, BOOL)
        _check(table, Call("sql.not", (condition,), BOOL) if is_negated else condition)


def _check(table: pa.Table, condition: Term) -> None:
    domain = Domain()
    times, diffs = pa.array([0] * len(table), pa.int64()), pa.array([1] * len(table), pa.int64())
    updates = Frame.of(_words(table, domain, times, diffs), table.schema, domain).updates(table.column_names)
    shape = compiled([Filter(condition)], table.schema, table.column_names, domain, "filter")
    columns = {name: table[name].combine_chunks() for name in table.column_names}
    wanted = as_array(evaluate(condition, columns), len(table)).fill_null(False)
    expected = _words(table.filter(wanted), domain, times.filter(wanted), diffs.filter(wanted))
    assert shape(updates).tolist() == expected.tolist()


def _words(table: pa.Table, domain: Domain, times: pa.Array, diffs: pa.Array) -> Ints:
    rows = [domain.encode(table[name]) for name in table.column_names]
    return np.array([*rows, times.to_numpy(), diffs.to_numpy()], np.int64)


def test_what_needs_no_arrow_takes_none() -> None:
    domain = Domain()
    is_young = Call("sql.less", (Call("sql.cast", (Col("day"),), (pa.timestamp("us"),)), _moment(1998, 9, 2)), BOOL)
    is_b = Call("sql.equal", (Col("text"), Lit(pa.scalar("b"))), BOOL)
    assert all(on_words(each, KINDS, domain) for each in conjuncts(Call("sql.and", (is_young, is_b), BOOL)))
    assert on_words(Call("sql.like", (Col("text"), Lit(pa.scalar("b%"))), BOOL), KINDS, domain) is None
    assert on_words(Call("sql.less", (Col("ratio"), Lit(pa.scalar(1.0))), BOOL), KINDS, domain) is None
    assert on_words(Call("sql.less", (Col("text"), Lit(pa.scalar("b"))), BOOL), KINDS, domain) is None


def _moment(year: int, month: int, day: int) -> Lit:
    return Lit(pa.scalar(datetime(year, month, day), pa.timestamp("us")))


def test_an_error_that_an_earlier_part_keeps_away_does_not_stop_a_filter() -> None:
    domain = Domain()
    table = pa.table({"a": [0, 2], "b": [1, 4]})
    quotient = Call("sql.divide_whole", (Col("b"), Col("a")), (pa.int64(),))
    parts = (
        Call("sql.not_equal", (Col("a"), Lit(pa.scalar(0))), BOOL),
        Call("sql.equal", (quotient, Lit(pa.scalar(2))), BOOL),
    )
    shape = compiled([Filter(Call("sql.and", parts, BOOL))], table.schema, ["a"], domain, "filter")
    ones = pa.array([1, 1])
    assert shape(_words(table, domain, ones, ones))[0].tolist() == [2]
