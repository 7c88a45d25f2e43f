"""Each query of the corpus over one history has the same updates however it is refreshed, and those of DuckDB."""

import uuid
from collections import Counter

import pytest

import persist
from persist import View
from persist.compute.sql.compile import plan_query
from persist.compute.sql.types import to_arrow
from tests.compute.sql.corpus import QUERIES
from tests.compute.sql.oracle import TABLES, Changes, Duck, Row, changes, comparable, schemas
from tests.compute.sql.two_ways import QUIET, let_duckdb_build, requests_by_key, way_of

TIMES = 6
LATE = 2  # One view is refreshed cold at every so many times only.


def updates(view: View) -> Counter[Row]:
    """Return the contents of a view at the first time, and its updates at all later times, by time and record."""
    names = [name for name, _ in view.definition.columns]
    tables = [(0, view.snapshot(0, form="diff").to_arrow()), (None, view.changes(1, TIMES).to_arrow())]
    found = Counter[Row]()
    for time, table in tables:
        times = [time] * len(table) if time is not None else table["_time"].to_pylist()
        columns = [table[name].to_pylist(maps_as_pydicts="strict") for name in names]
        for at, diff, *record in zip(times, table["_diff"].to_pylist(), *columns, strict=True):
            found[at, *map(comparable, record)] += diff
    return Counter({update: diff for update, diff in found.items() if diff})


def expected(answers: list[Counter[Row]]) -> Counter[Row]:
    """Return the updates between DuckDB's answers at all times."""
    found = Counter[Row]()
    for time, answer in enumerate(answers):
        before = answers[time - 1] if time else Counter[Row]()
        for record in answer.keys() | before.keys():
            if diff := answer[record] - before[record]:
                found[time, *record] = diff
    return found


def with_distinct_names(sql: str) -> str:
    """Return a query whose columns have different names, as a view needs."""
    names = [name for name, _ in plan_query(sql, schemas(TABLES))[1]]
    if len({*names}) == len(names):
        return sql
    return f"SELECT * FROM ({sql}) AS answer({', '.join(f'c{number}' for number in range(len(names)))})"


def check_updates(sql: str, steps: list[Changes]) -> None:
    """Raise AssertionError unless a query has the updates of DuckDB's answers, whichever way its view is refreshed."""
    with requests_by_key(), persist.open(f"memory://{uuid.uuid4()}", settings=QUIET) as client:
        duck, state, answers = Duck(TABLES), {name: Counter[Row]() for name in TABLES}, list[Counter[Row]]()
        tables = {
            name: client.create_or_load(name, key={column: to_arrow(kind) for column, kind in columns})
            for name, columns in TABLES.items()
        }
        views: dict[str, View] = {}
        for time, batch in enumerate(steps):
            for name, table in tables.items():
                for row, diff in batch[name]:
                    state[name][row] += diff
                duck.set(name, state[name])
                table.write([((row, None), time, diff) for row, diff in batch[name]], seal=time + 1).result()
            answers.append(duck.answer(sql))
            if not views:
                views = {name: client.create_view(name, with_distinct_names(sql)) for name in ("open", "cold", "late")}
                views["open"].open_state()
            for name, view in views.items():
                if name != "late" or time % LATE == 0 or time == TIMES - 1:
                    view.refresh()
                    assert name != "open" or way_of(view) == "state"
                    if name != "open":
                        view.close()
        duck.close()
        views["built"] = client.create_view("built", with_distinct_names(sql))
        let_duckdb_build(views["built"])
        views["built"].refresh()
        for name, view in views.items():
            have, want = updates(view), expected(answers)
            assert have == want, f"{name}: {sql}\nDuckDB: {want - have}\nthis:   {have - want}"


@pytest.mark.thorough(except_every=270)
@pytest.mark.filterwarnings("ignore::persist.sql.UnboundedState")
@pytest.mark.parametrize("sql", QUERIES)
def test_a_query_has_the_same_updates_at_all_times_by_state_cold_refreshes_first_builds_and_by_duckdb(sql: str) -> None:
    if any(kind == "null" for _, kind in plan_query(sql, schemas(TABLES))[1]):
        with pytest.raises(persist.InvalidUsage, match="which collections cannot hold: cast it"):
            check_updates(sql, changes(3, steps=TIMES, size=5))
    else:
        check_updates(sql, changes(3, steps=TIMES, size=5))
