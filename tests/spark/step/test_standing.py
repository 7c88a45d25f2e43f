"""Records that stand for groups: steps go on from what a view holds, and give what embedded steps give."""

import random
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import persist
from persist.spark.step.planning import Place, StepPlan
from persist.sql import View
from tests.spark.step.emulated import stepped
from tests.spark.step.test_stages import QUIET, held

ALL = "SELECT g, count(*) AS n, sum(x) AS s, count(x) AS c, sum(m) AS m FROM facts JOIN dims USING (d) GROUP BY g"
FEW = "SELECT d, count(*) AS n, sum(x) AS s FROM facts GROUP BY d"


@pytest.fixture
def client(tmp_path: Path) -> Iterator[persist.Client]:
    with persist.open(str(tmp_path / "location"), settings=QUIET) as found:
        yield found


def fact(chance: random.Random) -> tuple[Any, ...]:
    x = chance.choice([None, 0, 1, -1, 2_000_000_000, -2_000_000_000])
    return (chance.randrange(6), x, chance.choice([None, Decimal("0.25"), Decimal("-99999999.75")]))


def begin(client: persist.Client, chance: random.Random) -> dict[int, tuple[Any, ...]]:
    facts = client.create_or_load(
        "facts", key={"i": pa.int64()}, value={"d": pa.int64(), "x": pa.int32(), "m": pa.decimal128(10, 2)}
    )
    dims = client.create_or_load("dims", key={"d": pa.int64()}, value={"g": pa.string()})
    present = {i: fact(chance) for i in range(30)}
    facts.write([((i, row), 0, 1) for i, row in present.items()], seal=1).result()
    dims.write([((d, f"group {d % 2}" if d else None), 0, 1) for d in range(5)], seal=1).result()
    return present


def both(client: persist.Client, query: str) -> tuple[View, View]:
    """Return a view that tasks step, and one that is embedded, both refreshed."""
    by_tasks, embedded = (client.create_view(name, query) for name in ("by tasks", "embedded"))
    for each in (by_tasks, embedded):
        each.refresh()
        each.close()
    return by_tasks, embedded


def stands(view: View) -> bool:
    program = view.program()
    with program.open(view.client) as running, StepPlan(program, running, Place(view.client.url, {}, 2)) as step:
        return step.stands


def check(by_tasks: View, embedded: View) -> int | None:
    saved = stepped(by_tasks, partitions=2, looks_up=True)
    embedded.refresh()
    embedded.close()
    assert held(by_tasks) == held(embedded)
    return saved


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32), query=st.sampled_from([ALL, FEW]))
def test_a_step_goes_on_from_what_a_view_holds(tmp_path_factory: pytest.TempPathFactory, seed: int, query: str) -> None:
    chance = random.Random(seed)
    with persist.open(str(tmp_path_factory.mktemp("location")), settings=QUIET) as client:
        present = begin(client, chance)
        views = both(client, query)
        assert stands(views[0])
        facts, dims = client.load("facts"), client.load("dims")
        for time in (1, 2):
            for i in chance.sample([*present], min(len(present), chance.choice([1, 5, 25]))):
                facts.write([((i, present.pop(i)), time, -1)])
            for i in range(100 * time, 100 * time + chance.choice([0, 1, 9])):
                present[i] = fact(chance)
                facts.write([((i, present[i]), time, 1)])
        if chance.random() < 0.5:
            dims.write([((1, "group 1"), 2, -1), ((1, "group 0"), 2, 1), ((5, "new"), 1, 1)])
        for each in (facts, dims):
            each.seal(3).result()
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
    facts = client.create_or_load("facts", key={"i": pa.int64()}, value={"d": pa.int64(), "x": pa.int64()})
    facts.write([((1, (1, 5)), 0, 1), ((2, (1, None)), 0, 1), ((3, (2, 4)), 0, 1), ((4, (2, 0)), 0, 1)], seal=1)
    by_tasks, embedded = both(client, FEW)
    facts.write([((1, (1, 5)), 1, -1), ((3, (2, 4)), 1, -1)], seal=2).result()
    assert stands(by_tasks)
    check(by_tasks, embedded)
    assert sorted(by_tasks.snapshot().rows()) == [((1), (1, None)), ((2), (1, Decimal(0)))]


def test_negative_multiplicities_keep_records_from_standing_for_groups(client: persist.Client) -> None:
    facts = client.create_or_load("facts", key={"i": pa.int64()}, value={"d": pa.int64(), "x": pa.int64()})
    # The group 1 has no records, and a sum that nobody sees.
    facts.write([((1, (1, 5)), 0, 1), ((2, (1, 3)), 0, -1), ((3, (2, 4)), 0, 1)], seal=1).result()
    by_tasks, embedded = both(client, FEW)
    facts.write([((4, (1, 7)), 1, 1)], seal=2).result()
    assert not stands(by_tasks)
    check(by_tasks, embedded)
    assert sorted(by_tasks.snapshot().rows()) == [(1, (1, Decimal(9))), (2, (1, Decimal(4)))]


@pytest.mark.parametrize(
    "query",
    [
        "SELECT d, sum(x) AS s FROM facts GROUP BY d",
        "SELECT d, count(*) AS n, sum(x) AS s FROM facts GROUP BY d HAVING count(*) > 1",
        "SELECT d, count(*) AS n, max(x) AS most FROM facts GROUP BY d",
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
