"""What a view keeps of its groups: steps go on from it exactly, and it goes when the view goes."""

import random
import uuid
from decimal import Decimal

import pyarrow as pa
import pytest

import persist
from persist.core.names import GROUPS_PREFIX
from persist.errors import CollectionNeeded, ColumnsNeeded, OperatorFailed
from persist.sql import Wanted, plan_views
from persist.tools.reports.surveys import format_hold, get_names_by_id
from tests.compute.sql.two_ways import QUIET, requests_by_key

MEANS = "SELECT k, avg(v) AS mean FROM t GROUP BY k"
SHARE = "SELECT sum(CASE WHEN k = 'a' THEN v END) / sum(v) AS share FROM t"
FIRST = "SELECT k, sum(v) AS total FROM t GROUP BY k ORDER BY total DESC LIMIT 1"


@pytest.fixture
def client(client: persist.Client) -> persist.Client:
    """Return a client of a collection with four records."""
    table = client.create_or_load("t", key={"k": str, "v": int})
    table.write([((("a", 1), None), 0, 1), ((("a", 4), None), 0, 1), ((("b", 3), None), 0, 2)], seal=1).result()
    return client


def write(client: persist.Client, time: int, *updates: tuple[str, int, int]) -> None:
    client.load("t").write([(((k, v), None), time, diff) for k, v, diff in updates], seal=time + 1).result()


def groups(client: persist.Client) -> list[str]:
    return client.engine.names(GROUPS_PREFIX)


def rows(view: persist.View) -> list[tuple[object, ...]]:
    return sorted(tuple(row.values()) for row in view.snapshot().to_arrow().to_pylist())


@pytest.mark.parametrize("query", [MEANS, SHARE, FIRST])
def test_a_step_reads_nothing_of_the_past_where_the_view_keeps_its_groups(client: persist.Client, query: str) -> None:
    client.create_view("v", query, indexes="auto").refresh()
    client.create_view("other", query).refresh()
    write(client, 1, ("a", 1, -1), ("a", 10, 1), ("c", 2, 1))
    with requests_by_key():
        assert "read t" not in client.view("v").explain_refresh()
        assert "read t" in client.view("other").explain_refresh()
        client.view("v").refresh(policy="incremental")
    client.view("other").open_state()
    assert rows(client.view("v")) == rows(client.view("other"))


def test_a_group_whose_multiplicities_add_up_to_nothing_is_gone_on_from_as_well(client: persist.Client) -> None:
    view = client.create_view("v", MEANS, indexes="auto")
    view.refresh()
    client.create_view("other", MEANS).refresh()
    write(client, 1, ("c", 5, 1), ("c", 2, -1), ("b", 2, -2))
    with requests_by_key():
        view = client.view("v")
        view.refresh(policy="incremental")
        assert rows(view) == [("a", 2.5)]
        write(client, 2, ("c", 4, 1), ("b", 3, -1))
        view.refresh(policy="incremental")
    client.view("other").open_state()
    assert rows(view) == rows(client.view("other")) == [("a", 2.5), ("b", 1.0), ("c", 7.0)]


def test_totals_of_any_size_stand_for_their_groups() -> None:
    kind = {"k": int, "v": pa.decimal128(36, 2)}
    with persist.open(f"memory://{uuid.uuid4()}", settings=QUIET) as client, requests_by_key():
        table = client.create_or_load("t", key=kind)
        large = Decimal("8" * 30 + ".25")
        table.write(
            [(((1, large), None), 0, 3), (((1, large.copy_negate()), None), 0, 1), (((2, None), None), 0, 1)], seal=1
        ).result()
        view = client.create_view(
            "v", "SELECT k, sum(v) AS s, avg(v) AS m, count(v) AS c FROM t GROUP BY k", indexes="auto"
        )
        view.open_state()
        table.write([(((1, Decimal("0.50")), None), 1, 1), (((2, Decimal("-1.50")), None), 1, 1)], seal=2).result()
        client.view("v").refresh(policy="incremental")
        total = Decimal("1" + "7" * 30 + ".00")
        assert rows(view) == [(1, total, float(total / 5), 5), (2, Decimal("-1.50"), -1.5, 1)]


def test_groups_keep_no_past(client: persist.Client) -> None:
    client.create_view("v", MEANS, indexes="auto").refresh()
    write(client, 1, ("a", 7, 1))
    client.view("v").open_state()
    [name] = groups(client)
    held = client.load(name)
    assert (held.since, held.upper) == (persist.Antichain(1), persist.Antichain(2))
    assert client.view("v").snapshot(0).count() == 2


