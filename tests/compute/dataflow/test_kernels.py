"""Words, batches and spines: what the operators stand on."""

import math
import random
from collections import Counter
from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persist import InvalidUsage
from persist.codecs.errors import DiffOverflow
from persist.compute.dataflow.state.spine import Spill, Spine
from persist.compute.dataflow.updates.batch import (
    Layout,
    find_run_starts,
    hash_columns,
    hash_keys,
    to_batch,
)
from persist.compute.dataflow.updates.texts import TextArray, Texts
from persist.compute.dataflow.updates.times import Stash
from persist.compute.dataflow.updates.words import NULL, Domain, Interner, compute_ranks, is_ordered
from persist.dataflow import Antichain, Program, col, lit
from tests.support.tiers import examples

LAYOUT = Layout(1, 1, 1)

COLUMNS: list[tuple[pa.DataType, list[Any]]] = [
    (pa.int64(), [1, -5, None, 2**63 - 1, -(2**63) + 1]),
    (pa.int8(), [1, -128, None, 127]),
    (pa.uint32(), [0, 2**32 - 1, None]),
    (pa.uint64(), [0, 2**64 - 1, 2**63, None]),
    (pa.bool_(), [True, False, None]),
    (pa.float64(), [1.5, -1.5, math.inf, -math.inf, 5e-324, -5e-324, 0.0, None]),
    (pa.float32(), [1.5, -0.25, None]),
    (pa.string(), ["b", "", "ä", None, "b"]),
    (pa.binary(), [b"b", b"", None]),
    (pa.decimal128(20, 2), [Decimal("1.50"), Decimal("-99999999999999999.99"), None]),
    (pa.date32(), [date(2026, 1, 1), date(1, 1, 1), None]),
    (pa.timestamp("us", tz="UTC"), [datetime.fromisoformat("2026-01-01T00:00:00+00:00"), None]),
    (pa.time32("s"), [None]),
    (pa.duration("ms"), [timedelta(seconds=1), timedelta(days=-3), None]),
    (pa.list_(pa.int64()), [[1, 2], [], None, [None]]),
    (pa.struct([("a", pa.int64())]), [{"a": 1}, {"a": None}, None]),
]


@pytest.mark.parametrize(("kind", "values"), COLUMNS, ids=[str(kind) for kind, _ in COLUMNS])
@pytest.mark.parametrize("times", [1, 40])
def test_words_stand_for_values_of_every_type(kind: pa.DataType, values: list[Any], times: int) -> None:
    domain, array = Domain(), pa.array(values * times, kind)
    words = domain.encode(array)
    assert domain.decode(words, kind).equals(array)
    for one, a in zip(array.to_pylist()[:8], words.tolist()[:8], strict=False):
        for other, b in zip(array.to_pylist()[:8], words.tolist()[:8], strict=False):
            assert (one == other) == (a == b)


@pytest.mark.parametrize(("kind", "values"), COLUMNS[:12], ids=[str(kind) for kind, _ in COLUMNS[:12]])
def test_ranks_are_in_the_order_of_values(kind: pa.DataType, values: list[Any]) -> None:
    domain, array = Domain(), pa.array(values, kind)
    found = compute_ranks(domain, domain.encode(array), kind)
    order = sorted(value for value in array.to_pylist() if value is not None)
    by_rank = sorted((r, v) for r, v in zip(found.tolist(), array.to_pylist(), strict=True) if v is not None)
    assert [value for _, value in by_rank] == order
    assert is_ordered(pa.int64())
    assert not is_ordered(pa.string())


def test_null_comes_after_the_greatest_number() -> None:
    domain, array = Domain(), pa.array([2**63 - 1, None, 3])
    found = compute_ranks(domain, domain.encode(array), pa.int64())
    assert found[2] < found[0] < found[1]


def test_all_nan_are_one_value_and_both_zeros_are() -> None:
    nans = np.array([0x7FF8000000000000, 0xFFF8000000000001], np.uint64).view(np.float64)
    words = Domain().encode(pa.array([*nans, 0.0, -0.0]))
    assert words[0] == words[1]
    assert words[2] == words[3]
    assert words[0] > Domain().encode(pa.array([math.inf]))[0]


def test_interned_values_that_are_not_needed_are_forgotten() -> None:
    domain = Domain()
    words = domain.encode(pa.array(["a", "b", "c"]))
    interner = domain.get_interner(pa.string())
    interner.retain(words[1:2])
    assert len(interner) == 1
    assert domain.decode(words[1:2], pa.string()).to_pylist() == ["b"]
    again = domain.encode(pa.array(["d", "b", "a"]))
    assert again[1] == words[1]
    assert domain.decode(again, pa.string()).to_pylist() == ["d", "b", "a"]


