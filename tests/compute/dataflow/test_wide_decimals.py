"""Decimals of more than 18 digits: as words, and as sums, whether they fit a word or not."""

from collections import Counter
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persist.compute.dataflow.updates.words import NULL, Domain, compute_ranks
from persist.core.expression.sql_numbers import join_decimal_limbs
from persist.dataflow import Program, col
from tests.support.tiers import examples

KIND = pa.decimal128(38, 3)
EXACT = Context(prec=76)
EDGES = [0, 1, -1, 2**61, 2**62 - 1, 2**62, -(2**62), -(2**62) - 1, 2**63, -(2**63), 2**64 + 5, 10**37, -(10**37)]
numbers = st.one_of(st.none(), st.sampled_from(EDGES), st.integers(-(10**20), 10**20))


def decimals(values: list[int | None]) -> pa.Array:
    made = [None if each is None else EXACT.scaleb(EXACT.create_decimal(each), -3) for each in values]
    return pa.array(made, KIND)


@settings(max_examples=examples(500))
@given(st.lists(numbers, max_size=120), st.integers(0, 3))
def test_wide_decimals_are_the_same_after_they_were_words(values: list[int | None], skipped: int) -> None:
    domain, array = Domain(), decimals(values)[skipped:]
    words = domain.encode(array)
    assert domain.decode(words, KIND).equals(array)
    assert words.tolist() == domain.encode(array).tolist()
    by_word = dict(zip(words.tolist(), array.to_pylist(), strict=True))
    assert len(by_word) == len(set(array.to_pylist()))
    assert all(
        domain.get_interner(KIND).get_value(word) == value for word, value in by_word.items() if value is not None
    )
    order = sorted(range(len(words)), key=compute_ranks(domain, words, KIND).tolist().__getitem__)
    expected = sorted(array.to_pylist(), key=lambda each: (each is None, each or Decimal(0)))
    assert [array[at].as_py() for at in order] == expected


def test_wide_decimals_that_are_gone_are_forgotten_and_others_keep_their_words() -> None:
    domain = Domain()
    interner = domain.get_interner(KIND)
    words = domain.encode(decimals([7, 10**30, 10**31, None, 10**32]))
    constant = domain.encode_constant(decimals([10**33])[0])
    interner.retain(words[[0, 2, 3]])
    assert len(interner) == 2
    assert domain.decode(words[[0, 2, 3]], KIND).equals(decimals([7, 10**31, None]))
    assert domain.encode(decimals([7, 10**31])).tolist() == words[[0, 2]].tolist()
    assert domain.encode(decimals([10**33])).tolist() == [constant]


@settings(max_examples=examples(200))
@given(st.lists(st.tuples(numbers, st.integers(1, 3)), max_size=30), st.data())
def test_sums_of_wide_decimals_are_exact_and_forget_what_goes(updates: list[tuple[int | None, int]], data: Any) -> None:
    program = Program("sums", dimensions=1)
    given = program.input("a", key={"n": pa.int64()}, value={"v": KIND})
    seen = given.group_by().agg(total=col("v").sum(), mean=col("v").mean()).capture()
    gone = data.draw(st.integers(0, len(updates)))
    with program.open(None) as running:
        rows = [
            ((n, value), count) for n, ((_, count), value) in enumerate(zip(updates, decimals_of(updates), strict=True))
        ]
        running["a"].insert([(record, 0, count) for record, count in rows])
        running["a"].insert([(record, 1, -count) for record, count in rows[:gone]])
        running["a"].advance_to(2)
        running.step()
    for time, left in ((0, updates), (1, updates[gone:])):
        values = [(value, count) for value, count in left if value is not None]
        total, count = sum(value * count for value, count in values), sum(count for _, count in values)
        expected = (
            [(EXACT.scaleb(EXACT.create_decimal(total), -3), total / (1000 * count))] if values else [(None, None)]
        )
        assert held(seen.updates(), time) == (expected if left else [])


def decimals_of(updates: list[tuple[int | None, int]]) -> list[Decimal | None]:
    return decimals([value for value, _ in updates]).to_pylist()


def held(updates: pa.Table, time: int) -> list[tuple[Decimal | None, float | None]]:
    counts = Counter[tuple[Decimal | None, float | None]]()
    for row in updates.to_pylist():
        if row["_time"] <= time:
            counts[row["total"], row["mean"]] += row["_diff"]
    return [record for record, count in counts.items() if count]


@pytest.mark.parametrize("upper", [0, 1, -1])
def test_joined_limbs_are_their_sum(upper: int) -> None:
    limbs = [(0, 0), (5, upper), (2**61, 0), (2**70, upper), (None, None)]
    lower, higher = (
        pa.array([None if n is None else Decimal(n) for n in each], pa.decimal128(38, 0))
        for each in zip(*limbs, strict=True)
    )
    expected = decimals([None if low is None else low + (high << 62) for low, high in limbs])
    assert join_decimal_limbs(lower, higher, KIND).equals(expected)
    assert join_decimal_limbs(lower[1:], higher[1:], KIND).equals(expected[1:])
    assert NULL not in Domain().encode(expected[:4]).tolist()
