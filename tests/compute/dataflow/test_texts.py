"""Texts and their numbers: one for each that is different, whether they are given alone or in columns."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persist.compute.dataflow.updates.texts import TextArray, Texts
from persist.compute.dataflow.updates.words import NULL, Domain
from tests.support.tiers import examples

KINDS = [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()]
lengths = st.one_of(st.integers(0, 20), st.sampled_from([64, 600]))
alike = st.builds(lambda size, last: "x" * size + last, lengths, st.sampled_from(["", "a", "b", "\0", "é", "🙂"]))
texts = st.one_of(st.none(), alike, st.text(st.characters(exclude_categories=["Cs"]), max_size=12))
calls = st.one_of(
    st.tuples(st.just("few"), st.lists(texts, max_size=5)),
    st.tuples(st.just("many"), st.tuples(st.lists(texts, min_size=1, max_size=70), st.integers(0, 3))),
    st.tuples(st.just("retain"), st.integers(0, 4)),
)


class Checked:
    """An interner, compared with dictionaries after each call."""

    def __init__(self, kind: pa.DataType) -> None:
        self.kind, self.domain = kind, Domain()
        self.interner = self.domain.get_interner(kind)
        self.known: dict[Any, int] = {}

    def value(self, text: str | None) -> Any:
        is_text = self.kind in (pa.string(), pa.large_string())
        return text if text is None or is_text else text.encode()

    def take(self, given: list[Any], words: Any) -> None:
        for value, word in zip(given, words.tolist(), strict=True):
            assert (value is None) == (word == NULL)
            if value is not None:
                assert self.known.setdefault(value, word) == word
        assert len(set(self.known.values())) == len(self.known) == len(self.interner)
        assert self.domain.decode(words, self.kind).equals(pa.array(given, self.kind))
        every = np.array([*self.known.values(), NULL], np.int64)
        assert self.domain.decode(every, self.kind).equals(pa.array([*self.known, None], self.kind))

    def few(self, given: list[str | None]) -> None:
        values = list(map(self.value, given))
        self.take(values, self.interner.encode(pa.array(values, self.interner.kind)))

    def many(self, given: tuple[list[str | None], int]) -> None:
        found, skipped = given
        values = list(map(self.value, found + found))
        array = pa.array(values, self.kind)[skipped:]
        self.take(array.to_pylist(), self.domain.encode(array))

    def retain(self, every: int) -> None:
        kept = {value: word for at, (value, word) in enumerate(self.known.items()) if every and at % every == 0}
        self.interner.retain(np.array([*kept.values(), NULL], np.int64))
        self.known = kept
        self.take([], np.empty(0, np.int64))


@settings(max_examples=examples(300))
@given(st.sampled_from(KINDS), st.lists(calls, max_size=8))
def test_equal_texts_have_one_number_and_others_another(kind: pa.DataType, given: list[tuple[str, Any]]) -> None:
    checked = Checked(kind)
    for name, argument in given:
        getattr(checked, name)(argument)


@pytest.mark.parametrize("bits", [0, 1, 3])
def test_texts_of_one_hash_are_told_apart(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    many, shift = TextArray.compute_tags, 32 - bits
    monkeypatch.setattr(TextArray, "compute_tags", lambda each: many(each) >> np.uint64(shift) << np.uint64(shift))
    checked = Checked(pa.string())
    for first in range(0, 600, 120):
        checked.many(([f"text {number}" for number in range(first, first + 150)], 0))
        checked.few([f"text {number}" for number in range(first + 140, first + 160)])
    checked.retain(3)
    checked.many(([f"text {number}" for number in range(300)], 0))


def test_many_texts_of_which_some_come_again() -> None:
    chance = np.random.default_rng(3)
    found = Texts()
    known: dict[str, int] = {}
    for most in (10**7, 70_000, 1000):
        given = np.char.add("customer-", chance.integers(0, most, 50_000).astype(str))
        numbers = found.encode(pa.array(given))
        firsts, at = np.unique(given, return_index=True)
        for text, number in zip(firsts.tolist(), numbers[at].tolist(), strict=True):
            assert known.setdefault(text, number) == number
        assert found.decode(numbers, pa.string()).equals(pa.array(given))
    assert len(set(known.values())) == len(known) == len(found)
    assert found.size < 90 * len(found)
    found.retain(np.zeros(len(known), np.bool_))
    assert len(found) == 0
    assert found.encode(pa.array(["a", "b"])).tolist() != [0, 0]
