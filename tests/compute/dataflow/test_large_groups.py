"""Large groups are kept in order: the same results as looking at all of a group, for a logarithm of the cost."""

import random
from collections import Counter
from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from persist.codecs.errors import DiffOverflow
from persist.compute.dataflow.operators import logic
from persist.compute.dataflow.operators.arrangement import Arrangement
from persist.compute.dataflow.operators.large_groups import LargeGroups
from persist.compute.dataflow.plan.plan import WindowFunction
from persist.compute.dataflow.state.costs import Costs
from persist.compute.dataflow.state.ranked import Order, Ranked
from persist.compute.dataflow.updates.times import Ints
from persist.compute.dataflow.updates.words import NULL, Domain
from persist.dataflow import Program, Running, Stream, col, lit
from tests.compute.dataflow.programs import OPERATORS
from tests.compute.dataflow.test_oracle import compare
from tests.support.tiers import examples

RANKED = ("operator", "first_two", "upserted", "all_in_one")  # Those of `grouped` are called operator.
CASES = [at for at, (_, each) in enumerate(OPERATORS) if each.__name__ in RANKED]
ROWS = 20_000


# Every group is ranked at once, in blocks of few records.
ALWAYS = Costs(large_rows=1, change_rows=0, block_rows=1)


@pytest.fixture
def always_ranked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count what is done with ranked groups."""
    done = Counter[str]()
    changed = LargeGroups.apply_changes

    def counted(self: LargeGroups, *arguments: Any) -> Any:
        done["changed"] += 1
        return changed(self, *arguments)

    monkeypatch.setattr(LargeGroups, "apply_changes", counted)
    return done


@pytest.mark.thorough(except_every=3)
@pytest.mark.parametrize("which", CASES, ids=[f"{at}-{OPERATORS[at][1].__name__}" for at in CASES])
@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_ranked_groups_agree_with_recomputing_from_scratch(which: int, data: Any, always_ranked: Counter[str]) -> None:
    compare(data, 1, [(which, [0, 1, 0])], 16, ALWAYS)


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), room=st.sampled_from([1, 6, 1 << 20]), cost=st.sampled_from([0, 1, 4]))
def test_groups_are_ranked_and_forgotten_in_any_order(
    always_ranked: Counter[str], data: Any, room: int, cost: int
) -> None:
    costs = replace(ALWAYS, ranked_rows=room, change_rows=cost, ranked_at_once=1)
    compare(data, 1, [(data.draw(st.sampled_from(CASES)), [0, 1, 0]) for _ in range(2)], 16, costs)


KINDS = [pa.int64(), pa.float64(), pa.string(), pa.binary(), pa.uint64(), pa.decimal128(30, 2)]
VALUES: list[list[Any]] = [
    [None, 0, 5, -5, 2**62, -(2**62)],
    [None, 0.0, 1.5, -1.5, float("inf"), float("-inf"), float("nan")],
    [None, "", "a", "b", "ab", "é", "\U0001f600", "\uffff"],
    [None, b"", b"\x00", b"\xff", b"a"],
    [None, 0, 1, 2**63, 2**64 - 1],
    [None, Decimal("0.00"), Decimal("-1.25"), Decimal("1234567890123456789.25")],
]


@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), kind=st.integers(0, len(KINDS) - 1), down=st.booleans(), first=st.booleans())
def test_a_ranked_multiset_is_in_order_whatever_is_added_and_taken_away(
    data: Any, kind: int, down: bool, first: bool
) -> None:
    domain = Domain()
    words = domain.encode(pa.array(VALUES[kind], KINDS[kind]))
    order = Order([(1, down, first), (0, False, False)], [pa.int64(), KINDS[kind]], domain)
    every = np.array([(a, w) for w in words.tolist() for a in range(4)], np.int64).T
    in_order = [tuple(each) for each in every.take(order.sort(every), axis=1).T.tolist()]
    change = st.tuples(st.integers(0, len(in_order) - 1), st.integers(-2, 3).filter(bool))
    begin = data.draw(st.lists(change, max_size=30))
    known = Counter[Any]()
    for at, diff in begin:
        known[in_order[at]] += diff
    records: Ints = np.array([in_order[at] for at, _ in begin], np.int64).reshape(-1, 2).T
    ranked = Ranked(order, records, np.array([diff for _, diff in begin], np.int64), Costs(block_rows=4))
    for at, diff in data.draw(st.lists(change, max_size=40)):
        known[in_order[at]] += diff
        ranked.add(in_order[at], diff)
    copies = [each for each in in_order for _ in range(known[each])]
    assert ranked.rows == sum(1 for diff in known.values() if diff)
    assert ranked.get_first() == (copies[0] if copies else None)
    assert ranked.get_last() == (copies[-1] if copies else None)
    assert ranked.get_middle() == (copies[(len(copies) - 1) // 2] if copies else None)
    skip, count = data.draw(st.integers(0, 12)), data.draw(st.integers(1, 12))
    assert Counter(dict(ranked.take(skip, count))) == Counter(copies[skip : skip + count])


def test_a_multiplicity_that_overflows_in_a_ranked_group_raises() -> None:
    order = Order([(0, False, False)], [pa.int64()], Domain())
    ranked = Ranked(order, np.array([[1, 2]]), np.array([2**63 - 1, 2**63 - 1]))
    assert (ranked.get_middle(), ranked.get_last()) == ((1,), (2,))
    with pytest.raises(DiffOverflow, match="does not fit int64"):
        ranked.add((1,), 1)
    assert list(ranked.take(2**63 - 2, 2)) == [((1,), 1), ((2,), 1)]


def one_group(made: Any) -> tuple[Program, Any]:
    program = Program("large")
    x: Stream = program.input("x", key={"g": pa.int64()}, value={"v": pa.int64(), "t": pa.string()})
    return program, made(x.group_by("g")).capture()


def insert(running: Running, values: list[int], time: int, diff: int = 1) -> None:
    texts = [f"text {value:08}" for value in values]
    columns = {"g": [0] * len(values), "v": values, "t": texts, "_time": [time] * len(values)}
    running["x"].insert(pa.table(columns | {"_diff": [diff] * len(values)}))


EACH: dict[str, Any] = {
    "min": (lambda g: g.agg(a=col("v").min()), lambda s: (s[0],)),
    "max of texts": (lambda g: g.agg(a=col("t").max()), lambda s: (f"text {s[-1]:08}",)),
    "median": (lambda g: g.agg(a=col("v").median()), lambda s: (s[(len(s) - 1) // 2],)),
    "several": (
        lambda g: g.agg(a=col("v").max(), n=lit(1).sum(), s=col("v").sum(), m=col("t").min()),
        lambda s: (s[-1], len(s), sum(s), f"text {s[0]:08}"),
    ),
    "top_k": (lambda g: g.top_k(1, "t", descending=True, skip=2), lambda s: (s[-3], f"text {s[-3]:08}")),
}


@pytest.mark.thorough(except_every=2)
@pytest.mark.parametrize("which", EACH)
def test_a_change_of_a_large_group_looks_at_few_of_its_records(which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts what is looked at: rows that are looked up, and records that are compared."""
    looked = Counter[str]()
    lookup, key = Arrangement.lookup, Order.make_key

    def looking(self: Arrangement, *arguments: Any, has_new: bool) -> Any:
        found = lookup(self, *arguments, has_new=has_new)
        looked["up"] += len(found[0])
        return found

    def comparing(self: Order, record: Any) -> Any:
        looked["at"] += 1
        return key(self, record)

    monkeypatch.setattr(Arrangement, "lookup", looking)
    monkeypatch.setattr(Order, "make_key", comparing)
    made, expected = EACH[which]
    program, seen = one_group(made)
    values = list(range(0, 2 * ROWS, 2))
    with program.open() as running:
        insert(running, values, 0)
        running["x"].advance_to(1)
        running.step()
        costs = []
        # Takes the edges and the middle away, and brings others.
        changes = [(0, -1), (2 * ROWS - 2, -1), (ROWS, -1), (1, 1), (2 * ROWS + 1, 1), (ROWS + 1, 1), (2, -1), (7, 1)]
        for time, (value, diff) in enumerate(changes, 1):
            looked.clear()
            insert(running, [value], time, diff)
            running["x"].advance_to(time + 1)
            running.step()
            values = sorted([*values, value] if diff > 0 else [each for each in values if each != value])
            rows = Counter[Any]()
            for record, _, d in seen.rows():
                rows[record] += d
            assert +rows == Counter({(0, *expected(values)): 1}), time
            costs.append(dict(looked))
    assert costs[0]["up"] == ROWS  # The first change ranks the group.
    assert all(cost.get("up", 0) == 0 and cost["at"] < 100 for cost in costs[1:]), costs


