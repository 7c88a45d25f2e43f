"""Records that stand for groups: steps go on from what a view holds, and give what embedded steps give."""

import random
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import persist
from persist import View
from persist.api.collection import Collection
from persist.compute.dataflow.ports.ports import Ports
from persist.compute.dataflow.step.planning import StepPlan
from persist.errors import OperatorFailed
from tests.compute.dataflow.step.emulated import stepped
from tests.compute.dataflow.step.test_stages import QUIET, held
from tests.support.tiers import examples

ALL = (
    "SELECT g, count(*) AS n, sum(x) AS s, count(x) AS c, sum(m) AS m, count(m) AS cm"
    " FROM facts JOIN dims USING (d) GROUP BY g"
)
MEANS = (
    "SELECT d, avg(x) AS a, sum(x) AS s, count(x) AS c, avg(m) AS am, sum(m) AS m, count(m) AS cm, count(*) AS n"
    " FROM facts GROUP BY d"
)
ENDS = (
    "SELECT g, min(x) AS low, max(m) AS high, sum(x) AS s, count(x) AS c, count(*) AS n"
    " FROM facts JOIN dims USING (d) GROUP BY g"
)
FEW = "SELECT d, count(*) AS n, sum(x) AS s FROM facts GROUP BY d"


@pytest.fixture
def client(tmp_path: Path) -> Iterator[persist.Client]:
    with persist.open(str(tmp_path / "location"), settings=QUIET) as found:
        yield found


def fact(chance: random.Random) -> tuple[Any, ...]:
    x = chance.choice([None, 0, 1, -1, 2_000_000_000, -2_000_000_000])
    return (chance.randrange(6), x, chance.choice([None, Decimal("0.25"), Decimal("-99999999.75")]))


def begin(client: persist.Client, chance: random.Random, *, is_keyed: bool = False) -> dict[int, tuple[Any, ...]]:
    facts = client.create_or_load(
        "facts",
        key={"i": pa.int64()},
        value={"d": pa.int64(), "x": pa.int32(), "m": pa.decimal128(10, 2)},
        keyed=persist.Keyed() if is_keyed else None,
    )
    dims = client.create_or_load("dims", key={"d": pa.int64()}, value={"g": pa.string()})
    present = {i: fact(chance) for i in range(30)}
    change(facts, present, {}, 0)
    facts.seal(1).result()
    dims.write([((d, f"group {d % 2}" if d else None), 0, 1) for d in range(5)], seal=1).result()
    return present


def change(facts: Collection, come: dict[int, Any], gone: dict[int, Any], time: int) -> None:
    """Write records that come and that go: as events, if the collection is keyed."""
    if facts.handle.keyed is not None:
        facts.upsert([*((i, None, time) for i in gone), *((i, row, time) for i, row in come.items())])
    else:
        facts.write(
            [*(((i, row), time, -1) for i, row in gone.items()), *(((i, row), time, 1) for i, row in come.items())]
        )


def both(client: persist.Client, query: str) -> tuple[View, View]:
    """Return a view that tasks step, and one that is embedded, both refreshed."""
    by_tasks, embedded = (client.create_view(name, query) for name in ("by tasks", "embedded"))
    for each in (by_tasks, embedded):
        each.refresh()
        each.close()
    return by_tasks, embedded


def stands(view: View) -> bool:
    program = view.live.program()
    engine = view.handle.engine
    with Ports.of_step(program, engine) as ports, StepPlan(program, ports, engine.url, {}, 2) as step:
        return step.stands


def check(by_tasks: View, embedded: View) -> int | None:
    saved = stepped(by_tasks, partitions=2, looks_up=True)
    embedded.refresh()
    embedded.close()
    assert held(by_tasks) == held(embedded)
    return saved


@settings(max_examples=examples(30), deadline=None)
@given(seed=st.integers(0, 2**32), query=st.sampled_from([ALL, FEW, MEANS, ENDS]), is_keyed=st.booleans())
def test_a_step_goes_on_from_what_a_view_holds(
    tmp_path_factory: pytest.TempPathFactory, seed: int, query: str, is_keyed: bool
) -> None:
    chance = random.Random(seed)
    with persist.open(str(tmp_path_factory.mktemp("location")), settings=QUIET) as client:
        present = begin(client, chance, is_keyed=is_keyed)
        views = both(client, query)
        facts, dims = client.load("facts"), client.load("dims")
        grows = chance.random() < 0.5
        for time in (1, 2):
            gone = (
                {}
                if grows
                else {
                    i: present.pop(i) for i in chance.sample([*present], min(len(present), chance.choice([1, 5, 25])))
                }
            )
            come = {i: fact(chance) for i in range(100 * time, 100 * time + chance.choice([0, 1, 9]))}
            change(facts, come, gone, time)
            present |= come
        if not grows and chance.random() < 0.5:
            dims.write([((1, "group 1"), 2, -1), ((1, "group 0"), 2, 1), ((5, "new"), 1, 1)])
        for each in (facts, dims):
            each.seal(3).result()
        if grows or query is not ENDS:
            assert stands(views[0]) == (not is_keyed if query is ENDS else is_keyed or grows or query is not FEW)
        check(*views)
        assert client.fsck().problems == ()


