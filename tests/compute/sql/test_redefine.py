"""Views that are given another definition: what was sealed stays, and what comes is what the new query gives."""

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import persist
from persist import View
from persist.api.collection import Collection
from persist.sql import Wanted, open_together, plan_views
from tests.compute.sql.test_views import rows
from tests.support.tiers import examples

SUMS = "SELECT k, sum(n) AS total FROM facts GROUP BY k"
LARGE = "SELECT k, sum(n) AS total FROM facts WHERE n > 1 GROUP BY k"
MOST = "SELECT max(total) AS most FROM sums"


def facts_of(client: persist.Client, name: str = "facts") -> Collection:
    facts = client.create_or_load(name, key={"id": pa.int64()}, value={"k": pa.string(), "n": pa.int64()})
    facts.write([((1, ("a", 1)), 1, 1), ((2, ("a", 5)), 1, 1), ((3, ("b", 1)), 1, 1)], seal=2).result()
    return facts


def test_a_new_definition_holds_from_one_time_on_and_what_was_sealed_stays(client: persist.Client) -> None:
    facts = facts_of(client)
    sums = client.create_view("sums", SUMS)
    before = sums.id
    sums.redefine(LARGE)
    assert (sums.id, sums.sql, sums.definition.number, sums.definition.since) == (before, LARGE, 2, 2)
    assert sums.refresh() == persist.Antichain(2)
    assert rows(sums) == [("a", 6), ("b", 1)]
    facts.write([((4, ("c", 2)), 2, 1)], seal=4).result()
    assert sums.refresh() == persist.Antichain(4)
    assert rows(sums, 1) == [("a", 6), ("b", 1)]
    assert rows(sums, 2) == [("a", 5), ("c", 2)]
    changes = sums.changes(2, 4).to_arrow().to_pylist()
    assert sorted((c["k"], int(c["total"]), c["_time"], c["_diff"]) for c in changes) == [
        ("a", 5, 2, 1), ("a", 6, 2, -1), ("b", 1, 2, -1), ("c", 2, 2, 1)
    ]  # fmt: skip
    assert f"definition 2 holds from 2 on\ndefinition 1, from 0 on: {SUMS}" in sums.explain()
    assert "redefine" in client.history().column("operations").to_pylist().__repr__()
    assert client.fsck().problems == ()


def test_views_on_a_view_switch_with_it_in_one_commit(client: persist.Client) -> None:
    facts, others = facts_of(client), facts_of(client, "others")
    sums, most = client.create_view("sums", SUMS), client.create_view("most", MOST)
    sums.redefine(SUMS.replace("facts", "others"))
    facts.drop().result()
    others.write([((9, ("z", 40)), 2, 1)], seal=3).result()
    before = client.seqno
    assert most.refresh() == persist.Antichain(3)
    records = client.history().filter(pc.field("seqno") > before).to_pylist()
    [sealed] = [{*each["collections"]} for each in records if "seal" in str(each["operations"])]
    assert sealed >= {"most", "sums"}
    assert (sums.upper, rows(most, 1), rows(most, 2)) == (persist.Antichain(3), [(6,)], [(40,)])
    with pytest.raises(persist.errors.CollectionNeeded, match="'most', 'sums' read it"):
        others.drop().result()


def test_columns_come_and_go_with_a_definition_and_the_key_stays(client: persist.Client) -> None:
    facts = facts_of(client)
    sums = client.create_view("sums", SUMS)
    sums.redefine("SELECT count(*) AS many, k FROM facts GROUP BY k")
    facts.seal(3).result()
    sums.refresh()
    assert sums.schema.names == ("k", "many")
    assert rows(sums) == [(1, "b"), (2, "a")]
    assert rows(client.load("sums"), 1) == [(None, "a"), (None, "b")]
    with pytest.raises(persist.InvalidUsage, match=r"key=\('k',\) are not distinct columns of the query"):
        sums.redefine("SELECT count(*) AS many FROM facts")
    with pytest.raises(persist.InvalidUsage, match="key column 'k' of view 'sums' is of type text"):
        sums.redefine("SELECT n AS k, count(*) AS many FROM facts GROUP BY n")
    with pytest.raises(persist.errors.SchemaMismatch, match="'many'"):
        sums.redefine("SELECT k, 'x' || count(*) AS many FROM facts GROUP BY k")