def test_groups_go_with_their_view_and_with_its_query(client: persist.Client) -> None:
    client.create_view(
        "nested", "SELECT n, count(*) AS c FROM (SELECT k, sum(v) AS n FROM t GROUP BY k) GROUP BY n", indexes="auto"
    )
    assert len(groups(client)) == 2
    client.drop("nested").result()
    assert groups(client) == []
    view = client.create_view("v", MEANS, indexes="auto")
    view.refresh()
    view.redefine(MEANS)
    before = groups(client)
    view.redefine(MEANS, start=0)
    assert len(groups(client)) == len(before) == 1
    assert groups(client) != before
    view.redefine("SELECT k, min(v)::DOUBLE AS mean FROM t GROUP BY k")
    assert groups(client) == []
    write(client, 1, ("a", 0, 1))
    view.refresh()
    assert rows(view) == [("a", 0.0), ("b", 3.0)]
    assert client.fsck().problems == ()


WIDE = "SELECT k, avg(v) AS mean, count(*) AS n FROM t GROUP BY k"
SAME = {  # Queries that have the groups of the first one, and want no more of them than that one does.
    WIDE: "SELECT k, 2 * avg(v) AS mean, 0 + count(*) AS n FROM t GROUP BY k HAVING sum(v) > 2",
    MEANS: "SELECT k, avg(v) - sum(v)::DOUBLE AS mean FROM t GROUP BY k ORDER BY 2 DESC, 1 LIMIT 2",
    FIRST: "SELECT k, sum(v) AS total FROM t GROUP BY k",
    SHARE: "SELECT 1 - sum(CASE WHEN k = 'a' THEN v END) / sum(v) AS share FROM t",
}


@pytest.mark.thorough(except_every=4)
@pytest.mark.parametrize("first", SAME)
def test_groups_outlive_another_query_that_wants_the_same_ones(client: persist.Client, first: str) -> None:
    view = client.create_view("v", first, indexes="auto")
    view.refresh()
    before, numbers = groups(client), dict(client.engine.follower.state.ids)
    write(client, 1, ("a", 7, 1), ("d", 9, 1))
    view.redefine(SAME[first])
    assert groups(client) == before
    assert {name: client.engine.follower.state.ids[name] for name in before}.items() <= numbers.items()
    with requests_by_key():
        for time in (2, 3):
            write(client, time, (("a", 7) if time == 2 else ("d", 9)) + (-1,), ("b", 3, -1), ("e", time, 1))
            view = client.view("v")
            if time == 3:  # The step before has written the difference between the two queries, of all rows.
                assert "read t" not in view.explain_refresh()
            view.refresh()
            assert rows(view) == computed(client, SAME[first])
    view.redefine(first)
    assert groups(client) == before
    view.refresh()
    write(client, 4, ("a", 1, -1))
    view.refresh()
    assert rows(view) == computed(client, first)
    assert client.fsck().problems == ()


def computed(client: persist.Client, query: str) -> list[tuple[object, ...]]:
    with client.sql(query) as answer:
        return sorted(tuple(row.values()) for row in answer.to_arrow().to_pylist())


@pytest.mark.parametrize(
    "other",
    [
        "SELECT k, avg(v) FILTER (WHERE v > 1) AS mean FROM t GROUP BY k",
        "SELECT k, avg(v) AS mean FROM t WHERE v > 1 GROUP BY k",
        "SELECT k, avg(v + 1) AS mean FROM t GROUP BY k",
        "SELECT upper(k) AS k, avg(v) AS mean FROM t GROUP BY 1",
    ],
)
def test_groups_that_another_query_does_not_have_go(client: persist.Client, other: str) -> None:
    view = client.create_view("v", MEANS, indexes="auto")
    view.refresh()
    view.redefine(other)
    assert groups(client) == []
    write(client, 1, ("a", 7, 1), ("d", 9, 1))
    view.refresh()
    assert rows(view) == computed(client, other)