def expected(updates: np.ndarray[Any, Any]) -> Counter[tuple[int, ...]]:
    found: Counter[tuple[int, ...]] = Counter()
    for *record, diff in updates.T.tolist():
        found[tuple(record)] += diff
    return Counter({record: diff for record, diff in found.items() if diff})


def held(batch: np.ndarray[Any, Any]) -> Counter[tuple[int, ...]]:
    assert (batch[0, 1:] >= batch[0, :-1]).all()
    found = expected(batch[1:])
    assert len(found) == batch.shape[1]
    return found


@given(data=st.data())
def test_a_batch_is_sorted_and_consolidated(data: st.DataObject) -> None:
    size = data.draw(st.integers(0, 60))
    rng = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    updates = np.concatenate((rng.integers(0, 4, (3, size)), rng.integers(-1, 2, (1, size))))
    assert held(to_batch(updates, LAYOUT)) == expected(updates)


@pytest.mark.parametrize("rows", [[], [(1, 1)], [(1, 1), (1, 1), (1, 2), (2, 2), (2, 2)]])
def test_a_run_begins_where_a_row_differs_from_the_one_before(rows: list[tuple[int, int]]) -> None:
    begins = [at for at, row in enumerate(rows) if at == 0 or row != rows[at - 1]]
    assert find_run_starts(*np.array(rows, np.int64).reshape(-1, 2).T).tolist() == begins


def test_what_cancels_in_a_spine_is_gone() -> None:
    spine = Spine(LAYOUT)
    for record in range(20):
        for diff in (1, -1):
            spine.insert(to_batch(np.array([[record % 3], [record], [5], [diff]]), LAYOUT))
    assert spine.rows == 0
    assert list(spine.batches()) == []


@given(seed=st.integers(0, 10**6), steps=st.integers(1, 40))
def test_a_spine_holds_what_was_inserted_advanced_to_since(seed: int, steps: int) -> None:
    rng = random.Random(seed)
    spine, every = Spine(LAYOUT), []
    since = 0
    for time in range(steps):
        size = rng.choice([1, 3, 200, 3000])
        draws = np.random.default_rng(rng.randrange(10**6))
        updates = np.concatenate(
            (draws.integers(0, 60, (2, size)), np.full((1, size), time), draws.integers(-1, 2, (1, size)))
        )
        every.append(updates)
        spine.insert(to_batch(updates, LAYOUT))
        if rng.random() < 0.3:
            since = rng.randrange(since, time + 1)
            spine.advance(Antichain(since))
        assert len(list(spine.batches())) <= 24
    everything = np.concatenate(every, axis=1)
    found = np.concatenate([LAYOUT.empty(), *spine.batches()], axis=1)[1:]
    for array in (everything, found):
        array[2] = np.maximum(array[2], since)
    assert expected(found) == expected(everything)
    keys = np.array([[3, 59, 77]])
    hashes = hash_keys(keys)
    numbers, rows = spine.lookup(hashes, keys)
    wanted = everything[:, np.isin(everything[0], keys[0])]
    rows[3] = np.maximum(rows[3], since)
    assert expected(rows[1:]) == expected(wanted)
    assert keys[0].take(numbers).tolist() == rows[1].tolist()


def test_an_insertion_into_a_large_spine_does_a_bounded_amount_of_work() -> None:
    """Counted in rows that are merged, so that it does not depend on the machine."""
    from persist.compute.dataflow.state import spine as module

    merged: list[int] = []
    original = module.advance_batch

    def counting(batch: Any, layout: Any, since: Any) -> Any:
        merged.append(batch.shape[1])
        return original(batch, layout, since)

    module.advance_batch = counting
    try:
        spine = Spine(LAYOUT)
        rng = np.random.default_rng(0)
        size, worst = 1000, 0
        for _ in range(400):
            updates = np.concatenate(
                (rng.integers(0, 10**9, (2, size)), np.zeros((1, size), np.int64), np.ones((1, size), np.int64))
            )
            merged.clear()
            spine.insert(to_batch(updates, LAYOUT))
            worst = max(worst, sum(merged))
        assert spine.rows == 400 * size
        assert len(list(spine.batches())) <= 24
        assert worst < 100_000
    finally:
        module.advance_batch = original


@pytest.mark.thorough
def test_batches_beyond_the_budget_are_in_files_that_go_away(tmp_path: Any) -> None:
    spill = Spill(1 << 20, str(tmp_path))
    spine = Spine(LAYOUT, spill.allocate)
    rng = np.random.default_rng(0)
    every = []
    for _ in range(8):
        updates = np.concatenate(
            (rng.integers(0, 10**9, (2, 30_000)), np.zeros((1, 30_000), np.int64), np.ones((1, 30_000), np.int64))
        )
        every.append(updates)
        spine.insert(to_batch(updates, LAYOUT))
    assert spill.spilled_bytes > 0
    assert list(tmp_path.iterdir()) == []
    batches = [*spine.batches()]
    assert expected(np.concatenate(batches, axis=1)[1:]) == expected(np.concatenate(every, axis=1))
    del batches, spine
    assert spill.spilled_bytes == 0