def test_what_another_view_reads_stays_as_it_is(client: persist.Client) -> None:
    facts_of(client)
    sums = client.create_view("sums", SUMS)
    client.create_view("most", MOST)
    with pytest.raises(persist.InvalidUsage, match=r"the view 'most' reads column 'total' .* query lacks it"):
        sums.redefine("SELECT k, count(*) AS many FROM facts GROUP BY k")
    with pytest.raises(persist.InvalidUsage, match="in a circle"):
        sums.redefine("SELECT 'x' AS k, most AS total FROM most")
    with pytest.raises(persist.InvalidUsage, match="did you mean 'facts'"):
        sums.redefine("SELECT k, sum(n) AS total FROM fact GROUP BY k")
    assert (sums.definition.number, sums.sql) == (1, SUMS)


def test_a_query_that_means_the_same_commits_no_definition(client: persist.Client) -> None:
    facts_of(client)
    sums = client.create_view("sums", SUMS, start="now")
    sums.refresh()
    before = client.seqno
    sums.redefine("SELECT k, sum(n) AS total FROM facts GROUP BY k -- the same")
    assert (client.seqno, sums.definition.number) == (before, 1)


def test_a_view_that_fails_goes_on_with_a_definition_that_does_not(client: persist.Client) -> None:
    facts = facts_of(client)
    failing = client.create_view("failing", "SELECT k, id, n * 2 AS twice FROM facts WHERE n < 100", key=["id"])
    failing.refresh()
    facts.write([((7, ("z", -(2**62) - 1)), 2, 1)], seal=3).result()
    with pytest.raises(persist.PersistError):
        failing.refresh()
    failing.redefine("SELECT k, id, n AS twice FROM facts")
    assert failing.refresh() == persist.Antichain(3)
    assert rows(failing)[-1] == ("z", 7, -(2**62) - 1)


def test_a_view_whose_columns_became_too_narrow_goes_on_with_a_definition_of_the_wider_ones(
    client: persist.Client,
) -> None:
    small = client.create_or_load("small", key={"id": pa.int64()}, value={"n": pa.int32()})
    small.write([((1, 1), 0, 1)], seal=1).result()
    view = client.create_view("read", "SELECT id, n FROM small", key=["id"])
    view.refresh()
    small.evolve(widen={"n": pa.int64()})
    client.load("small").write([((2, 2**40), 1, 1)], seal=2).result()
    with pytest.raises(persist.errors.SchemaMismatch, match="cannot hold"):
        view.refresh()
    view.redefine("SELECT id, n + 0 AS n FROM small")
    assert view.refresh() == persist.Antichain(2)
    assert rows(view) == [(1, 1), (2, 2**40)]


def test_a_definition_that_cannot_be_computed_is_refused(client: persist.Client) -> None:
    facts = facts_of(client)
    sums = client.create_view("sums", SUMS)
    with pytest.raises(persist.InvalidUsage, match="cannot be computed on any rows"):
        sums.redefine("SELECT k, 'x'::BIGINT AS total FROM facts")
    facts.seal(3).result()
    assert sums.refresh() == persist.Antichain(3)


def test_an_input_that_cannot_be_read_at_the_switch_is_refused(client: persist.Client) -> None:
    facts, others = facts_of(client), facts_of(client, "others")
    sums = client.create_view("sums", SUMS)
    facts.seal(9).result()
    with pytest.raises(persist.InvalidUsage, match=r"sealed to 9, so what it reads must be readable at 8.*'others'"):
        sums.redefine(SUMS.replace("facts", "others"))
    others.seal(20).result()
    others.allow_compaction(15).result()
    with pytest.raises(persist.InvalidUsage, match="'others' is at the times from 15 to 19"):
        sums.redefine(SUMS.replace("facts", "others"))
    assert [hold.name for hold in others.holds() if hold.name] == []


@pytest.mark.parametrize(
    ("sealed", "since", "is_readable"), [(9, 8, True), (9, 9, False), (8, 0, False), (30, 7, True)]
)
def test_an_input_is_readable_at_the_switch_from_since_to_its_last_time(
    client: persist.Client, sealed: int, since: int, is_readable: bool
) -> None:
    facts, others = facts_of(client), facts_of(client, "others")
    sums = client.create_view("sums", SUMS)
    facts.seal(9).result()
    others.seal(sealed).result()
    if since:
        others.allow_compaction(since).result()
    if is_readable:
        sums.redefine(SUMS.replace("facts", "others"))
        assert (sums.definition.since, rows(sums, 8)) == (9, [("a", 6), ("b", 1)])
        return
    with pytest.raises(persist.InvalidUsage, match="sealed to 9, so what it reads must be readable at 8"):
        sums.redefine(SUMS.replace("facts", "others"))