def test_of_groups_of_groups_those_stay_that_another_query_has(client: persist.Client) -> None:
    inner = "SELECT k, sum(v) AS n FROM t GROUP BY k"
    view = client.create_view("v", f"SELECT sum(n) AS s, count(*) AS c FROM ({inner})", indexes="auto")
    view.refresh()
    assert len(groups(client)) == 2
    view.redefine(f"SELECT sum(n) + 1 AS s, count(*) AS c FROM ({inner})")
    assert len(groups(client)) == 2
    view.redefine(f"SELECT sum(n) AS s, count(DISTINCT n) AS c FROM ({inner})")
    assert len(groups(client)) == 1
    write(client, 1, ("a", 7, 1), ("d", 9, 1))
    with requests_by_key():
        for time in (2, 3):
            client.view("v").refresh()
            assert rows(client.view("v")) == computed(client, f"SELECT sum(n), count(DISTINCT n) FROM ({inner})")
            write(client, time, ("a", 7, -1), ("e", time, 1))
    assert client.fsck().problems == ()


QUERIES = (
    "SELECT k, avg(v) AS x, count(*) AS n FROM t GROUP BY k",
    "SELECT k, avg(v) AS x, count(v) AS n FROM t GROUP BY k",
    "SELECT k, avg(v) + 1 AS x, count(*) AS n FROM t GROUP BY k HAVING count(*) > 1",
    "SELECT k, sum(v)::DOUBLE AS x, count(*) AS n FROM t GROUP BY k ORDER BY x DESC, k LIMIT 2",
    "SELECT k, max(v)::DOUBLE AS x, count(*) AS n FROM t GROUP BY k",
    "SELECT k, avg(x) AS x, count(*) AS n FROM (SELECT k, v, sum(v) AS x FROM t GROUP BY k, v) GROUP BY k",
)


def test_a_view_whose_groups_read_others_gets_a_query_without_them(client: persist.Client) -> None:
    client.create_view("v", QUERIES[5], indexes="auto").refresh()
    client.view("v").redefine(QUERIES[4])
    write(client, 1, ("a", 1, 1), ("a", 2, 1))
    client.view("v").refresh()
    assert rows(client.view("v")) == computed(client, QUERIES[4])


@pytest.mark.thorough(except_every=12)
@pytest.mark.parametrize("seed", range(12))
def test_views_that_get_one_query_after_the_other_hold_what_each_gives_from_then_on(
    client: persist.Client, seed: int
) -> None:
    chance, query, held = random.Random(seed), QUERIES[seed % len(QUERIES)], dict[int, list[tuple[object, ...]]]()
    client.create_view("v", query, indexes="auto").refresh()
    with requests_by_key():
        for time in range(1, 9):
            view = client.view("v")
            if chance.random() < 0.5:
                query = chance.choice(QUERIES)
                view.redefine(query)
            write(client, time, *((chance.choice("abcd"), chance.randrange(4), 1) for _ in range(3)))
            if chance.random() < 0.7:
                view = client.view("v") if chance.random() < 0.7 else view
                view.refresh()
                held[time] = computed(client, query)
            for then, wanted in held.items():
                table = view.snapshot(then).to_arrow()
                assert sorted(tuple(row.values()) for row in table.to_pylist()) == wanted, (then, query)
    assert client.fsck().problems == ()


def test_definitions_that_are_applied_leave_a_view_with_groups_as_it_is(client: persist.Client) -> None:
    client.create_view("v", MEANS, indexes="auto").refresh()
    assert plan_views(client, {"v": Wanted(MEANS)}).is_empty
    plan_views(client, {"v": Wanted(FIRST)}).commit()
    assert groups(client) == []
    assert plan_views(client, {}, prune=True).commit() is not None


def test_definitions_that_are_applied_replace_and_drop_views_that_read_each_other(client: persist.Client) -> None:
    wanted = {"v": Wanted(MEANS), "w": Wanted("SELECT avg(mean::DECIMAL(9, 2)) AS mean FROM v")}
    for name, view in wanted.items():
        client.create_view(name, view.sql, indexes="auto").refresh()
    other = Wanted("SELECT k, max(v)::DOUBLE AS mean FROM t GROUP BY k")
    with pytest.raises(persist.InvalidUsage, match="the view 'w' depends on 'v'"):
        plan_views(client, {"v": other})
    plan_views(client, {**wanted, "v": other}).commit()
    client.view("w").refresh()
    assert rows(client.view("w")) == [(3.5,)]
    client.drop("w").result()
    client.create_view("w", wanted["w"].sql, indexes="auto").refresh()
    plan_views(client, {}, prune=True).commit()
    assert client.collections() == ["t"]
    assert groups(client) == []