def test_nothing_of_the_past_of_a_group_is_read(client: persist.Client) -> None:
    begin(client, random.Random(1))
    facts = client.load("facts")
    facts.write([((i, (i % 5, i, None)), 1, 1) for i in range(1000, 21_000)], seal=2).result()
    client.load("dims").seal(2).result()
    views = both(client, ALL)
    contents = facts.snapshot(form="diff").scan.memory
    facts.write([((7000, (0, 7000, None)), 2, -1), ((7000, (0, 7001, None)), 2, 1)], seal=3).result()
    client.load("dims").seal(3).result()
    saved = check(*views)
    assert saved is not None
    assert saved >= contents


def test_a_sum_that_becomes_zero_is_done_without(client: persist.Client) -> None:
    value = {"d": pa.int64(), "x": pa.int64()}
    facts = client.create_or_load("facts", key={"i": pa.int64()}, value=value, keyed=persist.Keyed())
    facts.upsert([(1, (1, 5), 0), (2, (1, None), 0), (3, (2, 4), 0), (4, (2, 0), 0)], seal=1).result()
    by_tasks, embedded = both(client, FEW)
    facts.upsert([(1, None, 1), (3, None, 1)], seal=2).result()
    assert stands(by_tasks)
    check(by_tasks, embedded)
    assert sorted(by_tasks.snapshot().rows()) == [((1), (1, None)), ((2), (1, Decimal(0)))]


Records: TypeAlias = Sequence[tuple[tuple[int, tuple[int, int | None]], int]]


NOTHING_STOOD, NOT_ENOUGH, STOOD = "nothing stood", "it was done again without", "stood"


def step(client: persist.Client, query: str, before: Records, after: Records) -> tuple[str, list[dict[str, Any]]]:
    """Do a step of facts as they were and of what is new; return whether records stood, and what the view holds."""
    facts = client.create_or_load("facts", key={"i": pa.int64()}, value={"d": pa.int64(), "x": pa.int64()})
    facts.write([(record, 0, diff) for record, diff in before], seal=1).result()
    by_tasks, embedded = both(client, query)
    facts.write([(record, 1, diff) for record, diff in after], seal=2).result()
    found = STOOD if stands(by_tasks) else NOTHING_STOOD
    try:
        stepped(by_tasks, partitions=2, looks_up=True, goes_without=False)
    except OperatorFailed:
        found = NOT_ENOUGH
    check(by_tasks, embedded)
    return found, by_tasks.snapshot(form="diff").to_arrow().to_pylist()


COUNTED = "SELECT d, count(*) AS n, sum(x) AS s, count(x) AS c FROM facts GROUP BY d"


@pytest.mark.parametrize("query", [FEW, COUNTED])
def test_a_group_that_is_hidden_is_found(client: persist.Client, query: str) -> None:
    # The group 1 has no records, and a sum that nobody sees. The view does not say how it goes on from there.
    before = [((1, (1, 5)), 1), ((2, (1, 3)), -1), ((3, (2, 4)), 1)]
    found, held = step(client, query, before, [((4, (1, 7)), 1)])
    assert found == NOT_ENOUGH
    assert [(row["n"], row["s"]) for row in held] == [(1, 9), (1, 4)]


def test_a_sum_that_is_hidden_is_found(client: persist.Client) -> None:
    before = [((1, (1, 5)), 1), ((2, (1, 3)), -1), ((3, (1, None)), 1)]
    found, held = step(client, COUNTED, before, [((4, (1, 7)), 1)])
    assert found == NOT_ENOUGH
    assert held == [{"d": 1, "n": 2, "s": Decimal(9), "c": 1, "_diff": 1}]


def test_a_group_goes_on_through_negative_multiplicities(client: persist.Client) -> None:
    before = [((1, (1, 5)), 1), ((2, (1, 3)), -3), ((3, (2, 4)), 1)]
    after = [((4, (1, 7)), -1), ((5, (2, 9)), -1), ((6, (2, 8)), 1)]
    found, held = step(client, FEW, before, after)
    assert found == STOOD
    assert [(row["n"], row["s"]) for row in held] == [(-3, -11), (1, 3)]


def test_nothing_stands_for_sums_of_unknown_many_values_where_one_may_be_taken_away(client: persist.Client) -> None:
    # No value is left, and the sum would not be 0: it is 5 - 3.
    before: Records = [((1, (1, 5)), 1), ((2, (1, None)), 1)]
    found, held = step(client, FEW, before, [((9, (1, 3)), -1), ((10, (1, None)), 1)])
    assert found == NOTHING_STOOD
    assert held == [{"d": 1, "n": 2, "s": None, "_diff": 1}]