def test_views_that_are_sealed_differently_far_do_not_switch_together(client: persist.Client) -> None:
    facts, others = facts_of(client), facts_of(client, "others")
    sums = client.create_view("sums", SUMS)
    client.create_view("both", "SELECT total FROM sums JOIN others USING (k)").refresh()
    facts.seal(7).result()
    sums.refresh()
    with pytest.raises(persist.InvalidUsage, match=r"must switch together.*'sums' to 7, 'both' to 2\. Seal what they"):
        sums.redefine(LARGE)
    others.seal(7).result()
    sums.redefine(LARGE)
    assert sums.definition.since == 7


def test_a_view_that_was_never_refreshed_begins_where_what_it_reads_switches(client: persist.Client) -> None:
    facts = facts_of(client)
    sums = client.create_view("sums", SUMS)
    sums.refresh()
    above = client.create_view("above", "SELECT k FROM sums")
    facts.seal(5).result()
    sums.redefine(LARGE)
    facts.seal(6).result()
    above.refresh()
    assert rows(above) == [("a",)]


def test_a_rehearsal_computes_and_writes_nothing(client: persist.Client) -> None:
    facts_of(client)
    sums = client.create_view("sums", SUMS)
    before = client.seqno
    assert sums.live.operators() == []
    reports = sums.live.rehearse()
    assert (client.seqno, sums.upper) == (before, persist.Antichain(0))
    assert max(report.updates for report in reports) >= 3
    sums.open_state()
    assert [report.title for report in sums.live.operators()][:1] == [report.title for report in reports][:1]


@pytest.mark.parametrize("anew", ["begins anew", "is replaced"])
def test_a_view_that_is_made_anew_keeps_its_description_and_its_retention(anew: str, client: persist.Client) -> None:
    facts_of(client)
    sums = client.create_view("sums", SUMS)
    group, total = sums.definition.columns[0][0], sums.definition.columns[-1][0]
    sums.describe(
        comment="by group", properties={"owner": "us"}, columns={group: "the group", total: "the sum"}
    ).result()
    sums.retain(7).result()
    if anew == "begins anew":
        sums.redefine(None, start=1)
    else:
        plan_views(client, {"sums": Wanted(f"SELECT {group}, 1 AS other FROM ({SUMS})", (group,))}).commit()
    now = client.view("sums").handle.contents()
    assert (now.about.comment, now.about.properties, now.retention) == ("by group", {"owner": "us"}, 7)
    words = {
        now.schema.names[now.schema.ids.index(int(at))]: column.comment for at, column in now.about.columns.items()
    }
    assert words == {group: "the group"} | ({total: "the sum"} if anew == "begins anew" else {})


def test_a_view_that_another_one_reads_is_not_begun_anew(client: persist.Client) -> None:
    facts_of(client)
    sums = client.create_view("sums", SUMS, indexes="auto")
    with pytest.raises(persist.InvalidUsage, match="redefine: give a query, or start="):
        sums.redefine(None)
    sums.redefine(None, start=1)  # Its own groups are not readers.
    client.create_view("most", MOST)
    with pytest.raises(persist.InvalidUsage, match=r"view 'sums' cannot begin anew as long as 'most' reads it: drop"):
        sums.redefine(LARGE, start=0)
    assert (sums.definition.start, sums.sql) == (1, SUMS)


def test_who_refreshes_with_the_old_definition_takes_up_the_new_one(tmp_path: Path) -> None:
    location = str(tmp_path / "location")
    with persist.open(location) as one, persist.open(location) as other:
        facts = facts_of(one)
        mine = one.create_view("sums", SUMS)
        theirs: View = other.view("sums")
        with open_together([other.view("sums")]) as together:
            theirs.refresh()
            together.refresh()
            mine.redefine(LARGE)
            facts.write([((4, ("c", 2)), 2, 1)], seal=3).result()
            assert theirs.refresh() == persist.Antichain(3)
            assert (theirs.sql, rows(theirs)) == (LARGE, [("a", 5), ("c", 2)])
            mine.redefine(SUMS)
            facts.seal(4).result()
            together.refresh()
        assert (rows(mine, 2), rows(mine, 3)) == ([("a", 5), ("c", 2)], [("a", 6), ("b", 1), ("c", 2)])


