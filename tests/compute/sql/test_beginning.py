"""A view has a past: from where it begins it holds its answer at every time of its inputs, however it is refreshed."""

import random
import uuid
import warnings
from collections import Counter

import pytest

import persist
from persist.compute.dataflow.state.costs import Costs
from persist.compute.sql.types import to_arrow
from persist.errors import AsOfCompacted, BeforeViewBegan, InvalidUsage
from persist.sql import InputBehind
from tests.compute.sql.grammar import Grammar
from tests.compute.sql.oracle import TABLES, Changes, Duck, Row, changes
from tests.compute.sql.two_ways import QUIET, contents, requests_by_key

SUM = "SELECT a, sum(b) AS s FROM t GROUP BY a"


def table_of_times(client: persist.Client, times: int) -> persist.Collection:
    """Return a collection to which each time has brought one record."""
    table = client.create_or_load("t", key={"a": int}, value={"b": int})
    for time in range(times):
        table.write([((time, 10 * time), time, 1)], seal=time + 1).result()
    return table


def rows_at(view: persist.View, times: range) -> list[int]:
    return [view.snapshot(time).count() for time in times]


def test_a_view_holds_its_answer_at_each_time_that_its_input_has_had(client: persist.Client) -> None:
    table_of_times(client, 5)
    view = client.create_view("v", SUM)
    view.refresh()
    assert rows_at(view, range(5)) == [1, 2, 3, 4, 5]
    assert view.definition.start == 0


def test_a_view_that_begins_now_begins_at_the_last_sealed_time(client: persist.Client) -> None:
    table_of_times(client, 1)
    assert client.create_view("v", SUM, start="now").definition.start == 0


def test_a_view_begins_where_all_of_its_inputs_can_be_read(client: persist.Client) -> None:
    table = table_of_times(client, 6)
    other = client.create_or_load("u", key={"a": int})
    other.seal(6).result()
    table.allow_compaction(2).result()
    other.allow_compaction(3).result()
    view = client.create_view("v", "SELECT t.a, b FROM t LEFT JOIN u ON t.a = u.a")
    with pytest.raises(BeforeViewBegan):  # Before the first refresh, too.
        view.snapshot(2)
    view.refresh()
    assert rows_at(view, range(3, 6)) == [4, 5, 6]
    with pytest.raises(
        BeforeViewBegan, match=r"as_of=2 is before the view 'v' begins, at 3.*redefine\(\) with start=.*another view"
    ) as caught:
        view.snapshot(2)
    assert isinstance(caught.value, AsOfCompacted | InvalidUsage)
    assert caught.value.start == 3
    with pytest.raises(BeforeViewBegan, match="changes from 3 on"):
        view.changes(start=3)


@pytest.mark.parametrize(("start", "begun"), [(2, 2), ("now", 4), (4, 4)])
def test_a_view_begins_where_it_is_told_to(client: persist.Client, start: int | str, begun: int) -> None:
    table_of_times(client, 5)
    view = client.create_view("v", SUM, start=start)
    view.refresh()
    assert rows_at(view, range(begun, 5)) == [*range(begun + 1, 6)]
    with pytest.raises(BeforeViewBegan):
        view.snapshot(begun - 1)


def test_a_view_may_begin_at_a_moment_and_at_a_time_that_is_yet_to_come(client: persist.Client) -> None:
    table = client.create_or_load("t", key={"a": int}, value={"b": int}, timeline="s")
    table.write([((1, 1), "2026-11-23T12:00Z", 1)], seal="2026-11-23T13:00Z").result()
    view = client.create_view("v", SUM, start="2026-11-23T14:00Z")
    with pytest.warns(InputBehind, match="'v' has no answer yet: it begins at .*14:00"):
        view.refresh()
    assert view.upper == persist.Antichain(0)
    table.write([((2, 1), "2026-11-23T13:30Z", 1)], seal="2026-11-23T14:30Z").result()
    view.refresh()
    assert view.snapshot("2026-11-23T14:00Z").count() == 2
    with pytest.raises(BeforeViewBegan, match=r"13:30.*begins, at .*14:00"):
        view.snapshot("2026-11-23T13:30Z")


@pytest.mark.parametrize("start", [-1, True, 2.5, "later"])
def test_a_start_that_is_no_time_is_refused(client: persist.Client, start: object) -> None:
    table_of_times(client, 2)
    with pytest.raises(InvalidUsage, match="start"):
        client.create_view("v", SUM, start=start)  # type: ignore[arg-type]
    assert "v" not in client.collections()


def test_a_start_before_since_of_an_input_is_refused_with_its_name(client: persist.Client) -> None:
    table_of_times(client, 5).allow_compaction(3).result()
    with pytest.raises(InvalidUsage, match=r"start=1 is before since=3 of 't', which the view reads.*start=3"):
        client.create_view("v", SUM, start=1)