def test_a_stash_gives_what_is_ready_and_keeps_the_rest() -> None:
    stash = Stash(0, slice(0, 1))
    rng = np.random.default_rng(0)
    for _ in range(20):
        stash.add(rng.integers(0, 100, (2, 7)))
    assert stash.rows == 140
    for bound in (10, 50, 100):
        found = stash.take(lambda times, bound=bound: times[0] < bound, bound)  # type: ignore[misc]
        assert all((chunk[0] < bound).all() for chunk in found)
        least = stash.find_least(lambda times: times[0] >= 0, 0)
        assert least is None or least >= bound
    assert stash.is_empty


@given(data=st.data())
def test_sums_of_floats_are_exact_under_retraction(data: st.DataObject) -> None:
    finite = st.floats(allow_nan=False, allow_infinity=False)
    values = data.draw(st.lists(st.tuples(finite, st.integers(1, 3)), min_size=1, max_size=12))
    gone = data.draw(st.lists(st.booleans(), min_size=len(values), max_size=len(values)))
    program = Program("floats")
    stream = program.input("x", key={"id": pa.int64()}, value={"v": pa.float64()})
    seen = stream.group_by().agg(s=col("v").sum(), m=col("v").mean()).capture()
    with program.open() as running:
        running["x"].insert([((at, value), 0, count) for at, (value, count) in enumerate(values)])
        running["x"].insert(
            [((at, v), 1, -n) for at, ((v, n), out) in enumerate(zip(values, gone, strict=True)) if out]
        )
        running["x"].advance_to(2)
        running.step()
    state: Counter[Any] = Counter()
    for record, time, diff in seen.rows():
        assert isinstance(time, int)
        state[record] += diff
    left = [(v, n) for (v, n), out in zip(values, gone, strict=True) if not out]
    if not left:
        assert +state == Counter()
        return
    exact, count = sum((Fraction(v) * n for v, n in left), Fraction(0)), sum(n for _, n in left)
    [(total, mean)] = +state
    assert (total, mean) == (rounded(exact), rounded(exact / count))


def rounded(value: Fraction) -> float:
    try:
        return value.numerator / value.denominator
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def test_sums_of_every_number_type() -> None:
    big = 2**62
    cases: list[tuple[pa.DataType, list[Any], Any]] = [
        (pa.int64(), [big, -big, big, 5], big + 5),
        (pa.int32(), [2**31 - 1, 2**31 - 1], 2**32 - 2),
        (pa.float64(), [1e16, 1.0, -1e16], 1.0),
        (pa.float64(), [math.inf, 1.0], math.inf),
        (pa.float64(), [None, None], None),
        (pa.float32(), [0.5, 0.25], 0.75),
        (pa.decimal128(20, 2), [Decimal("0.01"), Decimal("99999999999999999.99")], Decimal("100000000000000000.00")),
        (pa.duration("s"), [timedelta(hours=1), timedelta(hours=-3)], timedelta(hours=-2)),
    ]
    for kind, values, total in cases:
        program = Program("sums")
        stream = program.input("x", key={"id": pa.int64()}, value={"v": kind})
        seen = stream.group_by().agg(s=col("v").sum(), n=lit(1).sum()).capture()
        with program.open() as running:
            running["x"].insert([((at, value), 0, 1) for at, value in enumerate(values)])
            running["x"].advance_to(1)
            running.step()
        assert seen.rows() == [((total, len(values)), 0, 1)], kind


def test_a_sum_that_does_not_fit_raises() -> None:
    program = Program("sums")
    program.input("x", key={"v": pa.int64()}).group_by().agg(s=col("v").sum()).capture()
    with program.open() as running:
        running["x"].insert([((2**62, None), 0, 3)])
        running["x"].advance_to(1)
        with pytest.raises(InvalidUsage, match="does not fit int64"):
            running.step()


@pytest.mark.parametrize("kind", [pa.int64(), pa.string()])
def test_a_value_of_negative_multiplicity_is_neither_least_nor_greatest(kind: pa.DataType) -> None:
    program = Program("ends")
    source = program.input("x", key={"g": pa.int64(), "v": kind})
    ends = source.group_by("g").agg(l=col("v").min(), m=col("v").max()).capture()
    with program.open() as running:

        def insert(time: int, *updates: tuple[int, int | None, int]) -> list[Any]:
            values = ((g, v if v is None or kind == pa.int64() else str(v), diff) for g, v, diff in updates)
            running["x"].insert([(((g, v), None), time, diff) for g, v, diff in values])
            running["x"].advance_to(time + 1)
            running.step()
            rows: list[Any] = ends.rows()[-2:]
            return [(*map(int, record), diff) for record, _, diff in rows if None not in record]

        assert insert(0, (0, 3, 1), (0, 3, 1), (0, 5, 1), (0, None, 4)) == [(0, 3, 5, 1)]
        assert sorted(insert(1, (0, 1, -1), (0, 9, 1), (0, 8, -1))) == [(0, 3, 5, -1), (0, 3, 9, 1)]
        assert sorted(insert(2, (0, 1, 2), (0, 9, -1), (0, 8, 2))) == [(0, 1, 8, 1), (0, 3, 9, -1)]