@pytest.mark.parametrize("least", [-(2**62), -(2**62) - 1])
def test_a_sum_that_is_no_value_is_computed_again(client: persist.Client, least: int) -> None:
    # The first one is the number that stands for NULL.
    found, [row] = step(client, FEW, [((1, (1, -(2**62))), 1), ((2, (1, least)), 1)], [((9, (1, 3)), 1)])
    assert found == NOT_ENOUGH
    assert row["s"] == 3 - 2**62 + least


@pytest.mark.parametrize(
    ("query", "is_known"),
    [
        (FEW, True),
        ("SELECT d, count(*) AS n, sum(x * (1 - x)) AS s FROM facts GROUP BY d", True),
        ("SELECT d, count(*) AS n, sum(CASE WHEN x > 2 THEN x END) AS s FROM facts GROUP BY d", False),
        ("SELECT f.d, count(*) AS n, sum(o.x) AS s FROM facts f LEFT JOIN facts o ON f.x = o.i GROUP BY f.d", False),
    ],
)
def test_values_without_null_are_counted_by_the_records(client: persist.Client, query: str, is_known: bool) -> None:
    before: Records = [((i, (i % 3, i)), 1) for i in range(30)]
    after: Records = [((i, (i % 3, i)), -1) for i in range(5)] + [((50, (1, None)), 1)]
    assert step(client, query, before, after)[0] == (STOOD if is_known else NOTHING_STOOD)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT d, sum(x) AS s FROM facts GROUP BY d",
        "SELECT d, count(*) AS n, sum(x) AS s FROM facts GROUP BY d HAVING count(*) > 1",
        "SELECT d, count(*) AS n, sum(y) AS s, avg(x) AS mean FROM (SELECT *, x AS y FROM facts) GROUP BY d",
        "SELECT n, max(s) AS most, count(*) AS k FROM (SELECT d, count(*) AS n, sum(x) AS s FROM facts GROUP BY d)"
        " GROUP BY n",
        "SELECT d, count(*) AS n, avg(x) AS mean FROM facts GROUP BY d",
        "SELECT d + 1 AS e, count(*) AS n FROM facts GROUP BY d",
        "SELECT count(*) AS n FROM facts",
    ],
)
def test_what_a_view_does_not_tell_is_computed_again(client: persist.Client, query: str) -> None:
    begin(client, random.Random(2))
    views = both(client, query)
    assert not stands(views[0])
    client.load("facts").write([((500, (1, 1, None)), 1, 1)], seal=2).result()
    check(*views)


@pytest.mark.parametrize("query", ["SELECT d, max(x) AS most, count(*) AS n FROM facts GROUP BY d", ENDS])
def test_a_greatest_value_stands_until_something_is_retracted(client: persist.Client, query: str) -> None:
    begin(client, random.Random(3))
    views, facts, dims = both(client, query), client.load("facts"), client.load("dims")
    for time, (record, diff) in enumerate(
        [((500, (1, 2_000_000_001, None)), 1), ((500, (1, 2_000_000_001, None)), -1)]
    ):
        facts.write([(record, 1 + time, diff)], seal=2 + time).result()
        dims.seal(2 + time).result()
        assert stands(views[0]) == (diff > 0)
        check(*views)


def test_a_mean_goes_on_where_a_group_loses_its_values_and_itself(client: persist.Client) -> None:
    before: Records = [((1, (1, 5)), 1), ((2, (1, None)), 1), ((3, (2, 7)), 1), ((4, (2, 8)), 1)]
    query = "SELECT d, avg(x) AS a, sum(x) AS s, count(x) AS c, count(*) AS n FROM facts GROUP BY d"
    after: Records = [((1, (1, 5)), -1), ((3, (2, 7)), -1), ((5, (3, 1)), 1)]
    found, held = step(client, query, before, after)
    assert found == STOOD
    assert [(row["d"], row["a"], row["n"]) for row in held] == [(1, None, 1), (2, 8.0, 1), (3, 1.0, 1)]


def test_counts_of_the_elements_of_lists_stand_for_their_groups(client: persist.Client) -> None:
    facts = client.create_or_load("facts", key={"i": pa.int64()}, value={"d": pa.int64()})
    facts.write([((i, i % 3), 0, 1) for i in range(9)], seal=1).result()
    by_tasks, embedded = both(client, "SELECT e, count(*) AS n FROM (SELECT unnest([d, 9]) AS e FROM facts) GROUP BY e")
    facts.write([((9, 2), 1, 1), ((0, 0), 1, -1)], seal=2).result()
    assert stands(by_tasks)
    assert stepped(by_tasks, partitions=2, looks_up=True, goes_without=False) is not None
    embedded.refresh()
    assert held(by_tasks) == held(embedded)
