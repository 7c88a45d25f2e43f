"""Cold refreshes go on from what a view shows of its groups, and give what a handle with all of its state gives."""

import random
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, TypeAlias

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import persist
from persist import View
from persist.api.collection import Collection
from tests.compute.sql.two_ways import QUIET, requests_by_key
from tests.compute.sql.whole_history import held
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
FIRST = [
    "SELECT i, d, x FROM facts ORDER BY x DESC LIMIT 4",
    "SELECT d, x FROM facts ORDER BY d LIMIT 12",
    "SELECT g, x, m FROM facts JOIN dims USING (d) ORDER BY m LIMIT 5",
    "SELECT d, x, count(*) AS n FROM facts GROUP BY d, x ORDER BY n DESC, d, x LIMIT 3",
    "SELECT DISTINCT ON (d) d, i, x FROM facts ORDER BY d, x, i",
]
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
    """Return a view to refresh cold, and one to refresh with all of its state, both up to date."""
    cold, whole = (client.create_view(name, query) for name in ("cold", "whole"))
    for each in (cold, whole):
        each.refresh()
        each.close()
    return cold, whole


def check(cold: View, whole: View) -> bool:
    """Refresh both views, and compare them; return whether the cold one has read nothing of the facts."""
    with requests_by_key():
        cold.refresh()
    assert cold.live.running is not None
    assert cold.live.running.partial is not None
    readings = cold.live.running.partial.readings
    cold.close()
    whole.open_state()
    whole.close()
    assert held(cold) == held(whole)
    return not any(reading.title == "read facts" for reading in readings)