def test_nan_and_null_in_nested_values_stay_apart() -> None:
    column = pa.array([[float("nan"), None], None, [1.0]] * 2, pa.list_(pa.float64()))
    interner = Interner(column.type)
    words = interner.encode(column)
    assert len(interner) == 2
    for array in (interner.decode(words), interner.decode(words[:3])):
        first, null, last = array.to_pylist()[:3]
        assert (math.isnan(first[0]), first[1], null, last) == (True, None, None, [1.0])


def test_the_least_diff_is_refused_among_many_updates_as_it_is_among_few() -> None:
    program = Program("large")
    given = program.input("given", key={"k": pa.int64()}, value={"n": pa.int64()})
    seen = given.group_by("k").agg(total=col("n").sum()).capture()
    with program.open() as running:
        running["given"].insert([((0, 3), 0, -(2**63)), *(((0, n), 0, 1) for n in range(4, 5000))])
        running["given"].advance_to(1)
        with pytest.raises(DiffOverflow, match="does not fit int64"):
            running.step()
        assert not seen.rows()


Ints = npt.NDArray[np.int64]
ROWS = 40_000
KEYS, VALUES, DIMENSIONS = 2, 1, 2
MADE: dict[str, Callable[[np.random.Generator], list[Any]]] = {
    # Two words of a key, one of a value, two coordinates of a time, the diff.
    "few records of one time": lambda chance: [*chance.integers(0, 40, (3, ROWS)), 7, 7, 1],
    "few records, with retractions": lambda chance: [*chance.integers(0, 40, (3, ROWS)), 7, 7, _signs(chance)],
    "few records at many times": lambda chance: [*chance.integers(0, 12, (5, ROWS)), _signs(chance)],
    "all alike": lambda chance: [np.full(ROWS, 3), 4, 5, 1, 1, 1],
    "what cancels out": lambda chance: [np.arange(ROWS) // 8, 4, 5, 1, 1, np.tile([1, -1], ROWS // 2)],
    "large diffs": lambda chance: [chance.integers(0, 9, ROWS), 4, 5, 1, 1, chance.integers(1, 2**46, ROWS)],
    "many records": lambda chance: [*chance.integers(-(2**63), 2**63 - 1, (3, ROWS)), 7, 7, 1],
    "half of them alike": lambda chance: [np.maximum(np.arange(ROWS), ROWS // 2), 4, 5, 1, 1, 1],
}


def _signs(chance: np.random.Generator) -> Ints:
    return chance.choice([-1, 1], ROWS)


@pytest.mark.thorough(except_every=3)
@pytest.mark.parametrize("which", MADE)
@pytest.mark.parametrize("layout", [Layout(KEYS, VALUES, DIMENSIONS), Layout(KEYS + VALUES, 0, DIMENSIONS)])
def test_a_bulk_is_sorted_and_summed_by_record_and_time(which: str, layout: Layout) -> None:
    updates = np.array(np.broadcast_arrays(*MADE[which](np.random.default_rng(1))), np.int64)
    batch = to_batch(updates.copy(), layout)
    order = np.lexsort(updates[:-1])
    news = np.append(True, (np.diff(updates[:-1].take(order, axis=1)) != 0).any(axis=0))
    sums = np.add.reduceat(updates[-1].take(order), np.flatnonzero(news))
    expected = np.concatenate((updates[:-1, order[news]], sums[None]))[:, sums != 0]
    assert (batch[0, 1:] >= batch[0, :-1]).all()
    assert (batch[1:].take(np.lexsort(batch[1:-1]), axis=1) == expected).all()


def test_the_hash_of_a_bulk_decides_its_order() -> None:
    """A look-up relies on it, however the batch was made."""
    updates = np.array(np.broadcast_arrays(*MADE["few records of one time"](np.random.default_rng(2))), np.int64)
    layout = Layout(KEYS, VALUES, DIMENSIONS)
    batch = to_batch(updates, layout)
    upper = hash_columns(batch[1 : 1 + KEYS]) >> np.uint64(32)
    lower = hash_columns(batch[1 + KEYS : 1 + KEYS + VALUES]) >> np.uint64(32)
    assert (batch[0].view(np.uint64) == (upper << np.uint64(32)) | lower).all()


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