def test_errors_name_the_view_and_not_its_groups(client: persist.Client) -> None:
    client.create_view("v", MEANS, indexes="auto").refresh()
    with pytest.raises(CollectionNeeded, match="the views 'v' read it"):
        client.drop("t").result()
    facts = client.create_or_load("facts", key={"k": int}, value={"v": int})
    client.create_view("w", "SELECT sum(v) AS s FROM facts", indexes="auto")
    with pytest.raises(ColumnsNeeded, match="read by the view 'w'"):
        facts.evolve(drop=["v"])
    assert [name for name in client.collections() if name.startswith(".")] == []
    names, holds = get_names_by_id(client), [hold.name for hold in client.load("t").holds() if hold.name]
    assert [format_hold(hold, names) for hold in holds] == ["view v", "view v"]


def test_errors_of_a_view_that_changes_name_its_readers_and_not_their_groups(client: persist.Client) -> None:
    view = client.create_view("v", "SELECT k, v, v + 1 AS x FROM t", key=["k", "v"])
    for name in ("w", "x", "y"):
        client.create_view(name, "SELECT k, avg(x) AS mean FROM v GROUP BY k", indexes="auto")
    view.refresh()
    for query, start in (("SELECT k, v FROM t", None), ("SELECT k, v, 1 AS x FROM t", 0)):
        with pytest.raises(persist.InvalidUsage, match=r"'[wxy]' reads") as refused:
            view.redefine(query, start=start)
        assert GROUPS_PREFIX not in str(refused.value)


def test_what_fails_on_a_row_names_the_view_whose_groups_it_is_for(client: persist.Client) -> None:
    client.create_view("v", "SELECT k, avg(9 // (v - 7)) AS mean FROM t GROUP BY k", indexes="auto").refresh()
    client.rename("v", "shares").result()
    write(client, 1, ("b", 7, 1))
    with pytest.raises(OperatorFailed, match="groups of view shares failed on the record") as failed:
        client.view("shares").refresh()
    assert GROUPS_PREFIX not in str(failed.value)


def test_groups_begin_anew_with_their_view_when_something_is_erased(client: persist.Client) -> None:
    client.create_view("v", MEANS, indexes="auto").refresh()
    client.create_view("w", "SELECT max(mean) AS most FROM v").refresh()
    before = groups(client)
    report = client.load("t").erase([("a", 1)], reason="request 17")
    assert set(report.views) == {"v", "w"}
    assert len(groups(client)) == 1
    assert groups(client) != before
    assert (rows(client.view("v")), rows(client.view("w"))) == ([("a", 4.0), ("b", 3.0)], [(4.0,)])
    write(client, 1, ("a", 5, 3))
    with requests_by_key():
        assert "read t" not in client.view("v").explain_refresh()
    client.view("w").refresh()
    assert rows(client.view("w")) == [(4.75,)]
    assert client.fsck().problems == ()


def test_groups_of_constants_are_complete_for_ever_and_a_step_leaves_them(client: persist.Client) -> None:
    sql = "SELECT k, v + (SELECT sum(x) FROM (VALUES (1), (2)) AS c(x)) AS w FROM t"
    view = client.create_view("v", sql, indexes="auto")
    view.open_state()
    write(client, 1, ("d", 1, 1))
    with requests_by_key():
        client.view("v").refresh()
    assert ("d", 4) in rows(view)


def test_indexes_are_left_out_where_a_column_can_have_none(client: persist.Client) -> None:
    t = client.create_or_load("lists", key={"id": int}, value={"tags": pa.list_(pa.string()), "body": persist.JSON})
    t.write([(1, (["a"], "{}")), (2, (["a"], "[]"))], time=0, seal=1).result()
    for column, type_ in (("tags", "VARCHAR[]"), ("body", "JSON")):
        grouped = f"SELECT {column}, min(id) AS m FROM lists GROUP BY 1"
        view = client.create_view(f"by-{column}", grouped, indexes="auto")
        view.refresh()
        assert view.snapshot().count() == (1 if column == "tags" else 2)
        joined = f"SELECT x.id FROM lists x JOIN lists y ON x.{column} = y.{column}::{type_} WHERE y.id = 1"
        view = client.create_view(f"joined-{column}", joined, indexes="auto")
        view.refresh()
        assert view.snapshot().count() == (2 if column == "tags" else 1)
    assert t.indexes() == []