def test_of_two_definitions_that_are_given_at_once_one_is_refused(tmp_path: Path) -> None:
    location = str(tmp_path / "location")
    with persist.open(location) as one, persist.open(location) as other:
        facts_of(one)
        first, second = one.create_view("sums", SUMS), other.view("sums")
        first.refresh()
        with pytest.raises(persist.errors.ViewRedefined, match="its definition 2 now, and not 1"):
            _submit_late(second, first)
        assert second.refresh() == persist.Antichain(2)
        assert other.view("sums").sql == LARGE


def _submit_late(view: View, other: View) -> None:
    """Let another one come between what a view finds and what it commits."""
    from persist.compute.sql.redefine import plan_redefinition

    found = plan_redefinition(view.handle.engine, view.handle, SUMS + " HAVING sum(n) > 3")
    assert found is not None
    other.redefine(LARGE)
    view.handle.engine.submit("redefine", *found).result()


QUERIES = [
    SUMS,
    LARGE,
    "SELECT facts.k AS k, sum(others.n) AS total FROM facts JOIN others USING (id) GROUP BY facts.k",
    "SELECT k, sum(n) AS total FROM (SELECT * FROM facts UNION ALL SELECT * FROM others) GROUP BY k",
    "SELECT k, sum(n) AS total FROM facts WHERE n > (SELECT avg(n) FROM others) GROUP BY k",
]


@pytest.mark.parametrize("seed", range(examples(12)))
def test_rule_19_whatever_definitions_come_each_time_is_what_the_one_then_gives(seed: int) -> None:
    chance = random.Random(seed)
    with persist.open(f"memory://redefine {seed}") as client:
        inputs = [facts_of(client), facts_of(client, "others")]
        sums, most = client.create_view("sums", SUMS), client.create_view("most", MOST)
        most.refresh()
        given: dict[int, str] = {0: SUMS}
        upper, alive = 2, {name: {1: ("a", 1), 2: ("a", 5), 3: ("b", 1)} for name in ("facts", "others")}
        history = {1: {name: dict(records) for name, records in alive.items()}}
        for _ in range(8):
            if chance.random() < 0.5:
                (most if chance.random() < 0.5 else sums).refresh()
            if chance.random() < 0.5:
                query = chance.choice(QUERIES)
                sums.redefine(query)
                given[upper] = query
            for each in inputs:
                records = alive[each.name]
                for _ in range(chance.randrange(4)):
                    id_ = chance.randrange(6)
                    if id_ in records:
                        each.write([((id_, records.pop(id_)), upper, -1)])
                    else:
                        records[id_] = (chance.choice("abc"), chance.randrange(-3, 9))
                        each.write([((id_, records[id_]), upper, 1)])
                each.seal(upper + 1).result()
            history[upper] = {name: dict(records) for name, records in alive.items()}
            upper += 1
        most.refresh()
        assert (sums.upper, most.upper) == (persist.Antichain(upper), persist.Antichain(upper))
        for time in range(1, upper):
            query = given[max(at for at in given if at <= time)]
            expected = _answer(query, history[time])
            assert rows(sums, time) == expected, (time, query)
            assert rows(most, time) == [(max((total for _, total in expected), default=None),)]
        assert client.fsck().problems == ()


def _answer(query: str, tables: dict[str, dict[int, tuple[str, int]]]) -> list[tuple[Any, ...]]:
    import duckdb

    with duckdb.connect() as base:
        for name, records in tables.items():
            base.execute(f"CREATE TABLE {name} (id BIGINT, k VARCHAR, n BIGINT)")
            for id_, (k, n) in records.items():
                base.execute(f"INSERT INTO {name} VALUES (?, ?, ?)", [id_, k, n])
        return sorted(((k, None if n is None else int(n)) for k, n in base.execute(query).fetchall()), key=repr)


@pytest.mark.parametrize("key", [True, 5, [5], {"k": 1}, {"k"}])
def test_a_key_of_a_view_is_a_list_of_names(client: persist.Client, key: Any) -> None:
    facts_of(client)
    with pytest.raises(persist.InvalidUsage, match="is not a list of names of columns"):
        client.create_view("sums", SUMS, key=key)