@settings(max_examples=examples(30), deadline=None)
@given(seed=st.integers(0, 2**32), query=st.sampled_from([ALL, FEW, MEANS, ENDS, *FIRST]), is_keyed=st.booleans())
def test_a_refresh_goes_on_from_what_a_view_shows(
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
        check(*views)
        assert client.fsck().problems == ()


def test_nothing_of_the_past_of_a_group_is_read(client: persist.Client) -> None:
    begin(client, random.Random(1))
    facts = client.load("facts")
    facts.write([((i, (i % 5, i, None)), 1, 1) for i in range(1000, 21_000)], seal=2).result()
    client.load("dims").seal(2).result()
    views = both(client, ALL)
    facts.write([((7000, (0, 7000, None)), 2, -1), ((7000, (0, 7001, None)), 2, 1)], seal=3).result()
    client.load("dims").seal(3).result()
    assert check(*views)


@pytest.mark.parametrize("is_first", [False, True])
def test_first_records_are_read_where_they_are_shown_while_none_is_retracted(
    client: persist.Client, is_first: bool
) -> None:
    begin(client, random.Random(1))
    facts = client.load("facts")
    facts.write([((1000 + i, (1, i + 1, None)), 1, 1) for i in range(30)], seal=2).result()
    views = both(client, "SELECT i, x FROM facts WHERE d = 1 AND i >= 1000 ORDER BY x DESC LIMIT 4")
    retracted = 29 if is_first else 7
    facts.write([((2000, (1, 50, None)), 2, 1), ((1000 + retracted, (1, retracted + 1, None)), 2, -1)], seal=3).result()
    assert check(*views) == (not is_first)


def test_records_of_negative_multiplicity_are_among_those_that_are_not_shown(client: persist.Client) -> None:
    rows = client.create_or_load("rows", key={"x": pa.int64()})
    rows.write([((1, None), 0, -1), *(((x, None), 0, 1) for x in (2, 3, 4))], seal=1).result()
    views = both(client, "SELECT x FROM rows ORDER BY x LIMIT 2")
    rows.write([((1, None), 1, 1)], seal=2).result()
    check(*views)
    assert sorted(views[0].snapshot().to_arrow()["x"].to_pylist()) == [2, 3]


@pytest.mark.parametrize("indexes", [None, "auto"])
def test_a_group_that_a_condition_hides_is_not_taken_for_an_empty_one(
    client: persist.Client, indexes: Literal["auto"] | None
) -> None:
    facts = client.create_or_load("facts", key={"i": pa.int64()}, value={"d": pa.int64()})
    facts.write([((i, i % 2), 0, 1) for i in range(4)], seal=1).result()
    query = "SELECT d, count(*) AS n FROM facts GROUP BY d HAVING count(*) > 2"
    client.create_view("v", query, indexes=indexes).refresh()
    for time in range(1, 4):
        facts.write([((10 + time, 1), time, 1)], seal=time + 1).result()
        with requests_by_key():
            client.view("v").refresh()
        assert [*client.view("v").snapshot().rows()] == ([(1, 2 + time)] if time else [])


def test_a_sum_that_becomes_zero_is_done_without(client: persist.Client) -> None:
    value = {"d": pa.int64(), "x": pa.int64()}
    facts = client.create_or_load("facts", key={"i": pa.int64()}, value=value, keyed=persist.Keyed())
    facts.upsert([(1, (1, 5), 0), (2, (1, None), 0), (3, (2, 4), 0), (4, (2, 0), 0)], seal=1).result()
    cold, whole = both(client, FEW)
    facts.upsert([(1, None, 1), (3, None, 1)], seal=2).result()
    check(cold, whole)
    assert sorted(cold.snapshot().rows()) == [((1), (1, None)), ((2), (1, Decimal(0)))]


Records: TypeAlias = Sequence[tuple[tuple[int, tuple[int, int | None]], int]]


def refresh(client: persist.Client, query: str, before: Records, after: Records) -> tuple[bool, list[dict[str, Any]]]:
    """Refresh a view of facts as they were and of what is new; return whether the view showed the state of the groups
    that change, and what it holds."""
    facts = client.create_or_load("facts", key={"i": pa.int64()}, value={"d": pa.int64(), "x": pa.int64()})
    facts.write([(record, 0, diff) for record, diff in before], seal=1).result()
    cold, whole = both(client, query)
    facts.write([(record, 1, diff) for record, diff in after], seal=2).result()
    return check(cold, whole), cold.snapshot(form="diff").to_arrow().to_pylist()


COUNTED = "SELECT d, count(*) AS n, sum(x) AS s, count(x) AS c FROM facts GROUP BY d"


@pytest.mark.parametrize("query", [FEW, COUNTED])
def test_a_group_that_is_hidden_is_found(client: persist.Client, query: str) -> None:
    # The group 1 has no records, and a sum that nobody sees. The view does not say how it goes on from there.
    before = [((1, (1, 5)), 1), ((2, (1, 3)), -1), ((3, (2, 4)), 1)]
    is_shown, rows = refresh(client, query, before, [((4, (1, 7)), 1)])
    assert not is_shown
    assert [(row["n"], row["s"]) for row in rows] == [(1, 9), (1, 4)]


def test_a_sum_that_is_hidden_is_found(client: persist.Client) -> None:
    before = [((1, (1, 5)), 1), ((2, (1, 3)), -1), ((3, (1, None)), 1)]
    is_shown, rows = refresh(client, COUNTED, before, [((4, (1, 7)), 1)])
    assert not is_shown
    assert rows == [{"d": 1, "n": 2, "s": Decimal(9), "c": 1, "_diff": 1}]


def test_a_group_goes_on_through_negative_multiplicities(client: persist.Client) -> None:
    before = [((1, (1, 5)), 1), ((2, (1, 3)), -3), ((3, (2, 4)), 1)]
    after = [((4, (1, 7)), -1), ((5, (2, 9)), -1), ((6, (2, 8)), 1)]
    is_shown, rows = refresh(client, FEW, before, after)
    assert is_shown
    assert [(row["n"], row["s"]) for row in rows] == [(-3, -11), (1, 3)]


def test_a_sum_of_values_that_nobody_counts_is_computed_again(client: persist.Client) -> None:
    # No value is left, and the sum would not be 0: it is 5 - 3.
    before: Records = [((1, (1, 5)), 1), ((2, (1, None)), 1)]
    is_shown, rows = refresh(client, FEW, before, [((9, (1, 3)), -1), ((10, (1, None)), 1)])
    assert not is_shown
    assert rows == [{"d": 1, "n": 2, "s": None, "_diff": 1}]


@pytest.mark.parametrize("least", [-(2**62), -(2**62) - 1])
def test_sums_around_the_number_that_stands_for_null(client: persist.Client, least: int) -> None:
    # The greater one is the number that stands for NULL.
    is_shown, [row] = refresh(client, FEW, [((1, (1, -(2**62))), 1), ((2, (1, least)), 1)], [((9, (1, 3)), 1)])
    assert is_shown
    assert row["s"] == 3 - 2**62 + least


@pytest.mark.thorough(except_every=2)
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
    assert refresh(client, query, before, after)[0] == is_known


@pytest.mark.thorough(except_every=2)
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
def test_what_a_view_does_not_show_is_computed_again(client: persist.Client, query: str) -> None:
    begin(client, random.Random(2))
    views = both(client, query)
    client.load("facts").write([((500, (1, 1, None)), 1, 1)], seal=2).result()
    client.load("dims").seal(2).result()
    assert not check(*views)


def test_a_mean_goes_on_where_a_group_loses_its_values_and_itself(client: persist.Client) -> None:
    before: Records = [((1, (1, 5)), 1), ((2, (1, None)), 1), ((3, (2, 7)), 1), ((4, (2, 8)), 1)]
    query = "SELECT d, avg(x) AS a, sum(x) AS s, count(x) AS c, count(*) AS n FROM facts GROUP BY d"
    after: Records = [((1, (1, 5)), -1), ((3, (2, 7)), -1), ((5, (3, 1)), 1)]
    is_shown, rows = refresh(client, query, before, after)
    assert is_shown
    assert [(row["d"], row["a"], row["n"]) for row in rows] == [(1, None, 1), (2, 8.0, 1), (3, 1.0, 1)]


def test_counts_of_the_elements_of_lists_show_their_groups(client: persist.Client) -> None:
    facts = client.create_or_load("facts", key={"i": pa.int64()}, value={"d": pa.int64()})
    facts.write([((i, i % 3), 0, 1) for i in range(9)], seal=1).result()
    cold, whole = both(client, "SELECT e, count(*) AS n FROM (SELECT unnest([d, 9]) AS e FROM facts) GROUP BY e")
    facts.write([((9, 2), 1, 1), ((0, 0), 1, -1)], seal=2).result()
    assert check(cold, whole)