def test_a_view_that_is_there_is_not_begun_otherwise(client: persist.Client) -> None:
    table_of_times(client, 5)
    client.create_view("v", SUM, start=2)
    assert client.create_view("v", SUM).definition.start == 2
    assert client.create_view("v", SUM, start=2).definition.start == 2
    with pytest.raises(InvalidUsage, match=r"begins at 2, and not at 1: .*redefine\(start=1\)"):
        client.create_view("v", SUM, start=1)


def test_a_view_of_views_has_their_past_however_far_they_are(client: persist.Client) -> None:
    table = table_of_times(client, 6)
    below = client.create_view("below", SUM, start=1)
    below.refresh()
    above = client.create_view("above", "SELECT count(*) AS n, sum(s) AS s FROM below")
    assert above.definition.start == 1
    table.write([((9, 1), 6, 1)], seal=7).result()
    above.refresh()
    sums = [int(above.snapshot(time).to_arrow()["n"][0].as_py()) for time in range(1, 7)]
    assert sums == [2, 3, 4, 5, 6, 7]
    assert rows_at(below, range(1, 7)) == sums
    late = client.create_view("late", "SELECT s FROM below", start=6)
    late.refresh()
    assert rows_at(late, range(6, 7)) == [7]


def test_a_view_does_not_reach_back_behind_another_definition_of_what_it_reads(client: persist.Client) -> None:
    table = table_of_times(client, 4)
    below = client.create_view("below", SUM)
    below.refresh()
    below.redefine("SELECT a, sum(b) + 1 AS s FROM t GROUP BY a")
    table.seal(5).result()
    above = client.create_view("above", "SELECT s FROM below")
    above.refresh()
    assert above.definition.start == 4
    assert sorted(above.snapshot(4).to_arrow()["s"].to_pylist()) == [1, 11, 21, 31]
    with pytest.raises(InvalidUsage, match=r"start=2 is before 4, from which on view 'below' holds what it is defined"):
        client.create_view("other", "SELECT s FROM below", start=2)


def test_a_view_can_be_begun_earlier(client: persist.Client) -> None:
    table_of_times(client, 5)
    view = client.create_view("v", SUM, start="now")
    view.refresh()
    view.redefine(start=1)
    view.refresh()
    assert rows_at(view, range(1, 5)) == [2, 3, 4, 5]
    assert client.view("v").definition.start == 1
    view.redefine("SELECT a, b AS s FROM t", start=2)
    view.refresh()
    assert rows_at(view, range(2, 5)) == [3, 4, 5]
    client.create_view("above", "SELECT s FROM v")
    with pytest.raises(InvalidUsage, match="'above' reads it"):
        view.redefine(start=1)
    with pytest.raises(InvalidUsage, match="give a query, or start="):
        view.redefine()


def test_an_input_that_is_behind_is_named_with_by_how_much(client: persist.Client) -> None:
    left = client.create_or_load("t", key={"a": int}, value={"b": int})
    left.write([((1, 1), 0, 1)], seal=1).result()
    right = client.create_or_load("u", key={"a": int})
    right.write([((1, None), time, 1) for time in (1, 2, 3)], seal=4).result()
    with pytest.warns(InputBehind, match=r"'v' sees nothing of 'u', .* at 1: 't' is sealed to 1, 3 behind 'u'"):
        view = client.create_view("v", "SELECT t.a FROM t JOIN u USING (a)")
    with pytest.warns(InputBehind, match="'t' is sealed to 1"):
        view.refresh()
    left.seal(4).result()
    view.refresh()
    assert view.snapshot(3).to_arrow()["a"].to_pylist() == [1, 1, 1]


@pytest.mark.parametrize(("start", "sealed", "by"), [(10, 4, 7), (10, 10, 1), (10, 11, None), (3, 1, 3)])
def test_a_view_whose_inputs_are_not_sealed_to_its_start_says_by_how_much(
    client: persist.Client, start: int, sealed: int, by: int | None
) -> None:
    client.create_or_load("t", key={"a": int}).write([((1, None), 0, 1)], seal=sealed).result()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        client.create_view("v", "SELECT a FROM t", start=start).refresh()
    said = [str(each.message) for each in warned if each.category is InputBehind]
    begins = f"view 'v' has no answer yet: it begins at {start}, and 't' is sealed to {sealed}, {by} behind that"
    assert said == ([] if by is None else [f"{begins}. Seal 't' further"])