@pytest.mark.thorough
def test_many_times_of_a_large_group_are_not_a_version_each() -> None:
    program, seen = one_group(lambda g: g.agg(a=col("v").median()))
    with program.open() as running:
        insert(running, list(range(ROWS)), 0)
        running["x"].advance_to(1)
        running.step()
        for time in range(1, 501):
            insert(running, [time - 1], time, -1)
        running["x"].advance_to(501)
        running.step()
    for until in (0, 1, 2, 250, 499, 500):
        rows = Counter[Any]()
        for record, time, diff in seen.rows():
            rows[record] += diff if time <= until else 0
        assert +rows == Counter({(0, until + (ROWS - until - 1) // 2): 1})


@pytest.mark.thorough
def test_what_ranked_groups_came_to_outlives_forgotten_values() -> None:
    """A sum of decimals is interned, and only the ranked group knows that it will be taken back."""
    program = Program("large")
    value = {"d": pa.decimal128(30, 2), "v": pa.int64()}
    x = program.input("x", key={"g": pa.int64()}, value=value)
    seen = x.group_by("g").agg(total=col("d").sum(), least=col("v").min()).capture()
    other = program.input("y", key={"t": pa.string()})
    other.group_by().count().capture()
    with program.open() as running:

        def step(time: int, numbers: list[int]) -> None:
            columns = {"g": [0] * len(numbers), "d": [Decimal(n) / 4 for n in numbers], "v": numbers}
            table = pa.table({**columns, "_time": [time] * len(numbers), "_diff": [1] * len(numbers)})
            running["x"].insert(
                table.cast(
                    pa.schema([*value.items()])
                    .insert(0, pa.field("g", pa.int64()))
                    .append(pa.field("_time", pa.int64()))
                    .append(pa.field("_diff", pa.int64()))
                )
            )
            for name in "xy":
                running[name].advance_to(time + 1)
            running.step()

        step(0, list(range(2000)))
        step(1, [5000])
        seen.take()
        for time in (2, 3):  # So many values that those that nobody needs are forgotten.
            texts = [f"{time} {at}" for at in range(140_000)]
            every = {"t": texts, "_time": [time] * len(texts), "_diff": [1] * len(texts)}
            running["y"].insert(pa.table(every))
            running["y"].insert(pa.table({**every, "_diff": [-1] * len(texts)}))
            step(time, [6000 + time])
    total = Decimal(sum(range(2000)) + 5000) / 4
    times = {(record[1], diff) for record, time, diff in seen.rows() if time == 2}
    assert times == {(total, -1), (total + Decimal(6002) / 4, 1)}


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.tuples(st.integers(-3, 3) | st.none(), st.sampled_from([-1, 1, 2])), max_size=12))
def test_quantiles_of_ranked_groups_are_those_of_whole_ones(
    always_ranked: Counter[str], steps: list[tuple[int | None, int]]
) -> None:
    shares = [(False, False, False, (1, 4)), (False, False, True, 0.3), (True, False, False, (1, 2))]
    calls = [
        WindowFunction(f"q{at}", "quantile", pa.float64() if each[0] else pa.int64(), ("v",), constants=each)
        for at, each in enumerate(shares)
    ]
    whole = [*calls, WindowFunction("m", "mode", pa.int64(), ("v",))]  # With this, the group is not ranked.
    program = Program("quantiles")
    values = program.input("in", key={"v": pa.int64()})
    ranked, looked_at = (values.group_by().fold(each).capture() for each in (calls, whole))
    have: Counter[Any] = Counter()
    want: Counter[Any] = Counter()
    with program.open() as running:
        for time, (value, diff) in enumerate(steps):
            running["in"].insert([((value, None), time, diff)])
            running["in"].advance_to(time + 1)
            running.step()
            for counts, seen in ((have, ranked), (want, looked_at)):
                for row in seen.take().to_pylist():
                    counts[row["q0"], row["q1"], row["q2"]] += row["_diff"]
            assert +have == +want


ORDERS = [pa.int64(), pa.string(), pa.int64()]


def sorted_out(
    rows: list[tuple[int, int, str, int, int]], count: int, skip: int
) -> list[tuple[int, int, str, int, int]]:
    """Return what is left of (group, number, text, number, diff): by the number against its order, NULL first, then by
    the others."""
    found = []
    for group in sorted({row[0] for row in rows}):
        here = [row for row in rows if row[0] == group and row[4] > 0]
        here.sort(key=lambda row: (row[1] != NULL, -row[1], row[2], row[3]))
        passed, left = skip, count
        for row in here:
            hidden = min(passed, row[4])
            shown = min(row[4] - hidden, left)
            passed, left = passed - hidden, left - shown
            if shown:
                found.append((*row[:4], shown))
    return found


@pytest.mark.parametrize("seed", range(20))
def test_the_first_records_of_groups_are_those_that_sorting_gives(seed: int) -> None:
    random_, domain = np.random.default_rng(seed), Domain()
    count, skip = int(random_.integers(1, 6)), int(random_.integers(0, 3))
    drawn = {
        (int(group), NULL if first == 0 else int(first), str(text), int(last)): int(diff)
        for group, first, text, last, diff in zip(
            random_.integers(0, 4, 60), random_.integers(0, 8, 60), random_.choice(["a", "b", "é", ""], 60),
            random_.integers(0, 3, 60), random_.choice([-1, 1, 1, 2, 5], 60), strict=True,
        )
    }  # fmt: skip
    rows = sorted((*record, diff) for record, diff in drawn.items())
    texts = domain.encode(pa.chunked_array([[row[2] for row in rows]]))
    groups, first, last, diffs = (np.array([row[at] for row in rows], np.int64) for at in (0, 1, 3, 4))
    made = logic.make_top_k_logic(count, [(0, True, True)], ORDERS, domain, skip=skip)
    owners, values, taken = made(groups, np.array([first, texts, last]), diffs, lambda at: at)
    shown = domain.decode(values[1], pa.string()).to_pylist()
    assert list(zip(owners, values[0], shown, values[2], taken, strict=True)) == sorted_out(rows, count, skip)


def ranked_first(rows: list[tuple[int | None, int, int]], count: int, counted: str, down: bool) -> Counter[Any]:
    """Return the records, (first, last, diff), whose number among those of their group is at most count."""

    def place(first: int | None) -> tuple[bool, int]:
        return first is None, 0 if first is None else -first if down else first

    there = [row for row in rows if row[2] > 0]
    found = Counter[Any]()
    for first, last, diff in there:
        before = [row for row in there if place(row[0]) < place(first)]
        number = 1 + (len({row[0] for row in before}) if counted == "dense_rank" else sum(row[2] for row in before))
        if number <= count:
            found[first, last] = diff
    return found


@pytest.mark.parametrize("counted", ["rank", "dense_rank"])
@pytest.mark.parametrize("large", [False, True])
def test_records_that_agree_in_the_order_are_in_or_out_together(counted: Any, large: bool) -> None:
    costs = Costs(large_rows=1, change_rows=0, block_rows=3) if large else Costs()
    for seed in range(6):
        chance, count, down = random.Random(seed), seed % 4 + 1, seed % 2 > 0
        program, held, have = Program("first"), Counter[Any](), Counter[Any]()
        rows = program.input("rows", key={"g": pa.int64(), "first": pa.int64(), "last": pa.int64()})
        seen = rows.group_by("g").top_k(count, "first", descending=down, counted=counted).capture()
        with program.open(costs=costs) as running:
            for time in range(5):
                changes = Counter[Any]()
                for _ in range(5):
                    record = (chance.randrange(2), chance.choice([None, 1, 2, 3]), chance.randrange(2))
                    changes[record] += chance.choice([1, 1, 2, -1])
                running["rows"].insert([((record, None), time, diff) for record, diff in changes.items() if diff])
                running["rows"].advance_to(time + 1)
                running.step()
                held.update(changes)
                for row in seen.take().to_pylist():
                    have[row["g"], row["first"], row["last"]] += row["_diff"]
                want = Counter[Any]()
                for group in (0, 1):
                    own = [(first, last, diff) for (g, first, last), diff in held.items() if g == group]
                    for (first, last), diff in ranked_first(own, count, counted, down).items():
                        want[group, first, last] = diff
                assert {record: diff for record, diff in have.items() if diff} == want, (seed, time)
