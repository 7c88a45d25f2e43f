"""Lists, structs and maps in what compares values: in the order of the rows of collections."""

import math
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persist.compute.dataflow.plan.plan import WindowFunction
from persist.compute.dataflow.updates.words import Domain, compute_ranks
from persist.dataflow import Captured, Program, Stream, col
from tests.support.tiers import examples

POINT = pa.struct({"x": pa.int64(), "name": pa.string()})
numbers = st.one_of(st.none(), st.integers(-1, 2))
floats = st.one_of(st.none(), st.sampled_from([math.nan, -0.0, 0.0, 1.5, -math.inf]))
names = st.one_of(st.none(), st.sampled_from(["", "a", "b", "ab"]))
points = st.one_of(st.none(), st.fixed_dictionaries({"x": numbers, "name": names}))


def lists(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), st.lists(inner, max_size=3))


KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "list": (pa.list_(pa.int64()), lists(numbers)),
    "list of floats": (pa.large_list(pa.float64()), lists(floats)),
    "list of lists": (pa.list_(pa.list_(pa.string())), lists(lists(names))),
    "struct": (POINT, points),
    "list of structs": (pa.list_(POINT), lists(points)),
    "map": (pa.map_(pa.string(), pa.int64()), lists(st.tuples(st.sampled_from(["a", "b"]), numbers))),
}


def test_a_zero_in_a_nested_value_has_no_sign_whichever_came_first() -> None:
    kind = pa.list_(pa.struct({"x": pa.float64()}))
    for first in (-0.0, 0.0):
        domain = Domain()
        words = domain.encode(pa.array([[{"x": first}], [{"x": -first}], None], kind))
        assert words[0] == words[1]
        assert repr(domain.decode(words, kind).to_pylist()) == "[[{'x': 0.0}], [{'x': 0.0}], None]"


def place(value: Any) -> tuple[Any, ...]:
    """Return what is ordered as a value is."""
    if value is None:
        return (1,)
    if isinstance(value, list | tuple):
        return (0, tuple(map(place, value)))
    if isinstance(value, dict):
        return (0, (place(value["x"]), place(value["name"])))
    return (0, 1, 0) if value != value else (0, 0, value)


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=examples(60))
@given(data=st.data())
def test_nested_values_have_the_order_of_rows(name: str, data: st.DataObject) -> None:
    kind, values = KINDS[name]
    given_ = data.draw(st.lists(values, max_size=12))
    domain = Domain()
    found = compute_ranks(domain, domain.encode(pa.array(given_, kind)), kind).tolist()
    for one, rank in zip(given_, found, strict=True):
        for other, its in zip(given_, found, strict=True):
            assert (rank < its) == (place(one) < place(other))


def contents(captured: Captured) -> Counter[Any]:
    found: Counter[Any] = Counter()
    for *record, _, diff in (row.values() for row in captured.updates().to_pylist()):
        found[tuple(map(place, record))] += diff
    return Counter({record: count for record, count in found.items() if count})


def first_two(stream: Stream) -> Stream:
    return stream.group_by("k").top_k(2, "v", descending=True)


@pytest.mark.thorough(except_every=3)
@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=examples(25))
@given(data=st.data())
def test_reductions_of_nested_values_are_what_recomputing_gives(name: str, data: st.DataObject) -> None:
    kind, values = KINDS[name]
    program = Program("nested")
    stream = program.input("x", key={"k": pa.int64()}, value={"v": kind, "n": pa.int64()})
    group = stream.group_by("k")
    ends = group.agg(least=col("v").min(), greatest=col("v").max(), middle=col("v").median()).capture()
    top, last = first_two(stream).capture(), stream.upsert("k", order_by=["v", "n"]).capture()
    by_value = stream.group_by("v").count().capture()
    number = WindowFunction("at", "row_number", pa.int64(), by=(("n", False, False),))
    numbered = group.windows([number]).capture()
    there: list[tuple[int, Any, int]] = []
    with program.open() as running:
        for time in range(3):
            gone = [each for each in there if data.draw(st.booleans())]
            new = data.draw(st.lists(st.tuples(st.integers(0, 1), values, st.integers(0, 1)), max_size=5))
            for each in gone:
                there.remove(each)
            there += new
            changes = [*((each, -1) for each in gone), *((each, 1) for each in new)]
            running["x"].insert([((k, (v, n)), time, diff) for (k, v, n), diff in changes])
            running["x"].advance_to(time + 1)
            running.step()
            check(there, contents(ends), contents(top), contents(last), contents(numbered))
            counts = Counter(place(v) for _, v, _ in there)
            assert contents(by_value) == Counter([(value, place(n)) for value, n in counts.items()])


def check(
    there: list[tuple[int, Any, int]], ends: Counter[Any], top: Counter[Any], last: Counter[Any], numbered: Counter[Any]
) -> None:
    want: list[Counter[Any]] = [Counter() for _ in range(4)]
    for k in {each[0] for each in there}:
        mine = sorted(([place(v), place(n)] for key, v, n in there if key == k), key=lambda row: (row[0], row[1]))
        known = [v for v, _ in mine if v != (1,)]
        of = (known[0], known[-1], known[(len(known) - 1) // 2]) if known else ((1,),) * 3
        want[0][(place(k), *of)] += 1
        is_null = [row for row in mine if row[0] == (1,)]
        down = sorted((row for row in mine if row[0] != (1,)), key=lambda row: row[1])
        down.sort(key=lambda row: row[0], reverse=True)
        for v, n in (down + is_null)[:2]:
            want[1][(place(k), v, n)] += 1
        latest = sorted(down, key=lambda row: (row[0], row[1]), reverse=True) + is_null[::-1]
        want[2][(place(k), *latest[0])] += 1
        for at, (v, n) in enumerate(sorted(mine, key=lambda row: (row[1], row[0])), 1):
            want[3][(place(k), v, n, place(at))] += 1
    assert [ends, top, last, numbered] == want