def test_nothing_is_said_of_inputs_that_are_sealed_alike_or_without_updates_beyond_that(client: persist.Client) -> None:
    left, right = (client.create_or_load(name, key={"a": int}) for name in ("t", "u"))
    left.write([((1, None), 0, 1)], seal=4).result()
    right.write([((1, None), 3, 1)], seal=9).result()  # It is seen at 3.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        view = client.create_view("v", "SELECT t.a FROM t JOIN u USING (a)")
        view.refresh()
        empty = client.create_or_load("e", key={"a": int})
        empty.seal(20).result()
        client.create_view("w", "SELECT t.a FROM t JOIN e USING (a)").refresh()
    assert view.upper == persist.Antichain(4)


def test_inputs_of_a_timeline_and_of_none_are_told_apart(client: persist.Client) -> None:
    table_of_times(client, 2)
    other = client.create_or_load("u", key={"a": int}, timeline="ms")
    other.write([((1, None), "2026-11-23T12:00Z", 1)], seal="2026-11-23T13:00Z").result()
    with pytest.warns(InputBehind, match=r"'t' has no timeline, and 'u' has ms"):
        client.create_view("v", "SELECT t.a FROM t JOIN u USING (a)")


def test_a_first_refresh_takes_little_at_a_time_and_keeps_what_is_sealed(client: persist.Client) -> None:
    table = client.create_or_load("t", key={"a": int}, value={"b": int})
    for first in range(0, 60, 10):
        table.write([((time, time), time, 1) for time in range(first, first + 10)], seal=first + 10).result()
    view = client.create_view("v", SUM, start=0, memory_budget=1)
    view.live.together.options = {**view.live.options, "costs": Costs(catch_up_updates=12)}
    uppers = []
    commits = client.engine.seqno

    def interrupting(work: persist.Work) -> None:
        uppers.append(client.load("v").upper.time)
        if len(uppers) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), persist.progress(interrupting):
        view.refresh()
    sealed = view.upper.time
    assert sealed is not None
    assert 0 < sealed < 60
    client.view("v").refresh()
    assert client.engine.seqno - commits >= 3
    assert rows_at(view, range(60)) == [*range(1, 61)]


@pytest.mark.thorough(except_every=4)
@pytest.mark.parametrize("seed", range(4))
def test_a_view_equals_recomputation_at_every_time_since_its_start(seed: int) -> None:
    check_past(SUM if seed % 2 else "SELECT t.a, t.b, u.s FROM t LEFT JOIN u ON t.a = u.a", seed)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::persist.sql.UnboundedState")
@pytest.mark.parametrize("block", range(6))
def test_random_views_of_random_histories_equal_recomputation_at_every_time(block: int) -> None:
    assert sum(tried(seed) for seed in range(7000 + 8 * block, 7008 + 8 * block)) >= 2


def tried(seed: int) -> bool:
    try:
        check_past(Grammar(seed).query(), seed)
    except InvalidUsage:
        return False
    except Exception as error:
        if "duckdb" in type(error).__module__:
            return False
        raise
    return True


def check_past(sql: str, seed: int) -> None:
    """Raise AssertionError unless a view that is made late has DuckDB's answer at each time since its start."""
    chance = random.Random(seed)
    history: list[Changes] = changes(seed, steps=8, size=4)
    wants: list[Counter[Row]] = []
    with requests_by_key(), persist.open(f"memory://{uuid.uuid4()}", settings=QUIET) as client:
        duck, state = Duck(TABLES), {name: Counter[Row]() for name in TABLES}
        tables = {
            name: client.create_or_load(name, key={column: to_arrow(kind) for column, kind in columns})
            for name, columns in TABLES.items()
        }
        made = chance.randrange(2, len(history))
        view, start = None, 0
        for time, batch in enumerate(history):
            for name, table in tables.items():
                for row, diff in batch.get(name, ()):
                    state[name][row] += diff
                duck.set(name, state[name])
                table.write([((row, None), time, diff) for row, diff in batch.get(name, ())], seal=time + 1).result()
            wants.append(duck.answer(sql))
            if time == made:
                start = chance.randrange(time + 1)
                if chance.random() < 0.5:
                    chance.choice([*tables.values()]).allow_compaction(start).result()
                    view = client.create_view("v", sql)
                    start = view.definition.start
                else:
                    view = client.create_view("v", sql, start=start)
            if view is not None and (time == len(history) - 1 or chance.random() < 0.5):
                view.refresh()
                for as_of in range(start, time + 1):
                    have = contents(view, as_of)
                    assert have == wants[as_of], (
                        f"as of {as_of}, begun at {start}\n{sql}\n"
                        f"DuckDB: {wants[as_of] - have}\nthis:   {have - wants[as_of]}"
                    )
        duck.close()
        assert client.fsck().problems == ()
